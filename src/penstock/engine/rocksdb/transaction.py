"""Read transactions on a RocksDB database; its write transactions are `overlay.OverlayWrite`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.engine.rocksdb.view import RocksdbView
from penstock.engine.transaction import HeldRead

if TYPE_CHECKING:
    from penstock.engine.rocksdb.engine import RocksdbEngine
    from penstock.engine.rocksdb.files import Secondary


class RocksdbRead(HeldRead[RocksdbView]):
    """A snapshot of the database, or a secondary instance held still."""

    __slots__ = ("_instance", "_store")

    def __init__(self, engine: RocksdbEngine, view: RocksdbView, instance: Secondary | None) -> None:
        super().__init__(engine, view)
        self._store = engine
        self._instance = instance

    def rocksdb_objects(self) -> Iterable[object]:
        """What of this must not be destroyed in a forked child."""
        if self._view is not None:
            yield from self._view.rocksdb_objects()
        if self._instance is not None:
            yield self._instance.db

    def close(self) -> None:
        if not self._store.is_foreign_process():  # forked: what this holds is the parent's, and must not be touched
            super().close()

    def _let_go(self, view: RocksdbView) -> None:
        view.drop()
        instance, self._instance = self._instance, None
        if instance is not None:
            self._store._end_read(instance)

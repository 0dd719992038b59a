"""What the read transactions of memory, file, rocksdb and slatedb do the same way: beginning, ending, and refusing use
when they are over.

Write transactions are of two shapes. Engines that commit by batch (those four) share `overlay.OverlayWrite`; SQLite has
transactions of its own, and `sqlite/transaction.py` wraps them. Either way the transaction counts its `writes` itself,
and its engine has `_begin`, `_commit` and `_end_turn`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.engine.base import transaction_is_over
from penstock.engine.contract import Snapshot

V = TypeVar("V", bound=Snapshot)


class Closable(Protocol):
    """What a read transaction asks of its engine."""

    _closed: bool


class HeldRead(Generic[V]):
    """A read transaction over a view that stands still as long as it is held; one that is dropped is closed."""

    __slots__ = ("__weakref__", "_engine", "_view")

    def __init__(self, engine: Closable, view: V) -> None:
        self._engine = engine
        self._view: V | None = view

    def get(self, key: bytes) -> bytes | None:
        return self._usable().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in self._usable().scan(start, stop, reverse=reverse):
            yield row
            self._usable()

    @property
    def is_open(self) -> bool:
        return self._view is not None

    def _usable(self) -> V:
        if self._view is None or self._engine._closed:
            raise transaction_is_over()
        return self._view

    def close(self) -> None:
        """Lets go of the snapshot; a second call does nothing."""
        view, self._view = self._view, None
        if view is not None:
            self._let_go(view)

    def _let_go(self, view: V) -> None:
        """For engines whose views hold something that has to be given back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted before it was made
            self.close()

"""The engines the contract suite runs against: adding an engine is adding a line to KINDS."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from penstock.core.engine.contract import Durability, Engine
from penstock.core.engine.url import open_engine

_names = itertools.count()


@dataclass(frozen=True)
class Kind:
    """One engine, and what it does by design rather than by contract."""

    scheme: str
    on_disk: bool = True
    shared: bool = False
    """Several processes may write one store."""
    second_open: bool = False
    """Two engine objects of one process may have one store open for writing."""
    shrinks: bool = True
    """`reclaim` makes the store smaller."""
    reads_beside_writer: bool = True
    """A reader in another process can have the store open while a writer has."""
    process_durability: bool = True
    """`durability="process"` is something else than "disk"."""


KINDS = [
    Kind("memory", on_disk=False, second_open=True, reads_beside_writer=False),
    Kind("sqlite", shared=True, second_open=True),
    Kind("rocksdb"),
    Kind("file"),
    Kind("slatedb", shrinks=False, process_durability=False),
]


class Store:
    """A place where one kind of engine keeps its store, opened as often as a test needs."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.url = f"{kind.scheme}:{folder / 'store'}" if kind.on_disk else f"memory:contract-{next(_names)}"
        self._open: list[Engine] = []

    def open(self, *, read_only: bool = False, durability: Durability = "disk") -> Engine:
        engine = open_engine(self.url, read_only=read_only, durability=durability)
        self._open.append(engine)
        return engine

    def backup_url(self) -> tuple[str, str]:
        """Where a backup goes, as `backup` and as `open_engine` want it."""
        if self.kind.on_disk:
            path = str(self.folder / "copies" / "backup")
            return path, f"{self.kind.scheme}:{path}"
        return (name := f"memory:contract-{next(_names)}-copy"), name

    def close(self) -> None:
        for engine in self._open:
            engine.close()

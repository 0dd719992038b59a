"""The engine without a disk: a sorted map in this process, for tests and for temporary journals."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

from penstock.core.engine.base import END, BatchEngine, HeldRead, OverlayWrite
from penstock.core.engine.contract import Durability, EngineView
from penstock.core.engine.sorted_map import SortedMap
from penstock.errors import ConfigError, NoStore


class _MemoryStore:
    """The data that several engine objects opened under one name share."""

    def __init__(self) -> None:
        self.map: SortedMap[bytes] = SortedMap()
        self.lock = threading.Lock()
        self.turn = threading.Lock()
        self.commits = 0
        self.bytes = 0
        self.last_writer: object = None


_named: dict[str, _MemoryStore] = {}
_naming = threading.Lock()


class MemoryEngine(BatchEngine):
    """A store in this process's memory: its own, or one shared by name with other engine objects."""

    scheme = "memory"
    shared: ClassVar[bool] = False

    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk") -> None:
        super().__init__(None, read_only=read_only, durability=durability)
        with _naming:
            if path and path not in _named and read_only:
                raise NoStore(f"there is no store memory:{path}; open it for writing once to make it")
            self._store = _named.setdefault(path, _MemoryStore()) if path else _MemoryStore()
        # Engine objects of one name take turns like the threads of one object.
        self._turn = self._store.turn

    def read(self) -> HeldRead:
        self._check_usable()
        begun = time.monotonic()
        with self._store.lock:
            frozen = self._store.map.snapshot()
        return HeldRead(self, begun, frozen, frozen)

    def _begin(self) -> tuple[EngineView, bool]:
        self._take_turn()
        return self._store.map, self._store.last_writer is not self

    def _commit(self, changes: OverlayWrite) -> None:
        store = self._store
        with store.lock:
            for start, stop in changes.ranges:
                for key, gone in store.map.delete_range(start, stop):
                    store.bytes -= len(key) + len(gone)
            for key, value in changes.changes.items():
                old = store.map.delete(key) if value is None else store.map.put(key, value)
                if old is not None:
                    store.bytes -= len(key) + len(old)
                if value is not None:
                    store.bytes += len(key) + len(value)
            store.commits += 1
            store.last_writer = self

    def changes(self) -> int:
        self._check_usable()
        return self._store.commits

    def _flush(self) -> None:
        return

    def reclaim(self) -> None:
        self._check_writable()

    def size(self) -> int:
        self._check_usable()
        return self._store.bytes

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Copies the store to another name: `backup("memory:copy")` makes what `open("memory:copy")` opens."""
        self._check_usable()
        scheme, _, name = os.fspath(destination).partition(":")
        if scheme != "memory" or not name:
            raise ConfigError(f"a memory store is backed up to memory:<name>, not to {os.fspath(destination)!r}")
        copy = _MemoryStore()
        with self.read() as snapshot:
            for key, value in snapshot.scan(b"", END):
                copy.map.put(key, value)
                copy.bytes += len(key) + len(value)
        with _naming:
            if name in _named:
                raise ConfigError(f"memory:{name} exists already; a backup never overwrites: give it a new name")
            _named[name] = copy

    def _close(self) -> None:
        self._closed = True

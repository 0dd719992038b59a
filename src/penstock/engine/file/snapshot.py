"""Reading a file store: keys from memory, values from the file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.engine.base import transaction_is_over
from penstock.engine.file.log import DataFile
from penstock.engine.memory.sorted_map import Frozen, SortedMap

if TYPE_CHECKING:
    from penstock.engine.file.engine import FileEngine


READ_AHEAD = 64
"""Rows a long scan reads in one go, when their values are small and lie close together."""


class FileSnapshot:
    """Keys at one moment, and the file their values lie in."""

    __slots__ = ("_data", "_keys")

    def __init__(self, keys: Frozen[int] | SortedMap[int], data: DataFile) -> None:
        self._keys = keys
        self._data = data

    def get(self, key: bytes) -> bytes | None:
        place = self._keys.get(key)
        return None if place is None else self._data.value(place)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        found = self._keys.scan(start, stop, reverse=reverse)
        ahead = 1  # many a scan is over after its first rows
        while rows := list(islice(found, ahead)):
            yield from zip([key for key, _ in rows], self._data.values([place for _, place in rows]), strict=True)
            ahead = min(2 * ahead, READ_AHEAD)


class FileRead:
    """A snapshot that keeps its file open until it is closed."""

    __slots__ = ("_engine", "_frozen", "_snapshot")

    def __init__(self, engine: FileEngine, frozen: Frozen[int], data: DataFile) -> None:
        self._engine = engine
        self._frozen: Frozen[int] | None = frozen
        self._snapshot: FileSnapshot | None = FileSnapshot(frozen, data)

    def get(self, key: bytes) -> bytes | None:
        return self._usable().get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in self._usable().scan(start, stop, reverse=reverse):
            yield row
            self._usable()

    def _usable(self) -> FileSnapshot:
        if self._snapshot is None or self._engine._closed:
            raise transaction_is_over()
        return self._snapshot

    def close(self) -> None:
        frozen, self._frozen, self._snapshot = self._frozen, None, None
        if frozen is not None:
            frozen.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

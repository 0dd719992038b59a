"""Reading a file store: keys from memory, values from the file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from penstock.engine.file.log import DataFile
from penstock.engine.memory.sorted_map import Frozen, SortedMap
from penstock.engine.transaction import HeldRead

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


class FileRead(HeldRead[FileSnapshot]):
    """A snapshot that keeps its file open until it is closed."""

    __slots__ = ("_frozen",)

    def __init__(self, engine: FileEngine, frozen: Frozen[int], data: DataFile) -> None:
        super().__init__(engine, FileSnapshot(frozen, data))
        self._frozen = frozen

    def _let_go(self, view: FileSnapshot) -> None:
        self._frozen.close()

"""The file engine's index: key → where its value lies, in memory, and saved beside the data so that opening is quick.

The saved index is a shortcut, never the truth: it names the data file it belongs to and how far it goes, and one that
is missing, damaged or of another file is made again from the data. What it does vouch for is that everything up to its
end was on disk when it was written.
"""

from __future__ import annotations

import os
import struct
from array import array
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from penstock.engine.base import END
from penstock.engine.checksum import crc32
from penstock.engine.file.disk import Disk
from penstock.engine.file.log import DELETE, ENTRY, PUT, Operation, place_length
from penstock.engine.memory.sorted_map import Frozen, SortedMap

MAGIC = b"PENSTOCKIDX1"
HEADER = struct.Struct("<12sIQQQQQQ")
_CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Index:
    """The keys of a data file, and how many of its bytes they use."""

    __slots__ = ("live", "map")

    def __init__(self) -> None:
        self.map: SortedMap[int] = SortedMap()
        self.live = 0
        """Bytes of the data file that hold something still wanted; the rest is garbage."""

    def apply(self, operations: list[Operation]) -> None:
        """Carries out a record's operations; doing so twice changes nothing more."""
        for kind, key, place, stop in operations:
            if kind == PUT:
                old = self.map.put(key, place)
                self.live += ENTRY.size + len(key) + place_length(place)
                if old is not None:
                    self.live -= ENTRY.size + len(key) + place_length(old)
            elif kind == DELETE:
                old = self.map.delete(key)
                if old is not None:
                    self.live -= ENTRY.size + len(key) + place_length(old)
            else:
                for gone, old in self.map.delete_range(key, stop):
                    self.live -= ENTRY.size + len(gone) + place_length(old)


@dataclass(frozen=True)
class SavedIndex:
    """An index as it was saved, and the place in the data up to which it goes."""

    index: Index
    end: int
    seq: int


def save_index(
    disk: Disk, folder: Path, keys: Frozen[int], *, salt: int, generation: int, end: int, seq: int, live: int
) -> None:
    """Writes the index of a data file that is on disk up to `end`."""
    names: list[bytes] = []
    places: list[int] = []
    for name, place in keys.scan(b"", END):
        names.append(name)
        places.append(place)
    body = b"".join(
        (
            array("H", map(len, names)).tobytes(),
            array("Q", [place >> 64 for place in places]).tobytes(),
            array("Q", [place & 0xFFFFFFFFFFFFFFFF for place in places]).tobytes(),
            *names,
        )
    )
    facts = HEADER.pack(MAGIC, 0, salt, generation, end, seq, live, len(names))[16:]
    temporary = folder / "index.new"
    descriptor = disk.open(temporary, _CREATE)
    try:
        disk.write(descriptor, MAGIC + crc32(body, crc32(facts)).to_bytes(4, "little") + facts + body, 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, folder / "index")


def load_index(folder: Path, *, salt: int, generation: int) -> SavedIndex | None:
    """The saved index of a data file; None when there is none that can be used."""
    try:
        data = (folder / "index").read_bytes()
    except OSError:
        return None
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        return None
    _, crc, its_salt, its_generation, end, seq, live, count = HEADER.unpack_from(data)
    if its_salt != salt or its_generation != generation or crc != crc32(data[16:]):
        return None
    at = HEADER.size
    lengths, offsets, sizes = array("H"), array("Q"), array("Q")
    for column in (lengths, offsets, sizes):
        column.frombytes(data[at : at + count * column.itemsize])
        at += count * column.itemsize
    index = Index()
    put = index.map.put
    bounds = accumulate(lengths, initial=at)
    begin = next(bounds)
    for stop, offset, size in zip(bounds, offsets, sizes, strict=True):
        put(data[begin:stop], offset << 64 | size)
        begin = stop
    index.live = live
    return SavedIndex(index, end, seq)

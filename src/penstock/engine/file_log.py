"""The file engine's data file: a header, then one record per commit.

    header   magic "PENSTOCK", crc, version, salt, generation, base            64 bytes, padded with zeros
    record   head: magic, crc, offset, seq, synced, table bytes, value bytes, kind
             table: one entry per operation: kind, lengths, crc of the value, key
             values, one after the other

The crc of a record covers its head and table, and starts from the file's salt; every value has its own crc in the
table. With its own offset in the head, a record is valid in one place of one file only: bytes that merely look like one
(a copy of a store kept as a value, the rest of an overwritten record) never are. `seq` counts commits without a gap;
`synced` says up to which commit the file was on disk when the record was written. So a bad record that a later one
calls synced is corruption; one that nothing vouches for is the torn end of a crash. Zeros after the last record are
reserved space.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from penstock.durable import sync_file, sync_folder
from penstock.engine.base import END
from penstock.engine.checksum import crc32
from penstock.engine.contract import MAX_KEY_BYTES
from penstock.engine.sorted_map import Frozen, SortedMap
from penstock.errors import ConfigError, Corrupt, StorageError

VERSION = 1
FILE_MAGIC = b"PENSTOCK"
FILE_HEADER = struct.Struct("<8sIIQQQ")
START = 64
"""Where the first record begins."""

RECORD_MAGIC = b"\xabPnR"
HEAD = struct.Struct("<4sIQQQIQI")
HEAD_BODY = struct.Struct("<QQQIQI")
ENTRY = struct.Struct("<BHII")
COMMIT, COPY = 1, 2
"""Kinds of record: a commit, or a piece of the state that compaction (or a backup) copied into a new file."""
PUT, DELETE, RANGE = 1, 2, 3
"""Kinds of operation in a table."""

NO_HEAD = bytes(HEAD.size)
WINDOW = 256 << 10
TOGETHER_BYTES = 256 << 10
"""Values that lie within so many bytes of the file are read in one go."""
MAX_VALUE_BYTES = (1 << 32) - 1
MAX_TABLE_BYTES = (1 << 32) - 1

Operation = tuple[int, bytes, int, bytes]
"""Kind, key, where the value lies (packed), the stop of a range."""


def pack_place(offset: int, length: int, crc: int) -> int:
    """Where a value lies, as one integer: a third of the memory of a tuple."""
    return offset << 64 | length << 32 | crc


def place_length(place: int) -> int:
    return place >> 32 & 0xFFFFFFFF


@dataclass(slots=True)
class Record:
    """A record whose head and table are sound; its values are checked when they are read."""

    offset: int
    end: int
    seq: int
    synced: int
    kind: int
    operations: list[Operation]


class DataFile:
    """An open data file. Its holder can read it, also after compaction put another one in its place."""

    def __init__(self, disk: Disk, path: Path, *, writable: bool) -> None:
        self.disk = disk
        self.path = path
        self.descriptor = -1
        self.descriptor = disk.open(path, os.O_RDWR if writable else os.O_RDONLY)
        header = os.pread(self.descriptor, FILE_HEADER.size, 0)
        if len(header) < FILE_HEADER.size or not header.startswith(FILE_MAGIC):
            raise ConfigError(f"{path} is not a file store: another program made it, or its first bytes are damaged")
        _, crc, version, salt, self.generation, self.base = FILE_HEADER.unpack(header)
        if crc != crc32(header[12:]):
            raise Corrupt("the header of the file is damaged; restore a backup", file=str(path), offset=0)
        if version != VERSION:
            raise ConfigError(
                f"{path} has file store format {version}, this version of penstock reads format {VERSION}; "
                "use the version that made it, or copy its events over"
            )
        self.seed: int = salt & 0xFFFFFFFF
        self.salt: int = salt
        self.inode = os.fstat(self.descriptor).st_ino

    def __del__(self) -> None:
        if self.descriptor >= 0:
            self.disk.close(self.descriptor)
            self.descriptor = -1

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def value(self, place: int) -> bytes:
        """The value at a place, after its checksum was found right."""
        offset, length = place >> 64, place >> 32 & 0xFFFFFFFF
        value = self.read(offset, length)
        if len(value) != length or crc32(value) != place & 0xFFFFFFFF:
            raise Corrupt("a stored value fails its checksum; restore a backup", file=str(self.path), offset=offset)
        return value

    def values(self, places: list[int]) -> Iterable[bytes]:
        """The values at several places; those that lie close together are read in one go."""
        if len(places) == 1:
            return [self.value(places[0])]
        start = min(places) >> 64
        length = max([(place >> 64) + place_length(place) for place in places]) - start
        if length > TOGETHER_BYTES:
            return map(self.value, places)
        data = self.read(start, length)
        values = []
        for place in places:
            at = (place >> 64) - start
            value = data[at : at + place_length(place)]
            if crc32(value) != place & 0xFFFFFFFF:
                self.value(place)  # says what is wrong
            values.append(value)
        return values

    def read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.descriptor, length, offset)
            while len(data) < length:
                more = os.pread(self.descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read at {offset}: {error}") from error
        return data

    def records(self, offset: int, seq: int, size: int) -> Iterator[Record]:
        """The records from an offset on, the first being the one after commit `seq`, until one is not there or bad."""
        window, begin = b"", offset
        ahead = WINDOW
        while True:
            at = offset - begin
            if at + HEAD.size > len(window):
                window, begin, at = self.read(offset, ahead), offset, 0
            head = window[at : at + HEAD.size]
            table_bytes = _table_bytes(head)
            if at + HEAD.size + table_bytes > len(window):
                if offset + HEAD.size + table_bytes > size:
                    return
                window, begin, at = self.read(offset, HEAD.size + table_bytes), offset, 0
            record = self._record(head, window[at + HEAD.size : at + HEAD.size + table_bytes], offset)
            if record is None or record.end > size or record.seq != (seq + 1 if record.kind == COMMIT else self.base):
                return
            yield record
            # Reading far ahead pays for small records; past large values it would read what was not asked for.
            ahead = WINDOW if record.end - offset < WINDOW // 4 else HEAD.size + 4096
            offset, seq = record.end, record.seq

    def _record(self, head: bytes, table: bytes, offset: int) -> Record | None:
        if len(head) < HEAD.size or head[:4] != RECORD_MAGIC:
            return None
        _, crc, place, seq, synced, table_bytes, value_bytes, kind = HEAD.unpack(head)
        if place != offset or len(table) != table_bytes or crc != crc32(table, crc32(head[8:], self.seed)):
            return None
        first = offset + HEAD.size + table_bytes
        return Record(offset, first + value_bytes, seq, synced, kind, _operations(table, first))

    def is_sound(self, record: Record) -> bool:
        """Whether the values of a record are what its table says."""
        try:
            for kind, _, place, _ in record.operations:
                if kind == PUT:
                    self.value(place)
        except Corrupt:
            return False
        return True

    def vouched(self, offset: int, size: int) -> int:
        """The highest `synced` any sound record head after an offset has; 0 when there is none."""
        highest = 0
        at = offset
        while at < size:
            window = self.read(at, 4 << 20)
            found = window.find(RECORD_MAGIC)
            while found >= 0:
                place = at + found
                head = self.read(place, HEAD.size)
                table_bytes = _table_bytes(head)
                if table_bytes and place + HEAD.size + table_bytes <= size:
                    record = self._record(head, self.read(place + HEAD.size, table_bytes), place)
                    if record is not None:
                        highest = max(highest, record.synced)
                found = window.find(RECORD_MAGIC, found + 1)
            at += max(len(window) - len(RECORD_MAGIC) + 1, 1)
        return highest


def _table_bytes(head: bytes) -> int:
    return int.from_bytes(head[32:36], "little") if len(head) == HEAD.size and head[:4] == RECORD_MAGIC else 0


def _operations(table: bytes, first: int) -> list[Operation]:
    operations: list[Operation] = []
    at, place = 0, first
    while at < len(table):
        kind, key_bytes, length, crc = ENTRY.unpack_from(table, at)
        at += ENTRY.size
        key = table[at : at + key_bytes]
        at += key_bytes
        if kind == PUT:
            operations.append((PUT, key, pack_place(place, length, crc), b""))
            place += length
        elif kind == RANGE:
            operations.append((RANGE, key, 0, table[at : at + length]))
            at += length
        else:
            operations.append((DELETE, key, 0, b""))
    return operations


def make_header(salt: int, generation: int, base: int) -> bytes:
    """The first bytes of a new data file whose state begins after commit `base`."""
    body = FILE_HEADER.pack(FILE_MAGIC, 0, VERSION, salt, generation, base)[12:]
    return (FILE_MAGIC + crc32(body).to_bytes(4, "little") + body).ljust(START, b"\0")


def encode(
    changes: dict[bytes, bytes | None],
    ranges: list[tuple[bytes, bytes]],
    *,
    offset: int,
    seq: int,
    synced: int,
    seed: int,
    kind: int = COMMIT,
) -> tuple[bytes, list[Operation]]:
    """The bytes of a record at an offset, and its operations as reading it back would give them."""
    table: list[bytes] = []
    values: list[bytes] = []
    operations: list[Operation] = []
    for start, stop in ranges:
        # Keys have at most MAX_KEY_BYTES bytes, so what a bound has beyond that decides nothing.
        start, stop = start[: MAX_KEY_BYTES + 1], stop[: MAX_KEY_BYTES + 1]
        table += (ENTRY.pack(RANGE, len(start), len(stop), 0), start, stop)
        operations.append((RANGE, start, 0, stop))
    at = 0
    for key, value in changes.items():
        if value is None:
            table += (ENTRY.pack(DELETE, len(key), 0, 0), key)
            operations.append((DELETE, key, 0, b""))
            continue
        length, crc = len(value), crc32(value)
        if length > MAX_VALUE_BYTES:
            raise ConfigError(f"a value of {length} bytes is too large: the file engine takes {MAX_VALUE_BYTES}")
        table += (ENTRY.pack(PUT, len(key), length, crc), key)
        values.append(value)
        operations.append((PUT, key, at << 64 | length << 32 | crc, b""))
        at += length
    entries = b"".join(table)
    if len(entries) > MAX_TABLE_BYTES:
        raise ConfigError(f"one transaction changes too much for one record: {len(changes)} keys")
    body = HEAD_BODY.pack(offset, seq, synced, len(entries), at, kind)
    crc = crc32(entries, crc32(body, seed))
    first = offset + HEAD.size + len(entries) << 64
    return (
        b"".join((RECORD_MAGIC, crc.to_bytes(4, "little"), body, entries, *values)),
        [(kind, key, place + first if kind == PUT else 0, stop) for kind, key, place, stop in operations],
    )


# ── The file engine's index: key → where its value lies, in memory, and saved beside the data so that opening is quick
# The saved index is a shortcut, never the truth: it names the data file it belongs to and how far it goes, and one that
# is missing, damaged or of another file is made again from the data. What it does vouch for is that everything up to
# its end was on disk when it was written.


INDEX_MAGIC = b"PENSTOCKIDX1"
INDEX_HEADER = struct.Struct("<12sIQQQQQQ")
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
    facts = INDEX_HEADER.pack(INDEX_MAGIC, 0, salt, generation, end, seq, live, len(names))[16:]
    temporary = folder / "index.new"
    descriptor = disk.open(temporary, _CREATE)
    try:
        disk.write(descriptor, INDEX_MAGIC + crc32(body, crc32(facts)).to_bytes(4, "little") + facts + body, 0)
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
    if len(data) < INDEX_HEADER.size or not data.startswith(INDEX_MAGIC):
        return None
    _, crc, its_salt, its_generation, end, seq, live, count = INDEX_HEADER.unpack_from(data)
    if its_salt != salt or its_generation != generation or crc != crc32(data[16:]):
        return None
    at = INDEX_HEADER.size
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


# ── Reading a data file from where one is to where it ends: at opening, and by readers that follow a writer ──
# The end is the first place without a sound record. What lies behind it decides what that means: nothing but zeros is
# the plain end; something that no later record calls synced is the torn end of a crash, which the next writer cuts; a
# record that a later one calls synced was once whole, so it is corruption, and is reported as such and never cut.


ZEROS = bytes(1 << 20)


@dataclass(slots=True)
class LogPosition:
    """How far a data file has been read: its end, its newest commit, and the newest one known to be on disk."""

    end: int
    seq: int
    synced: int


def follow(data: DataFile, index: Index, position: LogPosition) -> int:
    """Applies everything after a position and moves it on; the offset from which no record is vouched for."""
    while True:
        size = data.size()
        if size < position.end:
            raise Corrupt(
                f"the file has {size} bytes, fewer than the {position.end} that were on disk; restore a backup",
                file=str(data.path),
                offset=size,
            )
        unsure = _read_records(data, index, position, size)
        beyond = data.read(position.end, HEAD.size)
        if beyond == NO_HEAD[: len(beyond)] or not _was_whole(data, position, size):
            return unsure
        # A writer in another process finished the record while this one was looking: go on from there.


def check_end(data: DataFile, position: LogPosition) -> bool:
    """Whether anything but zeros follows the end; `Corrupt` when it shows that a record was wiped out."""
    size = data.size()
    at = position.end
    while at < size:
        window = data.read(at, len(ZEROS))
        if window != ZEROS[: len(window)]:
            _was_whole(data, position, size)
            return True
        at += max(len(window), 1)
    return False


def _was_whole(data: DataFile, position: LogPosition, size: int) -> bool:
    """False for the torn end of a crash; True when the record is there after all; `Corrupt` when it was once."""
    if data.vouched(position.end, size) <= position.seq:
        return False
    if next(data.records(position.end, position.seq, data.size()), None) is None:
        raise Corrupt(
            f"the record of commit {position.seq + 1} is damaged although it was on disk; restore a backup",
            file=str(data.path),
            offset=position.end,
        )
    return True


def _read_records(data: DataFile, index: Index, position: LogPosition, size: int) -> int:
    """Applies the sound records; the offset of the first one that no other record calls synced."""
    waiting: deque[Record] = deque()
    for record in data.records(position.end, position.seq, size):
        position.synced = max(position.synced, record.seq if record.kind == COPY else record.synced)
        waiting.append(record)
        while waiting and waiting[0].seq <= position.synced:
            _apply(index, position, waiting.popleft())
    unsure = position.end
    for record in waiting:
        if not data.is_sound(record):
            break
        _apply(index, position, record)
    return unsure


def _apply(index: Index, position: LogPosition, record: Record) -> None:
    index.apply(record.operations)
    position.end = record.end
    position.seq = record.seq


# ── The system calls the file engine makes, in one object, so that a test can make the N-th of them fail ──


class Disk:
    """The real disk."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Writes all of the data."""
        done = os.pwrite(descriptor, data, offset)
        if done != len(data):
            view = memoryview(data)
            while done < len(data):
                done += os.pwrite(descriptor, view[done:], offset + done)

    def sync(self, descriptor: int) -> None:
        sync_file(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Reserves zeroed space; overwriting it later makes `sync` cheaper than growing the file."""
        os.posix_fallocate(descriptor, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

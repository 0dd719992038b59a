"""RocksDB's write-ahead log, read to tell what a power cut may take from what it may not.

Takes and merges are not synced, so a power cut may leave a hole before bytes that were kept; the store then comes back
as it was before the hole. Damage to what was acknowledged looks the same. To tell them apart every synced commit begins
with a put of the empty key, which no caller can use, whose value says up to which commit (RocksDB's sequence number)
the log was known to be on disk, with a mark of the database. A log that such a record vouches for beyond the point it
can be read to was damaged.

The log is made of blocks of 32 KiB; a record in it is a masked CRC-32C, a length, a type and the bytes of a batch, or a
piece of one.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.durable import sync_folder
from penstock.errors import Corrupt

BLOCK_BYTES = 32 << 10
HEAD = struct.Struct("<IHB")
BEGINS = (1, 2)
"""The types of a whole record, and of the first piece of one."""
BATCH_HEAD_BYTES = 12
VOUCHER = b"\x01\x00\x10"
"""How a batch begins whose first operation puts sixteen bytes under the empty key."""
EMPTY_KEY = b""
AGAIN = range(5, 9)
"""The types of records in logs that are used again, which penstock's are not. RocksDB waits for the end of one for
ever, and a changed bit makes one of an ordinary record."""


class Voucher:
    """Makes the values of the empty key in one database, which say up to which sequence number all is on disk.

    They carry a mark of the database: bytes of another one's log that a payload holds vouch for nothing here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            identity = (folder / "IDENTITY").read_bytes()
        except OSError:
            identity = b""
        self._mark = hashlib.blake2b(identity, digest_size=8).digest()

    def value(self, sequence: int) -> bytes:
        return sequence.to_bytes(8, "big") + self._mark

    def highest(self) -> int:
        """The highest sequence number that any sound record in the database's logs calls synced."""
        highest = 0
        for path in self._folder.glob("[0-9]*.log"):
            with path.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    highest = self._highest_in(block, highest)
        return highest

    def _highest_in(self, block: bytes, highest: int) -> int:
        # Not from record to record: behind one whose length was changed the others would not be found.
        at = -1
        while (at := block.find(VOUCHER, at + 1)) >= 0:
            head = at - BATCH_HEAD_BYTES - HEAD.size
            value = block[at + len(VOUCHER) :][:16]
            if head < 0 or value[8:] != self._mark or block[head + HEAD.size - 1] not in BEGINS:
                continue
            sequence = int.from_bytes(value[:8], "big")
            if sequence > highest and is_sound(block, head):
                highest = sequence
        return highest


def check_types(folder: Path) -> None:
    """Corrupt when a log has a record of a type that penstock's logs have not: RocksDB would read it without end."""
    for path in folder.glob("[0-9]*.log"):
        data = path.read_bytes()
        for at, _, kind in record_places(data):
            if kind in AGAIN:
                raise Corrupt("the log of a rocksdb store is damaged; restore a backup", file=str(path), offset=at)


def record_places(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Where each record (or piece of one) begins and ends, and its type, as far as lengths lead to the next."""
    at = 0
    while at + HEAD.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD.size:
            at += left
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        if kind == 0 or HEAD.size + length > min(left, len(data) - at):
            return
        end = at + HEAD.size + length
        yield at, end, kind
        at = end


def is_sound(data: bytes, at: int) -> bool:
    """Whether the record (or piece of one) at a place has the checksum it says."""
    crc: int
    length: int
    crc, length, _ = HEAD.unpack_from(data, at)
    covered = data[at + HEAD.size - 1 : at + HEAD.size + length]
    return len(covered) == length + 1 and _masked(_crc32c(covered)) == crc


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE: list[int] = []


def _crc32c(data: bytes) -> int:
    if not _TABLE:
        _TABLE.extend(_make_table())
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ── RocksDB's manifest after a power cut: a torn last record is cut away, where that loses nothing ──
# RocksDB syncs each record of its manifest before it acts on it, and refuses a manifest whose last one is torn. Without
# that record the database is as it was just before: the files and the log it replaced are still there, because they are
# removed only after the record was synced. That is checked before anything is cut; where it does not hold, the record
# was on disk and was damaged later.
#
# A record that is longer than the rest of its manifest RocksDB passes over as cut off, with all the files it names, and
# removes those: where a changed length does that, `Corrupt` is raised before RocksDB is let near.


KINDS = range(1, 5)
"""The types of a piece of a record. Those of logs that are used again (5 to 8), which a changed bit may make of these,
are never in a manifest, and RocksDB reads such a last one without end."""
LAST = (1, 4)
"""The types of a whole record, and of the last piece of one."""
NUMBERS = {2: "log", 3: "next file", 4: "last sequence", 9: "previous log", 10: "oldest log", 203: "column families"}
"""The tags of a record that a number follows."""
TEXTS = (1, 201, 8193)
"""Those that a text follows."""


SCANNED_BYTES = 4096
"""How far behind a torn record every byte is tried as the beginning of another one; its own length may be wrong."""


def check_end(folder: Path) -> None:
    """Corrupt when a database's manifest ends within a record, and not because a crash tore it off."""
    path, data = _manifest(folder)
    end = _chain_end(data)
    if end < len(data) and not cut_torn_end(folder):
        raise Corrupt("the manifest of a rocksdb store is damaged; restore a backup", file=str(path), offset=end)


def _chain_end(data: bytes) -> int:
    """Where the records end, each found by the length of the one before it; checksums are RocksDB's to check."""
    end = 0
    for _, after, kind in record_places(data):
        if kind not in KINDS:
            return end
        end = after
    left = BLOCK_BYTES - end % BLOCK_BYTES
    return end + left if left < HEAD.size else end


def _manifest(folder: Path) -> tuple[Path, bytes]:
    """A database's manifest; no bytes where it cannot be read: RocksDB says what is wrong."""
    path = folder / "CURRENT"
    try:
        path = folder / path.read_text().strip()
        return path, path.read_bytes()
    except (OSError, UnicodeDecodeError):
        return path, b""


def cut_torn_end(folder: Path) -> bool:
    """Cuts a torn last record off a database's manifest; False, and nothing done, when that could lose something."""
    path, data = _manifest(folder)
    records, end = _read(data)
    if end >= len(data) or not records or _has_sound_record(data, end):
        return False
    if not _has_its_log(folder, records):
        return False
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(folder)
    return True


def _has_its_log(folder: Path, records: list[bytes]) -> bool:
    """Whether the log that was in use when the last sound record was written is still there."""
    log = following = 0
    for record in records:
        numbers = _numbers(record)
        log = max(numbers.get("oldest log", 0), numbers.get("log", log))
        following = numbers.get("next file", following)
    if log:
        return (folder / f"{log:06d}.log").exists()
    # Nothing was flushed yet: it is the first log of all, made before any number that is still to be given.
    return any(int(path.stem) < following for path in folder.glob("[0-9]*.log"))


def _read(data: bytes) -> tuple[list[bytes], int]:
    """The whole records up to the first that is not sound, and where they end."""
    records: list[bytes] = []
    pieces, end = b"", 0
    for at, following, kind in record_places(data):
        if not is_sound(data, at):
            break
        pieces += data[at + HEAD.size : following]
        if kind in LAST:
            records.append(pieces)
            pieces, end = b"", following
    return records, end


def _has_sound_record(data: bytes, begin: int) -> bool:
    """Whether anything sound lies behind a place: then what is torn there was not the end."""
    for near in range(begin + 1, min(begin + SCANNED_BYTES, len(data) - HEAD.size)):
        if data[near + HEAD.size - 1] in KINDS and is_sound(data, near):
            return True
    at = begin
    while at + HEAD.size <= len(data):
        _, length, kind = HEAD.unpack_from(data, at)
        if at != begin and kind and is_sound(data, at):
            return True
        block_end = at - at % BLOCK_BYTES + BLOCK_BYTES
        following = at + HEAD.size + length
        at = following if kind and following + HEAD.size <= block_end else block_end
    return False


def _numbers(record: bytes) -> dict[str, int]:
    """The numbers a record begins with."""
    found: dict[str, int] = {}
    at = 0
    while at < len(record):
        tag, at = _varint(record, at)
        if tag in NUMBERS:
            found[NUMBERS[tag]], at = _varint(record, at)
        elif tag in TEXTS:
            length, at = _varint(record, at)
            at += length
        else:
            break
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at

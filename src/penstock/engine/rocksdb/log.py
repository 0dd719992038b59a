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
import struct
from collections.abc import Iterator
from pathlib import Path

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
        for at, kind in record_places(data):
            if kind in AGAIN:
                raise Corrupt("the log of a rocksdb store is damaged; restore a backup", file=str(path), offset=at)


def record_places(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each record (or piece of one) begins, and its type, as far as their lengths lead from one to the next."""
    at = 0
    while at + HEAD.size <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD.size:
            at += left
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        if kind == 0 or HEAD.size + length > min(left, len(data) - at):
            return
        yield at, kind
        at += HEAD.size + length


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

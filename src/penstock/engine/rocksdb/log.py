"""RocksDB's write-ahead log, read to tell what a power cut may take from what it may not.

Takes and merges are not synced, so a power cut may leave a hole before bytes that were kept; the store then comes back
as it was before the hole. Damage to what was acknowledged looks the same. To tell them apart every synced commit begins
with a put of the empty key, which no caller can use, whose value says up to which commit (RocksDB's sequence number)
the log was known to be on disk. A log that such a record vouches for beyond the point it can be read to was damaged.

The log is made of blocks of 32 KiB; a record in it is a masked CRC-32C, a length, a type and the bytes of a batch, or a
piece of one.
"""

from __future__ import annotations

import struct
from pathlib import Path

BLOCK_BYTES = 32 << 10
HEAD = struct.Struct("<IHB")
BEGINS = (1, 2)
"""The types of a whole record, and of the first piece of one."""
BATCH_HEAD_BYTES = 12
VOUCHER = b"\x01\x00\x08"
"""How a batch begins whose first operation puts eight bytes under the empty key."""
EMPTY_KEY = b""


def voucher(sequence: int) -> bytes:
    """The value of the empty key: everything up to this sequence number is on disk."""
    return sequence.to_bytes(8, "big")


def vouched(folder: Path) -> int:
    """The highest sequence number that any sound record in a database's logs calls synced."""
    highest = 0
    for path in folder.glob("[0-9]*.log"):
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                highest = max(highest, _vouched_in(block))
    return highest


def _vouched_in(block: bytes) -> int:
    highest = at = 0
    while at + HEAD.size <= len(block):
        _, length, kind = HEAD.unpack_from(block, at)
        body = block[at + HEAD.size : at + HEAD.size + length]
        if kind == 0 or len(body) < length:
            break
        found = body[BATCH_HEAD_BYTES : BATCH_HEAD_BYTES + len(VOUCHER)] == VOUCHER
        value = body[BATCH_HEAD_BYTES + len(VOUCHER) :][:8]
        if kind in BEGINS and found and len(value) == 8:
            sequence = int.from_bytes(value, "big")
            if sequence > highest and is_sound(block, at):
                highest = sequence
        at += HEAD.size + length
    return highest


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

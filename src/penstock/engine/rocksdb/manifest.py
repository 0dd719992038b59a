"""RocksDB's manifest after a power cut: a torn last record is cut away, where that loses nothing.

RocksDB syncs each record of its manifest before it acts on it, and refuses a manifest whose last one is torn. Without
that record the database is as it was just before: the files and the log it replaced are still there, because they are
removed only after the record was synced. That is checked before anything is cut; where it does not hold, the record was
on disk and was damaged later.

A record that is longer than the rest of its manifest RocksDB passes over as cut off, with all the files it names, and
removes those: where a changed length does that, `Corrupt` is raised before RocksDB is let near.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.durable import sync_folder
from penstock.engine.rocksdb.log import BLOCK_BYTES, HEAD, is_sound, record_places
from penstock.errors import Corrupt

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
    try:
        path = folder / (folder / "CURRENT").read_text().strip()
        data = path.read_bytes()
    except (OSError, UnicodeDecodeError):
        return  # RocksDB says what is wrong
    end = _chain_end(data)
    if end < len(data) and not cut_torn_end(folder):
        raise Corrupt("the manifest of a rocksdb store is damaged; restore a backup", file=str(path), offset=end)


def _chain_end(data: bytes) -> int:
    """Where the records end, each found by the length of the one before it; checksums are RocksDB's to check."""
    end = 0
    for at, kind in record_places(data):
        if kind not in KINDS:
            return end
        end = at + HEAD.size + HEAD.unpack_from(data, at)[1]
    left = BLOCK_BYTES - end % BLOCK_BYTES
    return end + left if left < HEAD.size else end


def cut_torn_end(folder: Path) -> bool:
    """Cuts a torn last record off a database's manifest; False, and nothing done, when that could lose something."""
    try:
        path = folder / (folder / "CURRENT").read_text().strip()
        data = path.read_bytes()
    except (OSError, UnicodeDecodeError):
        return False
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
    for at, kind in record_places(data):
        if not is_sound(data, at):
            break
        following = at + HEAD.size + HEAD.unpack_from(data, at)[1]
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

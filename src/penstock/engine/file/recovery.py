"""Reading a data file from where one is to where it ends: at opening, and by readers that follow a writer.

The end is the first place without a sound record. What lies behind it decides what that means: nothing but zeros is the
plain end; something that no later record calls synced is the torn end of a crash, which the next writer cuts; a record
that a later one calls synced was once whole, so it is corruption, and is reported as such and never cut.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.engine.file.index import Index
from penstock.engine.file.log import COPY, HEAD, NO_HEAD, DataFile, Record
from penstock.errors import Corrupt

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

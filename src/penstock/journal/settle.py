"""Merging small blocks of a topic's tail, in passing.

One commit makes one block, so that many small commits leave many small blocks. When enough small neighbours have
gathered they become one: first the smallest among themselves, later the results. The reading and joining happens
beside the writer; only the exchange takes its turn, in a commit that need not be on disk (losing a merge loses nothing).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engine.contract import Engine
from penstock.journal import keys
from penstock.journal.block import merge
from penstock.journal.catalog import load_record, open_block
from penstock.journal.commit import Commit
from penstock.journal.writer import Operation, Writer
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS, MERGE_FAN_IN, SETTLED_BYTES, SMALL_BYTES

_TAIL_BLOCKS = 16 * MERGE_FAN_IN
_Stored = tuple[bytes, bytes]


def settle_tail(engine: Engine, writer: Writer, topic: str, *, fan_in: int = MERGE_FAN_IN) -> int:
    """Merges what is worth merging at the end of a topic; returns how many blocks went into merges."""
    merged = 0
    with engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return 0
        tail: list[_Stored] = []
        for key, value in snap.scan(*keys.block_range(record.number), reverse=True):
            if len(value) >= SETTLED_BYTES or len(tail) == _TAIL_BLOCKS:
                break
            tail.append((key, value))
    tail.reverse()
    for run in _worthwhile(tail, fan_in):
        joined = merge([open_block(key, value, topic) for key, value in run])
        if writer.run(Operation(_Exchange(run, joined), len(joined), relaxed=True)):
            merged += len(run)
    return merged


def _worthwhile(tail: list[_Stored], fan_in: int) -> Iterator[list[_Stored]]:
    """Runs of neighbours to be merged: the trailing small ones, else the whole tail."""
    small = 0
    while small < len(tail) and len(tail[-1 - small][1]) < SMALL_BYTES:
        small += 1
    if len(tail) - (small if small < fan_in else 0) >= fan_in and small != len(tail):
        yield from _chunks(tail[: len(tail) - small] if small < fan_in else tail)
    elif small >= fan_in:
        yield from _chunks(tail[len(tail) - small :])


def _chunks(run: list[_Stored]) -> Iterator[list[_Stored]]:
    """Cuts a run where a merged block would grow past the usual size."""
    chunk: list[_Stored] = []
    size = events = 0
    for key, value in run:
        count = open_block(key, value, "").count
        if chunk and (size + len(value) > BLOCK_BYTES or events + count > BLOCK_EVENTS):
            if len(chunk) > 1:
                yield chunk
            chunk, size, events = [], 0, 0
        chunk.append((key, value))
        size += len(value)
        events += count
    if len(chunk) > 1:
        yield chunk


class _Exchange:
    """Puts a merged block in the place of its parts, unless they have changed since they were read."""

    def __init__(self, run: list[_Stored], joined: bytes) -> None:
        self._run = run
        self._joined = joined

    def __call__(self, commit: Commit) -> bool:
        first, last = self._run[0][0], self._run[-1][0]
        if list(commit.tx.scan(first, last + b"\0")) != self._run:
            return False
        commit.writes += 1
        commit.tx.delete_range(first + b"\0", last + b"\0")
        commit.tx.put(first, self._joined)
        return True

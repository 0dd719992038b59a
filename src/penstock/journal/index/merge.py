"""Merging runs of the entity index, a step at a time, without ever holding much of them in memory.

Each step reads in a snapshot of its own: runs do not change, and a snapshot held for the whole merge would keep the
engine from cleaning up behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge as merge_sorted

from penstock.engine.contract import Engine, Snapshot
from penstock.journal.index.directory import ENTITIES, Run, run_key
from penstock.journal.index.rows import (
    Breathe,
    Chunk,
    Row,
    after,
    chunks_of,
    entities_of,
    mark_chunks,
    mark_of,
    mark_seq,
    read_chunk,
    read_marks,
    rows_of_chunk,
)
from penstock.limits import INDEX_STEP_BYTES

_MARKS_STEP = 8192
_WINDOW_BYTES = 128 << 10
"""What is read of all runs together before they are merged, about."""


class _Source:
    """The chunks of one run, in order."""

    def __init__(self, topic: int, run: Run, section: bytes) -> None:
        self._low = run_key(topic, run.id, section)
        self._at = self._low
        self._stop = self._low + b"\xff" * 3  # a mark begins with its term's length, which is below 0xffff
        self.done = False

    def chunks(self, snap: Snapshot) -> Iterator[tuple[bytes, bytes]]:
        """The chunks not yet read, with their marks; remembers how far the caller has come."""
        for key, value in snap.scan(self._at, self._stop):
            self._at = key + b"\0"
            yield key[len(self._low) :], value
        self.done = True


class EntityMerge:
    """The entities of several runs, as one."""

    def __init__(
        self, engine: Engine, topic: str, number: int, runs: Sequence[Run], trimmed: int, breathe: Breathe
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._sources = [_Source(number, run, ENTITIES) for run in runs]
        self._share = _WINDOW_BYTES // max(1, len(runs))
        self._buffers: list[list[Row]] = [[] for _ in runs]
        self._trimmed = trimmed
        self._breathe = breathe
        self._out: list[Row] = []

    def steps(self) -> Iterator[tuple[list[Chunk], dict[str, None]]]:
        """Chunks of the merged run and the entities in them, about a commit's worth at a time."""
        while not self._finished():
            chunks: list[Chunk] = []
            entities: dict[str, None] = {}
            size = 0
            with self._engine.read() as snap:
                while size < INDEX_STEP_BYTES and not self._finished():
                    made = self._window(snap, entities)
                    chunks.extend(made)
                    size += sum(len(value) for _, value in made)
            yield chunks, entities
        rest = chunks_of(self._out, whole=True)
        if rest:
            yield rest, {}

    def _finished(self) -> bool:
        return all(source.done and not buffer for source, buffer in zip(self._sources, self._buffers, strict=True))

    def _window(self, snap: Snapshot, entities: dict[str, None]) -> list[Chunk]:
        """Merges what is certain: rows up to the smallest mark at which some run may go on."""
        for source, buffer in zip(self._sources, self._buffers, strict=True):
            if not buffer and not source.done:
                size = 0
                for _, value in source.chunks(snap):
                    buffer.extend(rows_of_chunk(read_chunk(value, self._topic), self._breathe))
                    self._breathe()
                    size += len(value)
                    if size >= self._share:
                        break
        bound = min(
            (buffer[-1][0] for source, buffer in zip(self._sources, self._buffers, strict=True) if not source.done),
            default=None,
        )
        window: list[Row] = []
        for buffer in self._buffers:
            count = len(buffer) if bound is None else bisect_right(buffer, bound, key=mark_of)
            window += buffer[:count]
            del buffer[:count]
        window = after(window, self._trimmed)
        window.sort(key=mark_of)
        entities |= entities_of(window)
        self._out += window
        return chunks_of(self._out, whole=False, breathe=self._breathe)


class MarkMerge:
    """The causes or correlations of several runs, as one."""

    def __init__(
        self, engine: Engine, topic: str, number: int, section: bytes, runs: Sequence[Run], trimmed: int
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._sources = [_Source(number, run, section) for run in runs]
        self._trimmed = trimmed

    def steps(self) -> Iterator[list[Chunk]]:
        """Chunks of the merged run, some at a time."""
        part: list[bytes] = []
        for mark in merge_sorted(*[self._marks(source) for source in self._sources]):
            if mark_seq(mark) > self._trimmed:
                part.append(mark)
            if len(part) == _MARKS_STEP:
                yield list(mark_chunks(part))
                part = []
        if part:
            yield list(mark_chunks(part))

    def _marks(self, source: _Source) -> Iterator[bytes]:
        while not source.done:
            marks: list[bytes] = []
            with self._engine.read() as snap:
                for _, value in source.chunks(snap):
                    marks.extend(read_marks(value, self._topic))
                    if len(marks) >= _MARKS_STEP:
                        break
            yield from marks

"""What goes into a run: which blocks make a first one, which neighbours become one, and the chunks of the first.

No run is written here and nothing is waited for: `indexer` asks, `builder` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from penstock.engine.contract import Snapshot
from penstock.journal.index.builder import Written
from penstock.journal.index.directory import CAUSES, CORRELATIONS, ENTITIES, Run
from penstock.journal.index.rows import (
    Breathe,
    Pages,
    Row,
    after,
    chunks_of,
    entities_of,
    in_order,
    mark_chunks,
    marks_of,
    parts_of,
    rows_of,
)
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import text_values
from penstock.limits import INDEX_FAN_IN, INDEX_RUN_BYTES, INDEX_RUN_EVENTS, INDEX_STEP_BYTES


def blocks_of_a_run(blocks: Iterator[Block], breathe: Breathe) -> list[Block]:
    """As many blocks as make one run: a few times the usual size when building is behind."""
    found: list[Block] = []
    size = 0
    for block in blocks:
        breathe()
        found.append(block)
        size += len(block.payload) + 48 * block.count
        if size >= 4 * INDEX_RUN_BYTES:
            break
    return found


def are_enough(blocks: Sequence[Block]) -> bool:
    """Whether blocks are worth a run of their own."""
    events = sum(block.count for block in blocks)
    return events >= INDEX_RUN_EVENTS or sum(len(block.payload) for block in blocks) + 48 * events >= INDEX_RUN_BYTES


def first_chunks(blocks: Sequence[Block], base: int, breathe: Breathe) -> tuple[list[Written], dict[str, None]]:
    """The chunks of a first run, and its entities."""
    parts: list[Pages] = []
    causes: list[bytes] = []
    correlations: list[bytes] = []
    for block in blocks:
        part = rows_of(block, breathe)
        if block.first <= base:
            part = after(part, base)
        parts.extend(parts_of(part, breathe))
        if block.wire.causation is not None:
            causes.extend(marks_of(text_values(block.wire.causation, block.count), block.seqs))
        if block.wire.correlation is not None:
            correlations.extend(marks_of(text_values(block.wire.correlation, block.count), block.seqs))
    entities: dict[str, None] = {}
    written: list[Written] = []
    out: list[Row] = []
    for window in in_order(parts, breathe):
        entities |= entities_of(window)
        out += window
        breathe()
        written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=False, breathe=breathe))
    written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=True, breathe=breathe))
    for section, marks in ((CAUSES, causes), (CORRELATIONS, correlations)):
        kept = sorted(mark for mark in marks if int.from_bytes(mark[-8:]) > base)
        written.extend((section, chunk) for chunk in mark_chunks(kept))
    return written, entities


def worth_merging(runs: Sequence[Run], thorough: bool) -> Sequence[Run]:
    """Neighbours that should become one run."""
    if thorough:
        return until_few(runs)
    for level in sorted({run.level for run in runs}):
        # A run of a lower level among them goes along: it would wait for neighbours that never come.
        for within, group in groupby(runs, key=lambda run: run.level <= level):
            stretch = list(group)
            if within and sum(run.level == level for run in stretch) >= INDEX_FAN_IN:
                return stretch
    return ()


def until_few(runs: Sequence[Run]) -> Sequence[Run]:
    """The newest runs, as far back as they together weigh at least a quarter of the one before them."""
    if len(runs) < 2:
        return ()
    start, size = len(runs) - 1, runs[-1].size
    for place in range(len(runs) - 2, -1, -1):
        if size * 4 >= runs[place].size:
            start = place
        size += runs[place].size
    return runs[start:] if start < len(runs) - 1 else ()


def after_some(snap: Snapshot, start: bytes, stop: bytes) -> bytes | None:
    """A key before which there are a few megabytes; None when there is less."""
    size = 0
    for key, value in snap.scan(start, stop):
        if size >= 4 * INDEX_STEP_BYTES:
            return key
        size += len(value) + len(key)
    return None

"""Ranges of a topic's positions: about how large they are, and where tasks that share one are best parted."""

from __future__ import annotations

from penstock.journal import keys
from penstock.journal.blocks import stored_size
from penstock.journal.catalog import load_state, open_block
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import sealed_start
from penstock.journal.sealed.segments import load_segments

_UNPACKED = 3
"""How many bytes one of a Parquet file stands for, about."""


def range_size(view: TopicView, after: int, through: int) -> int:
    """About how many bytes a range has: as if all its hot blocks were like the one in their middle."""
    sealed = min(load_state(view.snap, view.topic_id, view.name).sealed, through)
    size = 0
    if sealed > after:
        for segment in load_segments(view.snap, view.topic_id, after, sealed):
            share = min(segment.last, sealed) - max(segment.first - 1, after)
            size += _UNPACKED * segment.size * share // (segment.last - segment.first + 1)
    after = max(after, sealed)
    low, _ = keys.block_range(view.topic_id)
    middle = (after + through + 1) // 2
    for key, value in view.snap.scan(low, keys.block_key(view.topic_id, middle + 1), reverse=True):
        count = open_block(view.snap, key, value, view.name).count
        return size + (through - after) * stored_size(value) // count
    return size


def range_cuts(view: TopicView, after: int, through: int, pieces: int, *, exactly: bool) -> list[int]:
    """The bounds of about equal pieces of a range, `after` and `through` among them; parted between blocks.

    Where a block has no end near enough there are fewer pieces, unless they are wanted `exactly`.
    """
    span = through - after
    pieces = min(pieces, span)
    bounds = [after]
    for piece in range(1, pieces):
        at = after + span * piece // pieces
        first = _start_near(view, at + 1)
        if first is not None and bounds[-1] < first - 1 <= at:
            at = first - 1
        elif not exactly:
            continue
        if at > bounds[-1]:
            bounds.append(at)
    return [*bounds, through]


def _start_near(view: TopicView, seq: int) -> int | None:
    """Where the block begins that holds a position; the row group, when it is sealed."""
    if seq <= load_state(view.snap, view.topic_id, view.name).sealed:
        return sealed_start(view.snap, view.topic_id, view.name, seq)
    block = view.block_holding(seq)
    return None if block is None else block.first

"""Which positions a seal puts into which file, and which small files it makes one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from penstock.clock import to_ms
from penstock.engine.contract import Snapshot
from penstock.journal.reading import TopicView
from penstock.journal.sealed.segments import Segment, load_segments
from penstock.journal.sealed.writing import day_of
from penstock.limits import MAX_PARTITION_VALUES

Range = tuple[int, int]
"""Positions after the first, through the second."""


def plan_ranges(view: TopicView, after: int, through: int | None, file_events: int) -> list[Range]:
    """Ranges of positions, one per file: of at most so many events, and of one day each.

    Each has events. Positions that compaction by key has emptied belong to the range of the next event.
    """
    latest = view.latest()
    if through is None:
        block = view.block_holding(latest) if latest > after else None
        through = block.first - 1 if block else latest
    through = min(through, latest)
    ranges: list[Range] = []
    begin = after
    while after < through:
        stop = min(after + file_events, through)
        for end in _ends_of_days(view, after, stop):
            ranges.append((begin, end))
            begin = end
        after = stop
    return ranges


def _ends_of_days(view: TopicView, after: int, through: int) -> Iterator[int]:
    while after < through and (day := day_of(view, after + 1, through)) is not None:
        stop = min(through, max(view.position_before(to_ms(day + timedelta(days=1), "date")), after))
        if stop == after:
            stop = through
        yield stop
        after = stop


def first_step(ranges: list[Range], most: int) -> tuple[list[Range], int]:
    """The ranges that hold so many events together at the most, but one at least; and how many positions are left."""
    start, end = ranges[0][0], ranges[-1][1]
    taken = [one for one in ranges if one[1] - start <= most] or ranges[:1]
    return taken, end - taken[-1][1]


def plan_merges(snap: Snapshot, number: int, trimmed: int, lake: str, file_events: int) -> list[list[Segment]]:
    """Neighbours of one day that fit into one file together."""
    found: list[list[Segment]] = []
    run: list[Segment] = []
    for segment in load_segments(snap, number, trimmed):
        fits = run and run[-1].day == segment.day and run[-1].lake == segment.lake
        values = {part.folder for one in [*run, segment] for part in one.parts}
        many = sum(one.count for one in run) + segment.count > file_events
        if not fits or many or len(values) > MAX_PARTITION_VALUES:
            found.append(run)
            run = []
        if segment.lake == lake:
            run.append(segment)
    return [run for run in [*found, run] if len(run) > 1]

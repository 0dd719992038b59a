"""Ranges of positions: what a query reads of each topic, how it is cut into tasks, and how much goes into a batch.

An offset is a position: everything through it has been read. As in Kafka's source, a query that starts at offset n
has left the first n events behind, and one that ends at n ends with the n-th.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from penstock.clock import to_ms
from penstock.errors import ConfigError
from penstock.spark.source.filters import RowFilter
from penstock.spark.source.journals import JournalState, PlannedTopic, check_kept
from penstock.spark.source.options import Offset, ReadOptions

_TASK_BYTES = 128 << 20
"""What one task reads at the most, about: as Spark does with files. A task costs some 50 ms before its first row."""
_SPREAD_BYTES = 2 << 20
"""From this size on a range is spread over the cores, even if one task could read it."""

Offsets = dict[str, int]
"""How far each topic has been read."""


class Range(InputPartition):
    """One task's share: the events after < position ≤ through of a topic."""

    def __init__(self, topic: str, after: int, through: int) -> None:
        super().__init__(None)
        self.journal: str | None = None
        """The id of the journal it was cut from."""
        self.topic = topic
        self.after = after
        self.through = through

    def __repr__(self) -> str:
        return f"{self.topic}({self.after}, {self.through}]"


class Topics:
    """The topics a query reads, in one state of the journal."""

    def __init__(self, found: JournalState, options: ReadOptions) -> None:
        self.options = options
        names = options.topics
        if options.pattern is not None:
            names = tuple(name for name in found.names() if matches(options.pattern, name))
        self.views = found.topics(names)
        for name in names:
            if name not in self.views:
                there = ", ".join(found.names()) or "none yet"
                raise ConfigError(f"there is no topic {name!r} in {options.place.url}; topics: {there}")

    def starts(self) -> Offsets:
        """Where a query begins that has not read anything yet."""
        return {name: self._start(name, view) for name, view in self.views.items()}

    def ends(self) -> Offsets:
        """How far a batch query reads."""
        return {name: self._end(name, view) for name, view in self.views.items()}

    def began(self) -> Offsets:
        """Where a stream begins with each topic that it meets only now."""
        return {name: view.began for name, view in self.views.items()}

    def latest(self) -> Offsets:
        """How far each topic goes now."""
        return {name: view.latest for name, view in self.views.items()}

    def _start(self, name: str, view: PlannedTopic) -> int:
        if self.options.start_ms is not None:
            return max(view.position_before(self.options.start_ms), view.trimmed)
        return _resolve(_for_topic(self.options.start, name, "earliest"), view, "startingOffsets")

    def _end(self, name: str, view: PlannedTopic) -> int:
        if self.options.end_ms is not None:
            return view.position_before(self.options.end_ms)
        return min(_resolve(_for_topic(self.options.end, name, "latest"), view, "endingOffsets"), view.latest)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern of topics means this one; penstock's own only when it says so: they report on the query."""
    if name.startswith("penstock.") and not pattern.startswith("penstock"):
        return False
    return re.fullmatch(pattern, name) is not None


def _for_topic(offset: Offset | dict[str, Offset], name: str, default: Offset) -> Offset:
    return offset.get(name, default) if isinstance(offset, dict) else offset


def _resolve(offset: Offset, view: PlannedTopic, option: str) -> int:
    if offset == "earliest":
        return view.trimmed
    latest = view.latest
    if offset == "latest":
        return latest
    assert isinstance(offset, int)
    if offset > latest and option == "startingOffsets":
        raise ConfigError(f"{option} is {offset}, and topic {view.name!r} ends at {latest}")
    return offset


def narrowed(topics: Topics, starts: Mapping[str, int], ends: Mapping[str, int], filter: RowFilter) -> list[Range]:
    """The ranges between offsets, as far as a filter on positions or recording times leaves them."""
    after, through = filter.seq_bounds()
    low, high = filter.time_bounds()
    ranges = []
    for name, end in sorted(ends.items()):
        view = topics.views[name]
        start = max(starts.get(name, 0), after)
        end = min(end, through)
        if low is not None:
            start = max(start, view.position_before(to_ms(low, "recorded_at")))
        if high is not None:
            end = min(end, view.position_before(to_ms(high, "recorded_at") + 1))
        if start < end:
            ranges.append(Range(name, start, end))
    return ranges


def cut(topics: Topics, ranges: Iterable[Range]) -> list[Range]:
    """The same events in ranges for tasks to read: of about equal size, cut between blocks where that is possible."""
    whole = [range_ for range_ in ranges if range_.after < range_.through]
    for range_ in whole:
        if topics.options.fail_on_data_loss:
            check_kept(range_.topic, range_.after, range_.through, topics.views[range_.topic].trimmed)
    sizes = [topics.views[range_.topic].size(range_.after, range_.through) for range_ in whole]
    total = sum(sizes)
    least = topics.options.min_partitions or 1
    cores = os.cpu_count() or 1
    pieces = max(-(-total // _TASK_BYTES), min(cores, total // _SPREAD_BYTES))
    if pieces > 1:  # the last tasks should not leave cores idle
        pieces = -(-pieces // cores) * cores
    pieces = max(least, pieces)
    if pieces <= len(whole):
        return whole
    parts: list[Range] = []
    for range_, size in zip(whole, sizes, strict=True):
        share = max(1, -(-pieces * size // total)) if total else 1
        view = topics.views[range_.topic]
        bounds = view.cuts(range_.after, range_.through, share, exactly=least >= pieces)
        parts.extend(Range(range_.topic, low, high) for low, high in pairwise(bounds))
    return parts


def signed(ranges: list[Range], journal: str) -> list[Range]:
    """The ranges with the id of their journal, so that no task reads another one."""
    for range_ in ranges:
        range_.journal = journal
    return ranges


def limited(start: Mapping[str, int], end: Mapping[str, int], most: int) -> Offsets:
    """Offsets at most `most` positions after `start`: each topic gets its share of what waits, as in Kafka's."""
    waiting = {name: end[name] - start.get(name, 0) for name in end}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    offsets: Offsets = {}
    left = most
    for name in sorted(waiting):
        share = min(left, waiting[name], -(-most * waiting[name] // total))
        offsets[name] = start.get(name, 0) + share
        left -= share
    return offsets

"""What a writer counts: commits and how long they took, how many callers shared one, syncs, events by topic.

Only the leader counts, so that plain numbers do and a commit pays a fraction of a microsecond; the registry adds up all
writers of the process when they are read.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from penstock.observe.metrics import DURATION_BUCKETS, REGISTRY, Reading

GROUP_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Operations that share a commit, doubling."""


class WriterCounters:
    """One writer's numbers."""

    __slots__ = ("appended", "commits", "groups", "latencies", "operations", "seconds", "syncs")

    def __init__(self) -> None:
        self.commits = 0
        self.operations = 0
        self.seconds = 0.0
        self.syncs = 0
        self.latencies = [0] * (len(DURATION_BUCKETS) + 1)
        self.groups = [0] * (len(GROUP_BUCKETS) + 1)
        self.appended: dict[str, int] = {}

    def committed(self, operations: int, seconds: float, synced: bool, touched: dict[str, int]) -> None:
        """Counts one commit; the caller leads."""
        self.commits += 1
        self.operations += operations
        self.seconds += seconds
        if synced:
            self.syncs += 1
        self.latencies[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self.groups[0 if operations == 1 else bisect_left(GROUP_BUCKETS, operations)] += 1
        appended = self.appended
        for topic, count in touched.items():
            appended[topic] = appended.get(topic, 0) + count

    def add(self, other: WriterCounters) -> None:
        """Takes another writer's numbers in."""
        self.commits += other.commits
        self.operations += other.operations
        self.seconds += other.seconds
        self.syncs += other.syncs
        self.latencies = [mine + theirs for mine, theirs in zip(self.latencies, other.latencies, strict=True)]
        self.groups = [mine + theirs for mine, theirs in zip(self.groups, other.groups, strict=True)]
        for topic, count in list(other.appended.items()):
            self.appended[topic] = self.appended.get(topic, 0) + count


class TopicCounters:
    """Every writer of the process, those that were closed included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = WriterCounters()
        self._open: dict[int, WriterCounters] = {}

    def enter(self) -> WriterCounters:
        """The numbers of a new writer."""
        measures = WriterCounters()
        with self._lock:
            self._open[id(measures)] = measures
        return measures

    def leave(self, measures: WriterCounters) -> None:
        """A writer was closed; what it counted stays counted. A second call does nothing."""
        with self._lock:
            if self._open.pop(id(measures), None) is not None:
                self._closed.add(measures)

    def total(self) -> WriterCounters:
        """All writers together."""
        total = WriterCounters()
        with self._lock:
            for measures in (self._closed, *self._open.values()):
                total.add(measures)
        return total


ROLL = TopicCounters()


def _commit_seconds() -> list[tuple[tuple[str, ...], Reading]]:
    total = ROLL.total()
    return [((), Reading(DURATION_BUCKETS, total.latencies, total.seconds))]


def _group_sizes() -> list[tuple[tuple[str, ...], Reading]]:
    total = ROLL.total()
    return [((), Reading(GROUP_BUCKETS, total.groups, float(total.operations)))]


def _appended() -> list[tuple[tuple[str, ...], float]]:
    return [((topic,), float(count)) for topic, count in ROLL.total().appended.items()]


REGISTRY.watch_counters("topic.appended", "events appended by this process", ("topic",), _appended)
REGISTRY.watch_histogram("writer.commit_seconds", "how long commits took, sync included", _commit_seconds)
REGISTRY.watch_histogram("writer.group_size", "operations that shared a commit", _group_sizes)
REGISTRY.watch_counters(
    "writer.syncs",
    "commits that were on disk before a caller was told; the others were relaxed or durability is process",
    (),
    lambda: [((), float(ROLL.total().syncs))],
)

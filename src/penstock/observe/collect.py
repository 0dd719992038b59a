"""Looking at a whole journal: what `penstock top`, the page and `/metrics` show, and a program may watch in-process.

penstock.observe.collect.take_sample(journal)      # a Sample: every topic and queue now; `gauges` makes metrics of it
"""

from __future__ import annotations

import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import msgspec

from penstock.errors import Corrupt, UnknownQueue
from penstock.events import Event
from penstock.journal import keys
from penstock.journal.blocks import stored_size
from penstock.journal.catalog import load_state, open_block
from penstock.journal.cursors import read_consumers
from penstock.journal.reading import TopicView
from penstock.observe.pipelines import TOPIC as PIPELINES
from penstock.observe.pipelines import FlowStatus, status
from penstock.observe.sample import Finding, FindingKind, QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.observe.workers import WorkerFailure, gave_up
from penstock.queue.inspect import settle_times
from penstock.units import show_duration, show_size

if TYPE_CHECKING:
    from penstock.engine.contract import Snapshot
    from penstock.local.journal import LocalJournal
    from penstock.queue.policy import QueuePolicy
    from penstock.surface.queue import Queue


T = TypeVar("T")

COUNTED_LETTERS = 10_000
"""Letters of a dead-letter queue that several queues share whose origin is looked up."""


def take_sample(journal: LocalJournal) -> Sample:
    """One sample, without rates. All topics are seen in one snapshot, each by one look at its newest block."""
    topics: dict[str, TopicSample] = {}
    unreadable: dict[str, str] = {}
    with journal._engine.read() as snap:
        for key, _ in list(snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))):
            name = keys.stored_name(key[1:])
            try:
                _sample_topic(snap, name, topics, unreadable)
            except Corrupt as error:  # one topic must not hide how the others do
                unreadable[name] = str(error)
    free, total = _disk(journal)
    pressure = journal.pressure()
    sample = Sample(
        time.time(),
        topics,
        _sample_queues(journal, topics, unreadable),
        pressure.utilization,
        pressure.queued,
        journal._core.writer.measures.commits,
        journal._core.writer.measures.operations,
        disk_free=free,
        disk_total=total,
        requests=journal._engine.requests(),
        unstored_seconds=journal._engine.unstored_seconds(),
        unreadable=unreadable,
    )
    sample.flows = _reported(journal, topics.get(PIPELINES), status)
    sample.workers = _reported(journal, topics.get(WORKERS), gave_up)
    sample.findings = examine(sample)
    return sample


def _sample_topic(snap: Snapshot, name: str, topics: dict[str, TopicSample], unreadable: dict[str, str]) -> None:
    view = TopicView.open(snap, name)
    if view is None:
        return
    latest, state = view.latest(), load_state(snap, view.topic_id, name)
    if state.unreadable:
        unreadable[name] = state.unreadable
    consumers = read_consumers(snap, view.topic_id, latest)
    lags = {one.name: one.lag for one in consumers}
    moved = {one.name: one.moved_at.timestamp() for one in consumers if one.moved_at is not None}
    size = _event_bytes(snap, view.topic_id)
    topics[name] = TopicSample(name, latest, latest - state.removed, 0.0, lags, moved, size)


def _event_bytes(snap: Snapshot, topic: int) -> int:
    """The average size of the events of a topic's newest block."""
    for key, value in snap.scan(*keys.block_range(topic), reverse=True):
        return stored_size(value) // max(1, open_block(snap, key, value, "").count)
    return 0


def _sample_queues(
    journal: LocalJournal, topics: dict[str, TopicSample], unreadable: dict[str, str]
) -> dict[str, list[QueueSample]]:
    """Every group of every queue, with dead letters counted where they came from.

    A queue that is dropped while it is looked at is left out, as are the counts of the letters it kept.
    """
    found: dict[str, list[QueueSample]] = {}
    targets: dict[str, str | None] = {}
    for name in journal.queues():
        with suppress(UnknownQueue):
            queue = journal.queue(name, create=False)
            policy = queue.policy
            try:
                found[name] = _sample_queue(journal, queue, policy, topics.get(name))
            except Corrupt as error:
                unreadable[name] = str(error)
                continue
            targets[name] = policy.dead_letter
    feeding: dict[str, list[QueueSample]] = {}
    for name, target in targets.items():
        if target in found:
            feeding.setdefault(target, []).extend(found[name])
    for target, origins in feeding.items():
        for one in found[target]:
            one.letters, one.ready, one.oldest_age = one.ready, 0, None
        try:
            _count_dead(journal, target, found[target], origins)
        except UnknownQueue:
            del found[target]
    return found


def _sample_queue(
    journal: LocalJournal, queue: Queue, policy: QueuePolicy, topic: TopicSample | None
) -> list[QueueSample]:
    """Every group of a queue."""
    found = []
    for group in (queue.groups() or ["default"]) if policy.mode == "fanout" else ["default"]:
        stats = queue.stats(group)
        one = QueueSample(
            queue.name, group, stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age
        )
        one.ttl = policy.ttl
        one.settle_times = settle_times(journal._backend.queue(queue.name), group)
        one.paused = stats.paused
        if topic is not None:
            unsettled = stats.ready + stats.in_flight + stats.delayed + stats.failed
            one.settled = max(0, topic.latest - unsettled)
        found.append(one)
    return found


TopicEnd = tuple[int, int]
"""Where a topic ends, and how many events it has: one that is made anew and has none yet ends where it was dropped."""


class _CountedLetters(msgspec.Struct):
    """Where the letters of a dead-letter queue came from; valid while its numbers are these."""

    numbers: list[tuple[int | None, int, int, int]]
    latest: int
    counts: dict[tuple[str, str], int]


class _JournalMemory(msgspec.Struct):
    """What samples of one journal need not look up again while it stays the same."""

    letters: dict[str, _CountedLetters] = {}
    reports: dict[str, tuple[TopicEnd, list[Any]]] = {}
    """By topic: how far it was read, and what was in it."""


_memories: weakref.WeakKeyDictionary[LocalJournal, _JournalMemory] = weakref.WeakKeyDictionary()


def _memory(journal: LocalJournal) -> _JournalMemory:
    return _memories.setdefault(journal, _JournalMemory())


def _count_dead(journal: LocalJournal, target: str, groups: list[QueueSample], origins: list[QueueSample]) -> None:
    """Tells each origin how many letters of a dead-letter queue are its own."""
    if len(origins) == 1:
        origins[0].dead = sum((one.letters or 0) + one.delayed + one.in_flight + one.failed for one in groups[:1])
        return
    # Several share it: the letters' headers say where they came from. They are read again only when something changed.
    numbers = [(one.letters, one.in_flight, one.delayed, one.failed) for one in groups]
    queue = journal.queue(target, create=False)
    latest = journal.topic(target).latest
    known = _memory(journal).letters.get(target)
    if known is None or known.numbers != numbers or known.latest != latest:
        counts: dict[tuple[str, str], int] = {}
        events: Iterator[Event] = islice(iter(queue), COUNTED_LETTERS)
        if known is not None and _count(numbers) - _count(known.numbers) == latest - known.latest and len(groups) == 1:
            counts = dict(known.counts)  # some have come, and none has gone
            events = (one.event for one in queue.messages(after=known.latest, limit=latest - known.latest))
        for event in events:
            origin = (event.headers.get("dead-queue", ""), event.headers.get("dead-group", "default"))
            counts[origin] = counts.get(origin, 0) + 1
        known = _memory(journal).letters[target] = _CountedLetters(numbers, latest, counts)
    for one in origins:
        one.dead = known.counts.get((one.name, one.group), 0)


def _count(numbers: list[tuple[int | None, int, int, int]]) -> int:
    return sum(count or 0 for group in numbers for count in group)


def _reported(journal: LocalJournal, reports: TopicSample | None, read: Callable[[LocalJournal], list[T]]) -> list[T]:
    """What is reported in a topic, read again when that has grown."""
    if reports is None:
        return []
    memory, end = _memory(journal).reports, (reports.latest, reports.events)
    known = memory.get(reports.name)
    if known is None or known[0] != end:
        known = memory[reports.name] = (end, read(journal))
    return known[1]


def _disk(journal: LocalJournal) -> tuple[int | None, int | None]:
    """Bytes free and in all of the file system the journal lies in."""
    location = journal._engine.location
    if not location:
        return None, None
    try:
        usage = shutil.disk_usage(location)
    except (OSError, ValueError):
        return None, None
    return usage.free, usage.total


# ── What is wrong with a journal, in words: one finding for each thing that wants a person's attention ──
# The console shows findings in its first line, `penstock check` warns of them. A finding names its subject, so that
# each of them can lead there.


DISK_SHARE: Final = 0.05
"""A file system with a smaller share free is nearly full…"""
DISK_BYTES: Final = 4 << 30
"""…unless more than this is free."""
TTL_SHARE: Final = 0.5
"""The share of its time to live after which a message that still waits is worth a word."""
GROWING_LAG: Final = 1_000
"""A lag below this is not watched for growth."""
GROWING_STEPS: Final = 3
"""How many samples in a row, a minute apart, a lag must grow for."""

KINDS: Final = get_args(FindingKind)

Lags = dict[tuple[str, str], int]
"""How far each consumer of each topic is behind, by topic and consumer."""


def examine(sample: Sample) -> list[Finding]:
    """Everything that is wrong at one time, gravest kind first, the largest number first within a kind."""
    now = datetime.fromtimestamp(sample.at, UTC)
    found = [
        *_find_full_disk(sample),
        *_find_unreadable(sample),
        *_find_flows(sample.flows, now),
        *_find_workers(sample.workers),
        *_find_queues(sample),
    ]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.count, one.subject))


def _find_full_disk(sample: Sample) -> Iterable[Finding]:
    free, total = sample.disk_free, sample.disk_total
    if free is not None and total and free < DISK_BYTES and free < DISK_SHARE * total:
        yield Finding("disk", "", f"the disk is nearly full: {show_size(free)} of {show_size(total)} are free", free)


def _find_unreadable(sample: Sample) -> Iterable[Finding]:
    for topic, why in sample.unreadable.items():
        yield Finding("unreadable", topic, f"topic {topic} cannot be read: {why}", 1)


def _find_flows(flows: Iterable[FlowStatus], now: datetime) -> Iterable[Finding]:
    for flow in flows:
        state = flow.believed(now)
        if state == "failed":
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} failed", 1)
        elif state == "silent":
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} has not reported for a minute", 1)
        elif state == "waiting":
            times = "" if not flow.restarts else f", for the {_ordinal(flow.restarts + 1)} time"
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} is restarting{times}", 1)


def _find_workers(workers: Iterable[WorkerFailure]) -> Iterable[Finding]:
    for one in workers:
        yield Finding("worker", one.worker, f"worker {one.worker} gave up: {one.error}", 1)


def _find_queues(sample: Sample) -> Iterable[Finding]:
    for groups in sample.queues.values():
        for group in groups:
            name = group.name if group.group == "default" else f"{group.name}/{group.group}"
            if group.dead:
                what = "dead letter" if group.dead == 1 else "dead letters"
                yield Finding("dead", group.name, f"{group.dead:,} {what} from {name}", group.dead, group.group)
            if group.failed:
                what = "message of {} failed" if group.failed == 1 else "messages of {} failed"
                says = f"{group.failed:,} {what.format(name)}"
                yield Finding("failed", group.name, says, group.failed, group.group)
            if group.paused:
                says = f"{name} is paused: {_find_waiting(group.ready)}"
                yield Finding("paused", group.name, says, group.ready, group.group)
            if group.ttl is not None and group.oldest_age is not None and group.oldest_age > TTL_SHARE * group.ttl:
                waits, ttl = show_duration(group.oldest_age), show_duration(group.ttl)
                says = f"the oldest message of {name} waits for {waits}; messages expire after {ttl}"
                yield Finding("oldest", group.name, says, round(group.oldest_age), group.group)


def _find_waiting(ready: int) -> str:
    return f"{ready:,} {'message is' if ready == 1 else 'messages are'} ready"


def growing(samples: Sequence[Lags]) -> list[Finding]:
    """Consumers that fell further behind from each sample to the next; the samples are about a minute apart."""
    if len(samples) <= GROWING_STEPS:
        return []
    recent = samples[-GROWING_STEPS - 1 :]
    found = []
    for (topic, consumer), lag in recent[-1].items():
        past = [sample.get((topic, consumer), 0) for sample in recent]
        if lag >= GROWING_LAG and all(low < high for low, high in pairwise(past)):
            says = f"{consumer} falls behind in {topic}: {lag:,} events, {past[0]:,} a few minutes ago"
            found.append(Finding("lag", topic, says, lag, consumer))
    return sorted(found, key=lambda one: (-one.count, one.subject))


def lags_of(sample: Sample) -> Lags:
    """Every consumer's lag in a sample."""
    return {
        (topic.name, consumer): lag for topic in sample.topics.values() for consumer, lag in topic.lags.items() if lag
    }


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"

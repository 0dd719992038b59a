"""Looking at a whole journal: what `penstock top`, the page and `/metrics` show, and a program may watch in-process.

penstock.observe.collect.take_sample(journal)      # a Sample: every topic and queue now
penstock.metrics.watch(journal)       # the same as gauges of the process's registry
"""

from __future__ import annotations

import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import PenstockError
from penstock.journal.commit.catalog import load_state, open_block
from penstock.journal.cursors import read_consumers
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.journal.storage.apart import stored_size
from penstock.observe.health import examine
from penstock.observe.metrics import REGISTRY, Registry
from penstock.observe.pipelines import TOPIC as PIPELINES
from penstock.observe.pipelines import FlowStatus, status
from penstock.observe.sample import QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.observe.workers import WorkerFailure, gave_up

if TYPE_CHECKING:
    from penstock.api import LocalJournal
    from penstock.engine.contract import Snapshot
    from penstock.queue.queue import LocalQueue
    from penstock.surface.journal import Journal

COUNTED_LETTERS = 10_000
"""Letters of a dead-letter queue that several queues share whose origin is looked up."""
FRESH = 1.0
"""Seconds for which a look serves everybody who asks: the gauges of one scrape are of one moment."""


def take_sample(journal: LocalJournal) -> Sample:
    """One sample, without rates. All topics are seen in one snapshot, each by one look at its newest block."""
    topics = {}
    with journal._engine.read() as snap:
        for key, _ in list(snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))):
            name = keys.stored_name(key[1:])
            view = TopicView.open(snap, name)
            if view is None:
                continue
            latest = view.latest()
            events = latest - load_state(snap, view.number, name).removed
            consumers = read_consumers(snap, view.number, latest)
            lags = {one.name: one.lag for one in consumers}
            moved = {one.name: one.moved_at.timestamp() for one in consumers if one.moved_at is not None}
            topics[name] = TopicSample(name, latest, events, 0.0, lags, moved, _event_bytes(snap, view.number))
    free, total = _disk(journal)
    pressure = journal.pressure()
    sample = Sample(
        time.time(),
        topics,
        _sample_queues(journal, topics),
        pressure.utilization,
        pressure.queued,
        journal._writer.measures.commits,
        journal._writer.measures.operations,
        disk_free=free,
        disk_total=total,
        requests=journal._engine.requests(),
        unstored_seconds=journal._engine.unstored_seconds(),
    )
    sample.flows = flows_of(journal, topics)
    sample.workers = _workers_of(journal, topics)
    sample.findings = examine(sample, sample.flows)
    return sample


def _event_bytes(snap: Snapshot, topic: int) -> int:
    """The average size of the events of a topic's newest block."""
    for key, value in snap.scan(*keys.block_range(topic), reverse=True):
        return stored_size(value) // max(1, open_block(snap, key, value, "").count)
    return 0


def _sample_queues(journal: LocalJournal, topics: dict[str, TopicSample]) -> dict[str, list[QueueSample]]:
    """Every group of every queue, with dead letters counted where they came from."""
    handles = {name: journal.queue(name) for name in journal.queues()}
    policies = {name: queue.policy for name, queue in handles.items()}
    found: dict[str, list[QueueSample]] = {}
    feeding: dict[str, list[QueueSample]] = {}
    for name, queue in handles.items():
        policy = policies[name]
        groups = (queue.groups() or ["default"]) if policy.mode == "fanout" else ["default"]
        found[name] = []
        for group in groups:
            stats = queue.stats(group)
            one = QueueSample(name, group, stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age)
            one.ttl = policy.ttl
            one.settle_times = queue._settle_times(group)
            one.paused = stats.paused
            if name in topics:
                unsettled = stats.ready + stats.in_flight + stats.delayed + stats.failed
                one.settled = max(0, topics[name].latest - unsettled)
            found[name].append(one)
            if policy.dead_letter in handles:
                feeding.setdefault(policy.dead_letter, []).append(one)
    for target, origins in feeding.items():
        for one in found[target]:
            one.letters, one.ready, one.oldest_age = one.ready, 0, None
        _count_dead(journal, handles[target], found[target], origins)
    return found


class _CountedLetters(msgspec.Struct):
    """Where the letters of a dead-letter queue came from, as long as its numbers are these."""

    numbers: list[tuple[int | None, int, int, int]]
    latest: int
    counts: dict[tuple[str, str], int]


class _JournalMemory(msgspec.Struct):
    """What samples of one journal need not look up again while it stays the same."""

    letters: dict[str, _CountedLetters] = {}
    flows: tuple[int, list[FlowStatus]] = (0, [])
    workers: tuple[int, list[WorkerFailure]] = (0, [])


_memories: weakref.WeakKeyDictionary[LocalJournal, _JournalMemory] = weakref.WeakKeyDictionary()


def _memory(journal: LocalJournal) -> _JournalMemory:
    return _memories.setdefault(journal, _JournalMemory())


def _count_dead(
    journal: LocalJournal, target: LocalQueue, groups: list[QueueSample], origins: list[QueueSample]
) -> None:
    """Tells each origin how many letters of a dead-letter queue are its own."""
    if len(origins) == 1:
        origins[0].dead = sum((one.letters or 0) + one.delayed + one.in_flight + one.failed for one in groups[:1])
        return
    # Several share it: the letters' headers say where they came from. They are read again only when something changed.
    numbers = [(one.letters, one.in_flight, one.delayed, one.failed) for one in groups]
    latest = journal.topic(target.name).latest
    known = _memory(journal).letters.get(target.name)
    if known is None or known.numbers != numbers or known.latest != latest:
        counts: dict[tuple[str, str], int] = {}
        for event in islice(iter(target), COUNTED_LETTERS):
            origin = (event.headers.get("dead-queue", ""), event.headers.get("dead-group", "default"))
            counts[origin] = counts.get(origin, 0) + 1
        known = _memory(journal).letters[target.name] = _CountedLetters(numbers, latest, counts)
    for one in origins:
        one.dead = known.counts.get((one.name, one.group), 0)


def flows_of(journal: LocalJournal, topics: dict[str, TopicSample]) -> list[FlowStatus]:
    """How pipelines stand, read again when one has reported."""
    reports = topics.get(PIPELINES)
    if reports is None:
        return []
    memory = _memory(journal)
    if memory.flows[0] != reports.latest:
        memory.flows = (reports.latest, status(journal))
    return memory.flows[1]


def _workers_of(journal: LocalJournal, topics: dict[str, TopicSample]) -> list[WorkerFailure]:
    """Workers that gave up, read again when one has reported."""
    reports = topics.get(WORKERS)
    if reports is None:
        return []
    memory = _memory(journal)
    if memory.workers[0] != reports.latest:
        memory.workers = (reports.latest, gave_up(journal))
    return memory.workers[1]


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


Values = Iterator[tuple[tuple[str, ...], float]]


def _topics(pick: Callable[[TopicSample], float]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        for topic in sample.topics.values():
            yield (topic.name,), pick(topic)

    return values


def _lags(sample: Sample) -> Values:
    for topic in sample.topics.values():
        for consumer, behind in topic.lags.items():
            yield (topic.name, consumer), behind


def _idle(sample: Sample) -> Values:
    for topic in sample.topics.values():
        for consumer, moved in topic.moved.items():
            yield (topic.name, consumer), max(0.0, sample.at - moved)


def _queues(pick: Callable[[QueueSample], float]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        for groups in sample.queues.values():
            for group in groups:
                yield (group.name, group.group), pick(group)

    return values


def _flows(pick: Callable[[FlowStatus], float | None]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        for flow in sample.flows:
            value = pick(flow)
            if value is not None:
                yield (flow.pipeline, flow.flow), value

    return values


def _flow_states(sample: Sample) -> Values:
    now = datetime.fromtimestamp(sample.at, UTC)
    for flow in sample.flows:
        yield (flow.pipeline, flow.flow, flow.believed(now)), 1.0


def _gave_up(sample: Sample) -> Values:
    for worker in sample.workers:
        yield (worker.worker,), 1.0


def _requests(sample: Sample) -> Values:
    for cause, kinds in sample.requests.items():
        for kind, number in kinds.items():
            if kind != "bytes":
                yield (cause, kind), number


def _stored_bytes(sample: Sample) -> Values:
    for cause, kinds in sample.requests.items():
        if "bytes" in kinds:
            yield (cause,), kinds["bytes"]


def _one(pick: Callable[[Sample], float]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        yield (), pick(sample)

    return values


_QUEUE = ("queue", "group")
_FLOW = ("pipeline", "flow")

GAUGES: tuple[tuple[str, str, tuple[str, ...], Callable[[Sample], Values]], ...] = (
    ("topic.latest", "the newest position of a topic", ("topic",), _topics(lambda topic: topic.latest)),
    ("topic.events", "events stored in a topic", ("topic",), _topics(lambda topic: topic.events)),
    (
        "consumer.lag",
        "events a consumer has not seen yet; a Spark query read with the option `consumer` is one",
        ("topic", "consumer"),
        _lags,
    ),
    (
        "consumer.idle_seconds",
        "seconds since a consumer's cursor last moved; one that lags and stands still is dead, not slow",
        ("topic", "consumer"),
        _idle,
    ),
    ("queue.ready", "messages that could be taken now: the backlog", _QUEUE, _queues(lambda group: group.ready)),
    ("queue.leased", "messages in flight, held under a lease", _QUEUE, _queues(lambda group: group.in_flight)),
    ("queue.delayed", "messages that wait for their time", _QUEUE, _queues(lambda group: group.delayed)),
    (
        "queue.failed",
        "messages that were given up and have no dead-letter queue to go to",
        _QUEUE,
        _queues(lambda group: group.failed),
    ),
    (
        "queue.dead",
        "dead letters that came from a queue, wherever they lie; a dead-letter queue's own are not counted as ready",
        _QUEUE,
        _queues(lambda group: group.dead),
    ),
    (
        "queue.oldest_age_seconds",
        "seconds since the oldest ready message was pushed",
        _QUEUE,
        _queues(lambda group: group.oldest_age or 0.0),
    ),
    (
        "queue.paused",
        "1 while nothing is handed out, because the queue or the group is paused",
        _QUEUE,
        _queues(lambda group: float(group.paused)),
    ),
    (
        "pipeline.state",
        "1 for the state a flow is in: running, waiting, failed, silent (it has not reported for a minute) …",
        (*_FLOW, "state"),
        _flow_states,
    ),
    ("pipeline.restarts", "how often a flow was started again in this run", _FLOW, _flows(lambda flow: flow.restarts)),
    ("pipeline.rows", "rows a flow has read in this run", _FLOW, _flows(lambda flow: flow.rows)),
    ("pipeline.batch_seconds", "how long a flow's newest batch took", _FLOW, _flows(lambda flow: flow.batch_seconds)),
    ("pipeline.lag", "what waits to be read by a flow", _FLOW, _flows(lambda flow: flow.lag)),
    (
        "worker.gave_up",
        "1 for a worker that failed too often and was not started again; `penstock workers` says why",
        ("worker",),
        _gave_up,
    ),
    (
        "store.requests",
        "requests to the object store since the journal was opened, by cause (log, database, lease …) and kind",
        ("cause", "kind"),
        _requests,
    ),
    ("store.bytes", "bytes put into the object store since the journal was opened", ("cause",), _stored_bytes),
    (
        "store.unstored_seconds",
        "for how long a commit that nobody waited for is in the writer's memory only",
        (),
        _one(lambda sample: sample.unstored_seconds),
    ),
    ("writer.queued", "submissions that wait for the writer", (), _one(lambda sample: sample.queued)),
    (
        "writer.utilization",
        "waiting submissions as a share of the writer's capacity",
        (),
        _one(lambda sample: sample.pressure),
    ),
)
"""(name, help, labels, values of a sample) of everything that is a journal's present state."""


def gauges(sample: Sample) -> Registry:
    """A sample as gauges; a registry of its own, so that what is gone is not reported for ever."""
    registry = Registry()
    for name, help, labels, values in GAUGES:
        registry.watch_gauges(name, help, labels, partial(values, sample))
    return registry


class _WatchedJournal:
    """One journal's sample, taken anew when it is older than a moment; nothing once the journal is closed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = weakref.ref(journal)
        self._lock = threading.Lock()
        self._seen: tuple[float, Sample] | None = None

    def sample(self) -> Sample | None:
        with self._lock:
            journal = self._journal()
            if journal is None or journal.closed:
                return None
            if self._seen is None or time.monotonic() - self._seen[0] > FRESH:
                try:
                    self._seen = (time.monotonic(), journal.stats())
                except PenstockError:
                    return None  # closed in between, or a store in trouble, which others report better
            return self._seen[1]


def watch(journal: Journal, registry: Registry = REGISTRY) -> None:
    """Adds a journal's present state to a registry, looked at when the registry is read. One journal each."""
    watched = _WatchedJournal(journal)

    def source(values: Callable[[Sample], Values]) -> Callable[[], list[tuple[tuple[str, ...], float]]]:
        def read() -> list[tuple[tuple[str, ...], float]]:
            sample = watched.sample()
            return [] if sample is None else list(values(sample))

        return read

    for name, help, labels, values in GAUGES:
        registry.forget(name)
        registry.watch_gauges(name, help, labels, source(values))

"""A journal's present state as gauges: a name, a help text, labels, and how the values come out of a sample.

penstock.metrics.watch(journal)       # they are gauges of the process's registry from then on
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.observe.collect import KINDS
from penstock.observe.metrics import REGISTRY, Registry
from penstock.observe.pipelines import FlowStatus
from penstock.observe.sample import QueueSample, Sample, TopicSample

if TYPE_CHECKING:
    from penstock.surface.journal import Journal

FRESH = 1.0
"""Seconds for which one sample serves all readers: the gauges of one scrape are of one moment."""

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


def _findings(sample: Sample) -> Values:
    for kind in KINDS:
        yield (kind,), float(sum(one.kind == kind for one in sample.findings))


def _unreadable(sample: Sample) -> Values:
    for topic in sample.unreadable:
        yield (topic,), 1.0


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
        "topic.unreadable",
        "1 for a topic that housekeeping could not read, wholly or in part; `penstock doctor` says why",
        ("topic",),
        _unreadable,
    ),
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
    ("findings", "things that want a person's attention, by kind; `penstock check` names them", ("kind",), _findings),
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
        "for how long a commit that no caller waited for is in the writer's memory only",
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
        registry.watch("gauge", name, help, labels, partial(values, sample))
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
        registry.watch("gauge", name, help, labels, source(values))

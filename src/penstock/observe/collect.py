"""Looking at a whole journal: what `penstock top`, the page and `/metrics` show, and a program may watch in-process.

penstock.observe.collect.take_sample(journal)      # a Sample: every topic and queue now
penstock.metrics.watch(journal)       # the same as gauges of the process's registry
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.journal.commit.catalog import load_state
from penstock.journal.cursors import read_cursors
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.observe.metrics import REGISTRY, Registry
from penstock.observe.sample import QueueSample, Sample, TopicSample

if TYPE_CHECKING:
    from penstock.api import Journal

FRESH = 1.0
"""Seconds for which a look serves everybody who asks: the gauges of one scrape are of one moment."""


def take_sample(journal: Journal) -> Sample:
    """One sample, without rates. All topics are seen in one snapshot, each by one look at its newest block."""
    topics = {}
    with journal._engine.read() as snap:
        for key, _ in list(snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))):
            name = key[1:].decode()
            view = TopicView.open(snap, name)
            if view is None:
                continue
            latest = view.latest()
            events = latest - load_state(snap, view.number, name).removed
            cursors = read_cursors(snap, view.number)
            lags = {consumer: latest - seq for consumer, seq in cursors.items()}
            topics[name] = TopicSample(name, latest, events, 0.0, lags)
    queues: dict[str, list[QueueSample]] = {}
    for name in journal.queues():
        queue = journal.queue(name)
        groups = (queue.groups() or ["default"]) if queue.policy.mode == "fanout" else ["default"]
        queues[name] = []
        for group in groups:
            stats = queue.stats(group)
            queues[name].append(
                QueueSample(name, group, stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age)
            )
    pressure = journal.pressure()
    return Sample(
        time.time(),
        topics,
        queues,
        pressure.utilization,
        pressure.queued,
        journal._writer.measures.commits,
        journal._writer.measures.operations,
    )


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


def _queues(pick: Callable[[QueueSample], float]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        for groups in sample.queues.values():
            for group in groups:
                yield (group.name, group.group), pick(group)

    return values


def _one(pick: Callable[[Sample], float]) -> Callable[[Sample], Values]:
    def values(sample: Sample) -> Values:
        yield (), pick(sample)

    return values


_QUEUE = ("queue", "group")

GAUGES: tuple[tuple[str, str, tuple[str, ...], Callable[[Sample], Values]], ...] = (
    ("topic.latest", "the newest position of a topic", ("topic",), _topics(lambda topic: topic.latest)),
    ("topic.events", "events stored in a topic", ("topic",), _topics(lambda topic: topic.events)),
    (
        "consumer.lag",
        "events a consumer has not seen yet; a Spark query read with the option `consumer` is one",
        ("topic", "consumer"),
        _lags,
    ),
    ("queue.ready", "messages that could be taken now: the backlog", _QUEUE, _queues(lambda group: group.ready)),
    ("queue.leased", "messages in flight, held under a lease", _QUEUE, _queues(lambda group: group.in_flight)),
    ("queue.delayed", "messages that wait for their time", _QUEUE, _queues(lambda group: group.delayed)),
    ("queue.failed", "messages that were given up", _QUEUE, _queues(lambda group: group.failed)),
    (
        "queue.oldest_age_seconds",
        "seconds since the oldest ready message was pushed",
        _QUEUE,
        _queues(lambda group: group.oldest_age or 0.0),
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
                    self._seen = (time.monotonic(), take_sample(journal))
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

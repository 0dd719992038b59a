"""Looking at a whole journal: what `penstock top`, the page and `/metrics` show, and a program may watch in-process.

take_sample(journal)               every topic and queue now, without rates
Sampler(journal)                   samples with rates, taken once for all readers
penstock.metrics.watch(journal)    they are gauges of the process's registry from then on
"""

from __future__ import annotations

import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import stored_size
from penstock.core.journal.catalog import open_block, topic_names
from penstock.core.journal.cursors import read_consumers
from penstock.core.journal.reading import TopicView
from penstock.core.observe import pipelines, workers
from penstock.core.observe.metrics import REGISTRY, Registry
from penstock.core.observe.sample import FINDING_KINDS, Finding, QueueSample, Sample, TopicSample
from penstock.core.queue.inspect import counted_consumers, newest_failures, open_view, stats_of_groups
from penstock.core.units import pluralize, show_duration, show_size
from penstock.errors import Closed, Corrupt, PenstockError, UnknownQueue
from penstock.limits import BACKLOG_SECONDS, FAILING_ATTEMPTS, UNATTENDED_SECONDS, WRITER_FULL

if TYPE_CHECKING:
    from penstock import Journal, Queue, QueuePolicy
    from penstock.core.engine.contract import Snapshot
    from penstock.core.local.backend import LocalJournal
    from penstock.core.sampling.history import History


T = TypeVar("T")

COUNTED_LETTERS = 10_000
"""Letters of a dead-letter queue that several queues share whose origin is looked up."""


def take_sample(journal: LocalJournal) -> Sample:
    """Returns a sample without rates. All topics are seen in one snapshot, each by one look at its newest block."""
    topics: dict[str, TopicSample] = {}
    unreadable: dict[str, str] = {}
    with journal.backend.engine.read() as snap:
        for name in list(topic_names(snap)):
            try:
                _sample_topic(snap, name, journal.clock.now_ms(), topics, unreadable)
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
        journal.backend.core.writer.measures.commits,
        journal.backend.core.writer.measures.operations,
        disk_free=free,
        disk_total=total,
        requests=journal.backend.engine.requests(),
        unstored_seconds=journal.backend.engine.unstored_seconds(),
        unreadable=unreadable,
    )
    sample.flows = _reported(journal, topics.get(pipelines.TOPIC), pipelines.status)
    sample.workers = _reported(journal, topics.get(workers.TOPIC), workers.gave_up)
    sample.findings = examine(sample)
    return sample


def _sample_topic(
    snap: Snapshot, name: str, now_ms: int, topics: dict[str, TopicSample], unreadable: dict[str, str]
) -> None:
    view = TopicView.open(snap, name, now_ms)
    if view is None:
        return
    latest, state = view.latest(), view.state()
    if state.unreadable:
        unreadable[name] = state.unreadable
    consumers = read_consumers(view)
    lags = {one.name: one.lag for one in consumers}
    positions = {one.name: one.position for one in consumers}
    moved = {one.name: one.moved_at.timestamp() for one in consumers if one.moved_at is not None}
    size, last_at = _newest_block(snap, view.topic_id)
    topics[name] = TopicSample(name, latest, latest - state.removed, 0.0, lags, positions, moved, size, last_at)


def _newest_block(snap: Snapshot, topic: int) -> tuple[int, float | None]:
    """Returns the average size of the events of a topic's newest block, and when the last of them was recorded."""
    for key, value in snap.scan(*keys.block_range(topic), reverse=True):
        block = open_block(snap, key, value, "")
        at = block.recorded_ms(block.count - 1) / 1000 if block.count else None
        return stored_size(value) // max(1, block.count), at
    return 0, None


def _sample_queues(
    journal: LocalJournal, topics: dict[str, TopicSample], unreadable: dict[str, str]
) -> dict[str, list[QueueSample]]:
    """Returns every group of every queue, with dead letters counted where they came from.

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
    """Returns every group of a queue."""
    found = []
    with open_view(journal.backend.queue(queue.name)) as view:
        groups, (present, gone), now = stats_of_groups(view), counted_consumers(view), view.now
        failures = newest_failures(view)
    for group, stats, record in groups:
        one = QueueSample(
            queue.name, group, stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age
        )
        one.ttl, one.warn_after = policy.ttl, policy.warn_after
        one.workers, one.gone = present[group], gone[group]
        one.idle = None if not record.seen_ms else (now - record.seen_ms) / 1000
        one.settle_times = dict(record.settle_times)
        if (failure := failures.get(group)) is not None:
            one.last_failed_at, one.last_error = failure.attempt.ended_ms / 1000, failure.attempt.error
        one.paused, one.failing, one.breaker_open = stats.paused, record.failing, stats.breaker == "open"
        if topic is not None:
            unsettled = stats.ready + stats.in_flight + stats.delayed + stats.failed
            one.settled = max(0, topic.latest - unsettled)
        found.append(one)
    return found


TopicEnd = tuple[int, int]
"""A topic's last position, and how many events it has: after a drop the position stays, and the events are gone."""


class _CountedLetters(msgspec.Struct):
    """The sources of the letters of a dead-letter queue; valid while its numbers are these."""

    numbers: list[tuple[int | None, int, int, int]]
    latest: int
    counts: dict[tuple[str, str], int]


class _JournalMemory(msgspec.Struct):
    """The lookups of a journal's samples that stay valid while the journal stays the same."""

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
    """Returns the reports in a topic, read again when the topic has grown."""
    if reports is None:
        return []
    memory, end = _memory(journal).reports, (reports.latest, reports.events)
    known = memory.get(reports.name)
    if known is None or known[0] != end:
        known = memory[reports.name] = (end, read(journal))
    return known[1]


def _disk(journal: LocalJournal) -> tuple[int | None, int | None]:
    """Returns bytes free and in all of the file system the journal lies in."""
    location = journal.backend.engine.location
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
SHOWN_ERROR: Final = 120
"""Characters of an error in a finding."""
GROWING_LAG: Final = 1_000
"""A lag below this is not watched for growth."""
GROWING_STEPS: Final = 3
"""The number of samples in a row, a minute apart, a lag must grow for."""

Lags = dict[tuple[str, str], int]
"""The lag of each consumer of each topic, by topic and consumer."""


def examine(sample: Sample) -> list[Finding]:
    """Returns everything that is wrong at one time, gravest kind first, the largest number first within a kind."""
    return sorted(_findings(sample), key=lambda one: (FINDING_KINDS.index(one.kind), -one.count, one.subject))


def _findings(sample: Sample) -> Iterable[Finding]:
    free, total = sample.disk_free, sample.disk_total
    if free is not None and total and free < DISK_BYTES and free < DISK_SHARE * total:
        yield Finding("disk", "", f"the disk is nearly full: {show_size(free)} of {show_size(total)} are free", free)
    for topic, why in sample.unreadable.items():
        yield Finding("unreadable", topic, f"topic {topic} cannot be read: {why}", 1)
    if sample.pressure > WRITER_FULL:
        full = f"the writer is {sample.pressure:.0%} full: {pluralize(sample.queued, 'submission')} wait for it"
        yield Finding("writer", "", full, sample.queued)
    now = datetime.fromtimestamp(sample.at, UTC)
    for flow in sample.flows:
        times = "" if not flow.restarts else f", for the {_ordinal(flow.restarts + 1)} time"
        says = {"failed": "failed", "silent": "has not reported for a minute", "waiting": f"is restarting{times}"}
        state = flow.believed(now)
        if state in says:
            yield Finding("pipeline", flow.key, f"pipeline {flow.key} {says[state]}", 1)
    for worker in sample.workers:
        yield Finding("worker", worker.worker, f"worker {worker.worker} gave up: {worker.error}", 1)
    for group in (group for groups in sample.queues.values() for group in groups):
        name = group.title
        if group.ready + group.in_flight + group.delayed and (group.failing >= FAILING_ATTEMPTS or group.breaker_open):
            how = "the circuit breaker of {} is open" if group.breaker_open else "{} is failing"
            error = (group.last_error or "no error was given").partition("\n")[0][:SHOWN_ERROR]
            why = f": {pluralize(group.failing, 'attempt')} failed in a row, the newest with {error}"
            yield Finding("failing", group.name, how.format(name) + why, group.failing, group.group)
        if group.dead:
            says_dead = f"{pluralize(group.dead, 'dead letter')} from {name}"
            yield Finding("dead", group.name, says_dead, group.dead, group.group)
        if group.failed:
            says_failed = f"{pluralize(group.failed, 'message')} of {name} failed"
            yield Finding("failed", group.name, says_failed, group.failed, group.group)
        if group.paused:
            waiting = f"{pluralize(group.ready, 'message')} {'is' if group.ready == 1 else 'are'} ready"
            yield Finding("paused", group.name, f"{name} is paused: {waiting}", group.ready, group.group)
        yield from _waiting(group, name)


def _waiting(group: QueueSample, name: str) -> Iterable[Finding]:
    """Returns findings about ready messages that wait too long.

    No consumer processes a group when none has given a sign of life for a minute, no message is in flight, and no
    message was handed out or settled for a minute. A paused group is meant to wait.
    """
    age = group.oldest_age
    if age is None:
        return
    waits = show_duration(age)
    backlog = f"{pluralize(group.ready, 'message')} {'waits' if group.ready == 1 else 'wait'}, the oldest for {waits}"
    silent = group.idle is None or group.idle > UNATTENDED_SECONDS
    alone = not group.workers and not group.in_flight and silent and not group.paused
    if alone and age > (group.warn_after or UNATTENDED_SECONDS):
        yield Finding("unattended", group.name, f"no consumer processes {name}: {backlog}", group.ready, group.group)
        return
    if group.ttl is not None and age > TTL_SHARE * group.ttl:
        late = f"the oldest message of {name} waits for {waits}; messages expire after {show_duration(group.ttl)}"
        yield Finding("oldest", group.name, late, round(age), group.group)
    elif not group.paused and age > (group.warn_after or BACKLOG_SECONDS):
        yield Finding("oldest", group.name, f"{name} is behind: {backlog}", round(age), group.group)


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
    """Returns every consumer's lag in a sample."""
    return {
        (topic.name, consumer): lag for topic in sample.topics.values() for consumer, lag in topic.lags.items() if lag
    }


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


# ── Samples taken once for all readers, with rates, and kept as history ──
# While a page or a program reads them, a thread takes one every second, or more rarely when looking is dear (ten
# thousand topics), so that it never costs more than a few percent of a core. While none does, one a minute, for charts.


INTERVAL: Final = 1.0
SHARE: Final = 0.04
"""Of a core, that sampling may cost."""
LAG_SECONDS: Final = 60.0
"""The time between the samples that show whether a lag grows."""
RATE_SECONDS: Final = 5.0
"""Over how long a rate is measured."""
TREND_SECONDS: Final = 60.0
"""Over how long the trend of a backlog is measured."""
WATCHED_SECONDS: Final = 30.0
"""For how long after the last request samples go on coming every second."""


class Sampler:
    """Samples a journal for as long as it is open. `start` is idempotent; listeners are told of every sample."""

    def __init__(
        self, journal: LocalJournal, *, take: Callable[[Any], Sample] = take_sample, history: History | None = None
    ) -> None:
        self._journal = journal
        self._collect = take
        self.history = history
        self._lock = threading.Lock()
        self._sampling = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._idle = True
        self._asked = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._recent: deque[tuple[float, dict[str, int]]] = deque()
        self._backlogs: deque[tuple[float, dict[tuple[str, str], tuple[int, int]]]] = deque()
        """Ready and settled messages of each group, over the last minute."""
        self._lags: deque[tuple[float, Lags]] = deque(maxlen=GROWING_STEPS + 1)
        self._newest: Sample | None = None

    def start(self) -> None:
        """Begins to sample in the background, unless it does already."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stopping:
                self.sample()
                self._thread = threading.Thread(target=self._run, name="penstock-sampler", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends sampling for good."""
        with self._lock:
            self._stopping = True
            self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def newest(self) -> Sample:
        """The newest sample; a fresh one is taken when the last is from a time without readers."""
        self.start()
        self._asked = time.monotonic()
        if self._newest is None or self._idle:
            self._idle = False
            self._wake.set()
            return self.sample()
        return self._newest

    def listen(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls `tell` (from the sampler's thread) after every sample; returns what ends it."""
        self._listeners.append(tell)
        self._wake.set()

        def end() -> None:
            with suppress(ValueError):
                self._listeners.remove(tell)

        return end

    def sample(self) -> Sample:
        """Takes a sample now."""
        with self._sampling:
            sample = self._collect(self._journal)
            self._add_rates(sample)
            self._add_trends(sample)
            self._watch_lags(sample)
            if self.history is not None:
                self.history.add(sample)
            self._newest = sample
        for tell in list(self._listeners):
            tell()
        return sample

    def _add_rates(self, sample: Sample) -> None:
        recent = self._recent
        while len(recent) > 1 and sample.at - recent[1][0] >= RATE_SECONDS:
            recent.popleft()
        if recent and sample.at > recent[0][0]:
            past_at, past = recent[0]
            took = sample.at - past_at
            for name, topic in sample.topics.items():
                # A topic that was not there a moment ago has gone from nothing to what it is.
                topic.rate = max(0, topic.latest - past.get(name, 0)) / took
            for name, groups in sample.queues.items():
                pushed = sample.topics.get(name)
                for group in groups:
                    group.rate = pushed.rate if pushed else 0.0
            sample.rate = sum(topic.rate for topic in sample.topics.values())
        recent.append((sample.at, {name: topic.latest for name, topic in sample.topics.items()}))

    def _add_trends(self, sample: Sample) -> None:
        """Adds how many messages each group settles a second, and how its backlog changed in the last minute."""
        past, groups = self._backlogs, [group for found in sample.queues.values() for group in found]
        while len(past) > 1 and sample.at - past[1][0] >= TREND_SECONDS:
            past.popleft()
        recent = next((one for one in past if sample.at - one[0] <= RATE_SECONDS), past[-1] if past else None)
        for group in groups:
            name = (group.name, group.group)
            if recent is not None and sample.at > recent[0] and name in recent[1]:
                group.settle_rate = max(0, group.settled - recent[1][name][1]) / (sample.at - recent[0])
            if past and sample.at - past[0][0] >= TREND_SECONDS / 2 and name in past[0][1]:
                group.growth = (group.ready - past[0][1][name][0]) * TREND_SECONDS / (sample.at - past[0][0])
        past.append((sample.at, {(group.name, group.group): (group.ready, group.settled) for group in groups}))

    def _watch_lags(self, sample: Sample) -> None:
        """Adds consumers that fall behind to what the sample finds wrong."""
        taken = self._lags
        if not taken or sample.at - taken[-1][0] >= LAG_SECONDS:
            taken.append((sample.at, lags_of(sample)))
        sample.findings += growing([lags for _, lags in taken])

    def _run(self) -> None:
        nap = INTERVAL
        while not self._stopping:
            self._wake.clear()
            if self._listeners or time.monotonic() - self._asked < WATCHED_SECONDS:
                self._idle = False
                self._pause(nap)
            else:
                self._idle = True
                # A moment after the minute, so that its row is written.
                self._wake.wait(60.05 - time.time() % 60)
            if self._stopping or self._journal.closed:
                return
            begun = time.thread_time()
            try:
                self.sample()
            except Closed:
                return
            except PenstockError:
                nap = 5 * INTERVAL  # the store is in trouble, which others report better
                continue
            nap = max(INTERVAL, (time.thread_time() - begun) / SHARE)

    def _pause(self, seconds: float) -> None:
        """Waits, also when another listener begins meanwhile; only stopping cuts it short."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()


# ── A sample as gauges: a name, a help text, labels, and how the values come out of a sample ──


Values = Iterable[tuple[tuple[str, ...], float]]
JournalGauge = tuple[str, str, tuple[str, ...], Callable[[Sample], Values]]
"""A name, a help text, labels, and the values of a sample by their labels."""


def _of_sample(name: str, help: str, pick: Callable[[Sample], float]) -> JournalGauge:
    return name, help, (), lambda sample: [((), pick(sample))]


def _of_topics(name: str, help: str, pick: Callable[[TopicSample], float]) -> JournalGauge:
    return name, help, ("topic",), lambda sample: [((one.name,), pick(one)) for one in sample.topics.values()]


def _of_consumers(name: str, help: str, pick: Callable[[Sample, TopicSample], Mapping[str, float]]) -> JournalGauge:
    def values(sample: Sample) -> Values:
        for one in sample.topics.values():
            yield from (((one.name, consumer), value) for consumer, value in pick(sample, one).items())

    return name, help, ("topic", "consumer"), values


def _of_queues(name: str, help: str, pick: Callable[[QueueSample], float]) -> JournalGauge:
    def values(sample: Sample) -> Values:
        return [((one.name, one.group), pick(one)) for groups in sample.queues.values() for one in groups]

    return name, help, ("queue", "group"), values


def _of_flows(name: str, help: str, pick: Callable[[pipelines.FlowStatus], float | None]) -> JournalGauge:
    def values(sample: Sample) -> Values:
        picked = (((flow.pipeline, flow.flow), pick(flow)) for flow in sample.flows)
        return [(labels, value) for labels, value in picked if value is not None]

    return name, help, ("pipeline", "flow"), values


def _idle(sample: Sample, topic: TopicSample) -> dict[str, float]:
    return {consumer: max(0.0, sample.at - moved) for consumer, moved in topic.moved.items()}


def _flow_states(sample: Sample) -> Values:
    now = datetime.fromtimestamp(sample.at, UTC)
    return [((flow.pipeline, flow.flow, flow.believed(now)), 1.0) for flow in sample.flows]


def _requests(sample: Sample) -> Values:
    for cause, kinds in sample.requests.items():
        yield from (((cause, kind), number) for kind, number in kinds.items() if kind != "bytes")


GAUGES: Final[tuple[JournalGauge, ...]] = (
    _of_topics("topic.latest", "the newest position of a topic", lambda topic: topic.latest),
    _of_topics("topic.events", "events stored in a topic", lambda topic: topic.events),
    (
        "topic.unreadable",
        "1 for a topic that housekeeping could not read, wholly or in part; `penstock doctor` says why",
        ("topic",),
        lambda sample: [((topic,), 1.0) for topic in sample.unreadable],
    ),
    _of_consumers(
        "consumer.lag",
        "events a consumer has not seen yet; a Spark query read with the option `consumer` is one",
        lambda _, topic: topic.lags,
    ),
    _of_consumers(
        "consumer.idle_seconds",
        "seconds since a consumer's cursor last moved; a consumer that lags and stands still is dead, not slow",
        _idle,
    ),
    _of_queues("queue.ready", "messages that could be taken now: the backlog", lambda one: one.ready),
    _of_queues("queue.leased", "messages in flight, held under a lease", lambda one: one.in_flight),
    _of_queues("queue.delayed", "messages that wait for their time", lambda one: one.delayed),
    _of_queues(
        "queue.failed", "messages that were given up and have no dead-letter queue to go to", lambda one: one.failed
    ),
    _of_queues(
        "queue.dead",
        "dead letters that came from a queue, in any queue; a dead-letter queue does not count them as ready",
        lambda one: one.dead,
    ),
    _of_queues(
        "queue.oldest_age_seconds",
        "seconds since the oldest ready message was pushed",
        lambda one: one.oldest_age or 0.0,
    ),
    _of_queues(
        "queue.workers",
        "workers, and other consumers that gave their name, with a sign of life in the last minute",
        lambda one: one.workers,
    ),
    _of_queues(
        "queue.paused",
        "1 while nothing is handed out, because the queue or the group is paused",
        lambda one: one.paused,
    ),
    (
        "pipeline.state",
        "1 for the state a flow is in: running, waiting, failed, silent (it has not reported for a minute) …",
        ("pipeline", "flow", "state"),
        _flow_states,
    ),
    _of_flows("pipeline.restarts", "how often a flow was started again in this run", lambda flow: flow.restarts),
    _of_flows("pipeline.rows", "rows a flow has read in this run", lambda flow: flow.rows),
    _of_flows("pipeline.batch_seconds", "how long a flow's newest batch took", lambda flow: flow.batch_seconds),
    _of_flows("pipeline.lag", "what waits to be read by a flow", lambda flow: flow.lag),
    (
        "findings",
        "1 for each thing that wants attention, and what it is about; `penstock check` says the same in words",
        ("kind", "subject", "detail"),
        lambda sample: [((one.kind, one.subject, one.detail), 1.0) for one in sample.findings],
    ),
    (
        "worker.gave_up",
        "1 for a worker that failed too often and was not started again; `penstock workers` says why",
        ("worker",),
        lambda sample: [((one.worker,), 1.0) for one in sample.workers],
    ),
    (
        "store.requests",
        "requests to the object store since the journal was opened, by cause (log, database, lease …) and kind",
        ("cause", "kind"),
        _requests,
    ),
    (
        "store.bytes",
        "bytes put into the object store since the journal was opened",
        ("cause",),
        lambda sample: [((cause,), kinds["bytes"]) for cause, kinds in sample.requests.items() if "bytes" in kinds],
    ),
    _of_sample(
        "store.unstored_seconds",
        "for how long a commit that no caller waited for is in the writer's memory only",
        lambda sample: sample.unstored_seconds,
    ),
    _of_sample("writer.queued", "submissions that wait for the writer", lambda sample: sample.queued),
    _of_sample(
        "writer.utilization", "waiting submissions as a share of the writer's capacity", lambda sample: sample.pressure
    ),
)
"""Everything that is a journal's present state."""
FRESH: Final = 1.0
"""Seconds for which one sample serves all readers: the gauges of one scrape are of one moment."""


def gauges(sample: Sample) -> Registry:
    """Returns a sample as gauges; a registry of its own, so that what is gone is not reported for ever."""
    registry = Registry()
    _register(registry, lambda: sample)
    return registry


def watch(journal: Journal, registry: Registry = REGISTRY) -> None:
    """Adds a journal's present state to a registry, looked at when the registry is read. One journal each."""
    reference, lock = weakref.ref(journal), threading.Lock()
    seen: list[tuple[float, Sample]] = []

    def newest() -> Sample | None:
        with lock:
            watched = reference()
            if watched is None or watched.closed:
                return None
            if not seen or time.monotonic() - seen[0][0] > FRESH:
                try:
                    seen[:] = [(time.monotonic(), watched.stats())]
                except PenstockError:
                    return None  # closed in between, or a store in trouble, which others report better
            return seen[0][1]

    _register(registry, newest)


def _register(registry: Registry, newest: Callable[[], Sample | None]) -> None:
    def read(values: Callable[[Sample], Values]) -> Values:
        sample = newest()
        return [] if sample is None else values(sample)

    for name, help, labels, values in GAUGES:
        registry.forget(name)
        registry.watch("gauge", name, help, labels, partial(read, values))

"""The pages of the console: all of it (overview, topics, queues, search, what is wrong, pipelines, schedules, buffers),
a topic with its tail and its consumers, an event, what caused what, a queue with a tab for each thing about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.entity.causality import tree
from penstock.core.events import Event
from penstock.core.journal.catalog import Settings
from penstock.core.journal.locating import find_event
from penstock.core.model.query import EventQuery
from penstock.core.names import is_system
from penstock.core.observe import pipelines, workers
from penstock.core.observe.sample import FailedMessage, Finding, QueueSample, Sample, TopicSample
from penstock.core.queue import inspect
from penstock.core.queue.dead_letters import DeadLetterCursor, letter
from penstock.core.queue.schedule import Cron, Schedule
from penstock.core.queue.tasks.state import TaskTimes
from penstock.core.sampling.history import quantile_ms, settle_counts
from penstock.core.surface.topic import Topic
from penstock.core.units import parse_moment, show_duration, show_size, write_size
from penstock.errors import ConfigError, PenstockError, UnknownQueue
from penstock.limits import BUFFER_MANIFEST
from penstock.server.forms import policy_form, whole, write_field
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table, Tile, count_tile
from penstock.server.service import Refused, Service, existing_queue, existing_topic, guarded

if TYPE_CHECKING:
    from penstock.objects.store import ObjectStore


FOUND: Final = 50
"""Events after which a search stops."""
FOUND_SECONDS: Final = 1.0
"""The time for which a search looks for events of a key."""


def _time(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _worst_lag(topic: TopicSample) -> int | None:
    return max(topic.lags.values(), default=None)


LAST_EVENT: Final = ListColumn[TopicSample]("Last event", lambda topic: _time(topic.last_at), parts.second, True)
TOPIC_COLUMNS: Final[parts.Columns[TopicSample]] = (
    ListColumn("Topic", lambda topic: topic.name),
    ListColumn("Events", lambda topic: topic.events, parts.number),
    ListColumn("Rate", lambda topic: round(topic.rate, 1), parts.rate),
    ListColumn("Latest", lambda topic: topic.latest, parts.number, True),
    ListColumn("Consumers", lambda topic: len(topic.lags), parts.number, True),
    ListColumn("Worst lag", _worst_lag, parts.number),
    LAST_EVENT,
)
BRIEF_TOPIC_COLUMNS: Final[parts.Columns[TopicSample]] = (
    *TOPIC_COLUMNS[:3],
    ListColumn("Lag", _worst_lag, parts.number),
    LAST_EVENT,
)
"""Those that have room beside the queues."""


def queue_name(group: QueueSample) -> str:
    """A group of a queue, as a list names it."""
    name = group.name if group.group == "default" else f"{group.name} / {group.group}"
    return f"{name} (paused)" if group.paused else name


def _dead(group: QueueSample) -> int:
    return group.dead if group.letters is None else group.letters


def trend(group: QueueSample) -> str:
    """How the backlog changes, in words: how many messages more or fewer in a minute, and when it will be gone."""
    change = None if group.growth is None else round(group.growth)
    if change is None:
        return "–"
    if not change:
        return "steady"
    left = f", gone in {show_duration(60 * group.ready / -change)}" if change < 0 and group.ready else ""
    return f"{'+' if change > 0 else '−'}{abs(change):,}/min{left}"


def ago(seconds: float) -> str:
    """How long ago something was, in words."""
    return "just now" if seconds < 1 else f"{show_duration(seconds)} ago"


def last_failure(group: QueueSample) -> str:
    """Returns the time when an attempt failed last, and why."""
    if group.last_failed_at is None:
        return "–"
    return f"{ago(time.time() - group.last_failed_at)}: {group.last_error or 'no error was given'}"


WORKERS_COLUMN: Final = 1
"""Where the number of workers stands in a list of queues."""
BACKLOG_COLUMNS: Final[parts.Columns[QueueSample]] = (
    ListColumn("Workers", lambda group: group.workers, parts.number),
    ListColumn("Ready", lambda group: group.ready, parts.number),
    ListColumn("Trend", trend, minor=True),
    ListColumn("In", lambda group: group.rate, parts.rate, True),
    ListColumn("Out", lambda group: group.settle_rate, parts.rate, True),
    ListColumn("Oldest", lambda group: group.oldest_age, parts.age, True),
)
STATE_COLUMNS: Final[parts.Columns[QueueSample]] = (
    *BACKLOG_COLUMNS,
    ListColumn("In flight", lambda group: group.in_flight, parts.number, True),
    ListColumn("Delayed", lambda group: group.delayed, parts.number, True),
    ListColumn("Failed", lambda group: group.failed, parts.number),
    ListColumn("Dead", _dead, parts.number),
    ListColumn("Last failure", last_failure, minor=True),
)
NAME_COLUMN: Final = ListColumn("Queue", queue_name)
QUEUE_COLUMNS: Final = (NAME_COLUMN, *STATE_COLUMNS)
SHORT_COLUMNS: Final[parts.Columns[QueueSample]] = (
    NAME_COLUMN,
    *BACKLOG_COLUMNS,
    ListColumn("Failed", lambda group: group.failed, parts.number),
    ListColumn("Dead", _dead, parts.number),
)
"""Those that have room beside the topics."""


def queue_row(base: str, sample: Sample) -> Callable[[QueueSample, list[str]], Row]:
    """A group of a queue as a row, with the way to its page."""
    waiting = {(one.subject, one.detail) for one in sample.findings if one.kind in ("unattended", "oldest")}

    def row(group: QueueSample, cells: list[str]) -> Row:
        href = f"{base}/queues/{parts.segment(group.name)}?{urlencode({'group': group.group})}"
        waits = group.paused or (group.name, group.group) in waiting
        level: parts.Level = "alert" if group.failed or group.dead else "warning" if waits else ""
        return Row(f"{group.name}/{group.group}", cells, href, level, links={WORKERS_COLUMN: f"{href}&tab=workers"})

    return row


def _sought(request: Request) -> str:
    return request.query_params.get("q", "").strip()[:200]


def topic_table(request: Request, sample: Sample, columns: parts.Columns[TopicSample] = TOPIC_COLUMNS) -> Table:
    """Topics whose names have `q` in them, with `system` also penstock's; queues are in the other table."""
    base, query, with_system = parts.base_of(request), _sought(request).lower(), "system" in request.query_params
    own = [topic for topic in sample.topics.values() if topic.name not in sample.queues and query in topic.name.lower()]
    found = [topic for topic in own if with_system or not is_system(topic.name)]

    def row(topic: TopicSample, cells: list[str]) -> Row:
        return Row(topic.name, cells, f"{base}/topics/{parts.segment(topic.name)}")

    return parts.listing(request, "topics", columns, found, row, "no topic here", usual="rate")


def queue_table(request: Request, sample: Sample, columns: parts.Columns[QueueSample] = SHORT_COLUMNS) -> Table:
    query, row = _sought(request).lower(), queue_row(parts.base_of(request), sample)
    found = (group for groups in sample.queues.values() for group in groups if query in group.name.lower())
    return parts.listing(request, "queues", columns, found, row, "no queue here", usual="ready")


def system_topics(request: Request, sample: Sample) -> tuple[int, bool, str]:
    """Returns the number of topics that are penstock's own, whether they show, and the query that switches that."""
    shown = "system" in request.query_params
    kept = {name: value for name, value in request.query_params.items() if name != "system"}
    return sum(is_system(name) for name in sample.topics), shown, urlencode(kept if shown else {**kept, "system": "1"})


def _own(sample: Sample) -> list[str]:
    """The topics that are neither queues nor penstock's."""
    return [name for name in sample.topics if name not in sample.queues and not is_system(name)]


def tiles(sample: Sample) -> list[Tile]:
    """The journal in eight numbers."""
    groups = [group for found in sample.queues.values() for group in found]
    oldest = max((group.oldest_age for group in groups if group.oldest_age is not None), default=None)
    return [
        Tile("rate", "Events a second", parts.rate(sample.rate)),
        count_tile("topic-count", "Topics", len(_own(sample))),
        count_tile("backlog", "Ready in queues", sum(group.ready for group in groups)),
        Tile("oldest", "Oldest ready", parts.age(oldest)),
        count_tile("in-flight", "In flight", sum(group.in_flight for group in groups)),
        count_tile("failed", "Failed", sum(group.failed for group in groups), alert=True),
        count_tile("dead-count", "Dead letters", sum(group.dead for group in groups), alert=True),
        Tile("pressure", "Writer pressure", f"{sample.pressure:.0%}", sample.pressure > 0.75),
    ]


def overview(request: Request, service: Service, sample: Sample) -> Content:
    tables = {"queues": queue_table(request, sample), "topics": topic_table(request, sample, BRIEF_TOPIC_COLUMNS)}
    if not _own(sample) and not sample.queues:
        address = f"{request.url.scheme}://{request.headers.get('host', '')}{parts.base_of(request)}"
        return Content("empty.html", "Overview", [], tables, lambda: {"address": address})
    values = {"charts": charts.OVERVIEW, "system": system_topics(request, sample)}
    return Content("overview.html", "Overview", tiles(sample), tables, lambda: values)


def topics_page(request: Request, service: Service, sample: Sample) -> Content:
    values = {"system": system_topics(request, sample)}
    return Content("topics.html", "Topics", [], {"topics": topic_table(request, sample)}, lambda: values)


def queues_page(request: Request, service: Service, sample: Sample) -> Content:
    return Content("queues.html", "Queues", [], {"queues": queue_table(request, sample, QUEUE_COLUMNS)})


# ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────────
def search_page(request: Request, service: Service, sample: Sample) -> Content:
    """Topics and queues by a part of their names, events by their id, their key or a text in their payload."""
    tables = {"topics": topic_table(request, sample), "queues": queue_table(request, sample)}

    def values() -> dict[str, object]:
        query = _sought(request)
        events, following = found_events(service, query, request.query_params.get("from", ""))
        within = search_payloads(service, query, request.query_params.get("text-from", ""))
        return {"found": query, "events": events, "following": following, "within": within}

    return Content("search.html", "Search", [], tables, values)


class PayloadSearch(msgspec.Struct):
    """What a search found in payloads, and how far it looked."""

    events: list[Event] = []
    looked: int = 0
    """Events."""
    topics: int = 0
    older: list[tuple[str, int]] = []
    """Topics with older events than those that were looked at, and the position where those begin."""
    following: str | None = None
    """The topic to go on with."""


SEARCHED: Final = 2_000
"""Events of a topic, the newest, in whose payloads a search looks."""


def search_payloads(service: Service, text: str, first: str) -> PayloadSearch:
    """The newest events whose payload has a text in it, in upper or lower case, topic by topic from `first` on."""
    found = PayloadSearch()
    if not text:
        return found
    needle, until = Needle(text), time.monotonic() + FOUND_SECONDS
    for name in names_from(first, _searched(service)):
        if found.topics and (len(found.events) >= FOUND or time.monotonic() > until):
            found.following = name
            break
        with suppress(PenstockError):  # dropped, or damaged
            topic, looked, last = service.journal.topic(name), 0, 0
            for event in topic.read(reverse=True, limit=SEARCHED):
                looked, last = looked + 1, event.seq
                if needle.is_in(event):
                    found.events.append(event)
                if len(found.events) >= FOUND or (looked % 100 == 0 and time.monotonic() > until):
                    break
            found.looked, found.topics = found.looked + looked, found.topics + 1
            if last > topic.oldest:
                found.older.append((name, last))
    return found


class Needle:
    """A text that payloads are searched for, as people see it and as JSON writes it."""

    def __init__(self, text: str) -> None:
        lower = text.lower()
        self._forms = {lower.encode(), msgspec.json.encode(lower)[1:-1]}

    def is_in(self, event: Event) -> bool:
        """Returns True when a payload has the text in it."""
        raw = event.raw.lower()
        return any(form in raw for form in self._forms)


def _searched(service: Service) -> list[str]:
    return sorted([*_own(service.sampler.newest), *service.sampler.newest.queues])


def found_events(service: Service, query: str, first: str) -> tuple[list[Event], str | None]:
    """The event of an id, then the newest of a key, topic by topic from `first` on, for as long as a person waits; and
    the topic to go on with, when it did not come through all of them."""
    if not query:
        return [], None
    found: list[Event] = []
    if not first:
        with service.journal.backend.engine.read() as snap:
            event = find_event(snap, query)
        found = [] if event is None else [event]
    until = time.monotonic() + FOUND_SECONDS
    for name in names_from(first, _searched(service)):
        if name != first and (len(found) >= FOUND or time.monotonic() > until):
            return found, name
        with suppress(PenstockError):  # dropped or damaged, or no key that an event can have
            found += service.journal.topic(name).read(key=query, reverse=True, limit=10)
    return found, None


def names_from(first: str, names: list[str]) -> Iterator[str]:
    return (name for name in names if name >= first)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────
FINDING_COLUMNS: Final[parts.Columns[Finding]] = (
    ListColumn("What", lambda one: one.says),
    ListColumn("Kind", lambda one: one.kind),
)
WORKER_COLUMNS: Final[parts.Columns[workers.WorkerFailure]] = (
    ListColumn("Worker", lambda one: one.worker),
    ListColumn("Host", lambda one: one.host),
    ListColumn("Process", lambda one: one.pid, str),
    ListColumn("Gave up", lambda one: one.at, parts.moment),
    ListColumn("Error", lambda one: one.error),
)


def health_page(request: Request, service: Service, sample: Sample) -> Content:
    """Every finding, gravest first; workers that gave up: where they ran, when and why; their reports have the
    traceback."""
    base, may_admin = parts.base_of(request), parts.can(request, "admin")

    def finding(one: Finding, cells: list[str]) -> Row:
        return Row(
            f"{one.kind}/{one.subject}/{one.detail}", cells, base + parts.page_of_finding(one), parts.level_of(one)
        )

    def worker(one: workers.WorkerFailure, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(workers.TOPIC)}?{urlencode({'key': one.worker})}"
        buttons = [ActButton("Forget", "forget-worker", {"worker": one.worker})] if may_admin else []
        return Row(one.worker, cells, href, "alert", buttons)

    gave_up = parts.table(
        "gave-up", WORKER_COLUMNS, sample.workers, worker, "no worker has given up", buttons=may_admin
    )
    free = "–" if sample.disk_free is None else show_size(sample.disk_free)
    return Content(
        "health.html",
        "Health",
        [
            count_tile("finding-count", "Findings", len(sample.findings), alert=True),
            Tile("disk-free", "Free on disk", free, any(one.kind == "disk" for one in sample.findings)),
        ],
        {
            "findings": parts.table("findings", FINDING_COLUMNS, sample.findings, finding, "nothing is wrong"),
            "workers": gave_up,
        },
    )


# ── pipelines, as they report themselves, and every named cursor with its lag ────────────────────────────────────────
class NamedCursor(msgspec.Struct):
    """A named cursor of a topic."""

    consumer: str
    topic: TopicSample

    @property
    def lag(self) -> int:
        """The number of events its reader has left to read."""
        return self.topic.lags[self.consumer]


FLOW_COLUMNS: Final[parts.Columns[pipelines.FlowStatus]] = (
    ListColumn("Flow", lambda flow: flow.key),
    ListColumn("State", lambda flow: flow.believed(datetime.now(UTC))),
    ListColumn("From", lambda flow: ", ".join(flow.sources), minor=True),
    ListColumn("To", lambda flow: flow.target, minor=True),
    ListColumn("Rows a second", lambda flow: flow.rows_per_second, parts.rate, True),
    ListColumn("Lag", lambda flow: flow.lag, parts.number),
    ListColumn("Rows", lambda flow: flow.rows, parts.number, True),
    ListColumn("Batch", lambda flow: flow.batch, parts.number, True),
    ListColumn("Batch time", lambda flow: flow.batch_seconds, parts.age, True),
    ListColumn("Restarts", lambda flow: flow.restarts, parts.number, True),
    ListColumn("Reported", lambda flow: flow.reported_at, parts.moment, True),
)
ERROR_COLUMNS: Final[parts.Columns[pipelines.FlowStatus]] = (
    ListColumn("Flow", lambda flow: flow.key),
    ListColumn("Error", lambda flow: flow.error, str),
)
FOLLOWER_COLUMNS: Final[parts.Columns[NamedCursor]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Topic", lambda one: one.topic.name),
    ListColumn("Position", lambda one: one.topic.positions[one.consumer], parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Topic's rate", lambda one: one.topic.rate, parts.rate, True),
)


def pipelines_page(request: Request, service: Service, sample: Sample) -> Content:
    """Flows as they last reported; why they failed, whole; and named cursors, of which a streaming query read with the
    `consumer` option is one."""
    base, found = parts.base_of(request), pipelines.status(service.journal)

    def page_of(name: str) -> str:
        """The page of a topic or queue that a flow reads or writes; nothing when it is no name of this journal's."""
        page = "queues" if name in sample.queues else "topics" if name in sample.topics else ""
        return page and f"{base}/{page}/{parts.segment(name)}"

    def row(flow: pipelines.FlowStatus, cells: list[str]) -> Row:
        level: parts.Level = "alert" if flow.error is not None or cells[1] in ("failed", "silent") else ""
        links = {} if len(cells) == 2 else {3: page_of(flow.target)}
        if links and len(flow.sources) == 1:
            links[2] = page_of(flow.sources[0])
        href = f"{base}/topics/{parts.segment(pipelines.TOPIC)}?{urlencode({'key': flow.key})}"
        return Row(flow.key, cells, href, level, links=links)

    def follower(one: NamedCursor, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(one.topic.name)}"
        return Row(f"{one.consumer}/{one.topic.name}", cells, href)

    cursors = [NamedCursor(name, topic) for topic in sample.topics.values() for name in topic.lags]
    failed = [flow for flow in found if flow.error is not None]
    no_flow, no_cursor = "no pipeline has reported: penstock run pipeline.py", "no consumer has committed a position"
    tables = {
        "flows": parts.listing(request, "pipelines", FLOW_COLUMNS, found, row, no_flow, usual="flow"),
        "errors": parts.table("flow-errors", ERROR_COLUMNS, failed, row, "no flow has failed"),
        "followers": parts.listing(request, "followers", FOLLOWER_COLUMNS, cursors, follower, no_cursor, usual="lag"),
    }
    return Content("pipelines.html", "Pipelines", [], tables, lambda: {"charts": charts.PIPELINES})


# ── the periodic messages of all queues, with the ticks that come next ───────────────────────────────────────────────
def _timing(schedule: Schedule) -> str:
    """Returns the time when a schedule ticks, in words."""
    if schedule.cron is not None:
        return schedule.cron
    return f"every {show_duration(schedule.interval)}"


def _tick(ahead: int) -> Callable[[Schedule], datetime]:
    """Returns the time when a schedule pushes its message, so many ticks after the next one."""

    def tick(schedule: Schedule) -> datetime:
        at = schedule.next_tick
        for _ in range(ahead):
            step = timedelta(seconds=schedule.interval or 0.0)
            at = at + step if schedule.cron is None else Cron(schedule.cron, schedule.timezone).next(at)
        return at

    return tick


SCHEDULE_COLUMNS: Final[parts.Columns[Schedule]] = (
    ListColumn("Schedule", lambda one: one.name),
    ListColumn("Queue", lambda one: one.queue),
    ListColumn("When", _timing),
    ListColumn("Time zone", lambda one: one.timezone if one.cron is not None else None),
    ListColumn("Next", _tick(0), parts.moment),
    ListColumn("Then", _tick(1), parts.moment, True),
    ListColumn("Then", _tick(2), parts.moment, True),
    ListColumn("Last", lambda one: one.last_tick, parts.moment, True),
    ListColumn("Missed ticks", lambda one: one.missed, minor=True),
    ListColumn("Kind", lambda one: one.kind, minor=True),
)


def schedule_table(request: Request, found: Iterable[Schedule]) -> Table:
    """Schedules, the next to tick first."""
    base, may_write = parts.base_of(request), parts.can(request, "write")

    def row(one: Schedule, cells: list[str]) -> Row:
        fields = {"queue": one.queue, "schedule": one.name}
        buttons = [ActButton("Run now", "run-schedule", fields), ActButton("Remove", "remove-schedule", fields)]
        href = f"{base}/queues/{parts.segment(one.queue)}?tab=schedules"
        return Row(f"{one.queue}/{one.name}", cells, href, buttons=buttons if may_write else [])

    empty = "there is no schedule: queue.every(60, payload, name=…)"
    return parts.listing(request, "schedules", SCHEDULE_COLUMNS, found, row, empty, usual="next", buttons=may_write)


def schedules_page(request: Request, service: Service, sample: Sample) -> Content:
    found: list[Schedule] = []
    for name in service.journal.queues():
        with suppress(UnknownQueue):  # dropped this very moment
            found += service.journal.queue(name, create=False).schedules()
    return Content("schedules.html", "Schedules", [], {"schedules": schedule_table(request, found)})


# ── the object-storage buffers a server was told about: how much waits, since when, and under which epoch ────────────
FRESH: Final = 2.0
"""Seconds for which a look at a manifest is good: it is a request to an object store."""


class BufferState(msgspec.Struct):
    """A buffer at one time."""

    name: str
    waiting: int = 0
    """Batches that no consumer and no pipeline has read."""
    read: int = 0
    """Batches that a pipeline has read and removes when its next batch begins."""
    epoch: int = 0
    next_sequence: int = 0
    lag: float | None = None
    """Seconds since the oldest batch that waits was produced."""
    problem: str | None = None


class Buffers:
    """The buffers a server shows, by name."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls = dict(urls)
        self._stores: dict[str, ObjectStore] = {}
        self._seen: tuple[float, list[BufferState]] = (0.0, [])

    def states(self, flows: Sequence[pipelines.FlowStatus]) -> list[BufferState]:
        """Every buffer now, or as it was a moment ago; `flows` say how far pipelines have read."""
        at, found = self._seen
        if self.urls and time.monotonic() - at > FRESH:
            read_to: dict[str, int] = {}
            for flow in flows:
                for manifest, sequence in flow.read_to.items():
                    read_to[manifest] = max(sequence, read_to.get(manifest, 0))
            with ThreadPoolExecutor(min(8, len(self.urls))) as pool:
                found = list(pool.map(lambda name: self._inspect(name, read_to), self.urls))
            self._seen = (time.monotonic(), found)
        return found

    def _inspect(self, name: str, read_to: Mapping[str, int]) -> BufferState:
        from penstock.buffer.format import parse_manifest
        from penstock.buffer.manifest import lag_of
        from penstock.objects.store import open_store

        try:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = open_store(self.urls[name])
            stored = store.read(BUFFER_MANIFEST, None)
            if stored is None:
                return BufferState(name)
            manifest = parse_manifest(stored.data, BUFFER_MANIFEST)
            first = manifest.first_sequence()
            begin = manifest.next_sequence if first is None else first
            unread = max(begin, read_to.get(f"{self.urls[name].rstrip('/')}/{BUFFER_MANIFEST}", 0))
            read = min(manifest.count, unread - begin)
            oldest = manifest.after(unread - 1 if unread else None, 1)
        except PenstockError as error:
            return BufferState(name, problem=str(error))
        waits, lag = manifest.count - read, lag_of(oldest)
        return BufferState(name, waits, read, manifest.epoch, manifest.next_sequence, lag)


BUFFER_COLUMNS: Final[parts.Columns[BufferState]] = (
    ListColumn("Buffer", lambda one: one.name),
    ListColumn("Batches waiting", lambda one: one.waiting, parts.number),
    ListColumn("Read, not yet removed", lambda one: one.read, parts.number),
    ListColumn("Lag", lambda one: one.lag, parts.age),
    ListColumn("Epoch", lambda one: one.epoch, parts.number),
    ListColumn("Next sequence", lambda one: one.next_sequence, parts.number),
    ListColumn("Problem", lambda one: one.problem),
)


def buffers_page(request: Request, service: Service, sample: Sample) -> Content:
    def row(one: BufferState, cells: list[str]) -> Row:
        return Row(one.name, cells, None, "alert" if one.problem else "")

    empty = "this server was told of no buffer: penstock serve --buffer URL"
    found = parts.table("buffers", BUFFER_COLUMNS, service.buffers.states(sample.flows), row, empty)
    return Content("buffers.html", "Buffers", [], {"buffers": found})


# ── a topic: throughput, live tail with filters, consumers with seek ─────────────────────────────────────────────────
SHOWN: Final = 50
"""Events a page begins with."""
PAGE_SCAN_LIMIT: Final = 20_000
"""Events a page looks at for its filter before it shows what it found."""
TOPIC_TABS: Final = {"events": "Events", "consumers": "Consumers", "settings": "Settings"}


class ConsumerPosition(msgspec.Struct):
    """The position of a consumer of a topic."""

    consumer: str
    at: int
    lag: int
    moved: float | None
    """The time when its cursor last moved, in seconds of the epoch."""


def _moved(one: ConsumerPosition) -> datetime | None:
    return None if one.moved is None else datetime.fromtimestamp(one.moved, UTC)


POSITION_COLUMNS: Final[parts.Columns[ConsumerPosition]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Position", lambda one: one.at, parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Last moved", _moved, parts.moment),
)


def topic_page(request: Request, service: Service, sample: Sample) -> Content:
    topic = existing_topic(request, service)
    found = sample.topics.get(topic.name) or TopicSample(topic.name, 0, 0)
    is_own, may_write = is_system(topic.name), parts.can(request, "write")
    tabs = dict(TOPIC_TABS)
    if is_own or not parts.can(request, "admin"):
        del tabs["settings"]
    wanted = request.query_params.get("tab", "")
    tab = wanted if wanted in tabs else "events"
    tiles = [
        Tile("rate", "Events a second", parts.rate(found.rate)),
        count_tile("events", "Events stored", found.events),
        count_tile("latest", "Latest position", found.latest),
        count_tile("consumer-count", "Consumers", len(found.lags)),
        Tile("worst-lag", "Worst lag", parts.number(max(found.lags.values(), default=None))),
    ]

    def row(one: ConsumerPosition, cells: list[str]) -> Row:
        fields = {"topic": topic.name, "consumer": one.consumer}
        return Row(one.consumer, cells, buttons=[ActButton("Forget", "forget", fields)] if may_write else [])

    consumers = [
        ConsumerPosition(name, at, found.lags[name], found.moved.get(name)) for name, at in found.positions.items()
    ]
    none, usual = "no consumer has committed a position", "consumer"
    shown = parts.listing(request, "consumers", POSITION_COLUMNS, consumers, row, none, usual=usual, buttons=may_write)

    def values() -> dict[str, object]:
        shared = {"tab": tab, "tabs": tabs, "topic": topic, "is_queue": topic.name in sample.queues, "is_own": is_own}
        if tab == "events":
            return shared | _tail(request, topic)
        return shared | {"consumer_names": sorted(topic.cursors()), "settings": settings_values(topic.settings)}

    return Content("topic.html", topic.name, tiles, {"consumers": shown}, values, "Topic")


def settings_values(settings: Settings) -> dict[str, str]:
    """Returns the settings of a topic, in units that a person can write back."""
    return {
        "max_age": write_field(settings.max_age),
        "max_events": write_field(settings.max_events),
        "max_bytes": "" if settings.max_bytes is None else write_size(settings.max_bytes),
        "by_key": "yes" if settings.by_key else "",
    }


def _tail(request: Request, topic: Topic) -> dict[str, object]:
    """The newest events, and the position that the page follows from."""
    after = topic.latest  # before the events: a page that shows none follows what comes after this
    look, problem = _look(request, topic)
    older = None
    if look.last > topic.oldest:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        older = urlencode([*kept, ("before", look.last)])
    templates = [event for event in look.events[:5] if not event.binary]
    found = {"look": look, "problem": problem, "after": after, "older": older, "templates": templates}
    return {**found, "charts": charts.TOPIC}


class TopicLook(msgspec.Struct):
    """The newest chosen events of a topic, newest first, and how far the look went."""

    events: list[Event] = []
    last: int = 0
    """The position of the last event that was looked at."""
    looked: int | None = None
    """The number of events that were looked at, when the look stopped before it found enough."""


def _look(request: Request, topic: Topic) -> tuple[TopicLook, str | None]:
    """The newest chosen events, and what is wrong with the choice; its form sends empty fields along."""
    asked, now = request.query_params, datetime.now(UTC)
    given: dict[str, Any] = {
        name: asked.get(name, "").strip() or None for name in ("key", "key_prefix", "scope", "where")
    }
    look, text = TopicLook(), asked.get("text", "").strip()[:200]
    needle, until = Needle(text) if text else None, time.monotonic() + FOUND_SECONDS
    try:
        given |= {name: parse_moment(asked[name], now) for name in ("since", "until") if asked.get(name)}
        through = max(0, whole(asked["before"]) - 1) if asked.get("before") else None
        kinds = [kind for kind in asked.getlist("kind") if kind] or None
        wanted = EventQuery(through=through, kinds=kinds, reverse=True, **given)
        for looked, event in enumerate(topic._at.read(replace(wanted, where=None)), 1):
            look.last = event.seq
            if (wanted.where is None or wanted.where.matches(event)) and (needle is None or needle.is_in(event)):
                look.events.append(event)
            if len(look.events) == SHOWN:
                break
            if looked >= PAGE_SCAN_LIMIT or (looked % 100 == 0 and time.monotonic() > until):
                look.looked = looked
                break
        return look, None
    except ConfigError as error:
        return TopicLook(), str(error)


# ── one event ────────────────────────────────────────────────────────────────────────────────────────────────────────
SHOWN_BYTES: Final = 1 << 20
"""Of a payload; the API has all of it."""
SOUGHT_EFFECTS: Final = 100
"""Effects of a message among which its dead letter is looked for."""
SHOWN_EFFECTS: Final = 20
"""Effects of an event that are listed; the tree shows more."""


class EventPayload(msgspec.Struct):
    """A payload as text, and what is to be known of it."""

    text: str
    size: str
    format: str
    """json, text or bytes."""
    cut: bool = False


def payload_of(event: Event) -> EventPayload:
    """A payload for reading: JSON in its own layout, bytes in hexadecimal."""
    raw = event.raw
    size = show_size(len(raw))
    if event.binary:
        return EventPayload(raw[:4096].hex(" ", 1), size, "bytes", len(raw) > 4096)
    if len(raw) > SHOWN_BYTES:
        return EventPayload(raw[:65_536].decode("utf-8", "replace"), size, "text", True)
    try:
        return EventPayload(msgspec.json.format(raw, indent=2).decode("utf-8", "replace"), size, "json")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EventPayload(raw.decode("utf-8", "replace"), size, "text")


def failure_of(request: Request, service: Service, event: Event) -> FailedMessage | None:
    """Why a message was given up: from a dead letter's headers, or from its queue."""
    if "dead-reason" in event.headers:
        return letter(event)
    group = request.query_params.get("group") or "default"
    try:
        failure = next(inspect.failures(service.journal.backend.queue(event.topic), group, event.seq - 1), None)
    except UnknownQueue:
        return None
    return failure if failure is not None and failure.event.id == event.id else None


def _letter_of(event: Event, effects: Iterable[Event]) -> Event | None:
    """The newest dead letter among what a message caused; None when it is none's original."""
    ids = [one for one in effects if one.headers.get("dead-id") == event.id]
    return max(ids, key=lambda one: one.recorded_at, default=None)


def _original(service: Service, failure: FailedMessage) -> Event | None:
    """The message that a dead letter was; None when it is not stored any more, which a settled one need not be."""
    seq = failure.event.headers.get("dead-seq", "")
    if not (seq.isascii() and seq.isdigit() and len(seq) <= 18):
        return None
    with suppress(PenstockError):  # anyone may push a letter's headers: they may name nothing
        return service.journal.topic(failure.queue).get(int(seq))
    return None


def _waits(service: Service, died: Event) -> bool:
    """Returns True if a dead letter is still in its queue."""
    try:
        return service.journal.queue(died.topic, create=False).get(died.seq) is not None
    except UnknownQueue:
        return False


def message_of(service: Service, event: Event) -> list[inspect.QueueMessage] | None:
    """Returns the state of an event as a message, with each group that has not settled it; None when its topic is no
    queue."""
    try:
        found = service.journal.queue(event.topic, create=False).messages(after=event.seq - 1, limit=1)
    except UnknownQueue:
        return None
    return [one for one in found if one.event.id == event.id]


@guarded("read")
def event_page(request: Request, service: Service) -> Response:
    """An event as a page, or, with `part=1`, as the part of one that lists show beside themselves."""
    topic = existing_topic(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdecimal() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    cause = None
    if event.causation_id is not None:
        cause = next((found for found in topic.ancestors(event) if found.id == event.causation_id), None)
    message, effects = message_of(service, event), list(islice(topic.effects(event), SOUGHT_EFFECTS))
    failure, died = failure_of(request, service, event), None
    if message == [] and failure is None:
        died = _letter_of(event, effects)
        failure = None if died is None else letter(died)
    values: dict[str, object] = {
        "event": event,
        "payload": payload_of(event),
        "group": request.query_params.get("group", ""),
        "failure": failure,
        "died": died,
        "original": None if failure is None else _original(service, failure),
        "died_waits": died is not None and _waits(service, died),
        "cause": cause,
        "effects": effects[: SHOWN_EFFECTS + 1],
        "shown_effects": SHOWN_EFFECTS,
        "oldest": topic.oldest,
        "latest": topic.latest,
        "is_queue": message is not None,
        "message": message or [],
        "consumer_names": sorted(topic.cursors()),
    }
    if "part" in request.query_params:
        return parts.part(request, "event_part.html", values)
    title = f"{topic.name} #{event.seq}"
    return parts.page(request, service, Content("event.html", title, values=lambda: values, kind="Event"))


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
MOST_SHOWN: Final = 200
"""Events of a correlation that are shown; more is a wall, not a picture."""


@guarded("read")
def graph_page(request: Request, service: Service) -> Response:
    correlation = request.path_params["correlation"]
    try:
        events = list(islice(service.journal.correlated(correlation), MOST_SHOWN + 1))
    except PenstockError as error:
        raise Refused(400, type(error).__name__, str(error)) from error
    if not events:
        raise Refused(404, "UnknownEvent", f"no event belongs to {correlation[:80]!r}")
    note = f"The first {MOST_SHOWN:,} events." if len(events) > MOST_SHOWN else f"{len(events):,} events."
    events = events[:MOST_SHOWN]
    values = {"correlation": correlation, "note": note, "tree": tree(events), "events": events}
    content = Content("graph.html", "What caused what", values=lambda: values, kind="Correlation")
    return parts.page(request, service, content)


# ── a queue: its messages by state, what was given up and how to send it back, workers, schedules, policy ────────────
SHOWN_GROUPS: Final = 8
"""Groups that have a link of their own; of more there is a table."""
MESSAGE_STATES: Final = (("", "all"), *((state, state.replace("_", " ")) for state in inspect.STATES))
QUEUE_TABS: Final = {
    "messages": "Messages",
    "dead": "Dead letters",
    "workers": "Workers",
    "schedules": "Schedules",
    "groups": "Groups",
    "policy": "Policy",
}


def in_hand_words(one: inspect.QueueConsumer) -> str:
    """What a consumer works on now: by position, and for how long."""
    if not one.in_hand:
        return "waits" if one.state != "gone" else "nothing"
    shown = ", ".join(f"#{seq}" for seq in one.holds[:3])
    shown = shown if one.in_hand <= 3 else f"{shown} and {one.in_hand - 3:,} more"
    if one.working_since is None:
        return shown
    return f"{shown}, for {show_duration(max(0.0, (datetime.now(UTC) - one.working_since).total_seconds()))}"


def last_error_words(one: inspect.QueueConsumer) -> str:
    """Returns the time when and why an attempt of a consumer failed last."""
    if one.last_failed_at is None:
        return "–"
    when = ago((datetime.now(UTC) - one.last_failed_at).total_seconds())
    return f"#{one.last_failed}, {when}: {one.last_error or 'no error was given'}"


PENDING_COLUMNS: Final[parts.Columns[inspect.PendingDelivery]] = (
    ListColumn("Message", lambda held: held.seq, parts.position),
    ListColumn("Holder", lambda held: held.consumer),
    ListColumn("Group", lambda held: held.group, minor=True),
    ListColumn("Attempt", lambda held: held.attempt, parts.number),
    ListColumn("Delivered", lambda held: held.delivered_at, parts.moment, True),
    ListColumn("Deadline", lambda held: held.deadline, parts.moment),
)


class WorkerAtQueue(msgspec.Struct):
    """A worker, or another consumer that gave its name, and the queue that it takes from."""

    queue: str
    one: inspect.QueueConsumer


WORKS_ON: Final = ListColumn[WorkerAtQueue]("Works on", lambda found: in_hand_words(found.one))
FAILED_LAST: Final = ListColumn[WorkerAtQueue]("Last failure", lambda found: last_error_words(found.one))
QUEUE_OF_WORKER: Final = ListColumn[WorkerAtQueue]("Queue", lambda found: found.queue, minor=True)
CONSUMER_COLUMNS: Final[parts.Columns[WorkerAtQueue]] = (
    ListColumn("Worker", lambda found: found.one.name),
    QUEUE_OF_WORKER,
    ListColumn("Group", lambda found: found.one.group, minor=True),
    ListColumn("State", lambda found: found.one.state, minor=True),
    WORKS_ON,
    FAILED_LAST,
    ListColumn("Host", lambda found: found.one.host, minor=True),
    ListColumn("Since", lambda found: found.one.since, parts.moment, True),
    ListColumn("Last seen", lambda found: found.one.last_seen, parts.moment, True),
)
NO_WORKER: Final = "no worker is there: penstock work, or queue.worker(handler)"


def worker_table(request: Request, found: Iterable[WorkerAtQueue], left_out: Sequence[str]) -> Table:
    """Workers, what each works on, since when, and its last failure; without the columns that say the same of all."""
    base, columns = parts.base_of(request), [one for one in CONSUMER_COLUMNS if one.title not in left_out]

    def row(worker: WorkerAtQueue, cells: list[str]) -> Row:
        one, links = worker.one, {}
        messages = f"{base}/topics/{parts.segment(worker.queue)}/events"
        if QUEUE_OF_WORKER in columns:
            links[columns.index(QUEUE_OF_WORKER)] = f"{base}/queues/{parts.segment(worker.queue)}?tab=workers"
        if one.holds:
            links[columns.index(WORKS_ON)] = f"{messages}/{one.holds[0]}"
        if one.last_failed is not None:
            links[columns.index(FAILED_LAST)] = f"{messages}/{one.last_failed}"
        level: parts.Level = "alert" if one.state == "gone" and one.in_hand else ""
        return Row(f"{worker.queue}/{one.group}/{one.name}", cells, None, level, links=links)

    return parts.listing(request, "workers", columns, found, row, NO_WORKER, usual="worker")


class RunTimes(msgspec.Struct):
    """How long the messages of a group took from delivery to acknowledgement."""

    queue: str
    counts: list[int]
    href: str

    @property
    def settled(self) -> int:
        return sum(self.counts)

    def seconds(self, share: float) -> float | None:
        """The time within which a share of them were settled."""
        found = quantile_ms(self.counts, share)
        return None if found is None else found / 1000


RUN_TIME_COLUMNS: Final[parts.Columns[RunTimes]] = (
    ListColumn("Queue", lambda times: times.queue),
    ListColumn("Settled", lambda times: times.settled, parts.number),
    ListColumn("p50", lambda times: times.seconds(0.5), parts.age),
    ListColumn("p95", lambda times: times.seconds(0.95), parts.age),
)


class TaskAtQueue(msgspec.Struct):
    """How long the calls of a task took, and the queue that they are in."""

    queue: str
    times: TaskTimes


TASK_COLUMNS: Final[parts.Columns[TaskAtQueue]] = (
    ListColumn("Task", lambda one: one.times.task),
    ListColumn("Queue", lambda one: one.queue, minor=True),
    ListColumn("Done", lambda one: one.times.done, parts.number),
    ListColumn("Failed", lambda one: one.times.failed, parts.number),
    ListColumn("p50", lambda one: one.times.p50, parts.age),
    ListColumn("p95", lambda one: one.times.p95, parts.age),
)


def workers_page(request: Request, service: Service, sample: Sample) -> Content:
    """Every worker of every queue, and how long messages take."""
    base = parts.base_of(request)
    busy = {name: groups for name, groups in sample.queues.items() if any(one.workers or one.gone for one in groups)}
    found: list[WorkerAtQueue] = []
    tasks: list[TaskAtQueue] = []
    for name in busy:
        with suppress(UnknownQueue):  # dropped this very moment
            queue = service.journal.queue(name, create=False)
            found += [WorkerAtQueue(name, one) for one in queue.consumers()]
            tasks += [TaskAtQueue(name, one) for one in queue.task_times()]
    grouped = any(one.one.group != "default" for one in found)
    times = [
        RunTimes(queue_name(group), settle_counts(group.settle_times), f"{base}/queues/{parts.segment(group.name)}")
        for groups in sample.queues.values()
        for group in groups
        if group.settle_times
    ]

    def row(one: RunTimes, cells: list[str]) -> Row:
        return Row(one.queue, cells, one.href)

    def task(one: TaskAtQueue, cells: list[str]) -> Row:
        return Row(f"{one.queue}/{one.times.task}", cells, f"{base}/queues/{parts.segment(one.queue)}")

    none, no_task = "no message was acknowledged yet", "no task has run"
    return Content(
        "workers.html",
        "Workers",
        [
            count_tile("worker-count", "At work", sum(one.one.state != "gone" for one in found)),
            count_tile("gone-count", "Gone", sum(one.one.state == "gone" for one in found)),
            count_tile("held-count", "Messages in hand", sum(one.one.in_hand for one in found)),
            count_tile("gave-up-count", "Gave up", len(sample.workers), alert=True),
        ],
        {
            "workers": worker_table(request, found, () if grouped else ("Group",)),
            "tasks": parts.listing(request, "tasks", TASK_COLUMNS, tasks, task, no_task, usual="done"),
            "times": parts.listing(request, "times", RUN_TIME_COLUMNS, times, row, none, usual="settled"),
        },
    )


GROUP_COLUMNS: Final = (ListColumn[QueueSample]("Group", lambda one: one.group), *STATE_COLUMNS)
MESSAGE_COLUMNS: Final[parts.Columns[inspect.QueueMessage]] = (
    ListColumn("Message", lambda one: f"#{one.seq}"),
    ListColumn("State", lambda one: one.state.replace("_", " ")),
    ListColumn("Group", lambda one: one.group, minor=True),
    ListColumn("Attempts", lambda one: f"{one.attempts} of {one.max_attempts}", minor=True),
    ListColumn("Due or until", lambda one: one.due or one.deadline, parts.moment, True),
    ListColumn("Priority", lambda one: one.priority, str, True),
    ListColumn("Key", lambda one: one.key, minor=True),
    ListColumn("Error or holder", lambda one: one.error or one.consumer),
    ListColumn("Payload", lambda one: one.event, parts.preview, True),
)


def queue_tiles(found: QueueSample) -> list[Tile]:
    """The messages of a group, by state."""
    if found.letters is None:
        first = count_tile("ready", "Ready", found.ready)
        dead = count_tile("dead-count", "Dead letters", found.dead, alert=True)
    else:
        # Its messages are other queues' dead letters: no consumer is behind with them.
        first = count_tile("ready", "Dead letters here", found.letters, alert=True)
        dead = count_tile("dead-count", "Dead letters of its own", found.dead, alert=True)
    return [
        first,
        count_tile("in-flight", "In flight", found.in_flight),
        count_tile("delayed", "Delayed", found.delayed),
        count_tile("failed", "Failed", found.failed, alert=True),
        dead,
        Tile("oldest", "Oldest ready", parts.age(found.oldest_age)),
        Tile("rate", "Pushed a second", parts.rate(found.rate)),
    ]


class QueueView:
    """The part of a queue that a request wants to see: a group of it, and one of its tabs."""

    def __init__(self, request: Request, service: Service, sample: Sample) -> None:
        self.request, self.service, self.sample = request, service, sample
        self.queue = existing_queue(request, service)
        self.name = self.queue.name
        with inspect.viewing(service.journal.backend.queue(self.name)) as view:
            self.groups, self.has_groups = inspect.delivered_groups(view.state), view.state.fanout
        query = request.query_params
        wanted = query.get("group") or self.groups[0]
        self.group = wanted if wanted in self.groups else self.groups[0]
        own = (one for one in sample.queues.get(self.name, ()) if one.group == self.group)
        self.found = next(own, QueueSample(self.name, self.group, 0, 0, 0, 0, None))
        self.holds_dead = self.found.letters is not None
        self.tabs = {name: label for name, label in QUEUE_TABS.items() if name != "groups" or self.has_groups}
        asked = query.get("tab", "dead" if self.holds_dead and "state" not in query else "")
        self.tab = asked if asked in self.tabs else "messages"
        self.state = inspect.check_state(query.get("state") or None)
        text = query.get("after", "0")
        self.after = int(text) if text.isdecimal() and len(text) <= 18 else 0
        self.base = parts.base_of(request)
        self.may_write, self.may_admin = parts.can(request, "write"), parts.can(request, "admin")

    def tables(self) -> dict[str, Table]:
        """The tables of the tab, as they are now."""
        if self.tab == "workers":
            return {"workers": self._workers()}
        if self.tab == "schedules":
            return {"schedules": schedule_table(self.request, self.queue.schedules())}
        if self.tab == "groups":
            found, row = self.sample.queues.get(self.name, ()), queue_row(self.base, self.sample)
            empty = "no group is there"
            return {"groups": parts.listing(self.request, "groups", GROUP_COLUMNS, found, row, empty, usual="group")}
        if self.tab == "messages":
            return {"messages": self._pending() if self.state == "in_flight" else self._messages()}
        return {}

    def values(self) -> dict[str, object]:
        """Returns the values that the tab shows beside its tables."""
        if self.tab == "messages":
            templates = [event for event in self.queue.peek(5, group=self.group) if not event.binary]
            return {"charts": charts.QUEUE, "templates": templates, "states": MESSAGE_STATES}
        if self.tab == "policy":
            return {"policy": policy_form(self.queue.policy)}
        if self.tab != "dead":
            return {}
        backend = self.service.journal.backend.queue(self.name)

        def dead(after: str) -> Iterator[FailedMessage]:
            return inspect.newest_dead(backend, DeadLetterCursor.read(after))

        def failed(after: str) -> Iterator[FailedMessage]:
            return inspect.newest_failed(backend, self.group, DeadLetterCursor.read(after))

        return {
            "dead": parts.failure_page(self.request, "dead", dead),
            "failed": parts.failure_page(self.request, "failed", failed),
        }

    def _pending(self) -> Table:
        """Messages in flight, with what can be done about each."""

        def row(held: inspect.PendingDelivery, cells: list[str]) -> Row:
            fields = {"queue": self.name, "token": held.token}
            buttons = [ActButton("Release", "release", fields)] if self.may_write else []
            if self.may_admin:
                buttons.append(ActButton("Done", "settle", {**fields, "outcome": "done"}))
                buttons.append(ActButton("Give up", "settle", {**fields, "outcome": "dead"}))
            return Row(held.token, cells, self._address(held.seq), buttons=buttons)

        found = self.queue.pending(self.group if self.has_groups else None)
        made = parts.listing(
            self.request, "pending", PENDING_COLUMNS, found, row, "nothing is in flight", usual="-message"
        )
        made.has_buttons, made.opens = self.may_write, True
        return made

    def _messages(self) -> Table:
        """Messages that are not settled, with what there is to say of them in this queue and what can be done."""
        group = self.group if self.has_groups else None
        found = self.queue.messages(self.state, group=group, after=self.after, limit=parts.ROWS + 1)
        seqs = sorted({one.seq for one in found})
        shown = [one for one in found if one.seq in set(seqs[: parts.ROWS])]
        unused = {"Group": not self.has_groups, "Priority": not self.queue.policy.priority}
        columns = [column for column in MESSAGE_COLUMNS if not unused.get(column.title)]
        none = "no message is in this state"
        made = parts.table("messages", columns, shown, self._message, none, buttons=self.may_admin, opens=True)
        if len(seqs) > parts.ROWS:
            made.following = urlencode({**self.request.query_params, "after": shown[-1].seq})
        return made

    def _message(self, one: inspect.QueueMessage, cells: list[str]) -> Row:
        buttons = []
        fields = {"queue": self.name, "seq": str(one.seq)}
        if self.may_admin and one.state == "delayed":
            buttons.append(ActButton("Run now", "run-now", fields | ({"group": one.group} if one.group else {})))
        if self.may_admin and one.state != "in_flight":
            buttons.append(ActButton("Delete", "delete-message", fields))
        level: parts.Level = "alert" if one.state == "failed" else ""
        return Row(f"{one.group}/{one.seq}/{one.state}", cells, self._address(one.seq), level, buttons)

    def _address(self, seq: int) -> str:
        return f"{self.base}/topics/{parts.segment(self.name)}/events/{seq}"

    def _workers(self) -> Table:
        """Workers, and other consumers that gave their name: where, since when, their last sign of life, what they
        hold."""

        found = [WorkerAtQueue(self.name, one) for one in self.queue.consumers()]
        return worker_table(self.request, found, ("Queue",) if self.has_groups else ("Queue", "Group"))


def queue_page(request: Request, service: Service, sample: Sample) -> Content:
    view = QueueView(request, service, sample)
    shared = {"view": view, "shown_groups": SHOWN_GROUPS}
    return Content(
        "queue.html",
        view.name,
        queue_tiles(view.found),
        view.tables(),
        lambda: {**shared, "pauses": view.queue.pauses(), **view.values()},
        "Dead-letter queue" if view.holds_dead else "Queue",
    )

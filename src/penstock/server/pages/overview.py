"""Pages about all of it: overview, topics, queues, search, what is wrong, pipelines, schedules, buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.errors import PenstockError, UnknownQueue
from penstock.events import Event
from penstock.journal.locating import find_event
from penstock.limits import BUFFER_MANIFEST
from penstock.names import is_system
from penstock.observe.pipelines import TOPIC as PIPELINES
from penstock.observe.pipelines import FlowStatus, status
from penstock.observe.sample import Finding, QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.observe.workers import WorkerFailure
from penstock.queue.schedule import Cron, Schedule
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table, Tile, count_tile
from penstock.server.service import Service
from penstock.units import show_duration, show_size

if TYPE_CHECKING:
    from penstock.buffer.store import ObjectStore


FOUND: Final = 50
"""Events after which a search stops."""
FOUND_SECONDS: Final = 1.0
"""How long a search looks for events of a key."""


def _worst_lag(topic: TopicSample) -> int | None:
    return max(topic.lags.values(), default=None)


TOPIC_COLUMNS: Final[parts.Columns[TopicSample]] = (
    ListColumn("Topic", lambda topic: topic.name),
    ListColumn("Events", lambda topic: topic.events, parts.number),
    ListColumn("Rate", lambda topic: round(topic.rate, 1), parts.rate),
    ListColumn("Latest", lambda topic: topic.latest, parts.number, True),
    ListColumn("Consumers", lambda topic: len(topic.lags), parts.number, True),
    ListColumn("Worst lag", _worst_lag, parts.number),
)


def queue_name(group: QueueSample) -> str:
    """A group of a queue, as a list names it."""
    name = group.name if group.group == "default" else f"{group.name} / {group.group}"
    return f"{name} (paused)" if group.paused else name


def _dead(group: QueueSample) -> int:
    return group.dead if group.letters is None else group.letters


STATE_COLUMNS: Final[parts.Columns[QueueSample]] = (
    ListColumn("Ready", lambda group: group.ready, parts.number),
    ListColumn("In flight", lambda group: group.in_flight, parts.number, True),
    ListColumn("Delayed", lambda group: group.delayed, parts.number, True),
    ListColumn("Failed", lambda group: group.failed, parts.number),
    ListColumn("Dead", _dead, parts.number),
    ListColumn("Oldest", lambda group: group.oldest_age, parts.age, True),
)
QUEUE_COLUMNS: Final = (ListColumn("Queue", queue_name), *STATE_COLUMNS)


def queue_row(base: str) -> Callable[[QueueSample, list[str]], Row]:
    """A group of a queue as a row, with the way to its page."""

    def row(group: QueueSample, cells: list[str]) -> Row:
        href = f"{base}/queues/{parts.segment(group.name)}?{urlencode({'group': group.group})}"
        level: parts.Level = "alert" if group.failed or group.dead else "warning" if group.paused else ""
        return Row(f"{group.name}/{group.group}", cells, href, level)

    return row


def _sought(request: Request) -> str:
    return request.query_params.get("q", "").strip()[:200]


def topic_table(request: Request, sample: Sample) -> Table:
    """Topics whose names have `q` in them, with `system` also penstock's; queues are in the other table."""
    base, query, with_system = parts.base_of(request), _sought(request).lower(), "system" in request.query_params
    own = [topic for topic in sample.topics.values() if topic.name not in sample.queues and query in topic.name.lower()]
    found = [topic for topic in own if with_system or not is_system(topic.name)]

    def row(topic: TopicSample, cells: list[str]) -> Row:
        return Row(topic.name, cells, f"{base}/topics/{parts.segment(topic.name)}")

    return parts.listing(request, "topics", TOPIC_COLUMNS, found, row, "no topic here", usual="rate")


def queue_table(request: Request, sample: Sample) -> Table:
    query, row = _sought(request).lower(), queue_row(parts.base_of(request))
    found = (group for groups in sample.queues.values() for group in groups if query in group.name.lower())
    return parts.listing(request, "queues", QUEUE_COLUMNS, found, row, "no queue here", usual="ready")


def system_topics(request: Request, sample: Sample) -> tuple[int, bool, str]:
    """How many topics are penstock's own, whether they are shown, and the query that switches that."""
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
    tables = {"queues": queue_table(request, sample), "topics": topic_table(request, sample)}
    if not _own(sample) and not sample.queues:
        address = f"{request.url.scheme}://{request.headers.get('host', '')}{parts.base_of(request)}"
        return Content("empty.html", "Overview", [], tables, lambda: {"address": address})
    values = {"charts": charts.OVERVIEW, "system": system_topics(request, sample)}
    return Content("overview.html", "Overview", tiles(sample), tables, lambda: values)


def topics_page(request: Request, service: Service, sample: Sample) -> Content:
    values = {"system": system_topics(request, sample)}
    return Content("topics.html", "Topics", [], {"topics": topic_table(request, sample)}, lambda: values)


def queues_page(request: Request, service: Service, sample: Sample) -> Content:
    return Content("queues.html", "Queues", [], {"queues": queue_table(request, sample)})


# ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────────
def search_page(request: Request, service: Service, sample: Sample) -> Content:
    """Topics and queues by a part of their names, events by their id or their key."""
    tables = {"topics": topic_table(request, sample), "queues": queue_table(request, sample)}

    def values() -> dict[str, object]:
        query = _sought(request)
        events, following = found_events(service, query, request.query_params.get("from", ""))
        return {"found": query, "events": events, "following": following}

    return Content("search.html", "Search", [], tables, values)


def found_events(service: Service, query: str, first: str) -> tuple[list[Event], str | None]:
    """The event of an id, then the newest of a key, topic by topic from `first` on, for as long as a person waits; and
    the topic to go on with, when it did not come through all of them."""
    if not query:
        return [], None
    found: list[Event] = []
    if not first:
        with service.journal._engine.read() as snap:
            event = find_event(snap, query)
        found = [] if event is None else [event]
    until = time.monotonic() + FOUND_SECONDS
    for name in _from(first, sorted([*_own(service.sampler.newest), *service.sampler.newest.queues])):
        if name != first and (len(found) >= FOUND or time.monotonic() > until):
            return found, name
        with suppress(PenstockError):  # dropped or damaged, or no key that an event can have
            found += service.journal.topic(name).read(key=query, reverse=True, limit=10)
    return found, None


def _from(first: str, names: list[str]) -> Iterator[str]:
    return (name for name in names if name >= first)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────
FINDING_COLUMNS: Final[parts.Columns[Finding]] = (
    ListColumn("What", lambda one: one.says),
    ListColumn("Kind", lambda one: one.kind),
)
WORKER_COLUMNS: Final[parts.Columns[WorkerFailure]] = (
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

    def worker(one: WorkerFailure, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(WORKERS)}?{urlencode({'key': one.worker})}"
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
    lag: int
    topic: TopicSample


FLOW_COLUMNS: Final[parts.Columns[FlowStatus]] = (
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
ERROR_COLUMNS: Final[parts.Columns[FlowStatus]] = (
    ListColumn("Flow", lambda flow: flow.key),
    ListColumn("Error", lambda flow: flow.error, str),
)
FOLLOWER_COLUMNS: Final[parts.Columns[NamedCursor]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Topic", lambda one: one.topic.name),
    ListColumn("Position", lambda one: one.topic.latest - one.lag, parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Topic's rate", lambda one: one.topic.rate, parts.rate, True),
)


def pipelines_page(request: Request, service: Service, sample: Sample) -> Content:
    """Flows as they last reported; why they failed, whole; and named cursors, of which a streaming query read with the
    `consumer` option is one."""
    base, found = parts.base_of(request), status(service.journal)

    def page_of(name: str) -> str:
        """The page of a topic or queue that a flow reads or writes; nothing when it is no name of this journal's."""
        page = "queues" if name in sample.queues else "topics" if name in sample.topics else ""
        return page and f"{base}/{page}/{parts.segment(name)}"

    def row(flow: FlowStatus, cells: list[str]) -> Row:
        level: parts.Level = "alert" if flow.error is not None or cells[1] in ("failed", "silent") else ""
        links = {} if len(cells) == 2 else {3: page_of(flow.target)}
        if links and len(flow.sources) == 1:
            links[2] = page_of(flow.sources[0])
        href = f"{base}/topics/{parts.segment(PIPELINES)}?{urlencode({'key': flow.key})}"
        return Row(flow.key, cells, href, level, links=links)

    def follower(one: NamedCursor, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(one.topic.name)}"
        return Row(f"{one.consumer}/{one.topic.name}", cells, href)

    cursors = [NamedCursor(name, lag, topic) for topic in sample.topics.values() for name, lag in topic.lags.items()]
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
    """When a schedule ticks, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return f"every {show_duration(schedule.interval)}"


def _tick(ahead: int) -> Callable[[Schedule], datetime]:
    """When a schedule pushes its message, so many ticks after the next one."""

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
    ListColumn("When", _timing, minor=True),
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

    def states(self, flows: Sequence[FlowStatus]) -> list[BufferState]:
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
        from penstock.buffer.manifest import batch_time_ms
        from penstock.buffer.store import open_store

        try:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = open_store(self.urls[name])
            stored = store.read(BUFFER_MANIFEST, None)
            if stored is None:
                return BufferState(name)
            manifest = parse_manifest(stored.data)
            first = manifest.first_sequence()
            begin = manifest.next_sequence if first is None else first
            unread = max(begin, read_to.get(f"{self.urls[name].rstrip('/')}/{BUFFER_MANIFEST}", 0))
            read = min(manifest.count, unread - begin)
            oldest = manifest.after(unread - 1 if unread else None, 1)
        except PenstockError as error:
            return BufferState(name, problem=str(error))
        lag = None
        if oldest:
            batch = oldest[0]
            born = batch.metadata[0].ingested_at_ms if batch.metadata else batch_time_ms(batch.location)
            lag = None if born is None else max(0.0, time.time() - born / 1000)
        return BufferState(name, manifest.count - read, read, manifest.epoch, manifest.next_sequence, lag)


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

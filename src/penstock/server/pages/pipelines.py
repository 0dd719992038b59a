"""What works beside programs of one's own: Spark pipelines and named cursors, schedules, object-storage buffers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.errors import PenstockError, UnknownQueue
from penstock.limits import BUFFER_MANIFEST
from penstock.observe.pipelines import TOPIC, FlowStatus, status
from penstock.observe.sample import Sample, TopicSample
from penstock.queue.run.cron import Cron
from penstock.queue.run.schedule import Schedule
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table
from penstock.server.service import Service
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.buffer.store import ObjectStore


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

    def place(name: str) -> str:
        """The page of a topic or queue that a flow reads or writes; nothing when it is no name of this journal's."""
        page = "queues" if name in sample.queues else "topics" if name in sample.topics else ""
        return page and f"{base}/{page}/{parts.segment(name)}"

    def row(flow: FlowStatus, cells: list[str]) -> Row:
        level: parts.Level = "alert" if flow.error is not None or cells[1] in ("failed", "silent") else ""
        links = {} if len(cells) == 2 else {3: place(flow.target)}
        if links and len(flow.sources) == 1:
            links[2] = place(flow.sources[0])
        href = f"{base}/topics/{parts.segment(TOPIC)}?{urlencode({'key': flow.key})}"
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

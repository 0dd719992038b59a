"""How everything does, and where to look: the overview, all topics, all queues, what a search finds, what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request

from penstock.errors import PenstockError
from penstock.events import Event
from penstock.journal.locating import find_event
from penstock.names import is_system
from penstock.observe.sample import Finding, QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.observe.workers import WorkerFailure
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Table, Tile, count_tile
from penstock.server.service import Service
from penstock.units import show_size

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
        return Row(f"{one.kind}/{one.subject}/{one.detail}", cells, base + parts.place_of(one), parts.level_of(one))

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

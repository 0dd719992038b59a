"""How everything does, and where to look: the overview, all topics, all queues, what a search finds, what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from urllib.parse import quote, urlencode

from starlette.requests import Request

from penstock.errors import PenstockError
from penstock.events import Event
from penstock.journal.reading import find_event
from penstock.names import is_system
from penstock.observe.sample import QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import ActButton, Row, Table, Tile
from penstock.server.pages.rendering import Content
from penstock.server.service import Service
from penstock.units import show_size

FOUND = 50
"""Events that a search shows."""
FOUND_SECONDS = 1.0
"""How long a search looks for events of a key."""

TOPIC_COLUMNS: tuple[ListColumn[TopicSample], ...] = (
    ListColumn("Topic", "name", lambda topic: topic.name),
    ListColumn("Events", "events", lambda topic: parts.number(topic.events), lambda topic: topic.events),
    ListColumn("Rate", "rate", lambda topic: parts.rate(topic.rate), lambda topic: round(topic.rate, 1)),
    ListColumn("Latest", "latest", lambda topic: parts.number(topic.latest), lambda topic: topic.latest, True),
    ListColumn(
        "Consumers", "consumers", lambda topic: parts.number(len(topic.lags)), lambda topic: len(topic.lags), True
    ),
    ListColumn(
        "Worst lag",
        "lag",
        lambda topic: parts.number(max(topic.lags.values(), default=None)),
        lambda topic: max(topic.lags.values(), default=0),
    ),
)


def queue_name(group: QueueSample) -> str:
    """A group of a queue, as a list names it."""
    name = group.name if group.group == "default" else f"{group.name} / {group.group}"
    return f"{name} (paused)" if group.paused else name


def _dead(group: QueueSample) -> int:
    return group.dead if group.letters is None else group.letters


def _state(title: str, name: str, count: Callable[[QueueSample], int], minor: bool = False) -> ListColumn[QueueSample]:
    return ListColumn(title, name, lambda group: parts.number(count(group)), count, minor)


STATE_COLUMNS: tuple[ListColumn[QueueSample], ...] = (
    _state("Ready", "ready", lambda group: group.ready),
    _state("In flight", "in-flight", lambda group: group.in_flight, minor=True),
    _state("Delayed", "delayed", lambda group: group.delayed, minor=True),
    _state("Failed", "failed", lambda group: group.failed),
    _state("Dead", "dead", _dead),
    ListColumn(
        "Oldest", "oldest", lambda group: parts.age(group.oldest_age), lambda group: group.oldest_age or 0.0, True
    ),
)
QUEUE_COLUMNS = (ListColumn("Queue", "name", queue_name), *STATE_COLUMNS)


def queue_row(group: QueueSample, cells: list[str], base: str) -> Row:
    """A group of a queue, with the way to its page."""
    href = f"{base}/queues/{rendering.segment(group.name)}?{urlencode({'group': group.group})}"
    level: parts.Level = "alert" if group.failed or group.dead else "warning" if group.paused else ""
    return Row(f"{group.name}/{group.group}", cells, href, level)


class OverviewRows:
    """Which topics and queues a request asks for: those whose names have `q` in them, with `system` also penstock's."""

    def __init__(self, request: Request) -> None:
        self.query = request.query_params.get("q", "").strip()[:200]
        self._with_system = "system" in request.query_params
        base = rendering.base_of(request)
        self._topics = Listing(
            request,
            "topics",
            TOPIC_COLUMNS,
            lambda topic, cells: Row(topic.name, cells, f"{base}/topics/{rendering.segment(topic.name)}"),
            usual="rate",
            empty="no topic here",
        )
        self._queues = Listing(
            request,
            "queues",
            QUEUE_COLUMNS,
            lambda group, cells: queue_row(group, cells, base),
            usual="ready",
            empty="no queue here",
        )

    def topic_table(self, sample: Sample) -> Table:
        """Topics; those that are queues are among the queues."""
        return self._topics.table(
            topic
            for topic in sample.topics.values()
            if topic.name not in sample.queues
            and (self._with_system or not is_system(topic.name))
            and self.query.lower() in topic.name.lower()
        )

    def queue_table(self, sample: Sample) -> Table:
        groups = (group for found in sample.queues.values() for group in found)
        return self._queues.table(group for group in groups if self.query.lower() in group.name.lower())

    def system(self, sample: Sample) -> tuple[int, bool, str]:
        """How many topics are penstock's own, whether they are shown, and the query that switches that."""
        count = sum(is_system(name) for name in sample.topics)
        kept = {name: value for name, value in self._topics.query.items() if name != "system"}
        return count, self._with_system, urlencode(kept if self._with_system else {**kept, "system": "1"})


def _own(sample: Sample) -> list[str]:
    """The topics that are neither queues nor penstock's."""
    return [name for name in sample.topics if name not in sample.queues and not is_system(name)]


def tiles(sample: Sample) -> list[Tile]:
    """The journal in eight numbers."""
    groups = [group for found in sample.queues.values() for group in found]
    oldest = max((group.oldest_age for group in groups if group.oldest_age is not None), default=None)
    failed, dead = sum(group.failed for group in groups), sum(group.dead for group in groups)
    return [
        Tile("rate", "Events a second", parts.rate(sample.rate)),
        Tile("topic-count", "Topics", parts.number(len(_own(sample)))),
        Tile("backlog", "Ready in queues", parts.number(sum(group.ready for group in groups))),
        Tile("oldest", "Oldest ready", parts.age(oldest)),
        Tile("in-flight", "In flight", parts.number(sum(group.in_flight for group in groups))),
        Tile("failed", "Failed", parts.number(failed), failed > 0),
        Tile("dead-count", "Dead letters", parts.number(dead), dead > 0),
        Tile("pressure", "Writer pressure", f"{sample.pressure:.0%}", sample.pressure > 0.75),
    ]


def overview(request: Request, service: Service, sample: Sample) -> Content:
    view = OverviewRows(request)
    tables = {"queues": view.queue_table(sample), "topics": view.topic_table(sample)}
    if not _own(sample) and not sample.queues:
        address = f"{request.url.scheme}://{request.headers.get('host', '')}{rendering.base_of(request)}"
        return Content("empty.html", "Overview", [], tables, lambda: {"address": address})

    def values() -> dict[str, object]:
        return {"charts": charts.OVERVIEW, "system": view.system(sample)}

    return Content("overview.html", "Overview", tiles(sample), tables, values)


def topics_page(request: Request, service: Service, sample: Sample) -> Content:
    view = OverviewRows(request)
    tables = {"topics": view.topic_table(sample)}
    return Content("topics.html", "Topics", [], tables, lambda: {"system": view.system(sample)})


def queues_page(request: Request, service: Service, sample: Sample) -> Content:
    return Content("queues.html", "Queues", [], {"queues": OverviewRows(request).queue_table(sample)})


def search_page(request: Request, service: Service, sample: Sample) -> Content:
    """Topics and queues by a part of their names, events by their id or their key."""
    view = OverviewRows(request)
    tables = {"topics": view.topic_table(sample), "queues": view.queue_table(sample)}

    def values() -> dict[str, object]:
        return {"found": view.query, "events": list(islice(found_events(service, view.query), FOUND))}

    return Content("search.html", "Search", [], tables, values)


def found_events(service: Service, query: str) -> Iterator[Event]:
    """The event of an id, then the newest of a key, topic by topic for as long as a person waits."""
    if not query:
        return
    with service.journal._engine.read() as snap:
        event = find_event(snap, query)
    if event is not None:
        yield event
    until = time.monotonic() + FOUND_SECONDS
    for name in _own(service.sampler.newest) + list(service.sampler.newest.queues):
        if time.monotonic() > until:
            return
        with suppress(PenstockError):  # dropped or damaged, or no key that an event can have
            yield from service.journal.topic(name).read(key=query, reverse=True, limit=10)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────
def finding_table(sample: Sample, base: str) -> Table:
    """Every finding, gravest first."""
    rows = [
        Row(
            f"{one.kind}/{one.subject}/{one.detail}",
            [one.says, one.kind],
            base + parts.place_of(one),
            parts.level_of(one),
        )
        for one in sample.findings
    ]
    return Table("findings", ["What", "Kind"], rows, [], "nothing is wrong")


def worker_table(sample: Sample, base: str, may_admin: bool) -> Table:
    """Workers that gave up: where they ran, when and why; their reports have the traceback."""
    rows = []
    for one in sample.workers:
        at = "–" if one.at is None else one.at.isoformat(timespec="milliseconds")
        error = (one.error or "–").partition("\n")[0]
        href = f"{base}/topics/{quote(WORKERS)}?{urlencode({'key': one.worker})}"
        buttons = [ActButton("Forget", "forget-worker", {"worker": one.worker})] if may_admin else []
        rows.append(Row(one.worker, [one.worker, one.host or "–", str(one.pid), at, error], href, "alert", buttons))
    columns = ["Worker", "Host", "Process", "Gave up", "Error"]
    return Table("gave-up", columns, rows, [2], "no worker has given up", has_buttons=may_admin)


def health_tiles(sample: Sample) -> list[Tile]:
    free = "–" if sample.disk_free is None else show_size(sample.disk_free)
    return [
        Tile("finding-count", "Findings", parts.number(len(sample.findings)), bool(sample.findings)),
        Tile("disk-free", "Free on disk", free, any(one.kind == "disk" for one in sample.findings)),
    ]


def health_page(request: Request, service: Service, sample: Sample) -> Content:
    base, may_admin = rendering.base_of(request), rendering.can(request, "admin")
    tables = {"findings": finding_table(sample, base), "workers": worker_table(sample, base, may_admin)}
    return Content("health.html", "Health", health_tiles(sample), tables)

"""The overview: how everything does, and where to look; and the page with everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.parts import ActButton, Row, Table, Tile, Update
from penstock.server.service import Service, guarded
from penstock.units import show_size

ROWS = 50
"""Rows of a table on one page: ten thousand topics must not cost more to look at than fifty."""

T = TypeVar("T")


class Column(msgspec.Struct, Generic[T]):
    """A column that rows can be put in order by; numbers begin with the largest."""

    title: str
    name: str
    value: Callable[[T], float | str]
    text: bool = False


TOPIC_COLUMNS: tuple[Column[TopicSample], ...] = (
    Column("Topic", "name", lambda topic: topic.name, text=True),
    Column("Events", "events", lambda topic: topic.events),
    Column("Rate", "rate", lambda topic: round(topic.rate, 1)),
    Column("Latest", "latest", lambda topic: topic.latest),
    Column("Consumers", "consumers", lambda topic: len(topic.lags)),
    Column("Worst lag", "lag", lambda topic: max(topic.lags.values(), default=0)),
)
QUEUE_COLUMNS: tuple[Column[QueueSample], ...] = (
    Column("Queue", "name", lambda group: group.name, text=True),
    Column("Ready", "ready", lambda group: group.ready),
    Column("In flight", "in-flight", lambda group: group.in_flight),
    Column("Delayed", "delayed", lambda group: group.delayed),
    Column("Failed", "failed", lambda group: group.failed),
    Column("Dead", "dead", lambda group: group.dead if group.letters is None else group.letters),
    Column("Oldest", "oldest", lambda group: group.oldest_age or 0.0),
)


class ListChoice(Generic[T]):
    """Which rows of a list a request asks for, and in which order: `sort`, `page`, each after the list's prefix."""

    def __init__(self, request: Request, prefix: str, columns: tuple[Column[T], ...], usual: str) -> None:
        self._query = dict(request.query_params)
        self.prefix = prefix
        self.columns = columns
        wanted = self._query.get(f"{prefix}sort", usual)
        self.backwards = wanted.startswith("-")
        self.column = next((column for column in columns if column.name == wanted.lstrip("-")), columns[0])
        text = self._query.get(f"{prefix}page", "1")
        self.page = max(1, int(text)) if text.isdigit() and len(text) < 6 else 1

    def shown(self, rows: list[T], name: Callable[[T], str]) -> list[T]:
        """The rows of this page."""
        descending = self.column.text == self.backwards
        rows.sort(key=name)
        rows.sort(key=self.column.value, reverse=descending)
        return rows[(self.page - 1) * ROWS : self.page * ROWS]

    def pages(self, total: int) -> int:
        """How many pages so many rows make."""
        return max(1, -(-total // ROWS))

    def turned(self, page: int) -> str:
        """The query of another page."""
        return urlencode({**self._query, f"{self.prefix}page": page})

    def sorts(self) -> list[tuple[str, str]]:
        """For each column the query that puts rows in its order, and how they are in its order now."""
        found = []
        for column in self.columns:
            current = column is self.column
            again = f"-{column.name}" if current and not self.backwards else column.name
            query = urlencode({**self._query, f"{self.prefix}sort": again, f"{self.prefix}page": 1})
            order = ("ascending" if column.text != self.backwards else "descending") if current else "none"
            found.append((query, order))
        return found


class OverviewRows:
    """Which topics and queues a request asks for."""

    def __init__(self, request: Request) -> None:
        self.query = request.query_params.get("q", "").strip()[:200].lower()
        self.base = rendering.base_of(request)
        self.address = urlencode(dict(request.query_params))
        self.topics = ListChoice(request, "", TOPIC_COLUMNS, "rate")
        self.queues = ListChoice(request, "q", QUEUE_COLUMNS, "ready")

    def topic_table(self, sample: Sample) -> tuple[Table, int]:
        """The topics of this page, and how many there are in all."""
        found = [topic for topic in sample.topics.values() if self.query in topic.name.lower()]
        rows = []
        for topic in self.topics.shown(found, lambda topic: topic.name):
            lag = max(topic.lags.values(), default=None)
            cells = [topic.name, parts.number(topic.events), parts.rate(topic.rate), parts.number(topic.latest)]
            cells += [parts.number(len(topic.lags)), parts.number(lag)]
            rows.append(Row(topic.name, cells, f"{self.base}/topics/{quote(topic.name)}"))
        titles = [column.title for column in TOPIC_COLUMNS]
        return Table("topics", titles, rows, [1, 2, 3, 4, 5], "no topic here", self.topics.sorts()), len(found)

    def queue_table(self, sample: Sample) -> tuple[Table, int]:
        """The queues of this page, and how many there are in all."""
        groups = [group for found in sample.queues.values() for group in found if self.query in group.name.lower()]
        rows = []
        for group in self.queues.shown(groups, lambda group: f"{group.name}/{group.group}"):
            dead = group.dead if group.letters is None else group.letters
            name = group.name if group.group == "default" else f"{group.name} / {group.group}"
            name = f"{name} (paused)" if group.paused else name
            cells = [name, parts.number(group.ready), parts.number(group.in_flight)]
            cells += [parts.number(group.delayed), parts.number(group.failed), parts.number(dead)]
            cells.append(parts.age(group.oldest_age))
            href = f"{self.base}/queues/{quote(group.name)}?{urlencode({'group': group.group})}"
            rows.append(Row(f"{group.name}/{group.group}", cells, href, group.failed > 0 or group.dead > 0))
        titles = [column.title for column in QUEUE_COLUMNS]
        return Table("queues", titles, rows, [1, 2, 3, 4, 5, 6], "no queue here", self.queues.sorts()), len(groups)


def tiles(sample: Sample) -> list[Tile]:
    """The journal in eight numbers."""
    groups = [group for found in sample.queues.values() for group in found]
    oldest = max((group.oldest_age for group in groups if group.oldest_age is not None), default=None)
    failed, dead = sum(group.failed for group in groups), sum(group.dead for group in groups)
    return [
        Tile("rate", "Events a second", parts.rate(sample.rate)),
        Tile("topic-count", "Topics", parts.number(len(sample.topics))),
        Tile("backlog", "Ready in queues", parts.number(sum(group.ready for group in groups))),
        Tile("oldest", "Oldest ready", parts.age(oldest)),
        Tile("in-flight", "In flight", parts.number(sum(group.in_flight for group in groups))),
        Tile("failed", "Failed", parts.number(failed), failed > 0),
        Tile("dead-count", "Dead letters", parts.number(dead), dead > 0),
        Tile("pressure", "Writer pressure", f"{sample.pressure:.0%}", sample.pressure > 0.75),
    ]


@guarded("read")
def overview(request: Request, service: Service) -> Response:
    service.sampler.start()
    sample = service.sampler.newest
    view = OverviewRows(request)
    topics, topic_count = view.topic_table(sample)
    queues, queue_count = view.queue_table(sample)
    return rendering.page(
        request,
        service,
        "overview.html",
        "Overview",
        live=f"/live/overview?{view.address}",
        view=view,
        tiles=tiles(sample),
        charts=charts.OVERVIEW,
        topics=topics,
        topic_count=topic_count,
        queues=queues,
        queue_count=queue_count,
    )


@guarded("read")
async def live_overview(request: Request, service: Service) -> Response:
    view = OverviewRows(request)

    def render(sample: Sample) -> Update:
        return parts.update(tiles(sample), view.topic_table(sample)[0], view.queue_table(sample)[0])

    return rendering.stream(request, service, render)


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────
def finding_table(sample: Sample, base: str) -> Table:
    """Every finding, gravest first."""
    rows = [
        Row(f"{one.kind}/{one.subject}/{one.detail}", [one.says, one.kind], base + parts.place_of(one), True)
        for one in sample.findings
    ]
    return Table("findings", ["What", "Kind"], rows, [], "nothing is wrong")


def worker_table(sample: Sample, base: str, *, may_write: bool, may_admin: bool) -> Table:
    """Workers that gave up: where they ran, when and why; their reports have the traceback."""
    rows = []
    for one in sample.workers:
        at = "–" if one.at is None else one.at.isoformat(timespec="milliseconds")
        error = (one.error or "–").partition("\n")[0]
        href = f"{base}/topics/{quote(WORKERS)}?{urlencode({'key': one.worker})}"
        buttons = [ActButton("Forget", "forget-worker", {"worker": one.worker})] if may_admin else []
        rows.append(Row(one.worker, [one.worker, one.host or "–", str(one.pid), at, error], href, True, buttons))
    columns = ["Worker", "Host", "Process", "Gave up", "Error"]
    return Table("gave-up", columns, rows, [2], "no worker has given up", has_buttons=may_admin)


def health_tiles(sample: Sample) -> list[Tile]:
    free = "–" if sample.disk_free is None else show_size(sample.disk_free)
    return [
        Tile("finding-count", "Findings", parts.number(len(sample.findings)), bool(sample.findings)),
        Tile("disk-free", "Free on disk", free, any(one.kind == "disk" for one in sample.findings)),
    ]


@guarded("read")
def health_page(request: Request, service: Service) -> Response:
    service.sampler.start()
    sample = service.sampler.newest
    base = rendering.base_of(request)
    return rendering.page(
        request,
        service,
        "health.html",
        "Health",
        live="/live/health",
        tiles=health_tiles(sample),
        findings=finding_table(sample, base),
        workers=worker_table(sample, base, **rendering.allowed(request)),
    )


@guarded("read")
async def live_health(request: Request, service: Service) -> Response:
    base, allowed = rendering.base_of(request), rendering.allowed(request)

    def render(sample: Sample) -> Update:
        return parts.update(health_tiles(sample), finding_table(sample, base), worker_table(sample, base, **allowed))

    return rendering.stream(request, service, render)

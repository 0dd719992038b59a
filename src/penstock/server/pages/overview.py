"""The overview: how everything does, and where to look."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import QueueSample, Sample, TopicSample
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.parts import Row, Table, Tile, Update
from penstock.server.service import Service, guarded

ROWS = 50
"""Rows of a table on one page: a thousand topics must not cost more to look at than fifty."""


class OverviewRows:
    """Which rows of the overview a request asks for."""

    def __init__(self, request: Request) -> None:
        self.query = request.query_params.get("q", "").strip()[:200]
        text = request.query_params.get("page", "1")
        self.page = max(1, int(text)) if text.isdigit() and len(text) < 6 else 1
        self.base = rendering.base_of(request)

    @property
    def address(self) -> str:
        given = {"q": self.query} if self.query else {}
        return urlencode({**given, "page": self.page} if self.page > 1 else given)

    def pages(self, total: int) -> int:
        """How many pages so many rows make."""
        return max(1, -(-total // ROWS))

    def turned(self, page: int) -> str:
        """The query of another page."""
        return urlencode({"q": self.query, "page": page})

    def topics(self, sample: Sample) -> tuple[list[TopicSample], int]:
        """The topics on this page, busiest first, and how many there are in all."""
        found = list(sample.topics.values())
        if self.query:
            found = [topic for topic in found if self.query.lower() in topic.name.lower()]
        # Only the page is put in order: a thousand topics are mostly idle, and those are in order by name already.
        busy = [topic for topic in found if round(topic.rate, 1) > 0]
        busy.sort(key=lambda topic: (-round(topic.rate, 1), topic.name))
        start, end = (self.page - 1) * ROWS, self.page * ROWS
        if len(busy) >= end:
            return busy[start:end], len(found)
        idle = [topic for topic in found if round(topic.rate, 1) <= 0]
        return [*busy, *idle][start:end], len(found)

    def queues(self, sample: Sample) -> tuple[list[QueueSample], int]:
        """The queues on this page, longest backlog first, and how many there are in all."""
        found = [
            group for groups in sample.queues.values() for group in groups if self.query.lower() in group.name.lower()
        ]
        found.sort(key=lambda group: (-group.ready - group.failed - group.dead, group.name, group.group))
        start = (self.page - 1) * ROWS
        return found[start : start + ROWS], len(found)


def topic_table(view: OverviewRows, topics: list[TopicSample]) -> Table:
    rows = []
    for topic in topics:
        lag = max(topic.lags.values(), default=None)
        cells = [topic.name, parts.number(topic.events), parts.rate(topic.rate), parts.number(topic.latest)]
        cells += [parts.number(len(topic.lags)), parts.number(lag)]
        rows.append(Row(topic.name, cells, f"{view.base}/topics/{quote(topic.name)}"))
    columns = ["Topic", "Events", "Rate", "Latest", "Consumers", "Worst lag"]
    return Table("topics", columns, rows, [1, 2, 3, 4, 5], "no topic here")


def queue_table(view: OverviewRows, queues: list[QueueSample]) -> Table:
    rows = []
    for group in queues:
        cells = [group.name, group.group, parts.number(group.ready), parts.number(group.in_flight)]
        dead = group.dead if group.letters is None else group.letters
        cells += [parts.number(group.delayed), parts.number(group.failed), parts.number(dead)]
        cells.append(parts.age(group.oldest_age))
        href = f"{view.base}/queues/{quote(group.name)}?{urlencode({'group': group.group})}"
        rows.append(Row(f"{group.name}/{group.group}", cells, href, group.failed > 0 or group.dead > 0))
    columns = ["Queue", "Group", "Ready", "In flight", "Delayed", "Failed", "Dead", "Oldest"]
    return Table("queues", columns, rows, [2, 3, 4, 5, 6, 7], "no queue here")


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
    (topics, topic_count), (queues, queue_count) = view.topics(sample), view.queues(sample)
    return rendering.page(
        request,
        service,
        "overview.html",
        "Overview",
        live=f"/live/overview?{view.address}",
        view=view,
        tiles=tiles(sample),
        charts=charts.OVERVIEW,
        topics=topic_table(view, topics),
        topic_count=topic_count,
        queues=queue_table(view, queues),
        queue_count=queue_count,
    )


@guarded("read")
async def live_overview(request: Request, service: Service) -> Response:
    view = OverviewRows(request)

    def render(sample: Sample) -> Update:
        tables = (topic_table(view, view.topics(sample)[0]), queue_table(view, view.queues(sample)[0]))
        return parts.update(tiles(sample), *tables)

    return rendering.stream(request, service, render)

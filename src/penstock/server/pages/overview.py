"""The overview: how everything does, and where to look; and the page with everything that is wrong."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import QueueSample, Sample, TopicSample
from penstock.observe.workers import TOPIC as WORKERS
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import ActButton, Row, Table, Tile, Update
from penstock.server.service import Service, guarded
from penstock.units import show_size

TOPIC_COLUMNS: tuple[ListColumn[TopicSample], ...] = (
    ListColumn("Topic", "name", lambda topic: topic.name),
    ListColumn("Events", "events", lambda topic: parts.number(topic.events), lambda topic: topic.events),
    ListColumn("Rate", "rate", lambda topic: parts.rate(topic.rate), lambda topic: round(topic.rate, 1)),
    ListColumn("Latest", "latest", lambda topic: parts.number(topic.latest), lambda topic: topic.latest),
    ListColumn("Consumers", "consumers", lambda topic: parts.number(len(topic.lags)), lambda topic: len(topic.lags)),
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


STATE_COLUMNS: tuple[ListColumn[QueueSample], ...] = (
    ListColumn("Ready", "ready", lambda group: parts.number(group.ready), lambda group: group.ready),
    ListColumn("In flight", "in-flight", lambda group: parts.number(group.in_flight), lambda group: group.in_flight),
    ListColumn("Delayed", "delayed", lambda group: parts.number(group.delayed), lambda group: group.delayed),
    ListColumn("Failed", "failed", lambda group: parts.number(group.failed), lambda group: group.failed),
    ListColumn("Dead", "dead", lambda group: parts.number(_dead(group)), _dead),
    ListColumn("Oldest", "oldest", lambda group: parts.age(group.oldest_age), lambda group: group.oldest_age or 0.0),
)
QUEUE_COLUMNS = (ListColumn("Queue", "name", queue_name), *STATE_COLUMNS)


def queue_row(group: QueueSample, cells: list[str], base: str) -> Row:
    """A group of a queue, with the way to its page."""
    href = f"{base}/queues/{rendering.segment(group.name)}?{urlencode({'group': group.group})}"
    return Row(f"{group.name}/{group.group}", cells, href, group.failed > 0 or group.dead > 0)


class OverviewRows:
    """Which topics and queues a request asks for."""

    def __init__(self, request: Request) -> None:
        self.query = request.query_params.get("q", "").strip()[:200].lower()
        self.address = urlencode(dict(request.query_params))
        base = rendering.base_of(request)
        self._topics = Listing(
            request,
            "topics",
            TOPIC_COLUMNS,
            lambda topic, cells: Row(topic.name, cells, f"{base}/topics/{rendering.segment(topic.name)}"),
            usual="rate",
            empty="no topic here",
            prefix="",
        )
        self._queues = Listing(
            request,
            "queues",
            QUEUE_COLUMNS,
            lambda group, cells: queue_row(group, cells, base),
            usual="ready",
            empty="no queue here",
            prefix="q",
        )

    def topic_table(self, sample: Sample) -> Table:
        return self._topics.table(topic for topic in sample.topics.values() if self.query in topic.name.lower())

    def queue_table(self, sample: Sample) -> Table:
        groups = (group for found in sample.queues.values() for group in found)
        return self._queues.table(group for group in groups if self.query in group.name.lower())


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
    return rendering.page(
        request,
        service,
        "overview.html",
        "Overview",
        live=f"/live/overview?{view.address}",
        tiles=tiles(sample),
        charts=charts.OVERVIEW,
        topics=view.topic_table(sample),
        queues=view.queue_table(sample),
    )


@guarded("read")
async def live_overview(request: Request, service: Service) -> Response:
    view = OverviewRows(request)

    def render(sample: Sample) -> Update:
        return parts.update(tiles(sample), view.topic_table(sample), view.queue_table(sample))

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

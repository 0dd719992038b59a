"""The Spark pipelines that run over this journal, as they report themselves, and every named cursor with its lag."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.pipelines import FlowStatus, status
from penstock.observe.sample import Sample
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.service import Service, guarded

FOLLOWERS = 100
"""Cursors that are shown, those furthest behind."""


def table(flows: list[FlowStatus]) -> Table:
    """Every flow as it last reported."""
    now = datetime.now(UTC)
    rows = []
    for flow in flows:
        state = flow.believed(now)
        cells = [
            flow.key,
            state,
            f"{', '.join(flow.sources)} → {flow.target}",
            "–" if flow.rows_per_second is None else parts.rate(flow.rows_per_second),
            parts.number(flow.lag),
            parts.number(flow.rows),
            parts.number(flow.batch),
            parts.age(flow.batch_seconds),
            parts.number(flow.restarts),
            "–" if flow.reported_at is None else flow.reported_at.isoformat(timespec="milliseconds"),
            flow.error or "–",
        ]
        rows.append(Row(flow.key, cells, None, flow.error is not None or state in ("failed", "silent")))
    columns = ["Flow", "State", "From → to", "Rows a second", "Lag", "Rows", "Batch", "Batch time", "Restarts"]
    columns += ["Reported", "Error"]
    return Table("pipelines", columns, rows, [3, 4, 5, 6, 7, 8], "no pipeline has reported: penstock run pipeline.py")


def follower_table(sample: Sample, base: str) -> Table:
    """Every named cursor, furthest behind first: a streaming query read with the `consumer` option is one of them."""
    found = [(lag, consumer, topic) for topic in sample.topics.values() for consumer, lag in topic.lags.items()]
    found.sort(key=lambda one: (-one[0], one[1], one[2].name))
    rows = []
    for lag, consumer, topic in found[:FOLLOWERS]:
        cells = [consumer, topic.name, parts.number(topic.latest - lag), parts.number(lag), parts.rate(topic.rate)]
        rows.append(Row(f"{consumer}/{topic.name}", cells, f"{base}/topics/{quote(topic.name)}"))
    columns = ["Consumer", "Topic", "Position", "Lag", "Topic's rate"]
    return Table("followers", columns, rows, [2, 3, 4], "nobody has committed a position")


@guarded("read")
def pipelines_page(request: Request, service: Service) -> Response:
    service.sampler.start()
    return rendering.page(
        request,
        service,
        "pipelines.html",
        "Pipelines",
        live="/live/pipelines",
        charts=charts.PIPELINES,
        flows=table(status(service.journal)),
        followers=follower_table(service.sampler.newest, rendering.base_of(request)),
    )


@guarded("read")
async def live_pipelines(request: Request, service: Service) -> Response:
    base = rendering.base_of(request)

    def render(sample: Sample) -> Update:
        return parts.update((), table(status(service.journal)), follower_table(sample, base))

    return rendering.stream(request, service, render)

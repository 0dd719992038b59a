"""The Spark pipelines that run over this journal, as they report themselves, and every named cursor with its lag."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.pipelines import FlowStatus, status
from penstock.observe.sample import Sample, TopicSample
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.service import Service, guarded


class NamedCursor(msgspec.Struct):
    """A named cursor of a topic."""

    consumer: str
    lag: int
    topic: TopicSample


def _moment(flow: FlowStatus) -> str:
    return "–" if flow.reported_at is None else flow.reported_at.isoformat(timespec="milliseconds")


def _number(value: float | None) -> float:
    return -1.0 if value is None else value


FLOW_COLUMNS: tuple[ListColumn[FlowStatus], ...] = (
    ListColumn("Flow", "flow", lambda flow: flow.key),
    ListColumn("State", "state", lambda flow: flow.believed(datetime.now(UTC))),
    ListColumn("From → to", "from", lambda flow: f"{', '.join(flow.sources)} → {flow.target}"),
    ListColumn(
        "Rows a second",
        "rate",
        lambda flow: "–" if flow.rows_per_second is None else parts.rate(flow.rows_per_second),
        lambda flow: _number(flow.rows_per_second),
    ),
    ListColumn("Lag", "lag", lambda flow: parts.number(flow.lag), lambda flow: _number(flow.lag)),
    ListColumn("Rows", "rows", lambda flow: parts.number(flow.rows), lambda flow: _number(flow.rows)),
    ListColumn("Batch", "batch", lambda flow: parts.number(flow.batch), lambda flow: _number(flow.batch)),
    ListColumn(
        "Batch time", "time", lambda flow: parts.age(flow.batch_seconds), lambda flow: _number(flow.batch_seconds)
    ),
    ListColumn("Restarts", "restarts", lambda flow: parts.number(flow.restarts), lambda flow: flow.restarts),
    ListColumn("Reported", "reported", _moment),
    ListColumn("Error", "error", lambda flow: flow.error or "–"),
)
FOLLOWER_COLUMNS: tuple[ListColumn[NamedCursor], ...] = (
    ListColumn("Consumer", "consumer", lambda one: one.consumer),
    ListColumn("Topic", "topic", lambda one: one.topic.name),
    ListColumn(
        "Position", "position", lambda one: parts.number(one.topic.latest - one.lag), lambda one: one.topic.latest
    ),
    ListColumn("Lag", "lag", lambda one: parts.number(one.lag), lambda one: one.lag),
    ListColumn("Topic's rate", "rate", lambda one: parts.rate(one.topic.rate), lambda one: one.topic.rate),
)


class PipelineRows:
    """Which flows and which cursors a request asks for."""

    def __init__(self, request: Request) -> None:
        base = rendering.base_of(request)
        self._flows = Listing(
            request,
            "pipelines",
            FLOW_COLUMNS,
            _flow_row,
            usual="flow",
            empty="no pipeline has reported: penstock run pipeline.py",
        )
        self._followers = Listing(
            request,
            "followers",
            FOLLOWER_COLUMNS,
            lambda one, cells: Row(
                f"{one.consumer}/{one.topic.name}", cells, f"{base}/topics/{rendering.segment(one.topic.name)}"
            ),
            usual="lag",
            empty="no consumer has committed a position",
        )

    def flows(self, found: list[FlowStatus]) -> Table:
        """Flows as they last reported."""
        return self._flows.table(found)

    def followers(self, sample: Sample) -> Table:
        """Named cursors: a streaming query read with the `consumer` option is one of them."""
        return self._followers.table(
            NamedCursor(consumer, lag, topic)
            for topic in sample.topics.values()
            for consumer, lag in topic.lags.items()
        )


def _flow_row(flow: FlowStatus, cells: list[str]) -> Row:
    return Row(flow.key, cells, None, flow.error is not None or cells[1] in ("failed", "silent"))


@guarded("read")
def pipelines_page(request: Request, service: Service) -> Response:
    service.sampler.start()
    view = PipelineRows(request)
    return rendering.page(
        request,
        service,
        "pipelines.html",
        "Pipelines",
        live=f"/live/pipelines?{urlencode(dict(request.query_params))}",
        charts=charts.PIPELINES,
        flows=view.flows(status(service.journal)),
        followers=view.followers(service.sampler.newest),
    )


@guarded("read")
async def live_pipelines(request: Request, service: Service) -> Response:
    view = PipelineRows(request)

    def render(sample: Sample) -> Update:
        return parts.update((), view.flows(status(service.journal)), view.followers(sample))

    return rendering.stream(request, service, render)

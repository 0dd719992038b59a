"""The Spark pipelines that run over this journal, as they report themselves, and every named cursor with its lag."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.observe.pipelines import TOPIC, FlowStatus, status
from penstock.observe.sample import Sample, TopicSample
from penstock.server.pages import charts, parts, rendering
from penstock.server.pages.lists import ListColumn, Listing
from penstock.server.pages.parts import Row, Table
from penstock.server.pages.rendering import Content
from penstock.server.service import Service


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
    ListColumn("From", "from", lambda flow: ", ".join(flow.sources), minor=True),
    ListColumn("To", "to", lambda flow: flow.target, minor=True),
    ListColumn(
        "Rows a second",
        "rate",
        lambda flow: "–" if flow.rows_per_second is None else parts.rate(flow.rows_per_second),
        lambda flow: _number(flow.rows_per_second),
        minor=True,
    ),
    ListColumn("Lag", "lag", lambda flow: parts.number(flow.lag), lambda flow: _number(flow.lag)),
    ListColumn("Rows", "rows", lambda flow: parts.number(flow.rows), lambda flow: _number(flow.rows), True),
    ListColumn("Batch", "batch", lambda flow: parts.number(flow.batch), lambda flow: _number(flow.batch), True),
    ListColumn(
        "Batch time", "time", lambda flow: parts.age(flow.batch_seconds), lambda flow: _number(flow.batch_seconds), True
    ),
    ListColumn("Restarts", "restarts", lambda flow: parts.number(flow.restarts), lambda flow: flow.restarts, True),
    ListColumn("Reported", "reported", _moment, minor=True),
)
FOLLOWER_COLUMNS: tuple[ListColumn[NamedCursor], ...] = (
    ListColumn("Consumer", "consumer", lambda one: one.consumer),
    ListColumn("Topic", "topic", lambda one: one.topic.name),
    ListColumn(
        "Position", "position", lambda one: parts.number(one.topic.latest - one.lag), lambda one: one.topic.latest, True
    ),
    ListColumn("Lag", "lag", lambda one: parts.number(one.lag), lambda one: one.lag),
    ListColumn("Topic's rate", "rate", lambda one: parts.rate(one.topic.rate), lambda one: one.topic.rate, True),
)


class PipelineRows:
    """Which flows and which cursors a request asks for."""

    def __init__(self, request: Request) -> None:
        self._base = rendering.base_of(request)
        self._request = request
        self._followers = Listing(
            request,
            "followers",
            FOLLOWER_COLUMNS,
            lambda one, cells: Row(
                f"{one.consumer}/{one.topic.name}", cells, f"{self._base}/topics/{rendering.segment(one.topic.name)}"
            ),
            usual="lag",
            empty="no consumer has committed a position",
        )

    def tables(self, found: list[FlowStatus], sample: Sample) -> tuple[Table, Table, Table]:
        """Flows as they last reported; why they failed, whole; and named cursors: a streaming query read with the
        `consumer` option is one of them."""

        def row(flow: FlowStatus, cells: list[str]) -> Row:
            level: parts.Level = "alert" if flow.error is not None or cells[1] in ("failed", "silent") else ""
            links = {2: self._place(sample, flow.sources[0])} if len(flow.sources) == 1 else {}
            links[3] = self._place(sample, flow.target)
            return Row(flow.key, cells, self._reports(flow), level, links=links)

        empty = "no pipeline has reported: penstock run pipeline.py"
        flows = Listing(self._request, "pipelines", FLOW_COLUMNS, row, usual="flow", empty=empty).table(found)
        failed = [flow for flow in found if flow.error is not None]
        wrong = [Row(flow.key, [flow.key, flow.error or ""], self._reports(flow), "alert") for flow in failed]
        errors = Table("flow-errors", ["Flow", "Error"], wrong, [], "no flow has failed")
        cursors = [
            NamedCursor(consumer, lag, topic)
            for topic in sample.topics.values()
            for consumer, lag in topic.lags.items()
        ]
        return flows, errors, self._followers.table(cursors)

    def _reports(self, flow: FlowStatus) -> str:
        return f"{self._base}/topics/{rendering.segment(TOPIC)}?{urlencode({'key': flow.key})}"

    def _place(self, sample: Sample, name: str) -> str:
        """The page of a topic or queue that a flow reads or writes; nothing when it is no name of this journal's."""
        if name in sample.queues:
            return f"{self._base}/queues/{rendering.segment(name)}"
        return f"{self._base}/topics/{rendering.segment(name)}" if name in sample.topics else ""


def pipelines_page(request: Request, service: Service, sample: Sample) -> Content:
    flows, errors, followers = PipelineRows(request).tables(status(service.journal), sample)
    tables = {"flows": flows, "errors": errors, "followers": followers}
    return Content("pipelines.html", "Pipelines", [], tables, lambda: {"charts": charts.PIPELINES})

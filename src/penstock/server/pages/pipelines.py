"""The page of pipelines, with their own reports, and of every named cursor with its lag."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from penstock.core.observe import pipelines
from penstock.core.observe.sample import Sample, TopicSample
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import Content, ListColumn, Row
from penstock.server.service import Service


class NamedCursor(msgspec.Struct):
    """A named cursor of a topic."""

    consumer: str
    topic: TopicSample

    @property
    def lag(self) -> int:
        """The number of events that its reader has not read yet."""
        return self.topic.lags[self.consumer]


FLOW_COLUMNS: Final[parts.Columns[pipelines.FlowStatus]] = (
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
ERROR_COLUMNS: Final[parts.Columns[pipelines.FlowStatus]] = (
    ListColumn("Flow", lambda flow: flow.key),
    ListColumn("Error", lambda flow: flow.error, str),
)
FOLLOWER_COLUMNS: Final[parts.Columns[NamedCursor]] = (
    ListColumn("Consumer", lambda one: one.consumer),
    ListColumn("Topic", lambda one: one.topic.name),
    ListColumn("Position", lambda one: one.topic.positions[one.consumer], parts.number, True),
    ListColumn("Lag", lambda one: one.lag, parts.number),
    ListColumn("Topic's rate", lambda one: one.topic.rate, parts.rate, True),
)


def pipelines_page(request: Request, service: Service, sample: Sample) -> Content:
    """Returns flows as they last reported, with the whole error of each failed flow, and the named cursors.

    A streaming query with the `consumer` option reads with such a cursor.
    """
    base, found = parts.base_of(request), pipelines.status(service.journal)

    def page_of(name: str) -> str:
        """Returns the page of the topic or queue that a flow reads or writes; None when this journal has no such
        name.
        """
        page = "queues" if name in sample.queues else "topics" if name in sample.topics else ""
        return page and f"{base}/{page}/{parts.segment(name)}"

    def row(flow: pipelines.FlowStatus, cells: list[str]) -> Row:
        level: parts.Level = "alert" if flow.error is not None or cells[1] in ("failed", "silent") else ""
        links = {} if len(cells) == 2 else {3: page_of(flow.target)}
        if links and len(flow.sources) == 1:
            links[2] = page_of(flow.sources[0])
        href = f"{base}/topics/{parts.segment(pipelines.TOPIC)}?{urlencode({'key': flow.key})}"
        return Row(flow.key, cells, href, level, links=links)

    def follower(one: NamedCursor, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(one.topic.name)}"
        return Row(f"{one.consumer}/{one.topic.name}", cells, href)

    cursors = [NamedCursor(name, topic) for topic in sample.topics.values() for name in topic.lags]
    failed = [flow for flow in found if flow.error is not None]
    no_flow, no_cursor = "no pipeline has reported: penstock run pipeline.py", "no consumer has committed a position"
    tables = {
        "flows": parts.listing(request, "pipelines", FLOW_COLUMNS, found, row, no_flow, usual="flow"),
        "errors": parts.table("flow-errors", ERROR_COLUMNS, failed, row, "no flow has failed"),
        "followers": parts.listing(request, "followers", FOLLOWER_COLUMNS, cursors, follower, no_cursor, usual="lag"),
    }
    return Content("pipelines.html", "Pipelines", [], tables, lambda: {"charts": charts.PIPELINES})

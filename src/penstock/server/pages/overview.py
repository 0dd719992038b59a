"""The overview and the lists of all topics and of all queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request

from penstock.core.names import is_system
from penstock.core.observe.sample import Finding, QueueSample, Sample, TopicSample
from penstock.limits import WRITER_FULL
from penstock.server.pages import charts, parts
from penstock.server.pages.parts import Content, ListColumn, Row, Table, Tile, count_tile
from penstock.server.service import Service


def _time(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _worst_lag(topic: TopicSample) -> int | None:
    return max(topic.lags.values(), default=None)


LAST_EVENT: Final = ListColumn[TopicSample]("Last event", lambda topic: _time(topic.last_at), parts.second, True)
TOPIC_COLUMNS: Final[parts.Columns[TopicSample]] = (
    ListColumn("Topic", lambda topic: topic.name),
    ListColumn("Events", lambda topic: topic.events, parts.number),
    ListColumn("Rate", lambda topic: round(topic.rate, 1), parts.rate),
    ListColumn("Latest", lambda topic: topic.latest, parts.number, True),
    ListColumn("Consumers", lambda topic: len(topic.lags), parts.number, True),
    ListColumn("Worst lag", _worst_lag, parts.number),
    LAST_EVENT,
)
BRIEF_TOPIC_COLUMNS: Final[parts.Columns[TopicSample]] = (
    *TOPIC_COLUMNS[:3],
    ListColumn("Lag", _worst_lag, parts.number),
    LAST_EVENT,
)
"""The columns that a table beside the queues has room for."""


def titled(group: QueueSample) -> str:
    """Returns the title of a group of a queue in a list."""
    return f"{group.title} (paused)" if group.paused else group.title


def _dead(group: QueueSample) -> int:
    return group.dead if group.letters is None else group.letters


WORKERS_COLUMN: Final = 1
"""The place of the number of workers in a list of queues."""
BACKLOG_COLUMNS: Final[parts.Columns[QueueSample]] = (
    ListColumn("Workers", lambda group: group.workers, parts.number),
    ListColumn("Ready", lambda group: group.ready, parts.number),
    ListColumn("Trend", lambda group: group.trend, minor=True),
    ListColumn("In", lambda group: group.rate, parts.rate, True),
    ListColumn("Out", lambda group: group.settle_rate, parts.rate, True),
    ListColumn("Oldest", lambda group: group.oldest_age, parts.age, True),
)
STATE_COLUMNS: Final[parts.Columns[QueueSample]] = (
    *BACKLOG_COLUMNS,
    ListColumn("In flight", lambda group: group.in_flight, parts.number, True),
    ListColumn("Delayed", lambda group: group.delayed, parts.number, True),
    ListColumn("Failed", lambda group: group.failed, parts.number),
    ListColumn("Dead", _dead, parts.number),
    ListColumn("Last failure", lambda group: group.last_failure(time.time()), minor=True),
)
NAME_COLUMN: Final = ListColumn("Queue", titled)
QUEUE_COLUMNS: Final = (NAME_COLUMN, *STATE_COLUMNS)
SHORT_COLUMNS: Final[parts.Columns[QueueSample]] = (
    NAME_COLUMN,
    *BACKLOG_COLUMNS,
    ListColumn("Failed", lambda group: group.failed, parts.number),
    ListColumn("Dead", _dead, parts.number),
)
"""The columns that a table beside the topics has room for."""


def queue_row(base: str, sample: Sample) -> Callable[[QueueSample, list[str]], Row]:
    """Returns a group of a queue as a row, with the link to its page."""
    levels: dict[tuple[str, str], list[Finding]] = {}
    for one in sample.findings:
        levels.setdefault((one.subject, one.detail), []).append(one)

    def row(group: QueueSample, cells: list[str]) -> Row:
        href = f"{base}/queues/{parts.segment(group.name)}?{urlencode({'group': group.group})}"
        level = parts.worst(levels.get((group.name, group.group), ()))
        return Row(f"{group.name}/{group.group}", cells, href, level, links={WORKERS_COLUMN: f"{href}&tab=workers"})

    return row


def sought(request: Request) -> str:
    return request.query_params.get("q", "").strip()[:200]


def topic_table(request: Request, sample: Sample, columns: parts.Columns[TopicSample] = TOPIC_COLUMNS) -> Table:
    """Returns the topics with `q` in their names; with `system`, penstock's own topics too.

    The queues are in the other table.
    """
    base, query, with_system = parts.base_of(request), sought(request).lower(), "system" in request.query_params
    own = [topic for topic in sample.topics.values() if topic.name not in sample.queues and query in topic.name.lower()]
    found = [topic for topic in own if with_system or not is_system(topic.name)]

    def row(topic: TopicSample, cells: list[str]) -> Row:
        return Row(topic.name, cells, f"{base}/topics/{parts.segment(topic.name)}")

    return parts.listing(request, "topics", columns, found, row, "no topic here", usual="rate")


def queue_table(request: Request, sample: Sample, columns: parts.Columns[QueueSample] = SHORT_COLUMNS) -> Table:
    query, row = sought(request).lower(), queue_row(parts.base_of(request), sample)
    found = (group for groups in sample.queues.values() for group in groups if query in group.name.lower())
    return parts.listing(request, "queues", columns, found, row, "no queue here", usual="ready")


def system_topics(request: Request, sample: Sample) -> tuple[int, bool, str]:
    """Returns the number of penstock's own topics, whether the list shows them, and the query that switches this."""
    shown = "system" in request.query_params
    kept = {name: value for name, value in request.query_params.items() if name != "system"}
    return sum(is_system(name) for name in sample.topics), shown, urlencode(kept if shown else {**kept, "system": "1"})


def own_topics(sample: Sample) -> list[str]:
    """Returns the topics that are neither queues nor penstock's own."""
    return [name for name in sample.topics if name not in sample.queues and not is_system(name)]


def tiles(sample: Sample) -> list[Tile]:
    """Returns the eight numbers that summarise the journal."""
    groups = [group for found in sample.queues.values() for group in found]
    oldest = max((group.oldest_age for group in groups if group.oldest_age is not None), default=None)
    return [
        Tile("rate", "Events a second", parts.rate(sample.rate)),
        count_tile("topic-count", "Topics", len(own_topics(sample))),
        count_tile("backlog", "Ready in queues", sum(group.ready for group in groups)),
        Tile("oldest", "Oldest ready", parts.age(oldest)),
        count_tile("in-flight", "In flight", sum(group.in_flight for group in groups)),
        count_tile("failed", "Failed", sum(group.failed for group in groups), alert=True),
        count_tile("dead-count", "Dead letters", sum(group.dead for group in groups), alert=True),
        Tile("pressure", "Writer pressure", f"{sample.pressure:.0%}", sample.pressure > WRITER_FULL),
    ]


def overview(request: Request, service: Service, sample: Sample) -> Content:
    tables = {"queues": queue_table(request, sample), "topics": topic_table(request, sample, BRIEF_TOPIC_COLUMNS)}
    if not own_topics(sample) and not sample.queues:
        address = f"{request.url.scheme}://{request.headers.get('host', '')}{parts.base_of(request)}"
        return Content("empty.html", "Overview", [], tables, lambda: {"address": address})
    values = {"charts": charts.OVERVIEW, "system": system_topics(request, sample)}
    return Content("overview.html", "Overview", tiles(sample), tables, lambda: values)


def topics_page(request: Request, service: Service, sample: Sample) -> Content:
    values = {"system": system_topics(request, sample)}
    return Content("topics.html", "Topics", [], {"topics": topic_table(request, sample)}, lambda: values)


def queues_page(request: Request, service: Service, sample: Sample) -> Content:
    return Content("queues.html", "Queues", [], {"queues": queue_table(request, sample, QUEUE_COLUMNS)})

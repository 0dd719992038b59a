"""What the charts draw: the journal's past in numbers, as columns of times and values.

A page names its charts; the script asks for their data by range and draws them. Each answer has all charts of a page:

    GET /charts/overview?range=1h
    {"charts": {"rates": {"times": [...], "series": [{"label": "in", "values": [...]}, ...]}, ...}}
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError
from penstock.observe.history import BUCKETS, COUNTS, FIELDS, HistoryRow, quantile_ms
from penstock.observe.history import series as series_of
from penstock.observe.pipelines import status
from penstock.protocol.operation import JSON
from penstock.server.api.queues import queue_of
from penstock.server.api.topics import existing
from penstock.server.service import Service, guarded

RANGES = {"15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800}
"""What can be looked at, in seconds."""
MOST_LINES = 8
"""Lines in one chart: those that stand highest."""
GAP = 2.5
"""Rows further apart than this many times their length have something missing between them."""


class Chart(msgspec.Struct):
    """A chart as a page names it."""

    id: str
    title: str
    unit: str = ""
    """rate, count, seconds, bytes: how its values are written."""
    stacked: bool = False


class ChartLine(msgspec.Struct):
    label: str
    values: list[float | None]


class ChartData(msgspec.Struct):
    times: list[float]
    series: list[ChartLine]


OVERVIEW = (
    Chart("rates", "In and out, a second", "rate"),
    Chart("backlog", "Messages in queues", "count", stacked=True),
    Chart("ages", "Oldest ready message", "seconds"),
)
QUEUE = (
    Chart("states", "Messages by state", "count", stacked=True),
    Chart("rates", "Pushed and settled, a second", "rate"),
    Chart("ages", "Oldest ready message", "seconds"),
    Chart("settling", "From delivery to acknowledgement", "seconds"),
)
TOPIC = (
    Chart("rates", "Events a second", "rate"),
    Chart("bytes", "Bytes a second, as stored", "bytes"),
    Chart("lags", "Lag by consumer", "count"),
)
PIPELINES = (
    Chart("rates", "Rows read, a second", "rate"),
    Chart("written", "Rows written, a second", "rate"),
    Chart("lags", "Lag", "count"),
    Chart("batches", "Duration of the newest batch", "seconds"),
)

Line = tuple[str, str, str]
"""A label, a series, and one of its fields."""


def rows_of(request: Request, service: Service) -> list[HistoryRow]:
    """The rows of the range that a request names."""
    name = request.query_params.get("range") or "15m"
    if name not in RANGES:
        raise ConfigError(f"range is one of {', '.join(RANGES)}, not {name[:20]!r}")
    history = service.sampler.history
    return [] if history is None else history.over(RANGES[name], time.time())


def drawn(rows: Sequence[HistoryRow], lines: Sequence[Line]) -> ChartData:
    """Lines over the times of rows, with nothing where nothing was written down."""
    times: list[float] = []
    data: list[ChartLine] = [ChartLine(label, []) for label, _, _ in lines]
    for at, row in enumerate(rows):
        if at and row.at - row.seconds - rows[at - 1].at > GAP * max(row.seconds, rows[at - 1].seconds):
            times.append(rows[at - 1].at + row.seconds)
            for line in data:
                line.values.append(None)
        times.append(round(row.at, 1))
        for line, (_, series, field) in zip(data, lines, strict=True):
            value: float | None = row.field(series, FIELDS[series.partition(":")[0]].index(field))
            if value is not None and field in COUNTS:
                value = round(value / row.seconds, 3)
            elif value is not None and field == "batch_ms":
                value = value / 1000
            line.values.append(value)
    return ChartData(times, data)


def settle_times(rows: Sequence[HistoryRow], series: str) -> ChartData:
    """The median and the slowest hundredth of the times from delivery to acknowledgement, in seconds."""
    data = drawn(rows, [(bucket, series, bucket) for bucket in BUCKETS])
    found = ChartData(data.times, [ChartLine("p50", []), ChartLine("p99", [])])
    for line, share in zip(found.series, (0.5, 0.99), strict=True):
        for counts in zip(*(bucket.values for bucket in data.series), strict=True):
            known = [count for count in counts if count is not None]
            value = quantile_ms(known, share) if len(known) == len(counts) else None
            line.values.append(None if value is None else round(value / 1000, 4))
    return found


def written_bytes(rows: Sequence[HistoryRow], series: str) -> ChartData:
    """Events a second, times what an event of the newest block takes."""
    data = drawn(rows, [("appended", series, "appended"), ("size", series, "event_bytes")])
    appended, sizes = (line.values for line in data.series)
    found = ChartLine("bytes", [])
    for count, size in zip(appended, sizes, strict=True):
        found.values.append(None if count is None or size is None else count * size)
    return ChartData(data.times, [found])


def highest(data: ChartData) -> ChartData:
    """The lines that stand highest; more than a few cannot be told apart."""
    ranked = sorted(data.series, key=lambda line: -max((value or 0.0 for value in line.values), default=0.0))
    data.series = sorted(ranked[:MOST_LINES], key=lambda line: line.label)
    return data


def _answer(charts: dict[str, ChartData]) -> Response:
    data = msgspec.json.encode({"charts": charts})
    return Response(data, headers={"Cache-Control": "no-store"}, media_type=JSON)


STATES = ("ready", "in_flight", "delayed", "failed", "dead")


def _states(rows: Sequence[HistoryRow], series: str) -> ChartData:
    return drawn(rows, [(state.replace("_", " "), series, state) for state in STATES])


@guarded("read")
def overview_charts(request: Request, service: Service) -> Response:
    rows = rows_of(request, service)
    rates = drawn(rows, [("events in", "all", "appended"), ("messages settled", "all", "settled")])
    ages = drawn(rows, [("oldest", "all", "oldest")])
    return _answer({"rates": rates, "backlog": _states(rows, "all"), "ages": ages})


@guarded("read")
def queue_charts(request: Request, service: Service) -> Response:
    queue = queue_of(request, service)
    rows = rows_of(request, service)
    group = request.query_params.get("group") or "default"
    series = series_of("queue", queue.name, group)
    rates = drawn(rows, [("pushed", series, "pushed"), ("settled", series, "settled")])
    ages = drawn(rows, [("oldest", series, "oldest")])
    settling = settle_times(rows, series_of("settle", queue.name, group))
    return _answer({"states": _states(rows, series), "rates": rates, "ages": ages, "settling": settling})


@guarded("read")
def topic_charts(request: Request, service: Service) -> Response:
    topic = existing(request, service)
    rows = rows_of(request, service)
    rates = drawn(rows, [("events", series_of("topic", topic.name), "appended")])
    lags = [(name, series_of("consumer", topic.name, name), "lag") for name in sorted(topic.cursors())]
    written = written_bytes(rows, series_of("topic", topic.name))
    return _answer({"rates": rates, "bytes": written, "lags": highest(drawn(rows, lags))})


@guarded("read")
def pipeline_charts(request: Request, service: Service) -> Response:
    rows = rows_of(request, service)
    names = [flow.key for flow in status(service.journal)]

    def lines(field: str) -> ChartData:
        return highest(drawn(rows, [(name, series_of("flow", name), field) for name in names]))

    read, written = lines("rows"), lines("rows_out")
    return _answer({"rates": read, "written": written, "lags": lines("lag"), "batches": lines("batch_ms")})

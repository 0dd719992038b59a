"""The series in the charts: the journal's past in numbers, as columns of times and values.

A page names its charts. The script requests their data by range and draws them. Each answer has all charts of a page:

    GET /charts/overview?range=1h
    {"charts": {"rates": {"times": [...], "series": [{"label": "in", "values": [...]}, ...]}, ...}}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.core.observe.pipelines import status
from penstock.core.protocol.operation import JSON
from penstock.core.sampling.history import BUCKETS, COUNTS, FIELDS, HistoryRow, quantile_ms
from penstock.core.sampling.history import series as series_of
from penstock.errors import ConfigError
from penstock.server.service import Service, existing_queue, existing_topic, guarded

RANGES = {"15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800}
"""The time ranges that a person can choose, in seconds."""
MOST_LINES = 8
"""The maximum number of lines in one chart; the highest lines are drawn."""
GAP = 2.5
"""The distance of two rows, in row lengths, above which values between them are missing."""


class ChartLine(msgspec.Struct):
    label: str
    values: list[float | None]


class ChartData(msgspec.Struct):
    times: list[float]
    series: list[ChartLine]


Rows = Sequence[HistoryRow]
Line = tuple[str, str, str]
"""A label, a series, and one of its fields."""


def rows_of(request: Request, service: Service) -> list[HistoryRow]:
    """Returns the rows in the range that a request names."""
    name = request.query_params.get("range") or "15m"
    if name not in RANGES:
        raise ConfigError(f"range is one of {', '.join(RANGES)}, not {name[:20]!r}")
    history = service.sampler.history
    return [] if history is None else history.over(RANGES[name], time.time())


def drawn(rows: Rows, lines: Sequence[Line]) -> ChartData:
    """Returns lines over the times of rows, with None where no value was recorded."""
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


def settle_times(rows: Rows, series: str) -> ChartData:
    """Returns the median and the 99th percentile of the times from delivery to acknowledgement, in seconds."""
    data = drawn(rows, [(bucket, series, bucket) for bucket in BUCKETS])
    found = ChartData(data.times, [ChartLine("p50", []), ChartLine("p99", [])])
    for line, share in zip(found.series, (0.5, 0.99), strict=True):
        for counts in zip(*(bucket.values for bucket in data.series), strict=True):
            known = [count for count in counts if count is not None]
            value = quantile_ms(known, share) if len(known) == len(counts) else None
            line.values.append(None if value is None else round(value / 1000, 4))
    return found


def written_bytes(rows: Rows, series: str) -> ChartData:
    """Returns the written bytes a second: events a second, multiplied by the mean size of an event in the newest
    block.
    """
    data = drawn(rows, [("appended", series, "appended"), ("size", series, "event_bytes")])
    appended, sizes = (line.values for line in data.series)
    found = ChartLine("bytes", [])
    for count, size in zip(appended, sizes, strict=True):
        found.values.append(None if count is None or size is None else count * size)
    return ChartData(data.times, [found])


def highest(data: ChartData) -> ChartData:
    """Returns the highest lines. More than a few lines cannot be told apart."""
    ranked = sorted(data.series, key=lambda line: -max((value or 0.0 for value in line.values), default=0.0))
    data.series = sorted(ranked[:MOST_LINES], key=lambda line: line.label)
    return data


# ── the charts of each page ──────────────────────────────────────────────────────────────────────────────────────────
class Chart(msgspec.Struct):
    """A chart by its name on the page, with the function that makes its lines from rows and from the names on the
    page.
    """

    id: str
    title: str
    unit: str
    """The unit of its values: rate, count, seconds or bytes."""
    draw: Callable[[Rows, Sequence[str]], ChartData]
    stacked: bool = False
    tiles: dict[str, str] = {}
    """The tile with a line's present value, by the line's label.

    The tile and the line always show the same value.
    """


def _of(kind: str, *fields: str) -> Callable[[Rows, Sequence[str]], ChartData]:
    """Returns lines for the fields of one series, each `label=field`.

    The page's names make up the name of the series.
    """
    lines = [field.rpartition("=")[::2] for field in fields]

    def draw(rows: Rows, names: Sequence[str]) -> ChartData:
        series = series_of(kind, *names) if names else kind
        return drawn(rows, [(label or field.replace("_", " "), series, field) for label, field in lines])

    return draw


def _flows(field: str) -> Callable[[Rows, Sequence[str]], ChartData]:
    """Returns a line for each flow that the page names."""
    return lambda rows, names: highest(drawn(rows, [(name, series_of("flow", name), field) for name in names]))


def _lags(rows: Rows, names: Sequence[str]) -> ChartData:
    """Returns a line for each consumer. The first name is the topic."""
    topic, *consumers = names
    return highest(drawn(rows, [(name, series_of("consumer", topic, name), "lag") for name in consumers]))


STATES: Final = ("ready", "in_flight", "delayed", "failed", "dead")
LABELS: Final = [state.replace("_", " ") for state in STATES]
OVERVIEW: Final = (
    Chart("rates", "In and out, a second", "rate", _of("all", "events in=appended", "messages settled=settled")),
    Chart(
        "backlog",
        "Messages in queues",
        "count",
        _of("all", *STATES),
        stacked=True,
        tiles={"ready": "backlog", "in flight": "in-flight", "failed": "failed", "dead": "dead-count"},
    ),
    Chart("ages", "Oldest ready message", "seconds", _of("all", "oldest")),
)
QUEUE: Final = (
    Chart(
        "states",
        "Messages by state",
        "count",
        _of("queue", *STATES),
        stacked=True,
        tiles=dict(zip(LABELS, ("ready", "in-flight", "delayed", "failed", "dead-count"), strict=True)),
    ),
    Chart("rates", "Pushed and settled, a second", "rate", _of("queue", "pushed", "settled")),
    Chart("ages", "Oldest ready message", "seconds", _of("queue", "oldest")),
    Chart(
        "settling",
        "From delivery to acknowledgement",
        "seconds",
        lambda rows, names: settle_times(rows, series_of("settle", *names)),
    ),
)
TOPIC: Final = (
    Chart("rates", "Events a second", "rate", lambda rows, names: _of("topic", "events=appended")(rows, names[:1])),
    Chart(
        "bytes",
        "Bytes a second, as stored",
        "bytes",
        lambda rows, names: written_bytes(rows, series_of("topic", names[0])),
    ),
    Chart("lags", "Lag by consumer", "count", _lags),
)
PIPELINES: Final = (
    Chart("rates", "Rows read, a second", "rate", _flows("rows")),
    Chart("written", "Rows written, a second", "rate", _flows("rows_out")),
    Chart("lags", "Lag", "count", _flows("lag")),
    Chart("batches", "Duration of the newest batch", "seconds", _flows("batch_ms")),
)


def _answer(request: Request, service: Service, charts: Sequence[Chart], *names: str) -> Response:
    rows = rows_of(request, service)
    data = msgspec.json.encode({"charts": {chart.id: chart.draw(rows, names) for chart in charts}})
    return Response(data, headers={"Cache-Control": "no-store"}, media_type=JSON)


@guarded("read")
def overview_charts(request: Request, service: Service) -> Response:
    return _answer(request, service, OVERVIEW)


@guarded("read")
def queue_charts(request: Request, service: Service) -> Response:
    group = request.query_params.get("group") or "default"
    return _answer(request, service, QUEUE, existing_queue(request, service).name, group)


@guarded("read")
def topic_charts(request: Request, service: Service) -> Response:
    topic = existing_topic(request, service)
    return _answer(request, service, TOPIC, topic.name, *sorted(topic.cursors()))


@guarded("read")
def pipeline_charts(request: Request, service: Service) -> Response:
    return _answer(request, service, PIPELINES, *(flow.key for flow in status(service.journal)))

"""The Spark pipelines that run over this journal, as they report themselves, and every named cursor with its lag.

A pipeline writes its progress to the topic `penstock.pipelines`, one event per report, keyed by the flow's name; the
newest event of each key is how it stands.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import PoisonMessage
from penstock.event import Event
from penstock.observed import Sample
from penstock.server.pages import parts
from penstock.server.pages.html import el
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.service import Service, guarded
from penstock.server.stats import sse

if TYPE_CHECKING:
    from penstock.api import Journal

TOPIC = "penstock.pipelines"
LOOKED_AT = 2_000
"""Reports looked at for the newest of each flow."""
FOLLOWERS = 100
"""Cursors that are shown, those furthest behind."""
SILENT = 60.0
"""Seconds without a report after which a flow that claims to run is not believed."""


def newest_reports(journal: Journal) -> list[Event]:
    """The newest report of every flow, by name."""
    found: dict[str, Event] = {}
    for event in journal.topic(TOPIC).read(limit=LOOKED_AT, reverse=True):
        if event.key is not None:
            found.setdefault(event.key, event)
    return [found[key] for key in sorted(found)]


def table(reports: list[Event]) -> Table:
    rows = []
    for event in reports:
        said = _said(event)
        state = str(said.get("state", event.kind))
        quiet = time.time() - event.recorded_at.timestamp()
        if state == "running" and quiet > SILENT:
            state = f"silent for {parts.age(quiet)}"
        cells = [
            str(event.key),
            state,
            _number(said, "rows_per_second", parts.rate),
            _number(said, "lag", parts.number),
            _number(said, "batch", parts.number),
            _number(said, "batch_seconds", parts.age),
            event.recorded_at.isoformat(timespec="milliseconds"),
            str(said.get("error") or "–"),
        ]
        rows.append(Row(str(event.key), cells, None, bool(said.get("error")) or state.startswith("silent")))
    columns = ["Flow", "State", "Rows a second", "Lag", "Batch", "Batch time", "Reported", "Error"]
    return Table("pipelines", columns, rows, [2, 3, 4, 5], "no pipeline has reported: penstock run pipeline.py")


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


def _said(event: Event) -> dict[str, Any]:
    try:
        payload = event.payload
    except PoisonMessage:
        return {}
    return payload if isinstance(payload, dict) else {}


def _number(said: dict[str, Any], name: str, show: Any) -> str:
    value = said.get(name)
    return str(show(value)) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


@guarded("read")
def pipelines_page(request: Request, service: Service) -> Response:
    service.sampler.start()
    return parts.page(
        request,
        service,
        "Pipelines",
        el("p", "Spark queries over this journal, as they last reported."),
        table(newest_reports(service.journal)).html(),
        parts.section("Who follows what", follower_table(service.sampler.newest, parts.base_of(request)).html()),
        live="/live/pipelines",
    )


@guarded("read")
async def live_pipelines(request: Request, service: Service) -> Response:
    base = parts.base_of(request)

    def render(sample: Sample) -> Update:
        tables = (table(newest_reports(service.journal)), follower_table(sample, base))
        return Update({}, {one.id: one.rows for one in tables})

    return sse(service, render)

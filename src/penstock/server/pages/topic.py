"""A topic's page: throughput, live tail with filters, one event in full, consumers with seek."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import ConfigError, PenstockError, PoisonMessage
from penstock.events import Event
from penstock.observe.sample import Sample
from penstock.server.api import parameters
from penstock.server.api.problems import Refused
from penstock.server.api.stats import sse
from penstock.server.api.topics import existing
from penstock.server.pages import parts
from penstock.server.pages.html import Html, el, join
from penstock.server.pages.parts import Row, Table, Update
from penstock.server.service import Service, guarded
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.api import Topic

SHOWN = 50
"""Events a page begins with."""
PREVIEW = 300
"""Characters of a payload in a list."""
SCANNED = 20_000
"""Events a page looks at for its filter before it shows what it found."""


def preview(event: Event) -> str:
    """The beginning of a payload, on one line."""
    raw = event.raw
    if event.binary:
        return f"{show_size(len(raw))} of bytes"
    text = raw[: PREVIEW * 4].decode("utf-8", "replace").replace("\n", " ")
    return text[:PREVIEW] + ("…" if len(text) > PREVIEW else "")


def event_item(event: Event, base: str, *, topic: bool = False) -> Html:
    """An event in a list; the script opens it in place, the link on a page of its own."""
    name = f"{event.topic} #{event.seq}" if topic else f"#{event.seq}"
    return el(
        "li",
        el("a", name, href=f"{base}/topics/{quote(event.topic)}/events/{event.seq}", class_="seq"),
        parts.moment(event.recorded_at),
        el("span", event.kind, class_="kind"),
        el("span", event.key, class_="key") if event.key is not None else None,
        el("code", preview(event), class_="payload"),
        data_seq=event.seq,
        tabindex="0",
    )


def pretty(event: Event) -> str:
    """A payload laid out for reading."""
    if event.binary:
        raw = event.raw
        return f"{show_size(len(raw))} of bytes\n" + raw[:4096].hex(" ", 1)
    try:
        event.payload  # noqa: B018 - asks whether it decodes
    except PoisonMessage as error:
        return str(error)
    return msgspec.json.format(event.raw, indent=2).decode("utf-8", "replace")


# ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────────
def consumer_table(topic: str, sample: Sample) -> Table:
    found = sample.topics.get(topic)
    rows = []
    if found is not None:
        for consumer, lag in sorted(found.lags.items()):
            cells = [consumer, parts.number(found.latest - lag), parts.number(lag)]
            rows.append(Row(consumer, cells))
    return Table("consumers", ["Consumer", "Position", "Lag"], rows, [1, 2], "no consumer has committed a position")


def _seek_form(request: Request, topic: Topic) -> Html | None:
    if not parts.can(request, "write"):
        return None
    return el(
        "form",
        el("h3", "Move a consumer"),
        el(
            "label", "Consumer ", el("input", name="consumer", required=True, list="consumer-names", autocomplete="off")
        ),
        el("datalist", *(el("option", value=name) for name in topic.cursors()), id="consumer-names"),
        el(
            "label",
            "to ",
            el(
                "select",
                *(el("option", name, value=value) for value, name in SEEKS),
                name="to",
            ),
        ),
        el("label", "Position or time ", el("input", name="value", autocomplete="off", placeholder="1200 or 1h")),
        el("button", "Seek", type="submit"),
        id="seek",
        data_topic=topic.name,
        class_="row",
    )


SEEKS = (("position", "position"), ("time", "time"), ("start", "the start"), ("end", "the end"))


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _events(request: Request, topic: Topic) -> tuple[list[Event], str | None]:
    """The newest chosen events, newest first, and what is wrong with the choice."""
    try:
        wanted = parameters.Wanted(request)
        before = parameters.number(request, "before")
        since = parameters.moment(request, "since")
        through = None if before is None else max(0, before - 1)
        if through == 0:
            return [], None
        found = topic.read(through=through, reverse=True, since=since, **wanted.read())
        looked = islice(found, SCANNED) if wanted.where is not None else found
        return list(islice((e for e in looked if wanted.where is None or wanted.where.matches(e)), SHOWN)), None
    except ConfigError as error:
        return [], str(error)


def _filters(request: Request) -> Html:
    query = request.query_params

    def field(name: str, label: str, placeholder: str) -> Html:
        given = el(
            "input",
            name=name,
            value=query.get(name, ""),
            placeholder=placeholder,
            autocomplete="off",
            id=f"filter-{name}",
        )
        return el("label", f"{label} ", given)

    return el(
        "form",
        field("kind", "Kind", "order.placed"),
        field("key", "Key", "customer-7"),
        field("where", "Where", "payload.total > 10"),
        field("since", "Since", "1h"),
        el("button", "Filter", type="submit"),
        el("button", "Pause", type="button", id="pause", aria_pressed="false"),
        id="filters",
        class_="row",
    )


@guarded("read")
def topic_page(request: Request, service: Service) -> Response:
    topic = existing(request, service)
    service.sampler.start()
    sample = service.sampler.newest
    base = parts.base_of(request)
    events, problem = _events(request, topic)
    drawn, top = parts.lines([service.sampler.topic_history(topic.name)])
    older = None
    if events and events[-1].seq > topic.oldest:
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
        older = el("a", "Older events →", href="?" + urlencode([*kept, ("before", events[-1].seq)]))
    tail = el(
        "ol",
        *(event_item(event, base) for event in events),
        id="tail",
        class_="events",
        data_topic=topic.name,
        # Somebody who looks at the past is not pushed back to the present.
        data_paused="1" if "before" in request.query_params else None,
    )
    is_queue = topic.name in service.journal.queues()
    queue = el("p", el("a", "This topic is a queue: show its messages", href=f"{base}/queues/{quote(topic.name)}"))
    return parts.page(
        request,
        service,
        topic.name,
        queue if is_queue else None,
        parts.tiles(*(parts.tile(id, label, value) for id, (label, value) in _numbers(topic.name, sample).items())),
        parts.chart("rates", "Events a second", ["events"], drawn, parts.rate(top)),
        parts.section(
            "Consumers", consumer_table(topic.name, sample).html(), _seek_form(request, topic), id="consumer-section"
        ),
        parts.section(
            "Events",
            _filters(request),
            el("p", problem or "", class_="problem", id="filter-problem", role="alert", hidden=problem is None),
            el("div", tail, el("aside", id="inspector", hidden=True, aria_live="polite"), class_="split"),
            el("p", older, class_="pager"),
        ),
        live=f"/live/topics/{quote(topic.name)}",
    )


def _numbers(name: str, sample: Sample) -> dict[str, tuple[str, str]]:
    found = sample.topics.get(name)
    return {
        "rate": ("Events a second", parts.rate(found.rate if found else 0.0)),
        "events": ("Events stored", parts.number(found.events if found else 0)),
        "latest": ("Latest position", parts.number(found.latest if found else 0)),
        "consumer-count": ("Consumers", parts.number(len(found.lags) if found else 0)),
        "worst-lag": ("Worst lag", parts.number(max(found.lags.values(), default=None) if found else None)),
    }


@guarded("read")
async def live_topic(request: Request, service: Service) -> Response:
    name = request.path_params["topic"]

    def render(sample: Sample) -> Update:
        drawn, top = parts.lines([service.sampler.topic_history(name)])
        texts = {id: value for id, (_, value) in _numbers(name, sample).items()}
        tables = {"consumers": consumer_table(name, sample).rows}
        return Update({**texts, "rates-top": parts.rate(top)}, tables, {"rates": drawn})

    return sse(service, render)


# ── one event ────────────────────────────────────────────────────────────────────────────────────────────────────────
@guarded("read")
def event_page(request: Request, service: Service) -> Response:
    topic = existing(request, service)
    name = request.path_params["event"]
    event = topic.get(int(name)) if name.isdigit() and len(name) <= 18 else topic.find(name)
    if event is None:
        raise Refused(404, "UnknownEvent", f"topic {topic.name!r} has no event {name[:80]!r}")
    base = parts.base_of(request)
    correlation = event.correlation_id or event.id
    here = f"{base}/topics/{quote(topic.name)}"
    steps = [
        el("a", "← Older", href=f"{here}/events/{event.seq - 1}") if event.seq > topic.oldest else None,
        el("a", "Newer →", href=f"{here}/events/{event.seq + 1}") if event.seq < topic.latest else None,
        el("a", "What caused what", href=f"{base}/graph/{quote(correlation, safe='')}"),
        el("a", "As JSON", href=f"{base}/v1/topics/{quote(topic.name)}/events/{event.seq}"),
    ]
    return parts.page(
        request,
        service,
        f"{topic.name} #{event.seq}",
        el("p", el("a", topic.name, href=here), class_="crumbs"),
        el("p", *steps, class_="pager"),
        el("dl", *_fields(event, base), class_="fields"),
        parts.section("Payload", el("pre", pretty(event))),
    )


def _fields(event: Event, base: str) -> list[Html]:
    fields: list[tuple[str, object]] = [("Kind", event.kind), ("Id", event.id)]
    if event.key is not None:
        fields.append(("Key", event.key))
    if event.scope is not None:
        fields.append(("Scope", event.scope))
    fields += [("Recorded", parts.moment(event.recorded_at)), ("Occurred", parts.moment(event.occurred_at))]
    if event.correlation_id is not None:
        link = el("a", event.correlation_id, href=f"{base}/graph/{quote(event.correlation_id, safe='')}")
        fields.append(("Correlation", link))
    if event.causation_id is not None:
        fields.append(("Caused by", event.causation_id))
    fields += [(f"Header {name}", value) for name, value in event.headers.items()]
    return [join([el("dt", name), el("dd", value)]) for name, value in fields]


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
MOST_DRAWN = 200
"""Events of a correlation that are drawn; more is a wall, not a picture."""


@guarded("read")
def graph_page(request: Request, service: Service) -> Response:
    from penstock.server.pages.graph import drawing

    correlation = request.path_params["correlation"]
    base = parts.base_of(request)
    try:
        events = list(islice(service.journal.correlated(correlation), MOST_DRAWN + 1))
    except PenstockError as error:
        raise Refused(400, type(error).__name__, str(error)) from error
    if not events:
        raise Refused(404, "UnknownEvent", f"no event belongs to {correlation[:80]!r}")
    note = f"The first {MOST_DRAWN:,} events." if len(events) > MOST_DRAWN else f"{len(events):,} events."
    events = events[:MOST_DRAWN]
    return parts.page(
        request,
        service,
        "What caused what",
        el("p", el("code", correlation), " ", note),
        el("div", drawing(events, base), class_="graph"),
        parts.section(
            "In order", el("ol", *(event_item(event, base, topic=True) for event in events), class_="events")
        ),
    )

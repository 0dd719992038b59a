"""The parts that pages are made of: tables, tiles and numbers as values, and the frame that every page stands in.

A table is a value: its first state is rendered into the page, later ones are sent as documents, and the script puts
them into the same cells. So there is one description of a row, and it is here. However many topics, queues, groups,
workers, schedules or consumers there are, a page costs what fifty rows cost.

A template under `templates/` extends `frame.html` (or `bare.html`, for those who are not known yet); everything is
escaped. Scripts and styles are files under `static/`: the content security policy allows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.events import Event
from penstock.core.observe.sample import SHOWN_FINDINGS, Finding, Sample
from penstock.core.protocol.operation import ROLES
from penstock.core.units import show_duration, show_size
from penstock.server.service import Service, guarded, sse

T = TypeVar("T")

PREVIEW: Final = 300
"""Characters of a payload in a list."""
TYPED_BYTES: Final = 16 << 10
"""A payload that is longer is no template for what a person types."""


# ── numbers, times, texts ────────────────────────────────────────────────────────────────────────────────────────────
def number(value: int | float | None) -> str:
    """A count with its thousands apart."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Something a second."""
    if value is None:
        return "–"
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def age(seconds: float | None) -> str:
    """Returns the age of a moment in words."""
    return show_duration(seconds)


def moment(value: datetime | None) -> str:
    """A time, for a cell or a `time` element; the script shows it in the reader's zone."""
    return "–" if value is None else value.isoformat(timespec="milliseconds")


def second(value: datetime | None) -> str:
    """A time to the second."""
    return "–" if value is None else value.isoformat(timespec="seconds")


def position(seq: int) -> str:
    """A message's or event's position."""
    return f"#{seq}"


def text(value: object) -> str:
    """Anything else, on one line."""
    return str(value or "–").partition("\n")[0]


def preview(event: Event) -> str:
    """The beginning of a payload, on one line."""
    raw = event.raw
    if event.binary:
        return f"{show_size(len(raw))} of bytes"
    shown = raw[: PREVIEW * 4].decode("utf-8", "replace").replace("\n", " ")
    return shown[:PREVIEW] + ("…" if len(shown) > PREVIEW else "")


def payload_text(event: Event) -> str:
    """A payload as a person would type it; empty when it is too long for that."""
    raw = event.raw
    return "" if len(raw) > TYPED_BYTES else msgspec.json.format(raw, indent=2).decode("utf-8", "replace")


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def document(value: dict[str, str]) -> str:
    """Fields as JSON, for an attribute; escaped like any other text."""
    return msgspec.json.encode(value).decode()


# ── tables, tiles ────────────────────────────────────────────────────────────────────────────────────────────────────
class ActButton(msgspec.Struct, omit_defaults=True):
    """A button that does something about a row."""

    label: str
    act: str
    fields: dict[str, str]
    in_menu: bool = False
    """True for what destroys: a menu has to be opened first."""


Level = Literal["", "warning", "alert"]
"""The level of attention that a row needs: what was paused, waits or falls behind is no failure."""


class Row(msgspec.Struct, omit_defaults=True):
    """A row: what it is known by, where it leads, what its cells say."""

    key: str
    cells: list[str]
    href: str | None = None
    """The address that the first cell links to."""
    level: Level = ""
    buttons: list[ActButton] = []
    links: dict[int, str] = {}
    """The addresses that other cells link to, by column."""


class Pager(msgspec.Struct):
    """The place of a page of a long table among the others, and the links to the others."""

    page: int
    pages: int
    total: int
    before: str | None
    """The query of the page before."""
    after: str | None
    filter: str
    """The parameter that filters the table."""
    wanted: str = ""
    kept: list[tuple[str, str]] = []
    """The other parameters of the address."""


class Table(msgspec.Struct):
    """Rows under headings; `numeric` names the columns that are numbers, from 0."""

    id: str
    columns: list[str]
    rows: list[Row]
    numeric: list[int]
    minor: list[int]
    """Columns that a phone has no room for."""
    empty: str
    has_buttons: bool = False
    """True if rows end with buttons."""
    opens: bool = False
    """True if rows are events that open beside the table."""
    sorts: list[tuple[str, str]] = []
    """For each column the query that puts rows in its order, and how they are in its order now."""
    pager: Pager | None = None
    """The page of a table that is longer than a page."""
    following: str | None = None
    """The query of the rows that come after, in a table whose rows are not counted."""


class ListColumn(msgspec.Struct, Generic[T]):
    """A column of a list: its title, its value of a thing, and how that is written.

    Rows can be put in its order: of numbers the largest first, of text the first.
    """

    title: str
    value: Callable[[T], Any]
    show: Callable[[Any], str] = text
    minor: bool = False
    """True if a phone has no room for it."""

    @property
    def name(self) -> str:
        return self.title.lower().replace(" ", "-")

    @property
    def numeric(self) -> bool:
        return self.show in (number, rate, age, position)

    def cell(self, one: T) -> str:
        return self.show(self.value(one))

    def order(self, one: T) -> Any:
        """Returns the key by which rows are compared: what has no number comes last."""
        value = self.value(one) if self.numeric else self.cell(one)
        return -1 if value is None else value


Columns = Sequence[ListColumn[T]]
ROWS: Final = 50
"""Rows of a table on one page."""
FILTERED: Final = 12
"""Rows above which a table has a field to filter it."""


def table(
    id: str,
    columns: Columns[T],
    items: Iterable[T],
    row: Callable[[T, list[str]], Row],
    empty: str = "nothing yet",
    *,
    buttons: bool = False,
    opens: bool = False,
) -> Table:
    """A table of all things, in their order; `row` makes a row of one and its cells."""
    rows = [row(one, [column.cell(one) for column in columns]) for one in items]
    numeric = [at for at, column in enumerate(columns) if column.numeric]
    minor = [at for at, column in enumerate(columns) if column.minor]
    return Table(id, [column.title for column in columns], rows, numeric, minor, empty, buttons, opens)


def listing(
    request: Request,
    id: str,
    columns: Columns[T],
    items: Iterable[T],
    row: Callable[[T, list[str]], Row],
    empty: str,
    *,
    usual: str,
    buttons: bool = False,
) -> Table:
    """A table of those things that a request asks for with `ID-sort`, `ID-page` and, to filter them, `ID-q`; fifty at a
    time, and all of it kept in the address. `usual` is the order when it says none, backwards with a minus."""
    query = dict(request.query_params)
    sort_key, page_key, filter_key = f"{id}-sort", f"{id}-page", f"{id}-q"
    wanted = query.get(filter_key, "").strip()[:200].lower()
    sort = query.get(sort_key, usual)
    backwards = sort.startswith("-")
    by = next((column for column in columns if column.name == sort.lstrip("-")), columns[0])
    asked = query.get(page_key, "1")

    found = list(items)
    whole = len(found)
    if wanted:
        found = [one for one in found if any(wanted in column.cell(one).lower() for column in columns)]
    found.sort(key=columns[0].order)  # equal rows by their first column
    found.sort(key=by.order, reverse=backwards != by.numeric)
    pages = max(1, -(-len(found) // ROWS))
    page = min(max(1, int(asked)) if asked.isdecimal() and len(asked) < 6 else 1, pages)
    made = table(id, columns, found[(page - 1) * ROWS : page * ROWS], row, empty, buttons=buttons)
    if whole > 1:
        for column in columns:
            again = f"-{column.name}" if column is by and not backwards else column.name
            order = ("descending" if backwards != by.numeric else "ascending") if column is by else "none"
            made.sorts.append((urlencode({**query, sort_key: again, page_key: 1}), order))
    if whole > FILTERED or wanted:
        before = urlencode({**query, page_key: page - 1}) if page > 1 else None
        after = urlencode({**query, page_key: page + 1}) if page < pages else None
        kept = [(name, value) for name, value in query.items() if name not in (page_key, filter_key)]
        made.pager = Pager(page, pages, len(found), before, after, filter_key, wanted, kept)
    return made


class Tile(msgspec.Struct):
    """A number that matters, with what it is."""

    id: str
    label: str
    value: str
    alert: bool = False


def count_tile(id: str, label: str, count: int, alert: bool = False) -> Tile:
    """A count; with `alert`, any but 0 wants attention."""
    return Tile(id, label, number(count), alert and count > 0)


# ── the first line of every page ─────────────────────────────────────────────────────────────────────────────────────
class HealthLink(msgspec.Struct):
    """Something that is wrong, and where to look at it."""

    says: str
    href: str
    level: Level


WARNINGS: Final = frozenset(("writer", "unattended", "paused", "oldest", "lag"))
"""Findings of something that waits; the others are of something that failed."""


def level_of(finding: Finding) -> Level:
    return "warning" if finding.kind in WARNINGS else "alert"


def worst(findings: Iterable[Finding]) -> Level:
    """Returns the gravest level of findings."""
    return min((level_of(one) for one in findings), default="")  # an alert is before a warning


def health(findings: Sequence[Finding], base: str) -> list[HealthLink]:
    """Returns the problems, as the first line of a page shows them."""
    links = [HealthLink(one.says, base + page_of_finding(one), level_of(one)) for one in findings[:SHOWN_FINDINGS]]
    if len(findings) > SHOWN_FINDINGS:
        more = len(findings) - SHOWN_FINDINGS
        links.append(HealthLink(f"and {more:,} more", f"{base}/health", worst(findings[SHOWN_FINDINGS:])))
    return links


def page_of_finding(finding: Finding) -> str:
    """The page, and the part of it, that a finding is about."""
    name = segment(finding.subject)
    queue = f"/queues/{name}?{urlencode({'group': finding.detail})}"
    pages = {
        "disk": "/health",
        "writer": "/health",
        "unreadable": f"/topics/{name}",
        "pipeline": "/pipelines",
        "worker": "/health#worker-section",
        "dead": f"{queue}&tab=dead",
        "failed": f"{queue}&tab=dead#failed-section",
        "failing": queue,
        "unattended": f"{queue}&tab=workers",
        "paused": queue,
        "oldest": queue,
        "lag": f"/topics/{name}?tab=consumers",
    }
    return pages[finding.kind]


# ── whole pages ──────────────────────────────────────────────────────────────────────────────────────────────────────
LINKS: Final = {
    "/": "Overview",
    "/topics": "Topics",
    "/queues": "Queues",
    "/workers": "Workers",
    "/schedules": "Schedules",
    "/pipelines": "Pipelines",
    "/buffers": "Buffers",
    "/docs": "API",
}
KEYS: Final = {
    "/": "search",
    "j, k": "next, previous row",
    "Enter": "open it",
    "Escape": "close it",
    "n, b": "next page of its table, and back",
    "g o": "overview",
    "g t": "topics",
    "g q": "queues",
    "g w": "workers",
    "g s": "schedules",
    "g p": "pipelines",
    "g b": "buffers",
    "p": "pause or go on with the tail",
    "t": "light or dark",
    "?": "this help",
}


@cache
def environment() -> Environment:
    """The templates; compiled once for the process."""
    made = Environment(
        loader=PackageLoader("penstock.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"stamp": moment, "tojson_text": document}
    made.filters.update(filters, **{one.__name__: one for one in (segment, number, rate, age, preview, payload_text)})
    return made


def base_of(request: Request) -> str:
    """Returns the path at which this application is mounted, for links."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def can(request: Request, role: str) -> bool:
    """Returns True if the person who looks at the page may do what needs a role."""
    return ROLES.index(request.state.role) >= ROLES.index(role)


class Content(msgspec.Struct):
    """The part of a sample that a page shows."""

    template: str
    title: str
    tiles: list[Tile] = []
    tables: dict[str, Table] = {}
    """By the names that the template has for them."""
    values: Callable[[], Mapping[str, object]] = dict
    """The other values that the template needs; it does not change while the page is open."""
    kind: str = ""
    """The noun in the title."""


Show = Callable[[Request, Service, Sample], Content]


class Update(msgspec.Struct, omit_defaults=True):
    """The changes on a page."""

    texts: dict[str, str] = {}
    tables: dict[str, list[Row]] = {}
    alerts: dict[str, bool] = {}
    health: list[HealthLink] | None = None


def page(
    request: Request, service: Service, content: Content, *, status: int = 200, live: str = "/live/health"
) -> HTMLResponse:
    """A whole page. `live` is the path of the stream that keeps it fresh."""
    base = base_of(request)
    location = service.journal.backend.engine.location or "memory"
    frame = {
        "health": health(service.sampler.newest.findings, base),
        "title": content.title,
        "kind": content.kind,
        "journal": location.rstrip("/").rpartition("/")[2],
        "location": location,
        "path": request.url.path.removeprefix(base),
        "links": LINKS,
        "keys": KEYS,
        "query": request.query_params,
        "live": base + live,
        "role": request.state.role,
        "has_login": not service.access.open,
        "tiles": content.tiles,
    }
    return part(request, content.template, {**frame, **content.tables, **content.values()}, status)


def page_and_stream(path: str, show: Show) -> list[BaseRoute]:
    """The route of a page, and that of the server-sent events that keep it fresh: its tiles and tables as they are at
    every sample, and how the journal does."""

    @guarded("read")
    def whole(request: Request, service: Service) -> Response:
        content = show(request, service, service.sampler.newest)
        address = request.url.path.removeprefix(base_of(request))
        return page(request, service, content, live=f"/live{quote(address)}?{request.url.query}")

    @guarded("read")
    async def live(request: Request, service: Service) -> Response:
        await run_in_threadpool(show, request, service, service.sampler.newest)  # what is not there is refused here

        def changed(sample: Sample) -> Update:
            content = show(request, service, sample)
            return Update(
                {tile.id: tile.value for tile in content.tiles},
                {table.id: table.rows for table in content.tables.values()},
                {tile.id: tile.alert for tile in content.tiles},
                health(sample.findings, base_of(request)),
            )

        return sse(service, changed, beat=True)

    return [Route(path, whole), Route(f"/live{path}", live)]


def part(request: Request, template: str, values: Mapping[str, object], status: int = 200) -> HTMLResponse:
    """A part of a page, for the script to put into one."""
    may = {"may_write": can(request, "write"), "may_admin": can(request, "admin")}
    return bare_page(request, template, {**may, **values}, status)


def bare_page(request: Request, template: str, values: Mapping[str, object], status: int = 200) -> HTMLResponse:
    """A page without navigation: for those who are not known yet, and for what went wrong."""
    rendered = environment().get_template(template).render(values, base=base_of(request))
    return HTMLResponse(rendered, status, headers={"Cache-Control": "no-store"})

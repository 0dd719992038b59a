"""The parts of pages: tables, tiles and numbers as values, and the frame around every page.

A table is a value. The page is rendered with the table's first state; later states are sent as documents, and the
script puts them into the same cells. So a row is described in one place: here. However many topics, queues, groups,
workers, schedules or consumers there are, a page costs as much as fifty rows.

A template under `templates/` extends `frame.html`, or `bare.html` for people who are not logged in. All output is
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
"""The number of characters of a payload in a list."""
TYPED_BYTES: Final = 16 << 10
"""The maximum size of a payload that a form offers as a template, in bytes."""


# ── numbers, times, texts ────────────────────────────────────────────────────────────────────────────────────────────
def number(value: int | float | None) -> str:
    """Returns a count with its thousands apart."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Returns a rate per second."""
    if value is None:
        return "–"
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def age(seconds: float | None) -> str:
    """Returns the age of a moment in words."""
    return show_duration(seconds)


def moment(value: datetime | None) -> str:
    """Returns a time for a cell or a `time` element. The script shows the time in the reader's zone."""
    return "–" if value is None else value.isoformat(timespec="milliseconds")


def second(value: datetime | None) -> str:
    """Returns a time without fractions of a second."""
    return "–" if value is None else value.isoformat(timespec="seconds")


def position(seq: int) -> str:
    """Returns the position of a message or event."""
    return f"#{seq}"


def text(value: object) -> str:
    """Returns any other value, on one line."""
    return str(value or "–").partition("\n")[0]


def preview(event: Event) -> str:
    """Returns the beginning of a payload, on one line."""
    raw = event.raw
    if event.binary:
        return f"{show_size(len(raw))} of bytes"
    shown = raw[: PREVIEW * 4].decode("utf-8", "replace").replace("\n", " ")
    return shown[:PREVIEW] + ("…" if len(shown) > PREVIEW else "")


def payload_text(event: Event) -> str:
    """Returns a payload as a person would type it; empty when the payload is too long."""
    raw = event.raw
    return "" if len(raw) > TYPED_BYTES else msgspec.json.format(raw, indent=2).decode("utf-8", "replace")


def segment(name: str) -> str:
    """Returns a name as one segment of a path."""
    return quote(name, safe="")


def document(value: dict[str, str]) -> str:
    """Returns fields as JSON for an attribute; the text is escaped like any other text."""
    return msgspec.json.encode(value).decode()


# ── tables, tiles ────────────────────────────────────────────────────────────────────────────────────────────────────
class ActButton(msgspec.Struct, omit_defaults=True):
    """A button that changes the thing in a row."""

    label: str
    act: str
    fields: dict[str, str]
    in_menu: bool = False
    """True for an act that destroys something: a person must open a menu first."""


Level = Literal["", "warning", "alert"]
"""The level of attention that a row needs. Things that are paused, wait or fall behind are warnings, not failures."""


class Row(msgspec.Struct, omit_defaults=True):
    """A row: its id, its link, and the texts of its cells."""

    key: str
    cells: list[str]
    href: str | None = None
    """The address that the first cell links to."""
    level: Level = ""
    buttons: list[ActButton] = []
    links: dict[int, str] = {}
    """The addresses that other cells link to, by column."""


class Pager(msgspec.Struct):
    """The place of a page in a long table, and the links to the other pages."""

    page: int
    pages: int
    total: int
    before: str | None
    """The query of the previous page."""
    after: str | None
    filter: str
    """The parameter that filters the table's rows."""
    wanted: str = ""
    kept: list[tuple[str, str]] = []
    """The other parameters of the address."""


class Table(msgspec.Struct):
    """Rows under headings. `numeric` holds the indexes of the columns with numbers, from 0."""

    id: str
    columns: list[str]
    rows: list[Row]
    numeric: list[int]
    minor: list[int]
    """The columns that a narrow screen has no room for."""
    empty: str
    has_buttons: bool = False
    """True if rows end with buttons."""
    opens: bool = False
    """True if the rows are events that open beside the table."""
    sorts: list[tuple[str, str]] = []
    """For each column: the query that sorts the rows by it, and the present order by it."""
    pager: Pager | None = None
    """The place of this page in a table that has several pages."""
    following: str | None = None
    """The query of the next rows, in a table whose rows are not counted."""


class ListColumn(msgspec.Struct, Generic[T]):
    """A column of a list: its title, the function that reads its value, and the function that writes the value.

    A person can sort the rows by the column: numbers with the largest first, texts in alphabetical order.
    """

    title: str
    value: Callable[[T], Any]
    show: Callable[[Any], str] = text
    minor: bool = False
    """True if a narrow screen has no room for the column."""

    @property
    def name(self) -> str:
        return self.title.lower().replace(" ", "-")

    @property
    def numeric(self) -> bool:
        return self.show in (number, rate, age, position)

    def cell(self, one: T) -> str:
        return self.show(self.value(one))

    def order(self, one: T) -> Any:
        """Returns the sort key of a row. Rows without a number come last."""
        value = self.value(one) if self.numeric else self.cell(one)
        return -1 if value is None else value


Columns = Sequence[ListColumn[T]]
ROWS: Final = 50
"""The number of a table's rows on one page."""
FILTERED: Final = 12
"""The number of rows above which a table has a field to filter them."""


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
    """Returns a table of all things, in their order. `row` makes a row from a thing and its cells."""
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
    """Returns a table of the things that a request asks for with `ID-sort`, `ID-page` and `ID-q`, which filters them.

    A page has fifty rows, and the address keeps the whole choice. `usual` is the order when the request names none; a
    minus reverses it.
    """
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
    found.sort(key=columns[0].order)  # orders equal rows by their first column
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
    """An important number, with its label."""

    id: str
    label: str
    value: str
    alert: bool = False


def count_tile(id: str, label: str, count: int, alert: bool = False) -> Tile:
    """Returns a tile with a count. With `alert`, any count but 0 needs attention."""
    return Tile(id, label, number(count), alert and count > 0)


# ── the first line of every page ─────────────────────────────────────────────────────────────────────────────────────
class HealthLink(msgspec.Struct):
    """A problem, and the link to the page about it."""

    says: str
    href: str
    level: Level


WARNINGS: Final = frozenset(("writer", "unattended", "paused", "oldest", "lag"))
"""Findings about things that wait. The other findings are about failures."""


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
    """Returns the page, and the part of the page, that a finding is about."""
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
    """Returns the templates, which are compiled once per process."""
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
    """Tables, by their names in the template."""
    values: Callable[[], Mapping[str, object]] = dict
    """The other values for the template. They do not change while the page is open."""
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
    """Returns a whole page. `live` is the path of the stream that keeps the page fresh."""
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
    """Returns the route of a page and the route of its server-sent events.

    These keep the page fresh: they send its tiles and tables at every sample, and the health of the journal.
    """

    @guarded("read")
    def whole(request: Request, service: Service) -> Response:
        content = show(request, service, service.sampler.newest)
        address = request.url.path.removeprefix(base_of(request))
        return page(request, service, content, live=f"/live{quote(address)}?{request.url.query}")

    @guarded("read")
    async def live(request: Request, service: Service) -> Response:
        # a missing topic or queue is refused here
        await run_in_threadpool(show, request, service, service.sampler.newest)

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
    """Returns a part of a page, which the script puts into the page."""
    may = {"may_write": can(request, "write"), "may_admin": can(request, "admin")}
    return bare_page(request, template, {**may, **values}, status)


def bare_page(request: Request, template: str, values: Mapping[str, object], status: int = 200) -> HTMLResponse:
    """Returns a page without navigation, for people who are not logged in, and for errors."""
    rendered = environment().get_template(template).render(values, base=base_of(request))
    return HTMLResponse(rendered, status, headers={"Cache-Control": "no-store"})

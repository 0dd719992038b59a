"""What pages are made of: the frame, tables that are kept fresh, tiles, charts.

A table is a value: its first state is rendered into the page, later ones are sent as documents, and the script puts
them into the same cells. So there is one description of a row, and it is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse

from penstock.server.access import ROLES
from penstock.server.pages.html import Html, el, join
from penstock.server.service import Service
from penstock.units import show_duration

CHART_WIDTH, CHART_HEIGHT = 600, 120


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def number(value: int | float | None) -> str:
    """A count with its thousands apart."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    """Something a second."""
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def age(seconds: float | None) -> str:
    """How long ago."""
    return show_duration(seconds)


def moment(value: datetime | None) -> Html:
    """A time; the script shows it in the reader's zone."""
    if value is None:
        return el("span", "–")
    return el("time", value.isoformat(timespec="milliseconds"), datetime=value.isoformat())


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Row(msgspec.Struct):
    """A row: what it is known by, where it leads, what its cells say."""

    key: str
    cells: list[str]
    href: str | None = None
    alert: bool = False
    """Something about it wants attention."""


class Table(msgspec.Struct):
    """Rows under headings; `numeric` names the columns that are numbers, from 0."""

    id: str
    columns: list[str]
    rows: list[Row]
    numeric: list[int] = []
    empty: str = "nothing yet"

    def html(self) -> Html:
        """The table as it is now."""
        heads = [
            el("th", column, scope="col", class_="number" if at in self.numeric else None)
            for at, column in enumerate(self.columns)
        ]
        table = el(
            "table",
            el("thead", el("tr", *heads)),
            el("tbody", *(self._row(row) for row in self.rows)),
            id=self.id,
            class_="live",
            data_numeric=",".join(map(str, self.numeric)),
        )
        return el(
            "div",
            table,
            el("p", self.empty, class_="empty", hidden=bool(self.rows)),
            class_="table",
            data_table=self.id,
        )

    def _row(self, row: Row) -> Html:
        cells = []
        for at, cell in enumerate(row.cells):
            shown: Any = cell
            if at == 0 and row.href is not None:
                shown = el("a", cell, href=row.href)
            cells.append(el("td", shown, class_="number" if at in self.numeric else None))
        return el("tr", *cells, data_key=row.key, class_="alert" if row.alert else None)

    def document(self) -> list[Row]:
        """What the script needs to bring the table up to date."""
        return self.rows


class Update(msgspec.Struct, omit_defaults=True):
    """What changed on a page."""

    texts: dict[str, str] = {}
    tables: dict[str, list[Row]] = {}
    charts: dict[str, list[str]] = {}
    alerts: dict[str, bool] = {}


# ── tiles and charts ─────────────────────────────────────────────────────────────────────────────────────────────────
def tile(id: str, label: str, value: str, *, alert: bool = False) -> Html:
    """A number that matters, with what it is."""
    return el(
        "div",
        el("div", label, class_="label"),
        el("div", value, class_="value", id=id),
        class_="tile alert" if alert else "tile",
        data_tile=id,
    )


def tiles(*found: Html) -> Html:
    return el("section", *found, class_="tiles", aria_label="now")


def lines(series: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[str], float]:
    """Several series as the points of polylines in one box, and the value at its top."""
    times = [at for points in series for at, _ in points]
    top = max((value for points in series for _, value in points), default=0.0)
    if not times:
        return ["" for _ in series], top
    start, end = min(times), max(times)
    span = max(end - start, 1e-9)
    height = top or 1.0
    drawn = [
        " ".join(
            f"{(at - start) / span * CHART_WIDTH:.1f},{CHART_HEIGHT - value / height * (CHART_HEIGHT - 4) - 2:.1f}"
            for at, value in points
        )
        for points in series
    ]
    return drawn, top


def chart(id: str, title: str, names: Sequence[str], points: Sequence[str], top: str) -> Html:
    """Lines over the last minutes."""
    drawn = [
        el(
            "polyline",
            points=line,
            class_=f"line line{at}",
            id=f"{id}-{at}",
            fill="none",
            vector_effect="non-scaling-stroke",
        )
        for at, line in enumerate(points)
    ]
    legend = [el("span", name, class_=f"legend legend{at}") for at, name in enumerate(names)]
    return el(
        "figure",
        el("figcaption", el("span", title), *(legend if len(names) > 1 else [])),
        el(
            "svg",
            *drawn,
            viewBox=f"0 0 {CHART_WIDTH} {CHART_HEIGHT}",
            preserveAspectRatio="none",
            role="img",
            aria_label=title,
            id=id,
        ),
        el("span", top, class_="top", id=f"{id}-top"),
        class_="chart",
    )


# ── the frame ────────────────────────────────────────────────────────────────────────────────────────────────────────
def base_of(request: Request) -> str:
    """Where this application is mounted, for links."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def can(request: Request, role: str) -> bool:
    """Whether whoever looks at the page may do what needs a role."""
    return ROLES.index(request.state.role) >= ROLES.index(role)


KEYS = (
    ("/", "search"),
    ("j, k", "next, previous row"),
    ("Enter", "open it"),
    ("g o", "overview"),
    ("g p", "pipelines"),
    ("g b", "buffers"),
    ("p", "pause or go on with the tail"),
    ("t", "light or dark"),
    ("?", "this help"),
)


def page(request: Request, service: Service, title: str, *content: Any, live: str | None = None) -> HTMLResponse:
    """A whole page. `live` is the path of the stream that keeps it fresh."""
    base = base_of(request)
    path = request.url.path.removeprefix(base)
    links = [("/", "Overview"), ("/pipelines", "Pipelines"), ("/buffers", "Buffers")]
    navigation = [
        el("a", name, href=base + target, aria_current="page" if path == target else None) for target, name in links
    ]
    body = el(
        "body",
        el("a", "Skip to content", href="#content", class_="skip"),
        el(
            "header",
            el("a", "penstock", href=f"{base}/", class_="brand"),
            el("nav", *navigation, aria_label="Pages"),
            el(
                "form",
                el("label", "Search topics and queues", for_="search", class_="hidden"),
                el(
                    "input",
                    id="search",
                    name="q",
                    type="search",
                    placeholder="Search  /",
                    autocomplete="off",
                    value=request.query_params.get("q", ""),
                ),
                action=f"{base}/",
                role="search",
            ),
            el("span", "", class_="state", id="state", role="status", aria_live="polite"),
            el("button", "◐", type="button", id="theme", title="Light or dark (t)", aria_label="Light or dark"),
            el("button", "?", type="button", id="help-button", title="Keys (?)", aria_label="Keys"),
            None
            if service.access.open
            else el(
                "form",
                el("button", "Log out", type="submit", class_="plain"),
                action=f"{base}/logout",
                method="post",
            ),
        ),
        el("main", el("h1", title), *content, id="content", tabindex="-1"),
        _dialogs(),
        data_base=base,
        data_live=None if live is None else base + live,
        data_role=request.state.role,
    )
    return _document(title, base, body)


def bare_page(request: Request, title: str, *content: Any, status: int = 200) -> HTMLResponse:
    """A page without navigation: for those who are not known yet."""
    base = base_of(request)
    body = el("body", el("main", *content, id="content", class_="bare"), data_base=base)
    return _document(title, base, body, status)


def _dialogs() -> Html:
    keys = join(join([el("dt", el("kbd", key)), el("dd", meaning)]) for key, meaning in KEYS)
    return join(
        [
            el(
                "dialog",
                el("h2", "Keys"),
                el("dl", keys),
                el("form", el("button", "Close"), method="dialog"),
                id="help",
            ),
            el(
                "dialog",
                el("p", "", id="question"),
                el(
                    "form",
                    el("button", "Cancel", value="no", class_="plain"),
                    el("button", "Yes", value="yes", id="confirm-yes"),
                    method="dialog",
                ),
                id="confirm",
            ),
            el("div", "", id="toast", role="alert", hidden=True),
        ]
    )


def _document(title: str, base: str, body: Html, status: int = 200) -> HTMLResponse:
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · penstock"),
        el("link", rel="icon", href=f"{base}/static/icon.svg", type="image/svg+xml"),
        el("link", rel="stylesheet", href=f"{base}/static/page.css"),
        el("script", src=f"{base}/static/page.js", defer=True),
    )
    return HTMLResponse(
        "<!doctype html>" + el("html", head, body, lang="en"), status, headers={"Cache-Control": "no-store"}
    )


def section(title: str, *content: Any, id: str | None = None) -> Html:
    return el("section", el("h2", title), *content, id=id)

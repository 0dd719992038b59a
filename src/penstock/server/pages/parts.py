"""What pages are made of, as values: rows of tables, tiles, updates, and numbers as people read them.

A table is a value: its first state is rendered into the page, later ones are sent as documents, and the script puts
them into the same cells. So there is one description of a row, and it is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec

from penstock.events import Event
from penstock.observe.sample import Finding
from penstock.units import show_duration, show_size

PREVIEW = 300
"""Characters of a payload in a list."""
TYPED_BYTES = 16 << 10
"""A payload that is longer is no template for what a person types."""


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


def preview(event: Event) -> str:
    """The beginning of a payload, on one line."""
    raw = event.raw
    if event.binary:
        return f"{show_size(len(raw))} of bytes"
    text = raw[: PREVIEW * 4].decode("utf-8", "replace").replace("\n", " ")
    return text[:PREVIEW] + ("…" if len(text) > PREVIEW else "")


def payload_text(event: Event) -> str:
    """A payload as a person would type it; empty when it is too long for that."""
    raw = event.raw
    return "" if len(raw) > TYPED_BYTES else msgspec.json.format(raw, indent=2).decode("utf-8", "replace")


# ── tables, tiles ────────────────────────────────────────────────────────────────────────────────────────────────────
class ActButton(msgspec.Struct):
    """A button that does something about a row."""

    label: str
    act: str
    fields: dict[str, str]

    @property
    def document(self) -> str:
        """The fields as the button carries them."""
        return msgspec.json.encode(self.fields).decode()


Level = Literal["", "warning", "alert"]
"""How much something wants attention: what was paused, waits or falls behind is no failure."""


class Row(msgspec.Struct, omit_defaults=True):
    """A row: what it is known by, where it leads, what its cells say."""

    key: str
    cells: list[str]
    href: str | None = None
    """Where its first cell leads."""
    level: Level = ""
    buttons: list[ActButton] = []
    links: dict[int, str] = {}
    """Where other cells lead, by column."""


class Pager(msgspec.Struct):
    """Where a page of a long table is among the others, and how to come to them."""

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
    """What else the address says."""


class Table(msgspec.Struct):
    """Rows under headings; `numeric` names the columns that are numbers, from 0."""

    id: str
    columns: list[str]
    rows: list[Row]
    numeric: list[int] = []
    empty: str = "nothing yet"
    sorts: list[tuple[str, str]] = []
    """For each column the query that puts rows in its order, and how they are in its order now."""
    has_buttons: bool = False
    """Whether rows end with buttons."""
    opens: bool = False
    """Whether rows are events that open beside the table."""
    pager: Pager | None = None
    """Of a table that is longer than what is shown of it."""
    following: str | None = None
    """Of a table whose rows are not counted: the query of those that come after."""
    minor: list[int] = []
    """Columns that a phone has no room for."""


class Tile(msgspec.Struct):
    """A number that matters, with what it is."""

    id: str
    label: str
    value: str
    alert: bool = False


class HealthLink(msgspec.Struct):
    """Something that is wrong, and where to look at it."""

    says: str
    href: str
    level: Level


WARNINGS = frozenset(("paused", "oldest", "lag"))
"""Findings of something that waits; the others are of something that failed."""


def level_of(finding: Finding) -> Level:
    return "warning" if finding.kind in WARNINGS else "alert"


SHOWN_FINDINGS = 6
"""Findings the first line has room for; of the others it says how many there are."""


def health(findings: Sequence[Finding], base: str) -> list[HealthLink]:
    """What is wrong, as the first line of a page says it."""
    links = [HealthLink(one.says, base + place_of(one), level_of(one)) for one in findings[:SHOWN_FINDINGS]]
    if len(findings) > SHOWN_FINDINGS:
        more = len(findings) - SHOWN_FINDINGS
        links.append(HealthLink(f"and {more:,} more", f"{base}/health", level_of(findings[SHOWN_FINDINGS])))
    return links


def place_of(finding: Finding) -> str:
    """The page, and the part of it, that a finding is about."""
    name = quote(finding.subject, safe="")
    group = urlencode({"group": finding.detail})
    places = {
        "disk": "/health",
        "unreadable": f"/topics/{name}",
        "pipeline": "/pipelines",
        "worker": "/health#worker-section",
        "dead": f"/queues/{name}?{group}&tab=dead",
        "failed": f"/queues/{name}?{group}&tab=dead#failed-section",
        "paused": f"/queues/{name}?{group}",
        "oldest": f"/queues/{name}?{group}",
        "lag": f"/topics/{name}?tab=consumers",
    }
    return places[finding.kind]


class Update(msgspec.Struct, omit_defaults=True):
    """What changed on a page."""

    texts: dict[str, str] = {}
    tables: dict[str, list[Row]] = {}
    alerts: dict[str, bool] = {}
    health: list[HealthLink] | None = None


def update(tiles: Sequence[Tile], *tables: Table) -> Update:
    """A page's tiles and tables as they are now."""
    return Update(
        {tile.id: tile.value for tile in tiles},
        {table.id: table.rows for table in tables},
        {tile.id: tile.alert for tile in tiles},
    )

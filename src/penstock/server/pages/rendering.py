"""Pages from templates: Jinja2 with everything escaped, and the frame that every page stands in.

A template under `templates/` extends `frame.html` (or `bare.html`, for those who are not known yet); `parts.html` has
the macros for tables, tiles and lists. Scripts and styles are files under `static/`: the content security policy
allows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.observe.sample import Sample
from penstock.protocol.operation import ROLES
from penstock.server.api.journal import sse
from penstock.server.pages import parts
from penstock.server.pages.parts import Table, Tile, Update
from penstock.server.service import Service, guarded

LINKS = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/queues", "Queues"),
    ("/schedules", "Schedules"),
    ("/pipelines", "Pipelines"),
    ("/buffers", "Buffers"),
    ("/docs", "API"),
)

KEYS = (
    ("/", "search"),
    ("j, k", "next, previous row"),
    ("Enter", "open it"),
    ("Escape", "close it"),
    ("n, b", "next page of its table, and back"),
    ("g o", "overview"),
    ("g t", "topics"),
    ("g q", "queues"),
    ("g s", "schedules"),
    ("g p", "pipelines"),
    ("g b", "buffers"),
    ("p", "pause or go on with the tail"),
    ("t", "light or dark"),
    ("?", "this help"),
)


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def stamp(value: datetime) -> str:
    """A time for a `time` element; the script shows it in the reader's zone."""
    return value.isoformat(timespec="milliseconds")


def document(value: dict[str, str]) -> str:
    """Fields as JSON, for an attribute; escaped like any other text."""
    return msgspec.json.encode(value).decode()


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
    made.filters.update(
        segment=segment,
        stamp=stamp,
        number=parts.number,
        rate=parts.rate,
        age=parts.age,
        preview=parts.preview,
        payload_text=parts.payload_text,
        tojson_text=document,
    )
    return made


def base_of(request: Request) -> str:
    """Where this application is mounted, for links."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def can(request: Request, role: str) -> bool:
    """Whether the person who looks at the page may do what needs a role."""
    return ROLES.index(request.state.role) >= ROLES.index(role)


def allowed(request: Request) -> dict[str, bool]:
    """What the person who looks at the page may do."""
    return {"may_write": can(request, "write"), "may_admin": can(request, "admin")}


class Content(msgspec.Struct):
    """What a page shows of a sample."""

    template: str
    title: str
    tiles: list[Tile] = []
    tables: dict[str, Table] = {}
    """By the names that the template has for them."""
    values: Callable[[], dict[str, object]] = dict
    """What else the template needs; it does not change while the page is open."""
    kind: str = ""
    """What the title names."""


Show = Callable[[Request, Service, Sample], Content]


def page(request: Request, service: Service, content: Content, live: str = "/live/health") -> HTMLResponse:
    """A whole page. `live` is the path of the stream that keeps it fresh."""
    base = base_of(request)
    location = service.journal._engine.location or "memory"
    return _answer(
        content.template,
        200,
        health=parts.health(service.sampler.newest.findings, base),
        base=base,
        title=content.title,
        kind=content.kind,
        journal=location.rstrip("/").rpartition("/")[2],
        location=location,
        path=request.url.path.removeprefix(base),
        links=LINKS,
        keys=KEYS,
        query=request.query_params,
        live=base + live,
        role=request.state.role,
        **allowed(request),
        has_login=not service.access.open,
        tiles=content.tiles,
        **content.tables,
        **content.values(),
    )


def page_and_stream(path: str, show: Show) -> list[BaseRoute]:
    """The route of a page, and that of the server-sent events that keep it fresh: its tiles and tables as they are at
    every sample, and how the journal does."""

    @guarded("read")
    def whole(request: Request, service: Service) -> Response:
        content = show(request, service, service.sampler.newest)
        address = request.url.path.removeprefix(base_of(request))
        return page(request, service, content, f"/live{quote(address)}?{request.url.query}")

    @guarded("read")
    async def live(request: Request, service: Service) -> Response:
        await run_in_threadpool(show, request, service, service.sampler.newest)  # what is not there is refused here

        def changed(sample: Sample) -> Update:
            content = show(request, service, sample)
            found = parts.update(content.tiles, *content.tables.values())
            found.health = parts.health(sample.findings, base_of(request))
            return found

        return sse(service, changed, beat=True)

    return [Route(path, whole), Route(f"/live{path}", live)]


def part(request: Request, template: str, **values: object) -> HTMLResponse:
    """A part of a page, for the script to put into one."""
    return _answer(template, 200, base=base_of(request), **allowed(request), **values)


def bare_page(request: Request, template: str, title: str, *, status: int = 200, **values: str | None) -> HTMLResponse:
    """A page without navigation: for those who are not known yet, and for what went wrong."""
    return _answer(template, status, base=base_of(request), title=title, **values)


HEADINGS = {
    400: "That cannot be done as asked",
    403: "Not allowed",
    404: "Not found",
    405: "That cannot be done here",
    409: "That does not fit what is there",
    410: "No longer there",
    413: "Too large",
    421: "Another server's name",
    503: "Too busy just now",
}
"""What went wrong in a person's words, by status; programs read the error's name."""


def problem_page(request: Request, status: int, message: str) -> HTMLResponse:
    """What went wrong; with the navigation for those who are known, while the journal answers."""
    heading = HEADINGS.get(status, "That did not work" if status < 500 else "The server failed")
    message = message[:1].upper() + message[1:]
    service: Service = request.app.state.service
    role = service.access.role(request) if status < 500 and status != 421 else None
    if role is None:
        return bare_page(request, "problem_bare.html", heading, status=status, message=message)
    request.state.role = role
    answer = page(request, service, Content("problem.html", heading, values=lambda: {"message": message}))
    answer.status_code = status
    return answer


def _answer(template: str, status: int, **values: object) -> HTMLResponse:
    text = environment().get_template(template).render(values)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})

"""The routes of the console, and the pages without data of the journal: login, the API document, static files."""

from __future__ import annotations

import asyncio
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.protocol import bulk, queues, topics
from penstock.core.protocol.openapi import document
from penstock.core.protocol.operation import PREFIX, Operation
from penstock.server.access import COOKIE, SESSION_SECONDS, address_of
from penstock.server.pages import charts, parts
from penstock.server.pages.buffers import buffers_page
from penstock.server.pages.event import event_page, graph_page
from penstock.server.pages.health import health_page
from penstock.server.pages.overview import overview, queues_page, topics_page
from penstock.server.pages.pipelines import pipelines_page
from penstock.server.pages.queue import queue_page
from penstock.server.pages.schedules import schedules_page
from penstock.server.pages.search import search_page
from penstock.server.pages.topic import topic_page
from penstock.server.pages.workers import workers_page
from penstock.server.service import Service, guarded, read_form

# ── files of the page itself ─────────────────────────────────────────────────────────────────────────────────────────
TYPES: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
VENDORED: Final = ("vendor/uplot/uPlot.iife.min.js", "vendor/uplot/uPlot.min.css")


@cache
def _contents(name: str) -> tuple[bytes, str] | None:
    """Returns a file and the tag of its contents; None when the page has no such file."""
    folder = files("penstock.server").joinpath("static")
    if name not in VENDORED and not any(name == one.name and one.is_file() for one in folder.iterdir()):
        return None
    contents = folder.joinpath(*name.split("/")).read_bytes()
    return contents, f'"{hashlib.sha256(contents).hexdigest()[:20]}"'


async def static_file(request: Request) -> Response:
    """Returns a file of the page itself. Such a file contains no user data, so it needs no token."""
    # Browsers also request /favicon.ico when the answer is not a page: an event as JSON, or an error.
    name = request.path_params.get("name", "icon.svg")
    found = _contents(name)
    if found is None:
        return Response(status_code=404)
    contents, tag = found
    # A browser asks each time, so that a page and its scripts have the same version. Usually the answer is 304.
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(contents, media_type=TYPES[name.rpartition(".")[2]], headers=headers)


# ── logging in: a token traded for a cookie that scripts cannot read and other sites cannot use ──────────────────────
WRONG_TOKEN_PAUSE: Final = 0.5
"""The number of seconds that an answer to a wrong token takes, so that guessing is slow."""


NEXT: Final = "next"
"""The login page's parameter with the address that the person asked for."""


def login_address(request: Request) -> str:
    """Returns the address of the login page, which leads back to the page that the person asked for."""
    base, asked = parts.base_of(request), request.url.path
    if request.url.query:
        asked += f"?{request.url.query}"
    return f"{base}/login" if asked == f"{base}/" else f"{base}/login?{urlencode({NEXT: asked})}"


def _wanted_page(base: str, asked: str) -> str:
    """Returns the page that follows a login. It is always a page of this console, never another site."""
    return asked if re.match(rf"{re.escape(base)}/(?![/\\])[^\x00-\x20]*\Z", asked) else f"{base}/"


async def login_page(request: Request) -> Response:
    service: Service = request.app.state.service
    service.access.check_origin(request, request.method)
    if request.method != "POST":
        asked = request.query_params.get(NEXT, "")
        return parts.bare_page(request, "login.html", {"title": "Log in", "problem": None, NEXT: asked})
    data = parse_qs((await read_form(request, service)).decode("utf-8", "replace"))
    token, asked = data.get("token", [""])[0].strip(), data.get(NEXT, [""])[0]
    role = service.access.role_from(address_of(request), token)
    if role is None:
        await asyncio.sleep(WRONG_TOKEN_PAUSE)
        values = {"title": "Log in", "problem": "That token is not known here.", NEXT: asked}
        return parts.bare_page(request, "login.html", values, 403)
    base = parts.base_of(request)
    answer = RedirectResponse(_wanted_page(base, asked), 303)
    answer.set_cookie(
        COOKIE,
        service.access.session(token, role),
        max_age=SESSION_SECONDS,
        path=f"{base}/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


async def logout(request: Request) -> Response:
    service: Service = request.app.state.service
    service.access.check_origin(request, request.method)
    service.access.end_session(request)
    base = parts.base_of(request)
    answer = RedirectResponse(f"{base}/login", 303)
    answer.delete_cookie(COOKIE, path=f"{base}/")
    return answer


for _endpoint in (static_file, login_page, logout):
    _endpoint.open_to_all = True  # type: ignore[attr-defined]


# ── the HTTP API, to read: every operation of the OpenAPI document in its group, then the shapes of what is sent ─────
GROUPS: Final = {
    "Topics": [one for one in topics.OPERATIONS if one.path.startswith("/topics")],
    "Queues": queues.OPERATIONS,
    "Journal": [one for one in topics.OPERATIONS if not one.path.startswith("/topics")],
    "Bulk": bulk.OPERATIONS,
}


class ApiDocument(msgspec.Struct):
    """The part of the OpenAPI document that the page shows."""

    paths: dict[str, dict[str, object]]
    components: dict[str, dict[str, object]]


_read = cache(msgspec.json.Decoder(ApiDocument).decode)


def _described(said: ApiDocument, one: Operation[object]) -> tuple[str, str, object]:
    """Returns an operation's method, its path, and its description in the document."""
    path = PREFIX + one.path
    return one.method, path, said.paths[path][one.method.lower()]


@guarded("read")
def api_page(request: Request, service: Service) -> Response:
    said = _read(document())
    groups = [(name, [_described(said, one) for one in found]) for name, found in GROUPS.items()]
    address = f"{request.url.scheme}://{request.headers.get('host', '')}{parts.base_of(request)}"
    values = {"groups": groups, "schemas": said.components["schemas"], "address": address}
    return parts.page(request, service, parts.Content("api.html", "API", values=lambda: values))


PAGES: Final[dict[str, parts.Show]] = {
    "/": overview,
    "/topics": topics_page,
    "/queues": queues_page,
    "/search": search_page,
    "/health": health_page,
    "/topics/{topic}": topic_page,
    "/queues/{queue}": queue_page,
    "/workers": workers_page,
    "/schedules": schedules_page,
    "/pipelines": pipelines_page,
    "/buffers": buffers_page,
}
"""The pages that a stream keeps fresh."""


def page_routes() -> list[BaseRoute]:
    """Returns the routes of the page."""
    return [
        *(route for path, show in PAGES.items() for route in parts.page_and_stream(path, show)),
        Route("/topics/{topic}/events/{event}", event_page),
        Route("/graph/{correlation:path}", graph_page),
        Route("/charts/overview", charts.overview_charts),
        Route("/charts/topics/{topic}", charts.topic_charts),
        Route("/charts/queues/{queue}", charts.queue_charts),
        Route("/charts/pipelines", charts.pipeline_charts),
        Route("/docs", api_page),
        Route("/login", login_page, methods=["GET", "POST"]),
        Route("/logout", logout, methods=["POST"]),
        Route("/static/{name:path}", static_file),
        Route("/favicon.ico", static_file),
    ]

"""The page: rendered here, kept fresh by server-sent events, no build step.

`rendering.py` makes pages of Jinja2 templates, everything escaped; `parts.py` has tables, tiles and charts as values;
one module per page gathers what it shows and says what changed since. Scripts and styles are files under `static/`: the
content security policy allows nothing else.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.server.pages import api, buffers, charts, event, login, overview, pipelines, queue, schedules, topic
from penstock.server.pages.rendering import page_and_stream

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
FILES = frozenset(
    (
        "page.css",
        "early.js",
        "page.js",
        "core.js",
        "live.js",
        "events.js",
        "payload.js",
        "acts.js",
        "keyboard.js",
        "charts.js",
        "icon.svg",
        "vendor/uplot/uPlot.iife.min.js",
        "vendor/uplot/uPlot.min.css",
    )
)


@cache
def _contents(name: str) -> tuple[bytes, str]:
    """A file and the tag that its contents are known by."""
    contents = files("penstock.server").joinpath("static", *name.split("/")).read_bytes()
    return contents, f'"{hashlib.sha256(contents).hexdigest()[:20]}"'


async def static_file(request: Request) -> Response:
    """A file of the page itself; nothing in it is a user's data, so it needs no token."""
    # Browsers ask for /favicon.ico beside whatever is no page of ours: an event as JSON, an error.
    name = request.path_params.get("name", "icon.svg")
    if name not in FILES:
        return Response(status_code=404)
    contents, tag = _contents(name)
    # Asked for anew each time, so that a page and its scripts are of one version; mostly the answer is "as it was".
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(contents, media_type=TYPES[name.rpartition(".")[2]], headers=headers)


static_file.open_to_all = True  # type: ignore[attr-defined]


def page_routes() -> list[BaseRoute]:
    """The routes of the page."""
    live = {
        "/": overview.overview,
        "/topics": overview.topics_page,
        "/queues": overview.queues_page,
        "/search": overview.search_page,
        "/health": overview.health_page,
        "/topics/{topic}": topic.topic_page,
        "/queues/{queue}": queue.queue_page,
        "/schedules": schedules.schedules_page,
        "/pipelines": pipelines.pipelines_page,
        "/buffers": buffers.buffers_page,
    }
    return [
        *(route for path, show in live.items() for route in page_and_stream(path, show)),
        Route("/topics/{topic}/events/{event}", event.event_page),
        Route("/graph/{correlation:path}", event.graph_page),
        Route("/charts/overview", charts.overview_charts),
        Route("/charts/topics/{topic}", charts.topic_charts),
        Route("/charts/queues/{queue}", charts.queue_charts),
        Route("/charts/pipelines", charts.pipeline_charts),
        Route("/docs", api.api_page),
        Route("/login", login.login_page, methods=["GET", "POST"]),
        Route("/logout", login.logout, methods=["POST"]),
        Route("/static/{name:path}", static_file),
        Route("/favicon.ico", static_file),
    ]

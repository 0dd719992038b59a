"""The application: routes, and what every request passes through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api import local
from penstock.errors import PenstockError
from penstock.observe.collect import Sampler
from penstock.observe.history import History
from penstock.protocol.operation import PREFIX, Role
from penstock.protocol.problems import problem
from penstock.server.access import Access
from penstock.server.acts import perform_act
from penstock.server.api import bulk, live, queues, topics
from penstock.server.api import journal as whole_journal
from penstock.server.api.binding import api_routes
from penstock.server.limits import Limits
from penstock.server.pages.parts import base_of, problem_page
from penstock.server.pages.pipelines import Buffers
from penstock.server.pages.routes import page_routes
from penstock.server.service import Refused, Service, error_answer, problem_answer
from penstock.surface.journal import Journal

log = logging.getLogger("penstock.server")

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    # Not no-referrer: with it browsers send "Origin: null" along with the page's own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
)
"""On every answer."""


class Secured:
    """Adds the security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [header for header in SECURITY_HEADERS if header[0] not in given]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, secured)


# ── errors as answers: problems for programs, a page for people ──────────────────────────────────────────────────────
def _wants_page(request: Request) -> bool:
    """Whether a person asked, with a browser, for a page."""
    path = request.url.path.removeprefix(base_of(request))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(PREFIX)


def answer_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if _wants_page(request):
        if error.status == 401:
            return RedirectResponse(f"{base_of(request)}/login", 303)
        return problem_page(request, error.status, str(error))
    return problem_answer(problem(error.status, error.name, str(error)), error.headers)


def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    answer = error_answer(error)
    if answer.status_code >= 500:
        log.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    if _wants_page(request):
        return problem_page(request, answer.status_code, str(error))
    return answer


def answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "NotFound", 405: "MethodNotAllowed"}
    said = {404: f"there is nothing at {request.url.path}", 405: f"{request.url.path} does not take {request.method}"}
    name, message = names.get(error.status_code, "HTTPError"), said.get(error.status_code, error.detail)
    if _wants_page(request):
        return problem_page(request, error.status_code, message)
    return problem_answer(problem(error.status_code, name, message), dict(error.headers or {}))


def answer_defect(request: Request, error: Exception) -> Response:
    """An error that no code expected: the log has the details, the answer has none."""
    log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    if _wants_page(request):
        return problem_page(request, 500, "its log says how")
    return problem_answer(problem(500, "InternalError", "the server failed; its log says how"))


HANDLERS = (bulk, live, queues, topics, whole_journal)
"""The modules that serve the table's operations; importing them binds their handlers."""


def make_app(
    journal: Journal,
    *,
    tokens: Mapping[str, Role] | None = None,
    hosts: Iterable[str] | None = None,
    limits: Limits | None = None,
    buffers: Mapping[str, str] | None = None,
    staging: Iterable[str] = (),
    lakes: Iterable[str] = (),
) -> Starlette:
    """The application that serves a journal.

    `tokens` maps each token to its role (read, write, admin); without tokens everything is allowed to every client, and
    only requests for this machine are answered. `hosts` names the Host headers that are answered; with tokens, any.
    `buffers` are object-storage buffers to show: a name and a url each. `staging` are urls in object stores from which
    blocks that Spark's tasks left there are fetched; of a journal in an object store, its own place is one by itself.
    `lakes` are the places that history is sealed to when a client asks for it.
    The journal stays the caller's: the application does not close it.
    """
    served = local(journal, "a server")
    limits = limits or Limits()
    service = Service(served, Access(tokens, hosts, limits.wrong_tokens), limits)
    service.live = live.LiveTopics(served)
    service.sampler = Sampler(served, history=History(served))
    service.buffers = Buffers(dict(buffers or {}))
    service.areas = bulk.staging_areas(served, staging)
    service.lakes = bulk.lakes_by_name(lakes)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(service.sampler.start)  # charts need a past, also of times without readers
        yield
        service.stop()
        await asyncio.to_thread(service.sampler.stop)

    application = Starlette(
        routes=[
            *api_routes(),
            Route("/healthz", whole_journal.health),
            Route("/metrics", whole_journal.metrics),
            *page_routes(),
            Route("/acts/{act}", perform_act, methods=["POST"]),
        ],
        exception_handlers={
            Refused: answer_refused,
            PenstockError: answer_error,
            HTTPException: answer_http,
            Exception: answer_defect,
        },
        lifespan=lifespan,
    )
    application.add_middleware(Secured)
    application.state.service = service
    return application

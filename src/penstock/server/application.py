"""The application: its routes, and the layers that every request passes through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api import local
from penstock.core.observe.metrics import REGISTRY, Registry
from penstock.core.observe.sample import Finding
from penstock.core.protocol.operation import JSON, PREFIX, PROBLEM, Role
from penstock.core.protocol.problems import UNEXPECTED, problem, problem_of
from penstock.core.sampling.collect import GAUGES, Sampler, gauges
from penstock.core.sampling.history import History
from penstock.core.surface.journal import Journal
from penstock.errors import Backpressure, PenstockError, UnknownQueue
from penstock.server.access import Access
from penstock.server.acts import perform_act
from penstock.server.api import bulk, topics
from penstock.server.api.binding import api_routes
from penstock.server.limits import Limits
from penstock.server.pages.buffers import Buffers
from penstock.server.pages.parts import base_of
from penstock.server.pages.problem import problem_page
from penstock.server.pages.routes import login_address, page_routes
from penstock.server.service import Refused, Service, guarded

log = logging.getLogger("penstock.server")

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    # The policy is not no-referrer, because with no-referrer browsers send "Origin: null" with the page's own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
)
"""Headers of every answer."""
_SECURITY_NAMES = frozenset(name for name, _ in SECURITY_HEADERS)


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
                added: tuple[tuple[bytes, bytes], ...] = SECURITY_HEADERS
                if not _SECURITY_NAMES.isdisjoint(given):
                    added = tuple(header for header in SECURITY_HEADERS if header[0] not in given)
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, secured)


# ── errors as answers: problems for programs, a page for people ──────────────────────────────────────────────────────
def answer_error(request: Request, error: Exception) -> Response:
    """Returns an error as an answer: a page for a person with a browser, or a problem document for programs."""
    path = request.url.path
    match error:
        case Refused():
            found, headers = problem(error.status, error.name, str(error)), error.headers
        case PenstockError():
            found, headers = problem_of(error), None
            if isinstance(error, Backpressure):
                headers = {"Retry-After": str(max(1, round(error.retry_after)))}
            if found.status >= 500:
                log.error("%s %s: %s: %s", request.method, path, type(error).__name__, error)
        case HTTPException():
            said = {
                404: ("NotFound", f"there is nothing at {path}"),
                405: ("MethodNotAllowed", f"{path} does not take {request.method}"),
            }
            known = said.get(error.status_code, ("HTTPError", error.detail))
            found, headers = problem(error.status_code, *known), dict(error.headers or {})
        case _:  # unexpected: the log has the details, the answer has none
            log.exception("%s %s failed", request.method, path, exc_info=error)
            found, headers = problem(500, UNEXPECTED, "the server failed; its log says how"), None
    base = base_of(request)
    if "text/html" not in request.headers.get("accept", "") or path.removeprefix(base).startswith(PREFIX):
        if isinstance(error, UnknownQueue):
            found.detail += f", or PUT {PREFIX}/queues/{error.queue}"
        return Response(msgspec.json.encode(found), found.status, headers=headers, media_type=PROBLEM)
    if found.status == 401:
        return RedirectResponse(login_address(request), 303)
    return problem_page(request, found.status, found.detail)


# ── whether all is well, for those who watch servers ──────────────────────────────────────────────────────────────────
async def health(request: Request) -> Response:
    """Returns True if the journal is open, and no other writer and no other files have replaced it.

    The answer contains nothing else, so it needs no token.
    """
    journal = request.app.state.service.journal
    status = "closed" if journal.closed else "ok" if journal.backend.engine.usable() else "replaced"
    return Response(b'{"status":"%s"}' % status.encode(), 200 if status == "ok" else 503, media_type=JSON)


class DeepHealth(msgspec.Struct):
    """The answer of `/healthz/deep`."""

    status: str
    """ok, or warning."""
    findings: list[Finding]


@guarded("read")
def deep_health(request: Request, service: Service) -> Response:
    """Answers what is wrong with the journal: the findings of the console's first line and of `penstock check`.

    The status is 503 when there is a finding, for monitors that read only the status.
    """
    findings = service.sampler.newest.findings
    said = DeepHealth("warning" if findings else "ok", findings)
    return Response(msgspec.json.encode(said), 503 if findings else 200, media_type=JSON)


@guarded("read")
def metrics(request: Request, service: Service) -> Response:
    return Response(exposition(service), media_type="text/plain; version=0.0.4; charset=utf-8")


def exposition(service: Service) -> str:
    """Returns all metrics in Prometheus's text format."""
    # The gauges of the served journal are added below, so the same gauges of journals that this program watches itself
    # are left out.
    counted = REGISTRY.prometheus_text(without={name for name, *_ in GAUGES})
    return counted + gauges(service.sampler.newest).prometheus_text() + own(service).prometheus_text()


def own(service: Service | None = None) -> Registry:
    """Returns the work of the server itself."""
    registry = Registry()
    registry.gauge("server.listeners", "live streams that are open").set(service.listeners if service else 0)
    registry.gauge("server.waiting", "requests that wait for a message").set(service.waiting if service else 0)
    return registry


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
    """Returns the application that serves a journal.

    `tokens` maps each token to its role (read, write, admin). Without tokens, every client may do everything, and only
    requests for this machine are answered. `hosts` names the Host headers that are answered; with tokens the default is
    any host. `buffers` are object-storage buffers to show, each a name and a url. `staging` are urls in object stores
    from which the server fetches blocks that Spark's tasks staged; the place of a journal in an object store belongs to
    them by itself. `lakes` are the places to which history may be sealed when a client requests it. The journal remains
    the caller's: the application does not close it.
    """
    served = local(journal, "a server")
    limits = limits or Limits()
    service = Service(
        served,
        Access(tokens, hosts, limits.wrong_tokens),
        limits,
        live=topics.LiveTopics(served),
        sampler=Sampler(served, history=History(served)),
        buffers=Buffers(dict(buffers or {})),
        areas=bulk.staging_areas(served, staging),
        lakes=bulk.lakes_by_name(lakes),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(service.sampler.start)  # charts need samples also of times without readers
        yield
        service.stop()
        await asyncio.to_thread(service.sampler.stop)

    application = Starlette(
        routes=[
            *api_routes((bulk, topics)),
            Route("/healthz", health),
            Route("/healthz/deep", deep_health),
            Route("/metrics", metrics),
            *page_routes(),
            Route("/acts/{act}", perform_act, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys((Refused, PenstockError, HTTPException, Exception), answer_error),
        lifespan=lifespan,
    )
    application.add_middleware(Secured)
    application.state.service = service
    return application

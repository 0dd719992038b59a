"""The application: routes, and what every request passes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api import local
from penstock.errors import PenstockError
from penstock.observe.history import History
from penstock.server.access import Access, Role
from penstock.server.api import deliveries, failures, live, messages, openapi, queues, stats, topics
from penstock.server.api.problems import Refused
from penstock.server.limits import Limits
from penstock.server.pages import page_routes
from penstock.server.pages.buffers import Buffers
from penstock.server.sampler import Sampler
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.surface.journal import Journal

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
"""On every answer; the page needs no exception from them."""


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
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        await self.app(scope, receive, secured)


def api_routes() -> list[BaseRoute]:
    """The routes under /v1."""
    one = "/topics/{topic}"
    cursor = one + "/cursors/{consumer:path}"
    return [
        Route("/topics", topics.list_topics),
        Route(one, topics.show_topic),
        Route(one + "/settings", topics.configure_topic, methods=["PATCH"]),
        Route(one + "/events", topics.read),
        Route(one + "/events", topics.append, methods=["POST"]),
        Route(one + "/events/{event}", topics.show_event),
        Route(one + "/live", live.listen),
        Route(one + "/position", topics.position_at),
        Route(one + "/cursors", topics.list_cursors),
        Route(cursor, topics.show_cursor),
        Route(cursor, topics.move_cursor, methods=["PUT"]),
        Route(cursor, topics.forget_cursor, methods=["DELETE"]),
        Route(one + "/compact", topics.compact, methods=["POST"]),
        Route("/append", topics.append_several, methods=["POST"]),
        Route("/correlated/{correlation:path}", topics.correlated),
        *queue_routes("/queues/{queue}"),
        Route("/openapi.json", openapi.openapi),
        Route("/stats", stats.show_stats),
        Route("/stats/live", stats.live_stats),
        Route("/flush", stats.flush, methods=["POST"]),
        Route("/maintain", stats.maintain, methods=["POST"]),
    ]


def queue_routes(one: str) -> list[BaseRoute]:
    """The routes of queues."""
    held = one + "/deliveries/{token}"
    return [
        Route("/queues", queues.list_queues),
        Route(one, queues.show_queue),
        Route(one, queues.open_queue, methods=["PUT"]),
        Route(one, queues.configure, methods=["PATCH"]),
        Route(one, queues.drop_queue, methods=["DELETE"]),
        Route(one + "/stats", queues.show_stats),
        Route(one + "/messages", messages.list_messages),
        Route(one + "/messages", messages.push, methods=["POST"]),
        Route(one + "/messages/{seq}", messages.show_message),
        Route(one + "/peek", messages.peek),
        Route(one + "/take", deliveries.take, methods=["POST"]),
        Route(one + "/claim", deliveries.claim, methods=["POST"]),
        Route(one + "/ack", deliveries.ack_many, methods=["POST"]),
        Route(held, deliveries.show_delivery),
        Route(held + "/ack", deliveries.ack, methods=["POST"]),
        Route(held + "/nack", deliveries.nack, methods=["POST"]),
        Route(held + "/extend", deliveries.extend, methods=["POST"]),
        Route(held + "/release", deliveries.release, methods=["POST"]),
        Route(one + "/pending", messages.pending),
        Route(one + "/failed", messages.list_failed),
        Route(one + "/dead", messages.list_dead),
        Route(one + "/consumers", messages.list_consumers),
        Route(one + "/groups", queues.add_group, methods=["POST"]),
        Route(one + "/groups/{group:path}", queues.remove_group, methods=["DELETE"]),
        Route(one + "/schedules", queues.list_schedules),
        Route(one + "/schedules", queues.add_schedule, methods=["POST"]),
        Route(one + "/schedules/{name:path}", queues.remove_schedule, methods=["DELETE"]),
        Route(one + "/redrive", queues.redrive, methods=["POST"]),
        Route(one + "/move", queues.move, methods=["POST"]),
        Route(one + "/purge", queues.purge, methods=["POST"]),
    ]


def make_app(
    journal: Journal,
    *,
    tokens: Mapping[str, Role] | None = None,
    hosts: Iterable[str] | None = None,
    limits: Limits | None = None,
    buffers: Mapping[str, str] | None = None,
) -> Starlette:
    """The application that serves a journal.

    `tokens` maps each token to its role (read, write, admin); without tokens everything is allowed to everybody, and
    only requests for this machine are answered. `hosts` names the Host headers that are answered; with tokens, any.
    `buffers` are object-storage buffers to show: a name and a url each.
    The journal stays the caller's: the application does not close it.
    """
    served = local(journal, "a server")
    service = Service(served, Access(tokens, hosts), limits or Limits())
    service.lives = live.Lives(served)
    service.sampler = Sampler(served, history=History(served))
    service.buffers = Buffers(dict(buffers or {}))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(service.sampler.start)  # charts need a past, also of times when nobody looked
        yield
        service.stop()
        await asyncio.to_thread(service.sampler.stop)

    application = Starlette(
        routes=[
            Route("/v1", stats.describe),
            Mount("/v1", routes=api_routes()),
            Route("/healthz", stats.health),
            Route("/metrics", stats.metrics),
            *page_routes(),
        ],
        exception_handlers={
            Refused: failures.answer_refused,
            PenstockError: failures.answer_error,
            HTTPException: failures.answer_http,
            Exception: failures.answer_defect,
        },
        lifespan=lifespan,
    )
    application.add_middleware(Secured)
    application.state.service = service
    return application

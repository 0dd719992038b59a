"""Routes for the operations of the protocol: each runs its implementation; a few have handlers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import isfunction
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.documents.decoding import decoded, query_of, refuse_parameters
from penstock.documents.events import event_document
from penstock.errors import ConfigError
from penstock.local.backend import implementation
from penstock.protocol.openapi import OPERATIONS
from penstock.protocol.operation import JSON, PAGE_EVENTS, PREFIX, WITH_SLASHES, WRITTEN, Operation, converted
from penstock.server.limits import MOST_EVENTS
from penstock.server.service import Endpoint, Refused, Service, awaitable, entered, read_body, whole_answer

Q = TypeVar("Q", covariant=True)
B = TypeVar("B", covariant=True)
A = TypeVar("A")

FIRST = frozenset(("append_events", "push_messages", "take_messages", "ack_deliveries"))
"""Operations that programs ask for most: a route is found by trying one after the other."""
RAW = frozenset(("append_events", "stage_blocks"))
"""Operations whose handlers decode the body themselves."""


_encode = msgspec.json.Encoder().encode


class Call(NamedTuple, Generic[Q, B]):
    """One request, checked: what an operation's handler works with."""

    request: Request
    service: Service
    query: Q
    body: B

    def name(self, part: str) -> str:
        """A name in the path."""
        return str(self.request.path_params[part])


def page_size(limit: int | None) -> int:
    """How many events a page may have."""
    if limit is None:
        return PAGE_EVENTS
    if limit > MOST_EVENTS:
        raise ConfigError(f"limit may be {MOST_EVENTS:,} at the most, not {limit:,}: ask again for what follows")
    return limit


def asked(call: Call[Any, Any], operation: Operation[A]) -> A:
    """What an operation's implementation answers to a call."""
    names = [call.name(part) for part in operation.names]
    request = call.query if operation.query is not None else call.body
    if operation.paged and request is not None:
        limit = page_size(msgspec.structs.asdict(request)["limit"])
        msgspec.structs.force_setattr(request, "limit", limit)
    answer = call.service.journal._backend.call(operation, *names, request=request)
    if answer is None and operation.missing is not None:
        raise Refused(404, operation.missing, f"{names[0]!r} has no {names[-1][:80]!r}")
    return answer


def _endpoint(operation: Operation[object], handler: Callable[..., Any]) -> Endpoint:
    run = awaitable(handler)
    role, query_type, body_type, status = operation.role, operation.query, operation.body, operation.status

    async def endpoint(request: Request) -> Response:
        service = entered(request, role)
        if not operation.on_system:
            for part in ("topic", "queue"):
                service.access.check_change(request.path_params.get(part, ""))
        given = request.query_params
        query = None
        if query_type is not None:
            query = query_of({name: given.getlist(name) for name in given}, query_type)
        elif given:
            refuse_parameters(given)
        request.state.held = 0
        try:
            body = None
            if body_type is not None:
                body = await read_body(request, service)
                if operation.name not in RAW:
                    body = decoded(body or b"{}", operation.body_decoder.decode, body_type)
            call = Call(request, service, query, body)
            answer = await run(call)
            if isinstance(answer, Response):
                return answer
            changed = operation.changes(query if body_type is None else body)
            return answered(service, operation.enveloped(answer), status, changed=changed)
        finally:
            service.budget.release(request.state.held)

    endpoint.__name__ = operation.name
    endpoint.__doc__ = operation.summary
    endpoint.needs = role  # type: ignore[attr-defined]
    endpoint.open_to_all = role is None  # type: ignore[attr-defined]
    return endpoint


def answered(service: Service, answer: object, status: int = 200, *, changed: bool = False) -> Response:
    """An answer in JSON; `changed`: of a request that has changed something."""
    return whole_answer(service, _encode(converted(answer, WRITTEN, event_document)), status, JSON, changed=changed)


def api_routes(modules: Iterable[ModuleType]) -> list[BaseRoute]:
    """A route for every operation: to the function of its name in one of the modules, else to its implementation.

    A handler gets a `Call` and gives the answer's struct, or a whole response. A plain function runs in a thread: it
    may wait for the disk.
    """
    found = (one for module in modules for one in vars(module).values() if isfunction(one))
    handlers: dict[str, Callable[..., Any]] = {
        one.__name__: one for one in found if one.__module__.startswith("penstock.server.api.")
    }
    routes: list[BaseRoute] = []
    for one in sorted(OPERATIONS, key=lambda one: one.name not in FIRST):
        handler = handlers.get(one.name)
        if handler is None:
            implementation(one.name)  # a KeyError here: nothing does what is declared
            handler = partial(asked, operation=one)
        routes.append(Route(_route_path(one), _endpoint(one, handler), methods=[one.method], name=one.name))
    return routes


def _route_path(operation: Operation[object]) -> str:
    pieces = operation.path.split("/")
    spelled = [
        f"{{{piece[1:-1]}:path}}" if piece.startswith("{") and piece[1:-1] in WITH_SLASHES else piece
        for piece in pieces
    ]
    return PREFIX + "/".join(spelled)

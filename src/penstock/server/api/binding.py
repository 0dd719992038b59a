"""Routes for the operations of the protocol.

Each route runs the implementation of its operation; a few operations have their own handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from inspect import isfunction
from types import ModuleType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.clock import seconds
from penstock.core.documents.decoding import decoded, query_of, refuse_parameters
from penstock.core.documents.events import event_document, receipt_document, receipts_json
from penstock.core.events import Receipt
from penstock.core.journal.writer import WriteRequest
from penstock.core.local.backend import LocalBackend, PendingCommit, implementation, is_told_caller
from penstock.core.observe.sample import Sample
from penstock.core.protocol.openapi import OPERATIONS
from penstock.core.protocol.operation import (
    JSON,
    PAGE_EVENTS,
    PREFIX,
    WITH_SLASHES,
    WRITTEN,
    Caller,
    Operation,
    Role,
    WaitingCaller,
    convert_answer,
)
from penstock.core.protocol.topics import AppendQuery
from penstock.errors import ConfigError
from penstock.server.access import address_of
from penstock.server.limits import AT_ONCE_BYTES, LONGEST_WAIT, MOST_EVENTS
from penstock.server.service import Endpoint, Refused, Service, awaitable, read_body, service_of, whole_answer
from penstock.transfer import committing

Q = TypeVar("Q", covariant=True)
B = TypeVar("B", covariant=True)
A = TypeVar("A")

FIRST = frozenset(("append_events", "push_messages", "take_messages", "ack_deliveries"))
"""The most frequent operations. Their routes come first, because routes are tried in order."""
RAW = frozenset(("append_events", "stage_blocks"))
"""Operations whose handlers decode the body themselves."""


_encode = msgspec.json.Encoder().encode


class Call(NamedTuple, Generic[Q, B]):
    """A checked request: what an operation's handler works with."""

    request: Request
    service: Service
    query: Q
    body: B

    def name(self, part: str) -> str:
        """Returns a name from the path."""
        return str(self.request.path_params[part])

    @property
    def backend(self) -> LocalBackend:
        """The backend that operations run on."""
        return self.service.journal.backend

    def refuse(self, operation: Operation[object]) -> NoReturn:
        """Raises the error that the thing which a look-up names does not exist."""
        names = [self.name(part) for part in operation.names]
        raise Refused(404, operation.missing or "", f"{names[0]!r} has no {names[-1][:80]!r}")


class RequestCaller(Caller):
    """The sender of a request."""

    def __init__(self, call: Call[Any, Any]) -> None:
        super().__init__()
        self._request = call.request
        self._service, self._access = call.service, call.service.access

    @property
    def owner(self) -> str:
        return self._access.identity(self._request)

    @property
    def host(self) -> str | None:
        return address_of(self._request) or None

    @property
    def headers(self) -> Mapping[str, str]:
        given = self._request.headers
        trace = given.get("traceparent")
        if trace is None:
            return {}
        state = given.get("tracestate")
        return {"traceparent": trace} | ({"tracestate": state} if state else {})

    @property
    def dedup(self) -> str | None:
        return self._request.headers.get("idempotency-key")

    @property
    def role(self) -> Role:
        role: Role = self._request.state.role
        return role

    @property
    def staging(self) -> list[str]:
        return list(self._service.areas)

    @property
    def lakes(self) -> Mapping[str, str]:
        return self._service.lakes

    @property
    def sample(self) -> Sample:
        return self._service.sampler.newest

    def require(self, role: Role, doing: str) -> None:
        self._access.require(self._request, role, doing)

    def check_append(self, topic: str) -> None:
        self._access.check_append(topic)


class WaitingRequest(RequestCaller, WaitingCaller):
    """The sender of a request that may wait for long."""

    def __init__(self, call: Call[Any, Any]) -> None:
        super().__init__(call)
        self.patience = call.service.limits.write_timeout


def page_size(limit: int | None) -> int:
    """Returns the maximum number of events on a page."""
    if limit is None:
        return PAGE_EVENTS
    if limit > MOST_EVENTS:
        raise ConfigError(f"limit may be {MOST_EVENTS:,} at the most, not {limit:,}: ask again for what follows")
    return limit


# ── how an operation runs, as its declaration says ───────────────────────────────────────────────────────────────────
# The event loop decodes the request, checks the sender's role, and submits the work; none of these steps waits. The
# writer's own thread commits; one commit takes all requests that were submitted meanwhile. A thread reads the store.
# Commits that pass through a program's own checks run in separate threads, because such a check may take long.
class Performer(Generic[A]):
    """Runs an operation's implementation for calls."""

    def __init__(self, operation: Operation[A], run: Callable[..., Any] | None = None) -> None:
        self.operation = operation
        # a KeyError here means that a declared operation has no implementation
        self._run = run or implementation(operation.name)
        self._told_caller = is_told_caller(self._run)
        self._names = operation.names
        self._takes_body = operation.body is not None

    async def __call__(self, call: Call[Any, Any]) -> Response:
        """Returns the answer to a call with a decoded body."""
        return await self.perform(call, call.body if self._takes_body else call.query)

    async def perform(self, call: Call[Any, Any], wanted: object) -> Response:
        """Returns the answer to a decoded request."""
        operation = self.operation
        asked: list[Any] = [call.backend]
        if self._told_caller:
            asked.append(WaitingRequest(call) if operation.waits else RequestCaller(call))
        asked += map(call.name, self._names)
        if wanted is not None:
            asked.append(wanted)
        if operation.commits:
            data, status = await self._committed(call, asked)
        elif operation.waits:
            data, status = self._written(await _wait_for_answer(call, asked[1], wanted, partial(self._run, *asked)))
        else:
            data, status = await run_in_threadpool(self._in_thread, call, asked, wanted)
        return whole_answer(call.service, data, status, JSON, changed=operation.changes(wanted))

    def _in_thread(self, call: Call[Any, Any], asked: list[Any], wanted: Any) -> tuple[bytes, int]:
        if self.operation.paged and wanted is not None:
            limit = page_size(msgspec.structs.asdict(wanted)["limit"])
            msgspec.structs.force_setattr(wanted, "limit", limit)
        answer = self._run(*asked)
        if answer is None and self.operation.missing is not None:
            call.refuse(self.operation)
        return self._written(answer)

    async def _committed(self, call: Call[Any, Any], asked: list[Any]) -> tuple[bytes, int]:
        service, small = call.service, call.request.state.held <= AT_ONCE_BYTES
        if small:
            change: PendingCommit[Any] = self._run(*asked)
            request = change.prepare() if change.at_once else await service.check(change.prepare)
        else:
            change, request = await service.check(partial(_prepared, self._run, asked))
        hurried = isinstance(call.query, AppendQuery) and not call.query.patient
        patience = 0.0 if hurried else service.limits.write_timeout
        answer = await service.journal.backend.core.writer.run_async(request, patience)
        if change.done is not None:
            change.done(answer)
        return self._written(answer) if small else await run_in_threadpool(self._written, answer)

    def _written(self, answer: object) -> tuple[bytes, int]:
        """Returns an answer in JSON, and its status."""
        operation, status = self.operation, self.operation.status
        if isinstance(answer, Receipt):  # a single receipt is not wrapped
            return _encode(receipt_document(answer)), 200 if answer.duplicate else status
        if isinstance(answer, list) and answer and isinstance(answer[0], Receipt):
            return receipts_json(answer), status
        return _json(operation.enveloped(answer)), status


def _prepared(run: Callable[..., PendingCommit[A]], asked: list[Any]) -> tuple[PendingCommit[A], WriteRequest[A]]:
    change = run(*asked)
    return change, change.prepare()


async def _wait_for_answer(
    call: Call[Any, Any], caller: WaitingCaller, wanted: Any, work: Callable[[], Coroutine[Any, Any, A]]
) -> A:
    """Returns the answer of an implementation that waits.

    The implementation stops waiting when its caller disconnects or the server stops.
    """
    service = call.service
    wanted.wait = min(seconds(wanted.wait, "wait"), LONGEST_WAIT)
    if not wanted.wait:
        return await work()
    if service.waiting >= service.limits.max_waiting:
        raise Refused(503, "TooManyWaiting", "too many requests wait for messages", {"Retry-After": "1"})
    service.waiting += 1
    waiting, gone = asyncio.ensure_future(work()), asyncio.ensure_future(_wait_until_gone(call.request))
    closing = asyncio.ensure_future(service.closing.wait())
    try:
        await asyncio.wait((waiting, gone, closing), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            caller.gone = gone.done()
            caller.stop()
        return await waiting
    finally:
        service.waiting -= 1
        gone.cancel()
        closing.cancel()


async def _wait_until_gone(request: Request) -> None:
    """Waits until the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


def _endpoint(operation: Operation[object], handler: Callable[..., Any]) -> Endpoint:
    run = handler if isinstance(handler, Performer) else awaitable(handler)
    role, query_type, body_type, status = operation.role, operation.query, operation.body, operation.status
    named = [] if operation.on_system else [part for part in operation.names if part in ("topic", "queue")]
    decode = None if body_type is None or operation.name in RAW else operation.body_decoder.decode

    async def endpoint(request: Request) -> Response:
        service = service_of(request, role)
        for part in named:
            service.access.check_change(request.path_params[part])
        given = request.query_params if request.scope["query_string"] else None
        query = None
        if query_type is not None:
            query = query_of({name: given.getlist(name) for name in given}, query_type) if given else query_type()
        elif given:
            refuse_parameters(given)
        request.state.held = 0
        try:
            body: Any = None
            if body_type is not None:
                body = await read_body(request, service)
                if decode is not None:
                    body = body or b"{}"
                    if len(body) <= AT_ONCE_BYTES:
                        body = decoded(body, decode, body_type)
                    else:
                        body = await run_in_threadpool(decoded, body, decode, body_type)
            answer = await run(Call(request, service, query, body))
            if isinstance(answer, Response):
                return answer
            changed = operation.changes(query if body_type is None else body)
            return json_answer(service, operation.enveloped(answer), status, changed=changed)
        finally:
            service.budget.release(request.state.held)

    endpoint.__name__ = operation.name
    endpoint.__doc__ = operation.summary
    endpoint.needs = role  # type: ignore[attr-defined]
    endpoint.open_to_all = role is None  # type: ignore[attr-defined]
    return endpoint


def json_answer(service: Service, answer: object, status: int = 200, *, changed: bool = False) -> Response:
    """Returns an answer in JSON. `changed` is True if the request has changed something."""
    return whole_answer(service, _json(answer), status, JSON, changed=changed)


def _json(answer: object) -> bytes:
    return _encode(convert_answer(answer, WRITTEN, event_document))


def api_routes(modules: Iterable[ModuleType]) -> list[BaseRoute]:
    """Returns a route for every operation.

    A route leads to the function of the same name in one of the modules, or else to the operation's implementation in
    the core or in `transfer`.

    A handler streams its answer or handles media types. It receives a `Call` and returns the answer's struct or a whole
    response. A plain function runs in a thread, because it may wait for the disk.
    """
    found = (one for module in modules for one in vars(module).values() if isfunction(one))
    handlers: dict[str, Callable[..., Any]] = {
        one.__name__: one for one in found if one.__module__.startswith("penstock.server.api.")
    }
    routes: list[BaseRoute] = []
    for one in sorted(OPERATIONS, key=lambda one: one.name not in FIRST):
        handler = handlers.get(one.name) or Performer(one, vars(committing).get(one.name))
        routes.append(Route(_route_path(one), _endpoint(one, handler), methods=[one.method], name=one.name))
    return routes


def _route_path(operation: Operation[object]) -> str:
    pieces = operation.path.split("/")
    spelled = [
        f"{{{piece[1:-1]}:path}}" if piece.startswith("{") and piece[1:-1] in WITH_SLASHES else piece
        for piece in pieces
    ]
    return PREFIX + "/".join(spelled)

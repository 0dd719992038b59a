"""What every handler works with: the journal, who may use it, and how much of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.protocol.operation import Role
from penstock.server.access import Access
from penstock.server.limits import Limits
from penstock.server.memory import MemoryBudget

if TYPE_CHECKING:
    from penstock.local.journal import LocalJournal
    from penstock.observe.collect import Sampler
    from penstock.server.api.live import LiveTopics
    from penstock.server.pages.pipelines import Buffers
    from penstock.transfer.objects import StagingArea


class Service:
    """One served journal."""

    def __init__(self, journal: LocalJournal, access: Access, limits: Limits) -> None:
        self.journal = journal
        self.access = access
        self.limits = limits
        self.budget = MemoryBudget(limits.max_held)
        self.live: LiveTopics
        self.sampler: Sampler
        self.buffers: Buffers
        self.areas: Mapping[str, StagingArea] = {}
        """Places in object stores from which staged blocks are fetched, by their urls."""
        self.lakes: Mapping[str, str] = {}
        """Where history may be sealed to: a lake's url as it is shown, and with the options that are not."""
        self.sealing = asyncio.Lock()
        """One step of sealing at a time: it takes memory and the disk's time."""
        self.waiting = 0
        """Requests that wait for a message."""
        self.closing = asyncio.Event()
        """Set when the server stops, so that streams and long polls end; `stop` sets it."""
        self.wakers: set[asyncio.Event] = set()
        """What streams wait for; set once more when the server stops."""
        self.loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Ends streams and long polls; may be called from any thread."""
        if self.loop is None or self.loop.is_closed():
            self.closing.set()
        else:
            self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.closing.set()
        self.live.wake()
        for waker in list(self.wakers):
            waker.set()


Handler = Callable[..., Any]
Endpoint = Callable[[Request], Awaitable[Response]]


def entered(request: Request, role: Role | None) -> Service:
    """The service that a request is for, once its sender may do what needs a role; None: anyone may."""
    service: Service = request.app.state.service
    if service.loop is None:
        service.loop = asyncio.get_running_loop()
    if role is not None:
        service.access.check_origin(request, request.method)
        request.state.role = service.access.require(request, role)
    return service


def awaitable(handler: Handler) -> Callable[..., Awaitable[Any]]:
    """A handler for an event loop. A plain function runs in a thread: it may wait for the disk."""
    return handler if inspect.iscoroutinefunction(handler) else partial(run_in_threadpool, handler)


def guarded(role: Role) -> Callable[[Handler], Endpoint]:
    """Makes a handler an endpoint that needs a role."""

    def wrap(handler: Handler) -> Endpoint:
        run = awaitable(handler)

        async def endpoint(request: Request) -> Response:
            answer: Response = await run(request, entered(request, role))
            return answer

        endpoint.__name__ = handler.__name__
        endpoint.__doc__ = handler.__doc__
        endpoint.needs = role  # type: ignore[attr-defined]
        return endpoint

    return wrap

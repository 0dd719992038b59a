"""Runs the calls of a handle beside an event loop: in threads, in pieces, or as tickets."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from penstock.core.consuming.handover import finish, hand_over
from penstock.errors import Backpressure

if TYPE_CHECKING:
    from penstock.core.ticket import Ticket

H = TypeVar("H")
P = ParamSpec("P")
T = TypeVar("T")

PIECE = 500
"""The events that a thread reads at a time for an `async for`."""

in_thread = asyncio.to_thread


class Closable(Protocol):
    """An object with a `close` method."""

    def close(self) -> None: ...


class AsyncHandle(Generic[H]):
    """A handle for an event loop, over a handle for threads."""

    __slots__ = ("_sync",)

    def __init__(self, sync: H) -> None:
        self._sync = sync

    def __repr__(self) -> str:
        return f"<async {repr(self._sync).removeprefix('<')}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncHandle) and self._sync == other._sync

    def __hash__(self) -> int:
        return hash(self._sync)


def plain(given: Any) -> Any:
    """Returns an argument with its handles for event loops replaced by handles for threads."""
    if isinstance(given, AsyncHandle):
        return given._sync
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return [one._sync if isinstance(one, AsyncHandle) else one for one in given]
    return given


def close(found: Closable) -> None:
    """Closes a resource that was opened."""
    found.close()


# ── a method of a handle for threads, as one for event loops ─────────────────────────────────────────────────────────
def threaded(
    method: Callable[Concatenate[H, P], T],
) -> Callable[Concatenate[AsyncHandle[H], P], Coroutine[Any, Any, T]]:
    """Runs the method in a thread."""

    @functools.wraps(method)
    async def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await in_thread(method, self._sync, *args, **options)

    return call


def acquired(
    method: Callable[Concatenate[H, P], T], undo: Callable[[T], object]
) -> Callable[Concatenate[AsyncHandle[H], P], Coroutine[Any, Any, T]]:
    """Runs the method in a thread; `undo` gets the result when the caller was cancelled meanwhile."""

    @functools.wraps(method)
    async def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await hand_over(lambda: method(self._sync, *args, **options), undo)

    return call


def finished(
    method: Callable[Concatenate[H, P], T],
) -> Callable[Concatenate[AsyncHandle[H], P], Coroutine[Any, Any, T]]:
    """Runs the method in a thread to its end, even when the caller is cancelled meanwhile."""

    @functools.wraps(method)
    async def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await finish(lambda: method(self._sync, *args, **options))

    return call


def streamed(
    method: Callable[Concatenate[H, P], Iterator[T]],
) -> Callable[Concatenate[AsyncHandle[H], P], AsyncGenerator[T, None]]:
    """Yields the items of the method's iterator, which a thread reads."""

    @functools.wraps(method)
    def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        return in_pieces(method, self._sync, *args, **options)

    return call


def at_once(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[AsyncHandle[H], P], T]:
    """Calls the method, which neither waits nor reads the store."""

    @functools.wraps(method)
    def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return method(self._sync, *args, **options)

    return call


def awaited(
    method: Callable[Concatenate[H, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[AsyncHandle[H], P], Coroutine[Any, Any, T]]:
    """Awaits the method, which already is for event loops."""

    @functools.wraps(method)
    async def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await method(self._sync, *args, **options)

    return call


def ticketed(
    submit: Callable[Concatenate[H, P], Ticket[T]], like: Callable[..., T]
) -> Callable[Concatenate[AsyncHandle[H], P], Coroutine[Any, Any, T]]:
    """Awaits the ticket of a submitting method; the method `like` does the same for threads."""

    async def call(self: AsyncHandle[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await submitted(lambda: submit(self._sync, *args, **options))

    return functools.update_wrapper(call, like)


async def submitted(submit: Callable[[], Ticket[T]]) -> T:
    """Returns the outcome of a ticket, once the writer has room for it."""
    while True:
        try:
            return await submit()  # a server's ticket may raise it too
        except Backpressure as error:
            await asyncio.sleep(error.retry_after)


class Field(Generic[T]):
    """A property of a handle for threads that does not read the store."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, handle: AsyncHandle[Any], owner: object = None) -> T:
        value: T = getattr(handle._sync, self._name)
        return value


class Look(Generic[T]):
    """A property that reads the store and is awaited."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, handle: AsyncHandle[Any], owner: object = None) -> Awaitable[T]:
        return in_thread(getattr, handle._sync, self._name)


async def in_pieces(begin: Callable[P, Iterator[T]], *args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
    """Reads an iterator in a thread, some items at a time, and yields the items. Closes the iterator when the loop
    ends."""
    found = await hand_over(lambda: begin(*args, **options), _close_iterator)
    step: Awaitable[list[T]] | None = None
    try:
        while True:
            step = asyncio.ensure_future(in_thread(lambda: list(islice(found, PIECE))))
            piece = await asyncio.shield(step)
            for one in piece:
                yield one
            if len(piece) < PIECE:
                return
    finally:
        # The thread of a cancelled reader may still read, so the iterator is closed after the thread.
        await asyncio.shield(asyncio.ensure_future(_close(found, step)))


async def _close(found: Iterator[T], step: Awaitable[list[T]] | None) -> None:
    if step is not None:
        with suppress(Exception):
            await step
    await in_thread(_close_iterator, found)


def _close_iterator(found: Iterator[object]) -> None:
    close: Callable[[], None] | None = getattr(found, "close", None)
    if close is not None:
        close()

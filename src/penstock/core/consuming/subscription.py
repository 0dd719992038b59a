"""The base of every subscription: the history of one or several topics, then new events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from penstock.core.clock import Duration, seconds
from penstock.core.schema import PayloadT

if TYPE_CHECKING:
    from penstock.core.events import Event, PayloadType

T = TypeVar("T")
OnLag = Literal["catch_up", "raise", "drop"]


class LiveIterator(ABC, Generic[T]):
    """An iterator over items as they arrive: iterate over it (also with `async for`), or call `next`."""

    def next(self, timeout: Duration | None = None) -> T | None:
        """Returns the next item; None after `timeout` seconds without an item, or when the iterator is closed."""
        waits = self._waits(timeout, ask=timeout == 0)
        try:
            while True:
                self._wait(*next(waits))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def next_async(self, timeout: Duration | None = None) -> T | None:
        """Does what `next` does, for an event loop."""
        waits = self._waits(timeout, ask=False)
        while True:
            try:
                seen, left = next(waits)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self._wait_async(seen, left)

    @abstractmethod
    def close(self) -> None:
        """Ends the waiting; every waiting thread gets None."""

    def __iter__(self) -> Iterator[T]:
        while (found := self.next()) is not None:
            yield found

    async def __aiter__(self) -> AsyncIterator[T]:
        while (found := await self.next_async()) is not None:
            yield found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    # ── what `next` waits for ────────────────────────────────────────────────────────────────────────────────────────
    def _waits(self, timeout: Duration | None, *, ask: bool) -> Generator[tuple[int, float | None], None, T | None]:
        """Runs `next` as a generator that returns its result; yields, before each wait, the signal's version to wait
        past and the seconds left.
        """
        deadline = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        while not self._is_closed():
            seen = self._version()
            found = self._ready(ask=ask)
            if found is not None:
                return self._typed(found)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            yield seen, left
        return None

    @abstractmethod
    def _is_closed(self) -> bool:
        """Returns True if the iterator was closed; raises the error that ended it otherwise."""

    @abstractmethod
    def _version(self) -> int:
        """Returns a number that grows with every item that may be ready."""

    @abstractmethod
    def _ready(self, *, ask: bool) -> T | None:
        """Returns the next item if it is here; `ask` also makes a request for it where necessary."""

    @abstractmethod
    def _wait(self, seen: int, left: float | None) -> None:
        """Waits until the version is past `seen`, for at most so many seconds."""

    @abstractmethod
    async def _wait_async(self, seen: int, left: float | None) -> None:
        """Does what `_wait` does, for an event loop."""

    def _typed(self, found: T) -> T:
        """Returns ready events in the form of the caller."""
        return found


class EventFollower(LiveIterator["Event[PayloadT]"], Generic[PayloadT]):
    """A follower of events as they arrive."""

    _payload: PayloadType[PayloadT] | None = None

    def _typed(self, found: Event[PayloadT]) -> Event[PayloadT]:
        return found if self._payload is None else self._payload.typed(found)


class Subscription(EventFollower[PayloadT]):
    """A subscription to a topic's events after a position."""

    missed: int
    """The number of events skipped so far, with on_lag="drop"."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The position of the last event that was returned (or skipped): subscribe after it to continue elsewhere."""


class JournalSubscription(EventFollower):
    """A subscription to the events of several topics after positions."""

    @property
    @abstractmethod
    def positions(self) -> dict[str, int]:
        """The positions of the last events that were returned or passed, by topic: subscribe after them to continue
        elsewhere.
        """

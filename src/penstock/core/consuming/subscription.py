"""The base of every subscription: the history of a topic, or of several, then what is appended."""

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
    """Things as they come: iterate it (also with `async for`), or ask for the `next` one."""

    def next(self, timeout: Duration | None = None) -> T | None:
        """The next one; None after `timeout` seconds without one, or when it is closed."""
        waits = self._waits(timeout, ask=timeout == 0)
        try:
            while True:
                self._wait(*next(waits))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def next_async(self, timeout: Duration | None = None) -> T | None:
        """`next` for an event loop."""
        waits = self._waits(timeout, ask=False)
        while True:
            try:
                seen, left = next(waits)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            await self._wait_async(seen, left)

    @abstractmethod
    def close(self) -> None:
        """Ends it; every thread that waits in it gets None."""

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
        """Returns what `next` does; yields before each wait the signal's version to wait past, and the seconds left."""
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
        """Returns True if it was closed; raises what ended it when that was no `close`."""

    @abstractmethod
    def _version(self) -> int:
        """A number that grows with everything that may be ready."""

    @abstractmethod
    def _ready(self, *, ask: bool) -> T | None:
        """The next one if it is here; `ask`: also makes a request for it where one is needed."""

    @abstractmethod
    def _wait(self, seen: int, left: float | None) -> None:
        """Waits until the version is past `seen`, for so many seconds at the most."""

    @abstractmethod
    async def _wait_async(self, seen: int, left: float | None) -> None:
        """`_wait` for an event loop."""

    def _typed(self, found: T) -> T:
        """Returns the events that are ready, as the caller gets them."""
        return found


class EventFollower(LiveIterator["Event[PayloadT]"], Generic[PayloadT]):
    """Events as they come."""

    _payload: PayloadType[PayloadT] | None = None

    def _typed(self, found: Event[PayloadT]) -> Event[PayloadT]:
        return found if self._payload is None else self._payload.typed(found)


class Subscription(EventFollower[PayloadT]):
    """A topic's events after a position as they come."""

    missed: int
    """Events skipped so far, with on_lag="drop"."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The position of the last event handed out (or skipped): subscribe after it to go on elsewhere."""


class JournalSubscription(EventFollower):
    """The events of several topics after positions as they come."""

    @property
    @abstractmethod
    def positions(self) -> dict[str, int]:
        """By topic, the position of the last event handed out or passed: subscribe after them to go on elsewhere."""

"""States as they change: the newest one at once, then another whenever the entity has new events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.clock import Seconds, seconds
from penstock.entity.projection.projection import Projection, check_projection
from penstock.entity.projection.states import project
from penstock.errors import Closed

if TYPE_CHECKING:
    from penstock.entity.projection.states import StateCache
    from penstock.journal.log import TopicLog

P = TypeVar("P", bound=Projection)


class Watch(Generic[P]):
    """A projection's states as they come: iterate it (also with `async for`), or ask for the `next` one.

    States that were overtaken before the watcher looked are skipped: what comes is always the newest.
    """

    def __init__(self, log: TopicLog, states: StateCache, projection: type[P], key: str | None) -> None:
        self._log = log
        self._states = states
        self._projection = projection
        self._key = key
        self._signal = log.core.hub.signal(log.name)
        self._closed = False
        self.generation = 0
        """The generation of the last state handed out."""
        check_projection(projection)

    def next(self, timeout: Seconds | None = None) -> P | None:
        """The next state; None after `timeout` seconds without one, or when the watch is closed."""
        clock = self._log.core.clock
        deadline = None if timeout is None else clock.monotonic() + seconds(timeout, "timeout")
        while not self._closed:
            seen = self._signal.version
            state = self._newest()
            if state is not None:
                return state
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                return None
            with self._log.core.hub:
                self._signal.wait(seen, left)
        return None

    async def next_async(self, timeout: Seconds | None = None) -> P | None:
        """`next` for an event loop."""
        clock = self._log.core.clock
        deadline = None if timeout is None else clock.monotonic() + seconds(timeout, "timeout")
        while not self._closed:
            seen = self._signal.version
            state = self._newest()
            if state is not None:
                return state
            left = None if deadline is None else deadline - clock.monotonic()
            if left is not None and left <= 0:
                return None
            with self._log.core.hub:
                await self._signal.wait_async(seen, left)
        return None

    def __iter__(self) -> Iterator[P]:
        while (state := self.next()) is not None:
            yield state

    async def __aiter__(self) -> AsyncIterator[P]:
        while (state := await self.next_async()) is not None:
            yield state

    def close(self) -> None:
        """Ends the watch; threads that wait in it get nothing more."""
        self._closed = True
        self._signal.notify()

    def __enter__(self) -> Watch[P]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _newest(self) -> P | None:
        if self._log.core.closed:
            if self._closed:
                return None
            raise Closed("the journal was closed under this watch")
        generation, state = project(self._log, self._states, self._projection, self._key, "consistent")
        if generation == self.generation:
            return None
        self.generation = generation
        return state

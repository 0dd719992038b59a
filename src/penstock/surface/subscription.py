"""What every subscription is: a topic's history, then what is appended to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from penstock.clock import Seconds
    from penstock.events import Event

OnLag = Literal["catch_up", "raise", "drop"]


class Subscription(ABC):
    """Events after a position as they come: iterate it (also with `async for`), or ask for the `next` one."""

    missed: int
    """Events skipped so far, with on_lag="drop"."""

    @property
    @abstractmethod
    def position(self) -> int:
        """The position of the last event handed out (or skipped): subscribe after it to go on elsewhere."""

    @abstractmethod
    def next(self, timeout: Seconds | None = None) -> Event | None:
        """The next event; None after `timeout` seconds without one, or when the subscription is closed."""

    @abstractmethod
    async def next_async(self, timeout: Seconds | None = None) -> Event | None:
        """`next` for an event loop."""

    @abstractmethod
    def close(self) -> None:
        """Ends the subscription; every thread that waits in it gets None."""

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next_async()) is not None:
            yield event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

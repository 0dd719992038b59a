"""Work that a thread does for a caller in an event loop that may be cancelled meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Generic, TypeVar

from penstock.core.observe.logs import Log

T = TypeVar("T")

log = Log("penstock.aio")


class Handover(Generic[T]):
    """A result that a thread gets for a caller, and that is undone when the caller is gone.

    A cancelled caller returns at once. A result that is on its way then, or arrives later, goes to `undo` in a thread.
    """

    def __init__(self, undo: Callable[[T], object]) -> None:
        self._undo = undo
        self._lock = threading.Lock()
        self._found: list[T] = []
        self.gone = False
        """True if the caller is gone."""

    async def run(self, get: Callable[[], T]) -> T:
        """Returns the result of `get`."""
        import asyncio

        loop = asyncio.get_running_loop()
        try:
            return await asyncio.to_thread(self._get, get)
        except BaseException:
            with self._lock:
                self.gone = True
                on_its_way = self._found
            for found in on_its_way:
                try:
                    loop.run_in_executor(None, self._give_back, found)
                except RuntimeError:  # the loop has ended, and its caller with it
                    self._give_back(found)
            raise

    def _get(self, get: Callable[[], T]) -> T:
        found = get()
        with self._lock:
            if not self.gone:
                self._found.append(found)
                return found
        self._give_back(found)
        return found

    def _give_back(self, found: T) -> None:
        try:
            self._undo(found)
        except Exception as error:
            log.warning("what a cancelled call had got could not be given back: %s", error)


async def hand_over(get: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns the result of `get`, which runs in a thread; `undo` gets the result when the caller was cancelled
    meanwhile.
    """
    return await Handover(undo).run(get)


async def finish(act: Callable[[], T]) -> T:
    """Runs a function in a thread to its end, even when the caller is cancelled before it has begun."""
    import asyncio

    context = copy_context()
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, lambda: context.run(act)))

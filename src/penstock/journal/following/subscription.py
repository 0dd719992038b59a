"""Subscriptions: a topic's history, then what comes, by reading the log whenever something new was signalled.

A subscription keeps a position, not a channel, so nothing is lost between history and live, nothing comes twice, and a
slow subscriber simply reads on from where it is. `on_lag` only matters to one that has caught up once. A topic that is
dropped is waited for, as one that is not there yet: when it is made anew, a subscriber that had read all of it goes
on, and one that was behind gets PositionTrimmed.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Literal

from penstock.errors import Closed, ConfigError, Lagged
from penstock.events import Event
from penstock.journal.following.selection import Selection
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.limits import SUBSCRIPTION_BUFFER
from penstock.names import check_whole
from penstock.surface.subscription import OnLag, Subscription

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog

_READ_AHEAD = 1024


class LocalSubscription(Subscription):
    """Events after a position as they come: iterate it (also with `async for`), or ask for the `next` one."""

    def __init__(
        self,
        log: TopicLog,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        selection: Selection | None = None,
    ) -> None:
        if on_lag not in ("catch_up", "raise", "drop"):
            raise ConfigError(f'on_lag is "catch_up", "raise" or "drop", not {on_lag!r}')
        check_whole(buffer, "buffer")
        self._log = log
        self._core = log.core
        self._signal = log.core.hub.signal(log.name)
        self._buffer = buffer
        self._on_lag: OnLag = on_lag
        self._ahead: deque[Event] = deque()
        self._live = after == "latest"
        self._position = log.latest if after == "latest" else after
        self._selection = selection
        self._read_through = self._position
        """How far the topic was read; events in between that were not chosen are behind."""
        self._closed = False
        self._turn = threading.Lock()
        self.missed = 0
        """Events skipped so far, with on_lag="drop"."""

    @property
    def position(self) -> int:
        """The position of the last event handed out (or skipped): subscribe after it to go on elsewhere."""
        return self._position

    def close(self) -> None:
        """Ends the subscription; threads that wait in it get nothing more."""
        self._closed = True
        self._signal.notify()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_closed(self) -> bool:
        return self._closed

    def _version(self) -> int:
        return self._signal.version

    def _wait(self, seen: int, left: float | None) -> None:
        with self._core.hub:
            self._signal.wait(seen, left)

    async def _wait_async(self, seen: int, left: float | None) -> None:
        with self._core.hub:
            await self._signal.wait_async(seen, left)

    def _ready(self, *, ask: bool) -> Event | None:
        """The next event that is already stored. Threads that share a subscription take turns, each event to one."""
        with self._turn:
            if self._closed or (not self._ahead and not self._refill()):
                return None
            event = self._ahead.popleft()
            self._position = event.seq
            return event

    def _refill(self) -> bool:
        if self._core.closed:
            raise Closed("the journal was closed under this subscription")
        return self._refill_all() if self._selection is None else self._refill_chosen(self._selection)

    def _refill_chosen(self, selection: Selection) -> bool:
        """Reads on until something is chosen."""
        most = max(self._buffer, _READ_AHEAD)
        while not self._ahead and not self._closed:
            start = max(self._position, self._read_through)
            found, through = selection.select(self._log, start, most, self._begin)
            if through == start:
                self._live = True
                return False
            self._ahead.extend(found)
            self._read_through = through
            if not found:
                self._position = through
        return bool(self._ahead)

    def _begin(self, view: TopicView | None) -> int:
        """Where a search goes on: later when the subscriber may lag no further."""
        if view is not None and self._on_lag != "catch_up" and self._live:
            self._mind_the_lag(view)
        return self._position

    def _refill_all(self) -> bool:
        with self._core.engine.read() as snap:
            view = TopicView.open(snap, self._log.name, self._core.clock.now_ms())
            if view is None:
                self._live = True
                return False
            if self._on_lag != "catch_up" and self._live:
                self._mind_the_lag(view)
            view.check_not_trimmed(self._position)
            self._ahead.extend(view.events(self._position, keys.MAX_SEQ, max(self._buffer, _READ_AHEAD)))
        if not self._ahead:
            self._live = True
            return False
        if len(self._ahead) < max(self._buffer, _READ_AHEAD):
            self._live = True
        return True

    def _mind_the_lag(self, view: TopicView) -> None:
        behind = view.latest() - max(self._position, view.began())
        if behind <= self._buffer:
            return
        if self._on_lag == "drop":
            self._skip_to(view, view.latest() - self._buffer)
        else:
            raise Lagged(
                f"this subscriber of topic {self._log.name!r} is {behind} events behind (buffer {self._buffer}); "
                f"subscribe again after {self._position} to go on without a gap",
                last_seq=self._position,
            )

    def _skip_to(self, view: TopicView, position: int) -> None:
        trimmed = view.trimmed()
        if trimmed > self._position:  # compaction was faster still: these are gone for good
            self.missed += trimmed - self._position
            self._position = trimmed
        if position > self._position:
            self.missed += view.count_between(self._position, position)
            self._position = position

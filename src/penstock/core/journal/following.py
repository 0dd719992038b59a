"""Subscriptions: a topic's history, then new events, by reading the log at every signal.

A subscription keeps a position, not a channel, so nothing is lost between history and live, nothing comes twice, and a
slow subscriber simply reads on from where it is. `on_lag` only matters to a subscriber that has caught up once. A
subscription waits for a topic that was dropped, as for a topic that is not there yet. When there is a topic of that
name again, a subscriber that had read everything goes on, and a subscriber that was behind gets PositionTrimmed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Literal

from penstock.core.consuming.subscription import OnLag, Subscription
from penstock.core.events import Event
from penstock.core.journal.index.index import indexed_events
from penstock.core.journal.reading import TopicView
from penstock.core.journal.waking import ReadingAhead
from penstock.core.model.query import EVERYTHING, EventQuery
from penstock.core.names import check_whole
from penstock.errors import ConfigError, Lagged
from penstock.limits import SUBSCRIPTION_BUFFER

if TYPE_CHECKING:
    from penstock.core.journal.log import TopicLog


_READ_AHEAD = 1024


class LocalSubscription(ReadingAhead, Subscription):
    """A subscription to the events after a position: iterate over it (also with `async for`), or call `next`."""

    def __init__(
        self,
        log: TopicLog,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        wanted: EventQuery = EVERYTHING,
    ) -> None:
        if on_lag not in ("catch_up", "raise", "drop"):
            raise ConfigError(f'on_lag is "catch_up", "raise" or "drop", not {on_lag!r}')
        check_whole(buffer, "buffer")
        self._log = log
        super().__init__(log.core, log.core.hub.signal(log.name))
        self._buffer = buffer
        self._on_lag: OnLag = on_lag
        self._live = after == "latest"
        self._position = log.latest if after == "latest" else after
        self._wanted = wanted
        self._read_through = self._position
        """The position through which the topic was read, including events that were not chosen."""
        self.missed = 0
        """The number of events skipped so far, with on_lag="drop"."""

    @property
    def position(self) -> int:
        """The position of the last event that was returned (or skipped): subscribe after it to continue elsewhere."""
        return self._position

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _read_on(self) -> bool:
        start = max(self._position, self._read_through)
        found, through, ended = search(self._log, self._wanted, start, max(self._buffer, _READ_AHEAD), self._begin)
        self._live = self._live or ended
        if through == start:
            return False
        self._ahead.extend(found)
        self._read_through = through
        if not found:
            self._position = through
        return True

    def _hand_out(self, event: Event) -> None:
        self._position = event.seq

    def _begin(self, view: TopicView | None) -> int:
        """Returns the position after which a search continues, which is later when the subscriber lags too far."""
        if view is not None and self._on_lag != "catch_up" and self._live:
            self._mind_the_lag(view)
        return self._position

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
        if trimmed > self._position:  # compaction was faster: these events are permanently gone
            self.missed += trimmed - self._position
            self._position = trimmed
        if position > self._position:
            self.missed += view.count_between(self._position, position)
            self._position = position


SEARCHED = 4096
"""Fewer positions than this are read block by block, even for an entity or tags: the index would cost more."""
STEP = 65_536
"""The number of positions that are searched in one snapshot, so that no snapshot is held long, however few events
are chosen.
"""


def search(
    log: TopicLog, wanted: EventQuery, after: int, limit: int, begin: Callable[[TopicView | None], int] | None = None
) -> tuple[list[Event], int, bool]:
    """Runs one step of a search.

    Returns the next wanted events after a position, the reached position, and whether it is the topic's end.

    `begin` sees the topic (or None) and may move the beginning of the search to a later position.
    """
    core = log.core
    with core.engine.read() as snap:
        view = TopicView.open(snap, log.name, core.clock.now_ms())
        if begin is not None:
            after = max(after, begin(view))
        latest = 0 if view is None else view.latest()
        if view is None or after >= latest:
            return [], after, True
        view.check_not_trimmed(after)
        # a step over removed positions alone would end at a position where no step may begin
        after = max(after, view.trimmed())
        through = latest if wanted.indexed else min(latest, after + STEP)
        if wanted.indexed and through - after > SEARCHED:
            found = indexed_events(core.index.open(view), wanted, after, None, through, reverse=False)
        else:
            found = view.events(after, through, limit if wanted.where is None else None, wanted)
        events = list(islice(wanted.fulfilled(found), limit))
    through = events[-1].seq if len(events) == limit else through
    return events, through, through == latest

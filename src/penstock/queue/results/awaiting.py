"""Waiting for outcomes: one thread follows a queue's results for all the tickets of a journal, while any waits.

No outcome is missed: a ticket enlists, and only then reads what is there already; what comes later, the thread sees.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.errors import PenstockError, PositionTrimmed
from penstock.events import Event
from penstock.ticket import Ticket, wake

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.subscription import Subscription
    from penstock.surface.topic import Topic

IDLE = 5.0
"""Seconds without a waiter after which the thread ends."""


class ResultsFollower:
    """Those who wait for outcomes in one topic of results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Ticket[Event | None]]] = {}
        self._following: Subscription | None = None

    def enlist(self, topic: Topic, token: str) -> Ticket[Event | None]:
        """A ticket that is resolved when the outcome comes; with None when the caller has to read the topic again."""
        ticket: Ticket[Event | None] = Ticket()
        with self._lock:
            self._waiting.setdefault(token, []).append(ticket)
            if self._following is None:
                try:
                    following = topic.subscribe("latest")
                    name = f"penstock-results-{topic.name}"
                    threading.Thread(target=self._run, args=(following,), name=name, daemon=True).start()
                except BaseException:
                    del self._waiting[token]
                    raise
                self._following = following  # only now: without a thread the next to wait begins anew
        return ticket

    def leave(self, token: str, ticket: Ticket[Event | None]) -> None:
        """No caller waits with this ticket any more."""
        with self._lock:
            tickets = self._waiting.get(token, [])
            if ticket in tickets:
                tickets.remove(ticket)
            if not tickets:
                self._waiting.pop(token, None)

    def _run(self, following: Subscription) -> None:
        outcome: BaseException | None = None
        try:
            while (event := following.next(IDLE)) is not None or not self._is_idle():
                if event is not None and event.key is not None:
                    self._tell(event.key, event)
        except PositionTrimmed:
            pass  # those who wait read the topic again, and enlist anew
        except PenstockError as error:
            outcome = error
        finally:
            following.close()
            with self._lock:
                if self._following is following:
                    self._following = None
                rest = [ticket for tickets in self._waiting.values() for ticket in tickets]
                self._waiting.clear()
            for ticket in rest:
                ticket.set_outcome(None, outcome)
            wake(rest)

    def _is_idle(self) -> bool:
        """Whether no caller waits; then the next one to come begins anew."""
        with self._lock:
            if self._waiting:
                return False
            self._following = None
            return True

    def _tell(self, token: str, event: Event) -> None:
        with self._lock:
            tickets = self._waiting.pop(token, [])
        for ticket in tickets:
            ticket.set_outcome(event, None)
        wake(tickets)


# A follower knows no journal but while its thread runs: it would keep the journal, which is its key, alive.
_followers: WeakKeyDictionary[Journal, dict[str, ResultsFollower]] = WeakKeyDictionary()
_making = threading.Lock()


def follower_of(journal: Journal, topic: str) -> ResultsFollower:
    """The one follower that a journal has of a topic of results."""
    with _making:
        return _followers.setdefault(journal, {}).setdefault(topic, ResultsFollower())

"""A journal as the recorder of dynamic consistency boundaries for the library eventsourcing.

    PERSISTENCE_MODULE=penstock.integrations.dcb
    PENSTOCK_URL=/var/lib/app/school.db

A recorded event is an event of the journal: its kind is the recorded event's type, its payload is the data, its tags
are the tags, and its position is the position. The condition of an append is `unless=`, which the commit checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, islice

import penstock
from penstock.integrations import needed_for
from penstock.integrations.eventsourcing import PenstockFactory, PenstockTrackingRecorder

with needed_for("eventsourcing"):
    from eventsourcing.dcb.api import (
        DCBAppendCondition,
        DCBEvent,
        DCBQuery,
        DCBReadResponse,
        DCBRecorder,
        DCBSequencedEvent,
        DCBSubscription,
    )
    from eventsourcing.dcb.persistence import DCBInfrastructureFactory
    from eventsourcing.persistence import IntegrityError


def _queries(query: DCBQuery | None, after: int = 0) -> list[penstock.EventQuery]:
    """Returns the queries for the wanted events: an event is wanted if any query finds it."""
    items = [] if query is None else query.items
    found = [penstock.EventQuery(kinds=one.types or None, tags=one.tags, after=after) for one in items]
    return found or [penstock.EventQuery(after=after)]


def _sequenced(event: penstock.Event[bytes]) -> DCBSequencedEvent:
    return DCBSequencedEvent(DCBEvent(event.kind, event.payload, list(event.tags)), event.seq)


class PenstockDCBRecorder(DCBRecorder):
    """A recorder of events with tags. An append may depend on events with some tags."""

    def __init__(self, journal: penstock.Journal, topic: str = "events") -> None:
        self.topic = journal.topic(topic)

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        """Returns the wanted events after a position, in order, each once."""
        head = self.topic.latest
        wanted = _queries(query, after or 0)
        found = [self.topic.read(one.after, limit, through=head, kind=one.kinds, tags=one.tags) for one in wanted]
        each = (next(same) for _, same in groupby(merge(*found, key=_position), key=_position))
        return PenstockReadResponse(map(_sequenced, islice(each, limit)), head if limit is None else None)

    def append(self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None) -> int:
        """Appends events, all or none. Raises IntegrityError when there is an event that the condition forbids."""
        unless = None if condition is None else _queries(condition.fail_if_events_match, condition.after or 0)
        drafts = [penstock.Draft(one.type, one.data, tags=one.tags) for one in events]
        if drafts:
            drafts[0].unless = unless
        try:
            return self.topic.append_many(drafts)[-1].seq
        except penstock.errors.Conflict as error:
            raise IntegrityError(condition) from error

    def subscribe(
        self, query: DCBQuery | None = None, *, after: int | None = None
    ) -> DCBSubscription[PenstockDCBRecorder]:
        """Follows the wanted events after a position, including events that other processes append."""
        return PenstockDCBSubscription(self, query, after)


def _position(event: penstock.Event[bytes]) -> int:
    return event.seq


class PenstockReadResponse(DCBReadResponse):
    """Events of a read, and the position through which they were searched."""

    def __init__(self, events: Iterator[DCBSequencedEvent], head: int | None) -> None:
        """`head` is the newest position. With None, the last event of the read has it."""
        self._events = events
        self._head = head

    @property
    def head(self) -> int | None:
        return self._head or None

    def __next__(self) -> DCBSequencedEvent:
        found = next(self._events)
        self._head = max(self._head or 0, found.position)
        return found


class PenstockDCBSubscription(DCBSubscription[PenstockDCBRecorder]):
    """A subscription that yields wanted events as they are recorded."""

    def __init__(self, recorder: PenstockDCBRecorder, query: DCBQuery | None, after: int | None) -> None:
        super().__init__(recorder, query, after)
        self._wanted = _queries(query)
        self._events = recorder.topic.subscribe(after or 0)

    def stop(self) -> None:
        """Ends the subscription. A thread that waits in it gets no more events."""
        super().stop()
        self._events.close()

    def __next__(self) -> DCBSequencedEvent:
        while (found := self._events.next()) is not None:
            if any(one.matches(found) for one in self._wanted):
                return _sequenced(found)
        raise StopIteration


class PenstockDCBFactory(PenstockFactory, DCBInfrastructureFactory[PenstockTrackingRecorder]):
    """Opens the journal that PENSTOCK_URL names, and makes recorders on it."""

    def dcb_recorder(self) -> PenstockDCBRecorder:
        """Returns the recorder of the application's events."""
        name = self.env.name.lower()
        return PenstockDCBRecorder(self.journal, f"{name}.events" if name else "events")

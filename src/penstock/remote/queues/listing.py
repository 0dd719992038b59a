"""Looking into a served queue: lists that come page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.protocol import messages as operations
from penstock.protocol.messages import DeadLetterQuery, FailedQuery, FailureDocument, MessageDocument, MessageQuery
from penstock.queue.inspect import QueueMessage
from penstock.remote.events import event_of

if TYPE_CHECKING:
    from penstock.remote.queues.queue import RemoteQueue

LISTED = 10_000
"""Rows asked for at a time."""


def unsettled_events(queue: RemoteQueue) -> Iterator[Event]:
    """Everything not acknowledged, in order of position; once, however many groups have not settled it."""
    query = MessageQuery(after=0)
    while True:
        page = queue._ask(operations.LIST_MESSAGES, query=query)
        previous = 0
        for one in page.messages:
            if one.event.seq != previous:
                previous = one.event.seq
                yield event_of(one.event)
        if page.next is None:
            return
        query.after = page.next


def listed(queue: RemoteQueue, query: MessageQuery, limit: int) -> list[QueueMessage]:
    """The messages of `limit` positions, with their states."""
    found: list[QueueMessage] = []
    left = limit
    while left > 0:
        query.limit = min(left, LISTED)
        page = queue._ask(operations.LIST_MESSAGES, query=query)
        found += map(_message, page.messages)
        left -= len({one.event.seq for one in page.messages})
        if page.next is None:
            break
        query.after = page.next
    return found


def failures(queue: RemoteQueue, group: str) -> Iterator[FailedMessage]:
    """A group's messages that were given up and have no dead-letter queue to go to."""
    query = FailedQuery(group, 0, LISTED)
    while True:
        page = queue._ask(operations.LIST_FAILED, query=query)
        yield from map(_failure, page.failed)
        if page.next is None:
            return
        query.after = page.next


def dead_letters(queue: RemoteQueue) -> Iterator[FailedMessage]:
    """A queue's dead letters."""
    after: str | None = ""
    while after is not None:
        page = queue._ask(operations.LIST_DEAD_LETTERS, query=DeadLetterQuery(after, LISTED))
        yield from map(_failure, page.dead)
        after = page.next


def _message(one: MessageDocument) -> QueueMessage:
    return QueueMessage(**(msgspec.structs.asdict(one) | {"event": event_of(one.event)}))


def _failure(one: FailureDocument) -> FailedMessage:
    return FailedMessage(**(msgspec.structs.asdict(one) | {"event": event_of(one.event)}))

"""Dead letters: a message that is given up is pushed to another queue, with the reason in its headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.clock import from_ms
from penstock.events import Event
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.storage.block import Columns
from penstock.queue.operations.push import DeliveryOptions, push
from penstock.queue.state import keys
from penstock.queue.state.blocks import copy_columns
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import MessageRow
from penstock.surface.failure import FailureText

REASON: Final = "dead-reason"
ERROR: Final = "dead-error"
TRACEBACK: Final = "dead-traceback"
QUEUE: Final = "dead-queue"
GROUP: Final = "dead-group"
SEQ: Final = "dead-seq"
ID: Final = "dead-id"
ATTEMPTS: Final = "dead-attempts"
FIRST: Final = "dead-first-delivered-at"
LAST: Final = "dead-last-delivered-at"

PRIORITY: Final = "dead-priority"
BUDGET: Final = "dead-max-attempts"

HEADERS: Final = frozenset((REASON, ERROR, TRACEBACK, QUEUE, GROUP, SEQ, ID, ATTEMPTS, FIRST, LAST, PRIORITY, BUDGET))

_NUMBER = re.compile("-?[0-9]{1,10}")
"""Headers are text that anybody may have written."""


def bury(
    commit: Commit, queue: QueueState, group: Group, message: MessageRow, reason: str, failure: FailureText
) -> None:
    """Pushes a message to its queue's dead letters; a fresh budget awaits it there."""
    target = queue.policy.dead_letter
    assert target is not None
    event = queue.blocks.event(commit.tx, message.seq)
    if event is None:
        return
    columns = copy_columns(event)
    headers = {
        **living_headers(event.headers),
        REASON: reason,
        QUEUE: queue.name,
        SEQ: str(message.seq),
        ID: event.id,
        ATTEMPTS: str(message.attempts),
    }
    if group.name:
        headers[GROUP] = group.name
    if failure.error:
        headers[ERROR] = failure.error
    if failure.traceback:
        headers[TRACEBACK] = failure.traceback
    if message.first_ms:
        headers[FIRST] = from_ms(message.first_ms).isoformat()
        headers[LAST] = from_ms(message.last_ms).isoformat()
    if message.priority:
        headers[PRIORITY] = str(message.priority)
    own = commit.tx.get(keys.override_key(queue.topic, message.seq)) if queue.traits.overridden else None
    if own is not None:
        headers[BUDGET] = str(int.from_bytes(own))
    columns.headers = [headers]
    columns.occurred = [event._rows.occurred_ms(event._row)]
    columns.causation = [event.id]
    columns.correlation = [event.correlation_id or event.id]
    push(commit, queue.cache.find_or_create(commit, target), as_batch(columns), None, forced=True)


def living_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without those that dead-lettering added."""
    return {name: value for name, value in headers.items() if name not in HEADERS}


def died_with(event: Event) -> DeliveryOptions:
    """The priority and the retry budget that a dead letter had when it was alive."""
    priority, budget = event.headers.get(PRIORITY, ""), event.headers.get(BUDGET, "")
    return DeliveryOptions(
        int(priority) if _NUMBER.fullmatch(priority) else 0,
        max_attempts=int(budget) if _NUMBER.fullmatch(budget) else None,
    )


def as_batch(columns: Columns) -> PreparedBatch:
    return PreparedBatch(columns, sum(map(len, columns.payloads)))


def origin(event: Event) -> str | None:
    """The queue a dead letter comes from, or None when it is none."""
    return event.headers.get(QUEUE)

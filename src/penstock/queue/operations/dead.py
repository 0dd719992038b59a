"""Dead letters: a message that is given up is pushed to another queue, with the reason in its headers."""

from __future__ import annotations

import msgspec

from penstock.clock import from_ms
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.storage.wire import Columns
from penstock.queue.inspect.letters import (
    ATTEMPTS,
    BEFORE,
    BUDGET,
    ERROR,
    FIRST,
    GROUP,
    ID,
    LAST,
    PRIORITY,
    REASON,
    SEQ,
    TRACEBACK,
    TRIED,
    deaths_before,
    living_headers,
)
from penstock.queue.operations.push import push
from penstock.queue.state import keys
from penstock.queue.state.blocks import copy_columns
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import MessageRow
from penstock.queue.state.trail import AttemptRow
from penstock.surface.failure import DEAD_QUEUE, FailureText


def bury(
    commit: Commit,
    queue: QueueState,
    group: Group,
    message: MessageRow,
    reason: str,
    failure: FailureText,
    tried: list[AttemptRow],
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
        DEAD_QUEUE: queue.name,
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
    if tried:
        headers[TRIED] = msgspec.json.encode([attempt.shown() for attempt in tried]).decode()
    if message.priority:
        headers[PRIORITY] = str(message.priority)
    own = commit.tx.get(keys.override_key(queue.topic, message.seq)) if queue.traits.overridden else None
    if own is not None:
        headers[BUDGET] = str(int.from_bytes(own))
    before = deaths_before(event.headers, queue.name)
    if before is not None:
        headers[BEFORE] = before
    columns.headers = [headers]
    columns.occurred = [event._rows.occurred_ms(event._row)]
    columns.causation = [event.id]
    columns.correlation = [event.correlation_id or event.id]
    push(commit, queue.cache.find_or_create(commit, target), as_batch(columns), None, forced=True)


def as_batch(columns: Columns) -> PreparedBatch:
    return PreparedBatch(columns, sum(map(len, columns.payloads)))

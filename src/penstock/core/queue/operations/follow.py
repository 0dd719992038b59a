"""The effects of a returned call, in the commit that settles it: its outcome, the next call of its chain, or its part
of a join.

    qj id           a join: how many calls it waits for, and what follows
    qj id number    the result of one of them, as JSON
"""

from __future__ import annotations

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event, Receipt
from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit
from penstock.core.model.calls import JOIN, THEN, GatherRequest, NextCall, TaskArguments
from penstock.core.model.failure import DEAD_QUEUE
from penstock.core.model.reply import REPLY, keep_reply, read_reply, reply_headers
from penstock.core.names import check_kind, check_name
from penstock.core.queue.operations.push import DeliveryOptions, as_batch, push
from penstock.core.queue.results import StoredResult, answer, note_moved, note_place, note_replies
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueCache, QueueState
from penstock.core.queue.state.records import MessageRow
from penstock.errors import ConfigError

_decode = msgspec.json.Decoder(TaskArguments).decode
_encode = msgspec.json.Encoder().encode


class JoinRow(msgspec.Struct, array_like=True):
    """Calls that were pushed together, and the calls that follow when all of them have returned."""

    count: int
    left: int
    then: list[NextCall]
    headers: dict[str, str]
    """The headers of the following call."""
    pushed_ms: int
    calls: list[str] = []
    """The ids of the calls, in their order."""


_read_join = keys.row_decoder(JoinRow)


def settled(commit: Commit, queue: QueueState, message: MessageRow, given: StoredResult) -> None:
    """Pushes the call that follows a handled message, or publishes the outcome."""
    event = queue.blocks.event(commit.tx, message.seq)
    if event is None or DEAD_QUEUE in event.headers:  # the fate of a dead letter in its queue is no outcome
        return
    if THEN not in event.headers:
        answer(commit, queue, message, given)
        if JOIN in event.headers:
            _join(commit, queue.cache, event, given)
        return
    if given.binary:
        raise ConfigError("the next call of a chain takes JSON, and bytes are none")
    try:
        first, *rest = _decode(event.raw).then
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"the message does not say which call follows: {error}") from error
    headers = {name: text for name, text in keep_reply(event.headers, event.id).items() if name != THEN}
    receipt = _push(commit, queue.cache, first, rest, [msgspec.Raw(given.payload)], headers, event)
    note_moved(commit, event, receipt)


def _push(
    commit: Commit,
    queues: QueueCache,
    call: NextCall,
    then: list[NextCall],
    results: list[msgspec.Raw],
    headers: dict[str, str],
    cause: Event | None,
) -> Receipt:
    """Pushes a call; makes its queue if necessary, and ignores the queue's size limit."""
    payload = _encode(TaskArguments([*results, *call.args], call.kwargs, then))
    columns = Columns([call.task], [payload])
    headers = {**headers, THEN: then[0].task} if then else headers
    columns.headers = [headers] if headers else None
    if call.key is not None:
        columns.key = [call.key]
    if cause is not None:
        columns.causation, columns.correlation = [cause.id], [cause.correlation_id or cause.id]
    options = None
    if call.priority or call.max_attempts is not None:
        options = DeliveryOptions(call.priority, max_attempts=call.max_attempts)
    target = queues.find(commit, call.queue) or queues.create(commit, call.queue, {})
    note_replies(commit, target, [headers], moved=True)  # a forced push leaves this check out
    (receipt,) = push(commit, target, as_batch(columns), options, forced=cause is not None, moved=cause is not None)
    return receipt


# ── joins ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def gather(commit: Commit, queues: QueueCache, wanted: GatherRequest) -> list[Receipt]:
    """Pushes calls together, and notes the calls that follow when all of them have returned."""
    for one in (*wanted.calls, *wanted.then, *(later for call in wanted.calls for later in call.then)):
        check_name(one.queue, "queue")
        check_kind(one.task)
    if not wanted.calls:
        raise ConfigError("there is no call to gather")
    receipts = []
    for number, call in enumerate(wanted.calls):
        headers = {} if call.keep is None else reply_headers(call.queue, call.keep)
        if wanted.then:
            headers[JOIN] = f"{wanted.id}/{number}"
        receipts.append(_push(commit, queues, call, call.then, [], headers, None))
    if wanted.then:
        headers = {} if wanted.keep is None else reply_headers(wanted.then[0].queue, wanted.keep)
        if headers:
            headers[REPLY] += f"#{wanted.id}"
        count, ids = len(wanted.calls), [receipt.id for receipt in receipts]
        row = JoinRow(count, count, wanted.then, headers, commit.now_ms, ids)
        commit.tx.put(keys.join_key(wanted.id), keys.encode(row))
    return receipts


def find_join(snap: Snapshot, id: str) -> JoinRow | None:
    """Returns a join whose calls have not all returned."""
    value = snap.get(keys.join_key(id))
    return None if value is None else _read_join(value, "of a join")


def missing_calls(snap: Snapshot, id: str, row: JoinRow) -> list[str]:
    """Returns the ids of those calls of a join that have not returned."""
    return [one for number, one in enumerate(row.calls) if snap.get(keys.join_key(id, number)) is None]


def _join(commit: Commit, queues: QueueCache, event: Event, given: StoredResult) -> None:
    """Adds the result of a call to its join; the last result pushes the following call."""
    id, _, place = event.headers[JOIN].partition("/")
    row = find_join(commit.tx, id)
    if row is None or not place.isascii() or not place.isdigit() or int(place) >= row.count:
        return
    mine = keys.join_key(id, int(place))
    if commit.tx.get(mine) is not None:
        return
    if given.binary:
        raise ConfigError("a join takes JSON, and bytes are none")
    row.left -= 1
    if row.left:
        commit.tx.put(mine, given.payload)
        commit.tx.put(keys.join_key(id), keys.encode(row))
        return
    others = {number: commit.tx.get(keys.join_key(id, number)) or b"null" for number in range(row.count)}
    results = [others[number] if number != int(place) else given.payload for number in range(row.count)]
    for number in range(row.count):
        commit.tx.delete(keys.join_key(id, number))
    commit.tx.delete(keys.join_key(id))
    first, *rest = row.then
    joined = msgspec.Raw(b"[%b]" % b",".join(results))
    receipt = _push(commit, queues, first, rest, [joined], dict(row.headers), event)
    wanted = read_reply(row.headers, id)
    if wanted is not None:
        note_place(commit, wanted, receipt)

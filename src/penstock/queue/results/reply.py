"""A message's wish for a reply, the event that grants it, and what those hear whose messages are taken away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal
from uuid import uuid4

import msgspec

from penstock.errors import ConfigError
from penstock.journal.blocks import Columns
from penstock.journal.catalog import TopicRecord, save_record
from penstock.journal.commit import Commit
from penstock.journal.prepare import PreparedBatch, encode_payload, is_binary
from penstock.journal.reading import TopicView
from penstock.limits import RESULT_TTL
from penstock.names import check_name
from penstock.queue.state.cache import QueueState
from penstock.queue.state.records import FAILED
from penstock.surface.delivery import Delivery
from penstock.surface.failure import DEAD_QUEUE, FailureText

REPLY: Final = "reply-to"
SUFFIX: Final = ".results"
RESULT: Final = "result"
FAILURE: Final = "failure"

_encode = msgspec.json.Encoder().encode


class StoredResult(msgspec.Struct, frozen=True):
    """What a handler returned, as it is stored."""

    payload: bytes = b"null"
    binary: bool = False


class FailureReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a message was given up, as it is stored."""

    reason: str
    error: str | None = None
    traceback: str | None = None


NOTHING: Final = StoredResult()


def answer_of(result: object) -> StoredResult:
    """A handler's return value; ConfigError when it has no stored form."""
    return NOTHING if result is None else StoredResult(encode_payload(result), is_binary(result))


# ── wishing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def with_reply(queue: str, headers: Mapping[str, str] | None) -> tuple[dict[str, str], str]:
    """The headers of a message of a queue that wants a reply, and the token of the reply."""
    token = uuid4().hex
    topic = check_name(queue + SUFFIX, "topic")
    return {**(headers or {}), REPLY: f"{topic}#{token}"}, token


def read_reply(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Topic and token of the reply a message wants; None: it wants none. Any producer may have written the header."""
    topic, found, token = headers.get(REPLY, "").rpartition("#")
    return (topic, token) if found and topic.endswith(SUFFIX) and topic != SUFFIX and token else None


def note_replies(
    commit: Commit, queue: QueueState, headers: Sequence[Mapping[str, str] | None], *, moved: bool
) -> None:
    """Notes that some of a queue's messages want replies, when the first of them is pushed."""
    if not any(one and REPLY in one for one in headers):
        return
    if queue.fanout and not moved:
        raise ConfigError(
            f"queue {queue.name!r} is in fanout mode, where every group has an outcome of its own: "
            'reply=True needs mode="work"'
        )
    queue.traits.replies = True
    queue.save_traits(commit)


# ── answering ────────────────────────────────────────────────────────────────────────────────────────────────────────
def answer(commit: Commit, queue: QueueState, seq: int, given: StoredResult) -> None:
    """A message was handled: says what came of it, if it wants a reply."""
    _append(commit, queue, seq, RESULT, given)


def answer_failure(commit: Commit, queue: QueueState, seq: int, reason: str, failure: FailureText) -> None:
    """A message was given up: says why, if it wants a reply."""
    _append(commit, queue, seq, FAILURE, StoredResult(_encode(FailureReply(reason, failure.error, failure.traceback))))


def _append(commit: Commit, queue: QueueState, seq: int, kind: str, given: StoredResult) -> None:
    event = queue.blocks.event(commit.tx, seq)
    # A dead letter has had its answer: what becomes of it here is no outcome of the message it was.
    wanted = None if event is None or DEAD_QUEUE in event.headers else read_reply(event.headers)
    if event is None or wanted is None:
        return
    topic, token = wanted
    if commit.head(topic) is None:
        head = commit.ensure(topic)
        head.settings = msgspec.structs.replace(head.settings, max_age=RESULT_TTL)
        save_record(commit.tx, topic, TopicRecord(head.topic_id, head.settings))
    columns = Columns([kind], [given.payload], [True] if given.binary else None, [token])
    columns.causation = [event.id]
    columns.correlation = [event.correlation_id or event.id]
    commit.append(topic, PreparedBatch(columns, len(given.payload)))


def ack_with(delivery: Delivery, result: object) -> None:
    """Settles a message that a worker's handler is done with; a reply that cannot be stored gives the message up."""
    if read_reply(delivery.headers) is None:
        delivery.ack()
        return
    try:
        delivery.ack(result=result)
    except ConfigError as error:
        delivery.nack(dead=True, error=ConfigError(f"the handler's return value is no reply: {error}"))


# ── messages that go unhandled ────────────────────────────────────────────────────────────────────────────────────────
Taken = Literal["removed", "discarded"]
REMOVED: Final[Taken] = "removed"
DISCARDED: Final[Taken] = "discarded"
_WHY: Final = FailureText("it was taken away before it was handled")
_EXPIRED: Final = "expired"


def answer_removed(commit: Commit, queue: QueueState, through: int) -> None:
    """Before a queue's messages up to a position go, in flight or not."""
    if queue.traits.replies:
        tx = commit.tx
        flying = queue.in_flight(tx)
        waiting = [seq for seq in _wanting(commit, queue, through) if seq in flying or queue.find(tx, seq)]
        answer_taken(commit, queue, waiting, REMOVED, held=flying)


def answer_taken(
    commit: Commit, queue: QueueState, seqs: Iterable[int], why: Taken, held: frozenset[int] | set[int] = frozenset()
) -> None:
    """Before unsettled messages go. One that has failed has had its answer; one past its ttl hears that, unless it is
    in flight."""
    if not queue.traits.replies:
        return
    queue.blocks.refresh(commit)
    overdue = queue.overdue_through(commit.tx, commit.now_ms)
    for seq in seqs:
        if all(message.state != FAILED for _, message in queue.find(commit.tx, seq)):
            late = seq <= overdue and seq not in held
            answer_failure(commit, queue, seq, _EXPIRED if late else why, FailureText() if late else _WHY)


def _wanting(commit: Commit, queue: QueueState, through: int) -> Iterator[int]:
    """Messages up to a position that want replies, settled or not."""
    commit.flush()
    view = TopicView(commit.tx, queue.name, TopicRecord(queue.topic))
    for block in view.blocks(0, through):
        if block.may_have_header(REPLY):
            for row, seq in enumerate(block.seqs):
                if seq <= through and REPLY in block.headers(row):
                    yield seq

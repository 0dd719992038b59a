"""Outcomes of messages that were pushed with `reply=True`: the result of the handler, or why the message was given up.

A message that wants a reply has a header (`reply-to`) that names the topic `<queue>.results`. The outcome is an event
of that topic, with the message's id as its key and the message as its cause, in the commit that settles it; its headers
say when the message was pushed and taken, and how often. A copy (a dead letter, a moved message) keeps the id of the
first message. A row says where the message is, so that a caller with the first receipt finds it. The pusher may wait
with a ticket; one thread follows the topic for all of a journal, while any waits. No outcome is missed: a ticket
enlists, and only then reads what is there already; what comes later, the thread sees.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

import msgspec

from penstock.core.clock import Duration, from_ms, seconds
from penstock.core.consuming.delivery import Delivery
from penstock.core.consuming.handover import hand_over
from penstock.core.events import Event, Receipt
from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit, change_settings
from penstock.core.journal.prepare import PreparedBatch, encode_payload, is_binary
from penstock.core.model.calls import JOIN, THEN
from penstock.core.model.failure import DEAD_QUEUE, FailureText
from penstock.core.model.reply import KEEP, REPLY, SUFFIX, WantedReply, read_reply, reply_headers
from penstock.core.names import check_mapping, check_name
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueState
from penstock.core.queue.state.records import FAILED, MessageRow
from penstock.core.queue.tasks.state import note_run
from penstock.core.ticket import Ticket, wake
from penstock.errors import Closed, ConfigError, PenstockError, PositionTrimmed, ReplyFailed
from penstock.limits import RESULT_TTL

if TYPE_CHECKING:
    from penstock.core.consuming.subscription import Subscription
    from penstock.core.engine.contract import Snapshot
    from penstock.core.surface.journal import Journal
    from penstock.core.surface.queue import Queue
    from penstock.core.surface.topic import Topic

RESULT: Final = "result"
FAILURE: Final = "failure"

# Headers of an outcome.
TASK: Final = "task"
QUEUE: Final = "queue"
SEQ: Final = "seq"
ATTEMPTS: Final = "attempts"
PUSHED: Final = "pushed-at"
BEGAN: Final = "began-at"

_encode = msgspec.json.Encoder().encode


class StoredResult(msgspec.Struct, frozen=True):
    """The stored result of a handler."""

    payload: bytes = b"null"
    binary: bool = False


class PlaceRow(msgspec.Struct, array_like=True, frozen=True):
    """The place of a message that has another id than its outcome: a copy, or a call that follows another."""

    queue: str
    seq: int


_read_place = keys.row_decoder(PlaceRow)


class FailureReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a message was given up, as it is stored."""

    reason: str
    error: str | None = None
    traceback: str | None = None


NOTHING: Final = StoredResult()


def answer_of(result: object) -> StoredResult:
    """Returns a handler's result in its stored form; raises ConfigError when it has none."""
    return NOTHING if result is None else StoredResult(encode_payload(result), is_binary(result))


# ── asking for a reply ───────────────────────────────────────────────────────────────────────────────────────────────
def with_reply(queue: str, headers: Mapping[str, str] | None, keep: float | None = None) -> dict[str, str]:
    """Returns the headers of a message of a queue that wants a reply, which is kept for so many seconds."""
    check_name(queue + SUFFIX, "topic")
    return {**check_mapping(headers, "headers"), **reply_headers(queue, keep)}


def note_replies(
    commit: Commit, queue: QueueState, headers: Sequence[Mapping[str, str] | None], *, moved: bool
) -> None:
    """Notes that messages of a queue want replies, when the first such message is pushed."""
    asking = [one for one in headers if one and REPLY in one]
    following = any(one and (THEN in one or JOIN in one) for one in headers)
    if not asking and not following:
        return
    if queue.fanout and following:
        raise ConfigError(f"queue {queue.name!r} is in fanout mode, where no call is followed by another")
    if queue.fanout and not moved:
        if all(KEEP in one for one in asking):  # a task's reply: no caller announced that it waits
            return
        raise ConfigError(
            f"queue {queue.name!r} is in fanout mode, where every group has an outcome of its own: "
            'reply=True needs mode="work"'
        )
    queue.traits.replies = True
    queue.save_traits(commit)


# ── answering ────────────────────────────────────────────────────────────────────────────────────────────────────────
def answer(commit: Commit, queue: QueueState, message: MessageRow, given: StoredResult) -> None:
    """Publishes the outcome of a handled message, if the message wants a reply."""
    _append(commit, queue, message, RESULT, given)


def answer_failure(
    commit: Commit, queue: QueueState, message: MessageRow, reason: str, failure: FailureText, *, stays: bool = False
) -> None:
    """A message was given up: says why, if it wants a reply. `stays`: the message is kept in its queue."""
    text = _encode(FailureReply(reason, failure.error, failure.traceback))
    _append(commit, queue, message, FAILURE, StoredResult(text), stays)


def _append(
    commit: Commit, queue: QueueState, message: MessageRow, kind: str, given: StoredResult, stays: bool = False
) -> None:
    event = queue.blocks.event(commit.tx, message.seq)
    # A dead letter has had its answer: its fate here is no outcome of the original message.
    wanted = None if event is None or DEAD_QUEUE in event.headers else read_reply(event.headers, event.id)
    if event is None or wanted is None:
        return
    if not stays:
        _forget_place(commit, event, wanted)
    headers = {TASK: event.kind, QUEUE: queue.name, SEQ: str(message.seq), PUSHED: event.recorded_at.isoformat()}
    if message.last_ms:
        headers |= {ATTEMPTS: str(message.attempts), BEGAN: from_ms(message.last_ms).isoformat()}
    if wanted.keep is not None:
        headers[KEEP] = event.headers[KEEP]
        took = max(0, commit.now_ms - message.last_ms) if kind == RESULT else None
        note_run(commit, queue.topic, queue.name, event.kind, took)
    _write(commit, wanted, kind, given, event, headers)


def note_moved(commit: Commit, event: Event, receipt: Receipt) -> None:
    """Notes where a message moved, so that callers find it by its id."""
    wanted = read_reply(event.headers, event.id)
    if wanted is not None:
        note_place(commit, wanted, receipt)


def note_place(commit: Commit, wanted: WantedReply, receipt: Receipt) -> None:
    """Keeps the place of the message whose outcome is wanted, until the message is settled or removed."""
    commit.tx.put(keys.place_key(wanted.token), keys.encode(PlaceRow(receipt.topic, receipt.seq)))


def find_place(snap: Snapshot, token: str) -> PlaceRow | None:
    """Returns the place of a message by the token of its outcome; None for one that is where it was pushed."""
    value = snap.get(keys.place_key(token))
    return None if value is None else _read_place(value, "of calls")


def _forget_place(commit: Commit, event: Event, wanted: WantedReply) -> None:
    if wanted.token != event.id:
        commit.tx.delete(keys.place_key(wanted.token))


def _write(
    commit: Commit, wanted: WantedReply, kind: str, given: StoredResult, event: Event, headers: dict[str, str]
) -> None:
    topic = wanted.topic
    head = commit.head(topic)
    if head is None:
        change_settings(commit, topic, {"max_age": wanted.keep or RESULT_TTL})
    elif wanted.keep is not None and 0 < (head.settings.max_age or math.inf) < wanted.keep:
        change_settings(commit, topic, {"max_age": wanted.keep})
    columns = Columns([kind], [given.payload], [True] if given.binary else None, [wanted.token])
    columns.headers = [headers]
    columns.causation = [event.id]
    columns.correlation = [event.correlation_id or event.id]
    commit.append(topic, PreparedBatch(columns, len(given.payload)))


def wants_result(delivery: Delivery) -> bool:
    """Returns True if a caller, or a following call, gets the result of a message's handler."""
    return any(name in delivery.headers for name in (REPLY, THEN, JOIN))


def ack_with(delivery: Delivery, result: object) -> None:
    """Settles a message after its handler; a result that cannot be stored gives the message up."""
    if not wants_result(delivery):
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
    """Answers for the messages up to a position, in flight or not, before they are removed."""
    if queue.traits.replies:
        tx = commit.tx
        flying = queue.in_flight(tx)
        waiting = [seq for seq in _messages_with_reply(commit, queue, through) if seq in flying or queue.find(tx, seq)]
        answer_taken(commit, queue, waiting, REMOVED, held=flying)


def answer_taken(
    commit: Commit, queue: QueueState, seqs: Iterable[int], why: Taken, held: frozenset[int] | set[int] = frozenset()
) -> None:
    """Publishes outcomes of unsettled messages before they are removed.

    A failed message has its outcome already; a message past its ttl counts as expired, unless it is in flight.
    """
    if not queue.traits.replies:
        return
    queue.blocks.refresh(commit)
    overdue = queue.overdue_through(commit.tx, commit.now_ms)
    for seq in seqs:
        if any(message.state == FAILED for _, message in queue.find(commit.tx, seq)):
            event = queue.blocks.event(commit.tx, seq)
            if event is not None and (wanted := read_reply(event.headers, event.id)) is not None:
                _forget_place(commit, event, wanted)
        else:
            late = seq <= overdue and seq not in held
            reason, failure = (_EXPIRED, FailureText()) if late else (why, _WHY)
            answer_failure(commit, queue, MessageRow(seq), reason, failure)


def _messages_with_reply(commit: Commit, queue: QueueState, through: int) -> Iterator[int]:
    """Yields the messages up to a position that want replies, settled or not."""
    commit.flush()
    view = queue.view(commit.tx)
    for block in view.blocks(0, through):
        if block.may_have_header(REPLY):
            for row, seq in enumerate(block.seqs):
                if seq <= through and REPLY in block.headers(row):
                    yield seq


# ── waiting for outcomes ─────────────────────────────────────────────────────────────────────────────────────────────
IDLE = 5.0
"""The seconds without a waiter after which the thread ends."""


class ResultsFollower:
    """The waiters for outcomes in one topic of results."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Ticket[Event | None]]] = {}
        self._following: Subscription | None = None

    def enlist(self, topic: Topic, token: str) -> Ticket[Event | None]:
        """Returns a ticket that is resolved with the outcome, or with None when the caller must read the topic
        again.
        """
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
                self._following = following  # only now: without a thread the next waiter begins anew
        return ticket

    def leave(self, token: str, ticket: Ticket[Event | None]) -> None:
        """Removes a ticket that no caller waits for any more."""
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
            pass  # the waiters read the topic again, and enlist anew
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
        """Returns True if no caller waits; the next waiter then begins anew."""
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


# A follower refers to its journal only while its thread runs; otherwise it would keep the journal, its key, alive.
_followers: WeakKeyDictionary[Journal, dict[str, ResultsFollower]] = WeakKeyDictionary()
_making = threading.Lock()


def follower_of(journal: Journal, topic: str) -> ResultsFollower:
    """Returns the journal's only follower of a topic of results."""
    with _making:
        return _followers.setdefault(journal, {}).setdefault(topic, ResultsFollower())


# ── tickets ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class ResultTicket:
    """The outcome of a message that was pushed with `reply=True`: wait with `result()`, or `await` the ticket."""

    def __init__(self, queue: Queue, receipt: Receipt) -> None:
        self.queue = queue
        self.receipt = receipt
        """The receipt of the message."""
        self._token = receipt.id
        if receipt.duplicate:
            original = queue.journal.topic(queue.name).get(receipt.seq)
            wanted = None if original is None else read_reply(original.headers, original.id)
            if wanted is None:
                raise ConfigError(
                    f"this push repeats message {receipt.seq} of queue {queue.name!r}, which wants no reply or is gone"
                )
            self._token = wanted.token
        self._topic = queue.journal.topic(queue.name + SUFFIX)
        self._follower = follower_of(queue.journal, queue.name + SUFFIX)
        self._found: Event | None = None

    def __repr__(self) -> str:
        return f"<ticket for message {self.receipt.seq} of queue {self.queue.name!r}>"

    def done(self) -> bool:
        """Returns True if the outcome is there."""
        return self._poll() is not None

    def result(self, timeout: Duration | None = None) -> Any:
        """Waits for the outcome and returns the handler's result.

        Raises ReplyFailed when the message was given up, and TimeoutError after `timeout`, when the outcome may still
        come.
        """
        deadline = _deadline(timeout)
        while True:
            waiting = self._enlist()
            try:
                found = self._poll() or (waiting.result(self._left(deadline)) if waiting else None)
            except TimeoutError:
                raise self._late() from None
            finally:
                self._leave(waiting)
            if found is not None:
                return self._outcome(found)

    async def result_async(self, timeout: Duration | None = None) -> Any:
        """Does what `result` does, for an event loop."""
        import asyncio

        deadline = _deadline(timeout)
        while True:
            waiting = await hand_over(self._enlist, self._leave)
            try:
                found = await asyncio.to_thread(self._poll)
                if found is None and waiting is not None:
                    async with asyncio.timeout(self._left(deadline)):
                        found = await waiting
            except TimeoutError:
                raise self._late() from None
            finally:
                self._leave(waiting)
            if found is not None:
                return self._outcome(found)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result_async().__await__()

    def _poll(self) -> Event | None:
        if self._found is None:
            if self.queue.journal.closed:
                raise Closed(f"the journal was closed while {self!r} waited")
            outcomes = self._topic.read(key=self._token, kind=(RESULT, FAILURE), reverse=True, limit=1)
            self._found = next(iter(outcomes), None)
        return self._found

    def _enlist(self) -> Ticket[Event | None] | None:
        """Begins to wait for the outcome; returns None when it is known."""
        if self._found is not None:
            return None
        if self.queue.journal.closed:
            raise Closed(f"the journal was closed while {self!r} waited")
        return self._follower.enlist(self._topic, self._token)

    def _leave(self, waiting: Ticket[Event | None] | None) -> None:
        if waiting is not None:
            self._follower.leave(self._token, waiting)

    def _left(self, deadline: float | None) -> float | None:
        """Returns the remaining time to wait; None for no limit."""
        if deadline is None:
            return None
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> TimeoutError:
        return TimeoutError(f"message {self.receipt.seq} of queue {self.queue.name!r} has no outcome yet")

    def _outcome(self, found: Event) -> Any:
        if found.kind == RESULT:
            return found.payload
        why = found.payload
        raise ReplyFailed(
            f"message {self.receipt.seq} of queue {self.queue.name!r} was given up ({why['reason']}): "
            f"{why.get('error') or 'no error was given'}",
            reason=why["reason"],
            error=why.get("error"),
            traceback=why.get("traceback"),
        )


def _deadline(timeout: Duration | None) -> float | None:
    return None if timeout is None else time.monotonic() + seconds(timeout, "timeout")

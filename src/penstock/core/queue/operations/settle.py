"""The end of a delivery: acknowledged, given back, failed, expired, given up.

    held ──ack──────────────▶ gone
         ──nack, expiry─────▶ ready, or waiting for its retry; after the last attempt: dead letter, else failed
         ──release──────────▶ ready, the attempt not counted
         ──extend───────────▶ held

Every function here runs inside a commit; it first checks, then changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penstock.core.consuming.delivery import Delivery
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.journal.owners import is_alive
from penstock.core.model.failure import AttemptEnd, FailureText, NackRequest
from penstock.core.model.take import Outcome
from penstock.core.observe.logs import Log
from penstock.core.queue import metrics
from penstock.core.queue.dead_letters import BUDGET, GROUP, dead_headers
from penstock.core.queue.flow import load_breaker, read_rate, save_breaker
from penstock.core.queue.operations.follow import settled
from penstock.core.queue.operations.notes import carry_steps
from penstock.core.queue.operations.push import as_batch, push
from penstock.core.queue.results import NOTHING, StoredResult, answer_failure
from penstock.core.queue.state import keys
from penstock.core.queue.state.blocks import copy_columns
from penstock.core.queue.state.cache import QueueState, note_extension
from penstock.core.queue.state.feed import ACKED, TOLD_TOGETHER, Change, Kind
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import HeldMessage, Lease, indexes_of, is_token_of, make_token, read_token
from penstock.core.queue.state.places import PARKED, UNFINISHED
from penstock.core.queue.state.records import (
    FAILED,
    NEVER,
    UNTOUCHED,
    WAITING,
    AttemptRow,
    FailureTrail,
    LastFailure,
    MessageRow,
    encode,
)
from penstock.errors import StaleDelivery

if TYPE_CHECKING:
    from penstock.core.queue.queue import LocalQueue

Reason = Literal["rejected", "attempts exhausted", "expired", "retention"]
REJECTED: Final = "rejected"
EXHAUSTED: Final = "attempts exhausted"
EXPIRED: Final = "expired"
RETIRED: Final = "retention"
SWEEP_LEASES = 512
"""The number of leases that one commit checks for their end."""
OWNER_CHECK = 0.5
"""The seconds between two checks of the owners of endless leases."""
LAPSED: Final = NackRequest("the lease ended")


def held_in(commit: Commit, queue: QueueState, delivery: Delivery) -> HeldMessage[Group] | None:
    """Returns the message that a delivery holds; None when it no longer holds the message."""
    hold = delivery._hold
    if TYPE_CHECKING:
        assert isinstance(hold, LeaseHandle)
    group = queue.group(commit.tx, hold.group)
    lease = group.lease(commit.tx, hold.lease_id)
    if lease is None or lease.secret != hold.secret or not lease.holds(delivery._index):
        return None
    return HeldMessage(group, hold.lease_id, lease, delivery._index)


def held_or_stale(commit: Commit, queue: QueueState, delivery: Delivery) -> HeldMessage[Group]:
    """Returns the message that a delivery holds; raises StaleDelivery when it no longer holds the message."""
    held = held_in(commit, queue, delivery)
    if held is None:
        raise stale_error(delivery.token, queue.name)
    return held


def held_by_token(snap: Snapshot, queue: QueueState, token: str) -> HeldMessage[Group] | None:
    """Returns the message of a token, if its lease still holds the message."""
    address = read_token(token)
    if address is None or (address.group and address.group not in queue.record.groups.values()):
        return None
    group = queue.group(snap, address.group)
    lease = group.lease(snap, address.lease_id)
    if lease is None or not is_token_of(queue.topic, address, lease.secret) or not lease.holds(address.index):
        return None
    return HeldMessage(group, address.lease_id, lease, address.index)


def stale_error(token: str, queue: str) -> StaleDelivery:
    return StaleDelivery(
        f"delivery {token} of queue {queue!r} is not held any more: its lease was lost, or it was settled already",
        token=token,
    )


# ── the ways out ───────────────────────────────────────────────────────────────────────────────────────────────────
def ack(commit: Commit, group: Group, lease_id: int, lease: Lease, mask: int, given: StoredResult = NOTHING) -> None:
    """Settles messages of a lease permanently (one bit each; the lease holds all of them).

    `given` is the result of the handler, for a message that wants a reply.
    """
    queue = group.queue
    if queue.traits.replies:
        for index in indexes_of(mask):
            settled(commit, queue, lease.message(index), given)
    times = group.record.settle_times
    bucket = (commit.now_ms - lease.delivered_ms).bit_length()  # inline, which saves a call
    times[bucket] = times.get(bucket, 0) + mask.bit_count()
    group.record.failing = 0
    group.release(commit, lease_id, lease, mask, ACKED)
    if lease.messages is not None:
        for index in indexes_of(mask):
            group.settle(commit, lease.messages[index])
    if queue.traits.notes:
        for index in indexes_of(mask):
            group.forget_notes(commit, lease.seq(index))
    if queue.traits.letters and not queue.fanout:
        for index in indexes_of(mask):
            queue.forget_letter(commit, lease.seq(index))
    if queue.record.policy.breaker is not None:
        note_success(commit, group, [lease.seq(index) for index in indexes_of(mask)])


def nack(commit: Commit, queue: QueueState, delivery: Delivery, options: NackRequest) -> Outcome:
    """Ends an attempt that failed: requeues the message, now or later, or gives it up."""
    held = held_or_stale(commit, queue, delivery)
    change = Change("failed", "rejected" if options.dead else "nack", options.error)
    (message,) = held.group.take_back(commit, held.lease_id, held.lease, [held.index], change)
    return _fail(commit, held.group, held.lease, message, commit.now_ms, options)


def release(commit: Commit, queue: QueueState, deliveries: list[Delivery], delay: float = 0.0) -> None:
    """Requeues held messages as if they had not been taken; `delay` is the number of seconds until they are ready."""
    due = commit.now_ms + round(delay * 1000) if delay else 0
    for delivery in deliveries:
        held = held_in(commit, queue, delivery)
        if held is not None:
            (message,) = held.group.take_back(commit, held.lease_id, held.lease, [held.index], Change("released"))
            message.attempts -= 1
            message.since_ms = commit.now_ms
            held.group.requeue(commit, message, due)


def extend(
    commit: Commit, queue: QueueState, deliveries: list[Delivery], longer: float | None, *, patient: bool
) -> int:
    """Extends (or shortens) the leases of held messages to `longer` seconds from now, or to the policy's lease;
    returns the new deadline. An impatient call raises StaleDelivery when a message is not held.
    """
    find = held_in if patient else held_or_stale
    held = [one for delivery in deliveries if (one := find(commit, queue, delivery)) is not None]
    lease_ms = round((queue.policy.lease if longer is None else longer) * 1000)
    deadline = commit.now_ms + lease_ms if lease_ms else NEVER
    for group, lease_id, lease, indexes in _by_lease(held):
        if not lease_ms and lease.owner is None:
            continue  # the lease keeps its deadline: only a take can make a lease endless
        if len(indexes) == len(lease.held()):
            if lease.owner is not None and lease_ms:
                lease.owner = None
                group.record.endless -= 1
            lease.deadline, lease.renewed_ms, lease.extended = deadline, commit.now_ms, None
        else:
            lease.extended = lease.extended or {}
            lease.extended.update(dict.fromkeys(indexes, (deadline, commit.now_ms)))
        if deadline != NEVER and (not group.record.next_deadline or deadline < group.record.next_deadline):
            group.record.next_deadline = deadline
            commit.touched.setdefault(queue.name, 0)  # takes that wait for a later deadline must try again
        if deadline != NEVER and lease_id <= group.record.swept:  # the sweep under way has passed this lease
            group.record.swept_deadline = min(group.record.swept_deadline or deadline, deadline)
        commit.touch(group)
        group.save_lease(commit, lease_id, lease)
        if lease.consumer is not None:
            note_extension(commit, queue, lease.label, lease.consumer)
    return deadline


def expire(commit: Commit, group: Group, step: int) -> bool:
    """Takes back messages that were not settled in time; returns True when leases or messages are left to process.

    One commit checks a few hundred leases; the record holds where the next commit continues.
    """
    record, now = group.record, commit.now_ms
    commit.touch(group)
    some = list(islice(group.leases(commit.tx, record.swept), SWEEP_LEASES))
    for lease_id, lease in some:
        if lease.deadline <= now or lease.extended:
            over = [index for index in lease.held() if lease.deadline_of(index) <= now]
            if len(over) > step:
                expire_messages(commit, group, lease_id, lease, over[:step])
                return True
            expire_messages(commit, group, lease_id, lease, over)
            step -= len(over)
        for deadline in lease.deadlines():
            record.swept_deadline = min(record.swept_deadline or deadline, deadline)
        record.swept = lease_id
    if len(some) == SWEEP_LEASES:
        return True
    record.next_deadline, record.swept, record.swept_deadline = record.swept_deadline, 0, 0
    return False


def expire_messages(
    commit: Commit, group: Group, lease_id: int, lease: Lease, indexes: list[int], *, stays: bool = False
) -> None:
    """Takes messages of a lease back as if the lease had ended; a past deadline counts as the time of its end.

    With `stays`, a given-up message is kept as failed, even when the queue has a dead-letter queue.
    """
    deadlines = [lease.deadline_of(index) for index in indexes]
    messages = group.take_back(commit, lease_id, lease, indexes, Change("failed", "lease", LAPSED.error))
    for message, deadline in zip(messages, deadlines, strict=True):
        _fail(commit, group, lease, message, min(deadline, commit.now_ms), LAPSED, stays=stays)


def lapsed_message(snap: Snapshot, held: HeldMessage[Group]) -> MessageRow:
    """Returns the state of a message whose lease has ended: given up, or ready after its retry's delay."""
    queue, message = held.group.queue, held.lease.message(held.index)
    failed = over_budget(snap, queue, message)
    wait = _wait_of(queue, message, LAPSED, _no_jitter)
    due = held.lease.deadline_of(held.index) + round(wait * 1000)
    return msgspec.structs.replace(
        message, state=FAILED if failed else WAITING, due=0 if failed else due, error=LAPSED.error
    )


def end_lapsed(commit: Commit, queue: QueueState, seqs: Iterable[int]) -> None:
    """Takes messages back whose leases have ended, like a take that notices it; given-up messages stay in this queue.

    Changes of messages by position call this first, so that they meet the state that views show.
    """
    now = commit.now_ms
    for group in queue.all_groups(commit.tx):
        for seq in seqs if 0 < group.record.next_deadline <= now else ():
            held = group.lease_of(commit.tx, seq)
            if held is not None and held.ended(now):
                expire_messages(commit, group, held.lease_id, held.lease, [held.index], stays=True)


def _no_jitter() -> float:
    return 0.0


def over_budget(snap: Snapshot, queue: QueueState, message: MessageRow) -> bool:
    """Returns True if a message has had all its attempts."""
    return message.attempts >= queue.budget(snap, message.seq)


def give_up_dead_owners(commit: Commit, group: Group, owner: str, step: int) -> bool:
    """Takes back messages that ended processes held by endless leases; returns True when leases are left to check."""
    queue = group.queue
    now, sweeps = time.monotonic(), queue.owner_sweeps
    checked, swept = sweeps.get(group.group_id, (0.0, 0))
    if not swept and now - checked < OWNER_CHECK:
        return False
    some = list(islice(group.leases(commit.tx, swept), SWEEP_LEASES))
    alive: dict[str, bool] = {owner: True}
    for lease_id, lease in some:
        if lease.owner is not None:
            if lease.owner not in alive:
                alive[lease.owner] = is_alive(lease.owner)
            if not alive[lease.owner]:
                held = lease.held()
                expire_messages(commit, group, lease_id, lease, held[:step])
                if len(held) > step:
                    sweeps[group.group_id] = (now, lease_id - 1)
                    return True
                step -= len(held)
    more = len(some) == SWEEP_LEASES
    sweeps[group.group_id] = (now, some[-1][0] if more else 0)
    return more


def give_up(
    commit: Commit,
    group: Group,
    message: MessageRow,
    reason: Reason,
    failure: FailureText | None,
    *,
    tried: list[AttemptRow] | None = None,
    stays: bool = False,
) -> Outcome:
    """Sends a message to the dead letters, or else keeps it as failed; a message past its ttl is removed instead.

    `tried` holds its failed attempts, if an attempt ends now. With `stays` the message is kept as failed in any case.
    """
    queue = group.queue
    failure = failure or FailureText()
    stays = stays or (queue.policy.dead_letter is None and reason != EXPIRED)
    if queue.traits.replies:
        answer_failure(commit, queue, message, reason, failure, stays=stays)
    attempts = group.trail(commit.tx, message).attempts if tried is None else tried
    message.error = failure.error
    if stays:
        group.save_trail(commit, message, FailureTrail(attempts, failure.traceback))
        group.move(commit, message, FAILED)
        group.tell(commit, message, Change("dead", reason, failure.error))
        return "failed"
    if queue.policy.dead_letter is not None:
        dead_letter(commit, group, message, reason, failure, attempts)
    kind: Kind = "expired" if reason == EXPIRED else "dead"
    group.remove(commit, message, Change(kind, reason, failure.error, queue.policy.dead_letter))
    return "dropped" if queue.policy.dead_letter is None else "dead"


# ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _by_lease(held: list[HeldMessage[Group]]) -> Iterable[tuple[Group, int, Lease, list[int]]]:
    together: dict[tuple[int, int], tuple[Group, int, Lease, list[int]]] = {}
    for one in held:
        where = one.group.group_id, one.lease_id
        together.setdefault(where, (one.group, one.lease_id, one.lease, []))[3].append(one.index)
    return together.values()


def _fail(
    commit: Commit,
    group: Group,
    lease: Lease,
    message: MessageRow,
    since_ms: int,
    options: NackRequest,
    *,
    stays: bool = False,
) -> Outcome:
    """Requeues a message whose attempt ended badly at `since_ms`, or gives it up when its budget is used."""
    queue = group.queue
    if queue.record.policy.breaker is not None:
        if options.dead:  # the handler's verdict on the message, not a failure of a dependency
            note_success(commit, group, [message.seq])
        else:
            note_failure(commit, group, message.seq)
    ended: AttemptEnd = "rejected" if options.dead else "lapsed" if options is LAPSED else "failed"
    group.record.failing += ended == "failed"
    tried = group.ended_attempts(commit, lease, message, since_ms, ended, options.error)
    row = keys.last_failure_key(queue.topic, group.group_id, lease.consumer or "")
    commit.tx.put(row, encode(LastFailure(message.seq, tried[-1])))
    if options.dead or over_budget(commit.tx, queue, message):
        reason: Reason = REJECTED if options.dead else EXHAUSTED
        return give_up(commit, group, message, reason, options, tried=tried, stays=stays)
    message.error = options.error
    group.save_trail(commit, message, FailureTrail(tried, options.traceback))
    wait = _wait_of(queue, message, options)
    message.since_ms, due = commit.now_ms, since_ms + round(wait * 1000)
    group.requeue(commit, message, due if due > commit.now_ms else 0)
    group.tell(commit, message, Change("retried"))
    return "requeued"


def _wait_of(
    queue: QueueState, message: MessageRow, options: NackRequest, chance: Callable[[], float] | None = None
) -> float:
    """Returns the seconds that a message waits after a failed attempt."""
    if options.delay is not None:
        return options.delay
    retry = queue.policy.retry
    return options.default_delay if retry is None else retry.delay(message.attempts, chance)


# ── dead letters ──────────────────────────────────────────────────────────────────────────────────────────────────────
def dead_letter(
    commit: Commit, group: Group, message: MessageRow, reason: str, failure: FailureText, tried: list[AttemptRow]
) -> None:
    """Pushes a copy of a message to its queue's dead letters, where it has a fresh budget."""
    queue = group.queue
    target = queue.policy.dead_letter
    assert target is not None
    event = queue.blocks.event(commit.tx, message.seq)
    if event is None:
        return
    columns, headers = copy_columns(event), dead_headers(event, queue.name, message, reason, failure, tried)
    if group.name:
        headers[GROUP] = group.name
    own = queue.own_budget(commit.tx, message.seq)
    if own is not None:
        headers[BUDGET] = str(own)
    columns.headers = [headers]
    columns.occurred = [event._rows.occurred_ms(event._row)]
    columns.causation = [event.id]
    columns.correlation = [event.correlation_id or event.id]
    letters = queue.cache.find(commit, target) or queue.cache.create(commit, target, {})
    (receipt,) = push(commit, letters, as_batch(columns), None, forced=True)
    carry_steps(commit, [group], event, letters, receipt.seq)


# ── circuit breakers ──────────────────────────────────────────────────────────────────────────────────────────────────
log = Log("penstock.queue")


def note_failure(commit: Commit, group: Group, seq: int) -> None:
    """Tells a group's breaker that an attempt failed."""
    queue = group.queue
    policy = queue.policy
    if policy.breaker is None:
        return
    breaker = load_breaker(commit.tx, group)
    rate = read_rate(policy.breaker)
    again = bool(breaker.open_until)
    if breaker.failed(rate, round(policy.breaker_pause * 1000), commit.now_ms, seq):
        metrics.breaker_opened.labels(queue=queue.name).inc()
        log.warning(
            "the circuit breaker of queue %r (group %r) %s: nothing is handed out for %g s",
            queue.name,
            group.name or "default",
            "stays open, the message tried has failed" if again else f"opens after {rate.count} failures",
            policy.breaker_pause,
        )
    save_breaker(commit, group, breaker)


def note_success(commit: Commit, group: Group, seqs: list[int]) -> None:
    """Tells a group's breaker that messages were handled."""
    queue = group.queue
    breaker = load_breaker(commit.tx, group)
    if any(breaker.succeeded(seq) for seq in seqs):
        log.info("the circuit breaker of queue %r (group %r) closes", queue.name, group.name or "default")
        save_breaker(commit, group, breaker)
        commit.touched.setdefault(queue.name, 0)  # takes may wait for it


# ── given up without a delivery ───────────────────────────────────────────────────────────────────────────────────────
GIVE_UP_STEP = 64
"""The number of messages that one commit gives up, so that no caller waits long behind it."""


def give_up_through(commit: Commit, group: Group, through: int, reason: Reason) -> bool:
    """Gives up some messages of a group, up to a position, that are not in flight; returns True when more may be
    left.
    """
    queue = group.queue
    tx, left = commit.tx, GIVE_UP_STEP
    parked = group.parked(tx, through, 0, PARKED if reason == RETIRED else UNFINISHED)
    for seq in [message.seq for message in islice(parked, left)]:
        message = group.find(tx, seq)  # giving up other messages may have made it ready
        assert message is not None
        failure = FailureText(message.error, group.trail(tx, message).traceback)
        give_up(commit, group, message, reason, failure)
        left -= 1
    told = queue.policy.dead_letter is not None or queue.traits.replies or queue.feed is not None
    while left > 0 and (stretch := next(group.untouched(tx, through), None)) is not None:
        first, last = stretch
        event = queue.blocks.event(tx, first) if told else None
        if event is None:
            group.mark_taken(commit, first if told else last, first)
        else:
            special = queue.special(tx, group, first)
            priority = 0 if special is None else special.priority
            give_up(commit, group, MessageRow(first, UNTOUCHED, 0, priority, event.key), reason, None)
        left -= 1
    return left <= 0


def settle_through(commit: Commit, queue: QueueState, through: int) -> None:
    """Settles every message up to a position for every group, because a forced compaction removes it."""
    queue.tell_purged(commit, through, "compacted")
    for group in queue.all_groups(commit.tx):
        for lease_id, lease in list(group.leases(commit.tx)):
            gone = [index for index in lease.held() if lease.seq(index) <= through]
            for message in group.take_back(commit, lease_id, lease, gone, TOLD_TOGETHER):
                group.remove(commit, message, TOLD_TOGETHER)
        for seq in [message.seq for message in group.parked(commit.tx, through)]:
            group.discard(commit, seq, TOLD_TOGETHER)
        for start, end in list(group.untouched(commit.tx, through)):
            group.mark_taken(commit, end, start)


# ── the deliveries of this process ───────────────────────────────────────────────────────────────────────────────────
class LeaseHandle(msgspec.Struct, eq=False, weakref=False):
    """The lease that several deliveries share."""

    queue: LocalQueue
    label: str
    consumer: str | None
    topic: int
    group: int
    lease_id: int
    secret: bytes
    deadline: int

    def token(self, index: int) -> str:
        """Returns the token of the delivery with this index in the lease."""
        return make_token(self.topic, self.group, self.lease_id, index, self.secret)

    @classmethod
    def of(cls, queue: LocalQueue, group: Group, lease_id: int, lease: Lease) -> LeaseHandle:
        """Returns the lease that the deliveries of a group share."""
        taker, secret = (lease.label, lease.consumer), (lease.secret, lease.deadline)
        return cls(queue, *taker, group.topic, group.group_id, lease_id, *secret)

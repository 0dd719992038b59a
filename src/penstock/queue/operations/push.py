"""Pushing: the event, and, only for messages that ask for it, a row that says when and how to deliver it."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Literal

from penstock.clock import Clock, Seconds, to_ms
from penstock.errors import ConfigError, QueueFull
from penstock.events import Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import PreparedBatch
from penstock.names import is_whole
from penstock.queue.flow.merging import Throttle, count_replaced, debounce
from penstock.queue.flow.sorting import give_turns
from penstock.queue.policy import check_attempts, duration_ms
from penstock.queue.results.reply import note_replies
from penstock.queue.state import keys
from penstock.queue.state.cache import WORK, QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import READY, WAITING, MessageRow, SpecialRow, encode


class DeliveryOptions:
    """How a message (or every message of a batch) wants to be delivered, where that is not the usual way."""

    __slots__ = ("due", "max_attempts", "priority")

    def __init__(self, priority: int = 0, due: int = 0, max_attempts: int | None = None) -> None:
        self.priority = priority
        self.due = due
        self.max_attempts = max_attempts


def read_delivery_options(
    clock: Clock,
    key: str | None,
    priority: int | Literal["front"],
    delay: Seconds,
    not_before: datetime | None,
    max_attempts: int | None,
) -> DeliveryOptions | None:
    """A push's arguments, checked; None when they ask for nothing special."""
    if priority == "front":
        if key is not None:
            raise ConfigError('key= cannot be combined with priority="front": a key\'s messages keep their order')
        priority = keys.FRONT
    if not is_whole(priority):
        raise ConfigError(f'priority must be a whole number or "front", not {priority!r}')
    if not keys.LOWEST_PRIORITY <= priority <= keys.HIGHEST_PRIORITY:
        raise ConfigError(
            f"priority must fit 32 bits ({keys.LOWEST_PRIORITY} to {keys.HIGHEST_PRIORITY}), not {priority}"
        )
    if max_attempts is not None:
        check_attempts(max_attempts)
    due = 0
    if not_before is not None:
        if delay != 0:
            raise ConfigError("give delay= or not_before=, not both")
        due = to_ms(not_before, "not_before")
    elif delay != 0:
        due = clock.now_ms() + duration_ms(delay, "delay")
    due = due if due > clock.now_ms() else 0
    if key is not None and (due or delay != 0 or not_before is not None):
        raise ConfigError("key= cannot be combined with delay= or not_before=: a key's messages keep their order")
    if key is not None and priority != 0:
        raise ConfigError("key= cannot be combined with priority=: a key's messages keep their order")
    if not priority and not due and max_attempts is None:
        return None
    return DeliveryOptions(priority, due, max_attempts)


def push(
    commit: Commit,
    queue: QueueState,
    batch: PreparedBatch,
    options: DeliveryOptions | None,
    *,
    forced: bool = False,
    moved: bool = False,
) -> list[Receipt]:
    """Appends a batch of messages; `forced` for those that must not be lost: dead letters fit always. `moved`: they
    were pushed before, and none takes another one's place."""
    policy = queue.record.policy
    throttle = None
    debounced = False
    if batch.columns.key is not None and not forced and not moved:
        if policy.throttle is not None:
            throttle = Throttle(commit, queue, batch, round(policy.throttle * 1000))
            batch = throttle.batch
        debounced = policy.debounce is not None
    if not forced:
        if batch.columns.key is not None and policy.priority:
            raise ConfigError(
                f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys"
            )
        if options is not None and options.priority == keys.FRONT:
            if policy.fair_by is not None:
                raise ConfigError(f"queue {queue.name!r} gives all their turn (fair_by): it has no front to push to")
        elif options is not None and options.priority and not policy.priority:
            raise ConfigError(
                f"queue {queue.name!r} has no priorities: make it with priority=True, or change it with configure"
            )
        if policy.max_size is not None:
            replaced = count_replaced(commit, queue, batch) if debounced else 0
            _refuse_overflow(commit, queue, batch, policy.max_size + replaced)
    if batch.columns.headers is not None and not queue.traits.replies and not forced:
        note_replies(commit, queue, batch.columns.headers, moved=moved)
    receipts = commit.append(queue.name, batch)
    if options is not None:
        _grant(commit, queue, receipts, options)
    if policy.fair_by is not None and (options is None or not options.due) and not debounced:
        give_turns(commit, queue, receipts, batch.columns, policy.fair_by)
    if debounced:
        _debounce(commit, queue, receipts, batch.columns.key or [])
    return receipts if throttle is None else throttle.receipts(receipts)


def _debounce(commit: Commit, queue: QueueState, receipts: list[Receipt], keys_given: list[str | None]) -> None:
    """Holds messages back that have a key, each in the place of the one before it."""
    policy = queue.record.policy
    assert policy.debounce is not None
    limit = None if policy.debounce_limit is None else round(policy.debounce_limit * 1000)
    for receipt, key in zip(receipts, keys_given, strict=True):
        if key is not None and not receipt.duplicate:
            due = debounce(commit, queue, key, receipt.seq, round(policy.debounce * 1000), limit)
            _grant(commit, queue, [receipt], DeliveryOptions(due=due), key)


def push_each(
    commit: Commit, queue: QueueState, batch: PreparedBatch, options: list[DeliveryOptions | None]
) -> list[Receipt]:
    """`push` of a batch whose messages differ in how they want to be delivered."""
    receipts = push(commit, queue, batch, None, moved=True)
    for receipt, wanted in zip(receipts, options, strict=True):
        if wanted is not None and (wanted.priority or wanted.due or wanted.max_attempts is not None):
            _grant(commit, queue, [receipt], wanted)
    return receipts


def _refuse_overflow(commit: Commit, queue: QueueState, batch: PreparedBatch, max_size: int) -> None:
    fresh = len(batch.columns.kinds)
    if batch.dedups is not None:
        # Repeating a push that went through must say so, also when the queue is full by now.
        fresh = commit.count_fresh(queue.name, batch.dedups)
    held = queue.unsettled(commit)
    if fresh and held + fresh > max_size:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {max_size}; "
            f"{fresh} more do not fit: take some, or raise max_size with configure"
        )


def _grant(
    commit: Commit, queue: QueueState, receipts: list[Receipt], options: DeliveryOptions, key: str | None = None
) -> None:
    tx, topic, traits = commit.tx, queue.topic, queue.traits
    fresh = [receipt.seq for receipt in receipts if not receipt.duplicate]
    if not fresh:
        return
    due = options.due if options.due > commit.now_ms else 0
    if options.priority or due:
        if queue.fanout:
            value = encode(SpecialRow(options.priority, due, key))
            for seq in fresh:
                tx.put(keys.special_key(topic, seq), value)
            traits.special = fresh[-1]
            queue.save_traits(commit)
        else:
            _set_aside(commit, queue.group(tx, WORK), fresh, options.priority, due, key)
    if options.max_attempts is not None:
        value = options.max_attempts.to_bytes(4)
        for seq in fresh:
            tx.put(keys.override_key(topic, seq), value)
        if not traits.overridden:
            traits.overridden = True
            queue.save_traits(commit)


def _set_aside(commit: Commit, group: Group, seqs: list[int], priority: int, due: int, key: str | None) -> None:
    """Puts special messages where the one group of a work queue will find them."""
    for seq in seqs:
        group.place(commit, MessageRow(seq, WAITING if due else READY, priority=priority, key=key, due=due))
    start = seqs[0]
    for previous, seq in pairwise([*seqs, 0]):
        if seq != previous + 1:
            group.cover(commit, start, previous)
            start = seq

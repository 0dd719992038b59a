"""Pushing: the event, and, only for messages that ask for it, a row that says when and how to deliver it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from penstock.clock import set_back_ms
from penstock.errors import ConfigError, QueueFull
from penstock.events import Receipt
from penstock.journal.commit.checked import find_duplicates
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.storage.wire import Columns
from penstock.queue.flow.merging import Throttle, count_replaced, debounce
from penstock.queue.flow.sorting import give_turns
from penstock.queue.options import DeliveryOptions, check_rank
from penstock.queue.results.reply import note_replies
from penstock.queue.state import keys
from penstock.queue.state.cache import WORK, QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import READY, WAITING, MessageRow, SpecialRow, encode


def push(
    commit: Commit,
    queue: QueueState,
    batch: PreparedBatch,
    options: DeliveryOptions | None,
    *,
    each: Sequence[DeliveryOptions | None] | None = None,
    forced: bool = False,
    moved: bool = False,
) -> list[Receipt]:
    """Appends a batch of messages, with options for all or for `each`; `forced` for those that must not be lost: dead
    letters fit always. `moved`: they were pushed before, and none takes another one's place."""
    policy = queue.record.policy
    throttle = None
    debounced = False
    if batch.columns.key is not None and not forced and not moved:
        if policy.throttle is not None:
            throttle = Throttle(commit, queue, batch, round(policy.throttle * 1000))
            batch = throttle.batch
            each = None if each is None else [each[row] for row in throttle.kept]
        debounced = policy.debounce is not None
    if not forced:
        if batch.columns.key is not None and policy.priority:
            raise ConfigError(
                f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys"
            )
        if options is not None and options.priority:
            check_rank(queue, options.priority)
        if each is not None:
            for rank in {one.priority for one in each if one is not None and one.priority}:
                check_rank(queue, rank)
        if policy.max_size is not None:
            replaced = count_replaced(commit, queue, batch) if debounced else 0
            refuse_overflow(commit, queue, _count_fresh(commit, queue, batch), policy.max_size + replaced)
    if batch.columns.headers is not None and not queue.traits.replies and not forced:
        note_replies(commit, queue, batch.columns.headers, moved=moved)
    receipts = commit.append(queue.name, batch)
    if options is not None:
        _grant(commit, queue, receipts, options)
    fair_by = None if debounced else policy.fair_by
    if each is not None:
        _grant_each(commit, queue, receipts, batch.columns, each, fair_by)
    elif fair_by is not None and (options is None or not options.due):
        give_turns(commit, queue, receipts, batch.columns, range(len(receipts)), fair_by)
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
            _grant(commit, queue, [receipt], DeliveryOptions(due=due, since=commit.now_ms), key)


def _grant_each(
    commit: Commit,
    queue: QueueState,
    receipts: list[Receipt],
    columns: Columns,
    each: Sequence[DeliveryOptions | None],
    fair_by: str | None,
) -> None:
    for row, (receipt, wanted) in enumerate(zip(receipts, each, strict=True)):
        if fair_by is not None and (wanted is None or wanted.due <= commit.now_ms):
            give_turns(commit, queue, receipts, columns, [row], fair_by)
        if wanted is not None:
            _grant(commit, queue, [receipt], wanted)


def _count_fresh(commit: Commit, queue: QueueState, batch: PreparedBatch) -> int:
    fresh = len(batch.columns.kinds)
    if batch.dedups is not None:
        # Repeating a push that went through must say so, also when the queue is full by now.
        known, repeats = find_duplicates(commit, queue.name, batch.dedups)
        fresh -= len(known) + len(repeats)
    return fresh


def refuse_overflow(commit: Commit, queue: QueueState, fresh: int, max_size: int) -> None:
    """QueueFull when a queue has no room for so many more messages."""
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
    back = set_back_ms(options.since, commit.now_ms)  # of a message that was moved
    due = options.due - back if options.due - back > commit.now_ms else 0
    if options.priority or due:
        if queue.fanout:
            value = encode(SpecialRow(options.priority, due, key, options.since - back))
            for seq in fresh:
                tx.put(keys.special_key(topic, seq), value)
            traits.special = fresh[-1]
            queue.save_traits(commit)
        else:
            state, since = WAITING if due else READY, options.since - back
            row = MessageRow(0, state, priority=options.priority, key=key, due=due, since_ms=since)
            _set_aside(commit, queue.group(tx, WORK), fresh, row)
    if options.max_attempts is not None:
        value = options.max_attempts.to_bytes(4)
        for seq in fresh:
            tx.put(keys.override_key(topic, seq), value)
        if not traits.overridden:
            traits.overridden = True
            queue.save_traits(commit)


def _set_aside(commit: Commit, group: Group, seqs: list[int], row: MessageRow) -> None:
    """Puts special messages where the one group of a work queue will find them."""
    for seq in seqs:
        group.place(commit, msgspec.structs.replace(row, seq=seq))
    start = seqs[0]
    for previous, seq in pairwise([*seqs, 0]):
        if seq != previous + 1:
            group.cover(commit, start, previous)
            start = seq

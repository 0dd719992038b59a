"""Pushing: writes the event and, only for messages with options, a row with their time and manner of delivery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from penstock.core.clock import Clock, set_back, to_ms
from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Draft, Receipt
from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit, find_duplicates, remember_dedup
from penstock.core.journal.prepare import PreparedBatch
from penstock.core.model.calls import UNIQUE
from penstock.core.model.failure import DEAD_QUEUE, FailureText
from penstock.core.model.push import PushOptions
from penstock.core.names import is_whole
from penstock.core.queue.flow import read_rate, read_window
from penstock.core.queue.policy import check_attempts, duration_ms
from penstock.core.queue.results import answer_failure, note_replies
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import WORK, QueueState
from penstock.core.queue.state.feed import Change
from penstock.core.queue.state.lanes import lane_of
from penstock.core.queue.state.records import FAILED, READY, TAKEN, WAITING, MessageRow, SpecialRow, encode
from penstock.core.schema import brings_kind
from penstock.errors import ConfigError, QueueFull


# ── how a message wants to be delivered ──────────────────────────────────────────────────────────────────────────────
class DeliveryOptions(msgspec.Struct):
    """The options of delivery of a message (or of every message of a batch), where they are not the defaults."""

    priority: int = 0
    due: int = 0
    max_attempts: int | None = None
    since: int = 0
    """The time when the delay began; 0 when the caller named a moment."""


def read_delivery_options(clock: Clock, options: PushOptions, key: str | None) -> DeliveryOptions | None:
    """Returns the checked options of a push; None for the defaults. `key` is a message's own key."""
    priority, max_attempts = options.priority, options.max_attempts
    delay, not_before = options.delay, options.not_before
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
    due, now = 0, clock.now_ms()
    if not_before is not None:
        if delay != 0:
            raise ConfigError("give delay= or not_before=, not both")
        due = to_ms(not_before, "not_before")
    elif delay != 0:
        due = now + duration_ms(delay, "delay")
    due = due if due > now else 0
    if key is not None and (due or delay != 0 or not_before is not None):
        raise ConfigError("key= cannot be combined with delay= or not_before=: a key's messages keep their order")
    if key is not None and priority != 0:
        raise ConfigError("key= cannot be combined with priority=: a key's messages keep their order")
    if not priority and not due and max_attempts is None:
        return None
    return DeliveryOptions(priority, due, max_attempts, now if due and not_before is None else 0)


def drafts_of(items: Iterable[object], options: PushOptions) -> list[Draft]:
    """Returns the drafts that a push of payloads, and of drafts among them, appends."""
    if options.dedup is not None:
        raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
    return [item if isinstance(item, Draft) else one_draft(item, options) for item in items]


def one_draft(payload: object, options: PushOptions) -> Draft:
    """Returns the draft that a push of one payload appends; a payload of a declared event type brings its kind."""
    event = (payload, None) if brings_kind(payload, options.kind) else (options.kind, payload)
    return Draft(*event, **draft_fields(options))


def draft_fields(options: PushOptions) -> dict[str, Any]:
    """Returns the part of a push that goes into the event itself."""
    # the key stands for its message
    cause = options.cause.event if isinstance(options.cause, Delivery) else options.cause
    return {"key": options.key, "dedup": options.dedup, "headers": options.headers, "cause": cause}


def check_rank(queue: QueueState, priority: int) -> None:
    """Raises ConfigError for a priority that a queue does not have."""
    if priority == keys.FRONT:
        if queue.policy.fair_by is not None:
            raise ConfigError(f"queue {queue.name!r} gives all their turn (fair_by): it has no front to push to")
    elif not queue.policy.priority:
        raise ConfigError(
            f"queue {queue.name!r} has no priorities: make it with priority=True, or change it with configure"
        )


# ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
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
    """Appends a batch of messages, with options for all or for `each`.

    `forced` ignores size limits, for messages that must not be lost, such as dead letters. `moved` messages were pushed
    before and replace no other message.
    """
    policy = queue.record.policy
    unique = None if forced or moved or batch.columns.headers is None else _unique_of(batch.columns.headers)
    if unique is not None and (waiting := _waiting_twin(commit, queue, unique)) is not None:
        return [waiting]
    throttle = None
    debounced = False
    if batch.columns.key is not None and not forced and not moved:
        if policy.throttle is not None:
            throttle = Throttle(commit, queue, batch, round(policy.throttle * 1000))
            batch = throttle.batch
            each = None if each is None else [each[row] for row in throttle.kept]
        debounced = policy.debounce is not None
    if not forced:
        if batch.columns.key is not None:
            refuse_keys(queue)
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
    if queue.feed is not None:
        pushed = Change("pushed", "moved" if moved else "dead letter" if forced else None)
        for one in receipts:
            if not one.duplicate:
                queue.feed.note(commit, pushed, one.seq)
    if batch.columns.headers is not None:
        origins = ((headers or {}).get(DEAD_QUEUE) for headers in batch.columns.headers)
        fresh = zip(receipts, origins, strict=True)
        queue.note_letters(commit, ((one.seq, origin) for one, origin in fresh if origin and not one.duplicate))
    if options is not None:
        _write_options(commit, queue, receipts, options)
    fair_by = None if debounced else policy.fair_by
    if each is not None:
        _grant_each(commit, queue, receipts, batch.columns, each, fair_by)
    elif fair_by is not None and (options is None or not options.due):
        give_turns(commit, queue, receipts, batch.columns, range(len(receipts)), fair_by)
    if debounced:
        _debounce(commit, queue, receipts, batch.columns.key or [])
    if unique is not None:
        first = receipts[0]
        row = LastPassed(first.seq, first._number.to_bytes(16), commit.now_ms)
        commit.tx.put(_unique_key(queue, unique), keys.encode(row))
    return receipts if throttle is None else throttle.receipts(receipts)


# ── unique while waiting ──────────────────────────────────────────────────────────────────────────────────────────────
def _unique_of(headers: Sequence[Mapping[str, str] | None]) -> str | None:
    """Returns the text under which only one message may wait; None without this limit."""
    given = [one[UNIQUE] for one in headers if one and UNIQUE in one]
    if given and len(headers) > 1:
        raise ConfigError("messages that are unique while they wait are pushed one by one")
    return given[0] if given else None


def _waiting_twin(commit: Commit, queue: QueueState, unique: str) -> Receipt | None:
    """Returns the waiting message with the same text, which no consumer has and which was not given up."""
    value = commit.tx.get(_unique_key(queue, unique))
    passed = None if value is None else _read_passed(value, queue.name)
    if passed is None or not _is_unsettled(commit, queue, passed.seq):
        return None
    return Receipt(queue.name, passed.seq, int.from_bytes(passed.id), duplicate=True)


def _is_unsettled(commit: Commit, queue: QueueState, seq: int) -> bool:
    return any(message.state != FAILED for _, message in queue.find(commit.tx, seq))


def _unique_key(queue: QueueState, unique: str) -> bytes:
    return keys.flow_key(queue.topic, keys.ALL_GROUPS, b"w", unique)


def _debounce(commit: Commit, queue: QueueState, receipts: list[Receipt], keys_given: list[str | None]) -> None:
    """Holds messages with a key back; each message replaces the held message of its key."""
    policy, now = queue.record.policy, commit.now_ms
    assert policy.debounce is not None
    for receipt, key in zip(receipts, keys_given, strict=True):
        if key is None or receipt.duplicate:
            continue
        held, first = _held_back(commit, queue, key), now
        if held is not None and held.due > now and queue.find(commit.tx, held.seq):
            first = min(held.first, now)
            if queue.traits.replies:
                replaced = FailureText("a newer push of its key took its place")
                answer_failure(commit, queue, MessageRow(held.seq), "replaced", replaced)
            queue.discard(commit, held.seq, Change("discarded", "replaced"))
        due = now + round(policy.debounce * 1000)
        if policy.debounce_limit is not None:
            due = min(due, first + round(policy.debounce_limit * 1000))
        commit.tx.put(_debounce_key(queue, key), keys.encode(Debounced(receipt.seq, due, first)))
        _write_options(commit, queue, [receipt], DeliveryOptions(due=due, since=now), key)


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
            _write_options(commit, queue, [receipt], wanted)


def _count_fresh(commit: Commit, queue: QueueState, batch: PreparedBatch) -> int:
    fresh = len(batch.columns.kinds)
    if batch.dedups is not None:
        # A repeated push must return the accepted receipt, even when the queue is full by now.
        known, repeats = find_duplicates(commit, queue.name, batch.dedups)
        fresh -= len(known) + len(repeats)
    return fresh


def refuse_keys(queue: QueueState) -> None:
    """Raises ConfigError where a message cannot have an ordering key."""
    if queue.policy.priority:
        raise ConfigError(f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys")


def refuse_overflow(commit: Commit, queue: QueueState, fresh: int, max_size: int) -> None:
    """Raises QueueFull when a queue has no room for so many further messages."""
    latest = commit.latest(queue.name)
    if not fresh or queue.count_unsettled(commit.tx, latest, 0) + fresh <= max_size:
        return
    held = queue.unsettled(commit)
    if held + fresh > max_size:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {max_size}; "
            f"{fresh} more do not fit: take some, or raise max_size with configure"
        )


def _write_options(
    commit: Commit, queue: QueueState, receipts: list[Receipt], options: DeliveryOptions, key: str | None = None
) -> None:
    tx, topic, traits = commit.tx, queue.topic, queue.traits
    fresh = [receipt.seq for receipt in receipts if not receipt.duplicate]
    if not fresh:
        return
    since, due = set_back(options.since, options.due, commit.now_ms)  # a key of a moved message
    due = due if due > commit.now_ms else 0
    if options.priority or due:
        if queue.fanout:
            value = encode(SpecialRow(options.priority, due, key, since))
            for seq in fresh:
                tx.put(keys.special_key(topic, seq), value)
            traits.special = fresh[-1]
            queue.save_traits(commit)
        else:
            group = queue.group(tx, WORK)
            group.mark_all_taken(commit, fresh)
            for seq in fresh:
                message = MessageRow(seq, TAKEN, 0, options.priority, key, due, since_ms=since)
                group.move(commit, message, WAITING if due else READY)
    if options.max_attempts is not None:
        value = options.max_attempts.to_bytes(4)
        for seq in fresh:
            tx.put(keys.override_key(topic, seq), value)
        if not traits.overridden:
            traits.overridden = True
            queue.save_traits(commit)


def as_batch(columns: Columns) -> PreparedBatch:
    return PreparedBatch(columns, sum(map(len, columns.payloads)))


# ── lanes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def give_turns(
    commit: Commit, queue: QueueState, receipts: list[Receipt], columns: Columns, rows: Iterable[int], fair_by: str
) -> None:
    """Sorts new messages into lanes, for every group that has sorted in all earlier messages."""
    fresh = [row for row in rows if not receipts[row].duplicate]
    for group in queue.delivering(commit.tx):
        for row in fresh:
            seq = receipts[row].seq
            if group.record.frontier != seq - 1:
                break
            key = None if columns.key is None else columns.key[row]
            headers = None if columns.headers is None else columns.headers[row]
            group.mark_taken(commit, seq)
            group.requeue(commit, MessageRow(seq, TAKEN, key=key), lane=lane_of(fair_by, key, headers))


# ── throttle and debounce ─────────────────────────────────────────────────────────────────────────────────────────────
class LastPassed(msgspec.Struct, array_like=True):
    """The last push of a key that a throttle accepted."""

    seq: int
    id: bytes
    at: int


class Debounced(msgspec.Struct, array_like=True):
    """The newest push of a key, which is held back."""

    seq: int
    due: int
    first: int
    """The time of the first push that this push replaces."""


_read_passed = keys.row_decoder(LastPassed)
_read_debounced = keys.row_decoder(Debounced)


class Throttle:
    """A throttle that drops messages of a batch whose key had a message within the window."""

    __slots__ = ("_commit", "_dedups", "_keys", "_originals", "_queue", "_repeats", "batch", "kept")

    def __init__(self, commit: Commit, queue: QueueState, batch: PreparedBatch, window_ms: int) -> None:
        self._commit = commit
        self._queue = queue
        self._keys = batch.columns.key or []
        self._dedups = batch.dedups
        self.kept: list[int] = []
        """The rows of the batch that are accepted."""
        self._originals: dict[int, Receipt] = {}
        self._repeats: dict[int, int] = {}
        first: dict[str, int] = {}
        known = {} if batch.dedups is None else find_duplicates(commit, queue.name, batch.dedups)[0]
        for row, key in enumerate(self._keys):
            if row in known:  # the append finds the repeated message
                self.kept.append(row)
                continue
            passed = None if key is None else _last_passed(commit, queue, key)
            if key is not None and passed is not None and commit.now_ms < passed.at + window_ms:
                if passed.at > commit.now_ms:  # the clock was set back
                    passed.at = commit.now_ms
                    commit.tx.put(_throttle_key(queue, key), keys.encode(passed))
                number = int.from_bytes(passed.id)
                self._originals[row] = Receipt(queue.name, passed.seq, number, duplicate=True)
            elif key is not None and key in first:
                self._repeats[row] = first[key]
            else:
                if key is not None:
                    first[key] = row
                self.kept.append(row)
        self.batch = batch
        if len(self.kept) < len(self._keys):
            if batch.cause_rows:
                raise ConfigError(
                    f"queue {queue.name!r} has a throttle, and some of these messages would be left out, "
                    "but others name them as their cause: push them one by one"
                )
            self.batch = batch.pick(self.kept)

    def receipts(self, made: list[Receipt]) -> list[Receipt]:
        """Returns a receipt for every message of the batch; a dropped message has the receipt of the accepted
        message.
        """
        found = dict(self._originals)
        for row, receipt in zip(self.kept, made, strict=True):
            found[row] = receipt
            key = self._keys[row]
            if key is not None and not receipt.duplicate:
                passed = LastPassed(receipt.seq, receipt._number.to_bytes(16), self._commit.now_ms)
                self._commit.tx.put(_throttle_key(self._queue, key), keys.encode(passed))
        for row, original in self._repeats.items():
            found[row] = msgspec.structs.replace(found[original], duplicate=True)
        for row in (*self._originals, *self._repeats):
            dedup = None if self._dedups is None else self._dedups[row]
            if dedup is not None:  # a repeated push has the same receipt, even after the window
                remember_dedup(self._commit, self._queue.name, dedup, found[row])
        return [found[row] for row in range(len(self._keys))]


def count_replaced(commit: Commit, queue: QueueState, batch: PreparedBatch) -> int:
    """Returns the number of messages that a batch will replace, including messages of the batch itself."""
    known, repeats = find_duplicates(commit, queue.name, batch.dedups or ())
    fresh = (key for row, key in enumerate(batch.columns.key or []) if row not in known and row not in repeats)
    given = [key for key in fresh if key is not None]
    replaced = len(given) - len(set(given))
    for key in set(given):
        held = _held_back(commit, queue, key)
        if held is not None and held.due > commit.now_ms:
            replaced += bool(queue.find(commit.tx, held.seq))
    return replaced


def debounced_until(commit: Commit, queue: QueueState, key: str, seq: int) -> int:
    """Returns the time until which a debounce holds a message back; 0 for no debounce."""
    held = _held_back(commit, queue, key)
    return held.due if held is not None and held.seq == seq else 0


def forget_debounced(commit: Commit, queue: QueueState, key: str, seq: int) -> None:
    """Forgets that a message was held back, so that the next push of its key does not replace it."""
    row = _debounce_key(queue, key)
    held = _held_back(commit, queue, key)
    if held is not None and held.seq == seq:
        commit.tx.delete(row)


def _throttle_key(queue: QueueState, key: str) -> bytes:
    return keys.flow_key(queue.topic, keys.ALL_GROUPS, b"o", key)


def _debounce_key(queue: QueueState, key: str) -> bytes:
    return keys.flow_key(queue.topic, keys.ALL_GROUPS, b"u", key)


def _last_passed(commit: Commit, queue: QueueState, key: str) -> LastPassed | None:
    value = commit.tx.get(_throttle_key(queue, key))
    return None if value is None else _read_passed(value, queue.name)


def _held_back(commit: Commit, queue: QueueState, key: str) -> Debounced | None:
    value = commit.tx.get(_debounce_key(queue, key))
    return None if value is None else _read_debounced(value, queue.name)


# ── what flow control remembers ──────────────────────────────────────────────────────────────────────────────────────
FORGET_STEP = 1024
"""The rows of keys that one commit checks to remove expired rows."""


def forget_flow(commit: Commit, queue: QueueState, after: bytes) -> bytes:
    """Removes some expired rows of keys, of any group; returns where the next call continues."""
    low, high = keys.flow_of_queue(queue.topic)
    rows = list(islice(commit.tx.scan(max(low, after), high), FORGET_STEP))
    for key, value in rows:
        if _is_over(commit, queue, keys.flow_tag(key), value):
            commit.tx.delete(key)
    return rows[-1][0] + b"\0" if len(rows) == FORGET_STEP else b""


def _is_over(commit: Commit, queue: QueueState, tag: bytes, value: bytes) -> bool:
    """Returns True if a key's rate, throttle or debounce would be the same without its row, or its message no longer
    waits.
    """
    now = commit.now_ms
    if tag == b"w":
        return not _is_unsettled(commit, queue, _read_passed(value, queue.name).seq)
    rate, throttle = queue.policy.rate_per_key, queue.policy.throttle
    if tag == b"r":
        return rate is None or read_window(value, queue.name).is_over(read_rate(rate), now)
    if tag == b"o":
        return throttle is None or _read_passed(value, queue.name).at <= now - round(throttle * 1000)
    return tag == b"u" and _read_debounced(value, queue.name).due <= now

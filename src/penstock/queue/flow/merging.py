"""Pushes of one key that become one message: the first within a window (throttle), or the newest (debounce).

What is decided here is decided inside the push's commit, and goes with it when a transaction is rolled back.
"""

from __future__ import annotations

import msgspec

from penstock.clock import set_back_ms
from penstock.errors import ConfigError
from penstock.events import Receipt
from penstock.journal.commit.checked import find_duplicates, remember_dedup
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.prepare import PreparedBatch
from penstock.queue.flow.rows import ALL_GROUPS, decode_row, encode_row, flow_key, flow_rows, forget_rows, read_row
from penstock.queue.results.reply import answer_failure
from penstock.queue.state.cache import QueueState
from penstock.queue.state.discarding import discard, is_open
from penstock.surface.failure import FailureText


class Passed(msgspec.Struct, array_like=True):
    """The push of a key that a throttle let through last."""

    seq: int
    id: bytes
    at: int


class Debounced(msgspec.Struct, array_like=True):
    """The newest push of a key, held back."""

    seq: int
    due: int
    first: int
    """When the first push came that this one stands for."""


class Throttle:
    """A batch without those of its messages whose key had one within the window."""

    __slots__ = ("_commit", "_dedups", "_keys", "_originals", "_queue", "_repeats", "batch", "kept")

    def __init__(self, commit: Commit, queue: QueueState, batch: PreparedBatch, window_ms: int) -> None:
        self._commit = commit
        self._queue = queue
        self._keys = batch.columns.key or []
        self._dedups = batch.dedups
        self.kept: list[int] = []
        """The rows of the batch that go through."""
        self._originals: dict[int, Receipt] = {}
        self._repeats: dict[int, int] = {}
        first: dict[str, int] = {}
        known = {} if batch.dedups is None else find_duplicates(commit, queue.name, batch.dedups)[0]
        for row, key in enumerate(self._keys):
            if row in known:  # the append says which message it repeats
                self.kept.append(row)
                continue
            passed = None if key is None else read_row(commit.tx, _throttle_key(queue, key), Passed, queue.name)
            back = 0 if passed is None else set_back_ms(passed.at, commit.now_ms)
            if key is not None and passed is not None and commit.now_ms < passed.at - back + window_ms:
                if back:
                    passed.at -= back
                    commit.tx.put(_throttle_key(queue, key), encode_row(passed))
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
            dedups = None if batch.dedups is None else [batch.dedups[row] for row in self.kept]
            expects = None if batch.expects is None else [batch.expects[row] for row in self.kept]
            columns = batch.columns.pick(self.kept)
            self.batch = PreparedBatch(columns, sum(map(len, columns.payloads)), dedups, expects)

    def receipts(self, made: list[Receipt]) -> list[Receipt]:
        """One for every message of the whole batch; those left out have the receipt of the one that went through."""
        found = dict(self._originals)
        for row, receipt in zip(self.kept, made, strict=True):
            found[row] = receipt
            key = self._keys[row]
            if key is not None and not receipt.duplicate:
                passed = Passed(receipt.seq, receipt._number.to_bytes(16), self._commit.now_ms)
                self._commit.tx.put(_throttle_key(self._queue, key), encode_row(passed))
        for row, original in self._repeats.items():
            found[row] = msgspec.structs.replace(found[original], duplicate=True)
        for row in (*self._originals, *self._repeats):
            dedup = None if self._dedups is None else self._dedups[row]
            if dedup is not None:  # the same push again has the same receipt, also when the window is over
                remember_dedup(self._commit, self._queue.name, dedup, found[row])
        return [found[row] for row in range(len(self._keys))]


def count_replaced(commit: Commit, queue: QueueState, batch: PreparedBatch) -> int:
    """How many messages fewer there will be because a batch's take their place, or each other's."""
    known, repeats = find_duplicates(commit, queue.name, batch.dedups or ())
    fresh = (key for row, key in enumerate(batch.columns.key or []) if row not in known and row not in repeats)
    given = [key for key in fresh if key is not None]
    groups = queue.all_groups(commit.tx)
    replaced = len(given) - len(set(given))
    for key in set(given):
        held = read_row(commit.tx, _debounce_key(queue, key), Debounced, queue.name)
        if held is not None and held.due > commit.now_ms:
            replaced += any(is_open(commit.tx, group, held.seq) for group in groups)
    return replaced


def debounce(commit: Commit, queue: QueueState, key: str, seq: int, window_ms: int, limit_ms: int | None) -> int:
    """Puts a new message of a key into the place of the one that is held back; returns when it is due."""
    now, row = commit.now_ms, _debounce_key(queue, key)
    held = read_row(commit.tx, row, Debounced, queue.name)
    first = now
    if (
        held is not None
        and held.due > now
        and any(is_open(commit.tx, group, held.seq) for group in queue.all_groups(commit.tx))
    ):
        first = min(held.first, now)
        if queue.traits.replies:
            answer_failure(commit, queue, held.seq, "replaced", FailureText("a newer push of its key took its place"))
        discard(commit, queue, held.seq)
    due = now + window_ms if limit_ms is None else min(now + window_ms, first + limit_ms)
    commit.tx.put(row, encode_row(Debounced(seq, due, first)))
    return due


def debounced_until(commit: Commit, queue: QueueState, key: str, seq: int) -> int:
    """Until when a debounce holds a message back; 0: none does."""
    held = read_row(commit.tx, _debounce_key(queue, key), Debounced, queue.name)
    return held.due if held is not None and held.seq == seq else 0


def forget_debounced(commit: Commit, queue: QueueState, key: str, seq: int) -> None:
    """A message that was held back is due before its time: the next push of its key leaves it alone."""
    row = _debounce_key(queue, key)
    held = read_row(commit.tx, row, Debounced, queue.name)
    if held is not None and held.seq == seq:
        commit.tx.delete(row)


def forget_pushes(commit: Commit, queue: QueueState, after: dict[bytes, bytes]) -> None:
    """Removes what throttles and debounces do not need any more, some rows at a time; notes where to go on."""
    throttle = queue.policy.throttle
    bound = None if throttle is None else commit.now_ms - round(throttle * 1000)

    def passed_is_over(value: bytes) -> bool:
        return bound is None or decode_row(value, Passed, queue.name).at <= bound

    def held_is_over(value: bytes) -> bool:
        return decode_row(value, Debounced, queue.name).due <= commit.now_ms

    for tag, is_over in ((b"o", passed_is_over), (b"u", held_is_over)):
        rows = flow_rows(queue.topic, ALL_GROUPS, tag)
        after[tag] = forget_rows(commit, rows, after.get(tag, b""), is_over)


def _throttle_key(queue: QueueState, key: str) -> bytes:
    return flow_key(queue.topic, ALL_GROUPS, b"o", key)


def _debounce_key(queue: QueueState, key: str) -> bytes:
    return flow_key(queue.topic, ALL_GROUPS, b"u", key)

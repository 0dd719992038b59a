"""Rows of a bulk write that each count: with options, for queues that look at every push of a key, and for gates.

They are judged as a batch of drafts is, all of them as one: a dedup key that repeats an earlier row's, in whatever
block, is a duplicate, and every expectation is about the entity as it was before the write. What is wrong with one is
found before anything is changed, where that is possible; in any case nothing of the write is kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.clock import ManualClock, from_ms
from penstock.errors import ConfigError, Conflict, Denied
from penstock.events import Draft
from penstock.journal.blocks import Block, Columns, RowOptions, Wire, columns_of, options_of, stamp
from penstock.journal.checking import check_options
from penstock.journal.commit import Commit, find_duplicates
from penstock.journal.prepare import PreparedBatch
from penstock.limits import BLOCK_EVENTS
from penstock.queue.operations.push import push
from penstock.queue.options import DeliveryOptions, check_rank, read_delivery_options
from penstock.queue.queue import LocalQueue
from penstock.queue.state import keys

if TYPE_CHECKING:
    from penstock.entity.gate import Gates

_Asked = tuple[bool, int | None, int | None, int | None, int | None]
_SHOWN = 60
"""Bytes of a payload that an error shows."""


class RowsInCommit:
    """Appends the rows of one write that must be looked at one by one."""

    def __init__(self, commit: Commit, queue: LocalQueue | None) -> None:
        self._commit = commit
        self._queue = None if queue is None else queue._cache.state(commit, queue.name)
        policy = None if self._queue is None else self._queue.policy
        self._merging = policy is not None and (policy.throttle is not None or policy.debounce is not None)
        self._counted = self._merging and policy is not None and policy.max_size is not None
        """Whether no block's rows can be counted beforehand: how many of the others merge is known once they do."""
        self._fresh: dict[str, deque[Sequence[int]]] = defaultdict(deque)
        """By topic, the rows of each of its blocks that are no duplicates, in order."""
        self._deliveries: dict[_Asked, DeliveryOptions | None] = {}
        self._gathered = 0

    def wants(self, *, keyed: bool, asks: bool) -> bool:
        """Whether the rows of a block must be looked at."""
        return asks or (keyed and self._merging) or self._counted

    def check(self, pieces: Iterable[tuple[str, Wire]]) -> int:
        """Looks at all blocks that will be appended, before the first is; returns how many rows are duplicates."""
        seen: dict[str, set[str | None]] = defaultdict(set)
        duplicates = 0
        for topic, wire in pieces:
            options, fresh = options_of(wire), range(wire.count)
            if options is not None:
                block = Block(wire, topic)
                rows: Sequence[int] = fresh
                check_options(options, wire)
                if options.dedup is not None:
                    rows = self._fresh_rows(topic, options.dedup, seen[topic])
                    duplicates += wire.count - len(rows)
                self._check_expectations(block, options, rows)
                self._check_deliveries(block, options, rows)
                self._fresh[topic].append(rows)
            else:
                self._fresh[topic].append(fresh)
        return duplicates

    def _fresh_rows(self, topic: str, dedups: Sequence[str | None], seen: set[str | None]) -> Sequence[int]:
        """The rows that neither repeat a row of this write nor an event that the topic remembers."""
        unseen = [None if dedup in seen else dedup for dedup in dedups]
        known, repeats = find_duplicates(self._commit, topic, unseen)
        fresh = [
            row for row, dedup in enumerate(dedups) if row not in known and row not in repeats and dedup == unseen[row]
        ]
        seen.update(dedup for dedup in unseen if dedup is not None)
        return fresh

    def _check_expectations(self, block: Block, options: RowOptions, rows: Sequence[int]) -> None:
        for row in rows if options.expect is not None else ():
            expected, key = (options.expect or ())[row], block.key(row)
            if expected is None or key is None:
                continue
            try:
                self._commit.check_expected(block.topic, key, expected)
            except Conflict as error:
                raise Conflict(
                    f"{error} ({row_words(block, row)})", expected=error.expected, actual=error.actual
                ) from error

    def _check_deliveries(self, block: Block, options: RowOptions, rows: Sequence[int]) -> None:
        if not options.delivery:
            return
        if self._queue is None:
            raise ConfigError(
                f"rows for topic {block.topic!r} say how they are to be delivered, which only a queue understands"
            )
        for row in rows:
            try:
                wanted = self._delivery(block, options, row)
                if wanted is not None and wanted.priority:
                    check_rank(self._queue, wanted.priority)
            except ConfigError as error:
                raise ConfigError(f"{error} ({row_words(block, row)})") from error

    def _delivery(self, block: Block, options: RowOptions, row: int) -> DeliveryOptions | None:
        """How a row wants to be delivered; times count from the commit."""
        key = block.key(row)
        asked = (
            key is not None,
            _at(options.priority, row),
            _at(options.delay, row),
            _at(options.not_before, row),
            _at(options.max_attempts, row),
        )
        if asked not in self._deliveries:
            self._deliveries[asked] = judged(key, *asked[1:], now_ms=self._commit.now_ms)
        return self._deliveries[asked]

    def append(self, topic: str, wire: Wire) -> None:
        """Appends a block's rows that are no duplicates; the blocks of a topic come in the order they were checked."""
        fresh, options = self._fresh[topic].popleft(), options_of(wire)
        if not fresh:
            return
        stamp(wire, 1, 0, 0)
        block = Block(wire, topic)
        columns: Columns = columns_of(block, range(wire.count))
        if len(fresh) < wire.count:
            columns = columns.pick(fresh)
        batch = PreparedBatch(columns, sum(map(len, columns.payloads)))
        if options is not None and options.dedup is not None:
            batch.dedups = [options.dedup[row] for row in fresh]
        if self._queue is None:
            self._commit.append(topic, batch)
        else:
            each = None
            if options is not None and options.delivery:
                each = [self._delivery(block, options, row) for row in fresh]
            push(self._commit, self._queue, batch, None, each=each)
        self._gathered += len(fresh)
        if self._gathered >= BLOCK_EVENTS:  # what is gathered is in memory
            self._commit.flush()
            self._gathered = 0


def ask_gates(gates: Gates, pieces: Iterable[tuple[str, Wire]]) -> None:
    """Shows every row of topics with gates to them; Denied names the first gate that refuses, and the row."""
    for topic, wire in pieces:
        if not gates.of(topic):
            continue
        block = Block(wire, topic)
        for row in range(block.count):
            asked = gates.of(topic, block.kind(row))
            if not asked:
                continue
            encoded = bytes(block.raw_payload(row))
            draft = _draft(block, row, encoded)
            for gate in asked:
                try:
                    gates.ask(gate, draft, encoded)
                except Denied as denied:
                    raise Denied(
                        f"gate {gate.name} of topic {topic!r} refused: {denied.reason} ({row_words(block, row)})"
                    ) from denied


def _draft(block: Block, row: int, encoded: bytes) -> Draft:
    """A row as a caller that appends one by one would have given it."""
    options = options_of(block.wire)
    dedup, expect = (None, None) if options is None else (options.dedup, options.expect)
    return Draft(
        block.kind(row),
        encoded if block.is_binary(row) else msgspec.json.decode(encoded),
        topic=block.topic,
        key=block.key(row),
        scope=block.scope(row),
        headers=dict(block.headers(row)) or None,
        occurred_at=None if block.wire.occurred is None else from_ms(block.occurred_ms(row)),
        dedup=None if dedup is None else dedup[row],
        cause=block.causation(row),
        correlation=block.correlation(row),
        expect=None if expect is None else expect[row],
    )


def judged(
    key: str | None,
    priority: int | None,
    delay: int | None,
    not_before: int | None,
    max_attempts: int | None,
    *,
    now_ms: int,
) -> DeliveryOptions | None:
    """A row's options as a push's arguments, with its checks and errors; None: as usual. Times are milliseconds."""
    rank: int | Literal["front"] = "front" if priority == keys.FRONT else priority or 0
    at = None if not_before is None else from_ms(not_before)
    return read_delivery_options(ManualClock(now_ms), key, rank, (delay or 0) / 1000, at, max_attempts)


def row_words(block: Block, row: int) -> str:
    """Which row this is, for people: what it says, since rows of a frame have no numbers."""
    payload = bytes(block.raw_payload(row))
    shown = payload[:_SHOWN].decode(errors="replace") + ("…" if len(payload) > _SHOWN else "")
    said = f"a row of kind {block.kind(row)!r}"
    key = block.key(row)
    if key is not None:
        said += f" with key {key!r}"
    return f"{said}: {shown}" if not block.is_binary(row) else said


def _at(column: list[int | None] | None, row: int) -> int | None:
    return None if column is None else column[row]

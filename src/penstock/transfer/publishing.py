"""Publishes blocks that were made elsewhere: the blocks of a frame become events in one commit, exactly once even
when work is repeated.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, groupby
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.core.clock import ManualClock, from_ms
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Draft
from penstock.core.journal.blocks import Block, Columns, RowOptions, Wire, columns_of, options_of, set_positions
from penstock.core.journal.bulk import (
    PreparedPiece,
    append_wires,
    drop,
    is_published,
    publish,
    remember,
    stage,
    staged_batch,
    staged_wires,
    unpublished,
    wires_of,
)
from penstock.core.journal.checking import check_options
from penstock.core.journal.commit import Commit, find_duplicates, read_mark, read_mark_content
from penstock.core.journal.prepare import PreparedBatch
from penstock.core.journal.sealed.referring import (
    BulkTarget,
    append_segments,
    check_there,
    plan_bulk,
    remove_files,
    sweep_job,
)
from penstock.core.journal.sealed.segments import BulkSegments, NewSegment, PlacedSegments
from penstock.core.journal.upkeep.retention import held_back
from penstock.core.journal.upkeep.summarising import fill_summaries
from penstock.core.local.backend import LocalJournal
from penstock.core.model.push import PushOptions
from penstock.core.names import unpack_tags
from penstock.core.queue.operations.push import DeliveryOptions, check_rank, push, read_delivery_options
from penstock.core.queue.queue import LocalQueue
from penstock.core.queue.state import keys
from penstock.core.units import in_parts
from penstock.errors import ConfigError, Conflict, Denied, PenstockError, QueueFull, StorageError
from penstock.limits import BLOCK_EVENTS, INLINE_BYTES, STEP_BYTES

if TYPE_CHECKING:
    from penstock.core.entity.gate import Gates

SYNC_BYTES = 4 << 20
"""The bytes of steps after which they are synced; otherwise the next commit of any caller would wait for this sync."""
_PAUSE = 0.002
"""The seconds between two steps, in which other processes get their turn and the next step is prepared."""


class BulkCommit(msgspec.Struct, frozen=True):
    """A commit of staged batches: the mark that proves it, and the queue that the events are pushed to."""

    batches: list[bytes]
    mark: str | None = None
    version: int = 0
    queue: str | None = None
    content: int | None = None
    """A hash of all rows, independent of their order.

    A repeated commit must have the same hash; None allows other rows.
    """
    segments: BulkSegments | None = None


class Blocks(msgspec.Struct, frozen=True):
    """Blocks that are not staged yet, with the facts that are known of them."""

    pieces: Iterable[tuple[str, Wire]]
    """Topics and blocks, in order."""
    size: int
    events: int
    keyed: bool
    content: int | None = None
    """The hash of all rows, as in `BulkCommit`."""


def publish_staged(journal: LocalJournal, wanted: BulkCommit) -> bool:
    """Makes staged batches visible at once.

    Returns False when this was done before; the repeated batches are then dropped.
    """
    asked = _ask_of_staged(journal, wanted) if journal.backend.entities.gates else None
    queue = _queue(journal, wanted.queue)
    segments, others = wanted.segments, None
    if segments is not None and not _were_published(journal, wanted, segments):
        if segments.topic in journal.backend.entities.gates.topics:
            raise ConfigError(f"a gate sees every event of topic {segments.topic!r}: run the write again")
        for lake in {file.lake for file in segments.files}:
            plan_bulk(journal.backend.core, segments.topic, lake)
        others = check_there(segments.files)
    ends: dict[str, int] = {}
    done = bool(journal.backend.core.run(partial(_publish_staged, journal, wanted, asked, queue, ends)))
    if segments is not None:
        _sweep(journal, segments, others if done else None)
    for topic, end in ends.items() if done else ():  # in small commits: a missing fact is read from the blocks
        fill_summaries(journal.backend.core.writer, topic, after=end, hashed=True)
    return done


def _ask_of_staged(journal: LocalJournal, wanted: BulkCommit) -> list[int]:
    """Shows the staged rows to the gates before a caller waits.

    Returns the number of rows that the gates have seen of each batch.

    Returns nothing when the batches were published before, or are incomplete: the commit reports this.
    """
    gates = journal.backend.entities.gates
    if _was_done(journal, wanted.mark, wanted.version, wanted.content):
        return []
    with journal.backend.engine.read() as snap:
        records = [staged_batch(snap, batch) for batch in wanted.batches]
        for batch, record in zip(wanted.batches, records, strict=True):
            if record is None:
                return []
            ask_gates(gates, wires_of(snap, batch, record, gates.topics))
    return [record.steps for record in records if record is not None]


def _were_published(journal: LocalJournal, wanted: BulkCommit, segments: BulkSegments) -> bool:
    """Returns True if files were published before; by now the files may have been removed."""
    with journal.backend.engine.read() as snap:
        if wanted.mark is not None and is_done(snap, wanted.mark, wanted.version, wanted.content):
            return True
        return is_published(snap, segments.once)


def _publish_staged(
    journal: LocalJournal,
    wanted: BulkCommit,
    asked: list[int] | None,
    queue: LocalQueue | None,
    ends: dict[str, int],
    commit: Commit,
) -> bool:
    """Publishes batches; `ends` receives where the topics ended of batches that become part of the journal
    unchanged.
    """
    if wanted.mark is not None and is_done(commit.tx, wanted.mark, wanted.version, wanted.content):
        for batch in wanted.batches:
            drop(commit, batch)
        return False
    segments = wanted.segments
    if segments is not None and is_published(commit.tx, segments.once):
        for batch in wanted.batches:
            drop(commit, batch)
        return False
    records = unpublished(commit, wanted.batches)
    if records is None:
        return False
    commit.check_barrier(wanted.queue)
    if asked is not None and asked != [one.steps for one in records]:
        raise StorageError("what was staged has changed while gates were asked about it: run it again", retryable=True)
    if sum(one.size for one in records) > INLINE_BYTES:
        names = {block.topic for one in records for _, _, block in one.blocks}
        ends |= {name: commit.latest(name) for name in names}
    rows = RowsInCommit(commit, queue)
    duplicates = rows.check(staged_wires(commit, wanted.batches, rows))
    if queue is not None:
        fresh = sum(one.events for one in records) - duplicates
        check_push(commit, queue, fresh, keyed=any(one.keyed for one in records))
    if segments is None:
        done = publish(commit, wanted.batches, remember=wanted.mark is None, rows=rows)
    else:
        done = _publish_parts(journal, commit, wanted.batches, segments, rows)
    if wanted.mark is not None:
        commit.set_mark(wanted.mark, wanted.version, wanted.content)
    return done


def _publish_parts(
    journal: LocalJournal, commit: Commit, batches: Sequence[bytes], segments: BulkSegments, rows: RowsInCommit
) -> bool:
    """Publishes batches and files, in order."""
    begin = 0
    for one in segments.placed:
        publish(commit, batches[begin : one.before], remember=False, rows=rows)
        begin = one.before
        append_segments(commit, segments.topic, one.files)
    publish(commit, batches[begin:], remember=False, rows=rows)
    latest = commit.latest(segments.topic)
    if held_back(commit, segments.topic, latest, journal.backend.core.housekeeper.holds)[0] < latest:
        raise ConfigError(f"{segments.topic!r} became a queue meanwhile: run the write again")
    remember(commit, segments.once)
    return True


def _sweep(journal: LocalJournal, segments: BulkSegments, others: list[tuple[str, str]] | None) -> None:
    """Removes the files of other attempts of a published batch, because they can no longer be published.

    `others` names these files; None when the batch was published before.
    """
    with suppress(PenstockError):  # files that cannot be removed now are swept later
        if others is not None:
            remove_files(segments.topic, others)
            return
        for lake in {file.lake for file in segments.files}:
            sweep_job(journal.backend.core, BulkTarget(segments.topic, lake), segments.job, segments.number)


def publish_parts(
    journal: LocalJournal,
    parts: Sequence[Blocks | list[NewSegment]],
    origin: tuple[str, str, int],
    by: tuple[str | None, int, int | None],
) -> bool:
    """Appends blocks and files to a topic in order, in one commit. Returns False when this was done before.

    `origin` is the topic, the job, and the number of its micro-batch. `by` is a mark, its version, and the hash of all
    rows, as in `BulkCommit`.
    """
    batches: list[bytes] = []
    placed: list[PlacedSegments] = []
    segments, (mark, version, content) = BulkSegments(*origin, placed), by
    try:
        for part in parts:
            if not isinstance(part, Blocks):
                placed.append(PlacedSegments(part, len(batches)))
            elif not _was_done(journal, mark, version, content):
                batches.append(uuid.uuid4().bytes)
                _stage_blocks(journal, batches[-1], part)
        return publish_staged(journal, BulkCommit(batches, mark, version, None, content, segments))
    except BaseException:
        _drop_quietly(journal, batches)
        raise


def publish_blocks(
    journal: LocalJournal, blocks: Blocks, mark: str | None, version: int, queue_name: str | None = None
) -> bool:
    """Appends blocks in one commit. Returns False when the mark shows that this was done before.

    Blocks that exceed a small commit are first staged step by step, so that no caller waits long behind them.
    """
    queue = _queue(journal, queue_name)
    if blocks.size <= INLINE_BYTES:
        pieces = list(blocks.pieces)  # a commit that failed because of other submissions is repeated
        if journal.backend.entities.gates and not _was_done(journal, mark, version, blocks.content):
            ask_gates(journal.backend.entities.gates, pieces)
        return bool(journal.backend.core.run(partial(_append, journal, queue, pieces, mark, version, blocks.content)))
    if _was_done(journal, mark, version, blocks.content):
        return False
    batch = uuid.uuid4().bytes
    try:
        _stage_blocks(journal, batch, blocks)
        return publish_staged(journal, BulkCommit([batch], mark, version, queue_name, blocks.content))
    except BaseException:
        _drop_quietly(journal, [batch])
        raise


def _stage_blocks(journal: LocalJournal, batch: bytes, blocks: Blocks) -> None:
    unsynced, next_turn = 0, 0.0
    for number, step in enumerate(in_parts(blocks.pieces, lambda one: len(one[1].payload), STEP_BYTES)):
        made = PreparedPiece(step)
        unsynced += made.size
        time.sleep(max(0.0, next_turn - time.monotonic()))
        stage_step(journal, batch, number, made, sync=unsynced >= SYNC_BYTES)
        next_turn = time.monotonic() + _PAUSE
        if unsynced >= SYNC_BYTES:
            unsynced = 0


def _drop_quietly(journal: LocalJournal, batches: Sequence[bytes]) -> None:
    """Drops batches that were staged in vain; batches that cannot be dropped now are swept later."""
    for batch in batches:
        with suppress(PenstockError):
            journal.backend.core.run(partial(drop, batch=batch))


def _append(
    journal: LocalJournal,
    queue: LocalQueue | None,
    pieces: Sequence[tuple[str, Wire]],
    mark: str | None,
    version: int,
    content: int | None,
    commit: Commit,
) -> bool:
    if mark is not None and is_done(commit.tx, mark, version, content):
        return False
    commit.check_barrier(None if queue is None else queue.name)
    rows = RowsInCommit(commit, queue)
    wanted = [rows.wants(keyed=wire.key is not None, asks=options_of(wire) is not None) for _, wire in pieces]
    duplicates = rows.check(compress(pieces, wanted))
    if queue is not None:
        events = sum(wire.count for _, wire in pieces) - duplicates
        check_push(commit, queue, events, keyed=any(wire.key is not None for _, wire in pieces))
    for (topic, by_rows), group in groupby(zip(pieces, wanted, strict=True), key=lambda one: (one[0][0], one[1])):
        wires = [wire for (_, wire), _ in group]
        if by_rows:
            for wire in wires:
                rows.append(topic, wire)
        else:
            append_wires(commit, topic, wires)
    if mark is not None:
        commit.set_mark(mark, version, content)
    return True


def _was_done(journal: LocalJournal, mark: str | None, version: int, content: int | None) -> bool:
    """Returns True if a mark shows that a version was written, so that no work is done in vain."""
    if mark is None:
        return False
    with journal.backend.engine.read() as snap:
        return is_done(snap, mark, version, content)


def stage_step(
    journal: LocalJournal,
    batch: bytes,
    number: int,
    made: PreparedPiece,
    owner: str = "",
    job: str = "",
    *,
    sync: bool = True,
) -> None:
    """Stages one step. `sync` syncs the step after its commit, so that no caller waits for the disk."""
    journal.backend.core.run(lambda commit: stage(commit, batch, number, made, owner, job), relaxed=True)
    if sync and journal.backend.engine.durability == "disk":
        journal.backend.engine.flush()


def _queue(journal: LocalJournal, name: str | None) -> LocalQueue | None:
    return None if name is None else journal.backend.queue(journal.queue(name).name)


def is_done(snap: Snapshot, mark: str, version: int, content: int | None) -> bool:
    """Returns True if a mark shows that a version was written; raises Conflict when its content was, or may have
    been, different.
    """
    done = read_mark(snap, mark)
    if done is None or done < version:
        return False
    if content is not None and (done > version or read_mark_content(snap, mark) not in (None, content)):
        said = "with other rows" if done == version else f"and so was batch {done} after it"
        raise Conflict(
            f"batch {version} of {mark} was written before, {said}: nothing of it is written now. A query whose "
            "checkpoint is a copy of another one's, or was restored from an old state, is taken for the query that "
            'wrote the batch: give it a new checkpoint, or a name of its own, option("txnAppId", …). For a query that '
            'gives other rows when a batch runs again, option("failOnOtherRows", "false") keeps the first ones',
            expected=version,
            actual=done,
        )
    return True


def check_push(commit: Commit, queue: LocalQueue, events: int, *, keyed: bool) -> None:
    """Raises the errors of a push of whole blocks; such a push otherwise consists of its events alone."""
    state = queue.cache.state(commit, queue.name)
    policy = state.policy
    if policy.priority and keyed:
        raise ConfigError(f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys")
    if policy.max_size is None or (keyed and (policy.throttle is not None or policy.debounce is not None)):
        return  # messages that merge with others are counted when they are pushed
    held = state.unsettled(commit)
    if events and held + events > policy.max_size:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {policy.max_size}; {events} more do not fit: "
            "take some, or raise max_size with configure"
        )


# ── Rows that each count: with options, for queues that look at every push of a key, and for gates ──
# The rows are judged together, like a batch of drafts. A dedup key that repeats the key of an earlier row, in any
# block, is a duplicate. Every expectation refers to the entity before the write. Errors are found before anything
# changes, where this is possible; in any case nothing of a failed write is kept.


_Asked = tuple[bool, int | None, int | None, int | None, int | None]
_SHOWN = 60
"""The bytes of a payload that an error shows."""


class RowsInCommit:
    """Appends the rows of one write that must be checked one by one."""

    def __init__(self, commit: Commit, queue: LocalQueue | None) -> None:
        self._commit = commit
        self._queue = None if queue is None else queue.cache.state(commit, queue.name)
        policy = None if self._queue is None else self._queue.policy
        self._merging = policy is not None and (policy.throttle is not None or policy.debounce is not None)
        self._counted = self._merging and policy is not None and policy.max_size is not None
        """True if the rows of a block cannot be counted beforehand, because the number of rows that merge is known
        only afterwards.
        """
        self._fresh: dict[str, deque[Sequence[int]]] = defaultdict(deque)
        """By topic: the rows of each block that are no duplicates, in order."""
        self._deliveries: dict[_Asked, DeliveryOptions | None] = {}
        self._gathered = 0

    def wants(self, *, keyed: bool, asks: bool) -> bool:
        """Returns True if the rows of a block must be checked."""
        return asks or (keyed and self._merging) or self._counted

    def check(self, pieces: Iterable[tuple[str, Wire]]) -> int:
        """Checks all blocks before the first append; returns the number of duplicate rows."""
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
        """Returns the rows that repeat neither a row of this write nor an event that the topic remembers."""
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
        """Returns the wanted delivery of a row; times count from the commit."""
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
        set_positions(wire, 1, 0, 0)
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
        if self._gathered >= BLOCK_EVENTS:  # the gathered rows are in memory
            self._commit.flush()
            self._gathered = 0


def ask_gates(gates: Gates, pieces: Iterable[tuple[str, Wire]]) -> None:
    """Shows every row to the gates of its topic. Denied names the first gate that refuses, and the row."""
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
    """Returns a row as the draft of a single append."""
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
        tags=unpack_tags(block.tags(row)) or None,
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
    """Returns a row's options as the arguments of a push, with its checks and errors; None for the defaults.

    Times are milliseconds.
    """
    rank: int | Literal["front"] = "front" if priority == keys.FRONT else priority or 0
    at = None if not_before is None else from_ms(not_before)
    options = PushOptions(priority=rank, delay=(delay or 0) / 1000, not_before=at, max_attempts=max_attempts)
    return read_delivery_options(ManualClock(now_ms), options, key)


def row_words(block: Block, row: int) -> str:
    """Returns a description of a row for people: its contents, because rows of a frame have no numbers."""
    payload = bytes(block.raw_payload(row))
    shown = payload[:_SHOWN].decode(errors="replace") + ("…" if len(payload) > _SHOWN else "")
    said = f"a row of kind {block.kind(row)!r}"
    key = block.key(row)
    if key is not None:
        said += f" with key {key!r}"
    return f"{said}: {shown}" if not block.is_binary(row) else said


def _at(column: list[int | None] | None, row: int) -> int | None:
    return None if column is None else column[row]

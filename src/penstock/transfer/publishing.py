"""Publishing what was made elsewhere: a frame's blocks become events in one commit, once, whatever is run again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, groupby

import msgspec

from penstock.errors import ConfigError, PenstockError, QueueFull, StorageError
from penstock.journal.blocks import Wire, options_of
from penstock.journal.bulk import (
    PreparedPiece,
    append_wires,
    drop,
    publish,
    stage,
    staged_batch,
    staged_wires,
    unpublished,
    wires_of,
)
from penstock.journal.commit import Commit, read_mark
from penstock.journal.upkeep import fill_summaries
from penstock.limits import INLINE_BYTES, STEP_BYTES
from penstock.local.journal import LocalJournal
from penstock.queue.queue import LocalQueue
from penstock.transfer.rows import RowsInCommit, ask_gates

SYNC_BYTES = 4 << 20
"""Bytes of steps after which they are put on disk: what the next commit of any caller would else have to wait for."""
_PAUSE = 0.002
"""Seconds between two steps, in which other processes get their turn and the next step is made."""


class BulkCommit(msgspec.Struct, frozen=True):
    """A commit of staged batches: what says that it was done, and the queue they are pushed to."""

    batches: list[bytes]
    mark: str | None = None
    version: int = 0
    queue: str | None = None


class Blocks(msgspec.Struct, frozen=True):
    """Blocks that are not staged yet, and what is known of them."""

    pieces: Iterable[tuple[str, Wire]]
    """Topics and blocks, in order."""
    size: int
    events: int
    keyed: bool


def publish_staged(journal: LocalJournal, wanted: BulkCommit) -> bool:
    """Makes staged batches visible at once; False when that was done before: then what is staged again is dropped."""
    asked = _ask_of_staged(journal, wanted) if journal._entities.gates else None
    queue = _queue(journal, wanted.queue)
    ends: dict[str, int] = {}
    done = bool(journal._core.run(partial(_publish_staged, wanted, asked, queue, ends)))
    for topic, end in ends.items() if done else ():  # in small commits: what is not said yet is read
        fill_summaries(journal._engine, journal._core.writer, topic, after=end, hashed=True)
    return done


def _ask_of_staged(journal: LocalJournal, wanted: BulkCommit) -> list[int]:
    """Asks the gates of what is staged before a caller waits for it; returns what they have seen of each batch.

    Nothing when it was published before, or is not all there: the commit says so.
    """
    gates = journal._entities.gates
    if _was_done(journal, wanted.mark, wanted.version):
        return []
    with journal._engine.read() as snap:
        records = [staged_batch(snap, batch) for batch in wanted.batches]
        for batch, record in zip(wanted.batches, records, strict=True):
            if record is None:
                return []
            ask_gates(gates, wires_of(snap, batch, record, gates.topics))
    return [record.steps for record in records if record is not None]


def _publish_staged(
    wanted: BulkCommit, asked: list[int] | None, queue: LocalQueue | None, ends: dict[str, int], commit: Commit
) -> bool:
    """Publishes batches; `ends` gets where the topics of those ended that become part of the journal as they lie."""
    if wanted.mark is not None and is_done(commit, wanted.mark, wanted.version):
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
    done = publish(commit, wanted.batches, remember=wanted.mark is None, rows=rows)
    if wanted.mark is not None:
        commit.set_mark(wanted.mark, wanted.version)
    return done


def publish_blocks(
    journal: LocalJournal, blocks: Blocks, mark: str | None, version: int, queue_name: str | None = None
) -> bool:
    """Appends blocks, all at once; False when the mark says that it was done before.

    More of them than make a small commit are staged first, step by step, so that no caller waits long behind them.
    """
    queue = _queue(journal, queue_name)
    if blocks.size <= INLINE_BYTES:
        pieces = list(blocks.pieces)  # a commit that failed because of others in it is done a second time
        if journal._entities.gates and not _was_done(journal, mark, version):
            ask_gates(journal._entities.gates, pieces)
        return bool(journal._core.run(partial(_append, journal, queue, pieces, mark, version)))
    if _was_done(journal, mark, version):
        return False
    batch = uuid.uuid4().bytes
    try:
        unsynced, next_turn = 0, 0.0
        for number, step in enumerate(_steps(blocks.pieces)):
            made = PreparedPiece(step)
            unsynced += made.size
            time.sleep(max(0.0, next_turn - time.monotonic()))
            stage_step(journal, batch, number, made, sync=unsynced >= SYNC_BYTES)
            next_turn = time.monotonic() + _PAUSE
            if unsynced >= SYNC_BYTES:
                unsynced = 0
        return publish_staged(journal, BulkCommit([batch], mark, version, queue_name))
    except BaseException:
        with suppress(PenstockError):  # what could not be dropped is swept when it is old
            journal._core.run(partial(_drop, batch))
        raise


def _append(
    journal: LocalJournal,
    queue: LocalQueue | None,
    pieces: Sequence[tuple[str, Wire]],
    mark: str | None,
    version: int,
    commit: Commit,
) -> bool:
    if mark is not None and is_done(commit, mark, version):
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
        commit.set_mark(mark, version)
    return True


def _was_done(journal: LocalJournal, mark: str | None, version: int) -> bool:
    """Whether a mark says that a version was written, as of now: before much is done in vain."""
    if mark is None:
        return False
    with journal._engine.read() as snap:
        done = read_mark(snap, mark)
    return done is not None and done >= version


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
    """Stages one step; `sync`: puts it on disk, after its commit, so that no caller waits behind the disk."""
    journal._core.run(partial(_stage, batch, number, made, owner, job), relaxed=True)
    if sync and journal._engine.durability == "disk":
        journal._engine.flush()


def _stage(batch: bytes, number: int, made: PreparedPiece, owner: str, job: str, commit: Commit) -> None:
    stage(commit, batch, number, made, owner, job)


def _drop(batch: bytes, commit: Commit) -> None:
    drop(commit, batch)


def _steps(pieces: Iterable[tuple[str, Wire]]) -> Iterator[Sequence[tuple[str, Wire]]]:
    """The blocks, as many at a time as one commit takes."""
    step: list[tuple[str, Wire]] = []
    size = 0
    for topic, wire in pieces:
        step.append((topic, wire))
        size += len(wire.payload)
        if size >= STEP_BYTES:
            yield step
            step, size = [], 0
    if step:
        yield step


def _queue(journal: LocalJournal, name: str | None) -> LocalQueue | None:
    return None if name is None else journal._backend.queue(journal.queue(name).name)


def is_done(commit: Commit, mark: str, version: int) -> bool:
    """Whether a mark says that a version was written."""
    done = commit.get_mark(mark)
    return done is not None and done >= version


def check_push(commit: Commit, queue: LocalQueue, events: int, *, keyed: bool) -> None:
    """Raises what pushing messages as whole blocks would raise; such a push is otherwise nothing but its events."""
    state = queue._cache.state(commit, queue.name)
    policy = state.policy
    if policy.priority and keyed:
        raise ConfigError(f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys")
    if policy.max_size is None or (keyed and (policy.throttle is not None or policy.debounce is not None)):
        return  # those that merge with others are counted as they are pushed
    held = state.unsettled(commit)
    if events and held + events > policy.max_size:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {policy.max_size}; {events} more do not fit: "
            "take some, or raise max_size with configure"
        )

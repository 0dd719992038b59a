"""Publishing what was made elsewhere: a frame's blocks become events in one commit, once, whatever is run again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

import msgspec

from penstock.api import LocalJournal
from penstock.errors import ConfigError, PenstockError, QueueFull
from penstock.journal.bulk.appending import append_wires
from penstock.journal.bulk.staging import PreparedPiece, drop, publish, stage, unpublished
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.block import Wire
from penstock.limits import INLINE_BYTES, STEP_BYTES
from penstock.queue.queue import LocalQueue

SYNC_BYTES = 16 << 20
"""Bytes of steps after which they are put on disk: what the next commit of anybody would else have to wait for."""
_PAUSE = 0.002
"""Seconds between two steps, in which other processes get their turn."""


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
    return bool(journal.run(partial(_publish_staged, _queue(journal, wanted.queue), wanted)))


def _publish_staged(queue: LocalQueue | None, wanted: BulkCommit, commit: Commit) -> bool:
    if wanted.mark is not None and is_done(commit, wanted.mark, wanted.version):
        for batch in wanted.batches:
            drop(commit, batch)
        return False
    if queue is not None:
        records = unpublished(commit, wanted.batches)
        if records is None:
            return False
        check_push(commit, queue, sum(one.events for one in records), keyed=any(one.keyed for one in records))
    done = publish(commit, wanted.batches, remember=wanted.mark is None)
    if wanted.mark is not None:
        commit.set_mark(wanted.mark, wanted.version)
    return done


def publish_blocks(
    journal: LocalJournal, blocks: Blocks, mark: str | None, version: int, queue_name: str | None = None
) -> bool:
    """Appends blocks, all at once; False when the mark says that it was done before.

    More of them than make a small commit are staged first, step by step, so that nobody waits long behind them.
    """
    queue = _queue(journal, queue_name)
    if blocks.size <= INLINE_BYTES:
        return bool(journal.run(partial(_append, queue, blocks, mark, version)))
    if not journal.run(partial(_check, queue, blocks, mark, version)):
        return False
    batch = uuid.uuid4().bytes
    try:
        unsynced = 0
        for number, step in enumerate(_steps(blocks.pieces)):
            made = PreparedPiece(step)
            unsynced += made.size
            stage_step(journal, batch, number, made, sync=unsynced >= SYNC_BYTES)
            if unsynced >= SYNC_BYTES:
                unsynced = 0
            time.sleep(_PAUSE)
        return publish_staged(journal, BulkCommit([batch], mark, version, queue_name))
    except BaseException:
        with suppress(PenstockError):  # what could not be dropped is swept when it is old
            journal.run(partial(_drop, batch))
        raise


def _append(queue: LocalQueue | None, blocks: Blocks, mark: str | None, version: int, commit: Commit) -> bool:
    if not _check(queue, blocks, mark, version, commit):
        return False
    for topic, group in groupby(blocks.pieces, key=lambda piece: piece[0]):
        append_wires(commit, topic, (wire for _, wire in group))
    if mark is not None:
        commit.set_mark(mark, version)
    return True


def _check(queue: LocalQueue | None, blocks: Blocks, mark: str | None, version: int, commit: Commit) -> bool:
    """False when it was done before; raises what the queue has against it."""
    if mark is not None and is_done(commit, mark, version):
        return False
    if queue is not None:
        check_push(commit, queue, blocks.events, keyed=blocks.keyed)
    return True


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
    """Stages one step; `sync`: puts it on disk, after its commit, so that nobody waits behind the disk."""
    journal.run(partial(_stage, batch, number, made, owner, job), relaxed=True)
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
    return None if name is None else journal.queue(name)


def is_done(commit: Commit, mark: str, version: int) -> bool:
    """Whether a mark says that a version was written."""
    done = commit.get_mark(mark)
    return done is not None and done >= version


def check_push(commit: Commit, queue: LocalQueue, events: int, *, keyed: bool) -> None:
    """Raises what pushing the messages one by one would raise; a push is otherwise nothing but its event."""
    state = queue._cache.state(commit, queue.name)
    if state.policy.priority and keyed:
        raise ConfigError(f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys")
    if keyed and (state.policy.throttle is not None or state.policy.debounce is not None):
        raise ConfigError(
            f"queue {queue.name!r} has a throttle or a debounce, which look at every push of a key: frames and files "
            "push whole blocks. Push these messages one by one, leave their keys out, or use a queue without"
        )
    most, held = state.policy.max_size, state.unsettled(commit)
    if most is not None and held + events > most:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {most}; {events} more do not fit: "
            "take some, or raise max_size with configure"
        )

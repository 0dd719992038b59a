"""Large batches in bounded steps: blocks are staged where no reader looks, and one small commit makes all of them
visible.

    w batch                 a staged batch: whose it is and what its blocks are (msgpack)
    v batch                 a published one: the places of its blocks (msgpack)
    x batch piece index     a block of either

A step (a piece) is one commit of some MiB, so that no caller waits long behind it. Publishing gives every block its
place: large ones stay where they are, with a reference under their block keys (`blocks.Reference`); small ones, and all
of a batch that is small as a whole, become blocks like any others. A batch that is never published is removed when it
is old. A published batch is remembered until its last reference is gone, for example when retention removes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    Reference,
    Wire,
    compressed_if_large,
    encode_block,
    options_of,
    pack_reference,
    payload_size,
    plain_size,
    read_block,
    read_pending,
    reference_in,
    set_positions,
)
from penstock.core.journal.commit import Commit, next_id, topic_is_full
from penstock.core.journal.summaries import keep_hashes, leaves_of, summarise
from penstock.core.journal.writer import Writer
from penstock.errors import Conflict, Corrupt, StorageError
from penstock.limits import INLINE_BYTES, MAX_POSITION, MERGED_BYTES, RETENTION_BLOCKS, STAGED_SECONDS


class StagedBlock(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The properties of a block that publishing needs without reading the block."""

    topic: str
    count: int
    size: int
    keyed: bool
    """True if any of its events has a key."""
    asks: bool = False
    """True if any event has options beyond an append."""
    plain: int = 0
    """The bytes before compression; 0 in a record of an earlier version, which compressed nothing."""

    @property
    def plain_size(self) -> int:
        """The bytes before compression."""
        return self.plain or self.size


class StagedBatch(msgspec.Struct, array_like=True):
    """A batch that is not published yet."""

    owner: str
    """The owner whose staged bytes are limited: at a server, the token."""
    job: str
    """The job that the batch belongs to: batches of one job are published or dropped together."""
    begun_ms: int
    pieces: dict[int, list[StagedBlock]]
    steps: int = 0
    """The number of steps in which the batch was staged; it also grows when a step replaces its first attempt."""

    @property
    def size(self) -> int:
        """The staged bytes."""
        return sum(block.size for blocks in self.pieces.values() for block in blocks)

    @property
    def plain(self) -> int:
        """The bytes before compression."""
        return sum(block.plain_size for blocks in self.pieces.values() for block in blocks)

    @property
    def events(self) -> int:
        return sum(block.count for blocks in self.pieces.values() for block in blocks)

    @property
    def keyed(self) -> bool:
        """True if any event has a key."""
        return any(block.keyed for blocks in self.pieces.values() for block in blocks)

    @property
    def blocks(self) -> Iterator[tuple[int, int, StagedBlock]]:
        """The blocks in order, each with its piece and its index in the piece."""
        for piece in sorted(self.pieces):
            for index, block in enumerate(self.pieces[piece]):
                yield piece, index, block


class PublishedBatch(msgspec.Struct, array_like=True):
    """A published batch: the topic's id, the first position, the piece and the index of each block that is stored
    apart.
    """

    published_ms: int
    refs: list[tuple[int, int, int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode_staged = msgspec.msgpack.Decoder(StagedBatch).decode
_decode_published = msgspec.msgpack.Decoder(PublishedBatch).decode


class PreparedPiece:
    """The blocks of one step, ready to be written; they are made before the writer's turn."""

    def __init__(self, wires: Iterable[tuple[str, Wire]]) -> None:
        self.blocks: list[StagedBlock] = []
        self.values: list[bytes] = []
        for topic, wire in wires:
            set_positions(wire, 0, 0, 0)
            value = encode_block(compressed_if_large(wire))
            keyed, asks = wire.key is not None, options_of(wire) is not None
            self.blocks.append(StagedBlock(topic, wire.count, len(value), keyed, asks, plain_size(value)))
            self.values.append(value)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.values))


def staged_batches(snap: Snapshot) -> Iterator[tuple[bytes, StagedBatch]]:
    """Yields every batch that is not published."""
    for key, value in snap.scan(keys.STAGED, keys.prefix_end(keys.STAGED)):
        yield key[1:], _staged(value)


def published_batches(snap: Snapshot) -> Iterator[tuple[bytes, PublishedBatch]]:
    """Yields every batch that is published and remembered."""
    for key, value in snap.scan(keys.PUBLISHED, keys.prefix_end(keys.PUBLISHED)):
        yield key[1:], _published(value)


def _staged(value: bytes) -> StagedBatch:
    return keys.stored(_decode_staged, value, "the record of a staged batch")


def _published(value: bytes) -> PublishedBatch:
    return keys.stored(_decode_published, value, "the record of a published batch")


def stage(commit: Commit, batch: bytes, piece: int, made: PreparedPiece, owner: str = "", job: str = "") -> None:
    """Stores one step's blocks where no reader looks; a repeated step replaces its first attempt."""
    value = commit.tx.get(keys.staged_key(batch))
    if value is None and commit.tx.get(keys.published_key(batch)) is not None:
        raise Conflict("this batch was published already: nothing can be added to it", expected=0, actual=1)
    record = StagedBatch(owner, job, commit.now_ms, {}) if value is None else _staged(value)
    if piece in record.pieces:
        commit.tx.delete_range(*keys.piece_range(batch, piece))
    for index, one in enumerate(made.values):
        commit.tx.put(keys.apart_key(batch, piece, index), one)
    record.pieces[piece] = made.blocks
    record.steps += 1
    commit.tx.put(keys.staged_key(batch), _encode(record))


def is_published(snap: Snapshot, batch: bytes) -> bool:
    """Returns True if a batch of this name was published, as far as it is remembered."""
    return snap.get(keys.published_key(batch)) is not None


def remember(commit: Commit, batch: bytes) -> None:
    """Remembers a published batch without blocks that are stored apart."""
    commit.tx.put(keys.published_key(batch), _encode(PublishedBatch(commit.now_ms, [])))


def unpublished(commit: Commit, batches: Sequence[bytes]) -> list[StagedBatch] | None:
    """Returns the records of batches that are published together; None when they were published before."""
    values = [commit.tx.get(keys.staged_key(batch)) for batch in batches]
    found = [_staged(value) for value in values if value is not None]
    if len(found) == len(values):
        return found
    if not found and all(commit.tx.get(keys.published_key(batch)) is not None for batch in batches):
        return None
    raise StorageError(
        "some of what was staged is not there any more: it was dropped, or swept because it was old; run it again",
        retryable=False,
    )


class RowAppender(Protocol):
    """The appender of blocks whose events must be checked one by one."""

    def wants(self, *, keyed: bool, asks: bool) -> bool:
        """Returns True if the events of a block must be checked: `keyed`, an event has a key; `asks`, an event has
        options.
        """
        ...

    def append(self, topic: str, wire: Wire) -> None:
        """Appends its events."""
        ...


def staged_wires(commit: Commit, batches: Sequence[bytes], rows: RowAppender) -> Iterator[tuple[str, Wire]]:
    """Yields the blocks of unpublished batches that `rows` wants, in order, with their topics."""
    for batch, record in zip(batches, unpublished(commit, batches) or (), strict=False):
        for piece, index, block in record.blocks:
            if rows.wants(keyed=block.keyed, asks=block.asks):
                yield block.topic, _staged_wire(commit.tx, keys.apart_key(batch, piece, index), block.topic)


def wires_of(snap: Snapshot, batch: bytes, record: StagedBatch, topics: Container[str]) -> Iterator[tuple[str, Wire]]:
    """Yields the blocks of an unpublished batch for some topics, in order, with their topics."""
    for piece, index, block in record.blocks:
        if block.topic in topics:
            yield block.topic, _staged_wire(snap, keys.apart_key(batch, piece, index), block.topic)


def staged_batch(snap: Snapshot, batch: bytes) -> StagedBatch | None:
    """Returns an unpublished batch; None for an unknown batch."""
    value = snap.get(keys.staged_key(batch))
    return None if value is None else _staged(value)


def _staged_wire(snap: Snapshot, key: bytes, topic: str) -> Wire:
    value = snap.get(key)
    if value is None:
        raise Corrupt("a block that was staged is missing", topic=topic)
    return read_pending(value, topic)


def publish(commit: Commit, batches: Sequence[bytes], *, remember: bool, rows: RowAppender | None = None) -> bool:
    """Makes staged batches visible, in order, at the ends of their topics; returns False when this was done before.

    `remember` also remembers batches without blocks that are stored apart, so that publishing them again is recognised.
    `rows` receives the blocks that it wants.
    """
    records = unpublished(commit, batches)
    if records is None:
        return False
    apart = sum(record.plain for record in records) > INLINE_BYTES
    for batch, record in zip(batches, records, strict=True):
        refs = []
        for piece, index, block in record.blocks:
            key = keys.apart_key(batch, piece, index)
            if rows is not None and rows.wants(keyed=block.keyed, asks=block.asks):
                rows.append(block.topic, _staged_wire(commit.tx, key, block.topic))
                commit.tx.delete(key)
            elif apart and block.plain_size >= MERGED_BYTES and not commit.ensure(block.topic).settings.verified:
                refs.append(_refer(commit, key, block, piece, index))
            else:
                append_wires(commit, block.topic, (_staged_wire(commit.tx, key, block.topic),))
                commit.tx.delete(key)
        commit.tx.delete(keys.staged_key(batch))
        if refs or remember:
            commit.tx.put(keys.published_key(batch), _encode(PublishedBatch(commit.now_ms, refs)))
    return True


def _refer(commit: Commit, key: bytes, block: StagedBlock, piece: int, index: int) -> tuple[int, int, int, int]:
    """Gives a block its place without moving it."""
    name = block.topic
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    first, last = head.latest + 1, head.latest + block.count
    if last > MAX_POSITION:
        raise topic_is_full(name, head.latest, block.count)
    recorded = max(commit.now_ms, head.recorded_ms)
    number = next_id(head.last_id, recorded, head.id_bits)
    made = Reference(key, block.size, block.count, first, recorded, number.to_bytes(16))
    commit.tx.put(keys.block_key(head.topic_id, first), pack_reference(made))
    # The block may have causes, because it is not opened here.
    commit.move_end(head, last, recorded, number + block.count - 1, block.count, causal=True)
    return head.topic_id, first, piece, index


def drop(commit: Commit, batch: bytes) -> int:
    """Removes an unpublished batch; returns the number of its bytes."""
    value = commit.tx.get(keys.staged_key(batch))
    if value is None:
        return 0
    commit.tx.delete_range(*keys.batch_range(batch))
    commit.tx.delete(keys.staged_key(batch))
    return _staged(value).size


def drop_job(commit: Commit, job: str, owner: str) -> int:
    """Removes the unpublished batches of a job; returns the number of their bytes."""
    mine = [batch for batch, record in staged_batches(commit.tx) if (record.job, record.owner) == (job, owner)]
    return sum(drop(commit, batch) for batch in mine)


def is_needed(snap: Snapshot, batch: bytes, record: PublishedBatch, before_ms: int) -> bool:
    """Returns True if every part of a published batch is still needed."""
    if not record.refs:
        return record.published_ms >= before_ms
    return all(_is_held(snap, batch, ref) for ref in record.refs)


def forget_removed(commit: Commit, batch: bytes, before_ms: int) -> bool:
    """Removes some blocks of a published batch that no topic holds any more; returns whether any block was removed.

    A batch without such blocks is remembered until `before_ms`.
    """
    value = commit.tx.get(keys.published_key(batch))
    if value is None:
        return False
    record = _published(value)
    gone = [ref for ref in record.refs if not _is_held(commit.tx, batch, ref)][:RETENTION_BLOCKS]
    kept = [ref for ref in record.refs if ref not in gone]
    for ref in gone:
        commit.tx.delete(keys.apart_key(batch, *ref[2:]))
    if not kept and record.published_ms < before_ms:
        commit.tx.delete(keys.published_key(batch))
        return True
    if len(kept) < len(record.refs):
        commit.tx.put(keys.published_key(batch), _encode(PublishedBatch(record.published_ms, kept)))
        return True
    return False


def _is_held(snap: Snapshot, batch: bytes, ref: tuple[int, int, int, int]) -> bool:
    topic_id, first, piece, index = ref
    value = snap.get(keys.block_key(topic_id, first))
    found = None if value is None else reference_in(value, "")
    return found is not None and found.key == keys.apart_key(batch, piece, index)


# ── Appending whole blocks: for events that arrive as columns and have no need to be looked at one by one ──
# The maker of the blocks (a Spark task, in another process) leaves positions, times and ids open; they are filled in
# here, when the positions are known.


_LARGE = 256 << 10
"""The payload bytes of a block from which a second thread, which makes the next blocks, pays."""
_BLOCKS_AHEAD = 3


def append_wires(commit: Commit, name: str, wires: Iterable[Wire]) -> range:
    """Adds blocks at the end of a topic; returns the positions of their events."""
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    recorded = max(commit.now_ms, head.recorded_ms)
    first = seq = head.latest + 1
    number = next_id(head.last_id, recorded, head.id_bits)
    causal = False
    for wire, value in _ahead(_values(wires, seq, recorded, number)):
        count = wire.count
        if seq + count - 1 > MAX_POSITION:
            raise topic_is_full(name, seq - 1, count)
        commit.tx.put(keys.block_key(head.topic_id, seq), value)
        summarise(commit.tx, head.topic_id, wire, indexed=head.settings.indexed)
        if head.settings.verified:
            block = read_block(value, name)
            keep_hashes(commit.tx, head.topic_id, block.seqs, leaves_of(block))
        causal = causal or wire.correlation is not None or wire.causation is not None
        seq += count
        number += count
    if seq > first:
        commit.move_end(head, seq - 1, recorded, number - 1, seq - first, causal=causal)
    return range(first, seq)


def _values(wires: Iterable[Wire], seq: int, recorded: int, number: int) -> Iterator[tuple[Wire, bytes]]:
    """Blocks, and their stored form."""
    for wire in wires:
        set_positions(wire, seq, recorded, number)
        yield wire, encode_block(compressed_if_large(wire))
        seq += wire.count
        number += wire.count


def _ahead(values: Iterator[tuple[Wire, bytes]]) -> Iterator[tuple[Wire, bytes]]:
    """Makes large pieces in another thread while the store writes the earlier pieces."""
    for wire, value in values:
        yield wire, value
        if payload_size(wire) >= _LARGE:
            break
    else:
        return  # most batches of a stream: a thread would cost more than their blocks, while other callers wait
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, thread_name_prefix="penstock-bulk") as pool:
        coming = deque(pool.submit(next, values, None) for _ in range(_BLOCKS_AHEAD))
        while (made := coming.popleft().result()) is not None:
            coming.append(pool.submit(next, values, None))
            yield made


# ── Sweeping what large batches leave: those that were never published, and blocks that no topic holds any more ──


def sweep_staged(writer: Writer) -> bool:
    """Removes old staged batches, and blocks whose events were removed; returns whether anything was removed."""
    oldest = writer.clock.now_ms() - int(STAGED_SECONDS * 1000)
    with writer.engine.read() as snap:  # outside the writer, because there is mostly nothing to do
        old = [batch for batch, record in staged_batches(snap) if record.begun_ms < oldest]
        published = [batch for batch, record in published_batches(snap) if not is_needed(snap, batch, record, oldest)]
    swept = False
    for batch in old:  # one commit for each, so that no caller waits long
        swept = writer.run_relaxed(drop, batch) > 0 or swept
    for batch in published:
        while writer.run_relaxed(forget_removed, batch, oldest):
            swept = True
    return swept

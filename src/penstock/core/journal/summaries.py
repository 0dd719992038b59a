"""Summaries of ranges of positions, so that a reader opens only blocks that may have the wanted events.

    o topic first             kinds, scopes and times of neighbouring ranges, from there on    (msgpack, CRC-32)
    j topic first             hashes of the keys, causes and correlations of one range         (msgpack, CRC-32)

A commit of many events writes summary and hashes beside its block, and so does merging small blocks. Positions are
never reused, so the rows about a range stay valid as long as the topic exists, whatever happens to the blocks.
Positions without such rows are read. Housekeeping joins neighbouring summaries into one row; it removes hashes when a
run of the index covers their range.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.events import ERASED_AT, MASKED_AT, is_marked
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    Block,
    CodedText,
    Columns,
    Text,
    Wire,
    columns_of,
    identities_of,
    pack_words,
    text_values,
    unpack_ints,
    unpack_signed,
)
from penstock.core.names import unpack_tags
from penstock.errors import Corrupt
from penstock.limits import SUMMARY_EVENTS, SUMMARY_VALUES

T = TypeVar("T")


class Summary(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The summary of the events first … last. A field is None when it is unknown."""

    first: int
    last: int
    kinds: tuple[str, ...] | None
    scopes: tuple[str, ...] | None
    occurred: tuple[int, int]
    """The producers' earliest and latest time, in milliseconds."""


class TermHashes(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Four bytes for each of the events first … last: the CRC-32 of a term, or of nothing.

    Empty when no event has a term.
    """

    first: int
    last: int
    keys: bytes
    causes: bytes
    correlations: bytes

    def after(self, position: int) -> TermHashes:
        """Returns the hashes of the events after a position."""
        if position < self.first:
            return self
        start = 4 * (position + 1 - self.first)
        return TermHashes(position + 1, self.last, self.keys[start:], self.causes[start:], self.correlations[start:])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Summary]).decode
_decode_hashes = msgspec.msgpack.Decoder(TermHashes).decode


def summary_of(block: Block) -> Summary:
    """Returns the summary of the events of a block."""
    wire, times = block.wire, block.run_times
    if wire.occurred is not None:
        times = list(unpack_signed(wire.occurred, wire.count))
    return Summary(
        block.first,
        block.last,
        tuple(wire.kinds) if len(wire.kinds) <= SUMMARY_VALUES else None,
        _distinct(wire.scope, wire.count),
        (min(times), max(times)),
    )


def _distinct(column: Text | None, count: int) -> tuple[str, ...] | None:
    """Returns the distinct values of a column; None for many values."""
    if column is None:
        return ()
    if isinstance(column, CodedText):
        values = set(column.values)
    elif count > 4 * SUMMARY_VALUES:  # otherwise the column would be coded
        return None
    else:
        values = set(text_values(column, count))
    return tuple(value for value in values if value is not None) if len(values) <= SUMMARY_VALUES else None


def is_hashed(wire: Wire) -> bool:
    """Returns True for a large block whose events are found by hashes: an event has one key, but many tags."""
    return wire.count >= SUMMARY_EVENTS and wire.seqs is None and wire.tags is None


def hashes_of(wire: Wire, made_of: Columns | None = None) -> TermHashes:
    """Returns the hashes of the terms of a block without holes; `made_of` holds its columns, if at hand."""
    given = (None,) * 3 if made_of is None else (made_of.key, made_of.causation, made_of.correlation)
    columns = zip((wire.key, wire.causation, wire.correlation), given, strict=True)
    return TermHashes(wire.first, wire.first + wire.count - 1, *(_hashes(*one, wire.count) for one in columns))


def _hashes(column: Text | None, given: Sequence[str | None] | None, count: int) -> bytes:
    if column is None:
        return b""
    if isinstance(column, CodedText):
        coded = [zlib.crc32((value or "").encode()) for value in column.values]
        return pack_words([coded[code] for code in unpack_ints(column.codes, count)])
    values = text_values(column, count) if given is None else given
    if column.nulls is not None:
        values = [value or "" for value in values]
    return pack_words(list(map(zlib.crc32, map(str.encode, values))))  # type: ignore[arg-type]


def rows_with(hashes: bytes | bytearray, term: str, start: int, stop: int, *, reverse: bool = False) -> Iterator[int]:
    """Yields the rows among start … stop-1 that may have a term."""
    wanted = zlib.crc32(term.encode()).to_bytes(4, "little")
    low, high = 4 * start, 4 * stop
    while (at := hashes.rfind(wanted, low, high) if reverse else hashes.find(wanted, low, high)) >= 0:
        if at % 4 == 0:
            yield at // 4
        low, high = (low, at + 3) if reverse else (at + 1, high)


# ── stored ───────────────────────────────────────────────────────────────────────────────────────────────────────────
RangeRows = tuple[bytes, bytes | None]
"""The rows that are stored about one range of positions: its summary, and the hashes of its terms if it has any."""


def range_rows(wire: Wire, *, indexed: bool, made_of: Columns | None = None) -> RangeRows | None:
    """Returns the rows that are stored about a new block, if they pay; with `indexed`, also the hashes of its terms."""
    if wire.count < SUMMARY_EVENTS:
        return None
    summary = pack_summaries([summary_of(Block(wire, ""))])
    termed = wire.key is not None or wire.causation is not None or wire.correlation is not None
    hashed = indexed and termed and is_hashed(wire)
    return summary, keys.with_checksum(_encode(hashes_of(wire, made_of))) if hashed else None


def summarise(tx: WriteTx, topic: int, wire: Wire, *, indexed: bool, made_of: Columns | None = None) -> None:
    """Stores the summary and the hashes of a new block."""
    put_range_rows(tx, topic, wire.first, range_rows(wire, indexed=indexed, made_of=made_of))


def put_range_rows(tx: WriteTx, topic: int, first: int, rows: RangeRows | None) -> None:
    """Stores the rows about the range that begins at a position, if there are any."""
    if rows is not None:
        tx.put(keys.summary_key(topic, first), rows[0])
        if rows[1] is not None:
            tx.put(keys.hashes_key(topic, first), rows[1])


def replace_range_rows(tx: WriteTx, topic: int, name: str, first: int, last: int, rows: RangeRows | None) -> None:
    """Stores the rows about a block without holes that has replaced several blocks, and removes their rows."""
    stop = keys.summary_key(topic, last + 1)
    for key, value in list(tx.scan(keys.summary_key(topic, first), stop)):
        if read_summaries(value, name)[-1].last > last:
            return  # the row has this value already
        tx.delete(key)
    tx.delete_range(keys.hashes_key(topic, first), keys.hashes_key(topic, last + 1))
    put_range_rows(tx, topic, first, rows)


def forget_hashes(tx: WriteTx, topic: int, through: int) -> None:
    """Removes the hashes of events that a run of the index covers."""
    tx.delete_range(keys.hashes_key(topic, 0), keys.hashes_key(topic, through + 1))


def blank_hashes(value: bytes, topic: str, positions: Sequence[int]) -> bytes | None:
    """Returns a row of hashes that says of events at some positions, ascending, that they have no key; None: it says
    so already."""
    known = _decode_checked(_decode_hashes, value, topic)
    made = bytearray(known.keys)
    for seq in positions[bisect_left(positions, known.first) : bisect_right(positions, known.last)] if made else ():
        at = 4 * (seq - known.first)
        made[at : at + 4] = bytes(4)
    return None if made == known.keys else keys.with_checksum(_encode(replace(known, keys=bytes(made))))


def blank_scopes(value: bytes, topic: str, positions: Sequence[int]) -> bytes | None:
    """Returns a row of summaries that leaves the scopes open where events at some positions, ascending, lie; None when
    it does so already."""
    known = read_summaries(value, topic)
    made = [
        replace(one, scopes=None)
        if one.scopes and bisect_left(positions, one.first) < bisect_right(positions, one.last)
        else one
        for one in known
    ]
    return None if made == known else pack_summaries(made)


def trim_summaries(tx: WriteTx, topic: int, through: int) -> None:
    """Removes the rows about ranges that lie before a position through which events were removed."""
    forget_hashes(tx, topic, through)
    low, _ = keys.topic_range(keys.SUMMARY, topic)
    for key, _ in tx.scan(low, keys.summary_key(topic, through + 2), reverse=True):
        tx.delete_range(low, key)
        break


def pack_summaries(summaries: Sequence[Summary]) -> bytes:
    """Returns neighbouring summaries as one row."""
    return keys.with_checksum(_encode(summaries))


def _decode_checked(decode: Callable[[memoryview], T], value: bytes, topic: str) -> T:
    body = keys.without_checksum(value)
    if body is None:
        raise Corrupt("a summary fails its checksum; topic.reindex() makes them again", topic=topic)
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a summary does not decode: {error}; topic.reindex() makes them again", topic=topic) from error


def read_summaries(value: bytes, topic: str) -> list[Summary]:
    return _decode_checked(_decode, value, topic)


def stored_summaries(
    snap: Snapshot, topic: int, name: str, after: int, through: int, *, reverse: bool = False
) -> Iterator[list[Summary]]:
    """Yields the summaries of positions after < position ≤ through, and some before, a row at a time."""
    low, _ = keys.topic_range(keys.SUMMARY, topic)
    start = keys.summary_key(topic, after + 1)
    for key, _ in snap.scan(low, start, reverse=True):
        start = key
        break
    for _, value in snap.scan(start, keys.summary_key(topic, min(through, keys.MAX_SEQ - 1) + 1), reverse=reverse):
        yield read_summaries(value, name)


def stored_hashes(snap: Snapshot, topic: int, name: str, after: int) -> Iterator[TermHashes]:
    """Yields the hashes of ranges that begin after a position, in order."""
    for _, value in snap.scan(keys.hashes_key(topic, after + 1), keys.topic_range(keys.HASHES, topic)[1]):
        yield _decode_checked(_decode_hashes, value, name)


# ── What each event says, as the bytes that are hashed, and the hashes that a verified topic keeps of its events ──
#     l topic first             the hashes of the events first …, written with them by the commit that appended them
#
# A hash is the event's leaf in the topic's Merkle tree, see `penstock.core.entity.receipts`.


HASH_BYTES = 32


def leaf_hash(said: bytes) -> bytes:
    """Returns the hash of a leaf."""
    from hashlib import sha256  # OpenSSL takes 3 ms to load, and most programs compute no hashes

    return sha256(b"\x00" + said).digest()


def leaves(columns: Columns, seqs: Iterable[int], ids: Iterable[int], recorded: Sequence[int]) -> Iterator[bytes]:
    """Returns the fields of each event as bytes: position, id, times, kind, payload, the optional columns in order.

    The bytes of an event without tags hold nothing about tags, so its hash is the same as in versions without tags.
    """
    nothing: list[None] = [None] * len(columns)
    for seq, id, ms, occurred, kind, payload, binary, key, scope, headers, correlation, causation, tags in zip(
        seqs,
        ids,
        recorded,
        columns.occurred or nothing,
        columns.kinds,
        columns.payloads,
        columns.binary or nothing,
        columns.key or nothing,
        columns.scope or nothing,
        columns.headers or nothing,
        columns.correlation or nothing,
        columns.causation or nothing,
        columns.tags or nothing,
        strict=True,
    ):
        times = ms, ms if occurred is None else occurred
        pairs = sorted(headers.items()) if headers else None
        said = (seq, id.to_bytes(16), *times, kind, payload, bool(binary), key, scope, pairs, correlation, causation)
        yield _encode(said if tags is None else (*said, unpack_tags(tags)))


def leaves_of(block: Block) -> Iterator[bytes]:
    """Returns the leaf of each event of a block."""
    ids, recorded, seqs = identities_of(block)
    return leaves(columns_of(block, range(block.count)), seqs, ids, recorded)


def leaf_of(block: Block, row: int) -> bytes:
    """Returns the leaf of an event of a block."""
    (said,) = leaves(columns_of(block, [row]), [block.seq(row)], [block.id_number(row)], [block.recorded_ms(row)])
    return said


# ── the hashes of a verified topic ───────────────────────────────────────────────────────────────────────────────────
def keep_hashes(tx: WriteTx, topic: int, seqs: Sequence[int], said: Iterable[bytes]) -> None:
    """Stores the hashes of events that are being appended, with a row for each run of positions without a hole."""
    hashes = list(map(leaf_hash, said))
    start = 0
    for stop in range(1, len(seqs) + 1):
        if stop == len(seqs) or seqs[stop] != seqs[stop - 1] + 1:
            tx.put(keys.leaves_key(topic, seqs[start]), b"".join(hashes[start:stop]))
            start = stop


def kept_hashes(snap: Snapshot, topic: int) -> Iterator[tuple[int, bytes]]:
    """Yields the positions and hashes of the events that were appended since the topic became verified, in order."""
    for key, value in snap.scan(*keys.topic_range(keys.LEAVES, topic)):
        first = keys.block_first(key)
        for at in range(0, len(value), HASH_BYTES):
            yield first + at // HASH_BYTES, value[at : at + HASH_BYTES]


def kept_hash(snap: Snapshot, topic: int, seq: int) -> bytes | None:
    """Returns the hash of the event that was appended at a position; None where none was kept."""
    for key, value in snap.scan(keys.leaves_key(topic, 0), keys.leaves_key(topic, seq + 1), reverse=True):
        at = (seq - keys.block_first(key)) * HASH_BYTES
        return value[at : at + HASH_BYTES] or None
    return None


def known_hash(snap: Snapshot, topic: int, seq: int) -> bytes | None:
    """Returns the hash of what an event said before it was erased or masked, where one was kept."""
    return kept_hash(snap, topic, seq) or snap.get(keys.erased_leaf_key(topic, seq))


def hashes_in(snap: Snapshot, topic: int, block: Block) -> list[bytes]:
    """Returns the leaf of each event of a block, hashed; of an event that was erased or masked, the hash of before."""
    hashes = list(map(leaf_hash, leaves_of(block)))
    if block.may_have_header(ERASED_AT) or block.may_have_header(MASKED_AT):
        for row, seq in enumerate(block.seqs):
            if is_marked(block.headers(row)):
                hashes[row] = known_hash(snap, topic, seq) or hashes[row]
    return hashes


def trim_hashes(tx: WriteTx, topic: int, through: int) -> None:
    """Removes the hashes of events that compaction has removed; a row with later events stays whole."""
    low, high = keys.leaves_key(topic, 0), keys.leaves_key(topic, through + 1)
    for key, value in tx.scan(low, high, reverse=True):
        ends = keys.block_first(key) + len(value) // HASH_BYTES - 1 <= through
        tx.delete_range(low, high if ends else key)
        return

"""What the runs of the entity index are made of: sorted rows, cut into chunks.

A row's *mark* is its term (the entity's key, the cause's id, the correlation id), preceded by the term's length and
followed by the event's position: marks compare as bytes, and no term is a prefix of another one's mark. An entity's
rows carry the whole event (a chunk is a block whose rows are sorted by mark), so that reading an entity needs nothing
else. The rows of causes and correlations are marks alone.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from typing import Any

import msgspec

from penstock.engine.contract import Snapshot, WriteTx
from penstock.errors import Corrupt
from penstock.journal.blocks import (
    OPTIONAL,
    Block,
    Columns,
    build_wire,
    columns_of,
    pack_seqs,
    read_block,
    seal,
    set_runs_of,
    spread,
    text_values,
    texts_of,
)
from penstock.limits import INDEX_CHUNK_BYTES, INDEX_LARGE_CHUNK_BYTES

_ROW_BYTES = 48
"""What a row takes besides its payload, about."""
_MARKS = 512
"""Marks in one chunk of causes or correlations."""
STEP_ROWS = 256
"""How many rows are worked on between two moments at which others may have the interpreter."""
SORT_ROWS = 8 * STEP_ROWS
"""How many are sorted at once."""
_SAMPLE = 32
_AFTER = b"\xff" * 8
"""After every position, in a mark."""

_encode = msgspec.msgpack.Encoder().encode
_decode_marks = msgspec.msgpack.Decoder(list[bytes]).decode

Chunk = tuple[bytes, bytes]
"""The mark of a chunk's first row, and the chunk."""


Breathe = Callable[[], None]
"""Called between pieces of work, to let others have the interpreter."""


def go_on() -> None:
    """No thread is waiting."""


def prefix(term: str) -> bytes:
    """What the marks of a term's rows begin with."""
    encoded = term.encode()
    return len(encoded).to_bytes(2) + encoded


def mark_seq(mark: bytes) -> int:
    """The position in a mark."""
    return int.from_bytes(mark[-8:])


Row = tuple[Any, ...]
"""An event on its way into a run: its mark, position, id and time, its kind and payload, its `OPTIONAL` columns."""
_SEQ, _PAYLOAD = 1, 5
_KEY, _HEADERS = 6 + OPTIONAL.index("key"), 6 + OPTIONAL.index("headers")
mark_of: Callable[[Row], bytes] = itemgetter(0)


def rows_of(block: Block, breathe: Breathe = go_on) -> list[Row]:
    """The rows of a block's events that have a key."""
    if block.wire.key is None:
        return []
    rows = [row for row in rows_of_chunk(block, breathe) if row[_KEY] is not None]
    breathe()
    return rows


def rows_of_chunk(block: Block, breathe: Breathe = go_on) -> list[Row]:
    """The rows of a chunk, to be merged with others'."""
    ids, times, seqs = spread(block)
    breathe()
    texts = texts_of(block)
    breathe()
    found: list[Row] = []
    for start in range(0, block.count, STEP_ROWS):
        span = range(start, min(start + STEP_ROWS, block.count))
        columns = columns_of(block, span, texts)
        terms = columns.key if columns.key is not None else [None] * len(span)
        begins = {term: prefix(term or "") for term in set(terms)}
        ends = struct.pack(f">{len(span)}Q", *seqs[start : span.stop])
        marks = [begins[term] + ends[at : at + 8] for term, at in zip(terms, range(0, len(ends), 8), strict=True)]
        optional = [getattr(columns, name) or repeat(None) for name in OPTIONAL]
        places = (seqs[start : span.stop], ids[start : span.stop], times[start : span.stop])
        found += zip(marks, *places, columns.kinds, columns.payloads, *optional, strict=False)
        breathe()
    return found


Pages = list[tuple[Row, ...]]
"""Sorted rows, some hundred together. The garbage collector lets go of a tuple of plain values, once it has seen it: a
hundred thousand rows in one list it would walk over each time, while no other thread has the interpreter."""


def parts_of(rows: list[Row], breathe: Breathe = go_on) -> Iterator[Pages]:
    """Rows in parts, each of them sorted, on pages: one sort of forty thousand could not be interrupted."""
    for start in range(0, len(rows), SORT_ROWS):
        part = sorted(rows[start : start + SORT_ROWS], key=mark_of)
        yield [tuple(part[at : at + STEP_ROWS]) for at in range(0, len(part), STEP_ROWS)]
        breathe()


def in_order(parts: Sequence[Pages], breathe: Breathe = go_on) -> Iterator[list[Row]]:
    """The rows of sorted parts, merged, some hundred at a time: one sort of them all could not be interrupted.

    It takes the pages out of the parts as it goes, so that they are freed as it goes, too.
    """
    sample = sorted([page[at][0] for part in parts for page in part for at in range(0, len(page), _SAMPLE)])
    for part in parts:
        part.reverse()  # pages are taken from the end
    starts = [0] * len(parts)
    for bound in [*sample[STEP_ROWS // _SAMPLE :: STEP_ROWS // _SAMPLE], None]:
        window: list[Row] = []
        for at, part in enumerate(parts):
            while part:
                page, start = part[-1], starts[at]
                stop = len(page) if bound is None else bisect_right(page, bound, start, key=mark_of)
                window += page[start:stop]
                starts[at] = stop
                if stop < len(page):
                    break
                part.pop()
                starts[at] = 0
        window.sort(key=mark_of)
        yield window
        breathe()


def after(rows: list[Row], seq: int) -> list[Row]:
    """The rows that compaction up to a position has left."""
    return [row for row in rows if row[_SEQ] > seq] if seq else rows


def entities_of(rows: Iterable[Row]) -> dict[str, None]:
    """The entities that rows belong to: a dictionary of texts, unlike a set, is nothing to the garbage collector."""
    return dict.fromkeys([row[_KEY] or "" for row in rows])


def build_rows(rows: Sequence[Row]) -> bytes:
    """The bytes of a chunk that holds these rows, in this order."""
    _, seqs, ids, times, kinds, payloads, *optional = zip(*rows, strict=True)
    columns = Columns(list(kinds), list(payloads))
    for name, values in zip(OPTIONAL, optional, strict=True):
        if values[0] is not None or values.count(None) < len(values):
            setattr(columns, name, list(values))
    return build_copies(columns, seqs, ids, times)


def build_copies(columns: Columns, seqs: Sequence[int], ids: Sequence[int], times: Sequence[int]) -> bytes:
    """The bytes of a block whose events have their own positions, ids and times, in any order."""
    if columns.occurred is not None:
        columns.occurred = [at if ms is None else ms for ms, at in zip(columns.occurred, times, strict=True)]
    wire = build_wire(columns, seqs[0], 0, 0)
    set_runs_of(wire, ids, times)
    if any(following != seq + 1 for seq, following in pairwise(seqs)):
        wire.seqs = pack_seqs(seqs)
    return seal(wire)


def chunks_of(rows: list[Row], *, whole: bool, breathe: Breathe = go_on) -> list[Chunk]:
    """Cuts sorted rows into chunks and removes them; without `whole`, the last ones stay until more have come.

    An entity that fits is not torn apart, and a large one has chunks of its own.
    """
    chunks: list[Chunk] = []
    start = 0
    for stop in _cuts(rows, whole):
        chunks.append((rows[start][0], build_rows(rows[start:stop])))
        start = stop
        breathe()
    if start:
        del rows[:start]
    return chunks


def _cuts(rows: Sequence[Row], whole: bool) -> Iterator[int]:
    """Where each next chunk ends."""
    count = len(rows)
    sizes = [0, *accumulate(_weights(rows))]
    start = 0
    while start < count:
        stop = bisect_right(sizes, sizes[start] + INDEX_CHUNK_BYTES) - 1
        if stop >= count:
            if whole:
                yield count
            return
        begin = bisect_left(rows, rows[stop][0][:-8], start, key=mark_of)
        if begin > start:
            stop = begin
        else:
            end = bisect_right(rows, rows[start][0][:-8] + _AFTER, start, key=mark_of)
            stop = bisect_right(sizes, sizes[start] + INDEX_LARGE_CHUNK_BYTES) - 1
            if min(stop, end) >= count and not whole:
                return
            stop = max(start + 1, min(stop, end))
        yield stop
        start = stop


def _weights(rows: Sequence[Row]) -> list[int]:
    """The bytes each row takes, about."""
    weights = [len(row[_PAYLOAD]) + _ROW_BYTES for row in rows]
    for at, row in enumerate(rows):
        headers = row[_HEADERS]
        if headers:
            weights[at] += sum(map(len, headers)) + sum(map(len, headers.values()))
    return weights


def read_chunk(value: bytes, topic: str) -> Block:
    try:
        return read_block(value, topic)
    except Corrupt as error:
        raise Corrupt(f"the entity index is damaged: {error.args[0]}; topic.reindex() builds it anew") from error


def span_of(block: Block, term: str) -> tuple[int, int]:
    """The rows of a chunk that belong to a term, which lie together: start and stop; 0 and 0 when it has none."""
    keys, wanted = text_values(block.wire.key, block.count), term or None
    try:
        start = keys.index(wanted)
    except ValueError:
        return 0, 0
    return start, start + keys.count(wanted)


# ── marks alone ──────────────────────────────────────────────────────────────────────────────────────────────────────
def marks_of(values: Iterable[str | None], seqs: Iterable[int]) -> list[bytes]:
    """The marks of terms and positions; what has no term has no mark."""
    return [prefix(term) + seq.to_bytes(8) for term, seq in zip(values, seqs, strict=True) if term is not None]


def mark_chunks(marks: Sequence[bytes]) -> Iterator[Chunk]:
    """Cuts sorted marks into chunks."""
    for start in range(0, len(marks), _MARKS):
        part = list(marks[start : start + _MARKS])
        body = _encode(part)
        yield part[0], body + zlib.crc32(body).to_bytes(4)


def read_marks(value: bytes, topic: str) -> list[bytes]:
    body = memoryview(value)[:-4]
    if zlib.crc32(body) != int.from_bytes(value[-4:]):
        raise Corrupt("the index of causes is damaged; topic.reindex() builds it anew", topic=topic)
    try:
        return _decode_marks(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the index of causes does not decode: {error}", topic=topic) from error


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class BloomFilter:
    """Says of a term that it is certainly not in a run, or that it may be: four bits a term, in a sparse table."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, bits: bytes | bytearray) -> None:
        self._bits = bits
        self._mask = len(bits) * 8 - 1

    @classmethod
    def sized(cls, terms: int) -> BloomFilter:
        return cls(bytearray(1 << max(3, (max(terms, 1) * 8 - 1).bit_length() - 3)))

    def add(self, term: bytes) -> None:
        bits, mask = self._bits, self._mask
        at, step = zlib.crc32(term), zlib.crc32(term, 0x5BD1E995) | 1
        for _ in range(4):
            spot = at & mask
            bits[spot >> 3] |= 1 << (spot & 7)  # type: ignore[index]
            at += step

    def __contains__(self, term: bytes) -> bool:
        bits, mask = self._bits, self._mask
        at, step = zlib.crc32(term), zlib.crc32(term, 0x5BD1E995) | 1
        for _ in range(4):
            spot = at & mask
            if not bits[spot >> 3] & (1 << (spot & 7)):
                return False
            at += step
        return True

    def __bytes__(self) -> bytes:
        return bytes(self._bits)


# ── The directory of a topic's entity index: which runs there are, and through which position they are complete ──
#     k topic 0                 the directory
#     k topic run f             a run's filter: which terms are certainly not in it
#     k topic run e mark        a chunk of entities' events   (see `rows`)
#     k topic run c mark        a chunk of causes             marks only: what an event caused
#     k topic run r mark        a chunk of correlations       marks only
#
# A run covers a range of positions and never changes. Runs are written by and by, in commits that need not be on disk;
# a run counts from the commit that lists it in the directory, and the rows of one that is not listed are rubbish.


INDEX = b"k"
FILTER, ENTITIES, CAUSES, CORRELATIONS = b"f", b"e", b"c", b"r"


class Run(msgspec.Struct, array_like=True, frozen=True):
    """A sorted part of the index."""

    id: int
    first: int
    last: int
    """The positions it covers: first … last."""
    level: int
    size: int
    """Bytes of its chunks, about."""
    entities: int
    """How many terms its filter knows; 0 when it has none."""
    sections: str
    """Which kinds of chunks it has."""


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The index of one topic."""

    epoch: int = 0
    """Another number after the whole index was dropped."""
    through: int = 0
    """Every event up to this position is in a run, if it has anything to be found by."""
    next: int = 1
    """The number of the next run."""
    runs: tuple[Run, ...] = ()
    """In order of their positions, without gaps that matter."""
    building: tuple[tuple[int, int], ...] = ()
    """Runs being written, and since when (milliseconds)."""
    rubbish: tuple[int, ...] = ()
    """Runs whose chunks are still to be deleted."""


NOTHING = Directory()
_decode = msgspec.msgpack.Decoder(Directory).decode


directory_key: Callable[[int], bytes] = partial(struct.Struct(">cI4x").pack, INDEX)


def run_key(topic: int, run: int, section: bytes = b"", mark: bytes = b"") -> bytes:
    return INDEX + topic.to_bytes(4) + run.to_bytes(4) + section + mark


def load_directory(snap: Snapshot, topic: int, name: str) -> Directory:
    value = snap.get(directory_key(topic))
    if value is None:
        return NOTHING
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the directory of the entity index does not decode: {error}", topic=name) from error


def save_directory(tx: WriteTx, topic: int, directory: Directory) -> None:
    tx.put(directory_key(topic), _encode(directory))


def drop_index(tx: WriteTx, topic: int, name: str) -> None:
    """Forgets the whole index; whatever was read from it in memory is void, and it will be built anew.

    The rows of its runs become rubbish, which the indexer deletes a little at a time.
    """
    old = load_directory(tx, topic, name)
    rubbish = (*old.rubbish, *(run.id for run in old.runs))
    save_directory(tx, topic, Directory(old.epoch + 1, next=old.next, building=old.building, rubbish=rubbish))


def trim_index(tx: WriteTx, topic: int, name: str, through: int) -> None:
    """Forgets the runs of positions that were removed."""
    directory = load_directory(tx, topic, name)
    gone = [run for run in directory.runs if run.last <= through]
    if gone:
        left = tuple(run for run in directory.runs if run.last > through)
        rubbish = (*directory.rubbish, *(run.id for run in gone))
        save_directory(tx, topic, msgspec.structs.replace(directory, runs=left, rubbish=rubbish))

"""What the runs of the entity index are made of: sorted rows, cut into chunks.

A row's *mark* is its term (the entity's key, the cause's id, the correlation id), preceded by the term's length and
followed by the event's position: marks compare as bytes, and no term is a prefix of another one's mark. An entity's
rows carry the whole event (a chunk is a block whose rows are sorted by mark), so that reading an entity needs nothing
else. The rows of causes and correlations are marks alone.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain

import msgspec

from penstock.errors import Corrupt
from penstock.journal.block import Block, Columns, build_wire, columns_of, read_block, seal
from penstock.journal.columns import pack_ints, pack_signed, text_values
from penstock.limits import INDEX_CHUNK_BYTES, INDEX_LARGE_CHUNK_BYTES

_ROW_BYTES = 48
"""What a row takes besides its payload, about."""
_MARKS = 512
"""Marks in one chunk of causes or correlations."""
_ID_MASK = (1 << 80) - 1

_encode = msgspec.msgpack.Encoder().encode
_decode_marks = msgspec.msgpack.Decoder(list[bytes]).decode

Chunk = tuple[bytes, bytes]
"""The mark of a chunk's first row, and the chunk."""


Breathe = Callable[[], None]
"""Called between pieces of work, to let others have the interpreter."""


def _go_on() -> None:
    """Nobody is waiting."""


def prefix(term: str) -> bytes:
    """What the marks of a term's rows begin with."""
    encoded = term.encode()
    return len(encoded).to_bytes(2) + encoded


def mark_seq(mark: bytes) -> int:
    """The position in a mark."""
    return int.from_bytes(mark[-8:])


class Rows:
    """Events on their way into a run, with their marks; in any order until sorted."""

    __slots__ = ("columns", "ids", "marks", "seqs", "times")

    def __init__(self, marks: list[bytes], seqs: list[int], ids: list[int], times: list[int], columns: Columns) -> None:
        self.marks = marks
        self.seqs = seqs
        self.ids = ids
        self.times = times
        self.columns = columns

    @classmethod
    def none(cls) -> Rows:
        return cls([], [], [], [], Columns([], []))

    def __len__(self) -> int:
        return len(self.marks)

    def extend(self, other: Rows) -> None:
        self.marks.extend(other.marks)
        self.seqs.extend(other.seqs)
        self.ids.extend(other.ids)
        self.times.extend(other.times)
        self.columns.extend(other.columns)

    def sort(self) -> None:
        marks = self.marks
        order = sorted(range(len(marks)), key=marks.__getitem__)
        self._arrange(order)

    def slice(self, start: int, stop: int) -> Rows:
        """The rows start … stop-1."""
        columns = self.columns.take(start, stop)
        return Rows(
            self.marks[start:stop], self.seqs[start:stop], self.ids[start:stop], self.times[start:stop], columns
        )

    def drop_first(self, count: int) -> None:
        del self.marks[:count], self.seqs[:count], self.ids[:count], self.times[:count]
        self.columns = self.columns.take(count, len(self.columns))

    def drop_through(self, seq: int) -> None:
        """Leaves out what compaction has removed."""
        if min(self.seqs, default=seq + 1) <= seq:
            self._arrange([row for row, at in enumerate(self.seqs) if at > seq])

    def _arrange(self, order: Sequence[int]) -> None:
        self.marks = [self.marks[row] for row in order]
        self.seqs = [self.seqs[row] for row in order]
        self.ids = [self.ids[row] for row in order]
        self.times = [self.times[row] for row in order]
        self.columns = self.columns.pick(order)

    def weights(self) -> list[int]:
        return [weight + _ROW_BYTES for weight in self.columns.weights()]


def rows_of(block: Block, *, keyless: bool) -> Rows:
    """The rows of a block's events that have a key; `keyless`: and of the others, under the empty term."""
    count = block.count
    if block.wire.key is None and not keyless:
        return Rows.none()
    terms = text_values(block.wire.key, count)
    chosen: Sequence[int] = range(count)
    if keyless:
        terms = [term or "" for term in terms]
    elif None in terms:
        chosen = [row for row, term in enumerate(terms) if term is not None]
    encoded = [term.encode() for term in terms if term is not None]
    ids, times, seqs = _spread(block)
    if len(chosen) < count:
        ids, times = [ids[row] for row in chosen], [times[row] for row in chosen]
        seqs = [seqs[row] for row in chosen]
    marks = [len(term).to_bytes(2) + term + seq.to_bytes(8) for term, seq in zip(encoded, seqs, strict=True)]
    columns = columns_of(block, chosen)
    return Rows(marks, seqs, ids, times, columns)


def _spread(block: Block) -> tuple[list[int], list[int], list[int]]:
    """The id, the time and the position of every event of a block."""
    starts = block.run_starts
    stops = [*starts[1:], block.count]
    spans = list(zip(block.run_ids, block.run_times, starts, stops, strict=True))
    ids = list(chain.from_iterable(range(id, id + stop - start) for id, _, start, stop in spans))
    times = list(chain.from_iterable([ms] * (stop - start) for _, ms, start, stop in spans))
    return ids, times, list(block.seqs)


def build_rows(rows: Rows) -> bytes:
    """The bytes of a block that holds these rows, in this order, with their own positions, times and ids."""
    columns, times, ids = rows.columns, rows.times, rows.ids
    if columns.occurred is not None:
        columns.occurred = [at if ms is None else ms for ms, at in zip(columns.occurred, times, strict=True)]
    if columns.chain is not None:
        columns.chain = [link or bytes(32) for link in columns.chain]
    wire = build_wire(columns, rows.seqs[0], 0, 0)
    starts = [0] + [at for at in range(1, len(ids)) if ids[at] != ids[at - 1] + 1 or times[at] != times[at - 1]]
    counts = [stop - start for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True)]
    run_times = [times[at] for at in starts]
    wire.run_counts = pack_ints(counts)
    wire.run_time = min(run_times)
    wire.run_times = pack_ints([ms - wire.run_time for ms in run_times])
    wire.run_ids = b"".join([(ids[at] & _ID_MASK).to_bytes(10) for at in starts])
    if rows.seqs != list(range(wire.first, wire.first + wire.count)):
        packed = pack_signed(rows.seqs)
        wire.seqs = packed if isinstance(packed, bytes) else packed.to_bytes(8, "little", signed=True)
    return seal(wire)


def chunks_of(rows: Rows, *, whole: bool, breathe: Breathe = _go_on) -> list[Chunk]:
    """Cuts sorted rows into chunks and removes them; without `whole`, the last ones stay until more have come.

    An entity that fits is not torn apart, and a large one has chunks of its own.
    """
    chunks: list[Chunk] = []
    start = 0
    for stop in _cuts(rows, whole):
        part = rows.slice(start, stop)
        chunks.append((part.marks[0], build_rows(part)))
        start = stop
        breathe()
    if start:
        rows.drop_first(start)
    return chunks


def _cuts(rows: Rows, whole: bool) -> Iterator[int]:
    """Where each next chunk ends."""
    marks, count = rows.marks, len(rows)
    sizes = [0, *accumulate(rows.weights())]
    begins: list[int] = []
    """The first row of the entity that a row belongs to."""
    last = None
    for row, mark in enumerate(marks):
        term = mark[:-8]
        begins.append(begins[-1] if term == last else row)
        last = term
    start = 0
    while start < count:
        stop = bisect_right(sizes, sizes[start] + INDEX_CHUNK_BYTES) - 1
        if stop >= count:
            if whole:
                yield count
            return
        if begins[stop] > start:
            stop = begins[stop]
        else:
            end = bisect_right(begins, begins[start])
            stop = bisect_right(sizes, sizes[start] + INDEX_LARGE_CHUNK_BYTES) - 1
            if min(stop, end) >= count and not whole:
                return
            stop = max(start + 1, min(stop, end))
        yield stop
        start = stop


def read_chunk(value: bytes, topic: str) -> Block:
    try:
        return read_block(value, topic)
    except Corrupt as error:
        raise Corrupt(f"the entity index is damaged: {error.args[0]}; topic.reindex() builds it anew") from error


def rows_of_chunk(block: Block) -> Rows:
    """The rows of a chunk, to be merged with others'."""
    ids, times, seqs = _spread(block)
    terms = [(term or "").encode() for term in text_values(block.wire.key, block.count)]
    marks = [len(term).to_bytes(2) + term + seq.to_bytes(8) for term, seq in zip(terms, seqs, strict=True)]
    return Rows(marks, seqs, ids, times, columns_of(block, range(block.count)))


def span_of(block: Block, term: str) -> tuple[int, int]:
    """The rows of a chunk that belong to a term: start and stop."""
    key, count = block.key, block.count
    if not count:
        return 0, 0
    if (key(0) or "") == term and (key(count - 1) or "") == term:
        return 0, count
    encoded = term.encode()
    wanted = (len(encoded), encoded)

    def place(row: int) -> tuple[int, bytes]:
        found = (key(row) or "").encode()
        return len(found), found

    start = bisect_left(range(count), wanted, key=place)
    stop = bisect_left(range(count), (len(encoded), encoded + b"\0"), start, key=place)
    while stop < count and (key(stop) or "") == term:
        stop += 1
    return start, stop


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
    except msgspec.DecodeError as error:
        raise Corrupt(f"the index of causes does not decode: {error}", topic=topic) from error


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Filter:
    """Says of a term that it is certainly not in a run, or that it may be: four bits a term, in a sparse table."""

    __slots__ = ("_bits", "_mask")

    def __init__(self, bits: bytes | bytearray) -> None:
        self._bits = bits
        self._mask = len(bits) * 8 - 1

    @classmethod
    def sized(cls, terms: int) -> Filter:
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

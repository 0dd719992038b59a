"""The contents of the runs of the entity index: rows sorted by a term and divided into chunks.

A row has a term (the entity's key, the cause's id, the correlation id, or a tag) and an event's position. An entity's
rows contain the whole event, so that a read of an entity needs nothing else; the rows of other terms contain nothing
more. A chunk is a block whose rows are sorted by term and position. It is stored under its *mark*, which is the term
and position of its first row. As bytes, marks have the order of terms, and the mark of a term is never the beginning of
another term's mark.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain, repeat
from operator import sub
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.journal.blocks import (
    ID_BYTES,
    Block,
    Columns,
    PlacedRows,
    columns_of,
    read_block,
    text_values,
    texts_of,
)
from penstock.core.names import unpack_tags
from penstock.errors import Corrupt
from penstock.limits import INDEX_CHUNK_BYTES, INDEX_LARGE_CHUNK_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROW_BYTES = 48
"""The approximate bytes of a row besides its payload."""
STEP_ROWS = 4096
"""The number of rows that are processed, and sorted, between two moments at which other threads may run."""
WINDOW_ROWS = 2 * STEP_ROWS
"""The approximate number of rows of sorted sources that are merged together.

Nearly sorted rows are sorted twice as fast.
"""

_encode = msgspec.msgpack.Encoder().encode

Chunk = tuple[bytes, bytes]
"""The mark of a chunk's first row, and the chunk."""


Breathe = Callable[[], None]
"""A function that is called between pieces of work, to let other threads run."""


def go_on() -> None:
    """Does nothing, because no thread is waiting."""


def text_begin(text: str) -> bytes:
    """Returns the first bytes of the marks of terms that begin with a text."""
    return text.encode().replace(b"\0", b"\0\xff")


def prefix(term: str) -> bytes:
    """Returns the first bytes of the marks of a term's rows."""
    return term.encode().replace(b"\0", b"\0\xff") + b"\0\0"


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
class IndexRows(PlacedRows):
    """Events that are to be put into a run, or only their terms and positions. The rows are sorted by `columns.key`."""

    columns: Columns = msgspec.field(default_factory=lambda: Columns([], [], key=[]))

    @property
    def terms(self) -> list[str]:
        return self.columns.key  # type: ignore[return-value]

    def order(self) -> list[int]:
        """Returns the rows sorted by term. Rows of one term keep their order."""
        return sorted(range(len(self)), key=self.terms.__getitem__)

    def before(self, bound: tuple[str, int] | None) -> int:
        """Returns the number of sorted rows up to a term and a position."""
        if bound is None:
            return len(self)
        low, high = bisect_left(self.terms, bound[0]), bisect_right(self.terms, bound[0])
        return bisect_right(self.seqs, bound[1], low, high)


def event_rows(block: Block, after: int = 0, breathe: Breathe = go_on) -> Iterator[IndexRows]:
    """Yields the rows of a block's or a chunk's events that have a key and come after a position, in their order."""
    if block.wire.key is None:
        return
    tails, times = block.wire.run_ids, block.run_times
    ids = [tails[at : at + ID_BYTES] for at in range(0, len(tails), ID_BYTES)]
    if len(ids) < block.count:
        spans = list(map(sub, [*block.run_starts[1:], block.count], block.run_starts))
        times = [ms for ms, count in zip(times, spans, strict=True) for _ in range(count)]
        numbers = [range(first, first + count) for first, count in zip(map(int.from_bytes, ids), spans, strict=True)]
        ids = list(map(int.to_bytes, chain.from_iterable(numbers), repeat(ID_BYTES)))
    breathe()
    texts = texts_of(block)
    for start in range(0, block.count, STEP_ROWS):
        stop = min(start + STEP_ROWS, block.count)
        seqs = list(block.seqs[start:stop])
        rows = IndexRows(columns_of(block, range(start, stop), texts), seqs, ids[start:stop], times[start:stop])
        yield rows if min(seqs) > after and None not in rows.terms else _rows_after(rows, after)
        breathe()


def term_rows(terms: Sequence[str | None], seqs: Sequence[int], after: int) -> IndexRows:
    """Returns the rows of terms after a position."""
    count = len(terms)
    rows = IndexRows(Columns([""] * count, [b""] * count, key=list(terms)), list(seqs))
    return rows if None not in terms and min(seqs, default=0) > after else _rows_after(rows, after)


def tags_of(texts: Sequence[str | None], seqs: Sequence[int]) -> tuple[list[str], list[int]]:
    """Returns each tag of some events, together with the position of its event."""
    found = [(tag, seq) for text, seq in zip(texts, seqs, strict=True) if text for tag in unpack_tags(text)]
    return [tag for tag, _ in found], [seq for _, seq in found]


def _rows_after(rows: IndexRows, after: int) -> IndexRows:
    return rows.pick([row for row, seq in enumerate(rows.seqs) if seq > after and rows.terms[row] is not None])


def chunk_rows(block: Block, after: int, breathe: Breathe = go_on) -> Iterator[IndexRows]:
    """Returns the rows of a chunk after a position."""
    if block.wire.run_ids:
        return event_rows(block, after, breathe)
    return iter((term_rows(text_values(block.wire.key, block.count), block.seqs, after),))


def sorted_sources(rows: Iterable[IndexRows], breathe: Breathe = go_on) -> list[Iterator[IndexRows]]:
    """Returns rows as sources of `merged`, of several thousand rows each.

    A single sort of a hundred thousand rows could not be interrupted.
    """
    parts = [IndexRows()]
    orders: list[list[int]] = []
    for some in rows:
        parts[-1].extend(some)
        if len(parts[-1]) >= STEP_ROWS:
            orders.append(parts[-1].order())
            parts.append(IndexRows())
            breathe()
    orders.append(parts[-1].order())
    step = max(1, WINDOW_ROWS // len(parts))
    return [_in_pieces(part, order, step) for part, order in zip(parts, orders, strict=True) if order]


def _in_pieces(rows: IndexRows, order: list[int], step: int) -> Iterator[IndexRows]:
    for at in range(0, len(order), step):
        yield rows.pick(order[at : at + step])


def merged(sources: Sequence[Iterator[IndexRows]], breathe: Breathe = go_on) -> Iterator[IndexRows]:
    """Yields the rows of sorted sources, sorted, several thousand at a time.

    Among rows of one term, the rows of an earlier source come first.
    """
    share = max(1, WINDOW_ROWS // max(1, len(sources)))
    waiting = [(source, IndexRows()) for source in sources]
    while waiting:
        filled: list[tuple[Iterator[IndexRows], IndexRows]] = []
        bound: tuple[str, int] | None = None
        for source, rows in waiting:
            more: IndexRows | None = rows
            while len(rows) < share and (more := next(source, None)) is not None:
                rows.extend(more)
            if more is not None:  # only after its last row may the source have more rows
                last = (rows.terms[-1], rows.seqs[-1])
                bound = last if bound is None else min(bound, last)
            if rows:
                filled.append((source, rows))
        window = IndexRows()
        waiting = []
        for source, rows in filled:
            count = rows.before(bound)
            window.extend(rows.slice(0, count))
            waiting.append((source, rows.slice(count, len(rows))))
        if window:
            yield window.pick(window.order()) if len(filled) > 1 else window
        breathe()


def chunks_of(windows: Iterable[IndexRows], breathe: Breathe = go_on) -> Iterator[Chunk]:
    """Yields sorted rows as chunks.

    An entity that fits into one chunk is not divided, and a large entity has chunks of its own.
    """
    left = IndexRows()
    for window in chain(windows, (None,)):
        left.extend(window or IndexRows())
        start = 0
        for stop in _chunk_ends(left, window is None):
            chunk = left.slice(start, stop)
            yield prefix(chunk.terms[0]) + chunk.seqs[0].to_bytes(8), chunk.pack()
            start = stop
            breathe()
        left = left.slice(start, len(left))


def _chunk_ends(rows: IndexRows, whole: bool) -> Iterator[int]:
    """Returns the ends of the next chunks. Without `whole`, the last rows wait for more rows."""
    count, terms = len(rows), rows.terms
    sizes = list(accumulate(map(_ROW_BYTES.__add__, rows.columns.weights()), initial=0))
    start = 0
    while start < count:
        stop = bisect_right(sizes, sizes[start] + INDEX_CHUNK_BYTES) - 1
        if stop >= count:
            if whole:
                yield count
            return
        begin = bisect_left(terms, terms[stop], start)
        if begin > start:
            stop = begin
        else:
            end = bisect_right(terms, terms[start], start)
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
        raise Corrupt(f"the entity index is damaged: {error.args[0]}; topic.reindex() builds it again") from error


def span_of(block: Block, term: str) -> tuple[int, int]:
    """Returns the start and stop of a term's rows in a chunk, which are contiguous; 0 and 0 when the chunk has none."""
    terms = text_values(block.wire.key, block.count)
    try:
        start = terms.index(term)
    except ValueError:
        return 0, 0
    return start, start + terms.count(term)


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@cache
def _masks() -> list[int]:
    """Returns the bits of every hash. They are computed when the first filter is built or asked."""
    spread = [number * 0x9E3779B1 & 0xFFFFFFFF for number in range(4096)]
    return [1 << (h >> 26) | 1 << (h >> 20 & 63) | 1 << (h >> 14 & 63) | 1 << (h >> 8 & 63) for h in spread]


class BloomFilter:
    """A filter that says of a term that it is certainly not in a run, or that it may be there.

    A term has up to four bits, in one word of the filter.

    The hash of a term is its CRC-32: the low bits choose the word, and the highest twelve bits choose the bits in it.
    """

    __slots__ = ("_words",)

    def __init__(self, words: bytes) -> None:
        self._words = words

    @classmethod
    def build(cls, hashes: array[int], breathe: Breathe) -> bytes:
        """Returns the filter of some hashes, with eight to sixteen bits for each hash."""
        words = [0] * (1 << (len(hashes) // 8).bit_length())
        low, masks = len(words) - 1, _masks()
        for start in range(0, len(hashes), STEP_ROWS):
            for hashed in hashes[start : start + STEP_ROWS]:
                words[hashed & low] |= masks[hashed >> 20]
            breathe()
        return struct.pack(f"<{len(words)}Q", *words)

    @classmethod
    def packed(cls, hashes: NDArray[np.uint32]) -> bytes:
        """Returns the same filter as `build`, for a process that has numpy."""
        import numpy as np

        words = np.zeros(1 << (len(hashes) // 8).bit_length(), dtype="<u8")
        masks = np.array(_masks(), dtype="<u8")[hashes >> 20]
        np.bitwise_or.at(words, hashes & (len(words) - 1), masks)
        return words.tobytes()

    def __contains__(self, hashed: int) -> bool:
        at = (hashed & (len(self._words) // 8 - 1)) * 8
        mask = _masks()[hashed >> 20]
        return int.from_bytes(self._words[at : at + 8], "little") & mask == mask


def hashes_of_terms(terms: Iterable[str]) -> Iterator[int]:
    """Returns the hashes of terms, of which a filter is made."""
    return map(zlib.crc32, map(str.encode, terms))


# ── The directory of a topic's entity index: which runs there are, and through which position they are complete ──
#     k topic 0                 the directory
#     k topic run f             a run's filter: which terms are certainly not in it
#     k topic run e mark        a chunk of entities' events
#     k topic run c mark        a chunk of causes: which events an event caused
#     k topic run r mark        a chunk of correlations
#     k topic run t mark        a chunk of tags: which events have a tag
#
# A run covers a range of positions and never changes. Runs are written by and by, in commits that need not be on disk;
# a run counts from the commit that lists it in the directory, and the rows of one that is not listed are rubbish.


INDEX = b"k"
FILTER, ENTITIES, CAUSES, CORRELATIONS, TAGS = b"f", b"e", b"c", b"r", b"t"


class Run(msgspec.Struct, array_like=True, frozen=True):
    """A sorted part of the index."""

    id: int
    first: int
    last: int
    """The last of the positions that the run covers: first … last."""
    level: int
    size: int
    """The approximate size of its chunks, in bytes."""
    entities: int
    """The number of terms in its filter; 0 when it has no filter."""
    sections: str
    """The kinds of chunks that the run has."""


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The index of one topic."""

    epoch: int = 0
    """A number that changes when the whole index is dropped."""
    through: int = 0
    """The position through which every event with a term is in a run."""
    next: int = 1
    """The number of the next run."""
    runs: tuple[Run, ...] = ()
    """The runs in order of position, without gaps that contain events."""
    building: tuple[tuple[int, int], ...] = ()
    """The numbers of unfinished runs, and the time when each was begun (milliseconds)."""
    rubbish: tuple[int, ...] = ()
    """The numbers of runs whose chunks are still to be deleted."""
    format: int = 0
    """The format of chunks. Chunks of another format are rubbish."""


FORMAT = 1
NOTHING = Directory(format=FORMAT)
_decode = msgspec.msgpack.Decoder(Directory).decode


directory_key: Callable[[int], bytes] = partial(struct.Struct(">cI4x").pack, INDEX)


def run_key(topic: int, run: int, section: bytes = b"", mark: bytes = b"") -> bytes:
    return INDEX + topic.to_bytes(4) + run.to_bytes(4) + section + mark


def load_directory(snap: Snapshot, topic: int, name: str) -> Directory:
    value = snap.get(directory_key(topic))
    if value is None:
        return NOTHING
    try:
        found = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the directory of the entity index does not decode: {error}", topic=name) from error
    return found if found.format == FORMAT else _emptied(found)


def _emptied(old: Directory) -> Directory:
    rubbish = (*old.rubbish, *(run.id for run in old.runs))
    return replace(old, epoch=old.epoch + 1, through=0, runs=(), rubbish=rubbish, format=FORMAT)


def save_directory(tx: WriteTx, topic: int, directory: Directory) -> None:
    tx.put(directory_key(topic), _encode(directory))


def drop_index(tx: WriteTx, topic: int, name: str) -> None:
    """Forgets the whole index, which is then built anew. Everything that was read from it into memory is void.

    The rows of its runs become rubbish, which the indexer deletes some at a time.
    """
    save_directory(tx, topic, _emptied(load_directory(tx, topic, name)))


def trim_index(tx: WriteTx, topic: int, name: str, through: int) -> None:
    """Removes from the list the runs whose positions were removed."""
    directory = load_directory(tx, topic, name)
    gone = [run for run in directory.runs if run.last <= through]
    if gone:
        left = tuple(run for run in directory.runs if run.last > through)
        rubbish = (*directory.rubbish, *(run.id for run in gone))
        save_directory(tx, topic, replace(directory, runs=left, rubbish=rubbish))

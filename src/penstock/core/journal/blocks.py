"""Blocks: the events of one commit (or of several merged ones) to one topic, column by column, under one checksum.

A block is the msgpack array `Wire`, or its `CompressedForm`, followed by the CRC-32 of these bytes. Events are numbered
`first`, `first`+1, … unless `seqs` lists their positions (compaction by key leaves holes). Events of one commit form a
*run*: they share their recording time, and their ids count up from the run's id. So a run takes 10 bytes of id and a
few bytes of time, however many events it holds.

An id is a UUIDv7: its time is the recording time, and within a topic ids increase with positions, which is why
`find(id)` needs no index.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from operator import itemgetter, sub
from types import MappingProxyType
from typing import Annotated, Any, Generic, Self, TypeVar

import msgspec
from msgspec.structs import astuple

from penstock.core.engine.base import PIECE_BYTES, crc32
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal.compression import compress, decompress, interleave, separate
from penstock.core.journal.keys import with_checksum, without_checksum
from penstock.errors import Corrupt
from penstock.limits import COMPRESSED_BYTES, MERGED_BYTES

T = TypeVar("T")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class lazy(Generic[T]):
    """An attribute that is computed on first access.

    The version of functools takes a lock that costs more than the work here.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type[object]) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value


def build_block(columns: Columns, first: int, recorded_ms: int, base_id: int) -> bytes:
    """Returns the bytes of a block that holds one commit's events, at positions first, first+1, …"""
    return encode_block(build_wire(columns, first, recorded_ms, base_id))


def build_wire(columns: Columns, first: int, recorded_ms: int, base_id: int) -> Wire:
    """Returns a block of one commit's events, without its checksum."""
    kinds, payloads = columns.kinds, columns.payloads
    count = len(kinds)
    if count == 1:
        distinct, codes, lengths, data = kinds, 0, len(payloads[0]), payloads[0]
    else:
        kind = kinds[0]
        if kinds.count(kind) == count:
            distinct, codes = [kind], 0
        else:
            code_of: dict[str, int] = {}
            numbers = [code_of.setdefault(kind, len(code_of)) for kind in kinds]
            distinct, codes = list(code_of), pack_ints(numbers)  # type: ignore[assignment]
        lengths, data = pack_ints(list(map(len, payloads))), b"".join(payloads)  # type: ignore[assignment]
    wire = Wire(
        FORMAT,
        count,
        first,
        count,
        recorded_ms,
        0,
        (base_id & ID_MASK).to_bytes(ID_BYTES),
        distinct,
        codes,
        lengths,
        memoryview(data),
    )
    if columns.binary is not None and any(columns.binary):
        wire.binary = bytes(map(bool, columns.binary))
    if columns.occurred is not None:
        wire.occurred = pack_signed([recorded_ms if ms is None else ms for ms in columns.occurred])
    if columns.key is not None:
        wire.key = pack_text(columns.key)
    if columns.scope is not None:
        wire.scope = pack_text(columns.scope)
    if columns.headers is not None:
        wire.headers = _pack_headers(columns.headers)
    if columns.correlation is not None:
        wire.correlation = pack_text(columns.correlation)
    if columns.causation is not None:
        wire.causation = pack_text(columns.causation)
    if columns.tags is not None:
        wire.tags = pack_text(columns.tags)
    return wire


def build_copies(columns: Columns, seqs: Sequence[int], ids: Sequence[bytes], times: Sequence[int]) -> bytes:
    """Returns the bytes of a block whose events have their own positions, ids (the low bytes) and times, in any
    order.
    """
    if columns.occurred is not None:
        columns.occurred = [at if ms is None else ms for ms, at in zip(columns.occurred, times, strict=True)]
    wire = build_wire(columns, seqs[0], 0, 0)
    steps = list(map(sub, seqs[1:], seqs))
    if 1 in steps and ids:
        set_runs_of(wire, list(map(int.from_bytes, ids)), times)
    else:
        set_runs(wire, (1,), times or (0,), b"".join(ids))
    if steps.count(1) < len(steps):
        wire.seqs = pack_seqs(seqs)
    return encode_block(compressed(wire))


def build_joined(parts: Sequence[tuple[int, int, int, Columns]]) -> Wire:
    """Returns a block of several neighbouring commits, each (first position, recording time, first id, events)."""
    first, started_ms, base_id, _ = parts[0]
    joined = join_columns([columns for _, _, _, columns in parts])
    if joined.occurred is not None:  # an event without its own time has the time of its commit
        recorded = [recorded_ms for _, recorded_ms, _, columns in parts for _ in columns.kinds]
        joined.occurred = [own if at is None else at for at, own in zip(joined.occurred, recorded, strict=True)]
    wire = build_wire(joined, first, started_ms, base_id)
    set_runs(
        wire,
        [len(columns.kinds) for _, _, _, columns in parts],
        [recorded_ms for _, recorded_ms, _, _ in parts],
        b"".join([low_bytes(base) for _, _, base, _ in parts]),
    )
    return wire


def _pack_headers(headers: Sequence[Mapping[str, str] | None]) -> Headers:
    names: list[str | None] = []
    values: list[str | None] = []
    counts = []
    for one in headers:
        counts.append(len(one) if one else 0)
        if one:
            names.extend(one)
            values.extend(one.values())
    if not names:
        return NO_PACKED_HEADERS
    return Headers(pack_ints(counts), len(names), pack_text(names), pack_text(values))


def encode_block(wire: Wire) -> bytes:
    """Returns the stored form of a block: its bytes and their checksum."""
    body = encode_wire(wire.form() if isinstance(wire, CompressedWire) else wire)
    return body + (zlib.crc32(body) if len(body) <= PIECE_BYTES else crc32(body)).to_bytes(4)


def read_block(value: bytes | memoryview, topic: str) -> Block:
    """Opens a stored block; `Corrupt` when its checksum or its form is wrong.

    A compressed column is decompressed on first access.
    """
    body = memoryview(value)[:-4]
    found = zlib.crc32(body) if len(value) <= PIECE_BYTES else crc32(body)
    if found != int.from_bytes(value[-4:]) or len(value) < 5:
        raise Corrupt("a block fails its checksum", topic=topic)
    try:
        wire = decode_compressed(body, topic) if body[0] == COMPRESSED_MARK else decode_wire(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a block does not decode: {error}", topic=topic) from error
    if wire.format != FORMAT:
        raise Corrupt(f"a block has format {wire.format}; this version reads {FORMAT}", topic=topic)
    return Block(wire, topic)


class _Edges(msgspec.Struct, array_like=True, gc=False):
    """The fields of a `Wire` that hold its positions; other fields are skipped."""

    format: int
    count: int
    first: int
    run_counts: msgspec.Raw
    run_time: msgspec.Raw
    run_times: msgspec.Raw
    run_ids: msgspec.Raw
    kinds: msgspec.Raw
    kind_codes: msgspec.Raw
    lengths: msgspec.Raw
    payload: msgspec.Raw
    seqs: bytes | None = None


_edges = msgspec.msgpack.Decoder(_Edges).decode


def positions_in(value: bytes, topic: str) -> tuple[int, int]:
    """Returns the positions of the first and the last event of a stored block, without comparing its checksum."""
    body = memoryview(value)[:-4]
    try:
        found = decode_compressed(body, topic) if value[0] == COMPRESSED_MARK else _edges(body)
        last = found.first + found.count - 1 if found.seqs is None else unpack_signed(found.seqs, found.count)[-1]
    except (msgspec.DecodeError, Corrupt, IndexError) as error:
        raise Corrupt(f"a block does not decode: {error}", topic=topic) from error
    return found.first, last


class Block:
    """A stored block, opened for reading; columns are unpacked on first access."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.count = wire.count
        self.first = wire.first
        self.last = wire.first + wire.count - 1 if wire.seqs is None else self.seqs[-1]
        """The position of the newest event."""

    # ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────
    @lazy
    def seqs(self) -> Sequence[int]:
        """Returns the positions of the events, ascending."""
        if self.wire.seqs is None:
            return range(self.first, self.first + self.count)
        return unpack_signed(self.wire.seqs, self.count)

    def seq(self, row: int) -> int:
        return self.seqs[row]

    def row_after(self, seq: int) -> int:
        """Returns the first row whose position is above `seq`."""
        return bisect_right(self.seqs, seq)

    def row_of(self, seq: int) -> int | None:
        """Returns the row of a position, or None where compaction removed it."""
        row = bisect_left(self.seqs, seq)
        return row if row < self.count and self.seqs[row] == seq else None

    def events(self, start: int = 0, stop: int | None = None) -> list[Event]:
        """Returns the events of rows start … stop-1."""
        return [Event(self, row) for row in range(start, self.count if stop is None else stop)]

    # ── runs: recording times and ids ────────────────────────────────────────────────────────────────────────────────
    @lazy
    def run_starts(self) -> list[int]:
        """Returns the first row of every run."""
        counts = self.wire.run_counts
        if counts == self.count:
            return [0]
        runs = len(self.wire.run_ids) // ID_BYTES
        return list(accumulate(unpack_ints(counts, runs), initial=0))[:-1]

    @lazy
    def run_times(self) -> list[int]:
        """Returns the time when each run was recorded, in milliseconds."""
        start = self.wire.run_time
        return [start + delta for delta in unpack_ints(self.wire.run_times, len(self.run_starts))]

    @lazy
    def run_ids(self) -> list[int]:
        """Returns the id of the first event of every run."""
        tails = self.wire.run_ids
        return [
            (ms << 80) | int.from_bytes(tails[at : at + ID_BYTES])
            for ms, at in zip(self.run_times, range(0, len(tails), ID_BYTES), strict=True)
        ]

    def _run(self, row: int) -> int:
        return bisect_right(self.run_starts, row) - 1 if len(self.run_starts) > 1 else 0

    def recorded_ms(self, row: int) -> int:
        return self.run_times[self._run(row)]

    def id_number(self, row: int) -> int:
        run = self._run(row)
        return self.run_ids[run] + row - self.run_starts[run]

    def row_of_id(self, number: int) -> int | None:
        """Returns the row that has an id, or None."""
        run = bisect_right(self.run_ids, number) - 1
        if run < 0:
            return None
        row = self.run_starts[run] + number - self.run_ids[run]
        end = self.run_starts[run + 1] if run + 1 < len(self.run_starts) else self.count
        return row if row < end else None

    @property
    def last_recorded_ms(self) -> int:
        return self.run_times[-1]

    @property
    def last_id(self) -> int:
        return self.id_number(self.count - 1)

    # ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @lazy
    def payload(self) -> memoryview:
        """Returns the payloads, end to end."""
        return memoryview(self.wire.payload)

    @property
    def payload_size(self) -> int:
        """The number of bytes of the payloads, which is known without decompressing them."""
        return payload_size(self.wire)

    @lazy
    def kind_codes(self) -> Sequence[int]:
        return unpack_ints(self.wire.kind_codes, self.count)

    def kind(self, row: int) -> str:
        return self.wire.kinds[self.kind_codes[row]]

    @lazy
    def payload_offsets(self) -> Sequence[int]:
        found = offsets(self.wire.lengths, self.count)
        if found[-1] != len(self.payload):
            raise Corrupt("a block's payload does not fit its lengths", topic=self.topic, seq=self.first)
        return found

    def raw_payload(self, row: int) -> memoryview:
        bounds = self.payload_offsets
        return self.payload[bounds[row] : bounds[row + 1]]

    def is_binary(self, row: int) -> bool:
        return self.wire.binary is not None and bool(self.wire.binary[row])

    @lazy
    def occurred_times(self) -> Sequence[int]:
        """Returns the producers' times, in milliseconds."""
        if self.wire.occurred is not None:
            return unpack_signed(self.wire.occurred, self.count)
        return identities_of(self)[1]

    def occurred_ms(self, row: int) -> int:
        return self.recorded_ms(row) if self.wire.occurred is None else self.occurred_times[row]

    @lazy
    def key(self) -> Callable[[int], str | None]:
        return text_reader(self.wire.key, self.count)

    @lazy
    def scope(self) -> Callable[[int], str | None]:
        return text_reader(self.wire.scope, self.count)

    @lazy
    def correlation(self) -> Callable[[int], str | None]:
        return text_reader(self.wire.correlation, self.count)

    @lazy
    def causation(self) -> Callable[[int], str | None]:
        return text_reader(self.wire.causation, self.count)

    @lazy
    def tags(self) -> Callable[[int], str | None]:
        return text_reader(self.wire.tags, self.count)

    @lazy
    def _headers(self) -> tuple[Sequence[int], Callable[[int], str | None], Callable[[int], str | None]] | None:
        if self.wire.headers is None:
            return None
        packed = self.wire.headers
        names, values = text_reader(packed.names, packed.total), text_reader(packed.values, packed.total)
        return offsets(packed.counts, self.count), names, values

    def may_have_header(self, name: str) -> bool:
        """Returns False when no event of the block has a header of this name; opens no event."""
        names = None if self.wire.headers is None else self.wire.headers.names
        if names is None:
            return False
        return name in names.values if isinstance(names, CodedText) else name.encode() in names.data

    def headers(self, row: int) -> Mapping[str, str]:
        if self._headers is None:
            return NO_HEADERS
        starts, name, value = self._headers
        found = {name(at): value(at) for at in range(starts[row], starts[row + 1])}
        return MappingProxyType(found) if found else NO_HEADERS  # type: ignore[arg-type]

    def check_columns(self) -> None:
        """Raises Corrupt when a column has more or fewer values than the block has events."""
        _ = self.payload_offsets, self.kind_codes, self.occurred_times, self._headers
        _ = self.key, self.scope, self.correlation, self.causation, self.tags

    def extract(self, row: int) -> bytes:
        """Returns a block of this one event."""

        return block_of_rows(self, [row])


def texts_of(block: Block) -> dict[str, list[str | None]]:
    """Returns the text columns that a block has, decoded."""
    columns = ((name, getattr(block.wire, name)) for name in TEXTS)
    return {name: text_values(column, block.count) for name, column in columns if column is not None}


def columns_of(block: Block, rows: Sequence[int], texts: dict[str, list[str | None]] | None = None) -> Columns:
    """Returns several events of a block as columns, to be written again; `texts`: its text columns, if already
    decoded."""
    wire, bounds, codes = block.wire, block.payload_offsets, block.kind_codes
    kinds = [wire.kinds[codes[row]] for row in rows] if len(wire.kinds) > 1 else wire.kinds * len(rows)
    if isinstance(rows, range):
        data = bytes(block.payload)  # slices of bytes are cheaper than views made into bytes
        payloads = [data[start:stop] for start, stop in pairwise(bounds[rows.start : rows.stop + 1])]
    else:
        payloads = [bytes(block.payload[bounds[row] : bounds[row + 1]]) for row in rows]
    columns = Columns(kinds, payloads)
    if wire.binary is not None:
        columns.binary = [bool(wire.binary[row]) for row in rows]
    if wire.occurred is not None:
        columns.occurred = [block.occurred_ms(row) for row in rows]
    if wire.headers is not None:
        columns.headers = [block.headers(row) for row in rows]
    if texts is None and len(rows) * 8 <= block.count:  # do not decode all texts of the block for a few events
        for name in TEXTS:
            if getattr(wire, name) is not None:
                setattr(columns, name, list(map(getattr(block, name), rows)))
        return columns
    for name, values in (texts_of(block) if texts is None else texts).items():
        some = values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]
        setattr(columns, name, some)
    return columns


def identities_of(block: Block) -> tuple[list[int], list[int], Sequence[int]]:
    """Returns the id, the time and the position of every event of a block."""
    starts = block.run_starts
    if len(starts) == block.count:
        return block.run_ids, block.run_times, block.seqs
    stops = [*starts[1:], block.count]
    spans = list(zip(block.run_ids, block.run_times, starts, stops, strict=True))
    ids = list(chain.from_iterable([range(id, id + stop - start) for id, _, start, stop in spans]))
    times = list(chain.from_iterable([[ms] * (stop - start) for _, ms, start, stop in spans]))
    return ids, times, block.seqs


# ── Blocks made of blocks: some of one's events, or those of several neighbours ──


def block_of_rows(block: Block, rows: Sequence[int]) -> bytes:
    """Returns the bytes of a block that keeps only some events, with their positions, times and ids."""
    ids = [low_bytes(block.id_number(row)) for row in rows]
    times = [block.recorded_ms(row) for row in rows]
    return build_copies(columns_of(block, rows), [block.seq(row) for row in rows], ids, times)


def join_checked(blocks: Sequence[Block]) -> Wire:
    """Returns a block of the events of several blocks, in order; raises Corrupt for an invalid block."""
    for block in blocks:  # otherwise an unreadable block would spoil its neighbours
        block.check_columns()
    return join_blocks(blocks).wire


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Returns a block, in memory, of several neighbours.

    The work is per block, not per event, where the columns allow it.
    """
    wires = [block.wire for block in blocks]
    run_counts: list[int] = []
    run_times: list[int] = []
    for block in blocks:
        wire = block.wire
        if wire.run_counts == wire.count:
            run_counts.append(wire.count)
            run_times.append(wire.run_time)
            continue
        starts = block.run_starts
        run_counts.extend([stop - start for start, stop in zip(starts, [*starts[1:], block.count], strict=True)])
        run_times.extend(block.run_times)
    kinds, codes = join_codes([(wire.kinds, wire.kind_codes, wire.count) for wire in wires])
    joined = Wire(
        FORMAT,
        sum([wire.count for wire in wires]),
        wires[0].first,
        0,
        0,
        0,
        b"",
        kinds,
        codes,
        join_ints([(wire.lengths, wire.count) for wire in wires]),
        memoryview(b"".join([wire.payload for wire in wires])),
    )
    set_runs(joined, run_counts, run_times, b"".join([wire.run_ids for wire in wires]))
    if blocks[-1].last - blocks[0].first != joined.count - 1:
        joined.seqs = pack_seqs([seq for block in blocks for seq in block.seqs])
    if any(wire.binary for wire in wires):
        joined.binary = b"".join([wire.binary or bytes(wire.count) for wire in wires])
    if any(wire.occurred is not None for wire in wires):
        joined.occurred = pack_signed([ms for block in blocks for ms in block.occurred_times])
    if any(wire.headers is not None for wire in wires):
        joined.headers = _join_headers([(wire.headers or NO_PACKED_HEADERS, wire.count) for wire in wires])
    for name in TEXTS:
        parts = [(getattr(wire, name), wire.count) for wire in wires]
        if any(part is not None for part, _ in parts):
            setattr(joined, name, join_text(parts))
    return Block(joined, blocks[0].topic)


def _join_headers(parts: Sequence[tuple[Headers, int]]) -> Headers:
    total = sum([headers.total for headers, _ in parts])
    if not total:
        return NO_PACKED_HEADERS
    return Headers(
        join_ints([(headers.counts, count) for headers, count in parts]),
        total,
        join_text([(headers.names, headers.total) for headers, _ in parts if headers.total]),
        join_text([(headers.values, headers.total) for headers, _ in parts if headers.total]),
    )


# ── Blocks stored apart: a large one was written before its place in the topic was known ──
# The block key then holds a reference: the place of the block, and the positions, recording time and ids of its events,
# which are filled in when the block is read. A reference begins with a byte that no block begins with, and ends with
# its checksum, like a block.


REFERENCE_MARK = b"\xc1"
"""The first byte of a reference; msgpack never uses it."""


class Reference(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The place of a block that is stored apart, and the fields that are filled in when the block is read."""

    key: bytes
    size: int
    count: int
    first: int
    recorded_ms: int
    id: bytes

    @property
    def last(self) -> int:
        return self.first + self.count - 1


_encode_reference = msgspec.msgpack.Encoder().encode
_decode_reference = msgspec.msgpack.Decoder(Reference).decode


def pack_reference(made: Reference) -> bytes:
    """Returns the stored form of a reference."""
    return with_checksum(REFERENCE_MARK + _encode_reference(made))


def reference_in(value: bytes, topic: str) -> Reference | None:
    """Returns the reference that is stored in a block's place; None when the block itself is stored."""
    if value[:1] != REFERENCE_MARK:
        return None
    body = without_checksum(value)
    if body is None:
        raise Corrupt("a block's reference fails its checksum", topic=topic)
    try:
        return _decode_reference(body[1:])
    except msgspec.DecodeError as error:
        raise Corrupt(f"a block's reference does not decode: {error}", topic=topic) from error


def stored_size(value: bytes) -> int:
    """Returns the bytes that a block takes, wherever it is stored; a damaged reference counts with its own bytes."""
    try:
        found = reference_in(value, "")
    except Corrupt:
        return len(value)
    return len(value) if found is None else found.size


def resolve_reference(snap: Snapshot, found: Reference, topic: str) -> Block:
    """Returns the block that a reference means."""
    value = snap.get(found.key)
    if value is None:
        raise Corrupt("a block that is stored apart is missing", topic=topic, seq=found.first)
    wire = read_block(value, topic).wire
    if wire.count != found.count:
        raise Corrupt(f"a block stored apart has {wire.count} events, not {found.count}", topic=topic, seq=found.first)
    set_positions(wire, found.first, found.recorded_ms, int.from_bytes(found.id))
    return Block(wire, topic)


def whole_value(snap: Snapshot, value: bytes, topic: str) -> bytes:
    """Returns a block in its stored form, wherever it is."""
    found = reference_in(value, topic)
    return value if found is None else encode_block(resolve_reference(snap, found, topic).wire)


def set_positions(wire: Wire, first: int, recorded_ms: int, number: int) -> None:
    """Makes a block's events one run: at positions from `first` on, recorded together, with ids counting up."""
    wire.first = first
    set_one_run(wire, recorded_ms, number)


# ── Columns inside a block: integers in the narrowest width, text as lengths and bytes, or as a dictionary with codes
# Every column can be a constant. Blocks store lengths rather than offsets, because neighbouring blocks then merge by
# joining bytes. A running sum gives the offsets that Arrow and readers need.


V = TypeVar("V")

Count = Annotated[int, msgspec.Meta(ge=0)]
Ints = Count | bytes
"""A column of non-negative integers: one number for a constant, else packed little-endian, 1, 2, 4 or 8 bytes each."""

SignedInts = int | bytes
"""A column of signed integers: one number for a constant, else 8 bytes each."""


class PlainText(msgspec.Struct, array_like=True, tag=0, gc=False):
    """A column of optional strings, end to end."""

    lengths: Ints
    data: bytes
    nulls: bytes | None = None
    """A byte for each row, 1 for a row without a string; None when all rows have a string."""


class CodedText(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A column of optional strings with few distinct values."""

    values: list[str | None]
    codes: Ints


Text = PlainText | CodedText


class Headers(msgspec.Struct, array_like=True, gc=False):
    """A column of headers."""

    counts: Ints
    """The number of headers of each row."""
    total: Count
    names: Text | None
    values: Text | None


_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_BIG_ENDIAN = sys.byteorder == "big"


def pack_ints(values: Sequence[int]) -> Ints:
    """Packs at least one integer."""
    high = max(values)
    if min(values) == high:
        return high
    return _pack(values, "B" if high < 1 << 8 else "H" if high < 1 << 16 else "I" if high < 1 << 32 else "Q")


def pack_signed(values: Sequence[int]) -> SignedInts:
    """Packs signed 64-bit integers (times may lie before 1970); `unpack_signed` reads them."""
    first = values[0]
    return first if values.count(first) == len(values) else _pack(values, "q")


def pack_words(values: Sequence[int]) -> bytes:
    """Packs integers below 2³², four bytes each whatever they are."""
    return _pack(values, "I")


def _pack(values: Sequence[int], code: str) -> bytes:
    packed = array(code, values)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack_ints(column: Ints, count: int) -> Sequence[int]:
    """Returns the integers of a column, indexable."""
    if isinstance(column, int):
        return [column] * count
    width, rest = divmod(len(column), count) if count else (0, 1)
    code = _WIDTHS.get(width)
    if rest or code is None:
        raise Corrupt(f"an integer column of {len(column)} bytes cannot hold {count} values")
    return _byte_swapped(column, code) if _BIG_ENDIAN else memoryview(column).cast(code)  # type: ignore[call-overload]


def unpack_signed(column: SignedInts, count: int) -> Sequence[int]:
    if isinstance(column, int):
        return [column] * count
    if len(column) != 8 * count:
        raise Corrupt(f"a time column of {len(column)} bytes cannot hold {count} values")
    return _byte_swapped(column, "q") if _BIG_ENDIAN else memoryview(column).cast("q")


def _byte_swapped(column: bytes, code: str) -> Sequence[int]:
    values = array(code, column)
    values.byteswap()
    return values


def offsets(lengths: Ints, count: int) -> Sequence[int]:
    """Returns the beginning of each of `count` values, and, last, the end of the last value."""
    if isinstance(lengths, int):
        return range(0, lengths * count + 1, lengths) if lengths else [0] * (count + 1)
    return list(accumulate(unpack_ints(lengths, count), initial=0))


def join_ints(parts: Iterable[tuple[Ints, int]]) -> Ints:
    """Returns several columns end to end as one column."""
    whole = list(parts)
    first = whole[0][0]
    if isinstance(first, int) and all(part == first for part, _ in whole):
        return first
    values: list[int] = []
    for part, count in whole:
        values.extend(unpack_ints(part, count))
    return pack_ints(values)


def pack_text(values: Sequence[str | None]) -> Text:
    """Packs optional strings; uses the dictionary form where each value occurs four times or more on average."""
    distinct = set(values)
    if len(distinct) * 4 <= len(values) or len(distinct) == 1:
        ordered = list(dict.fromkeys(values))
        code_of = {value: code for code, value in enumerate(ordered)}
        return CodedText(ordered, pack_ints(list(map(code_of.__getitem__, values))))
    nulls = bytes(value is None for value in values) if None in distinct else None
    encoded = [value.encode() if value is not None else b"" for value in values]
    return PlainText(pack_ints(list(map(len, encoded))), b"".join(encoded), nulls)


def text_reader(column: Text | None, count: int) -> Callable[[int], str | None]:
    """Returns a function from row to string."""
    if column is None:
        return _nothing
    if isinstance(column, CodedText):
        values, codes = column.values, column.codes
        if isinstance(codes, int):
            only = values[codes]
            return lambda row: only
        indexes = unpack_ints(codes, count)
        return lambda row: values[indexes[row]]
    data, nulls = column.data, column.nulls
    starts = offsets(column.lengths, count)
    if starts[-1] != len(data):
        raise Corrupt(f"a text column of {len(data)} bytes should have {starts[-1]}")

    def read(row: int) -> str | None:
        if nulls is not None and nulls[row]:
            return None
        return data[starts[row] : starts[row + 1]].decode()

    return read


def may_hold(column: Text | None, part: str) -> bool:
    """Returns False when no value of a column holds a text. Does not read the values one by one."""
    if column is None:
        return False
    if isinstance(column, CodedText):
        return any(value is not None and part in value for value in column.values)
    return part.encode() in column.data


def text_values(column: Text | None, count: int) -> list[str | None]:
    """Returns all strings of a column."""
    if column is None:
        return [None] * count
    if isinstance(column, CodedText):
        values = column.values
        return [values[code] for code in unpack_ints(column.codes, count)]
    text = column.data.decode()
    if column.nulls is not None or len(text) != len(
        column.data
    ):  # else a character is a byte, and the lengths are the text's own
        return list(map(text_reader(column, count), range(count)))
    starts = offsets(column.lengths, count)
    if starts[-1] != len(text):
        raise Corrupt(f"a text column of {len(text)} bytes should have {starts[-1]}")
    return [text[start:stop] for start, stop in pairwise(starts)]


def join_codes(parts: Sequence[tuple[Sequence[V], Ints, int]]) -> tuple[list[V], Ints]:
    """Returns a dictionary and its codes for several columns of (values, codes, count) end to end."""
    code_of: dict[V, int] = {}
    for values, _, _ in parts:
        for value in values:
            code_of.setdefault(value, len(code_of))
    merged = list(code_of)
    if len(merged) == 1:
        return merged, 0
    if len(merged) <= 256:  # one byte a code: the remapping is a translation of bytes
        pieces = []
        for values, codes, count in parts:
            mapped = [code_of[value] for value in values]
            if isinstance(codes, int):
                pieces.append(bytes((mapped[codes],)) * count)
            else:
                pieces.append(codes.translate(bytes(mapped).ljust(256, b"\0")))
        return merged, b"".join(pieces)
    numbers: list[int] = []
    for values, codes, count in parts:
        mapped = [code_of[value] for value in values]
        numbers.extend([mapped[code] for code in unpack_ints(codes, count)])
    return merged, pack_ints(numbers)


def join_text(parts: Sequence[tuple[Text | None, int]]) -> Text:
    """Returns several columns end to end as one column, without decoding a value where the forms allow it."""
    plain = [(column, count) for column, count in parts if isinstance(column, PlainText)]
    if not plain:
        coded = [(column, count) for column, count in parts if not isinstance(column, PlainText)]
        return CodedText(*join_codes([(*_codes_of(column), count) for column, count in coded]))
    if len(plain) < len(parts):
        return pack_text([value for column, count in parts for value in text_values(column, count)])
    nulls = None
    if any(column.nulls is not None for column, _ in plain):
        nulls = b"".join([bytes(count) if column.nulls is None else column.nulls for column, count in plain])
    lengths = join_ints([(column.lengths, count) for column, count in plain])
    return PlainText(lengths, b"".join([column.data for column, _ in plain]), nulls)


def _codes_of(column: CodedText | None) -> tuple[list[str | None], Ints]:
    return ([None], 0) if column is None else (column.values, column.codes)


def _nothing(row: int) -> None:
    return None


# ── What a block is made of: the columns of its events, as they come in and as they lie on disk, and its runs ──
# A run holds the events of one commit: they share their recording time, and their ids count up from the run's id.


FORMAT = 1
ID_BYTES = 10
ID_MASK = (1 << 80) - 1


class Wire(msgspec.Struct, array_like=True, gc=False):
    """A block in its stored form."""

    format: int
    count: Count
    first: int
    run_counts: Ints
    run_time: int
    run_times: Ints
    run_ids: bytes
    kinds: list[str]
    kind_codes: Ints
    lengths: Ints
    payload: memoryview
    seqs: bytes | None = None
    binary: bytes | None = None
    occurred: SignedInts | None = None
    key: Text | None = None
    scope: Text | None = None
    headers: Headers | None = None
    correlation: Text | None = None
    causation: Text | None = None
    links: bytes | None = None
    """Hash chains of an earlier version, which are ignored."""
    tags: Text | None = None
    """The tags of each event as one text: see `names.pack_tags`."""


encode_wire = msgspec.msgpack.Encoder().encode
"""Encodes a block without its checksum, to be kept for a while or sent on."""
decode_wire = msgspec.msgpack.Decoder(Wire).decode
"""Decodes the bytes that `encode_wire` made; the payload is a view into it."""


# ── Compressed blocks: each large column by itself, so that who reads some columns decompresses no others ──
# A block is compressed when it will not change any more: when it is large, or made by merging. It has the same columns.
# Columns that become much smaller are stored apart, by name, each as the zstd frame of its msgpack. Payloads are
# compressed as their bytes. Ids, positions and times are compressed in another order, all first bytes, then all second
# bytes …, because neighbours are similar.


COMPRESSED_FORMAT = 2
COMPRESSED_MARK = 0x93
"""The first byte of a compressed block: an array of three. A `Wire` has more."""


class CompressedColumn(msgspec.Struct, array_like=True, gc=False):
    """A column's msgpack, compressed, and its size before."""

    size: Count
    data: memoryview


class CompressedForm(msgspec.Struct, array_like=True, gc=False):
    """A compressed block in its stored form."""

    format: int
    wire: Wire
    """The block, with nothing in the place of its compressed columns."""
    columns: dict[str, CompressedColumn]


class CompressedWire(Wire, gc=False):
    """A block whose compressed columns are decompressed on first access."""

    columns: dict[str, CompressedColumn] = {}
    """The compressed columns; a column that is set leaves this dictionary."""
    topic: str = ""

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for a column without a value.
        column = self.columns.get(name) if name in _COLUMNS else None
        if column is None:
            raise AttributeError(name)
        try:
            plain = decompress(column.data, column.size)
            width = _RAW_WIDTHS.get(name)
            if width is None:
                value = column_decoders()[name](plain)
            else:
                value = memoryview(plain) if width == 1 else interleave(plain, width)
        except (Corrupt, msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"the compressed column {name!r} of a block cannot be read: {error}"
            raise Corrupt(what, topic=self.topic, seq=self.first) from error
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        self.columns.pop(name, None)
        super().__setattr__(name, value)

    def form(self) -> CompressedForm:
        """Returns the stored form."""
        fields: list[Any] = [_ABSENT[name] if name in self.columns else getattr(self, name) for name in _COLUMNS]
        return CompressedForm(COMPRESSED_FORMAT, Wire(*fields), self.columns)


_COLUMNS = Wire.__struct_fields__
_ABSENT: dict[str, int | bytes | list[str] | None] = dict.fromkeys(_COLUMNS)
"""The placeholder of a compressed column."""
_ABSENT |= {"run_counts": 0, "run_times": 0, "run_ids": b"", "kinds": [], "kind_codes": 0, "lengths": 0, "payload": b""}
_RAW_WIDTHS = {"payload": 1, "run_ids": ID_BYTES, "seqs": 8, "occurred": 8}
_decode_form = msgspec.msgpack.Decoder(CompressedForm).decode


@cache
def column_decoders() -> Mapping[str, Callable[[bytes], object]]:
    """Returns the decoders of the columns' msgpack."""
    return {field.encode_name: msgspec.msgpack.Decoder(field.type).decode for field in msgspec.structs.fields(Wire)}


def compressed(wire: Wire) -> Wire:
    """Returns the block with its large columns compressed; returns the block itself when no column becomes much
    smaller.
    """
    # the block is compressed already, or its events have options, so it is not stored as it is
    if type(wire) is not Wire:
        return wire
    columns: dict[str, CompressedColumn] = {}
    values = astuple(wire)
    for name, value in zip(_COLUMNS, values, strict=True):
        if value is None or isinstance(value, int):
            continue
        width = _RAW_WIDTHS.get(name)
        if width is None:
            plain = encode_wire(value)
        else:
            plain = value if width == 1 else separate(value, width)
        if len(plain) >= COMPRESSED_BYTES:
            data = compress(plain)
            if 4 * len(data) <= 3 * len(plain):
                columns[name] = CompressedColumn(len(plain), memoryview(data))
    if not columns:
        return wire
    return CompressedWire(*values, columns)  # type: ignore[call-arg]  # mypy sees no fields after inherited ones


def compressed_if_large(wire: Wire) -> Wire:
    """Returns the block, compressed when it is too large to be merged with others later."""
    return compressed(wire) if payload_size(wire) >= MERGED_BYTES else wire


def payload_size(wire: Wire) -> int:
    """Returns the bytes of a block's payloads, without decompressing them."""
    if isinstance(wire, CompressedWire) and "payload" in wire.columns:
        return wire.columns["payload"].size
    return len(wire.payload)


def plain_size(value: bytes) -> int:
    """Returns about how many bytes a stored block has without compression; for a damaged block, its stored bytes."""
    if value[:1] != COMPRESSED_MARK.to_bytes():
        return stored_size(value)
    try:
        columns = _decode_form(memoryview(value)[:-4]).columns.values()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return len(value)
    return len(value) + sum(column.size - len(column.data) for column in columns)


def decode_compressed(body: memoryview, topic: str) -> Wire:
    """Returns a compressed block without decompressing anything."""
    form = _decode_form(body)
    if form.format != COMPRESSED_FORMAT or not form.columns.keys() <= set(_COLUMNS):
        raise Corrupt(
            f"a compressed block has format {form.format}, or columns this version does not know", topic=topic
        )
    wire = CompressedWire(*astuple(form.wire), form.columns, topic)  # type: ignore[call-arg]
    for name in form.columns:
        delattr(wire, name)
    return wire


class Columns(msgspec.Struct, eq=False, weakref=False):
    """Events on their way into a block, as columns; an optional column is None until an event needs it."""

    kinds: list[str]
    payloads: list[bytes]
    binary: list[bool] | None = None
    key: list[str | None] | None = None
    scope: list[str | None] | None = None
    headers: list[Mapping[str, str] | None] | None = None
    occurred: list[int | None] | None = None
    correlation: list[str | None] | None = None
    causation: list[str | None] | None = None
    tags: list[str | None] | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    def extend(self, other: Columns) -> None:
        """Adds the events of `other` after these."""
        before, more = len(self.kinds), len(other.kinds)
        self.kinds.extend(other.kinds)
        self.payloads.extend(other.payloads)
        for name in OPTIONAL:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None and theirs is None:
                continue
            if mine is None:
                mine = [None] * before
                setattr(self, name, mine)
            mine.extend([None] * more if theirs is None else theirs)

    def weights(self) -> list[int]:
        """Returns the approximate bytes of each event: its payload and its headers."""
        sizes = list(map(len, self.payloads))
        if self.headers is not None:
            for row, headers in enumerate(self.headers):
                if headers:
                    sizes[row] += sum(map(len, headers)) + sum(map(len, headers.values()))
        return sizes

    def pick(self, rows: Sequence[int]) -> Columns:
        """Returns several of the events, in columns of their own."""
        pick = column_picker(rows)
        picked = Columns(pick(self.kinds), pick(self.payloads))
        for name in OPTIONAL:
            column = getattr(self, name)
            if column is not None:
                setattr(picked, name, pick(column))
        return picked

    def slice(self, start: int, stop: int) -> Columns:
        """Returns the events start … stop-1."""
        part = Columns(self.kinds[start:stop], self.payloads[start:stop])
        for name in OPTIONAL:
            column = getattr(self, name)
            if column is not None:
                setattr(part, name, column[start:stop])
        return part


def column_picker(rows: Sequence[int]) -> Callable[[Sequence[T]], list[T]]:
    """Picks rows out of a column."""
    if len(rows) < 2:
        return lambda column: [column[row] for row in rows]
    pick = itemgetter(*rows)
    return lambda column: list(pick(column))


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Returns the events of several batches, in columns of their own."""
    joined = Columns([kind for part in parts for kind in part.kinds], [one for part in parts for one in part.payloads])
    for name in OPTIONAL:
        columns = [getattr(part, name) for part in parts]
        if columns.count(None) < len(columns):
            whole: list[object] = []
            for part, column in zip(parts, columns, strict=True):
                whole += [None] * len(part.kinds) if column is None else column
            setattr(joined, name, whole)
    return joined


TEXTS = ("key", "scope", "correlation", "causation", "tags")
"""The optional columns of text, by the names that they have in `Wire`, `Columns` and `Block`."""
OPTIONAL = ("binary", "headers", "occurred", *TEXTS)


class PlacedRows(msgspec.Struct, eq=False, weakref=False):
    """Events with their positions, ids and times, as columns: on their way into an index, or from another store.

    The columns are lists of plain values, not an object for each event: C sorts and picks them, and the garbage
    collector has little to follow.
    """

    columns: Columns = msgspec.field(default_factory=lambda: Columns([], []))
    seqs: list[int] = []
    ids: list[bytes] = []
    """The low bytes of the events' ids, whose other bytes are the time; empty, like `times`, for rows with terms
    alone.
    """
    times: list[int] = []

    def __len__(self) -> int:
        return len(self.seqs)

    def extend(self, other: PlacedRows) -> None:
        """Adds other rows after these."""
        self.columns.extend(other.columns)
        self.seqs += other.seqs
        self.ids += other.ids
        self.times += other.times

    def slice(self, start: int, stop: int) -> Self:
        """Returns the rows start … stop-1."""
        ids, times = self.ids[start:stop], self.times[start:stop]
        return type(self)(self.columns.slice(start, stop), self.seqs[start:stop], ids, times)

    def pick(self, rows: Sequence[int]) -> Self:
        """Returns several of the rows."""
        columns, pick = self.columns.pick(rows), column_picker(rows)
        if not self.ids:
            return type(self)(columns, pick(self.seqs))
        return type(self)(columns, pick(self.seqs), pick(self.ids), pick(self.times))

    def id(self, row: int) -> int:
        """Returns the whole id of a row."""
        return self.times[row] << 8 * ID_BYTES | int.from_bytes(self.ids[row])

    def pack(self) -> bytes:
        """Returns the block of these rows, in their order."""
        return build_copies(self.columns, self.seqs, self.ids, self.times)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def set_runs(wire: Wire, counts: Sequence[int], times: Sequence[int], ids: bytes) -> None:
    """Sets the runs of a block: the number of events, the recording time, and the low bytes of the first id of each
    run.
    """
    started_ms = min(times)
    wire.run_counts = pack_ints(counts)
    wire.run_time = started_ms
    wire.run_times = pack_ints([ms - started_ms for ms in times])
    wire.run_ids = ids


def set_runs_of(wire: Wire, ids: Sequence[int], times: Sequence[int]) -> None:
    """Sets the runs of a block from the id and the recording time of every event."""
    count = len(ids)
    starts = [0] + [at for at in range(1, count) if ids[at] != ids[at - 1] + 1 or times[at] != times[at - 1]]
    set_runs(
        wire,
        [stop - start for start, stop in pairwise([*starts, count])],
        [times[at] for at in starts],
        b"".join([low_bytes(ids[at]) for at in starts]),
    )


def low_bytes(id: int) -> bytes:
    """Returns the bytes of an id that a run stores; the other bytes are the time."""
    return (id & ID_MASK).to_bytes(ID_BYTES)


def set_one_run(wire: Wire, recorded_ms: int, first_id: int) -> None:
    """Makes a block's events one run: recorded together, with ids counting up."""
    wire.run_counts = wire.count
    wire.run_time = recorded_ms
    wire.run_times = 0
    wire.run_ids = low_bytes(first_id)


def pack_seqs(seqs: Sequence[int]) -> bytes:
    """Packs positions that do not count up one by one."""
    return _pack(seqs, "q")


NO_PACKED_HEADERS = Headers(0, 0, None, None)


# ── Blocks of events that are not appended yet, and what their events ask for besides being appended ──
# On its way to the commit, a block may have a column for each option (`RowOptions`). The options are never stored with
# the block: the commit handles a block with options event by event, like an append of many drafts.


class RowOptions(msgspec.Struct, array_like=True):
    """The options of the events of a block; a column is None when no event has the option."""

    dedup: list[str | None] | None = None
    expect: list[int | None] | None = None
    """The position of the newest event of the row's key."""
    priority: list[int | None] | None = None
    delay: list[int | None] | None = None
    """Milliseconds from the commit on."""
    not_before: list[int | None] | None = None
    """Milliseconds since 1970."""
    max_attempts: list[int | None] | None = None

    @property
    def delivery(self) -> bool:
        """True if any event has an option of delivery, which only a queue understands."""
        return any(one is not None for one in (self.priority, self.delay, self.not_before, self.max_attempts))

    def lengths(self) -> set[int]:
        """Returns the number of values the columns have."""
        return {len(column) for column in astuple(self) if column is not None}


class PendingWire(Wire):
    """A block whose events have options."""

    options: RowOptions | None = None


_decode_options = msgspec.msgpack.Decoder(PendingWire).decode


def with_options(wire: Wire, options: RowOptions) -> Wire:
    """Returns the block with the options of its events; the block itself when the events have no options."""
    if not options.lengths():
        return wire
    made = PendingWire(*astuple(wire))
    made.options = options
    return made


def decode_pending(body: bytes | memoryview) -> Wire:
    """Returns the block that `encode_wire` encoded, with or without options; Corrupt when it is something else."""
    try:
        found = _decode_options(body)
        return found if found.options is not None else decode_wire(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a staged block does not decode: {error}") from error


def read_pending(value: bytes, topic: str) -> Wire:
    """Returns a block as it was staged."""
    wire = read_block(value, topic).wire
    return wire if isinstance(wire, CompressedWire) else decode_pending(memoryview(value)[:-4])


def options_of(wire: Wire) -> RowOptions | None:
    """Returns the options of a block's events."""
    return wire.options if isinstance(wire, PendingWire) else None

"""Blocks: the events of one commit (or of several merged ones) to one topic, column by column, under one checksum.

A block is the msgpack array `Wire` followed by the CRC-32 of those bytes. Events are numbered `first`, `first`+1, …
unless `seqs` lists their positions (compaction by key leaves holes). Events of one commit form a *run*: they share
their recording time, and their ids count up from the run's id; so a run costs 10 bytes of id and a few of time,
however many events it holds.

An id is a UUIDv7: its time is the recording time, and within a topic ids increase with positions, which is why
`find(id)` needs no index.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from penstock.engine.checksum import PIECE_BYTES, crc32
from penstock.errors import Corrupt
from penstock.events import Event
from penstock.journal.storage.columns import (
    CodedText,
    Headers,
    offsets,
    pack_ints,
    pack_signed,
    pack_text,
    text_reader,
    text_values,
    unpack_ints,
    unpack_signed,
)
from penstock.journal.storage.wire import (
    FORMAT,
    ID_BYTES,
    ID_MASK,
    NO_PACKED_HEADERS,
    Columns,
    Wire,
    decode_wire,
    encode_wire,
    join_columns,
    set_runs,
)

T = TypeVar("T")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class lazy(Generic[T]):
    """An attribute computed when first asked for. functools' own takes a lock that costs more than the work here."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type[object]) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value


def build_block(columns: Columns, first: int, recorded_ms: int, base_id: int) -> bytes:
    """The bytes of a block that holds one commit's events, at positions first, first+1, …"""
    return seal(build_wire(columns, first, recorded_ms, base_id))


def build_wire(columns: Columns, first: int, recorded_ms: int, base_id: int) -> Wire:
    """A block of one commit's events, not yet sealed."""
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
    return wire


def build_joined(parts: Sequence[tuple[int, int, int, Columns]]) -> bytes:
    """The bytes of a block of several neighbouring commits: (first position, recording time, first id, events) each."""
    first, started_ms, base_id, _ = parts[0]
    joined = join_columns([columns for _, _, _, columns in parts])
    if joined.occurred is not None:  # an event without a time of its own has its commit's
        recorded = [recorded_ms for _, recorded_ms, _, columns in parts for _ in columns.kinds]
        joined.occurred = [own if at is None else at for at, own in zip(joined.occurred, recorded, strict=True)]
    wire = build_wire(joined, first, started_ms, base_id)
    set_runs(
        wire,
        [len(columns.kinds) for _, _, _, columns in parts],
        [recorded_ms for _, recorded_ms, _, _ in parts],
        b"".join([(base & ID_MASK).to_bytes(ID_BYTES) for _, _, base, _ in parts]),
    )
    return seal(wire)


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


def seal(wire: Wire) -> bytes:
    """The stored form of a block: its bytes and their checksum."""
    body = encode_wire(wire)
    return body + (zlib.crc32(body) if len(body) <= PIECE_BYTES else crc32(body)).to_bytes(4)


def read_block(value: bytes | memoryview, topic: str) -> Block:
    """Opens a stored block; `Corrupt` when its checksum or its form is wrong."""
    body = memoryview(value)[:-4]
    found = zlib.crc32(body) if len(value) <= PIECE_BYTES else crc32(body)
    if found != int.from_bytes(value[-4:]) or len(value) < 5:
        raise Corrupt("a block fails its checksum", topic=topic)
    try:
        wire = decode_wire(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a block does not decode: {error}", topic=topic) from error
    if wire.format != FORMAT:
        raise Corrupt(f"a block has format {wire.format}; this version reads {FORMAT}", topic=topic)
    return Block(wire, topic)


class Block:
    """A stored block, opened for reading; columns are unpacked when first asked for."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.count = wire.count
        self.first = wire.first
        self.payload = memoryview(wire.payload)
        self.last = wire.first + wire.count - 1 if wire.seqs is None else self.seqs[-1]
        """The position of the newest event."""

    # ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────
    @lazy
    def seqs(self) -> Sequence[int]:
        """The positions of the events, ascending."""
        if self.wire.seqs is None:
            return range(self.first, self.first + self.count)
        return unpack_signed(self.wire.seqs, self.count)

    def seq(self, row: int) -> int:
        return self.seqs[row]

    def row_after(self, seq: int) -> int:
        """The first row whose position is above `seq`."""
        return bisect_right(self.seqs, seq)

    def row_of(self, seq: int) -> int | None:
        """The row of a position, or None where compaction removed it."""
        row = bisect_left(self.seqs, seq)
        return row if row < self.count and self.seqs[row] == seq else None

    def events(self, start: int = 0, stop: int | None = None) -> list[Event]:
        """The events of rows start … stop-1."""
        return [Event(self, row) for row in range(start, self.count if stop is None else stop)]

    # ── runs: recording times and ids ────────────────────────────────────────────────────────────────────────────────
    @lazy
    def run_starts(self) -> list[int]:
        """The first row of every run."""
        counts = self.wire.run_counts
        if counts == self.count:
            return [0]
        runs = len(self.wire.run_ids) // ID_BYTES
        return list(accumulate(unpack_ints(counts, runs), initial=0))[:-1]

    @lazy
    def run_times(self) -> list[int]:
        """When each run was recorded, in milliseconds."""
        start = self.wire.run_time
        return [start + delta for delta in unpack_ints(self.wire.run_times, len(self.run_starts))]

    @lazy
    def run_ids(self) -> list[int]:
        """The id of the first event of every run."""
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
        """The row that has an id, or None."""
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
        """The producers' times, in milliseconds."""
        if self.wire.occurred is not None:
            return unpack_signed(self.wire.occurred, self.count)
        times: list[int] = []
        for start, stop, ms in zip(self.run_starts, [*self.run_starts[1:], self.count], self.run_times, strict=True):
            times.extend([ms] * (stop - start))
        return times

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
    def _headers(self) -> tuple[Sequence[int], Callable[[int], str | None], Callable[[int], str | None]] | None:
        if self.wire.headers is None:
            return None
        packed = self.wire.headers
        names, values = text_reader(packed.names, packed.total), text_reader(packed.values, packed.total)
        return offsets(packed.counts, self.count), names, values

    def may_have_header(self, name: str) -> bool:
        """False: no event of the block has it, found without opening one."""
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
        """Corrupt when a column has more or less than the block has events."""
        _ = self.payload_offsets, self.kind_codes, self.occurred_times, self._headers
        _ = self.key, self.scope, self.correlation, self.causation

    def extract(self, row: int) -> bytes:
        """A block of this one event."""
        from penstock.journal.storage.joining import select

        return select(self, [row])


def texts_of(block: Block) -> dict[str, list[str | None]]:
    """The text columns that a block has, decoded."""
    columns = ((name, getattr(block.wire, name)) for name in ("key", "scope", "correlation", "causation"))
    return {name: text_values(column, block.count) for name, column in columns if column is not None}


def columns_of(block: Block, rows: Sequence[int], texts: dict[str, list[str | None]] | None = None) -> Columns:
    """Some events of a block as columns, to be written again; `texts`: its text columns, if already decoded."""
    wire, bounds, codes = block.wire, block.payload_offsets, block.kind_codes
    kinds = [wire.kinds[codes[row]] for row in rows]
    if rows == range(block.count):
        data = bytes(block.payload)  # slices of bytes are cheaper than views made into bytes
        payloads = [data[start:stop] for start, stop in pairwise(bounds)]
    else:
        payloads = [bytes(block.payload[bounds[row] : bounds[row + 1]]) for row in rows]
    columns = Columns(kinds, payloads)
    if wire.binary is not None:
        columns.binary = [bool(wire.binary[row]) for row in rows]
    if wire.occurred is not None:
        columns.occurred = [block.occurred_ms(row) for row in rows]
    if wire.headers is not None:
        columns.headers = [block.headers(row) for row in rows]
    if texts is None and len(rows) * 8 <= block.count:  # not the whole block's texts for a few of its events
        readers = {"key": block.key, "scope": block.scope}
        readers |= {"correlation": block.correlation, "causation": block.causation}
        for name, read in readers.items():
            if getattr(wire, name) is not None:
                setattr(columns, name, [read(row) for row in rows])
        return columns
    for name, values in (texts_of(block) if texts is None else texts).items():
        setattr(columns, name, values if rows == range(block.count) else [values[row] for row in rows])
    return columns


def spread(block: Block) -> tuple[list[int], list[int], Sequence[int]]:
    """The id, the time and the position of every event of a block."""
    starts = block.run_starts
    if len(starts) == block.count:
        return block.run_ids, block.run_times, block.seqs
    stops = [*starts[1:], block.count]
    spans = list(zip(block.run_ids, block.run_times, starts, stops, strict=True))
    ids = list(chain.from_iterable([range(id, id + stop - start) for id, _, start, stop in spans]))
    times = list(chain.from_iterable([[ms] * (stop - start) for _, ms, start, stop in spans]))
    return ids, times, block.seqs

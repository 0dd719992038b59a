"""What a block is made of: the columns of its events, as they come in and as they lie on disk, and its runs.

A run is what one commit wrote: its events share their recording time, and their ids count up from the run's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from penstock.journal.storage.columns import Count, Headers, Ints, SignedInts, Text, pack_ints, pack_signed

FORMAT = 1
ID_BYTES = 10
ID_MASK = (1 << 80) - 1


class Wire(msgspec.Struct, array_like=True, gc=False):
    """A block as it lies on disk."""

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


encode_wire = msgspec.msgpack.Encoder().encode
"""A block without its checksum, to be kept for a while or sent on."""
decode_wire = msgspec.msgpack.Decoder(Wire).decode
"""What `encode_wire` made; the payload is a view into it."""


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
        """The bytes each event brings along, nearly: its payload and its headers."""
        sizes = list(map(len, self.payloads))
        if self.headers is not None:
            for row, headers in enumerate(self.headers):
                if headers:
                    sizes[row] += sum(map(len, headers)) + sum(map(len, headers.values()))
        return sizes

    def pick(self, rows: Sequence[int]) -> Columns:
        """Some of the events, in columns of their own."""
        picked = Columns([self.kinds[row] for row in rows], [self.payloads[row] for row in rows])
        for name in OPTIONAL:
            column = getattr(self, name)
            if column is not None:
                setattr(picked, name, [column[row] for row in rows])
        return picked

    def slice(self, start: int, stop: int) -> Columns:
        """The events start … stop-1."""
        part = Columns(self.kinds[start:stop], self.payloads[start:stop])
        for name in OPTIONAL:
            column = getattr(self, name)
            if column is not None:
                setattr(part, name, column[start:stop])
        return part


def join_columns(parts: Sequence[Columns]) -> Columns:
    """The events of several batches, in columns of their own."""
    joined = Columns([kind for part in parts for kind in part.kinds], [one for part in parts for one in part.payloads])
    for name in OPTIONAL:
        columns = [getattr(part, name) for part in parts]
        if columns.count(None) < len(columns):
            whole: list[object] = []
            for part, column in zip(parts, columns, strict=True):
                whole += [None] * len(part.kinds) if column is None else column
            setattr(joined, name, whole)
    return joined


OPTIONAL = ("binary", "key", "scope", "headers", "occurred", "correlation", "causation")


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def set_runs(wire: Wire, counts: Sequence[int], times: Sequence[int], ids: bytes) -> None:
    """Says which runs a block's events form: how many each, when recorded, and the low bytes of their first ids."""
    started_ms = min(times)
    wire.run_counts = pack_ints(counts)
    wire.run_time = started_ms
    wire.run_times = pack_ints([ms - started_ms for ms in times])
    wire.run_ids = ids


def set_runs_of(wire: Wire, ids: Sequence[int], times: Sequence[int]) -> None:
    """The same from the id and the recording time of every event."""
    count = len(ids)
    starts = [0] + [at for at in range(1, count) if ids[at] != ids[at - 1] + 1 or times[at] != times[at - 1]]
    set_runs(
        wire,
        [stop - start for start, stop in pairwise([*starts, count])],
        [times[at] for at in starts],
        b"".join([(ids[at] & ID_MASK).to_bytes(ID_BYTES) for at in starts]),
    )


def set_one_run(wire: Wire, recorded_ms: int, first_id: int) -> None:
    """Makes a block's events one run: recorded together, with ids counting up."""
    wire.run_counts = wire.count
    wire.run_time = recorded_ms
    wire.run_times = 0
    wire.run_ids = (first_id & ID_MASK).to_bytes(ID_BYTES)


def pack_seqs(seqs: Sequence[int]) -> bytes:
    """Positions that do not count up one by one."""
    packed = pack_signed(seqs)
    return packed if isinstance(packed, bytes) else packed.to_bytes(8, "little", signed=True)


NO_PACKED_HEADERS = Headers(0, 0, None, None)

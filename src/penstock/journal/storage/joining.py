"""Blocks made of blocks: some of one's events, or those of several neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.journal.storage.block import Block, build_block, columns_of, seal
from penstock.journal.storage.columns import Headers, join_codes, join_ints, join_text, pack_signed
from penstock.journal.storage.wire import FORMAT, NO_PACKED_HEADERS, Wire, decode_wire, pack_seqs, set_runs, set_runs_of


def select(block: Block, rows: Sequence[int]) -> bytes:
    """The bytes of a block that keeps only some events, with the positions, times and ids they have."""
    columns = columns_of(block, rows)
    built = decode_wire(memoryview(build_block(columns, block.seq(rows[0]), 0, 0))[:-4])
    set_runs_of(built, [block.id_number(row) for row in rows], [block.recorded_ms(row) for row in rows])
    seqs = [block.seq(row) for row in rows]
    if seqs[-1] - seqs[0] != len(seqs) - 1:
        built.seqs = pack_seqs(seqs)
    return seal(built)


def merge(blocks: Sequence[Block]) -> bytes:
    """The bytes of one block that holds the events of several, in order; Corrupt when one of them does not hold."""
    for block in blocks:  # else one that cannot be read would take its neighbours with it
        block.check_columns()
    return seal(join_blocks(blocks).wire)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """One block, in memory, of several neighbours. Work per block, not per event, where the columns allow it."""
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
    for name in ("key", "scope", "correlation", "causation"):
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

"""Blocks: what goes in comes out, whatever is built, cut, joined and written again; damage is always found."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightly import examples
from penstock.core.journal import blocks as blocks_module
from penstock.core.journal.blocks import (
    Block,
    Columns,
    block_of_rows,
    build_block,
    compressed,
    encode_block,
    join_blocks,
    join_checked,
    join_codes,
    join_ints,
    join_text,
    offsets,
    pack_ints,
    pack_signed,
    pack_text,
    plain_size,
    positions_in,
    read_block,
    set_positions,
    text_reader,
    text_values,
    unpack_ints,
    unpack_signed,
)
from penstock.core.journal.compression import compress, decompress, interleave, separate
from penstock.core.journal.index.runs import chunk_rows, chunks_of, event_rows, merged, sorted_sources
from penstock.core.journal.reading import wanted_rows
from penstock.core.model.query import EventQuery
from penstock.errors import Corrupt

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
few_texts = st.sampled_from(["a", "b", "é", "🎉", ""])
times = st.integers(-(1 << 45), 1 << 47)


@dataclass(frozen=True)
class Row:
    """One event, as the tests know it."""

    kind: str
    payload: bytes
    binary: bool = False
    key: str | None = None
    scope: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    occurred: int | None = None
    correlation: str | None = None
    causation: str | None = None


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """The rows of one commit; a column is used by all, some or none of them."""
    count = draw(st.one_of(st.integers(1, 8), st.sampled_from([1, 2, 40])))
    texts = draw(st.sampled_from([text, few_texts]))
    used = {name: draw(st.sampled_from(["no", "some", "all"])) for name in Row.__dataclass_fields__}

    def column(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return {"no": st.none(), "some": optional(values), "all": values}[used[name]]

    row = st.builds(
        Row,
        kind=few_texts if used["kind"] == "no" else text,
        payload=st.binary(max_size=20) if used["payload"] == "no" else st.binary(min_size=3, max_size=3),
        binary=column("binary", st.booleans()).map(bool),
        key=column("key", texts),
        scope=column("scope", texts),
        headers=column("headers", st.dictionaries(text, text, max_size=3)).map(lambda found: found or {}),
        occurred=column("occurred", times),
        correlation=column("correlation", texts),
        causation=column("causation", texts),
    )
    return [draw(row) for _ in range(count)]


@dataclass(frozen=True)
class Stored:
    """A row with the position, time and id it was given."""

    row: Row
    seq: int
    recorded: int
    id: int


def columns_of(rows: list[Row]) -> Columns:
    columns = Columns([row.kind for row in rows], [row.payload for row in rows])
    for name in ("binary", "key", "scope", "occurred", "correlation", "causation"):
        values = [getattr(row, name) for row in rows]
        if any(value is not None and value is not False for value in values):
            setattr(columns, name, values)
    if any(row.headers for row in rows):
        columns.headers = [row.headers or None for row in rows]
    return columns


def build(rows: list[Row], first: int, recorded: int, base: int) -> tuple[Block, list[Stored]]:
    block = read_block(build_block(columns_of(rows), first, recorded, base), "t")
    return block, [Stored(row, first + at, recorded, base + at) for at, row in enumerate(rows)]


def check(block: Block, expected: list[Stored]) -> None:
    """Every way to ask a block gives what was put in."""
    assert block.count == len(expected) and block.first == expected[0].seq and block.last == expected[-1].seq
    assert list(block.seqs) == [one.seq for one in expected]
    assert block.last_recorded_ms == expected[-1].recorded and block.last_id == expected[-1].id
    for at, one in enumerate(expected):
        row = one.row
        assert (block.seq(at), block.recorded_ms(at), block.id_number(at)) == (one.seq, one.recorded, one.id)
        assert (block.kind(at), bytes(block.raw_payload(at)), block.is_binary(at)) == (
            row.kind,
            row.payload,
            row.binary,
        )
        assert (block.key(at), block.scope(at)) == (row.key, row.scope)
        assert dict(block.headers(at)) == row.headers and list(block.headers(at)) == list(row.headers)
        assert block.occurred_ms(at) == (one.recorded if row.occurred is None else row.occurred)
        assert list(block.occurred_times)[at] == block.occurred_ms(at)
        assert (block.correlation(at), block.causation(at)) == (row.correlation, row.causation)
        assert block.row_of(one.seq) == at and block.row_of_id(one.id) == at
        assert block.row_after(one.seq) == at + 1 and block.row_after(one.seq - 1) == at
    ids, positions = {one.id for one in expected}, {one.seq for one in expected}
    for number in (expected[0].id - 1, expected[-1].id + 1, *(one.id + 1 for one in expected)):
        if number not in ids:
            assert block.row_of_id(number) is None
    for position in range(expected[0].seq - 1, expected[-1].seq + 2):
        if position not in positions:
            assert block.row_of(position) is None


@given(batches(), st.integers(1, 1 << 62), st.integers(0, 1 << 46), st.integers(0, (1 << 79) - 1))
def test_a_block_gives_back_what_was_put_in(rows: list[Row], first: int, recorded: int, tail: int) -> None:
    check(*build(rows, first, recorded, (recorded << 80) | tail))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Block, list[Stored]]]:
    """The blocks of several commits, one after the other, as a topic would have them."""
    first, recorded, last_id = draw(st.integers(1, 1000)), draw(st.integers(0, 1 << 41)), 0
    made = []
    for rows in draw(st.lists(batches(), min_size=1, max_size=6)):
        recorded += draw(st.sampled_from([0, 0, 1, 1000, 1 << 20, 1 << 33]))
        base = last_id + 1 + draw(st.sampled_from([0, 1, 12345])) if last_id >> 80 == recorded else 0
        base = base or (recorded << 80) | draw(st.integers(0, 1 << 70))
        made.append(build(rows, first, recorded, base))
        first, last_id = first + len(rows), base + len(rows) - 1
    return made


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(histories())
def test_merged_blocks_hold_the_same_events(history: list[tuple[Block, list[Stored]]]) -> None:
    blocks = [block for block, _ in history]
    expected = [one for _, stored in history for one in stored]
    check(join_blocks(blocks), expected)
    check(read_block(encode_block(join_checked(blocks)), "t"), expected)
    middle = len(blocks) // 2
    halves = [read_block(encode_block(join_checked(part)), "t") for part in (blocks[:middle], blocks[middle:]) if part]
    check(read_block(encode_block(join_checked(halves)), "t"), expected)


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(histories(), st.data())
def test_a_selection_keeps_the_events_it_selects(
    history: list[tuple[Block, list[Stored]]], data: st.DataObject
) -> None:
    blocks: list[Block] = []
    expected: list[Stored] = []
    for block, stored in history:
        rows = sorted(data.draw(st.sets(st.integers(0, len(stored) - 1))))
        if rows:
            block = read_block(block_of_rows(block, rows), "t")
            stored = [stored[row] for row in rows]
            check(block, stored)
            blocks.append(block)
            expected.extend(stored)
    if not blocks:
        return
    merged = read_block(encode_block(join_checked(blocks)), "t")
    check(merged, expected)
    again = sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1)))
    check(read_block(block_of_rows(merged, again), "t"), [expected[row] for row in again])
    for row in again[:3]:
        check(read_block(merged.extract(row), "t"), [expected[row]])


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(histories())
def test_sorted_rows_cut_into_chunks_are_the_same_events_by_entity(
    history: list[tuple[Block, list[Stored]]],
) -> None:
    expected = {one.seq: one for _, stored in history for one in stored}
    rows = [rows for block, _ in history for rows in event_rows(block)]
    marked = list(chunks_of(merged(sorted_sources(rows))))
    chunks = [read_block(value, "t") for _, value in marked]
    again = merged([rows for chunk in chunks for rows in [chunk_rows(chunk, 0)]])
    rebuilt = list(chunks_of(again))
    assert rebuilt == marked and [mark for mark, _ in marked] == sorted(mark for mark, _ in marked)
    order = [((chunk.key(at) or "").encode(), chunk.seq(at)) for chunk in chunks for at in range(chunk.count)]
    assert order == sorted(order)
    found = []
    for chunk in chunks:
        for at in range(chunk.count):
            one = expected[chunk.seq(at)]
            row = one.row
            found.append(one.seq)
            assert (chunk.recorded_ms(at), chunk.id_number(at)) == (one.recorded, one.id)
            assert (chunk.kind(at), bytes(chunk.raw_payload(at))) == (row.kind, row.payload)
            assert (chunk.is_binary(at), chunk.key(at), chunk.scope(at)) == (row.binary, row.key, row.scope)
            assert dict(chunk.headers(at)) == row.headers
            assert chunk.occurred_ms(at) == (one.recorded if row.occurred is None else row.occurred)
            assert (chunk.correlation(at), chunk.causation(at)) == (row.correlation, row.causation)
    wanted = [seq for seq, one in expected.items() if one.row.key is not None]
    assert sorted(found) == sorted(wanted)


@given(st.lists(batches(), min_size=1, max_size=5), st.data())
def test_columns_join_cut_and_pick(parts: list[list[Row]], data: st.DataObject) -> None:
    whole = columns_of(parts[0]).slice(0, len(parts[0]))
    for part in parts[1:]:
        whole.extend(columns_of(part))
    rows = [row for part in parts for row in part]
    expected = [Stored(row, 1 + at, 5, (5 << 80) + at) for at, row in enumerate(rows)]
    check(read_block(build_block(whole, 1, 5, 5 << 80), "t"), expected)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    cut = read_block(build_block(whole.slice(start, stop), 1 + start, 5, (5 << 80) + start), "t")
    check(cut, expected[start:stop])
    wanted = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    picked = build_block(whole.pick(wanted), 1, 5, 5 << 80)
    check(read_block(picked, "t"), [Stored(rows[row], 1 + at, 5, (5 << 80) + at) for at, row in enumerate(wanted)])
    assert len(whole.weights()) == len(rows)


# compression


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(histories(), st.sampled_from([3, 40]))
def test_compressed_blocks_hold_the_same_events(history: list[tuple[Block, list[Stored]]], times: int) -> None:
    rows = [one.row for _, stored in history for one in stored] * times
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "COMPRESSED_BYTES", 1)
        plain, expected = build(rows, 7, 1000, (1000 << 80) | 5)
        value = encode_block(compressed(plain.wire))
        check(read_block(value, "t"), expected)
        halves = [
            read_block(block_of_rows(plain, part), "t")
            for part in (range(len(rows) // 2), range(len(rows) // 2, len(rows)))
        ]
        again = compressed(join_checked(halves))
        check(Block(again, "t"), expected)
        check(read_block(encode_block(again), "t"), expected)
        unread = read_block(value, "t")
        assert encode_block(unread.wire) == value
        half_read = read_block(value, "t")
        _ = half_read.payload, half_read.key(0)
        assert encode_block(half_read.wire) == value and plain_size(value) >= len(value)
        wire = read_block(value, "t").wire
        set_positions(wire, 70, 2000, (2000 << 80) | 9)
        moved = [Stored(one.row, 70 + at, 2000, (2000 << 80) + 9 + at) for at, one in enumerate(expected)]
        if wire.occurred is None:
            check(read_block(encode_block(wire), "t"), moved)
        assert positions_in(encode_block(wire), "t") == (70, 69 + len(rows))


def orders(count: int = 600) -> bytes:
    """A compressed block."""
    rows = [
        Row(f"kind{n % 3}", b'{"order": %d, "note": "hardly different"}' % n, key=f"customer-{n}", occurred=10**12 + n)
        for n in range(count)
    ]
    return encode_block(compressed(build(rows, 5, 1000, 1000 << 80)[0].wire))


def test_only_the_columns_that_are_asked_for_are_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    value = orders()
    found: list[int] = []

    def counting(packed: memoryview, size: int) -> bytes:
        found.append(size)
        return decompress(packed, size)

    monkeypatch.setattr(blocks_module, "decompress", counting)
    block = read_block(value, "t")
    assert not found and block.last == 604 and block.payload_size > 20_000 and not found
    assert wanted_rows(EventQuery(kinds=["other"]), block, range(600)) == () and not found
    assert wanted_rows(EventQuery(key="nobody"), block, range(600)) == () and len(found) == 1
    assert wanted_rows(EventQuery(key="customer-7"), block, range(600)) == [7] and len(found) == 1
    assert max(found) < block.payload_size
    event = block.events(7, 8)[0]
    assert event.key == "customer-7" and event.kind == "kind1" and max(found) < block.payload_size
    assert event.payload == {"order": 7, "note": "hardly different"} and max(found) >= block.payload_size - 8


def test_a_compressed_block_is_much_smaller_and_one_that_gains_nothing_stays_as_it_is() -> None:
    value = orders()
    assert len(value) * 4 < plain_size(value)
    noise = build([Row("k", random.Random(1).randbytes(5000))], 1, 1, 1 << 80)[0].wire
    assert compressed(noise) is noise
    little = build([Row("k", b"{}")] * 3, 1, 1, 1 << 80)[0].wire
    assert compressed(little) is little


def test_every_damaged_byte_of_a_compressed_block_is_found() -> None:
    good = orders(60)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 0x11
        with pytest.raises(Corrupt) as found:
            read_block(bytes(damaged), "t")
        assert found.value.topic == "t"


@pytest.mark.parametrize("data", [b"", b"nonsense", compress(b"\xa1x"), compress(b"\x01" * 999), compress(b"\xc1")])
def test_a_column_that_does_not_decompress_is_corrupt_and_says_where(data: bytes) -> None:
    for name in ("payload", "seqs", "key"):
        form = msgspec.msgpack.decode(orders()[:-4])
        form[2][name] = [999, data]
        body = msgspec.msgpack.encode(form)
        block = read_block(body + zlib.crc32(body).to_bytes(4), "t") if name != "seqs" else None
        with pytest.raises(Corrupt, match=f"'{name}'|does not fit") as found:
            if block is None:
                read_block(body + zlib.crc32(body).to_bytes(4), "t")
            else:
                block.check_columns()
        assert (found.value.topic, found.value.seq) == ("t", 5)


def test_a_compressed_block_with_an_unknown_column_or_format_is_refused() -> None:
    for change in (lambda form: form[2].update(other=[1, b""]), lambda form: form.__setitem__(0, 3)):
        form = msgspec.msgpack.decode(orders()[:-4])
        change(form)
        body = msgspec.msgpack.encode(form)
        with pytest.raises(Corrupt, match="compressed block has format"):
            read_block(body + zlib.crc32(body).to_bytes(4), "t")


@given(st.binary(max_size=80), st.integers(1, 10))
def test_values_in_another_order_come_back(values: bytes, width: int) -> None:
    whole = values[: len(values) - len(values) % width]
    assert interleave(separate(whole, width), width) == whole
    if len(values) > len(whole):
        with pytest.raises(Corrupt):
            interleave(values, width)


# damage


def sample() -> bytes:
    rows = [Row("k", b"%d" % n, key=str(n % 3), headers={"a": str(n)}, occurred=n) for n in range(20)]
    return build_block(columns_of(rows), 5, 1000, 1000 << 80)


def test_every_flipped_bit_is_found() -> None:
    good = sample()
    read_block(good, "t")
    for at in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt) as found:
                read_block(bytes(damaged), "t")
            assert found.value.topic == "t"


def test_every_truncation_and_addition_is_found() -> None:
    good = sample()
    for size in range(len(good)):
        with pytest.raises(Corrupt):
            read_block(good[:size], "t")
    for more in (b"\0", b"x" * 10, good):
        with pytest.raises(Corrupt):
            read_block(good + more, "t")


def test_a_block_of_a_later_format_is_refused_with_its_number() -> None:
    fields = msgspec.msgpack.decode(sample()[:-4])
    fields[0] = 2
    body = msgspec.msgpack.encode(fields)
    with pytest.raises(Corrupt, match="format 2"):
        read_block(body + zlib.crc32(body).to_bytes(4), "t")


@pytest.mark.parametrize("content", [b"", b"\x90", b"\xc0", b"\xff\xff", b"\x93\x01\x02\x03", b"\xdc\xff\xff"])
def test_well_summed_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(Corrupt):
        read_block(content + zlib.crc32(content).to_bytes(4), "t")


def test_columns_that_do_not_fit_their_count_are_found_when_they_are_read() -> None:
    from penstock.core.journal.blocks import Wire

    fields = msgspec.msgpack.decode(sample()[:-4])
    names = Wire.__struct_fields__
    uses = {
        "lengths": lambda block: block.raw_payload(0),
        "kind_codes": lambda block: block.kind_codes,
        "occurred": lambda block: block.occurred_ms(0),
        "key": lambda block: block.key(0),
    }
    for name, use in uses.items():
        broken = list(fields)
        broken[names.index(name)] = [0, b"\1\2\3", b"x", None] if name == "key" else b"\1\2\3"
        body = msgspec.msgpack.encode(broken)
        block = read_block(body + zlib.crc32(body).to_bytes(4), "t")
        with pytest.raises(Corrupt):
            use(block)


# columns


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
@example([0])
@example([255, 0])
@example([256, 1])
@example([65535, 65536])
@example([1 << 32, 5])
def test_integers_come_back(values: list[int]) -> None:
    packed = pack_ints(values)
    assert list(unpack_ints(packed, len(values))) == values
    if isinstance(packed, bytes):
        assert len(packed) // len(values) in (1, 2, 4, 8)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=50))
def test_signed_integers_come_back(values: list[int]) -> None:
    assert list(unpack_signed(pack_signed(values), len(values))) == values


@given(st.lists(st.integers(0, 300), min_size=1, max_size=50))
def test_offsets_are_running_sums(lengths: list[int]) -> None:
    found = offsets(pack_ints(lengths), len(lengths))
    assert [found[at + 1] - found[at] for at in range(len(lengths))] == lengths and found[0] == 0


@given(st.lists(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9), min_size=1, max_size=5))
def test_joined_integers_are_those_of_the_parts(parts: list[list[int]]) -> None:
    whole = [value for part in parts for value in part]
    joined = join_ints([(pack_ints(part), len(part)) for part in parts])
    assert list(unpack_ints(joined, len(whole))) == whole


texts = st.lists(st.one_of(optional(text), optional(few_texts)), min_size=1, max_size=30)


@given(texts)
@example([None])
@example([None, None, ""])
@example([""] * 10)
def test_texts_come_back(values: list[str | None]) -> None:
    column = pack_text(values)
    assert text_values(column, len(values)) == values
    read = text_reader(column, len(values))
    assert [read(row) for row in range(len(values))] == values


@given(st.lists(st.one_of(st.integers(1, 5), texts), min_size=1, max_size=6))
def test_joined_texts_are_those_of_the_parts(parts: list[int | list[str | None]]) -> None:
    columns: list[Any] = [(None, part) if isinstance(part, int) else (pack_text(part), len(part)) for part in parts]
    whole = [value for part in parts for value in ([None] * part if isinstance(part, int) else part)]
    assert text_values(join_text(columns), len(whole)) == whole


@pytest.mark.parametrize("distinct", [1, 2, 255, 256, 257, 600])
def test_joined_dictionaries_of_any_size(distinct: int) -> None:
    chance, parts, whole = random.Random(distinct), [], list[str]()
    for _ in range(4):
        values = [f"v{chance.randrange(distinct)}" for _ in range(chance.choice([1, 50, 700]))]
        ordered = list(dict.fromkeys(values))
        parts.append((ordered, pack_ints([ordered.index(value) for value in values]), len(values)))
        whole.extend(values)
    values, codes = join_codes(parts)
    assert [values[code] for code in unpack_ints(codes, len(whole))] == whole

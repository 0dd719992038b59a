"""The manifest: golden bytes, verbatim copies, and hostile input."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer import Descriptor, Metadata
from penstock.buffer.format import Manifest, append, dequeue, next_epoch, parse_manifest, set_epoch
from penstock.errors import ConfigError, Corrupt

M0 = "00000000000000000000000000000000000000000100"
M1 = "00000000000000000000000001000000000000000100"
M2 = "0f00000000000000000000000100610000000001000000010000000000000000000000000000000100"
M5 = (
    "21000000000000000000000003006c6f63010000000000000018fcffffffffffff00000000"
    "01000000010000000000000000000000000000000100"
)
M7 = "110000002a0000000000000003006c6f6300000000010000002b0000000000000000000000000000000100"


def manifest(hexadecimal: str) -> Manifest:
    return parse_manifest(bytes.fromhex(hexadecimal))


def test_a_missing_object_is_an_empty_manifest():
    missing = parse_manifest(None)
    assert (missing.count, missing.next_sequence, missing.epoch, list(missing)) == (0, 0, 0, [])
    assert bytes(missing.data).hex() == M0


def test_golden_manifests_are_written_byte_for_byte():
    empty = parse_manifest(None)
    assert set_epoch(empty, 1).hex() == M1
    assert append(empty, [("a", ())]).hex() == M2
    assert append(empty, [("loc", [Metadata(0, -1000, b"")])]).hex() == M5
    next_42 = parse_manifest(struct.pack("<IQQH", 0, 42, 0, 1))
    assert append(next_42, [("loc", ())]).hex() == M7


def test_golden_manifests_are_read():
    assert list(manifest(M2)) == [Descriptor(0, "a", ())]
    assert list(manifest(M5)) == [Descriptor(0, "loc", (Metadata(0, -1000, b""),))]
    assert list(manifest(M7)) == [Descriptor(42, "loc", ())]
    assert manifest(M1).epoch == 1


REFUSED = {
    "no bytes": ("", "must not be empty"),
    "too short": ("00" * 21, "too short"),
    "version 99": ("00" * 20 + "6300", "version 99"),
    "version 0": ("00" * 22, "version 0"),
    "version 2": ("00" * 20 + "0200", "version 2"),
    "entry length": ("000001000000010000000000000000000000000000000100", "cannot hold"),
    "start index": (
        "0f00000001000000000000000100610100000001000000010000000000000000000000000000000100",
        None,
    ),
    "ingestion time": (
        "130000000100000000000000010061010000000000000001000000010000000000000000000000000000000100",
        None,
    ),
    "payload": (
        "210000000100000000000000010061010000000000000000000000000000000a000000abcd"
        "01000000010000000000000000000000000000000100",
        None,
    ),
}


@pytest.mark.parametrize("data, says", REFUSED.values(), ids=REFUSED)
def test_what_is_no_manifest_is_refused(data, says):
    with pytest.raises(Corrupt, match=says):
        list(manifest(data))


def entry(sequence: int, location: bytes, ranges: int, tail: bytes, *, size: int | None = None) -> bytes:
    body = struct.pack("<QH", sequence, len(location)) + location + struct.pack("<I", ranges) + tail
    return struct.pack("<I", len(body) if size is None else size) + body


def whole(*entries: bytes, count: int | None = None, next_sequence: int = 100, epoch: int = 0) -> Manifest:
    footer = struct.pack("<IQQH", len(entries) if count is None else count, next_sequence, epoch, 1)
    return parse_manifest(b"".join(entries) + footer)


RANGE = struct.pack("<IqI", 0, 5, 2) + b"ab"


@pytest.mark.parametrize(
    "hostile, says",
    [
        (whole(entry(1, b"a", 2, RANGE)), "counts 2 metadata ranges|does not fit"),
        (whole(entry(1, b"a", 1, struct.pack("<IqI", 0, 5, 10) + b"ab")), "shorter than stated"),
        (whole(entry(1, b"a", 0xFFFFFFFF, b"")), "counts 4294967295 metadata ranges"),
        (whole(entry(1, b"a", 0, b"", size=13)), "at least 14|past|left over|ends"),
        (whole(entry(1, b"\xff\xfe", 0, b"")), "not UTF-8"),
        (whole(entry(1, b"a", 0, b""), entry(1, b"b", 0, b"")), "sequence 1"),
        (whole(entry(2, b"a", 0, b""), entry(1, b"b", 0, b"")), "sequence 1"),
        (whole(entry(7, b"a", 0, b""), next_sequence=7), "sequence 7"),
        (whole(entry(1, b"a", 0, b""), b"\0" * 30), "at least 14"),
        (whole(entry(1, b"a", 0, b""), b"stray", count=1), "left over"),
        (whole(entry(1, b"a", 0, b""), count=2), "past the entries|cannot hold"),
        (whole(entry(1, b"a", 0, b""), count=0xFFFFFFFF), "cannot hold"),
        (whole(struct.pack("<I", 0xFFFFFFFF) + b"\0" * 40, count=1), "ends at byte"),
        (whole(struct.pack("<IQH", 14, 1, 500) + b"\0" * 4), "location of 500 bytes"),
    ],
)
def test_lengths_and_counts_are_checked_against_the_entry_itself(hostile, says):
    with pytest.raises(Corrupt, match=says):
        list(hostile)


def test_a_metadata_range_may_not_reach_into_the_next_entry():
    reaching = entry(0, b"a", 1, struct.pack("<IqI", 0, 5, 10) + b"ab")
    with pytest.raises(Corrupt, match="shorter than stated"):
        list(whole(reaching, entry(1, b"b", 0, b"")))


def test_bytes_a_newer_writer_put_behind_an_entry_are_skipped_and_kept():
    newer = entry(0, b"a", 1, RANGE + b"newer fields")
    both = append(whole(newer, next_sequence=1), [("b", ())])
    assert [each.location for each in parse_manifest(both)] == ["a", "b"]
    assert newer in both
    kept = dequeue(whole(entry(0, b"x", 0, b""), entry(1, b"a", 0, b"new"), next_sequence=2), 0)
    assert kept.startswith(entry(1, b"a", 0, b"new"))


metadata = st.builds(Metadata, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=10))
descriptions = st.lists(st.tuples(st.text(max_size=10), st.lists(metadata, max_size=3).map(tuple)), max_size=12)


@given(descriptions, st.integers(0, 2**63), st.integers(0, 2**64 - 1))
def test_append_dequeue_and_epoch_keep_everything_else(entries, first, epoch):
    data = append(whole(next_sequence=first, epoch=epoch), entries)
    parsed = parse_manifest(data)
    expected = [Descriptor(first + n, *each) for n, each in enumerate(entries)]
    assert list(parsed) == expected
    assert (parsed.next_sequence, parsed.epoch, parsed.count) == (first + len(entries), epoch, len(entries))
    for cut in range(len(entries) + 1):
        left = parse_manifest(dequeue(parsed, first + cut - 1))
        assert list(left) == expected[cut:]
        assert (left.next_sequence, left.epoch) == (parsed.next_sequence, epoch)
    assert list(parse_manifest(set_epoch(parsed, 9))) == expected


@given(descriptions, st.integers(0, 14), st.integers(0, 5))
def test_after_is_exclusive_and_stops_at_its_limit(entries, after, limit):
    parsed = parse_manifest(append(parse_manifest(None), entries))
    expected = [Descriptor(n, *each) for n, each in enumerate(entries)]
    assert parsed.after(None, limit) == expected[:limit]
    assert parsed.after(after, limit) == expected[after + 1 :][:limit]


def test_a_partial_read_does_not_look_at_what_follows():
    damaged = whole(entry(0, b"a", 0, b""), b"\xff" * 18)
    assert [each.location for each in damaged.after(None, 1)] == ["a"]
    with pytest.raises(Corrupt):
        damaged.after(None, 2)


def test_appending_decodes_no_entry():
    damaged = whole(b"\xff" * 40, count=1, next_sequence=1)
    assert parse_manifest(append(damaged, [("b", ())])).count == 2


@given(st.binary(max_size=120))
def test_arbitrary_bytes_parse_or_are_corrupt(data):
    for candidate in (data, data + struct.pack("<IQQH", len(data) // 18, 2**63, 0, 1)):
        try:
            list(parse_manifest(candidate))
        except Corrupt:
            continue


def test_truncation_at_every_byte_is_noticed():
    data = append(parse_manifest(None), [("one", (Metadata(0, 1, b"x"),)), ("two", ())])
    body, footer = data[:-22], data[-22:]
    for cut in range(len(body)):
        with pytest.raises(Corrupt):
            list(parse_manifest(body[:cut] + footer))
    for cut in range(22):
        with pytest.raises(Corrupt):
            list(parse_manifest(data[:cut]))


def test_epochs_wrap_around_the_reserved_one():
    assert next_epoch(0) == 1
    assert next_epoch(2**64 - 2) == 0
    assert next_epoch(2**64 - 1) == 0


def test_a_location_of_the_greatest_length_fits_and_a_longer_one_does_not():
    longest = "a" * 65_535
    assert next(iter(parse_manifest(append(parse_manifest(None), [(longest, ())])))).location == longest
    with pytest.raises(ConfigError, match="65535"):
        append(parse_manifest(None), [(longest + "a", ())])


def test_the_last_sequence_is_never_given_out():
    full = parse_manifest(struct.pack("<IQQH", 0, 2**64 - 1, 0, 1))
    with pytest.raises(ConfigError, match="full"):
        append(full, [("a", ())])

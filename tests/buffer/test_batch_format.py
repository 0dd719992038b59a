"""The batch object: golden bytes, round trips, and hostile input in bounded time and memory."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import struct
import time
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nightly import examples
from penstock.buffer import format as batch_format
from penstock.buffer.format import (
    batch_footer,
    compress_entries,
    decode_arrow,
    decode_batch,
    encode_batch,
    encode_entries,
    open_batch,
    seal_batch,
)
from penstock.errors import ConfigError, Corrupt

GOLDEN = {
    "B0": ([], "none", "00000000000100"),
    "B1": ([b""], "none", "0000000000010000000100"),
    "B2": ([b"hello", b"world", b"foo"], "none", "0500000068656c6c6f05000000776f726c6403000000666f6f00030000000100"),
    "B3": ([b"data1", b"data2"], "none", "05000000646174613105000000646174613200020000000100"),
    "Z0": ([], "zstd", "28b52ffd200001000001000000000100"),
    "Z1": (
        [b"hello", b"world", b"foo"],
        "zstd",
        "28b52ffd2019c900000500000068656c6c6f05000000776f726c6403000000666f6f01030000000100",
    ),
}
REFUSED = {
    "too small for its footer": ("000000000001", "too small"),
    "version 99": ("00000000006300", "version 99"),
    "version 0": ("00000000000000", "version 0"),
    "version 2": ("00000000000200", "version 2"),
    "compression 255": ("ff000000000100", "compression 255"),
    "compression before version": ("ff000000006300", "compression 255"),
    "truncated entry": ("0500000068656c6c00010000000100", "truncated"),
    "truncated length": ("050000010000000100", "(truncated|compression|cannot hold)"),
    "the footer before compression existed": ("020000006869010000000100", "compression 105"),
}


@pytest.mark.parametrize("entries, compression, expected", GOLDEN.values(), ids=GOLDEN)
def test_golden_batches_are_written_and_read_byte_for_byte(entries, compression, expected):
    if compression == "zstd":  # the reference writes no checksum
        block = compress_entries(encode_entries(entries), checksum=False)
        assert (block + batch_footer(len(entries), "zstd")).hex() == expected
    else:
        assert encode_batch(entries, compression).hex() == expected
    assert decode_batch(bytes.fromhex(expected)) == entries


@pytest.mark.parametrize("data, says", REFUSED.values(), ids=REFUSED)
def test_what_is_no_batch_is_refused(data, says):
    with pytest.raises(Corrupt, match=says):
        decode_batch(bytes.fromhex(data))


entry_lists = st.one_of(
    st.lists(st.binary(max_size=40), max_size=60),
    st.integers(0, 30).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60)),
)


@given(entry_lists, st.sampled_from(["none", "zstd"]))
def test_any_entries_round_trip_as_list_iterator_and_arrow(entries, compression):
    block = open_batch(encode_batch(entries, compression))
    assert block.entries == list(block) == block.to_arrow().to_pylist() == entries
    assert decode_arrow(encode_batch(entries, compression)).to_pylist() == entries
    assert block.size == sum(4 + len(entry) for entry in entries)
    assert pickle.loads(pickle.dumps(block)).entries == entries


@given(entry_lists, st.lists(st.integers(0, 60), max_size=3))
def test_encoded_parts_concatenate_into_one_batch(entries, cuts):
    bounds = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    parts = [encode_entries(entries[a:b]) for a, b in itertools.pairwise(bounds)]
    assert seal_batch(parts, len(entries)) == encode_batch(entries)


@given(entry_lists)
def test_without_numpy_the_same_entries_come_out(entries):
    original, batch_format.np = batch_format.np, None
    try:
        assert decode_batch(encode_batch(entries)) == entries
    finally:
        batch_format.np = original


def test_lengths_around_every_boundary_round_trip():
    for size in (0, 1, 255, 256, 4095, 4096, 65_535, 65_536, 300_000):
        for count in (1, 15, 16, 17, 1000, 1001) if size < 5000 else (1, 17):
            entries = [os.urandom(size)] * count
            assert decode_batch(encode_batch(entries)) == entries
            mixed = [*entries, b"x"]
            assert decode_batch(encode_batch(mixed)) == mixed


def test_entries_that_only_begin_and_end_with_one_length_are_still_told_apart():
    entries = [b"aaaa", b"bbbb", *([b"c" * 3, b"d" * 5] * 10), b"eeee", b"ffff"]
    block = open_batch(encode_batch(entries))
    assert block.length is None
    assert block.entries == entries


def test_bytes_after_the_last_entry_are_ignored():
    data = encode_batch([b"abc"] * 20)
    padded = data[:-7] + b"\xff" * 9 + data[-7:]
    assert decode_batch(padded) == open_batch(padded).to_arrow().to_pylist() == [b"abc"] * 20
    data = encode_batch([b"abc", b"d"])
    assert decode_batch(data[:-7] + b"\xff" * 9 + data[-7:]) == [b"abc", b"d"]


@pytest.mark.parametrize("entries", [[b"hello", b"", b"world!"], [b"same"] * 20], ids=["varied", "uniform"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_truncation_at_every_byte_of_the_entries_is_noticed(entries, compression):
    data = encode_batch(entries, compression)
    for cut in range(len(data) - 7):
        with pytest.raises(Corrupt):
            decode_batch(data[:cut] + data[-7:])
    for cut in range(7):
        with pytest.raises(Corrupt):
            decode_batch(data[:cut])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_decode_or_are_corrupt(data):
    for candidate in (data, data + b"\0" + struct.pack("<IH", len(data) // 5, 1), data + b"\1\1\0\0\0\1\0"):
        try:
            block = open_batch(candidate)
        except Corrupt:
            with pytest.raises(Corrupt):
                decode_arrow(candidate)
            continue
        assert len(block.entries) == block.count
        assert block.to_arrow().to_pylist() == decode_arrow(candidate).to_pylist() == block.entries


@settings(max_examples=examples(60))
@given(st.randoms(use_true_random=False))
def test_a_flipped_bit_never_does_worse_than_corrupt(rng: random.Random):
    data = bytearray(encode_batch([rng.randbytes(rng.randrange(12)) for _ in range(30)], rng.choice(["none", "zstd"])))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        block = open_batch(bytes(data))
    except Corrupt:
        with pytest.raises(Corrupt):
            decode_arrow(bytes(data))
        return
    assert block.to_arrow().to_pylist() == decode_arrow(bytes(data)).to_pylist() == block.entries


def bounded(data: bytes, *, megabytes: int, **options) -> None:
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(Corrupt):
            open_batch(data, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes << 20
    assert time.monotonic() - began < 10


def test_a_count_of_four_billion_asks_for_no_memory():
    bounded(struct.pack("<BIH", 0, 0xFFFFFFFF, 1), megabytes=1)
    bounded(b"\0" * 1000 + struct.pack("<BIH", 0, 0xFFFFFFFF, 1), megabytes=1)
    bounded(encode_batch([], "zstd")[:-7] + struct.pack("<BIH", 1, 0xFFFFFFFF, 1), megabytes=1)


def test_a_length_of_four_gigabytes_asks_for_no_memory():
    bounded(b"\xff\xff\xff\xff" * 50 + struct.pack("<BIH", 0, 50, 1), megabytes=1)


def zstd_batch(frame: bytes, count: int = 1) -> bytes:
    return frame + struct.pack("<BIH", 1, count, 1)


def test_a_zstd_bomb_that_states_its_size_is_refused_before_unpacking():
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    bounded(zstd_batch(bomb), limit=1 << 20, megabytes=1)


def test_a_zstd_bomb_that_hides_its_size_is_stopped_at_the_limit():
    bomb = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(64 << 20))
    bounded(zstd_batch(bomb), limit=1 << 20, megabytes=24)


def test_a_zstd_bomb_of_many_frames_is_stopped_at_the_limit():
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(900 << 10))
    bounded(zstd_batch(frame * 40), limit=1 << 20, megabytes=24)


def test_a_zstd_frame_that_states_exabytes_is_refused():
    # Magic, a header that announces an 8-byte content size and a single segment, and the size.
    bounded(zstd_batch(b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x0f" + b"\1\0\0"), megabytes=1)


def test_a_zstd_frame_that_asks_for_a_huge_window_is_refused():
    # Window descriptor 0xf8: 2^41 bytes of history.
    bounded(zstd_batch(b"\x28\xb5\x2f\xfd\x00\xf8" + b"\x01\x00\x00"), megabytes=4)


def test_other_writers_zstd_frames_are_readable():
    block = encode_entries([b"hello", b"world"])
    plain = zstandard.ZstdCompressor(level=19, write_checksum=True)
    sizeless = zstandard.ZstdCompressor(level=1, write_content_size=False)
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
    for frames in (
        plain.compress(block),
        sizeless.compress(block),
        plain.compress(block[:5]) + sizeless.compress(block[5:]),
        skippable + plain.compress(block),
        plain.compress(block) + skippable,
    ):
        assert decode_batch(zstd_batch(frames, 2)) == [b"hello", b"world"]


def test_a_damaged_zstd_checksum_is_noticed():
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(encode_entries([b"hello"])))
    frame[-1] ^= 1
    with pytest.raises(Corrupt, match="decompress"):
        decode_batch(zstd_batch(bytes(frame)))


def test_a_batch_above_the_limit_is_refused_uncompressed_too():
    with pytest.raises(Corrupt, match="larger than"):
        open_batch(encode_batch([b"x" * 100]), limit=50)


def test_an_unknown_compression_is_the_callers_mistake():
    with pytest.raises(ConfigError, match="none, zstd"):
        encode_batch([b"x"], "gzip")

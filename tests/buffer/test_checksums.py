"""A bit that flips in the store: what our own producers wrote is checked, and what cannot be is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer.format import Mark, append, encode_batch, open_batch, parse_manifest
from penstock.errors import Corrupt

ENTRIES = [b"entry %d" % number for number in range(20)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_byte_of_a_batch_is_covered_by_its_checksum(tmp_path: Path, compression: Any) -> None:
    url = f"file://{tmp_path}"
    with Producer(url, compression=compression) as producer:
        producer.produce(ENTRIES).result(30)
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file() and path.name.startswith("01")]
    data = path.read_bytes()
    rng = random.Random(1)
    with Consumer(url) as consumer:
        (descriptor,) = consumer.next_descriptors(9)
        assert descriptor.crc is not None
        fetcher = consumer.fetcher()
        assert fetcher.fetch(descriptor).entries == ENTRIES
        for at in range(len(data)):
            damaged = bytearray(data)
            damaged[at] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(Corrupt) as caught:
                fetcher.fetch(descriptor)
            assert caught.value.seq == descriptor.sequence and caught.value.file == descriptor.location


def test_a_compressed_batch_without_a_manifests_checksum_is_covered_by_zstds() -> None:
    data = encode_batch(ENTRIES, "zstd")
    for at in range(len(data) - 7):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(Corrupt):
            assert open_batch(bytes(damaged)).entries == ENTRIES  # a reserved bit that changes nothing is harmless
            raise Corrupt("harmless")


def test_a_checksum_goes_with_a_mark_and_survives_appends_by_others() -> None:
    manifest = parse_manifest(append(parse_manifest(None), [("a", ()), ("b", ())], Mark("query", 7), {"a": 1, "b": 2}))
    manifest = parse_manifest(append(manifest, [("c", ())]))
    assert [(each.location, each.crc) for each in manifest] == [("a", 1), ("b", 2), ("c", None)]
    assert list(manifest.marks()) == [Mark("query", 7)]

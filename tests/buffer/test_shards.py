"""Several manifests under one url: who goes where, and that they never mix."""

from __future__ import annotations

import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer.manifest import BufferPaths, shard_of, shard_paths
from penstock.core.clock import ManualClock
from penstock.errors import Backpressure, ConfigError, Fenced, Unflushed
from penstock.objects.store import ObjectStore
from waiting import eventually

from .faults import FaultyStore


def key_of(entry: bytes) -> bytes:
    return entry.partition(b":")[0]


def consumed(store: ObjectStore, shard: int, shards: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(store, shards=shards, shard=shard, gc_interval=None) as consumer:
        consumer.run(lambda batch: found.extend(batch.entries), until_empty=True)
    return found


def test_entries_of_one_key_stay_in_one_shard_and_in_order(store: ObjectStore):
    entries = [f"key{n % 7}:{n}".encode() for n in range(140)]
    with Producer(store, shards=3, key=key_of, flush_interval=0.002) as producer:
        tickets = [producer.produce(entries[start : start + 10]) for start in range(0, 140, 10)]
        for ticket in tickets:
            ticket.result(60)
    by_shard = [consumed(store, shard, 3) for shard in range(3)]
    assert sorted(entry for found in by_shard for entry in found) == sorted(entries)
    for shard, found in enumerate(by_shard):
        assert found == [entry for entry in entries if shard_of(key_of(entry), 3) == shard]
    assert sum(bool(found) for found in by_shard) > 1


def test_a_split_call_resolves_only_when_every_shard_holds_its_part(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "ok", "hold")
    with Producer(faulty, shards=2, key=lambda entry: int(entry), flush_interval=0.001) as producer:
        ticket = producer.produce([b"0", b"1"])
        eventually(lambda: faulty.calls["put_if"] == 2)
        assert not ticket.done()
        faulty.release()
        assert ticket.result(30) is None


def test_a_split_call_fails_as_a_whole(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "ok", *["fail"] * 1000)
    producer = Producer(faulty, shards=2, key=lambda entry: int(entry), flush_interval=0.001)
    ticket = producer.produce([b"0", b"1"])
    eventually(lambda: sum(lane.done for lane in producer._lanes) == 1)
    assert not ticket.done()
    with pytest.raises(Unflushed, match="1 entries"):
        producer.close(timeout=0.05)
    with pytest.raises(Unflushed):
        ticket.result(0)


def test_a_split_call_is_taken_whole_or_not_at_all(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", "hold", "hold")
    producer = Producer(
        faulty, shards=2, key=lambda entry: int(entry), flush_interval=3600, flush_bytes=1, inflight_bytes=1,
        max_buffered=1,
    )  # fmt: skip
    producer.produce([b"0"])
    producer.produce([b"1"])
    with pytest.raises(Backpressure):
        producer.produce([b"0", b"1"], timeout=0.01)
    faulty.release()
    producer.close()
    assert consumed(memory, 0, 2) + consumed(memory, 1, 2) == [b"0", b"1"]


def test_each_shard_has_its_own_consumer(memory: ObjectStore):
    first = Consumer(memory, shards=2, shard=0, gc_interval=None)
    Consumer(memory, shards=2, shard=1, gc_interval=None)
    assert first.next_batch() is None
    Consumer(memory, shards=2, shard=0, gc_interval=None)
    with pytest.raises(Fenced):
        first.next_batch()


def test_one_shards_collector_leaves_the_others_alone(memory: ObjectStore):
    clock = ManualClock()
    with Producer(memory, shards=2, key=lambda entry: int(entry), flush_interval=0.001, clock=clock) as producer:
        producer.produce([b"0", b"1"]).result(30)
    clock.advance(100_000)
    assert consumed(memory, 0, 2) == [b"0"]
    for options in ({"shards": 2, "shard": 0}, {}):
        with Consumer(memory, gc_interval=None, clock=clock, **options) as consumer:
            assert consumer.collect_garbage() == (1 if options else 0)
    assert consumed(memory, 1, 2) == [b"1"]


def test_another_number_of_shards_is_another_set_of_manifests():
    whole = BufferPaths("ingest/manifest", "ingest")
    names = {shard_paths(whole, 0, shards) for shards in (1, 2, 4)}
    assert len(names) == 3
    assert shard_paths(whole, 0, 1) == whole
    assert shard_paths(whole, 1, 4) == BufferPaths("ingest/manifest-00001-of-00004", "ingest/shard-00001-of-00004")


@pytest.mark.parametrize("shard, shards", [(-1, 2), (2, 2), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(shard: int, shards: int):
    with pytest.raises(ConfigError):
        Consumer("memory://none", shards=shards, shard=shard)


def test_keys_choose_the_same_shard_everywhere():
    assert [shard_of(key, 16) for key in (b"order-1", "order-1", "zürich", 35)] == [15, 15, 2, 3]

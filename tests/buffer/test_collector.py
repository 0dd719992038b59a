"""The collector deletes what nobody can need, and nothing else."""

from __future__ import annotations

import pytest
from ulid import ULID

from penstock.buffer import Consumer, Producer
from penstock.buffer.consumer import collect
from penstock.buffer.format import encode_batch
from penstock.buffer.manifest import BufferPaths, batch_time_ms
from penstock.core.clock import ManualClock
from penstock.errors import Fenced, StorageError
from penstock.objects.store import ObjectStore
from waiting import eventually

from .conftest import Buffer
from .faults import FaultyStore

NOW = 1_700_000_000_000
GRACE = 600
PLACE = BufferPaths("ingest/manifest", "ingest")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def batch_at(store: ObjectStore, ms: int, prefix: str = "ingest") -> str:
    location = f"{prefix}/{ULID.from_timestamp(ms)}.batch"
    store.put(location, encode_batch([b"x"]))
    return location


def there(store: ObjectStore) -> set[str]:
    return {path for path in store.list("ingest") if path.endswith(".batch")}


def test_with_an_empty_manifest_only_the_grace_counts(store: ObjectStore, clock: ManualClock):
    old, at_grace, young = (batch_at(store, NOW - age) for age in (700_000, 600_000, 599_999))
    consumer = Buffer(store).consumer(clock=clock, gc_grace=GRACE)
    assert consumer.collect_garbage() == 2
    assert there(store) == {young}
    assert {old, at_grace}.isdisjoint(there(store))


def test_what_the_manifest_names_and_what_is_younger_than_that_is_kept(store: ObjectStore, clock: ManualClock):
    buffer = Buffer(store)
    older, named, younger = (batch_at(store, NOW - age) for age in (3_000_000, 2_000_000, 1_000_000))
    buffer.enqueue_entry(named)
    consumer = buffer.consumer(clock=clock, gc_grace=GRACE)
    assert consumer.collect_garbage() == 1
    assert there(store) == {named, younger}
    consumer.ack_through(0)
    assert consumer.collect_garbage() == 2
    assert there(store) == set()
    assert older not in there(store)


def test_other_names_and_other_places_are_none_of_its_business(memory: ObjectStore, clock: ManualClock):
    kept = [
        "ingest/notes.txt",
        "ingest/short.batch",
        f"ingest/{'U' * 26}.batch",
        f"ingest/{ULID.from_timestamp(1)}.batch.bak",
        f"other/{ULID.from_timestamp(1)}.batch",
        f"ingest/deeper/{ULID.from_timestamp(1)}.batch",
    ]
    for path in kept:
        memory.put(path, b"x")
    assert Buffer(memory).consumer(clock=clock).collect_garbage() == 0
    assert all(memory.get(path) is not None for path in kept)


def test_an_entry_whose_name_tells_no_time_keeps_everything(memory: ObjectStore, clock: ManualClock):
    old = batch_at(memory, 1)
    buffer = Buffer(memory)
    buffer.enqueue("ingest/foreign.batch", [b"x"])
    assert buffer.consumer(clock=clock).collect_garbage() == 0
    assert old in there(memory)


def test_the_oldest_entry_is_found_whatever_its_place_in_the_queue(memory: ObjectStore, clock: ManualClock):
    buffer = Buffer(memory)
    between = batch_at(memory, NOW - 3_000_000)
    late, early = batch_at(memory, NOW - 1_000_000), batch_at(memory, NOW - 4_000_000)
    buffer.enqueue_entry(late)
    buffer.enqueue_entry(early)
    assert buffer.consumer(clock=clock).collect_garbage() == 0
    assert there(memory) == {between, late, early}


def test_a_batch_appended_while_objects_are_listed_is_kept(memory: ObjectStore, clock: ManualClock):
    buffer = Buffer(memory)
    old = batch_at(memory, NOW - 3_000_000)
    faulty = FaultyStore(memory)

    def append_meanwhile(act):
        listed = act()
        buffer.enqueue_entry(old)
        return listed

    faulty.on("list", append_meanwhile)
    consumer = Consumer(faulty, gc_interval=None, clock=clock)
    assert consumer.collect_garbage() == 0
    assert old in there(memory)


def test_an_append_prepared_before_a_collection_cannot_name_what_it_deleted(memory: ObjectStore, clock: ManualClock):
    """The producer stops for an hour between looking at its object's age and writing the manifest."""
    consumer = Buffer(memory).consumer(clock=clock, gc_grace=GRACE)
    collected: list[int] = []

    def stop_for_an_hour(act):
        clock.advance(3600)
        collected.append(consumer.collect_garbage())
        return act()

    faulty = FaultyStore(memory)
    faulty.on("put_if", stop_for_an_hour)
    with Producer(faulty, flush_interval=0.001, clock=clock, gc_grace=GRACE) as producer:
        producer.produce([b"kept"]).result(30)
    assert collected == [1]
    assert consumer.next_batch().entries == [b"kept"]


def test_a_collection_whose_answer_was_lost_does_not_fence_its_own_consumer(memory: ObjectStore, clock: ManualClock):
    batch_at(memory, 1)
    faulty = FaultyStore(memory)
    consumer = Consumer(faulty, gc_interval=None, clock=clock)
    faulty.on("put_if", "lose", "ok", "fail")
    with pytest.raises(StorageError):
        consumer.collect_garbage()
    assert consumer.next_batch() is None
    assert consumer.collect_garbage() == 1
    batch_at(memory, 1)
    with pytest.raises(StorageError):
        consumer.collect_garbage()
    assert consumer.next_batch() is None


def test_a_fenced_consumers_collector_deletes_nothing(memory: ObjectStore, clock: ManualClock):
    batch_at(memory, 1)
    buffer = Buffer(memory)
    consumer = buffer.consumer(clock=clock)
    buffer.consumer(clock=clock)
    with pytest.raises(Fenced):
        consumer.collect_garbage()
    assert len(there(memory)) == 1


def test_objects_that_are_gone_already_count_as_deleted(memory: ObjectStore, clock: ManualClock):
    """A list that lags behind shows what an earlier collection deleted."""
    location = batch_at(memory, 1)
    faulty = FaultyStore(memory)
    faulty.on("list", lambda act: [*act(), location])
    memory.delete([location])
    consumer = Consumer(faulty, gc_interval=None, clock=clock)
    assert consumer.collect_garbage() == 1


def test_what_cannot_be_deleted_is_counted_and_stays_for_the_next_time(memory: ObjectStore, clock: ManualClock):
    batch_at(memory, 1)
    buffer = Buffer(memory)
    faulty = FaultyStore(memory)
    faulty.on("delete", lambda act: 1)
    consumer = Consumer(faulty, gc_interval=None, clock=clock, metrics=buffer.registry)
    assert consumer.collect_garbage() == 0
    assert consumer.collect_garbage() == 1
    counted = buffer.registry.snapshot()
    assert (counted["buffer.gc_files_failed"], counted["buffer.gc_files_deleted"]) == (1, 1)
    assert counted["buffer.gc_duration_seconds"]["count"] == 2


def test_a_dry_run_only_counts(memory: ObjectStore):
    batch_at(memory, 1)
    Buffer(memory).consumer().close()
    outcome = collect(memory, PLACE, now_ms=NOW, grace_ms=0, dry_run=True)
    assert (outcome.deleted, len(there(memory))) == (1, 1)


def test_the_background_collector_collects_and_stops_when_fenced(memory: ObjectStore, clock: ManualClock):
    buffer = Buffer(memory)
    batch_at(memory, 1)
    consumer = buffer.consumer(clock=clock, gc_interval=0.005)
    eventually(lambda: not there(memory))
    buffer.consumer(clock=clock)
    eventually(lambda: not consumer._collector._thread.is_alive())


def test_the_background_collector_outlives_a_failure(memory: ObjectStore, clock: ManualClock):
    batch_at(memory, 1)
    faulty = FaultyStore(memory)
    faulty.on("list", "fail", "fail")
    consumer = Consumer(faulty, gc_interval=0.005, clock=clock)
    eventually(lambda: not there(memory))
    consumer.close()
    assert not consumer._collector._thread.is_alive()


def test_a_killed_writers_temporary_file_is_swept_after_the_grace(tmp_path):
    import os

    with Producer(f"file://{tmp_path}", flush_interval=0.001) as producer:
        producer.produce([b"x"]).result(30)
    left = tmp_path / "ingest" / ".01.batch.aa.tmp"
    left.write_bytes(b"half")
    fresh = tmp_path / "ingest" / ".02.batch.bb.tmp"
    fresh.write_bytes(b"half")
    os.utime(left, (1, 1))
    with Consumer(f"file://{tmp_path}", gc_interval=None) as consumer:
        consumer.collect_garbage()
    assert not left.exists()
    assert fresh.exists()


def test_batch_names_tell_their_time():
    assert batch_time_ms(f"ingest/{ULID.from_timestamp(12345)}.batch") == 12345
    for name in ("ingest/x.batch", f"{ULID()}", f"{ULID()}.bat", f"{'!' * 26}.batch", f"8{'Z' * 25}.batch"):
        assert batch_time_ms(name) is None

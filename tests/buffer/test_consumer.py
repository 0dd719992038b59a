"""What our consumer promises beyond the reference's thirty tests: failures, validation, trail, metrics, pickling."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading

import pytest

from penstock.buffer import Consumer, Descriptor, Metadata
from penstock.buffer.format import encode_batch, parse_manifest, set_epoch
from penstock.core.clock import ManualClock
from penstock.errors import Closed, ConfigError, Corrupt, Fenced, OutOfOrder, StorageError
from penstock.objects.store import ObjectStore, VersionConflict, open_store

from .conftest import MANIFEST, Buffer
from .faults import FaultyStore


@pytest.fixture
def faulty(memory: ObjectStore) -> FaultyStore:
    return FaultyStore(memory)


def test_an_ack_of_what_was_not_handed_out_is_refused(memory_buffer: Buffer):
    memory_buffer.fill(2)
    consumer = memory_buffer.consumer()
    with pytest.raises(OutOfOrder, match="nothing handed out"):
        consumer.ack(0)
    consumer.next_batch()
    with pytest.raises(OutOfOrder):
        consumer.ack(1)
    with pytest.raises(OutOfOrder, match="no entry 2 yet"):
        consumer.ack_through(2)
    with pytest.raises(OutOfOrder):
        consumer.ack_through(-1)
    assert consumer.acked is None


def test_a_sink_may_ack_through_what_it_finished_in_an_earlier_life(memory_buffer: Buffer):
    memory_buffer.fill(3)
    consumer = memory_buffer.consumer()
    consumer.ack_through(1)
    assert consumer.next_batch().sequence == 2


def test_resuming_below_what_is_left_goes_on_with_the_first_that_is(memory_buffer: Buffer):
    memory_buffer.fill(6)
    memory_buffer.consumer(after=4).close()
    consumer = memory_buffer.consumer(after=2)
    batch = consumer.next_batch()
    assert batch.sequence == 5
    consumer.ack(5)
    consumer.flush()
    assert memory_buffer.length() == 0


def test_when_the_hundredth_write_fails_the_ack_did_not_happen(memory: ObjectStore, faulty: FaultyStore):
    buffer = Buffer(memory)
    buffer.fill(100)
    consumer = Consumer(faulty, gc_interval=None)
    consumer.next_descriptors(100)
    for sequence in range(99):
        consumer.ack(sequence)
    faulty.on("put_if", "fail")
    with pytest.raises(StorageError):
        consumer.ack(99)
    assert (consumer.acked, buffer.length()) == (98, 100)
    consumer.ack(99)
    assert (consumer.acked, buffer.length()) == (99, 0)


@pytest.mark.parametrize("verb", ["put_if", "put_trail", "read"])
@pytest.mark.parametrize("fault", ["fail", "lose"])
def test_a_failed_ack_through_changes_nothing_here_and_may_be_repeated(memory, faulty, verb, fault):
    buffer = Buffer(memory)
    buffer.fill(3)
    consumer = Consumer(faulty, gc_interval=None)
    consumer.next_descriptors(3)
    faulty.on(verb, fault)
    with pytest.raises(StorageError):
        consumer.ack_through(1)
    assert consumer.acked is None
    consumer.ack_through(1)
    assert (consumer.acked, buffer.length()) == (1, 1)


def test_a_dequeue_that_conflicts_is_tried_again(memory, faulty):
    buffer = Buffer(memory)
    buffer.fill(2)
    consumer = Consumer(faulty, gc_interval=None)

    def a_producer_was_first(act):
        buffer.enqueue("ingest/late.batch", [b"late"])
        return act()

    faulty.on("put_if", a_producer_was_first)
    consumer.ack_through(1)
    assert [each.location for each in buffer.entries()] == ["ingest/late.batch"]
    assert 0 < consumer.conflict_rate <= 100


def test_taking_over_survives_conflicts_and_lost_answers(memory, faulty):
    def done_but_conflict(act):
        act()
        raise VersionConflict("injected")

    faulty.on("put_if", done_but_conflict)
    consumer = Consumer(faulty, gc_interval=None)
    assert consumer.epoch == parse_manifest(memory.get(MANIFEST)).epoch
    assert consumer.next_batch() is None


def test_the_epoch_after_the_last_is_zero_and_still_fences(memory: ObjectStore, memory_buffer: Buffer):
    memory.put(MANIFEST, set_epoch(parse_manifest(None), 2**64 - 3))
    last = memory_buffer.consumer()
    assert last.epoch == 2**64 - 2
    first = memory_buffer.consumer()
    assert first.epoch == 0
    with pytest.raises(Fenced):
        last.next_batch()


def test_a_fenced_consumer_never_moves_the_frontier_even_in_the_middle_of_a_write(memory, faulty):
    """The other consumer takes over between this one's read and its write."""
    buffer = Buffer(memory)
    buffer.fill(2)
    consumer = Consumer(faulty, gc_interval=None)
    consumer.next_descriptors(2)

    def taken_over(act):
        buffer.consumer()
        return act()

    faulty.on("put_if", taken_over)
    with pytest.raises(Fenced):
        consumer.ack_through(1)
    assert (buffer.length(), consumer.acked) == (2, None)


def test_close_stops_the_collector_even_when_the_last_write_fails(memory, faulty):
    buffer = Buffer(memory)
    buffer.fill(1)
    consumer = Consumer(faulty, gc_interval=1000)
    consumer.ack(consumer.next_batch().sequence)
    faulty.on("put_if", "fail")
    with pytest.raises(StorageError):
        consumer.close()
    assert not consumer._collector._thread.is_alive()
    consumer.close()
    for call in (consumer.next_batch, consumer.flush, lambda: consumer.ack(0), lambda: consumer.ack_through(0)):
        with pytest.raises(Closed):
            call()


def test_what_was_not_acked_comes_again(memory_buffer: Buffer):
    memory_buffer.fill(2)
    first = memory_buffer.consumer()
    first.next_batch(), first.next_batch()
    first.ack(0)
    second = memory_buffer.consumer()  # the first died without a close: its ack was never written
    assert second.next_batch().sequence == 0


def test_an_unchanged_manifest_is_not_transferred_again(memory: ObjectStore, faulty: FaultyStore):
    buffer = Buffer(memory)
    buffer.fill(3)
    consumer = Consumer(faulty, gc_interval=None)
    consumer.next_batch()
    parsed = consumer._manifest._known
    consumer.next_batch()
    assert consumer._manifest._known is parsed


def test_max_zero_reads_nothing(memory, faulty):
    consumer = Consumer(faulty, gc_interval=None)
    before = faulty.calls["read"]
    assert consumer.next_descriptors(0) == []
    assert faulty.calls["read"] == before
    with pytest.raises(ConfigError):
        consumer.next_descriptors(-1)


def test_a_damaged_manifest_and_a_damaged_batch_say_where(memory: ObjectStore, memory_buffer: Buffer):
    memory_buffer.enqueue("ingest/bad.batch", [b"x"])
    memory.put("ingest/bad.batch", b"\xff" * 20)
    consumer = memory_buffer.consumer()
    with pytest.raises(Corrupt) as damaged:
        consumer.next_batch()
    assert (damaged.value.file, damaged.value.seq) == ("ingest/bad.batch", 0)
    memory.put(MANIFEST, b"short")
    with pytest.raises(Corrupt) as damaged:
        consumer.next_batch()
    assert damaged.value.file == MANIFEST


@pytest.mark.parametrize("location", ["../../etc/passwd", "/etc/passwd", "a//b", "", "a\0b"])
def test_a_location_that_leads_out_of_the_store_is_corrupt(memory_buffer: Buffer, location: str):
    memory_buffer.enqueue_entry(location)
    with pytest.raises(Corrupt):
        memory_buffer.consumer().next_batch()


def test_a_batch_above_the_limit_is_refused(memory_buffer: Buffer):
    memory_buffer.enqueue("ingest/large.batch", [b"x" * 1000])
    with pytest.raises(Corrupt, match="larger"):
        memory_buffer.consumer(max_batch_bytes=500).next_batch()


def test_the_lag_is_the_age_of_the_newest_range_and_never_negative(memory: ObjectStore, memory_buffer: Buffer):
    clock = ManualClock(100_000)
    consumer = memory_buffer.consumer(clock=clock)
    memory_buffer.enqueue("ingest/a.batch", [b"a", b"b"], (Metadata(0, 1_000), Metadata(1, 98_500)))
    memory_buffer.enqueue("ingest/b.batch", [b"a"], (Metadata(0, 200_000),))
    consumer.next_batch()
    assert memory_buffer.registry.snapshot()["buffer.consumer_lag_seconds"] == 1.5
    consumer.next_batch()
    assert memory_buffer.registry.snapshot()["buffer.consumer_lag_seconds"] == 0


def test_the_consumers_metrics_have_the_references_names(memory_buffer: Buffer):
    memory_buffer.fill(3)
    consumer = memory_buffer.consumer()
    for each in consumer.next_descriptors(2):
        consumer.fetch(each)
    consumer.ack_through(1)
    counted = memory_buffer.registry.snapshot()
    assert counted["buffer.batches_collected"] == 2
    assert counted["buffer.entries_collected"] == 4
    assert counted["buffer.descriptors_handed_out"] == 2
    assert counted["buffer.acks"] == 2
    assert counted["buffer.queue_length"] == 1
    assert counted["buffer.fetch_duration_seconds"]["count"] == 2
    assert counted["buffer.manifest_writes{role=consumer}"] == 2  # the epoch, the dequeue


def test_a_fetcher_outlives_its_consumer_and_shows_only_the_manifest(store: ObjectStore):
    buffer = Buffer(store)
    buffer.fill(1)
    consumer = buffer.consumer()
    (descriptor,) = consumer.next_descriptors(1)
    fetcher = pickle.loads(pickle.dumps(consumer.fetcher()))
    buffer.consumer()  # fences the first
    consumer.close()
    assert fetcher.fetch(descriptor).entries == [b"data0-a", b"data0-b"]
    assert pickle.loads(pickle.dumps(fetcher.fetch(descriptor))) == fetcher.fetch(descriptor)
    assert repr(fetcher) == f"Fetcher(manifest={MANIFEST!r})"


def test_a_fetcher_works_in_another_process(tmp_path):
    buffer = Buffer(open_store(f"file://{tmp_path}"))
    buffer.fill(1)
    consumer = buffer.consumer()
    (descriptor,) = consumer.next_descriptors(1)
    (tmp_path / "work.pickle").write_bytes(pickle.dumps((consumer.fetcher(), descriptor)))
    script = (
        "import pickle, sys\n"
        "fetcher, descriptor = pickle.load(open(sys.argv[1], 'rb'))\n"
        "sys.stdout.buffer.write(b','.join(fetcher.fetch(descriptor).entries))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "work.pickle")], capture_output=True, check=True, timeout=60
    )
    assert ran.stdout == b"data0-a,data0-b"


def test_threads_that_share_a_consumer_share_its_batches(memory_buffer: Buffer):
    memory_buffer.fill(60)
    consumer = memory_buffer.consumer()
    seen: list[int] = []

    def work():
        while (batch := consumer.next_batch()) is not None:
            seen.append(batch.sequence)

    threads = [threading.Thread(daemon=True, target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == list(range(60))


def test_a_batch_is_like_its_entries(memory_buffer: Buffer):
    memory_buffer.enqueue("ingest/a.batch", [b"a", b"b", b"c"], (Metadata(0, 1, b"x"), Metadata(2, 2, b"y")))
    batch = memory_buffer.consumer().next_batch()
    assert len(batch) == 3
    assert list(batch) == batch.entries == batch.to_arrow().to_pylist()
    assert [batch.metadata_of(n).payload for n in range(3)] == [b"x", b"x", b"y"]
    with pytest.raises(IndexError):
        batch.metadata_of(3)
    assert batch != "something else"
    assert "entries=3" in repr(batch)


def test_a_consumer_with_nothing_to_read_is_still_true(memory_buffer: Buffer):
    consumer = memory_buffer.consumer()
    assert consumer
    assert len(consumer) == 0


def test_consumers_work_in_an_event_loop(memory_buffer: Buffer):
    memory_buffer.fill(2)

    async def work() -> list[int]:
        async with memory_buffer.consumer() as consumer:
            batches = [await asyncio.to_thread(consumer.next_batch) for _ in range(2)]
            await asyncio.to_thread(consumer.ack_through, 1)
            return [batch.sequence for batch in batches]

    assert asyncio.run(work()) == [0, 1]
    assert memory_buffer.length() == 0


def test_a_raw_fetch_gives_the_bytes_as_stored(memory_buffer: Buffer):
    memory_buffer.enqueue("ingest/a.batch", [b"a"])
    consumer = memory_buffer.consumer()
    (descriptor,) = consumer.next_descriptors(1)
    assert bytes(consumer.fetcher().fetch_raw(descriptor)) == encode_batch([b"a"])
    assert consumer.fetcher().fetch_arrow(descriptor).to_pylist() == [b"a"]
    with pytest.raises(StorageError, match="gone"):
        consumer.fetcher().fetch_raw(Descriptor(7, "ingest/none.batch"))


# ── the trail ──


def trail(store: ObjectStore) -> list[tuple[int, str]]:
    return list(parse_manifest(store.get(f"{MANIFEST}.trail")).locations())


def test_the_trail_remembers_what_was_removed(memory: ObjectStore, memory_buffer: Buffer):
    locations = memory_buffer.fill(5)
    consumer = memory_buffer.consumer()
    consumer.ack_through(1)
    consumer.ack_through(3)
    assert trail(memory) == list(enumerate(locations[:4]))
    successor = memory_buffer.consumer()
    successor.ack_through(4)
    assert trail(memory) == list(enumerate(locations))


def test_the_trail_forgets_what_is_old_and_keeps_what_is_recent(memory: ObjectStore, memory_buffer: Buffer):
    memory_buffer.fill(1500)
    memory_buffer.consumer().ack_through(1499)
    assert [sequence for sequence, _ in trail(memory)] == list(range(1500 - 1024, 1500))


@pytest.mark.parametrize("damage", [b"", b"\xff" * 50, set_epoch(parse_manifest(None), 5)])
def test_a_damaged_trail_stops_nobody(memory: ObjectStore, memory_buffer: Buffer, damage: bytes):
    locations = memory_buffer.fill(3)
    consumer = memory_buffer.consumer()
    memory.put(f"{MANIFEST}.trail", damage)
    consumer.ack_through(2)
    assert memory_buffer.length() == 0
    assert trail(memory) == list(enumerate(locations))


def test_a_manifest_that_began_anew_begins_a_new_trail(memory: ObjectStore, memory_buffer: Buffer):
    memory_buffer.fill(4)
    memory_buffer.consumer().ack_through(3)
    memory.delete([MANIFEST])
    anew = Buffer(memory)
    anew.enqueue("ingest/anew.batch", [b"x"])
    anew.consumer().ack_through(0)
    assert trail(memory) == [(0, "ingest/anew.batch")]

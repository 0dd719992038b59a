"""The thirty behaviours the reference's own tests pin for its consumer (O70), over every store."""

from __future__ import annotations

import threading

import pytest

from penstock.buffer import Descriptor, Metadata
from penstock.errors import Fenced, OutOfOrder, StorageError

from .conftest import Buffer


def drain_sequences(consumer, limit=100):
    found = []
    while (batch := consumer.next_batch()) is not None and len(found) < limit:
        found.append(batch.sequence)
    return found


def test_01_a_batch_is_collected_with_its_entries(buffer: Buffer):
    buffer.enqueue("ingest/one.batch", [b"data1", b"data2"])
    batch = buffer.consumer().next_batch()
    assert (batch.entries, batch.sequence, batch.location) == ([b"data1", b"data2"], 0, "ingest/one.batch")


def test_02_metadata_round_trips(buffer: Buffer):
    metadata = (Metadata(0, 1_700_000_000_000, b"first"), Metadata(1, -1000, b""))
    buffer.enqueue("ingest/one.batch", [b"a", b"b"], metadata)
    assert buffer.consumer().next_batch().metadata == metadata


def test_03_an_empty_manifest_gives_nothing(buffer: Buffer):
    assert buffer.consumer().next_batch() is None


def test_04_an_acknowledged_batch_is_gone_after_flush(buffer: Buffer):
    buffer.fill(1)
    consumer = buffer.consumer()
    consumer.ack(consumer.next_batch().sequence)
    consumer.flush()
    assert (len(consumer), buffer.length(), consumer.acked) == (0, 0, 0)


def test_05_reading_starts_after_the_last_acked(buffer: Buffer):
    buffer.fill(3)
    assert buffer.consumer(after=1).next_batch().sequence == 2


def test_06_reading_goes_on_before_anything_is_acked(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer()
    assert [consumer.next_batch().sequence, consumer.next_batch().sequence] == [0, 1]
    assert buffer.length() == 2


def test_07_there_is_nothing_at_the_end(buffer: Buffer):
    buffer.fill(1)
    consumer = buffer.consumer()
    consumer.next_batch()
    assert consumer.next_batch() is None


def test_08_a_new_consumer_resumes_where_the_last_one_was_acked(buffer: Buffer):
    buffer.fill(3)
    first = buffer.consumer()
    for _ in range(2):
        first.ack(first.next_batch().sequence)
    first.close()
    assert drain_sequences(buffer.consumer(after=1)) == [2]


def test_09_an_out_of_order_ack_is_refused(buffer: Buffer):
    buffer.fill(3)
    consumer = buffer.consumer()
    for _ in range(3):
        consumer.next_batch()
    consumer.ack(0)
    with pytest.raises(OutOfOrder, match="out-of-order ack"):
        consumer.ack(2)
    consumer.ack(1)


def test_10_the_manifest_is_written_every_hundred_acks(buffer: Buffer):
    buffer.fill(101)
    consumer = buffer.consumer()
    for _ in range(99):
        consumer.ack(consumer.next_batch().sequence)
    assert buffer.length() == 101
    for _ in range(2):
        consumer.ack(consumer.next_batch().sequence)
    assert len(consumer) == 1
    consumer.flush()
    assert len(consumer) == buffer.length() == 0


def test_11_flush_removes_what_was_acked(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer()
    consumer.ack(consumer.next_batch().sequence)
    assert buffer.length() == 2
    consumer.flush()
    assert buffer.length() == 1


def test_12_close_writes_the_acks(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer()
    for sequence in drain_sequences(consumer):
        consumer.ack(sequence)
    consumer.close()
    assert buffer.consumer().next_batch() is None


def test_13_a_second_consumer_fences_the_first(buffer: Buffer):
    buffer.fill(2)
    first = buffer.consumer()
    first.ack(first.next_batch().sequence)
    second = buffer.consumer()
    for call in (first.next_batch, lambda: first.next_descriptors(1), lambda: first.ack_through(1), first.flush):
        with pytest.raises(Fenced) as fenced:
            call()
        assert fenced.value.epoch == second.epoch
    assert second.next_batch().sequence == 0


def test_14_batches_come_in_sequence_with_their_locations(buffer: Buffer):
    locations = buffer.fill(4)
    consumer = buffer.consumer()
    batches = [consumer.next_batch() for _ in range(4)]
    assert [(batch.sequence, batch.location) for batch in batches] == list(enumerate(locations))
    assert batches[3].entries == [b"data3-a", b"data3-b"]


def test_15_without_a_start_the_first_remaining_entry_is_found(buffer: Buffer):
    buffer.fill(6)
    buffer.consumer(after=4).close()
    assert buffer.consumer().next_batch().sequence == 5


def test_16_a_start_removes_what_it_skips(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer(after=0)
    assert len(consumer) == buffer.length() == 1
    assert consumer.next_batch().sequence == 1


def test_16b_a_start_also_skips_what_comes_later(buffer: Buffer):
    consumer = buffer.consumer(after=0)
    buffer.fill(2)
    assert consumer.next_batch().sequence == 1


def test_17_a_limit_of_zero_gives_nothing_and_changes_nothing(buffer: Buffer):
    buffer.fill(1)
    consumer = buffer.consumer()
    assert consumer.next_descriptors(0) == []
    assert [each.sequence for each in consumer.next_descriptors(5)] == [0]


def test_18_descriptors_come_in_contiguous_runs(buffer: Buffer):
    buffer.fill(5)
    consumer = buffer.consumer()
    runs = [[each.sequence for each in consumer.next_descriptors(3)] for _ in range(3)]
    assert runs == [[0, 1, 2], [3, 4], []]


def test_19_a_short_manifest_gives_what_there_is(buffer: Buffer):
    buffer.fill(2)
    assert len(buffer.consumer().next_descriptors(10)) == 2


def test_20_the_fetcher_gives_what_the_consumer_gives(buffer: Buffer):
    buffer.fill(1)
    consumer = buffer.consumer()
    (descriptor,) = consumer.next_descriptors(1)
    assert consumer.fetcher().fetch(descriptor) == consumer.fetch(descriptor) == consumer.fetcher().fetch(descriptor)


def test_21_a_failed_fetch_keeps_the_cursor(buffer: Buffer):
    (location,) = buffer.fill(1)
    stored = bytes(buffer.store.get(location))
    buffer.store.delete([location])
    consumer = buffer.consumer()
    with pytest.raises(StorageError, match="gone"):
        consumer.next_batch()
    buffer.store.put(location, stored)
    assert consumer.next_batch().sequence == 0


def test_22_an_interrupted_call_keeps_the_cursor(buffer: Buffer, monkeypatch: pytest.MonkeyPatch):
    buffer.fill(1)
    consumer = buffer.consumer()

    def interrupted(descriptor: Descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consumer, "fetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.next_batch()
    assert consumer.next_batch().sequence == 0


def test_23_success_moves_the_cursor(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer()
    assert consumer.next_batch().sequence == 0
    assert consumer.next_batch().sequence == 1


def test_24_concurrent_fetches_then_ack_through(buffer: Buffer):
    buffer.fill(2)
    consumer = buffer.consumer()
    descriptors = consumer.next_descriptors(2)
    fetcher = consumer.fetcher()
    fetched: dict[int, list[bytes]] = {}

    def fetch(descriptor: Descriptor):
        fetched[descriptor.sequence] = fetcher.fetch(descriptor).entries

    threads = [threading.Thread(daemon=True, target=fetch, args=(each,)) for each in descriptors]
    for thread in threads:
        thread.start()
    assert consumer.next_batch() is None
    for thread in threads:
        thread.join()
    assert fetched == {0: [b"data0-a", b"data0-b"], 1: [b"data1-a", b"data1-b"]}
    consumer.ack_through(1)
    assert buffer.length() == 0


def test_25_ack_through_removes_everything_up_to_it(buffer: Buffer):
    buffer.fill(5)
    consumer = buffer.consumer()
    consumer.next_descriptors(5)
    consumer.ack_through(3)
    assert (len(consumer), buffer.length(), consumer.acked) == (1, 1, 3)


def test_26_ack_through_must_advance(buffer: Buffer):
    buffer.fill(3)
    consumer = buffer.consumer()
    consumer.next_descriptors(3)
    consumer.ack_through(1)
    for sequence in (0, 1):
        with pytest.raises(OutOfOrder, match="non-monotonic ack_through"):
            consumer.ack_through(sequence)
    assert (consumer.acked, buffer.length()) == (1, 1)


def test_27_a_fenced_consumer_leaves_the_frontier_alone(buffer: Buffer):
    buffer.fill(2)
    first = buffer.consumer()
    first.next_descriptors(2)
    buffer.consumer()
    with pytest.raises(Fenced):
        first.ack_through(1)
    assert (first.acked, buffer.length()) == (None, 2)


def test_28_descriptors_are_fenced(buffer: Buffer):
    buffer.fill(1)
    first = buffer.consumer()
    buffer.consumer()
    with pytest.raises(Fenced):
        first.next_descriptors(1)


def test_29_next_batch_is_one_descriptor_and_its_fetch(buffer: Buffer):
    buffer.fill(1)
    (descriptor,) = (one := buffer.consumer()).next_descriptors(1)
    fetched = one.fetch(descriptor)
    assert buffer.consumer().next_batch() == fetched


def test_30_lost_descriptors_come_again_only_from_a_new_consumer(buffer: Buffer):
    buffer.fill(3)
    consumer = buffer.consumer()
    consumer.next_descriptors(2)
    assert [each.sequence for each in consumer.next_descriptors(3)] == [2]
    assert [each.sequence for each in buffer.consumer().next_descriptors(3)] == [0, 1, 2]

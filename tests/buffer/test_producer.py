"""What a producer promises: order, durability, backpressure, retries, and an honest end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer.format import decode_batch, parse_manifest
from penstock.buffer.manifest import Backoff, Contention
from penstock.core.clock import ManualClock
from penstock.core.observe.metrics import Registry
from penstock.errors import Backpressure, Closed, ConfigError, StorageError, Unflushed
from penstock.objects.store import ObjectStore, VersionConflict
from waiting import eventually

from .conftest import MANIFEST, Buffer
from .faults import FaultyStore

FOREVER = 3600


def consumed(store: ObjectStore) -> list[bytes]:
    """Every entry, in manifest order."""
    found: list[bytes] = []
    for descriptor in parse_manifest(store.get(MANIFEST)):
        found += decode_batch(store.get(descriptor.location))
    return found


def test_a_resolved_ticket_means_the_manifest_holds_the_entries(store: ObjectStore):
    with Producer(store, flush_interval=0.01) as producer:
        producer.produce([b"one", b"two"]).result(30)
        assert consumed(store) == [b"one", b"two"]


def test_entries_stay_in_order_over_many_batches(store: ObjectStore):
    expected = [f"{n}".encode() for n in range(300)]
    with Producer(store, flush_interval=FOREVER, flush_bytes=60) as producer:
        for start in range(0, 300, 3):
            producer.produce(expected[start : start + 3])
    assert consumed(store) == expected
    manifest = parse_manifest(store.get(MANIFEST))
    assert manifest.next_sequence == manifest.count > 10


def test_each_call_is_one_metadata_range_with_its_first_index_and_time(memory: ObjectStore):
    clock = ManualClock(5000)
    with Producer(memory, flush_interval=FOREVER, clock=clock) as producer:
        producer.produce([b"a", b"b"], b"first")
        clock.advance(1)
        ticket = producer.produce([b"c"], b"second")
    (descriptor,) = parse_manifest(memory.get(MANIFEST))
    assert [(each.start_index, each.ingested_at_ms, each.payload) for each in descriptor.metadata] == [
        (0, 5000, b"first"),
        (2, 6000, b"second"),
    ]
    assert ticket.ingested_at_ms == 6000
    assert descriptor.location.startswith("ingest/")
    assert descriptor.location.endswith(".batch")


def test_a_batch_is_sent_when_its_time_has_come(memory: ObjectStore):
    with Producer(memory, flush_interval=0.02, flush_bytes=1 << 30) as producer:
        first, second = producer.produce([b"a"]), producer.produce([b"b"])
        second.result(30)
        assert first.done()
        assert consumed(memory) == [b"a", b"b"]


def test_a_batch_is_sent_when_it_is_large_enough(memory: ObjectStore):
    with Producer(memory, flush_interval=FOREVER, flush_bytes=100) as producer:
        producer.produce([b"x" * 40])
        full = producer.produce([b"y" * 60])
        full.result(30)
        waiting = producer.produce([b"z"])
        assert not waiting.done()
        assert consumed(memory) == [b"x" * 40, b"y" * 60]


def test_flush_sends_what_is_there_and_an_empty_flush_writes_nothing(memory: ObjectStore):
    faulty = FaultyStore(memory)
    with Producer(faulty, flush_interval=FOREVER) as producer:
        producer.flush()
        assert faulty.calls["put"] == faulty.calls["put_if"] == 0
        ticket = producer.produce([b"a"])
        producer.flush()
        assert ticket.done()


def test_close_flushes_and_a_second_close_does_nothing(memory: ObjectStore):
    producer = Producer(memory, flush_interval=FOREVER)
    ticket = producer.produce([b"a"])
    producer.close()
    producer.close()
    assert ticket.result(0) is None
    with pytest.raises(Closed):
        producer.produce([b"b"])


@pytest.mark.parametrize("entries", [[], b"bytes", "text", ["text"], [b"ok", 5]])
def test_what_is_no_list_of_entries_is_refused(memory: ObjectStore, entries):
    with Producer(memory) as producer, pytest.raises(ConfigError):
        producer.produce(entries)


def test_other_kinds_of_bytes_are_copied(memory: ObjectStore):
    changing = bytearray(b"before")
    with Producer(memory, flush_interval=FOREVER) as producer:
        producer.produce([changing, memoryview(b"view"), memoryview(bytearray(8)).cast("I")])
        changing[:] = b"after!"
    assert consumed(memory) == [b"before", b"view", bytes(8)]


@pytest.mark.parametrize(
    "options",
    [
        {"flush_bytes": 0},
        {"max_buffered": 0},
        {"uploads": 0},
        {"compression": "gzip"},
        {"shards": 0},
        {"shards": 2},
        {"flush_interval": -1},
        {"manifest": "../up"},
        {"prefix": ""},
        {"options": {"region": "x"}},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError):
        Producer("memory://refused", **options)


def test_zstd_batches_are_smaller_and_read_the_same(memory: ObjectStore):
    entries = [b"the same words again and again"] * 500
    with Producer(memory, flush_interval=FOREVER, compression="zstd") as producer:
        producer.produce(entries)
    (descriptor,) = parse_manifest(memory.get(MANIFEST))
    assert len(memory.get(descriptor.location)) < 1000
    assert consumed(memory) == entries


# ── failures ──


@pytest.mark.parametrize("verb", ["put", "put_if", "read"])
def test_what_the_store_refuses_is_tried_again(memory: ObjectStore, verb: str):
    faulty = FaultyStore(memory)
    faulty.on(verb, "fail", "fail", "fail")
    with Producer(faulty, flush_interval=0.01, metrics=(registry := Registry())) as producer:
        producer.produce([b"kept"]).result(30)
        assert isinstance(producer.last_error, StorageError)
    assert consumed(memory) == [b"kept"]
    assert registry.snapshot()["buffer.retries"] == 3


def test_an_upload_whose_answer_was_lost_is_not_appended_twice(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", "lose", "lose")
    with Producer(faulty, flush_interval=0.01) as producer:
        producer.produce([b"once"]).result(30)
    assert consumed(memory) == [b"once"]
    assert len(set(faulty.puts)) == 1


def test_a_manifest_write_whose_answer_was_lost_is_recognised(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "lose", "ok", "lose")
    with Producer(faulty, flush_interval=0.01) as producer:
        for n in range(3):
            producer.produce([f"{n}".encode()]).result(30)
    assert consumed(memory) == [b"0", b"1", b"2"]


def test_a_write_that_others_followed_is_recognised(memory: ObjectStore):
    faulty = FaultyStore(memory)
    other = Producer(memory, flush_interval=0.01)

    def lose_and_let_others_append(act):
        act()
        other.produce([b"theirs"]).result(30)
        raise StorageError("injected", retryable=True)

    faulty.on("put_if", lose_and_let_others_append)
    with Producer(faulty, flush_interval=0.01) as producer:
        producer.produce([b"ours"]).result(30)
    other.close()
    assert consumed(memory) == [b"ours", b"theirs"]


def test_a_write_that_was_consumed_before_its_answer_was_missed_is_recognised(store: ObjectStore):
    """The consumer removes the entry before its producer can look for it: the trail remembers it."""
    consumer = Consumer(store, gc_interval=None)
    taken: list[bytes] = []

    def lose_and_consume(act):
        act()
        batch = consumer.next_batch()
        taken.extend(batch.entries)
        consumer.ack_through(batch.sequence)
        raise StorageError("injected", retryable=True)

    faulty = FaultyStore(store)
    faulty.on("put_if", lose_and_consume, "ok", lose_and_consume)
    with Producer(faulty, flush_interval=0.005) as producer:
        for n in range(3):
            producer.produce([f"{n}".encode()]).result(30)
            while (batch := consumer.next_batch()) is not None:
                taken.extend(batch.entries)
                consumer.ack_through(batch.sequence)
    assert taken == [b"0", b"1", b"2"]
    consumer.close()


def test_a_write_is_looked_for_until_the_trail_can_be_read(memory: ObjectStore):
    """The answer was lost, a consumer was faster, and the trail cannot be read at first: no second copy is made."""
    consumer = Consumer(memory, gc_interval=None)
    taken: list[bytes] = []

    def take() -> None:
        while (batch := consumer.next_batch()) is not None:
            taken.extend(batch.entries)
            consumer.ack_through(batch.sequence)

    def lose_and_consume(act):
        act()
        take()
        raise StorageError("injected", retryable=True)

    faulty = FaultyStore(memory)
    faulty.on("put_if", lose_and_consume)
    faulty.on("read", "ok", "ok", "fail")  # the manifest, the manifest again, its trail
    with Producer(faulty, flush_interval=0.005) as producer:
        producer.produce([b"once"]).result(30)
    take()
    assert taken == [b"once"] and not faulty.script["read"]
    consumer.close()


def test_a_conflict_that_was_our_own_success_is_recognised(memory: ObjectStore):
    """A client that retries by itself turns a lost answer into a conflict."""

    def done_but_conflict(act):
        act()
        raise VersionConflict("injected")

    faulty = FaultyStore(memory)
    faulty.on("put_if", done_but_conflict)
    with Producer(faulty, flush_interval=0.01) as producer:
        producer.produce([b"once"]).result(30)
    assert consumed(memory) == [b"once"]


def test_a_write_that_is_done_late_counts_once(memory: ObjectStore):
    """The request times out, is not done when the producer looks, and is done when it tries again."""
    late: list = []

    def time_out(act):
        late.append(act)
        raise StorageError("injected: timed out", retryable=True)

    def arrive_first(act):
        late[0]()
        return act()

    faulty = FaultyStore(memory)
    faulty.on("put_if", time_out, arrive_first)
    with Producer(faulty, flush_interval=0.01) as producer:
        producer.produce([b"once"]).result(30)
        producer.produce([b"next"]).result(30)
    assert consumed(memory) == [b"once", b"next"]


def test_more_batches_joining_a_late_write_are_told_apart(memory: ObjectStore):
    """The first write carried one batch, the second two; the first is done after all."""
    late: list = []
    more = threading.Event()

    def time_out(act):
        late.append(act)
        more.wait(30)
        raise StorageError("injected: timed out", retryable=True)

    def arrive_first(act):
        late[0]()
        return act()

    faulty = FaultyStore(memory)
    faulty.on("put_if", time_out, arrive_first)
    with Producer(faulty, flush_interval=FOREVER, flush_bytes=1) as producer:
        first = producer.produce([b"first"])
        while not late:
            time.sleep(0.001)
        second = producer.produce([b"second"])
        while faulty.calls["put"] < 2:
            time.sleep(0.001)
        more.set()
        first.result(30), second.result(30)
    assert consumed(memory) == [b"first", b"second"]


def test_a_damaged_manifest_keeps_the_entries_until_it_is_mended(memory: ObjectStore):
    memory.put(MANIFEST, b"not a manifest")
    with Producer(memory, flush_interval=0.005) as producer:
        ticket = producer.produce([b"kept"])
        eventually(lambda: producer.last_error is not None)
        assert not ticket.done()
        memory.put(MANIFEST, parse_manifest(None).data)
        ticket.result(30)
    assert consumed(memory) == [b"kept"]


def test_close_reports_what_could_not_be_written(memory: ObjectStore):
    faulty = FaultyStore(memory)
    producer = Producer(faulty, flush_interval=FOREVER, flush_bytes=10)
    producer.produce([b"written"] * 2).result(30)
    faulty.on("put", *["fail"] * 1000)
    tickets = [producer.produce([b"lost1", b"lost2"], b"about them"), producer.produce([b"x"])]
    with pytest.raises(Unflushed, match="3 entries in 2 batches") as report:
        producer.close(timeout=0.3)
    assert [batch.entries for batch in report.value.batches] == [[b"lost1", b"lost2"], [b"x"]]
    assert report.value.batches[0].metadata[0].payload == b"about them"
    assert report.value.batches[0].manifest == MANIFEST
    for ticket in tickets:
        with pytest.raises(Unflushed):
            ticket.result(0)
    assert consumed(memory) == [b"written"] * 2


def test_close_does_not_wait_for_what_cannot_mend(memory: ObjectStore):
    faulty = FaultyStore(memory)

    def forbidden(act):
        raise StorageError("injected: permission denied", retryable=False)

    faulty.on("put", *[forbidden] * 1000)
    producer = Producer(faulty, flush_interval=0.005)
    producer.produce([b"x"])
    began = time.monotonic()
    with pytest.raises(Unflushed, match="permission denied"):
        producer.close(timeout=120)
    assert time.monotonic() - began < 60


def test_flush_says_when_it_took_too_long(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", "hold")
    with Producer(faulty, flush_interval=FOREVER) as producer:
        producer.produce([b"x"])
        with pytest.raises(TimeoutError):
            producer.flush(timeout=0.05)
        faulty.release()
        producer.flush(timeout=30)


# ── flow ──


def test_uploads_overlap_and_the_manifest_keeps_the_order(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", *["hold"] * 5)
    with Producer(faulty, flush_interval=FOREVER, flush_bytes=1) as producer:
        tickets = [producer.produce([f"{n}".encode()]) for n in range(5)]
        eventually(lambda: faulty.calls["put"] == 5)
        assert not any(ticket.done() for ticket in tickets)
        faulty.release()
        for ticket in tickets:
            ticket.result(30)
    assert consumed(memory) == [b"0", b"1", b"2", b"3", b"4"]


def test_one_manifest_write_carries_every_batch_that_is_ready(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "hold")
    with Producer(faulty, flush_interval=FOREVER, flush_bytes=1) as producer:
        tickets = [producer.produce([b"first"])]
        eventually(lambda: faulty.calls["put_if"] == 1)
        tickets += [producer.produce([b"more"]) for _ in range(9)]
        eventually(lambda: all(batch.uploaded for batch in producer._lanes[0].queue) and faulty.calls["put"] == 10)
        faulty.release()
        for ticket in tickets:
            ticket.result(30)
    assert faulty.calls["put_if"] <= 3
    assert parse_manifest(memory.get(MANIFEST)).count == 10


def test_produce_blocks_only_when_too_many_calls_wait(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", "hold")
    producer = Producer(faulty, flush_interval=FOREVER, flush_bytes=4, inflight_bytes=100, max_buffered=3)
    tickets = [producer.produce([b"x" * 96])]  # in flight: there is no room for another byte
    tickets += [producer.produce([b"wait"]) for _ in range(3)]
    with pytest.raises(Backpressure):
        producer.produce([b"late"], timeout=0.02)
    blocked = threading.Thread(daemon=True, target=lambda: tickets.append(producer.produce([b"late"])))
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    faulty.release()
    blocked.join(30)
    producer.close()
    assert all(ticket.done() for ticket in tickets)
    assert consumed(memory) == [b"x" * 96, b"wait", b"wait", b"wait", b"late"]


def test_waiting_bytes_are_bounded_too(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", *["hold"] * 9)
    producer = Producer(faulty, flush_interval=FOREVER, flush_bytes=100, inflight_bytes=1000)
    for _ in range(9 + 10):  # 9 in flight, and the tenth that waits brings those to more than 1000 bytes
        producer.produce([b"x" * 100])
    with pytest.raises(Backpressure):
        producer.produce([b"x" * 100], timeout=0.02)
    faulty.release()
    producer.close()
    assert len(consumed(memory)) == 19


def test_a_batch_larger_than_the_whole_budget_gets_through(memory: ObjectStore):
    with Producer(memory, flush_interval=FOREVER, inflight_bytes=10) as producer:
        producer.produce([b"x" * 1000])
    assert consumed(memory) == [b"x" * 1000]


def test_close_wakes_whoever_waits_for_room(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put", "hold")
    producer = Producer(faulty, flush_interval=FOREVER, flush_bytes=1, inflight_bytes=1, max_buffered=1)
    producer.produce([b"a"]), producer.produce([b"b"])
    outcome: list[BaseException] = []

    def blocked():
        try:
            producer.produce([b"c"])
        except Closed as error:
            outcome.append(error)

    thread = threading.Thread(daemon=True, target=blocked)
    thread.start()
    threading.Timer(0.05, faulty.release).start()
    producer.close()
    thread.join(30)
    assert not thread.is_alive()
    assert consumed(memory) in ([b"a", b"b"], [b"a", b"b", b"c"])
    assert len(outcome) == 3 - len(consumed(memory))


def test_many_producers_share_one_manifest(store: ObjectStore):
    """Every ticket resolves, nothing is lost or doubled, and each producer's own order holds."""
    each, producers = 12, 4
    failures: list[BaseException] = []

    def work(name: int):
        try:
            with Producer(store, flush_interval=0.001, metrics=Registry()) as producer:
                for n in range(each):
                    producer.produce([f"{name}:{n}".encode()]).result(60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(daemon=True, target=work, args=(name,)) for name in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    found = [tuple(map(int, entry.split(b":"))) for entry in consumed(store)]
    assert sorted(found) == [(name, n) for name in range(producers) for n in range(each)]
    for name in range(producers):
        assert [n for owner, n in found if owner == name] == list(range(each))


def test_conflicts_are_counted(memory: ObjectStore):
    def somebody_was_first(act):
        raise VersionConflict("injected")

    faulty = FaultyStore(memory)
    faulty.on("put_if", somebody_was_first, "ok", "ok")
    with Producer(faulty, flush_interval=0.001, metrics=(registry := Registry())) as producer:
        assert producer.conflict_rate == 0
        for _ in range(2):
            producer.produce([b"x"]).result(30)
        assert producer.conflict_rate == 50
    assert registry.snapshot()["buffer.manifest_conflicts{role=producer}"] == 1
    assert registry.snapshot()["buffer.manifest_writes{role=producer}"] == 2


def test_a_batch_that_waited_too_long_for_the_manifest_gets_a_new_name(memory: ObjectStore):
    """Otherwise a collector could delete its object in the moment it is appended."""
    clock = ManualClock()
    faulty = FaultyStore(memory)

    def refuse(act):
        clock.advance(500)
        raise StorageError("injected", retryable=True)

    faulty.on("put_if", refuse)
    with Producer(faulty, flush_interval=0.001, clock=clock, gc_grace=600) as producer:
        producer.produce([b"kept"]).result(30)
    (descriptor,) = parse_manifest(memory.get(MANIFEST))
    assert len(faulty.puts) == 2
    assert descriptor.location == faulty.puts[1] != faulty.puts[0]
    consumer = Consumer(memory, gc_interval=None, gc_grace=0, clock=clock)
    assert consumer.collect_garbage() == 1
    assert consumed(memory) == [b"kept"]


def test_a_new_name_is_appended_only_after_its_upload_succeeded(memory: ObjectStore):
    clock = ManualClock()
    faulty = FaultyStore(memory)

    def refuse(act):
        clock.advance(500)
        raise StorageError("injected", retryable=True)

    faulty.on("put_if", refuse)
    faulty.on("put", "ok", "fail")
    with Producer(faulty, flush_interval=0.001, clock=clock, gc_grace=600) as producer:
        producer.produce([b"kept"]).result(30)
    assert consumed(memory) == [b"kept"]


def test_tickets_and_producers_work_in_an_event_loop(memory: ObjectStore):
    async def work() -> None:
        async with Producer(memory, flush_interval=0.005) as producer:
            await asyncio.gather(*(_await(producer.produce([f"{n}".encode()])) for n in range(20)))
            last = producer.produce([b"last"])
        assert last.done()

    async def _await(ticket):
        return await ticket

    asyncio.run(work())
    assert sorted(consumed(memory)) == sorted([*(f"{n}".encode() for n in range(20)), b"last"])


def test_our_consumer_takes_what_our_producer_makes(buffer: Buffer):
    with Producer(buffer.store, flush_interval=0.001, metrics=buffer.registry) as producer:
        producer.produce([b"a", b"b"], b"meta")
    batch = buffer.consumer().next_batch()
    assert (batch.entries, batch.metadata_of(1).payload) == ([b"a", b"b"], b"meta")
    counted = buffer.registry.snapshot()
    assert counted["buffer.entries_flushed"] == counted["buffer.entries_collected"] == 2
    assert counted["buffer.bytes_flushed"] == 10
    assert counted["buffer.bytes_written"] == counted["buffer.bytes_collected"] == 17
    assert counted["buffer.flush_duration_seconds"]["count"] == 1


def test_waits_grow_stay_bounded_and_differ():
    backoff = Backoff(first=0.01, most=1.0, seed=1)
    waits = [backoff.delay(failures) for failures in range(100)]
    assert all(0 < wait <= 1.0 for wait in waits)
    assert max(waits[:2]) < 0.05 < max(waits[20:])
    assert len(set(waits)) == 100


def test_contenders_wait_in_units_of_a_round():
    contention = Contention()
    for _ in range(100):
        contention.took(0.1)
    assert all(contention.delay(1) <= 0.051 for _ in range(100))
    assert all(contention.delay(10_000) <= 2.0 for _ in range(100))
    assert max(contention.delay(20) for _ in range(200)) > 0.3

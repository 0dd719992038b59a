"""Where features of the buffer meet: fences and collectors, handlers that acknowledge, threads that cannot start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ulid import ULID

import penstock
from penstock.buffer import Batch, Consumer, Producer, drain
from penstock.buffer.consumer import collect
from penstock.buffer.format import Metadata, encode_batch
from penstock.buffer.manifest import BufferPaths
from penstock.core.clock import ManualClock
from penstock.core.observe.metrics import Registry
from penstock.errors import ConfigError, Fenced, OutOfOrder, StorageError
from penstock.objects.store import ObjectStore
from waiting import DEADLINE, eventually

from .conftest import Buffer
from .faults import FaultyStore

FOREVER = 3600.0


# ── fenced ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_batch_that_went_with_the_consumer_that_took_over_is_a_fence(memory_buffer: Buffer) -> None:
    (location,) = memory_buffer.fill(1)
    slow = memory_buffer.consumer()
    (descriptor,) = slow.next_descriptors(1)
    memory_buffer.consumer().ack_through(0)
    memory_buffer.store.delete([location])
    with pytest.raises(Fenced):
        slow.fetch(descriptor)


def test_a_run_whose_batches_went_with_the_consumer_that_took_over_reports_the_fence(
    memory_buffer: Buffer,
) -> None:
    locations = memory_buffer.fill(3)
    faulty = FaultyStore(memory_buffer.store)
    slow = Consumer(faulty, gc_interval=None, metrics=Registry())

    def suspended(get: Callable[[], Any]) -> Any:
        memory_buffer.consumer().ack_through(2)
        memory_buffer.store.delete(locations)
        return get()

    faulty.on("get", suspended)
    report = slow.run(lambda batch: None, concurrency=1, ahead=3, until_empty=True)
    assert report.fenced is not None and report.batches == 0


def test_a_batch_that_is_gone_from_its_owner_is_said_to_be(memory_buffer: Buffer) -> None:
    memory_buffer.store.delete(memory_buffer.fill(1))
    with pytest.raises(StorageError, match="batch 0 of ingest/manifest is gone"):
        memory_buffer.consumer().next_batch()


# ── acknowledging ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_handler_may_acknowledge_just_before_the_run_does(
    memory_buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_buffer.fill(2)
    consumer = memory_buffer.consumer()
    second, acked = threading.Event(), threading.Event()
    acknowledge = Consumer.ack_through

    def ack_through(self: Consumer, sequence: int) -> None:
        if threading.current_thread().name == "penstock-ack" and not acked.is_set():
            second.wait(DEADLINE)
            acknowledge(self, 1)  # what the handler of the second batch does, between the run's look and its call
            acked.set()
        acknowledge(self, sequence)

    def handle(batch: Batch) -> None:
        if batch.sequence == 1:
            second.set()
            acked.wait(DEADLINE)

    monkeypatch.setattr(Consumer, "ack_through", ack_through)
    report = consumer.run(handle, until_empty=True)
    assert (report.batches, report.acked, memory_buffer.length()) == (2, 1, 0)


def test_a_start_behind_the_end_of_a_manifest_that_began_anew_removes_nothing(memory_buffer: Buffer) -> None:
    memory_buffer.fill(3)
    with pytest.raises(OutOfOrder, match="has no entry 500 yet: 3 is next"):
        memory_buffer.consumer(after=500)
    assert [each.sequence for each in memory_buffer.consumer().next_descriptors(9)] == [0, 1, 2]


# ── collecting ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_collecting_by_a_mistyped_manifest_deletes_nothing(memory: ObjectStore) -> None:
    clock = ManualClock()
    with Producer(memory, clock=clock, metrics=Registry()) as producer:
        producer.produce([b"precious"]).result(DEADLINE)
    late = clock.now_ms() + 3_600_000
    for dry_run in (True, False):
        done = collect(memory, BufferPaths("ingest/manifst", "ingest"), now_ms=late, grace_ms=0, dry_run=dry_run)
        assert (done.deleted, done.kept) == (0, 1)
    batch = Buffer(memory).consumer().next_batch()
    assert batch is not None and batch.entries == [b"precious"]


def test_the_collector_goes_on_after_an_error_of_any_kind(
    memory: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    old = f"ingest/{ULID.from_timestamp(clock.now_ms() - 3_600_000)}.batch"
    memory.put(old, encode_batch([b"x"]))
    faulty = FaultyStore(memory)

    def break_off(*call: Any) -> None:
        raise OSError("a store of the caller's own")

    faulty.on("list", break_off)
    with caplog.at_level(logging.WARNING, "penstock.buffer"):
        consumer = Consumer(faulty, gc_interval=0.001, clock=clock, metrics=Registry())
        eventually(lambda: memory.get(old) is None)
    consumer.close()
    assert "a store of the caller's own" in caplog.text


# ── draining ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("ingested_at_ms", [1_763_406_000_000_000_000, -(1 << 63), (1 << 63) - 1])
def test_another_writers_time_that_no_calendar_has_does_not_stop_a_drain(
    memory_buffer: Buffer, ingested_at_ms: int
) -> None:
    memory_buffer.store.put("ingest/foreign.batch", encode_batch([b"a", b""]))
    memory_buffer.enqueue_entry("ingest/foreign.batch", (Metadata(0, ingested_at_ms, b"m"),))
    with penstock.open("memory:") as journal:
        report = drain(memory_buffer.consumer(), journal.topic("t"), until_empty=True)
        events = list(journal.topic("t").read())
    assert report.entries == 2
    assert [(event.payload, event.headers["metadata"]) for event in events] == [(b"a", "m"), (b"", "m")]
    assert all(event.occurred_at == event.recorded_at for event in events)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────
class Exhausted:
    """Makes the starts of threads whose names begin like this fail, until there are threads again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.name: str | None = name
        start = threading.Thread.start

        def failing(thread: threading.Thread) -> None:
            if self.name is not None and thread.name.startswith(self.name):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", failing)

    def end(self) -> None:
        self.name = None


@pytest.mark.parametrize("name", ["penstock-read", "penstock-ack", "penstock-fetch-1"])
def test_a_run_whose_threads_cannot_start_leaves_none_behind_that_takes_batches(
    memory_buffer: Buffer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    memory_buffer.fill(4)
    consumer = memory_buffer.consumer()
    exhausted = Exhausted(monkeypatch, name)
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="can't start new thread"):
        consumer.run(lambda batch: None, concurrency=2, until_empty=True)
    assert set(threading.enumerate()) <= before
    exhausted.end()
    seen: list[int] = []
    consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["penstock-manifest", "penstock-upload", "penstock-flush"])
def test_a_producer_whose_threads_cannot_start_takes_nothing_and_goes_on_when_they_can(
    memory_buffer: Buffer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    exhausted = Exhausted(monkeypatch, name)
    with Producer(memory_buffer.store, flush_interval=0.001, metrics=Registry()) as producer:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            producer.produce([b"refused"])
        exhausted.end()
        producer.produce([b"taken"]).result(DEADLINE)
    batch = memory_buffer.consumer().next_batch()
    assert batch is not None and batch.entries == [b"taken"] and memory_buffer.length() == 1


def test_batches_that_come_at_once_do_not_wait_for_one_idle_thread(memory: ObjectStore) -> None:
    """One lane's upload that hangs holds up no other lane: the timer seals them all under one lock."""
    faulty = FaultyStore(memory)
    producer = Producer(
        faulty, flush_interval=FOREVER, shards=4, key=lambda entry: int(entry), metrics=Registry(), uploads=4
    )
    producer.produce([b"0"])
    producer.flush(DEADLINE)  # from here on one thread is idle
    faulty.on("put", *["hold"] * 4)
    ticket = producer.produce([b"0", b"1", b"2", b"3"])
    flushing = threading.Thread(target=producer.flush)
    flushing.start()
    eventually(lambda: faulty.calls["put"] == 5)
    assert not ticket.done()
    faulty.release()
    flushing.join()
    producer.close()
    assert ticket.done()


def test_a_manifest_of_ones_own_needs_a_prefix_of_its_own(memory: ObjectStore) -> None:
    """A collector takes batches under its prefix that its manifest does not name for waste."""
    for make in (Producer, Consumer):
        with pytest.raises(ConfigError, match="would delete each other's batches"):
            make(memory, manifest="a/manifest")
    with Producer(memory, manifest="a/manifest", prefix="a", metrics=Registry()) as producer:
        producer.produce([b"x"]).result(DEADLINE)
    assert [path for path, _ in memory.sizes() if path.startswith("ingest/")] == []

"""Consumer.run: reads ahead, fetches in parallel, acknowledges the finished prefix, and ends cleanly."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from penstock.buffer import Batch, Consumer
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.objects.store import ObjectStore
from waiting import eventually

from .conftest import Buffer
from .faults import FaultyStore, Rates


def test_every_batch_is_handed_over_in_order_and_acked(buffer: Buffer):
    buffer.fill(25)
    seen: list[int] = []
    consumer = buffer.consumer()
    report = consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True, concurrency=4, ahead=6)
    assert seen == list(range(25))
    assert (report.batches, report.entries, report.acked, report.fenced) == (25, 50, 24, None)
    assert buffer.length() == 0


def test_out_of_order_every_batch_is_handled_once_by_several_threads(memory_buffer: Buffer):
    memory_buffer.fill(40)
    seen: list[int] = []
    threads: set[int] = set()
    together = threading.Barrier(3, timeout=30)

    def handle(batch: Batch):
        if batch.sequence < 3:
            together.wait()  # passes only when three handlers run at once
        threads.add(threading.get_ident())
        seen.append(batch.sequence)

    memory_buffer.consumer().run(handle, ordered=False, until_empty=True, concurrency=3, ahead=8)
    assert sorted(seen) == list(range(40))
    assert len(threads) == 3
    assert memory_buffer.length() == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_only_the_finished_prefix_is_acked(memory_buffer: Buffer, ordered: bool):
    memory_buffer.fill(6)
    consumer = memory_buffer.consumer()
    release = threading.Event()
    finished: list[int] = []

    def handle(batch: Batch):
        if batch.sequence == 2:
            release.wait(30)
        finished.append(batch.sequence)

    run = threading.Thread(
        daemon=True,
        target=consumer.run,
        args=(handle,),
        kwargs={"ordered": ordered, "concurrency": 2, "ack_interval": 0},
    )
    run.start()
    eventually(lambda: consumer.acked == 1)
    if not ordered:
        eventually(lambda: len(finished) == 5)
    assert memory_buffer.length() == 4
    release.set()
    eventually(lambda: consumer.acked == 5)
    consumer.stop()
    run.join(30)
    assert not run.is_alive()


def test_reading_ahead_is_bounded(memory: ObjectStore):
    buffer = Buffer(memory)
    buffer.fill(30)
    faulty = FaultyStore(memory)
    consumer = Consumer(faulty, gc_interval=None)
    ahead: list[int] = []

    def handle(batch: Batch):
        ahead.append(faulty.calls["get"] - batch.sequence)

    consumer.run(handle, until_empty=True, ahead=4, concurrency=8)
    assert max(ahead) <= 4


def test_fetches_overlap(memory: ObjectStore):
    buffer = Buffer(memory)
    buffer.fill(4)
    faulty = FaultyStore(memory)
    together = threading.Barrier(4, timeout=30)

    def meet(act):
        together.wait()
        return act()

    faulty.on("get", *[meet] * 4)
    report = Consumer(faulty, gc_interval=None).run(lambda batch: None, until_empty=True, concurrency=4, ahead=4)
    assert report.batches == 4


@pytest.mark.parametrize("ordered", [True, False])
def test_a_handlers_failure_ends_the_run_and_unfinished_batches_come_again(memory_buffer: Buffer, ordered: bool):
    memory_buffer.fill(10)
    consumer = memory_buffer.consumer()
    failing = {4}
    seen: list[int] = []

    def handle(batch: Batch):
        if batch.sequence in failing:
            raise RuntimeError("no")
        seen.append(batch.sequence)

    with pytest.raises(RuntimeError, match="no"):
        consumer.run(handle, until_empty=True, ordered=ordered, concurrency=2, ahead=3)
    # Out of order, the batch before the failing one may still have been on its way.
    finished = -1 if consumer.acked is None else consumer.acked
    assert finished == 3 if ordered else finished <= 3
    assert memory_buffer.length() == 9 - finished
    failing.clear()
    consumer.run(handle, until_empty=True, ordered=ordered)
    assert set(seen) == set(range(10))
    if ordered:
        assert seen == list(range(10))
    assert memory_buffer.length() == 0


def test_what_was_read_before_the_run_and_not_acked_is_part_of_it(memory_buffer: Buffer):
    memory_buffer.fill(3)
    consumer = memory_buffer.consumer()
    consumer.next_batch()
    seen: list[int] = []
    consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_stops_cleanly_when_another_consumer_takes_over(memory_buffer: Buffer, ordered: bool):
    memory_buffer.fill(10)
    first = memory_buffer.consumer()
    successors: list[Consumer] = []
    lock = threading.Lock()

    def handle(batch: Batch):
        with lock:
            if not successors:
                successors.append(memory_buffer.consumer())

    report = first.run(handle, ordered=ordered, concurrency=2, ahead=2, poll=0.01)
    assert report.fenced is not None
    assert report.fenced.epoch == successors[0].epoch
    assert memory_buffer.length() == 10
    assert [each.sequence for each in successors[0].next_descriptors(20)] == list(range(10))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("penstock-read", "penstock-ack"))]


def test_stop_ends_a_run_from_its_handler(memory_buffer: Buffer):
    memory_buffer.fill(10)
    consumer = memory_buffer.consumer()

    def handle(batch: Batch):
        if batch.sequence == 3:
            consumer.stop()

    report = consumer.run(handle)
    assert (report.batches, report.acked) == (4, 3)


def test_close_ends_a_run_and_keeps_what_it_finished(memory_buffer: Buffer):
    memory_buffer.fill(3)
    consumer = memory_buffer.consumer()
    seen: list[int] = []
    run = threading.Thread(daemon=True, target=consumer.run, args=(lambda batch: seen.append(batch.sequence),))
    run.start()
    eventually(lambda: len(seen) == 3)
    consumer.close()
    run.join(30)
    assert not run.is_alive()
    assert memory_buffer.length() == 0


def test_a_thread_with_the_id_of_one_that_has_ended_waits_for_the_run_it_closes(memory_buffer: Buffer):
    memory_buffer.fill(4)
    consumer = memory_buffer.consumer()
    handling, go_on, handled = threading.Event(), threading.Event(), threading.Event()
    early: list[bool] = []

    def handle(batch: Batch):
        handling.set()
        assert go_on.wait(30)
        handled.set()

    def close():
        consumer.close()
        early.append(not handled.is_set())

    run = threading.Thread(daemon=True, target=consumer.run, args=(handle,), kwargs={"concurrency": 2})
    run.start()
    assert handling.wait(30)
    consumer.stop()
    # The run's readers end, and the system gives their ids to the next threads.
    eventually(
        lambda: not [one for one in threading.enumerate() if one.name.startswith(("penstock-fe", "penstock-re"))]
    )
    closing = [threading.Thread(daemon=True, target=close) for _ in range(4)]
    for thread in closing:
        thread.start()
    time.sleep(0.05)  # whoever does not wait is through by now, most of the time
    go_on.set()
    for thread in [*closing, run]:
        thread.join(30)
    assert early == [False] * 4


def test_a_run_waits_for_what_comes_later(memory_buffer: Buffer):
    consumer = memory_buffer.consumer()
    seen: list[list[bytes]] = []
    run = threading.Thread(
        daemon=True, target=consumer.run, args=(lambda batch: seen.append(batch.entries),), kwargs={"poll": 0.005}
    )
    run.start()
    for n in range(3):
        memory_buffer.enqueue(f"ingest/{n}.batch", [f"{n}".encode()])
        eventually(lambda n=n: len(seen) == n + 1)
    consumer.stop()
    run.join(30)
    assert seen == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize("ordered", [True, False])
def test_coroutine_handlers_are_awaited(memory_buffer: Buffer, ordered: bool):
    memory_buffer.fill(5)
    seen: list[int] = []

    async def handle(batch: Batch):
        await asyncio.sleep(0)
        seen.append(batch.sequence)

    memory_buffer.consumer().run(handle, until_empty=True, ordered=ordered)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_passing_failures_of_the_store_are_ridden_out(memory: ObjectStore):
    buffer = Buffer(memory)
    buffer.fill(30)
    faulty = FaultyStore(memory)
    consumer = Consumer(faulty, gc_interval=None)
    faulty.rates = Rates(fail=0.1, lose=0.1)
    seen: list[int] = []
    consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True, concurrency=2)
    assert seen == list(range(30))
    assert buffer.length() == 0


def test_a_missing_object_ends_the_run_after_what_came_before_it(memory: ObjectStore):
    buffer = Buffer(memory)
    locations = buffer.fill(5)
    memory.delete([locations[3]])
    consumer = buffer.consumer()
    seen: list[int] = []
    with pytest.raises(StorageError, match="gone"):
        consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True)
    assert seen == [0, 1, 2]
    assert consumer.acked == 2


def test_a_damaged_batch_ends_the_run_unless_somebody_says_otherwise(memory: ObjectStore):
    buffer = Buffer(memory)
    locations = buffer.fill(3)
    memory.put(locations[1], b"damaged")
    consumer = buffer.consumer()
    seen: list[int] = []
    with pytest.raises(Corrupt):
        consumer.run(lambda batch: seen.append(batch.sequence), until_empty=True)
    assert seen == [0]
    put_aside: list[str] = []
    report = consumer.run(
        lambda batch: seen.append(batch.sequence),
        until_empty=True,
        on_corrupt=lambda descriptor, error: put_aside.append(descriptor.location),
    )
    assert (seen, put_aside, report.batches) == ([0, 2], [locations[1]], 1)
    assert buffer.length() == 0


def test_two_runs_at_once_are_refused(memory_buffer: Buffer):
    memory_buffer.fill(1)
    consumer = memory_buffer.consumer()
    refused: list[Exception] = []

    def handle(batch: Batch):
        try:
            consumer.run(lambda batch: None)
        except ConfigError as error:
            refused.append(error)

    consumer.run(handle, until_empty=True)
    assert len(refused) == 1
    with pytest.raises(ConfigError):
        consumer.run(handle, ahead=0)
    assert consumer.run(handle, until_empty=True).batches == 0


def test_acks_are_collected_into_few_manifest_writes(memory: ObjectStore):
    buffer = Buffer(memory)
    buffer.fill(200)
    faulty = FaultyStore(memory)
    consumer = Consumer(faulty, gc_interval=None)
    before = faulty.calls["put_if"]
    began = time.monotonic()
    consumer.run(lambda batch: None, until_empty=True, ack_interval=0.2)
    assert faulty.calls["put_if"] - before <= 3 + (time.monotonic() - began) / 0.2
    assert buffer.length() == 0


def test_what_was_handled_last_is_acknowledged_at_once_however_long_the_interval(memory_buffer: Buffer):
    memory_buffer.fill(3)
    consumer = memory_buffer.consumer()

    def handle(batch):
        if batch.sequence == 1:  # from here on the interval runs
            eventually(lambda: consumer.acked == 0)

    reports = []
    runner = threading.Thread(
        daemon=True, target=lambda: reports.append(consumer.run(handle, until_empty=True, ack_interval=3600))
    )
    runner.start()
    runner.join(60)
    assert [report.acked for report in reports] == [2]
    assert memory_buffer.length() == 0

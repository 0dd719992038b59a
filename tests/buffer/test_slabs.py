"""Memory that is used again, and never while somebody still looks at it."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer import slabs as slabs_module
from penstock.buffer.backoff import Backoff, Contention
from penstock.buffer.slabs import Slabs
from penstock.buffer.store import open_store
from penstock.errors import StorageError

from .faults import FaultyStore


def test_a_slab_comes_back_when_the_last_view_is_gone():
    slabs = Slabs(1 << 20)
    slab = slabs.allocate(1000)
    slab[:5] = b"hello"
    view = slabs.lend(slab, 5)
    part = view[1:3]
    del view
    gc.collect()
    assert slabs.allocate(1000) is not slab
    assert bytes(part) == b"el"
    del part
    gc.collect()
    assert slabs.allocate(1000) is slab


def test_a_lent_slab_cannot_be_written_through():
    slabs = Slabs(1 << 20)
    assert slabs.lend(slabs.allocate(10), 10).readonly


def test_no_more_is_kept_than_agreed():
    slabs = Slabs(3 << 20)
    for _ in range(5):
        slabs.give_back(memoryview(bytearray(1 << 20)))
    kept = [slabs.allocate(1 << 20) for _ in range(5)]
    assert slabs._free_bytes == 0
    assert len(kept) == 5


def test_a_slab_that_is_too_small_is_left():
    slabs = Slabs(1 << 20)
    slabs.give_back(memoryview(bytearray(10)))
    assert len(slabs.allocate(100)) >= 100
    assert len(slabs.allocate(10)) == 10


def test_memory_for_a_batch_fits_the_next_one_and_is_not_much_larger():
    slabs = Slabs(1 << 30)
    for size in (1, 70_000, (1 << 20) + 10_407, (16 << 20) + 10_407, 512 << 20):
        slab = slabs.allocate(size)
        assert size <= len(slab) <= max(64 << 10, size + size // 8 + (64 << 10))
        slabs.give_back(slab)
        assert slabs.allocate(size - size // 100) is slab


def test_without_numpy_the_buffer_works_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slabs_module, "np", None)
    large = os.urandom(3 << 20)
    with Producer(f"file://{tmp_path}", flush_interval=0.001) as producer:
        for _ in range(3):
            producer.produce([large, b"", b"x"]).result(30)
    with Consumer(f"file://{tmp_path}", gc_interval=None) as consumer:
        for _ in range(3):
            assert consumer.next_batch().entries == [large, b"", b"x"]


def test_batches_read_at_once_keep_their_own_contents(tmp_path: Path):
    """Large objects are read into reused memory: batches that are still held must not change."""
    store = open_store(f"file://{tmp_path}")
    with Producer(store, flush_interval=3600, flush_bytes=1) as producer:
        contents = [os.urandom(100) * 15_000 for _ in range(6)]
        for content in contents:
            producer.produce([content, content[:7]])
    with Consumer(store, gc_interval=None) as consumer:
        held = [consumer.next_batch() for _ in range(3)]
        for batch in held[:2]:
            assert batch.entries[0] == contents[batch.sequence]
        del batch, held[0]
        held += [consumer.next_batch() for _ in range(3)]
        for batch in held:
            assert batch.entries == [contents[batch.sequence], contents[batch.sequence][:7]]


def test_a_batch_whose_upload_failed_once_does_not_share_its_memory(tmp_path: Path):
    """The attempt that failed may still be reading: its memory is not used for another batch."""
    faulty = FaultyStore(open_store(f"file://{tmp_path}"))
    seen: list[memoryview] = []
    put = faulty._inner.put

    def keep_a_view_and_fail(act):
        raise StorageError("injected", retryable=True)

    def watched(path, data):
        seen.append(data)
        return put(path, data)

    faulty._inner.put = watched
    faulty.on("put", keep_a_view_and_fail)
    with Producer(faulty, flush_interval=3600, flush_bytes=1) as producer:
        producer.produce([b"first"]).result(30)
        first = bytes(seen[0])
        for n in range(20):
            producer.produce([b"later %d" % n]).result(30)
        assert bytes(seen[0]) == first


def test_one_producers_memory_is_used_again(tmp_path: Path):
    with Producer(f"file://{tmp_path}", flush_interval=3600, flush_bytes=1) as producer:
        for _ in range(30):
            producer.produce([b"x" * 1000]).result(30)
        assert len(producer._pipeline.slabs._free) <= 2


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


def test_slabs_are_safe_between_threads():
    slabs = Slabs(64 << 20)
    wrong: list[int] = []

    def work(number: int):
        for _ in range(300):
            slab = slabs.allocate(4096)
            slab[:4096] = bytes([number]) * 4096
            if slab[:4096] != bytes([number]) * 4096:
                wrong.append(number)
            slabs.give_back(slab)

    threads = [threading.Thread(daemon=True, target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong

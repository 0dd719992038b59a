"""What an operation costs in calls and bytes: noise can neither hide nor fake a change here.

Syncs, requests and objects are exact. Bytes are a multiple of what the engine alone writes for a row of that size, and
engine calls have a limit: both leave room for another structure, and none for twice the work.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.buffer import Consumer, Producer
from torture.recorder import MARK, NO_COMPILER, SYNC, WRITE, compiler, record

PROGRAM = """
import random
import sys
from pathlib import Path
import penstock
from torture.recorder import mark
root, scheme = Path(sys.argv[1]), sys.argv[2]
with penstock.open(f"{scheme}:{root / 'store'}") as journal:
    topic, queue = journal.topic("t"), journal.queue("q")
    noise = random.Random(1)  # bytes that no compression makes smaller
    journal._core.housekeeper.request = lambda topic: None
    for _ in range(4):
        topic.append("warm", 1)
        queue.push("warm")
        queue.take(wait=0).ack()
    for _ in range(20):
        mark(begin="row")
        with journal._engine.write() as tx:
            tx.put(b"\\xff", noise.randbytes(100))
        mark(begin="append")
        topic.append("kind", "x" * 100)
    for _ in range(5):
        mark(begin="batch")
        topic.append_many([penstock.Draft("kind", noise.randbytes(100)) for _ in range(1000)])
    for _ in range(10):
        mark(begin="push")
        queue.push("message")
        mark(begin="take")
        delivery = queue.take(wait=0)
        mark(begin="ack")
        delivery.ack()
    mark(begin="closing")
"""

SYNCS = {
    "sqlite": {"append": 1, "batch": 1, "push": 1, "take": 0, "ack": 1},
    "file": {"append": 1, "batch": 1, "push": 1, "take": 0, "ack": 1},
    "rocksdb": {"append": 1, "batch": 1, "push": 1, "take": 0, "ack": 1},
}
"""Syncs of one operation."""
BYTES = {"append": 1.6, "push": 1.2}
"""How many times the bytes of a row of 100 bytes an operation may write: an event of 100 bytes, a message of 7."""
BATCH_BYTES = 1.1
"""How many times its payloads a batch of a thousand events may write, where no pages are written."""


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
@pytest.mark.parametrize("scheme", SYNCS)
def test_syncs_and_bytes_of_every_operation(tmp_path: Path, scheme: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = record(program, tmp_path / "disk", scheme)
    assert run.returncode == 0, run.output
    syncs: dict[str, Counter[int]] = {}
    written: dict[str, list[int]] = {}
    doing = ""
    for call in run.calls:
        if call.op == MARK:
            doing = json.loads(call.one)["begin"]
            syncs.setdefault(doing, Counter())[len(written.setdefault(doing, []))] += 0
            written[doing].append(0)
        elif doing and call.op == SYNC:
            syncs[doing][len(written[doing]) - 1] += 1
        elif doing and call.op == WRITE:
            written[doing][-1] += call.b
    for name, count in SYNCS[scheme].items():
        seen = Counter(syncs[name].values()).most_common(1)[0][0]
        assert seen == count, f"{name}: {syncs[name]}"
    usual = {name: Counter(each).most_common(1)[0][0] for name, each in written.items()}
    for name, multiple in BYTES.items():
        assert 0 < usual[name] <= multiple * usual["row"], (name, usual)
    assert scheme == "sqlite" or usual["batch"] <= BATCH_BYTES * 100_000, usual


class Counting:
    """An engine whose transactions count the calls made of them."""

    def __init__(self, journal: Any) -> None:
        self.calls: Counter[str] = Counter()
        write = journal._engine.write
        journal._engine.write = lambda **options: _Counted(write(**options), self.calls)


class _Counted:
    def __init__(self, tx: Any, calls: Counter[str]) -> None:
        self._tx, self._calls = tx, calls

    def __enter__(self) -> Any:
        self._tx.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._tx.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "put", "delete", "delete_range", "scan"):
            self._calls[name] += 1
        return getattr(self._tx, name)


def test_engine_calls_of_a_take_and_an_ack() -> None:
    with penstock.open("memory:") as journal:
        queue = journal.queue("jobs")
        queue.push_many(range(100))
        for _ in range(3):
            delivery = queue.take(wait=0)
            assert delivery is not None
            delivery.ack()
        counting = Counting(journal)
        seen = Counter[tuple[int, int]]()
        for _ in range(20):
            counting.calls.clear()
            delivery = queue.take(wait=0)
            took = counting.calls.total()
            counting.calls.clear()
            assert delivery is not None
            delivery.ack()
            seen[took, counting.calls.total()] += 1
        ((took, acked), _) = seen.most_common(1)[0]
        assert took <= 2 and acked <= 2, seen  # a lease and a counter


def test_requests_of_a_buffer_batch(tmp_path: Path) -> None:
    from penstock.objects.store import open_store

    store = open_store(f"file://{tmp_path}")
    calls: Counter[str] = Counter()

    class Counted:
        def __getattr__(self, name: str) -> Any:
            found = getattr(store, name)
            if name not in ("get", "read", "put", "put_if", "list", "delete"):
                return found

            def counted(*args: Any, **options: Any) -> Any:
                calls[name] += 1
                return found(*args, **options)

            return counted

    with Producer(Counted(), flush_interval=0.001) as producer:  # type: ignore[arg-type]
        producer.produce([b"warm"]).result(30)
        calls.clear()
        for _ in range(5):
            producer.produce([b"one"]).result(30)
        assert dict(calls) == {"put": 5, "put_if": 5}
    with Consumer(Counted(), gc_interval=None) as consumer:  # type: ignore[arg-type]
        first = consumer.next_batch()
        assert first is not None
        calls.clear()
        for _ in range(5):
            assert consumer.next_batch() is not None
        assert calls["get"] == 5 and calls["put"] == 0


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_allocations_of_an_event_that_is_read(tmp_path: Path, scheme: str) -> None:
    """Two objects for an event that is kept, and three for a payload of one field: the difference of two reads.

    The middle one of several: Python counts for the whole process, and its other threads allocate now and then.
    """
    url = "memory:" if scheme == "memory" else f"{scheme}:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        topic = journal.topic("t")
        topic.configure(indexed=False)
        topic.append_many([penstock.Draft("k", {"n": number}, key=str(number % 10)) for number in range(6_000)])

        def allocated(limit: int, *, payloads: bool) -> int:
            gc.collect()
            gc.disable()
            try:
                before = sys.getallocatedblocks()
                kept = [event.payload if payloads else event for event in topic.read(limit=limit)]
                found = sys.getallocatedblocks() - before
            finally:
                gc.enable()
            assert len(kept) == limit
            return found

        for payloads, each in ((False, 2), (True, 3)):
            allocated(4_000, payloads=payloads)
            found = [allocated(6_000, payloads=payloads) - allocated(4_000, payloads=payloads) for _ in range(5)]
            more = statistics.median(found)
            assert abs(more - 2_000 * each) < 50, (scheme, payloads, found)

"""Takes that wait: every waiter wakes, for every reason, and none for ever."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, only

import penstock
from penstock import Delivery, Journal, ManualClock, Queue
from penstock.errors import Closed

Start = Callable[..., threading.Thread]


class Waiters:
    """Threads that wait in `take`, and what they got."""

    def __init__(self, start: Start, queue: Queue, count: int, **options: Any) -> None:
        self.got: list[Any] = []
        self.errors: list[BaseException] = []
        self._waiting = 0
        options.setdefault("wait", DEADLINE)

        def wait() -> None:
            self._waiting += 1
            try:
                self.got.append(queue.take(**options))
            except Closed as error:
                self.errors.append(error)

        self.threads = [start(wait) for _ in range(count)]
        eventually(lambda: self._waiting == count and len(queue._backend._signal._waiters) >= count, "all wait")

    def join(self) -> None:
        for thread in self.threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


def one(queue: Queue, **options: Any) -> Delivery:
    found = queue.take(**options)
    assert found is not None
    return found


def pushed(*payloads: str, **options: Any) -> Callable[[Queue], None]:
    def prepare(queue: Queue) -> None:
        for payload in payloads:
            queue.push(payload, **options)

    return prepare


def first_of(*payloads: str, lease: float | None = None, **options: Any) -> Callable[[Queue], Delivery]:
    def prepare(queue: Queue) -> Delivery:
        pushed(*payloads, **options)(queue)
        return one(queue, lease=lease)

    return prepare


def paused(queue: Queue) -> None:
    queue.push("x")
    queue.pause()


WAKES: dict[str, tuple[dict[str, Any], Callable[[Queue], Any], Callable[[Queue, ManualClock, Any], object]]] = {
    "a push": ({}, pushed(), lambda queue, clock, held: queue.push("x")),
    "a delay that is over": ({}, pushed("x", delay=20), lambda queue, clock, held: clock.advance(20)),
    "a lease that ended": ({}, first_of("x", lease=20), lambda queue, clock, held: clock.advance(20)),
    "a nack": ({}, first_of("x"), lambda queue, clock, held: held.nack()),
    "a release": ({}, first_of("x"), lambda queue, clock, held: held.release()),
    "a redrive": (
        {}, lambda queue: first_of("x")(queue).nack(dead=True), lambda queue, clock, held: queue.redrive()
    ),
    "a free key": ({}, first_of("a", "x", key="k"), lambda queue, clock, held: held.ack()),
    "room in flight": ({"max_in_flight": 1}, first_of("a", "x"), lambda queue, clock, held: held.ack()),
    "a rate": ({"rate": "1/10s"}, first_of("a", "x"), lambda queue, clock, held: clock.advance(10)),
    "a breaker": (
        {"breaker": "1/10s", "breaker_pause": 30},
        lambda queue: first_of("x")(queue).nack(delay=0),
        lambda queue, clock, held: clock.advance(30),
    ),
    "a resume": ({}, paused, lambda queue, clock, held: queue.resume()),
}  # fmt: skip
"""Why a take ends its wait: a policy, what is there before, and what happens meanwhile."""


@on("memory", "sqlite")
@pytest.mark.parametrize("why", WAKES)
def test_a_waiting_take_wakes_for(journal: Journal, clock: ManualClock, in_threads: Start, why: str) -> None:
    policy, prepare, happens = WAKES[why]
    queue = journal.queue("jobs", **policy)
    held = prepare(queue)
    assert queue.take() is None
    waiters = Waiters(in_threads, queue, 1)
    happens(queue, clock, held)
    waiters.join()
    assert [delivery.payload for delivery in waiters.got] == ["x"]


@on("memory", "sqlite")
def test_every_waiter_wakes_when_there_is_enough_for_all(journal: Journal, in_threads: Start) -> None:
    queue = journal.queue("jobs")
    waiters = Waiters(in_threads, queue, 6)
    queue.push_many(range(6))
    waiters.join()
    assert sorted(delivery.payload for delivery in waiters.got) == list(range(6))


def test_a_wait_ends_with_nothing_when_its_time_is_up(journal: Journal) -> None:
    queue = journal.queue("jobs")
    started = time.monotonic()
    assert queue.take(wait=0.05) is None and queue.take_many(5, wait=0.05) == []
    assert time.monotonic() - started >= 0.1


@on("memory", "sqlite")
def test_a_wait_ends_by_the_injected_clock_too(journal: Journal, clock: ManualClock, in_threads: Start) -> None:
    queue = journal.queue("jobs")
    waiters = Waiters(in_threads, queue, 1, wait=10 * DEADLINE)
    clock.advance(10 * DEADLINE)
    waiters.join()
    assert waiters.got == [None]


@on("memory", "sqlite")
def test_real_time_works_without_an_injected_clock(place: Place) -> None:
    queue = place.open(durability="process").queue("jobs", lease=0.2)
    start = time.monotonic()
    queue.push("delayed", delay=0.15)
    with queue.take(wait=DEADLINE, lease=60) as delayed:  # type: ignore[union-attr]
        assert delayed.payload == "delayed" and 0.14 <= time.monotonic() - start < DEADLINE
    queue.push("now")
    start = time.monotonic()
    assert queue.take().payload == "now"  # type: ignore[union-attr]
    again = queue.take(wait=DEADLINE, lease=60)
    assert again is not None and (again.payload, again.attempt) == ("now", 2)
    assert 0.19 <= time.monotonic() - start < DEADLINE  # the journal's clock counts milliseconds


@on("memory", "sqlite")
def test_closing_the_journal_ends_waiting_takes(journal: Journal, in_threads: Start) -> None:
    queue = journal.queue("jobs")
    waiters = Waiters(in_threads, queue, 3)
    journal.close()
    waiters.join()
    assert len(waiters.errors) == 3 and waiters.got == []


@on("memory", "sqlite")
def test_a_push_rolled_back_wakes_nobody_and_a_committed_one_does(journal: Journal, in_threads: Start) -> None:
    queue = journal.queue("jobs")
    waiters = Waiters(in_threads, queue, 2)
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.push("jobs", "never")
        raise ZeroDivisionError
    with journal.transaction() as tx:
        tx.push("jobs", "one")
        tx.push(queue, "two")
        assert waiters.got == []
    waiters.join()
    assert sorted(delivery.payload for delivery in waiters.got) == ["one", "two"]


# ── event loops ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_awaiting_a_take(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")

    async def consume() -> list[Any]:
        waiting = [asyncio.create_task(queue.take_async(wait=DEADLINE)) for _ in range(3)]
        await asyncio.sleep(0.02)
        await queue.submit("a")
        queue.push("b", delay=10)
        clock.advance(10)
        await asyncio.to_thread(queue.push, "c")
        return [delivery.payload for delivery in await asyncio.gather(*waiting) if delivery is not None]

    assert sorted(asyncio.run(consume())) == ["a", "b", "c"]


def test_an_awaited_take_times_out_can_be_cancelled_and_is_closed(journal: Journal) -> None:
    queue = journal.queue("jobs")

    async def consume() -> None:
        assert await queue.take_async() is None and await queue.take_async(wait=0.02) is None
        assert await queue.take_many_async(0) == []
        task = asyncio.create_task(queue.take_async(wait=DEADLINE))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        queue.push_many(range(4))
        for _ in range(10):
            task = asyncio.create_task(queue.take_async(wait=DEADLINE))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        queue.journal.flush()
        found = await queue.take_many_async(3)
        assert [(one.seq, one.attempt) for one in found] == [(1, 1), (2, 1), (3, 1)], "a cancelled take takes nothing"
        await queue.take_async()
        closing = asyncio.create_task(queue.take_async(wait=DEADLINE))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(journal.close)
        with pytest.raises(Closed):
            await closing

    asyncio.run(consume())


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _wait_elsewhere(url: str, ready: Any, results: Any) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        ready.set()
        delivery = queue.take(wait=DEADLINE)
        results.put(None if delivery is None else (delivery.payload, delivery.token))
        if delivery is not None:
            delivery.ack()


@only(shared=True)
def test_a_push_in_another_process_wakes_a_waiting_take(place: Place) -> None:
    context = multiprocessing.get_context("spawn")
    ready, results = context.Event(), context.Queue()
    queue = place.open().queue("jobs")
    process = context.Process(target=_wait_elsewhere, args=(place.url, ready, results))
    process.start()
    try:
        assert ready.wait(DEADLINE)
        queue.push("from here")
        payload, token = results.get(timeout=DEADLINE)
        assert payload == "from here"
        process.join(DEADLINE)
        assert process.exitcode == 0 and queue.ack_many([token]) == 0 and len(queue) == 0
    finally:
        process.kill()
        process.join()

"""Workers, takes and tickets that end while something is under way: nothing hangs, runs twice or keeps a lease."""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, eventually_async, on

from penstock import Delivery, Event, Journal, ManualClock
from penstock.core.journal.writer import WriteRequest
from penstock.core.queue.policy import QueuePolicy
from penstock.core.queue.queue import LocalQueue
from penstock.errors import ConfigError, StorageError

pytestmark = on("sqlite")


@pytest.fixture
def few_threads() -> Iterator[ThreadPoolExecutor]:
    """What `asyncio.to_thread` uses in the tests here: fewer threads than there are workers."""
    pool = ThreadPoolExecutor(2)
    yield pool
    pool.shutdown(wait=False)


# ── event loops ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_workers_leave_the_threads_of_their_loop_to_handlers(journal: Journal, few_threads: ThreadPoolExecutor) -> None:
    queues = [journal.queue(f"jobs-{number}") for number in range(3)]
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        await asyncio.to_thread(handled.append, delivery.payload)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(few_threads)
        tasks = [asyncio.create_task(queue.worker(handle).run_async()) for queue in queues]
        for number, queue in enumerate(queues):
            queue.push(number)
        await eventually_async(lambda: len(handled) >= 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert sorted(handled) == [0, 1, 2]


def test_workers_that_are_stopped_together_let_their_handlers_end(
    journal: Journal, few_threads: ThreadPoolExecutor
) -> None:
    queues = [journal.queue(f"jobs-{number}") for number in range(3)]
    begun: list[int] = []
    ended: list[int] = []

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(few_threads)
        go = asyncio.Event()

        async def handle(delivery: Delivery) -> None:
            begun.append(delivery.payload)
            await go.wait()
            await asyncio.to_thread(ended.append, delivery.payload)

        workers = [queue.worker(handle).start() for queue in queues]
        for number, queue in enumerate(queues):
            queue.push(number)
        async with asyncio.timeout(DEADLINE):
            await eventually_async(lambda: len(begun) >= 3)
            stops = [asyncio.create_task(worker.stop_async()) for worker in workers]
            await eventually_async(lambda: all(worker._stopping.is_set() for worker in workers))
            go.set()
            await asyncio.gather(*stops)
        assert not any(worker.alive for worker in workers)

    asyncio.run(main())
    assert sorted(ended) == [0, 1, 2] and all(len(queue) == 0 for queue in queues)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "standing still"])
@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_worker_ends_whose_loop_ended_under_its_handler(journal: Journal, closed: bool, is_coroutine: bool) -> None:
    queue = journal.queue("jobs")
    begun = threading.Event()

    async def handle(delivery: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = queue.worker(handle if is_coroutine else lambda delivery: handle(delivery))
    loop = asyncio.new_event_loop()

    async def main() -> None:
        worker.start()
        queue.push("a")
        await eventually_async(lambda: begun.is_set())

    loop.run_until_complete(main())
    if closed:
        loop.close()
    try:
        worker.stop(DEADLINE)
        assert not worker.alive
        assert queue.stats().in_flight == 0 and len(queue) == 1
    finally:
        if not closed:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


def test_a_worker_that_would_block_its_own_loop_says_so(journal: Journal) -> None:
    async def handle(delivery: Delivery) -> None: ...

    async def main() -> None:
        with pytest.raises(ConfigError, match="run_async"):
            journal.queue("jobs").worker(handle).run()

    asyncio.run(main())


def test_an_interrupt_gives_back_what_an_asynchronous_worker_took_ahead(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(5))
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.payload)
        _thread.interrupt_main()
        await eventually_async(worker._ending.is_set, "the worker ends")

    worker = queue.worker(handle, ahead=4)
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert handled == [0] and len(queue) == 4 and queue.stats().in_flight == 0


# ── beginning twice ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_worker_that_is_at_work_is_not_run_a_second_time(journal: Journal) -> None:
    topic = journal.topic("orders")
    topic.append("placed")
    go, begun = threading.Event(), list[list[int]]()

    def handle(events: list[Event]) -> None:
        begun.append([event.seq for event in events])
        assert go.wait(DEADLINE)

    worker = topic.worker("mailer", handle)
    with worker:
        eventually(lambda: begun)
        with pytest.raises(ConfigError, match="at work already"):
            worker.run()
        go.set()
    assert begun == [[1]]

    foreground = topic.worker("archive", handle)
    thread = threading.Thread(target=foreground.run)
    thread.start()
    eventually(lambda: foreground.alive)
    with pytest.raises(ConfigError, match="started already"):
        foreground.start()
    foreground.stop(DEADLINE)
    thread.join(DEADLINE)


def test_a_worker_that_gave_up_may_be_run_again_with_an_asynchronous_handler(journal: Journal) -> None:
    topic = journal.topic("orders")
    topic.append("placed")

    async def handle(events: list[Event]) -> None:
        raise LookupError("no such order")

    worker = topic.worker("mailer", handle, restarts=0)
    for _ in range(2):
        with pytest.raises(LookupError):
            worker.run()


def test_a_worker_is_not_waited_for_inside_a_transaction(journal: Journal) -> None:
    queue = journal.queue("jobs")
    worker = queue.worker(lambda delivery: None).start()
    with journal.transaction(), pytest.raises(ConfigError, match="inside a transaction"):
        worker.stop()
    worker.stop(DEADLINE)
    assert not worker.alive


def test_a_worker_whose_thread_could_not_start_can_be_started_again(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("jobs")
    worker = queue.worker(lambda delivery: None)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _no_more_threads)
        with pytest.raises(RuntimeError):
            worker.start()
    worker.stop()
    assert not worker.alive


def test_hands_do_not_outlive_a_worker_that_could_not_have_them_all(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.consuming.worker.WORKER_RESTART_PAUSE", 0.0)
    start = threading.Thread.start

    def only_one_hand(thread: threading.Thread) -> None:
        if thread.name == "penstock-jobs:default-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    queue = journal.queue("jobs")
    queue.push_many(range(100))
    worker = queue.worker(lambda delivery: None, concurrency=2)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", only_one_hand)
        with pytest.raises(RuntimeError):
            worker.run()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-jobs:default")]


def test_schedules_run_after_a_thread_could_not_start(
    journal: Journal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("jobs")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _no_more_threads)
        with pytest.raises(RuntimeError):
            queue.every(10, "a", name="often")
    queue.every(10, "a", name="often")
    clock.advance(10)
    eventually(lambda: len(queue) == 1)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_failing_look_at_the_policy_does_not_end_the_renewal_of_leases(
    journal: Journal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker begins again, and with it the renewals."""
    queue = journal.queue("jobs", lease=30)
    queue.push("a")
    policy = queue.policy
    asked = iter((True,))

    def failing_once(queue: LocalQueue) -> QueuePolicy:
        if next(asked, False):
            raise StorageError("the disk does not answer", retryable=True)
        return policy

    monkeypatch.setattr(LocalQueue, "policy", failing_once)
    begun, go = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    monkeypatch.setattr("penstock.core.consuming.worker.WORKER_RESTART_PAUSE", 0.0)
    with queue.worker(handle):
        assert begun.wait(DEADLINE)
        clock.advance(15)
        wanted = clock.now_ms() + 29_000
        eventually(
            lambda: all(one.deadline.timestamp() * 1000 > wanted for one in queue.pending()), "the lease is renewed"
        )
        go.set()
    assert len(queue) == 0


def test_what_a_worker_holds_endlessly_is_its_own_until_its_handler_ends(place: Place) -> None:
    closing, other = place.open(durability="process"), place.open(durability="process")
    queue = closing.queue("jobs", lease=0)
    queue.push("a")
    begun, go = threading.Event(), threading.Event()

    def handle(delivery: Delivery) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    worker = queue.worker(handle).start()
    assert begun.wait(DEADLINE)
    thread = threading.Thread(target=closing.close)
    thread.start()
    eventually(worker._stopping.is_set)
    assert other.queue("jobs").take() is None
    go.set()
    thread.join(DEADLINE)
    assert len(other.queue("jobs")) == 0


def test_a_take_that_is_interrupted_after_its_commit_gives_the_message_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("jobs")
    queue.push("a")
    writer = journal._core.writer  # type: ignore[attr-defined]
    run = writer.run

    def interrupted(operation: WriteRequest[Any]) -> Any:
        run(operation)
        raise KeyboardInterrupt

    with monkeypatch.context() as signal:
        signal.setattr(writer, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.take()
    journal.flush()
    assert queue.stats().in_flight == 0
    again = queue.take()
    assert again is not None and again.attempt == 1


# ── tickets ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_ticket_is_answered_after_a_thread_could_not_start(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = journal.queue("jobs")
    ticket = queue.push(1, reply=True)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _no_more_threads)
        with pytest.raises(RuntimeError):
            ticket.result(DEADLINE)
    with queue.worker(lambda delivery: delivery.payload + 1):
        assert ticket.result(DEADLINE) == 2


def test_a_wait_that_is_cancelled_while_it_enlists_leaves_nothing_behind(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.queue("jobs")
    ticket = queue.push(1, reply=True)
    follower = ticket._follower
    enlisting, go = threading.Event(), threading.Event()
    enlist = ticket._enlist

    def slow() -> Any:
        enlisting.set()
        assert go.wait(DEADLINE)
        return enlist()

    monkeypatch.setattr(ticket, "_enlist", slow)

    async def main() -> None:
        waiting = asyncio.create_task(ticket.result_async())
        await eventually_async(lambda: enlisting.is_set())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        await eventually_async(lambda: follower._following is not None and not follower._waiting)

    asyncio.run(main())
    assert follower._waiting == {}


def _no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")

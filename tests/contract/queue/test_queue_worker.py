"""Workers: every message to a handler, its lease kept alive, its failure its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, eventually_async, on, only

from penstock import Delivery, Draft, Journal, ManualClock, Middleware, Queue
from penstock.core.consuming import worker as workers
from penstock.core.journal.commit import Commit
from penstock.core.model.take import TakeRequest
from penstock.core.observe.metrics import REGISTRY
from penstock.core.queue import queue as queues
from penstock.core.queue.operations.take import Taken
from penstock.errors import ConfigError, Corrupt


class Gate:
    """A handler that stops at a gate until the test opens it."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.left: list[Any] = []
        self.open = threading.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.entered.append(delivery.payload)
        assert self.open.wait(DEADLINE)
        self.left.append(delivery.payload)


def drained(queue: Queue) -> None:
    eventually(lambda: len(queue) == 0, "the queue is drained")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_message_is_handled_and_acknowledged(journal: Journal, concurrency: int) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(50))
    handled: list[int] = []
    with queue.worker(lambda delivery: handled.append(delivery.payload), concurrency=concurrency):
        drained(queue)
        queue.push_many(range(50, 80))
        drained(queue)
    assert sorted(handled) == list(range(80)) and list(queue) == []
    if concurrency == 1:
        assert handled == sorted(handled)


def test_an_asynchronous_handler(journal: Journal) -> None:
    queue = journal.queue("jobs", retry=0)
    queue.push_many(range(40))
    handled: list[int] = []
    running = most = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        if delivery.payload == 7 and delivery.attempt == 1:
            running -= 1
            raise ValueError("not yet")
        handled.append(delivery.payload)
        running -= 1

    with queue.worker(handle, concurrency=8):
        drained(queue)
    assert sorted(handled) == list(range(40)) and 1 < most <= 8


def test_a_handler_that_raises_gives_the_message_back_and_the_worker_goes_on(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2, dead_letter="grave", retry=0)
    attempts: list[tuple[int, int]] = []

    def handle(delivery: Delivery) -> None:
        attempts.append((delivery.payload, delivery.attempt))
        if delivery.payload == 1:
            raise ValueError("one is bad")

    queue.push_many(range(3))
    with queue.worker(handle):
        drained(queue)
    assert sorted(attempts) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    (letter,) = journal.queue("grave")
    assert letter.headers["dead-error"] == "ValueError: one is bad"


def test_a_handler_may_settle_its_delivery_itself(journal: Journal) -> None:
    queue = journal.queue("jobs")

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "reject":
            delivery.nack(dead=True, error="no thanks")
        elif delivery.payload == "early":
            delivery.ack()
        else:
            with journal.transaction() as tx:
                tx.append("results", "done", delivery.payload)
                tx.ack(delivery)

    queue.push_many(["reject", "early", "together"])
    with queue.worker(handle):
        drained(queue)
    assert [event.payload for event in queue.failed()] == ["reject"]
    assert [event.payload for event in journal.topic("results").read()] == ["together"]


@on("memory", "sqlite")
def test_leases_are_renewed_while_a_handler_runs_also_for_messages_taken_ahead(
    journal: Journal, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", lease=30)
    queue.push_many(["slow", "ahead"])
    gate = Gate()
    with queue.worker(gate, ahead=1) as worker:
        eventually(lambda: gate.entered == ["slow"] and len(worker._in_hand) == 2)
        for _ in range(6):
            clock.advance(15)
            wanted = clock.now_ms() + 29_000
            eventually(
                lambda wanted=wanted: all(p.deadline.timestamp() * 1000 > wanted for p in queue.pending()),  # type: ignore[misc]
                "both leases are renewed",
            )
            assert queue.take() is None, "nobody else gets them"
        gate.open.set()
        drained(queue)
    assert gate.left == ["slow", "ahead"]


@on("memory", "sqlite")
def test_stopping_finishes_what_has_begun_and_gives_back_the_rest(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(10))
    gate = Gate()
    worker = queue.worker(gate, concurrency=2, ahead=3).start()
    eventually(lambda: len(gate.entered) == 2 and queue.stats().in_flight == 5)
    with pytest.raises(TimeoutError):
        worker.stop(0.05)
    eventually(lambda: queue.stats().in_flight == 2, "what was not begun is given back at once")
    gate.open.set()
    worker.stop(DEADLINE)
    assert sorted(gate.left) == [0, 1] and not worker.alive
    again = queue.take_many(20)
    assert [(one.payload, one.attempt) for one in again] == [(n, 1) for n in range(2, 10)]


@on("memory", "sqlite")
def test_stopping_an_asynchronous_worker(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(6))
    begun, finished = [], []
    release = threading.Event()

    async def handle(delivery: Delivery) -> None:
        begun.append(delivery.payload)
        await eventually_async(lambda: release.is_set())
        finished.append(delivery.payload)

    worker = queue.worker(handle, concurrency=2, ahead=2).start()
    eventually(lambda: len(begun) == 2 and queue.stats().in_flight == 4)
    stopper = threading.Thread(daemon=True, target=worker.stop)
    stopper.start()
    eventually(worker._stopping.is_set)
    release.set()
    stopper.join(DEADLINE)
    assert sorted(finished) == sorted(begun) and not worker.alive
    left = {one.payload: one.attempt for one in queue.take_many(20)}
    assert set(left) | set(finished) == set(range(6)) and set(left.values()) == {1}


def test_closing_the_journal_stops_its_workers(place: Place) -> None:
    journal = place.open(durability="process")
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    handled: list[int] = []
    workers = [queue.worker(lambda d: handled.append(d.payload)).start(), queue.worker(print, group="x").start()]
    del workers[1]
    eventually(lambda: len(handled) + (3 - len(queue)) >= 3)
    journal.close()
    assert not workers[0].alive


def test_a_worker_runs_in_the_calling_thread_too(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    handled: list[int] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.payload)
        if len(handled) == 3:
            worker.stop()

    worker = queue.worker(handle)
    worker.run()
    assert handled == [0, 1, 2] and len(queue) == 0


@on("memory", "sqlite")
def test_an_interrupt_in_a_handler_ends_the_worker_and_keeps_the_message(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push(1)

    def handle(delivery: Delivery) -> None:
        raise SystemExit("told to go")

    worker = queue.worker(handle).start()
    eventually(lambda: not worker.alive)
    with pytest.raises(SystemExit):
        worker.stop()
    delivery = queue.take()
    assert delivery is not None and delivery.attempt == 1


@on("memory", "sqlite")
def test_ordering_keys_hold_under_concurrency(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=50, retry=0)
    queue.push_many([Draft("m", n, key=f"k{n % 5}") for n in range(100)])
    handled: dict[str, list[int]] = {}
    running: set[str] = set()

    def handle(delivery: Delivery) -> None:
        key = delivery.key or ""
        assert key not in running
        running.add(key)
        time.sleep(0.0005)
        running.discard(key)
        if delivery.payload % 7 == 0 and delivery.attempt == 1:
            raise ValueError("again, please")
        handled.setdefault(key, []).append(delivery.payload)

    with queue.worker(handle, concurrency=8):
        drained(queue)
    assert all(payloads == sorted(payloads) for payloads in handled.values())
    assert sum(map(len, handled.values())) == 100 and list(queue.failed()) == []


# ── middleware ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Recorder(Middleware):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def before(self, delivery: Delivery) -> None:
        self.log.append(f"{self.name} before {delivery.payload}")

    def after(self, delivery: Delivery, result: Any) -> None:
        self.log.append(f"{self.name} after {result}")

    def failure(self, delivery: Delivery, error: BaseException) -> None:
        self.log.append(f"{self.name} failure {error}")


@on("memory")
def test_middleware_surrounds_the_handler(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    log: list[str] = []

    def handle(delivery: Delivery) -> str:
        if delivery.payload == "bad":
            raise ValueError("oh")
        return "result"

    queue.push_many(["good", "bad"])
    with queue.worker(handle, middleware=[Recorder("outer", log), Recorder("inner", log)]):
        drained(queue)
    assert log == [
        *("outer before good", "inner before good", "inner after result", "outer after result"),
        *("outer before bad", "inner before bad", "inner failure oh", "outer failure oh"),
    ]


@on("memory")
def test_middleware_may_decide_what_becomes_of_a_failure(journal: Journal, clock: ManualClock) -> None:
    class Patient(Middleware):
        def failure(self, delivery: Delivery, error: BaseException) -> None:
            if isinstance(error, ConnectionError):
                delivery.nack(delay=600, error="later")
            elif isinstance(error, TypeError):
                delivery.nack(dead=True, error="never")

    class Refusing(Middleware):
        def before(self, delivery: Delivery) -> None:
            if delivery.payload == "refused":
                raise TypeError("not on my watch")

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "offline":
            raise ConnectionError

    queue = journal.queue("jobs")
    queue.push_many(["offline", "refused", "fine"])
    with queue.worker(handle, middleware=[Patient(), Refusing()]):
        eventually(lambda: queue.stats().delayed == 1 and queue.stats().failed == 1 and len(queue) == 1)


@on("memory")
def test_middleware_that_fails_does_not_lose_the_message(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Middleware):
        def after(self, delivery: Delivery, result: Any) -> None:
            raise RuntimeError("broken hook")

    queue = journal.queue("jobs")
    queue.push(1)
    with caplog.at_level(logging.ERROR, "penstock.queue"), queue.worker(lambda delivery: None, middleware=[Broken()]):
        drained(queue)
    assert "broken hook" in caplog.text


@on("memory")
def test_a_lease_lost_in_spite_of_everything_is_only_a_warning(
    journal: Journal, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("jobs")
    queue.push(1)

    def handle(delivery: Delivery) -> None:
        assert queue.ack_many([delivery.token]) == 1

    with caplog.at_level(logging.WARNING, "penstock.queue"), queue.worker(handle) as worker:
        eventually(lambda: "too late" in caplog.text)
        assert worker.alive


@on("memory")
def test_outcomes_are_counted(journal: Journal) -> None:
    queue = journal.queue("counted", max_attempts=1)
    queue.push_many(["good", "bad"])

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "bad":
            raise ValueError

    with queue.worker(handle):
        drained(queue)
    queue.take(wait=0.001)
    values = REGISTRY.snapshot()
    assert values["queue.pushed{queue=counted}"] == 2 and values["queue.delivered{queue=counted}"] == 2
    assert values["queue.acked{queue=counted}"] == 1 and values["queue.nacked{queue=counted,outcome=failed}"] == 1
    assert values["queue.handled{queue=counted,outcome=done}"] == 1
    assert values["queue.handling_seconds{queue=counted}"]["count"] == 2
    assert values["queue.wait_timed_out"] >= 1 and values["queue.wait_seconds"]["count"] >= 1


@on("memory")
def test_bad_workers_are_refused(journal: Journal) -> None:
    queue = journal.queue("jobs")
    for options in ({"concurrency": 0}, {"concurrency": True}, {"ahead": -1}, {"lease": -1}, {"group": ""}):
        with pytest.raises(ConfigError):
            queue.worker(print, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.worker("not callable")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.worker(print, middleware=[print])  # type: ignore[list-item]
    worker = queue.worker(print).start()
    with pytest.raises(ConfigError):
        worker.start()
    worker.stop()


def test_a_worker_takes_only_what_it_works_on(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(5))
    begun, go = threading.Semaphore(0), threading.Event()

    def handle(delivery: Delivery) -> None:
        begun.release()
        assert go.wait(DEADLINE)

    with queue.worker(handle, concurrency=2):
        for _ in range(2):
            assert begun.acquire(timeout=DEADLINE)
        assert queue.stats().in_flight == 2 and queue.stats().ready == 3
        go.set()
        eventually(lambda: len(queue) == 0)


# ── in an event loop ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_coroutines_run_in_the_event_loop_the_worker_was_started_from(journal: Journal) -> None:
    queue = journal.queue("jobs", retry=0)
    queue.push_many(range(20))
    loops = set()
    together = asyncio.Event()
    running = most = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        if running == 12:
            together.set()
        with suppress(TimeoutError):  # the first twelve wait for each other, however slow the machine is
            await asyncio.wait_for(together.wait(), DEADLINE)
        running -= 1
        if delivery.attempt == 1 and delivery.payload == 3:
            raise ValueError("not yet")

    async def main() -> asyncio.AbstractEventLoop:
        async with queue.worker(handle, concurrency=12):
            await eventually_async(lambda: not len(queue))
        return asyncio.get_running_loop()

    assert loops == {asyncio.run(main())} and most == 12


def test_a_cancelled_worker_finishes_what_it_has(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    begun, finished = list[int](), list[int]()

    cancelled = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        begun.append(delivery.payload)
        await cancelled.wait()
        finished.append(delivery.payload)

    async def main() -> None:
        worker = queue.worker(handle)
        task = asyncio.create_task(worker.run_async())
        await eventually_async(lambda: begun)
        task.cancel()
        for _ in range(3):  # turns of the loop, not time
            await asyncio.sleep(0)
        assert worker._stopping.is_set()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert begun == finished == [0] and len(queue) == 2


def test_a_message_whose_event_loop_ends_is_given_back(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push("a")
    begun: list[int] = []

    async def handle(delivery: Delivery) -> None:
        begun.append(1)
        await asyncio.sleep(DEADLINE)

    async def main() -> Any:
        worker = queue.worker(handle).start()
        await eventually_async(lambda: begun)
        return worker

    worker = asyncio.run(main())
    eventually(lambda: not worker.alive)
    worker.stop()
    delivery = queue.take()
    assert delivery is not None and delivery.attempt == 1, "the attempt was not the handler's failure"


def test_what_a_plain_function_returns_is_awaited_too(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push("a")
    handled: list[str] = []

    async def later(delivery: Delivery) -> None:
        handled.append(delivery.payload)

    with queue.worker(lambda delivery: later(delivery)):
        drained(queue)
    assert handled == ["a"]


@on("memory", "sqlite")
def test_a_handler_may_stop_its_own_worker_from_the_background(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    worker = queue.worker(lambda delivery: worker.stop())
    worker.start()  # the handler may run before this returns
    eventually(lambda: not worker.alive)
    worker.stop()
    assert len(queue) == 2


# ── who works ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_worker_is_listed_with_its_machine_and_what_it_has_in_hand_until_it_ends(journal: Journal) -> None:
    queue, gate = journal.queue("jobs"), Gate()
    queue.push_many(range(3))
    with queue.worker(gate):
        eventually(lambda: len(gate.entered) == 1, "the worker has begun")
        [found] = queue.consumers()
        host = os.uname().nodename
        assert (found.name, found.host, found.state) == (f"{host}:{os.getpid()}", host, "active")
        assert (found.in_hand, found.holds, found.group) == (1, [1], "default") and found.since is not None
        assert [one.consumer for one in queue.pending()] == [found.name]
        gate.open.set()
        drained(queue)
        eventually(lambda: queue.consumers()[0].in_hand == 0, "its hands are empty")
    assert queue.consumers() == []


def test_a_worker_that_fails_stays_listed(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push("last")

    def dies(delivery: Delivery) -> None:
        raise SystemExit

    worker = queue.worker(dies, consumer="mailer").start()
    eventually(lambda: not worker.alive, "the worker has died")
    with pytest.raises(SystemExit):
        worker.stop()
    assert [one.name for one in queue.consumers()] == ["mailer"]


@only(on_disk=True)
def test_closing_lets_go_of_the_store_whatever_ended_a_worker(place: Place) -> None:
    journal = place.open(durability="process")
    queue = journal.queue("jobs")
    queue.push(1)

    def handle(delivery: Delivery) -> None:
        raise SystemExit(3)

    worker = queue.worker(handle).start()
    eventually(lambda: not worker.alive)
    with pytest.raises(SystemExit):
        journal.close()
    journal.close()
    with place.open(durability="process") as again:
        assert len(again.queue("jobs")) == 1


def test_a_batch_is_handled_in_one_call_and_acknowledged_together(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(25))
    batches: list[list[int]] = []

    def handle(deliveries: list[Delivery]) -> None:
        batches.append([delivery.payload for delivery in deliveries])

    with queue.worker(handle, batch=10):
        eventually(lambda: len(queue) == 0)
    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_a_batch_that_is_not_full_waits_for_more(journal: Journal) -> None:
    queue = journal.queue("jobs")
    batches: list[int] = []
    with queue.worker(lambda deliveries: batches.append(len(deliveries)), batch=3, wait=DEADLINE):
        for n in range(3):
            queue.push(n)
        eventually(lambda: len(queue) == 0)
    assert batches == [3]


def test_what_a_batch_handler_settles_itself_is_left_alone(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    queue.push_many(["good", "bad", "good"])

    def handle(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.payload == "bad":
                delivery.nack(error="spoiled")

    with queue.worker(handle, batch=5):
        eventually(lambda: [event.payload for event in queue.failed()] == ["bad"] and len(queue) == 0)


def test_a_batch_handler_that_raises_gives_every_message_back(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2, retry=0)
    queue.push_many(range(3))
    calls: list[list[int]] = []

    async def handle(deliveries: list[Delivery]) -> None:
        calls.append([delivery.attempt for delivery in deliveries])
        raise ValueError("none of them")

    with queue.worker(handle, batch=5):
        eventually(lambda: len(list(queue.failed())) == 3)
    assert sorted(attempt for call in calls for attempt in call) == [1, 1, 1, 2, 2, 2]


def test_a_worker_of_batches_that_is_stopped_gives_back_what_it_gathered(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push(1)
    worker = queue.worker(lambda deliveries: None, batch=2, wait=DEADLINE).start()
    eventually(lambda: queue.stats().in_flight == 1)
    worker.stop(DEADLINE)
    delivery = queue.take()
    assert delivery is not None and delivery.attempt == 1
    with pytest.raises(ConfigError, match="one batch at a time"):
        queue.worker(print, batch=2, concurrency=2)
    with pytest.raises(ConfigError, match="batch"):
        queue.worker(print, batch=0)


# ── one message after the other ──────────────────────────────────────────────────────────────────────────────────────
@only(on_disk=True)
def test_a_message_costs_a_worker_one_commit(place: Place) -> None:
    with place.open(durability="process") as journal:
        queue = journal.queue("jobs")
        queue.push_many(range(100))
        before = journal._core.writer.measures.commits  # type: ignore[attr-defined]
        with queue.worker(lambda delivery: None):
            drained(queue)
        assert journal._core.writer.measures.commits - before < 120  # type: ignore[attr-defined]


def test_a_worker_that_is_told_to_stop_takes_nothing_more(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(5))
    gate = Gate()
    worker = queue.worker(gate).start()
    eventually(lambda: gate.entered == [0])
    with pytest.raises(TimeoutError):
        worker.stop(0.01)
    gate.open.set()
    worker.stop(DEADLINE)
    assert gate.left == [0] and queue.stats().in_flight == 0
    assert [(one.payload, one.attempt) for one in queue.take_many(9)] == [(n, 1) for n in range(1, 5)]


def test_a_key_with_a_limit_goes_on_with_its_next_message(journal: Journal) -> None:
    queue = journal.queue("jobs", max_in_flight=1)
    queue.push_many([Draft("m", n, key="one") for n in range(20)])
    handled: list[int] = []
    with queue.worker(lambda delivery: handled.append(delivery.payload), concurrency=4):
        drained(queue)
    assert handled == list(range(20))


def test_as_many_are_taken_ahead_as_asked_for_and_in_order(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(40))
    handled: list[int] = []
    most = 0

    def handle(delivery: Delivery) -> None:
        nonlocal most
        most = max(most, queue.stats().in_flight)
        handled.append(delivery.payload)

    with queue.worker(handle, ahead=3):
        drained(queue)
    assert handled == list(range(40)) and most == 4


@on("memory", "sqlite")
def test_a_take_that_fails_keeps_no_message_from_being_acknowledged(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    take, handled = queues.take, list[int]()

    def fails_at_times(commit: Commit, taker: queues.LocalQueue, wanted: TakeRequest) -> Taken:
        if not wanted.wait:
            raise Corrupt("a damaged block")
        return take(commit, taker, wanted)

    monkeypatch.setattr(queues, "take", fails_at_times)
    with queue.worker(lambda delivery: handled.append(delivery.payload)):
        drained(queue)
    assert handled == [0, 1, 2] and not caplog.records


@on("memory", "sqlite")
def test_a_take_that_fails_is_a_failure_of_the_worker_which_begins_again(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("jobs")
    take, failures = queues.LocalQueue.take, [1]

    def fails_once(self: queues.LocalQueue, *given: Any) -> list[Delivery]:
        if failures:
            failures.pop()
            raise Corrupt("a damaged block")
        return take(self, *given)

    monkeypatch.setattr(queues.LocalQueue, "take", fails_once)
    monkeypatch.setattr(workers, "WORKER_RESTART_PAUSE", 0.001)
    with caplog.at_level(logging.WARNING, "penstock.worker"), queue.worker(lambda delivery: None, concurrency=3):
        queue.push_many(range(10))
        drained(queue)
    assert "restart 1 of" in caplog.text


@on("memory", "sqlite")
def test_hands_are_started_when_there_is_something_for_them(journal: Journal) -> None:
    queue = journal.queue("jobs")
    gate = Gate()
    with queue.worker(gate, concurrency=50) as worker:
        eventually(lambda: len(worker._hands) == 1)
        queue.push_many(range(3))
        eventually(lambda: len(gate.entered) == 3 and len(worker._hands) == 4, "three at work, and one that waits")
        gate.open.set()
        drained(queue)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_message_is_taken_twice_or_forgotten_while_workers_come_and_go(journal: Journal, concurrency: int) -> None:
    queue = journal.queue("jobs", max_attempts=100)
    handled: list[tuple[int, int]] = []
    for round_ in range(8):
        queue.push_many(range(round_ * 10, round_ * 10 + 10))
        with queue.worker(lambda one: handled.append((one.payload, one.attempt)), concurrency=concurrency, ahead=2):
            eventually(lambda least=round_ * 4: len(handled) >= least)  # type: ignore[misc]
    with queue.worker(lambda one: handled.append((one.payload, one.attempt)), concurrency=concurrency):
        drained(queue)
    assert sorted(handled) == [(n, 1) for n in range(80)]

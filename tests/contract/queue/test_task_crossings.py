"""Features of tasks that meet: time limits, steps, chains, joins, unique calls, keys, results that expire, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from journals import DEADLINE, eventually

import penstock
from penstock import Event, Journal, ManualClock, Retry, Tasks, TaskState, step
from penstock.core.queue.tasks import looking
from penstock.errors import ConfigError, GiveUp, ReplyFailed, StaleDelivery


@pytest.fixture
def tasks(journal: Journal) -> Tasks:
    return Tasks(journal)


def state(tasks: Tasks, id: str) -> TaskState:
    found = tasks.result(id)
    assert found is not None
    return found


def finish(tasks: Tasks, id: str, wanted: str) -> TaskState:
    """Works until a call is in a state."""
    workers = [worker.start() for worker in tasks.workers()]
    eventually(lambda: (found := tasks.result(id)) is not None and found.state == wanted)
    for worker in workers:
        worker.stop()
    return state(tasks, id)


# ── time limits ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_function_that_is_left_behind_keeps_no_step_and_pushes_no_call(journal: Journal, tasks: Tasks) -> None:
    release, ended, lost = threading.Event(), threading.Event(), []
    charged: list[int] = []

    def charge(order: int) -> int:
        charged.append(order)
        return order + 100

    @tasks.task(queue="orders", timeout="100ms", retry=Retry.fixed(0))
    def handle(order: int) -> int:
        paid = step("charge", charge, order)
        if penstock.current_task().attempt == 1:
            release.wait(DEADLINE)
            try:
                step("ship", lambda: 1)
            except StaleDelivery as error:
                lost.append(error)
            finally:
                ended.set()
        return paid

    @tasks.task(queue="bills")
    def bill(paid: int) -> int:
        return paid + 1000

    receipt = handle.then(bill).push(7)
    assert finish(tasks, receipt.id, "done").result == 1107
    release.set()
    assert ended.wait(DEADLINE) and len(lost) == 1
    assert charged == [7]
    assert (journal.topic("orders").latest, journal.topic("bills").latest) == (1, 1)


def test_a_worker_that_stops_does_not_wait_for_a_function_that_is_left_behind(journal: Journal, tasks: Tasks) -> None:
    release = threading.Event()

    @tasks.task(queue="q", timeout="20ms", max_attempts=1)
    def hang() -> None:
        release.wait(DEADLINE)

    id = hang.push().id
    begun = time.monotonic()
    assert finish(tasks, id, "failed").error == "TaskTimeout: task 'hang' took longer than 20 ms"
    assert time.monotonic() - begun < DEADLINE / 2
    release.set()


def test_a_coroutine_that_is_not_to_be_cancelled_is_left_behind(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.queue.tasks.running.TASK_KILL_SECONDS", 0.04)
    stubborn = threading.Event()

    @tasks.task(queue="q", timeout="20ms", max_attempts=1)
    async def hang() -> None:
        while not stubborn.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    workers = [worker.start() for worker in tasks.workers()]
    id = hang.push().id
    eventually(lambda: state(tasks, id).state == "failed")
    stubborn.set()
    for worker in workers:
        worker.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_traceback_of_a_time_limit_says_where_the_function_was(tasks: Tasks, is_async: bool) -> None:
    release = threading.Event()

    async def wait_here_async() -> None:
        await asyncio.sleep(DEADLINE)

    def wait_here() -> None:
        release.wait(DEADLINE)

    if is_async:

        @tasks.task(queue="q", timeout="20ms", max_attempts=1)
        async def hang() -> None:
            await wait_here_async()
    else:

        @tasks.task(queue="q", timeout="20ms", max_attempts=1)
        def hang() -> None:
            wait_here()

    found = finish(tasks, hang.push().id, "failed")
    release.set()
    assert found.traceback is not None
    first, *_ = found.traceback.partition("File ")[2].splitlines()
    assert __file__ in first and first.endswith("in hang")
    assert "in wait_here" in found.traceback


def test_a_call_that_waits_after_its_time_limit_is_the_one_that_is_unique(tasks: Tasks, clock: ManualClock) -> None:
    release = threading.Event()

    @tasks.task(queue="q", timeout="20ms", unique=True, retry=Retry.fixed("1h"))
    def index(page: str) -> None:
        release.wait(DEADLINE)

    first = index.push("a")
    workers = [worker.start() for worker in tasks.workers()]
    eventually(lambda: state(tasks, first.id).due is not None)
    for worker in workers:
        worker.stop()
    again = index.push("a")
    assert (again.duplicate, again.id) == (True, first.id)
    release.set()
    clock.advance("1h")
    assert finish(tasks, first.id, "done").attempts == 2
    assert not index.push("a").duplicate


def test_a_time_limit_sends_a_gathered_call_to_the_dead_letters_and_back(journal: Journal, tasks: Tasks) -> None:
    journal.queue("q", dead_letter="dead")
    release = threading.Event()

    @tasks.task(queue="q", timeout="50ms", max_attempts=1)
    def fetch(number: int) -> int:
        if number == 1:
            release.wait(DEADLINE)
        return number

    @tasks.task(queue="joined")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    together = tasks.gather(fetch.call(1), fetch.call(2)).then(total).push()
    late, done = (one.id for one in together.receipts)
    finish(tasks, late, "dead")
    finish(tasks, done, "done")
    held = state(tasks, together.id)
    assert held.state == "waiting" and held.progress is not None and held.progress.share == 0.5
    assert held.error == f"the call {late} of 'fetch' was given up: TaskTimeout: task 'fetch' took longer than 50 ms"
    release.set()
    assert journal.queue("dead").redrive() == 1 or journal.queue("q").redrive() == 1
    assert finish(tasks, together.id, "done").result == 3
    assert journal.topic("joined").latest == 1


def test_a_join_is_found_while_its_last_call_returns(
    journal: Journal, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tasks.task(queue="q")
    def fetch(number: int) -> int:
        return number

    @tasks.task(queue="joined")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    together = tasks.gather(fetch.call(1), fetch.call(2)).then(total).push()
    outcome_of, workers = looking._Search._outcome, [worker for worker in tasks.workers() if worker.queue.name == "q"]

    def outcome_while_the_calls_return(search: looking._Search, event: Event | None) -> Event | None:
        outcome = outcome_of(search, event)
        while workers:
            with workers.pop():
                eventually(lambda: journal.topic("joined").latest == 1)
        return outcome

    monkeypatch.setattr(looking._Search, "_outcome", outcome_while_the_calls_return)
    assert state(tasks, together.id).state == "waiting"
    assert journal.topic("joined").latest == 1
    assert finish(tasks, together.id, "done").result == 3


# ── chains and joins ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_unique_call_that_begins_a_chain_is_the_same_only_with_the_same_chain(journal: Journal, tasks: Tasks) -> None:
    @tasks.task(queue="q", unique=True)
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="words")
    def words(page: str, least: int = 1) -> str:
        return f"{page} {least}"

    alone, chain = fetch.push("a"), fetch.then(words).push("a")
    assert not chain.duplicate
    assert fetch.push("a").id == alone.id and fetch.then(words).push("a").id == chain.id
    assert not fetch.then(words.call(least=2)).push("a").duplicate
    assert finish(tasks, chain.id, "done").result == "a 1"
    both = tasks.gather(fetch.call("b"), fetch.call("b")).push().receipts
    assert both[0].id != both[1].id  # calls that are gathered are all made


def test_a_call_that_gives_up_ends_its_chain_for_those_who_wait(tasks: Tasks) -> None:
    @tasks.task(queue="q")
    def fetch(page: str) -> str:
        raise GiveUp("there is no such page")

    @tasks.task(queue="q")
    def words(page: str) -> int:
        return 1

    ticket = fetch.ask("a")
    receipt = fetch.then(words).push("a")
    found = finish(tasks, receipt.id, "failed")
    assert (found.task, found.error, found.reason) == ("fetch", "GiveUp: there is no such page", "rejected")
    with pytest.raises(ReplyFailed, match="there is no such page"):
        ticket.result(timeout=DEADLINE)


def test_options_that_a_later_call_cannot_have_are_refused(journal: Journal, tasks: Tasks) -> None:
    @tasks.task(queue="q")
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="q", key=lambda page: page)
    def store(page: str) -> None: ...

    for unfit in (fetch.using(headers={"tenant": "a"}), fetch.using(dedup="x"), fetch.using(delay="1m")):
        with pytest.raises(ConfigError, match=r"has no (headers|dedup|delay)="):
            fetch.then(unfit).push("a")
        with pytest.raises(ConfigError, match=r"has no (headers|dedup|delay)="):
            tasks.gather(unfit.call("a")).push()
    with pytest.raises(ConfigError, match="name the key"):
        fetch.then(store).push("a")
    assert journal.queues() == []
    receipt = fetch.using(headers={"tenant": "a"}).then(store.using(key="page")).push("a")
    finish(tasks, tasks.gather(store.call("b")).push().receipts[0].id, "done")
    assert finish(tasks, receipt.id, "done").task == "store"


@pytest.mark.parametrize("returned", [b"bytes", object()])
def test_a_result_that_the_next_call_cannot_take_gives_the_call_up(tasks: Tasks, returned: object) -> None:
    @tasks.task(queue="q")
    def fetch() -> object:
        return returned

    @tasks.task(queue="q")
    def store(page: object) -> None: ...

    found = finish(tasks, fetch.call().then(store).push().id, "failed")
    assert (found.task, found.reason) == ("fetch", "rejected") and "JSON" in str(found.error)


# ── results that expire ──────────────────────────────────────────────────────────────────────────────────────────────
def test_the_result_of_a_chain_is_kept_for_as_long_as_its_first_task_says(tasks: Tasks, clock: ManualClock) -> None:
    @tasks.task(queue="q", keep_results="1m")
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="q", keep_results="1h")
    def words(page: str) -> int:
        return len(page)

    @tasks.task(queue="q", keep_results="1h")
    def total(pages: list[str]) -> int:
        return len(pages)

    chain, joined = fetch.then(words).push("a"), tasks.gather(fetch.call("b")).then(total).push()
    finish(tasks, chain.id, "done")
    assert finish(tasks, joined.id, "done").result == 1
    clock.advance("2m")
    assert tasks.result(chain.id) is None and state(tasks, joined.id).state == "done"
    clock.advance("1h")
    assert tasks.result(joined.id) is None


def test_a_later_call_that_failed_is_known_while_its_message_is_there(
    journal: Journal, tasks: Tasks, clock: ManualClock
) -> None:
    down = [True]

    @tasks.task(queue="q")
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="words")
    def words(page: str) -> int:
        if down:
            raise GiveUp("down")
        return len(page)

    id = fetch.then(words).push("page").id
    found = finish(tasks, id, "failed")
    assert (found.task, found.queue, found.reason) == ("words", "words", "rejected")
    down.clear()
    assert journal.queue("words").redrive() == 1
    assert state(tasks, id).state == "waiting"
    held = journal.queue("words").take()
    assert held is not None and state(tasks, id).state == "running"
    held.release()
    assert finish(tasks, id, "done").result == 4


def test_a_chain_that_waits_for_longer_than_results_are_kept_is_known(
    journal: Journal, tasks: Tasks, clock: ManualClock
) -> None:
    @tasks.task(queue="q", keep_results="1m")
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="slow", keep_results="1m")
    def words(page: str) -> int:
        return len(page)

    @tasks.task(queue="slow", keep_results="1m")
    def total(pages: list[str]) -> int:
        return len(pages)

    chain, joined = fetch.then(words).push("page"), tasks.gather(fetch.call("b")).then(total).push()
    for delivery in journal.queue("q").take_many(2):
        delivery.ack(result="page")
    clock.advance("2h")
    journal.maintain()
    for id, task in ((chain.id, "words"), (joined.id, "total")):
        assert (state(tasks, id).state, state(tasks, id).task) == ("waiting", task)
    finish(tasks, chain.id, "done")
    assert finish(tasks, joined.id, "done").result == 1
    clock.advance("2m")
    assert tasks.result(chain.id) is None and tasks.result(joined.id) is None


def test_a_call_that_is_taken_away_is_known_no_longer_than_its_result(
    journal: Journal, tasks: Tasks, clock: ManualClock
) -> None:
    @tasks.task(queue="q", keep_results="1m")
    def fetch(page: str) -> str:
        return page

    @tasks.task(queue="words", keep_results="1m", max_attempts=1)
    def words(page: str) -> int:
        raise ValueError("no words")

    failed = fetch.then(words).push("a").id
    finish(tasks, failed, "failed")
    waiting = fetch.then(words).push("b").id
    delivery = journal.queue("q").take()
    assert delivery is not None
    delivery.ack(result="b")
    queue = journal.queue("words")
    assert state(tasks, waiting).state == "waiting"
    assert queue.discard([one.event.seq for one in queue.messages()]) == 2
    assert (state(tasks, failed).state, state(tasks, waiting).state) == ("dead", "dead")
    assert state(tasks, waiting).reason == "discarded"
    clock.advance("2m")
    assert tasks.result(failed) is None and tasks.result(waiting) is None


# ── by the clock ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_periodic_call_that_is_unique_does_not_pile_up(journal: Journal, tasks: Tasks, clock: ManualClock) -> None:
    @tasks.task(queue="q", unique=True)
    def tidy() -> str:
        return "tidy"

    tidy.every("1m")
    for _ in range(3):
        clock.advance("1m")
        eventually(lambda: len(journal.queue("q")) == 1)
    assert tidy.push().duplicate
    delivery = journal.queue("q").take()
    assert delivery is not None
    clock.advance("1m")
    eventually(lambda: journal.queue("q").stats().ready == 1)

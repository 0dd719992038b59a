"""Which failures of a task are tried again, how long a call may take, and what a call knows of itself."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from journals import DEADLINE, eventually

import penstock
from penstock import Delivery, Journal, ManualClock, Retry, Tasks
from penstock.errors import ConfigError, GiveUp, TaskTimeout, TryAgain


def run(journal: Journal, tasks: Tasks, id: str, *states: str) -> penstock.TaskState:
    """Works until a call is in one of some states."""
    workers = tasks.workers()
    for worker in workers:
        worker.start()
    eventually(lambda: tasks.result(id).state in states and journal.queue("q").stats().in_flight == 0)  # type: ignore[union-attr]
    for worker in workers:
        worker.stop()
    found = tasks.result(id)
    assert found is not None
    return found


def waits_again(journal: Journal, tasks: Tasks, id: str) -> penstock.TaskState:
    """Works until a call has failed once and waits."""
    workers = tasks.workers()
    for worker in workers:
        worker.start()
    eventually(lambda: journal.queue("q").stats().delayed == 1)
    for worker in workers:
        worker.stop()
    found = tasks.result(id)
    assert found is not None and found.attempts == 1
    return found


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_says_what_becomes_of_its_call(journal: Journal, clock: ManualClock, is_async: bool) -> None:
    tasks = Tasks(journal)
    errors: dict[str, Exception] = {
        "give up": GiveUp("no such address"),
        "again": TryAgain("come back later", after="5m"),
        "listed": KeyError("x"),
        "other": ValueError("bad"),
        "final": ConnectionRefusedError("never"),
    }
    options: penstock.core.queue.tasks.plan.TaskOptions = {
        "retry": Retry.fixed(7),
        "retry_on": (LookupError, ConnectionError),
        "give_up_on": ConnectionRefusedError,
    }

    if is_async:

        @tasks.task(queue="q", **options)
        async def fail(how: str) -> None:
            raise errors[how]
    else:

        @tasks.task(queue="q", **options)
        def fail(how: str) -> None:
            raise errors[how]

    for how in ("give up", "other", "final"):
        given_up = run(journal, tasks, fail.push(how).id, "failed")
        assert (given_up.attempts, given_up.reason) == (1, "rejected")
    assert given_up.error == "ConnectionRefusedError: never"
    for how, wait in (("again", 300), ("listed", 7)):
        now = clock.now_ms()
        again = waits_again(journal, tasks, fail.push(how).id)
        assert again.due is not None and round(again.due.timestamp() * 1000) == now + wait * 1000
        journal.queue("q").purge()


def test_giving_up_and_trying_again_are_for_every_handler(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", dead_letter="dead")

    def handle(delivery: Delivery) -> None:
        raise TryAgain(after=60) if delivery.payload == "again" else GiveUp("broken")

    queue.push("again")
    queue.push("broken")
    with queue.worker(handle):
        eventually(lambda: queue.stats().delayed == 1 and len(journal.queue("dead")) == 1)
    clock.advance(60)
    with pytest.raises(GiveUp), queue.receive() as delivery:
        raise GiveUp("no")
    assert delivery is not None and len(journal.queue("dead")) == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_takes_too_long_is_a_failed_attempt(journal: Journal, is_async: bool) -> None:
    tasks, release, ended = Tasks(journal), threading.Event(), []
    if is_async:

        @tasks.task(queue="q", timeout="50ms", max_attempts=1)
        async def slow() -> None:
            try:
                await asyncio.sleep(DEADLINE)
            finally:
                ended.append("cancelled")
    else:

        @tasks.task(queue="q", timeout="50ms", max_attempts=1)
        def slow() -> None:
            release.wait(DEADLINE)
            ended.append("left behind")

    found = run(journal, tasks, slow.push().id, "failed")
    assert found.error == "TaskTimeout: task 'slow' took longer than 50 ms"
    release.set()
    eventually(lambda: ended == ["cancelled" if is_async else "left behind"])


def test_a_time_limit_is_tried_again_unless_the_task_gives_up_on_it(journal: Journal, clock: ManualClock) -> None:
    tasks, release = Tasks(journal), threading.Event()

    @tasks.task(queue="q", timeout="20ms", retry_on=ConnectionError, retry=Retry.fixed(9))
    def again() -> None:
        release.wait(DEADLINE)

    @tasks.task(queue="q", timeout="20ms", give_up_on=TaskTimeout)
    def never() -> None:
        release.wait(DEADLINE)

    assert waits_again(journal, tasks, again.push().id).error == "TaskTimeout: task 'again' took longer than 20 ms"
    journal.queue("q").purge()
    assert run(journal, tasks, never.push().id, "failed").reason == "rejected"
    release.set()


def test_a_functions_own_timeout_is_its_own(journal: Journal) -> None:
    tasks = Tasks(journal)

    @tasks.task(queue="q", timeout="1m", max_attempts=1)
    def own() -> None:
        raise TimeoutError("upstream")

    @tasks.task(queue="q", timeout="1m", max_attempts=1)
    async def own_async() -> None:
        raise TimeoutError("upstream")

    for one in (own, own_async):
        assert run(journal, tasks, one.push().id, "failed").error == "TimeoutError: upstream"


def test_a_call_knows_itself_without_being_told(journal: Journal) -> None:
    tasks, seen = Tasks(journal), []

    def deep() -> tuple[str, int, int]:
        task = penstock.current_task()
        return task.name, task.attempt, task.delivery.seq

    @tasks.task(queue="q")
    def plain() -> None:
        seen.append(deep())

    @tasks.task(queue="q", timeout="1m")
    def limited() -> None:
        seen.append(deep())

    @tasks.task(queue="q")
    async def later() -> None:
        await asyncio.sleep(0)
        seen.append(deep())

    for one in (plain, limited, later):
        run(journal, tasks, one.push().id, "done")
    assert seen == [("plain", 1, 1), ("limited", 1, 2), ("later", 1, 3)]
    with pytest.raises(ConfigError, match="no task runs here"):
        penstock.current_task()


def test_calls_of_one_key_run_one_at_a_time(journal: Journal) -> None:
    tasks = Tasks(journal)

    @tasks.task(queue="q", key=lambda order, step: f"order-{order}")
    def work(order: int, step: str) -> None: ...

    @tasks.task(queue="q", key="report")
    def report() -> None: ...

    for step in ("pack", "ship"):
        work.push(7, step)
        report.push()
    work.push(order=8, step="pack")
    keys = [message.key for message in journal.queue("q")]
    assert keys == ["order-7", "report", "order-7", "report", "order-8"]
    assert [one.seq for one in journal.queue("q").take_many(10)] == [1, 2, 5]


def test_a_call_is_unique_while_it_waits(journal: Journal, clock: ManualClock) -> None:
    tasks, queue = Tasks(journal), journal.queue("q")

    @tasks.task(queue="q", unique=True)
    def index(page: str, deep: bool = False) -> None: ...

    @tasks.task(queue="q", unique=lambda user, reason: user)
    def mail(user: str, reason: str) -> None: ...

    first = index.push("a")
    again = index.push("a")
    assert again.duplicate and (again.seq, again.id) == (first.seq, first.id)
    assert not index.push("b").duplicate and not index.push("a", deep=True).duplicate
    assert not mail.push("ada", "hello").duplicate and mail.push("ada", "bye").duplicate
    assert len(queue) == 4
    delivery = queue.take()
    assert delivery is not None and delivery.seq == first.seq
    second = index.push("a")
    assert not second.duplicate  # a worker has the other one: what it read may be old
    assert index.push("a").seq == second.seq
    delivery.nack(delay=60)
    queue.purge()
    assert not index.push("a").duplicate
    queue.purge()
    late = index.using(delay="1h").push("c")
    assert index.push("c").seq == late.seq
    clock.advance("1h")
    held = queue.take()
    assert held is not None
    held.nack(delay="1m")
    assert index.push("c").seq == late.seq  # it waits for its next attempt
    clock.advance("1m")
    last = queue.take()
    assert last is not None
    last.nack(dead=True)
    assert not index.push("c").duplicate
    with pytest.raises(ConfigError, match="one by one"):
        queue.push_many([1, 2], headers={"unique": "x"})


def test_a_task_has_a_priority_and_a_call_its_own(journal: Journal) -> None:
    journal.queue("q", priority=True)
    tasks = Tasks(journal)

    @tasks.task(queue="q", priority=5)
    def note(text: str) -> None: ...

    note.push("usual")
    note.using(priority=9).push("first")
    note.using(priority=-1).push("last")
    assert [one.payload["args"][0] for one in journal.queue("q").take_many(3)] == ["first", "usual", "last"]


def test_a_success_is_one_line_and_a_traceback_begins_in_the_handler(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.queue")
    tasks = Tasks(journal)

    @tasks.task(queue="q", max_attempts=1)
    def fine() -> None: ...

    @tasks.task(queue="q", max_attempts=1, timeout="1m")
    def broken() -> None:
        raise ValueError("down")

    @tasks.task(queue="q", max_attempts=1)
    async def broken_async() -> None:
        raise ValueError("down")

    run(journal, tasks, fine.push().id, "done")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(said) == 1 and said[0].startswith("q#1 fine done in ") and said[0].endswith(", attempt 1")
    for one in (broken, broken_async):
        caplog.clear()
        found = run(journal, tasks, one.push().id, "failed")
        for text in (str(found.traceback), caplog.text):
            files = [line for line in text.splitlines() if line.startswith("  File ")]
            assert len(files) == 1 and "test_task_failures.py" in files[0], text


def test_odd_options_of_a_task_are_refused(journal: Journal) -> None:
    tasks = Tasks(journal)
    for options, words in (
        ({"timeout": "soon"}, "timeout"),
        ({"retry_on": "ValueError"}, "retry_on names exceptions"),
        ({"give_up_on": (3,)}, "give_up_on names exceptions"),
        ({"key": 5}, "key must be text"),
        ({"retries": 3}, "no option 'retries'"),
    ):
        with pytest.raises(ConfigError, match=words):
            tasks.task(**options)

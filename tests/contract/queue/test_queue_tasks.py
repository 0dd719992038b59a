"""Tasks: functions that are pushed, and called by workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest
from journals import DEADLINE, eventually

import penstock
from penstock import Journal, ManualClock, Retry, Tasks
from penstock.errors import ConfigError, InvalidName, ReplyFailed


class Address(msgspec.Struct):
    street: str
    since: datetime


def run_until_empty(journal: Journal, tasks: Tasks) -> None:
    workers = tasks.workers()
    for worker in workers:
        worker.start()
    eventually(lambda: all(len(journal.queue(name)) == 0 for name in tasks.queues()), "all is settled")
    for worker in workers:
        worker.stop()


def test_a_pushed_call_is_made_by_a_worker(journal: Journal) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task(queue="mail")
    def send(to: str, *rest: int, subject: str = "hello") -> None:
        calls.append((to, rest, subject))

    @tasks.task(queue="other", name="sums.add")
    def add(a: int, b: int) -> int:
        return a + b

    send.push("ada", 1, 2, subject="news")
    asyncio.run(send.push_async(to="bob"))
    ticket = add.ask(1, b=2)
    assert add(3, 4) == 7
    assert (tasks.names(), tasks.queues()) == (["send", "sums.add"], ["mail", "other"])
    assert journal.queue("other").peek()[0].kind == "sums.add"
    run_until_empty(journal, tasks)
    assert calls == [("ada", (1, 2), "news"), ("bob", (), "hello")]
    assert ticket.result(DEADLINE) == 3


def test_coroutines_and_functions_share_a_queue(journal: Journal) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task(queue="q")
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        calls.append(number)
        return number

    @tasks.task(queue="q")
    def now(number: int) -> int:
        calls.append(number)
        return number

    tickets = [later.ask(1), now.ask(2)]
    run_until_empty(journal, tasks)
    assert sorted(calls) == [1, 2]
    assert [ticket.result(DEADLINE) for ticket in tickets] == [1, 2]


def test_arguments_come_back_as_the_annotations_say(journal: Journal) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task(queue="q")
    def move(who: str, to: Address, when: datetime) -> None:
        calls.append((who, to, when))

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    move.push("ada", to=Address("Main", moment), when=moment)
    run_until_empty(journal, tasks)
    assert calls == [("ada", Address("Main", moment), moment)]


def test_arguments_that_do_not_fit_are_refused_before_anything_is_pushed(journal: Journal) -> None:
    tasks = Tasks(journal)

    @tasks.task(queue="q")
    def send(to: object) -> None: ...

    for push in (lambda: send.push(), lambda: send.push(1, 2), lambda: send.push(too="ada")):
        with pytest.raises(TypeError):
            push()
    with pytest.raises(ConfigError, match="JSON"):
        send.push(object())
    assert len(journal.queue("q")) == 0


def test_a_message_that_its_task_cannot_be_called_with_is_given_up(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("q", dead_letter="dead")
    tasks = Tasks(journal)

    @tasks.task(queue="q")
    def send(to: int) -> None: ...

    queue.push({"args": [1, 2]}, kind="send")
    queue.push({"args": ["many"]}, kind="send")
    queue.push("nonsense", kind="send")
    run_until_empty(journal, tasks)
    letters = journal.queue("dead").peek(10)
    errors = [letter.headers["dead-error"] for letter in letters]
    assert all("task 'send' cannot be called with this message" in error for error in errors)
    assert all(letter.headers["dead-attempts"] == "1" for letter in letters)
    assert not any("File" in letter.headers["dead-traceback"] for letter in letters)  # none of it is theirs
    assert [record.levelname for record in caplog.records if "cannot be called" in record.message] == ["ERROR"] * 3


def test_a_failing_task_is_tried_again_when_its_retry_says_so(journal: Journal, clock: ManualClock) -> None:
    tasks, attempts = Tasks(journal), []

    @tasks.task(queue="q", retry=Retry.fixed(7), max_attempts=2)
    def fail() -> None:
        attempts.append(clock.now_ms())
        raise ValueError("down")

    ticket = fail.ask()
    (worker,) = tasks.workers()
    with worker:
        eventually(lambda: journal.queue("q").stats().delayed == 1, "it waits for its retry")
        assert len(attempts) == 1
        clock.advance(7)
        with pytest.raises(ReplyFailed, match="ValueError: down"):
            ticket.result(DEADLINE)
    assert attempts[1] - attempts[0] == 7000


def test_a_push_has_the_options_of_a_queues_push(journal: Journal, clock: ManualClock) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task(queue="q")
    def note(text: str) -> None:
        calls.append(text)

    note.using(delay=60, dedup="once").push("a")
    assert note.using(dedup="once").push("a").duplicate
    assert journal.queue("q").take() is None
    clock.advance(60)
    run_until_empty(journal, tasks)
    assert calls == ["a"]
    with pytest.raises(ConfigError, match="kind"):
        note.using(kind="other")


def test_tasks_without_a_journal_push_to_the_one_in_use(journal: Journal) -> None:
    tasks = Tasks()

    @tasks.task(queue="q")
    def note(text: str) -> None: ...

    with penstock.use(journal):
        note.push("a")
    assert len(journal.queue("q")) == 1


def test_what_is_no_task_is_refused(journal: Journal) -> None:
    tasks = Tasks(journal)

    @tasks.task(queue="q")
    def note() -> None: ...

    with pytest.raises(ConfigError, match="already"):
        tasks.task(queue="q", name="note")(lambda: None)
    with pytest.raises(ConfigError, match="function"):
        tasks.task(queue="q")(Address)
    with pytest.raises(ConfigError, match="retry"):
        tasks.task(queue="q", retry=5)
    with pytest.raises(InvalidName):
        tasks.task(queue="no/name")


def test_a_task_needs_no_arguments(journal: Journal) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task
    def send(to: str) -> None:
        calls.append(to)

    send.push("ada")
    assert (send.queue, tasks.queues()) == ("tasks", ["tasks"])
    run_until_empty(journal, tasks)
    assert calls == ["ada"]


def test_a_task_is_called_by_the_clock(journal: Journal, clock: ManualClock) -> None:
    tasks, calls = Tasks(), []

    @tasks.task(queue="reports")
    def report(name: str, days: int = 1) -> None:
        calls.append((name, days))

    report.every("1h", args=["sales"])
    report.using(key="a").at(cron="30 6 * * *", kwargs={"name": "stock", "days": 7}, name="stock")
    with pytest.raises(TypeError):
        report.every("1h")
    with pytest.raises(ConfigError, match="is no duration"):
        report.every("hourly", args=["sales"], name="other")
    with pytest.raises(ConfigError, match="another name="):
        report.every("2h", args=["sales"])
    with pytest.raises(ConfigError, match="no delay="):
        report.using(delay=5).every("1h", args=["sales"])
    tasks.bind(journal)
    workers = tasks.workers()  # the journal is known by now
    found = {one.name: (one.interval, one.cron, one.missed) for one in journal.queue("reports").schedules()}
    assert found == {"report": (3600, None, "last"), "stock": (None, "30 6 * * *", "last")}
    with workers[0]:
        clock.advance(3600)
        eventually(lambda: ("sales", 1) in calls, "the hour's call is made")


def test_of_calls_that_the_clock_missed_the_last_is_made(
    journal: Journal, clock: ManualClock, reopen: Callable[[Journal], Journal]
) -> None:
    tasks = Tasks(journal)

    @tasks.task
    def report() -> None: ...

    report.every("10s")
    journal.close()
    clock.advance(1005)
    queue = reopen(journal).queue("tasks")
    eventually(lambda: len(queue) == 1, "one tick is made up for")
    clock.advance(10)
    eventually(lambda: len(queue) == 2, "and the next comes at its time")


def test_a_message_of_an_unknown_task_waits_for_a_worker_that_has_it(
    journal: Journal, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    journal.queue("q", max_attempts=1)
    here, elsewhere, calls = Tasks(journal), Tasks(journal), []

    @here.task(queue="q")
    def other() -> None: ...

    @elsewhere.task(queue="q")
    def send(to: str) -> None:
        calls.append(to)

    send.push("ada")
    send.push("bob")
    (worker,) = here.workers()
    with worker:
        eventually(lambda: journal.queue("q").stats().delayed == 2, "nobody here has the task")
        clock.advance(5)
        eventually(lambda: journal.queue("q").stats().delayed == 2, "and still has not")
    said = [record for record in caplog.records if "no task 'send'" in record.message]
    assert [record.levelname for record in said] == ["ERROR"]  # once a minute, not for each message
    assert "this program has other" in said[0].message
    clock.advance(5)
    run_until_empty(journal, elsewhere)
    assert sorted(calls) == ["ada", "bob"]


def test_a_message_of_an_unknown_task_is_given_up_where_the_program_says_so(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.queue("q", dead_letter="dead")
    tasks = Tasks(journal, unknown="dead")

    @tasks.task(queue="q")
    def send(to: int) -> None: ...

    queue.push({"args": [], "kwargs": {}}, kind="sned")
    run_until_empty(journal, tasks)
    (letter,) = journal.queue("dead").peek(10)
    assert "no task 'sned'" in letter.headers["dead-error"] and "send" in letter.headers["dead-error"]
    assert "no task 'sned'" in caplog.text
    with pytest.raises(ConfigError, match='"wait" or "dead"'):
        Tasks(journal, unknown="go")  # type: ignore[arg-type]


def test_arguments_are_checked_against_their_types_when_they_are_pushed(journal: Journal) -> None:
    tasks, calls = Tasks(journal), []

    @tasks.task(queue="q")
    def send(to: str, *counts: int, at: datetime | None = None, raw: bytes = b"", **rest: Address) -> None:
        calls.append((to, counts, at, raw, rest))

    @tasks.task(queue="q")
    def untyped(value, table: dict[int, str] | None = None) -> None:  # type: ignore[no-untyped-def]
        calls.append((value, table))

    with pytest.raises(TypeError, match=r"send\(\) wants to: str, not 3"):
        send.push(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="counts: int, not 'two'"):
        send.push("ada", 1, "two")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="home: Address"):
        send.push("ada", home="Main Street")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key 1"):
        untyped.push({1: 2})
    with pytest.raises(ConfigError, match="without a time zone"):
        untyped.push([datetime(2026, 1, 2)])
    assert len(journal.queue("q")) == 0
    home, moment = Address("Main", datetime(2026, 1, 2, tzinfo=UTC)), datetime(2026, 1, 2)
    send.push("ada", 1, 2, at=moment, raw=b"\xff", home=home)  # what has a type comes back as it was
    untyped.push("x", {1: "one"})
    run_until_empty(journal, tasks)
    assert calls == [("ada", (1, 2), moment, b"\xff", {"home": home}), ("x", {1: "one"})]


def test_a_handler_without_a_parameter_is_refused(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="called with one argument"):
        journal.queue("q").worker(lambda: None)
    with pytest.raises(ConfigError, match="called with one argument"):
        journal.queue("q").worker(lambda delivery, other: None)


def test_run_is_refused_where_it_could_not_end_or_would_do_nothing(journal: Journal) -> None:
    tasks = Tasks(journal)
    with pytest.raises(ConfigError, match="no tasks to run"):
        tasks.run()

    @tasks.task(queue="q")
    async def send() -> None: ...

    async def in_a_loop() -> None:
        tasks.run()

    with pytest.raises(ConfigError, match="keep this event loop"):
        asyncio.run(in_a_loop())
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="main thread"):
        pool.submit(tasks.run).result()

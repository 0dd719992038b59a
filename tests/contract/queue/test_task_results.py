"""What became of a call, asked for by the id of its receipt."""

from __future__ import annotations

import asyncio

import pytest
from journals import DEADLINE, eventually

from penstock import Journal, ManualClock, Retry, Tasks
from penstock.core.clock import from_ms
from penstock.errors import ConfigError, ReplyFailed


@pytest.fixture
def tasks(journal: Journal) -> Tasks:
    tasks = Tasks(journal)

    @tasks.task(queue="mail", max_attempts=2, retry=Retry.fixed(10))
    def send(to: str) -> str:
        if to == "nobody":
            raise LookupError("no such address")
        return f"sent to {to}"

    return tasks


def push(tasks: Tasks, to: str) -> str:
    return tasks["send"].push(to).id


def state_of(tasks: Tasks, id: str) -> str:
    found = tasks.result(id)
    return "unknown" if found is None else found.state


def test_a_call_waits_runs_and_is_done(journal: Journal, tasks: Tasks, clock: ManualClock) -> None:
    other = Tasks(journal)  # any program may ask: it needs no more than the id
    pushed = clock.now_ms()
    id = push(tasks, "ada")
    waiting = other.result(id)
    assert waiting is not None
    assert (waiting.state, waiting.task, waiting.queue, waiting.seq) == ("waiting", "send", "mail", 1)
    assert (waiting.attempts, waiting.pushed_at, waiting.result) == (0, from_ms(pushed), None)
    clock.advance(1)
    delivery = journal.queue("mail").take(consumer="w1")
    assert delivery is not None
    running = other.result(id)
    assert running is not None
    assert (running.state, running.attempts, running.consumer) == ("running", 1, "w1")
    assert running.started_at == from_ms(pushed + 1000)
    clock.advance(2)
    delivery.ack(result="sent to ada")
    done = other.result(id)
    assert done is not None
    assert (done.state, done.result, done.attempts, done.error) == ("done", "sent to ada", 1, None)
    assert (done.pushed_at, done.started_at) == (from_ms(pushed), from_ms(pushed + 1000))
    assert done.finished_at == from_ms(pushed + 3000)
    assert asyncio.run(other.result_async(id)) == done
    for unknown in ("018bcfe5-6800-76ca-9cd3-91dd7c4312f0", "nonsense"):
        assert other.result(unknown) is None


def test_a_failed_call_says_why_and_when_it_is_tried_again(journal: Journal, tasks: Tasks, clock: ManualClock) -> None:
    id = push(tasks, "nobody")
    (worker,) = tasks.workers()
    with worker:
        eventually(lambda: journal.queue("mail").stats().delayed == 1, "it waits for its second attempt")
        retried = tasks.result(id)
        assert retried is not None
        assert (retried.state, retried.attempts, retried.max_attempts) == ("waiting", 1, 2)
        assert retried.error == "LookupError: no such address" and "send" in str(retried.traceback)
        assert retried.due is not None
        clock.advance(10)
        eventually(lambda: state_of(tasks, id) == "failed", "it is given up")
    failed = tasks.result(id)
    assert failed is not None
    assert (failed.reason, failed.attempts) == ("attempts exhausted", 2)
    assert journal.queue("mail").redrive() == 1
    assert state_of(tasks, id) == "waiting"


def test_a_call_is_found_wherever_its_message_went(journal: Journal, tasks: Tasks) -> None:
    mail = journal.queue("mail", dead_letter="dead")
    id = push(tasks, "ada")
    mail.take().nack(dead=True, error="no route")
    dead = tasks.result(id)
    assert dead is not None
    assert (dead.state, dead.reason, dead.error, dead.attempts) == ("dead", "rejected", "no route", 1)
    mail.redrive()
    assert state_of(tasks, id) == "waiting"
    mail.move(journal.queue("later"))
    moved = tasks.result(id)
    assert moved is not None and (moved.state, moved.queue, moved.id) == ("waiting", "later", id)
    journal.queue("later").take().ack(result="at last")
    done = tasks.result(id)
    assert done is not None and (done.state, done.result, done.queue) == ("done", "at last", "later")
    purged = push(tasks, "bob")
    mail.purge()
    gone = tasks.result(purged)
    assert gone is not None and (gone.state, gone.reason) == ("dead", "removed")


def test_results_are_kept_as_long_as_the_program_says(journal: Journal, clock: ManualClock) -> None:
    tasks = Tasks(journal, keep_results="1d")

    @tasks.task(queue="q")
    def usual() -> None: ...

    @tasks.task(queue="q", keep_results="10m")
    def short() -> None: ...

    @tasks.task(queue="q", keep_results=None)
    def never() -> None: ...

    ids = [usual.push().id, short.push().id, never.push().id]
    assert journal.queue("q").ack_many(journal.queue("q").take_many(3)) == 3

    def states() -> list[str]:
        return [state_of(tasks, id) for id in ids]

    assert states() == ["done", "done", "unknown"]
    clock.advance("11m")
    assert states() == ["done", "unknown", "unknown"]
    clock.advance("23h")
    assert states() == ["done", "unknown", "unknown"]
    clock.advance("1h")
    assert states() == ["unknown"] * 3
    with pytest.raises(ConfigError, match="keep_results"):
        Tasks(journal, keep_results="long")


def test_bytes_come_back_as_bytes(journal: Journal, tasks: Tasks) -> None:
    id = push(tasks, "ada")
    journal.queue("mail").take().ack(result=b"\x00\xff")
    found = tasks.result(id)
    assert found is not None and found.result == b"\x00\xff"


def test_a_ticket_and_the_id_say_the_same(journal: Journal, tasks: Tasks, clock: ManualClock) -> None:
    ticket = tasks["send"].ask("nobody")
    (worker,) = tasks.workers()
    with worker:
        eventually(lambda: journal.queue("mail").stats().delayed == 1, "it waits for its second attempt")
        clock.advance(10)
        with pytest.raises(ReplyFailed, match="no such address"):
            ticket.result(DEADLINE)
    assert state_of(tasks, ticket.receipt.id) == "failed"


def test_tasks_of_a_fanout_queue_keep_no_results(journal: Journal) -> None:
    journal.queue("news", mode="fanout").add_group("default")
    tasks = Tasks(journal)

    @tasks.task(queue="news")
    def tell(what: str) -> None: ...

    id = tell.push("hello").id
    assert state_of(tasks, id) == "waiting"
    journal.queue("news").take().ack()
    assert state_of(tasks, id) == "unknown"


def test_run_times_are_known_for_each_task(journal: Journal, tasks: Tasks, clock: ManualClock) -> None:
    mail = journal.queue("mail")
    for seconds in range(1, 101):
        push(tasks, "ada")
        delivery = mail.take()
        clock.advance(seconds / 10)
        delivery.ack()
    push(tasks, "ada")
    mail.take().nack(dead=True)
    (times,) = mail.task_times()
    assert (times.task, times.done, times.failed, times.recent) == ("send", 100, 1, 100)
    assert times.p50 == pytest.approx(5.0, rel=0.1) and times.p95 == pytest.approx(9.5, rel=0.1)
    clock.advance("2h")
    (times,) = mail.task_times()
    assert (times.done, times.recent, times.p50) == (100, 0, None)

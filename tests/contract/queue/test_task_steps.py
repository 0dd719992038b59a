"""Steps of a task are not repeated by a later attempt; and a call says how far it is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from journals import eventually

import penstock
from penstock import Journal, Tasks
from penstock.errors import ConfigError, StaleDelivery

PAID = datetime(2026, 1, 2, tzinfo=UTC)


def finish(journal: Journal, tasks: Tasks, id: str, state: str) -> penstock.TaskState:
    workers = tasks.workers()
    for worker in workers:
        worker.start()
    eventually(lambda: tasks.result(id).state == state)  # type: ignore[union-attr]
    for worker in workers:
        worker.stop()
    found = tasks.result(id)
    assert found is not None
    return found


@pytest.fixture
def calls() -> list[str]:
    return []


def order_task(tasks: Tasks, calls: list[str], fails: list[bool]) -> penstock.Task[[int], str]:
    """A task of two steps and a bit, which fails after the first as long as `fails` says so."""

    def charge(order: int) -> datetime:
        calls.append(f"charge {order}")
        return PAID

    async def ship(order: int, when: datetime) -> tuple[str, int]:
        calls.append(f"ship {order}")
        return "parcel", order

    @tasks.task(queue="orders", max_attempts=1)
    async def handle(order: int) -> str:
        paid = await asyncio.to_thread(penstock.step, "charge", charge, order)
        assert paid == PAID  # what the annotation says, also the second time
        if fails.pop():
            raise ConnectionError("down")
        parcel = await penstock.step("ship", ship, order, when=paid)
        assert parcel == ("parcel", order)
        return parcel[0]

    return handle


def test_a_step_is_not_repeated_when_its_task_runs_again(journal: Journal, calls: list[str]) -> None:
    tasks = Tasks(journal)
    handle = order_task(tasks, calls, [False, True, True])
    id = handle.push(7).id
    for _ in range(2):
        finish(journal, tasks, id, "failed")
        assert journal.queue("orders").redrive() == 1
    assert finish(journal, tasks, id, "done").result == "parcel"
    assert calls == ["charge 7", "ship 7"]
    other = handle.push(8)
    calls.clear()
    fails_no_more = finish(journal, tasks, other.id, "failed")  # pops from an empty list
    assert "IndexError" in str(fails_no_more.error) and calls == ["charge 8"]


def test_steps_go_with_their_message_to_the_dead_letters_and_back(journal: Journal, calls: list[str]) -> None:
    orders = journal.queue("orders", dead_letter="dead")
    tasks = Tasks(journal)
    id = order_task(tasks, calls, [False, True, True]).push(7).id
    finish(journal, tasks, id, "dead")
    assert orders.redrive() == 1
    finish(journal, tasks, id, "dead")
    assert orders.redrive() == 1
    assert orders.move(journal.queue("other")) == 1 and journal.queue("other").move(orders) == 1
    assert finish(journal, tasks, id, "done").result == "parcel"
    assert calls == ["charge 7", "ship 7"]


def test_a_worker_that_has_lost_the_message_keeps_no_step(journal: Journal) -> None:
    queue = journal.queue("orders")
    queue.push(1)
    first = queue.take()
    assert first is not None
    held = penstock.RunningTask("handle", first)
    assert held.step("one", lambda: 1) == 1
    first.release()
    with pytest.raises(StaleDelivery):
        held.step("two", lambda: 2)
    with pytest.raises(StaleDelivery):
        held.progress(0.5)
    second = queue.take()
    assert second is not None
    again = penstock.RunningTask("handle", second)
    assert again.step("one", lambda: 5) == 1
    assert again.step("two", lambda: 3) == 3
    second.ack()
    queue.push(2)
    third = queue.take()
    assert third is not None and penstock.RunningTask("handle", third).step("one", lambda: 7) == 7


def test_steps_of_a_fanout_queue_are_each_groups_own(journal: Journal) -> None:
    news = journal.queue("news", mode="fanout")
    for group in ("a", "b"):
        news.add_group(group)
    news.push("x")
    for group in ("a", "b"):
        delivery = news.take(group=group)
        assert delivery is not None
        assert penstock.RunningTask("tell", delivery).step("one", lambda group=group: group) == group
        delivery.release()
    for group in ("a", "b"):
        delivery = news.take(group=group)
        assert delivery is not None and penstock.RunningTask("tell", delivery).step("one", lambda: "new") == group


def test_odd_steps_are_refused(journal: Journal) -> None:
    queue = journal.queue("orders")
    queue.push(1)
    delivery = queue.take()
    assert delivery is not None
    task = penstock.RunningTask("handle", delivery)
    assert task.step("one", lambda: None) is None
    with pytest.raises(ConfigError, match="two steps 'one'"):
        task.step("one", lambda: 1)
    with pytest.raises(ConfigError, match="JSON"):
        task.step("two", object)
    with pytest.raises(ConfigError, match="no task runs here"):
        penstock.step("one", lambda: 1)
    for share in (-0.1, 1.5, "half", True):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            task.progress(share)  # type: ignore[arg-type]


def test_a_call_says_how_far_it_is(journal: Journal) -> None:
    tasks, asked = Tasks(journal), []

    @tasks.task(queue="q")
    def load(rows: int) -> None:
        penstock.progress(0.25, "reading")
        found = tasks.result(penstock.current_task().id)
        assert found is not None and found.progress is not None
        asked.append((found.state, found.progress.share, found.progress.text))
        (pending,) = journal.queue("q").pending()
        assert pending.progress == found.progress
        penstock.progress(1)

    id = load.push(3).id
    assert finish(journal, tasks, id, "done").progress is None
    assert asked == [("running", 0.25, "reading")]


def test_the_step_that_runs_is_told_with_the_steps_that_returned(journal: Journal) -> None:
    queue = journal.queue("q", lease=3600)
    queue.push(1)
    delivery = queue.take(consumer="worker-1")
    assert delivery is not None
    task = penstock.RunningTask("handle", delivery)

    def running() -> tuple[float, str | None, list[str]]:
        (shown,), (pending,), (worker,) = queue.messages(), queue.pending(), queue.consumers()
        assert shown.progress is not None and shown.progress == pending.progress == worker.progress[delivery.seq]
        return shown.progress.share, shown.progress.step, shown.steps

    assert task.step("reserve", running) == (0, "reserve", [])
    task.progress(0.5, "reserved")
    assert task.step("charge", running) == (0.5, "charge", ["reserve"])
    assert running() == (0.5, None, ["charge", "reserve"])
    delivery.release()
    (waiting,) = queue.messages()
    assert waiting.progress is not None and waiting.progress.text == "reserved"  # of the last attempt
    assert queue.take(consumer="worker-2") is not None
    (shown,) = queue.messages()
    assert (shown.progress, shown.steps) == (None, ["charge", "reserve"])  # of this attempt


def test_a_step_does_not_begin_when_the_message_was_lost(journal: Journal, calls: list[str]) -> None:
    queue = journal.queue("q")
    queue.push(1)
    delivery = queue.take()
    assert delivery is not None
    task = penstock.RunningTask("handle", delivery)
    assert task.step("reserve", lambda: 1) == 1
    delivery.release()
    with pytest.raises(StaleDelivery):
        task.step("charge", calls.append, "charged")
    assert calls == []

"""Calls that follow each other, and calls whose results are joined."""

from __future__ import annotations

import asyncio

import pytest
from journals import eventually

import penstock
from penstock import Journal, Tasks
from penstock.errors import ConfigError


@pytest.fixture
def tasks(journal: Journal) -> Tasks:
    tasks = Tasks(journal)
    broken = [True]

    @tasks.task(queue="one")
    def fetch(url: str) -> str:
        return f"page {url}"

    @tasks.task(queue="two", max_attempts=1)
    def parse(page: str, depth: int = 1) -> list[str]:
        if page == "page bad" and broken:
            broken.clear()
            raise ValueError("unreadable")
        return [page] * depth

    @tasks.task(queue="one")
    async def count(pages: list[str], start: int = 0) -> int:
        return len(pages) + start

    @tasks.task(queue="two")
    def total(parts: list[int], factor: int = 1) -> int:
        return sum(parts) * factor

    @tasks.task(queue="one")
    def width(parts: list[list[str]]) -> int:
        return len(parts)

    return tasks


def finish(tasks: Tasks, id: str, state: str) -> penstock.TaskState:
    workers = tasks.workers()
    for worker in workers:
        worker.start()
    eventually(lambda: (found := tasks.result(id)) is not None and found.state == state)
    for worker in workers:
        worker.stop()
    found = tasks.result(id)
    assert found is not None
    return found


def test_each_call_of_a_chain_gets_what_the_one_before_returned(journal: Journal, tasks: Tasks) -> None:
    chain = tasks["fetch"].then(tasks["parse"].call(depth=3), tasks["count"].call(start=10))
    receipt = chain.push("a")
    done = finish(tasks, receipt.id, "done")
    assert (done.result, done.task, done.queue) == (13, "count", "one")
    second = asyncio.run(tasks["fetch"].call("b").then(tasks["parse"]).push_async())
    assert finish(tasks, second.id, "done").result == ["page b"]


def test_the_next_call_is_pushed_in_the_commit_that_settles_the_one_before(journal: Journal, tasks: Tasks) -> None:
    receipt = tasks["fetch"].then(tasks["parse"]).push("a")
    one = journal.queue("one")
    held = one.take()
    assert held is not None
    held.ack(result="page a")
    assert len(one) == 0 and len(journal.queue("two")) == 1
    waiting = tasks.result(receipt.id)
    assert waiting is not None and (waiting.state, waiting.task, waiting.queue) == ("waiting", "parse", "two")
    again = journal.queue("two").take()
    assert again is not None and again.payload["args"] == ["page a"]
    assert again.event.causation_id == receipt.id


def test_a_chain_stops_where_a_call_is_given_up_and_goes_on_when_that_is_sent_back(
    journal: Journal, tasks: Tasks
) -> None:
    journal.queue("two", dead_letter="dead")
    receipt = tasks["fetch"].then(tasks["parse"], tasks["count"]).push("bad")
    dead = finish(tasks, receipt.id, "dead")
    assert (dead.task, dead.error) == ("parse", "ValueError: unreadable")
    assert len(journal.queue("one")) == 0
    assert journal.queue("two").redrive() == 1
    assert finish(tasks, receipt.id, "done").result == 1


def test_results_are_joined_in_the_order_of_the_calls(journal: Journal, tasks: Tasks) -> None:
    parse, count = tasks["parse"], tasks["count"]
    calls = [parse.call("x", depth=depth).then(count) for depth in (1, 2, 3)]
    receipt = tasks.gather(*calls).then(tasks["total"].call(factor=10)).push()
    before = tasks.result(receipt.id)
    assert before is not None and before.progress is not None
    assert (before.state, before.task, before.progress.share) == ("waiting", "total", 0)
    two = journal.queue("two")
    for delivery in two.take_many(3):
        delivery.ack(result=["x"] * delivery.payload["kwargs"]["depth"])
    for delivery in journal.queue("one").take_many(3):
        delivery.ack(result=len(delivery.payload["args"][0]))
    joined = tasks.result(receipt.id)
    assert joined is not None and (joined.state, joined.queue, joined.seq) == ("waiting", "two", 4)
    assert finish(tasks, receipt.id, "done").result == 60
    parts = [tasks.result(one.id) for one in receipt.receipts]
    assert [part.result for part in parts if part is not None] == [1, 2, 3]


def test_a_join_waits_for_a_call_that_was_given_up(journal: Journal, tasks: Tasks) -> None:
    parse = tasks["parse"]
    receipt = tasks.gather(parse.call("page bad"), parse.call("page good")).then(tasks["width"]).push()
    finish(tasks, receipt.receipts[0].id, "failed")
    finish(tasks, receipt.receipts[1].id, "done")
    waiting = tasks.result(receipt.id)
    assert waiting is not None and waiting.progress is not None and waiting.progress.share == 0.5
    assert journal.queue("two").redrive() == 1
    assert finish(tasks, receipt.id, "done").result == 2


def test_odd_chains_are_refused_before_anything_is_pushed(journal: Journal, tasks: Tasks) -> None:
    @tasks.task(queue="one")
    def alone() -> None: ...

    with pytest.raises(TypeError, match="takes no argument"):
        tasks["fetch"].then(alone).push("a")
    with pytest.raises(TypeError):
        tasks["fetch"].then(tasks["parse"].call(1, 2)).push("a")
    with pytest.raises(TypeError, match="wants depth: int"):
        tasks["fetch"].then(tasks["parse"].call(depth="deep")).push("a")
    with pytest.raises(ConfigError, match="followed by tasks"):
        tasks["fetch"].then(print).push("a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no delay="):
        tasks["fetch"].then(tasks["parse"].using(delay=5)).push("a")
    with pytest.raises(ConfigError, match="no call to gather"):
        tasks.gather()
    assert journal.queues() == []

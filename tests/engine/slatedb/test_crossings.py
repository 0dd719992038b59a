"""What a change of writers means for everything else that a journal does: the old writer's work, and the new one's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from object_homes import Home

import penstock
from penstock import Draft, Tasks
from penstock.errors import Fenced, OutcomeUnknown
from server.serving import serving
from waiting import DEADLINE, eventually


def payloads(journal: Any, **how: Any) -> list[Any]:
    return [event.payload for event in journal.topic("t").read(**how)]


def test_a_transaction_that_is_open_while_another_takes_over_leaves_nothing(folder: Home) -> None:
    first = folder.open()
    first.topic("t").append("k", 0)
    first.queue("q").configure(lease=60)
    with pytest.raises((Fenced, OutcomeUnknown)), first.transaction() as tx:
        tx.append("t", "k", "half")
        tx.push("q", "half")
        second = folder.open(takeover=True)
        second.topic("t").append("k", "new")
    assert payloads(second) == [0, "new"]
    assert second.queue("q").take() is None


def test_retention_and_key_compaction_go_on_with_the_next_writer(folder: Home) -> None:
    clock = penstock.ManualClock()
    first = folder.open(clock=clock)
    first.topic("t").configure(max_age=60)
    first.topic("prices").configure(by_key=True)
    first.topic("t").append_many([Draft("k", n) for n in range(20)])
    first.topic("prices").append_many([Draft("k", n, key=f"k{n % 5}") for n in range(50)])
    clock.advance(61)
    first.topic("t").append("k", "young")

    second = folder.open(clock=clock, takeover=True)
    with pytest.raises((Fenced, OutcomeUnknown)):
        first.topic("prices").append("k", "too late", key="k0")
    second.maintain()
    second.topic("prices").compact_keys()
    with folder.open(read_only=True, clock=clock) as reader:
        for journal in (second, reader):
            assert payloads(journal, after=journal.topic("t").oldest - 1) == ["young"]
            assert [event.payload for event in journal.topic("prices").read()] == [45, 46, 47, 48, 49]


def test_schedules_push_one_message_a_tick_over_a_failover(folder: Home) -> None:
    clock = penstock.ManualClock()
    first = folder.open(clock=clock)
    first.queue("q").every(60, "tick", name="minutely")
    clock.advance(60)
    eventually(lambda: len(first.queue("q")) == 1)

    second = folder.open(clock=clock, takeover=True)
    queue = second.queue("q")
    for count in (2, 3):
        clock.advance(60)
        eventually(lambda: len(queue) >= count)  # noqa: B023 - called before the next one
    ticks = [event.headers["schedule-tick"] for event in queue]
    assert len(set(ticks)) == len(ticks) == 3 and ticks == sorted(ticks)


def test_a_task_asked_of_one_writer_is_answered_by_the_next_ones_worker(folder: Home) -> None:
    def made(journal: penstock.Journal) -> Any:
        tasks = Tasks(journal)

        @tasks.task(queue="sums")
        def double(n: int) -> int:
            return n * 2

        return tasks, double

    _, double = made(folder.open())
    ticket = double.ask(4)
    second = folder.open(takeover=True)
    tasks, again = made(second)
    (worker,) = tasks.workers()
    with worker:
        assert again.ask(5).result(timeout=DEADLINE) == 10
        results = second.topic("sums.results")
        eventually(lambda: results.latest == 2)
    assert sorted(event.payload for event in results.read()) == [8, 10]
    with pytest.raises((Fenced, OutcomeUnknown)):
        double.ask(6)
    with pytest.raises((Fenced, TimeoutError)):  # SlateDB's reads find out that it was replaced, some later
        ticket.result(timeout=0)


def test_a_server_whose_writer_was_replaced_says_so_to_everybody(folder: Home) -> None:
    first = folder.open()
    with serving(first) as served, penstock.open(served.url) as remote:
        remote.topic("t").append("k", 1)
        assert served.ask("GET", "/healthz").json == {"status": "ok"}
        second = folder.open(takeover=True)
        with pytest.raises((Fenced, OutcomeUnknown), match="elsewhere"):
            remote.topic("t").append("k", 2)
        with pytest.raises(Fenced, match="elsewhere"):
            remote.topic("t").append("k", 2)
        health = served.ask("GET", "/healthz")
        assert (health.status, health.json) == (503, {"status": "replaced"}), "whoever asks can start it again"
    assert payloads(second) == [1]


def test_a_journal_in_a_store_is_copied_beside_its_writer(folder: Home, tmp_path: Any) -> None:
    journal = folder.open()
    topic = journal.topic("t")
    topic.append_many([Draft("k", n) for n in range(200)])
    over = threading.Event()

    def work() -> None:
        for _ in range(1000):
            if over.is_set():
                return
            topic.append("k", "more")

    working = threading.Thread(target=work, daemon=True)
    working.start()
    try:
        penstock.copy(folder.url, tmp_path / "copy.db")
    finally:
        over.set()
        working.join(DEADLINE)
    with penstock.open(tmp_path / "copy.db") as copy:
        seqs = [event.seq for event in copy.topic("t").read()]
        assert seqs == [*range(1, len(seqs) + 1)] and 200 <= len(seqs) <= topic.latest

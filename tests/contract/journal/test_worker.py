"""Workers: a handler over a topic, at least once, with a durable cursor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, eventually_async, on, only, seqs

from penstock import Draft, Event, Journal, ManualClock, Topic, Worker
from penstock.core.local.backend import LocalJournal
from penstock.core.observe.workers import forget, gave_up
from penstock.errors import Closed, ConfigError, PositionTrimmed

InThreads = Callable[..., threading.Thread]


class Failure(Exception):
    pass


def test_a_worker_handles_everything_in_order_and_moves_its_cursor_afterwards(topic: Topic) -> None:
    handled: list[int] = []
    sizes: list[int] = []
    cursors: list[int | None] = []
    behind: list[int | None] = []

    def handler(events: list[Event]) -> None:
        sizes.append(len(events))
        cursors.append(topic.cursor("billing"))
        behind.append(handled[-1] if handled else None)
        handled.extend(seqs(events))

    topic.append_many([Draft("k", n) for n in range(100)])
    worker = topic.worker("billing", handler, batch=30)
    assert isinstance(worker, Worker) and not worker.alive
    assert worker.start() is worker and worker.alive
    eventually(lambda: topic.cursor("billing") == 100)
    for _ in range(3):
        topic.append("k")
    eventually(lambda: topic.cursor("billing") == 103)
    worker.stop(DEADLINE)
    assert not worker.alive and handled == list(range(1, 104))
    assert cursors == behind and topic.lag("billing") == 0
    assert max(sizes) <= 30, "fewer where fewer have arrived yet"


def test_a_worker_goes_on_where_it_stopped(place: Place) -> None:
    handled: list[int] = []
    for _ in range(3):
        journal = place.open()
        topic = journal.topic("t")
        topic.append_many([Draft("k")] * 5)
        latest = topic.latest
        with topic.worker("c", lambda events: handled.extend(seqs(events))):
            eventually(lambda topic=topic, latest=latest: topic.cursor("c") == latest)
        journal.close()
    assert handled == list(range(1, 16))


def test_a_failing_handler_is_given_the_batch_again_within_its_budget(topic: Topic) -> None:
    attempts: list[list[int]] = []

    def handler(events: list[Event]) -> None:
        attempts.append(seqs(events))
        if len(attempts) < 3:
            raise Failure("not yet")

    topic.append_many([Draft("k")] * 2)
    worker = topic.worker("c", handler, restarts=2).start()
    eventually(lambda: topic.cursor("c") == 2)
    worker.stop(DEADLINE)
    if isinstance(topic.journal, LocalJournal):
        assert attempts == [[1, 2]] * 3
    failed, handled = attempts[:2], attempts[2:]
    assert all(one[0] == 1 for one in failed)  # over a wire, the second event may come a moment after the first
    assert [seq for one in handled for seq in one] == [1, 2]


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_a_failure_beyond_the_budget_surfaces_at_stop(topic: Topic, restarts: int) -> None:
    attempts: list[int] = []

    def handler(events: list[Event]) -> None:
        attempts.append(1)
        raise Failure(f"attempt {len(attempts)}")

    topic.append("k")
    worker = topic.worker("c", handler, restarts=restarts).start()
    eventually(lambda: not worker.alive)
    with pytest.raises(Failure, match=f"attempt {restarts + 1}"):
        worker.stop(DEADLINE)
    worker.stop(DEADLINE)  # said once
    assert len(attempts) == restarts + 1 and topic.cursor("c") is None


def test_the_budget_refills_with_time(topic: Topic, clock: ManualClock) -> None:
    failures: list[int] = []

    def handler(events: list[Event]) -> None:
        if events[0].payload == "bad" and len(failures) < events[0].seq:
            failures.append(events[0].seq)
            raise Failure

    with topic.worker("c", handler, batch=1, restarts=1) as worker:
        for seq in range(1, 4):
            topic.append("k", "bad")
            eventually(lambda seq=seq: topic.cursor("c") == seq or not worker.alive)  # type: ignore[misc]
            clock.advance(61)
        assert worker.alive
    assert failures == [1, 2, 3], "one a minute, however long it lives"


def test_a_worker_says_in_the_log_what_it_does(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    def breaks_here(events: list[Event]) -> None:
        raise Failure("no such table")

    topic.append("k")
    with caplog.at_level("WARNING", "penstock.worker"), pytest.raises(Failure):
        topic.worker("c", breaks_here, restarts=1).run()
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    again, gave_up = (record.getMessage() for record in caplog.records)
    assert "begins again in 0.1 s (restart 1 of 1 within 60 s)" in again and "no such table" in again
    assert "gave up after 2 failures within 60 s" in gave_up and caplog.text.count("in breaks_here") == 2


def test_a_worker_that_gave_up_says_so_until_it_is_started_again(topic: Topic, journal: Journal) -> None:
    def breaks_here(events: list[Event]) -> None:
        raise Failure("no such table")

    topic.append("k")
    assert gave_up(journal) == [] and not forget(journal, "orders:c")
    for name in ("c", "d"):
        with pytest.raises(Failure):
            topic.worker(name, breaks_here, restarts=0).run()
    first, second = gave_up(journal)
    assert (first.worker, first.error, second.worker) == ("orders:c", "Failure: no such table", "orders:d")
    assert first.at is not None and "in breaks_here" in (first.traceback or "")
    sample = journal.stats()
    assert [one.worker for one in sample.workers] == ["orders:c", "orders:d"]
    assert "worker orders:c gave up: Failure: no such table" in [one.says for one in sample.findings]
    with topic.worker("c", print):
        eventually(lambda: topic.cursor("c") == 1)
    assert forget(journal, "orders:d") and gave_up(journal) == []


def test_a_failure_surfaces_at_closing_and_everything_is_closed(place: Place) -> None:
    def handler(events: list[Event]) -> None:
        raise Failure

    journal = place.open()
    topic = journal.topic("t")
    topic.append("k")
    worker = topic.worker("c", handler, restarts=0).start()
    eventually(lambda: not worker.alive)
    ticket = topic.submit("k")
    with pytest.raises(Failure):
        journal.close()
    assert journal.closed and ticket.result(0).seq == 2
    journal.close()
    assert place.open().topic("t").latest == 2


def test_run_works_in_the_calling_thread_and_raises_there(topic: Topic) -> None:
    def handler(events: list[Event]) -> None:
        raise Failure

    topic.append("k")
    with pytest.raises(Failure):
        topic.worker("c", handler, restarts=0).run()


def test_a_handler_may_stop_its_own_worker(topic: Topic) -> None:
    handled: list[int] = []

    def handler(events: list[Event]) -> None:
        handled.extend(seqs(events))
        worker.stop()

    topic.append_many([Draft("k")] * 10)
    worker = topic.worker("c", handler, batch=4)
    worker.run()
    assert handled == [1, 2, 3, 4] and topic.cursor("c") == 4
    worker = topic.worker("c", handler, batch=4)
    worker.start()
    eventually(lambda: not worker.alive)
    worker.stop(DEADLINE)
    assert handled == list(range(1, 9)) and topic.cursor("c") == 8


def test_stop_waits_for_the_batch_in_hand(topic: Topic, in_threads: InThreads) -> None:
    begun, release = threading.Event(), threading.Event()

    def handler(events: list[Event]) -> None:
        begun.set()
        release.wait(DEADLINE)

    topic.append("k")
    for start in (lambda worker: worker.start(), lambda worker: in_threads(worker.run)):
        begun.clear()
        release.clear()
        topic.seek("c", 0)
        worker = topic.worker("c", handler)
        start(worker)
        assert begun.wait(DEADLINE)
        with pytest.raises(TimeoutError):
            worker.stop(0.01)
        assert worker.alive and topic.cursor("c") == 0
        release.set()
        worker.stop(DEADLINE)
        assert not worker.alive and topic.cursor("c") == 1


def test_closing_the_journal_stops_its_workers_wherever_they_run(place: Place, in_threads: InThreads) -> None:
    journal = place.open()
    topic, handled = journal.topic("t"), list[int]()
    worker = topic.worker("a", lambda events: handled.extend(seqs(events)))
    foreground = in_threads(worker.run)
    background = topic.worker("b", lambda events: handled.extend(seqs(events))).start()
    topic.append("k")
    eventually(lambda: topic.cursors() == {"a": 1, "b": 1})
    journal.close()
    foreground.join(DEADLINE)
    assert not foreground.is_alive() and not background.alive and handled == [1, 1]


def test_a_handler_may_be_asynchronous(topic: Topic) -> None:
    handled: list[int] = []
    loops = set()

    async def handler(events: list[Event]) -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        handled.extend(seqs(events))
        if len(handled) == 3:
            raise Failure

    for _ in range(3):
        topic.append("k")
    worker = topic.worker("c", handler, batch=1, restarts=0)
    with pytest.raises(Failure):
        worker.run()
    assert handled == [1, 2, 3] and topic.cursor("c") == 2 and len(loops) == 1


def test_a_handler_may_write_and_call_back_into_the_journal(topic: Topic, journal: Journal) -> None:
    def handler(events: list[Event]) -> None:
        for event in events:
            journal.topic("out").append("effect", event.payload, cause=event, dedup=event.id)

    topic.append_many([Draft("k", n) for n in range(10)])
    with topic.worker("c", handler, batch=3):
        eventually(lambda: topic.cursor("c") == 10)
    effects, causes = list(journal.topic("out").read()), list(topic.read())
    assert [e.payload for e in effects] == list(range(10))
    assert [e.causation_id for e in effects] == [c.id for c in causes]


def test_a_handler_may_close_the_journal(place: Place) -> None:
    journal = place.open()
    topic = journal.topic("t")
    topic.append("k")
    worker = topic.worker("c", lambda events: journal.close()).start()
    eventually(lambda: journal.closed and not worker.alive)
    assert place.open().topic("t").cursor("c") is None  # at least once: the batch was not finished


def test_a_worker_whose_history_was_removed_says_so(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 10)
    topic.commit("c", 2)
    topic.compact(5, force=True)
    with pytest.raises(PositionTrimmed):
        topic.worker("c", print, restarts=0).run()


def test_a_worker_is_started_once(topic: Topic) -> None:
    with topic.worker("c", print) as worker, pytest.raises(ConfigError, match="already"):
        worker.start()


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": 1.5}, {"restarts": -1}, {"idle": -1}, {"idle": "soon"}])
@on("memory")
def test_bad_options_are_refused(topic: Topic, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        topic.worker("c", print, **options)


def test_a_worker_on_a_closed_journal_is_told(place: Place) -> None:
    journal = place.open()
    worker = journal.topic("t").worker("c", print)
    journal.close()
    worker.run()  # it was stopped by the closing
    late = journal.topic("t").worker("d", print)
    with pytest.raises(Closed):
        late.run()


@only(second_open=True)
def test_a_worker_hears_of_another_journals_appends(place: Place) -> None:
    here, there = place.open(), place.open()
    with here.topic("t").worker("c", lambda events: None):
        for n in range(5):
            there.topic("t").append("k")
            eventually(lambda n=n: here.topic("t").cursor("c") == n + 1)


# ── in an event loop ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_coroutine_runs_in_the_event_loop_the_worker_was_started_from(topic: Topic) -> None:
    loops = []

    async def handler(events: list[Event]) -> None:
        loops.append(asyncio.get_running_loop())

    async def main() -> asyncio.AbstractEventLoop:
        done = topic.latest
        async with topic.worker("c", handler, batch=1) as worker:
            await eventually_async(lambda: topic.cursor("c") == done)
            with pytest.raises(ConfigError, match="stop_async"):
                worker.stop()
        assert not worker.alive
        return asyncio.get_running_loop()

    topic.append_many([Draft("k")] * 3)
    assert loops == [asyncio.run(main())] * 3


def test_a_worker_may_be_awaited_and_ends_when_its_handler_says_so(topic: Topic) -> None:
    async def handler(events: list[Event]) -> None:
        if events[0].seq == 2:
            await worker.stop_async()

    topic.append_many([Draft("k")] * 3)
    worker = topic.worker("c", handler, batch=1)
    asyncio.run(worker.run_async())
    assert topic.cursor("c") == 2


def test_a_worker_whose_event_loop_ends_leaves_its_batch(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    begun: list[int] = []

    async def handler(events: list[Event]) -> None:
        begun.append(1)
        await asyncio.sleep(DEADLINE)

    async def main() -> Worker:
        worker = topic.worker("c", handler).start()
        await eventually_async(lambda: begun)
        return worker

    topic.append("k")
    with caplog.at_level("WARNING", "penstock.worker"):
        worker = asyncio.run(main())
        eventually(lambda: not worker.alive)
    worker.stop()
    assert topic.cursor("c") is None and "event loop has ended" in caplog.text

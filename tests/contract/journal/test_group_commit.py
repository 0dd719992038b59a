"""Group commit, tickets and backpressure: many callers, few commits, and nobody left waiting whatever happens."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, payloads

from penstock import Draft, Journal, Receipt, Ticket, Topic
from penstock.core.journal.catalog import Settings
from penstock.core.journal.commit import Commit, adopt_topic, change_settings
from penstock.core.journal.index.memtable import Memtable
from penstock.core.journal.prepare import prepare
from penstock.core.journal.writer import WriteRequest
from penstock.core.local.backend import LocalJournal
from penstock.errors import Backpressure, Closed, ConfigError, Conflict, StorageError

InThreads = Callable[..., threading.Thread]


@contextmanager
def writer_held(journal: Journal) -> Iterator[Callable[[], None]]:
    """Nobody can commit in this block, as a transaction of another thread is open, until what it gives is called."""
    begun, release = threading.Event(), threading.Event()

    def hold() -> None:
        with journal.transaction():
            begun.set()
            release.wait(DEADLINE)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert begun.wait(DEADLINE)
    try:
        yield release.set
    finally:
        release.set()
        holder.join(DEADLINE)


# many threads


def test_sixty_four_threads_mixing_everything(place: Place, in_threads: InThreads) -> None:
    journal = place.open(writer_capacity=32)
    topics = [journal.topic("a"), journal.topic("b")]
    acknowledged: list[tuple[Receipt, Any]] = []
    refused = Counter[str]()

    def work(worker: int) -> None:
        chance = random.Random(worker)
        tickets: list[tuple[Ticket[Any], Any]] = []
        for step in range(25):
            topic, name = chance.choice(topics), [worker, step]
            match chance.randrange(7):
                case 0 | 1:
                    acknowledged.append((topic.append("k", name), name))
                case 2:
                    got = topic.append_many([Draft("k", [*name, n]) for n in range(3)])
                    acknowledged.extend((receipt, [*name, n]) for n, receipt in enumerate(got))
                case 3:
                    tickets.append((topic.submit("k", name), name))
                case 4:
                    try:
                        tickets.append((topic.try_submit("k", name, headers={"a": "b"}), name))
                    except Backpressure as error:
                        assert error.retry_after > 0
                        refused["backpressure"] += 1
                case 5:
                    with pytest.raises(Conflict):
                        topic.append("k", name, key="entity", expect=10**9)
                    refused["conflict"] += 1
                case 6:
                    tickets.append((topic.submit("k", name, key="entity", expect=10**9), None))
        for ticket, name in tickets:
            if name is None:
                assert isinstance(ticket.exception(DEADLINE), Conflict)
            else:
                acknowledged.append((ticket.result(DEADLINE), name))

    threads = [in_threads(work, worker) for worker in range(64)]
    for thread in threads:
        thread.join(DEADLINE)
    assert refused["conflict"]
    for topic in topics:
        mine = {receipt.seq: (receipt.id, name) for receipt, name in acknowledged if receipt.topic == topic.name}
        stored = list(topic.read())
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        assert {event.seq: (event.id, event.payload) for event in stored} == mine
    writer = journal._core.writer
    assert writer.measures.commits < writer.measures.operations  # some did share a commit


def test_callers_who_wait_share_a_commit(journal: Journal, in_threads: InThreads) -> None:
    topic = journal.topic("orders")
    with writer_held(journal):
        threads = [in_threads(topic.append, "k", n) for n in range(20)]
        eventually(lambda: journal.pressure().queued == 20)
        before = journal._core.writer.measures.commits
    for thread in threads:
        thread.join(DEADLINE)
    assert journal._core.writer.measures.commits - before <= 3
    assert sorted(payloads(topic.read())) == list(range(20))


# failures inside a group


def test_one_that_fails_does_not_fail_its_neighbours(journal: Journal) -> None:
    topic = journal.topic("orders")
    with writer_held(journal):
        good = topic.submit("k", 1, key="a", expect=0)
        bad = topic.submit("k", 2, key="a", expect=0)
        cursor = topic.submit("k", 3)
        duplicate = topic.submit_many([Draft("k", 4, dedup="d"), Draft("k", 5, dedup="d")])
    assert good.result(DEADLINE).seq == 1
    assert isinstance(bad.exception(DEADLINE), Conflict)
    assert cursor.result(DEADLINE).seq == 2
    assert [(r.seq, r.duplicate) for r in duplicate.result(DEADLINE)] == [(3, False), (3, True)]
    assert payloads(topic.read()) == [1, 3, 4]


def test_one_that_fails_after_changing_something_is_undone_alone(journal: Journal) -> None:
    topic, writer = journal.topic("orders"), journal._core.writer
    batch = topic._at.prepare("half", None, {})

    def half_way(commit: Commit) -> None:
        commit.append("orders", batch)
        commit.append("never", batch)
        raise RuntimeError("half-way")

    with writer_held(journal):
        caused = topic.submit_many([Draft("a", dedup="a"), Draft("b", cause=0), Draft("c", cause=1)])
        spoiler = writer.submit(WriteRequest(half_way))
        after = topic.submit("d", dedup="a")
        linked = topic.submit_many([Draft("e"), Draft("f", cause=0)])
    assert isinstance(spoiler.exception(DEADLINE), RuntimeError)
    a, b, c = caused.result(DEADLINE)
    assert (a.seq, b.seq, c.seq) == (1, 2, 3)
    assert after.result(DEADLINE).id == a.id and after.result().duplicate
    e, f = linked.result(DEADLINE)
    events = list(topic.read())
    assert [x.id for x in events] == [a.id, b.id, c.id, e.id, f.id]
    # Redone, the events have other ids than in the first try: causes must name those that were kept.
    assert [x.causation_id for x in events] == [None, a.id, b.id, None, e.id]
    assert [x.correlation_id for x in events] == [None, a.id, a.id, None, e.id]
    assert journal.topics() == ["orders"]


class Late:
    """A row that a commit writes at its end."""

    def save(self, commit: Commit) -> None:
        commit.tx.put(b"zz late", b"1")


CHANGES: dict[str, Callable[[Commit], object]] = {
    "put": lambda commit: commit.tx.put(b"zz", b"1"),
    "delete": lambda commit: commit.tx.delete(b"zz kept"),
    "delete_range": lambda commit: commit.tx.delete_range(b"zz", b"zzz"),
    "touch": lambda commit: commit.touch(Late()),
    "mark": lambda commit: commit.set_mark("m", 1),
    "create": lambda commit: commit.ensure("never"),
    "append": lambda commit: commit.append("never", prepare([Draft("k")], None, None)),
    "append and flush": lambda commit: (commit.append("never", prepare([Draft("k")], None, None)), commit.flush()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_one_that_fails_is_undone_and_none_of_its_neighbours(journal: Journal, change: str) -> None:
    """A commit counts its changes itself, however they are made."""
    journal._core.run(lambda commit: commit.tx.put(b"zz kept", b"1"))

    def half_way(commit: Commit) -> None:
        CHANGES[change](commit)
        raise RuntimeError("half-way")

    topic, writer = journal.topic("orders"), journal._core.writer
    with writer_held(journal):
        before = topic.submit("a")
        spoiler = writer.submit(WriteRequest(half_way))
        after = topic.submit("b")
    assert isinstance(spoiler.exception(DEADLINE), RuntimeError)
    assert (before.result(DEADLINE).seq, after.result(DEADLINE).seq) == (1, 2)
    with journal._engine.read() as snap:
        assert list(snap.scan(b"zz", b"zzz")) == [(b"zz kept", b"1")]
    assert journal.topics() == ["orders"] and journal.mark("m") is None


def test_one_that_fails_before_it_changed_anything_costs_its_neighbours_nothing(journal: Journal) -> None:
    topic, writer = journal.topic("orders"), journal._core.writer
    topic.append("k")
    tries = []

    def refused(commit: Commit) -> None:
        commit.flush()  # writes what others have gathered, nothing of its own
        commit.tx.get(b"zz")
        raise RuntimeError("refused")

    with writer_held(journal):
        before = topic.submit("a")
        spoiler = writer.submit(WriteRequest(refused))
        after = writer.submit(WriteRequest(lambda commit: tries.append(commit.latest("orders"))))
    assert isinstance(spoiler.exception(DEADLINE), RuntimeError)
    after.result(DEADLINE)
    assert before.result(DEADLINE).seq == 2 and tries == [2]


class Refusing:
    """A write transaction whose commit the disk refuses."""

    def __init__(self, tx: Any, error: BaseException) -> None:
        self._tx, self._error = tx, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def __enter__(self) -> Any:
        self._tx.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._tx.__exit__(type(self._error), self._error, None)
        if kind is None:
            raise self._error


@pytest.mark.parametrize("error", [StorageError("full", retryable=True), OSError(28, "full"), MemoryError()], ids=repr)
def test_a_commit_the_disk_refuses_fails_the_whole_group_and_keeps_nothing(
    journal: Journal, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, write = journal.topic("orders"), journal._engine.write
    assert topic.append("k", 0).seq == 1
    with writer_held(journal) as release, monkeypatch.context() as patch:
        tickets = [journal.topic(f"new{n}").submit("k", n) for n in range(3)] + [topic.submit("k", dedup="d")]
        patch.setattr(journal._engine, "write", lambda **options: Refusing(write(**options), error))
        release()
        told = [ticket.exception(DEADLINE) for ticket in tickets]
    assert all(isinstance(one, StorageError | OSError) for one in told)
    assert len(set(map(id, told))) == len(told)  # each raises an error of its own
    if isinstance(error, StorageError):
        assert all(isinstance(one, StorageError) and one.retryable for one in told)
    assert journal.topics() == ["orders"] and topic.latest == 1
    receipt = topic.append("k", 1, dedup="d")
    assert receipt.seq == 2 and not receipt.duplicate
    assert payloads(topic.read()) == [0, 1]


# interrupts


def test_an_interrupted_leader_leaves_nobody_waiting(journal: Journal, in_threads: InThreads) -> None:
    topic = journal.topic("orders")
    outcomes: list[BaseException | Receipt] = []

    def interrupted(commit: Commit) -> None:
        raise KeyboardInterrupt

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            journal._core.run(interrupted)

    def follow() -> None:
        try:
            outcomes.append(topic.append("k"))
        except StorageError as error:
            outcomes.append(error)

    with writer_held(journal):
        leader = in_threads(lead)
        eventually(lambda: journal.pressure().queued == 1)
        followers = [in_threads(follow) for _ in range(5)]
        eventually(lambda: journal.pressure().queued == 6)
    for thread in (leader, *followers):
        thread.join(DEADLINE)
    assert len(outcomes) == 5
    kept = [one for one in outcomes if isinstance(one, Receipt)]
    assert sorted(r.seq for r in kept) == list(range(1, len(kept) + 1)) == [e.seq for e in topic.read()]
    assert topic.append("k").seq == len(kept) + 1


def test_an_interrupted_lone_caller_leaves_the_writer_usable(topic: Topic) -> None:
    def interrupted(commit: Commit) -> None:
        commit.append("orders", topic._at.prepare("k", None, {}))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.journal._core.run(interrupted)
    assert topic.append("k").seq == 1


def test_an_interrupt_while_waiting_takes_the_append_back(journal: Journal, in_threads: InThreads) -> None:
    topic, main = journal.topic("orders"), threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        eventually(lambda: journal.pressure().queued == 1)
        signal.pthread_kill(main, signal.SIGINT)

    with writer_held(journal):
        in_threads(interrupt)
        with pytest.raises(KeyboardInterrupt):
            topic.append("k", "interrupted")
        assert journal.pressure().queued == 0
        follower = in_threads(topic.append, "k", "follower")
        eventually(lambda: journal.pressure().queued == 1)
    follower.join(DEADLINE)
    assert payloads(topic.read()) == ["follower"]


def test_an_interrupt_makes_room_for_one_who_waits_at_the_limit(place: Place, in_threads: InThreads) -> None:
    journal, main = place.open(writer_capacity=8), threading.main_thread().ident
    topic = journal.topic("orders")
    assert main is not None
    submitted = threading.Event()

    def submit() -> None:
        topic.submit("k", "waits for room")
        submitted.set()

    def interrupt() -> None:
        eventually(lambda: journal.pressure().queued == 8)
        in_threads(submit)
        eventually(lambda: len(journal._core.writer._room._waiters) == 1)
        signal.pthread_kill(main, signal.SIGINT)

    with writer_held(journal):
        for number in range(7):
            topic.submit("k", number)
        in_threads(interrupt)
        with pytest.raises(KeyboardInterrupt):
            topic.append("k", "interrupted")
        assert submitted.wait(DEADLINE)
    eventually(lambda: len(topic) == 8)


INTERRUPTED = """
    import os, signal, sys, threading, time
    import penstock
    from penstock.errors import StorageError

    journal = penstock.open(sys.argv[1])
    topic, main = journal.topic("t"), threading.main_thread().ident
    acknowledged, over = [], threading.Event()
    armed = [False]  # no Event: an interrupt in the middle of its `set` would leave its lock held

    def beside(worker):
        step = 0
        while not over.is_set():
            step += 1
            try:
                acknowledged.append(topic.append("k", f"{worker}-{step}").seq)
            except StorageError:
                pass

    def interrupt():
        pause = 0.0
        for n in range(400):
            while not armed[0]:
                time.sleep(0.0001)
            pause = (pause + 0.000037) % 0.0011
            time.sleep(pause)
            signal.pthread_kill(main, signal.SIGINT)
            armed[0] = False
        over.set()

    threads = [threading.Thread(target=beside, args=(n,), daemon=True) for n in range(2)]
    interrupter = threading.Thread(target=interrupt, daemon=True)
    for thread in (*threads, interrupter):
        thread.start()
    while not over.is_set():
        try:
            while not over.is_set():
                armed[0] = True
                acknowledged.append(topic.append("k", "main").seq)
                with journal.transaction() as tx:
                    receipt = tx.append("t", "k", "tx")
                acknowledged.append(receipt.seq)
        except (KeyboardInterrupt, StorageError):
            pass
    while interrupter.is_alive():
        try:
            armed[0] = True
            interrupter.join(0.1)
        except KeyboardInterrupt:
            pass
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "stuck"
    journal.close()
    with penstock.open(sys.argv[1]) as journal:
        seqs = [event.seq for event in journal.topic("t").read()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(set(acknowledged)) == len(acknowledged) and set(acknowledged) <= set(seqs)
    print("done", len(seqs))
"""


@on("sqlite", "file")
def test_interrupts_at_any_moment_hang_nobody_and_lose_nothing(url: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0 and done.stdout.startswith("done"), done.stderr


# tickets


def test_a_ticket_can_be_polled_and_waited_for(journal: Journal) -> None:
    topic = journal.topic("orders")
    with writer_held(journal):
        ticket = topic.submit("k", 1)
        many = topic.submit_many([Draft("k", 2), Draft("k", 3)])
        assert not ticket.done()
        with pytest.raises(TimeoutError):
            ticket.result(0.01)
        with pytest.raises(TimeoutError):
            many.exception(timeout=0)
        assert list(topic.read()) == []  # visible only when durable
    assert ticket.result(DEADLINE).seq == 1
    assert [r.seq for r in many.result(DEADLINE)] == [2, 3]
    assert ticket.done() and ticket.exception() is None and ticket.result().seq == 1


def test_tickets_can_be_awaited_from_several_loops(journal: Journal, in_threads: InThreads) -> None:
    topic = journal.topic("orders")
    shared = topic.submit("shared")
    results: list[int] = []

    async def one(n: int) -> int:
        return (await topic.submit("k", n)).seq

    async def work() -> None:
        got = await asyncio.gather(*(one(n) for n in range(50)))
        results.extend(got)
        assert (await shared).seq == 1
        many = await topic.submit_many([Draft("k"), Draft("k")])
        results.extend(r.seq for r in many)
        with pytest.raises(Conflict):
            await topic.submit("k", key="a", expect=5)

    threads = [in_threads(asyncio.run, work()) for _ in range(4)]
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(results) == list(range(2, 2 + 4 * 52))


def test_a_loop_stays_responsive_while_it_awaits(journal: Journal) -> None:
    topic = journal.topic("orders")

    async def work() -> int:
        with writer_held(journal):
            ticket = topic.submit("k")
            waiting = asyncio.ensure_future(_awaited(ticket))
            for _ in range(3):
                await asyncio.sleep(0.001)
            assert not waiting.done()
        return (await waiting).seq

    assert asyncio.run(work()) == 1


async def _awaited(ticket: Ticket[Receipt]) -> Receipt:
    return await ticket


def test_an_await_that_is_cancelled_leaves_the_event_to_be_written(journal: Journal) -> None:
    topic = journal.topic("orders")

    async def work() -> None:
        with writer_held(journal):
            ticket = topic.submit("k", 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_awaited(ticket), 0.01)
        assert (await ticket).seq == 1

    asyncio.run(work())
    assert payloads(topic.read()) == [1]


# backpressure


def test_try_submit_refuses_above_the_threshold_and_submit_waits_at_the_capacity(
    place: Place, in_threads: InThreads
) -> None:
    journal = place.open(writer_capacity=8, pressure=0.5)
    topic = journal.topic("orders")
    idle = journal.pressure()
    assert (idle.queued, idle.capacity, idle.headroom, idle.utilization, idle.idle) == (0, 8, 8, 0.0, True)
    with writer_held(journal):
        tickets = [topic.try_submit("k", n) for n in range(4)]
        with pytest.raises(Backpressure) as refused:
            topic.try_submit("k")
        assert refused.value.retry_after > 0
        with pytest.raises(Backpressure):
            topic.try_submit_many([Draft("k")])
        tickets += [topic.submit("k", n) for n in range(4, 8)]
        full = journal.pressure()
        assert (full.queued, full.headroom, full.utilization, full.idle) == (8, 0, 1.0, False)
        waiting = in_threads(lambda: tickets.append(topic.submit("k", 8)))
        waiting.join(0.05)
        assert waiting.is_alive() and journal.pressure().queued == 8
    waiting.join(DEADLINE)
    assert [ticket.result(DEADLINE).seq for ticket in tickets] == list(range(1, 10))
    assert payloads(topic.read()) == list(range(9))
    eventually(lambda: journal.pressure().idle)


def test_submissions_are_written_in_the_order_they_were_made(topic: Topic) -> None:
    tickets = [topic.submit("k", n) for n in range(2000)]
    receipt = topic.append("k", 2000)
    assert [t.result(DEADLINE).seq for t in tickets] == list(range(1, 2001)) and receipt.seq == 2001
    assert payloads(topic.read()) == list(range(2001))


def test_flush_returns_when_everything_submitted_is_stored(place: Place) -> None:
    journal = place.open(durability="process")
    tickets = [journal.topic("t").submit("k") for _ in range(100)]
    journal.flush()
    assert all(ticket.done() for ticket in tickets)


# closing


def test_closing_writes_what_was_submitted(place: Place, in_threads: InThreads) -> None:
    journal = place.open()
    topic = journal.topic("orders")
    with writer_held(journal):
        tickets = [topic.submit("k", n) for n in range(100)]
        closing = in_threads(journal.close)
        appending = in_threads(topic.append, "k", 100)
        eventually(lambda: journal.pressure().queued == 102)  # who closes the journal stands in the line as well
    closing.join(DEADLINE)
    appending.join(DEADLINE)
    assert [ticket.result(0).seq for ticket in tickets] == list(range(1, 101))
    assert sorted(payloads(place.open().topic("orders").read())) == list(range(101))


def test_closing_under_load_answers_everybody(place: Place, in_threads: InThreads) -> None:
    journal = place.open(writer_capacity=16)
    topic = journal.topic("orders")
    acknowledged: list[int] = []
    tickets: list[Ticket[Receipt]] = []
    started = threading.Semaphore(0)

    def work(submitting: bool) -> None:
        started.release()
        with pytest.raises(Closed):
            while True:
                if submitting:
                    tickets.append(topic.submit("k"))
                else:
                    acknowledged.append(topic.append("k").seq)

    threads = [in_threads(work, n % 2 == 0) for n in range(12)]
    for _ in threads:
        started.acquire()
    eventually(lambda: len(acknowledged) > 20 and len(tickets) > 20)
    journal.close()
    for thread in threads:
        thread.join(DEADLINE)
    for ticket in tickets:
        if ticket.exception(DEADLINE) is None:
            acknowledged.append(ticket.result().seq)
        else:
            assert isinstance(ticket.exception(), Closed)
    stored = [event.seq for event in place.open().topic("orders").read()]
    assert stored == sorted(acknowledged) == list(range(1, len(stored) + 1))


def test_everything_is_refused_after_closing_and_closing_twice_is_fine(place: Place) -> None:
    journal = place.open()
    topic = journal.topic("orders")
    topic.append("k")
    subscription = topic.subscribe()
    journal.close()
    journal.close()
    assert journal.closed
    for use in (
        lambda: topic.append("k"),
        lambda: topic.append_many([]),
        lambda: topic.submit("k"),
        lambda: topic.try_submit("k"),
        lambda: list(topic.read()),
        lambda: topic.latest,
        lambda: topic.commit("c", 1),
        lambda: topic.compact(1),
        lambda: journal.topics(),
        lambda: journal.describe(),
        lambda: journal.flush(),
        lambda: journal.maintain(),
        lambda: journal.backup("x"),
        lambda: journal.transaction().__enter__(),
        lambda: subscription.next(0),
    ):
        with pytest.raises(Closed):
            use()


def test_closing_inside_a_transaction_is_refused_and_harmless(journal: Journal) -> None:
    with journal.transaction() as tx:
        tx.append("t", "k")
        with pytest.raises(ConfigError, match="transaction"):
            journal.close()
        tx.append("t", "k")
    assert journal.topic("t").append("k").seq == 3


def test_a_journal_closes_at_the_end_of_its_block(place: Place) -> None:
    with place.open() as journal:
        ticket = journal.topic("t").submit("k")
    assert journal.closed and ticket.result(0).seq == 1


def test_durability_process_keeps_what_was_acknowledged_over_a_close(place: Place) -> None:
    journal = place.open(durability="process")
    assert journal.describe().durability == ("process" if place.kind.process_durability else "disk")
    for n in range(50):
        journal.topic("t").append("k", n)
    journal = place.reopen(journal)
    assert payloads(journal.topic("t").read()) == list(range(50)) and journal.describe().durability == "disk"


# what a group of callers agrees on


def test_a_group_is_on_disk_when_any_caller_in_it_waits_for_that(
    journal: Journal, in_threads: InThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = journal._core  # type: ignore[attr-defined]
    write, synced = core.engine.write, []

    def noted(*, sync: bool = True) -> Any:
        synced.append(sync)
        return write(sync=sync)

    with writer_held(journal) as release:
        in_threads(core.writer.run, WriteRequest(lambda commit: None, relaxed=True))
        eventually(lambda: len(core.writer._pending) == 1)
        appending = in_threads(journal.topic("t").append, "k")
        eventually(lambda: len(core.writer._pending) == 2)
        monkeypatch.setattr(core.engine, "write", noted)
        release()
        appending.join(DEADLINE)
    assert synced[0] is True and journal.topic("t").latest == 1


def test_events_of_a_topic_that_the_same_group_drops_go_with_it(journal: Journal, in_threads: InThreads) -> None:
    topic, pending = journal.topic("t"), journal._core.writer._pending  # type: ignore[attr-defined]
    topic.append("k", "before", key="x")
    assert topic.position_of("x") == 1
    with writer_held(journal) as release:
        in_threads(topic.append, "k", "with it")
        eventually(lambda: len(pending) == 1)
        dropping = in_threads(journal.drop_topic, "t")
        eventually(lambda: len(pending) == 2)
        after = in_threads(topic.append, "k", "after")
        eventually(lambda: len(pending) == 3)
        release()
        dropping.join(DEADLINE)
        after.join(DEADLINE)
    assert [(event.seq, event.payload) for event in topic.read()] == [(3, "after")]
    assert topic.position_of("x") == 0 and topic.verify().ok


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a transaction"])
def test_what_fails_after_a_commit_is_no_failure_of_the_commit(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The events are stored: an error would have their caller append them again."""
    topic = journal.topic("t")
    topic.append("k", 1, key="x")
    assert topic.position_of("x") == 1  # the memtable that the next commit adds to
    with monkeypatch.context() as patch:
        patch.setattr(Memtable, "add_committed", lambda *_: 1 // 0)
        if together:
            with journal.transaction() as tx:
                tx.append("t", "k", 2, key="x")
        else:
            assert topic.append("k", 2, key="x").seq == 2
    assert [event.payload for event in topic.read(key="x")] == [1, 2]
    assert topic.append("k", 3, key="x", expect=2).seq == 3
    assert [event.payload for event in topic.read(key="x")] == [1, 2, 3]


def configure_verified(commit: Commit) -> object:
    return change_settings(commit, "orders", {"verified": True})


def test_hashes_that_begin_between_two_appends_of_one_commit(journal: Journal, topic: Topic) -> None:
    assert isinstance(journal, LocalJournal)
    with writer_held(journal):
        first = topic.submit("placed", 1, key="a")
        changed = journal._core.writer.submit(WriteRequest(configure_verified))
        second = topic.submit("placed", 2, key="a")
        beside = journal.topic("others").submit("placed", 3)
    assert (first.result().seq, second.result().seq, beside.result().seq) == (1, 2, 1)
    assert changed.result() is not None and topic.settings.verified
    topic.append("placed", 4, key="a")
    assert payloads(topic.read()) == [1, 2, 4]
    report = topic.verify()
    assert report.ok and (report.unhashed, report.events) == (1, 2)


def test_an_import_takes_no_settings_over_where_another_caller_was_first(journal: Journal, topic: Topic) -> None:
    assert isinstance(journal, LocalJournal)
    topic.configure(max_events=1000)  # it is there, and empty
    adopt = partial(_adopt, Settings(verified=True))
    with writer_held(journal):
        first = topic.submit("placed", 1)
        adopted = journal._core.writer.submit(WriteRequest(adopt))
        second = topic.submit("placed", 2)
    assert (first.result().seq, second.result().seq) == (1, 2) and adopted.result() is None
    assert not topic.settings.verified and payloads(topic.read()) == [1, 2]


def _adopt(settings: Settings, commit: Commit) -> None:
    adopt_topic(commit, "orders", settings)

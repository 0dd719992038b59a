"""Transactions: all or nothing across topics, with their own writes visible inside."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, only, payloads, seqs

from penstock import Draft, Journal, Transaction
from penstock.core.journal.commit import Commit
from penstock.errors import Closed, ConfigError, Conflict, InvalidName, ReadOnly, StorageError

InThreads = Callable[..., threading.Thread]
Reopen = Callable[[Journal], Journal]


class Failure(Exception):
    pass


@pytest.mark.parametrize("failure", [Failure, KeyboardInterrupt, GeneratorExit])
def test_an_exception_leaves_no_trace(journal: Journal, failure: type[BaseException], reopen: Reopen) -> None:
    journal.topic("a").append("k", 0, dedup="d0")
    with pytest.raises(failure), journal.transaction() as tx:
        tx.append("a", "k", 1, dedup="d1")
        tx.append("new", "k", 2)
        tx.commit("a", "consumer", 2)
        tx.set_mark("m", 1)
        list(tx.read("a"))
        tx.append("a", "k", 3)
        raise failure
    for _ in range(2):
        assert journal.topics() == ["a"] and payloads(journal.topic("a").read()) == [0]
        assert journal.topic("a").cursors() == {} and journal.mark("m") is None
        journal = reopen(journal)
    receipt = journal.topic("a").append("k", 4, dedup="d1")
    assert receipt.seq == 2 and not receipt.duplicate
    assert journal.topic("new").append("k").seq == 1


def test_reads_inside_see_its_own_writes_and_reads_outside_do_not(journal: Journal) -> None:
    topic = journal.topic("a")
    topic.append_many([Draft("k", n, key=str(n % 2)) for n in range(4)])
    with journal.transaction() as tx:
        assert list(tx.read("unknown")) == []
        tx.append("a", "late", 4, key="0")
        assert payloads(tx.read("a")) == [0, 1, 2, 3, 4] and payloads(topic.read()) == [0, 1, 2, 3]
        tx.append("a", "late", 5, key="1")
        assert payloads(tx.read(topic, after=1, limit=2, reverse=True)) == [5, 4]
        assert payloads(tx.read("a", key="0")) == [0, 2, 4] and payloads(tx.read("a", kind="late")) == [4, 5]
        assert payloads(tx.read("a", through=5, after=3)) == [3, 4]
        tx.commit("a", "c", 6)
        assert tx.cursor("a", "c") == 6 and tx.cursor("unknown", "c") is None and topic.cursor("c") is None
        tx.set_mark("m", -5)
        assert tx.get_mark("m") == -5 and tx.get_mark("other") is None and journal.mark("m") is None
        assert topic.latest == 4
    assert payloads(topic.read()) == [0, 1, 2, 3, 4, 5] and journal.mark("m") == -5


def test_dedup_causes_and_expectations_work_inside(journal: Journal) -> None:
    with journal.transaction() as tx:
        first = tx.append("a", "k", dedup="d", key="e", expect=0, correlation="C")
        assert tx.append("a", "k", dedup="d").id == first.id
        effect = tx.append("b", "k", cause=first)
        by_id = tx.append("b", "k", cause=first.id)  # written a moment ago, seen by nobody else yet
        with pytest.raises(Conflict):
            tx.append("a", "k", key="e", expect=0)
        assert tx.append("a", "k", key="e", expect=first.seq).seq == 2
        list(tx.read("a"))
        for newest in (2, 3, 4):
            assert tx.append("a", "k", key="e", expect=newest).seq == newest + 1
            with pytest.raises(Conflict):
                tx.append("a", "k", key="e", expect=newest)
    assert effect.correlation_id == by_id.correlation_id == "C"
    assert seqs(journal.topic("a").read()) == [1, 2, 3, 4, 5]


def test_a_refused_step_may_be_caught_and_the_rest_is_kept(journal: Journal) -> None:
    with journal.transaction() as tx:
        tx.append("a", "k", 1)
        for bad in (
            lambda: tx.append("a", "", 2),
            lambda: tx.append("a", "k", object()),
            lambda: tx.append("a", "k", key="x", expect=5),
            lambda: tx.commit("a", "c", 99),
            lambda: tx.commit("a", " ", 1),
            lambda: tx.append("a/b", "k"),
            lambda: tx.set_mark("m", 2**63),
            lambda: tx.set_mark("m", "1"),  # type: ignore[arg-type]
            lambda: tx.get_mark(""),
        ):
            with pytest.raises((ConfigError, Conflict, InvalidName)):
                bad()
        tx.append("a", "k", 3)
    assert payloads(journal.topic("a").read()) == [1, 3]


def test_a_step_that_fails_half_way_spoils_the_transaction(journal: Journal) -> None:
    with pytest.raises(StorageError, match="half-way"), journal.transaction() as tx:
        tx.append("a", "k", 1)
        with pytest.raises(Failure):
            tx._held.change(lambda commit: (commit.append("a", journal.topic("a")._at.prepare("k", 2, {})), _fail()))
    assert journal.topics() == [] and journal.topic("a").append("k").seq == 1


def _fail() -> None:
    raise Failure


def test_nesting_is_refused_clearly(journal: Journal) -> None:
    topic = journal.topic("a")
    with journal.transaction() as tx:
        tx.append("a", "k", 1)
        nested: list[Callable[[], Any]] = [
            lambda: journal.transaction().__enter__(),
            lambda: topic.append("k"),
            lambda: topic.append_many([Draft("k")]),
            lambda: topic.submit("k"),
            lambda: topic.try_submit("k"),
            lambda: topic.commit("c", 1),
            lambda: topic.compact(1),
            lambda: topic.compact_keys(),
            lambda: topic.configure(max_events=5),
            lambda: journal.flush(),
            lambda: journal.maintain(),
            lambda: journal.close(),
        ]
        for attempt in nested:
            with pytest.raises(ConfigError, match="transaction"):
                attempt()
        tx.append("a", "k", 2)
    assert payloads(topic.read()) == [1, 2]


def test_a_transaction_is_used_once_and_inside_its_block(journal: Journal) -> None:
    tx = journal.transaction()
    with pytest.raises(Closed):
        tx.append("a", "k")
    with tx:
        tx.append("a", "k")
    uses: list[Callable[[], Any]] = [
        lambda: tx.append("a", "k"),
        lambda: tx.append_many("a", []),
        lambda: tx.read("a"),
        lambda: tx.commit("a", "c", 1),
        lambda: tx.cursor("a", "c"),
        lambda: tx.set_mark("m", 1),
        lambda: tx.get_mark("m"),
    ]
    for use in uses:
        with pytest.raises(Closed):
            use()
    with pytest.raises(ConfigError, match="once"), tx:
        pass
    assert journal.topic("a").latest == 1


# whose it is


def begun(journal: Journal) -> Generator[Transaction]:
    """A generator whose block is as long as the generator is open."""
    with journal.transaction() as tx:
        tx.append("a", "k", "unfinished")
        yield tx


def check_released(place: Place, journal: Journal, in_threads: InThreads) -> None:
    """Every thread and, where the store is shared, every other opener can write, and nothing unfinished is there."""
    expected = payloads(journal.topic("a").read())
    assert "unfinished" not in expected
    for work in (journal.topic("a").append, in_threads_of(in_threads, journal.topic("a").append)):
        work("k", "later")
        expected.append("later")
    with journal.transaction() as tx:
        tx.append("a", "k", "last")
    expected.append("last")
    if place.kind.second_open:
        place.open(durability="process").topic("a").append("k", "elsewhere")
        expected.append("elsewhere")
    assert payloads(journal.topic("a").read()) == expected
    assert seqs(journal.topic("a").read()) == list(range(1, len(expected) + 1))


def in_threads_of(in_threads: InThreads, work: Callable[..., Any]) -> Callable[..., None]:
    return lambda *args: in_threads(work, *args).join(DEADLINE)


def test_only_the_thread_that_began_a_transaction_can_use_it(journal: Journal, in_threads: InThreads) -> None:
    def misuse(tx: Transaction) -> None:
        for use in (lambda: tx.append("a", "k", "other thread"), lambda: list(tx.read("a")), lambda: tx.get_mark("m")):
            with pytest.raises(ConfigError, match="thread"):
                use()

    with journal.transaction() as tx:
        tx.append("a", "k", 1)
        in_threads(misuse, tx).join(DEADLINE)
        tx.append("a", "k", 2)
    assert payloads(journal.topic("a").read()) == [1, 2]


def test_a_block_that_ends_in_another_thread_rolls_back_and_raises(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    def end(tx: Transaction) -> None:
        with pytest.raises(ConfigError, match="another thread"):
            tx.__exit__(None, None, None)

    tx = journal.transaction().__enter__()
    tx.append("a", "k", "unfinished")
    in_threads(end, tx).join(DEADLINE)
    check_released(place, journal, in_threads)
    with pytest.raises(Closed, match="another thread"):  # its own thread is told as well
        tx.append("a", "k", "unfinished")
    with pytest.raises(ConfigError, match="nothing of this transaction was kept"):
        tx.__exit__(None, None, None)


def test_a_generator_that_another_thread_closes_releases_the_writer(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    def close(generator: Generator[Transaction]) -> None:
        with pytest.raises(ConfigError, match="another thread"):
            generator.close()

    generator = begun(journal)
    next(generator)
    in_threads(close, generator).join(DEADLINE)
    check_released(place, journal, in_threads)


def test_a_block_that_fails_in_another_thread_keeps_its_own_error(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    def fail(generator: Generator[Transaction]) -> None:
        with pytest.raises(Failure):
            generator.throw(Failure)

    generator = begun(journal)
    next(generator)
    in_threads(fail, generator).join(DEADLINE)
    check_released(place, journal, in_threads)


def test_the_writer_is_released_when_the_thread_of_a_transaction_ends(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    held: list[Any] = []
    queue = journal.queue("q")
    queue.push("message")

    def begin() -> None:
        generator = begun(journal)
        held.extend((generator, next(generator)))
        held.append(held[1].take("q"))

    in_threads(begin).join(DEADLINE)
    generator, tx, _ = held
    check_released(place, journal, in_threads)
    taken = queue.take()
    assert taken is not None and taken.payload == "message"
    with pytest.raises(Closed, match="thread that began it has ended"):
        tx.append("a", "k", "unfinished")
    with pytest.raises(ConfigError, match="thread that began it has ended"):
        generator.close()


def test_a_thread_with_the_id_of_one_that_has_ended_is_not_taken_for_it(
    journal: Journal, in_threads: InThreads
) -> None:
    held: list[Any] = []
    ids: set[int] = set()

    def begin() -> None:
        ids.add(threading.get_ident())
        held.append(journal.transaction().__enter__())

    def use() -> None:
        again.append(threading.get_ident() in ids)
        with pytest.raises(Closed, match="has ended"):
            held[0].append("a", "k", "unfinished")
        journal.topic("a").append("k", "later")

    again: list[bool] = []
    in_threads(begin).join(DEADLINE)
    while not any(again) and len(again) < 100:  # the system gives an id anew as soon as it is free
        in_threads(use).join(DEADLINE)
    assert payloads(journal.topic("a").read()) == ["later"] * len(again)


def test_the_writer_is_released_when_a_transaction_is_dropped(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    tx: Transaction | None = journal.transaction().__enter__()
    assert tx is not None
    tx.append("a", "k", "unfinished")
    tx = None
    gc.collect()
    check_released(place, journal, in_threads)


def test_a_transaction_ends_in_the_greenlet_it_was_handed_to(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    """Greenlets of one thread are one thread to a transaction; a greenlet that is dropped leaves its block."""
    from greenlet import getcurrent, greenlet

    def hold() -> None:
        with journal.transaction() as tx:
            tx.append("a", "k", "unfinished")
            getcurrent().parent.switch()

    holder = greenlet(hold)
    holder.switch()
    with pytest.raises(ConfigError, match="inside a transaction"):  # it would wait for itself
        journal.topic("a").append("k", "meanwhile")
    del holder
    gc.collect()
    check_released(place, journal, in_threads)
    whole = greenlet(lambda: [setattr_done.append(1) for _ in begun(journal)])
    setattr_done: list[int] = []
    whole.switch()
    assert setattr_done == [1] and payloads(journal.topic("a").read())[-1] == "unfinished"


def test_a_greenlet_whose_thread_has_ended_releases_the_writer(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    from greenlet import getcurrent, greenlet

    held: list[Any] = []

    def hold() -> None:
        with journal.transaction() as tx:
            tx.append("a", "k", "unfinished")
            getcurrent().parent.switch()

    def run() -> None:
        held.append(greenlet(hold))
        held[0].switch()

    in_threads(run).join(DEADLINE)
    check_released(place, journal, in_threads)
    held.clear()
    gc.collect()
    check_released(place, journal, in_threads)


def test_another_thread_ends_a_transaction_between_two_of_its_steps(
    place: Place, journal: Journal, in_threads: InThreads
) -> None:
    inside, ended = threading.Event(), threading.Event()

    def end() -> None:
        assert inside.wait(DEADLINE)
        with suppress(ConfigError):
            tx.__exit__(None, None, None)
        ended.set()

    def slow(commit: Commit) -> None:
        inside.set()
        assert not ended.wait(0.05)  # not in the middle of this step, however long it takes
        commit.append("a", journal.topic("a")._at.prepare("k", "unfinished", {}))

    tx = journal.transaction().__enter__()
    ender = in_threads(end)
    tx._held.change(slow)
    ender.join(DEADLINE)
    check_released(place, journal, in_threads)


def test_an_interrupt_works_as_before_when_another_thread_has_ended_the_main_threads_transaction(
    journal: Journal, in_threads: InThreads
) -> None:
    before = signal.getsignal(signal.SIGINT)
    tx = journal.transaction().__enter__()
    in_threads(tx.__exit__, Failure, Failure(), None).join(DEADLINE)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    journal.topic("a").append("k", 1)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert payloads(journal.topic("a").read()) == [1]


IN_CHILD = {
    "leaves its block": lambda tx: None,
    "appends": lambda tx: tx.append("a", "k", "child"),
    "reads": lambda tx: list(tx.read("a")),
}


@pytest.mark.parametrize("does", IN_CHILD)
@only(on_disk=True)
def test_a_forked_child_cannot_end_its_parents_transaction(place: Place, does: str, in_threads: InThreads) -> None:
    journal = place.open()
    reader, writer = os.pipe()
    journal.topic("a").append("k", 1)
    child = -1
    try:
        with journal.transaction() as tx:
            tx.append("a", "k", 2)
            child = os.fork()
            if child == 0:
                IN_CHILD[does](tx)
    except Closed as error:
        assert child == 0
        os.write(writer, str(error).encode())
    finally:
        if child == 0:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert "forked" in os.read(reader, 1_000).decode()
    os.close(reader)
    assert payloads(journal.topic("a").read()) == [1, 2]
    journal = place.reopen(journal)
    assert payloads(journal.topic("a").read()) == [1, 2]


@only(on_disk=True)
def test_a_forked_child_cannot_begin_a_transaction(place: Place) -> None:
    journal = place.open()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with journal.transaction():
                os.write(writer, b"it began")
        except Closed as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert "forked" in os.read(reader, 1_000).decode()
    os.close(reader)
    journal.topic("a").append("k", 1)


def test_a_transaction_waits_in_the_line_of_those_who_append(journal: Journal, in_threads: InThreads) -> None:
    """However many threads append all the time, a transaction begins."""
    over = threading.Event()

    def keep_appending() -> None:
        while not over.is_set():
            journal.topic("a").append("k")

    writers = [in_threads(keep_appending) for _ in range(4)]
    try:
        for number in range(20):
            with journal.transaction() as tx:
                tx.append("b", "k", number)
    finally:
        over.set()
    for thread in writers:
        thread.join(DEADLINE)
    assert payloads(journal.topic("b").read()) == list(range(20))


def test_a_transaction_that_waits_is_told_when_the_journal_is_closed(journal: Journal, in_threads: InThreads) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with journal.transaction():
            begun.set()
            assert go_on.wait(DEADLINE)

    def wait() -> None:
        with suppress(Closed), journal.transaction() as tx:  # or it begins before the journal is closed
            tx.append("a", "k")

    holder = in_threads(hold)
    assert begun.wait(DEADLINE)
    waiting = [in_threads(wait) for _ in range(3)]
    eventually(lambda: journal.pressure().queued == 3)
    closing = in_threads(journal.close)
    go_on.set()
    for thread in (holder, *waiting, closing):
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert journal.closed


def test_who_waits_for_a_transaction_comes_before_the_next_one_of_its_thread(
    journal: Journal, in_threads: InThreads
) -> None:
    """A thread that begins one transaction after the other lets those in who began to wait meanwhile."""

    def transfer() -> None:
        with journal.transaction() as tx:
            tx.append("a", "another transaction")

    for does, kind in (
        (lambda: journal.topic("a").append("an append"), "an append"),
        (transfer, "another transaction"),
    ):
        with journal.transaction():
            thread = in_threads(does)
            eventually(lambda: journal.pressure().queued == 1)
        with journal.transaction() as tx:
            assert [event.kind for event in tx.read("a")][-1:] == [kind]
        thread.join(DEADLINE)


def test_transactions_of_several_threads_take_turns(journal: Journal, in_threads: InThreads) -> None:
    def transfer(worker: int) -> None:
        for step in range(10):
            with journal.transaction() as tx:
                seen = len(list(tx.read("a")))
                tx.append("a", "k", [worker, step])
                tx.append("b", "k", seen)
                if step % 5 == 4:
                    continue
            journal.topic("c").append("k", worker)

    threads = [in_threads(transfer, worker) for worker in range(6)]
    for thread in threads:
        thread.join(DEADLINE)
    assert payloads(journal.topic("b").read()) == list(range(60))  # each saw all that came before it
    assert seqs(journal.topic("a").read()) == list(range(1, 61)) and len(journal.topic("c")) == 48


def test_an_empty_transaction_is_fine(journal: Journal) -> None:
    with journal.transaction():
        pass
    with journal.transaction() as tx:
        assert tx.append_many("a", []) == []
    assert journal.topics() == []


def test_a_topic_of_another_journal_is_refused(place: Place, journal: Journal) -> None:
    import penstock

    with penstock.open("memory:") as other, journal.transaction() as tx, pytest.raises(ConfigError, match="another"):
        tx.append(other.topic("a"), "k")


def test_subscribers_see_a_transaction_at_once_and_whole(journal: Journal) -> None:
    with journal.topic("a").subscribe() as subscription:
        with journal.transaction() as tx:
            tx.append("a", "k", 1)
            tx.append("a", "k", 2)
            assert subscription.next(0) is None
        assert [subscription.next(DEADLINE), subscription.next(DEADLINE)] == list(journal.topic("a").read())


@on("memory", "sqlite")
def test_a_large_transaction_is_one(journal: Journal) -> None:
    with pytest.raises(Failure), journal.transaction() as tx:
        for n in range(30):
            tx.append_many("a", [Draft("k", "x" * 100)] * 1000)
            if n % 10 == 5:
                assert sum(1 for _ in tx.read("a")) == (n + 1) * 1000
        raise Failure
    assert journal.topics() == []


@on("sqlite", "rocksdb", "file")
def test_a_read_only_journal_has_no_transactions(place: Place) -> None:
    place.open().close()
    journal = place.open(read_only=True)
    with pytest.raises(ReadOnly), journal.transaction():
        pass


def test_a_transaction_reads_by_a_condition_too(journal: Journal) -> None:
    with journal.transaction() as tx:
        for number in range(6):
            tx.append("orders", "k", {"n": number})
        assert [event.payload["n"] for event in tx.read("orders", where="payload.n > 1", limit=2)] == [2, 3]

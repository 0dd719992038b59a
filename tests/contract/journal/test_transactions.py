"""Transactions: all or nothing across topics, with their own writes visible inside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, Place, on, payloads, seqs

from penstock import Draft, Journal, Transaction
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


def test_a_transaction_belongs_to_its_thread(journal: Journal, in_threads: InThreads) -> None:
    def misuse(tx: Transaction) -> None:
        with pytest.raises(ConfigError, match="thread"):
            tx.append("a", "k", "other thread")
        with pytest.raises(ConfigError, match="thread"):
            tx.__exit__(None, None, None)

    with journal.transaction() as tx:
        tx.append("a", "k", 1)
        in_threads(misuse, tx).join(DEADLINE)
        tx.append("a", "k", 2)
    assert payloads(journal.topic("a").read()) == [1, 2]


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

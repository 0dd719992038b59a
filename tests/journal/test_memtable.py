"""The memtable: fed by the commits of this process, caught up with those of others, bounded while a load runs."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Draft, Journal
from penstock.api import open_local
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.index import index as lookup
from penstock.core.journal.index import indexer, memtable
from penstock.core.journal.index import indexer as contents
from penstock.core.journal.keys import MAX_SEQ
from penstock.core.journal.reading import TopicView
from penstock.errors import Conflict


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with penstock.open(f"sqlite:{tmp_path / 'store.db'}", durability="process") as opened:
        yield opened


def seqs(journal: Journal, key: str) -> list[int]:
    return [event.seq for event in journal.topic("t").read(key=key)]


def test_a_look_up_reads_nothing_that_this_process_has_written(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = journal.topic("t")
    topic.append("k", 1, key="a")
    assert seqs(journal, "a") == [1]

    def refuse(*_: object) -> None:
        raise AssertionError("a block was read")

    journal._core.housekeeper.request = lambda topic: None  # type: ignore[attr-defined]

    monkeypatch.setattr(lookup, "open_block", refuse)
    topic.append("k", 2, key="a")
    topic.append_many([Draft("k", n, key="ab"[n % 2]) for n in range(10)])
    topic.append("k", 3)
    with journal.transaction() as tx:
        tx.append("t", "k", 4, key="a")
    assert seqs(journal, "a") == [1, 2, 3, 5, 7, 9, 11, 14] and topic.position_of("b") == 12
    assert [event.payload for event in topic.read(key="a")][-2:] == [8, 4]
    for n in range(200):  # small blocks are merged on the way
        assert topic.append("k", n, key="c").seq == 15 + n == topic.position_of("c")
    assert seqs(journal, "c") == list(range(15, 215))


def test_what_was_rolled_back_is_not_found(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.append("k", key="a")
    assert seqs(journal, "a") == [1]
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.append("t", "k", key="a")
        assert [event.seq for event in tx.read("t", key="a")] == [1, 2]
        raise ZeroDivisionError
    assert seqs(journal, "a") == [1]
    with pytest.raises(Conflict):
        topic.append("k", key="a", expect=7)
    assert seqs(journal, "a") == [1] and topic.append("k", key="a", expect=1).seq == 2
    assert seqs(journal, "a") == [1, 2]


def test_two_journals_on_one_store_see_each_others_events(journal: Journal, tmp_path: Path) -> None:
    chance = random.Random(7)
    with penstock.open(f"sqlite:{tmp_path / 'store.db'}", durability="process") as other:
        expected: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        for step in range(400):
            here, key = chance.choice((journal, other)), chance.choice("abc")
            if chance.random() < 0.6:
                count = chance.choice((1, 1, 1, 30))
                receipts = here.topic("t").append_many([Draft("k", key=key)] * count)
                expected[key] += [receipt.seq for receipt in receipts]
            else:
                assert seqs(here, key) == expected[key], step
                assert here.topic("t").position_of(key) == (expected[key] or [0])[-1], step
            if step % 150 == 149:
                here.maintain()


def test_a_snapshot_sees_nothing_that_was_committed_after_it(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.append_many([Draft("k", n, key="a") for n in range(3)])
    assert seqs(journal, "a") == [1, 2, 3]
    reading = topic.read(key="a")
    assert next(reading).seq == 1
    topic.append_many([Draft("k", n, key="a") for n in range(3)])
    assert [event.seq for event in reading] == [2, 3]


@pytest.mark.slow
def test_a_load_waits_for_its_index_and_never_for_ever(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 1_500
    monkeypatch.setattr(indexer, "INDEX_WAITING_EVENTS", bound)
    for module in (contents, indexer):
        monkeypatch.setattr(module, "INDEX_RUN_BYTES", 50_000)
    topic, index = journal.topic("t"), journal._core.index
    batch = [Draft("k", "x" * 50, key=f"entity {n}") for n in range(500)]
    topic.append_many(batch)
    assert topic.position_of("entity 3") == 4  # from here on there is a memtable
    with journal._core.indexer._turn:  # nothing can be indexed in this block
        for _ in range(4):
            topic.append_many(batch)
        assert len(index.memtables["t"]) > bound
        monkeypatch.setattr(indexer, "_STALL_SECONDS", 0.2)
        begun = time.monotonic()
        topic.append_many(batch)
        assert time.monotonic() - begun >= indexer._STALL_SECONDS
        assert topic.latest == 6 * 500
        waiting = threading.Thread(target=topic.append_many, args=(batch,))
        monkeypatch.setattr(indexer, "_STALL_SECONDS", 600.0)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() and topic.latest == 6 * 500
    waiting.join(60)
    assert not waiting.is_alive() and topic.latest == 7 * 500
    for _ in range(20):
        topic.append_many(batch)
        assert len(index.memtables["t"]) <= bound + 2 * 500
    assert seqs(journal, "entity 3") == [500 * n + 4 for n in range(27)]


def test_a_topic_that_is_not_indexed_keeps_little_in_memory_and_is_not_held_up(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (indexer, memtable, lookup):
        monkeypatch.setattr(module, "INDEX_MEMORY_BYTES", 100_000)
    monkeypatch.setattr(indexer, "_STALL_SECONDS", 600.0)
    topic = journal.topic("t")
    topic.configure(indexed=False)
    for round in range(20):
        topic.append_many([Draft("k", "x" * 50, key=f"entity {n}") for n in range(500)])
        assert topic.position_of("entity 3") == 500 * round + 4
        kept = journal._core.index.memtables.get("t")
        assert kept is None or kept.size <= 300_000


def test_what_retention_removed_is_let_go_in_memory_too(journal: Journal) -> None:
    """A topic that keeps less than makes a run has never a run: its memtable must not hold all there ever was."""
    topic, core = journal.topic("t"), journal._core
    topic.configure(max_events=100)
    for _ in range(60):
        topic.append_many([Draft("k", "x" * 100, key="ab"[row % 2]) for row in range(50)])
        core.housekeeper.maintain("t")
        assert len(core.index.memtables.get("t", ())) <= 4 * 100
        assert len(seqs(journal, "a")) == len([event for event in topic.read() if event.key == "a"])
    assert seqs(journal, "b")[-1] == topic.latest == 3000
    assert "t" in core.index.memtables and core.index.memtables["t"].size < 100_000


def test_a_memtable_is_not_cut_by_what_was_removed_from_an_earlier_topic_of_its_name(journal: Journal) -> None:
    topic, index = journal.topic("t"), journal._core.index
    topic.append_many([Draft("k", n, key="a") for n in range(5)])
    assert seqs(journal, "a") == [1, 2, 3, 4, 5]
    number = index.memtables["t"].epoch[0]
    index.cut("t", number + 1, 5)
    assert len(index.memtables["t"]) == 5
    index.cut("t", number, 3)
    assert index.memtables["t"].base == 3


def test_the_garbage_collector_does_not_follow_what_is_indexed_in_memory(journal: Journal) -> None:
    """It would walk over every event again and again during a load, and look-ups wait until it has."""
    topic, index = journal.topic("t"), journal._core.index
    topic.append("k", key="a")
    assert seqs(journal, "a") == [1]
    for _ in range(4):
        topic.append_many([Draft("k", n, key=f"entity {n}", correlation=f"c {n % 7}") for n in range(1000)])
    assert seqs(journal, "entity 5") == [7, 1007, 2007, 3007]
    assert len(list(topic.correlated("c 6"))) == 4 * 142
    parts = index.memtables["t"]._parts
    every = [terms for part in parts for terms in part.terms]
    followed = [one for terms in every for one in (terms.values() if isinstance(terms, dict) else [terms])]
    assert sum(part.count for part in parts) == 4001 and not any(map(gc.is_tracked, followed))


def test_forgetting_what_runs_cover_indexes_nothing_anew(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memtable, "INDEX_RUN_EVENTS", 100)
    topic, index = journal.topic("t"), journal._core.index
    topic.append("k", key="a")
    assert seqs(journal, "a") == [1]
    for _ in range(20):
        topic.append_many([Draft("k", n, key="ab"[n % 2]) for n in range(50)])
    before, number = index.memtables["t"], index.memtables["t"].epoch[0]
    reading = topic.read(key="a", reverse=True)
    newest = next(reading).seq
    monkeypatch.setattr(memtable, "_note", None)
    index.cut("t", number, 520)
    after = index.memtables["t"]
    assert after is not before and after.base == 520 and len(after) == 1001 - 520
    assert sum(part.count for part in after._parts) <= 1001 - 520 + 100 and after.size < before.size
    monkeypatch.undo()
    assert [newest, *(event.seq for event in reading)] == [*range(1000, 0, -2), 1]  # begun before
    assert sorted(seqs(journal, "a")) == [1, *range(2, 1001, 2)]  # no run covers what was cut: it is read again
    assert index.memtables["t"] is after
    # A writer that still holds the old one adds nothing to what both of them hold.
    assert before.add_committed("t", 1001, [], None, (b"", 0, b"")) and not before.extend(1001, [], None)
    topic.append("k", key="a")
    assert seqs(journal, "a")[-2:] == [1000, 1002] and len(index.memtables["t"]._parts) < 20


def test_a_large_entity_is_read_in_small_steps_from_memory(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.append("k", key="a")
    assert seqs(journal, "a") == [1]
    topic.append_many([Draft("k", n, key="a") for n in range(3000)])
    found = journal._core.index.memtables["t"]
    with journal._core.engine.read() as snap:
        view = lookup.TopicView.open(snap, "t")
        assert view is not None
        block, rows = next(iter(found.pieces(view, memtable.KEYS, "a", 0, 10**9, reverse=True)))
    assert [block.seq(row) for row in rows] == list(range(3001, 2745, -1))
    assert [event.seq for event in topic.read(key="a", after=1000, limit=700)] == list(range(1001, 1701))
    assert [event.seq for event in topic.read(key="a", limit=700, reverse=True)] == list(range(3001, 2301, -1))


def test_a_memtable_keeps_a_few_megabytes_of_blocks_however_many_entities_there_are(journal: Journal) -> None:
    topic = journal.topic("t")
    for number in range(1_500):
        topic.append("k", "x" * 10_000, key=f"entity {number}", expect=0)
    assert seqs(journal, "entity 3") == [4] and seqs(journal, "entity 1499") == [1500]
    kept = journal._core.index.memtables["t"]
    assert len(kept) == 1_500 and kept.size < 1_500 * 200
    assert sum(len(block.payload) for block in kept._kept._blocks.values()) <= memtable._KEPT_BYTES


@pytest.fixture
def orders() -> Iterator[Journal]:
    with open_local("memory:") as journal:
        topic = journal.topic("orders")
        topic.append("placed", key="ada")
        assert [event.seq for event in topic.read(key="ada")] == [1]  # from here on there is a memtable
        yield journal


def found_in(journal: Journal, snap: Snapshot) -> list[int]:
    view = TopicView.open(snap, "orders")
    assert view is not None
    opened = journal._core.index.open(view)
    forward = [event.seq for some in opened.events("ada", 0, MAX_SEQ) for event in some]
    backward = [event.seq for some in opened.events("ada", 0, MAX_SEQ, reverse=True) for event in some]
    assert forward == backward[::-1]
    keys = {event.key for event in view.events(0, MAX_SEQ, None)}
    assert sorted(opened.entities()) == sorted(key for key in keys if key is not None)
    return forward


def test_a_look_up_shows_its_snapshot_whatever_was_committed_since(orders: Journal) -> None:
    with orders._engine.read() as before:
        orders.topic("orders").append("paid", key="ada")
        with orders._engine.read() as after:
            assert found_in(orders, before) == [1]
            assert found_in(orders, after) == [1, 2]
            assert found_in(orders, before) == [1]


def test_a_look_up_shows_its_snapshot_before_a_large_batch(orders: Journal) -> None:
    with orders._engine.read() as before:
        orders.topic("orders").append("paid", key="ben")
        orders.topic("orders").append_many([Draft("paid", "x" * 1000, key="ada") for _ in range(500)])
        assert found_in(orders, before) == [1]
    with orders._engine.read() as after:
        assert found_in(orders, after) == [1, *range(3, 503)]


def test_a_look_up_shows_its_snapshot_after_runs_have_taken_the_memtables_place(orders: Journal) -> None:
    with orders._engine.read() as before:
        orders.topic("orders").append("paid", key="ada")
        orders.maintain()
        kept = orders._core.index.memtables["orders"]
        assert kept.base == 2
        assert found_in(orders, before) == [1]
        assert orders._core.index.memtables["orders"] is kept  # not that of the snapshot, which is older
    with orders._engine.read() as after:
        assert found_in(orders, after) == [1, 2]


def test_a_look_up_shows_its_snapshot_after_its_topic_was_made_anew(orders: Journal) -> None:
    with orders._engine.read() as before:
        orders.drop_topic("orders")
        orders.topic("orders").append("placed", key="ada")
        with orders._engine.read() as after:
            assert found_in(orders, after) == [2]
            assert found_in(orders, before) == [1]
            assert found_in(orders, after) == [2]

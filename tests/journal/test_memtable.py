"""The memtable: fed by the commits of this process, caught up with those of others, bounded while a load runs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Draft, Journal
from penstock.errors import Conflict
from penstock.journal.index import indexer, lookup, memtable


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

    monkeypatch.setattr(lookup, "open_block", refuse)
    topic.append("k", 2, key="a")
    topic.append_many([Draft("k", n, key="ab"[n % 2]) for n in range(10)])
    topic.append("k", 3)
    with journal.transaction() as tx:
        tx.append("t", "k", 4, key="a")
    assert seqs(journal, "a") == [1, 2, 3, 5, 7, 9, 11, 14] and topic.generation("b") == 12
    assert [event.payload for event in topic.read(key="a")][-2:] == [8, 4]
    for n in range(200):  # small blocks are merged on the way
        assert topic.append("k", n, key="c").seq == 15 + n == topic.generation("c")
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
                assert here.topic("t").generation(key) == (expected[key] or [0])[-1], step
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


def test_a_load_waits_for_its_index_and_never_for_ever(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 200_000
    monkeypatch.setattr(indexer, "INDEX_MEMORY_BYTES", bound)
    monkeypatch.setattr(indexer, "INDEX_RUN_BYTES", bound // 4)
    topic, index = journal.topic("t"), journal._index
    batch = [Draft("k", "x" * 50, key=f"entity {n}") for n in range(500)]
    size = 500 * 130
    topic.append_many(batch)
    assert topic.generation("entity 3") == 4  # from here on there is a memtable
    with journal._indexer._turn:  # nothing can be indexed in this block
        for _ in range(4):
            topic.append_many(batch)
        assert index.memtables["t"].size > bound
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
        assert index.memtables["t"].size <= bound + 2 * size
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
        assert topic.generation("entity 3") == 500 * round + 4
        kept = journal._index.memtables.get("t")
        assert kept is None or kept.size <= 300_000

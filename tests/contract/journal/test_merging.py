"""Small blocks become large ones while everybody goes on appending and reading; no event is lost or changed."""

from __future__ import annotations

import threading

import pytest
from journals import Place

import penstock
from penstock import Draft
from penstock.core.journal import blocks, keys
from penstock.core.journal.blocks import plain_size
from penstock.core.journal.reading import TopicView
from penstock.limits import MERGE_FAN_IN


def block_counts(journal: penstock.Journal, topic: str) -> list[int]:
    with journal._engine.read() as snap:
        view = TopicView.open(snap, topic)
        assert view is not None
        return [block.count for block in view.blocks(0, 1 << 62)]


def test_one_by_one_appends_are_merged_by_the_commits_themselves(place: Place) -> None:
    with place.open() as journal:
        journal._core.housekeeper.request = lambda topic: None  # it would merge in its own time
        topic = journal.topic("t")
        for number in range(3 * MERGE_FAN_IN + 5):
            topic.append("k", number)
        counts = block_counts(journal, "t")
        assert counts[:3] == [MERGE_FAN_IN] * 3
        assert sum(counts) == 3 * MERGE_FAN_IN + 5
        assert [event.payload for event in topic.read()] == list(range(3 * MERGE_FAN_IN + 5))


def test_appending_beside_a_busy_housekeeper_loses_nothing(place: Place) -> None:
    with place.open(durability="process") as journal:
        topic = journal.topic("t")
        done = threading.Event()

        def keep() -> None:
            while not done.is_set():
                journal._core.housekeeper.maintain("t")
                journal._core.housekeeper.maintain("t", thorough=True)

        keeper = threading.Thread(daemon=True, target=keep)
        keeper.start()
        try:
            for number in range(1500):
                topic.append("k", number)
        finally:
            done.set()
            keeper.join()
        assert [(event.seq, event.payload) for event in topic.read()] == [(n + 1, n) for n in range(1500)]


def test_appenders_and_the_housekeeper_and_compaction_agree(place: Place) -> None:
    with place.open(durability="process") as journal:
        topic = journal.topic("t")
        threads = [
            threading.Thread(daemon=True, target=lambda: [topic.append("k", number) for number in range(300)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for step in range(1, 9):
            journal._core.housekeeper.maintain("t", thorough=step % 2 == 0)
            topic.compact(min(step * 20, topic.latest), force=True)
        for thread in threads:
            thread.join()
        oldest = topic.oldest
        assert [event.seq for event in topic.read()] == list(range(oldest, 1201))
        assert len(topic) == 1200 - oldest + 1


def stored_blocks(journal: penstock.Journal) -> list[bytes]:
    with journal._engine.read() as snap:
        return [value for _, value in snap.scan(keys.BLOCK, keys.prefix_end(keys.BLOCK))]


def order(number: int) -> Draft:
    return Draft("placed", {"order": number, "note": "the same for every order " * 4}, key=f"c{number % 7}")


def test_large_blocks_and_merged_ones_are_compressed_and_single_events_stay_as_they_are(place: Place) -> None:
    with place.open() as journal:
        journal._core.housekeeper.request = lambda topic: None
        topic = journal.topic("t")
        topic.append_many(map(order, range(1000)))
        (large,) = stored_blocks(journal)
        assert len(large) * 8 < plain_size(large)
        for number in range(1000, 1005):
            topic.append_many([order(number)])
        assert all(plain_size(value) == len(value) for value in stored_blocks(journal)[1:])
        journal.maintain()
        assert all(len(value) < plain_size(value) for value in stored_blocks(journal))
        with journal._engine.read() as snap:  # the index has the events once more, by key
            chunks = [value for key, value in snap.scan(b"k", b"l") if plain_size(value) > 5000]
        assert chunks and all(len(chunk) * 4 < plain_size(chunk) for chunk in chunks)
    with place.open() as journal:
        assert [event.payload["order"] for event in journal.topic("t").read()] == list(range(1005))
        assert [event.payload["order"] for event in journal.topic("t").read(key="c3")] == list(range(3, 1005, 7))


def test_a_store_of_a_version_that_compressed_nothing_reads_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier, place.open() as journal:
        earlier.setattr(blocks, "COMPRESSED_BYTES", 1 << 40)
        journal.topic("t").append_many(map(order, range(1000)))
        journal.maintain()
        assert all(plain_size(value) == len(value) for value in stored_blocks(journal))
    with place.open() as journal:
        topic = journal.topic("t")
        topic.append_many(map(order, range(1000, 2000)))
        topic.append_many([order(2000)])
        journal.maintain()
        plain = [value for value in stored_blocks(journal) if plain_size(value) == len(value)]
        assert 0 < len(plain) < len(stored_blocks(journal))  # what is not merged stays as it is
        assert [event.payload["order"] for event in topic.read()] == list(range(2001))
        assert [event.payload["order"] for event in topic.read(key="c3")] == list(range(3, 2001, 7))
        topic.compact(1500)
        assert [event.payload["order"] for event in topic.read()] == list(range(1500, 2001))

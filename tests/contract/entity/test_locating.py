"""An event is found by its id, and effects by their cause, without asking every topic, and none is ever missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from journals import Place, eventually, on, only

import penstock
from penstock import Draft, Event, Journal
from penstock.core.journal import keys, locating
from penstock.core.journal.index.indexer import Indexer
from penstock.core.journal.locating import find_event, topics_naming
from penstock.core.local.backend import LocalJournal

FEW = 4


@pytest.fixture(autouse=True)
def few_topics_are_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("locating", "core"):
        monkeypatch.setattr(f"penstock.core.journal.{module}.UNFOLDED_TOPICS", FEW)
    yield


def naming(journal: Journal, id: str) -> set[str]:
    """The topics that are asked for effects."""
    assert isinstance(journal, LocalJournal)
    with journal._engine.read() as snap:
        return set(topics_naming(snap, id))


def rows(journal: Journal, prefix: bytes) -> list[bytes]:
    assert isinstance(journal, LocalJournal)
    with journal._engine.read() as snap:
        return [key for key, _ in snap.scan(prefix, keys.prefix_end(prefix))]


def kinds(events: Iterator[Event]) -> list[str]:
    return sorted(event.kind for event in events)


def fill(journal: Journal, topics: int = 20) -> str:
    """A cause, one effect of it in `topic-3`, and events of other chains in every topic."""
    with patch.object(Indexer, "request_fold"):  # `maintain` folds all of them, none was folded in passing
        cause = journal.topic("first").append("placed")
        for number in range(topics):
            journal.topic(f"topic-{number}").append("other", correlation=f"chain {number}")
        journal.topic("topic-3").append("paid", cause=cause)
        journal.maintain()
    return cause.id


def test_only_topics_that_may_have_effects_are_asked(journal: Journal) -> None:
    cause = fill(journal)
    assert naming(journal, cause) == {"topic-3"} and naming(journal, "chain 7") == {"topic-7"}
    assert naming(journal, "no chain") == set()
    assert kinds(journal.correlated(cause)) == ["paid", "placed"] and kinds(journal.correlated("chain 7")) == ["other"]
    assert kinds(journal.topic("first").effects(cause)) == ["paid"]


def test_what_comes_after_folding_is_found_at_once(journal: Journal) -> None:
    cause = fill(journal)
    journal.topic("topic-9").append("sent", cause=cause)
    with journal.transaction() as tx:
        tx.append("topic-11", "sent", cause=cause)
        tx.append("topic-12", "quiet")
    assert naming(journal, cause) == {"topic-3", "topic-9", "topic-11"}
    assert kinds(journal.correlated(cause)) == ["paid", "placed", "sent", "sent"]


def test_commits_without_causes_say_nothing(journal: Journal) -> None:
    for number in range(10):
        journal.topic(f"topic-{number}").append_many([Draft("placed", key="k")] * 3)
    assert rows(journal, keys.UNFOLDED) == rows(journal, keys.CAUSAL) == []


@on("memory", "sqlite")
def test_many_unfolded_topics_are_folded_without_being_asked(journal: Journal) -> None:
    for number in range(3 * FEW):
        journal.topic(f"topic-{number}").append("other", correlation=f"chain {number}")
    eventually(lambda: len(rows(journal, keys.UNFOLDED)) <= 2 * FEW and len(rows(journal, keys.CAUSAL)) >= FEW)


@on("sqlite", "file")
def test_those_an_earlier_process_left_are_folded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Indexer, "request_fold", lambda self: None)
        journal = place.open()
        for number in range(3 * FEW):
            journal.topic(f"topic-{number}").append("other", correlation=f"chain {number}")
        assert len(rows(journal, keys.UNFOLDED)) == 3 * FEW
    journal = place.reopen(journal)
    eventually(lambda: rows(journal, keys.UNFOLDED) == [])
    assert naming(journal, "chain 5") == {"topic-5"}


def test_a_rolled_back_transaction_leaves_the_next_one_to_say_so(journal: Journal) -> None:
    cause = fill(journal)
    with pytest.raises(ZeroDivisionError), journal.transaction() as tx:
        tx.append("topic-5", "sent", cause=cause)
        raise ZeroDivisionError
    assert naming(journal, cause) == {"topic-3"}
    journal.topic("topic-5").append("sent", cause=cause)
    assert kinds(journal.correlated(cause)) == ["paid", "placed", "sent"]


@only(second_open=True)
def test_a_topic_that_another_process_has_folded_is_said_to_be_unfolded_again(
    place: Place, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Indexer, "request_fold", lambda self: None)
    cause, other = fill(journal), place.open()
    for number in range(10):
        journal.topic(f"topic-{number}").append("sent", cause=cause)
        other.topic(f"topic-{number}").append("sent", cause=cause)
    other.maintain()
    assert rows(journal, keys.UNFOLDED) == []
    journal.topic("topic-4").append("late", cause=cause)
    assert kinds(other.correlated(cause)).count("late") == 1
    assert kinds(other.correlated(cause)).count("sent") == 20


def test_a_dropped_topic_leaves_no_row_but_notes_and_those_go_too(journal: Journal) -> None:
    cause = fill(journal)
    journal.drop_topic("topic-3")
    assert naming(journal, cause) == set() and kinds(journal.correlated(cause)) == ["placed"]
    journal.topic("topic-3").append("again", correlation=cause)
    assert kinds(journal.correlated(cause)) == ["again", "placed"]
    assert len(rows(journal, keys.NAME)) == 1 + len(journal.topics())
    for name in journal.topics():
        journal.drop_topic(name)
    with patch.object(Indexer, "request_fold"):
        for round in range(3):  # as many notes are looked over as are made
            for number in range(20):
                journal.topic(f"new-{number}").append("other", correlation=f"new chain {number} {round}")
            journal.maintain()
    assert len(rows(journal, keys.CAUSAL)) == 60


def test_notes_of_trimmed_events_are_forgotten(journal: Journal) -> None:
    for round in range(12):
        for number in range(2 * FEW):
            topic = journal.topic(f"topic-{number}")
            topic.compact(topic.latest)
            topic.append_many([Draft("other", correlation=f"chain {number} {round} {row}") for row in range(9)])
        journal.maintain()
    assert len(rows(journal, keys.CAUSAL)) <= 3 * 2 * FEW * 9


def test_topics_compacted_by_key_stay_unfolded(journal: Journal) -> None:
    for number in range(2 * FEW):
        journal.topic(f"topic-{number}").configure(by_key=True)
        journal.topic(f"topic-{number}").append("other", key="k", correlation=f"chain {number}")
    journal.maintain()
    assert len(rows(journal, keys.UNFOLDED)) == 2 * FEW and rows(journal, keys.CAUSAL) == []
    assert kinds(journal.correlated("chain 5")) == ["other"]


def test_a_store_of_an_earlier_version_asks_all_until_it_is_maintained(journal: Journal) -> None:
    cause = fill(journal)
    assert isinstance(journal, LocalJournal)
    with journal._engine.write() as tx:
        for prefix in (keys.NAME, keys.OTHER_IDS, keys.CAUSAL, keys.UNFOLDED):
            tx.delete_range(prefix, keys.prefix_end(prefix))
    assert naming(journal, "no chain") == set(journal.topics())
    journal.topic("made-since").append("sent", cause=cause)
    assert kinds(journal.correlated(cause)) == ["paid", "placed", "sent"]
    journal.maintain()
    assert naming(journal, cause) == {"topic-3", "made-since"} and naming(journal, "no chain") <= {"made-since"}
    assert kinds(journal.correlated(cause)) == ["paid", "placed", "sent"]
    for name in journal.topics():
        for event in journal.topic(name).read():
            assert next(iter(journal.topic("first").ancestors(event.id))) == event


@pytest.mark.parametrize("seed", range(3))
def test_every_id_is_found_whatever_was_appended_and_dropped(seed: int, journal: Journal) -> None:
    """A topic's bits are in its ids also when commits share a millisecond, and when its name is used again."""
    chance = random.Random(seed)
    assert isinstance(journal, LocalJournal)
    for _ in range(60):
        name = f"topic-{chance.randrange(9)}"
        match chance.randrange(5):
            case 0 if name in journal.topics():
                journal.drop_topic(name)
            case 1:
                with journal.transaction() as tx:
                    for other in range(3):
                        tx.append(f"topic-{other}", "within")
            case _:
                journal.topic(name).append_many([Draft("placed")] * chance.choice((1, 1, 200)))
    with journal._engine.read() as snap:
        for name in journal.topics():
            last = 0
            for event in journal.topic(name).read():
                assert find_event(snap, event.id) == event
                assert event._identity() > last
                last = event._identity()


def test_ids_given_elsewhere_are_found(journal: Journal, tmp_path: Path) -> None:
    with penstock.open("memory:") as source:
        given = [event.id for _ in range(5) for event in [source.topic("orders").append("placed")]]
        source.export(tmp_path / "orders.jsonl", topics=["orders"])
    journal.import_(tmp_path / "orders.jsonl", topics=["orders"])
    assert rows(journal, keys.OTHER_IDS) == [], "they have the bits of their topic's name"
    journal.import_(tmp_path / "orders.jsonl", topics=["copied"])
    journal.drop_topic("orders")
    assert isinstance(journal, LocalJournal) and len(rows(journal, keys.OTHER_IDS)) == 1
    with journal._engine.read() as snap:
        assert [getattr(find_event(snap, id), "topic", None) for id in given] == ["copied"] * 5
    journal.drop_topic("copied")
    assert rows(journal, keys.OTHER_IDS) == []


def test_a_topic_that_cannot_be_read_is_asked(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Indexer, "request_fold", lambda self: None)
    cause = fill(journal)
    for number in range(10):
        journal.topic(f"topic-{number}").append("sent", cause=cause)

    def damaged(*_: object) -> None:
        raise penstock.errors.Corrupt("damaged")

    assert len(rows(journal, keys.UNFOLDED)) == 10
    monkeypatch.setattr(locating, "load_head", damaged)
    assert isinstance(journal, LocalJournal)
    journal._core.indexer.notes.fold()
    assert len(rows(journal, keys.UNFOLDED)) == 10
    assert kinds(journal.correlated(cause)).count("sent") == 10

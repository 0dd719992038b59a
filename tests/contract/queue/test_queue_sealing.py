"""Sealed history and queues: a message that is not settled is never moved to where a queue cannot see it."""

from __future__ import annotations

import pytest
from journals import Place, payloads

from penstock import Draft, Journal
from penstock.core.journal.sealed import sealing
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError


def local(journal: Journal) -> LocalJournal:
    assert isinstance(journal, LocalJournal)
    return journal


def test_a_queue_is_not_sealed(journal: Journal, place: Place) -> None:
    queue = journal.queue("jobs")
    queue.push_many([1, 2])
    with pytest.raises(ConfigError, match="is a queue"):
        seal_topic(local(journal)._core, "jobs", lake=str(place.folder / "lake"), through=2)
    assert len(queue.take_many(5)) == 2


def test_a_topic_with_sealed_history_does_not_become_a_queue(journal: Journal, place: Place) -> None:
    topic = journal.topic("jobs")
    topic.append_many([Draft("k", n) for n in range(5)])
    seal_topic(local(journal)._core, "jobs", lake=str(place.folder / "lake"), through=3)
    with pytest.raises(ConfigError, match="through 3 is sealed"):
        journal.queue("jobs")
    assert journal.queues() == [] and payloads(topic.read()) == [0, 1, 2, 3, 4]
    topic.compact(3)
    assert [one.payload for one in journal.queue("jobs").take_many(9)] == [3, 4]


def test_a_topic_that_becomes_a_queue_during_a_seal_keeps_its_messages(
    journal: Journal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.topic("jobs").append_many([Draft("k", n) for n in range(5)])
    write = sealing.write_segment

    def meanwhile(*given: object) -> object:
        journal.queue("jobs")
        return write(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(sealing, "write_segment", meanwhile)
    with pytest.raises(ConfigError, match="became a queue"):
        seal_topic(local(journal)._core, "jobs", lake=str(place.folder / "lake"), through=3)
    assert [one.payload for one in journal.queue("jobs").take_many(9)] == [0, 1, 2, 3, 4]


def test_what_was_sealed_after_a_drop_does_not_keep_a_queue_from_being_made_again(
    journal: Journal, place: Place
) -> None:
    queue = journal.queue("jobs")
    journal.topic("jobs").commit("archive", 0)
    queue.push_many([1, 2, 3])
    queue.drop()
    seal_topic(local(journal)._core, "jobs", lake=str(place.folder / "lake"), through=3)
    again = journal.queue("jobs")
    again.push(4)
    assert [one.payload for one in again.take_many(9)] == [4]

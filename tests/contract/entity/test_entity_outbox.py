"""Outboxes: drafts gathered locally and appended as one atomic batch."""

from __future__ import annotations

import pytest
from journals import seqs

import penstock
from penstock import Journal, Topic
from penstock.errors import Closed, ConfigError, Conflict, InvalidName


def test_submit_empties_the_outbox_and_gives_a_ticket(journal: Journal, topic: Topic) -> None:
    outbox = journal.outbox()
    outbox.stage(topic, "e", 1)
    ticket = outbox.submit()
    assert len(outbox) == 0
    assert [one.seq for one in ticket.result(60)] == [1]
    assert outbox.submit().result(60) == []


def test_causes_may_be_drafts_staged_earlier_also_for_other_topics(journal: Journal) -> None:
    outbox = journal.outbox()
    order = outbox.stage("orders", "placed")
    payment = outbox.stage("payments", "charged", cause=order)
    outbox.stage("orders", "paid", cause=payment)
    outbox.stage("orders", "noted", cause=2, correlation="mine")
    placed, charged, paid, noted = outbox.flush()
    events = [journal.topic(one.topic).get(one.seq) for one in (placed, charged, paid, noted)]
    assert [one and one.causation_id for one in events] == [None, placed.id, charged.id, paid.id]
    assert [one and one.correlation_id for one in events] == [None, placed.id, placed.id, "mine"]
    for wrong in (0, 5, -1):
        outbox.stage("orders", "e", cause=wrong)
        with pytest.raises(ConfigError, match="cause"):
            outbox.flush()
        outbox.clear()


def test_a_repeated_flush_is_a_duplicate_before_it_is_a_conflict(journal: Journal, topic: Topic) -> None:
    for repeated in (False, True):
        outbox = journal.outbox()
        outbox.stage(topic, "e", 1, key="a", expect=0, dedup="once")
        outbox.stage("other", "e", 2)
        assert [one.duplicate for one in outbox.flush()] == [repeated, False]
    assert len(topic) == 1


def test_a_block_flushes_on_a_clean_exit_only(journal: Journal, topic: Topic) -> None:
    with journal.outbox() as outbox:
        outbox.stage(topic, "e", 1)
    with pytest.raises(KeyError), journal.outbox() as outbox:
        outbox.stage(topic, "e", 2)
        raise KeyError
    assert seqs(topic.read()) == [1]


def test_bad_drafts_are_refused(journal: Journal, topic: Topic) -> None:
    outbox = journal.outbox()
    with pytest.raises(InvalidName):
        outbox.stage("no/slashes", "e")
    with pytest.raises(ConfigError, match=r"an event has no .colour"):
        outbox.stage(topic, "e", colour="red")
    with penstock.open("memory:") as other, pytest.raises(ConfigError, match="another journal"):
        outbox.stage(other.topic("orders"), "e")
    assert len(outbox) == 0
    outbox.stage(topic, "e", float("nan"))
    with pytest.raises(ConfigError):
        outbox.flush()


def test_a_closed_journal_takes_nothing_more(journal: Journal) -> None:
    outbox = journal.outbox()
    outbox.stage("orders", "e")
    journal.close()
    for attempt in (outbox.flush, outbox.submit):
        with pytest.raises(Closed):
            attempt()


def test_an_outbox_that_was_refused_keeps_what_is_staged(journal: Journal) -> None:
    journal.topic("orders").append("placed", 0, key="o")
    outbox = journal.outbox()
    outbox.stage("orders", "placed", 1, key="o", expect=0)
    with pytest.raises(Conflict):
        outbox.flush()
    assert len(outbox) == 1

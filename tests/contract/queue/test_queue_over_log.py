"""A queue over a topic that was a log before: what it settles stays in the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journals import on, payloads

from penstock import Draft, Journal
from penstock.errors import InvalidName

Reopen = Callable[[Journal], Journal]
ENTRIES = list(range(30_000))


def settle_all(journal: Journal) -> None:
    queue = journal.queue("ledger")
    while taken := queue.take_many(10_000):
        queue.ack_many(taken)
    journal.maintain()


@on("memory", "sqlite")
def test_no_queue_removes_what_was_a_log_before(journal: Journal, reopen: Reopen) -> None:
    topic = journal.topic("ledger")
    topic.append_many([Draft("entry", n) for n in ENTRIES])
    queue = journal.queue("ledger", max_attempts=1)
    queue.take().nack()  # type: ignore[union-attr]
    settle_all(journal)  # behind a failed message, and then from the beginning on
    assert queue.redrive() == 1
    settle_all(journal)
    assert len(queue) == 0 and payloads(topic.read()) == ENTRIES
    queue.push("more")
    assert queue.purge() == 1 and queue.drop() == 0
    journal = reopen(journal)
    queue = journal.queue("ledger")  # it is a log for the next queue, too, and that begins after what was settled
    assert queue.take() is None and queue.push("last").seq == 30_002
    settle_all(journal)
    assert payloads(journal.topic("ledger").read()) == [*ENTRIES, "more", "last"]
    assert journal.topic("ledger").compact(30_000).removed == 30_000  # a log's history goes when it is told to


@on("memory")
@pytest.mark.parametrize("how", ["made", "made again", "made over settings", "made after compaction"])
def test_a_topic_without_a_history_becomes_a_queue(journal: Journal, how: str) -> None:
    topic = journal.topic("ledger")
    if how == "made again":
        journal.queue("ledger").push(1)
        topic.commit("reader", 0)
        journal.queue("ledger").drop()
        topic.forget("reader")
    elif how == "made over settings":
        topic.configure(max_age=3600)
    elif how == "made after compaction":
        topic.append("entry")
        topic.compact(1)
    journal.queue("ledger").push(2)
    settle_all(journal)
    assert payloads(topic.read()) == []


@on("memory")
def test_what_is_appended_after_a_drop_is_a_log(journal: Journal) -> None:
    journal.queue("ledger").drop()
    journal.topic("ledger").append("entry", 1)
    settle_all(journal)
    assert payloads(journal.topic("ledger").read()) == [1]


@on("memory")
def test_topics_of_penstock_s_own_take_no_queue(journal: Journal) -> None:
    journal.topic("penstock.audit").append("console.purge")
    with pytest.raises(InvalidName, match="penstock's own"):
        journal.queue("penstock.audit")
    with pytest.raises(InvalidName, match="penstock's own"):
        journal.queue("jobs", dead_letter="penstock.audit")
    assert journal.queues() == [] and len(journal.topic("penstock.audit")) == 1


@on("memory")
def test_dead_letters_that_were_events_of_a_log_are_found_and_sent_back(journal: Journal) -> None:
    mail = journal.queue("mail", dead_letter="grave")
    lost = {"dead-queue": "mail", "dead-reason": "rejected"}
    journal.topic("grave").append_many([Draft("mail", 1), Draft("mail", 2, headers=lost)])
    grave = journal.queue("grave")
    assert [one.event.seq for one in grave.dead_letters()] == [one.event.seq for one in mail.dead_letters()] == [2]
    journal.maintain()
    assert mail.redrive() == 1 and list(grave.dead_letters()) == [] and payloads(mail) == [2]

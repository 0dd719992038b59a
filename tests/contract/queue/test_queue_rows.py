"""A message is in exactly one place: what the checker says of sound rows, and of rows that do not agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

import penstock
from penstock import Journal, Queue
from penstock.core.journal.commit import Commit
from penstock.core.queue.inspect import open_view
from penstock.core.queue.queue import LocalQueue
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import WORK, QueueState
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import LISTED
from penstock.core.queue.state.records import FAILED, READY, TAKEN, WAITING, MessageRow, encode, read_group
from penstock.errors import ConfigError
from queue_check import check_queue, letters_range


def problems(queue: Queue) -> list[str]:
    assert isinstance(queue._backend, LocalQueue)
    with open_view(queue._backend) as view:
        return check_queue(view.snap, view.state)


@pytest.fixture
def journal() -> Iterator[Journal]:
    """In memory: what the rows say is the same everywhere."""
    with penstock.open("memory:") as journal:
        yield journal


@pytest.fixture
def queue(journal: Journal) -> Queue:
    """1 in flight, 2 held behind it, 3 failed, 4 waits, 5 is ready, 6 is untouched."""
    queue = journal.queue("jobs", max_attempts=1)
    queue.push("first", key="a")
    queue.push("second", key="a")
    queue.push("fails")
    queue.push("late", delay=60)
    queue.push("front", priority="front")
    queue.push("untouched")
    front = queue.take()
    flying = queue.take()
    assert front is not None and flying is not None and (front.event.seq, flying.event.seq) == (5, 1)
    failing = queue.take()
    assert failing is not None and failing.event.seq == 3
    failing.nack(error="broken")
    front.release()
    assert {one.seq: one.state for one in queue.messages()} == {
        1: "in_flight", 2: "ready", 3: "failed", 4: "delayed", 5: "ready", 6: "ready",
    }  # fmt: skip
    return queue


def test_rows_of_a_queue_with_messages_in_every_place_agree(queue: Queue) -> None:
    assert problems(queue) == []


CHANGES: dict[str, tuple[Callable[[Commit, Group], object], str]] = {
    "a second place": (
        lambda commit, group: group.move(commit, MessageRow(1, TAKEN), READY),
        "message 1 is in 2 places",
    ),
    "a row of what is untouched": (
        lambda commit, group: group.move(commit, MessageRow(6, TAKEN), FAILED),
        "message 6 has a place, and is untouched as well",
    ),
    "a message that was never pushed": (
        lambda commit, group: group.move(commit, MessageRow(99, TAKEN, due=1), WAITING),
        "message 99 was never pushed: the queue ends at 6",
    ),
    "a counter": (
        lambda commit, group: setattr(group.record, "ready", 7) or commit.touch(group),
        "ready is 7, counted 1",
    ),
    "an index row too few": (
        lambda commit, group: commit.tx.delete(keys.ready_key(group.prefix, keys.FRONT, 5)),
        "message 5 has no index row",
    ),
    "a row of another state": (
        lambda commit, group: (
            commit.tx.put(group.row(keys.PLACES[FAILED], 5), encode(group.find(commit.tx, 5))),
            commit.tx.delete(group.row(keys.PLACES[READY], 5)),
        ),
        "message 5 does not lie where its state 0 says",
    ),
    "an index row too many": (
        lambda commit, group: commit.tx.put(keys.ready_key(group.prefix, 0, 2), b""),
        "leads to no message",
    ),
    "a key nobody keeps busy": (
        lambda commit, group: group.occupy(commit, "a", []),
        "message 2 waits behind its key 'a', of which 0 are under way",
    ),
    "a key that is busy with what waits": (
        lambda commit, group: group.occupy(commit, "a", [1, 2]),
        "key 'a' is busy with message 2, which is not under way",
    ),
    "a key that is not busy with what is in flight": (
        lambda commit, group: group.occupy(commit, "a", [2]),
        "message 1 is under way, and its key 'a' is not busy with it",
    ),
    "failed attempts of nobody": (
        lambda commit, group: commit.tx.put(group.row(keys.TRAIL, 2), b"\x92\x90\xc0"),
        "failed attempts of message 2, which is settled",
    ),
    "a lease that its messages do not lead to": (
        lambda commit, group: commit.tx.put(keys.batch_key(group.prefix, 1, LISTED | 1), keys.pack_seqs([1, 0])),
        "stretches of leases are",
    ),
    "a dead letter that is none": (
        lambda commit, group: group.queue.note_letters(commit, [(2, "mail")]),
        "leads to no dead letter",
    ),
    "a tick of no schedule": (
        lambda commit, group: commit.tx.put(keys.tick_key(group.topic, 5, "gone"), b""),
        "there are ticks of ['gone'], and periodic messages []",
    ),
    "a time nobody looks at": (
        lambda commit, group: setattr(group.record, "next_due", 0) or commit.touch(group),
        "next_due is 0",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_checker_names_what_does_not_agree(queue: Queue, name: str) -> None:
    own = queue._backend
    assert isinstance(own, LocalQueue)
    damage, expected = CHANGES[name]

    own.change(lambda commit, state: damage(commit, state.group(commit.tx, 0)))
    assert any(expected in found for found in problems(queue)), problems(queue)


def test_a_forced_compaction_leaves_no_rows_of_what_it_removes(journal: Journal, queue: Queue) -> None:
    journal.topic("jobs").compact(5, force=True)
    assert [event.seq for event in queue] == [6]
    assert problems(queue) == []


def test_a_group_that_was_never_added_has_given_nothing_up(journal: Journal) -> None:
    queue = journal.queue("mail", mode="fanout", max_attempts=1)
    queue.push("fails")
    delivery = queue.take(group="audit")
    assert delivery is not None
    delivery.nack(error="broken")
    assert [one.event.seq for one in queue.failures("audit")] == [event.seq for event in queue.failed("audit")] == [1]
    assert list(queue.failures("nobody")) == list(queue.failed("nobody")) == []


def test_messages_of_leases_that_lie_within_each_other_are_listed_in_order(journal: Journal) -> None:
    queue = journal.queue("keyed", max_attempts=5)
    for number in range(8):
        queue.push(number, key=str(number))
    first = queue.take_many(8)
    first[2].release()
    first[3].release()
    first[5].release()
    assert len(queue.take_many(2)) == 2 and queue.take() is not None
    first[0].ack()
    assert [one.seq for one in queue.pending()] == [one.seq for one in queue.messages("in_flight")] == [*range(2, 9)]
    assert [one.seq for one in queue.messages(after=4, limit=2)] == [5, 6]
    assert all(queue.get(seq) is not None for seq in range(2, 9)) and queue.get(1) is None
    assert queue.discard(range(1, 9)) == 0 and problems(queue) == []


def test_letters_that_were_handled_leave_no_rows(journal: Journal) -> None:
    dead, mail = journal.queue("dead"), journal.queue("mail", max_attempts=1, dead_letter="dead")
    for number in range(4):
        mail.push(number)
        lost = mail.take()
        assert lost is not None
        lost.nack(error="no")
    first, second, *rest = dead.take_many(4)
    assert len(list(mail.dead_letters())) == 4
    second.ack()
    assert dead.ack_many(rest) == 2
    own = dead._backend
    assert isinstance(own, LocalQueue)
    with open_view(own) as view:
        assert {keys.tail_seq(key) for key, _ in view.snap.scan(*letters_range(view.state.topic))} == {first.seq}
    assert [one.event.seq for one in mail.dead_letters()] == [first.seq] and problems(dead) == []


def test_the_fields_of_a_groups_record_keep_their_order() -> None:
    """Records are stored as arrays: a field that is moved, or goes, has every stored one read wrongly."""
    stored = [9, 8, 7, 6, 5, 4, 3, 2, 1, 11, 12, 13, 14, 1, 15, 16, 17, 18, {3: 2}, 19, 20]
    record = read_group(msgspec.msgpack.encode(stored), "jobs")
    assert (record.frontier, record.in_flight, record.endless) == (9, 2, 14)
    assert (record.runs, record.until, record.settle_times, record.seen_ms) == (15, 16, {3: 2}, 20)


def test_a_queue_of_an_earlier_layout_is_refused_with_a_sentence(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push(1)
    own = queue._backend
    assert isinstance(own, LocalQueue)

    def make_old(commit: Commit, state: QueueState) -> None:
        group = state.group(commit.tx, WORK)
        group.record.layout = 0
        commit.touch(group)

    own.change(make_old)
    with pytest.raises(ConfigError, match="queue 'jobs' was written by an earlier version of penstock"):
        queue.stats()

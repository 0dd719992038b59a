"""Tags: what they may be, every way to ask for them, and appends that decide over the events that have some."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from journals import on, seqs
from small_index import small_index

import penstock
from penstock import Draft, EventQuery, Journal, Topic
from penstock.errors import ConfigError, Conflict, PositionTrimmed
from penstock.limits import MAX_KEY_BYTES, MAX_TAGS

Reopen = Callable[[Journal], Journal]


# tags


def test_an_event_has_its_tags_once_and_in_order(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    topic.append("enrolled", tags=["student:7", "course:1", "student:7"])
    topic.append_many([Draft("opened", tags="course:1"), Draft("opened"), Draft("opened", tags=())])
    with journal.transaction() as tx:
        tx.append(topic, "closed", tags={"course:2"})
    outbox = journal.outbox()
    outbox.stage("orders", "closed", tags=("course:2", "ü"))
    outbox.flush()
    topic = reopen(journal).topic("orders")
    expected = [("course:1", "student:7"), ("course:1",), (), (), ("course:2",), ("course:2", "ü")]
    assert [event.tags for event in topic.read()] == expected
    found = topic.get(1)
    assert found is not None and found.as_dict()["tags"] == ("course:1", "student:7")


@on("memory")
@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (5, "tags must be several texts, not 5"),
        ({"course": 1}, "tags must be several texts"),
        (["a", 5], "a tag must be text that is not empty, not 5"),
        ([""], "a tag must be text that is not empty"),
        (["x" * (MAX_KEY_BYTES + 1)], "at most 400"),
        (["a\x1fb"], r"must not hold the character U\+001F"),
        ([f"n:{n}" for n in range(MAX_TAGS + 1)], "65 tags are too many; at most 64"),
    ],
)
def test_tags_that_no_event_can_have_are_refused(topic: Topic, tags: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        topic.append("k", tags=tags)
    with pytest.raises(ConfigError):
        list(
            topic.read(tags=[*tags] if isinstance(tags, dict) else tags)
            if tags != {"course": 1}
            else topic.read(tags=5)
        )
    assert topic.latest == 0


def test_every_way_to_ask_for_tags_finds_the_same_events(
    journal: Journal, topic: Topic, reopen: Reopen, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Small and large commits, in memory, in runs of the index, merged, sealed, and after the store was opened anew."""
    stack = ExitStack()
    request.addfinalizer(stack.close)
    stack.enter_context(small_index())
    chance = random.Random(4)
    known: dict[int, set[str]] = {}

    def grow(sizes: list[int]) -> None:
        for size in sizes:
            drafts = [
                Draft("k", n, key=f"key{n % 3}", tags=chance.sample(["a", "b", "c", "d"], chance.randrange(4)))
                for n in range(size)
            ]
            for receipt, draft in zip(topic.append_many(drafts), drafts, strict=True):
                known[receipt.seq] = set(draft.tags or ())

    def check() -> None:
        for wanted in (["a"], ["a", "b"], ["d", "c", "a"], ["nobody"], ["nobody", "a"]):
            expected = [seq for seq, tags in sorted(known.items()) if tags >= set(wanted)]
            assert seqs(topic.read(tags=wanted)) == expected
            assert seqs(topic.read(tags=wanted, reverse=True, limit=5)) == expected[::-1][:5]
            middle = max(known) // 2
            assert seqs(topic.read(middle, tags=wanted)) == [seq for seq in expected if seq > middle]
            assert seqs(topic.read(tags=wanted, through=middle)) == [seq for seq in expected if seq <= middle]
            assert seqs(journal.read(["orders"], tags=wanted)) == expected
            condition = " and ".join(f"tags contains '{tag}'" for tag in wanted)
            assert seqs(topic.read(where=condition)) == expected
            assert seqs(topic.read(where=condition, key="key1")) == [
                seq for seq in expected if event_key[seq] == "key1"
            ]
            with topic.subscribe(0, tags=wanted) as following:
                heard = [event.seq for event in iter(lambda: following.next(0), None)]
            assert heard == expected

    event_key: dict[int, str | None] = {}
    for _ in range(3):
        grow([1, 1, 5, 200, 1, 40])
        event_key = {event.seq: event.key for event in topic.read()}
        check()
    journal.maintain()
    check()
    pytest.importorskip("pyarrow")
    if journal.describe().engine != "memory":
        topic.seal(str(tmp_path / "lake"))
        check()
        journal = reopen(journal)
        topic = journal.topic("orders")
        check()
    topic.reindex()
    grow([3, 150])
    event_key = {event.seq: event.key for event in topic.read()}
    check()


def test_the_proof_of_an_event_says_its_tags(journal: Journal, topic: Topic) -> None:
    topic.append("before", 1)
    topic.configure(verified=True)
    topic.append("with", 2, tags=("b", "a"))
    topic.append("without", 3)
    root = topic.verify().root
    proven = [topic.proof(seq).event for seq in (1, 2, 3)]
    assert [said.get("tags") for said in proven] == [None, ["a", "b"], None]
    assert all(penstock.check_proof(topic.proof(seq), root=root).ok for seq in (1, 2, 3))


# unless


FULL = EventQuery(tags="course:1", kinds="enrolled")


def test_an_append_is_refused_when_a_matching_event_came_after_what_its_caller_read(topic: Topic) -> None:
    assert topic.append("enrolled", tags=("course:1", "student:1"), unless=FULL).seq == 1
    with pytest.raises(
        Conflict, match=r"event 1 \('enrolled'\) of topic 'orders' matches unless= and came after"
    ) as told:
        topic.append("enrolled", tags=("course:1", "student:2"), unless=FULL)
    assert (told.value.expected, told.value.actual) == (0, 1)
    topic.append("renamed", tags="course:1")
    topic.append("enrolled", tags="course:2")
    assert topic.append("enrolled", tags="course:1", unless=FULL, after=1).seq == 4
    with pytest.raises(Conflict):
        topic.append("enrolled", tags="course:1", unless=FULL, after=3)
    with pytest.raises(Conflict):
        topic.append("k", unless=EventQuery(after=3))  # any event at all
    assert topic.append("k", unless=EventQuery(after=3), after=4).seq == 5
    assert topic.append("k", unless=EventQuery(kinds=()), after=0).seq == 6
    assert topic.append("k", unless=EventQuery(where="payload.total > 5", key="e")).seq == 7
    either = [EventQuery(tags="nobody"), EventQuery(tags="course:2")]
    assert topic.append("k", {"total": 6}, key="e", unless=either, after=3).seq == 8
    with pytest.raises(Conflict, match="event 3"):
        topic.append("k", unless=either, after=2)
    with pytest.raises(Conflict, match="event 8"):
        topic.append("k", unless=EventQuery(where="payload.total > 5", key="e"), after=7)


def test_a_batch_is_appended_whole_or_not_at_all_and_its_conditions_are_about_what_was_there_before(
    journal: Journal, topic: Topic
) -> None:
    unless = EventQuery(tags="seat:1")
    made = topic.append_many([Draft("taken", n, tags="seat:1", unless=unless) for n in range(3)])
    assert [one.seq for one in made] == [1, 2, 3]
    with pytest.raises(Conflict):
        topic.append_many([Draft("k", 1), Draft("taken", 2, tags="seat:1", unless=unless, after=2)])
    with pytest.raises(Conflict), journal.transaction() as tx:
        tx.append(topic, "taken", tags="seat:9")
        tx.append(topic, "k", unless=EventQuery(tags="seat:9"))
    outbox = journal.outbox()
    outbox.stage("elsewhere", "k")
    outbox.stage("orders", "k", unless=unless, after=1)
    with pytest.raises(Conflict):
        outbox.flush()
    assert topic.latest == 3 and journal.topic("elsewhere").latest == 0


def test_a_repeated_append_has_its_receipt_although_its_condition_holds_no_more(topic: Topic) -> None:
    first = topic.append("taken", tags="seat:1", unless=EventQuery(tags="seat:1"), dedup="request 1")
    again = topic.append("taken", tags="seat:1", unless=EventQuery(tags="seat:1"), dedup="request 1")
    assert again.duplicate and again.seq == first.seq
    with pytest.raises(Conflict):
        topic.append("taken", tags="seat:1", unless=EventQuery(tags="seat:1"), dedup="request 2")


def test_what_a_condition_cannot_see_is_an_error(topic: Topic) -> None:
    topic.append_many([Draft("k", n, tags="a") for n in range(5)])
    topic.compact(3)
    with pytest.raises(PositionTrimmed):
        topic.append("k", unless=EventQuery(tags="b"), after=2)
    assert topic.append("k", unless=EventQuery(tags="b"), after=3).seq == 6


@on("memory")
@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"after": 5}, "after= needs unless="),
        ({"unless": "tags contains 'a'"}, "unless must be an EventQuery"),
        ({"unless": EventQuery(limit=1)}, "leave limit, reverse, through, since and until out"),
        ({"unless": EventQuery(), "after": -1}, "after must be a position"),
    ],
)
def test_conditions_that_cannot_be_asked_are_refused(topic: Topic, draft: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        topic.append("k", **draft)
    assert topic.latest == 0


def test_of_many_threads_that_want_a_seat_one_gets_it(journal: Journal, topic: Topic) -> None:
    """Also when their appends are committed together."""
    seats, winners = 20, []

    def book(who: int) -> None:
        for seat in range(seats):
            tickets = topic.submit(
                "taken", who, tags=(f"seat:{seat}", f"who:{who}"), unless=EventQuery(tags=f"seat:{seat}")
            )
            try:
                winners.append(tickets.result(60).seq)
            except Conflict:
                continue

    threads = [threading.Thread(target=book, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(1, seats + 1))
    assert [len(seqs(topic.read(tags=f"seat:{seat}"))) for seat in range(seats)] == [1] * seats


@on("memory", "sqlite")
def test_conditions_see_what_was_submitted_before_in_the_same_commit(journal: Journal, topic: Topic) -> None:
    with journal.transaction() as tx:
        tx.append(topic, "k", 1, tags="a", key="e")
        assert seqs(tx.read(topic, tags="a")) == [1]
        tx.append(topic, "k", 2, tags="b", unless=EventQuery(tags="a", where="payload > 1"))
        tx.append(topic, "k", 3, unless=EventQuery(tags=("a", "b")))
    assert topic.latest == 3

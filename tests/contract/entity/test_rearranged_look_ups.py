"""What an index finds is a set of positions in order, however a store was rearranged before it is opened.

Row groups of sealed files, merged blocks and the hashes of terms begin and end where they like: each of these stores
has some that overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from journals import Place, on, seqs

from penstock import Draft, Event, Journal, Projection, Topic
from penstock import on as handles
from penstock.core.journal.commit import Commit
from penstock.core.journal.keys import block_key, prefix_end, with_checksum, without_checksum
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.upkeep.merging import merge_tail
from penstock.core.local.backend import LocalJournal
from penstock.errors import Corrupt
from penstock.limits import MERGED_BYTES

Reopen = Callable[[Journal], Journal]
KEYS = ("a", "b", None)
CAUSE = "0199c1c5-0000-7000-8000-000000000000"


class Seen(Projection):
    positions: list[int] = []

    @handles("e")
    def add(self, event: Event) -> None:
        self.positions.append(event.seq)


def drafts(count: int) -> Iterable[Draft]:
    for number in range(count):
        yield Draft("e", number, key=KEYS[number % 3], correlation=f"c{number % 2}", cause=CAUSE)


def seal(journal: Journal, lake: Path, through: int | None = None) -> None:
    assert isinstance(journal, LocalJournal)
    seal_topic(journal._core, "orders", lake=str(lake), through=through)


def a_file_begins_before_the_hashes(journal: Journal, topic: Topic, lake: Path) -> None:
    topic.append_many(drafts(1))
    topic.append_many(drafts(399))
    topic.append_many(drafts(1))
    seal(journal, lake)


def a_file_ends_after_the_hashes(journal: Journal, topic: Topic, lake: Path) -> None:
    topic.append_many(drafts(1))
    topic.append_many(drafts(399))
    for _ in range(5):
        topic.append_many(drafts(20))
    seal(journal, lake, 470)


def a_file_holds_the_hashes_of_two_batches(journal: Journal, topic: Topic, lake: Path) -> None:
    for count in (5, 300, 5, 300, 5):
        topic.append_many(drafts(count))
    seal(journal, lake, 500)


def a_file_ends_within_the_hashes(journal: Journal, topic: Topic, lake: Path) -> None:
    topic.append_many(drafts(1))
    topic.append_many(drafts(399))
    topic.append_many(drafts(1))
    seal(journal, lake, 300)


def what_a_file_left_is_merged(journal: Journal, topic: Topic, lake: Path) -> None:
    """The hashes of a batch reach into the block that its end was merged into."""
    a_file_ends_within_the_hashes(journal, topic, lake)
    for number in range(200):
        topic.append("e", number, key=KEYS[number % 3], correlation="c1", cause=CAUSE)
    assert isinstance(journal, LocalJournal)
    assert merge_tail(journal._core.writer, "orders", below=MERGED_BYTES, fan_in=2)


def what_compaction_left_is_merged(journal: Journal, topic: Topic, lake: Path) -> None:
    """The block that holds what is left begins before the hashes of what was there, and ends after them."""
    topic.append("e", 0, key="first", correlation="c0", cause=CAUSE)
    topic.append_many(drafts(399))
    topic.compact_keys()
    for number in range(300):
        topic.append("e", number, key=KEYS[number % 3], correlation="c1", cause=CAUSE)
    assert isinstance(journal, LocalJournal)
    assert merge_tail(journal._core.writer, "orders", below=MERGED_BYTES, fan_in=2)


ARRANGEMENTS = [
    a_file_begins_before_the_hashes,
    a_file_ends_after_the_hashes,
    a_file_holds_the_hashes_of_two_batches,
    a_file_ends_within_the_hashes,
    what_a_file_left_is_merged,
    what_compaction_left_is_merged,
]


def check(found: Iterable[Event], events: list[Event]) -> None:
    assert [(event.seq, event.id, event.payload) for event in found] == [
        (event.seq, event.id, event.payload) for event in events
    ]


def check_look_ups(journal: Journal, topic: Topic) -> None:
    """Everything that an index answers, against a filter over the whole topic."""
    events = list(topic.read())
    assert seqs(events) == sorted(set(seqs(events)))
    for key in ("a", "b"):
        own = [event for event in events if event.key == key]
        check(topic.read(key=key), own)
        check(topic.read(key=key, reverse=True), own[::-1])
        check(topic.read(own[5].seq, key=key, through=own[-2].seq, limit=300), own[6:-1][:300])
        check(topic.read(where=f'key == "{key}"'), own)
        check(journal.read("orders", key=key), own)
        state = topic.project(Seen, key)
        assert state is not None and state.positions == seqs(own)
        assert topic.position_of(key) == own[-1].seq
        rows = journal.sql(f"SELECT seq FROM orders WHERE key = '{key}' ORDER BY seq").column("seq").to_pylist()
        assert rows == seqs(own)
    check(topic.read(key_prefix="a"), [event for event in events if event.key == "a"])
    assert sorted(topic.entities()) == sorted({event.key for event in events if event.key is not None})
    for correlation in ("c0", "c1"):
        check(journal.correlated(correlation), [event for event in events if event.correlation_id == correlation])
    check(topic.effects(CAUSE), events)


@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=lambda arrange: arrange.__name__)
@on("memory", "sqlite")
def test_what_is_looked_up_is_what_a_filter_finds_however_the_store_was_rearranged(
    place: Place, journal: Journal, topic: Topic, reopen: Reopen, arrange: Callable[[Journal, Topic, Path], None]
) -> None:
    arrange(journal, topic, place.folder / "lake")
    check_look_ups(journal, topic)
    for step in ("reopened", "appended to", "indexed", "reopened again"):
        if step.startswith("reopened"):
            journal = reopen(journal)
            topic = journal.topic("orders")
        elif step == "indexed":
            journal.maintain()
        else:
            topic.append_many(drafts(100))
        check_look_ups(journal, topic)


@on("memory", "sqlite")
def test_a_subscriber_of_one_key_gets_a_long_sealed_backlog_once_and_in_order(
    place: Place, journal: Journal, topic: Topic, reopen: Reopen
) -> None:
    topic.append("e")
    topic.append_many([Draft("e", number, key="a" if number % 10 else "b") for number in range(6_000)])
    topic.append("e")
    seal(journal, place.folder / "lake")
    journal = reopen(journal)
    topic = journal.topic("orders")
    found: list[int] = []
    with topic.subscribe(key="b") as subscription:
        while (event := subscription.next(0)) is not None:
            found.append(event.seq)
    assert found == [event.seq for event in topic.read() if event.key == "b"]


@on("memory", "sqlite")
def test_a_state_that_an_earlier_version_saved_from_doubled_events_is_folded_anew(
    journal: Journal, topic: Topic, reopen: Reopen
) -> None:
    topic.append_many(drafts(400))
    state = topic.project(Seen, "a")
    assert state is not None and len(state.positions) == 134
    journal.flush()
    with journal._engine.read() as snap:
        ((row, value),) = snap.scan(b"p", prefix_end(b"p"))
    body = without_checksum(value)
    assert body is not None
    head = msgspec.msgpack.decode(body)[:4]
    doubled = msgspec.msgpack.encode(Seen(positions=state.positions * 2))
    stored = with_checksum(msgspec.msgpack.encode([*head, doubled]))
    journal._core.run(lambda commit: commit.tx.put(row, stored))
    journal = reopen(journal)
    topic = journal.topic("orders")
    assert topic.project(Seen, "a") == state
    journal.flush()
    topic = reopen(journal).topic("orders")
    assert topic.project(Seen, "a") == state and topic.verify_states(Seen) == []


@pytest.mark.parametrize("indexed", [False, True])
@on("memory", "sqlite")
def test_a_look_up_raises_where_an_event_that_it_names_is_not_stored_any_more(
    journal: Journal, topic: Topic, reopen: Reopen, indexed: bool
) -> None:
    """The index says where events are: what is lost there is no answer without it."""
    for _ in range(3):
        topic.append_many(drafts(400))
    if indexed:
        journal._core.indexer.index("orders", thorough=True)
    journal = reopen(journal)
    topic = journal.topic("orders")
    key = block_key(1, 401)

    def lose(commit: Commit) -> None:
        assert commit.tx.get(key) is not None
        commit.tx.delete(key)

    journal._core.run(lose)
    for look in (lambda: topic.effects(CAUSE), lambda: journal.correlated("c1")):
        with pytest.raises(Corrupt, match="is missing"):
            list(look())
    if not indexed:  # else the index itself holds an entity's events
        with pytest.raises(Corrupt, match="is missing"):
            list(topic.read(key="a"))

"""Large batches: staged in steps that nobody sees, visible at once, read like any events, and gone without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from bulk_steps import publish_in_steps
from journals import seqs

import penstock.core.journal.bulk as staging
from penstock import Draft, Journal, ManualClock, Projection, Topic, on
from penstock.core.journal import keys, summaries
from penstock.core.journal.blocks import Block, Columns, Wire, build_wire
from penstock.core.journal.bulk import PreparedPiece, drop, publish, stage
from penstock.core.journal.index import memtable
from penstock.errors import Conflict, Corrupt, QueueFull, StorageError
from penstock.transfer.publishing import Blocks, BulkCommit, publish_blocks, publish_staged

Reopen = Callable[[Journal], Journal]
BATCH = b"0123456789abcdef"
OTHER = b"fedcba9876543210"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few events are large ones here."""
    publish_in_steps(monkeypatch, 20)


class Count(Projection):
    n: int = 0

    @on("bulk", "one")
    def count(self, event: object) -> None:
        self.n += 1


def wire(first: int, count: int = 5) -> Wire:
    numbers = range(first, first + count)
    columns = Columns(["bulk"] * count, [b'{"n":%d}' % n for n in numbers], key=[f"k{n % 3}" for n in numbers])
    return build_wire(columns, 0, 0, 0)


def wires(count: int = 4, topic: str = "orders") -> Iterator[tuple[str, Wire]]:
    return ((topic, wire(5 * at)) for at in range(count))


def staged(journal: Any, batch: bytes = BATCH, pieces: int = 2, topic: str = "orders") -> None:
    for piece in range(pieces):
        made = PreparedPiece([(topic, wire(10 * piece)), (topic, wire(10 * piece + 5))])
        journal._core.run(lambda commit, piece=piece, made=made: stage(commit, batch, piece, made))


def published(journal: Any, *batches: bytes, remember: bool = False) -> bool:
    return bool(journal._core.run(lambda commit: publish(commit, batches or (BATCH,), remember=remember)))


def numbers(events: Any) -> list[int]:
    return [event.payload["n"] for event in events]


def left(journal: Any) -> int:
    """Keys that large batches have left."""
    with journal._engine.read() as snap:
        return sum(
            1
            for prefix in (keys.STAGED, keys.PUBLISHED, keys.APART)
            for _ in snap.scan(prefix, keys.prefix_end(prefix))
        )


def test_nothing_is_seen_before_the_last_step_and_everything_after(journal: Any) -> None:
    topic = journal.topic("orders")
    topic.append("one", {"n": -1}, key="k0")
    staged(journal)
    topic.append("one", {"n": -2}, key="k1")
    assert seqs(topic.read()) == [1, 2] and topic.latest == 2 and len(topic) == 2
    assert published(journal)
    topic.append("one", {"n": -3}, key="k2")
    assert seqs(topic.read()) == list(range(1, 24)) and (topic.latest, len(topic)) == (23, 23)
    assert numbers(topic.read()) == [-1, -2, *range(20), -3]


def test_of_a_large_batch_only_blocks_that_hold_it_are_opened(
    journal: Any, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (summaries, memtable):
        monkeypatch.setattr(module, "SUMMARY_EVENTS", 5)
    journal.topic("orders").append("one", {"n": -1}, key="k0")
    assert publish_blocks(journal, Blocks(wires(40), 10_000, 200, True), None, 0)
    rare = build_wire(Columns(["rare"] * 5, [b'{"n":500}'] * 5, key=["one"] * 5), 0, 0, 0)
    assert publish_blocks(journal, Blocks([("orders", wire(300)), ("orders", rare)], 10_000, 10, True), None, 0)
    topic = reopen(journal).topic("orders")
    opened: list[int] = []
    make = Block.__init__

    def counting(self: Block, wire: Wire, name: str) -> None:
        opened.append(wire.count)
        make(self, wire, name)

    monkeypatch.setattr(Block, "__init__", counting)
    for found in (topic.read(kind="rare"), topic.read(key="one")):
        opened.clear()
        assert numbers(found) == [500] * 5
        assert len(opened) <= 10, "of forty-three blocks"


def test_it_is_published_once(journal: Any) -> None:
    staged(journal)
    assert published(journal, remember=True) and not published(journal, remember=True)
    assert journal.topic("orders").latest == 20
    with pytest.raises(Conflict, match="published already"):
        staged(journal)
    staged(journal, OTHER)
    with pytest.raises(StorageError, match="not there any more"):
        published(journal, BATCH, OTHER)
    assert journal.topic("orders").latest == 20


def test_a_step_that_is_repeated_takes_the_place_of_its_first_try(journal: Any) -> None:
    staged(journal)
    staged(journal)
    published(journal)
    assert numbers(journal.topic("orders").read()) == list(range(20))


def test_batches_are_published_in_the_order_given_over_several_topics(journal: Any) -> None:
    staged(journal, OTHER, 1, "refunds")
    staged(journal, BATCH, 1, "orders")
    made = PreparedPiece([("refunds", wire(50)), ("orders", wire(60))])
    journal._core.run(lambda commit: stage(commit, BATCH, 7, made))
    published(journal, BATCH, OTHER)
    assert numbers(journal.topic("orders").read()) == [*range(10), *range(60, 65)]
    assert numbers(journal.topic("refunds").read()) == [*range(50, 55), *range(10)]


def test_what_is_dropped_leaves_nothing(journal: Any) -> None:
    staged(journal)
    assert journal._core.run(lambda commit: drop(commit, BATCH)) > 0
    assert left(journal) == 0 and not journal.topics()
    with pytest.raises(StorageError, match="not there any more"):
        published(journal)


def test_what_nobody_publishes_is_swept_when_it_is_old(journal: Any, clock: ManualClock) -> None:
    journal.topic("orders").append("one", {"n": 0})
    staged(journal)
    journal.maintain()
    assert left(journal) > 0
    clock.advance(penstock_limit() + 1)
    staged(journal, OTHER)
    journal.maintain()
    with journal._engine.read() as snap:
        assert [batch for batch, _ in staging.staged_batches(snap)] == [OTHER]
    journal._core.run(lambda commit: drop(commit, OTHER))
    assert left(journal) == 0


def penstock_limit() -> float:
    from penstock.limits import STAGED_SECONDS

    return STAGED_SECONDS


@pytest.mark.parametrize("through", [3, 5, 12, 20])
def test_history_is_removed_with_what_is_stored_apart(journal: Any, through: int) -> None:
    topic = journal.topic("orders")
    staged(journal)
    published(journal)
    topic.append("one", {"n": 20})
    topic.compact(through)
    assert numbers(topic.read()) == list(range(through, 21))
    held = left(journal)
    journal.maintain()
    assert left(journal) < held
    assert numbers(topic.read()) == list(range(through, 21))
    topic.compact(21)
    journal.maintain()
    assert list(topic.read()) == [] and topic.latest == 21


def test_only_the_newest_event_of_every_key_stays(journal: Any) -> None:
    topic = journal.topic("orders")
    staged(journal)
    published(journal)
    assert topic.compact_keys() == 17
    journal.maintain()
    assert numbers(topic.read()) == [17, 18, 19]
    assert topic.project(Count, "k0") is not None


def test_small_neighbours_are_merged_whether_or_not_they_are_stored_apart(journal: Any) -> None:
    topic = journal.topic("orders")
    topic.append("one", {"n": -1})
    staged(journal)
    published(journal)
    for n in range(20, 30):
        topic.append("one", {"n": n})
    journal.maintain()
    assert numbers(topic.read()) == list(range(-1, 30))
    assert seqs(topic.read()) == list(range(1, 32))
    journal.maintain()
    assert numbers(topic.read()) == list(range(-1, 30))


def test_a_verified_topic_keeps_a_hash_of_every_event(journal: Any) -> None:
    topic = journal.topic("orders")
    topic.configure(verified=True)
    staged(journal)
    published(journal)
    assert numbers(topic.read()) == list(range(20)) and topic.verify().events == 20
    assert left(journal) == 0


def test_followers_get_the_events_when_they_are_published(journal: Any) -> None:
    topic = journal.topic("orders")
    with topic.subscribe() as subscription:
        staged(journal)
        published(journal)
        assert numbers(islice(subscription, 20)) == list(range(20))


def test_a_block_that_is_missing_or_damaged_is_named(journal: Any) -> None:
    staged(journal)
    published(journal)
    key = keys.apart_key(BATCH, 0, 1)

    def damage(commit: Any) -> None:
        value = commit.tx.get(key)
        commit.tx.put(key, value[:-1] + bytes([value[-1] ^ 1]))

    journal._core.run(damage)
    with pytest.raises(Corrupt) as raised:
        list(journal.topic("orders").read(5))
    assert (raised.value.topic, raised.value.seq) == ("orders", 6)
    journal._core.run(lambda commit: commit.tx.delete(key))
    with pytest.raises(Corrupt, match="missing"):
        list(journal.topic("orders").read(5))


# ── blocks in one call ───────────────────────────────────────────────────────────────────────────────────────────────
def blocks(count: int = 4, topic: str = "orders") -> Blocks:
    return Blocks(wires(count, topic), 1_000, 5 * count, True)


def test_a_mark_makes_a_repeat_harmless(journal: Any) -> None:
    assert publish_blocks(journal, blocks(), "job", 3)
    assert not publish_blocks(journal, blocks(), "job", 3) and not publish_blocks(journal, blocks(), "job", 2)
    assert publish_blocks(journal, blocks(), "job", 4)
    assert numbers(journal.topic("orders").read()) == [*range(20), *range(20)]
    staged(journal)
    assert not publish_staged(journal, BulkCommit([BATCH], "job", 4))
    with journal._engine.read() as snap:
        assert list(staging.staged_batches(snap)) == []


def test_what_fails_in_the_middle_leaves_nothing(journal: Any) -> None:
    def failing() -> Iterator[tuple[str, Wire]]:
        yield from wires()
        raise OSError("the file is short")

    with pytest.raises(OSError, match="short"):
        publish_blocks(journal, Blocks(failing(), 1_000, 20, True), "job", 1)
    assert left(journal) == 0 and not journal.topics()
    assert publish_blocks(journal, blocks(), "job", 1)


def test_a_queue_gets_the_messages_within_its_policy(journal: Any) -> None:
    queue = journal.queue("orders", max_size=25)
    publish_blocks(journal, blocks(), None, 0, "orders")
    with pytest.raises(QueueFull):
        publish_blocks(journal, blocks(), None, 0, "orders")
    taken = []
    while (delivery := queue.take(lease=60)) is not None:
        taken.append(delivery.payload["n"])
        delivery.ack()
    assert sorted(taken) == list(range(20))
    assert publish_blocks(journal, blocks(), None, 0, "orders") and len(journal.topic("orders")) == 40


def test_appends_between_steps_come_before_the_batch(journal: Any, topic: Topic) -> None:
    def pieces() -> Iterator[tuple[str, Wire]]:
        for at, piece in enumerate(wires()):
            topic.append_many([Draft("one", {"n": -1 - at})])
            yield piece

    assert publish_blocks(journal, Blocks(pieces(), 1_000, 20, True), None, 0)
    found = numbers(topic.read())
    assert found[-20:] == list(range(20)) and sorted(found[:-20]) == [-4, -3, -2, -1]
    assert seqs(topic.read()) == list(range(1, 25))

"""`drop_topic`: what is gone, what is not, and those who were using the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path

import msgspec
import pytest
from journals import Place, eventually, on, only, payloads, seqs

import penstock
from penstock import Draft, Journal, Projection
from penstock.engine.contract import Snapshot
from penstock.errors import (
    ConfigError,
    FenceActive,
    InvalidName,
    ReadOnly,
    StaleDelivery,
    TopicDropped,
    TopicInUse,
    UnknownQueue,
    UnknownTopic,
)
from penstock.journal.bulk.staging import PreparedPiece, publish, stage
from penstock.journal.storage import keys
from penstock.journal.storage.block import build_wire
from penstock.journal.storage.wire import Columns
from penstock.journal.upkeep import dropping

OTHERS = (keys.STORE, keys.NEXT_TOPIC, keys.TOPIC, keys.AGED, keys.MARK, keys.HISTORY, keys.COPYING)
"""Prefixes of keys that no topic's number follows."""
STAGING = (keys.STAGED, keys.PUBLISHED, keys.APART)


class Total(Projection):
    """How many events there were."""

    count: int = 0

    @penstock.on("placed")
    def add(self, event: penstock.Event) -> None:
        self.count += 1


def number_of(journal: Journal, topic: str) -> int:
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        value = snap.get(keys.topic_key(topic))
    assert value is not None
    return int(msgspec.msgpack.decode(value)[0])


def rows_of(journal: Journal, number: int) -> list[bytes]:
    """Every key of the store that names a topic's number, and every record of a batch that does."""
    found = []
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        for key, value in snap.scan(b"", b"\xff" * 8):
            at = 2 if key[:1] == b"q" else 1
            if key[:1] == keys.PUBLISHED:
                found += [key for place in msgspec.msgpack.decode(value)[1] if place[0] == number]
            elif key[:1] not in (*OTHERS, *STAGING) and key[:2] != b"qr" and key[at : at + 4] == number.to_bytes(4):
                found.append(key)
    return found


def keys_under(journal: Journal, prefix: bytes) -> list[bytes]:
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        return [key for key, _ in snap.scan(prefix, keys.prefix_end(prefix))]


def fill(journal: Journal, name: str) -> None:
    """Gives a topic some of everything: entities, dedup keys, states, roots, a cursor, a queue with groups and more."""
    topic = journal.topic(name)
    topic.configure(verified=True)
    topic.append_many(
        [Draft("placed", {"n": n}, key=f"k{n % 5}", dedup=f"d{n}", correlation=f"c{n % 3}") for n in range(300)]
    )
    topic.configure(max_age=3600)
    journal.maintain()
    assert topic.project(Total).count == 300  # type: ignore[union-attr]
    assert topic.verify().root is not None
    topic.commit("billing", 7)
    queue = journal.queue(name, mode="fanout", rate="1000/s")
    queue.add_group("a")
    queue.every(3600, "tick", name="hourly")
    queue.push("x", delay=60)
    delivery = queue.take(group="a", consumer="w")
    assert delivery is not None
    delivery.nack(error="no", delay=60)
    queue.take(group="a")


# ── what is gone ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_nothing_of_a_dropped_topic_is_left_in_the_store(journal: Journal) -> None:
    journal.topic("other").append("kept", 1, key="k")
    fill(journal, "orders")
    number = number_of(journal, "orders")
    kinds = {key[:1] for key in rows_of(journal, number)}
    assert {b"s", b"b", b"l", b"c", b"d", b"k", b"p", b"r", b"q"} - kinds <= {b"s"}, "the test fills every room"
    report = journal.drop_topic("orders", force=True)
    assert report.topic == "orders" and report.events == 301 and report.files == []
    assert "orders" not in journal.topics() and "orders" not in journal.queues()
    journal.maintain()
    assert rows_of(journal, number) == []
    assert keys_under(journal, keys.DROPPED) == keys_under(journal, keys.AGED) == []
    assert payloads(journal.topic("other").read()) == [1]


def test_a_topic_made_again_is_another_one(journal: Journal) -> None:
    fill(journal, "orders")
    before = number_of(journal, "orders")
    journal.drop_topic("orders", force=True)
    topic = journal.topic("orders")
    assert (topic.latest, len(topic), list(topic.read()), topic.cursors()) == (0, 0, [], {})
    receipt = topic.append("placed", "new", key="k1", dedup="d1")
    assert (receipt.seq, receipt.duplicate) == (1, False)
    assert number_of(journal, "orders") > before
    assert topic.project(Total).count == 1  # type: ignore[union-attr]
    assert topic.project(Total, "k1").count == 1  # type: ignore[union-attr]
    assert seqs(topic.read(key="k1")) == [1] and topic.generation("k2") == 0
    assert topic.settings.max_age is None
    journal.maintain()
    assert payloads(topic.read()) == ["new"] and list(topic.entities()) == ["k1"]
    with pytest.raises(penstock.errors.Conflict):
        topic.append("placed", 2, key="k1", expect=0)


def test_numbers_are_not_given_out_again_when_the_newest_topic_goes(place: Place) -> None:
    journal = place.open()
    journal.topic("a").append("x")
    first = number_of(journal, "a")
    journal.drop_topic("a")
    journal.maintain()
    journal = place.reopen(journal)
    journal.topic("b").append("x")
    assert number_of(journal, "b") > first


def test_blocks_stored_apart_go_with_their_topic(journal: Journal) -> None:
    batch, name = b"b" * 16, "bulk"
    size = 300_000
    columns = [Columns(["k"], [b'"' + b"x" * size + b'"']) for _ in range(40)]
    piece = PreparedPiece(
        [(name, build_wire(one, 1, 0, 1)) for one in columns] + [("other", build_wire(columns[0], 1, 0, 1))]
    )
    journal._core.run(lambda commit: stage(commit, batch, 0, piece))  # type: ignore[attr-defined]
    journal._core.run(lambda commit: publish(commit, [batch], remember=False))  # type: ignore[attr-defined]
    assert len(journal.topic(name)) == 40
    number = number_of(journal, name)
    assert any(key[:1] == keys.PUBLISHED for key in rows_of(journal, number)), "they are stored apart"
    journal.drop_topic(name)
    journal.maintain()
    assert rows_of(journal, number) == []
    assert len(keys_under(journal, keys.APART)) == 1, "the other topic's block stays"
    assert len(list(journal.topic("other").read())) == 1


def test_a_batch_that_is_being_staged_begins_the_topic_anew(journal: Journal) -> None:
    batch, topic = b"s" * 16, journal.topic("bulk")
    topic.append("x", "old")
    pieces = [PreparedPiece([("bulk", build_wire(Columns(["k"], [b"1"]), 1, 0, 1))]) for _ in range(2)]
    journal._core.run(lambda commit: stage(commit, batch, 0, pieces[0]))  # type: ignore[attr-defined]
    journal.drop_topic("bulk")
    journal.maintain()
    journal._core.run(lambda commit: stage(commit, batch, 1, pieces[1]))  # type: ignore[attr-defined]
    journal._core.run(lambda commit: publish(commit, [batch], remember=False))  # type: ignore[attr-defined]
    assert seqs(topic.read()) == [1, 2], "all of it, or it would be half-written"


@on("sqlite")
def test_what_is_computed_of_a_topic_is_not_kept_after_a_drop(journal: Journal) -> None:
    topic = journal.topic("orders")

    def drop(*_: int) -> None:
        if "orders" in journal.topics():
            journal.drop_topic("orders")

    for compute in (lambda: topic.rebuild(Total, progress=drop), lambda: topic.verify(progress=drop)):
        topic.append_many([Draft("placed", n, key=f"k{n}") for n in range(5000)])
        number = number_of(journal, "orders")
        try:
            report = compute()
        except TopicDropped as error:
            assert "rebuilt" in str(error)
        else:
            assert report.root is None  # type: ignore[union-attr]
        journal.maintain()
        assert rows_of(journal, number) == []


# ── what stands in the way ───────────────────────────────────────────────────────────────────────────────────────────
def test_cursors_and_queues_are_named_before_they_are_dropped(journal: Journal) -> None:
    topic = journal.topic("orders")
    topic.append("x")
    topic.commit("billing", 1)
    journal.queue("orders")
    with pytest.raises(TopicInUse, match=r"'billing' at 1.*the queue 'orders' with 1 message.*force=True"):
        journal.drop_topic("orders")
    assert len(topic) == 1 and topic.cursors() == {"billing": 1}
    topic.forget("billing")
    journal.queue("orders").drop()
    assert journal.drop_topic("orders").events == 1  # a log keeps its events when a queue over it goes
    assert journal.topics() == []


def test_what_cannot_be_dropped_is_said(place: Place) -> None:
    journal = place.open()
    journal.topic("orders").append("x")
    with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
        journal.drop_topic("order")
    with pytest.raises(InvalidName):
        journal.drop_topic("")
    journal.drop_topic("orders")
    with pytest.raises(UnknownTopic):
        journal.drop_topic("orders")


def test_a_fence_keeps_topics_from_being_dropped(journal: Journal) -> None:
    journal.topic("orders").append("x")
    fence = journal.fence()
    fence.submit("orders", "y")
    with pytest.raises(FenceActive):
        journal.drop_topic("orders")
    fence.commit()
    assert len(journal.topic("orders")) == 2
    open_fence = journal.fence(exclusive=False)
    open_fence.submit("orders", "z")
    journal.drop_topic("orders")
    open_fence.commit()
    assert seqs(journal.topic("orders").read()) == [1], "what a fence had hidden begins the topic anew"


def test_a_transaction_is_let_finish_first(journal: Journal) -> None:
    journal.topic("orders").append("x")
    dropped: list[int] = []
    thread = threading.Thread(target=lambda: dropped.append(journal.drop_topic("orders").events))
    with journal.transaction() as transaction:
        transaction.append("orders", "y")
        thread.start()
        with pytest.raises(ConfigError):
            journal.drop_topic("orders")
        assert len(list(transaction.read("orders"))) == 2 and not dropped
    thread.join()
    assert dropped == [2] and journal.topics() == []


def test_submissions_around_a_drop_land_in_one_topic_or_the_other(journal: Journal) -> None:
    topic = journal.topic("orders")
    tickets = [topic.submit("x", n) for n in range(50)]
    report = journal.drop_topic("orders") if topic.latest else None
    tickets += [topic.submit("x", n) for n in range(50, 100)]
    for ticket in tickets:
        ticket.result()
    assert len(topic) + (report.events if report else 0) == 100
    assert seqs(topic.read()) == list(range(1, len(topic) + 1))


@only(on_disk=True, reads_beside_writer=True)
def test_a_read_only_reader_sees_it_go(place: Place) -> None:
    journal = place.open()
    journal.topic("orders").append_many([Draft("x", n) for n in range(10)])
    journal.flush()
    reader = place.open(read_only=True)
    events = reader.topic("orders").read()
    assert next(events).payload == 0
    journal.drop_topic("orders")
    journal.maintain()
    journal.flush()
    assert [event.payload for event in events] == list(range(1, 10)), "a read that has begun keeps its snapshot"
    eventually(lambda: reader.topics() == [])
    assert list(reader.topic("orders").read()) == []
    with pytest.raises(ReadOnly):
        reader.drop_topic("orders")


# ── those who use it ─────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", [None, "x"])
def test_a_subscriber_is_told(journal: Journal, kind: str | None) -> None:
    topic = journal.topic("orders")
    early = topic.subscribe(kind=kind)
    assert early.next(0) is None, "a topic that is not there yet is waited for"
    topic.append("x", 1)
    following, behind = topic.subscribe(kind=kind), topic.subscribe(kind=kind)
    assert following.next(10).payload == early.next(10).payload == 1  # type: ignore[union-attr]
    told: list[BaseException] = []

    def wait() -> None:
        try:
            following.next(60)
        except TopicDropped as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    journal.drop_topic("orders")
    thread.join(60)
    assert "dropped while it was followed, after position 1" in str(told[0])
    topic.append("x", 2)
    for subscriber in (early, behind):
        with pytest.raises(TopicDropped):
            subscriber.next(10)
    assert topic.subscribe(kind=kind).next(10).payload == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("look", [1, 2])
def test_what_is_appended_after_subscribing_to_the_end_comes(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, look: int, left: int
) -> None:
    """Also when the topic is dropped and made anew while it is looked for its end."""
    topic = journal.topic("orders")
    topic.append_many([Draft("x", n) for n in range(50)])
    engine = journal._engine  # type: ignore[attr-defined]
    read, looks = engine.read, count(1)

    def looked() -> AbstractContextManager[Snapshot]:
        if next(looks) == look:
            monkeypatch.undo()
            journal.drop_topic("orders")
            topic.append_many([Draft("x", n) for n in range(left)])
        found: AbstractContextManager[Snapshot] = read()
        return found

    monkeypatch.setattr(engine, "read", looked)
    with topic.subscribe("latest") as follower:
        monkeypatch.undo()
        topic.append("new", "after the call has returned")
        with suppress(TopicDropped):
            event = follower.next(10)
            assert event is not None and event.kind == "new"


@pytest.mark.parametrize("kind", [None, "x"])
@pytest.mark.parametrize("look", range(1, 5))
def test_a_worker_hands_out_a_topic_made_anew_from_its_beginning(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, look: int, kind: str | None
) -> None:
    """However often it looks for its cursor and its events, and whenever between the topic is dropped."""
    topic = journal.topic("orders")
    topic.append_many([Draft("x", n) for n in range(5)])
    topic.commit("billing", 3)
    got: list[object] = []
    worker = topic.worker("billing", lambda events: got.extend(event.payload for event in events), kind=kind)
    engine = journal._engine  # type: ignore[attr-defined]
    read, looks = engine.read, count(1)

    def looked() -> AbstractContextManager[Snapshot]:
        if threading.current_thread() is worker._thread and next(looks) == look:
            monkeypatch.undo()
            journal.drop_topic("orders", force=True)
            topic.append_many([Draft("x", f"new {n}") for n in range(8)])
        found: AbstractContextManager[Snapshot] = read()
        return found

    monkeypatch.setattr(engine, "read", looked)
    with worker:
        eventually(lambda: "new 7" in got)
    assert [payload for payload in got if isinstance(payload, str)] == [f"new {n}" for n in range(8)]


def test_a_worker_goes_on_with_the_topic_made_anew(journal: Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("x", n) for n in range(5)])
    got: list[int] = []
    with topic.worker("billing", lambda events: got.extend(event.payload for event in events)):
        eventually(lambda: len(got) == 5 and topic.cursor("billing") == 5)
        journal.drop_topic("orders", force=True)
        topic.append("x", 99)
        eventually(lambda: 99 in got)


@pytest.mark.parametrize("kind", [None, "x"])
def test_a_batch_handled_during_a_drop_passes_nothing_of_the_new_topic(journal: Journal, kind: str | None) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("x", n) for n in range(5)])
    got: list[int] = []

    def handle(events: list[penstock.Event]) -> None:
        got.extend(event.payload for event in events)
        if got == [0, 1, 2, 3, 4]:
            journal.drop_topic("orders", force=True)
            topic.append_many([Draft("x", n) for n in range(10, 30)])

    with topic.worker("billing", handle, kind=kind):
        eventually(lambda: len(got) >= 25 and topic.cursor("billing") == 20)
    assert got == [*range(5), *range(10, 30)]


def test_deliveries_and_schedules_of_a_dropped_queue_are_over(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many([1, 2])
    queue.every(3600, "tick", name="hourly")
    delivery = queue.take()
    assert delivery is not None
    token = delivery.token
    journal.drop_topic("jobs", force=True)
    with pytest.raises((UnknownQueue, StaleDelivery)):
        delivery.ack()
    calls: list[Callable[[], object]] = [lambda: queue.push(3), queue.schedules, lambda: queue.unschedule("hourly")]
    for call in calls:
        with pytest.raises(UnknownQueue):
            call()
    again = journal.queue("jobs")
    assert (len(again), again.schedules(), again.take()) == (0, [], None)
    again.push(4)
    fresh = again.take()
    assert fresh is not None and fresh.payload == 4 and fresh.token != token
    with pytest.raises(StaleDelivery) as stale:
        delivery.ack()
    assert delivery.token == stale.value.token == token, "a delivery keeps its name"
    assert again.ack_many([fresh.token]) == 1
    again.every(3600, "tick", name="daily")
    assert [one.name for one in queue.schedules()] == ["daily"]


@only(second_open=True)
def test_another_journal_object_does_not_write_into_the_old_number(place: Place) -> None:
    mine, other = place.open(), place.open()
    for journal in (mine, other):
        journal.topic("orders").append("x", key="k")
        journal.queue("jobs").push("m")
    assert other.topic("orders").generation("k") == 2 and other.topic("orders").project(Total) is not None
    old, jobs = number_of(mine, "orders"), number_of(mine, "jobs")
    mine.drop_topic("orders")
    mine.drop_topic("jobs", force=True)
    assert other.topic("orders").append("x", key="k", expect=0).seq == 1
    assert other.topic("orders").generation("k") == 1
    with pytest.raises(UnknownQueue):
        other.queue("jobs", create=False)
    mine.queue("jobs").push("n")
    taken = other.queue("jobs").take()
    assert taken is not None and taken.payload == "n"
    assert mine.queue("jobs").ack_many([taken.token]) == 1
    mine.maintain()
    other.maintain()
    assert rows_of(mine, old) == rows_of(mine, jobs) == []


# ── in steps, and after a crash ──────────────────────────────────────────────────────────────────────────────────────
@on("sqlite", "file")
def test_what_a_crash_left_is_cleared_when_the_journal_is_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping, "_STEP_ROWS", 7)
    journal = place.open()
    journal.topic("orders").append_many([Draft("x", n, dedup=str(n)) for n in range(200)])
    number = number_of(journal, "orders")
    stops = iter([False] * 10)
    housekeeper = journal._core.housekeeper  # type: ignore[attr-defined]
    monkeypatch.setattr(housekeeper, "request_clearing", lambda: None)
    journal.drop_topic("orders")
    dropping.clear_dropped(housekeeper._engine, housekeeper._writer, housekeeper.drop_rules, lambda: next(stops, True))
    left = len(rows_of(journal, number))
    assert 100 < left < 200, "some steps were made"
    journal = place.reopen(journal)
    assert journal.topics() == []
    eventually(lambda: rows_of(journal, number) == [])


def test_housekeeping_clears_it_without_being_asked(journal: Journal) -> None:
    journal.topic("orders").append_many([Draft("x", n, key=str(n)) for n in range(100)])
    number = number_of(journal, "orders")
    journal.drop_topic("orders")
    eventually(lambda: rows_of(journal, number) == [])


@on("sqlite")
def test_an_index_being_built_leaves_nothing_behind(journal: Journal) -> None:
    from penstock.journal.index.builder import Building
    from penstock.journal.index.directory import NOTHING

    journal.topic("orders").append("x", key="k")
    number = number_of(journal, "orders")
    run = Building(journal._writer, "orders", number, NOTHING, (1, 1), 0)  # type: ignore[attr-defined]
    assert run.begin()
    journal.drop_topic("orders")
    journal.topic("orders").append("x", key="k")
    journal.maintain()
    run.write([(b"e", (b"mark", b"value"))])
    assert not run.publish(lambda directory: directory)
    assert rows_of(journal, number) == []


@on("sqlite")
def test_sealed_files_stay_and_are_listed(journal: Journal, tmp_path: Path) -> None:
    from penstock.journal.sealed.sealing import seal_topic

    topic, lake = journal.topic("orders"), str(tmp_path / "lake")
    topic.append_many([Draft("x", n) for n in range(10)])
    seal_topic(journal._core, "orders", lake=lake, through=6)  # type: ignore[arg-type]
    number = number_of(journal, "orders")
    with pytest.raises(TopicInUse, match="1 sealed file that"):
        journal.drop_topic("orders")
    report = journal.drop_topic("orders", force=True)
    assert report.events == 10 and [Path(file).exists() for file in report.files] == [True]
    journal.maintain()
    assert rows_of(journal, number) == []
    topic.append_many([Draft("x", n) for n in range(10)])
    with pytest.raises(ConfigError, match="a topic of this name that was dropped since"):
        seal_topic(journal._core, "orders", lake=lake, through=6)  # type: ignore[arg-type]
    assert seal_topic(journal._core, "orders", lake=str(tmp_path / "new"), through=6).events == 6  # type: ignore[arg-type]
    assert len(list(topic.read())) == 10

"""`drop_topic`: what is gone, what is not, and those who were using the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from journals import Place, eventually, on, only, payloads, seqs

import penstock
from penstock import Draft, Journal, Projection
from penstock.core.journal import keys
from penstock.core.journal.blocks import Columns, build_wire
from penstock.core.journal.bulk import PreparedPiece, publish, stage
from penstock.core.journal.upkeep import dropping
from penstock.errors import (
    ConfigError,
    Conflict,
    FenceActive,
    InvalidName,
    PositionTrimmed,
    ReadOnly,
    StaleDelivery,
    TopicInUse,
    UnknownQueue,
    UnknownTopic,
)

OTHERS = (keys.STORE, keys.NEXT_TOPIC, keys.TOPIC, keys.ENDED, keys.AGED, keys.MARK, keys.HISTORY, keys.COPYING)
"""Prefixes of keys that no topic's id follows."""
STAGING = (keys.STAGED, keys.PUBLISHED, keys.APART)


class Total(Projection):
    """How many events there were."""

    count: int = 0

    @penstock.on("placed")
    def add(self, event: penstock.Event) -> None:
        self.count += 1


def topic_id_of(journal: Journal, topic: str) -> int:
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        value = snap.get(keys.topic_key(topic))
    assert value is not None
    return int(msgspec.msgpack.decode(value)[0])


def rows_of(journal: Journal, topic_id: int) -> list[bytes]:
    """Every key of the store that names a topic's id, and every record of a batch that does."""
    found = []
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        for key, value in snap.scan(b"", b"\xff" * 8):
            at = 2 if key[:1] == b"q" else 1
            if key[:1] == keys.PUBLISHED:
                found += [key for place in msgspec.msgpack.decode(value)[1] if place[0] == topic_id]
            elif key[:1] not in (*OTHERS, *STAGING) and key[:2] != b"qr" and key[at : at + 4] == topic_id.to_bytes(4):
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


def end_of(journal: Journal, topic: str) -> bytes | None:
    """The row that says where a dropped topic ended."""
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        found: bytes | None = snap.get(keys.ended_key(topic))
    return found


def make_anew(journal: Journal, count: int = 0) -> None:
    """Drops `orders` and makes it again, with some events."""
    journal.drop_topic("orders", force=True)
    journal.topic("orders").configure()
    journal.topic("orders").append_many([Draft("x", f"new {n}") for n in range(count)])


# ── what is gone ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_nothing_of_a_dropped_topic_is_left_in_the_store(journal: Journal) -> None:
    journal.topic("other").append("kept", 1, key="k")
    fill(journal, "orders")
    topic_id = topic_id_of(journal, "orders")
    kinds = {key[:1] for key in rows_of(journal, topic_id)}
    assert {b"s", b"b", b"l", b"c", b"d", b"k", b"p", b"r", b"q"} - kinds <= {b"s"}, "the test fills every room"
    report = journal.drop_topic("orders", force=True)
    assert report.topic == "orders" and report.events == 301 and report.files == []
    assert "orders" not in journal.topics() and "orders" not in journal.queues()
    journal.maintain()
    assert rows_of(journal, topic_id) == []
    assert keys_under(journal, keys.DROPPED) == keys_under(journal, keys.AGED) == []
    assert payloads(journal.topic("other").read()) == [1]


def test_a_topic_made_again_knows_nothing_of_the_dropped_one(journal: Journal) -> None:
    early = journal.topic("orders").append("early")
    fill(journal, "orders")
    before = topic_id_of(journal, "orders")
    journal.drop_topic("orders", force=True)
    topic = journal.topic("orders")
    assert (topic.latest, len(topic), list(topic.read()), topic.cursors()) == (0, 0, [], {})
    receipt = topic.append("placed", "new", key="k1", dedup="d1")
    assert (receipt.seq, receipt.duplicate) == (303, False)
    assert topic.check(receipt) and "with a topic that was dropped" in topic.check(early).reason
    assert topic_id_of(journal, "orders") > before
    assert topic.project(Total).count == 1  # type: ignore[union-attr]
    assert topic.project(Total, "k1").count == 1  # type: ignore[union-attr]
    assert seqs(topic.read(key="k1")) == [303] and topic.position_of("k2") == 0
    assert topic.settings.max_age is None
    journal.maintain()
    assert payloads(topic.read()) == ["new"] and list(topic.entities()) == ["k1"]
    assert (len(topic), topic.lag("billing")) == (1, 1)
    assert topic.verify() and end_of(journal, "orders") is None


def test_numbers_are_not_given_out_again_when_the_newest_topic_goes(place: Place) -> None:
    journal = place.open()
    journal.topic("a").append("x")
    first = topic_id_of(journal, "a")
    journal.drop_topic("a")
    journal.maintain()
    journal = place.reopen(journal)
    journal.topic("b").append("x")
    assert topic_id_of(journal, "b") > first


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
    topic_id = topic_id_of(journal, name)
    assert any(key[:1] == keys.PUBLISHED for key in rows_of(journal, topic_id)), "they are stored apart"
    journal.drop_topic(name)
    journal.maintain()
    assert rows_of(journal, topic_id) == []
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
    assert seqs(topic.read()) == [2, 3], "all of it, or it would be half-written"


@on("sqlite")
def test_what_is_computed_of_a_topic_is_not_kept_after_a_drop(journal: Journal) -> None:
    topic = journal.topic("orders")

    def drop(*_: int) -> None:
        if "orders" in journal.topics():
            journal.drop_topic("orders")

    for compute in (lambda: topic.rebuild(Total, progress=drop), lambda: topic.verify(progress=drop)):
        topic.append_many([Draft("placed", n, key=f"k{n}") for n in range(5000)])
        topic_id = topic_id_of(journal, "orders")
        try:
            report = compute()
        except UnknownTopic as error:
            assert "dropped while its states were rebuilt" in str(error)
        else:
            assert report.root is None  # type: ignore[union-attr]
        journal.maintain()
        assert rows_of(journal, topic_id) == []


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_positions_of_a_name_never_restart(place: Place) -> None:
    journal, end = place.open(), 0
    for count in (3, 2, 0, 1):  # once without an event in between
        topic = journal.topic("orders")
        topic.configure()
        assert (topic.latest, topic.oldest, len(topic)) == (end, 0, 0)
        end += len([topic.append("x") for _ in range(count)])
        journal.drop_topic("orders")
        journal = place.reopen(journal)
    assert journal.topic("orders").append("x").seq == 7


def test_a_position_of_a_dropped_topic_is_trimmed(journal: Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("placed", n, key="k") for n in range(5)])
    make_anew(journal)
    topic.append("placed", "new", key="k")
    with pytest.raises(PositionTrimmed) as trimmed:
        list(topic.read(after=3))
    assert trimmed.value.oldest == 6 and seqs(topic.read(after=5)) == seqs(topic.read()) == [6]
    assert topic.get(3) is None
    with pytest.raises(Conflict):
        topic.append("placed", key="k", expect=5)
    assert topic.append("placed", key="k", expect=6).seq == 7
    topic.commit("late", 3)  # of a consumer that read before the drop
    got: list[int] = []
    with topic.worker("late", lambda events: got.extend(seqs(events))):
        eventually(lambda: topic.cursor("late") == 7)
    assert got == [6, 7]


def test_a_store_whose_dropped_topics_left_no_end_begins_them_at_one(journal: Journal) -> None:
    """As earlier versions dropped them."""
    journal.topic("orders").append_many([Draft("x") for _ in range(5)])
    journal.drop_topic("orders")
    journal._core.run(lambda commit: commit.tx.delete(keys.ended_key("orders")))  # type: ignore[attr-defined]
    assert journal.topic("orders").append("x").seq == 1


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
    assert seqs(journal.topic("orders").read()) == [3], "what a fence had hidden begins the topic anew"


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
    assert seqs(topic.read()) == list(range(101 - len(topic), 101))


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
def test_a_subscriber_that_has_read_everything_goes_on_with_the_topic_made_anew(
    journal: Journal, kind: str | None
) -> None:
    topic = journal.topic("orders")
    early = topic.subscribe(kind=kind)
    assert early.next(0) is None, "a topic that is not there yet is waited for"
    topic.append_many([Draft("x", 1), Draft("x", 2)])
    caught_up, behind = topic.subscribe("latest", kind=kind), topic.subscribe(after=1, kind=kind)
    assert payloads([early.next(10), early.next(10)]) == [1, 2]  # type: ignore[list-item]
    journal.drop_topic("orders")
    waiting = topic.subscribe("latest", kind=kind, on_lag="raise", buffer=1)
    for subscriber in (early, caught_up, waiting, behind):
        assert subscriber.next(0) is None
    topic.append("x", 3)
    for subscriber in (early, caught_up, waiting):
        event = subscriber.next(10)
        assert event is not None and (event.seq, event.payload) == (3, 3)
    with pytest.raises(PositionTrimmed):
        behind.next(10)


@pytest.mark.parametrize("kind", [None, "x"])
def test_a_worker_begins_with_what_is_left_of_a_topic_made_anew(journal: Journal, kind: str | None) -> None:
    topic = journal.topic("orders")
    topic.append_many([Draft("x", n) for n in range(5)])
    make_anew(journal, 8)
    topic.compact(topic.latest - 2)
    got: list[object] = []
    with topic.worker("billing", lambda events: got.extend(payloads(events)), kind=kind):
        eventually(lambda: "new 7" in got)
    assert got == ["new 6", "new 7"]


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
        eventually(lambda: len(got) >= 25 and topic.cursor("billing") == 25)
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
    assert other.topic("orders").position_of("k") == 2 and other.topic("orders").project(Total) is not None
    old, jobs = topic_id_of(mine, "orders"), topic_id_of(mine, "jobs")
    mine.drop_topic("orders")
    mine.drop_topic("jobs", force=True)
    assert other.topic("orders").append("x", key="k", expect=0).seq == 3
    assert other.topic("orders").position_of("k") == 3
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
    topic_id = topic_id_of(journal, "orders")
    stops = iter([False] * 10)
    housekeeper = journal._core.housekeeper  # type: ignore[attr-defined]
    monkeypatch.setattr(housekeeper, "request_clearing", lambda: None)
    journal.drop_topic("orders")
    dropping.clear_dropped(housekeeper._writer, housekeeper.drop_rules, lambda: next(stops, True))
    left = len(rows_of(journal, topic_id))
    assert 100 < left < 200, "some steps were made"
    journal = place.reopen(journal)
    assert journal.topics() == []
    eventually(lambda: rows_of(journal, topic_id) == [])


def test_housekeeping_clears_it_without_being_asked(journal: Journal) -> None:
    journal.topic("orders").append_many([Draft("x", n, key=str(n)) for n in range(100)])
    topic_id = topic_id_of(journal, "orders")
    journal.drop_topic("orders")
    eventually(lambda: rows_of(journal, topic_id) == [])


@on("sqlite")
def test_an_index_being_built_leaves_nothing_behind(journal: Journal) -> None:
    from penstock.core.journal.index.indexer import Building
    from penstock.core.journal.index.runs import IndexRows, term_rows

    journal.topic("orders").append("x", key="k")
    topic_id = topic_id_of(journal, "orders")

    def dropped_meanwhile() -> Iterator[IndexRows]:
        assert b"k" in {key[:1] for key in rows_of(journal, topic_id)}, "the run is announced"
        journal.drop_topic("orders")
        journal.topic("orders").append("x", key="k")
        journal.maintain()
        yield term_rows(["k"], [1], 0)

    run = Building(journal._core.writer, "orders", topic_id, 0, (1, 1), 0)  # type: ignore[attr-defined]
    assert not run.build({b"c": [dropped_meanwhile()]}, lambda directory: directory)
    assert rows_of(journal, topic_id) == []


@on("sqlite")
def test_sealed_files_stay_and_are_listed(journal: Journal, tmp_path: Path) -> None:
    from penstock.core.journal.sealed.sealing import seal_topic

    topic, lake = journal.topic("orders"), str(tmp_path / "lake")
    topic.append_many([Draft("x", n) for n in range(10)])
    seal_topic(journal._core, "orders", lake=lake, through=6)  # type: ignore[arg-type]
    topic_id = topic_id_of(journal, "orders")
    with pytest.raises(TopicInUse, match="1 sealed file that"):
        journal.drop_topic("orders")
    report = journal.drop_topic("orders", force=True)
    assert report.events == 10 and [Path(file).exists() for file in report.files] == [True]
    journal.maintain()
    assert rows_of(journal, topic_id) == []
    topic.append_many([Draft("x", n) for n in range(10)])
    with pytest.raises(ConfigError, match="of a dropped topic of this name"):
        seal_topic(journal._core, "orders", lake=lake, through=16)  # type: ignore[arg-type]
    assert seal_topic(journal._core, "orders", lake=str(tmp_path / "new"), through=16).events == 6  # type: ignore[arg-type]
    assert seqs(topic.read()) == list(range(11, 21))

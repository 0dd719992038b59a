"""Verified topics: commits keep a hash of every event, and what is changed behind the journal's back shows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from journals import on
from small_index import small_index

from penstock import Draft, Journal, Receipt, Topic
from penstock.core.journal import keys
from penstock.core.journal.blocks import CodedText, Columns, Wire, block_of_rows, build_block, encode_block, read_block
from penstock.errors import ConfigError

Reopen = Callable[[Journal], Journal]


@pytest.fixture(autouse=True)
def runs_after_a_few_events() -> Iterator[None]:
    with small_index():
        yield


@pytest.fixture
def topic(journal: Journal) -> Topic:
    topic = journal.topic("orders")
    topic.configure(verified=True)
    return topic


def fill(topic: Topic) -> list[Receipt]:
    receipts = [
        topic.append("e", {"n": number}, key=None if number % 4 == 0 else f"k{number % 3}") for number in range(40)
    ]
    receipts += topic.append_many(
        [
            Draft("bytes", b"\x00\xff", key="k1", headers={"c": "d", "a": "b"}),
            Draft("caused", 1, key="k2", cause=0, scope="s", occurred_at=datetime(2001, 2, 3, tzinfo=UTC)),
            Draft("again", 1, key="k1", dedup="d"),
        ]
    )
    return receipts


def test_every_event_is_what_was_appended(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    receipts = fill(topic)
    report = topic.verify()
    assert report and report.ok and (report.events, report.unhashed) == (43, 0)
    for step in ("merged", "reopened"):
        if step == "merged":
            journal.maintain()
        else:
            journal = reopen(journal)
            topic = journal.topic("orders")
        receipts.append(topic.append("more", key="k1"))
        receipts.append(topic.append("more"))
        assert topic.verify().events == len(receipts)
        assert {topic.check(receipt).reason for receipt in receipts} == {"it is there, unchanged"}


def test_every_way_in_keeps_hashes(journal: Journal, topic: Topic) -> None:
    fill(topic)
    topic.submit("e", key="k1").result(60)
    with journal.transaction() as tx:
        tx.append(topic, "e", key="k1")
        list(tx.read(topic, key="k1"))
        tx.append(topic, "e", key="k1")
    with journal.fence() as fence:
        fence.submit(topic, "e", key="k1")
    outbox = journal.outbox()
    outbox.stage(topic, "e", key="k1")
    outbox.stage(topic, "e", key="new")
    outbox.flush()
    duplicate = topic.append("again", 1, key="k1", dedup="d")
    assert duplicate.duplicate and topic.check(duplicate)
    topic.append_many([Draft("large", "x" * 100) for _ in range(20_000)])  # more than one block
    report = topic.verify()
    assert report and (report.events, report.unhashed) == (20_049, 0)


def test_a_rolled_back_transaction_leaves_no_hash(journal: Journal, topic: Topic) -> None:
    topic.append("e", 1, key="k")
    with pytest.raises(KeyError), journal.transaction() as tx:
        tx.append(topic, "e", 2, key="k")
        list(tx.read(topic))
        raise KeyError
    topic.append("e", 3, key="k")
    assert topic.verify().events == 2


def change(journal: Journal, edit: Callable[[Wire], None]) -> None:
    """Rewrites every block of the topic with its checksum, as somebody with access to the file could."""
    with journal._engine.write() as tx:
        for key, value in list(tx.scan(*keys.block_range(1))):
            wire = read_block(value, "orders").wire
            edit(wire)
            tx.put(key, encode_block(wire))


@on("memory", "sqlite")
@pytest.mark.parametrize("what", ["payload", "kind", "key", "time", "order"])
def test_a_changed_event_is_named(journal: Journal, topic: Topic, what: str) -> None:
    receipts = topic.append_many([Draft("e", number, key=f"k{number % 2}") for number in range(10)])

    def edit(wire: Wire) -> None:
        if what == "payload":
            wire.payload = memoryview(bytes(wire.payload).replace(b"6", b"9"))
        elif what == "kind":
            wire.kinds, wire.kind_codes = ["e", "x"], bytes([0] * 6 + [1] + [0] * 3)
        elif what == "key":
            wire.key = CodedText(["k0", "k1"], bytes([0, 1, 0, 1, 0, 1, 1, 1, 0, 1]))
        elif what == "time":
            wire.run_time += 1
        else:
            wire.payload = memoryview(bytes(wire.payload).replace(b"678", b"876"))

    change(journal, edit)
    report = topic.verify()
    assert not report and report.broken is not None and report.root is None
    assert report.broken.seq == (1 if what == "time" else 7) and "not what was appended" in report.broken.reason
    checked = topic.check(receipts[6])
    assert not checked and ("another event" if what == "time" else "not what was appended") in checked.reason


@on("memory")
@pytest.mark.parametrize("removed", [5, 10])
def test_a_removed_event_is_named(journal: Journal, topic: Topic, removed: int) -> None:
    receipts = topic.append_many([Draft("e", number, key=f"k{number % 2}") for number in range(10)])
    with journal._engine.write() as tx:
        for key, value in list(tx.scan(*keys.block_range(1))):
            block = read_block(value, "orders")
            tx.put(key, block_of_rows(block, [row for row in range(10) if row != removed - 1]))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == removed and "missing" in report.broken.reason
    assert not topic.check(receipts[removed - 1])


@on("memory")
def test_an_event_slipped_in_is_named(journal: Journal, topic: Topic) -> None:
    topic.append("e", 1, key="k")
    with journal._engine.write() as tx:
        columns = Columns(["e"], [b"2"])
        columns.key = ["k"]
        tx.put(keys.block_key(1, 2), build_block(columns, 2, journal.clock.now_ms(), 1 << 90))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 2 and "never appended" in report.broken.reason


@on("memory")
def test_a_whole_history_made_anew_is_found_by_receipts_and_roots(journal: Journal, topic: Topic) -> None:
    receipts = [topic.append("e", number, key="k") for number in range(5)]
    root = topic.verify().root
    rewritten = journal.topic("rewritten")
    rewritten.configure(verified=True)
    for number in range(5):
        rewritten.append("e", 100 + number, key="k")
    with journal._engine.write() as tx:
        for low, high in (keys.block_range(2), keys.topic_range(keys.LEAVES, 2)):
            for key, value in list(tx.scan(low, high)):
                tx.put(key[:1] + (1).to_bytes(4) + key[5:], value)
    report = topic.verify()
    assert report and report.root is not None, "a history whose hashes were made anew, too, holds together"
    assert root is not None and (report.root.through, report.root.hash == root.hash) == (5, False)
    assert not any(topic.check(receipt) for receipt in receipts), "but nobody has receipts for it"


def test_after_compaction_what_is_left_is_verified(journal: Journal, topic: Topic) -> None:
    receipts = fill(topic)
    topic.compact(20)
    topic.compact(41)  # in the middle of a commit's events
    report = topic.verify()
    assert report and (report.events, report.unhashed) == (2, 0)
    assert topic.check(receipts[-1]) and topic.check(receipts[-2])
    assert "compaction" in topic.check(receipts[3]).reason
    topic.append("more", key="k1")
    assert topic.verify().events == 3
    with journal._engine.read() as snap:
        assert len(list(snap.scan(*keys.topic_range(keys.LEAVES, 1)))) == 2, "hashes go with their events"
    topic.compact(44)
    with journal._engine.read() as snap:
        assert not list(snap.scan(*keys.topic_range(keys.LEAVES, 1)))
    assert topic.verify() and topic.append("more").seq == 45 and topic.verify().events == 1


def test_events_from_before_are_counted_apart(journal: Journal) -> None:
    topic = journal.topic("orders")
    plain = [topic.append("e", number, key="k") for number in range(5)]
    topic.append("e")
    topic.configure(verified=True)
    topic.append("e", 5, key="k")
    topic.append("e")
    report = topic.verify()
    assert report and (report.unhashed, report.events) == (6, 2)
    assert "cannot be checked" in topic.check(plain[0]).reason and topic.check(plain[0])
    assert journal.topic("nothing").verify().events == 0


@on("memory")
def test_a_topic_is_verified_for_good_and_not_compacted_by_key(journal: Journal, topic: Topic) -> None:
    with pytest.raises(ConfigError, match="stays verified"):
        topic.configure(verified=False)
    with pytest.raises(ConfigError, match="by key"):
        topic.configure(by_key=True)
    with pytest.raises(ConfigError, match="by key"):
        journal.topic("other").configure(by_key=True, verified=True)


@on("memory")
def test_check_wants_a_receipt_of_this_topic(journal: Journal, topic: Topic) -> None:
    other = journal.topic("other").append("e")
    with pytest.raises(ConfigError, match="'other'"):
        topic.check(other)
    with pytest.raises(ConfigError, match="receipt"):
        topic.check("id")  # type: ignore[arg-type]
    assert "no events" in journal.topic("nothing").check(Receipt("nothing", 1, 2)).reason
    topic.append("e")
    assert "another event" in topic.check(Receipt("orders", 1, 2)).reason


@on("memory")
def test_verify_reports_progress_and_corruption(journal: Journal, topic: Topic) -> None:
    fill(topic)
    told: list[tuple[int, int]] = []
    topic.verify(progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (43, 43)
    with journal._engine.write() as tx:
        key, value = list(tx.scan(*keys.block_range(1)))[-1]
        tx.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == keys.block_first(key)
    assert "checksum" in report.broken.reason
    with journal._engine.write() as tx:
        tx.put(key, value)
        place, hashes = list(tx.scan(*keys.topic_range(keys.LEAVES, 1)))[-1]
        tx.put(place, hashes[:-1])
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 43


@on("sqlite")
def test_a_store_with_hash_chains_of_an_earlier_version_goes_on(journal: Journal, reopen: Reopen) -> None:
    """Its blocks have links as one more column, and its topic a setting `chained`: both are ignored."""
    journal.topic("orders").append_many([Draft("e", number, key=f"k{number % 2}") for number in range(10)])
    with journal._engine.write() as tx:
        ((key, value),) = tx.scan(*keys.block_range(1))
        fields = msgspec.msgpack.decode(value[:-4])[:19]
        body = msgspec.msgpack.encode([*fields, bytes(320)])
        tx.put(key, body + zlib.crc32(body).to_bytes(4))
        tx.put(keys.topic_key("orders"), msgspec.msgpack.encode([1, {"chained": True}]))
    topic = reopen(journal).topic("orders")
    assert [event.payload for event in topic.read(key="k1")] == [1, 3, 5, 7, 9]
    topic.configure(verified=True)
    topic.append("e", 10, key="k0")
    report = topic.verify()
    assert report and (report.unhashed, report.events) == (10, 1)

"""Hash chains: each event carries the hash of its predecessor in its entity's stream, and tampering shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from journals import on
from small_index import small_index

from penstock import Draft, Journal, Receipt, Topic
from penstock.errors import ConfigError
from penstock.journal.storage import keys
from penstock.journal.storage.block import Block, read_block, seal
from penstock.journal.storage.columns import CodedText
from penstock.journal.storage.joining import select
from penstock.journal.storage.wire import Columns, Wire

Reopen = Callable[[Journal], Journal]


@pytest.fixture(autouse=True)
def runs_after_a_few_events() -> Iterator[None]:
    with small_index():
        yield


@pytest.fixture
def topic(journal: Journal) -> Topic:
    topic = journal.topic("orders")
    topic.configure(chained=True)
    return topic


def fill(topic: Topic) -> list[Receipt]:
    receipts = [
        topic.append("e", {"n": number}, key=None if number % 4 == 0 else f"k{number % 3}") for number in range(40)
    ]
    receipts += topic.append_many(
        [
            Draft("bytes", b"\x00\xff", key="k1", headers={"a": "b", "c": "d"}),
            Draft("caused", 1, key="k2", cause=0, scope="s", occurred_at=datetime(2001, 2, 3, tzinfo=UTC)),
            Draft("again", 1, key="k1", dedup="d"),
        ]
    )
    return receipts


def test_every_event_has_a_link_and_the_chains_hold(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    receipts = fill(topic)
    report = topic.verify()
    assert report and report.ok and (report.events, report.entities, report.unlinked) == (43, 4, 0)
    assert len({receipt.link for receipt in receipts}) == 43
    assert [event.link for event in topic.read()] == [receipt.link for receipt in receipts]
    for step in ("merged", "reopened"):
        if step == "merged":
            journal.maintain()
        else:
            journal = reopen(journal)
            topic = journal.topic("orders")
        receipts.append(topic.append("more", key="k1"))
        receipts.append(topic.append("more"))
        assert topic.verify().events == len(receipts)
        assert all(topic.check(receipt) for receipt in receipts)


def test_every_way_in_is_linked(journal: Journal, topic: Topic) -> None:
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
    assert topic.verify().events == 49


def test_a_rolled_back_transaction_leaves_the_chain_whole(journal: Journal, topic: Topic) -> None:
    topic.append("e", 1, key="k")
    with pytest.raises(KeyError), journal.transaction() as tx:
        tx.append(topic, "e", 2, key="k")
        raise KeyError
    topic.append("e", 3, key="k")
    assert topic.verify().events == 2


def change(journal: Journal, edit: Callable[[Wire], None]) -> None:
    """Rewrites every block of the topic with its checksum, as somebody with access to the file could."""
    with journal._engine.write() as tx:
        for key, value in list(tx.scan(*keys.block_range(1))):
            wire = read_block(value, "orders").wire
            edit(wire)
            tx.put(key, seal(wire))


@on("memory", "sqlite")
@pytest.mark.parametrize("what", ["payload", "kind", "key", "time", "link"])
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
            links = bytearray(wire.chain or b"")
            links[6 * 32] ^= 1
            wire.chain = bytes(links)

    change(journal, edit)
    report = topic.verify()
    assert not report and report.broken is not None
    assert report.broken.seq == (1 if what == "time" else 7)
    checked = topic.check(receipts[6])
    assert not checked and checked.reason


@on("memory")
def test_a_removed_event_breaks_its_entitys_chain(journal: Journal, topic: Topic) -> None:
    receipts = topic.append_many([Draft("e", number, key=f"k{number % 2}") for number in range(10)])
    with journal._engine.write() as tx:
        for key, value in list(tx.scan(*keys.block_range(1))):
            block = read_block(value, "orders")
            tx.put(key, select(block, [0, 1, 2, 3, 5, 6, 7, 8, 9]))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 7 and report.broken.key == "k0"
    checked = topic.check(receipts[4])
    assert not checked and "event 5 is missing" in checked.reason


@on("memory")
def test_an_exchanged_history_is_found_by_receipts(journal: Journal, topic: Topic) -> None:
    receipts = [topic.append("e", number, key="k") for number in range(5)]
    rewritten = journal.topic("rewritten")
    rewritten.configure(chained=True)
    for number in range(5):
        rewritten.append("e", 100 + number, key="k")
    with journal._engine.write() as tx:
        for key, value in list(tx.scan(*keys.block_range(2))):
            tx.put(keys.block_key(1, keys.block_first(key)), value)
    assert topic.verify(), "a whole history made anew holds together"
    assert not any(topic.check(receipt) for receipt in receipts), "but nobody has receipts for it"


def test_after_compaction_chains_begin_at_what_is_left(journal: Journal, topic: Topic) -> None:
    receipts = fill(topic)
    topic.compact(20)
    report = topic.verify()
    assert report and report.events == 23 and report.anchored == 4
    assert topic.check(receipts[-1]) and topic.check(receipts[21])
    assert "compaction" in topic.check(receipts[3]).reason
    topic.append("more", key="k1")
    assert topic.verify().events == 24


def test_events_from_before_the_chain_are_counted_apart(journal: Journal) -> None:
    topic = journal.topic("orders")
    plain = [topic.append("e", number, key="k") for number in range(5)]
    topic.append("e")
    topic.configure(chained=True)
    topic.append("e", 5, key="k")
    topic.append("e")
    report = topic.verify()
    assert report and (report.unlinked, report.events) == (6, 2)
    assert plain[0].link is None and topic.check(plain[0])
    assert journal.topic("nothing").verify().events == 0


@on("memory")
def test_an_event_slipped_in_without_a_link_is_named(journal: Journal, topic: Topic) -> None:
    topic.append("e", 1, key="k")
    with journal._engine.write() as tx:
        columns = Columns(["e"], [b"2"])
        columns.key = ["k"]
        from penstock.journal.storage.block import build_block

        tx.put(keys.block_key(1, 2), build_block(columns, 2, journal.clock.now_ms(), 1 << 90))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 2 and "no link" in report.broken.reason


@on("memory")
def test_chains_are_kept_for_good_and_not_with_compaction_by_key(journal: Journal, topic: Topic) -> None:
    with pytest.raises(ConfigError, match="for good"):
        topic.configure(chained=False)
    with pytest.raises(ConfigError, match="by key"):
        topic.configure(by_key=True)
    with pytest.raises(ConfigError, match="by key"):
        journal.topic("other").configure(by_key=True, chained=True)


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
        key, value = list(tx.scan(*keys.block_range(1)))[30]
        tx.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    report = topic.verify()
    assert report.broken is not None and report.broken.seq == 31 and "checksum" in report.broken.reason
    assert isinstance(read_block(value, "orders"), Block)

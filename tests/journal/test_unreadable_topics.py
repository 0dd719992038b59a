"""A topic that cannot be read is noted, and does not keep the others from their housekeeping."""

from __future__ import annotations

import pytest
from journals import eventually

import penstock
from penstock import Draft
from penstock.api import local
from penstock.core.journal import keys
from penstock.core.journal.blocks import decode_wire, encode_block
from penstock.core.journal.catalog import load_record
from penstock.core.sampling.collect import gauges
from penstock.errors import Corrupt


def blocks_of(journal: penstock.Journal, topic: str) -> list[tuple[bytes, bytes]]:
    opened = local(journal, "a test")
    with opened._engine.read() as snap:
        record = load_record(snap, topic)
        assert record is not None
        return list(snap.scan(*keys.block_range(record.topic_id)))


def poison(journal: penstock.Journal, topic: str) -> None:
    """Gives a topic's first block contents that are wrong, in a frame that is right."""
    key, value = blocks_of(journal, topic)[0]
    wire = decode_wire(value[:-4])
    wire.lengths = 1 << 40
    with local(journal, "a test")._engine.write() as tx:
        tx.put(key, encode_block(wire))


def fill(journal: penstock.Journal) -> None:
    for name in ("a", "bad", "z"):
        journal.topic(name).configure(max_events=1000)
        for number in range(5):
            journal.topic(name).append_many([Draft("k", number, key="x"), Draft("k", -number)])
    poison(journal, "bad")


def test_housekeeping_goes_on_with_the_others_and_says_which_topic_it_could_not_read() -> None:
    with penstock.open("memory:") as journal:
        fill(journal)
        with pytest.raises(Corrupt, match="topic bad"):
            journal.maintain()
        assert [len(blocks_of(journal, name)) for name in ("a", "bad", "z")] == [1, 5, 1]
        sample = journal.stats()
        assert list(sample.unreadable) == ["bad"] and set(sample.topics) == {"a", "bad", "z"}
        assert [(one.kind, one.subject) for one in sample.findings] == [("unreadable", "bad")]
        assert 'penstock_topic_unreadable{topic="bad"} 1' in gauges(sample).prometheus_text()
        journal.topic("bad").compact(2)
        journal.maintain()
        assert not journal.stats().unreadable


def test_a_pass_that_did_not_come_to_the_damage_leaves_the_note() -> None:
    with penstock.open("memory:") as journal:
        fill(journal)
        with pytest.raises(Corrupt, match="topic bad"):
            journal.maintain()
        housekeeper = local(journal, "a test")._core.housekeeper
        housekeeper.maintain("bad")  # five small blocks: too few to be merged in passing, so that none is read
        assert list(journal.stats().unreadable) == ["bad"]
        journal.topic("bad").compact(2)
        housekeeper.maintain("bad")
        assert not journal.stats().unreadable


def test_the_housekeepers_own_thread_notes_it_and_goes_on_applying_settings() -> None:
    with penstock.open("memory:") as journal:
        fill(journal)
        housekeeper = local(journal, "a test")._core.housekeeper
        journal.topic("bad").configure(by_key=True)
        housekeeper.request("bad")
        eventually(lambda: list(journal.stats().unreadable) == ["bad"])
        journal.topic("bad").configure(max_events=3)
        housekeeper.request("bad")
        eventually(lambda: not journal.stats().unreadable)

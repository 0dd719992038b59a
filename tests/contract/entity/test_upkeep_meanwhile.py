"""Compaction and new topics beside walks, published roots and imports: what was promised of them still holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journals import Place, only, payloads, seqs

import penstock
from penstock import Draft, Event, Journal, Projection, Receipt, Topic, check_proof
from penstock import on as handles
from penstock.engine.contract import Snapshot
from penstock.entity import copying, receipts
from penstock.entity.proof import EMPTY, root_of
from penstock.errors import ConfigError, Unprovable
from penstock.journal.locating import topics_naming
from penstock.journal.writer import Writer

FORMATS = ["jsonl", "parquet"]


@pytest.fixture
def other() -> Iterator[Journal]:
    with penstock.open("memory:") as journal:
        yield journal


# ── walks ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("walk", ["effects", "correlated"])
def test_a_walk_sees_a_topic_that_is_made_while_it_begins(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch, walk: str
) -> None:
    """One commit made the topic and wrote to another: a walk sees both events or none."""
    first = topic.append("placed")

    def names(snap: Snapshot, id: str) -> list[str]:
        monkeypatch.undo()
        found = topics_naming(snap, id)
        with journal.transaction() as tx:
            tx.append("invoices", "written", cause=first.id)
            tx.append("orders", "paid", cause=first.id)
        return found

    monkeypatch.setattr("penstock.entity.causality.topics_naming", names)
    began = ["placed"] if walk == "correlated" else []
    assert [event.kind for event in _walked(topic, first, walk)] == began
    assert sorted(event.kind for event in _walked(topic, first, walk)) == ["paid", *began, "written"]


def _walked(topic: Topic, first: Receipt, walk: str) -> Iterator[Event]:
    return topic.effects(first) if walk == "effects" else topic.correlated(first.id)


# ── states ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Seen(Projection):
    """The payloads of an entity's events."""

    payloads: list[int] = []

    @handles("placed")
    def add(self, event: Any) -> None:
        self.payloads.append(event.payload)


def test_a_state_is_void_as_soon_as_one_of_its_events_is_removed(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when compaction by key has come to its end: it may be killed before."""
    for number, key in enumerate("abb", 1):
        topic.append("placed", number, key=key)
    assert topic.compact_keys() == 1  # of the positions so far
    topic.append("placed", 4, key="a")
    assert topic.project(Seen, "a") == Seen([1, 4])
    run_relaxed = Writer.run_relaxed

    def killed_at_the_end(writer: Writer, apply: Any, *args: Any) -> Any:
        if apply.__name__ == "end":
            raise KeyboardInterrupt
        return run_relaxed(writer, apply, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "run_relaxed", killed_at_the_end)
        topic.compact_keys()
    assert payloads(topic.read(key="a")) == [4] and topic.project(Seen, "a") == Seen([4])


def test_a_state_of_an_imported_topic_is_void_when_one_of_its_events_is_removed(
    journal: Journal, other: Journal, tmp_path: Path
) -> None:
    """An import of events with positions missing says that they were compacted, all of them."""
    source, copy = other.topic("orders"), journal.topic("orders")
    for number, key in enumerate("caba", 1):
        source.append("placed", number, key=key)
    source.compact_keys()
    source.append("placed", 5, key="a")
    other.export(tmp_path / "copy")
    journal.import_(tmp_path / "copy")
    assert copy.project(Seen, "a") == Seen([4, 5])
    assert copy.compact_keys() == 1
    assert copy.project(Seen, "a") == Seen([5]) and len(copy) == 3
    copy.append("placed", 6, key="a")
    assert copy.project(Seen, "a") == Seen([5, 6]) and seqs(copy.read()) == [1, 3, 5, 6]


# ── roots ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_root_stays_published_when_its_last_segment_has_lost_events(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "SEGMENT", 8)
    monkeypatch.setattr(receipts, "EMPTY_SEGMENT", root_of([EMPTY] * 8))
    topic.append_many([Draft("placed", number) for number in range(1, 9)])
    topic.append_many([Draft("placed", number, key="a") for number in range(9, 13)])
    before = topic.verify().root
    assert before is not None and topic.compact_keys() == 3
    after = topic.verify().root
    assert after is not None and (after.through, after.hash == before.hash) == (12, False)
    for root in (before, after):
        for seq in range(1, 9):
            assert check_proof(topic.proof(seq, root=root), root=root)
    assert check_proof(topic.proof(12, root=after), root=after)
    with pytest.raises(Unprovable, match="were removed or changed since"):
        topic.proof(12, root=before)
    assert topic.verify().root == after, "what is published is not published again"
    topic.compact(9)
    topic.compact(12)
    assert topic.verify().root is not None
    with pytest.raises(Unprovable, match="no event at position"):
        topic.proof(12, root=after)


# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def interrupt_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Ends an import after some commits, as a Ctrl-C does."""
    add = copying._Import._add
    left = batches

    def then(self: copying._Import, rows: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        add(self, rows)

    monkeypatch.setattr(copying._Import, "_add", then)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_an_import_goes_on_after_compaction(
    journal: Journal, other: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, everything: bool
) -> None:
    source, copy = other.topic("orders"), journal.topic("orders")
    source.append_many([Draft("placed", number, key="b" if number == 1 else "a") for number in range(1, 41)])
    other.export(tmp_path / "copy", format=format)
    monkeypatch.setattr(copying, "_BATCH_EVENTS", 10)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 3)
        journal.import_(tmp_path / "copy")
    assert copy.compact(30).removed == 30 if everything else copy.compact_keys() == 28
    report = journal.import_(tmp_path / "copy")
    assert (report.imported, report.present) == (10, 30)
    assert seqs(copy.read()) == ([] if everything else [1, 30]) + list(range(31, 41))


def test_an_import_into_another_history_is_refused(journal: Journal, other: Journal, tmp_path: Path) -> None:
    other.topic("orders").append_many([Draft("placed", number) for number in range(10)])
    other.export(tmp_path / "copy")
    journal.topic("orders").append_many([Draft("other", number) for number in range(5)])
    with pytest.raises(ConfigError, match="holds other events than the export"):
        journal.import_(tmp_path / "copy")


@pytest.mark.parametrize("format", FORMATS)
@only(on_disk=False)
def test_a_copy_of_a_verified_topic_is_verified_and_has_its_root(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    monkeypatch.setattr(copying, "_BATCH_EVENTS", 3)
    for number in range(20):
        if number == 10:
            topic.configure(verified=True)
        topic.append("placed", number, key=f"k{number % 2}")
    journal.export(tmp_path / "copy", format=format)
    with penstock.open("memory:") as copy:
        assert copy.import_(tmp_path / "copy").imported == 20
        orders = copy.topic("orders")
        report, original = orders.verify(), topic.verify()
        assert report.root is not None and original.root is not None and report.root.hash == original.root.hash
        assert (original.unhashed, original.events, report.unhashed, report.events) == (10, 10, 0, 20)
        assert payloads(orders.read()) == list(range(20))
        orders.append("placed", 20, key="k0")
        assert orders.verify().events == 21


@only(on_disk=False)
def test_an_event_changed_on_its_way_to_a_copy_shows_in_the_root(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path
) -> None:
    topic.configure(verified=True)
    topic.append_many([Draft("placed", number, key=f"k{number}") for number in range(5)])
    file = tmp_path / "orders.jsonl"
    journal.export(file, topics=["orders"])
    *others, last = [json.loads(line) for line in file.read_text().splitlines()]
    last["payload"] = 40
    file.write_text("\n".join(map(json.dumps, [*others, last])))
    with penstock.open("memory:") as copy:
        copy.topic("orders").configure(verified=True)
        copy.import_(file, topics=["orders"])
        here, there = topic.verify().root, copy.topic("orders").verify().root
        assert here is not None and there is not None
        assert (here.through, here.hash == there.hash) == (there.through, False)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
@only(on_disk=False)
def test_a_file_leaves_a_topics_settings_as_they_are(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path, ending: str
) -> None:
    topic.append_many([Draft("placed", number, key="a") for number in range(5)])
    file = tmp_path / f"orders.{ending}"
    journal.export(file, topics=["orders"])
    with penstock.open("memory:") as copy:
        orders = copy.topic("orders")
        settings = orders.configure(max_events=1000, dedup_window=None, verified=True)
        assert copy.import_(file, topics=["orders"]).imported == 5
        assert orders.settings == settings and payloads(orders.read()) == list(range(5))
        orders.append("placed", 5, key="a")
        report = orders.verify()
        assert report.ok and (report.unhashed, report.events) == (0, 6)

"""Removing history: on request, by retention in passing, and all but the newest event of every key."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from journals import Place, eventually, on, only, payloads, seen, seqs

from penstock import CompactReport, Draft, Journal, ManualClock, Settings, Topic
from penstock.errors import ConfigError, PositionTrimmed

Reopen = Callable[[Journal], Journal]


def fill(topic: Topic, count: int, **draft: Any) -> None:
    """Appends events numbered on from the topic's end, one by one and in batches."""
    while count:
        size = min(count, 1 + topic.latest % 4)
        topic.append_many([Draft("k", topic.latest + n + 1, **draft) for n in range(size)])
        count -= size


# on request


def test_compact_is_inclusive_and_reports(topic: Topic, reopen: Reopen) -> None:
    fill(topic, 20)
    assert topic.compact(7) == CompactReport(7, 13, 20, None)
    assert payloads(topic.read()) == list(range(8, 21))
    assert (topic.oldest, topic.latest, len(topic)) == (8, 20, 13)
    assert topic.compact(7) == topic.compact(3) == topic.compact(0) == CompactReport(0, 13, 20, None)
    topic = reopen(topic.journal).topic("orders")
    assert topic.compact(8).removed == 1
    assert topic.compact(10**6) == CompactReport(12, 0, 20, None)
    assert list(topic.read()) == [] and topic.oldest == 0 and topic.latest == 20
    fill(topic, 2)
    assert payloads(topic.read()) == [21, 22]


def test_the_reference_case_two_events_one_removed(topic: Topic) -> None:
    topic.append("k", 1)
    topic.append("k", 2)
    report = topic.compact(1)
    assert (report.removed, report.remaining) == (1, 1)


def test_every_cut_keeps_the_rest_as_it_was(topic: Topic, journal: Journal, clock: ManualClock) -> None:
    cause = topic.append("first", correlation="c")
    for n in range(20):
        clock.advance(n % 3)
        topic.append_many(
            Draft("k", [n, row], key=f"{row}", headers={"n": str(n)}, cause=cause if row else None, scope="s")
            for row in range(n % 5 + 1)
        )
        topic.append("b", bytes([n]))
        if n == 10:
            journal.maintain()
    everything, chance, at = seen(topic.read()), random.Random(1), 0
    while at < len(everything):
        at += chance.randrange(1, 9)
        topic.compact(at)
        assert seen(topic.read()) == everything[at:]
        for event in topic.read():
            assert topic.find(event.id) == event == topic.get(event.seq)


def test_unknown_topics_compact_to_nothing(journal: Journal) -> None:
    assert journal.topic("nobody").compact(5) == CompactReport()
    assert journal.topic("nobody").compact_keys() == 0
    assert journal.topics() == []


@pytest.mark.parametrize("through", [-1, "1", None, 1.5, 2**63])
@on("memory")
def test_a_bad_position_is_refused(topic: Topic, through: Any) -> None:
    topic.append("k")
    with pytest.raises(ConfigError):
        topic.compact(through)
    assert len(topic) == 1


def test_compaction_stops_at_the_slowest_cursor_unless_forced(topic: Topic) -> None:
    fill(topic, 10)
    topic.commit("fast", 9)
    topic.commit("slow", 4)
    assert topic.compact(8) == CompactReport(4, 6, 10, "slow")
    topic.commit("slow", 9)
    assert topic.compact(8) == CompactReport(4, 2, 10, None)
    topic.seek("slow", 0)
    assert topic.compact(9) == CompactReport(0, 2, 10, "slow")
    assert topic.compact(10, force=True) == CompactReport(2, 0, 10, None)
    with pytest.raises(PositionTrimmed):
        list(topic.read(topic.cursor("fast") or 0))
    topic.forget("slow")
    topic.commit("fast", 10)
    fill(topic, 1)
    assert topic.compact(11).stopped_at == "fast"


@only(shrinks=True)
def test_compaction_gives_the_space_back(place: Place) -> None:
    journal = place.open()
    topic = journal.topic("large")
    for n in range(40):
        topic.append_many([Draft("k", random.Random(n).randbytes(50_000)) for _ in range(5)])
    full = journal.describe().size_bytes
    assert full > 9_000_000
    topic.compact(195)
    assert journal.describe().size_bytes < full / 4
    if place.kind.scheme == "sqlite":
        log = Path(f"{place.folder / 'store'}-wal")
        assert log.stat().st_blocks == 0 or log.stat().st_size <= 9 << 20
    assert len(topic) == 5


def test_space_freed_by_compaction_is_used_again(place: Place) -> None:
    journal = place.open(durability="process")
    topic = journal.topic("ring")
    sizes = []
    for round_ in range(12):
        topic.append_many([Draft("k", random.Random(round_).randbytes(40_000)) for _ in range(20)])
        topic.compact(topic.latest)
        sizes.append(journal.describe().size_bytes)
    assert max(sizes[6:]) <= max(sizes[:6]) * 1.6 + (4 << 20)


# retention


def test_settings_are_values_and_are_kept(topic: Topic, reopen: Reopen) -> None:
    assert topic.settings == Settings()
    topic.configure(max_age=timedelta(days=1), max_events=1000)
    topic.configure(by_key=True)
    wanted = Settings(max_age=86400.0, max_events=1000, by_key=True)
    assert topic.settings == wanted
    topic = reopen(topic.journal).topic("orders")
    assert topic.settings == wanted and topic.configure() == wanted
    assert topic.configure(max_age=None).max_age is None
    assert topic.latest == 0 and topic.journal.topics() == ["orders"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_age": -1}, {"max_age": "day"}, {"max_age": float("nan")}, {"max_events": 0}, {"max_events": 1.5},
        {"max_events": True}, {"max_bytes": -5}, {"max_bytes": "1MB"}, {"by_key": 1}, {"dedup_window": -1},
        {"retention": 5}, {"verified": "yes"},
    ],
    ids=repr,
)  # fmt: skip
@on("memory")
def test_bad_settings_are_refused(topic: Topic, settings: dict[str, Any]) -> None:
    topic.append("k")
    with pytest.raises(ConfigError):
        topic.configure(**settings)
    assert topic.settings == Settings()


def test_retention_by_count(topic: Topic, journal: Journal) -> None:
    topic.configure(max_events=10)
    fill(topic, 35)
    journal.maintain()
    assert payloads(topic.read()) == list(range(26, 36)) and len(topic) == 10 and topic.latest == 35
    journal.maintain()
    assert len(topic) == 10


def test_retention_by_age_beside_a_clock_that_was_set_back(topic: Topic, journal: Journal, clock: ManualClock) -> None:
    """What was there when that was found out goes a `max_age` later; nothing goes earlier, nor a day later."""
    topic.configure(max_age=60)
    fill(topic, 5)
    clock.advance(-86_400)
    journal.maintain()
    clock.advance(30)
    fill(topic, 5)
    journal.maintain()
    clock.advance(-10)
    journal.maintain()
    clock.advance(40)
    journal.maintain()
    assert len(topic) == 10
    clock.advance(0.001)
    journal.maintain()
    assert payloads(topic.read()) == [6, 7, 8, 9, 10]
    clock.advance(60)
    journal.maintain()
    assert len(topic) == 0
    fill(topic, 1)
    clock.advance(86_400)
    fill(topic, 1)
    journal.maintain()
    assert payloads(topic.read()) == [12], "the clock has caught up: the recording time counts again"


def test_retention_by_age(topic: Topic, journal: Journal, clock: ManualClock) -> None:
    topic.configure(max_age=60)
    fill(topic, 5)
    clock.advance(30)
    fill(topic, 5)
    clock.advance(30)
    journal.maintain()
    assert len(topic) == 10  # recorded longer ago than 60 s is removed, exactly 60 s is not
    clock.advance(0.001)
    journal.maintain()
    assert payloads(topic.read()) == [6, 7, 8, 9, 10]
    clock.advance(-1000)
    journal.maintain()
    assert len(topic) == 5
    clock.advance(5000)
    journal.maintain()
    assert len(topic) == 0 and topic.latest == 10
    fill(topic, 1)
    assert payloads(topic.read()) == [11]


def test_retention_by_bytes(topic: Topic, journal: Journal) -> None:
    for n in range(50):
        topic.append("k", bytes([n]) * 70_000)
    topic.configure(max_bytes=1_000_000)
    journal.maintain()
    with journal._engine.read() as snap:
        stored = sum(len(value) for _, value in snap.scan(b"b", b"c"))
    assert 700_000 < stored <= 1_000_000
    assert seqs(topic.read()) == list(range(51 - len(topic), 51))


def test_retention_by_bytes_keeps_the_newest_block_however_large(topic: Topic, journal: Journal) -> None:
    topic.configure(max_bytes=1000)
    topic.append("k", b"x" * 70_000)
    topic.append("k", b"y" * 70_000)
    journal.maintain()
    assert seqs(topic.read()) == [2]


def test_retention_happens_in_passing(topic: Topic) -> None:
    topic.configure(max_events=20)
    for n in range(300):
        topic.append("k", n)
    eventually(lambda: len(topic) < 160)
    assert payloads(topic.read())[-20:] == list(range(280, 300))


def test_retention_does_not_wait_for_cursors_and_their_readers_are_told(topic: Topic, journal: Journal) -> None:
    fill(topic, 10)
    topic.commit("slow", 2)
    topic.configure(max_events=3)
    journal.maintain()
    with pytest.raises(PositionTrimmed) as refused:
        list(topic.read(topic.cursor("slow") or 0))
    assert refused.value.oldest == 8


# by key


def test_compaction_by_key_keeps_the_newest_event_of_every_key(topic: Topic, reopen: Reopen) -> None:
    chance = random.Random(2)
    expected: dict[Any, dict[str, Any]] = {}
    for n in range(120):
        key = chance.choice([None, "a", "b", "c", "d"])
        topic.append_many([Draft("k", n, key=key, headers={"n": str(n)})])
    for event in seen(topic.read()):
        expected[event["key"] or event["seq"]] = event
    kept = sorted(expected.values(), key=lambda event: event["seq"])
    removed = topic.compact_keys()
    assert removed == 120 - len(kept) and len(topic) == len(kept)
    for _ in range(2):
        assert seen(topic.read()) == kept and seen(topic.read(reverse=True)) == kept[::-1]
        for seq in range(1, 122):
            event = topic.get(seq)
            assert (event.as_dict() if event else None) == next((e for e in kept if e["seq"] == seq), None)
        for event in kept:
            found = topic.find(event["id"])
            assert found is not None and found.as_dict() == event
        topic.journal.maintain()
        topic = reopen(topic.journal).topic("orders")
    assert topic.compact_keys() == 0
    assert topic.latest == 120 and topic.append("k", key="a").seq == 121
    assert topic.compact_keys() == 1 and len(topic) == len(kept)


def test_reading_over_what_was_compacted_by_key_is_no_error(topic: Topic) -> None:
    topic.append_many([Draft("k", n, key="only") for n in range(10)])
    topic.compact_keys()
    assert seqs(topic.read(3)) == [10] and list(topic.read(3, through=9)) == [] and seqs(topic.read()) == [10]
    assert topic.oldest == 10


def test_compaction_by_position_and_by_key_count_right_together(topic: Topic, journal: Journal) -> None:
    chance, model = random.Random(9), dict[int, str | None]()
    for _ in range(60):
        match chance.randrange(5):
            case 0 | 1 | 2:
                chosen = [chance.choice([None, "a", "b", "c"]) for _ in range(chance.randrange(1, 6))]
                for receipt, key in zip(topic.append_many([Draft("k", key=k) for k in chosen]), chosen, strict=True):
                    model[receipt.seq] = key
            case 3:
                newest = {key: seq for seq, key in model.items() if key is not None}
                gone = [seq for seq, key in model.items() if key is not None and newest[key] != seq]
                assert topic.compact_keys() == len(gone)
                for seq in gone:
                    del model[seq]
            case 4:
                through = chance.randrange(topic.latest + 1)
                gone = [seq for seq in model if seq <= through]
                report = topic.compact(through)
                assert (report.removed, report.remaining) == (len(gone), len(model) - len(gone))
                for seq in gone:
                    del model[seq]
                if chance.random() < 0.5:
                    journal.maintain()
        assert {e.seq: e.key for e in topic.read()} == model and len(topic) == len(model)
        assert topic.oldest == min(model, default=0)


def test_a_state_topic_is_compacted_in_passing(topic: Topic) -> None:
    topic.configure(by_key=True)
    for n in range(400):
        topic.append("k", n, key=str(n % 5))
    eventually(lambda: len(topic) < 300)
    topic.journal.maintain()
    assert {e.key: e.payload for e in topic.read()} == {str(n % 5): n for n in range(395, 400)}


# merging


def test_merging_changes_nothing_anybody_can_see(topic: Topic, journal: Journal, clock: ManualClock) -> None:
    for n in range(150):
        clock.advance(0.001 * (n % 3))
        topic.append("k", n, headers={"n": str(n)} if n % 2 else None, key=str(n) if n % 3 else None)
        if n % 10 == 0:
            topic.append_many([Draft("b", b"\0", scope="s"), Draft("c", cause=0)])
    before = seen(topic.read())
    journal.maintain()
    with journal._engine.read() as snap:
        blocks = [value for _, value in snap.scan(b"b", b"c")]
    assert len(blocks) == 1
    assert seen(topic.read()) == before
    topic.append("k")
    assert topic.latest == len(before) + 1


def test_small_blocks_are_merged_in_passing(topic: Topic, journal: Journal) -> None:
    for n in range(200):
        topic.append("k", n)

    def blocks() -> int:
        with journal._engine.read() as snap:
            return sum(1 for _ in snap.scan(b"b", b"c"))

    eventually(lambda: blocks() < 100)
    assert payloads(topic.read()) == list(range(200))


def test_large_blocks_are_left_alone(topic: Topic, journal: Journal) -> None:
    for n in range(4):
        topic.append("k", bytes([n]) * 300_000)
    with journal._engine.read() as snap:
        before = list(snap.scan(b"b", b"c"))
    journal.maintain()
    with journal._engine.read() as snap:
        assert list(snap.scan(b"b", b"c")) == before

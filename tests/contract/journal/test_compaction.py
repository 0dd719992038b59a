"""Removing history: on request, by retention in passing, and all but the newest event of every key."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from journals import Place, eventually, on, only, payloads, seen, seqs

from penstock import CompactReport, Draft, Journal, ManualClock, Settings, Topic
from penstock.core.engine.memory import MemoryEngine
from penstock.core.journal import keys
from penstock.core.journal.upkeep import retention
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, StorageError

Reopen = Callable[[Journal], Journal]


def fill(topic: Topic, count: int, **draft: Any) -> None:
    """Appends events numbered on from the topic's end, one by one and in batches."""
    while count:
        size = min(count, 1 + topic.latest % 4)
        topic.append_many([Draft("k", topic.latest + n + 1, **draft) for n in range(size)])
        count -= size


# on request


def test_unknown_topics_compact_to_nothing(journal: Journal) -> None:
    assert journal.topic("nobody").compact(5) == CompactReport()
    assert journal.topic("nobody").compact_keys() == 0
    assert journal.topics() == []


@on("memory")
def test_a_disk_too_full_to_give_space_back_fails_nothing_that_is_done(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(engine: MemoryEngine) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(MemoryEngine, "reclaim", full)
    fill(journal.topic("t"), 10)
    assert journal.topic("t").compact(8).removed == 8
    journal.queue("q").push_many(range(3))
    assert journal.queue("q").purge() == 3
    assert journal.drop_topic("t").events == 2
    assert "given back to the disk another time: the disk is full" in caplog.text


@pytest.mark.parametrize("through", [-1, "1", None, 1.5, 2**63])
@on("memory")
def test_a_bad_position_is_refused(topic: Topic, through: Any) -> None:
    topic.append("k")
    with pytest.raises(ConfigError):
        topic.compact(through)
    assert len(topic) == 1


def in_small_steps(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty events, ten a block; compaction removes one block in a commit."""
    monkeypatch.setattr(retention, "RETENTION_BLOCKS", 1)
    for n in range(4):
        topic.append_many([Draft("k", bytes(10_000) + bytes([10 * n + i])) for i in range(10)])


def test_compaction_in_several_commits_reports_them_together(
    topic: Topic, reopen: Reopen, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_steps(topic, monkeypatch)
    topic.commit("slow", 25)
    assert topic.compact(38) == CompactReport(removed=25, remaining=15, latest=40, stopped_at="slow")
    assert topic.compact(38, force=True) == CompactReport(removed=13, remaining=2, latest=40)
    topic = reopen(journal).topic(topic.name)
    assert seqs(topic.read()) == [39, 40]
    assert topic.compact(2**62) == CompactReport(removed=0, remaining=2, latest=40, stopped_at="slow")


@on("sqlite")
def test_the_slowest_cursor_is_known_however_cursors_move(place: Place) -> None:
    with place.open() as journal, place.open() as other:
        topic = journal.topic("log")
        fill(topic, 40)
        for consumer, seq in (("a", 5), ("b", 10), ("c", 30)):
            topic.commit(consumer, seq)

        def held_by() -> tuple[str | None, int]:
            report = topic.compact(39)
            return report.stopped_at, topic.oldest - 1

        assert held_by() == held_by() == ("a", 5)
        topic.append("k")
        topic.commit("a", 20)
        assert held_by() == ("b", 10)
        topic.commit("new", 15)
        assert held_by() == ("b", 10)
        topic.forget("b")
        assert held_by() == ("new", 15)
        other.topic("log").commit("new", 25)
        assert held_by() == ("a", 20)
        other.topic("log").forget("a")
        other.topic("log").commit("late", 22)
        assert held_by() == ("late", 22)
        topic.seek("c", 21)  # what it would read is gone already
        assert held_by() == ("c", 22)


def test_what_is_appended_while_a_topic_is_compacted_stays(
    topic: Topic, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_steps(topic, monkeypatch)
    run = journal._core.run

    def run_and_append(*arguments: Any, **options: Any) -> Any:
        done = run(*arguments, **options)
        topic.append("k", "new")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(journal._core, "run", run_and_append)
        assert topic.compact(1000).removed == 40
    assert set(payloads(topic.read())) == {"new"}
    assert seqs(topic.read())[0] == 41


def test_a_compaction_that_ends_in_the_middle_has_removed_a_prefix(
    topic: Topic, reopen: Reopen, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_steps(topic, monkeypatch)
    run = journal._core.run

    def fail_later(*arguments: Any, relaxed: bool = False) -> Any:
        if relaxed:
            raise OSError("the disk is gone")
        return run(*arguments)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="gone"):
        patched.setattr(journal._core, "run", fail_later)
        topic.compact(30)
    topic = reopen(journal).topic(topic.name)
    assert seqs(topic.read()) == list(range(11, 41))
    assert topic.compact(30) == CompactReport(removed=20, remaining=10, latest=40)


@only(shrinks=True)
def test_compaction_gives_the_space_back(place: Place) -> None:
    journal = place.open()
    topic = journal.topic("large")
    for n in range(40):
        topic.append_many([Draft("k", random.Random(5 * n + one).randbytes(50_000)) for one in range(5)])
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
        {"max_events": True}, {"max_bytes": -5}, {"max_bytes": 2**64}, {"max_bytes": "1MB"}, {"by_key": 1},
        {"dedup_window": -1}, {"retention": 5}, {"verified": "yes"},
    ],
    ids=repr,
)  # fmt: skip
@on("memory")
def test_bad_settings_are_refused(topic: Topic, settings: dict[str, Any]) -> None:
    topic.append("k")
    with pytest.raises(ConfigError):
        topic.configure(**settings)
    assert topic.settings == Settings()


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
        topic.append("k", random.Random(n).randbytes(70_000))
    topic.configure(max_bytes=1_000_000)
    journal.maintain()
    with journal._engine.read() as snap:
        stored = sum(len(value) for _, value in snap.scan(b"b", b"c"))
    assert 700_000 < stored <= 1_000_000
    assert seqs(topic.read()) == list(range(51 - len(topic), 51))


def test_retention_by_bytes_keeps_the_newest_block_however_large(topic: Topic, journal: Journal) -> None:
    topic.configure(max_bytes=1000)
    topic.append("k", random.Random(1).randbytes(70_000))
    topic.append("k", random.Random(2).randbytes(70_000))
    journal.maintain()
    assert seqs(topic.read()) == [2]


@pytest.mark.parametrize("kept", [1, 5, 9])
def test_retention_by_number_keeps_exactly_the_newest(topic: Topic, journal: Journal, kept: int) -> None:
    for n in range(9):
        topic.append("k", n)
    topic.configure(max_events=kept)
    journal.maintain()
    assert payloads(topic.read()) == list(range(9 - kept, 9))


def test_retention_happens_in_passing(topic: Topic) -> None:
    topic.configure(max_events=20)
    for n in range(300):
        topic.append("k", n)
    eventually(lambda: len(topic) < 160)
    assert payloads(topic.read())[-20:] == list(range(280, 300))


# by key


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


@only(shared=True)
def test_a_max_age_that_another_process_has_set_is_applied(
    place: Place, journal: Journal, topic: Topic, clock: ManualClock
) -> None:
    assert isinstance(journal, LocalJournal)
    core = journal._core
    topic.append("placed", 1)
    looked = Event()
    core.housekeeper.chores.append(lambda name: looked.set())
    core.housekeeper.request("orders")  # as after every few dozen commits: its thread is there, and waits for more
    looked.wait()
    other = place.open(clock=clock, durability="process")
    other.topic("orders").configure(max_age=60)
    other.close()  # its own housekeeper ends with it

    def stored() -> bool:
        with core.engine.read() as snap:
            return any(True for _ in snap.scan(*keys.block_range(1)))

    assert stored() and payloads(topic.read()) == [1]
    clock.advance(61)
    eventually(lambda: not stored(), "events past their max_age are removed from disk")
    assert list(topic.read()) == [] and topic.latest == 1

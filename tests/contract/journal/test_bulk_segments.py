"""Segments by reference: files that tasks wrote are events like any others, wherever in a topic they lie."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from journals import Place, on, seqs

import penstock
from bulk_files import Row, bulk_append, local, refer, written
from penstock import Draft, Journal, ManualClock, Topic
from penstock.core.journal.sealed.files import check_sealed
from penstock.core.journal.sealed.referring import plan_bulk, sweep_job
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.local.scanning import open_scans
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.limits import MERGED_BYTES


@pytest.fixture
def lake(place: Place) -> Path:
    return place.folder / "lake"


def rows(count: int, start: int = 0, kind: str = "bulk") -> list[Row]:
    return [(kind, f"k{n % 7}" if n % 5 else None, {"n": n}) for n in range(start, start + count)]


def drafts(some: list[Row]) -> list[Draft]:
    return [Draft(kind, payload, key=key) for kind, key, payload in some]


def check_holds(topic: Topic, expected: list[Row], trimmed: int = 0) -> None:
    """Every way to read the topic gives these rows from position `trimmed` + 1 on."""
    events = list(topic.read())
    assert [(event.kind, event.key, event.payload) for event in events] == expected
    assert seqs(events) == list(range(trimmed + 1, trimmed + 1 + len(expected)))
    assert len(topic) == len(expected) and topic.oldest == (trimmed + 1 if expected else 0)
    assert seqs(topic.read(reverse=True)) == seqs(events)[::-1]
    assert all(one.id < other.id and one.recorded_at <= other.recorded_at for one, other in pairwise(events))
    for event in (*events[:2], *events[-2:], *events[:: max(1, len(events) // 5)]):
        found, got = topic.find(event.id), topic.get(event.seq)
        assert found is not None and got is not None and found.seq == got.seq == event.seq and got.id == event.id
        assert seqs(topic.read(after=event.seq, limit=3)) == seqs(events)[event.seq - trimmed :][:3]
    for key in ("k1", "k6", "nothing"):
        own = [event.seq for event in events if event.key == key]
        assert seqs(topic.read(key=key)) == own and seqs(topic.read(key=key, reverse=True)) == own[::-1]
        assert topic.position_of(key) == (own[-1] if own else 0)
    assert seqs(topic.read(key_prefix="k")) == [event.seq for event in events if event.key]
    assert set(topic.entities()) == {event.key for event in events if event.key}
    for kind in ("bulk", "hot"):
        assert seqs(topic.read(kind=kind)) == [event.seq for event in events if event.kind == kind]
    assert sum(batch.num_rows for batch in topic.read_arrow()) == len(expected)


def test_files_become_events_between_others(journal: Journal, topic: Topic, lake: Path) -> None:
    expected = rows(3, kind="hot")
    topic.append_many(drafts(expected))
    assert bulk_append(journal, lake, rows(40, 10), "one") == range(4, 44)
    topic.append_many(drafts(more := rows(2, 90, kind="hot")))
    assert bulk_append(journal, lake, rows(5, 100), "two") == range(46, 51)
    check_holds(topic, [*expected, *rows(40, 10), *more, *rows(5, 100)])


@on("memory", "sqlite")
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_to_a_topic_with_files(
    journal: Journal,
    topic: Topic,
    clock: ManualClock,
    lake: Path,
    reopen: Callable[[Journal], Journal],
    place: Place,
    seed: int,
) -> None:
    chosen = random.Random(seed)
    expected: list[Row] = []
    trimmed = 0
    for step in range(15):
        clock.advance(chosen.choice([0, 1, 4_000, 50_000]))
        start = trimmed + len(expected)
        match chosen.choice(["hot", "hot", "one", "bulk", "bulk", "seal", "maintain", "compact", "erase", "reopen"]):
            case "hot":
                topic.append_many(drafts(more := rows(chosen.randint(1, 300), start, "hot")))
                expected += more
            case "one":
                for row in (more := rows(chosen.randint(1, 70), start, "hot")):
                    topic.append_many(drafts([row]))
                expected += more
            case "bulk":
                more = rows(chosen.randint(1, 300), start)
                half = len(more) // 2
                files = written(journal, lake, more[:half], job=f"{step}") if half else []
                refer(journal, [*files, *written(journal, lake, more[half:], job=f"{step}", attempt="b")])
                expected += more
            case "seal" if expected:
                core = local(journal).backend.core
                through = chosen.choice([None, trimmed + chosen.randint(1, len(expected))])
                compact = chosen.random() < 0.3
                seal_topic(core, "orders", lake=str(lake), through=through, file_events=100, compact=compact)
            case "maintain":
                journal.maintain()
            case "compact" if expected:
                gone = chosen.randint(0, len(expected) // 3)
                topic.compact(trimmed + gone)
                expected, trimmed = expected[gone:], trimmed + gone
            case "erase" if expected:
                for seq in (going := chosen.sample(range(len(expected)), min(len(expected), 5))):
                    expected[seq] = (expected[seq][0], None, None)
                topic.erase(trimmed + 1 + at for at in going)
            case "reopen" if place.kind.scheme != "memory":
                journal = reopen(journal)
                topic = journal.topic("orders")
        if expected:
            check_holds(topic, expected, trimmed)


@on("sqlite")
def test_sql_reads_sealed_files_itself_and_files_of_bulk_writes_through_the_journal(
    journal: Journal, topic: Topic, lake: Path
) -> None:
    topic.append_many(drafts(rows(20, kind="hot")))
    seal_topic(local(journal).backend.core, "orders", lake=str(lake), through=15)
    bulk_append(journal, lake, rows(30, 20))
    topic.append("hot", {"n": 50})
    seal_topic(local(journal).backend.core, "orders", lake=str(lake), through=50)
    with open_scans(local(journal).backend.core, ["orders"]) as scans:
        found, through = scans["orders"].files()
        assert len(found) == 2 and through == 20
    answer = journal.sql("SELECT count(*) AS n, min(seq) AS low, max(seq) AS high FROM orders").to_pylist()
    assert answer == [{"n": 51, "low": 1, "high": 51}]


@on("sqlite")
def test_an_expectation_knows_the_events_in_files(journal: Journal, topic: Topic, lake: Path) -> None:
    topic.append("hot", 1, key="k1")
    bulk_append(journal, lake, [("bulk", "k1", 2), ("bulk", "k2", 3)])
    topic.append("hot", 4, key="k1", expect=2)
    topic.append("hot", 5, key="k2", expect=3)


@on("sqlite")
def test_damaged_and_missing_files_are_named(journal: Journal, topic: Topic, lake: Path) -> None:
    bulk_append(journal, lake, rows(500))
    backend = local(journal).backend
    found = sorted(lake.rglob("*.parquet*"))
    with backend.engine.read() as snap:
        check_sealed(snap, 1, "orders")
        for path in found:
            data = path.read_bytes()
            path.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])
            with pytest.raises(Corrupt, match="orders"):
                check_sealed(snap, 1, "orders")
            path.write_bytes(data)
    for path in found:
        path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        list(topic.read())


@on("sqlite")
def test_files_that_are_gone_become_no_events(journal: Journal, topic: Topic, lake: Path) -> None:
    files = written(journal, lake, rows(5))
    shutil.rmtree(lake / "orders" / "_segments")
    with pytest.raises(StorageError, match="swept"):
        refer(journal, files)
    assert len(topic) == 0


@on("sqlite")
def test_old_files_go_and_become_no_events(journal: Journal, topic: Topic, clock: ManualClock, lake: Path) -> None:
    files = written(journal, lake, rows(5))
    kept = bulk_append(journal, lake, rows(7), "kept")
    clock.advance(7 * 24 * 3600)
    with pytest.raises(StorageError, match="too old"):
        refer(journal, files)
    clock.advance(1)
    assert len(list(lake.rglob("*.parquet"))) == 2
    bulk_append(journal, lake, rows(2), "next")  # its planning removes what is old
    assert len(list(lake.rglob("*.parquet"))) == 2 and len(kept) == 7
    check_holds(topic, [*rows(7), *rows(2)])


@on("sqlite")
def test_other_tries_of_a_finished_batch_go(journal: Journal, topic: Topic, lake: Path) -> None:
    written(journal, lake, rows(5), attempt="failed")
    written(journal, lake, rows(5), job="slow", attempt="other")
    refer(journal, written(journal, lake, rows(5)))
    core = local(journal).backend.core
    target = plan_bulk(core, "orders", str(lake))
    assert target is not None
    sweep_job(core, target, "job", 0)
    names = sorted(path.name.partition(".")[2] for path in lake.rglob("*.parquet"))
    assert names == ["other-0.parquet", "try-0.parquet"]
    check_holds(topic, rows(5))


@on("sqlite")
def test_files_of_removed_events_go(journal: Journal, topic: Topic, clock: ManualClock, lake: Path) -> None:
    bulk_append(journal, lake, rows(5), "one")
    bulk_append(journal, lake, rows(5), "two")
    topic.compact(5)
    clock.advance(3601)
    bulk_append(journal, lake, rows(5), "three")
    assert len(list(lake.rglob("*.parquet"))) == 2 == len(list(lake.rglob("*.keys")))
    assert len(topic) == 10


@on("sqlite")
def test_a_copy_of_the_journal_removes_no_files(
    journal: Journal, topic: Topic, clock: ManualClock, lake: Path, place: Place
) -> None:
    bulk_append(journal, lake, rows(5), "one")
    journal.backup(place.folder / "copy.db")
    clock.advance(3601)
    bulk_append(journal, lake, rows(5), "two")
    with penstock.open(place.folder / "copy.db", clock=clock) as copy, pytest.raises(ConfigError, match="copy"):
        written(copy, lake, rows(1))
    check_holds(topic, [*rows(5), *rows(5)])


@on("sqlite")
def test_topics_that_take_no_files(journal: Journal, lake: Path) -> None:
    core = local(journal).backend.core
    journal.queue("orders")
    journal.topic("checked").configure(verified=True)
    journal.topic("state").configure(by_key=True)
    for name in ("orders", "checked", "state"):
        assert plan_bulk(core, name, str(lake)) is None
    assert plan_bulk(core, "plain", None) is None  # it has no lake


@on("sqlite")
def test_a_topic_with_files_becomes_no_queue(journal: Journal, topic: Topic, lake: Path) -> None:
    topic.append("hot", 1)
    bulk_append(journal, lake, rows(5))
    with pytest.raises(ConfigError, match="cannot become a queue"):
        journal.queue("orders").push({"n": 1})


@on("sqlite")
def test_what_follows_a_file_behind_a_large_block_is_looked_up(
    journal: Journal, topic: Topic, lake: Path, place: Place
) -> None:
    """A large block is never merged: a look-up takes it for the newest while no block follows at the next position."""
    topic.append("hot", {"text": "".join(random.Random(1).choices("0123456789", k=4 * MERGED_BYTES))}, key="k1")
    with place.open() as other:
        assert seqs(other.topic("orders").read(key="k1")) == [1]
        bulk_append(journal, lake, rows(3))
        topic.append("hot", {"n": 9}, key="k1", tags=["late"])
        for _ in range(2):
            assert seqs(other.topic("orders").read(key="k1")) == [1, 3, 5]
            assert seqs(other.topic("orders").read(tags="late")) == [5]
            assert other.topic("orders").position_of("k1") == 5


@on("sqlite")
def test_small_files_of_bulk_writes_are_joined(journal: Journal, topic: Topic, lake: Path) -> None:
    core = local(journal).backend.core
    expected: list[Row] = []
    for job in range(8):
        bulk_append(journal, lake, more := rows(30, len(expected)), job=f"{job}")
        expected += more
    topic.append_many(drafts(more := rows(20, len(expected), "hot")))
    expected += more
    before = list(topic.read())
    reading = topic.read()
    first = next(reading)
    seal_topic(core, "orders", lake=str(lake), through=240, compact=True)
    assert [first, *reading] == before, "a reader that had begun goes on in the files of before"
    assert list(topic.read()) == before, "positions, ids and times stay"
    check_holds(topic, expected)
    seal_topic(core, "orders", lake=str(lake), through=240, compact=True)
    files = [path.relative_to(lake / "orders") for path in lake.rglob("*.parquet*")]
    [joined] = [path for path in files if not path.name.startswith("_")]
    assert [path.name for path in files if path != joined] == [f"_{joined.name}.keys"], (
        "those that were joined are gone"
    )
    check_holds(topic, expected)
    topic.verify()

    bulk_append(journal, lake, more := rows(30, 260), job="later")
    expected += more
    seal_topic(core, "orders", lake=str(lake), compact=True)
    assert joined in [path.relative_to(lake / "orders") for path in lake.rglob("*.parquet")], "it is the larger one"
    check_holds(topic, expected)
    topic.erase([7, 150])
    for at in (6, 149):
        expected[at] = (expected[at][0], None, None)
    check_holds(topic, expected)

"""Reading: by position, time, key, kind and scope, forward and back, as snapshots, streamed, and as Arrow."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from journals import DEADLINE, Place, on, payloads, seen, seqs
from small_index import small_index

from penstock import Draft, Event, Journal, ManualClock, Topic
from penstock.errors import ConfigError, PositionTrimmed

InThreads = Callable[..., threading.Thread]


@pytest.fixture
def mixed(topic: Topic, clock: ManualClock) -> list[Event]:
    """Sixty events of every sort in blocks of one to nine events."""
    chance = random.Random(11)
    while topic.latest < 60:
        clock.advance(chance.choice([0, 0, 1, 60]))
        topic.append_many(
            [
                Draft(
                    chance.choice(["placed", "paid", "sent"]),
                    n,
                    key=chance.choice([None, "a", "b", "ключ"]),
                    scope=chance.choice([None, None, "eu", "us"]),
                )
                for n in range(min(chance.randrange(1, 10), 60 - topic.latest))
            ]
        )
    return list(topic.read())


# positions


def test_after_is_exclusive_and_through_is_inclusive(topic: Topic, mixed: list[Event]) -> None:
    chance = random.Random(3)
    for _ in range(150):
        after, through = chance.randrange(65), chance.randrange(65)
        limit, reverse = chance.choice([None, 0, 1, 5, 100]), chance.random() < 0.5
        expected = [e for e in mixed if after < e.seq <= through]
        if reverse:
            expected.reverse()
        got = list(topic.read(after, limit, through=through, reverse=reverse))
        assert got == expected[:limit], (after, through, limit, reverse)


def test_a_condition_and_arguments_choose_together(topic: Topic, mixed: list[Event]) -> None:
    """What a condition says of the key, kind or scope is looked up; what was found is asked all the same."""
    conditions = {
        "key = 'a'": lambda e: e.key == "a",
        "key = 'a' and key = 'b'": lambda e: False,
        "key startswith 'клю' and kind in ('paid', 'sent')": lambda e: e.key == "ключ" and e.kind in ("paid", "sent"),
        "key = '' or kind = 'paid'": lambda e: e.kind == "paid",
        "scope = 'eu' and seq > 9": lambda e: e.scope == "eu" and e.seq > 9,
        "key = null and kind = 'sent'": lambda e: e.key is None and e.kind == "sent",
        "not (key = 'a') and kind in ('sent', null)": lambda e: e.key != "a" and e.kind == "sent",
    }
    arguments: list[tuple[dict[str, Any], Callable[[Event], bool]]] = [
        ({}, lambda e: True),
        ({"key": "b"}, lambda e: e.key == "b"),
        ({"key_prefix": "a"}, lambda e: e.key == "a"),
        ({"kind": "paid", "scope": "us"}, lambda e: e.kind == "paid" and e.scope == "us"),
    ]
    for where, holds in conditions.items():
        for given, wanted in arguments:
            expected = [e for e in mixed if holds(e) and wanted(e)]
            assert list(topic.read(where=where, **given)) == expected, (where, given)
            assert list(topic.read(where=where, limit=2, reverse=True, **given)) == expected[::-1][:2]


@on("memory", "sqlite")
def test_merged_blocks_read_the_same(topic: Topic, mixed: list[Event], journal: Journal) -> None:
    before = seen(mixed)
    journal.maintain()
    with journal._engine.read() as snap:
        assert len(list(snap.scan(b"b", b"c"))) == 1
    assert seen(topic.read()) == before
    assert seen(topic.read(reverse=True)) == before[::-1]
    test_after_is_exclusive_and_through_is_inclusive(topic, mixed)
    test_a_condition_and_arguments_choose_together(topic, mixed)


def test_positions_beyond_the_end_are_empty(topic: Topic) -> None:
    topic.append("k")
    assert list(topic.read(1)) == list(topic.read(2**63 - 1)) == list(topic.read(10**6, reverse=True)) == []
    assert topic.get(0) is None and topic.get(2) is None and topic.get(2**63 - 1) is None
    assert seqs(topic.read(through=2**63 - 1)) == [1]


REFUSED_READS: list[dict[str, Any]] = [
    {"after": -1}, {"after": "1"}, {"after": 1.0}, {"after": True}, {"after": None}, {"after": 2**63},
    {"limit": -1}, {"limit": 2.0}, {"limit": "all"}, {"limit": False},
    {"through": -1}, {"through": "x"}, {"through": 10**30},
    {"key": 5}, {"key": b"a"}, {"scope": ["eu"]}, {"kind": 5}, {"kind": [5]}, {"kind": [None]},
    {"since": datetime(2024, 1, 1)}, {"since": 17}, {"since": "yesterday"},
    {"where": "payload >"}, {"where": "payload >", "limit": 0}, {"where": "payload >", "kind": []}, {"where": 5},
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED_READS, ids=repr)
@on("memory")
def test_bad_arguments_are_refused_at_once(journal: Journal, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        journal.topic("orders").read(**options)


@pytest.mark.parametrize("options", REFUSED_READS, ids=repr)
@on("memory")
def test_a_transaction_refuses_the_same_arguments(journal: Journal, options: dict[str, Any]) -> None:
    with journal.transaction() as tx, pytest.raises(ConfigError):
        tx.read("orders", **options)


@on("memory")
def test_bad_positions_ids_and_times_are_refused(topic: Topic) -> None:
    topic.append("k")
    calls: list[Callable[[], Any]] = [
        lambda: topic.get(-1), lambda: topic.get("1"), lambda: topic.get(2**64), lambda: topic.find(5),  # type: ignore[arg-type]
        lambda: topic.find(None), lambda: topic.position_at(5), lambda: topic.read_arrow(-1),  # type: ignore[arg-type]
        lambda: topic.read_arrow(batch_rows=0), lambda: topic.read_arrow(limit=-1),
        lambda: topic.position_at(datetime(2024, 1, 1)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ConfigError):
            call()


# finding


def test_every_event_is_found_by_position_and_by_id(topic: Topic, mixed: list[Event], journal: Journal) -> None:
    for event in mixed:
        assert topic.get(event.seq) == event and topic.find(event.id) == event
        assert topic.find(event.id.upper()) == event
    journal.maintain()
    for event in mixed:
        assert topic.get(event.seq) == event and topic.find(event.id) == event
    assert topic.find("not an id") is None and topic.find("0" * 32) is None and topic.find("f" * 32) is None
    below = f"{int(mixed[30].id.replace('-', ''), 16) - 1:032x}"
    assert topic.find(below) in (None, mixed[29])


# trimmed history


def test_reading_trimmed_history_raises_and_says_where_to_go_on(topic: Topic) -> None:
    topic.append_many([Draft("k", n) for n in range(1, 11)])
    topic.compact(5)
    assert payloads(topic.read()) == [6, 7, 8, 9, 10]  # 0: from the oldest on
    assert payloads(topic.read(5)) == [6, 7, 8, 9, 10]
    for after in (1, 4):
        with pytest.raises(PositionTrimmed) as refused:
            list(topic.read(after))
        assert refused.value.oldest == 6
        with pytest.raises(PositionTrimmed):
            list(topic.read(after, reverse=True))
        with pytest.raises(PositionTrimmed):
            list(topic.read_arrow(after))
    assert topic.get(3) is None and topic.oldest == 6
    topic.compact(10)
    with pytest.raises(PositionTrimmed) as refused:
        list(topic.read(9))
    assert refused.value.oldest == 11
    assert list(topic.read(10)) == []


# snapshots


def test_a_read_is_a_snapshot_whatever_happens_meanwhile(topic: Topic, journal: Journal) -> None:
    for n in range(200):
        topic.append("k", n)
    reading, back = topic.read(), topic.read(reverse=True)
    assert next(reading).seq == 1 and next(back).seq == 200
    topic.append_many([Draft("k", n) for n in range(200, 400)])
    topic.compact(150)
    journal.maintain()
    assert payloads(reading) == list(range(1, 200))
    assert payloads(back) == list(range(198, -1, -1))
    assert payloads(topic.read()) == list(range(150, 400))


def test_readers_see_whole_batches_while_others_write(journal: Journal, in_threads: InThreads) -> None:
    topic, over = journal.topic("orders"), threading.Event()

    def write() -> None:
        while not over.is_set():
            topic.append_many([Draft("k", n) for n in range(10)])
            if topic.latest % 200 == 0:
                topic.compact(topic.latest - 50)
                journal.maintain()

    writer = in_threads(write)
    for _ in range(60):
        events = list(topic.read())
        if events:
            first, last = events[0].seq, events[-1].seq
            assert seqs(events) == list(range(first, last + 1)) and last % 10 == 0
            assert payloads(events) == [(seq - 1) % 10 for seq in range(first, last + 1)]
    over.set()
    writer.join(DEADLINE)


def test_an_unfinished_read_lets_go_when_it_is_dropped(topic: Topic, place: Place) -> None:
    topic.append_many([Draft("k", "x" * 1000) for _ in range(2000)])
    for _ in range(200):
        assert next(iter(topic.read())).seq == 1
    reading = topic.read()
    next(reading)
    assert isinstance(reading, Iterator)
    reading.close()  # type: ignore[attr-defined]
    del reading
    gc.collect()
    topic.compact(2000)
    assert place.reopen(topic.journal).topic("orders").latest == 2000


def test_events_stay_readable_after_their_journal_is_closed(place: Place) -> None:
    journal = place.open()
    journal.topic("t").append("k", {"a": [1, 2]}, headers={"h": "v"})
    event = journal.topic("t").get(1)
    journal.close()
    assert event is not None and event.payload == {"a": [1, 2]} and event.headers == {"h": "v"}


STREAMED = """
    import sys
    import penstock
    from penstock import Draft

    journal = penstock.open(sys.argv[1], durability="process")
    topic = journal.topic("t")
    payload = "x" * 90
    for start in range(0, 1_000_000, 20_000):
        topic.append_many([Draft("k", payload)] * 20_000)

    def mapped():
        with open("/proc/self/smaps_rollup") as lines:
            return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) // 1024

    count = total = 0
    before, most = mapped(), 0
    for event in topic.read():
        count += 1
        total += event.seq
        if count % 50_000 == 0:
            most = max(most, mapped() - before)
    for event in topic.read(reverse=True, limit=300_000):
        count += 1
        if count % 50_000 == 0:
            most = max(most, mapped() - before)
    assert (count, total) == (1_300_000, 500_000_500_000), (count, total)
    print(most)
    journal.close()
"""


@pytest.mark.slow
@on("sqlite")
def test_a_million_events_are_streamed_in_constant_memory(url: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STREAMED), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24, f"reading took {done.stdout} MiB more memory"


# Arrow

COLUMNS = {
    "seq": pa.int64(),
    "topic": pa.string(),
    "kind": pa.string(),
    "key": pa.string(),
    "scope": pa.string(),
    "payload": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "occurred_at": pa.timestamp("us", "UTC"),
    "recorded_at": pa.timestamp("us", "UTC"),
    "id": pa.string(),
    "correlation_id": pa.string(),
    "causation_id": pa.string(),
    "tags": pa.list_(pa.string()),
}


def as_rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        row["payload"], row["headers"] = json.loads(row["payload"]), dict(row["headers"])
        row["tags"] = tuple(row["tags"] or ())
    return rows


@pytest.fixture
def varied(topic: Topic, clock: ManualClock) -> Topic:
    """Events that use every column, and blocks that use few of them."""
    chance = random.Random(5)
    for step in range(40):
        clock.advance(chance.choice([0, 0.001, 3]))
        topic.append_many(
            [
                Draft(
                    chance.choice(["a", "b", f"kind{step}"]),
                    chance.choice([None, n, "é" * n, {"n": n}]),
                    key=chance.choice([None, f"key{chance.randrange(5)}"]) if step % 3 else None,
                    scope=chance.choice([None, "s", "ü"]) if step % 4 else None,
                    headers=chance.choice([None, {}, {"h": "1", "i": "ö"}]) if step % 5 else None,
                    occurred_at=chance.choice([None, datetime(1901, 1, 1, n % 24, tzinfo=UTC)]) if step % 2 else None,
                    cause=chance.choice([None, n - 1]) if n else None,
                    correlation=chance.choice([None, "c"]) if step % 7 == 0 else None,
                    tags=chance.choice([None, ("ö:1",), ("a", f"n:{n}")]) if step % 6 == 0 else None,
                )
                for n in range(chance.choice([1, 1, 2, 30]))
            ]
        )
    return topic


def test_arrow_has_the_same_columns_as_the_events(varied: Topic, journal: Journal) -> None:
    for merged in (False, True):
        if merged:
            journal.maintain()
        batches = list(varied.read_arrow())
        for batch in batches:
            batch.validate(full=True)
            assert {field.name: field.type for field in batch.schema} == COLUMNS
        assert as_rows(iter(batches)) == seen(varied.read())
    assert len(batches) == 1


def test_arrow_joins_small_blocks_into_full_batches(topic: Topic) -> None:
    for n in range(300):
        topic.append("k", n)
    assert [batch.num_rows for batch in topic.read_arrow()] == [300]
    rows = [batch.num_rows for batch in topic.read_arrow(batch_rows=128)]
    assert sum(rows) == 300 and max(rows) <= 128 and len(rows) < 10
    assert list(topic.read_arrow(300)) == []
    assert list(topic.journal.topic("nobody").read_arrow()) == []


def test_arrow_refuses_bytes_that_are_not_text(topic: Topic) -> None:
    topic.append_many([Draft("k", 1), Draft("k", b"text"), Draft("k", b"\xff\xfe")])
    with pytest.raises(ConfigError, match="event 3"):
        list(topic.read_arrow())
    with pytest.raises(ConfigError, match="payload"):
        topic.read_arrow(payload="text")  # type: ignore[arg-type]
    (batch,) = topic.read_arrow(payload="binary")
    assert batch["payload"].to_pylist() == [b"1", b"text", b"\xff\xfe"]
    assert [row["payload"] for batch in topic.read_arrow(0, through=2) for row in batch.to_pylist()] == ["1", "text"]


@pytest.mark.slow
def test_a_topic_of_a_hundred_thousand_small_kinds_and_keys(topic: Topic) -> None:
    topic.append_many([Draft(f"k{n % 700}", n, key=str(n)) for n in range(70_000)])
    table = pa.Table.from_batches(list(topic.read_arrow()))
    assert table["key"].to_pylist() == [str(n) for n in range(70_000)]
    assert table["kind"].to_pylist() == [f"k{n % 700}" for n in range(70_000)]
    assert table["id"].to_pylist() == [e.id for e in topic.read()]
    assert seqs(topic.read(key="69999")) == [70_000]


@on("memory")
@pytest.mark.parametrize("seed", range(4))
def test_keys_that_begin_with_a_text_are_found_through_the_index(journal: Journal, seed: int) -> None:
    """Keys of every length, large entities, several runs and events in none: what looking at each event finds."""
    chance = random.Random(seed)
    topic = journal.topic("t")
    names = ["".join(chance.choices("abñ", k=chance.randrange(1, 6))) for _ in range(40)]
    with small_index():
        for round in range(5):
            for _ in range(6):
                keys = [chance.choice([*names, None, "large"]) for _ in range(chance.choice([1, 20, 90]))]
                topic.append_many([Draft(chance.choice(["x", "y"]), key=key, scope="s") for key in keys])
            if round < 4:
                journal.maintain()
        events = list(topic.read())
        middle = events[len(events) // 2].seq
        for begin in ["a", "ab", "b", "bañ", "ñ", "large", "lar", "none", "", "c", "zzzzzzzz", names[0]]:
            wanted = [event for event in events if (event.key or "").startswith(begin)]
            assert seqs(topic.read(key_prefix=begin)) == seqs(wanted)
            assert seqs(topic.read(key_prefix=begin, reverse=True)) == seqs(wanted)[::-1]
            assert seqs(topic.read(key_prefix=begin, limit=7)) == seqs(wanted)[:7]
            assert seqs(topic.read(key_prefix=begin, limit=7, reverse=True)) == seqs(wanted)[::-1][:7]
            assert seqs(topic.read(middle, key_prefix=begin)) == [seq for seq in seqs(wanted) if seq > middle]
            assert seqs(topic.read(through=middle, key_prefix=begin)) == [seq for seq in seqs(wanted) if seq <= middle]
            assert seqs(topic.read(key_prefix=begin, kind="x")) == [e.seq for e in wanted if e.kind == "x"]
        topic.compact(middle)
        left = [event.seq for event in events if (event.key or "").startswith("a") and event.seq > middle]
        assert seqs(topic.read(key_prefix="a")) == left

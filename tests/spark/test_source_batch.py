"""Reading topics as tables: what comes out is what went in, and what cannot be read says so in one sentence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from without_spark import read, rows_of, schema_of, seqs, source

import penstock
from penstock import Draft
from penstock.core.clock import ManualClock
from penstock.core.local import bulk
from penstock.errors import ConfigError, PenstockError, PositionTrimmed
from penstock.spark import rows, seal
from penstock.spark import source as sources
from penstock.spark.journals import SourceJournal, open_source
from penstock.spark.rows import TaskRanges
from penstock.spark.startup.settings import PARALLELISM_VARIABLE
from server.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["seq", "topic", "kind", "key", "scope", "payload", "headers", "occurred_at", "recorded_at", "id"]
COLUMNS += ["correlation_id", "causation_id", "tags"]
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1000))


@pytest.fixture
def journal(url: str, clock: ManualClock) -> Iterator[penstock.Journal]:
    with penstock.open(url, clock=clock, durability="process") as journal:
        yield journal


def fill(journal: penstock.Journal, count: int, topic: str = "orders") -> penstock.Topic:
    journal.topic(topic).append_many([Draft("placed", n) for n in range(count)])
    return journal.topic(topic)


# ── where ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_many_blocks_and_large_payloads_arrive_whole_and_once(url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    for commit in range(40):
        orders.append_many(
            [Draft("placed", {"n": commit, "pad": "x" * (commit * 37 % 900)}) for _ in range(commit + 1)]
        )
    orders.append_many([Draft("big", "y" * 3_000_000), Draft("big", "z" * 2_000_000)])
    found = source(url, topic="orders", minPartitions=7)
    reader = found.reader(schema_of(found))
    assert len(reader.partitions()) >= 7
    rows = rows_of(reader)
    assert seqs(rows) == list(range(1, orders.latest + 1))
    assert [len(row["payload"]) for row in rows[-2:]] == [3_000_002, 2_000_002]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "3", "endingOffsets": "7"}, [4, 5, 6, 7]),
        ({"startingOffsets": "EARLIEST", "endingOffsets": "latest"}, [*range(1, 11)]),
        ({"startingOffsets": "8", "endingOffsets": "99"}, [9, 10]),
        ({"startingOffsets": "10"}, []),
        ({"startingOffsets": '{"orders": 9}'}, [10]),
        ({"startingOffsets": '{"orders":{"0":5}}'}, [6, 7, 8, 9, 10]),  # as Kafka's source spells it
        ({"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":-1}}'}, [*range(1, 11)]),
    ],
)
def test_offsets_are_positions_left_behind_and_reached(
    url: str, journal: penstock.Journal, options: dict[str, str], expected: list[int]
) -> None:
    fill(journal, 10)
    assert seqs(read(url, subscribe="orders", **options)) == expected


def test_times_choose_by_when_events_were_recorded(url: str, journal: penstock.Journal, clock: ManualClock) -> None:
    for _ in range(5):
        journal.topic("orders").append("tick", None)
        clock.advance(60)
    minute_2 = START + timedelta(minutes=2)
    for options, expected in (
        ({"startingTimestamp": minute_2.isoformat()}, [3, 4, 5]),
        ({"endingTimestamp": int(minute_2.timestamp() * 1000)}, [1, 2]),
        ({"startingTimestamp": "2026-03-01T12:01:00", "endingTimestamp": minute_2.isoformat()}, [2]),
        ({"startingTimestamp": "2030-01-01"}, []),
    ):
        assert seqs(read(url, topic="orders", **options)) == expected


def test_several_topics_a_pattern_and_a_queues_topic(url: str, journal: penstock.Journal) -> None:
    for name in ("orders", "order-notes", "refunds"):
        fill(journal, 3, name)

    def topics(**options: str) -> list[str]:
        return sorted(row["topic"] for row in read(url, **options))

    assert topics(topic="orders, refunds") == ["orders"] * 3 + ["refunds"] * 3
    assert topics(topicPattern="order.*") == ["order-notes"] * 3 + ["orders"] * 3
    assert topics(topicPattern="nothing.*") == []
    assert topics(topics="order*, nothing") == ["order-notes"] * 3 + ["orders"] * 3
    assert topics(queue="refunds") == ["refunds"] * 3
    some = read(url, topic="orders,refunds", startingOffsets='{"orders": 2, "refunds": "latest"}')
    assert [(row["topic"], row["seq"]) for row in some] == [("orders", 3)]


def test_a_pattern_leaves_out_what_penstock_writes_for_itself_unless_it_names_it(
    place: dict[str, str], journal: penstock.Journal
) -> None:
    journal.queue("mail").push({"to": "ada"}, reply=True)
    with journal.queue("mail").receive():
        pass
    journal.topic("mail.results").configure(max_age=None)  # Spark's processes do not know the manual clock
    journal.topic("penstock.own").append("noted", 1)
    journal.topic("exam.results").append("passed", 1)
    for own, options in (
        ({"mail", "exam.results"}, {"topics": "*"}),
        ({"mail", "exam.results"}, {"topicPattern": ".*"}),
        ({"exam.results"}, {"topics": "*.results"}),
        ({"exam.results"}, {"topicPattern": r".+\.results"}),
        ({"mail.results"}, {"topics": "mail.*"}),
        ({"mail.results"}, {"topicPattern": r"mail\..*"}),
        ({"penstock.own"}, {"topicPattern": "penstock.*"}),
        ({"mail.results"}, {"topics": "mail.results"}),
    ):
        found = {row["topic"] for row in read(place, **options)}
        assert found == own, options
        assert "topicPattern" in options or found == {event.topic for event in journal.read(options["topics"])}


def test_an_error_of_a_reader_in_a_program_of_its_own_leaves_its_environment_as_it_is(url: str) -> None:
    before = dict(os.environ)
    with pytest.raises(ConfigError):
        source(url, topic="orders", nonsense="x").schema()
    assert dict(os.environ) == before, "Spark's workers would inherit it, and hide the tracebacks of other errors"


def test_appends_by_others_while_a_query_runs_do_not_disturb_it(url: str, journal: penstock.Journal) -> None:
    fill(journal, 1000)
    found = source(url, topic="orders")
    reader = found.reader(schema_of(found))
    shares = reader.partitions()
    fill(journal, 1000)
    journal.maintain()
    assert seqs(rows_of(reader, shares)) == list(range(1, 1001))
    assert len(read(url, topic="orders")) == 2000


def test_compacted_history_stops_a_query_that_names_it(url: str, journal: penstock.Journal) -> None:
    fill(journal, 10).compact(6)
    assert seqs(read(url, topic="orders")) == [7, 8, 9, 10]
    with pytest.raises(PositionTrimmed, match="events 4 to 6 of topic 'orders' were removed"):
        read(url, topic="orders", startingOffsets="3")
    assert seqs(read(url, topic="orders", startingOffsets="3", failOnDataLoss="false")) == [7, 8, 9, 10]


@pytest.mark.parametrize("looked_up", [False, True])
def test_events_past_their_max_age_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up: bool
) -> None:
    if looked_up:
        monkeypatch.setattr(sources, "_LOOK_UP", 1)
    clock = ManualClock(int(time.time() * 1000) - 86_400_000)
    with penstock.open(tmp_path / "aged.db", clock=clock) as journal:
        orders = fill(journal, 5)
        orders.configure(max_age=3600)
        clock.advance(86_400)
        orders.append("placed", 5)
        with serving(journal) as served:
            for url in (str(tmp_path / "aged.db"), served.url):
                for options in ({}, {"where": "kind = 'placed'"}, {"startingTimestamp": "2020-01-01"}):
                    assert seqs(read(url, topic="orders", **options)) == [event.seq for event in orders.read()] == [6]
                with pytest.raises(PositionTrimmed):
                    read(url, topic="orders", startingOffsets="3")


@pytest.mark.parametrize("scheme", ["file", "slatedb"])
def test_other_engines_are_read_beside_their_writer(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path / 'other'}"
    with penstock.open(url) as journal:
        orders = fill(journal, 100)
        assert len(read(url, topic="orders")) == 100
        orders.append("paid", 100, key="ann")
        assert len(read(url, topic="orders")) == 101
        given = source(url, topic="orders", startingOffsets=40, endingOffsets=60, minPartitions=2)
        reader = given.reader(schema_of(given))
        assert len(reader.partitions()) == 2 and seqs(rows_of(reader)) == list(range(41, 61))
        assert seqs(read(url, topic="orders", where="kind = 'paid' and key = 'ann'")) == [101]
        assert seqs(read(url, topic="orders", kinds="paid")) == [101]


def test_a_journal_made_anew_under_the_same_name_is_read_anew(tmp_path: Path) -> None:
    for count in (3, 5):
        with penstock.open(tmp_path / "again.db") as journal:
            fill(journal, count)
            assert len(read(tmp_path / "again.db", topic="orders")) == count
        for file in tmp_path.glob("again.db*"):
            file.unlink()


# ── which rows ───────────────────────────────────────────────────────────────────────────────────────────────────────
def second(number: int) -> datetime:
    return START + timedelta(seconds=number)


CONDITIONS: list[tuple[str, Callable[[Any], bool]]] = [
    ("seq > 42 and seq <= 77", lambda e: 42 < e.seq <= 77),
    ("seq in (3, 5, 500)", lambda e: e.seq in (3, 5)),
    ("kind = 'paid' and key = 'k1'", lambda e: (e.kind, e.key) == ("paid", "k1")),
    ("kind in ('paid', 'lost') and key in ('k0', 'k2')", lambda e: e.kind == "paid" and e.key in ("k0", "k2")),
    ("key != null and kind = 'placed'", lambda e: e.key is not None and e.kind == "placed"),
    (
        f"recorded_at >= '{second(5).isoformat()}' and recorded_at < '{second(9).isoformat()}'",
        lambda e: second(5) <= e.recorded_at < second(9),
    ),
    (f"recorded_at = '{second(7).isoformat()}'", lambda e: e.recorded_at == second(7)),
    (f"recorded_at > '{second(7).replace(microsecond=1).isoformat()}'", lambda e: e.recorded_at > second(7)),
    (f"occurred_at > '{second(17).isoformat()}'", lambda e: e.occurred_at > second(17)),
    (f"occurred_at = '{second(7).replace(microsecond=1).isoformat()}'", lambda e: False),
    ("seq < 0 or seq > 1000", lambda e: False),
    ("seq < -5", lambda e: False),
    (f"seq = {10**30}", lambda e: False),
    ("seq = 5 and seq in (6, 7)", lambda e: False),
    ("scope = 'eu' and key startswith 'k'", lambda e: e.scope == "eu" and e.key is not None),
    ("key startswith 'k1'", lambda e: e.key == "k1"),
    ("key startswith 'k' and key startswith 'k1'", lambda e: e.key == "k1"),
    ("key = 'k2' and seq in (3, 33, 63, 93)", lambda e: e.key == "k2" and e.seq < 94 and e.seq % 30 == 3),
    ("correlation_id = 'c7'", lambda e: e.correlation_id == "c7"),
    ("correlation_id = null and not kind = 'paid'", lambda e: e.correlation_id is None and e.kind != "paid"),
    ("kind = 'rare'", lambda e: e.kind == "rare"),
    ("tags contains 't1'", lambda e: "t1" in e.tags),
    ("tags contains 't1' and tags contains 'even' and kind = 'paid'", lambda e: e.tags == ("even", "t1")),
    ("tags contains 't1' or len(tags) = 1", lambda e: len(e.tags) == 1 or "t1" in e.tags),
    ("kind startswith 'p' and payload >= 18", lambda e: e.kind != "rare" and e.payload >= 18),
    (
        f"key in ('k1', 'nobody') and occurred_at <= '{second(3).isoformat()}'",
        lambda e: e.seq <= 40 and e.key == "k1",
    ),
]


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize(("where", "wanted"), CONDITIONS, ids=range(len(CONDITIONS)))
def test_a_condition_selects_what_it_selects_in_process(
    url: str,
    journal: penstock.Journal,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    wanted: Callable[[Any], bool],
    looked_up: bool,
) -> None:
    if looked_up:
        monkeypatch.setattr(sources, "_LOOK_UP", 1)
    orders = journal.topic("orders")
    for commit in range(20):
        kind = "placed" if commit % 2 else "paid"
        tags = ["even" if commit % 2 == 0 else "odd"]
        drafts = [
            Draft(kind, commit, key=f"k{n % 3}" if n else None, tags=[*tags, f"t{n}"] if n % 4 else tags)
            for n in range(9)
        ]
        drafts.append(Draft("rare" if commit == 9 else kind, commit, key="k1", scope="eu", correlation=f"c{commit}"))
        orders.append_many(drafts)
        clock.advance(1)
    expected = [event.seq for event in orders.read() if wanted(event)]
    assert [event.seq for event in orders.read(where=where)] == expected
    assert sorted(seqs(read(url, topic="orders", where=where))) == expected


def large(journal: penstock.Journal, clock: ManualClock) -> penstock.Topic:
    """Thirty blocks of a thousand keys each; one block is of a kind of its own."""
    orders = journal.topic("orders")
    for commit in range(30):
        kind = "rare" if commit == 7 else "placed"
        orders.append_many(
            [
                Draft(kind, {"n": n, "pad": "x" * 80}, key=f"k{n}", scope="eu", tags=(f"n:{n}", f"commit:{commit}"))
                for n in range(1000)
            ]
        )
        clock.advance(1)
    return orders


@pytest.mark.parametrize(
    ("options", "fetched", "count"),
    [
        ({"where": "key = 'k77'"}, 0, 30),
        ({"keys": "k77"}, 0, 30),
        ({"tags": "n:77"}, 0, 30),
        ({"tags": "n:77,commit:7"}, 0, 1),
        ({"tags": "nobody"}, 0, 0),
        ({"where": "tags contains 'n:77'", "kinds": "rare"}, 0, 1),
        ({"where": "key in ('k77', 'k5')"}, 0, 60),
        ({"where": "key = 'k77' and kind = 'rare'"}, 0, 1),
        ({"where": "key startswith 'k77'"}, 0, 330),
        ({"where": "seq in (5, 29000)"}, 0, 2),
        ({"where": "id = '{id}'"}, 0, 1),
        ({"where": "kind = 'rare'"}, 1000, 1000),
        ({"kinds": "rare"}, 1000, 1000),
        ({"keys": "[]"}, 0, 0),
        ({"kinds": "", "keys": "k77"}, 0, 0),
        ({"where": "scope = 'us'"}, 0, 0),
        ({"where": f"occurred_at >= '{second(29).isoformat()}' and kind = 'placed'"}, 1000, 1000),
        ({"where": f"recorded_at >= '{second(29).isoformat()}'"}, 1000, 1000),
        ({"where": "recorded_at > '0001-01-01T00:00:00+14:00' and key = 'k1'"}, 0, 30),
        ({"where": "recorded_at < '9999-12-31T23:59:59-12:00' and key = 'k1'"}, 0, 30),
        ({"where": "seq > 28500"}, 2000, 1500),
        ({"where": "payload.n > 998"}, 30_000, 30),
    ],
)
def test_only_where_wanted_events_may_be_is_read(
    place: dict[str, str],
    journal: penstock.Journal,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    fetched: int,
    count: int,
) -> None:
    monkeypatch.setattr(sources, "_LOOK_UP", 1)
    orders = large(journal, clock)
    journal.maintain()
    given = source(
        place, topic="orders", **{name: text.replace("{id}", orders.get(77).id) for name, text in options.items()}
    )
    reader = given.reader(schema_of(given))
    opened = open_source(reader.options.location)
    shares = reader.partitions()
    blocks = [
        block
        for share in shares
        for each in share.ranges
        for span in each.spans
        for some in opened.blocks("orders", *span, strict=True)
        for block in some
    ]
    assert sum(block.count for block in blocks) == fetched
    assert len(rows_of(reader, shares)) == count
    assert len(shares) <= 1 or fetched == 30_000, "few rows are one task's"


def test_what_many_keys_have_is_read_by_tasks(
    url: str, journal: penstock.Journal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LOOK_UP", 1)
    orders = large(journal, clock)
    for most, found in ((40, False), (60, True)):
        monkeypatch.setattr(bulk, "FOUND_EVENTS", most)
        given = source(url, topic="orders", keys="k77,k5")
        reader = given.reader(schema_of(given))
        assert any(each.found for share in reader.partitions() for each in share.ranges) == found
        assert sorted(seqs(rows_of(reader))) == [e.seq for e in orders.read() if e.key in ("k77", "k5")]


# ── how many tasks ───────────────────────────────────────────────────────────────────────────────────────────────────
def planned(place: object, **options: object) -> tuple[list[TaskRanges], list[tuple[str, int]]]:
    """The tasks of a query, and the topic and position of every row, as they come."""
    found = source(place, **options)  # type: ignore[arg-type]
    reader = found.reader(schema_of(found, "topic STRING, seq BIGINT"))
    tasks = reader.partitions()
    return tasks, [(row["topic"], row["seq"]) for row in rows_of(reader, tasks)]


@pytest.mark.parametrize("at_once", [2, 8])
def test_a_task_reads_many_small_topics(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setenv(PARALLELISM_VARIABLE, str(at_once))
    for number in range(300):
        fill(journal, 3, f"small-{number:03}")
    asked: list[str] = []
    ask = SourceJournal.sizes

    def counting(self: SourceJournal, ranges: Iterable[tuple[str, tuple[int, int]]]) -> list[int]:
        asked.append("sizes")
        return ask(self, ranges)

    monkeypatch.setattr(SourceJournal, "sizes", counting)
    tasks, found = planned(place, topics="small-*")
    assert len(tasks) == at_once and len(asked) == 1
    assert found == [(f"small-{number:03}", seq) for number in range(300) for seq in (1, 2, 3)]


def test_tasks_have_about_as_many_bytes_however_topics_differ(
    url: str, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARALLELISM_VARIABLE, "4")
    monkeypatch.setattr(sources, "_SPREAD_BYTES", 100_000)
    monkeypatch.setattr(sources, "_OPENED_BYTES", 1)
    for name, count in (("a", 200), ("b", 20), ("c", 4_000), ("d", 1), ("e", 900)):
        for first in range(0, count, 100):
            journal.topic(name).append_many([Draft("n", "x" * 200) for _ in range(first, min(count, first + 100))])
    tasks, found = planned(url, topic="a,b,c,d,e")
    assert sorted(found) == sorted((event.topic, event.seq) for event in journal.read("*"))
    events = [sum(high - low for each in task.ranges for low, high in each.spans) for task in tasks]
    assert len(tasks) == 4 and max(events) < 2 * min(events), events


def test_at_least_so_many_tasks_of_topics_large_and_small(url: str, journal: penstock.Journal) -> None:
    for name, count in (("a", 50), ("b", 7), ("c", 1_000)):
        fill(journal, count, name)
    for least in (1, 5, 23):
        tasks, found = planned(url, topic="a,b,c", minPartitions=least)
        assert len(tasks) == least and len(found) == len(set(found)) == 1_057


def test_as_many_tasks_as_spark_runs_at_once(
    url: str, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        journal.topic("orders").append_many([Draft("n", "x" * 100_000) for _ in range(10)])
    for told, tasks in (("2", 2), ("7", 7), ("64", 9), ("", 4)):
        monkeypatch.setenv(PARALLELISM_VARIABLE, told)
        assert len(planned(url, topic="orders")[0]) == tasks, (
            "2 MiB each at the least; 4 where Spark's number is not known"
        )


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_payload_schema_that_does_not_fit_is_one_clear_error(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {"amount": 1})
    journal.topic("orders").append("placed", {"amount": "much", "key": "k"})
    with pytest.raises(ConfigError, match="does not fit the payload of event 2 of topic 'orders': field 'amount'"):
        read(url, topic="orders", payloadSchema="amount DOUBLE")
    with pytest.raises(ConfigError, match=r"'key' would be there twice.*payloadColumns"):
        read(url, topic="orders", payloadSchema="key STRING")


def test_binary_payloads_are_bytes(url: str, journal: penstock.Journal) -> None:
    journal.topic("raw").append("blob", b"\xff\x00\x01")
    journal.topic("raw").append("text", {"a": 1})
    rows = read(url, topic="raw", payloadFormat="binary")
    assert [row["payload"] for row in rows] == [b"\xff\x00\x01", b'{"a":1}']
    with pytest.raises(PenstockError, match="payloadFormat=binary"):
        read(url, topic="raw")


def test_a_given_schema_chooses_columns(url: str, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", {"amount": 4}, key="k")
    assert read(url, "kind STRING, seq BIGINT", topic="orders") == [{"kind": "placed", "seq": 1}]
    parsed = read(url, "amount INT, key STRING", topic="orders", payloadSchema="amount INT")
    assert parsed == [{"amount": 4, "key": "k"}]
    with pytest.raises(ConfigError, match="no column 'sequence'"):
        read(url, "sequence BIGINT", topic="orders")
    with pytest.raises(ConfigError, match="the schema asks for int32"):
        read(url, "seq INT", topic="orders")


def test_positions_alone_are_known_without_reading_events(
    place: dict[str, str], journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = journal.topic("orders")
    orders.append_many([Draft("placed", n, key=f"k{n % 7}") for n in range(100)])
    orders.compact_keys()
    orders.append_many([Draft("placed", n, key=f"k{n % 9}") for n in range(100)])
    kept = [event.seq for event in orders.read()]
    assert len(kept) == 107
    assert seqs(read(place, "seq BIGINT", topic="orders", minPartitions=3)) == kept
    monkeypatch.setattr(rows.SourceLayout, "batch", None)
    assert seqs(read(place, "seq BIGINT", topic="orders", startingOffsets=150)) == kept[57:]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "oders"}, "there is no topic 'oders'"),
        ({"topic": "orders", "startOffset": "1"}, "no option 'startoffset'; did you mean 'startingOffsets'"),
        ({"topic": "orders", "hold": "1"}, "no option 'hold'; there are url, writer(?!.*hold)"),
        ({}, "not nothing"),
        ({"topic": "orders", "consumer": "c"}, "is for streams"),
        ({"topic": "orders", "startingOffsets": "latest"}, 'startingOffsets "latest"'),
        ({"topic": "orders", "startingOffsets": "5"}, "ends at 1"),
        ({"topic": "orders", "startingOffsets": '{"orders":{"1":5}}'}, "one partition"),
        ({"topic": "orders", "url": ""}, "no journal is named"),
        ({"topic": "orders", "url": "rocksdb:shop"}, "rocksdb: allows one"),
        ({"topic": "orders", "url": "memory:"}, "memory: lives in one"),
        ({"topic": "orders", "url": "no-such.db"}, r"no-such\.db"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(
    url: str, journal: penstock.Journal, options: dict[str, str], says: str
) -> None:
    fill(journal, 1)
    with pytest.raises(PenstockError, match=says):
        read({"url": url, **options})


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_every_column_of_an_event_arrives_as_it_was_appended(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"sku": "ü", "n": 1}, key="c1", scope="eu", headers={"a": "1", "b": "2"})
    orders.append("paid", None, occurred_at=START - timedelta(days=1, microseconds=-3000))
    orders.append("shipped", [1, 2], cause=orders.get(1), tags=("ü:1", "b"))
    frame = spark.read.format("penstock").options(url=url, topic="orders").load()
    assert frame.columns == COLUMNS
    rows = frame.orderBy("seq").collect()
    assert len(rows) == 3
    for row, event in zip(rows, orders.read(), strict=True):
        expected = event.as_dict()
        found = row.asDict()
        assert found.pop("payload") == event.raw.decode()
        assert found.pop("occurred_at").astimezone(UTC) == expected.pop("occurred_at")
        assert found.pop("recorded_at").astimezone(UTC) == expected.pop("recorded_at")
        expected.pop("payload")
        expected["tags"] = list(expected["tags"]) or None
        assert found == expected


def test_the_first_line_of_an_error_says_what_is_wrong(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    journal.topic("orders").append("placed", {"n": "one"})
    reader = spark.read.format("penstock").option("url", url)
    with pytest.raises(PySparkException) as planning:
        reader.option("topic", "oders").load().count()
    assert "ConfigError: there is no topic 'oders' in " in str(planning.value).splitlines()[0]
    with pytest.raises(PySparkException) as reading:
        reader.options(topic="orders", payloadSchema="n BIGINT").load().collect()
    assert "ConfigError: payloadSchema does not fit" in "".join(str(reading.value).strip().splitlines()[:2])


def test_parsed_columns_of_the_payload_take_its_place(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    orders.append("placed", {"customer": "ann", "amount": 2.5, "items": [{"sku": "a"}, {"sku": "b"}], "other": 1})
    orders.append("placed", {"customer": "bob", "at": "2026-01-02T03:04:05Z"})
    orders.append("nothing", None)
    schema = "customer STRING, amount DOUBLE, items ARRAY<STRUCT<sku: STRING>>, at TIMESTAMP"
    reader = spark.read.format("penstock").options(url=url, topic="orders", payloadSchema=schema)
    first, second, third = reader.load().orderBy("seq").collect()
    assert "payload" not in first
    assert (first.customer, first.amount, [item.sku for item in first["items"]]) == ("ann", 2.5, ["a", "b"])
    assert second["at"].astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (third.customer, third.amount, third["items"]) == (None, None, None)
    nested = reader.option("payloadColumns", "struct").load()
    assert nested.select("payload.customer").first().customer == "ann"


def test_queries_of_one_frame_have_each_their_own_rows(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    """Spark to 4.3 keeps the plan of a source that takes filters for everything else that is read from the frame."""
    journal.topic("orders").append_many([Draft("placed" if n % 2 else "paid", n, key=f"k{n // 2}") for n in range(10)])
    before = spark.conf.get(setting := "spark.sql.python.filterPushdown.enabled", "false")
    spark.conf.set(setting, "true")
    try:
        frame = spark.read.format("penstock").options(url=url, topic="orders").load()
        placed, paid = frame.where("kind = 'placed'"), frame.where("kind = 'paid'")
        assert sorted(row.kind for row in placed.union(paid).collect()) == ["paid"] * 5 + ["placed"] * 5
        assert (placed.where("key = 'k1'").count(), frame.count()) == (1, 10)
    finally:
        spark.conf.set(setting, before)


def test_a_condition_narrows_a_read_in_spark(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    for commit in range(20):
        orders.append_many([Draft("placed" if commit % 2 else "paid", n, key=f"k{n % 3}") for n in range(10)])
    condition = "seq > 42 and kind = 'paid' and key in ('k1', 'k2') and payload < 9"
    frame = spark.read.format("penstock").options(url=url, topic="orders", where=condition).load()
    assert sorted(row.seq for row in frame.collect()) == [event.seq for event in orders.read(where=condition)]


def test_a_view_of_sql_reads_a_topic_and_a_table_says_what_works_instead(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    fill(journal, 5).append("other", 1)
    options = f"(url '{url}', topic 'orders', kinds 'placed')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW placed USING penstock OPTIONS {options}")
    assert spark.sql("SELECT count(*) AS n FROM placed").first().n == 5
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW … USING penstock"):
        spark.sql(f"CREATE TABLE never USING penstock OPTIONS {options}")


def test_an_erased_event_is_read_as_erased_from_blocks_and_from_files(tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    with penstock.open(url) as journal:
        topic = journal.topic("orders")
        topic.append_many([Draft("placed", {"n": n, "email": f"e{n % 3}"}, key=f"c{n % 3}") for n in range(60)])
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=30, columns="n BIGINT, email STRING")
        topic.erase(key="c1", by="ada")
        topic.mask("email", key="c2")
        journal.maintain()
    typed = read(url, topic="orders", payloadSchema="n BIGINT, email STRING", mode="FAILFAST")
    assert seqs(typed) == list(range(1, 61))
    for row, event in zip(typed, read(url, topic="orders"), strict=True):
        n = row["seq"] - 1
        assert (row["n"], row["email"]) == ((None, None) if n % 3 == 1 else (n, "e0" if n % 3 == 0 else None))
        assert (event["headers"] or {}).get("erased-by") == ("ada" if n % 3 == 1 else None)
        assert event["key"] == (None if n % 3 == 1 else f"c{n % 3}")

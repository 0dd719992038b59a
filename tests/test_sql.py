"""SQL over topics says what it says of the events that are read, wherever they lie; what filters name is looked up."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import duckdb
import polars
import pyarrow as pa
import pytest

import penstock
from penstock import Draft, Journal, ManualClock, Topic
from penstock.aio import open as open_async
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, Corrupt, UnknownTopic
from penstock.remote.client import Client
from server.serving import serving

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
EVENTS = 400
KINDS = ("placed", "paid", "shipped")
TYPED = "total DOUBLE, customer STRING"
HOMES = ("memory", "sealed", "typed", "partitioned", "read-only", "served", "served-typed")


def fill(topic: Topic, clock: ManualClock, count: int = EVENTS) -> None:
    """Blocks of 20 events, a second apart; among the payloads are bytes, numbers and a misfit."""
    for start in range(1, count + 1, 20):
        clock.advance(1)
        topic.append_many(draft(number) for number in range(start, start + 20))


def draft(number: int) -> Draft:
    payload: object = {"total": number / 4, "customer": f"c{number % 7}"}
    if number % 50 == 0:
        payload = bytes([number % 256, 0xFF])
    elif number % 33 == 0:
        payload = {"total": "much", "customer": None}
    kind = "opened" if number <= 20 else KINDS[number % 3]
    headers = {"n": str(number)} if number % 10 == 0 else None
    tags = ("even", f"n:{number % 3}") if number % 2 == 0 else None
    key = None if number % 11 == 0 else f"k{number % 13}"
    return Draft(kind, payload, key=key, headers=headers, scope="eu", tags=tags)


def seal(journal: Journal, lake: Path, through: int, table: TableRequest | None = None) -> None:
    assert isinstance(journal, LocalJournal)
    seal_topic(journal._core, "orders", lake=str(lake), through=through, file_events=100, table=table)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(BEGIN.timestamp() * 1000))


@pytest.fixture(params=HOMES)
def journal(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    """A journal with one topic of 400 events, the first 30 of which are compacted away."""
    home = request.param
    place = str(tmp_path / "shop.db") if home == "read-only" else "memory:"
    with penstock.open(place, clock=clock) as journal:
        orders = journal.topic("orders")
        fill(orders, clock)
        tables = {
            "sealed": TableRequest(),
            "typed": TableRequest(columns=TYPED),
            "served-typed": TableRequest(columns=TYPED),
            "partitioned": TableRequest(columns=TYPED, partition_by="customer"),
        }
        if home in tables:
            seal(journal, tmp_path / "lake", 250, tables[home])
        orders.compact(30, force=True)
        if home == "read-only":
            with penstock.open(place, read_only=True, clock=clock) as reader:
                yield reader
        elif home.startswith("served"):
            with serving(journal) as served, penstock.open(served.url) as connected:
                yield connected
        else:
            yield journal


def told_by_reading(journal: Journal, name: str = "orders") -> pa.Table:
    """The columns that a query sees, made of events one by one."""
    rows = [
        {
            **event.as_dict(),
            "headers": list(event.headers.items()),
            "tags": list(event.tags) or None,
            "payload": None if event.binary else event.raw.decode(),
            "payload_bytes": event.raw if event.binary else None,
        }
        for event in journal.topic(name).read()
    ]
    from penstock.core.journal.sealed.writing import sealed_schema

    return pa.Table.from_pylist(rows, schema=sealed_schema())


QUERIES = (
    "select * exclude (total, customer) from orders",
    "select count(*) from orders",
    "select kind, count(*), min(seq), max(recorded_at) from orders group by all",
    "select seq, payload->>'total' as t from orders where payload is not null",
    "select seq, payload_bytes, headers['n'] as n from orders where payload_bytes is not null",
    "select seq from orders where seq > 240 and seq <= 260",
    "select seq from orders where seq in (31, 77, 250, 251, 399)",
    "select seq from orders where seq < 31",
    "select seq, tags from orders where list_contains(tags, 'n:2')",
    "select seq, kind from orders where kind = 'opened'",
    "select seq, kind from orders where kind in ('paid', 'shipped') and seq between 200 and 290",
    "select seq, key from orders where key = 'k3'",
    "select seq, headers, payload, payload_bytes from orders where key in ('k3', 'k4', 'none', 'k3') and kind = 'paid'",
    "select seq from orders where key = 'k3' and key = 'k4'",
    "select seq from orders where key = 'k3' or seq = 99",
    "select seq from orders where key is null",
    "select seq from orders where key <> 'k3'",
    "select seq from orders where not (key = 'k3')",
    "select seq, id from orders where recorded_at >= '2026-03-01 00:00:10Z' and recorded_at < '2026-03-01 00:00:15Z'",
    "select seq from orders where recorded_at = timestamptz '2026-03-01 00:00:14Z'",
    "select seq from orders where recorded_at > timestamptz '2026-03-01 00:00:19.5Z'",
    "select seq from orders where recorded_at < timestamptz 'infinity' and recorded_at > timestamptz '0001-01-01'",
    "select seq from orders where recorded_at in ('2026-03-01 00:00:14Z', '2026-03-01 00:00:15Z') and seq <> 290",
    "select seq from orders where recorded_at in (timestamptz 'infinity', timestamptz '2026-03-01 00:00:15Z')",
    "select seq from orders where seq in (31, 32, null) or seq is null",
    "select seq from orders where seq = 2.5 or seq in (77, 78.0)",
    "select seq from orders where recorded_at <= timestamptz '9999-12-31 23:59:59.9999Z' and seq > -7",
    "select seq from orders where key in ('', 'k5', repeat('k', 500))",
    f"select seq from orders where key = '{'k' * 500}'",
    "select date_trunc('minute', recorded_at) as minute, count(*) from orders group by 1",
    "select a.seq, b.seq as other from orders a join orders b on a.key = b.key and b.seq = a.seq + 13",
    "with paid as (from orders where kind = 'paid') select count(*) from paid where seq > 100",
    "select seq from orders order by seq desc limit 3",
    "select max(seq) from (select seq from orders union all select seq from orders where key = 'k1')",
)


def test_a_query_says_what_it_says_of_the_events_that_are_read(journal: Journal) -> None:
    orders = told_by_reading(journal)  # noqa: F841 - DuckDB finds it by its name
    typed = "total" in journal.sql("describe orders")["column_name"].to_pylist()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for query in QUERIES:
            plain = query.replace("* exclude (total, customer)", "*")
            expected = connection.sql(plain).to_arrow_table()
            found = journal.sql(query if typed else plain)
            assert found.schema == expected.schema, query
            names = [field.name for field in found.schema if not pa.types.is_nested(field.type)]
            in_order = [(name, "ascending") for name in names]
            assert found.sort_by(in_order).to_pylist() == expected.sort_by(in_order).to_pylist(), query


class Fields(TypedDict):
    """What most payloads of the orders have."""

    total: float
    customer: str


@pytest.mark.parametrize("wanted", [Fields, "customer STRING, total DOUBLE", TYPED])
def test_fields_that_a_query_asks_for_are_columns(journal: Journal, wanted: str | type[object]) -> None:
    query = "select customer, count(*) as n, sum(total) as s, count(total) as fit from orders group by 1 order by 1"
    totals: dict[str | None, list[float]] = {}
    for event in journal.topic("orders").read():
        fits = event.seq % 50 and event.seq % 33
        totals.setdefault(event.payload["customer"] if fits else None, []).append(event.seq / 4)
    unfit = totals.pop(None)
    expected: list[object] = [
        {"customer": who, "n": len(found), "s": sum(found), "fit": len(found)} for who, found in sorted(totals.items())
    ]
    expected.append({"customer": None, "n": len(unfit), "s": None, "fit": 0})
    assert journal.sql(query, columns={"orders": wanted}).to_pylist() == expected
    one = journal.sql("select total from orders where key = 'k1' and total > 90 limit 1", columns={"orders": wanted})
    assert one["total"][0].as_py() > 90


@pytest.mark.parametrize("journal", ["memory"], indirect=True)
def test_columns_that_cannot_be_are_refused(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="columns names order, which is no topic that the query reads"):
        journal.sql("select total from orders", columns={"order": "total DOUBLE"})
    with pytest.raises(ConfigError, match="every sealed event has a column 'kind' already"):
        journal.sql("select kind from orders", columns={"orders": "kind INT"})
    with pytest.raises(ConfigError, match="columns is text"):
        journal.sql("select kind from orders", columns={"orders": 7})  # type: ignore[dict-item]


@pytest.mark.parametrize("journal", ["typed", "partitioned", "served-typed"], indirect=True)
def test_columns_that_a_topic_was_sealed_with_are_there_for_sealed_and_newer_events(journal: Journal) -> None:
    found = journal.sql("select seq, total, customer from orders order by seq").to_pylist()
    assert [row["seq"] for row in found] == list(range(31, EVENTS + 1))
    for row in found:
        fits = row["seq"] % 50 and row["seq"] % 33
        assert (row["total"], row["customer"]) == ((row["seq"] / 4, f"c{row['seq'] % 7}") if fits else (None, None))
    assert journal.sql("select count(*) as n from orders where total > 90 and key = 'k1'").to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("journal", ["sealed"], indirect=True)
def test_files_sealed_before_a_column_was_named_have_it_too(journal: Journal, tmp_path: Path) -> None:
    seal(journal, tmp_path / "lake", 300, TableRequest(columns="total DOUBLE"))
    assert journal.sql("select count(total) as n, max(total) as most from orders").to_pylist() == [
        {"n": sum(1 for seq in range(31, EVENTS + 1) if seq % 50 and seq % 33), "most": 399 / 4}
    ]


@pytest.mark.parametrize("journal", ["memory"], indirect=True)
def test_events_older_than_a_topics_max_age_are_in_no_query(journal: Journal, clock: ManualClock) -> None:
    journal.topic("orders").configure(max_age=5)
    assert journal.sql("select min(seq) as first from orders")["first"].to_pylist() == [281]
    with serving(journal) as served, penstock.open(served.url) as connected:
        assert connected.sql("select min(seq) as first from orders")["first"].to_pylist() == [281]


# ── What a filter spares ──


@pytest.mark.parametrize("journal", ["memory", "sealed", "served"], indirect=True)
@pytest.mark.parametrize(
    ("where", "most"),
    [
        ("seq > 395", 20),
        ("seq = 333", 20),
        ("recorded_at > timestamptz '2026-03-01 00:00:19.5Z'", 20),
        ("recorded_at between timestamptz '2026-03-01 00:00:16Z' and timestamptz '2026-03-01 00:00:16Z'", 20),
        ("key = 'k3'", 0),
        ("key in ('k3', 'k4') and seq > 100", 0),
        ("key = ?", 0),
    ],
)
def test_positions_times_and_keys_are_looked_up(
    journal: Journal, where: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = decoded_rows(monkeypatch)
    parameters = ["k3"] if "?" in where else []
    assert journal.sql(f"select count(*) as n from orders where {where}", parameters)["n"][0].as_py() > 0
    assert sum(decoded) <= most


def decoded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of blocks were made columns, from now on."""
    import penstock.sql

    decoded: list[int] = []
    real = penstock.sql.TopicTable._batch_of_block

    def counted(self: penstock.sql.TopicTable, names: list[str], block: object) -> pa.RecordBatch:
        batch = real(self, names, block)
        decoded.append(batch.num_rows)
        return batch

    monkeypatch.setattr(penstock.sql.TopicTable, "_batch_of_block", counted)
    return decoded


def test_blocks_without_a_wanted_kind_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:") as journal:
        topic = journal.topic("orders")
        for kind in ("rare", "common", "common", "common"):
            topic.append_many(Draft(kind, number) for number in range(3000))
        decoded = decoded_rows(monkeypatch)
        assert journal.sql("select count(*) as n from orders where kind = 'rare'")["n"].to_pylist() == [3000]
        assert sum(decoded) == 3000


def test_only_the_wanted_columns_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.sql

    asked: list[list[str]] = []
    real = penstock.sql.record_batch
    monkeypatch.setattr(
        penstock.sql,
        "record_batch",
        lambda block, form, names: (asked.append(list(names)), real(block, form, names))[1],
    )
    with penstock.open("memory:") as journal:
        journal.topic("orders").append("placed", {"total": 1}, key="a")
        journal.sql("select kind, count(*) from orders where seq >= 1 group by 1")
    assert {name for names in asked for name in names} == {"kind", "seq"}


def test_a_key_with_very_many_events_is_read_by_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.sql

    monkeypatch.setattr(penstock.sql, "_LOOKED_UP", 10)
    with penstock.open("memory:") as journal:
        journal.topic("orders").append_many(Draft("placed", n, key=f"k{n % 2}") for n in range(40))
        decoded = decoded_rows(monkeypatch)
        assert journal.sql("select count(*) as n from orders where key in ('k1', 'k2')")["n"].to_pylist() == [20]
        assert sum(decoded) == 40


# ── One state ──


@pytest.mark.parametrize("journal", ["memory", "served"], indirect=True)
def test_a_query_over_two_topics_sees_one_state(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both topics get an event in one commit while the first of them is read: the query has neither of them."""
    both = ("left", "right")
    for name in both:
        journal.topic(name).append("one", 1)
    import penstock.sql

    real = penstock.sql.TopicTable.scanner

    def meanwhile(self: penstock.sql.TopicTable, *given: object, **how: object) -> object:
        with journal.outbox() as outbox:
            for name in both:
                outbox.stage(name, "more", 2)
        return real(self, *given, **how)

    monkeypatch.setattr(penstock.sql.TopicTable, "scanner", meanwhile)
    query = 'select (select count(*) from "left") as a, (select count(*) from "right") as b'
    assert journal.sql(query).to_pylist() == [{"a": 1, "b": 1}]
    assert journal.sql(query).to_pylist() == [{"a": 3, "b": 3}]


def test_a_table_outlives_the_journal(clock: ManualClock) -> None:
    with penstock.open("memory:", clock=clock) as journal:
        fill(journal.topic("orders"), clock)
        found = journal.sql("select seq, payload from orders")
    assert found.num_rows == EVENTS and len(found.to_pylist()) == EVENTS
    assert duckdb.sql("select max(seq) from found").fetchall() == [(EVENTS,)]


def test_blocks_that_are_merged_while_they_travel_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:") as journal:
        for number in range(60):
            journal.topic("orders").append("placed", number)
        with serving(journal) as served, penstock.open(served.url) as connected:
            monkeypatch.setattr("penstock.server.api.bulk.BLOCKS_BYTES", 1000)
            real = Client.download

            def meanwhile(self: Client, *given: Any, **how: Any) -> tuple[bytes, Mapping[str, str]]:
                answer = real(self, *given, **how)
                journal.maintain()
                return answer

            monkeypatch.setattr(Client, "download", meanwhile)
            assert connected.sql("select seq from orders")["seq"].to_pylist() == list(range(1, 61))


# ── Names and errors ──


def test_topics_with_dots_and_dashes_are_named_in_quotes() -> None:
    with penstock.open("memory:") as journal:
        for name in ("shop.orders", "shop.eu.orders", "web-clicks", "select"):
            journal.topic(name).append("placed", {"name": name})
        query = """
            select topic from "shop.orders" union all select topic from "web-clicks" union all
            select topic from "shop.eu.orders" union all select topic from "select"
        """
        assert journal.sql(query)["topic"].to_pylist() == [*("shop.orders", "web-clicks", "shop.eu.orders", "select")]
        with pytest.raises(UnknownTopic, match=r"did you mean 'shop\.orders'"):
            journal.sql("select * from shop.orders")


def test_names_that_differ_in_case_only_are_told_apart_where_that_can_be() -> None:
    with penstock.open("memory:") as journal:
        for name in ("orders", "Orders"):
            journal.topic(name).append("placed")
        assert journal.sql("select topic from Orders")["topic"].to_pylist() == ["Orders"]
        assert journal.sql("select topic from orders")["topic"].to_pylist() == ["orders"]
        with pytest.raises(ConfigError, match="Orders, orders are one name in SQL"):
            journal.sql("select * from Orders, orders")


@pytest.mark.parametrize("journal", ["memory", "served"], indirect=True)
def test_errors_say_what_is_wrong_and_where(journal: Journal) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'oders'; did you mean 'orders'"):
        journal.sql("select * from oders")
    with pytest.raises(ConfigError, match=r'(?s)syntax error at or near "orders".*select \* form orders.*\^'):
        journal.sql("select * form orders")
    with pytest.raises(ConfigError, match="total"):
        journal.sql("select total from orders")
    with pytest.raises(ConfigError, match="a query is text"):
        journal.sql(" ")
    with pytest.raises(ConfigError, match=r"(?i)parameter"):
        journal.sql("select * from orders where key = ?")
    with pytest.raises(penstock.errors.PenstockError, match="httpfs"):
        journal.sql("select * from 's3://bucket/x.parquet'")  # nothing is downloaded for it


def test_a_variable_of_the_callers_is_no_table() -> None:
    orders = pa.table({"seq": [1]})  # noqa: F841
    with penstock.open("memory:") as journal, pytest.raises(UnknownTopic):
        journal.sql("select * from orders")


def test_what_is_wrong_with_the_store_is_said_in_its_own_words(clock: ManualClock, tmp_path: Path) -> None:
    with penstock.open("memory:", clock=clock) as journal:
        fill(journal.topic("orders"), clock)
        seal(journal, tmp_path, 200)
        for file in tmp_path.rglob("*.parquet"):
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 0xFF
            file.write_bytes(data)
        with pytest.raises(Corrupt, match="sealed history is damaged"):
            journal.sql("select * from orders where key = 'k3'")


def test_a_query_over_damaged_history_is_an_error_that_names_the_file_or_right(tmp_path: Path) -> None:
    """Whichever bit of a file changes: DuckDB compares no checksums of its own."""
    queries = (
        "select sum(try_cast(payload->>'total' as double)), count(distinct payload->>'customer') from orders",
        "select kind, key, count(*), min(recorded_at) from orders group by all order by all",
        "select sum(total), max(customer) from orders",
        "select min(id), max(length(headers::text)) from orders where seq > 150",
    )
    with penstock.open("memory:", clock=ManualClock()) as journal:
        orders = journal.topic("orders")
        orders.append_many(draft(number) for number in range(1, EVENTS + 1))
        seal(journal, tmp_path / "lake", EVENTS, TableRequest(columns=TYPED))
        right = [journal.sql(query).to_pylist() for query in queries]
        chance = random.Random(17)
        named = 0
        for file in sorted((tmp_path / "lake").rglob("*.parquet"))[:2]:
            whole = file.read_bytes()
            for at in chance.sample(range(len(whole)), 60):
                damaged = bytearray(whole)
                damaged[at] ^= 1 << chance.randrange(8)
                file.write_bytes(damaged)
                for query, answer in zip(queries, right, strict=True):
                    try:
                        assert journal.sql(query).to_pylist() == answer
                    except Corrupt as error:
                        assert (error.topic, error.file) == ("orders", str(file))
                        named += 1
            file.write_bytes(whole)
        assert named > 100
        assert [journal.sql(query).to_pylist() for query in queries] == right


def test_a_closed_journal_takes_no_query() -> None:
    journal = penstock.open("memory:")
    journal.close()
    with pytest.raises(penstock.errors.Closed):
        journal.sql("select 1")


def test_an_answer_too_large_for_memory_is_written_by_the_query(clock: ManualClock, tmp_path: Path) -> None:
    with penstock.open("memory:", clock=clock) as journal:
        fill(journal.topic("orders"), clock)
        target = tmp_path / "paid.parquet"
        journal.sql(f"copy (select * from orders where kind = 'paid') to '{target}'")
    assert duckdb.sql(f"select distinct kind from '{target}'").fetchall() == [("paid",)]


def test_parameters_are_values_by_place_or_by_name() -> None:
    with penstock.open("memory:") as journal:
        journal.topic("orders").append("placed", {"total": 1}, key="x' or 1 = 1 --")
        for query, values in (("key = ?", ["x' or 1 = 1 --"]), ("key = $key", {"key": "x' or 1 = 1 --"})):
            assert journal.sql(f"select seq from orders where {query}", values)["seq"].to_pylist() == [1]
        assert journal.sql("select seq from orders where key = ?", ["' or 1 = 1 --"]).num_rows == 0


def test_messages_of_a_queue_are_events_of_its_topic() -> None:
    with penstock.open("memory:") as journal:
        journal.queue("emails").push({"to": "ada"})
        assert journal.sql("select payload->>'to' as t from emails")["t"].to_pylist() == ["ada"]


async def in_an_event_loop() -> pa.Table:
    async with await open_async("memory:") as journal:
        await journal.topic("orders").append("placed", 1)
        return await journal.sql("select kind from orders")


def test_an_event_loop_awaits_the_table() -> None:
    import asyncio

    assert asyncio.run(in_an_event_loop()).to_pylist() == [{"kind": "placed"}]


def test_a_query_says_nothing_on_its_own_at_the_end_of_a_program() -> None:
    program = "import penstock\nj = penstock.open('memory:')\nj.topic('a').append('k')\nt = j.sql('from a')\nj.close()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ── Arrow's stream interface ──


@pytest.fixture(params=["memory", "served"])
def topic(request: pytest.FixtureRequest) -> Iterator[Topic]:
    with penstock.open("memory:") as journal:
        orders = journal.topic("orders")
        orders.append_many(Draft("placed", {"total": number}, key=f"k{number}") for number in range(5))
        if request.param == "memory":
            yield orders
        else:
            with serving(journal) as served, penstock.open(served.url) as connected:
                yield connected.topic("orders")


def test_a_topic_is_a_table_to_whatever_speaks_arrow(topic: Topic) -> None:
    expected = pa.Table.from_batches(list(topic.read_arrow()))
    assert pa.table(topic) == expected
    assert polars.DataFrame(topic)["payload"].to_list() == expected["payload"].to_pylist()
    assert duckdb.sql("select count(*), max(seq) from topic").fetchall() == [(5, 5)]
    large = expected.schema.set(2, pa.field("kind", pa.large_string()))
    assert pa.table(topic, schema=large)["kind"].type == pa.large_string()


def test_a_topic_without_events_is_a_table_without_rows() -> None:
    with penstock.open("memory:") as journal:
        found = pa.table(journal.topic("orders"))
    assert found.num_rows == 0 and found.column_names[:3] == ["seq", "topic", "kind"]

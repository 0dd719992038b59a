"""Spark over sealed history: the source crosses the seam, `lake` reads the files, and plain readers can too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from since import needs_limits
from without_spark import Stream, seqs
from without_spark import read as read_plainly

import penstock
import penstock.spark.sealing as sealing
from buffer.emulator import Emulator
from penstock import Draft
from penstock.api import local
from penstock.core.clock import ManualClock
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from penstock.errors import ConfigError, StorageError
from penstock.spark import read_topic, seal
from penstock.spark import source as sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
EVENTS = 1200


@pytest.fixture
def journal(url: str) -> Iterator[penstock.Journal]:
    clock = ManualClock(int(START.timestamp() * 1000))
    with penstock.open(url, clock=clock, durability="process") as journal:
        topic = journal.topic("orders")
        for start in range(0, EVENTS, 30):
            topic.append_many([_draft(start + n) for n in range(30)])
            clock.advance(30)
        yield journal


def _draft(n: int) -> Draft:
    return Draft(
        "paid" if n % 3 else "placed",
        {"n": n, "text": "ü" * (n % 4)},
        key=f"k{n % 7}" if n % 5 else None,
        scope="eu" if n % 2 else None,
        headers={"h": str(n), "g": ""} if n % 4 == 0 else None,
        occurred_at=START if n % 6 == 0 else None,
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def read(spark: SparkSession, journal: penstock.Journal, **options: object) -> DataFrame:
    given = {"url": journal._engine.location, "topic": "orders", **options}
    return spark.read.format("penstock").options(**{name: str(value) for name, value in given.items()}).load()


def test_a_lake_read_of_a_table_is_the_topic_and_plain_spark_reads_its_typed_columns(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    before = rows(read(spark, journal))
    folder = str(tmp_path / "lake")
    seal(journal, "orders", lake=folder, through=700, file_events=300, format="delta", columns="n BIGINT")
    assert rows(read_topic(spark, journal, "orders")) == before
    plain = spark.read.parquet(f"{folder}/orders").selectExpr("count(*)", "sum(seq)", "sum(n)").first()
    assert tuple(plain) == (700, sum(range(1, 701)), sum(range(700)))


def test_a_lake_that_a_column_parts_is_read_whole_and_by_the_column(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    before = rows(read(spark, journal))
    folder = str(tmp_path / "lake")
    parted = {"columns": "n BIGINT, text STRING", "partition_by": "text"}
    seal(journal, "orders", lake=folder, through=700, file_events=300, **parted)
    seal(journal, "orders", lake=folder, through=900, file_events=100, master="local[2]")
    assert rows(read(spark, journal)) == before
    assert rows(read_topic(spark, journal, "orders")) == before
    plain = spark.read.parquet(f"{folder}/orders").groupBy("text").agg({"n": "sum", "seq": "count"})
    texts = {row["text"]: (row["count(seq)"], row["sum(n)"]) for row in plain.collect()}
    wanted = {"ü" * m or None: [n for n in range(900) if n % 4 == m] for m in range(4)}
    assert texts == {text: (len(numbers), sum(numbers)) for text, numbers in wanted.items()}


def test_a_lake_read_is_the_topic_once_also_while_sealing_goes_on(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    before = rows(read(spark, journal))
    assert rows(read_topic(spark, journal, "orders")) == before, "nothing is sealed yet"
    folder = str(tmp_path / "a lake [old] {x}")
    seal(journal, "orders", lake=folder, through=700, file_events=300)
    frame = read_topic(spark, str(journal._engine.location), "orders")
    assert frame.columns == read(spark, journal).columns
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan, "Spark's own reader"
    assert rows(frame) == before
    seal(journal, "orders", lake=folder, through=1000)
    journal.topic("orders").append("later", None)
    assert rows(frame) == before, "the frame holds what was there when it was made"
    assert [row[0] for row in rows(read_topic(spark, journal, "orders"))] == list(range(1, EVENTS + 2))
    seal(journal, "orders", lake=folder, through=EVENTS + 1)
    assert rows(read_topic(spark, journal, "orders"))[:EVENTS] == before
    journal.topic("orders").compact(350)
    assert rows(read_topic(spark, journal, "orders").where(f"seq <= {EVENTS}")) == before[350:]


def test_a_frame_of_a_lake_is_not_half_of_a_topic_made_anew(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    unsealed = read_topic(spark, journal, "orders")
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=700)
    held = read_topic(spark, journal, "orders")
    assert held.count() == EVENTS
    journal.drop_topic("orders", force=True)
    with pytest.raises(PySparkException, match=r"was dropped before .* its events 701 to|is no topic"):
        held.count()
    journal.topic("orders").append_many([_draft(n) for n in range(2 * EVENTS)])
    for frame in (held, unsealed):
        with pytest.raises(PySparkException, match=f"to {EVENTS} of topic 'orders' were removed"):
            frame.count()
    assert read_topic(spark, journal, "orders").count() == 2 * EVENTS


def test_a_lake_read_has_bytes_and_says_what_is_missing(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    journal.topic("raw").append_many([Draft("raw", b"\xff%d" % n if n % 2 else {"n": n}) for n in range(40)])
    seal(journal, "raw", lake=str(tmp_path / "lake"), through=30)
    found = rows(read_topic(spark, journal, "raw", payloadFormat="binary").select("seq", "payload"))
    assert [bytes(payload) for _, payload in found] == [b"\xff%d" % n if n % 2 else b'{"n":%d}' % n for n in range(40)]
    with pytest.raises(PySparkException, match=r"MALFORMED_CHARACTER_CODING|payload of bytes"):
        read_topic(spark, journal, "raw").where("seq < 30").collect()
    with pytest.raises(ConfigError, match="no topic 'nothing'"):
        read_topic(spark, journal, "nothing")
    (file,) = (tmp_path / "lake" / "raw").rglob("*.parquet")
    file.unlink()
    with pytest.raises(StorageError, match=file.name):
        read_topic(spark, journal, "raw")


def test_a_lake_read_ends_with_an_error_at_a_page_that_would_be_read_as_another(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=900)
    path, *_ = sorted((tmp_path / "lake").rglob("*.parquet"))
    whole, right = path.read_bytes(), pq.read_table(path, columns=["payload"])
    group = pq.ParquetFile(path).metadata.row_group(0)
    (column,) = (one for at in range(group.num_columns) if (one := group.column(at)).path_in_schema == "payload")

    def misread(at: int) -> bool:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = pq.read_table(path, columns=["payload"])
            found.validate(full=True)
        except (OSError, pyarrow.ArrowException):
            return False
        return not found.equals(right)

    start = column.data_page_offset
    assert any(misread(at) for at in range(start + column.total_compressed_size - 1, start + 100, -1))
    with pytest.raises((PySparkException, Py4JJavaError), match=path.name):
        read_topic(spark, url, "orders").collect()


def test_a_lake_in_an_object_store_is_read_without_a_file_system_of_sparks(
    spark: SparkSession, journal: penstock.Journal, emulator: Emulator
) -> None:
    before = rows(read(spark, journal))
    bucket, address = emulator.bucket(), emulator.endpoint.removeprefix("http://")
    place = bucket.replace("s3://", "s3://test:test@") + "/lake"
    seal(journal, "orders", lake=f"{place}?scheme=http&endpoint_override={address}&region=us-east-1", through=900)
    assert len(list(journal.topic("orders").read())) == EVENTS
    assert rows(read(spark, journal)) == before
    assert rows(read_topic(spark, journal, "orders")) == before
    settings: Any = spark._jsc.hadoopConfiguration()
    settings.set("fs.s3a.impl", "org.apache.hadoop.fs.LocalFileSystem")  # one that knows nothing of this endpoint
    try:
        assert rows(read_topic(spark, journal, "orders")) == before
    finally:
        settings.unset("fs.s3a.impl")


def test_the_source_reads_across_the_seam(url: str, journal: penstock.Journal, tmp_path: Path) -> None:
    before = read_plainly(url, topic="orders")
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=800, file_events=300)
    for options, expected in (
        ({}, before),
        ({"minPartitions": 5}, before),
        ({"startingOffsets": 250, "endingOffsets": 950}, before[250:950]),
    ):
        assert read_plainly(url, topic="orders", **options) == expected
    some = read_plainly(url, topic="orders", where="seq > 700 and seq <= 900 and kind = 'placed'")
    assert some == [row for row in before[700:900] if row["kind"] == "placed"]
    parsed = read_plainly(url, "seq BIGINT, n BIGINT", topic="orders", payloadSchema="n BIGINT")
    assert parsed == [{"seq": n + 1, "n": n} for n in range(EVENTS)]


@pytest.mark.parametrize("indexed", [False, True])
def test_wanted_events_are_looked_up_across_the_seam(
    url: str, journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    monkeypatch.setattr(sources, "_LOOK_UP", 1)
    before = read_plainly(url, topic="orders")
    if indexed:
        journal.maintain()
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=800, file_events=300)
    for where, wanted in (
        ("key = 'k3'", lambda row: row["key"] == "k3"),
        ("key startswith 'k3' and kind = 'paid'", lambda row: row["key"] == "k3" and row["kind"] == "paid"),
        ("seq in (5, 799, 801, 1200)", lambda row: row["seq"] in (5, 799, 801, 1200)),
        (f"id = '{before[10]['id']}'", lambda row: row["seq"] == 11),
    ):
        found = read_plainly(url, topic="orders", where=where)
        assert sorted(found, key=lambda row: row["seq"]) == [row for row in before if wanted(row)]


@needs_limits
def test_a_stream_from_the_beginning_reads_sealed_history_and_goes_on(
    url: str, journal: penstock.Journal, tmp_path: Path
) -> None:
    """Sealing goes on between the batches of the query, and past where it is."""
    folder, stream = str(tmp_path / "lake"), Stream(url, topic="orders", maxOffsetsPerTrigger=450)
    seal(journal, "orders", lake=folder, through=300)
    found = [stream.batch()]
    seal(journal, "orders", lake=folder, through=700)
    found += stream.batches()
    journal.topic("orders").append_many([_draft(n) for n in range(EVENTS, EVENTS + 10)])
    seal(journal, "orders", lake=folder, through=EVENTS + 10)
    found += stream.batches()
    assert seqs([row for batch in found for row in batch or []]) == list(range(1, EVENTS + 11))


def test_plain_parquet_readers_use_the_sealed_part(journal: penstock.Journal, tmp_path: Path) -> None:
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=1000, file_events=300)
    dataset = pyarrow.dataset.dataset(tmp_path / "lake" / "orders", partitioning="hive")
    field = pyarrow.dataset.field
    table = dataset.to_table(filter=field("date") == "2026-03-02").sort_by("seq")
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    sealed = [event for event in journal.topic("orders").read(through=1000) if event.recorded_at >= midnight]
    assert table["seq"].to_pylist() == [event.seq for event in sealed]
    assert table["payload"][0].as_py() == sealed[0].raw.decode()
    assert dataset.count_rows() == 1000


def test_threads_and_spark_write_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "one.db") as journal:
        for day in range(3):
            drafts = [Draft("placed", {"n": n, "of": day}, key=f"k{n % 7}", headers={"h": "1"}) for n in range(700)]
            journal.topic("orders").append_many(drafts)
        journal.topic("orders").append("raw", b"\xff\x00")
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    found = []
    for name, given in (("one", {"threads": True}), ("two", {})):
        with penstock.open(tmp_path / f"{name}.db") as journal:
            asked = {"lake": str(tmp_path / name), "through": 2101, "file_events": 500, "columns": "n INT"}
            if given:
                report = seal_topic(local(journal, "a test")._core, "orders", **_threads(asked))
            else:
                report = seal(journal, "orders", **asked)  # a session is there
            assert (report.events, report.files) == (2101, 5)
        files = sorted((tmp_path / name / "orders").rglob("date=*/*.parquet"))
        found.append({path.name.rpartition("-")[0]: path.read_bytes() for path in files})
    assert found[0] == found[1] and len(found[0]) == 5


def _threads(asked: dict[str, Any]) -> dict[str, Any]:
    """The same seal without Spark."""
    rest = {name: value for name, value in asked.items() if name != "columns"}
    return {**rest, "table": TableRequest(None, asked["columns"], None)}


def test_a_session_that_is_there_is_used_and_one_that_cannot_reach_is_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []

    def noted(*args: Any, write: Any, **options: Any) -> Any:
        used.append(write is not None)
        return seal_topic(*args, write=write, **options)

    monkeypatch.setattr(sealing, "seal_topic", noted)
    with penstock.open(tmp_path / "shop.db") as journal, penstock.open("memory:") as other:
        for one in (journal, other):
            one.topic("orders").append_many([Draft("placed", n) for n in range(10)])
            assert seal(one, "orders", lake=str(tmp_path / str(len(used))), through=10).events == 10
    assert used == [True, False]

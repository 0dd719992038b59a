"""The source `penstock-buffer`: a buffer's batches as a table and a stream, with the query as its one consumer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from buffer.emulator import Emulator
from penstock.buffer import Consumer, Producer
from penstock.buffer.format import encode_batch, parse_manifest
from penstock.buffer.store import open_store
from penstock.spark.buffer.options import read_options, resolved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


def produce(url: str, *batches: list[bytes], metadata: bytes = b"", **options: Any) -> None:
    """Each list becomes an object of its own."""
    with Producer(url, **options) as producer:
        for entries in batches:
            producer.produce(entries, metadata)
            producer.flush()


def manifest(url: str, path: str = "ingest/manifest") -> Any:
    return parse_manifest(open_store(url).get(path))


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("penstock-buffer").options(url=url, **options).load()


class Seen:
    """What the batches of a query held, gathered in this process."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        found = frame.selectExpr("sequence", "cast(entry as string) as entry").collect()
        self.rows += sorted((row.sequence, row.entry) for row in found)


def start(spark: SparkSession, url: str, checkpoint: Path, **options: Any) -> tuple[Any, Seen]:
    seen = Seen()
    stream = spark.readStream.format("penstock-buffer").options(url=url, **options).load()
    writer = stream.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint))
    return writer.start(), seen


# ── batches ──


def test_a_batch_shows_every_entry_with_where_it_came_from_and_takes_nothing(spark: SparkSession, url: str):
    with Producer(url) as producer:
        producer.produce([b"a", b"b"], b"first")
        producer.produce([b"\xff"], b"second")
        producer.flush()
        producer.produce([b""])
    found = read(spark, url).orderBy("sequence", "index").collect()
    assert read(spark, url).columns == ["sequence", "index", "entry", "metadata", "ingested_at", "location"]
    assert [(row.sequence, row["index"], bytes(row.entry), bytes(row.metadata)) for row in found] == [
        (0, 0, b"a", b"first"),
        (0, 1, b"b", b"first"),
        (0, 2, b"\xff", b"second"),
        (1, 0, b"", b""),
    ]
    stored = list(manifest(url))
    assert [row.location for row in found] == [stored[0].location] * 3 + [stored[1].location]
    times = read(spark, url).selectExpr("unix_millis(ingested_at) as at").orderBy("at").collect()
    assert times[0].at == stored[0].metadata[0].ingested_at_ms
    assert manifest(url).epoch == 0, "a look fences nobody"


def test_entries_without_metadata_have_none(spark: SparkSession, url: str):
    from penstock.buffer import Metadata
    from penstock.buffer.format import append

    store = open_store(url)
    store.put("ingest/x.batch", encode_batch([b"a", b"b", b"c"]))
    store.put_if("ingest/manifest", append(manifest(url), [("ingest/x.batch", [Metadata(2, 1000, b"late")])]), None)
    found = read(spark, url).orderBy("index").collect()
    assert [row.metadata and bytes(row.metadata) for row in found] == [None, None, b"late"]
    assert [row.ingested_at is None for row in found] == [True, True, False]


def test_an_empty_buffer_and_one_that_is_not_there_have_no_rows(spark: SparkSession, url: str):
    assert read(spark, url).count() == 0
    produce(url, [b"a"])
    with Consumer(url) as consumer:
        consumer.ack_through(0)
    assert read(spark, url).count() == 0


def test_only_the_columns_of_a_given_schema_are_built(spark: SparkSession, url: str):
    produce(url, [b"a", b"b"])
    frame = spark.read.format("penstock-buffer").schema("index INT, sequence BIGINT").load(url)
    assert sorted(map(tuple, frame.collect())) == [(0, 0), (1, 0)]


def test_many_objects_are_shared_out_to_a_bounded_number_of_tasks(spark: SparkSession, url: str):
    produce(url, *[[f"{n}".encode()] for n in range(40)])
    assert read(spark, url).rdd.getNumPartitions() == 32
    assert read(spark, url, minPartitions=40).rdd.getNumPartitions() == 40
    found = read(spark, url).selectExpr("cast(entry as string) as entry").collect()
    assert sorted(int(row.entry) for row in found) == list(range(40))


def test_all_shards_of_a_buffer_are_read(spark: SparkSession, url: str):
    produce(url, [f"k{n}".encode() for n in range(50)], shards=3, key=lambda entry: entry)
    found = read(spark, url, shards=3).selectExpr("cast(entry as string) as entry", "location").collect()
    assert sorted(row.entry for row in found) == sorted(f"k{n}" for n in range(50))
    assert {row.location.split("/")[1] for row in found} == {f"shard-0000{n}-of-00003" for n in range(3)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no buffer is named"),
        ({"url": "memory://x"}, "memory:// lives in one"),
        ({"url": "ftp://x"}, "does not name a store"),
        ({"url": "file:///x", "region": "r"}, "no option 'region'"),
        ({"url": "file:///x", "compression": "zstd"}, "no option 'compression'"),
        ({"url": "s3://b", "nonsense": "hidden-value"}, "'nonsense' is not valid"),
        ({"url": "file:///x", "shards": "0"}, "shards must be"),
        ({"url": "file:///x", "startingOffsets": "5"}, "startingOffsets"),
        ({"url": "file:///x", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"url": "file:///x", "gcGrace": "soon"}, "gcGrace"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: dict[str, str], says: str):
    given = {name: value.replace("file:///x", f"file://{tmp_path}") for name, value in options.items()}
    with pytest.raises(ValueError, match=says) as raised:
        read_options(resolved(given))
    assert "hidden-value" not in str(raised.value)


def test_a_secret_shows_in_no_description_of_a_reader():
    given = resolved({"url": "s3://b/x", "secret_access_key": "hush", "access_key_id": "hush"})
    assert "hush" not in repr(read_options(given))
    assert read_options(given) == pickle.loads(pickle.dumps(read_options(given)))


def test_a_damaged_object_stops_the_query_and_names_itself(spark: SparkSession, url: str):
    produce(url, [b"a"])
    (broken,) = [each.location for each in manifest(url)]
    open_store(url).put(broken, b"rubbish!")
    with pytest.raises(PySparkException, match=broken):
        read(spark, url).collect()


# ── streams ──


def test_a_stream_reads_what_comes_and_acknowledges_what_its_checkpoint_holds(
    spark: SparkSession, url: str, tmp_path: Path
):
    produce(url, [b"a", b"b"], [b"c"])
    query, acknowledging = start(spark, url, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        assert acknowledging.rows == [(0, "a"), (0, "b"), (1, "c")]
        assert manifest(url).count == 2, "the newest batch may be asked for again until the next one is planned"
        produce(url, [b"d"])
        query.processAllAvailable()
        assert acknowledging.rows[3:] == [(2, "d")]
        assert [each.sequence for each in manifest(url)] == [2]
    finally:
        query.stop()
    assert [each.sequence for each in manifest(url)] == [2], "stopping acknowledges nothing"
    produce(url, [b"e"])
    query, continued = start(spark, url, tmp_path / "checkpoint")
    query.processAllAvailable()
    query.stop()
    assert continued.rows == [(3, "e")]


def test_a_batch_holds_at_most_so_many_entries(spark: SparkSession, url: str, tmp_path: Path):
    produce(url, *[[f"{n}".encode()] for n in range(5)])
    stream = spark.readStream.format("penstock-buffer").options(url=url, maxOffsetsPerTrigger=2).load()
    counts = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, number: counts.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert counts == [2, 2, 1]


def test_a_second_query_fences_the_first_which_says_so(spark: SparkSession, url: str, tmp_path: Path):
    produce(url, [b"a"])
    first, _ = start(spark, url, tmp_path / "first")
    first.processAllAvailable()
    second, seen = start(spark, url, tmp_path / "second")
    try:
        second.processAllAvailable()
        with pytest.raises(StreamingQueryException, match=r"another query or consumer took over ingest/manifest"):
            first.awaitTermination(600)
        assert seen.rows == [(0, "a")]
    finally:
        second.stop()
        first.stop()


def test_a_query_that_starts_at_the_latest_leaves_what_is_there_behind(spark: SparkSession, url: str, tmp_path: Path):
    produce(url, [b"old"])
    query, latest = start(spark, url, tmp_path / "checkpoint", startingOffsets="latest")
    try:
        query.processAllAvailable()
        produce(url, [b"new"])
        query.processAllAvailable()
        assert latest.rows == [(1, "new")]
    finally:
        query.stop()


def test_entries_that_another_consumer_removed_stop_the_query_unless_it_can_do_without(
    spark: SparkSession, url: str, tmp_path: Path
):
    produce(url, [b"a"])
    query, _ = start(spark, url, tmp_path / "checkpoint")
    query.processAllAvailable()
    query.stop()
    produce(url, [b"b"], [b"c"])
    with Consumer(url) as consumer:
        consumer.ack_through(1)
    query, _ = start(spark, url, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="entries 1 to 1 of ingest/manifest were removed"):
        query.processAllAvailable()
    query, lenient = start(spark, url, tmp_path / "checkpoint", failOnDataLoss="false")
    query.processAllAvailable()
    query.stop()
    assert lenient.rows == [(2, "c")]


def test_a_checkpoint_of_other_shards_is_refused(spark: SparkSession, url: str, tmp_path: Path):
    produce(url, [b"a"])
    query, _ = start(spark, url, tmp_path / "checkpoint")
    query.processAllAvailable()
    query.stop()
    query, _ = start(spark, url, tmp_path / "checkpoint", shards=2)
    with pytest.raises(StreamingQueryException, match="Start with a new checkpoint"):
        query.processAllAvailable()


def test_a_stream_of_shards_follows_each_of_them(spark: SparkSession, url: str, tmp_path: Path):
    options = {"shards": 2, "key": lambda entry: entry}
    produce(url, [b"k1", b"k2", b"k3"], **options)
    query, shards = start(spark, url, tmp_path / "checkpoint", shards=2)
    try:
        query.processAllAvailable()
        produce(url, [b"k4", b"k5", b"k6", b"k7"], **options)
        query.processAllAvailable()
        assert sorted(entry for _, entry in shards.rows) == [f"k{n}" for n in range(1, 8)]
    finally:
        query.stop()


def test_options_reach_an_object_store(spark: SparkSession, emulator: Emulator):
    bucket = emulator.bucket()
    produce(bucket, [b"a", b"b"], options=emulator.options)
    frame = read(spark, f"{bucket}", **emulator.options)
    assert sorted(bytes(row.entry) for row in frame.collect()) == [b"a", b"b"]

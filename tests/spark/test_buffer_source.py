"""The source `penstock-buffer`: a buffer's batches as a table and a stream, with the query as its one consumer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from since import needs_limits
from without_spark import Row, Stream, rows_of, schema_of, source
from without_spark import read as read_from

from buffer.emulator import Emulator
from penstock.buffer import Consumer, Metadata, Producer
from penstock.buffer.format import append, encode_batch, parse_manifest
from penstock.errors import ConfigError, Fenced, PenstockError, PositionTrimmed
from penstock.objects.store import open_store
from penstock.spark.buffer import BufferSource, read_options, resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Follow = Callable[..., Stream]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


@pytest.fixture
def follow(url: str) -> Iterator[Follow]:
    """Starts queries over the buffer under test, which stop with it."""
    started: list[Stream] = []

    def follow(checkpoint: list[Any] | None = None, **options: object) -> Stream:
        started.append(Stream(url, checkpoint, of=BufferSource, **options))
        return started[-1]

    yield follow
    for stream in started:
        stream.stop()


def produce(url: str, *batches: list[bytes], metadata: bytes = b"", **options: Any) -> None:
    """Each list becomes an object of its own."""
    with Producer(url, **options) as producer:
        for entries in batches:
            producer.produce(entries, metadata)
            producer.flush()


def manifest(url: str, path: str = "ingest/manifest") -> Any:
    return parse_manifest(open_store(url).get(path))


def read(url: str, schema: str | None = None, **options: object) -> list[Row]:
    return read_from(url, schema, of=BufferSource, **options)


def entries(rows: list[Row]) -> list[tuple[int, bytes]]:
    return [(row["sequence"], row["entry"]) for row in rows]


# ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_entries_without_metadata_have_none(url: str) -> None:
    store = open_store(url)
    store.put("ingest/x.batch", encode_batch([b"a", b"b", b"c"]))
    store.put_if("ingest/manifest", append(manifest(url), [("ingest/x.batch", [Metadata(2, 1000, b"late")])]), None)
    found = read(url)
    assert [row["metadata"] for row in found] == [None, None, b"late"]
    assert [row["ingested_at"] is None for row in found] == [True, True, False]


def test_an_empty_buffer_and_one_that_is_not_there_have_no_rows(url: str) -> None:
    assert read(url) == []
    produce(url, [b"a"])
    with Consumer(url) as consumer:
        consumer.ack_through(0)
    assert read(url) == []


def test_only_the_columns_of_a_given_schema_are_built(url: str) -> None:
    produce(url, [b"a", b"b"])
    assert read(url, "index INT, sequence BIGINT") == [{"index": 0, "sequence": 0}, {"index": 1, "sequence": 0}]


def test_many_objects_are_shared_out_to_a_bounded_number_of_tasks(url: str) -> None:
    produce(url, *[[f"{n}".encode()] for n in range(40)])
    for options, tasks in (({}, 32), ({"minPartitions": 40}, 40)):
        found = source(url, of=BufferSource, **options)
        reader = found.reader(schema_of(found))
        shares = reader.partitions()
        assert len(shares) == tasks
        assert sorted(int(row["entry"]) for row in rows_of(reader, shares)) == list(range(40))


def test_all_shards_of_a_buffer_are_read(url: str) -> None:
    produce(url, [f"k{n}".encode() for n in range(50)], shards=3, key=lambda entry: entry)
    found = read(url, shards=3)
    assert sorted(row["entry"] for row in found) == sorted(f"k{n}".encode() for n in range(50))
    assert {row["location"].split("/")[1] for row in found} == {f"shard-0000{n}-of-00003" for n in range(3)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no buffer is named"),
        ({"url": "memory://x"}, "memory:// lives in one"),
        ({"url": "ftp://x"}, "does not name a store"),
        ({"url": "file:///x", "region": "r"}, "no option 'region'"),
        ({"url": "file:///x", "maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"url": "s3://b", "nonsense": "hidden-value"}, "'nonsense' is not valid"),
        ({"url": "file:///x", "shards": "0"}, "shards must be"),
        ({"url": "file:///x", "startingOffsets": "5"}, "startingOffsets"),
        ({"url": "file:///x", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"url": "file:///x", "gcGrace": "soon"}, "gcGrace"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: dict[str, str], says: str) -> None:
    given = {name: value.replace("file:///x", f"file://{tmp_path}") for name, value in options.items()}
    with pytest.raises(ValueError, match=says) as raised:
        read_options(resolved(given))
    assert "hidden-value" not in str(raised.value)


def test_a_secret_shows_in_no_description_of_a_reader() -> None:
    given = resolved({"url": "s3://b/x", "secret_access_key": "hush", "access_key_id": "hush"})
    assert "hush" not in repr(read_options(given))
    assert read_options(given) == pickle.loads(pickle.dumps(read_options(given)))


def test_a_damaged_object_stops_the_query_and_names_itself(url: str) -> None:
    produce(url, [b"a"])
    (broken,) = [each.location for each in manifest(url)]
    open_store(url).put(broken, b"rubbish!")
    with pytest.raises(PenstockError, match=broken):
        read(url)


def test_options_reach_an_object_store(emulator: Emulator) -> None:
    bucket = emulator.bucket()
    produce(bucket, [b"a", b"b"], options=emulator.options)
    assert [row["entry"] for row in read(bucket, **emulator.options)] == [b"a", b"b"]


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@needs_limits
def test_a_batch_holds_at_most_so_many_objects(url: str, follow: Follow) -> None:
    produce(url, *[[f"{n}".encode()] for n in range(5)])
    assert [len(batch) for batch in follow(maxOffsetsPerTrigger=2, available_now=True).batches()] == [2, 2, 1]


def test_a_second_query_fences_the_first_which_says_so(url: str, follow: Follow) -> None:
    produce(url, [b"a"])
    first, second = follow(), follow()
    first.batches()
    assert entries(second.rows()) == [(0, b"a")]
    with pytest.raises(Fenced, match=r"another query or consumer took over ingest/manifest"):
        first.batches()


def test_a_query_that_starts_at_the_latest_leaves_what_is_there_behind(url: str, follow: Follow) -> None:
    produce(url, [b"old"])
    latest = follow(startingOffsets="latest")
    assert latest.rows() == []
    produce(url, [b"new"])
    assert entries(latest.rows()) == [(1, b"new")]


def test_entries_that_another_consumer_removed_stop_the_query_unless_it_can_do_without(
    url: str, follow: Follow
) -> None:
    checkpoint: list[Any] = []
    produce(url, [b"a"])
    follow(checkpoint).batches()
    produce(url, [b"b"], [b"c"])
    with Consumer(url) as consumer:
        consumer.ack_through(1)
    with pytest.raises(PositionTrimmed, match="entries 1 to 1 of ingest/manifest were removed"):
        follow(checkpoint[:]).batches()
    assert entries(follow(checkpoint, failOnDataLoss="false").rows()) == [(2, b"c")]


def test_a_checkpoint_of_other_shards_is_refused(url: str, follow: Follow) -> None:
    checkpoint: list[Any] = []
    produce(url, [b"a"])
    follow(checkpoint).batches()
    with pytest.raises(ConfigError, match="Start with a new checkpoint"):
        follow(checkpoint, shards=2).batches()


def test_a_stream_of_shards_follows_each_of_them(url: str, follow: Follow) -> None:
    options = {"shards": 2, "key": lambda entry: entry}
    stream, found = follow(shards=2), []
    for keys in ([b"k1", b"k2", b"k3"], [b"k4", b"k5", b"k6", b"k7"]):
        produce(url, keys, **options)
        found += stream.rows()
    assert sorted(row["entry"] for row in found) == [f"k{n}".encode() for n in range(1, 8)]


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_batch_shows_every_entry_with_where_it_came_from_and_takes_nothing(spark: SparkSession, url: str) -> None:
    with Producer(url, flush_interval=3600) as producer:
        producer.produce([b"a", b"b"], b"first")
        producer.produce([b"\xff"], b"second")
        producer.flush()
        producer.produce([b""])
    frame = spark.read.format("penstock-buffer").load(url)
    assert frame.columns == ["sequence", "index", "entry", "metadata", "ingested_at", "location"]
    found = frame.selectExpr("*", "unix_millis(ingested_at) AS at").orderBy("sequence", "index").collect()
    assert [(row.sequence, row["index"], bytes(row.entry), bytes(row.metadata)) for row in found] == [
        (0, 0, b"a", b"first"),
        (0, 1, b"b", b"first"),
        (0, 2, b"\xff", b"second"),
        (1, 0, b"", b""),
    ]
    stored = list(manifest(url))
    assert [row.location for row in found] == [stored[0].location] * 3 + [stored[1].location]
    assert found[0]["at"] == stored[0].metadata[0].ingested_at_ms
    assert manifest(url).epoch == 0, "a look fences nobody"


def test_a_stream_reads_what_comes_and_acknowledges_what_its_checkpoint_holds(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, bytes]] = []

    def start() -> Any:
        def gather(frame: Any, batch: int) -> None:
            seen.extend(sorted((row.sequence, bytes(row.entry)) for row in frame.collect()))

        stream = spark.readStream.format("penstock-buffer").options(url=url).load()
        return stream.writeStream.foreachBatch(gather).option("checkpointLocation", str(tmp_path / "c")).start()

    produce(url, [b"a", b"b"], [b"c"])
    query = start()
    try:
        query.processAllAvailable()
        assert seen == [(0, b"a"), (0, b"b"), (1, b"c")]
        assert manifest(url).count == 2, "the newest batch may be asked for again until the next one is planned"
        produce(url, [b"d"])
        query.processAllAvailable()
        assert seen[3:] == [(2, b"d")] and [each.sequence for each in manifest(url)] == [2]
    finally:
        query.stop()
    assert [each.sequence for each in manifest(url)] == [2], "stopping acknowledges nothing"
    produce(url, [b"e"])
    query = start()
    query.processAllAvailable()
    query.stop()
    assert seen[4:] == [(3, b"e")]

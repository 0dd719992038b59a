"""The sink `penstock-buffer`: what tasks upload appears at once, once per batch of a query."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.buffer import Batch, Consumer, Producer
from penstock.buffer.format import parse_manifest
from penstock.buffer.naming import shard_of
from penstock.buffer.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


def save(frame: DataFrame, url: str, **options: Any) -> None:
    frame.write.format("penstock-buffer").mode("append").options(url=url, **options).save()


def batches(url: str, **options: Any) -> list[Batch]:
    """What is in the buffer, removed from it."""
    found: list[Batch] = []
    with Consumer(url, gc_interval=None, **options) as consumer:
        consumer.run(found.append, until_empty=True)
    return found


def entries(url: str, **options: Any) -> list[bytes]:
    return [entry for batch in batches(url, **options) for entry in batch]


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("entry"))


def test_a_frame_becomes_objects_in_the_order_of_its_rows(spark: SparkSession, url: str):
    save(numbers(spark, 1000), url)
    assert parse_manifest(open_store(url).get("ingest/manifest")).count == 2
    assert entries(url) == [str(n).encode() for n in range(1000)]


def test_bytes_and_metadata_are_kept_as_they_are(spark: SparkSession, url: str):
    rows = [(b"\xff\x00", b"m1"), (b"", b"m1"), (b"c", None), (b"d", b"\xfe")]
    frame = spark.createDataFrame(rows, "entry BINARY, metadata BINARY").coalesce(1)
    save(frame, url)
    (batch,) = batches(url)
    assert batch.entries == [b"\xff\x00", b"", b"c", b"d"]
    assert [batch.metadata_of(n).payload for n in range(4)] == [b"m1", b"m1", b"", b"\xfe"]
    assert len(batch.metadata) == 3


def test_large_shares_become_several_objects_compressed_on_demand(spark: SparkSession, url: str):
    frame = spark.range(0, 3000, 1, 1).select(F.lpad(F.col("id").cast("string"), 1000, "x").alias("entry"))
    save(frame, url, flushBytes=1_000_000, compression="zstd")
    found = batches(url)
    assert len(found) == 4 and all(batch.size <= 1_000_000 for batch in found)
    assert [int(entry.strip(b"x")) for batch in found for entry in batch] == list(range(3000))
    stored = sum(len(open_store(url).get(batch.location)) for batch in found)
    assert stored < 300_000


def test_rows_go_to_the_shard_of_their_key(spark: SparkSession, url: str):
    frame = numbers(spark, 200).withColumn("key", F.concat(F.lit("k"), F.col("entry").cast("int") % 7))
    save(frame, url, shards=3)
    for shard in range(3):
        found = [int(entry) for entry in entries(url, shards=3, shard=shard)]
        assert found == [n for n in range(200) if shard_of(f"k{n % 7}", 3) == shard]


def test_a_job_that_is_run_again_writes_nothing_even_after_its_entries_were_consumed(spark: SparkSession, url: str):
    save(numbers(spark, 10), url, txnAppId="nightly", txnVersion=7)
    save(numbers(spark, 10), url, txnAppId="nightly", txnVersion=7)
    assert len(entries(url)) == 10
    save(numbers(spark, 10), url, txnAppId="nightly", txnVersion=7)
    assert entries(url) == []
    save(numbers(spark, 10), url, txnAppId="nightly", txnVersion=8)
    assert len(entries(url)) == 10


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"payload": "STRING"}, {}, "no column 'payload'"),
        ({"metadata": "STRING"}, {}, 'no column "entry"'),
        ({"entry": "INT"}, {}, "must be text or bytes"),
        ({"entry": "STRING"}, {"shards": 2}, 'needs a column "key"'),
        ({"entry": "STRING", "key": "STRING"}, {}, "drop it, or set shards"),
        ({"entry": "STRING"}, {"txnAppId": "a"}, "go together"),
        ({"entry": "STRING"}, {"startingOffsets": "latest"}, "no option 'startingoffsets'"),
        ({"entry": "STRING"}, {"compression": "lz4"}, "compression is"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(
    spark: SparkSession, tmp_path: Path, columns: dict[str, str], options: dict[str, Any], says: str
):
    from pyspark.sql.types import _parse_datatype_string  # asks a session, except for names of simple types

    from penstock.spark.buffer.source import BufferSource

    schema = _parse_datatype_string(", ".join(f"{name} {kind}" for name, kind in columns.items()))
    source = BufferSource({"url": f"file://{tmp_path}/b", **{name: str(value) for name, value in options.items()}})
    with pytest.raises(ValueError, match=says):
        source.writer(schema, False)


def test_rows_without_an_entry_or_with_too_much_metadata_are_refused_whole(spark: SparkSession, url: str):
    holey = numbers(spark, 100).withColumn("entry", F.when(F.col("entry") != "50", F.col("entry")))
    with pytest.raises((PySparkException, Py4JJavaError), match="a row has no entry"):
        save(holey, url)
    wide = numbers(spark, 30_000, 1).withColumn("metadata", F.col("entry"))
    with pytest.raises((PySparkException, Py4JJavaError), match="runs of different metadata"):
        save(wide, url)
    with pytest.raises(PySparkException, match="a buffer only grows"):
        numbers(spark, 1).write.format("penstock-buffer").mode("overwrite").options(url=url).save()
    assert entries(url) == []


def copy(spark: SparkSession, source: str, target: str, checkpoint: Path) -> None:
    """From buffer to buffer, everything that is there, in small batches."""
    stream = spark.readStream.format("penstock-buffer").options(url=source, maxOffsetsPerTrigger=2).load()
    writer = stream.select("entry", "metadata").writeStream.format("penstock-buffer").options(url=target)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def test_a_stream_writes_every_batch_once_even_if_the_newest_commit_log_entry_is_lost(
    spark: SparkSession, url: str, tmp_path: Path
):
    target, checkpoint = f"file://{tmp_path}/copies", tmp_path / "checkpoint"
    with Producer(url) as producer:
        for n in range(5):
            producer.produce([f"{n}".encode()] * 2, f"m{n}".encode())
            producer.flush()
    copy(spark, url, target, checkpoint)
    wanted = [f"{n}".encode() for n in range(5) for _ in range(2)]
    assert [bytes(row.entry) for row in _look(spark, target)] == wanted
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint, kept)
    for consumed in (False, True):  # the written entries are still in the manifest, or only their marks are
        if consumed:
            shutil.rmtree(checkpoint)
            shutil.copytree(kept, checkpoint)
            assert entries(target) == wanted
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        copy(spark, url, target, checkpoint)
        assert newest.exists(), "the batch was run again"
        assert [bytes(row.entry) for row in _look(spark, target)] == ([] if consumed else wanted)


def _look(spark: SparkSession, url: str) -> list[Any]:
    return spark.read.format("penstock-buffer").load(url).orderBy("sequence", "index").collect()

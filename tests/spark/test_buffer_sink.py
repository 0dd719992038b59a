"""The sink `penstock-buffer`: what tasks upload appears at once, once per batch of a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from without_spark import Task, source, struct, write, write_batch

from penstock.buffer import Batch, Consumer
from penstock.buffer.format import parse_manifest
from penstock.buffer.manifest import shard_of
from penstock.errors import ConfigError, PenstockError
from penstock.objects.store import open_store
from penstock.spark.buffer import BufferSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/buffer"


def save(url: str, *tasks: Task, **options: object) -> None:
    write(url, *tasks, of=BufferSource, **options)


def batches(url: str, **options: Any) -> list[Batch]:
    """What is in the buffer, removed from it."""
    found: list[Batch] = []
    with Consumer(url, gc_interval=None, **options) as consumer:
        consumer.run(found.append, until_empty=True)
    return found


def entries(url: str, **options: Any) -> list[bytes]:
    return [entry for batch in batches(url, **options) for entry in batch]


def numbers(first: int, stop: int) -> list[dict[str, Any]]:
    return [{"entry": str(n)} for n in range(first, stop)]


def test_bytes_and_metadata_are_kept_as_they_are(url: str) -> None:
    found = {"entry": [b"\xff\x00", b"", b"c", b"d"], "metadata": [b"m1", b"m1", None, b"\xfe"]}
    save(url, pa.record_batch(found))
    (batch,) = batches(url)
    assert batch.entries == found["entry"]
    assert [batch.metadata_of(n).payload for n in range(4)] == [b"m1", b"m1", b"", b"\xfe"]
    assert len(batch.metadata) == 3


def test_large_shares_become_several_objects_compressed_on_demand(url: str) -> None:
    rows = [{"entry": str(n).rjust(1000, "x")} for n in range(3000)]
    save(url, rows, flushBytes=1_000_000, compression="zstd")
    found = batches(url)
    assert len(found) == 4 and all(batch.size <= 1_000_000 for batch in found)
    assert [int(entry.strip(b"x")) for batch in found for entry in batch] == list(range(3000))
    assert sum(len(open_store(url).get(batch.location)) for batch in found) < 300_000


def test_rows_go_to_the_shard_of_their_key(url: str) -> None:
    save(url, [{"entry": str(n), "key": f"k{n % 7}"} for n in range(200)], shards=3)
    for shard in range(3):
        found = [int(entry) for entry in entries(url, shards=3, shard=shard)]
        assert found == [n for n in range(200) if shard_of(f"k{n % 7}", 3) == shard]


def test_a_job_that_is_run_again_writes_nothing_even_after_its_entries_were_consumed(url: str) -> None:
    for version, left in ((7, 10), (7, 0), (8, 10)):
        for _ in range(2):
            save(url, numbers(0, 5), numbers(5, 10), txnAppId="nightly", txnVersion=version)
        assert len(entries(url)) == left


def test_a_streams_batch_that_is_run_again_writes_nothing_even_after_its_entries_were_consumed(url: str) -> None:
    for number, left in ((0, 10), (0, 0), (1, 10)):
        for _ in range(2):
            write_batch(url, number, numbers(0, 5), numbers(5, 10), of=BufferSource)
        assert len(entries(url)) == left


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"payload": "STRING"}, {}, "no column 'payload'"),
        ({"metadata": "STRING"}, {}, 'no column "entry"'),
        ({"entry": "INT"}, {}, "must be text or bytes"),
        ({"entry": "STRING"}, {"shards": 2}, 'needs a column "key"'),
        ({"entry": "STRING", "key": "STRING"}, {}, "drop it, or set shards"),
        ({"entry": "STRING"}, {"txnAppId": "a"}, "go together"),
        ({"entry": "STRING"}, {"flushSize": "7"}, "no option 'flushsize'; did you mean 'flushBytes'"),
        ({"entry": "STRING"}, {"compression": "lz4"}, "compression is"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(
    url: str, columns: dict[str, str], options: dict[str, Any], says: str
) -> None:
    schema = struct(", ".join(f"{name} {kind}" for name, kind in columns.items()))
    with pytest.raises(ValueError, match=says):
        source(url, of=BufferSource, **options).writer(schema, False)


def test_rows_without_an_entry_or_with_too_much_metadata_are_refused_whole(url: str) -> None:
    with pytest.raises(PenstockError, match="a row has no entry"):
        save(url, numbers(0, 50), [{"entry": "1"}, {"entry": None}])
    with pytest.raises(PenstockError, match="runs of different metadata"):
        save(url, [{"entry": str(n), "metadata": str(n)} for n in range(30_000)])
    with pytest.raises(ConfigError, match="a buffer only grows"):
        source(url, of=BufferSource).writer(struct("entry STRING"), True)
    assert entries(url) == []


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_frame_becomes_objects_in_the_order_of_its_rows(spark: SparkSession, url: str) -> None:
    frame = spark.range(0, 1000, 1, 2).select(F.col("id").cast("string").alias("entry"))
    frame.write.format("penstock-buffer").mode("append").options(url=url).save()
    assert parse_manifest(open_store(url).get("ingest/manifest")).count == 2
    assert entries(url) == [str(n).encode() for n in range(1000)]

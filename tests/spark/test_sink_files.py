"""Large shares of a write become events as the files that tasks write; the commit reads none of their bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from without_spark import read, source, task_of

import penstock
import penstock.spark.sink as sink
from buffer.emulator import Emulator
from penstock.core.journal.sealed.segments import Segment, load_segments
from penstock.errors import ConfigError, StorageError
from penstock.spark import read_topic, seal
from penstock.spark.journals import release_journals
from penstock.spark.places import perfect_hash
from penstock.spark.served import commit_staged
from penstock.spark.startup.settings import MASTER_VARIABLE
from server.serving import TOKENS, WRITE, Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Share = Any


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of a kibibyte are large."""
    monkeypatch.setattr(sink, "SEGMENT_BYTES", 1024)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def frame(start: int, stop: int) -> pa.RecordBatch:
    numbers = range(start, stop)
    return pa.RecordBatch.from_pydict(
        {
            "kind": ["placed"] * len(numbers),
            "key": [f"k{n % 7}" for n in numbers],
            "payload": [{"n": n, "customer": f"c{n % 3}", "items": ["a"]} for n in numbers],
        }
    )


def writer(url: str, lake: str | None, *, stream: bool = False, **options: object) -> Any:
    given = {"topic": "orders", **({} if lake is None else {"lake": lake}), **options}
    found = source(url, **given)
    schema = from_arrow_schema(frame(0, 1).schema)
    return found.streamWriter(schema, False) if stream else found.writer(schema, False)


def batch(url: str, lake: str | None, *tasks: tuple[int, int], **options: object) -> None:
    made = writer(url, lake, **options)
    made.commit([made.write(iter([frame(*task)])) for task in tasks])


def shares_of(made: Any, number: int, *tasks: tuple[int, int]) -> list[Share]:
    with task_of("query", number):
        return [made.write(iter([frame(*task)])) for task in tasks]


def numbers(journal: penstock.Journal) -> list[int]:
    return [event.payload["n"] for event in journal.topic("orders").read()]


def segments(journal: penstock.Journal) -> list[Segment]:
    with journal.backend.engine.read() as snap:  # type: ignore[attr-defined]
        return list(load_segments(snap, 1))


def files(lake: str) -> list[str]:
    return sorted(path.name for path in Path(lake).rglob("*.parquet"))


def test_large_shares_are_files_and_small_ones_blocks_in_order(
    url: str, journal: penstock.Journal, lake: str, tmp_path: Path
) -> None:
    batch(url, lake, (0, 100), (100, 103), (103, 300), (300, 302))
    assert numbers(journal) == list(range(302))
    assert [(one.first, one.count) for one in segments(journal)] == [(1, 100), (104, 197)]
    assert [row["payload"] for row in read(url, topic="orders")][99:101] == [
        '{"n":99,"customer":"c0","items":["a"]}',
        '{"n":100,"customer":"c1","items":["a"]}',
    ]
    assert not (tmp_path / "shop.db.staging").exists()
    batch(url, None, (302, 400))  # the topic has a lake by now
    assert numbers(journal) == list(range(400)) and len(segments(journal)) == 3


def test_a_journal_that_is_not_there_yet_is_made(url: str, lake: str) -> None:
    batch(url, lake, (0, 100))
    with penstock.open(url) as journal:
        assert numbers(journal) == list(range(100)) and len(segments(journal)) == 1


def test_fields_of_the_payload_are_typed_columns(url: str, journal: penstock.Journal, lake: str) -> None:
    import pyarrow.parquet as pq

    batch(url, lake, (0, 100))
    (path,) = Path(lake).rglob("*.parquet")
    table = pq.read_table(path)
    assert table.column("n").to_pylist() == list(range(100)) and table.schema.field("n").type == pa.int64()
    assert table.column("customer").to_pylist()[:3] == ["c0", "c1", "c2"]
    assert "items" not in table.schema.names and "seq" not in table.schema.names


def test_a_sealed_topic_takes_files_with_the_columns_of_its_lake(
    url: str, journal: penstock.Journal, lake: str
) -> None:
    journal.topic("orders").append("placed", {"n": -1})
    seal(journal, "orders", lake=lake, through=1, columns="n BIGINT")
    batch(url, None, (0, 100))
    assert numbers(journal) == list(range(-1, 100))
    assert [one.by_reference for one in segments(journal)] == [False, True]


def test_rows_that_are_looked_at_one_by_one_are_blocks(url: str, journal: penstock.Journal, lake: str) -> None:
    def write(options: dict[str, object], **columns: list[Any]) -> None:
        rows = frame(0, 100)
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values))
        made = source(url, topic="orders", lake=lake, **options).writer(from_arrow_schema(rows.schema), False)
        made.commit([made.write(iter([rows]))])

    write({}, dedup=[f"d{n}" for n in range(100)])
    write({}, correlation=["c"] * 100)
    write({}, tags=[["t"]] * 100)
    journal.topic("orders").configure(verified=True)
    write({})
    assert len(journal.topic("orders")) == 400 and not segments(journal) and not files(lake)


def test_a_batch_of_a_stream_that_runs_again_changes_nothing(url: str, journal: penstock.Journal, lake: str) -> None:
    for _ in range(2):
        made = writer(url, lake, stream=True)
        made.commit(shares_of(made, 0, (0, 100), (100, 200)), 0)
    made = writer(url, lake, stream=True)
    made.commit(shares_of(made, 1, (200, 300)), 1)
    assert numbers(journal) == list(range(300))
    assert len(files(lake)) == 3 == len(segments(journal))


def test_a_version_of_an_application_is_written_once(url: str, journal: penstock.Journal, lake: str) -> None:
    for _ in range(2):
        batch(url, lake, (0, 100), txnAppId="nightly", txnVersion=5)
    assert numbers(journal) == list(range(100)) and len(files(lake)) == 1


def test_other_tries_of_a_task_leave_nothing(url: str, journal: penstock.Journal, lake: str) -> None:
    made = writer(url, lake)
    made.write(iter([frame(0, 100)]))
    made.commit([made.write(iter([frame(0, 100)]))])
    assert numbers(journal) == list(range(100)) and len(files(lake)) == 1


def test_a_slow_job_keeps_its_files_while_another_ends(url: str, journal: penstock.Journal, lake: str) -> None:
    slow = writer(url, lake)
    share = slow.write(iter([frame(0, 100)]))
    batch(url, lake, (100, 200))
    slow.commit([share])
    assert numbers(journal) == [*range(100, 200), *range(100)] and len(files(lake)) == 2


def test_two_jobs_at_once(url: str, journal: penstock.Journal, lake: str) -> None:
    made = [writer(url, lake) for _ in range(4)]
    shares = [[one.write(iter([frame(at * 1000, at * 1000 + 100)]))] for at, one in enumerate(made)]
    threads = [threading.Thread(target=one.commit, args=(share,)) for one, share in zip(made, shares, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(journal)
    assert sorted(found) == [n for at in range(4) for n in range(at * 1000, at * 1000 + 100)]
    assert [found[at] % 1000 for at in range(0, 400, 100)] == [0] * 4


def test_files_that_are_gone_fail_the_commit(url: str, journal: penstock.Journal, lake: str) -> None:
    made = writer(url, lake)
    share = made.write(iter([frame(0, 100)]))
    for path in Path(lake).rglob("*.parquet"):
        path.unlink()
    with pytest.raises(StorageError, match="run the query again"):
        made.commit([share])
    assert not numbers(journal)


def test_a_topic_that_became_a_queue_takes_no_files(url: str, journal: penstock.Journal, lake: str) -> None:
    made = writer(url, lake)
    share = made.write(iter([frame(0, 100)]))
    journal.queue("orders").push({"n": 1})
    with pytest.raises(ConfigError, match="became a queue"):
        made.commit([share])
    assert len(journal.topic("orders")) == 1


STEPS = {
    "before the commit": "penstock.transfer.publishing.check_there",
    "in the commit": "penstock.transfer.publishing.remember",
    "after the commit": "penstock.transfer.publishing.remove_files",
}


KILLED = """
import importlib, os, signal, sys
import penstock.spark.sink as sink
import test_sink_files as files

sink.SEGMENT_BYTES = 1024
url, lake, place = sys.argv[1:]
where, _, name = place.rpartition(".")
setattr(importlib.import_module(where), name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
made = files.writer(url, lake, stream=True)
made.commit(files.shares_of(made, 0, (0, 100), (100, 102), (102, 300)), 0)
"""
KILLS = (
    *("penstock.core.journal.sealed.bulk.move_into_place", "penstock.transfer.publishing._stage_blocks"),
    *("penstock.transfer.publishing.plan_bulk", "penstock.transfer.publishing.check_there"),
    *("penstock.transfer.publishing.append_segments", "penstock.core.journal.sealed.referring.save_with_end"),
    *("penstock.transfer.publishing.remember", "penstock.transfer.publishing.remove_files"),
)


@pytest.mark.nightly("spark-kills")
@pytest.mark.parametrize("place", KILLS)
def test_a_commit_that_is_killed_anywhere_is_done_once(url: str, lake: str, place: str) -> None:
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder.parent}"}
    words = [sys.executable, "-c", KILLED, url, lake, place]
    assert subprocess.run(words, env=environment, check=False).returncode == -signal.SIGKILL
    with penstock.open(url) as journal:
        assert numbers(journal) == (list(range(300)) if place == KILLS[-1] else [])
        again = writer(url, lake, stream=True)
        again.commit(shares_of(again, 0, (0, 100), (100, 102), (102, 300)), 0)
        assert numbers(journal) == list(range(300)) and len(segments(journal)) == 2
        assert len([name for name in files(lake) if not name.startswith("_")]) == 2


@pytest.mark.parametrize("step", STEPS)
def test_a_stream_that_is_killed_between_two_steps_goes_on(
    url: str, journal: penstock.Journal, lake: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = writer(url, lake, stream=True)
    shares = shares_of(first, 0, (0, 100), (100, 102), (102, 300))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt(step)

    with monkeypatch.context() as patched:
        patched.setattr(STEPS[step], die)
        with pytest.raises(KeyboardInterrupt):
            first.commit(shares, 0)
    assert numbers(journal) in ([], list(range(300)))
    again = writer(url, lake, stream=True)
    again.commit(shares_of(again, 0, (0, 100), (100, 102), (102, 300)), 0)
    assert numbers(journal) == list(range(300)) and len(files(lake)) == 2
    with journal.backend.engine.read() as snap:  # type: ignore[attr-defined]
        assert not list(snap.scan(b"w", b"x"))  # nothing stays staged


def test_a_journal_in_a_bucket_has_a_lake_of_its_own(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{emulator.bucket()}/shop"
    try:
        batch(url, None, (0, 100), (100, 102))
        batch(url, None, (102, 202))
        with penstock.open(url, read_only=True) as journal:
            assert numbers(journal) == list(range(202))
            assert [(one.first, one.count) for one in segments(journal)] == [(1, 100), (103, 100)]
            assert {one.lake for one in segments(journal)} == {f"{url}/penstock/lake"}
    finally:
        release_journals()


@pytest.fixture
def sealing(journal: penstock.Journal, lake: str) -> Iterator[Served]:
    """The journal at a server that may use the lake."""
    with serving(journal, tokens=TOKENS, token=WRITE, lakes=[lake]) as served:
        yield served


def test_a_server_refers_to_files_that_tasks_wrote(
    sealing: Served, journal: penstock.Journal, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[object] = []
    monkeypatch.setattr("penstock.spark.served.send_piece", lambda *given: staged.append(given))
    batch(sealing.url, lake, (0, 100), (100, 200), token=WRITE)
    batch(sealing.url, None, (200, 300), token=WRITE)  # the topic has a lake by now
    assert numbers(journal) == list(range(300)) and len(segments(journal)) == 3 and not staged


def test_a_server_publishes_files_and_blocks_in_order(sealing: Served, journal: penstock.Journal, lake: str) -> None:
    for _ in range(2):
        made = writer(sealing.url, lake, stream=True, token=WRITE)
        made.commit(shares_of(made, 0, (0, 3), (3, 100), (100, 102), (102, 300), (300, 302)), 0)
    assert numbers(journal) == list(range(302)) and len(files(lake)) == 2 == len(segments(journal))


def test_a_commit_whose_answer_is_lost_is_done_once(
    sealing: Served, journal: penstock.Journal, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def losing(server: Any, request: Any) -> bool:
        asked.append(commit_staged(server, request))  # done, and not heard of
        asked.append(commit_staged(server, request))
        return True

    monkeypatch.setattr("penstock.spark.served.commit_staged", losing)
    batch(sealing.url, lake, (0, 100), (100, 101), token=WRITE)
    assert asked == [True, False] and numbers(journal) == list(range(101))


def test_a_server_takes_no_files_from_elsewhere(
    sealing: Served, journal: penstock.Journal, lake: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="start it with --lake"):
        writer(sealing.url, str(tmp_path / "other"), token=WRITE)
    made = writer(sealing.url, lake, token=WRITE)
    share = made.write(iter([frame(0, 100)]))
    (file,) = sink._decode_files(share.segments)
    for path in (
        f"orders/../{file.path}",
        "orders/date=2026-01-01/x.parquet",
        file.path.replace("orders", "others", 1),
    ):
        share.segments = sink._encode_files([msgspec.structs.replace(file, path=path)])
        with pytest.raises((ConfigError, StorageError)):
            made.commit([share])
    share.segments = sink._encode_files([msgspec.structs.replace(file, lake=str(tmp_path))])
    with pytest.raises(ConfigError, match="no files become events"):
        made.commit([share])
    assert not numbers(journal)


def test_tasks_that_cannot_reach_a_servers_lake_send_blocks(
    sealing: Served, journal: penstock.Journal, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(sealing.url, lake, (0, 100), token=WRITE)
    monkeypatch.setenv(MASTER_VARIABLE, "spark://x:1")
    batch(sealing.url, None, (100, 200), token=WRITE)
    assert numbers(journal) == list(range(200)) and len(segments(journal)) == 1
    with pytest.raises(ConfigError, match="cannot write to"):
        writer(sealing.url, lake, token=WRITE)


def test_spark_writes_files_and_reads_them_itself(
    spark: SparkSession, url: str, journal: penstock.Journal, lake: str
) -> None:
    from pyspark.sql import functions as F

    journal.topic("orders").append("hot", {"n": -1, "text": None}, key="k42")
    rows = spark.range(200_000).select(
        F.lit("placed").alias("kind"),
        F.concat(F.lit("k"), F.col("id") % 100).alias("key"),
        F.struct(F.col("id").alias("n"), F.lit("x" * 100).alias("text")).alias("payload"),
    )
    rows.write.format("penstock").mode("append").options(url=url, topic="orders", lake=lake).save()
    assert sum(one.count for one in segments(journal)) == 200_000
    assert [event.payload["n"] for event in journal.topic("orders").read(key="k42", limit=3)] == [-1, 42, 142]
    for start in (0, 3):  # of files alone, and of files among blocks
        batch(url, None, (start * 100, (start + 1) * 100))
        journal.topic("orders").append("hot", {"n": -2, "text": "y"})
    given = {"payloadSchema": "n BIGINT, text STRING"}
    by_source = spark.read.format("penstock").options(url=url, topic="orders", **given).load()
    by_spark = read_topic(spark, url, "orders", **given)
    assert by_spark.schema == by_source.schema and by_spark.count() == 200_203
    said = [F.xxhash64(*[F.to_json(name) if name == "headers" else name for name in by_source.columns])]
    digests = [
        frame.select(F.sum(F.col("h").cast("decimal(38,0)")), F.sum("seq"), F.countDistinct("id")).first()
        for frame in (frame.select(*said, "seq", "id").toDF("h", "seq", "id") for frame in (by_source, by_spark))
    ]
    assert digests[0] == digests[1] and digests[0][2] == 200_203
    where = "seq between 99998 and 100001 or seq in (1, 2, 200001, 200002, 200100, 200103, 200203)"
    assert sorted(by_spark.where(where).collect()) == sorted(by_source.where(where).collect())
    part = read_topic(spark, url, "orders", startingOffsets="50000", endingOffsets="150000")
    assert part.selectExpr("count(*)", "min(seq)", "max(seq)").first() == (100_000, 50_001, 150_000)
    plan = by_spark.select("n")._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan and "crc32" not in plan  # a query pays for places only when it wants them


def test_every_file_has_a_slot_of_its_own() -> None:
    for count in (1, 2, 3, 100, 3_000):
        found = perfect_hash([f"{n * 7919:x}-{n % 3}.parquet" for n in range(count)])
        assert len(set(found.slots)) == count and max(found.slots) < found.size

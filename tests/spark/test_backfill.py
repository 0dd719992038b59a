"""Flows with a long sealed history ahead: Spark reads the files, the source goes on, and every event comes once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from since import HAS_LIMITS, needs_limits

import penstock
from bulk_files import bulk_append
from penstock import Draft, Projection, on
from penstock.errors import FlowFailed
from penstock.spark import backfill, flow, project, seal, topic
from penstock.spark.pipeline.flows import Endpoint, Flow
from penstock.spark.pipeline.running import run
from server.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n BIGINT, product STRING"


class Product(Projection):
    total: int = 0
    last: int = -1

    @on("placed")
    def place(self, payload: Any) -> None:
        assert payload["n"] > self.last, "in order"
        self.last = payload["n"]
        self.total += payload["n"]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the source would read as fast count as worth reading."""
    monkeypatch.setattr(backfill, "BACKFILL_EVENTS", 100)
    monkeypatch.setattr(backfill, "BACKFILL_FILE_EVENTS", 1)


def draft(n: int) -> Draft:
    return Draft("placed", {"n": n, "product": f"p{n % 3}"}, key=f"p{n % 3}")


def add_sealed(journal: penstock.Journal, lake: Path, start: int, stop: int, name: str = "orders") -> None:
    """Events that lie in sealed files, of several sizes, and ten behind them that do not."""
    for low in range(start, stop, 100):
        journal.topic(name).append_many(list(map(draft, range(low, min(low + 100, stop)))))
        seal(journal, name, lake=str(lake), through=journal.topic(name).latest, columns=SCHEMA)
    journal.topic(name).append_many(list(map(draft, range(stop, stop + 10))))


@pytest.fixture
def sealed(journal: penstock.Journal, tmp_path: Path) -> penstock.Journal:
    """A journal with 250 orders in three files, and ten that are not sealed."""
    add_sealed(journal, tmp_path / "lake", 0, 250)
    return journal


def orders(**options: object) -> Endpoint:
    return topic("orders", payload_schema=SCHEMA, **options)


def copies(source: Endpoint | None = None) -> Flow:
    @flow(source=source or orders(), target=topic("copies"))
    def copies(orders: DataFrame) -> DataFrame:
        return orders.select("kind", F.struct("n").alias("payload"), "key", F.col("id").alias("cause"))

    return copies


def copies_of_text() -> Flow:
    @flow(source=topic("orders"), target=topic("copies"))
    def copies(orders: DataFrame) -> DataFrame:
        return orders.select("kind", "payload", "key", F.col("id").alias("cause"))

    return copies


def copied(journal: penstock.Journal) -> list[int]:
    return [event.payload["n"] for event in journal.topic("copies").read()]


def batch_ends(folder: Path, name: str = "copies") -> list[Any]:
    """The offsets at which the batches of a flow ended."""
    log = folder / "shop.db.checkpoints" / "pipeline" / name / "offsets"
    files = sorted((int(file.name), file) for file in log.iterdir() if file.name.isdigit())
    return [json.loads(file.read_text().splitlines()[2]) for _, file in files]


def lose_commit(checkpoint: Path) -> None:
    """Takes the newest batch back, as far as Spark knows: as if the run had died right before."""
    newest = max(
        (file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()), key=lambda file: int(file.name)
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_a_flow_reads_sealed_files_in_order_and_goes_on_where_they_end(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    (found,) = run([copies()], url=url, once=True)
    assert (found.state, found.rows, found.lag) == ("done", 260, 0)
    assert copied(sealed) == list(range(260))
    assert batch_ends(tmp_path) == [{"orders": 250}, {"orders": 260}]
    assert sealed.topic("orders").cursor("pipeline/copies") == (260 if HAS_LIMITS else 250)
    causes = {event.id: event.payload["n"] for event in sealed.topic("orders").read()}
    assert [causes[event.causation_id or ""] for event in sealed.topic("copies").read()] == list(range(260))


def test_a_flow_that_fell_behind_reads_what_was_sealed_meanwhile_from_its_files(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    run([copies()], url=url, once=True)
    sealed.topic("orders").append_many(list(map(draft, range(260, 480))))
    seal(sealed, "orders", lake=str(tmp_path / "lake"), through=480, columns=SCHEMA)
    sealed.topic("orders").append_many(list(map(draft, range(480, 500))))
    run([copies()], url=url, once=True)
    assert copied(sealed) == list(range(500))
    assert batch_ends(tmp_path)[-2:] == [{"orders": 480}, {"orders": 500}]


def test_events_that_a_bulk_write_left_in_files_are_read_there(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    rows = [("placed", f"p{n % 3}", {"n": n, "product": f"p{n % 3}"}) for n in range(200)]
    bulk_append(journal, tmp_path / "lake", rows[:120], job="one")
    bulk_append(journal, tmp_path / "lake", rows[120:], job="two")
    journal.topic("orders").append_many(list(map(draft, range(200, 210))))
    run([copies_of_text()], url=url, once=True)
    assert copied(journal) == list(range(210))
    assert batch_ends(tmp_path) == [{"orders": 200}, {"orders": 210}]


def test_a_state_goes_on_from_files_to_the_source(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    """An aggregation with a watermark, and a projection: neither drops or doubles an event at the seam."""

    @flow(source=orders(), target=topic("sums"), output_mode="update")
    def sums(orders: DataFrame) -> DataFrame:
        recent = orders.withWatermark("occurred_at", "1 minute")
        counts = recent.groupBy("product", F.window("occurred_at", "100 days")).agg(F.sum("n").alias("n"))
        return counts.selectExpr("'summed' AS kind", "product AS key", "struct(n) AS payload")

    @flow(source=topic("orders"), target=topic("states"))
    def states(orders: DataFrame) -> DataFrame:
        return project(orders, Product).selectExpr("'state' AS kind", "key", "state AS payload")

    run([sums, states], url=url, once=True)
    expected = Counter({f"p{n % 3}": 0 for n in range(3)})
    for n in range(260):
        expected[f"p{n % 3}"] += n
    assert {event.key: event.payload["n"] for event in sealed.topic("sums").read()} == expected
    assert {event.key: event.payload["total"] for event in sealed.topic("states").read()} == expected
    assert {key: sealed.topic("orders").project(Product, key).total for key in expected} == expected
    for name in ("sums", "states"):
        assert batch_ends(tmp_path, name)[0] == {"orders": 250}


def test_several_topics_of_a_stream_are_one_batch(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    sealed.topic("late").append_many(list(map(draft, range(1000, 1005))))
    add_sealed(sealed, tmp_path / "lake", 500, 620, name="more")
    run([copies(topic("orders", "more", "late", payload_schema=SCHEMA))], url=url, once=True)
    assert sorted(copied(sealed)) == [*range(260), *range(500, 630), *range(1000, 1005)]
    ends = [{"late": 0, "more": 120, "orders": 250}, {"late": 5, "more": 130, "orders": 260}]
    assert batch_ends(tmp_path) == ends


def test_a_flow_with_two_sources_reads_the_files_of_both(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    add_sealed(sealed, tmp_path / "lake", 0, 40, name="more")

    @flow(source=[orders(), topic("more", payload_schema=SCHEMA)], target=topic("copies"))
    def copies(orders: DataFrame, more: DataFrame) -> DataFrame:
        return orders.unionAll(more).select("kind", F.struct("n").alias("payload"))

    run([copies], url=url, once=True)
    assert Counter(copied(sealed)) == Counter([*range(260), *range(50)])


@needs_limits
def test_batches_of_files_keep_within_the_limit_and_larger_files_are_left_to_the_source(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    run([copies(orders(maxOffsetsPerTrigger=150))], url=url, once=True)
    assert batch_ends(tmp_path) == [{"orders": end} for end in (100, 250, 260)]
    assert copied(sealed) == list(range(260))
    run([copies(orders(maxOffsetsPerTrigger=99))], url=url, once=True, name="other")
    assert Counter(copied(sealed)) == Counter([*range(260), *range(260)])


def test_starting_offsets_in_the_middle_of_a_file_hold(
    spark: SparkSession, sealed: penstock.Journal, url: str, tmp_path: Path
) -> None:
    run([copies(orders(startingOffsets=70, kinds="placed"))], url=url, once=True)
    assert copied(sealed) == list(range(70, 260))
    assert batch_ends(tmp_path)[0] == {"orders": 250}


def test_payloads_that_do_not_fit_their_columns_are_the_sources(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    add_sealed(journal, tmp_path / "lake", 0, 200)
    journal.topic("orders").append("placed", {"n": "many"})
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=211, columns=SCHEMA)
    add_sealed(journal, tmp_path / "lake", 300, 400)
    with pytest.raises(FlowFailed, match=r"211.*n"):
        run([copies()], url=url, once=True)
    assert copied(journal) == list(range(200)), "the files before it were read"
    run([copies(orders(mode="DROPMALFORMED"))], url=url, once=True)
    assert copied(journal) == [*range(210), *range(300, 410)]


@pytest.mark.parametrize("first", ["files", "source"])
@pytest.mark.parametrize("again", ["files", "source"])
def test_a_batch_that_was_cut_off_is_read_again_by_files_or_by_the_source(
    spark: SparkSession,
    sealed: penstock.Journal,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    again: str,
) -> None:
    """Killed after the sink's commit and before Spark's: the batch is given once more, and written once."""
    least = {"files": 1, "source": 1 << 60}

    def start(reader: str) -> None:
        monkeypatch.setattr(backfill, "BACKFILL_EVENTS", least[reader])
        run([copies()], url=url, once=True)

    checkpoint = tmp_path / "shop.db.checkpoints" / "pipeline" / "copies"
    start(first)
    for _ in range(2):
        lose_commit(checkpoint)
        start(again)
    assert copied(sealed) == list(range(260))
    lose_commit(checkpoint)
    sealed.topic("orders").append_many(list(map(draft, range(260, 400))))
    seal(sealed, "orders", lake=str(tmp_path / "lake"), through=400, columns=SCHEMA)
    start(again)
    assert copied(sealed) == list(range(400))


def test_files_that_a_seal_has_joined_meanwhile_are_read_as_one(
    spark: SparkSession, journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    add_sealed(journal, tmp_path / "lake", 0, 250)
    run([copies()], url=url, once=True)
    checkpoint = tmp_path / "shop.db.checkpoints" / "pipeline" / "copies"
    lose_commit(checkpoint)
    journal.topic("orders").append_many(list(map(draft, range(260, 300))))
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=300, columns=SCHEMA, compact=True)
    run([copies()], url=url, once=True)
    assert copied(journal) == list(range(300))


def test_the_files_of_a_served_journal_are_read_where_they_lie(
    spark: SparkSession, sealed: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the lock of a run over a served journal lies in the working folder
    place = str(tmp_path / "shop.db.checkpoints")
    with serving(sealed) as served:
        run([copies()], url=served.url, once=True, checkpoints=place)
    assert copied(sealed) == list(range(260))
    assert batch_ends(tmp_path) == [{"orders": 250}, {"orders": 260}]


def test_history_that_was_removed_before_it_was_read_is_an_error(
    spark: SparkSession, sealed: penstock.Journal, url: str
) -> None:
    run([copies(orders(startingOffsets=20))], url=url, once=True)
    sealed.topic("orders").forget("pipeline/copies")
    sealed.topic("orders").append_many(list(map(draft, range(260, 400))))
    sealed.topic("orders").compact(through=300)
    with pytest.raises(FlowFailed, match=r"events 261 to 300 of topic 'orders' were removed"):
        run([copies(orders(startingOffsets=20))], url=url, once=True)


KILLED = """
import os
from pathlib import Path

from pyspark.sql import functions as F

from penstock.spark import backfill, flow, topic

backfill.BACKFILL_EVENTS = backfill.BACKFILL_FILE_EVENTS = 1
RUNNER, MARKS, AT = os.getpid(), Path(__file__).parent, {at!r}


def kill(n):
    mark = MARKS / f"killed-{{n}}"
    if n in AT and not mark.exists():
        mark.touch()
        os.kill(RUNNER, 9)
    return n


@flow(source=topic("orders", payload_schema="n BIGINT, product STRING"), target=topic("copies"))
def copies(orders):
    return orders.select("kind", F.struct(F.udf(kill, "bigint")("n").alias("n")).alias("payload"))


@flow(source=topic("orders", payload_schema="n BIGINT, product STRING"), target=topic("sums"), output_mode="update")
def sums(orders):
    killed = orders.withColumn("n", F.udf(kill, "bigint")("n"))
    return killed.groupBy().agg(F.sum("n").alias("n")).selectExpr("'sum' AS kind", "struct(n) AS payload")
"""


@pytest.mark.nightly("spark-programs")
def test_a_run_that_is_killed_before_at_and_after_the_end_of_the_files_carries_everything_once(
    journal: penstock.Journal, url: str, tmp_path: Path
) -> None:
    add_sealed(journal, tmp_path / "lake", 0, 250)
    kills = [120, 249, 250, 259]
    (tmp_path / "shop.py").write_text(KILLED.format(at=kills))
    command = [sys.executable, "-m", "penstock.cli", "run", str(tmp_path / "shop.py"), "--url", url, "--once"]
    ends = []
    for _ in range(len(kills) + 1):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        ends.append(done.returncode)
        if done.returncode == 0:
            break
    assert ends[-1] == 0 and set(ends[:-1]) == {-9}, (ends, done.stderr)
    assert {int(mark.name.rpartition("-")[2]) for mark in tmp_path.glob("killed-*")} == set(kills)
    assert copied(journal) == list(range(260))
    assert list(journal.topic("sums").read())[-1].payload["n"] == sum(range(260))

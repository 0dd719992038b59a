"""Projections over streams: states go on from batch to batch, once, and in-process projections begin with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from since import most, needs_limits

import penstock
import penstock.spark
from penstock import Draft, Projection, on
from penstock.api import local
from penstock.core.entity.states import load_saved
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Total(Projection):
    amount: int = 0
    count: int = 0

    @on("added")
    def add(self, payload: Any) -> None:
        self.amount += payload["amount"]
        self.count += 1


@pytest.fixture
def run(spark: SparkSession, url: str, tmp_path: Path) -> Callable[..., dict[str, tuple[int, int, int]]]:
    """Runs the projected stream over what is there; the newest row of every key it gave."""

    def run(
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> dict[str, tuple[int, int, int]]:
        found: dict[str, tuple[int, int, int]] = {}

        def collect(frame: DataFrame, batch: int) -> None:
            for row in frame.select("key", "generation", "state.amount", "state.count").collect():
                found[row[0]] = (row[1], row[2], row[3])

        given = {"url": url, "topic": "sums", **most(100)}
        stream = change(spark.readStream.format("penstock").options(**given).load())
        states = penstock.spark.project(stream, Total)
        writer = states.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(600)
        return found

    return run


def add(journal: penstock.Journal, count: int, seed: int) -> None:
    chance = random.Random(seed)
    drafts = [Draft("added", {"amount": chance.randrange(9)}, key=f"k{chance.randrange(20)}") for _ in range(count)]
    journal.topic("sums").append_many(drafts)


def expected(journal: penstock.Journal) -> dict[str, tuple[int, int, int]]:
    sums: dict[str, tuple[int, int, int]] = {}
    for event in journal.topic("sums").read():
        _, amount, count = sums.get(event.key or "", (0, 0, 0))
        sums[event.key or ""] = (event.seq, amount + event.payload["amount"], count + 1)
    return sums


@needs_limits
def test_states_go_on_across_batches_restarts_and_a_batch_that_is_run_again(
    journal: penstock.Journal, run: Any, tmp_path: Path
) -> None:
    """And projections of this process begin with them."""
    add(journal, 250, 1)
    assert run() == expected(journal)
    for path in (tmp_path / "c" / "commits").glob("*2*"):
        path.unlink()
    add(journal, 30, 2)
    changed = {event.key for event in journal.topic("sums").read(after=200)}
    assert run() == {key: value for key, value in expected(journal).items() if key in changed}
    topic = journal.topic("sums")
    with local(journal, "a test")._engine.read() as snap:
        saved = load_saved(snap, 1, Total.__projection__, "k3")
    assert saved is not None and saved.generation == topic.position_of("k3")
    topic.append("added", {"amount": 1000}, key="k3")
    for key, (generation, amount, count) in expected(journal).items():
        state = topic.project(Total, key)
        assert state is not None
        assert (topic.position_of(key), state.amount, state.count) == (generation, amount, count)


def test_a_filtered_stream_keeps_its_own_states_and_leaves_snapshots_alone(journal: penstock.Journal, run: Any) -> None:
    add(journal, 120, 6)
    odd = run(lambda frame: frame.where("seq % 2 = 1"))
    for key, (_, amount, count) in odd.items():
        events = [event for event in journal.topic("sums").read(key=key) if event.seq % 2]
        assert (amount, count) == (sum(event.payload["amount"] for event in events), len(events))
    with local(journal, "a test")._engine.read() as snap:
        assert load_saved(snap, 1, Total.__projection__, "k3") is None
    add(journal, 40, 7)
    odd.update(run(lambda frame: frame.where("seq % 2 = 1")))
    assert sum(count for _, _, count in odd.values()) == 80


def test_a_stream_that_reads_no_journal_must_be_told_where_to_remember(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    events = rate.select(
        F.concat(F.lit("k"), F.col("value") % 3).alias("key"),
        (F.col("value") + 1).alias("seq"),
        F.lit("added").alias("kind"),
        F.lit('{"amount": 1}').alias("payload"),
    )
    with pytest.raises(ConfigError, match="remembers its states in a journal"):
        penstock.spark.project(events, Total)
    states = penstock.spark.project(events, Total, journal=journal)
    seen: list[int] = []

    def count(frame: DataFrame, batch: int) -> None:
        seen.append(frame.agg(F.sum("state.count")).first()[0])

    query = states.writeStream.foreachBatch(count).option("checkpointLocation", str(tmp_path / "r")).start()
    try:
        while len(seen) < 3 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert seen[:3] == [10, 20, 30]

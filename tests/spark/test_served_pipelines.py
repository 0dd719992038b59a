"""Pipelines, lakes and projections over a served journal: they work, or say in a sentence why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Draft, Projection, on
from penstock.errors import ConfigError
from penstock.observe.pipelines import status
from penstock.spark import flow, lake, project, queue, seal, topic
from penstock.spark.pipeline.alone import checkpoint_root
from penstock.spark.pipeline.flows import Pipeline
from penstock.spark.pipeline.running import Runner, run
from server.serving import ADMIN, READ, TOKENS, Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Total(Projection):
    total: int = 0

    @on("placed")
    def placed(self, event: Any) -> None:
        self.total += event.payload["n"]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as journal:
        journal.topic("orders").append_many([Draft("placed", {"n": n}, key=f"k{n % 3}") for n in range(300)])
        yield journal


@pytest.fixture
def served(journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server without tokens; programs run in a folder of their own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with serving(journal) as served:
        yield served


def copies() -> Any:
    @flow(source=topic("orders", maxOffsetsPerTrigger=100), target=topic("copies"))
    def copied(orders: Any) -> Any:
        return orders.select("kind", "payload", "key")

    @flow(source=topic("copies"), target=queue("letters"))
    def letters(copied: Any) -> Any:
        return copied.where("key = 'k1'").select("payload")

    return [copied, letters]


def test_a_pipeline_runs_over_a_served_journal(
    spark: SparkSession, journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    for _ in range(2):
        found = run(copies(), url=served.url, once=True, name="serving")
        assert [one.state for one in found] == ["done", "done"]
    assert [event.payload["n"] for event in journal.topic("copies").read()] == list(range(300))
    assert journal.queue("letters").stats().ready == 100
    assert journal.topic("orders").cursor("serving/copied") == 300
    assert {one.flow for one in status(journal)} == {"copied", "letters"}
    assert Path(checkpoint_root(served.url)).parent == tmp_path / "work" and Path(checkpoint_root(served.url)).exists()


def test_a_pipeline_whose_token_may_not_write_is_refused_before_a_batch(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_TOKEN", READ)
    with (
        serving(journal, tokens=TOKENS, token=ADMIN) as served,
        pytest.raises(ConfigError, match="role admin"),
    ):
        Runner(Pipeline.of(copies()), served.url, once=True).run()
    assert "copies" not in journal.topics()


def test_a_lake_is_read_through_the_server(
    spark: SparkSession, journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200)
    frame = lake(spark, served.url, "orders")
    journal.topic("orders").append("placed", {"n": 300})
    assert sorted(row.seq for row in frame.select("seq").collect()) == list(range(1, 301))
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        lake(spark, served.url, "nowhere")


def test_sealing_is_for_where_the_store_is(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seal where the store is"):
        seal(served.url, "orders", lake=str(tmp_path / "lake"))


def test_a_frame_of_a_served_topic_is_projected(spark: SparkSession, journal: penstock.Journal, served: Served) -> None:
    frame = spark.read.format("penstock").options(url=served.url, topic="orders").load()
    found = {row.key: row.state.total for row in project(frame, Total).collect()}
    assert found == {f"k{k}": sum(n for n in range(300) if n % 3 == k) for k in range(3)}


def test_a_projected_stream_keeps_its_states_in_a_journal_that_tasks_open(
    spark: SparkSession, journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    stream = spark.readStream.format("penstock").options(url=served.url, topic="orders").load()
    with pytest.raises(ConfigError, match=r"not in a served one .*journal=…"):
        project(stream, Total)
    states = project(stream, Total, journal=str(tmp_path / "states.db"))
    seen: dict[str, int] = {}

    def gather(frame: Any, batch: int) -> None:
        seen.update({row.key: row.state.total for row in frame.collect()})

    writer = states.writeStream.foreachBatch(gather).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(300)
    assert seen == {f"k{k}": sum(n for n in range(300) if n % 3 == k) for k in range(3)}

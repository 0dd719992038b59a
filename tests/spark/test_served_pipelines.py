"""Pipelines, lakes and projections over a served journal: they work, or say in a sentence why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from since import HAS_LIMITS, most, needs_limits

import penstock
from penstock import Draft, Projection, on
from penstock.api import local
from penstock.core.entity.states import FiledStates, StreamedState, StreamedStates, load_saved, states_topic
from penstock.core.local import bulk
from penstock.core.observe.pipelines import status
from penstock.errors import ConfigError, FlowFailed
from penstock.remote import topic as rebuilding
from penstock.spark import flow, project, queue, read_topic, seal, topic
from penstock.spark.options import JournalLocation
from penstock.spark.pipeline.alone import checkpoint_root
from penstock.spark.pipeline.flows import Pipeline
from penstock.spark.pipeline.running import Runner, run
from penstock.spark.projection import projecting
from server.serving import ADMIN, READ, TOKENS, WRITE, Served, serving

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
    @flow(source=topic("orders", **most(100)), target=topic("copies"))
    def copied(orders: Any) -> Any:
        return orders.select("kind", "payload", "key")

    @flow(source=topic("copies"), target=queue("letters"))
    def letters(copied: Any) -> Any:
        return copied.where("key = 'k1'").select("payload")

    return [copied, letters]


def test_a_pipeline_runs_over_a_served_journal(
    spark: SparkSession, journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    found = run(copies(), url=served.url, once=True, name="serving")
    assert [one.state for one in found] == ["done", "done"]
    assert [event.payload["n"] for event in journal.topic("copies").read()] == list(range(300))
    assert journal.queue("letters").stats().ready == 100
    assert not HAS_LIMITS or journal.topic("orders").cursor("serving/copied") == 300
    assert {one.flow for one in status(journal)} == {"copied", "letters"}
    shown = served.get("/metrics").data.decode()  # of flows that run elsewhere
    assert 'penstock_pipeline_lag{pipeline="serving",flow="copied"} 0' in shown
    assert 'penstock_pipeline_state{pipeline="serving",flow="letters",state="done"} 1' in shown
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


def test_a_served_topic_is_read_with_its_sealed_history(
    spark: SparkSession, journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200)
    frame = read_topic(spark, served.url, "orders")
    with serving(journal, tokens=TOKENS) as guarded, penstock.open(guarded.url, token=READ) as remote:
        assert read_topic(spark, remote, "orders").count() == 300
    journal.topic("orders").append("placed", {"n": 300})
    assert sorted(row.seq for row in frame.select("seq").collect()) == list(range(1, 301))
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        read_topic(spark, served.url, "nowhere")
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([Draft("placed", {"n": n}) for n in range(400)])
    with pytest.raises(PySparkException, match="events 201 to 300 of topic 'orders' were removed"):
        frame.count()


def test_sealing_is_for_where_the_store_is(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seal where the store is"):
        seal(served.url, "orders", lake=str(tmp_path / "lake"))


def follow(states: Any, tmp_path: Path, checkpoint: str = "checkpoint") -> dict[str, int]:
    """The newest state of every key that a projected stream gives for what is there."""
    seen: dict[str, int] = {}

    def gather(frame: Any, batch: int) -> None:
        seen.update({row.key: row.state.total for row in frame.collect()})

    writer = states.writeStream.foreachBatch(gather).option("checkpointLocation", str(tmp_path / checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(600)
    return seen


def totals(journal: penstock.Journal) -> dict[str, int]:
    found: dict[str, int] = {}
    for event in journal.topic("orders").read():
        found[event.key or ""] = found.get(event.key or "", 0) + event.payload["n"]
    return found


@needs_limits
def test_a_projected_stream_keeps_its_states_in_the_served_journal(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    """They go on across batches and restarts, a batch that is run again changes nothing, and `project` starts there."""
    with serving(journal, tokens=TOKENS) as served:
        given = {"url": served.url, "token": ADMIN, "topic": "orders", **most(100)}
        stream = spark.readStream.format("penstock").options(**given).load()
        states: Any = project(stream, Total)
        assert ADMIN not in states._jdf.queryExecution().toString()
        assert follow(states, tmp_path) == totals(journal)
        with local(journal, "a test")._engine.read() as snap:
            number = states_topic(snap, "orders")
            saved = [load_saved(snap, number, Total.__projection__, key) for key in totals(journal)]
        assert [one.generation for one in saved if one is not None] == [298, 299, 300]
        newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]"))
        newest.unlink()
        journal.topic("orders").append("placed", {"n": 1000}, key="k1")
        assert follow(project(stream, Total), tmp_path)["k1"] == totals(journal)["k1"]
        state = journal.topic("orders").project(Total, "k1")
        assert state is not None and state.total == totals(journal)["k1"]

        writer = spark.readStream.format("penstock").options(**{**given, "token": WRITE}).load()
        with pytest.raises(ConfigError, match=r"keeps its states, writes to .* needs a token with the role admin"):
            project(writer, Total)


def test_states_travel_in_several_requests_and_an_older_one_takes_no_newer_ones_place(
    journal: penstock.Journal, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "_SAVE_BYTES", 200)
    monkeypatch.setattr(bulk, "PAGE_BYTES", 300)
    keeper = projecting.keeper_of(JournalLocation(served.url))
    wanted = StreamedStates("orders", "Total", 1, "query")

    def states(generation: int) -> list[StreamedState]:
        return [StreamedState(f"k{n}", 7, generation, 1, b"%03d" % generation * 30) for n in range(10)]

    keys = [f"k{n}" for n in range(10)]
    empty = keeper.load(wanted, keys)
    assert empty.states == {} and empty.filed is None
    for generation in (20, 20, 10):  # sent again, and by a task that was slower than the one after it
        keeper.save(wanted, states(generation), whole=False)
    found = keeper.load(wanted, keys)
    assert list(found.states.values()) == states(20) and found.filed == FiledStates(1, 7)
    opened = projecting.keeper_of(JournalLocation(f"sqlite:{tmp_path / 'shop.db'}"))
    assert opened.load(wanted, keys) == found
    assert keeper.load(StreamedStates("orders", "Total", 1, "other"), keys).states == {}

    with pytest.raises(ConfigError, match="another journal is served here"):
        projecting.StateKeeper(JournalLocation(served.url), "0" * 32).save(wanted, states(30), whole=False)
    with pytest.raises(ConfigError, match="there is no topic 'nowhere'"):
        keeper.load(StreamedStates("nowhere", "Total", 1, "query"), keys)
    with pytest.raises(ConfigError, match="begins at 9 and ends at 3"):
        keeper.save(wanted, [StreamedState("k1", 7, 3, 9, b"")], whole=False)


def test_another_version_of_a_projection_does_not_go_on_with_a_streams_states(
    spark: SparkSession, journal: penstock.Journal, served: Served
) -> None:
    """A dry run says so, and so does the stream."""

    def pipeline(kind: type[Projection]) -> Any:
        @flow(source=topic("orders"), target=topic("totals"))
        def totals(orders: Any) -> Any:
            return project(orders, kind).selectExpr("'total' kind", "key", "state payload")

        return [totals]

    class Counted(Total, name="Total"):
        count: int = 0

    class Newer(Total, name="Total", version=2):
        pass

    def runner(kind: type[Projection], once: bool = False) -> Runner:
        return Runner(Pipeline.of(pipeline(kind), "totals"), served.url, once=once)

    assert [one.state for one in runner(Total, once=True).run()] == ["done"]
    assert runner(Total).check() == {"totals": ["kind", "key", "payload"]}
    for changed, said in ((Counted, "has other fields or handlers"), (Newer, "is of version 2, .* are of 1")):
        with pytest.raises(ConfigError, match=f"{said}.*start it with a new checkpoint"):
            runner(changed).check()
    journal.topic("orders").append("placed", {"n": 1}, key="k1")
    with pytest.raises(FlowFailed, match="is of version 2"):
        runner(Newer, once=True).run()


def test_a_dry_run_over_a_served_journal_compares_queues_and_counts_nothing_as_done(
    spark: SparkSession, journal: penstock.Journal, served: Served
) -> None:
    journal.queue("letters", max_attempts=3)

    @flow(source=topic("orders"), target=queue("letters", policy={"max_attempts": 5}))
    def letters(orders: Any) -> Any:
        return orders.select("payload")

    with pytest.raises(ConfigError, match=r"flow 'letters': .*max_attempts"):
        Runner(Pipeline.of([letters]), served.url).check()
    assert len(journal.queue("letters")) == 0 and status(journal) == []

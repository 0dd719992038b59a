"""Gates found by name bind what Spark writes: in its own commit to a local journal, and at a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import penstock
from penstock.api import local
from penstock.entity.staging.declared import add_gates, load_gates
from penstock.errors import ConfigError, FlowFailed
from penstock.spark import external, flow, queue, topic
from penstock.spark.pipeline.flows import Pipeline
from penstock.spark.pipeline.running import Runner, run
from server.serving import TOKENS, WRITE, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RULES = """
import penstock
from penstock.errors import Denied

@penstock.gate("orders", "alerts")
def only_small(draft):
    if draft.payload["n"] > 5:
        raise Denied("n is too large")

@penstock.gate("others")
def for_others(draft): ...
"""
REFUSED = r"gate .*rules\.py:only_small of topic '\w+' refused: n is too large \(a row of kind 'made': \{\"n\":6\}\)"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    (tmp_path / "rules.py").write_text(RULES)
    with penstock.open(tmp_path / "shop.db") as journal:
        yield journal


@pytest.fixture
def rule(tmp_path: Path) -> str:
    return f"{tmp_path}/rules.py:only_small"


@pytest.fixture(params=["local", "served"])
def options(
    request: pytest.FixtureRequest, journal: penstock.Journal, tmp_path: Path, rule: str
) -> Iterator[dict[str, Any]]:
    if request.param == "local":
        yield {"url": str(tmp_path / "shop.db"), "gates": rule}
        return
    add_gates(local(journal, "a test")._entities.gates, load_gates([rule]))  # as `penstock serve --gates` does
    with serving(journal, tokens=TOKENS, token=WRITE) as served:
        yield {"url": served.url, "token": WRITE, "gates": rule}


def made(frame: DataFrame) -> DataFrame:
    return frame.select(F.lit("made").alias("kind"), F.to_json(F.struct(F.col("id").alias("n"))).alias("payload"))


def numbers(journal: penstock.Journal, name: str) -> list[int]:
    return sorted(event.payload["n"] for event in journal.topic(name).read())


def test_an_exclusive_fence_keeps_sparks_batches_out(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    """Their commit runs in another process; nothing of one is written, and it goes through when the fence has ended."""
    url = str(tmp_path / "shop.db")
    batch = made(spark.range(0, 6, 1, 2)).write.format("penstock").mode("append").options(url=url, topic="orders")
    journal.topic("from").append_many([penstock.Draft("made", {"n": n}) for n in range(6, 12)])
    read = spark.readStream.format("penstock").options(url=url, topic="from").load().select("kind", "payload")
    stream = read.writeStream.format("penstock").options(url=url, topic="orders").trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with journal.fence() as fence:
        fence.submit("orders", "made", {"n": -1})
        with pytest.raises(PySparkException, match="FenceActive: an exclusive fence of process"):
            batch.save()
        with pytest.raises(PySparkException, match="FenceActive: an exclusive fence of process"):
            stream.start().awaitTermination()
        assert numbers(journal, "orders") == []
    stream.start().awaitTermination()
    batch.save()
    assert next(journal.topic("orders").read()).payload["n"] == -1
    assert numbers(journal, "orders") == list(range(-1, 12))


def test_a_batch_with_a_refused_row_writes_nothing(
    spark: SparkSession, journal: penstock.Journal, options: dict[str, Any]
) -> None:
    frame = made(spark.range(0, 7, 1, 2)).write.format("penstock").mode("append").options(**options)
    with pytest.raises(PySparkException, match=REFUSED):
        frame.option("topic", "orders").save()
    assert len(journal.topic("orders")) == 0
    frame = made(spark.range(0, 6, 1, 2)).write.format("penstock").mode("append").options(**options)
    frame.option("queue", "alerts").save()
    assert numbers(journal, "alerts") == [0, 1, 2, 3, 4, 5]


def test_a_streams_batch_is_refused_as_a_whole_and_the_stream_goes_on_once_it_may(
    spark: SparkSession, journal: penstock.Journal, options: dict[str, Any], tmp_path: Path
) -> None:
    made(spark.range(0, 7, 1, 1)).write.json(str(tmp_path / "in"))

    def stream() -> None:
        rows = spark.readStream.schema("kind STRING, payload STRING").json(str(tmp_path / "in"))
        writer = rows.writeStream.format("penstock").options(**options).option("topic", "orders")
        query = writer.option("checkpointLocation", str(tmp_path / "marks")).trigger(availableNow=True).start()
        query.awaitTermination()

    with pytest.raises(PySparkException, match=REFUSED):
        stream()
    assert len(journal.topic("orders")) == 0
    rule = tmp_path / "rules.py"
    rule.write_text(RULES.replace("> 5", "> 6"))
    gates = local(journal, "a test")._entities.gates
    if gates:  # the server's: it is started again
        for check in [one.check for one in gates.of("orders")]:
            journal.topic("orders").ungate(check)
        add_gates(gates, load_gates([f"{rule}:only_small"]))
    stream()
    assert numbers(journal, "orders") == list(range(7))


def planned(url: str, **options: str) -> None:
    from pyspark.sql.types import StructType

    from penstock.spark.source.source import PenstockSource

    columns = StructType().add("kind", "string").add("payload", "string")
    PenstockSource({"url": url, **options}).writer(columns, False)


def test_what_is_wrong_with_a_gate_is_said_at_planning(journal: penstock.Journal, tmp_path: Path, rule: str) -> None:
    url, other = str(tmp_path / "shop.db"), f"{tmp_path}/rules.py:for_others"
    with pytest.raises(ConfigError, match="there is no module 'gates_nowhere'"):
        planned(url, topic="orders", gates="gates_nowhere:x")
    with pytest.raises(ConfigError, match="is named twice"):
        planned(url, topic="orders", gates=f"{rule},{rule}")
    with pytest.raises(ConfigError, match="for_others sees others, and this writes to orders"):
        planned(url, topic="orders", gates=other)
    with pytest.raises(ConfigError, match='a column "topic"'):  # both gates are fine when rows say where they go
        planned(url, gates=f'["{rule}", "{other}"]')
    unasked = pytest.raises(ConfigError, match=r"does not ask the gate .* `penstock serve --gates .*:only_small`")
    with serving(journal, tokens=TOKENS, token=WRITE) as served, unasked:
        planned(served.url, token=WRITE, topic="orders", gates=rule)


PIPELINE = """
from penstock import gate
from penstock.errors import Denied
from penstock.spark import flow, queue, topic

@gate("alerts")
def only_small(draft):
    if draft.payload["n"] > 5:
        raise Denied("n is too large")

@flow(source=topic("orders"), target=queue("alerts"), gates=[only_small])
def alerts(orders):
    return orders.select("kind", "payload")
"""


def test_a_gate_of_a_pipelines_own_file_binds_its_flow(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    for n in range(6):
        journal.topic("orders").append("made", {"n": n})
    run(tmp_path / "shop.py", url=tmp_path / "shop.db", once=True)
    assert numbers(journal, "alerts") == list(range(6))
    journal.topic("orders").append("made", {"n": 6})
    with pytest.raises(FlowFailed, match=REFUSED.replace("rules", "shop")):
        run(tmp_path / "shop.py", url=tmp_path / "shop.db", once=True)
    assert numbers(journal, "alerts") == list(range(6))


def test_gates_of_a_flow_that_cannot_be_are_refused(tmp_path: Path, journal: penstock.Journal) -> None:
    orders = topic("orders")
    with pytest.raises(ConfigError, match="gates see what is written to topics and queues"):
        flow(source=orders, target=external("parquet", "lake"), gates=["a:b"])
    with pytest.raises(ConfigError, match="named twice: by the flow, and by its target"):
        flow(source=orders, target=queue("alerts", gates="a:b"), gates=["a:b"])
    text: Any = "a:b"
    with pytest.raises(ConfigError, match="gates is a list"):
        flow(source=orders, target=queue("alerts"), gates=text)
    journal.topic("orders").append("made", {"n": 1})
    named = flow(source=orders, target=queue("alerts"), name="alerts", gates=["gates_nowhere:x"])(lambda frame: frame)
    with pytest.raises(ConfigError, match="there is no module 'gates_nowhere'"):
        Runner(Pipeline.of([named]), str(tmp_path / "shop.db")).check()

"""Gates found by name bind what Spark writes: in its own commit to a local journal, and at a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType
from without_spark import source, write, write_batch

import penstock
from penstock.api import local
from penstock.core.entity.gate import add_gates, load_gates
from penstock.errors import ConfigError, Denied, FenceActive, FlowFailed
from penstock.spark import external, flow, queue, topic
from penstock.spark.pipeline.flows import Pipeline
from penstock.spark.pipeline.running import Runner, run
from server.serving import WRITE, Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
def rule(tmp_path: Path) -> str:
    (tmp_path / "rules.py").write_text(RULES)
    return f"{tmp_path}/rules.py:only_small"


@pytest.fixture
def gated(place: dict[str, str], journal: penstock.Journal, rule: str) -> dict[str, str]:
    if "token" in place:
        add_gates(local(journal, "a test")._entities.gates, load_gates([rule]))  # as `penstock serve --gates` does
    return {**place, "gates": rule}


def made(first: int, stop: int) -> list[dict[str, Any]]:
    return [{"kind": "made", "payload": f'{{"n":{n}}}'} for n in range(first, stop)]


def numbers(journal: penstock.Journal, name: str) -> list[int]:
    return sorted(event.payload["n"] for event in journal.topic(name).read())


def test_an_exclusive_fence_keeps_sparks_batches_out(url: str, journal: penstock.Journal) -> None:
    """Nothing of one is written, and it goes through when the fence has ended."""
    with journal.fence() as fence:
        fence.submit("orders", "made", {"n": -1})
        with pytest.raises(FenceActive, match="an exclusive fence of process"):
            write(url, made(0, 6), topic="orders")
        with pytest.raises(FenceActive, match="an exclusive fence of process"):
            write_batch(url, 0, made(6, 12), topic="orders")
        assert numbers(journal, "orders") == []
    write_batch(url, 0, made(6, 12), topic="orders")
    write(url, made(0, 6), topic="orders")
    assert next(journal.topic("orders").read()).payload["n"] == -1
    assert numbers(journal, "orders") == list(range(-1, 12))


def test_a_batch_with_a_refused_row_writes_nothing(journal: penstock.Journal, gated: dict[str, str]) -> None:
    with pytest.raises(Denied, match=REFUSED):
        write(gated, made(0, 4), made(4, 7), topic="orders")
    with pytest.raises(Denied, match=REFUSED):
        write_batch(gated, 0, made(0, 4), made(4, 7), topic="orders")
    assert len(journal.topic("orders")) == 0
    write(gated, made(0, 4), made(4, 6), queue="alerts")
    assert numbers(journal, "alerts") == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_was_refused_is_written_once_it_may(url: str, journal: penstock.Journal, rule: str) -> None:
    with pytest.raises(Denied, match=REFUSED):
        write_batch({"url": url, "gates": rule}, 0, made(0, 7), topic="orders")
    for _ in range(2):  # and only once
        write_batch(url, 0, made(0, 7), topic="orders")
    assert numbers(journal, "orders") == list(range(7))


COLUMNS = StructType().add("kind", "string").add("payload", "string")


def test_what_is_wrong_with_a_gate_is_said_at_planning(url: str, tmp_path: Path, served: Served, rule: str) -> None:
    other = f"{tmp_path}/rules.py:for_others"
    for options, says in (
        ({"topic": "orders", "gates": "gates_nowhere:x"}, "there is no module 'gates_nowhere'"),
        ({"topic": "orders", "gates": f"{rule},{rule}"}, "is named twice"),
        ({"topic": "orders", "gates": other}, "for_others sees others, and this writes to orders"),
        ({"gates": f'["{rule}", "{other}"]'}, 'a column "topic"'),  # both gates are fine: rows say where they go
        (
            {"url": served.url, "token": WRITE, "topic": "orders", "gates": rule},
            r"does not ask the gate .* `penstock serve --gates .*:only_small`",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            source({"url": url, **options}).writer(COLUMNS, False)


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
    spark: SparkSession, url: str, journal: penstock.Journal, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    for n in range(7):
        journal.topic("orders").append("made", {"n": n})
    with pytest.raises(FlowFailed, match=REFUSED.replace("rules", "shop")):
        run(tmp_path / "shop.py", url=url, once=True)
    assert numbers(journal, "alerts") == []


def test_gates_of_a_flow_that_cannot_be_are_refused(url: str, journal: penstock.Journal) -> None:
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
        Runner(Pipeline.of([named]), url).check()

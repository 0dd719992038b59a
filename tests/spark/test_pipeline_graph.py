"""What a pipeline file says, and what is found wrong with it before Spark is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

import penstock
from penstock.errors import ConfigError, InvalidName
from penstock.spark import buffer_at, external, flow, queue, topic
from penstock.spark.pipeline.flows import Flow, FlowGraph, Pipeline, load_pipeline
from penstock.spark.pipeline.running import fault_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    with penstock.open(tmp_path / "shop.db") as journal:
        journal.topic("orders").append("placed")
    return str(tmp_path / "shop.db")


def passing(source: Any, target: Any, name: str) -> Flow:
    return flow(source=source, target=target, name=name)(lambda *frames: frames[0])


def problems(url: str, *flows: Flow) -> list[str]:
    return FlowGraph(Pipeline.of(flows, "shop"), url).problems()


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_flow_is_still_a_function() -> None:
    @flow(source=topic("orders"), target=topic("copies"))
    def copies(orders: Any) -> Any:
        """Copies."""
        return orders + 1

    assert copies(1) == 2
    assert copies.name == "copies" and copies.__doc__ == "Copies."
    assert repr(copies) == "<flow copies: topic orders → topic copies>"


def test_a_function_must_take_a_frame_for_each_source() -> None:
    declare = flow(source=[topic("orders"), topic("refunds")], target=topic("net"))
    with pytest.raises(ConfigError, match="'only_one' has 2 sources, and its function does not take that many"):

        @declare
        def only_one(orders: Any) -> Any: ...


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"source": "orders", "target": topic("t")}, "source is topic"),
        ({"source": topic("orders"), "target": "t"}, "target is topic"),
        ({"source": topic("orders"), "target": topic("t"), "output_mode": "all"}, "output_mode is"),
        ({"source": topic("orders"), "target": topic("t"), "output_mode": "complete"}, "a journal only grows"),
        ({"source": topic("orders"), "target": topic("t"), "every": -1}, "number of seconds"),
    ],
)
def test_a_wrong_declaration_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        flow(**wrong)


def test_places_check_their_names() -> None:
    with pytest.raises(InvalidName):
        topic("two words")
    with pytest.raises(ConfigError, match="twice"):
        topic("orders", "orders")
    with pytest.raises(ConfigError, match="regular expression"):
        topic(pattern="(")
    with pytest.raises(ConfigError, match="its own arguments"):
        topic("orders", topicPattern="x")
    with pytest.raises(ConfigError, match="must be text"):
        queue("alerts", kind=["a"])


def test_options_are_spelled_as_in_spark_or_as_in_python() -> None:
    assert topic("orders", payloadSchema="total INT").options == topic("orders", payload_schema="total INT").options


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


FILE = """
from penstock.spark import flow, topic

@flow(source=topic("orders"), target=topic("copies"))
def copies(orders):
    return orders
"""


def test_a_file_is_a_pipeline_named_like_it(tmp_path: Path) -> None:
    loaded = load_pipeline(write(tmp_path / "shop daily.py", FILE))
    assert (loaded.name, [one.name for one in loaded.flows]) == ("shop-daily", ["copies"])
    assert load_pipeline(tmp_path / "shop daily.py", name="other").name == "other"


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    write(tmp_path / "shared_flows_of_this_test.py", FILE)
    loaded = load_pipeline(write(tmp_path / "shop.py", "from shared_flows_of_this_test import copies\n"))
    assert [one.name for one in loaded.flows] == ["copies"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n    pass\n", r"shop.py, line 1: "),
        ("x = 1\n\ny = x / 0\n", r"shop.py, line 3: ZeroDivisionError: division by zero"),
        ("import penstock.spark as s\n\ns.topic('two words')\n", r"shop.py, line 3: topic name 'two words'"),
        ("x = 1\n", "declares no flow"),
        (FILE + FILE.replace("def copies", "def again").replace('"copies")', '"c"), name="copies"'), "two flows are"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_pipeline(write(tmp_path / "shop.py", text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_pipeline(tmp_path / "shop.py")
    with pytest.raises(ConfigError, match="is a folder"):
        load_pipeline(tmp_path)


# ── the graph ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_flows_come_after_those_that_feed_them(url: str) -> None:
    last = passing(topic("letters"), topic("sent"), "send")
    middle = passing([topic("orders"), topic("alerts")], topic("letters"), "write")
    first = passing(topic("orders"), queue("alerts"), "alert")
    other = passing(topic("orders"), external("parquet", "lake"), "keep")
    graph = FlowGraph(Pipeline.of([last, middle, first, other], "shop"), url)
    assert graph.problems() == []
    assert [[one.name for one in level] for level in graph.levels()] == [["alert", "keep"], ["write"], ["send"]]


def test_flows_that_feed_each_other_in_a_circle_are_refused(url: str) -> None:
    found = problems(url, passing(topic("a"), topic("b"), "one"), passing(topic("b"), topic("a"), "two"))
    assert found == ["these flows feed each other in a circle and would never come to an end: one → two → one"]
    (itself,) = problems(url, passing(topic("orders"), topic("orders"), "again"))
    assert "again → again" in itself


def test_a_topic_that_is_not_there_is_named_with_what_may_be_meant(url: str) -> None:
    (found,) = problems(url, passing(topic("order"), topic("b"), "one"))
    assert "flow 'one': there is no topic 'order'" in found and "did you mean 'orders'?" in found
    (found,) = problems(url, passing(topic(pattern="x.*"), topic("b"), "one"))
    assert "has a name like 'x.*'" in found


def test_a_journal_that_is_not_there_yet_has_no_topics(tmp_path: Path) -> None:
    (found,) = problems(str(tmp_path / "new.db"), passing(topic("orders"), topic("b"), "one"))
    assert "topics: none yet" in found
    assert problems(str(tmp_path / "new.db"), passing(buffer_at("file:///x"), topic("b"), "one")) == []
    assert not (tmp_path / "new.db").exists()


def test_every_problem_is_told_at_once(url: str) -> None:
    found = problems(
        url,
        passing(topic("orders", payloadShema="x INT"), topic("b"), "one"),
        passing(topic("orders"), topic("x", "y"), "two"),
        passing(topic("nothing"), topic("c"), "three"),
    )
    assert len(found) == 3
    assert "no option 'payloadshema'" in found[0] and "writes to one topic" in found[1]


def test_only_some_flows(url: str) -> None:
    pipeline = Pipeline.of([passing(topic("orders"), topic(n), n) for n in ("a", "b")], "shop")
    assert [one.name for one in pipeline.only(["b"]).flows] == ["b"]
    with pytest.raises(ConfigError, match="there is no flow 'c' in shop; flows: a, b"):
        pipeline.only(["c"])


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────
TASK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/shop/pipeline.py", line 12, in half
    return {code}
  File "/lib/other.py", line 3, in deeper
    raise
{raised}
"""


@pytest.mark.parametrize(
    ("raised", "message", "passes"),
    [
        ("ValueError: boom", "ValueError: boom (/shop/pipeline.py, line 12)", False),
        ("AssertionError", "AssertionError (/shop/pipeline.py, line 12)", False),
        ("penstock.errors.ConfigError: bad: worse", "bad: worse (/shop/pipeline.py, line 12)", False),
        ("penstock.errors.Locked: busy", "busy (/shop/pipeline.py, line 12)", True),
        ("penstock.errors.PositionTrimmed: gone", "gone (/shop/pipeline.py, line 12)", False),
        ("ConnectionResetError: [Errno 104] reset", "ConnectionResetError: [Errno 104] reset", True),
    ],
)
def test_an_error_of_python_code_in_a_task_is_told_with_its_line(raised: str, message: str, passes: bool) -> None:
    fault = fault_of(RuntimeError(TASK.format(code="x", raised=raised)), "/shop/pipeline.py")
    assert fault.message.startswith(message) and fault.passing is passes


@pytest.mark.parametrize(
    ("text", "message", "passes"),
    [
        (
            "Python worker exited unexpectedly (crashed)\n\tat org.apache.Spark",
            "Python worker exited unexpectedly",
            True,
        ),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "[DIVIDE_BY_ZERO] Division by zero.", False),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: No space left SQLSTATE: XXKST", "No space", True),
    ],
)
def test_an_error_of_spark_is_told_in_a_sentence(text: str, message: str, passes: bool) -> None:
    fault = fault_of(RuntimeError(text))
    assert fault.message.startswith(message) and "SQLSTATE" not in fault.message and fault.passing is passes


def test_a_pattern_leaves_the_reports_of_pipelines_alone_unless_it_names_them(url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("penstock.pipelines").append("flow.reported")
    everything = FlowGraph(Pipeline.of([passing(topic(pattern=".*"), external("noop"), "all")], "shop"), url).flows[0]
    known = [(str(everything.sources[0].url), name) for name in ("orders", "penstock.pipelines")]
    assert [name for _, name in everything.sources[0].nodes(known)] == ["orders"]
    named = topic(pattern=r"penstock\..*").at(url)
    assert [name for _, name in named.nodes(known)] == ["penstock.pipelines"]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("n DUBLE", "the field 'n' has the type 'DUBLE', which Spark does not know; did you mean DOUBLE?"),
        ("a INT, deep STRUCT<x: ARRAY<STRNG>>", "the field 'x' has the type 'STRNG'.*did you mean STRING"),
        ("m MAP<STRING, `odd`>", "the field 'm' has the type '`odd`'"),
        ("n", "has a field without a type: 'n'"),
        ("a ARRAY<INT", "not closed"),
        ("n INT, id STRING", "column 'id' would be there twice.*payloadColumns"),
        ("Key STRING", "column 'Key' would be there twice"),
    ],
)
def test_a_payload_schema_with_a_mistake_is_told_in_a_sentence(url: str, schema: str, says: str) -> None:
    [found] = problems(url, passing(topic("orders", payloadSchema=schema), topic("t"), "one"))
    assert re.search(says, found), found
    assert "\n" not in found


def test_payload_schemas_that_spark_takes_are_taken(url: str) -> None:
    good = (
        "a INT NOT NULL COMMENT 'so, so', `b c` DECIMAL(10, 2), s: STRUCT<x: ARRAY<MAP<STRING, INT>>, t: TIMESTAMP>, "
        "d INTERVAL DAY TO SECOND, p CHAR(3)"
    )
    assert problems(url, passing(topic("orders", payloadSchema=good), topic("t"), "one")) == []
    struct = topic("orders", payloadSchema="id STRING", payloadColumns="struct")
    assert problems(url, passing(struct, topic("t"), "one")) == []


def test_a_stream_has_no_end(url: str) -> None:
    [found] = problems(url, passing(topic("orders", endingOffsets=5), topic("t"), "one"))
    assert "endingOffsets is for batches; a stream has no end" in found


def test_a_queue_with_another_policy_is_found_before_anything_runs(url: str) -> None:
    with penstock.open(url) as journal:
        journal.queue("alerts", max_attempts=3)
    target = queue("alerts", policy={"max_attempts": 9})
    [found] = problems(url, passing(topic("orders"), target, "one"))
    assert "max_attempts" in found
    assert problems(url, passing(topic("orders"), queue("alerts", policy={"max_attempts": 3}), "one")) == []


@pytest.mark.parametrize("line", ["up = F.udf(lambda x: x, 'int')", "KIND = F.col('kind')"])
def test_code_that_wants_spark_while_the_file_is_read_gets_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    file = write(tmp_path / "early.py", f"from pyspark.sql import functions as F\n{line}\n")
    with pytest.raises(ConfigError, match=r"early\.py, line 2: .*inside the flow's function.*returnType="):
        load_pipeline(file)

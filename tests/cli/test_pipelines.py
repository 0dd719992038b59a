"""How pipelines do, on the command line; none of this needs Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock
from cli.commandline import Cli
from penstock.core.clock import ManualClock
from penstock.core.observe.pipelines import FlowStatus, report, status
from penstock.core.sampling.collect import gauges
from penstock.spark.pipeline.alone import alone

START = datetime(2026, 3, 1, tzinfo=UTC)


def flow_status(flow: str, **changes: object) -> FlowStatus:
    values = {"pipeline": "shop", "flow": flow, "state": "running", "started_at": START, **changes}
    return FlowStatus(**values)  # type: ignore[arg-type]


def test_pipelines_shows_the_newest_report_of_every_flow(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        report(journal, [flow_status("revenue", lag=5), flow_status("alerts", state="failed", error="boom")])
        report(journal, [flow_status("revenue", lag=3, rows=1200, batch=7, batch_seconds=0.25, rows_per_second=99.6)])
    shown = cli("pipelines").out
    assert shown.splitlines()[1].split()[:2] == ["shop/alerts", "failed"] and "boom" in shown
    assert shown.splitlines()[2].split()[:8] == ["shop/revenue", "running", "1,200", "100", "3", "7", "250", "ms"]
    documents = cli("pipelines", "shop", "--json").documents
    assert [(one["flow"], one["state"], one["lag"]) for one in documents] == [
        ("alerts", "failed", None),
        ("revenue", "running", 3),
    ]


def test_a_flow_that_claims_to_run_and_says_nothing_is_silent(cli: Cli, url: str) -> None:
    clock = ManualClock(int((datetime.now(UTC) - timedelta(minutes=2)).timestamp() * 1000))
    with penstock.open(url, clock=clock) as journal:
        report(journal, [flow_status("revenue"), flow_status("alerts", state="done")])
    states = {one["flow"]: one["state"] for one in cli("pipelines", "--json").documents}
    assert states == {"revenue": "silent", "alerts": "done"}


def test_what_others_append_to_the_topic_is_no_report(url: str) -> None:
    with penstock.open(url) as journal:
        report(journal, [flow_status("revenue")])
        journal.topic("penstock.pipelines").append("note", {"hello": 1}, key="x")
        journal.topic("penstock.pipelines").append("note", b"\xff", key="y")
        assert [one.flow for one in status(journal)] == ["revenue"]


def test_a_pipeline_that_never_ran_is_not_there(cli: Cli, orders: str) -> None:
    assert "no pipeline has run" in cli("pipelines").err
    assert "no pipeline 'shop' has run" in cli("pipelines", "shop", code=3).err


def test_run_refuses_what_cannot_be_run(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    assert "there is no file" in cli("run", str(file), code=2).err
    file.write_text("from penstock.spark import flow, topic\n\nflow(source=topic('orders'), target=1)\n")
    assert f"{file}, line 3: a flow's target is" in cli("run", str(file), code=2).err
    file.write_text(
        "from penstock.spark import flow, topic\n"
        "@flow(source=topic('orderz'), target=topic('copies'))\n"
        "def copies(orders): return orders\n"
    )
    assert "did you mean 'orders'?" in cli("run", str(file), "--once", code=2).err
    assert "not both" in cli("run", str(file), "--once", "--continuous", code=2).err
    assert "no flow 'x'" in cli("run", str(file), "--flow", "x", code=2).err
    assert "There is no terminal to ask at" in cli("run", str(file), "--reset", input="", code=2).err
    assert "spark.NAME=VALUE" in cli("run", str(file), "--conf", "x", code=2).err


def test_looking_at_pipelines_does_not_load_spark(url: str) -> None:
    with penstock.open(url) as journal:
        report(journal, [flow_status("revenue")])
    code = (
        "import sys; from penstock.cli.main import run; run(['pipelines', '--url', sys.argv[1]]); "
        "sys.exit(any(name.split('.')[0] in ('pyspark', 'pyarrow') for name in sys.modules))"
    )
    import subprocess

    assert subprocess.run([sys.executable, "-c", code, url], check=False, capture_output=True).returncode == 0


def test_check_judges_flows_by_thresholds(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        report(journal, [flow_status("revenue", lag=50, batch_seconds=3.0, restarts=2), flow_status("alerts")])
    assert cli("check", "--flow-lag", "50", "--batch-time", "5s", "--restarts", "2", code=0).out.startswith(
        "PENSTOCK OK"
    )
    assert "WARNING - 50 wait to be read by pipeline shop/revenue" in cli("check", "--flow-lag", "10:100", code=1).out
    assert "CRITICAL - the newest batch of pipeline shop/revenue took" in cli("check", "--batch-time", "1s", code=2).out
    assert "pipeline shop/revenue was started again 2 times" in cli("check", "--restarts", "1:9", code=1).out


def test_flows_are_in_the_metrics(url: str) -> None:
    with penstock.open(url) as journal:
        report(journal, [flow_status("revenue", lag=50, rows=7, batch_seconds=3.0, restarts=2)])
        text = gauges(journal.stats()).prometheus_text()
    for line in (
        'penstock_pipeline_state{pipeline="shop",flow="revenue",state="running"} 1',
        'penstock_pipeline_lag{pipeline="shop",flow="revenue"} 50',
        'penstock_pipeline_rows{pipeline="shop",flow="revenue"} 7',
        'penstock_pipeline_batch_seconds{pipeline="shop",flow="revenue"} 3',
        'penstock_pipeline_restarts{pipeline="shop",flow="revenue"} 2',
    ):
        assert line in text


def test_a_pipeline_is_forgotten_with_its_cursors_and_checkpoints(cli: Cli, url: str) -> None:
    checkpoints = Path(f"{url}.checkpoints")
    (checkpoints / "shop" / "revenue").mkdir(parents=True)
    with penstock.open(url) as journal:
        orders = journal.topic("orders")
        orders.append("placed")
        orders.seek("shop/revenue", 1)
        orders.seek("mine", 1)
        report(
            journal, [flow_status("revenue"), FlowStatus(pipeline="other", flow="a", state="done", started_at=START)]
        )
    assert "say which pipeline" in cli("pipelines", "--forget", code=2).err
    assert "forgot shop and its flows revenue" in cli("pipelines", "shop", "--forget", "--yes").err
    with penstock.open(url) as journal:
        assert [one.key for one in status(journal)] == ["other/a"]
        assert journal.topic("orders").cursors() == {"mine": 1}
    assert not (checkpoints / "shop").exists()
    assert "no pipeline 'shop' has run" in cli("pipelines", "shop", "--forget", "--yes", code=3).err
    with alone(url, "busy"):
        assert "runs already" in cli("pipelines", "busy", "--forget", "--yes", code=1).err

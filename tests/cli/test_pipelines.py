"""How pipelines do, on the command line; none of this needs Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import penstock
from cli.commandline import Cli
from penstock.clock import ManualClock
from penstock.observe.pipelines import FlowStatus, report, status

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
    assert "Nobody is here to be asked" in cli("run", str(file), "--reset", input="", code=2).err
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

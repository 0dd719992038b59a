"""The main job as `make run` runs it, with fewer orders and on the Java of the extra; and its proof, which can fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from since import needs_limits

import penstock
from penstock.core.observe.pipelines import FlowStatus, status
from penstock.limits import BUFFER_MANIFEST
from penstock.spark.startup import java as javas

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # examples are run from the repository's folder


def penstock_status(path: Path) -> list[FlowStatus]:
    with penstock.open(path, read_only=True) as journal:
        return status(journal)


def failing(journal: penstock.Journal, folder: Path, redriven: int) -> list[str]:
    from examples.main_job.proof import prove

    return [check.claim for check in prove(journal, folder / "raw", folder / "lake", redriven) if not check.holds]


@needs_limits
def test_the_main_job_proves_that_every_order_was_counted_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.main_job", "--orders", "160", "--seconds", "0.2", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(javas.bundled_home())},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout and "dead letters are sent back" in done.stdout
    assert "160 orders" in done.stdout and "proven, every one counted exactly once" in done.stdout
    assert re.search(r"the console is open for as long as this runs: http://127\.0\.0\.1:\d+", done.stdout)
    folder = tmp_path / "main-job"
    for line in re.findall(r"^  (\S*penstock .*)$", done.stdout, re.MULTILINE):
        if " serve " not in line:
            looked = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
            assert looked.returncode == 0 and looked.stdout, (line, looked.stderr)
    assert (folder / "orders.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "orders.html").read_text("utf-8")
    for flow in penstock_status(folder / "shop.db"):
        assert flow.lag == 0, flow
        if flow.flow == "intake":  # what the manifest still names was read: the console counts it as such
            (sequence,) = flow.read_to.values()
            assert sequence > 0 and list(flow.read_to) == [f"file://{(folder / 'buffer').resolve()}/{BUFFER_MANIFEST}"]

    with penstock.open(folder / "shop.db") as journal:
        redriven = int(re.findall(r"fixed, (\d+) dead letters", done.stdout)[0])
        assert failing(journal, folder, redriven) == []
        order = next(journal.topic("orders").read())
        journal.topic("orders").append(order.kind, order.payload, key=order.key)
        window = next(journal.topic("revenue").read())
        journal.topic("revenue").append(window.kind, {**window.payload, "orders": 0}, key=window.key)
        handled = next(journal.topic("handled").read())
        journal.topic("handled").append(handled.kind, handled.payload)
        journal.queue("alerts").push({"number": "x"})
        assert [claim.split(",")[0] for claim in failing(journal, folder, redriven)] == [
            "every order sold is in the journal",
            "revenue: every order is counted in its window",
            "customers: the class gives the same states in-process",
            "alerts: one for every large order",
            "alerts: every one was handled",
            "alerts: each leads back to its own order",
            "the queue and its dead letters are empty",
        ]

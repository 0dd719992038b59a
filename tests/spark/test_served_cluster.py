"""A served journal on a real cluster: tasks of two workers read and write it, and the driver's disk is not theirs.

Each worker lives in a mount namespace of its own, in which the driver's folder is empty: the journal's file, the
checkpoint, and whatever a plan might name by its path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, why_not_hidden

import penstock
from penstock import Draft
from server.serving import TOKENS, WRITE, serving

pytestmark = pytest.mark.nightly("spark-cluster")


def fill(journal: penstock.Journal) -> None:
    journal.topic("orders").append_many([Draft("made", {"n": n}, key=f"k{n % 5}") for n in range(20_000)])
    journal.topic("mixed").append_many([Draft("made", {"n": n if n % 100 else "x"}) for n in range(8_000)])


def test_two_workers_that_do_not_see_the_drivers_disk_work_on_a_served_journal(tmp_path: Path) -> None:
    reason = why_not_hidden()
    if reason is not None:
        pytest.skip(reason)
    own = tmp_path / "driver"
    for folder in (tmp_path / "cluster", own):
        folder.mkdir()
    cluster = Cluster(tmp_path / "cluster", hidden=[own])
    try:
        with penstock.open(own / "shop.db") as journal, serving(journal, tokens=TOKENS) as served:
            fill(journal)
            job = Path(__file__).with_name("cluster_served_job.py")
            command = [sys.executable, str(job), cluster.url, served.url, str(own)]
            environ = {**os.environ, "PENSTOCK_TOKEN": WRITE}
            done = subprocess.run(command, env=environ, timeout=540, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:] + cluster.logs()

            copies = list(journal.topic("copies").read())
            assert sorted(event.payload["n"] for event in copies) == list(range(20_000))
            found = [str(event.key).partition(":") for event in copies]
            assert len({executor for executor, _, _ in found}) == 2, "both workers took part"
            assert {seen for _, _, seen in found} == {""}, "the driver's folder is empty for them"
            assert (own / "checkpoint").exists() and (own / "shop.db").exists()

            assert sorted(event.payload["id"] for event in journal.topic("large").read()) == list(range(8_000))
            sums = {f"k{k}": sum(range(k, 20_000, 5)) for k in range(5)}
            assert {message.key: message.payload["total"] for message in journal.queue("totals")} == sums
            fitting = [event.payload["n"] for event in journal.topic("fitting").read()]
            assert sorted(fitting) == [n for n in range(8_000) if n % 100]
            assert sorted(int(event.headers["penstock-seq"]) for event in journal.topic("misfits").read()) == list(
                range(1, 8_001, 100)
            )
            assert "runs tasks on other machines" in (own / "refused").read_text()
            assert WRITE not in done.stdout + done.stderr + cluster.logs()
    finally:
        cluster.stop()

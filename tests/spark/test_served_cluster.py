"""A served journal on a real cluster: tasks of two workers read and write it, though neither has its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster

import penstock
from penstock import Draft
from server.serving import TOKENS, WRITE, serving

pytestmark = pytest.mark.slow


def test_two_workers_copy_a_served_topic_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    try:
        with penstock.open(tmp_path / "shop.db") as journal, serving(journal, tokens=TOKENS) as served:
            journal.topic("orders").append_many([Draft("made", {"n": n}) for n in range(20_000)])
            job = Path(__file__).with_name("cluster_served_job.py")
            command = [sys.executable, str(job), cluster.url, served.url, str(tmp_path)]
            environ = {**os.environ, "PENSTOCK_TOKEN": WRITE}
            done = subprocess.run(command, env=environ, timeout=540, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:] + cluster.logs()
            copies = list(journal.topic("copies").read())
            assert sorted(event.payload["n"] for event in copies) == list(range(20_000))
            assert len({event.key for event in copies}) == 2, "both workers took part"
            assert WRITE not in done.stdout + done.stderr + cluster.logs()
    finally:
        cluster.stop()

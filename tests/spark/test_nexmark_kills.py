"""NEXMark's stateful queries are exact while drivers, executors and Python workers are killed at random.

The seed is the time, and is printed; NEXMARK_SEED plays a run again, as far as its processes are as fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from benchmarks.nexmark import batch, streams
from benchmarks.nexmark.generator import SCHEMAS, Generator
from benchmarks.nexmark.queries import BATCH
from cluster import Cluster
from nexmark_job import STATEFUL
from since import SPARK

import penstock
from penstock import Draft
from server.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.nightly("nexmark")

EVENTS = 3_000
ROUNDS = 2
KILLS = 5
"""How many processes are killed in each round before it may end."""
PATIENCE_SECONDS = 1800
ROOT = Path(__file__).resolve().parents[2]
VICTIMS = {"executor": "CoarseGrainedExecutorBackend", "python": "pyspark.daemon", "driver": "SparkSubmit"}


def descendants(roots: Iterable[int]) -> dict[int, str]:
    """Returns the processes below some, with their command lines."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, known = {}, set(roots)
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    for pid in known:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


class Job:
    """The program with the queries, run again whenever it was killed."""

    def __init__(self, folder: Path, cluster: Cluster, url: str, random: Random) -> None:
        self.killed: Counter[str] = Counter()
        self._folder = folder
        self._cluster = cluster
        self._random = random
        job = str(Path(__file__).with_name("nexmark_job.py"))
        self._words = [sys.executable, job, cluster.url, url, str(folder / "checkpoints")]

    def run(self, kills: int) -> None:
        """Runs the program until it ends well; it is not spared before so many processes were killed."""
        wanted = sum(self.killed.values()) + kills
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with (self._folder / "job.log").open("ab") as log:
                environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
                running = subprocess.Popen(self._words, stdout=log, stderr=log, env=environ, start_new_session=True)
            try:
                while running.poll() is None:
                    assert time.monotonic() < deadline, self.said()
                    time.sleep(self._random.uniform(1, 15))
                    if sum(self.killed.values()) < wanted:
                        self._kill(running)
                code = running.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait(60)
            if code == 0 and sum(self.killed.values()) >= wanted:
                return

    def _kill(self, running: subprocess.Popen[bytes]) -> None:
        there = descendants([running.pid, *self._cluster.pids()])
        least = min(self.killed[kind] for kind in VICTIMS)
        kind = self._random.choice(sorted(kind for kind in VICTIMS if self.killed[kind] == least))
        victims = sorted(pid for pid, words in there.items() if VICTIMS[kind] in words)
        if victims:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(victims), signal.SIGKILL)
                self.killed[kind] += 1

    def said(self) -> str:
        return (self._folder / "job.log").read_text(errors="replace")[-3000:]


def test_stateful_queries_are_exact_whatever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("NEXMARK_SEED", time.time()))
    print(f"NEXMARK_SEED={seed}")
    events = list(Generator(seed, step_ms=40).events(EVENTS))
    url, step = str(tmp_path / "nexmark.db"), len(events) // ROUNDS + 1
    with ServerProcess(url) as server, closing(Cluster(tmp_path)) as cluster:
        job = Job(tmp_path, cluster, server.url, Random(seed))
        for start in range(0, len(events), step):
            with penstock.open(server.url) as journal:
                for topic in SCHEMAS:
                    rows = [Draft(topic, row) for name, row in events[start : start + step] if name == topic]
                    journal.topic(topic).append_many(rows)
            job.run(KILLS)
    print(f"killed: {dict(job.killed)}")
    assert set(job.killed) == set(VICTIMS)
    with penstock.open(url) as journal:
        duck = batch.reference(journal)
        batch.register(spark, batch.in_journal(spark, url))
        streams.read(spark, url)
        for name in STATEFUL if SPARK >= (4, 2) else set(STATEFUL) - set(streams.WINDOWED):
            expected = batch.answer(duck.execute(BATCH[name]).fetchall())
            assert expected and streams.result(spark, journal, name) == expected, (name, seed, job.killed)

"""A process that seals and maintains is killed at any moment: nothing acknowledged is lost, and space comes back."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.core.journal.reading import TopicView

pytestmark = pytest.mark.nightly("crashes")
KILLS = 6
PROGRAM = """
import random, sys
import penstock
from penstock.core.journal.sealed.sealing import seal_topic

url, lake, seed = sys.argv[1:]
values = random.Random(int(seed))
with penstock.open(url) as journal:
    topic = journal.topic("orders")
    while True:
        for _ in range(20):
            topic.append_many([penstock.Draft("placed", values.randbytes(1500)) for _ in range(50)])
            print(topic.latest, flush=True)
        seal_topic(journal._core, "orders", lake=lake, through=topic.latest - 20)
        journal.maintain()
"""


@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb"])
def test_killed_while_space_is_given_back(scheme: str, tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    pause, acknowledged = random.Random(seed), 0
    url = f"{scheme}:{tmp_path / 'store'}"
    for number in range(KILLS):
        words = [sys.executable, "-c", PROGRAM, url, str(tmp_path / "lake"), str(seed + number)]
        running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        acknowledged = int(running.stdout.readline())  # it has begun
        time.sleep(pause.uniform(0.0, 2.0))
        running.send_signal(signal.SIGKILL)
        said = running.communicate(timeout=120)[0].splitlines(keepends=True)
        acknowledged = max([acknowledged, *(int(line) for line in said if line.endswith("\n"))])
        with penstock.open(url) as journal:
            topic = journal.topic("orders")
            seqs = [event.seq for event in topic.read()]
            assert seqs == list(range(1, topic.latest + 1)) and topic.latest >= acknowledged
            journal.maintain()
            with journal._engine.read() as snap:
                view = TopicView.open(snap, "orders")
                assert view is not None
                hot = topic.latest - view.state().sealed
            assert journal.describe().size_bytes < 2 * 1500 * (hot + 1000)
            assert [event.seq for event in topic.read()] == seqs

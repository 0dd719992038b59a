"""A lease that lasts as long as its taker: a child forked by the taker is not the taker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, time
import penstock
url, answer = sys.argv[1:]
if os.fork() == 0:
    journal = penstock.open(url)
    queue = journal.queue("jobs", lease=0)
    queue.push("work")
    assert queue.take(wait=0) is not None
    taker = os.getpid()
    if os.fork():
        os._exit(0)  # the taker is gone, its child lives on
    while os.getppid() == taker:
        time.sleep(0.01)
    again = penstock.open(url).queue("jobs", lease=0).take(wait=20)
    with open(answer + ".new", "w") as file:
        file.write(repr(again and again.payload))
    os.rename(answer + ".new", answer)
    os._exit(0)
for _ in range(3000):
    if os.path.exists(answer):
        break
    time.sleep(0.02)
"""


def test_the_child_of_a_taker_that_died_takes_over_what_it_held(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    command = [sys.executable, "-c", PROGRAM, f"sqlite:{tmp_path / 'store'}", str(answer)]
    subprocess.run(command, check=True, timeout=120)
    assert answer.read_text() == "'work'"

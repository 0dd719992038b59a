"""An erasure whose process is killed between any two of its steps is ended by the next process, and leaves no byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from byte_search import places_with
from penstock.api import local

SECRET = "5ecre7-a11-b17e5"

FILLER = """
import sys
from penstock.api import open_local
from penstock.core.journal.sealed.sealing import seal_topic
from penstock import Draft, Projection, on

class Last(Projection):
    note: object = None

    @on("placed")
    def placed(self, event):
        self.note = event.payload

url, lake, secret = sys.argv[1:]
with open_local(url) as journal:
    orders = journal.topic("orders")
    for n in range(200):
        who = secret if n % 5 == 3 else f"customer-{n % 5}"
        orders.append("placed", {"n": n, "who": who}, key=who, tags=(who,), scope=who, dedup=f"{who}-{n}")
    orders.verify()
    orders.rebuild(Last)
    journal.maintain()
    if lake:
        seal_topic(journal.backend.core, "orders", lake=lake, through=120, file_events=60)
    jobs = journal.queue("jobs", dead_letter="jobs.dead", max_attempts=1, feed=True)
    for n in range(6):
        jobs.push({"who": secret}, key=f"{secret}-{n % 2}", reply=True)
    for delivery in jobs.take_many(2):
        delivery.nack(error=f"no {secret}")
    jobs.take_many(1)
"""

ERASER = """
import os, signal, sys
from penstock.api import open_local
from penstock.core.journal.writer import Writer

url, secret, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
run = Writer.run

def deadly(self, operation):
    global left
    done = run(self, operation)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

with open_local(url) as journal:
    Writer.run = deadly
    journal.topic("orders").erase(key=secret)
    journal.topic("jobs").erase(key_prefix=secret)
    journal.maintain()
"""


def run(program: str, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=os.environ, timeout=300, check=False
    ).returncode


@pytest.mark.parametrize(
    ("scheme", "lake"),
    [
        ("sqlite", True),
        *(pytest.param(name, False, marks=pytest.mark.nightly("crashes")) for name in ("sqlite", "rocksdb", "file")),
    ],
)
def test_an_erasure_that_is_killed_at_any_step_is_ended(scheme: str, lake: bool, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    assert run(FILLER, url, str(tmp_path / "lake") if lake else "", SECRET) == 0
    with penstock.open(url) as journal:
        others = [event.as_dict() for event in journal.topic("orders").read() if event.key != SECRET]
        assert places_with(tmp_path, [SECRET], local(journal, "a test"))
    step = 1
    while (code := run(ERASER, url, SECRET, str(step))) != 0:
        assert code == -signal.SIGKILL
        step += 1
    assert step > 4
    with penstock.open(url) as journal:
        journal.topic("orders").erase(key=SECRET)  # the call that was killed may not have begun all it meant
        journal.topic("jobs").erase(key_prefix=SECRET)
        journal.maintain()
        assert places_with(tmp_path, [SECRET], local(journal, "a test")) == set()
        assert [event.as_dict() for event in journal.topic("orders").read() if event.key] == others
        assert journal.topic("orders").verify()
        assert len(journal.queue("jobs")) == 0

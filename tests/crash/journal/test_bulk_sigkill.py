"""A large batch whose process is killed at any step is not there at all, and the next try writes it once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.api import local
from penstock.core.journal import keys

WRITER = """
import os, signal, sys
import penstock.transfer.publishing as publishing
from penstock.api import open_local
from penstock.core.journal.blocks import build_wire
from penstock.core.journal.blocks import Columns

url, stage, hits = sys.argv[1], sys.argv[2], int(sys.argv[3])
publishing.STEP_BYTES = 100_000
left = hits

def deadly(old):
    def call(*args, **options):
        global left
        done = old(*args, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call

# `stage` and `publish` are called inside their transactions, `stage_step` and `publish_staged` return after them.
if stage != "none":
    setattr(publishing, stage, deadly(getattr(publishing, stage)))

def wires():
    for block in range(40):
        payloads = [b'{"n":%d,"pad":"%s"}' % (block * 100 + n, b"x" * 1_500) for n in range(100)]
        yield "orders", build_wire(Columns(["made"] * 100, payloads), 0, 0, 0)

with open_local(url) as journal:
    publishing.publish_blocks(journal, publishing.Blocks(wires(), 6 << 20, 4_000, False), "job", 1)
"""


def write(url: str, stage: str = "none", hits: int = 0) -> int:
    command = [sys.executable, "-c", WRITER, url, stage, str(hits)]
    return subprocess.run(command, env=os.environ, timeout=300, check=False).returncode


def left(journal: penstock.Journal) -> int:
    with local(journal, "a test")._engine.read() as snap:
        return sum(1 for _ in snap.scan(keys.STAGED, keys.prefix_end(keys.STAGED)))


@pytest.mark.parametrize(
    "scheme", ["sqlite", *(pytest.param(name, marks=pytest.mark.nightly("crashes")) for name in ("rocksdb", "file"))]
)
def test_a_batch_that_was_killed_at_any_step_is_written_once(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        journal.topic("orders").append("before", {"n": -1})
    for stage, hits in (("stage", 1), ("stage_step", 3), ("stage_step", 20), ("publish", 1)):
        assert write(url, stage, hits) == -signal.SIGKILL
        with penstock.open(url) as journal:
            assert [event.payload["n"] for event in journal.topic("orders").read()] == [-1], (stage, hits)
    assert write(url, "publish_staged", 1) == -signal.SIGKILL  # done, and not known to be
    assert write(url) == 0
    with penstock.open(url) as journal:
        orders = journal.topic("orders")
        assert [event.payload["n"] for event in orders.read()] == [-1, *range(4_000)]
        assert [event.seq for event in orders.read()] == list(range(1, 4_002))
        assert left(journal) == 3  # what was killed while it was staged: swept when it is old
    clock = penstock.ManualClock()
    clock.advance(60 * 60 * 24 * 365 * 100)
    with penstock.open(url, clock=clock) as journal:
        journal.maintain()
        assert left(journal) == 0 and len(journal.topic("orders")) == 4_001

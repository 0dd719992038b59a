"""Killing the writer, again and again: what was acknowledged stays, and nothing is ever half there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from journal_oracle import check, check_dedup, kill, notes, reopen, start

ROUNDS = 4


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize("scheme", ["sqlite", "lmdb", "file", "rocksdb", "slatedb"])
def test_a_killed_writer_loses_nothing_it_acknowledged(scheme: str, durability: str, tmp_path: Path) -> None:
    url, oracle, chance = f"{scheme}:{tmp_path / 'store'}", tmp_path / "oracle", random.Random()
    repeated = 0
    for round_ in range(ROUNDS):
        kill(start(url, oracle, f"r{round_}", durability, "solo"), chance)
        noted = notes(oracle)
        with reopen(url) as journal:
            check(journal, noted)
            repeated += check_dedup(journal, noted)
            check(journal, noted)
    assert len(notes(oracle)) > 20 and repeated


@pytest.mark.parametrize("scheme", ["sqlite", "lmdb", "file", "slatedb"])
def test_a_writer_killed_while_it_opens_leaves_a_store_that_opens(scheme: str, tmp_path: Path) -> None:
    import subprocess
    import sys
    import time

    url, chance = f"{scheme}:{tmp_path / 'store'}", random.Random()
    code = (
        "import sys, penstock\nprint('go', flush=True)\nfor _ in range(1000):\n"
        "    j = penstock.open(sys.argv[1]); j.topic('t').append('k'); j.close()"
    )
    latest = 0
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            time.sleep(chance.random() * 0.06)
            process.kill()
        with reopen(url) as journal:
            events = [event.seq for event in journal.topic("t").read()]
            assert events == list(range(1, len(events) + 1)) and len(events) >= latest
            latest = journal.topic("t").append("k").seq
            assert latest == len(events) + 1

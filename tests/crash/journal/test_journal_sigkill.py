"""Killing the writer, again and again: what was acknowledged stays, and nothing is ever half there."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from journal_oracle import check, check_dedup, kill, notes, reopen, start
from journal_writer import Oracle

from penstock import Draft

ROUNDS = 2


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb", "slatedb"])
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
        if round_ == ROUNDS - 1 and (len(notes(oracle)) <= 20 or not repeated):  # a slow machine: one more, longer
            kill(start(url, oracle, "more", durability, "solo"), chance, until=lambda: len(notes(oracle)) > 60)
            with reopen(url) as journal:
                check(journal, notes(oracle))
                repeated += check_dedup(journal, notes(oracle))
    assert len(notes(oracle)) > 20 and repeated


@pytest.mark.parametrize("scheme", ["sqlite", "file", "slatedb"])
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
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            time.sleep(chance.random() * 0.06)
            process.kill()
        with reopen(url) as journal:
            events = [event.seq for event in journal.topic("t").read()]
            assert events == list(range(1, len(events) + 1)) and len(events) >= latest
            latest = journal.topic("t").append("k").seq
            assert latest == len(events) + 1


def test_a_note_that_a_kill_cut_does_not_swallow_the_next_writers_first_one(tmp_path: Path) -> None:
    oracle = tmp_path / "oracle"
    with reopen(f"sqlite:{tmp_path / 'store'}") as journal:
        topic = journal.topic("t")
        receipts = topic.append_many([Draft("many", ["a", 200, row]) for row in range(200)])
        Oracle(str(oracle)).note(seqs=[r.seq for r in receipts], ids=[r.id for r in receipts], label="a")
        os.truncate(oracle, 4096)  # as a kill amid the write leaves it
        successor = Oracle(str(oracle))
        successor.note(compacting=50)
        topic.compact(50, force=True)
        assert notes(oracle) == [{"compacting": 50}]
        check(journal, notes(oracle))
        topic.compact(60, force=True)
        with pytest.raises(AssertionError, match=r"60 events are gone .* 50 were to go"):
            check(journal, notes(oracle))

"""Kills of several processes over the whole surface: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from torture.kills.check import problems
from torture.kills.worker import Oracle, Worker, set_up

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_kills_at_any_moment_take_nothing_that_was_acknowledged(scheme: str) -> None:
    command = [sys.executable, "-m", "torture.kills", "--engine", scheme, "--count", "12", "--seed", "1"]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


FORGED = [
    ({"appended": "ghost", "seqs": [10**6], "ids": ["x"]}, "ghost was acknowledged"),
    ({"appended": "LAST", "seqs": [10**6], "ids": ["x"]}, "was acknowledged at"),
    ({"cancelled": "LAST"}, "and it is there"),
    ({"changed": "ann", "seq": 10**6, "seen": 0}, "the change at"),
    ({"pushed": "ghost"}, "never acknowledged, and are gone"),
    ({"settled": "LEFT"}, "settled and are back"),
    ({"result": "ghost"}, "is there 0 times"),
    ({"fanned": "ghost"}, "lost messages"),
    ({"cursor": 10**6}, "cursor"),
    ({"mark": "w", "value": 10**6}, "mark w"),
    ({"state": "none", "seq": 5, "value": "x"}, "state: none"),
    ({"ring": 10**6}, "ring: 1000000"),
    ({"old": "ghost", "first": 1}, "old: ghost"),
    ({"failed": "take: Corrupt"}, "an operation failed"),
]


def test_the_oracle_finds_what_is_not_there_and_what_should_not_be(tmp_path: Path) -> None:
    """The checks of the kills can fail: each forged note is named."""
    url = f"sqlite:{tmp_path / 'store'}"
    (tmp_path / "oracle").mkdir()
    with penstock.open(url) as journal:
        set_up(journal, random.Random(3))
        worker = Worker(journal, Oracle(tmp_path / "oracle" / "w"), tmp_path, "w", random.Random(3))
        worker.all_once()
        worker.all_once()
        worker.push("LEFT")
        worker.append("LAST")
    assert problems(url, tmp_path) == []
    for forged, named in FORGED:
        path = tmp_path / "oracle" / "z"
        path.write_text(json.dumps(forged) + "\n")
        found = problems(url, tmp_path)
        assert any(named in each for each in found), (forged, found)

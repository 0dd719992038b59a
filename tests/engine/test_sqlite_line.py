"""The line of processes that wait to write a SQLite store: who has waited longest writes first, and nobody for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.core.engine import line as lines
from penstock.core.engine import sqlite
from penstock.core.engine.line import Line
from waiting import DEADLINE, eventually

STANDS = """
import sys
from penstock.core.engine.line import Line
line = Line(sys.argv[1])
line.stand()
print(flush=True)
sys.stdin.readline()
line.leave()
print(flush=True)
sys.stdin.readline()
"""

APPENDS = """
import sys, penstock
with penstock.open(sys.argv[1], durability="process") as journal:
    topic = journal.topic("t")
    topic.append("begun")
    print(flush=True)
    while True:
        topic.append("k")
"""


@contextmanager
def waiting(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that stands in the line; a line of input lets it leave."""
    child = subprocess.Popen(
        [sys.executable, "-c", STANDS, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def leave(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdout.readline()


def test_who_came_first_is_first(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.touch()
    line = Line(str(store))
    assert line.is_empty() and line.is_first()
    with waiting(store) as child:
        assert not line.is_empty()
        line.stand()
        assert not line.is_first()
        leave(child)
        assert line.is_first() and line.is_empty()
        with waiting(store):
            assert line.is_first() and not line.is_empty()
        line.leave()
    line.close()


def test_the_place_of_a_process_that_dies_is_free(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.touch()
    line = Line(str(store))
    with waiting(store) as child:
        assert not line.is_empty()
        child.kill()
        child.wait()
        assert line.is_empty()
    line.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_the_file_there_is_no_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    line = Line(str(tmp_path / "store"))
    line.stand()
    assert line.is_empty() and line.is_first() and not line.place
    tmp_path.chmod(0o700)


def test_a_process_that_has_written_for_a_while_lets_one_that_waits_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "PATIENCE", DEADLINE)
    monkeypatch.setattr(sqlite, "TURN_SECONDS", 0.0)
    store = tmp_path / "store"
    with penstock.open(store, durability="process") as one, penstock.open(store, durability="process") as two:
        one.topic("t").append("k")
        two.topic("t").append("k")
        one.topic("t").append("k")  # from here on it knows of the other
        with waiting(store) as child:
            thread = threading.Thread(target=lambda: one.topic("t").append("last"))
            thread.start()
            eventually(lambda: one._engine._line.place > 0, "it stands behind the other")  # type: ignore[attr-defined]
            assert two.topic("t").latest == 3
            leave(child)
            thread.join(DEADLINE)
            assert two.topic("t").latest == 4 and not one._engine._line.place  # type: ignore[attr-defined]


def test_a_suspended_process_holds_nobody_up_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "TURN_SECONDS", 0.0)
    store = tmp_path / "store"
    with penstock.open(store, durability="process") as one, penstock.open(store, durability="process") as two:
        with waiting(store) as child:
            os.kill(child.pid, signal.SIGSTOP)
            for _ in range(3):
                one.topic("t").append("k")
                two.topic("t").append("k")
        assert one.topic("t").latest == 6


def test_a_process_among_busy_others_has_its_turns(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with penstock.open(store, durability="process") as journal:
        children = [
            subprocess.Popen([sys.executable, "-c", APPENDS, str(store)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            for child in children:
                assert child.stdout is not None
                child.stdout.readline()
            begun = time.monotonic()
            for _ in range(20):
                journal.topic("mine").append("k")
            assert time.monotonic() - begun < DEADLINE
        finally:
            for child in children:
                child.kill()
                child.communicate()
        journal.topic("t").append("after")
        assert len(list(journal.topic("t").read())) == journal.topic("t").latest

"""Every search for faults is told its time, seed, engine and count in one way, and says how to see a finding again."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightly import PARTS
from searching import Search

TESTS = Path(__file__).parents[1]
SEARCHES = {name: part for name, part in PARTS.items() if part.search}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_takes_what_the_runner_may_tell_it(name: str) -> None:
    part = SEARCHES[name]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    said = subprocess.run(
        [sys.executable, "-m", part.search, "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    taken = set(re.findall(r"^ +--(\w+)", said, re.MULTILINE))
    assert {"minutes", "seed"} <= taken
    assert taken & {"engine", "count"} == {*part.takes}


def searched(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Search, argparse.Namespace]:
    monkeypatch.setattr(sys, "argv", ["search", *words])
    search = Search("torture.none", "Looks for nothing.", counts="tries", engines=["memory", "sqlite"])
    return search, search.begin()


def test_a_finding_is_told_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search, _ = searched(monkeypatch, "--engine", "memory", "--count", "3")
    search.tell(range(20), "lost: ")
    assert search.end("3 tries") == 1
    said = capsys.readouterr().out
    assert "lost: 9" in said and "lost: 10" not in said and "20 findings" in said
    assert f"python -m torture.none --engine memory --count 3 --seed {search.seed}" in said


def test_a_search_that_finds_nothing_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search, _ = searched(monkeypatch, "--seed", "7")
    search.tell([])
    assert search.end("no tries") == 0
    assert "seed 7, 0 findings" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "over"), [(("--minutes", "0"), True), (("--count", "1"), False), ((), False)])
def test_a_search_ends_by_its_time_or_its_count(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], over: bool
) -> None:
    search, options = searched(monkeypatch, *words)
    assert search.over() == over
    assert (options.count == 1) == ("--count" in words)

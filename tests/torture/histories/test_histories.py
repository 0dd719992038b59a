"""Concurrent operations are linearizable; the checker that says so can say otherwise."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import penstock
from torture.histories.check import TOLERANCE, contradictions, final, read_history
from torture.histories.order import Step, out_of_order
from torture.histories.search import Apply, Call, linearizable, part_without_order
from torture.histories.worker import Notes, Worker, set_up

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "scheme", ["sqlite", *(pytest.param(name, marks=pytest.mark.nightly("crashes")) for name in ("rocksdb", "file"))]
)
def test_what_four_processes_do_at_once_is_linearizable(scheme: str) -> None:
    command = [sys.executable, "-m", "torture.histories", "--engine", scheme, "--count", "1", "--operations", "30"]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    done = subprocess.run(
        [*command, "--seed", "1"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def searched(steps: list[Step]) -> bool:
    """Whether any order of the steps fits, found by trying."""

    def apply(step: Step) -> Apply:
        if step.wrote:
            return lambda state: iter((step.version,) if step.version > state else ())
        return lambda state: iter((state,) if step.version == state else ())

    return linearizable([Call(step.start, step.end, apply(step), step.what) for step in steps], 0) is None


def test_the_order_that_versions_force_is_the_only_one_that_could_fit() -> None:
    """The checker agrees with a search through all orders, on thousands of small histories, good and bad."""
    rng = random.Random(7)
    verdicts = set()
    for _ in range(3000):
        writes = rng.randrange(1, 4)
        steps = []
        for version in range(1, writes + 1):
            start = rng.randrange(20)
            steps.append(Step(version, True, start, start + rng.randrange(1, 12), f"write {version}"))
        for number in range(rng.randrange(4)):
            start = rng.randrange(25)
            steps.append(Step(rng.randrange(writes + 1), False, start, start + rng.randrange(1, 12), f"read {number}"))
        verdict = not list(out_of_order(steps))
        assert verdict == searched(steps), steps
        verdicts.add(verdict)
    assert verdicts == {True, False}


def made(tmp_path: Path) -> tuple[list[dict[str, Any]], Any]:
    """A history of one process, and what the journal holds in the end."""
    (tmp_path / "history").mkdir()
    with penstock.open("memory:") as journal:
        set_up(journal)
        worker = Worker(journal, Notes(tmp_path / "history" / "p0a"), random.Random(3), process="p0", local=True)
        for number in range(3):
            for operation in (
                *(worker.append, worker.latest, worker.read, worker.fence, worker.transact, worker.read),
                *(worker.change, worker.look, worker.change, worker.push, worker.push),
            ):
                worker.number += 1
                operation(f"p0a.{number}x{worker.number}")
            worker.dedup(f"p0a.d{number}")
            worker.dedup(f"p0a.e{number}")
        worker.rng = random.Random(0)
        for _ in range(4):
            worker.take("")
        return read_history(tmp_path), final(journal)


def test_a_history_of_one_process_has_no_contradiction_and_forged_ones_are_named(tmp_path: Path) -> None:
    history, held = made(tmp_path)
    assert contradictions(deepcopy(history), held) == []
    assert list(part_without_order(history, TOLERANCE)) == []

    def op(kind: str, number: int = 0) -> dict[str, Any]:
        return [each for each in forged if each["op"] == kind and "failed" not in each][number]

    def first(kind: str, field: str) -> dict[str, Any]:
        return next(each for each in forged if each["op"] == kind and field in each)

    named = []
    for what in range(9):
        forged, end = deepcopy(history), deepcopy(held)
        if what == 0:  # a read that began later saw less
            op("latest", -1)["saw"] = 0
        elif what == 1:  # a write that ended after another had begun has the smaller position
            op("append", 0)["seqs"], op("append", -1)["seqs"] = op("append", -1)["seqs"], op("append", 0)["seqs"]
        elif what == 2:  # a part of a fence
            read = next(each for each in forged if any("/" in found[1] for found in each.get("found", ())))
            read["found"] = [found for found in read["found"] if not found[1].endswith("/1")]
        elif what == 3:  # somebody came in between
            op("fence", -1)["seen"] = 0
        elif what == 4:  # a change on top of what was not there
            end["accounts"][-1][1][1] = 10**6
        elif what == 5:  # a dedup key twice
            end["once"].append((len(end["once"]) + 1, deepcopy(end["once"][0][1])))
        elif what == 6:  # told it was the first, and was not
            op("dedup")["duplicate"] = not op("dedup")["duplicate"]
        elif what == 7:  # two holders at one time
            taken = first("take", "deadline")
            other = {**taken, "n": 10**6}
            taken["deadline"] = other["deadline"] = taken["wall_end"] + 100
            forged[:] = [each for each in forged if each.get("of") != taken["n"]] + [other]
        else:  # gone
            op("push")["labels"] = ["p0a.ghost"]
        named.append(contradictions(forged, end))
        if what in (0, 1, 6, 7):  # what is said of operations alone; the others are about the journal in the end
            assert list(part_without_order(forged, TOLERANCE)), what
    assert all(named), named
    expected = [
        "before",
        "before",
        "and not",
        "while the fence",
        "expected",
        "2 times",
        "duplicate",
        "at one time",
        "gone",
    ]
    for found, text in zip(named, expected, strict=True):
        assert any(text in each for each in found), (text, found)

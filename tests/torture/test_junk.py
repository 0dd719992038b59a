"""Arguments that make no sense are refused by errors of penstock's tree, wherever they are given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Journal, Projection, Tasks, on
from penstock.errors import ConfigError
from torture.junk import CYCLE, LOOP, Unresolved

TESTS = Path(__file__).parents[1]


def test_junk_arguments_are_refused_by_errors_of_the_tree() -> None:
    command = [sys.executable, "-m", "torture.junk", "--count", "3", "--seed", "1"]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"([\d,]+) calls, ([\d,]+) refused", done.stdout)
    here, served = ([int(one.replace(",", "")) for one in counted] for counted in counts)
    assert here[0] > 800 and served[0] > 400, "the surface is found by reflection: where has it gone?"
    assert here[1] > here[0] / 4 and served[1] > served[0] / 4, "most junk is refused, not taken"


class Lost(Projection):
    """A projection whose annotation names nothing."""

    n: "Nowhere" = 0  # type: ignore[name-defined]  # noqa: F821, UP037

    @on("k")
    def add(self, event: Any) -> None:
        self.n += 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda journal: journal.outbox().stage(5, "k"), "a topic is named"),
        (lambda journal: journal.mark(5), "a mark name must be text"),
        (lambda journal: journal.sql("select 1", columns=5), "columns must be a mapping"),
        (lambda journal: journal.sql("select 1", parameters=5), "parameters are a list"),
        (lambda journal: journal.sql("select ?", [CYCLE]), "holds itself"),
        (lambda journal: journal.sql("select count(*) from t", columns={"t": Unresolved}), "cannot be resolved"),
        (lambda journal: penstock.open("memory:", clock="x"), "a clock has now_ms"),
        (lambda journal: penstock.open("http://127.0.0.1:9", token=5), "a token must be text"),
        (lambda journal: journal.queue("q").push(1, delay=10**400), "delay must be a number of seconds"),
        (lambda journal: journal.topic("t", payload=Unresolved), "payloads cannot be read as"),
        (lambda journal: journal.topic("t").append("k", CYCLE), "payload"),
        (lambda journal: journal.topic("t", payload=dict).append("k", LOOP), "does not fit"),
        (lambda journal: journal.topic("t").append_many(5), "drafts must be a list"),
        (lambda journal: journal.topic("t").read(key_prefix="\ud800"), "not valid Unicode"),
        (lambda journal: journal.queue("q").discard(5), "seqs must be a list"),
        (lambda journal: journal.backup("\0"), "destination must be a path"),
        (lambda journal: journal.topic("t").verify(progress=5), "progress must be a function"),
        (lambda journal: Tasks(5), "tasks belong to a journal"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(call: Callable[[Journal], object], says: str) -> None:
    with penstock.open("memory:") as journal:
        journal.topic("t").append("k", {"n": 1})
        with pytest.raises(ConfigError, match=says):
            call(journal)


def test_an_annotation_that_names_nothing_is_an_error_of_the_tree_or_none() -> None:
    with penstock.open("memory:") as journal:
        topic = journal.topic("t")
        topic.append("k", {"n": 1}, key="a")
        state = topic.project(Lost, "a")
        assert state is None or state.n == 1

"""The pytest plugin for users' own tests, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.testing import assert_appended, assert_settled, drain

TESTS = """
import penstock
from penstock.testing import drain

def test_time_stands_still(journal, clock):
    queue = journal.queue("q")
    queue.push("later", delay=60)
    assert drain(queue) == []
    clock.advance(61)
    assert drain(queue) == ["later"]

def test_journals_are_separate(journal):
    assert journal.topics() == []
"""


def test_the_fixtures_are_there_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "penstock.testing", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def journal() -> penstock.Journal:
    return penstock.open("memory:", clock=penstock.ManualClock())


def test_an_error_of_the_handler_reaches_the_test_and_the_message_stays(journal: penstock.Journal) -> None:
    queue = journal.queue("q")
    queue.push("a")

    def fail(delivery: penstock.Delivery) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        drain(queue, fail)
    with pytest.raises(AssertionError, match="not settled"):
        assert_settled(queue)
    assert drain(queue) == ["a"]
    assert_settled(queue)


def test_a_handler_that_feeds_its_own_queue_is_found_out(
    journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.testing._MOST", 100)
    queue = journal.queue("q")
    queue.push(0)
    with pytest.raises(AssertionError, match="still not empty"):
        drain(queue, lambda delivery: queue.push(delivery.payload + 1))


def test_what_was_appended_is_found_or_shown(journal: penstock.Journal) -> None:
    topic = journal.topic("t")
    topic.append("paid", {"n": 1}, key="a")
    assert assert_appended(topic, "paid", {"n": 1}, key="a").seq == 1
    with pytest.raises(AssertionError, match="holds"):
        assert_appended(topic, "paid", {"n": 2})

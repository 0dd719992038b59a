"""A process killed in the middle of anything: what it had been told is there, fences are whole or absent, hashes match.

The child appends, commits and cancels fences, indexes and projects without pause, and says after each step what it was
promised. It is killed somewhere in between, the store is opened again, and everything is compared.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Journal, Projection
from penstock import on as handles

CHILD = Path(__file__).with_name("entity_child.py")
GROUP = 5


class Total(Projection):
    total: int = 0

    @handles("e", "fenced")
    def add(self, payload: Any) -> None:
        self.total += payload["n"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file", "slatedb"])
def test_a_killed_process_leaves_exactly_what_it_was_promised(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    chance = random.Random(scheme)
    promised: list[str] = []
    for life in range(2):
        promised += live_and_die(url, life, steps=chance.randrange(20, 60))
        with penstock.open(url) as journal:
            check(journal, promised)


def live_and_die(url: str, life: int, *, steps: int) -> list[str]:
    """Runs the child until it has reported some steps, kills it, and returns what it had been promised."""
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, str(CHILD), url, str(life)], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            told.append(line.strip())
            if len(told) >= steps:
                break
        child.kill()
        told.extend(line.strip() for line in child.stdout if line.endswith("\n"))
    assert len(told) >= steps, "the child ended by itself"
    return told


def check(journal: Journal, promised: list[str]) -> None:
    topics = {name: list(journal.topic(name).read()) for name in ("plain", "verified")}
    stored = {event.payload["id"] for events in topics.values() for event in events}
    missing = [one for one in promised if one not in stored]
    assert not missing, f"acknowledged, but gone: {missing[:3]}"
    assert not [one for one in stored if one.startswith("cancelled")]
    groups = Counter(one.rpartition("/")[0] for one in stored if one.startswith("fence"))
    assert set(groups.values()) <= {GROUP}, "a fence came out in part"
    for name, events in topics.items():
        topic = journal.topic(name)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        for key in {event.key for event in events}:
            own = [event for event in events if event.key == key]
            assert list(topic.read(key=key)) == own
            assert topic.generation(key) == own[-1].seq
            assert topic.project(Total, key) == Total.fold(own)
    assert journal.topic("verified").verify().events == len(topics["verified"])

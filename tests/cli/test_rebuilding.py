"""Projections rebuilt from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock

from .commandline import Cli

STATES = """
from penstock import Projection, on

class Count(Projection):
    n: int = 0

    @on("placed", "paid", "message")
    def seen(self, event):
        self.n += 1

def helper():
    pass
"""


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shop_states.py").write_text(STATES)
    monkeypatch.syspath_prepend(tmp_path)
    return "shop_states"


def test_states_of_all_entities_are_saved_and_progress_is_told(cli: Cli, states: str, url: str) -> None:
    for number in range(20):
        cli("append", "t", str(number), "--key", f"k{number % 4}")
    done = cli("rebuild", "t", f"{states}:Count", "--json")
    assert done.document == {"topic": "t", "entities": 4, "events": 20, "through": 20}
    assert "20 of 20 events folded" in done.err
    from shop_states import Count  # type: ignore[import-not-found]

    with penstock.open(url) as journal:
        assert journal.topic("t").project(Count, "k1").n == 5
    assert cli("rebuild", "t", f"{states}:Count", "--whole", "--json").document["entities"] == 1
    assert cli("rebuild", "t", f"{states}:Count", "--check", "--json").document == {"topic": "t", "wrong": []}
    assert "leave --whole and --master out" in cli("rebuild", "t", f"{states}:Count", "--check", "--whole", code=2).err


def test_what_cannot_be_rebuilt_is_said(cli: Cli, states: str) -> None:
    cli("append", "t", "1")
    assert "is no projection" in cli("rebuild", "t", f"{states}:helper", code=2).err
    assert "module:name" in cli("rebuild", "t", "Count", code=2).err
    assert "no module 'nowhere'" in cli("rebuild", "t", "nowhere:Count", code=2).err
    assert "there is no topic 'u'" in cli("rebuild", "u", f"{states}:Count", code=3).err

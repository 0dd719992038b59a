"""Copies of a journal beside others: a second copy, a target that is in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft
from penstock.engine.url import open_engine
from penstock.errors import ConfigError
from penstock.journal import moving


def payloads(url: str) -> list[Any]:
    with penstock.open(url, read_only=True) as journal:
        return [event.payload for event in journal.topic("t").read()]


def before(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], None], call: int) -> None:
    """Has something happen, once, before the n-th call of one of the copy's steps."""
    real, calls = getattr(moving, name), [0]

    def step(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            work()
        return real(*args)

    monkeypatch.setattr(moving, name, step)


@pytest.mark.parametrize(
    ("step", "call"), [("_bring", 1), ("_write", 1), ("_write", 3), ("_compare", 1), ("_bring", 2), ("_compare", 2)]
)
def test_a_copy_that_another_one_has_finished_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    url = f"sqlite:{tmp_path / 'b'}"
    monkeypatch.setattr(moving, "BATCH_BYTES", 1)
    with penstock.open(tmp_path / "a.db") as source:
        source.topic("t").append_many([Draft("k", number) for number in range(3)])

        def finish() -> None:
            source.copy_to(url)
            with penstock.open(url) as copy:
                copy.topic("t").append("k", "of the copy")

        before(monkeypatch, step, finish, call)
        with pytest.raises(ConfigError, match="finished by another copy"):
            source.copy_to(url)
    assert payloads(url) == [0, 1, 2, "of the copy"]


def test_a_place_where_a_journal_is_made_while_a_copy_begins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path / 'b'}"

    target = open_engine(url)
    real = target.write

    def write(*, sync: bool = True) -> Any:
        monkeypatch.undo()
        with penstock.open(url) as journal:
            journal.topic("t").append("k", "its own")
        return real(sync=sync)

    monkeypatch.setattr(target, "write", write)
    with penstock.open(tmp_path / "a.db") as opened:
        source: Any = opened
        source.topic("t").append("k", 1)
        with pytest.raises(ConfigError, match="holds a journal already"):
            moving.copy_store(source._engine, source.id, target)
    target.close()
    assert payloads(url) == ["its own"]

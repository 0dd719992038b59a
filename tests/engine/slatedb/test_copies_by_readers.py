"""A copy that a reader of a bucket makes is of everything that was acknowledged, however long it has not looked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from object_homes import Home

import penstock
from buffer.emulator import Emulator
from penstock.core.journal import moving


@pytest.mark.parametrize("at", [1, 2])
def test_a_copy_by_a_reader_holds_everything_that_was_acknowledged(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """`at`: before which of a copy's two passes the newest event was acknowledged."""
    bucket = Home(f"{emulator.bucket()}/shop", emulator.options)
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    reader: Any = bucket.open(read_only=True)
    assert reader.topic("t").latest == 1
    follower, bring, passes = reader._engine._follower, moving._write_differences, [0]

    def next_pass(*args: Any) -> int:
        passes[0] += 1
        written = bring(*args)
        if passes[0] == at - 1:
            append()
        return written

    def append() -> None:
        follower._pause = 1000.0  # it does not look by itself
        writer.topic("t").append("k", 1)

    monkeypatch.setattr(moving, "_write_differences", next_pass)
    if at == 1:
        append()
    reader.copy_to(tmp_path / "copy.db")
    with penstock.open(tmp_path / "copy.db", read_only=True) as copy:
        assert [event.payload for event in copy.topic("t").read()] == [0, 1]
    bucket.close()

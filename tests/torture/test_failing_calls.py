"""The N-th call fails: what is acknowledged afterwards holds too, after a kill and after a power cut."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from torture.failing import fail_calls
from torture.power import Checker, segments, summary
from torture.recorder import HERE, NO_COMPILER, compiler, record

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
@pytest.mark.parametrize(
    ("kind", "error", "at"),
    [("sync", errno.EIO, (2, 5, 7, 13)), ("write", errno.ENOSPC, (3, 11, 30)), ("open", errno.EMFILE, (1, 4))],
    ids=["sync EIO", "write ENOSPC", "open EMFILE"],
)
def test_a_failing_call_costs_nothing_that_is_acknowledged_later(
    tmp_path: Path, scheme: str, kind: str, error: int, at: tuple[int, ...]
) -> None:
    with Checker() as checker:
        found, _ = fail_calls(tmp_path / "disk", scheme, checker, kind, error, at, steps=30)
    assert not found, summary(found)


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_after_a_full_disk_the_same_journal_goes_on_when_there_is_room_again(tmp_path: Path, scheme: str) -> None:
    specs = [f"write:{at}:{errno.ENOSPC}:12" for at in (2, 9)]
    run = record(HERE / "workload.py", tmp_path / "disk", scheme, "disk", "4", "30", *specs)
    assert run.returncode == 0, run.output
    for segment in segments(run):
        said = [note for _, note in segment.marks]
        assert any("failed" in note for note in said)
        done = [note["appended"] for note in said if "appended" in note]
        assert len([label for label in done if label.startswith("after")]) == 5, said


@pytest.mark.parametrize(
    ("kind", "error", "at"),
    [("sync", errno.EIO, (5,)), ("write", errno.ENOSPC, (30,))],
    ids=["sync EIO", "write ENOSPC"],
)
def test_a_failing_call_costs_nothing_of_a_buffer_an_export_or_sealed_history(
    tmp_path: Path, kind: str, error: int, at: tuple[int, ...]
) -> None:
    """Two of the calls; `python -m torture.cuts --engine files` goes over the others."""
    with Checker() as checker:
        found, calls = fail_calls(tmp_path / "disk", "files", checker, kind, error, at, steps=10, cuts=1)
    assert not found, summary(found)
    assert calls >= max(at)

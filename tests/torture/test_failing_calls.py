"""The N-th call fails: what is acknowledged afterwards holds too, after a kill and after a power cut."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from torture.failing import calls_of, fail_calls
from torture.power import Checker, segments, summary
from torture.recorder import HERE, NO_COMPILER, compiler, record

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_a_failing_call_costs_nothing_that_is_acknowledged_later(tmp_path: Path, checker: Checker, scheme: str) -> None:
    specs = [
        *calls_of("sync", errno.EIO, (2, 5, 7, 13)),
        *calls_of("write", errno.ENOSPC, (3, 30)),
        *calls_of("write", errno.EIO, (11,)),
        *calls_of("open", errno.EMFILE, (1, 4)),
        *calls_of("rename", errno.EIO, (1,)),
        *calls_of("truncate", errno.ENOSPC, (1,)),
    ]
    found, _ = fail_calls(tmp_path / "disk", scheme, checker, specs, steps=30)
    assert not found, summary(found)


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_a_store_that_cannot_be_opened_again_after_a_failed_sync_says_so_and_goes_on_later(
    tmp_path: Path, checker: Checker, scheme: str
) -> None:
    specs = calls_of("sync,open", errno.EIO, (2, 3, 5), more=6)
    found, _ = fail_calls(tmp_path / "disk", scheme, checker, specs, steps=30)
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


def test_a_failing_call_costs_nothing_of_a_buffer_an_export_or_sealed_history(tmp_path: Path, checker: Checker) -> None:
    """Two of the calls; `python -m torture.failing --engine files` goes over the others."""
    specs = [*calls_of("sync", errno.EIO, (5,)), *calls_of("write", errno.ENOSPC, (30,))]
    found, calls = fail_calls(tmp_path / "disk", "files", checker, specs, steps=10, cuts=1)
    assert not found, summary(found)
    assert calls >= 30

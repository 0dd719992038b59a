"""A power cut at many moments of a journal's life: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture.power import Checker, cut_power, record_load, summary
from torture.recorder import HERE, NO_COMPILER, compiler, record

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
SCHEMES = ["sqlite", "rocksdb", "file"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path, checker: Checker, scheme: str) -> None:
    root = tmp_path / "disk"
    run = record(HERE / "workload.py", root, scheme, "disk", "2", "90")
    assert run.returncode == 0, run.output
    assert not [note for note in run.marks() if "failed" in note]
    found = cut_power(run, root, scheme, checker, seed=2, cuts=12, synced=True)
    assert not found, summary(found)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_power_cut_leaves_a_store_of_weak_durability_whole(tmp_path: Path, checker: Checker, scheme: str) -> None:
    root = tmp_path / "disk"
    run = record(HERE / "workload.py", root, scheme, "process", "3", "60")
    assert run.returncode == 0, run.output
    found = cut_power(run, root, scheme, checker, seed=3, cuts=6, synced=False)
    assert not found, summary(found)


@pytest.mark.parametrize(
    ("table", "seed", "steps"), [("delta", 10, 20), pytest.param("iceberg", 1, 8, marks=pytest.mark.nightly("crashes"))]
)
def test_a_power_cut_takes_nothing_of_a_buffer_an_export_or_sealed_history(
    tmp_path: Path, checker: Checker, table: str, seed: int, steps: int
) -> None:
    root = tmp_path / "disk"
    run = record_load(root, "files", "disk", seed, steps)
    assert run.returncode == 0, run.output
    assert not [note for note in run.marks() if "failed" in note]
    assert [note["table"] for note in run.marks() if "table" in note] == [table]
    assert len([note for note in run.marks() if "sealed" in note]) > 2
    found = cut_power(run, root, "files", checker, seed=seed, cuts=6, synced=True)
    assert not found, summary(found)

"""A power cut at many moments of a journal's life: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture.power import Checker, cut_power, summary
from torture.recorder import HERE, NO_COMPILER, compiler, record

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
SCHEMES = ["sqlite", "lmdb", "rocksdb", "file"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path, scheme: str) -> None:
    root = tmp_path / "disk"
    run = record(HERE / "workload.py", root, scheme, "disk", "2", "90")
    assert run.returncode == 0, run.output
    assert not [note for note in run.marks() if "failed" in note]
    with Checker() as checker:
        found = cut_power(run, root, scheme, checker, seed=2, cuts=20, synced=True)
    assert not found, summary(found)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_power_cut_leaves_a_store_of_weak_durability_whole(tmp_path: Path, scheme: str) -> None:
    root = tmp_path / "disk"
    run = record(HERE / "workload.py", root, scheme, "process", "3", "60")
    assert run.returncode == 0, run.output
    with Checker() as checker:
        found = cut_power(run, root, scheme, checker, seed=3, cuts=8, synced=False)
    assert not found, summary(found)

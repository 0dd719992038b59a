"""The N-th call fails: what is acknowledged afterwards holds too, after a kill and after a power cut."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from torture.failing import fail_calls
from torture.power import Checker, summary
from torture.recorder import NO_COMPILER, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.mark.parametrize("scheme", ["sqlite", "lmdb", "rocksdb", "file"])
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

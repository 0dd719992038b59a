"""Failing calls: the N-th write, sync, open, rename … of a journal's life fails; then kills and power cuts."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from torture.power import Checker, cut_power, segments
from torture.recorder import HERE, record

FAILURES = {
    "sync": [errno.EIO],
    "write": [errno.EIO, errno.ENOSPC],
    "open": [errno.EMFILE, errno.EIO],
    "rename": [errno.EIO, errno.ENOSPC],
    "truncate": [errno.ENOSPC],
    "map": [errno.ENOMEM],
}
"""What the kinds of calls fail with."""


def fail_calls(
    root: Path,
    scheme: str,
    checker: Checker,
    kind: str,
    error: int,
    at: Iterable[int],
    *,
    more: int = 0,
    steps: int = 40,
) -> tuple[list[str], int]:
    """Lets each of some calls fail in a run of its own; what was found wrong, and how many such calls a run makes."""
    specs = [f"{kind}:{number}:{error}:{more}" for number in at]
    run = record(HERE / "workload.py", root, scheme, "disk", "4", str(steps), *specs)
    if run.returncode:
        return [f"the program ended with {run.returncode}: {run.output[-2000:]}"], 0
    found = cut_power(run, root, scheme, checker, seed=4, cuts=3, synced=True, last=40)
    named = [f"{kind} fails with {errno.errorcode[error]} ({specs}): {each}" for each in found]
    return named, max(said["calls"] for segment in segments(run) for _, said in segment.marks if "calls" in said)

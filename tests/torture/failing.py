"""Failing calls: the N-th write, sync, open, rename … of a journal's life fails; then kills and power cuts.

    python -m torture.failing [--engine sqlite] [--minutes 60]

goes over every N of every kind of call on every engine, each with what it may fail with, until all are done or the
time is up; prints what it found and ends with 1 when it found anything.
"""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from searching import Search
from torture.power import Checker, cut_power, record_load, segments, summary
from torture.recorder import NO_COMPILER, compiler

SCHEMES = ["sqlite", "rocksdb", "file", "files"]
"""Engines, and what is written beside a store: buffers, exports, sealed history."""
FILE_SEEDS = {"": 7, "Delta": 4, "Iceberg": 5}
"""Seeds of `files` by what their lake is beside Parquet; every one has its turn."""
AT_A_TIME = 12
"""Failing calls in one process: each has a store of its own."""

FAILURES = {
    "sync": [errno.EIO],
    "write": [errno.EIO, errno.ENOSPC],
    "open": [errno.EMFILE, errno.EIO],
    "rename": [errno.EIO, errno.ENOSPC],
    "truncate": [errno.ENOSPC],
    "map": [errno.ENOMEM],
}
"""What the kinds of calls fail with."""


def calls_of(kind: str, error: int, at: Iterable[int], *, more: int = 0) -> list[str]:
    """The calls of a kind that are to fail, and `more` after each, as a workload takes them."""
    return [f"{kind}:{number}:{error}:{more}" for number in at]


def fail_calls(
    root: Path,
    scheme: str,
    checker: Checker,
    specs: Sequence[str],
    *,
    steps: int = 40,
    cuts: int = 3,
    seed: int = 4,
) -> tuple[list[str], int]:
    """Lets each of some calls fail in a run of its own; what was found wrong, and how many such calls a run makes."""
    run = record_load(root, scheme, "disk", seed, steps, *specs)
    if run.returncode:
        return [f"the program ended with {run.returncode}: {run.output[-2000:]}"], 0
    found = cut_power(run, root, scheme, checker, seed=seed, cuts=cuts, synced=True, last=40)
    named = [f"{specs}: {each}" for each in found]
    return named, max(said["calls"] for segment in segments(run) for _, said in segment.marks if "calls" in said)


def sweep(scheme: str, checker: Checker, ends: float, seed: int = 4) -> tuple[list[str], list[str]]:
    """Every N of every kind of call: what was found wrong, and a line on how far each kind came."""
    found: list[str] = []
    lines: list[str] = []
    for kind, errors in FAILURES.items():
        for error in errors:
            calls = AT_A_TIME
            done = 0
            while done < calls and time.monotonic() < ends:
                at = range(done + 1, min(calls, done + AT_A_TIME) + 1)
                folder = Path(tempfile.mkdtemp(prefix="penstock-failing-"))
                try:
                    steps = 10 if scheme == "files" else 25
                    specs = calls_of(kind, error, at)
                    wrong, made = fail_calls(folder / "fails", scheme, checker, specs, steps=steps, cuts=2, seed=seed)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                found += wrong
                done = at[-1]
                calls = max(calls, made)
            of = "" if done >= calls else f" of {calls}"
            lines.append(f"{scheme}: {kind} fails with {errno.errorcode[error]}: {done}{of}")
    return found, lines


def main() -> int:
    search = Search("torture.failing", __doc__, engines=SCHEMES)  # every call has its turn, whatever the seed
    options = search.begin()
    if compiler() is None:
        print(NO_COMPILER)
        return 2
    for scheme in options.engines:
        share = options.seconds / len(options.engines)
        for table, seed in FILE_SEEDS.items() if scheme == "files" else [("", 4)]:
            begun = time.monotonic()
            ends = begun + (share / len(FILE_SEEDS) if scheme == "files" else share)
            with Checker() as checker:
                found, lines = sweep(scheme, checker, ends, seed)
            search.tell([summary(found)] if found else [])
            print("\n".join(lines), flush=True)
            print(f"{scheme}{f' with {table}' if table else ''}: {time.monotonic() - begun:.0f} s", flush=True)
    return search.end(", ".join(options.engines))


if __name__ == "__main__":
    sys.exit(main())

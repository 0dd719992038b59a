"""Cuts the power and lets calls fail, with new seeds, until the time is up.

    python -m torture.cuts [--minutes 10] [--engine sqlite] [--seed 1]

Prints what it found with the seed that shows it again, and ends with 1 when it found anything.
"""

from __future__ import annotations

import errno
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from searching import Search
from torture.failing import FAILURES, SCHEMES, calls_of, fail_calls
from torture.power import Checker, cut_power, record_load, summary
from torture.recorder import NO_COMPILER, compiler


def main() -> int:
    search = Search("torture.cuts", __doc__, engines=SCHEMES)
    options = search.begin()
    if compiler() is None:
        print(NO_COMPILER)
        return 2
    done: Counter[str] = Counter()
    seed = options.seed
    while not search.over():
        for scheme in options.engines:
            found = one_round(scheme, seed, done)
            search.tell([summary(found)] if found else [], f"engine {scheme}, seed {seed}:\n")
        seed += 1
    for what, count in sorted(done.items()):
        print(f"{what}: {count}")
    return search.end(f"seeds {options.seed} to {seed - 1}")


def one_round(scheme: str, seed: int, done: Counter[str]) -> list[str]:
    """One recorded run with power cuts, and a few failing calls of one kind."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="penstock-torture-"))
    found: list[str] = []
    try:
        with Checker() as checker:
            durability, steps = rng.choice(["disk", "disk", "process"]), rng.choice([40, 120, 400])
            if scheme == "files":
                durability, steps = "disk", 40
            run = record_load(folder / "cuts", scheme, durability, seed, steps)
            if run.returncode:
                found.append(f"the workload ended with {run.returncode}: {run.output[-2000:]}")
            else:
                found += cut_power(
                    run, folder / "cuts", scheme, checker, seed=seed, cuts=30, synced=durability == "disk"
                )
                done[f"{scheme} power cuts"] += 30
            kind = rng.choice(list(FAILURES))
            error = rng.choice(FAILURES[kind])
            at = sorted(rng.randrange(1, 120) for _ in range(8))
            more = rng.choice([0, 3, 20])
            specs = calls_of(kind, error, at, more=more)
            wrong, _ = fail_calls(folder / "fails", scheme, checker, specs, seed=seed)
            found += [f"{errno.errorcode[error]} and {more} more: {each}" for each in wrong]
            done[f"{scheme} failing calls"] += len(at)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


if __name__ == "__main__":
    sys.exit(main())

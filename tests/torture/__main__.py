"""The long form of the torture: every part for its share of the time, with one seed.

    python -m torture [--minutes 60] [--part kills] [--engine sqlite] [--seed 1] [--kills 10000]

Each part is a program of its own (`python -m torture.kills --help`) that prints what it found with the seed that shows
it again. Ends with 1 when any of them found something.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys

PARTS = [
    "cuts",
    "failing",
    "kills",
    "damage",
    "simulation",
    "histories",
    "overload",
    "serving",
    "fuzzing",
    "crafted",
    "junk",
]
WITH_ENGINES = ("cuts", "failing", "kills", "histories", "overload")


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--engine")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--kills", type=int, help="kill so many processes, however long it takes")
    options = parser.parse_args()
    parts = options.part or PARTS
    failed = []
    for part in parts:
        command = [sys.executable, "-m", f"torture.{part}", "--seed", str(options.seed)]
        if part == "kills" and options.kills:
            command += ["--kills", str(options.kills)]
        else:
            command += ["--minutes", str(options.minutes / len(parts))]
        if options.engine and part in WITH_ENGINES:
            command += ["--engine", options.engine]
        print(f"\n{part}: {' '.join(command[1:])}", flush=True)
        if subprocess.call(command):
            failed.append(part)
    print(f"\nfound something: {', '.join(failed)}" if failed else f"\nnothing found, seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

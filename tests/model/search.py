"""Plays programs with new seeds, and shrinks and prints those that fail.

    python -m model.search [--count 10000] [--minutes 60] [--seed 1] [--engine sqlite]

Run in `tests`. `--seed` alone with `--count 1` plays one program again. Ends with 1 when any program failed.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from model.programs import Failure, Program, draw, search
from model.store_world import RULES, StoreWorld
from server.over_http.shared_server import SharedServer


def program_of(seed: int, engine: str | None = None) -> Program:
    """The program of a seed; `engine`: on another one than it draws."""
    program = draw(RULES, StoreWorld.places, seed)
    return program if engine is None else replace(program, world={**program.world, "engine": engine})


def told(failure: Failure) -> str:
    """A failure as it is shown, with how to see it again."""
    return f"{failure}\nagain, in `tests`: python -m model.search --count 1 --seed {failure.program.seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="model.search", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--engine")
    options = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)
    begun, steps = time.monotonic(), Counter[str]()

    def programs() -> Iterator[Program]:
        for seed in range(options.seed, options.seed + options.count):
            if time.monotonic() - begun > 60 * options.minutes:
                return
            program = program_of(seed, options.engine)
            steps.update(step.name for step in program.steps)
            steps["programs"] += 1
            yield program

    server = SharedServer()
    try:
        failed = search(
            lambda program: StoreWorld(program, server),
            programs(),
            tell=lambda failure: print(f"\n{told(failure)}", flush=True),
        )
    finally:
        server.close()
    print(", ".join(f"{name} {count}" for name, count in sorted(steps.items())))
    print(f"{failed} failed of {steps['programs']} programs from seed {options.seed}, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

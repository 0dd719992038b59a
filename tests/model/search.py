"""Plays programs with new seeds, and shrinks and prints those that fail.

    python -m model.search [--count 10000] [--minutes 60] [--seed 1] [--engine sqlite]

Run in `tests`. `--seed` alone with `--count 1` plays one program again. Ends with 1 when any program failed.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from model.programs import Failure, Program, draw, play_all
from model.store_world import RULES, StoreWorld
from searching import Search
from server.over_http.shared_server import SharedServer


def program_of(seed: int, engine: str | None = None) -> Program:
    """The program of a seed; `engine`: on another one than it draws."""
    program = draw(RULES, StoreWorld.places, seed)
    return program if engine is None else replace(program, world={**program.world, "engine": engine})


def told(failure: Failure) -> str:
    """A failure as it is shown, with how to see it again."""
    program = failure.program
    given = f"--count 1 --seed {program.seed} --engine {program.world['engine']}"
    return f"{failure}\nagain, in `tests`: python -m model.search {given}"


def main() -> int:
    search = Search("model.search", __doc__, counts="programs", engines=["memory", "sqlite", "file", "rocksdb"])
    options = search.begin()
    logging.getLogger("penstock").setLevel(logging.ERROR)
    steps = Counter[str]()

    def programs() -> Iterator[Program]:
        for seed in range(options.seed, options.seed + options.count):
            if search.over():
                return
            program = program_of(seed, options.engine)
            steps.update(step.name for step in program.steps)
            steps["programs"] += 1
            yield program

    server = SharedServer()
    try:
        make = lambda program: StoreWorld(program, server)
        play_all(make, programs(), tell=lambda failure: search.tell([f"\n{told(failure)}"]))
    finally:
        server.close()
    print(", ".join(f"{name} {count}" for name, count in sorted(steps.items())))
    return search.end(f"{steps['programs']} programs")


if __name__ == "__main__":
    sys.exit(main())

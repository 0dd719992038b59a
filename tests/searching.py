"""What every search for faults has in common: a seed, an end, an engine, and what it says when it is over.

    search = Search("torture.kills", __doc__, counts="kills, of all engines together", engines=SCHEMES)
    options = search.begin()
    …                       # until search.over(), of options.count tries, with options.seed
    search.tell(found)
    return search.end("10000 kills")

A search is a program of its own: `python -m torture.kills --seed 1`. `nightly.py` runs any of them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Sequence

MINUTES = 10
ENDLESS = 1 << 40


class Search:
    """The options of a search, its time, and what it has found."""

    def __init__(self, module: str, says: str | None, *, counts: str = "", engines: Sequence[str] = ()) -> None:
        self._module = module
        self.found = 0
        self.parser = argparse.ArgumentParser(prog=module, description=(says or "").splitlines()[0])
        self.parser.add_argument("--minutes", type=float, help=f"{MINUTES}, where no --count is given")
        self.parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
        if counts:
            self.parser.add_argument("--count", type=int, help=f"{counts}, however long it takes")
        if engines:
            self.parser.add_argument("--engine", choices=engines)
        self._engines = engines

    def begin(self) -> argparse.Namespace:
        """Reads the command line; `seconds` is the whole time, `engines` are those that are wanted."""
        options = self.parser.parse_args()
        counted = getattr(options, "count", None) is not None
        minutes = options.minutes if options.minutes is not None else ENDLESS if counted else MINUTES
        options.minutes, options.seconds = minutes, 60 * minutes
        if not counted:
            options.count = ENDLESS
        if self._engines:
            options.engines = [options.engine] if options.engine else list(self._engines)
        self.seed, self._begun, self._ends = options.seed, time.monotonic(), time.monotonic() + options.seconds
        return options

    def over(self) -> bool:
        return time.monotonic() > self._ends

    def tell(self, found: Iterable[object], about: str = "") -> None:
        """Prints what was found, the first ten of it, and counts all."""
        for number, each in enumerate(found):
            self.found += 1
            if number < 10:
                print(f"  {about}{each}", flush=True)

    def end(self, done: str) -> int:
        """Says what was done and how to see it again; the code of the program is 1 when anything was found."""
        seconds = time.monotonic() - self._begun
        print(f"{done}; {seconds:.0f} s, seed {self.seed}, {self.found} findings", flush=True)
        if self.found:
            again = [word for word in sys.argv[1:] if not word.startswith("--seed=")]
            if "--seed" not in again:
                again += ["--seed", str(self.seed)]
            print(f"again, in `tests`: PYTHONPATH=../src:. python -m {self._module} {' '.join(again)}", flush=True)
        return 1 if self.found else 0

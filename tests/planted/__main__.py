"""Plants one fault at a time in a copy of the tree, and says which test finds it.

    cd tests && python -m planted [--fault lost-ack …] [--area queue …] [--quick] [--jobs 2] [--minutes 90]

Asks the tests that the fault names, then the folders of its area, until a test fails that passes without the fault.
Ends with 1 when a fault was found by no test, or has lost its place in the sources.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue

from planted.catalogue import AREAS, FAULTS, ROOT, Fault

LONGEST = 900.0
"""Seconds that a finder may take: a fault that leaves a test without an end is found, too."""
LEFT_OUT = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "out", "site", "dist")
PYTEST = ("-m", "pytest", "-x", "--tb=no", "--hypothesis-profile=first")
PASSED, FAILED, NO_TESTS = 0, 1, 5
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """What became of a fault: the first test that found it, and how long that took; no test when it was missed."""

    fault: Fault
    finder: str | None
    seconds: float

    def __str__(self) -> str:
        return f"| {self.fault.area} | {self.fault.name} | {self.finder or '**nobody**'} | {self.seconds:.0f} |"


class Tree:
    """A copy of the tree in which one fault at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        if (ROOT / ".venv").exists():
            (self.root / ".venv").symlink_to(ROOT / ".venv")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plants a fault for as long as the block runs."""
        path = fault.place(self.root)
        source = path.read_text("utf-8")
        _write(path, fault.planted(source))
        try:
            yield
        finally:
            _write(path, source)

    def failing(self, finder: str) -> str | None:
        """The first test of a finder that fails; None when all pass. A finder without tests is an error."""
        path, *options = shlex.split(finder)
        command = [sys.executable, *PYTEST, f"tests/{path}", *options]
        environment = {**os.environ, "PYTHONPATH": f"{self.root / 'src'}:{self.root / 'tests'}"}
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                return f"{path} (no end)"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            text = said.read()
        if code in (PASSED, NO_TESTS):
            return None
        if code != FAILED:
            raise RuntimeError(f"pytest {shlex.join(command[3:])} ended with {code}:\n{text[-2000:]}")
        found = _FIRST.search(text)
        return found[1].removeprefix("tests/") if found else path


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)  # a change within a second may not look like one


class Sound:
    """Which finders pass in the tree as it is; each is asked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, bool] = {}

    def passes(self, tree: Tree, finder: str) -> bool:
        """Whether a finder passes without a fault: one that does not says nothing of a fault."""
        with self._lock:
            if finder not in self._known:
                failing = tree.failing(finder)
                self._known[finder] = failing is None
                if failing is not None:
                    print(f"fails as it is: {failing}", flush=True)
            return self._known[finder]


def grade(tree: Tree, fault: Fault, sound: Sound, *, quick: bool) -> Verdict:
    """Plants a fault and asks one finder after the other; `quick`: only those that the fault names."""
    began = time.monotonic()
    for finder in (*fault.finders, *(() if quick else AREAS[fault.area])):
        with tree.planted(fault):
            found = tree.failing(finder)
        seconds = time.monotonic() - began
        if found is not None and sound.passes(tree, finder):
            return Verdict(fault, found, seconds)
    return Verdict(fault, None, time.monotonic() - began)


def chosen(names: list[str], areas: list[str]) -> list[Fault]:
    """The faults that are asked for; all of them without a name and an area."""
    known = {fault.name for fault in FAULTS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"no fault is named {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    return [fault for fault in FAULTS if (not names and not areas) or fault.name in names or fault.area in areas]


def main() -> int:
    parser = argparse.ArgumentParser(prog="planted", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--area", action="append", default=[], choices=list(AREAS))
    parser.add_argument(
        "--quick", action="store_true", help="only the tests that a fault names, not its area's folders"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10_000)
    options = parser.parse_args()
    faults = chosen(options.fault, options.area)
    for fault in faults:
        fault.place(ROOT)  # one that has lost its place ends it all, before anything is run
    ends = time.monotonic() + 60 * options.minutes
    sound = Sound()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="penstock-planted-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree(Path(folder) / str(number)))

        def one(fault: Fault) -> None:
            if time.monotonic() > ends:
                return
            tree = trees.get()
            try:
                verdict = grade(tree, fault, sound, quick=options.quick)
            finally:
                trees.put(tree)
            print(verdict, flush=True)
            verdicts.append(verdict)

        print("| area | fault | first finder | seconds |\n|---|---|---|---|", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for done in as_completed([pool.submit(one, fault) for fault in faults]):
                    done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    missed = [verdict.fault.name for verdict in verdicts if verdict.finder is None]
    print(f"{len(verdicts)} of {len(faults)} faults tried, {len(missed)} found by no test: {', '.join(missed) or '–'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

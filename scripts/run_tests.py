"""Runs the tests in pieces, several at a time, so that those that wait leave the cores to those that compute.

    python scripts/run_tests.py [--fast | arguments for pytest: then one process runs just these]

A piece is a process; tests/README.md says what lies in which, and why. What a piece says appears when it ends. At the
end stand the ten slowest tests, and the time of each piece beside its budget: a piece over its budget is a line, not a
failure. The code is not 0 when any piece failed; `--lf` finds all that failed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
AT_A_TIME = 4
AT_A_TIME_FAST = 4
"""Pieces on their way at once: most tests wait for a disk or a process about as long as they compute."""
FAST = "--fast"
NO_TESTS = 5
"""Pytest's code for a piece in which no test was wanted."""
SLOWEST = 10
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Hundreds of tests start programs: where none may keep what it compiled, each spends 0.3 s of a core on that."""
DOCS = ("docs", "test_examples.py")
FOLDERS = {
    "server": 150,
    "engine": 120,
    "model": 180,
    "torture": 80,
    "contract/engine": 60,
    "contract/journal": 60,
    "journal": 60,
    "cli": 60,
    "buffer": 50,
    "crash": 60,
    "contract/queue": 40,
    "contract/entity": 40,
    "strangers": 40,
    "outbox": 30,
}
"""Folders that are a piece each, with the seconds that each may take on two idle cores; the rest is the last piece."""


@dataclass(frozen=True)
class Piece:
    """A process of pytest: its name, its arguments, and the seconds it may take on two idle cores."""

    name: str
    arguments: tuple[str, ...]
    budget: float


def fast_pieces() -> list[Piece]:
    """What a person runs after every change: memory and SQLite only; no Spark, browser, emulator, kill or model."""
    folders = ("contract/queue", "contract/journal", "contract/entity", "cli")
    rest = tuple(f"--ignore=tests/{name}" for name in (*folders, "server"))
    return [
        Piece("the rest", (FAST, *rest), 30),
        *(Piece(name, (FAST, f"tests/{name}"), 30) for name in ("server", *folders)),
    ]


def pieces() -> list[Piece]:
    """Every piece, in the order in which they begin: those that take longest first."""
    ignored = tuple(f"--ignore=tests/{name}" for name in ("spark", *DOCS, *FOLDERS))
    pages = sorted(file.relative_to(ROOT) for file in ROOT.glob("tests/server/test_page*.py"))
    apart = {"server": tuple(f"--ignore={page}" for page in pages)}
    return [
        Piece("Spark without a session", ("tests/spark", "-m", "not spark"), 270),
        Piece("pages", tuple(map(str, pages)), 150),
        Piece("Spark's session", ("tests/spark", "-m", "spark"), 220),
        *(Piece(name, (f"tests/{name}", *apart.get(name, ())), budget) for name, budget in FOLDERS.items()),
        Piece("docs", tuple(f"tests/{name}" for name in DOCS), 80),
        Piece("the rest", ignored, 70),
    ]


class Run:
    """The pieces under way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self.seconds: dict[str, float] = {}
        self.computed: dict[str, float] = {}

    def piece(self, piece: Piece) -> int:
        """Runs a piece to its end, shows what it said, and returns its code."""
        start = time.monotonic()
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self._stopped:
                    return 130
                kept = ["-o", f"cache_dir={self._cache(piece)}", f"--junitxml={self._report(piece)}"]
                command = [*PYTEST, *kept, *piece.arguments]
                process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=subprocess.STDOUT)
                self._processes.append(process)
            _, status, used = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            with self._lock:
                self.seconds[piece.name] = time.monotonic() - start
                self.computed[piece.name] = used.ru_utime + used.ru_stime
                print(f"\n── {piece.name}, {self.seconds[piece.name]:.0f} s " + "─" * 60, flush=True)
                sys.stdout.buffer.write(said.read())
                sys.stdout.flush()
        return 0 if code == NO_TESTS else code

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()

    def keep_failed(self, wanted: list[Piece]) -> None:
        """Leaves the names of what failed, in any piece, where `--lf` looks for them."""
        failed: dict[str, bool] = {}
        for piece in wanted:
            file = self._cache(piece) / "v/cache/lastfailed"
            if file.exists():
                failed |= json.loads(file.read_text("utf-8"))
        kept = ROOT / ".pytest_cache/v/cache/lastfailed"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(failed, indent=2), "utf-8")

    def show_times(self, wanted: list[Piece]) -> None:
        """Says which tests took longest, and how long each piece took beside what it may take."""
        tests = [
            (float(case.get("time", "0")), f"{case.get('classname')}::{case.get('name')}")
            for piece in wanted
            if self._report(piece).exists()
            for case in ElementTree.parse(self._report(piece)).iter("testcase")
        ]
        print(f"\nthe slowest of {len(tests):,} tests:")
        for seconds, name in sorted(tests, reverse=True)[:SLOWEST]:
            print(f"  {seconds:6.1f} s  {name}")
        print("\nthe pieces, what each may take on two idle cores, and how long it computed:")
        for piece in wanted:
            seconds, computed = self.seconds.get(piece.name, 0.0), self.computed.get(piece.name, 0.0)
            over = "  OVER" if seconds > piece.budget else ""
            print(f"  {seconds:6.0f} s of {piece.budget:3.0f}  {computed:6.0f} s  {piece.name}{over}")
        print(f"  all computed {sum(self.computed.values()):.0f} s")

    def _cache(self, piece: Piece) -> Path:
        return self._folder / re.sub(r"\W+", "-", piece.name)

    def _report(self, piece: Piece) -> Path:
        return self._cache(piece).with_suffix(".xml")


def main() -> int:
    if sys.argv[1:] not in ([], [FAST]):
        return subprocess.call([*PYTEST, *sys.argv[1:]], env=ENVIRONMENT)
    start = time.monotonic()
    wanted, at_a_time = (fast_pieces(), AT_A_TIME_FAST) if sys.argv[1:] else (pieces(), AT_A_TIME)
    with tempfile.TemporaryDirectory(prefix="penstock-tests-") as folder:
        running = Run(Path(folder))
        print(f"tests run in {len(wanted)} pieces, {at_a_time} at a time; each is shown when it ends", flush=True)
        with ThreadPoolExecutor(at_a_time) as pool:
            try:
                codes = list(pool.map(running.piece, wanted))
            except BaseException:
                running.stop()
                raise
        running.keep_failed(wanted)
        running.show_times(wanted)
    bad = [piece.name for piece, code in zip(wanted, codes, strict=True) if code]
    print(f"\nall in {time.monotonic() - start:.0f} s; " + (f"failed: {', '.join(bad)}" if bad else "all passed"))
    return int(bool(bad))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

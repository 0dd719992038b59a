"""Runs the tests in pieces, several at a time, so that those that wait leave the cores to those that compute.

    python scripts/run_tests.py [--fast | arguments for pytest: then one process runs just these]

A piece is a process: tests with the shared Spark session are two, whole programs two more, the rest is cut by folder.
What a piece says appears when it ends. The code is not 0 when any piece failed; `--lf` finds all that failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "--durations=8"]
AT_A_TIME = 3
AT_A_TIME_FAST = 7
"""Pieces on their way at once: most tests wait for a disk or a process about as long as they compute."""
OTHERS = "not spark and not program"
KILLS = "tests/spark/test_kill.py"
"""A third of the time of all tests with a session, and it waits for programs that it kills."""
FOLDERS = (
    "server",
    "contract/journal",
    "crash",
    "model",
    "contract/queue",
    "engine",
    "journal",
    "contract/entity",
    "buffer",
)
"""Folders of tests that are a piece each, those that take longest first; what is in none of them is the last piece."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Hundreds of tests start programs: where none may keep what it compiled, each spends 0.3 s of a core on that."""
FAST = "--fast"
NO_TESTS = 5
"""Pytest's code for a piece in which no test was wanted."""


def fast_pieces() -> dict[str, list[str]]:
    """The pieces of what takes under a minute: SQLite only, no Spark, browser, emulator, kill or model."""
    folders = {name: [FAST, f"tests/{name}"] for name in ("contract/queue", "contract/journal", "journal", "cli")}
    server = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("tests/server/test_*.py"))
    halves = {"server 1": [FAST, *server[::2]], "server 2": [FAST, *server[1::2]]}
    return {**halves, **folders, "the rest": [FAST, *(f"--ignore=tests/{name}" for name in (*folders, "server"))]}


def pieces() -> dict[str, list[str]]:
    """The arguments of every piece by its name, in the order in which they begin."""
    folders = {name: [f"tests/{name}", "-m", OTHERS] for name in FOLDERS}
    rest = ["-m", OTHERS, *(f"--ignore=tests/{name}" for name in FOLDERS)]
    spark = {"Spark": ["-m", "spark", f"--ignore={KILLS}"], "Spark killed": [KILLS, "-m", "spark"]}
    pages = {"server": folders.pop("server")}  # beside Spark's, which compute more than they wait
    programs = {
        "Spark programs": ["tests/spark", "-m", "program"],
        "programs": ["-m", "program", "--ignore=tests/spark"],
    }
    return {**spark, **programs, **pages, **folders, "the rest": rest}


class Pieces:
    """The pieces under way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def run(self, name: str, arguments: list[str]) -> int:
        """Runs a piece to its end, shows what it said, and returns its code."""
        start = time.monotonic()
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self._stopped:
                    return 130
                command = [*PYTEST, "-o", f"cache_dir={self._cache(name)}", *arguments]
                process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=subprocess.STDOUT)
                self._processes.append(process)
            code = process.wait()
            said.seek(0)
            with self._lock:
                print(f"\n── {name}, {time.monotonic() - start:.0f} s " + "─" * 60, flush=True)
                sys.stdout.buffer.write(said.read())
                sys.stdout.flush()
        return 0 if code == NO_TESTS else code

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()

    def keep_failed(self, names: list[str]) -> None:
        """Leaves the names of what failed, in any piece, where `--lf` looks for them."""
        failed: dict[str, bool] = {}
        for name in names:
            file = self._cache(name) / "v/cache/lastfailed"
            if file.exists():
                failed |= json.loads(file.read_text("utf-8"))
        kept = ROOT / ".pytest_cache/v/cache/lastfailed"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(failed, indent=2), "utf-8")

    def _cache(self, name: str) -> Path:
        return self._folder / name.replace("/", "-")


def main() -> int:
    if sys.argv[1:] not in ([], [FAST]):
        return subprocess.call([*PYTEST, *sys.argv[1:]], env=ENVIRONMENT)
    start = time.monotonic()
    wanted, at_a_time = (fast_pieces(), AT_A_TIME_FAST) if sys.argv[1:] else (pieces(), AT_A_TIME)
    with tempfile.TemporaryDirectory(prefix="penstock-tests-") as folder:
        running = Pieces(Path(folder))
        print(f"tests run in {len(wanted)} pieces, {at_a_time} at a time; each is shown when it ends", flush=True)
        with ThreadPoolExecutor(at_a_time) as pool:
            try:
                codes = list(pool.map(running.run, wanted, wanted.values()))
            except BaseException:
                running.stop()
                raise
        running.keep_failed(list(wanted))
    bad = [name for name, code in zip(wanted, codes, strict=True) if code]
    print(f"\nall in {time.monotonic() - start:.0f} s; " + (f"failed: {', '.join(bad)}" if bad else "all passed"))
    return int(bool(bad))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

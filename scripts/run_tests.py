"""Runs the tests in three parts, two at a time: those with the shared Spark session, all others, and Spark's programs.

    python scripts/run_tests.py [arguments for pytest: then one process runs just these]

What Spark's programs start (JVMs, a cluster) is too much beside both others: they begin when one of these is done.
The others' output appears as it comes, that of the rest when all is done. The code is not 0 when any part failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "--durations=8"]
PARTS = ("not spark and not program", "spark", "program")
"""Expressions of markers; the first part's output is shown as it comes."""
AT_A_TIME = 2


class Parts:
    """The parts under way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def run(self, part: str) -> int:
        """Runs a part to its end and returns its code."""
        command = [*PYTEST, "-m", part]
        with self.said(part).open("wb") as out, self._lock:
            if self._stopped:
                return 130
            shown = {} if part == PARTS[0] else {"stdout": out, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, **shown)  # type: ignore[call-overload]
            self._processes.append(process)
        return int(process.wait())

    def said(self, part: str) -> Path:
        return self._folder / part

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()


def main() -> int:
    if sys.argv[1:]:
        return subprocess.call([*PYTEST, *sys.argv[1:]])
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-tests-") as folder:
        parts = Parts(Path(folder))
        print("tests of Spark run beside the others; what they say follows at the end", flush=True)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            try:
                codes = list(pool.map(parts.run, PARTS))
            except BaseException:
                parts.stop()
                raise
        for part in PARTS[1:]:
            print(f"\n── {part} " + "─" * 60, flush=True)
            sys.stdout.buffer.write(parts.said(part).read_bytes())
            sys.stdout.flush()
    print(f"all in {time.monotonic() - start:.0f} s", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

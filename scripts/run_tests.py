"""Runs the tests in two processes at once: Spark's, which share one session, and all others.

    python scripts/run_tests.py [arguments for pytest: then one process runs just these]

The others' output appears as it comes, that of Spark's tests when they are done. The code is not 0 when either failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "--durations=8"]


def main() -> int:
    if sys.argv[1:]:
        return subprocess.call([*PYTEST, *sys.argv[1:]])
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-tests-") as folder:
        said = Path(folder) / "spark"
        print("tests of Spark run beside the others; what they say follows at the end", flush=True)
        with said.open("wb") as out:
            processes = [
                subprocess.Popen([*PYTEST, "-m", "spark"], stdout=out, stderr=subprocess.STDOUT),
                subprocess.Popen([*PYTEST, "-m", "not spark"]),
            ]
            try:
                codes = [process.wait() for process in reversed(processes)]
            except BaseException:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait()
                raise
        print("\n── tests of Spark " + "─" * 60, flush=True)
        sys.stdout.buffer.write(said.read_bytes())
    print(f"all in {time.monotonic() - start:.0f} s", flush=True)
    return int(any(codes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

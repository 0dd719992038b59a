"""Runs one benchmark by name, or says which there are."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

NOT_BENCHMARKS = {
    "__init__",
    "__main__",
    "compare_work",
    "harness",
    "object_large",
    "queue_peers",
    "spark_history",
    "spark_rows",
    "spark_served",
}


def main() -> None:
    folder = Path(__file__).parent
    found = [*folder.glob("*.py"), *(path.parent for path in folder.glob("*/__init__.py"))]
    names = sorted(path.stem for path in found if path.stem not in NOT_BENCHMARKS)
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    if chosen not in names:
        sys.exit(f"which benchmark? {', '.join(names)}   (python -m benchmarks NAME)")
    sys.argv = sys.argv[1:]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes that a benchmark starts would compile every time
    importlib.import_module(f"benchmarks.{chosen}").main()


if __name__ == "__main__":
    main()

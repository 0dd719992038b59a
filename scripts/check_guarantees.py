"""Fails when a promise in docs/guarantees.md names no test, a test that does not exist, or no engines.

python scripts/check_guarantees.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
ENGINES = ("every engine", "memory", "sqlite", "rocksdb", "file", "the buffer")


def known_tests() -> set[str]:
    """The names of all tests."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names.update(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    return names


def promises(text: str) -> list[str]:
    """The bullets of the page, each as one line."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("- "):
            found.append(line[2:])
        elif line.startswith("  ") and found:
            found[-1] += " " + line.strip()
    return found


def problems(text: str, tests: set[str]) -> list[str]:
    """What is wrong with the page."""
    wrong = []
    for promise in promises(text):
        what, _, proof = promise.rpartition("[")
        named = re.findall(r"test_\w+", proof)
        if not named:
            wrong.append(f"no test would catch the breach of: {promise[:80]}…")
        wrong += [f"{name} does not exist, and is to prove: {what[:80]}…" for name in named if name not in tests]
        if not any(engine in proof for engine in ENGINES):
            wrong.append(f"it is not said for which engines this holds: {promise[:80]}…")
    return wrong


if __name__ == "__main__":
    found = problems(PAGE.read_text("utf-8"), known_tests())
    for each in found:
        print(each)
    sys.exit(1 if found else 0)

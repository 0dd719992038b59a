"""Fails when a promise in docs/guarantees.md names no engine, no test, or a test that does not exist.

python scripts/check_guarantees.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
ENGINES = ("every engine", "memory", "sqlite", "rocksdb", "file", "the buffer")
APPENDIX = "## Appendix: tests"


def known_tests() -> set[str]:
    """Returns the names of all tests."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names.update(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    return names


def rows(text: str) -> dict[str, list[str]]:
    """Returns the numbered rows of the tables in a text, by their number."""
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()]
    return {first: rest for first, *rest in cells if first.isdigit()}


def problems(text: str, tests: set[str]) -> list[str]:
    """Returns a sentence for each problem of the page."""
    before, _, appendix = text.partition(APPENDIX)
    promises, proofs = rows(before), rows(appendix)
    wrong = []
    if list(promises) != [str(number + 1) for number in range(len(promises))]:
        wrong.append(f"the promises are not numbered from 1: {', '.join(promises)}")
    for number, (promise, *engines) in promises.items():
        named = re.findall(r"test_\w+", " ".join(proofs.get(number, [])))
        if not named:
            wrong.append(f"no test would catch the breach of: {promise}")
        wrong += [f"{name} does not exist, and proves: {promise}" for name in named if name not in tests]
        if not any(engine in " ".join(engines) for engine in ENGINES):
            wrong.append(f"no engine is named for: {promise}")
    return wrong + [
        f"the appendix has tests of {number}, which is no promise" for number in proofs.keys() - promises.keys()
    ]


if __name__ == "__main__":
    found = problems(PAGE.read_text("utf-8"), known_tests())
    for each in found:
        print(each)
    sys.exit(1 if found else 0)

"""The prose of docstrings: a script finds clauses without a subject, and few may stay."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_few_docstrings_begin_with_a_clause() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "prose.py"))
    found = [
        f"{text.file}:{text.line}"
        for text in made["texts"]([ROOT / "src"])
        for rule, _ in made["findings"](text)
        if rule == "begins with a clause"
    ]
    assert len(found) <= made["MOST_NOUN_CLAUSES"], found

"""The page of limits says what the module says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_limits_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))["page"]()
    assert (ROOT / "docs" / "limits.md").read_text("utf-8") == made, "run: python scripts/limits_page.py"


def test_every_limit_is_explained() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))["page"]()
    unexplained = [line for line in made.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert unexplained == []

"""Every promise names the test that would catch its breach."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "check_guarantees.py"))


def test_every_guarantee_names_tests_that_exist_and_its_engines() -> None:
    text = SCRIPT["PAGE"].read_text("utf-8")
    assert len(SCRIPT["promises"](text)) > 25
    assert SCRIPT["problems"](text, SCRIPT["known_tests"]()) == []


def test_a_promise_without_a_test_or_engines_is_found() -> None:
    text = "- **One.** It holds. [every engine: `test_a`]\n- Two, which\n  nobody proves.\n- Three. [`test_b`]\n"
    found = SCRIPT["problems"](text, {"test_a"})
    assert len(found) == 4 and all("One" not in each for each in found)

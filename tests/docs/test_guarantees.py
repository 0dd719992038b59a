"""Every promise names its engines and the tests that would catch its breach."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "check_guarantees.py"))


def test_every_guarantee_names_tests_that_exist_and_its_engines() -> None:
    text = SCRIPT["PAGE"].read_text("utf-8")
    assert len(SCRIPT["rows"](text.partition(SCRIPT["APPENDIX"])[0])) > 25
    assert SCRIPT["problems"](text, SCRIPT["known_tests"]()) == []


def test_a_promise_without_a_test_or_engines_is_found() -> None:
    text = (
        "| 1 | One holds. | every engine |\n| 2 | Two. | sqlite |\n| 3 | Three. | |\n| 5 | Five. | memory |\n"
        "## Appendix: tests\n| 1 | `test_a` |\n| 3 | `test_a` |\n| 5 | `test_b` |\n| 6 | `test_a` |\n"
    )
    found = SCRIPT["problems"](text, {"test_a"})
    assert len(found) == 5 and all("One holds" not in each for each in found)

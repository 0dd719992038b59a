"""Pages that are made from the code say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(ROOT.glob("scripts/*_page.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_page_is_up_to_date(script: Path) -> None:
    made = runpy.run_path(str(script))
    assert made["PAGE"].read_text("utf-8") == made["page"](), f"run: python scripts/{script.name}"


def test_the_readme_shows_rows_of_the_benchmarks() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "benchmark_page.py"))
    assert made["README"].read_text("utf-8") == made["readme"](), "run: python scripts/benchmark_page.py"


def test_every_limit_is_explained() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))["page"]()
    unexplained = [line for line in made.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert unexplained == []


def test_every_command_and_every_option_is_documented() -> None:
    from penstock.cli.index import GROUPS

    from penstock.cli.main import SHARED, load

    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for option in SHARED:
        assert f"| `{option.spelled}` |" in text
    for name in (name for _, _, commands in GROUPS for name, _ in commands):
        assert f"### penstock {name}\n" in text, name
        part = text.partition(f"### penstock {name}\n")[2].partition("\n### ")[0]
        for option in load(name).options:
            spelled = option.spelled.replace("|", "\\|")
            assert f"| `{spelled}` |" in part, (name, spelled)


def test_every_command_of_a_mounted_group_is_documented() -> None:
    import typer

    from penstock.cli.commands.buffer.commands import app

    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        part = text.partition(f"### penstock buffer {name}\n")[2].partition("\n### ")[0]
        assert part, name
        for parameter in command.params:
            spelled = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
            assert spelled in part or spelled == "--help", (name, spelled)


def test_every_error_is_documented() -> None:
    from penstock import errors

    text = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError):
            assert f"| `{name}` |" in text

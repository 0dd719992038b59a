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


def test_the_readme_and_the_first_page_show_rows_of_the_benchmarks() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "benchmark_page.py"))
    for page in made["RATES"]:
        assert page.read_text("utf-8") == made["with_rates"](page), "run: python scripts/benchmark_page.py"


def test_every_limit_is_explained() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))["page"]()
    unexplained = [line for line in made.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert unexplained == []


def test_every_command_and_every_option_is_documented() -> None:
    import click

    from penstock.cli.main import MODULES, app

    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    root = click.Context(app, info_name="penstock")
    found = {name: app.get_command(root, name) for name in MODULES}
    for name, command in list(found.items()):
        if isinstance(command, click.Group):
            del found[name]
            found |= {f"{name} {below}": one for below, one in command.commands.items()}
    assert "buffer dump" in found
    for name, command in found.items():
        assert command is not None and f"### penstock {name}\n" in text, name
        part = text.partition(f"### penstock {name}\n")[2].partition("\n### ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.expose_value:
                assert parameter.opts[-1] in part, (name, parameter.opts)


def test_every_public_name_of_python_is_documented_under_the_path_that_a_program_imports() -> None:
    import penstock

    modules = ("aio", "spark", "buffer", "outbox")
    public = {f"penstock.{name}" for name in penstock.__all__ if name != "errors"} | {
        f"penstock.{module}.{name}" for module in modules for name in vars(getattr(penstock, module))["__all__"]
    }
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    shown = [line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")]
    beside = {"penstock.metrics.Registry", "penstock.metrics.watch", "penstock.tracing.context_of"}
    assert len(shown) == len(set(shown))
    assert public - set(shown) == {"penstock.aio.open"}, "add the names to docs/api.md"
    assert set(shown) - public == beside


def test_every_error_is_documented() -> None:
    from penstock import errors

    text = (ROOT / "docs" / "errors.md").read_text("utf-8")
    remedies = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError):
            assert f"| `{name}` |" in text
            assert f"### {name}\n" in remedies or kind is errors.PenstockError


def test_every_command_line_in_the_docs_has_a_command_and_options_that_exist() -> None:
    import re

    import click

    from penstock.cli.main import MODULES, app

    root = click.Context(app, info_name="penstock")
    known = {
        name: {option for one in command.params for option in one.opts} | {"--help"}
        for name in MODULES
        if (command := app.get_command(root, name)) is not None and not isinstance(command, click.Group)
    }
    wrong = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        text = page.read_text("utf-8").replace("\\\n", " ")
        for name, rest in re.findall(r"(?:`|\$ )penstock ([a-z][a-z-]+)\b([^`\n|;)]*)", text):
            options = re.findall(r"(?<=\s)--?[a-z][a-z-]*", rest.partition(" #")[0])
            unknown = [option for option in options if name in known and option not in known[name]]
            if (name not in known and name != "buffer") or unknown:
                wrong.append((page.name, f"penstock {name}{rest}", unknown))
    assert wrong == []

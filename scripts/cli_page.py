"""Writes docs/cli.md from the commands themselves.

    python scripts/cli_page.py

A test compares the page with the commands, so that neither can drift.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# The command line

`pip install "penstock[cli]"` brings `penstock`. Every command takes the journal as `--url` (a path, an engine's url, or
the `http://` url of a [server](server.md)) or from `PENSTOCK_URL`, prints tables for people and one JSON object a line
with `--json`, and answers a mistake with a sentence, never a traceback.

```console
$ export PENSTOCK_URL=shop.db
$ penstock append orders '{"id": 1, "total": 9.5}' --kind placed --key 1
$ penstock tail orders -f --where 'payload.total > 5'
$ penstock top
```

Made from the commands by `python scripts/cli_page.py`; `penstock COMMAND --help` says the same.
"""


def page() -> str:
    """The page as it should be."""
    from penstock.cli.failure import EXIT_CODES
    from penstock.cli.index import GROUPS, MOUNTED
    from penstock.cli.main import SHARED, load

    lines = [INTRODUCTION, "## Exit codes", "", "| code | means |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "`check` alone answers as monitoring systems expect: 0 fine, 1 warning, 2 critical, 3 unknown."]
    lines += ["", "## What conditions can say", "", *_conditions()]
    lines += ["", "## Options of every command", "", *_table([_option(one) for one in SHARED])]
    for title, _, commands in GROUPS:
        lines += ["", f"## {title[0].upper()}{title[1:]}"]
        for name, _ in commands:
            lines += ["", *_command(load(name))]
    for name, module, summary in MOUNTED:
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", f"{summary}."]
        lines += _mounted(name, importlib.import_module(module).app)
    return "\n".join(lines) + "\n"


def _conditions() -> list[str]:
    """The language of --where, as its module explains it: the first line in words, the rest as it stands."""
    import penstock.conditions

    first, _, rest = inspect.cleandoc(penstock.conditions.__doc__ or "").partition("\n")
    return [f"`--where` takes {first[0].lower()}{first[1:]}", "", "```text", *rest.strip("\n").splitlines(), "```"]


def _command(command: Any) -> list[str]:
    lines = [f"### penstock {command.name}", "", f"{command.summary}.", "", "```console", f"$ {command.usage}", "```"]
    if command.details:
        lines += ["", *command.details.splitlines()]
    rows = [(f"`{argument.spelled}`", argument.help) for argument in command.arguments]
    rows += [_option(option) for option in command.options]
    if rows:
        lines += ["", *_table(rows)]
    lines += ["", "```console", *(f"$ {example}" for example in command.examples), "```"]
    return lines


def _option(option: Any) -> tuple[str, str]:
    from penstock.cli.help import option_row

    spelled, said = option_row(option, env="; or `{}`")
    return f"`{spelled}`", said


def _mounted(name: str, app: Any) -> list[str]:
    import typer

    lines: list[str] = []
    for command_name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        text = inspect.cleandoc(command.help or "").split("\f")[0]
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
        usage = " ".join(["penstock", name, command_name, *(_argument(one) for one in arguments), "[options]"])
        rows = [(f"`{_argument(one)}`", getattr(one, "help", None) or "") for one in arguments]
        rows += [(f"`{', '.join((*one.opts, *one.secondary_opts))}`", one.help or "") for one in options]
        lines += ["", f"### penstock {name} {command_name}", "", *text.splitlines()]
        lines += ["", "```console", f"$ {usage}", "```", "", *_table(rows)]
    return lines


def _argument(parameter: Any) -> str:
    shown = (parameter.metavar or parameter.name).upper()
    return shown if parameter.required else f"[{shown}]"


def _table(rows: list[tuple[str, str]]) -> list[str]:
    shown = [f"| {left.replace('|', chr(92) + '|')} | {right.replace('|', chr(92) + '|')} |" for left, right in rows]
    return ["| | |", "|---|---|", *shown]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

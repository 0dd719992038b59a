"""Writes docs/cli.md from the commands themselves.

    python scripts/cli_page.py

A test compares the page with the commands, so that neither can drift.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# The command line

`pip install "penstock[cli]"` installs the command `penstock`. `--url` or `PENSTOCK_URL` names the journal: a path, an
engine's url, or the `http://` url of a [server](server.md). Without both, the journal is `./penstock.db`. At a
terminal, a command first prints the name of its journal. A command makes a journal only with `--create`. Without
`--create`, it exits with code 3 if the journal does not exist.

Commands print tables, or with `--json` one JSON object a line. They report a mistake in a sentence, without a
traceback.

```console
$ export PENSTOCK_URL=shop.db
$ penstock append orders placed '{"id": 1, "total": 9.5}' --key 1 --create
$ penstock tail orders -f --where 'payload.total > 5'
$ penstock top
```

This page is made from the commands by `python scripts/cli_page.py`. `penstock COMMAND --help` has the same text.
"""


def page() -> str:
    """The page as it should be."""
    from penstock.cli.command import EXIT_CODES, SHARED
    from penstock.cli.main import SECTIONS, app

    root = click.Context(app, info_name="penstock", **app.context_settings)
    lines = [INTRODUCTION, "## Exit codes", "", "| code | means |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines += ["", "`check` alone answers as monitoring systems expect: 0 fine, 1 warning, 2 critical, 3 unknown."]
    lines += ["", "## What conditions can say", "", *_conditions()]
    lines += ["", "## Options of every command", "", *_table([one.get_help_record(root) for one in SHARED])]
    for title, modules in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in " ".join(modules.values()).split():
            lines += _command(app.get_command(root, name), root, name)
    return "\n".join(lines) + "\n"


def _conditions() -> list[str]:
    """The language of --where, as its module explains it: the first line in words, the rest as it stands."""
    import penstock.core.model.conditions

    first, _, rest = inspect.cleandoc(penstock.core.model.conditions.__doc__ or "").partition("\n")
    return [f"`--where` takes {first[0].lower()}{first[1:]}", "", "```text", *rest.strip("\n").splitlines(), "```"]


def _command(command: click.Command | None, parent: click.Context, name: str) -> list[str]:
    from penstock.cli.command import JournalCommand

    assert command is not None
    ctx = click.Context(command, parent=parent, info_name=name)
    if isinstance(command, click.Group):
        return [line for below, one in sorted(command.commands.items()) for line in _command(one, ctx, below)]
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)[1:], "[OPTIONS]"])
    lines = ["", f"### {ctx.command_path}", "", *inspect.cleandoc(command.help or "").splitlines()]
    lines += ["", "```console", f"$ {usage}", "```"]
    own = [one for one in command.params if one.expose_value]
    arguments = [one.get_help_record(ctx) for one in own if isinstance(one, click.Argument)]
    options = [record for one in own if isinstance(one, click.Option) and (record := one.get_help_record(ctx))]
    if arguments or options:
        lines += ["", *_table([*arguments, *options])]
    if isinstance(command, JournalCommand):
        lines += ["", "```console", *(f"$ {example}" for example in command.examples), "```"]
    return lines


def _table(rows: list[tuple[str, str] | None]) -> list[str]:
    cells = [[cell.replace("|", chr(92) + "|") for cell in row] for row in rows if row is not None]
    return ["| | |", "|---|---|", *(f"| `{left}` | {right} |" for left, right in cells)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""What `--help` prints."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence

from penstock.cli.command import Command, Option
from penstock.cli.output import paint


def _width() -> int:
    try:
        return min(110, os.get_terminal_size().columns)
    except OSError:
        return 100


def _two_columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Names to the left, what they mean to the right, wrapped."""
    rows = list(rows)
    left = min(34, max((len(name) for name, _ in rows), default=0))
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(30, _width() - left - 4)) or [""]
        if len(name) > left:
            lines.append(f"  {name}")
            lines += [f"  {'':{left}}  {part}" for part in wrapped]
            continue
        lines.append(f"  {name:{left}}  {wrapped[0]}")
        lines += [f"  {'':{left}}  {part}" for part in wrapped[1:]]
    return lines


def option_row(option: Option, env: str = " [or {}]") -> tuple[str, str]:
    """An option as it is written, and what it says; `env` is how its variable is spoken of."""
    said = option.help
    if option.many:
        said += "; may be given several times"
    if option.env:
        said += env.format(option.env)
    if option.default not in (None, False, []):
        said += f" (default: {option.default})"
    return option.spelled, said


def command_help(command: Command, shared: Sequence[Option], *, color: bool) -> str:
    """The help of one command."""
    lines = [command.summary + ".", "", f"{paint('usage', 'bold', color)}: {command.usage}"]
    if command.details:
        lines += ["", *command.details.splitlines()]
    if command.arguments:
        lines += ["", paint("arguments", "bold", color)]
        lines += _two_columns((argument.spelled, argument.help) for argument in command.arguments)
    lines += ["", paint("options", "bold", color)]
    lines += _two_columns(option_row(option) for option in (*command.options, *shared))
    lines += ["", paint("examples" if len(command.examples) > 1 else "example", "bold", color)]
    lines += [f"  {example}" for example in command.examples]
    return "\n".join(lines)


def overview(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], shared: Sequence[Option], *, color: bool) -> str:
    """The help of the whole tool: its commands by group."""
    lines = [
        "An embedded, durable event journal: topics, queues, pipelines.",
        "",
        f"{paint('usage', 'bold', color)}: penstock COMMAND [arguments] [options]",
    ]
    for title, commands in groups:
        lines += ["", paint(title, "bold", color), *_two_columns(commands)]
    lines += ["", paint("options of every command", "bold", color), *_two_columns(map(option_row, shared))]
    lines += ["", "`penstock COMMAND --help` shows one command with its options and an example."]
    return "\n".join(lines)

"""How commands are declared: with Click's decorators, below one that adds what all commands share.

    @command("lag", "penstock lag orders")
    @the_topic
    def lag(context: CommandContext, topic: str) -> None:
        \"\"\"Shows how far consumers are behind.\"\"\"

The docstring is the help, its first paragraph the line in the overview.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from penstock.cli.context import CommandContext


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keeps a shared option that was given, before the command or after it."""
    if value:
        setattr(ctx.ensure_object(CommandContext), parameter.name, value)


def _shared(*names: str, **how: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **how)


SHARED = (
    _shared("--url", help="the journal: a path, an engine's url, or the http url of a server [or PENSTOCK_URL]"),
    _shared("--token", help="the token a server asks for [or PENSTOCK_TOKEN]"),
    _shared("--takeover", is_flag=True, help="end the process that writes a journal in an object store, and write it"),
    _shared("--json", is_flag=True, help="one JSON object per line instead of tables and text"),
)
"""What every command takes, and `penstock` itself before the command's name."""


class JournalCommand(click.Command):
    """A command over a journal: it takes the shared options besides its own, and its help ends with examples."""

    def __init__(self, *given: Any, examples: Sequence[str], **how: Any) -> None:
        super().__init__(*given, **how)
        self.params.extend(SHARED)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class CommandGroup(click.Group):
    """A group whose help shows each command's whole first paragraph, by section."""

    def sections(self) -> dict[str, list[str]]:
        """The names of the commands below each heading."""
        return {"Commands": sorted(self.commands)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections().items():
            with formatter.section(title):
                formatter.write_dl([(name, summary(self.get_command(ctx, name))) for name in names])


def summary(command: click.Command | None) -> str:
    """The first paragraph of a command's help, on one line."""
    text = (command and command.help) or ""
    return " ".join(text.partition("\n\n")[0].split())


def command(name: str, *examples: str) -> Callable[[Callable[..., int | None]], JournalCommand]:
    """Declares a command; its function gets the context and one keyword for each argument and option.

    What it returns is the exit code; None is 0.
    """

    def declare(function: Callable[..., int | None]) -> JournalCommand:
        return click.command(name, cls=JournalCommand, examples=examples)(click.pass_obj(function))

    return declare


def given_options() -> dict[str, Any]:
    """The options the user gave, by name: also those whose value is None."""
    ctx = click.get_current_context()
    names = [parameter.name for parameter in ctx.command.params if isinstance(parameter, click.Option)]
    return {name: ctx.params[name] for name in names if name in ctx.params and _was_given(ctx, name)}


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

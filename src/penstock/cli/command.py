"""How commands are declared: with Click's decorators, below one that adds what all commands share.

    @queue_command("pause", "penstock pause emails", writes=True)
    def pause(context: CommandContext, queue: Queue) -> Record:
        \"\"\"Hands nothing out any more until `resume`.\"\"\"
        return {"changed": queue.pause()}

The docstring is the help, its first paragraph the line in the overview. `queue_command` and `topic_command` open the
journal and find the queue or topic that the first argument names; `command` leaves both to the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.context import CommandContext

if TYPE_CHECKING:
    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue
    from penstock.surface.topic import Topic

Record = dict[str, object]
"""What a command has done, field by field; it is printed behind the name of the queue or topic."""
Function = Callable[..., "Record | int | None"]
Writes = bool | Callable[[dict[str, Any]], bool]
"""Whether a command writes to the journal; a function says so from the options that were given."""


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    """Keeps a shared option that was given, before the command or after it."""
    if value:
        setattr(ctx.ensure_object(CommandContext), parameter.name, value)


def _shared(*names: str, **how: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **how)


SHARED = (
    _shared("--url", help="the journal: a path, an engine's url, or the http url of a server [or PENSTOCK_URL]"),
    _shared("--token", help="the token a server asks for [or PENSTOCK_TOKEN]"),
    _shared("--json", is_flag=True, help="one JSON object per line instead of tables and text"),
)
"""What every command takes, and `penstock` itself before the command's name."""
CREATE = _shared("--create", is_flag=True, help="make the journal, and the queue, when it is not there")
TAKEOVER = _shared(
    "--takeover", is_flag=True, help="end the process that writes a journal in an object store, and write it"
)


class JournalCommand(click.Command):
    """A command over a journal: it takes the shared options besides its own, and its help ends with examples."""

    def __init__(self, *given: Any, examples: Sequence[str], also: Sequence[click.Option], **how: Any) -> None:
        super().__init__(*given, **how)
        self.params.extend((*SHARED, *also))
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
        for title in self.sections():
            self.format_section(ctx, formatter, title)

    def format_section(self, ctx: click.Context, formatter: click.HelpFormatter, title: str) -> None:
        with formatter.section(title):
            names = self.sections()[title]
            formatter.write_dl([(name, summary(self.get_command(ctx, name))) for name in names])


def summary(command: click.Command | None) -> str:
    """The first paragraph of a command's help, on one line."""
    text = (command and command.help) or ""
    return " ".join(text.partition("\n\n")[0].split())


def command(name: str, *examples: str, also: Sequence[click.Option] = ()) -> Callable[[Function], JournalCommand]:
    """Declares a command; its function gets the context and one keyword for each argument and option.

    What it returns is the exit code; None is 0. `also`: CREATE or TAKEOVER, which the context acts upon.
    """

    def declare(function: Function) -> JournalCommand:
        made = click.command(name, cls=JournalCommand, examples=examples, also=also)
        return made(click.pass_obj(function))

    return declare


def queue_command(
    name: str, *examples: str, about: str = "the queue", writes: Writes = False, also: Sequence[click.Option] = ()
) -> Callable[[Function], JournalCommand]:
    """Declares a command about one queue, which its function gets as a `Queue`; it may return a record."""
    return _about("queue", CommandContext.existing_queue, name, examples, about, writes, also)


def topic_command(name: str, *examples: str, writes: Writes = False) -> Callable[[Function], JournalCommand]:
    """Declares a command about one topic, which its function gets as a `Topic`; it may return a record."""
    return _about("topic", CommandContext.existing_topic, name, examples, "the topic", writes, ())


def _about(
    what: str,
    find: Callable[[CommandContext, Journal, str], Queue | Topic],
    name: str,
    examples: Sequence[str],
    about: str,
    writes: Writes,
    also: Sequence[click.Option],
) -> Callable[[Function], JournalCommand]:
    from penstock.cli.values import queue_names, topic_names

    def declare(function: Function) -> JournalCommand:
        @functools.wraps(function)
        def run(context: CommandContext, **given: Any) -> int | None:
            named = given.pop(what)
            writing = writes(given) if callable(writes) else writes
            with context.journal(read_only=not writing) as journal:
                done = function(context, find(context, journal, named), **given)
            if isinstance(done, dict):
                context.record({what: named, **done})
                return None
            return done

        complete = queue_names if what == "queue" else topic_names
        return command(name, *examples, also=also)(click.argument(what, shell_complete=complete, help=about)(run))

    return declare


def given_options() -> dict[str, Any]:
    """The options the user gave, by name: also those whose value is None."""
    ctx = click.get_current_context()
    names = [parameter.name for parameter in ctx.command.params if isinstance(parameter, click.Option)]
    return {name: ctx.params[name] for name in names if name in ctx.params and _was_given(ctx, name)}


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

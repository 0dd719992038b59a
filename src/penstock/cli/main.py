"""The `penstock` group: it imports a command's module when the command is called, and turns a mistake into a
sentence and an exit code.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

import click

from penstock import __version__
from penstock.cli import command as commands
from penstock.cli.command import SHARED, CommandContext, CommandGroup, Nothing

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Start here": {
        "demo": "demo",
        "topics": "append read tail topics",
        "queues": "push work queues",
        "watching": "top",
        "journals": "serve",
    },
    "Topics": {
        "topics": "show sql cursors lag seek forget",
        "keeping": "compact erase verify graph rebuild seal lake root proof check-proof",
    },
    "Queues": {
        "queues": "messages peek pending failed dead task redrive run-now discard move purge schedule pause resume "
        "take settle workers",
    },
    "Operate": {
        "keeping": "configure",
        "queues": "drop",
        "watching": "check doctor completion help",
        "journals": "info backup restore copy export import",
        "relaying": "relay",
    },
    "Spark and buffers": {"pipelines": "run pipelines", "buffer": "buffer"},
}
"""The commands by their module in `penstock.cli`, in the order of the overview."""

MODULES: Final = {
    name: f"penstock.cli.{module}"
    for modules in SECTIONS.values()
    for module, names in modules.items()
    for name in names.split()
}


class LazyGroup(CommandGroup):
    """A group that imports each command when it is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            if ctx.resilient_parsing:
                return None
            raise click.NoSuchCommand(cmd_name, possibilities=MODULES, ctx=ctx)
        module = importlib.import_module(MODULES[cmd_name])
        found = (value for value in vars(module).values() if isinstance(value, click.Command))
        return next(command for command in found if command.name == cmd_name)

    def sections(self) -> dict[str, list[str]]:
        return {title: " ".join(modules.values()).split() for title, modules in SECTIONS.items()}


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    params=list(SHARED),
    subcommand_metavar="COMMAND [ARGUMENTS] …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, "-V", "--version", prog_name="penstock", message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """An embedded, durable event journal: topics, queues, pipelines.

    `penstock COMMAND --help` shows one command with its options and an example.
    """
    ctx.ensure_object(CommandContext)
    if ctx.invoked_subcommand is None:
        _greet(ctx)


def _greet(ctx: click.Context) -> None:
    """Prints the output of `penstock` without a command: ten commands to begin with."""
    formatter = ctx.make_formatter()
    formatter.write_text("penstock: an embedded, durable event journal")
    group = ctx.command
    assert isinstance(group, LazyGroup)
    first, *_ = group.sections()
    group.format_section(ctx, formatter, first)
    click.echo(formatter.getvalue())
    click.echo(f"`penstock --help` lists all {len(MODULES)} commands, `penstock COMMAND --help` explains one.")


def run(words: Sequence[str]) -> int:
    """Runs one command line and returns the exit code for the shell."""
    if os.environ.get("_PENSTOCK_COMPLETE"):
        app.main(list(words), prog_name="penstock")
    json = "--json" in words
    try:
        return _run(words, json=json)
    # an error of standard output itself: Python flushes it again at exit, which would fail again
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return commands.CUT_OFF if isinstance(error, BrokenPipeError) else _explain(error, json=json)


def _run(words: Sequence[str], *, json: bool) -> int:
    """Runs a command. Raises OSError when its output cannot be written."""
    try:
        with app.make_context("penstock", list(words)) as ctx:
            code = app.invoke(ctx)
        sys.stdout.flush()
        return code or commands.DONE
    except click.exceptions.Exit as ended:
        sys.stdout.flush()
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return commands.USAGE
    except click.UsageError as error:
        return _complain("usage", _plain(error, words), commands.USAGE, json=json, hint=_hint(error))
    except Nothing as error:
        return _complain("nothing", str(error), commands.NOTHING, json=json)
    except KeyboardInterrupt:
        return commands.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        return _explain(error, json=json)


def _plain(error: click.UsageError, words: Sequence[str]) -> str:
    """Returns a message for the user.

    A sentence of penstock stays unchanged; a message of Click is adapted to follow `penstock: `. Both come without the
    secrets of urls.
    """
    from penstock.core.names import shown_url

    first, *rest = error.format_message().split("\n")
    message = "\n".join((" ".join(first.split()), *rest))  # in the line below, a caret marks the mistake
    for word in words:
        message = message.replace(word, shown_url(word)) if "://" in word else message
    ours = type(error) is click.UsageError and not message.startswith("Got ")
    return message if ours else f"{message[:1].lower()}{message[1:]}".removesuffix(".")


def _hint(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        return "a negative number goes behind --, which ends the options"
    return f"`{error.ctx.command_path} --help` shows how it is used" if error.ctx else ""


def _explain(error: Exception, *, json: bool) -> int:
    """Returns a sentence for an error that a user can correct; any other error is a defect and keeps its traceback."""
    from penstock.errors import ConfigError, Corrupt, NoStore, PenstockError

    if isinstance(error, NoStore):
        return _complain(type(error).__name__, str(error), commands.NOTHING, json=json)
    message = _as_options(str(error))
    if isinstance(error, ConfigError):
        return _complain(type(error).__name__, message, commands.USAGE, json=json)
    if isinstance(error, PenstockError):
        hint = ""
        if isinstance(error, Corrupt) and error.topic is not None:
            hint = "`penstock verify` says what can be read; a backup has the rest"
        return _complain(type(error).__name__, message, commands.FAILED, json=json, hint=hint)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _complain("OSError", f"{where}{error.strerror or error}", commands.FAILED, json=json)
    if isinstance(error, ModuleNotFoundError) and (extra := commands.extra_for(error.name)):
        message = f'this needs the package {error.name!r}, which is not installed: pip install "penstock[{extra}]"'
        return _complain("ConfigError", message, commands.USAGE, json=json)
    raise error


_ARGUMENT = re.compile(r"\b([a-z][a-z_]+)=(True\b|(?=[\s,;:.)]|$))")
_YES_OR_NO = ("priority", "feed", "by_key", "verified", "indexed")


def _as_options(message: str) -> str:
    """Returns a sentence about Python arguments as a sentence about options: takeover=True becomes --takeover,
    max_age= becomes --max-age.
    """
    return _ARGUMENT.sub(
        lambda found: f"--{found[1].replace('_', '-')}{' yes' if found[2] and found[1] in _YES_OR_NO else ''}", message
    )


def _complain(name: str, message: str, code: int, *, json: bool, hint: str = "") -> int:
    sys.stdout.flush()
    if json:
        import msgspec

        readable = message.encode(errors="backslashreplace").decode()  # a file's name may not be valid Unicode
        sys.stderr.write(msgspec.json.encode({"error": name, "message": readable}).decode() + "\n")
        return code
    sys.stderr.write(f"penstock: {message}\n")
    if hint:
        sys.stderr.write(f"          {hint}\n")
    return code

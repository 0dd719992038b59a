"""Completion for shells, and help by name."""

from __future__ import annotations

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext


@command(
    "completion",
    'eval "$(penstock completion bash)"',
    "penstock completion fish > ~/.config/fish/completions/penstock.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="your shell")
def completion(context: CommandContext, shell: str) -> None:
    """Prints a script that teaches your shell to complete commands, options, and names of topics and queues."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    context.out.write(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())


@command("help", "penstock help append")
@click.argument("words", metavar="[COMMAND]", nargs=-1, help="the command")
def help_(context: CommandContext, words: tuple[str, ...]) -> int:
    """Shows how a command is used."""
    from penstock.cli.main import run

    return run([*words, "--help"])

"""What holds for every command: it is declared, has help with examples that work, and takes mistakes with grace."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from cli.commandline import Cli
from penstock.cli.command import Command
from penstock.cli.index import GROUPS, MOUNTED, names
from penstock.cli.main import SHARED, load

DECLARED = [(name, summary) for _, _, commands in GROUPS for name, summary in commands]
COMMANDS = [name for name, _ in DECLARED]


@pytest.mark.parametrize(("name", "summary"), DECLARED)
def test_the_overview_says_what_the_command_says(name: str, summary: str) -> None:
    command = load(name)
    assert command.summary == summary
    assert all(part.help for part in (*command.arguments, *command.options))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_and_an_example(cli: Cli, name: str) -> None:
    command = load(name)
    shown = cli(name, "--help").out
    for option in (*command.options, *SHARED):
        assert option.spelled in shown
    for argument in command.arguments:
        assert argument.spelled in shown
    assert command.examples and all(example in shown for example in command.examples)
    assert cli("help", name).out == shown


def _own_line(example: str, command: Command) -> list[str] | None:
    """The words after `penstock NAME` in an example, up to what the shell does with them."""
    inner = re.search(r"\$\((.*)\)", example)
    for line in (inner.group(1) if inner else example).split(" | "):
        words = shlex.split(line)
        if words[:2] == ["penstock", command.name]:
            return words[2 : words.index(">")] if ">" in words else words[2:]
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_can_be_parsed(name: str) -> None:
    command = load(name)
    found = [words for example in command.examples if (words := _own_line(example, command)) is not None]
    assert found
    for words in found:
        command.parse(words, SHARED)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_none_is_a_sentence(cli: Cli, name: str) -> None:
    said = cli(name, "--no-such-option", code=2).err
    assert "--no-such-option" in said and f"penstock {name} --help" in said and "Traceback" not in said


def test_the_overview_lists_everything(cli: Cli) -> None:
    shown = cli("--help").out
    assert all(name in shown for name in names())
    assert cli().out == shown


def test_a_mistyped_command_is_suggested(cli: Cli) -> None:
    assert "did you mean topics? `penstock --help`" in cli("topcis", code=2).err


def test_the_version_is_said(cli: Cli) -> None:
    import penstock

    assert cli("--version").out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("name", [name for name, _, _ in MOUNTED])
def test_groups_with_commands_of_their_own_have_help(cli: Cli, name: str) -> None:
    assert "Usage" in cli(name, "--help").out


def test_commands_that_need_no_spark_do_not_import_it() -> None:
    """Nor what a terminal, a server or Arrow would need: a command should begin at once."""
    program = (
        "import sys; from penstock.cli.main import run; run(['--url', 'memory:', 'topics']);"
        "heavy = {'pyspark', 'pyarrow', 'rich', 'typer', 'starlette', 'numpy', 'asyncio'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

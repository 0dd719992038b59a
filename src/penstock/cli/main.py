"""Finds the command, parses its words, runs it; a mistake becomes a sentence and an exit code, never a traceback."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from penstock.cli import failure
from penstock.cli.command import Command, Option, flag, option, suggestion
from penstock.cli.context import Run
from penstock.cli.failure import Nothing, UsageError
from penstock.cli.index import GROUPS, MOUNTED, module_of, names

SHARED: tuple[Option, ...] = (
    option(
        "--url", "the journal: a path, an engine's url, or the http url of a server", env="PENSTOCK_URL", metavar="URL"
    ),
    option("--token", "the token a server asks for", env="PENSTOCK_TOKEN"),
    flag("--json", "one JSON object per line instead of tables and text"),
    flag("-h --help", "show this and do nothing"),
)
"""What every command takes."""


def load(name: str) -> Command:
    """A command's declaration; imports its module."""
    module = module_of(name)
    if module is None:
        near = suggestion(name, names())
        raise UsageError(f"there is no command {name!r}{near}{'' if near else ';'} `penstock --help` lists them")
    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, Command) and value.name == name:
            return value
    raise AssertionError(f"{module} does not declare {name!r}")


def run(words: Sequence[str]) -> int:
    """Runs one command line and returns what the shell should see."""
    json = "--json" in words
    try:
        code = _dispatch(list(words))
        sys.stdout.flush()
        return code
    except UsageError as error:
        hint = f"`penstock {error.command} --help` shows how it is used" if error.command else ""
        return _complain("usage", str(error), failure.USAGE, json=json, hint=hint)
    except Nothing as error:
        return _complain("nothing", str(error), failure.NOTHING, json=json)
    except KeyboardInterrupt:
        return failure.INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more on exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return failure.CUT_OFF
    except Exception as error:
        return _explain(error, json=json)


def _dispatch(words: list[str]) -> int:
    leading, words = _leading_options(words)
    if words and words[0] in {name for name, _, _ in MOUNTED}:
        return _mounted(words[0], words[1:])
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return _help(words[1])
        return _overview()
    if words[0] in ("-V", "--version"):
        from penstock import __version__

        sys.stdout.write(f"penstock {__version__}\n")
        return failure.DONE
    name = words[0]
    command = load(name)
    if any(word in ("-h", "--help") for word in words[1:]):
        return _help(name)
    try:
        values = command.parse([*leading, *words[1:]], SHARED)
    except UsageError as error:
        error.command = name
        raise
    return _call(command, values)


def _leading_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Options written before the command (`penstock --url shop.db topics`), and the rest."""
    taken: list[str] = []
    with_value = {option.long for option in SHARED if not option.flag}
    while words and words[0].startswith("--") and words[0].partition("=")[0] in (*with_value, "--json"):
        word = words.pop(0)
        taken.append(word)
        if word in with_value and words:
            taken.append(words.pop(0))
    return taken, words


def _call(command: Command, values: dict[str, Any]) -> int:
    values.pop("help")
    run = Run(values.pop("url"), token=values.pop("token"), json=values.pop("json"))
    code = command.run(run, **values)
    return failure.DONE if code is None else code


def _mounted(name: str, words: list[str]) -> int:
    module = next(module for mounted, module, _ in MOUNTED if mounted == name)
    app = importlib.import_module(module).app
    try:
        app(args=words, prog_name=f"penstock {name}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else failure.FAILED if ended.code else failure.DONE
    return failure.DONE


def _help(name: str) -> int:
    from penstock.cli.help import command_help
    from penstock.cli.output import colored

    sys.stdout.write(command_help(load(name), SHARED, color=colored(sys.stdout)) + "\n")
    return failure.DONE


def _overview() -> int:
    from penstock.cli.help import overview
    from penstock.cli.output import colored

    groups = [(title, commands) for title, _, commands in GROUPS]
    if MOUNTED:
        groups.append(("more", tuple((name, summary) for name, _, summary in MOUNTED)))
    sys.stdout.write(overview(groups, SHARED, color=colored(sys.stdout)) + "\n")
    return failure.DONE


def _explain(error: Exception, *, json: bool) -> int:
    """A sentence for an error that a user can do something about; anything else is a defect and keeps its traceback."""
    from penstock.errors import ConfigError, PenstockError

    if isinstance(error, ConfigError):
        hint = "give it with --token, or as PENSTOCK_TOKEN" if str(error).startswith("Unauthorized: ") else ""
        return _complain(type(error).__name__, str(error), failure.USAGE, json=json, hint=hint)
    if isinstance(error, PenstockError):
        return _complain(type(error).__name__, str(error), failure.FAILED, json=json)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return _complain("OSError", f"{place}{error.strerror or error}", failure.FAILED, json=json)
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_for(error.name)):
        message = f'this needs the package {error.name!r}, which is not installed: pip install "penstock[{extra}]"'
        return _complain("ConfigError", message, failure.USAGE, json=json)
    raise error


def _extra_for(module: str | None) -> str | None:
    """The extra that brings a package."""
    extras = {
        "cli": ("rich", "typer"),
        "server": ("starlette", "uvicorn", "anyio", "h11"),
        "arrow": ("pyarrow", "numpy"),
        "spark": ("pyspark", "py4j"),
        "buffer": ("obstore", "zstandard", "ulid"),
        "entity": ("blake3",),
    }
    package = (module or "").partition(".")[0]
    return next((extra for extra, packages in extras.items() if package in packages), None)


def _complain(name: str, message: str, code: int, *, json: bool, hint: str = "") -> int:
    sys.stdout.flush()
    if json:
        import msgspec

        sys.stderr.write(msgspec.json.encode({"error": name, "message": message}).decode() + "\n")
        return code
    sys.stderr.write(f"penstock: {message}\n")
    if hint:
        sys.stderr.write(f"          {hint}\n")
    return code

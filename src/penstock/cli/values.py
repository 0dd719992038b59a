"""Words of a command line as values: numbers, times, sizes, JSON, conditions, names.

Click shows the name of a function in capitals as the value's placeholder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.command import CommandContext
from penstock.core.clock import parse_duration
from penstock.core.units import parse_moment, parse_size
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.model.conditions import Where


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


def size(text: str) -> int:
    """Returns a number of bytes from text: 1000, 64KiB."""
    return parse_size(text)


def duration(text: str) -> float:
    """Returns a number of seconds from text: 90s, 1h30m."""
    return parse_duration(text)


def moment(text: str) -> datetime:
    """Returns a time from text: an ISO time, or how long ago."""
    return parse_moment(text, datetime.now(UTC))


moment.__name__ = "time"  # for the help text


def position(text: str) -> int:
    """Returns a position in a topic from text."""
    if not text.isdecimal():
        raise ValueError(f"a position is a whole number, not {text!r}")
    return int(text)


def number(text: str) -> int:
    """Returns the number in an argument."""
    plain = text.replace(",", "").replace("_", "")
    if not plain.isdecimal():
        raise ValueError(f"a number of at least 0 was expected, not {text!r}")
    return int(plain)


def count(text: str) -> int:
    """Returns the number in an argument, which is at least one."""
    found = number(text)
    if found < 1:
        raise ValueError("it must be at least 1")
    return found


def condition(text: str) -> Where:
    """Returns a condition on events from text."""
    from penstock.core.model.conditions import Where

    return Where(text)


def header(text: str) -> tuple[str, str]:
    """Returns a header from NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"a header is NAME=VALUE, not {text!r}")
    return name, value


def or_none(convert: Callable[[str], T]) -> Callable[[str], T | None]:
    """Returns the value, or None for `none`, which means no limit."""

    def converted(text: str) -> T | None:
        return None if text == "none" else convert(text)

    converted.__name__ = convert.__name__
    return converted


def json_value(text: str) -> object:
    """Returns a payload from JSON text."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"this is not JSON ({error}): {text[:60]!r}. A text needs quotes of its own ('\"like this\"'), or --text"
        ) from None


# ── names a shell completes ──────────────────────────────────────────────────────────────────────────────────────────
def _names(which: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from penstock.errors import PenstockError

        try:
            with ctx.ensure_object(CommandContext).journal(read_only=True) as journal:
                found = journal.topics() if which == "topics" else journal.queues()
        except (PenstockError, OSError):
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


topic_names = _names("topics")
queue_names = _names("queues")
any_topic = click.argument("topic", required=False, shell_complete=topic_names, help="one topic only")
with_yes = click.option("--yes", is_flag=True, help="do not ask")
PORT = click.IntRange(0, 65535)


# ── parameters of one kind ───────────────────────────────────────────────────────────────────────────────────────────
def some_topics(metavar: str, *, required: bool = False, help: str) -> Callable[[F], F]:
    """Returns an argument that takes several topics."""
    complete = topic_names
    return click.argument("topics", metavar=metavar, nargs=-1, required=required, shell_complete=complete, help=help)


def choice(*names: str, help: str, default: str | None = None) -> Callable[[F], F]:
    """Returns an option whose value is one of the words in the last name."""
    return click.option(*names[:-1], type=click.Choice(names[-1].split()), default=default, help=help)


def several(*names: str, help: str, **how: Any) -> Callable[[F], F]:
    """Returns an option that may be given several times."""
    return click.option(*names, multiple=True, help=f"{help}; may be given several times", **how)


the_headers = several("--header", "headers", metavar="NAME=VALUE", type=header, help="a header")


# ── A user's own code by name: module:function, module:Class ──


def load_named(path: str, what: str = "a handler", like: str = "shop.mail:send", also: tuple[type, ...] = ()) -> object:
    """Returns the object that `module:name` names, from this folder or the installed packages.

    Raises UsageError, which says what is missing.

    The object is a function, a class, or an instance of one of the types in `also`.
    """
    import importlib

    module_name, colon, name = path.partition(":")
    if not module_name or not colon or not name:
        raise click.UsageError(f"{what} is module:name, like {like}, not {path!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise click.UsageError(
                f"there is no module {module_name!r} in this folder or among the installed packages"
            ) from None
        raise click.UsageError(f"{module_name} cannot be imported: {error}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise click.UsageError(f"{module_name} has no {name}")
    if not callable(found) and not isinstance(found, also):
        raise click.UsageError(f"{path} is no function")
    return found

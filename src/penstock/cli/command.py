"""What a command is: a name, its arguments and options, a function, and an example. Declared as values, parsed here.

    @command("lag", "How far consumers are behind", argument("topic", "one topic only", required=False),
             example="penstock lag orders")
    def lag(run: Run, topic: str | None) -> None: ...

A general-purpose parser costs more to import than everything else a command does (`benchmarks/cli.py`), so this one
knows just what is needed here and imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.failure import UsageError

Convert = Callable[[str], Any]


class Argument:
    """A positional value."""

    __slots__ = ("convert", "help", "many", "name", "required")

    def __init__(self, name: str, help: str, *, required: bool, many: bool, convert: Convert) -> None:
        self.name = name
        self.help = help
        self.required = required
        self.many = many
        self.convert = convert

    @property
    def spelled(self) -> str:
        """How usage lines show it: TOPIC, [PAYLOAD], [TOPIC …]."""
        shown = self.name.upper().replace("_", "-") + (" …" if self.many else "")
        return shown if self.required else f"[{shown}]"


class Option:
    """A value given by name, or (a flag) a name that stands for yes."""

    __slots__ = ("choices", "convert", "default", "env", "flag", "help", "many", "metavar", "names")

    def __init__(
        self,
        names: tuple[str, ...],
        help: str,
        *,
        metavar: str,
        default: Any,
        flag: bool,
        many: bool,
        choices: tuple[str, ...],
        env: str | None,
        convert: Convert,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.default = default
        self.flag = flag
        self.many = many
        self.choices = choices
        self.env = env
        self.convert = convert

    @property
    def long(self) -> str:
        return next(name for name in self.names if name.startswith("--"))

    @property
    def name(self) -> str:
        """The keyword the command's function takes it under."""
        return self.long[2:].replace("-", "_")

    @property
    def spelled(self) -> str:
        """How help shows it: -n, --limit NUMBER."""
        value = "|".join(self.choices) if self.choices else self.metavar
        return ", ".join(self.names) + ("" if self.flag else f" {value}")


class Command:
    """One command of the tool."""

    __slots__ = ("arguments", "details", "examples", "name", "options", "run", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        parts: Sequence[Argument | Option],
        examples: tuple[str, ...],
        details: str,
        run: Callable[..., int | None],
    ) -> None:
        self.name = name
        self.summary = summary
        self.arguments = [part for part in parts if isinstance(part, Argument)]
        self.options = [part for part in parts if isinstance(part, Option)]
        self.examples = examples
        self.details = details
        self.run = run

    @property
    def usage(self) -> str:
        return " ".join(["penstock", self.name, *(argument.spelled for argument in self.arguments), "[options]"])

    def parse(self, words: Sequence[str], shared: Sequence[Option]) -> dict[str, Any]:
        """The values for `run` (and of the shared options) that a command line gives; UsageError when it is wrong."""
        by_name = {name: option for option in (*self.options, *shared) for name in option.names}
        given: list[str] = []
        values: dict[str, Any] = {}
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                given.extend(left)
                break
            if word.startswith("-") and len(word) > 1 and not _is_number(word):
                _take_option(word, left, by_name, values, self)
            else:
                given.append(word)
        for option in (*self.options, *shared):
            if option.name not in values:
                values[option.name] = [] if option.many else option.default
        self._place(given, values)
        return values

    def _place(self, given: list[str], values: dict[str, Any]) -> None:
        left = list(given)
        for argument in self.arguments:
            if argument.many:
                taken, left = left, []
                values[argument.name] = [_converted(argument.convert, word, argument.spelled) for word in taken]
                missing = argument.required and not taken
            elif left:
                values[argument.name] = _converted(argument.convert, left.pop(0), argument.spelled)
                missing = False
            else:
                values[argument.name] = None
                missing = argument.required
            if missing:
                raise UsageError(f"{argument.spelled} is missing ({argument.help})", command=self.name)
        if left:
            raise UsageError(f"what is {left[0]!r} for? Nothing more is expected here", command=self.name)


def _take_option(
    word: str, left: list[str], by_name: dict[str, Option], values: dict[str, Any], command: Command
) -> None:
    name, equals, text = word.partition("=")
    if not word.startswith("--"):
        # -f, -n5 and -fn5: a flag may be followed by more short options, anything else takes the rest as its value.
        name, text = word[:2], word[2:]
        equals = "=" if text else ""
        option = by_name.get(name)
        if option is not None and option.flag and text:
            left.insert(0, "-" + text)
            equals = text = ""
    option = by_name.get(name)
    if option is None:
        raise UsageError(f"there is no option {name}{_suggestion(name, by_name)}", command=command.name)
    if option.flag:
        if equals:
            raise UsageError(f"{name} takes no value", command=command.name)
        values[option.name] = True
        return
    if not equals:
        if not left:
            raise UsageError(f"{name} needs a value ({option.help})", command=command.name)
        text = left.pop(0)
    value = _option_value(option, text, name)
    if option.many:
        values.setdefault(option.name, []).append(value)
    else:
        values[option.name] = value


def _option_value(option: Option, text: str, name: str) -> Any:
    if option.choices and text not in option.choices:
        raise UsageError(f"{name} is one of {', '.join(option.choices)}, not {text!r}")
    return _converted(option.convert, text, name)


def _converted(convert: Convert, text: str, what: str) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def _is_number(word: str) -> bool:
    return word[1:].replace(".", "", 1).isdigit()


def _suggestion(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


def suggestion(name: str, known: Sequence[str]) -> str:
    """`; did you mean …?` when something known is spelled nearly like `name`."""
    return _suggestion(name, known)


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────
def argument(name: str, help: str, *, required: bool = True, many: bool = False, convert: Convert = str) -> Argument:
    """Declares a positional value; `convert` raises ValueError for text that is none."""
    return Argument(name, help, required=required, many=many, convert=convert)


def option(
    names: str,
    help: str,
    *,
    metavar: str = "TEXT",
    default: Any = None,
    many: bool = False,
    choices: tuple[str, ...] = (),
    env: str | None = None,
    convert: Convert = str,
) -> Option:
    """Declares an option with a value: `option("-n --limit", …)`."""
    return Option(
        tuple(names.split()),
        help,
        metavar=metavar,
        default=default,
        flag=False,
        many=many,
        choices=choices,
        env=env,
        convert=convert,
    )


def flag(names: str, help: str) -> Option:
    """Declares an option without a value."""
    return Option(
        tuple(names.split()), help, metavar="", default=False, flag=True, many=False, choices=(), env=None, convert=str
    )


def command(
    name: str, summary: str, *parts: Argument | Option, example: str | tuple[str, ...], details: str = ""
) -> Callable[[Callable[..., int | None]], Command]:
    """Declares a command; the function it decorates takes the run and one keyword per argument and option."""

    def declare(run: Callable[..., int | None]) -> Command:
        examples = (example,) if isinstance(example, str) else example
        return Command(name, summary, parts, examples, _flush_left(details), run)

    return declare


def _flush_left(text: str) -> str:
    """Text without the indentation of the code it stands in; `textwrap` would cost every start its import."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\n".join(lines)

"""A small, safe language for choosing events: `payload.total > 10 and kind in ('paid', 'placed')`.

    or, and, not, ( )
    =  ==  !=  <  <=  >  >=           like with like: numbers, text, true/false; times against ISO text
    in (…), not in (…)                one of a list
    contains, startswith, endswith    text in text; contains also finds a tag, an item in a list, a field in an object
    has(payload.address)              the field is there, even when it is null
    len(payload.items)  lower(key)    a length; text in small letters

Fields: seq, topic, kind, key, scope, id, occurred_at, recorded_at, correlation_id, causation_id, tags, headers.NAME,
payload, and values inside the payload: payload.lines[0].sku, payload['a field']. Conditions over given-up messages
(redrive, discard, dead, failed) also have error, reason, attempts, failed_at, and error_group: the first line of the
error with # for numbers and ids, which is the same for errors of one cause. A missing field is null. A comparison of
values that cannot be compared is false and never an error. The language has no code, no loops and no regular
expressions, so a text from a stranger can do no harm.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.core.events import EVENT_FIELDS, Event, GivenUpEvent
from penstock.core.units import error_group
from penstock.errors import ConfigError, PoisonMessage

MAX_LENGTH = 4000
MAX_DEPTH = 60

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>==|!=|<>|<=|>=|[=<>()\[\].,-])
)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_WORDS = {"and", "or", "not", "in", "contains", "startswith", "endswith", "true", "false", "null"}
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_COMPARISONS = {"=": "==", "==": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


FAILURE_WORDS = ("error", "error_group", "reason", "attempts", "failed_at")
"""The words of conditions over given-up messages, beside the fields of events."""


Comparison = tuple[str, str, Any]
"""A field of an event, a sign (`==`, `<`, …, `in`, `startswith`), and the value or values it is compared with."""


class Where:
    """A condition on events, parsed once: `Where("payload.total > 10").matches(event)`."""

    __slots__ = ("_test", "of_failures", "parts", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"a condition is text, not {type(text).__name__}")
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"a condition of {len(text):,} characters is too long; at most {MAX_LENGTH:,} are read")
        self.text = text
        parser = _Parser(text)
        self._test = parser.parse()
        self.parts: tuple[Comparison | None, ...] = parser.parts_of(self._test)
        """The parts that must all hold: comparisons of a field with a value, and None for any other part."""
        self.of_failures = parser.of_failures
        """True if the condition uses a word over given-up messages."""

    def __reduce__(self) -> tuple[type[Where], tuple[str]]:
        return Where, (self.text,)

    def matches(self, event: Event) -> bool:
        """Returns True when the condition holds for an event."""
        return bool(self._test(event))

    __call__ = matches

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


EventChoice = Where | str | Callable[[Event], bool]
"""A choice of events: a condition, its text, or a function that returns True for a chosen event."""


def predicate(choice: EventChoice | None) -> Callable[[Event], bool] | None:
    """Returns a choice as a function; raises ConfigError for any other value."""
    if isinstance(choice, str):
        return Where(choice)
    if choice is not None and not callable(choice):
        raise ConfigError(f'a condition is a function or text, like "payload.total > 10", not {choice!r:.80}')
    return choice


def check_events_chosen(condition: Where) -> Where:
    """Returns a condition over events; raises ConfigError when it uses a word over given-up messages."""
    if condition.of_failures:
        raise ConfigError(
            f"{', '.join(FAILURE_WORDS)} say why a message was given up: conditions of redrive, discard, dead and "
            "failed know them. An event has payload.error and the like"
        )
    return condition


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0
        self.of_failures = False
        self._names: dict[Value, str] = {}
        self._constants: dict[Value, Any] = {}
        self._comparisons: dict[Value, Comparison] = {}
        self._all: dict[Value, list[Value]] = {}

    def parts_of(self, test: Value) -> tuple[Comparison | None, ...]:
        """Returns the parts that must hold for a test to hold."""
        if test in self._all:
            return tuple(part for one in self._all[test] for part in self.parts_of(one))
        return (self._comparisons.get(test),)

    def _noted(self, sign: str, left: Value, right: Sequence[Value], test: Value) -> Value:
        """Returns a test; notes a comparison of a field with values."""
        if left in self._names and all(value in self._constants for value in right):
            values = [self._constants[value] for value in right]
            self._comparisons[test] = self._names[left], sign, values if sign == "in" else values[0]
        return test

    def _constant(self, value: object) -> Value:
        def constant(event: Event) -> object:
            return value

        self._constants[constant] = value
        return constant

    def parse(self) -> Value:
        if not self._tokens:
            raise ConfigError("a condition is missing: write something like payload.total > 10")
        test = self._either()
        if self._at < len(self._tokens):
            raise self._refused("and or or was expected here")
        return test

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _split(self) -> list[tuple[str, str, int]]:
        tokens: list[tuple[str, str, int]] = []
        at, text = 0, self._text
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                what = "this text has no end" if text[at] in "'\"" else f"{text[at]!r} means nothing here"
                raise self._error(what, at)
            kind = str(match.lastgroup)
            tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        return tokens

    def _peek(self) -> tuple[str, str]:
        if self._at < len(self._tokens):
            kind, text, _ = self._tokens[self._at]
            return kind, text.lower() if kind == "name" and text.lower() in _WORDS else text
        return "end", ""

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, *texts: str) -> str | None:
        kind, text = self._peek()
        if kind in ("name", "sign") and text in texts:
            self._at += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise self._refused(f"{text!r} was expected here")

    def _refused(self, what: str) -> ConfigError:
        """Returns the error for the parser's current place."""
        at = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
        return self._error(what, at)

    def _error(self, what: str, at: int) -> ConfigError:
        start = max(0, at - 30)
        shown = self._text[start : at + 30].replace("\n", " ")
        return ConfigError(f"this condition cannot be read: {what}\n    {shown}\n    {' ' * (at - start)}^")

    # ── grammar ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refused(f"it is nested more than {MAX_DEPTH} deep")

    def _either(self) -> Value:
        self._deeper()
        tests = [self._both()]
        while self._accept("or"):
            tests.append(self._both())
        self._depth -= 1
        return tests[0] if len(tests) == 1 else lambda event: any(test(event) for test in tests)

    def _both(self) -> Value:
        tests = [self._negated()]
        while self._accept("and"):
            tests.append(self._negated())
        if len(tests) == 1:
            return tests[0]

        def all_of(event: Event) -> bool:
            return all(test(event) for test in tests)

        self._all[all_of] = tests
        return all_of

    def _negated(self) -> Value:
        turns = 0
        while self._accept("not"):
            turns += 1
        test = self._comparison()
        return test if turns % 2 == 0 else lambda event: not test(event)

    def _comparison(self) -> Value:
        left = self._value()
        sign = self._accept(*_COMPARISONS)
        if sign is not None:
            right = self._value()
            return self._noted(_COMPARISONS[sign], left, [right], compared(_COMPARISONS[sign], left, right))
        if self._accept("not"):
            self._expect("in")
            inside = self._one_of(left)
            return lambda event: not inside(event)
        if self._accept("in"):
            return self._one_of(left)
        word = self._accept("contains", "startswith", "endswith")
        if word is not None:
            part = self._value()
            return self._noted(word, left, [part], searched(word, left, part))
        return left

    def _one_of(self, left: Value) -> Value:
        self._expect("(")
        choices = [self._value()]
        while self._accept(","):
            choices.append(self._value())
        self._expect(")")
        return self._noted("in", left, choices, lambda event: any(same(left(event), one(event)) for one in choices))

    def _value(self) -> Value:
        kind, text = self._peek()
        if kind == "number":
            self._at += 1
            return self._constant(float(text) if any(sign in text for sign in ".eE") else int(text))
        if kind == "text":
            self._at += 1
            return self._constant(re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1]))
        if kind == "sign" and text == "(":
            self._at += 1
            inner = self._either()
            self._expect(")")
            return inner
        if kind == "name":
            return self._named()
        raise self._refused("a field, a number or a text was expected here")

    def _named(self) -> Value:
        _, name = self._next()
        if name in ("true", "false", "null"):
            return self._constant({"true": True, "false": False, "null": None}[name])
        if name in ("has", "len", "lower") and self._accept("("):
            self._deeper()
            inner = self._value()
            self._depth -= 1
            self._expect(")")
            return applied(name, inner)
        if name in FAILURE_WORDS:
            self.of_failures = True
            return failure_at(name)
        if name not in EVENT_FIELDS:
            self._at -= 1
            known = ", ".join(EVENT_FIELDS)
            raise self._refused(f"an event has no {name!r}; there are {known} (and payload.{name}?)")
        steps = self._steps(name)
        field = field_at(name, steps)
        if not steps:
            self._names[field] = name
        return field

    def _steps(self, name: str) -> tuple[str | int, ...]:
        steps: list[str | int] = []
        while True:
            if self._accept("."):
                kind, text = self._next()
                if kind != "name":
                    self._at -= 1
                    raise self._refused(
                        "the name of a field was expected here; write ['a name'] for one with signs in it"
                    )
                steps.append(self._tokens[self._at - 1][1])
            elif self._accept("["):
                kind, text = self._next()
                if kind == "text":
                    steps.append(re.sub(r"\\(.)", r"\1", text[1:-1]))
                elif kind == "number" and text.lstrip("-").isdigit():
                    steps.append(int(text))
                else:
                    self._at -= 1
                    raise self._refused("a number or a 'name' was expected here")
                self._expect("]")
            else:
                break
        if steps and name not in ("payload", "headers"):
            raise self._refused(f"{name} has nothing inside it")
        return tuple(steps)


# ── What the parts of a condition are for an event: fields, comparisons, searches, functions ──
# The parser builds a condition from these functions. None of them raises: a missing value is null, and a comparison of
# incomparable values is false.


Value = Callable[[Event], Any]
"""A part of a condition, as a function of an event."""


class _Missing:
    """The value of a missing field: it compares as null, except to has()."""

    def __bool__(self) -> bool:
        return False


_MISSING = _Missing()


def field_at(name: str, steps: tuple[str | int, ...]) -> Value:
    """Returns an event's field, or the value inside the field that `steps` lead to."""
    if name == "payload":
        return lambda event: _inside(_payload(event), steps)
    if name == "headers":
        return lambda event: _inside(dict(event.headers), steps)

    def field(event: Event) -> Any:
        return getattr(event, name)

    def tags(event: Event) -> list[str]:
        return list(event.tags)

    return tags if name == "tags" else field


def failure_at(word: str) -> Value:
    """Returns the value of a word for a given-up message; a missing value for any other event."""

    def failure(event: Event) -> Any:
        if not isinstance(event, GivenUpEvent):
            return _MISSING
        found = event.failure
        if word == "error_group":
            return error_group(found.error)
        return {"error": found.error, "reason": found.reason, "attempts": found.attempts, "failed_at": found.at}[word]

    return failure


def _payload(event: Event) -> Any:
    try:
        return event.payload
    except PoisonMessage:
        return _MISSING


def _inside(value: object, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return _MISSING
            value = value[step]
        else:
            if not isinstance(value, dict) or step not in value:
                return _MISSING
            value = value[step]
    return value


def _plain(value: object) -> Any:
    return None if value is _MISSING else value


def _like_with_like(left: object, right: object) -> tuple[Any, Any] | None:
    """Returns two values in a comparable form, or None when they cannot be compared."""
    left, right = _plain(left), _plain(right)
    if isinstance(left, datetime) and isinstance(right, str):
        right = moment(right)
    elif isinstance(right, datetime) and isinstance(left, str):
        left = moment(left)
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        return (left, right) if isinstance(left, bool) and isinstance(right, bool) else None
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left, right
    for kind in (str, datetime, list, dict):
        if isinstance(left, kind) and isinstance(right, kind):
            return left, right
    return None


def moment(text: str) -> datetime | None:
    """Returns the time in a text, in local time without a zone; None for any other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return found if found.tzinfo else found.astimezone()
    except (OverflowError, ValueError):  # no local time exists at the limits of the calendar
        return found.replace(tzinfo=UTC)


def same(left: object, right: object) -> bool:
    """Returns True when two values are equal. null equals a missing value."""
    pair = _like_with_like(left, right)
    if pair is None:
        return _plain(left) is None and _plain(right) is None
    return bool(pair[0] == pair[1])


def compared(sign: str, left: Value, right: Value) -> Value:
    """Compares both sides with a sign."""
    if sign == "==":
        return lambda event: same(left(event), right(event))
    if sign == "!=":
        return lambda event: not same(left(event), right(event))
    order = _ORDERS[sign]

    def ordered(event: Event) -> bool:
        pair = _like_with_like(left(event), right(event))
        return pair is not None and not isinstance(pair[0], list | dict) and bool(order(*pair))

    return ordered


def searched(word: str, left: Value, right: Value) -> Value:
    """Returns the value of `contains`, `startswith` or `endswith`."""

    def search(event: Event) -> bool:
        whole, part = left(event), right(event)
        if isinstance(whole, str) and isinstance(part, str):
            if word == "startswith":
                return whole.startswith(part)
            return whole.endswith(part) if word == "endswith" else part in whole
        if word != "contains":
            return False
        if isinstance(whole, list):
            return any(same(item, part) for item in whole)
        return isinstance(whole, dict) and isinstance(part, str) and part in whole

    return search


def applied(name: str, inner: Value) -> Value:
    """Returns `has`, `len` or `lower` of a value."""
    if name == "has":
        return lambda event: inner(event) is not _MISSING

    def length(event: Event) -> Any:
        value = inner(event)
        return len(value) if isinstance(value, str | list | dict | bytes) else None

    def lower(event: Event) -> Any:
        value = inner(event)
        return value.lower() if isinstance(value, str) else value

    return length if name == "len" else lower

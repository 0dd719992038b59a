"""The input of a person, as the fields of a request, a policy or settings.

The type of a field decides how its text is read.

Seconds are written as durations (`5m`, `1h30m`), bytes as sizes (`64MiB`), a retry as `exponential:1s:5m`, and a field
of any type as JSON. An empty field of a form has its default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import inspect

from penstock.core.clock import parse_duration
from penstock.core.queue.policy import DEFAULT, WORDS, QueuePolicy, Retry, parse_retry, write_retry
from penstock.core.units import parse_size, write_duration
from penstock.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

Value = str | list[str]
"""The value of a field in a form: a text, or several texts."""
AS_IT_IS = "as it is"
"""The text in a form for a retry that has no short form. The retry is kept unless the text is changed."""


def struct_fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def types_of(field: inspect.Field) -> list[inspect.Type]:
    """Returns the types that a field may have; None is the last."""
    kind = _bare(field.type)
    kinds = tuple(map(_bare, kind.types)) if isinstance(kind, inspect.UnionType) else (kind,)
    return sorted(kinds, key=lambda one: isinstance(one, inspect.NoneType))


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def choices_of(field: inspect.Field) -> Iterable[str]:
    """Returns the choices of a field; nothing when a person types its value."""
    kind = types_of(field)[0]
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    return ("no", "yes") if isinstance(kind, inspect.BoolType) else ()


def read_field(field: inspect.Field, text: str) -> object:
    """Returns the value of a field from its text. Raises ConfigError when the text is no value."""
    text, kinds = text.strip(), types_of(field)
    if text in choices_of(field):
        return {"yes": True, "no": False}.get(text, text)
    try:
        match kinds[0]:
            case inspect.FloatType():
                return parse_duration(text)
            case inspect.IntType():
                return parse_size(text) if field.name.endswith("_bytes") else whole(text)
            case inspect.StructType():
                return parse_retry(text)
            case inspect.AnyType() | inspect.DictType() as kind:
                return _read_json(text, kind)
            case _:
                return text
    except ConfigError as error:
        raise ConfigError(f"{field.name.replace('_', ' ')}: {error}") from error


def read_setting(field: inspect.Field, text: str) -> object:
    """Returns the value of a field of a policy or of settings. The text `none` means None if None is allowed."""
    return None if text == "none" and isinstance(types_of(field)[-1], inspect.NoneType) else read_field(field, text)


def _read_json(text: str, kind: inspect.Type) -> object:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"this is no JSON: {error}") from error
    except RecursionError:
        raise ConfigError("this is nested too deeply") from None
    texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    if isinstance(kind, inspect.DictType) and not texts:
        raise ConfigError('this is no JSON object of texts, like {"source": "console"}')
    return found


def whole(text: str) -> int:
    """Returns a field as a whole number of at least 0."""
    plain = text.replace(",", "").replace("_", "")
    if not plain.isascii() or not plain.isdigit() or len(plain) > 18:
        raise ConfigError(f"{text[:40]!r} is no whole number: write one like 1200")
    return int(plain)


def write_field(value: object) -> str:
    """Returns a value as text that `read_field` reads back; empty when there is no value."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return write_duration(value)
        case Retry():
            return write_retry(value) or AS_IT_IS
        case _:
            return str(value)


def filled(kind: type[S], fields: Mapping[str, Value], **other: object) -> S:
    """Returns a request with the values of a form; `other` fields are set as given.

    Raises ConfigError, which names the first wrong field.
    """
    values = dict(other)
    for field in struct_fields(kind):
        given = fields.get(field.name, "")
        if field.name in other:
            continue
        if isinstance(given, list):
            values[field.name] = given
        elif given.strip():
            values[field.name] = read_field(field, given)
        elif field.required:
            raise ConfigError(f"{field.name.replace('_', ' ')} is missing: fill it in")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


# ── a queue's policy ─────────────────────────────────────────────────────────────────────────────────────────────────
class PolicyField(msgspec.Struct, frozen=True):
    """A field of the form, with its present value."""

    name: str
    value: str
    example: str
    says: str
    choices: Iterable[str]
    """The texts to choose from; empty when a person types the value."""


def policy_form(policy: QueuePolicy) -> list[PolicyField]:
    """Returns the changeable fields of a policy for its form."""
    values = msgspec.structs.asdict(policy)
    unset = {"retry": "default", "dedup_window": "none"}
    return [
        PolicyField(
            field.name,
            write_field(values[field.name]) or unset.get(field.name, ""),
            *WORDS[field.name],
            choices_of(field),
        )
        for field in struct_fields(QueuePolicy)
        if field.name != "mode"
    ]


def policy_given(fields: Mapping[str, Value], *, emptied: bool) -> dict[str, object]:
    """Returns the policy that a form asks for.

    The policy leaves out fields that the form does not have; it has empty fields only with `emptied`.

    A field that a person emptied gets its default again, for example no limit.
    """
    defaults = msgspec.structs.asdict(DEFAULT)
    given: dict[str, object] = {}
    for field in struct_fields(QueuePolicy):
        text = str(fields.get(field.name, "")).strip()
        if text and text != AS_IT_IS:
            given[field.name] = read_setting(field, text)
        elif emptied and not text and field.name in fields:
            given[field.name] = defaults[field.name]
    return given

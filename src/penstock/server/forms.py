"""The input of a person, as the fields of a request, a policy or settings: their types say how each is read.

Numbers of seconds are durations (`5m`, `1h30m`), numbers of bytes sizes (`64MiB`), a retry is `exponential:1s:5m`, what
may be anything is JSON. In a form, what is left empty has its default.
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
"""A field as a form sends it: text, or several texts."""
AS_IT_IS = "as it is"
"""The text of a form for a retry that has no words: it is kept unless it is changed."""


def struct_fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def types_of(field: inspect.Field) -> list[inspect.Type]:
    """The types a field may have, None last."""
    kind = _bare(field.type)
    kinds = tuple(map(_bare, kind.types)) if isinstance(kind, inspect.UnionType) else (kind,)
    return sorted(kinds, key=lambda one: isinstance(one, inspect.NoneType))


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def choices_of(field: inspect.Field) -> Iterable[str]:
    """Returns the choices of a field; nothing when it is typed."""
    kind = types_of(field)[0]
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    return ("no", "yes") if isinstance(kind, inspect.BoolType) else ()


def read_field(field: inspect.Field, text: str) -> object:
    """A field's value from what was typed; ConfigError when it is none."""
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
    """Returns the value of a field of a policy or of settings, where `none` is None if None is allowed."""
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
    """A whole number of at least 0."""
    plain = text.replace(",", "").replace("_", "")
    if not plain.isascii() or not plain.isdigit() or len(plain) > 18:
        raise ConfigError(f"{text[:40]!r} is no whole number: write one like 1200")
    return int(plain)


def write_field(value: object) -> str:
    """A value as `read_field` reads it back; empty where there is none."""
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
    """A request with what a form says; `other` fields are set as they are. ConfigError names the first bad one."""
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
    """A field of the form with what it holds now."""

    name: str
    value: str
    example: str
    says: str
    choices: Iterable[str]
    """The texts to choose from; none: it is typed."""


def policy_form(policy: QueuePolicy) -> list[PolicyField]:
    """Returns the changeable fields of a policy, as its form shows them."""
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
    """The policy that a form asks for. A field that it does not have is not in it, nor, unless `emptied`, an empty one.

    A field that a person emptied has its default again: no limit, where that is the default.
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

"""The text of a schema, checked before Spark parses it as a part of a longer, generated schema."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import NamedTuple

from penstock.errors import ConfigError

_TYPES = frozenset(
    {
        *("BOOLEAN", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "FLOAT", "REAL"),
        *("DOUBLE", "DEC", "DECIMAL", "NUMERIC", "STRING", "CHAR", "CHARACTER", "VARCHAR", "BINARY", "DATE", "TIME"),
        *("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL", "VOID", "VARIANT", "ARRAY", "MAP", "STRUCT"),
        *("GEOMETRY", "GEOGRAPHY"),
    }
)
_FIELD = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:`]+)\s*:?\s*(.*)", re.DOTALL)
_NESTED = re.compile(r"(?i)(ARRAY|MAP|STRUCT)\s*<(.*)>", re.DOTALL)


class SchemaText(NamedTuple):
    """A schema as it was written, and its name in errors."""

    option: str
    text: str


def fields(schema: SchemaText) -> dict[str, str]:
    """Returns the fields' names and types. Raises ConfigError with the name of a field whose type Spark does not
    know."""
    found: dict[str, str] = {}
    for part in _parts(schema.text, schema):
        name, kind = _field(part, schema)
        if name in found:
            raise ConfigError(f"{schema.option}: the field {name!r} is there twice")
        found[name] = kind
    return found


def _field(text: str, schema: SchemaText) -> tuple[str, str]:
    match = _FIELD.fullmatch(text)
    if match is None or not match[2].strip():
        raise ConfigError(f"{schema.option} {schema.text!r} has a field without a type: {text.strip()!r}")
    name = match[1].strip("`").replace("``", "`")
    _check_type(match[2].strip(), name, schema)
    return name, match[2].strip()


def _check_type(text: str, name: str, schema: SchemaText) -> None:
    word = re.match(r"\w*", text)
    assert word is not None
    if word[0].upper() not in _TYPES:
        close = get_close_matches(word[0].upper(), _TYPES, 1, 0.6)
        hint = f"; did you mean {close[0]}?" if close else ", such as STRING, BIGINT, DOUBLE, TIMESTAMP, ARRAY<STRING>"
        raise ConfigError(f"{schema.option}: the field {name!r} has the type {text!r}, which Spark does not know{hint}")
    nested = _NESTED.match(text)
    if nested is None:
        return
    for part in _parts(nested[2], schema):
        if nested[1].upper() == "STRUCT":
            _field(part, schema)
        else:
            _check_type(part.strip(), name, schema)


def _parts(text: str, schema: SchemaText) -> list[str]:
    """Returns the parts between commas that are not within brackets or quotes."""
    parts, depth, start, quoted = [], 0, 0, ""
    for at, character in enumerate(text):
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in "`'\"":
            quoted = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    if depth or quoted:
        raise ConfigError(f"{schema.option} {schema.text!r} has a bracket or a quote that is not closed")
    return [*parts, text[start:]]

"""The text of a `payloadSchema`, checked before Spark parses it as a part of a longer one that nobody wrote."""

from __future__ import annotations

import re
from difflib import get_close_matches

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


def field_names(schema: str) -> list[str]:
    """The names of a schema's fields; ConfigError when one has a type that Spark does not know, by its name."""
    return [_field(part, schema) for part in _parts(schema, schema)]


def _field(text: str, schema: str) -> str:
    match = _FIELD.fullmatch(text)
    if match is None or not match[2].strip():
        raise ConfigError(f"payloadSchema {schema!r} has a field without a type: {text.strip()!r}")
    name = match[1].strip("`").replace("``", "`")
    _check_type(match[2].strip(), name, schema)
    return name


def _check_type(text: str, name: str, schema: str) -> None:
    word = re.match(r"\w*", text)
    assert word is not None
    if word[0].upper() not in _TYPES:
        close = get_close_matches(word[0].upper(), _TYPES, 1, 0.6)
        hint = f"; did you mean {close[0]}?" if close else ", such as STRING, BIGINT, DOUBLE, TIMESTAMP, ARRAY<STRING>"
        raise ConfigError(f"payloadSchema: the field {name!r} has the type {text!r}, which Spark does not know{hint}")
    nested = _NESTED.match(text)
    if nested is None:
        return
    for part in _parts(nested[2], schema):
        if nested[1].upper() == "STRUCT":
            _field(part, schema)
        else:
            _check_type(part.strip(), name, schema)


def _parts(text: str, schema: str) -> list[str]:
    """What stands between commas, but not within brackets or quotes."""
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
        raise ConfigError(f"payloadSchema {schema!r} has a bracket or a quote that is not closed")
    return [*parts, text[start:]]

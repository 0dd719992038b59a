"""The JSON form of every Spark type that has one; the sink writes it and `payloadSchema` reads it back.

BOOLEAN, numbers, STRING     as in JSON; a DECIMAL is a number with all its digits
BINARY                       text: base64
DATE, TIME                   text: 2026-01-31, 08:00:00.000000
TIMESTAMP                    text: 2026-01-31T08:00:00.000000Z, always UTC; read with any offset, without one as UTC
TIMESTAMP_NTZ                text: 2026-01-31T08:00:00.000000, never with an offset
STRUCT, ARRAY                object, array
MAP                          object; keys that are no text are written as the text of their JSON form
VOID                         null
"""

from __future__ import annotations

from pyspark.sql import types as T

from penstock.errors import ConfigError

_PLAIN = (
    T.NullType,
    T.BooleanType,
    T.IntegralType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.TimeType,
)
_ADVICE: tuple[tuple[type[T.DataType], str], ...] = (
    (T.VariantType, "write it as text with to_json, or read the payload as text and use parse_json"),
    (T.CharType, "use STRING"),
    (T.VarcharType, "use STRING"),
)


def check_form(path: str, kind: T.DataType) -> None:
    """ConfigError, naming the column, when a type has no JSON form that gives equal values back."""
    if isinstance(kind, T.StructType):
        names = [field.name for field in kind.fields]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(f"the column {path!r} has the field {twice!r} twice")
        for field in kind.fields:
            check_form(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        check_form(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _PLAIN) or isinstance(kind.keyType, T.NullType | T.CharType | T.VarcharType):
            raise ConfigError(
                f"the column {path!r} is a map with keys of the type {kind.keyType.simpleString()}; JSON has text there"
            )
        check_form(f"{path}[]", kind.valueType)
    elif not isinstance(kind, _PLAIN) or isinstance(kind, T.CharType | T.VarcharType):
        advice = next((text for type_, text in _ADVICE if isinstance(kind, type_)), "cast it to text or a number")
        raise ConfigError(f"the column {path!r} has the type {kind.simpleString()}, which has no JSON form: {advice}")

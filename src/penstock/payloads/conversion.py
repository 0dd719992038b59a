"""Types and conversions for payloads that are read one at a time: msgspec decodes, these make Arrow's values of it."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, localcontext
from typing import Annotated, Any

import msgspec
import pyarrow as pa

_FLOAT_MAX = 3.4028235677973366e38
"""From here on a number is infinite as a FLOAT."""


class Unfit(ValueError):
    """A value that its field does not take."""


def struct_type(fields: list[pa.Field]) -> type[msgspec.Struct]:
    """A struct whose fields may be missing or null; their real names are its fields' names in JSON."""
    members = [(f"f{at}", _python_type(field.type) | None, None) for at, field in enumerate(fields)]
    return msgspec.defstruct("Fields", members, rename={f"f{at}": field.name for at, field in enumerate(fields)})


def _python_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return struct_type(list(kind))
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_null(kind):
        return type(None)
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return int if kind.bit_width == 64 else Annotated[int, msgspec.Meta(ge=-most, lt=most)]
    if pa.types.is_floating(kind):
        return float
    return Decimal if pa.types.is_decimal(kind) else str


Converter = Callable[[Any], object]


def converted(value: object, convert: Converter | None, name: str) -> object:
    if value is None or convert is None:
        return value
    try:
        return convert(value)
    except (ValueError, ArithmeticError) as error:
        raise Unfit(f"{error} - at `$.{name}`") from error


def converter(kind: pa.DataType) -> Converter | None:
    """What makes a decoded value one that Arrow takes for a type; None where it is one already."""
    if pa.types.is_struct(kind):
        return _struct_converter(kind)
    if pa.types.is_map(kind):
        return _map_converter(kind)
    if pa.types.is_list(kind):
        inner = converter(kind.value_type)
        return None if inner is None else lambda values: [None if one is None else inner(one) for one in values]
    if pa.types.is_integer(kind) and kind.bit_width == 64:
        return _long
    if pa.types.is_float32(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    return _TEXT_CONVERTERS.get(_text_kind(kind))


def _struct_converter(kind: pa.DataType) -> Converter:
    members = [(f"f{at}", field.name, converter(field.type)) for at, field in enumerate(kind)]

    def convert(value: object) -> dict[str, object]:
        found = ((name, getattr(value, slot), inner) for slot, name, inner in members)
        return {name: one if one is None or inner is None else inner(one) for name, one, inner in found}

    return convert


def _map_converter(kind: pa.DataType) -> Converter:
    from_key, from_value = _key_converter(kind.key_type), converter(kind.item_type)

    def convert(values: dict[str, object]) -> list[tuple[object, object]]:
        return [
            (from_key(key), value if value is None or from_value is None else from_value(value))
            for key, value in values.items()
        ]

    return convert


def _key_converter(kind: pa.DataType) -> Converter:
    """A map's key from its text in JSON."""
    if pa.types.is_boolean(kind):
        return _switch
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return lambda text: _whole(int(text), most)
    if pa.types.is_floating(kind):
        return (lambda text: _float(float(text))) if pa.types.is_float32(kind) else float
    if pa.types.is_decimal(kind):
        return lambda text: _decimal(Decimal(text), kind)
    return _TEXT_CONVERTERS.get(_text_kind(kind)) or str


def _text_kind(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    for name, check in (("date", pa.types.is_date), ("time", pa.types.is_time), ("binary", pa.types.is_binary)):
        if check(kind):
            return name
    return "text"


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise Unfit(f"{text!r} is not true or false")
    return text == "true"


def _whole(value: int, most: int) -> int:
    if not -most <= value < most:
        raise Unfit(f"{value} is out of range")
    return value


def _long(value: int) -> int:
    return _whole(value, 1 << 63)


def _float(value: float) -> float:
    if not math.isfinite(value) or abs(value) >= _FLOAT_MAX:
        raise Unfit(f"{value} is out of the range of a FLOAT")
    return value


def _decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    with localcontext(prec=100):
        scaled = value.scaleb(kind.scale) if value.is_finite() else Decimal("0.5")
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**kind.precision:
            raise Unfit(f"{value} does not fit DECIMAL({kind.precision},{kind.scale})")
    return value


def _timestamp(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _timestamp_ntz(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo:
        raise Unfit(f"{text!r} has an offset, and the field is a timestamp without one")
    return found


def _time(text: str) -> time:
    found = time.fromisoformat(text)
    if found.tzinfo:
        raise Unfit(f"{text!r} has an offset, and the field is a time without one")
    return found


def from_base64(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Unfit(f"it is not base64: {error}") from error


_TEXT_CONVERTERS: dict[str, Converter] = {
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "date": date.fromisoformat,
    "time": _time,
    "binary": from_base64,
}


def reason_of(error: Exception) -> str:
    """What is wrong, with the field's name before it."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    return f"field {path!r}: {text}" if path else text

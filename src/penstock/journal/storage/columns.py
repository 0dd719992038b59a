"""Columns inside a block: integers in the narrowest width, text as lengths and bytes, or as a dictionary with codes.

Every column can be a constant. Lengths rather than offsets are stored, because neighbouring blocks then merge by
joining bytes; the offsets that Arrow and readers want are one running sum away.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, TypeVar

import msgspec

from penstock.errors import Corrupt

V = TypeVar("V")

Count = Annotated[int, msgspec.Meta(ge=0)]
Ints = Count | bytes
"""A column of non-negative integers: one number for a constant, else packed little-endian, 1, 2, 4 or 8 bytes each."""

SignedInts = int | bytes
"""The same of signed integers: one number for a constant, else 8 bytes each."""


class PlainText(msgspec.Struct, array_like=True, tag=0, gc=False):
    """A column of optional strings, end to end."""

    lengths: Ints
    data: bytes
    nulls: bytes | None = None
    """A byte for each row, 1 where it has no string; None when all have one."""


class CodedText(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A column of optional strings of which few are different."""

    values: list[str | None]
    codes: Ints


Text = PlainText | CodedText


class Headers(msgspec.Struct, array_like=True, gc=False):
    """A column of headers."""

    counts: Ints
    """How many each row has."""
    total: Count
    names: Text | None
    values: Text | None


_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_BIG_ENDIAN = sys.byteorder == "big"


def pack_ints(values: Sequence[int]) -> Ints:
    """Packs at least one integer."""
    high = max(values)
    if min(values) == high:
        return high
    return _pack(values, "B" if high < 1 << 8 else "H" if high < 1 << 16 else "I" if high < 1 << 32 else "Q")


def pack_signed(values: Sequence[int]) -> SignedInts:
    """Packs signed 64-bit integers (times may lie before 1970); `unpack_signed` reads them."""
    first = values[0]
    return first if values.count(first) == len(values) else _pack(values, "q")


def _pack(values: Sequence[int], code: str) -> bytes:
    packed = array(code, values)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack_ints(column: Ints, count: int) -> Sequence[int]:
    """The integers of a column, indexable."""
    if isinstance(column, int):
        return [column] * count
    width, rest = divmod(len(column), count) if count else (0, 1)
    code = _WIDTHS.get(width)
    if rest or code is None:
        raise Corrupt(f"an integer column of {len(column)} bytes cannot hold {count} values")
    return _view(column, code)


def unpack_signed(column: SignedInts, count: int) -> Sequence[int]:
    if isinstance(column, int):
        return [column] * count
    if len(column) != 8 * count:
        raise Corrupt(f"a time column of {len(column)} bytes cannot hold {count} values")
    return _view(column, "q")


def _view(column: bytes, code: str) -> Sequence[int]:
    if _BIG_ENDIAN:
        values = array(code, column)
        values.byteswap()
        return values
    return memoryview(column).cast(code)  # type: ignore[call-overload, no-any-return]


def offsets(lengths: Ints, count: int) -> Sequence[int]:
    """Where each of `count` values begins, and, last, where they end."""
    if isinstance(lengths, int):
        return range(0, lengths * count + 1, lengths) if lengths else [0] * (count + 1)
    return list(accumulate(unpack_ints(lengths, count), initial=0))


def join_ints(parts: Iterable[tuple[Ints, int]]) -> Ints:
    """The column of several columns end to end."""
    whole = list(parts)
    first = whole[0][0]
    if isinstance(first, int) and all(part == first for part, _ in whole):
        return first
    values: list[int] = []
    for part, count in whole:
        values.extend(unpack_ints(part, count))
    return pack_ints(values)


def pack_text(values: Sequence[str | None]) -> Text:
    """Packs optional strings; the dictionary form where each value stands four times or more on average."""
    distinct = set(values)
    if len(distinct) * 4 <= len(values) or len(distinct) == 1:
        ordered = list(dict.fromkeys(values))
        code_of = {value: code for code, value in enumerate(ordered)}
        return CodedText(ordered, pack_ints(list(map(code_of.__getitem__, values))))
    nulls = bytes(value is None for value in values) if None in distinct else None
    encoded = [value.encode() if value is not None else b"" for value in values]
    return PlainText(pack_ints(list(map(len, encoded))), b"".join(encoded), nulls)


def text_reader(column: Text | None, count: int) -> Callable[[int], str | None]:
    """A function from row to string."""
    if column is None:
        return _nothing
    if isinstance(column, CodedText):
        values, codes = column.values, column.codes
        if isinstance(codes, int):
            only = values[codes]
            return lambda row: only
        indexes = unpack_ints(codes, count)
        return lambda row: values[indexes[row]]
    data, nulls = column.data, column.nulls
    starts = offsets(column.lengths, count)
    if starts[-1] != len(data):
        raise Corrupt(f"a text column of {len(data)} bytes should have {starts[-1]}")

    def read(row: int) -> str | None:
        if nulls is not None and nulls[row]:
            return None
        return data[starts[row] : starts[row + 1]].decode()

    return read


def text_values(column: Text | None, count: int) -> list[str | None]:
    """All strings of a column."""
    if column is None:
        return [None] * count
    if isinstance(column, CodedText):
        values = column.values
        return [values[code] for code in unpack_ints(column.codes, count)]
    text = column.data.decode()
    if column.nulls is not None or len(text) != len(
        column.data
    ):  # else a character is a byte, and the lengths are the text's own
        return list(map(text_reader(column, count), range(count)))
    starts = offsets(column.lengths, count)
    if starts[-1] != len(text):
        raise Corrupt(f"a text column of {len(text)} bytes should have {starts[-1]}")
    return [text[start:stop] for start, stop in pairwise(starts)]


def join_codes(parts: Sequence[tuple[Sequence[V], Ints, int]]) -> tuple[list[V], Ints]:
    """One dictionary and its codes for several columns of (values, codes, count) end to end."""
    code_of: dict[V, int] = {}
    for values, _, _ in parts:
        for value in values:
            code_of.setdefault(value, len(code_of))
    merged = list(code_of)
    if len(merged) == 1:
        return merged, 0
    if len(merged) <= 256:  # one byte a code: the remapping is a translation of bytes
        pieces = []
        for values, codes, count in parts:
            mapped = [code_of[value] for value in values]
            if isinstance(codes, int):
                pieces.append(bytes((mapped[codes],)) * count)
            else:
                pieces.append(codes.translate(bytes(mapped).ljust(256, b"\0")))
        return merged, b"".join(pieces)
    numbers: list[int] = []
    for values, codes, count in parts:
        mapped = [code_of[value] for value in values]
        numbers.extend([mapped[code] for code in unpack_ints(codes, count)])
    return merged, pack_ints(numbers)


def join_text(parts: Sequence[tuple[Text | None, int]]) -> Text:
    """The column of several columns end to end; without decoding a value where the forms allow it."""
    plain = [(column, count) for column, count in parts if isinstance(column, PlainText)]
    if not plain:
        coded = [(column, count) for column, count in parts if not isinstance(column, PlainText)]
        return CodedText(*join_codes([(*_codes_of(column), count) for column, count in coded]))
    if len(plain) < len(parts):
        return pack_text([value for column, count in parts for value in text_values(column, count)])
    nulls = None
    if any(column.nulls is not None for column, _ in plain):
        nulls = b"".join([bytes(count) if column.nulls is None else column.nulls for column, count in plain])
    lengths = join_ints([(column.lengths, count) for column, count in plain])
    return PlainText(lengths, b"".join([column.data for column, _ in plain]), nulls)


def _codes_of(column: CodedText | None) -> tuple[list[str | None], Ints]:
    return ([None], 0) if column is None else (column.values, column.codes)


def _nothing(row: int) -> None:
    return None

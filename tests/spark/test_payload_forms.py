"""JSON forms of Spark's types: what is written is read back equal, by Arrow's reader and row by row alike."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from since import HAS_LIMITS, HAS_TIME

from penstock.core.documents.payloads import PayloadParser
from penstock.errors import ConfigError
from penstock.spark.payload import check_form, json_text
from penstock.spark.versions import arrow_schema_of

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES: list[tuple[T.DataType, st.SearchStrategy[Any]]] = [
    (T.NullType(), st.none()),
    (T.BooleanType(), st.booleans()),
    (T.ByteType(), st.integers(-128, 127)),
    (T.ShortType(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (T.IntegerType(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (T.LongType(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (T.FloatType(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (T.DoubleType(), FLOATS),
    (T.DecimalType(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    (T.DecimalType(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (T.StringType(), st.text(st.characters(codec="utf-8"))),
    (T.BinaryType(), st.binary()),
    (T.DateType(), st.dates()),
    (T.TimestampType(), st.datetimes()),
    (T.TimestampNTZType(), st.datetimes()),
    (T.DayTimeIntervalType(), st.timedeltas(timedelta(-100_000), timedelta(100_000))),
    *([(T.TimeType(6), st.times())] if HAS_TIME else []),
]
KEYS = [(kind, values) for kind, values in VALUES if not isinstance(kind, T.NullType | T.FloatType | T.DoubleType)]
"""Types of a map's keys; floats too have a form, but -0.0 equals 0.0."""
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='`"\\'), min_size=1, max_size=6
)


def typed(deep: int = 2) -> st.SearchStrategy[tuple[T.DataType, Any]]:
    """A type, and the strategy of its values, nulls among them."""
    plain = st.sampled_from(VALUES)
    if not deep:
        return plain.map(lambda pair: (pair[0], st.none() | pair[1]))
    inner = typed(deep - 1)
    arrays = inner.map(lambda pair: (T.ArrayType(pair[0]), st.none() | st.lists(pair[1], max_size=4)))
    maps = st.tuples(st.sampled_from(KEYS), inner).map(
        lambda pairs: (
            T.MapType(pairs[0][0], pairs[1][0]),
            st.none() | st.dictionaries(pairs[0][1], pairs[1][1], max_size=3).map(lambda made: list(made.items())),
        )
    )
    return st.one_of(
        plain.map(lambda pair: (pair[0], st.none() | pair[1])), arrays, maps, structs(deep - 1, nullable=True)
    )


def structs(deep: int, *, nullable: bool = False) -> st.SearchStrategy[tuple[T.DataType, Any]]:
    fields = st.dictionaries(NAMES, typed(deep), min_size=1, max_size=4)

    def made(members: dict[str, tuple[T.DataType, Any]]) -> tuple[T.DataType, Any]:
        kind = T.StructType([T.StructField(name, type_) for name, (type_, _) in members.items()])
        values = st.fixed_dictionaries({name: strategy for name, (_, strategy) in members.items()})
        return kind, (st.none() | values) if nullable else values

    return fields.map(made)


def _zoned(kind: T.StructType, zone: str) -> pa.Schema:
    """As a session in that zone hands rows over; older ones always do so in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(kind, timezone=zone) if HAS_LIMITS else to_arrow_schema(kind)


@given(st.data())
@settings(max_examples=150)
def test_what_is_written_is_read_back_by_both_readers(data: st.DataObject) -> None:
    kind, values = data.draw(structs(2))
    assert isinstance(kind, T.StructType)
    check_form("payload", kind)
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    zone = data.draw(st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]))
    schema = arrow_schema_of(kind)
    written = json_text(pa.array(rows, pa.struct(list(_zoned(kind, zone)))))
    for text in written.to_pylist():
        msgspec.json.decode(text)
    parser = PayloadParser(schema)
    payloads = written.cast(pa.binary())
    together = parser.parse(payloads)
    alone = parser._one_by_one(payloads, np.arange(len(rows)))
    for at, field in enumerate(schema):
        expected = pa.array([None if row is None else row[field.name] for row in rows], field.type)
        assert not together.misfits and not alone.misfits
        assert alone.columns[at].equals(expected), field
        assert together.columns[at].equals(expected), field


SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.decimal128(6, 2)),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("day", pa.date32()),
        ("hour", pa.time64("ns")),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("list", pa.list_(pa.struct([("x", pa.int8())]))),
    ]
)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ('{"n": "1"}', "n"),
        ('{"n": 1.5}', "n"),
        ('{"n": 2147483648}', "n"),
        ('{"f": 1e39}', "f"),
        ('{"d": 12345.67}', "d"),
        ('{"d": 12345}', "d"),
        ('{"d": 1.234}', "d"),
        ('{"s": 1}', "s"),
        ('{"b": "no base64!"}', "b"),
        ('{"day": "tomorrow"}', "day"),
        ('{"hour": "25:00:00"}', "hour"),
        ('{"hour": "08:00:00+02:00"}', "hour"),
        ('{"at": 5}', "at"),
        ('{"wall": "2026-01-02T03:04:05Z"}', "wall"),
        ('{"list": [{"x": 1}, {"x": 300}]}', "list"),
        ("7", ""),
        ("[]", ""),
        ('"text"', ""),
        ('{"n": 1', ""),
        ("", ""),
    ],
)
def test_one_payload_that_does_not_fit_is_one_misfit_with_its_field(payload: str, field: str) -> None:
    good = [f'{{"n": {n}, "s": "x"}}' for n in range(200)]
    texts = ["null", *good[:77], payload, *good[77:]]
    parsed = PayloadParser(SCHEMA).parse(pa.array([text.encode() for text in texts], pa.binary()))
    assert [misfit.row for misfit in parsed.misfits] == [78]
    reason = parsed.misfits[0].reason
    assert reason.startswith(f"field '{field}") if field else not reason.startswith("field"), reason
    assert parsed.columns[0].to_pylist() == [None, *range(77), None, *range(77, 200)]
    assert parsed.columns[3].to_pylist() == [None, *["x"] * 77, None, *["x"] * 123]
    assert np.flatnonzero(parsed.absent).tolist() == [0, 78]


def test_times_are_read_with_any_offset_and_without_one_as_utc() -> None:
    texts = [
        '{"at": "2026-01-02T03:04:05Z"}',
        '{"at": "2026-01-02T05:04:05+02:00"}',
        '{"at": "2026-01-02 03:04:05"}',
        '{"at": "2026-01-01T22:04:05.000000-05:00"}',
        '{"at": "2026-01-02T03:04:05.000000999Z"}',
    ]
    parsed = PayloadParser(SCHEMA).parse(pa.array([text.encode() for text in texts], pa.binary()))
    assert {value.isoformat() for value in parsed.columns[7].to_pylist()} == {"2026-01-02T03:04:05+00:00"}


def test_bytes_that_are_json_are_parsed_and_others_are_misfits() -> None:
    payloads = pa.array([b'{"n": 1}', b"\xff\x00", b'{"n": 3}', b"null"], pa.binary())
    parsed = PayloadParser(SCHEMA).parse(payloads, np.array([True, True, False, True]))
    assert parsed.columns[0].to_pylist() == [1, None, 3, None]
    assert [misfit.row for misfit in parsed.misfits] == [1]


def test_a_field_with_any_name_and_a_name_that_is_there_twice() -> None:
    schema = pa.schema([("a b", pa.int64()), ("ü-1", pa.int64())])
    parsed = PayloadParser(schema).parse(
        pa.array([b'{"a b": 1, "\\u00fc-1": 2}', b'{"a b": 1, "a b": 5}'], pa.binary())
    )
    assert [column.to_pylist() for column in parsed.columns] == [[1, 5], [2, None]]


@pytest.mark.parametrize(
    ("ddl", "name"),
    [
        (T.YearMonthIntervalType(), "payload.list[].v"),
        (T.CalendarIntervalType(), "payload.list[].v"),
        (T.CharType(3), "payload.list[].v"),
        (T.MapType(T.ArrayType(T.LongType()), T.LongType()), "payload.list[].v"),
    ],
)
def test_a_type_without_a_json_form_is_refused_by_name(ddl: T.DataType, name: str) -> None:
    kind = T.StructType([T.StructField("list", T.ArrayType(T.StructType([T.StructField("v", ddl)])))])
    with pytest.raises(ConfigError, match=r"payload\.list\[\]\.v") as refused:
        check_form("payload", kind)
    assert name in str(refused.value)


@pytest.mark.parametrize("name", ['say "x"', "back\\slash", "line\nend"])
def test_a_field_that_cannot_be_asked_for_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be asked for"):
        PayloadParser(pa.schema([("list", pa.list_(pa.struct([(name, pa.int64())])))]))


def test_numbers_and_times_that_json_cannot_say_are_refused_by_name() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"payload\.x"):
            json_text(pa.array([{"x": value}], pa.struct([("x", pa.float64())])))
    far = pa.array([300_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(ConfigError, match=r"'at' holds a time outside of the years 1 to 9999"):
        json_text(far, "at")
    assert json_text(pa.array([date(1, 1, 1)])).to_pylist() == ['"0001-01-01"']
    assert json_text(pa.array([datetime(1, 1, 1)])).to_pylist() == ['"0001-01-01T00:00:00.000000"']
    assert json_text(pa.array([time(1, 2, 3, 4)])).to_pylist() == ['"01:02:03.000004"']
    assert json_text(pa.array([Decimal("1.50")])).to_pylist() == ["1.50"]

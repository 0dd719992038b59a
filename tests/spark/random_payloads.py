"""Payload schemas and rows at random, from a seed: every plain type once, then arrays, maps and structs of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T
from since import HAS_TIME

Make = Callable[[], Any]
"""A value of a type, or None now and then."""
_TEXTS = ("", "ü\n\t\\", 'say "x"', "\x01\u2028", "null", "2026-01-01")
_NAMES = ("a", "b c", "ü-1", "select", "x.y", "Ω", "0")


class RandomPayloads:
    """The schema of a seed, and rows that fit it; nulls are at every level."""

    def __init__(self, seed: int, nested: int = 12) -> None:
        self._dice = random.Random(seed)
        plain = {"at": self._instants(), **{f"p{n}": pair for n, pair in enumerate(self._plain())}}
        self._fields = {**plain, **{f"{self._name()} {n}": self._nested(2) for n in range(nested)}}
        self.schema = T.StructType([T.StructField(name, kind) for name, (kind, _) in self._fields.items()])

    def rows(self, count: int) -> list[dict[str, Any] | None]:
        return [self._maybe(lambda: {name: make() for name, (_, make) in self._fields.items()}) for _ in range(count)]

    def _maybe(self, make: Make) -> Any:
        return None if self._dice.random() < 0.2 else make()

    def _nullable(self, kind: T.DataType, make: Make) -> tuple[T.DataType, Make]:
        return kind, lambda: self._maybe(make)

    def _moment(self) -> datetime:
        """Far from changes of the clocks, for Python's sake."""
        dice = self._dice
        month, day, hour = dice.choice((1, 7)), dice.randint(2, 27), dice.randint(0, 23)
        return datetime(dice.randint(1971, 2036), month, day, hour, 5, 6, dice.randint(0, 999_999))

    def _instants(self) -> tuple[T.DataType, Make]:
        return self._nullable(T.TimestampType(), lambda: self._moment().replace(tzinfo=UTC))

    def _keys(self) -> list[tuple[T.DataType, Make]]:
        """What may be a map's key: floats have -0.0, and Python's bytes from Spark are no keys."""
        dice = self._dice
        return [
            (T.BooleanType(), lambda: dice.random() < 0.5),
            (T.ByteType(), lambda: dice.randint(-128, 127)),
            (T.ShortType(), lambda: dice.randint(-(1 << 15), (1 << 15) - 1)),
            (T.IntegerType(), lambda: dice.randint(-(1 << 31), (1 << 31) - 1)),
            (T.LongType(), lambda: dice.randint(-(1 << 63), (1 << 63) - 1)),
            (T.DecimalType(12, 2), lambda: Decimal(dice.randint(-(10**11), 10**11)) / 100),
            (T.StringType(), lambda: dice.choice(_TEXTS)),
            (T.DateType(), lambda: date(1969, 12, 31) + timedelta(dice.randint(-9999, 9999))),
            (T.TimestampNTZType(), self._moment),
        ] + ([(T.TimeType(6), lambda: time(dice.randint(0, 23), 59, 1, dice.randint(0, 999_999)))] if HAS_TIME else [])

    def _plain(self) -> list[tuple[T.DataType, Make]]:
        dice = self._dice
        others: list[tuple[T.DataType, Make]] = [
            (T.NullType(), lambda: None),
            (T.FloatType(), lambda: dice.randint(-999, 999) / 8),
            (T.DoubleType(), lambda: dice.uniform(-1e9, 1e9)),
            (T.BinaryType(), lambda: dice.randbytes(dice.randint(0, 9))),
        ]
        return [*(self._nullable(*pair) for pair in [*self._keys(), *others]), self._instants()]

    def _nested(self, deep: int) -> tuple[T.DataType, Make]:
        dice, shape = self._dice, self._dice.choice(("array", "map", "struct", "plain"))
        if not deep or (shape == "plain" and deep < 2):
            return dice.choice(self._plain())
        kind, make = self._nested(deep - 1)
        if shape == "array":
            return self._nullable(T.ArrayType(kind), lambda: [make() for _ in range(dice.randint(0, 3))])
        if shape == "map":
            of, key = dice.choice(self._keys())
            return self._nullable(T.MapType(of, kind), lambda: {key(): make() for _ in range(dice.randint(0, 3))})
        fields = {name: self._nested(deep - 1) for name in dice.sample(_NAMES, dice.randint(1, 3))}
        struct = T.StructType([T.StructField(name, one) for name, (one, _) in fields.items()])
        return self._nullable(struct, lambda: {name: own() for name, (_, own) in fields.items()})

    def _name(self) -> str:
        return self._dice.choice(_NAMES)

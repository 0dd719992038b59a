"""Filters that Spark hands over: positions and recording times narrow what is read, kinds and keys skip blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.journal.storage.block import Block
from penstock.journal.storage.keys import MAX_SEQ
from penstock.names import is_whole
from penstock.spark.source.options import ReadOptions

_COLUMNS = ("seq", "kind", "key", "occurred_at", "recorded_at")
_COMPARE = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


class Condition(msgspec.Struct, frozen=True):
    """One comparison of a column: the name of an Arrow function, and what to compare with."""

    column: str
    compare: str
    value: Any  # a scalar of the column's type, or a list of them

    def mask(self, column: pa.Array) -> pa.BooleanArray:
        if self.compare == "is_in":
            return pc.is_in(column, value_set=pa.array(self.value, column.type))
        if self.compare == "is_valid":
            return pc.is_valid(column)
        return pc.call_function(self.compare, [column, pa.scalar(self.value, column.type)])


class RowFilter(msgspec.Struct, frozen=True):
    """Which rows of a topic are wanted: all conditions together."""

    conditions: tuple[Condition, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it looks at."""
        return tuple(dict.fromkeys(condition.column for condition in self.conditions))

    def seq_bounds(self) -> tuple[int, int]:
        """Positions (after, through) outside of which nothing can pass."""
        after, through = 0, MAX_SEQ
        for condition in self.conditions:
            if condition.column != "seq" or condition.compare == "is_valid":
                continue
            value = condition.value
            low, high = (min(value), max(value)) if condition.compare == "is_in" else (value, value)
            match condition.compare:
                case "equal" | "is_in":
                    after, through = max(after, low - 1), min(through, high)
                case "greater":
                    after = max(after, low)
                case "greater_equal":
                    after = max(after, low - 1)
                case "less":
                    through = min(through, high - 1)
                case "less_equal":
                    through = min(through, high)
        return max(0, after), max(0, through)

    def time_bounds(self) -> tuple[datetime | None, datetime | None]:
        """Recording times (from, until), both inclusive, outside of which nothing can pass."""
        low: datetime | None = None
        high: datetime | None = None
        for condition in self.conditions:
            if condition.column != "recorded_at" or condition.compare not in _COMPARE.values():
                continue
            value: datetime = condition.value
            if condition.compare in ("equal", "greater", "greater_equal"):
                low = value if low is None else max(low, value)
            if condition.compare in ("equal", "less", "less_equal"):
                high = value if high is None else min(high, value)
        return low, high

    def may_hold(self, block: Block) -> bool:
        """False when no row of a block can pass, by its list of kinds alone."""
        kinds = block.wire.kinds
        for condition in self.conditions:
            if condition.column == "kind" and condition.compare == "equal" and condition.value not in kinds:
                return False
            if condition.column == "kind" and condition.compare == "is_in" and not set(kinds) & set(condition.value):
                return False
            if condition.column == "key" and block.wire.key is None:
                return False
        return True

    def mask(self, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
        """Which rows pass."""
        passing = np.ones(len(next(iter(columns.values()))), dtype=np.bool_)
        for condition in self.conditions:
            passing &= np.asarray(condition.mask(columns[condition.column]).fill_null(False))
        return passing

    def and_(self, other: RowFilter) -> RowFilter:
        """What passes both."""
        return RowFilter((*self.conditions, *other.conditions))


NO_FILTER = RowFilter()


def option_filter(options: ReadOptions) -> RowFilter:
    """The filter of the options `kinds` and `keys`, which reach streams as well: Spark hands those no filters."""
    named = (("kind", options.kinds), ("key", options.keys))
    return RowFilter(tuple(Condition(column, "is_in", list(values)) for column, values in named if values))


def take_filters(filters: Iterable[Filter]) -> tuple[RowFilter, list[Filter]]:
    """What of Spark's filters is done here, and the rest, which Spark does."""
    done: list[Condition] = []
    rest: list[Filter] = []
    for one in filters:
        condition = _condition(one)
        if condition is None:
            rest.append(one)
        else:
            done.append(condition)
    return RowFilter(tuple(done)), rest


def _condition(one: Filter) -> Condition | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _COLUMNS:
        return None
    column = attribute[0]
    if isinstance(one, IsNotNull):
        return Condition(column, "is_valid", None)
    if isinstance(one, In):
        values = [_value(column, value) for value in one.value]
        if not values or any(value is None for value in values):
            return None
        return Condition(column, "is_in", values)
    compare = _COMPARE.get(type(one))
    value = _value(column, getattr(one, "value", None))
    if compare is None or value is None:
        return None
    return Condition(column, compare, value)


def _value(column: str, value: object) -> int | str | datetime | None:
    """The value as the column's type, or None when it is of another one."""
    if column == "seq":
        return value if is_whole(value) else None
    if column in ("kind", "key"):
        return value if isinstance(value, str) else None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None

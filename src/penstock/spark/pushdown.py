"""The filters of a query, as far as the source does them itself; imported only by a Spark that has them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.names import is_whole
from penstock.spark.rows import COMPARISONS, Condition, RowFilter
from penstock.spark.sentences import in_sentences
from penstock.spark.source import BatchReader

_TEXT = ("kind", "key", "scope", "id", "correlation_id")
_COLUMNS = ("seq", *_TEXT, "occurred_at", "recorded_at")
_COMPARE: dict[type[Filter], str] = dict(
    zip((EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual), COMPARISONS, strict=True)
)
_COMPARE[EqualNullSafe] = "equal"  # with a value that is none of null


@in_sentences
class PushdownReader(BatchReader):
    """Reads what is there, and passes a filter; Spark refuses a reader that has `pushFilters` unless it is set to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        done, rest = take_filters(filters)
        self.filter = self.filter.and_(done)
        return rest


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
    if isinstance(one, StringStartsWith):
        return Condition(column, "starts_with", one.value) if column in _TEXT else None
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
    if column in _TEXT:
        return value if isinstance(value, str) else None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return None

"""The columns of a frame that is written, and the events that its rows become.

kind          text; or option("kind", …) for all rows; a queue's default is "message"
payload       JSON text, bytes (kept as bytes), or any other type, which is written as JSON
topic         text, where the option does not name one topic
key, scope    text
headers       map of text to text
tags          array of text
occurred_at   a time; the time of writing where it is null
cause         the id of the event this one follows from, or a struct of its id and correlation_id
correlation_id, causation_id   text, as read from a topic; with a cause, causation_id is the cause's own and not used
correlation                    the same as correlation_id, by the name that `append` gives it
seq, id, recorded_at           not used: the journal gives new ones
dedup, expect, priority, delay, not_before, max_attempts   as `append` and `push` take them
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructType

from penstock.core.clock import to_ms
from penstock.core.journal.sealed.bulk import TYPED
from penstock.core.journal.sealed.columns import columns_schema
from penstock.core.names import stored_tags
from penstock.core.queue.policy import duration_ms
from penstock.core.queue.state.keys import FRONT
from penstock.errors import ConfigError
from penstock.spark.journals import correlations
from penstock.spark.options import JournalLocation, WriteOptions
from penstock.spark.payload import check_form, json_text
from penstock.spark.versions import arrow_schema_of

DELIVERY = ("priority", "delay", "not_before", "max_attempts")
"""The options that only a queue understands."""
OPTIONS = ("dedup", "expect", *DELIVERY)

_WHOLE = "a whole number"
_KINDS = {
    "dedup": "text",
    "expect": _WHOLE,
    "priority": 'a whole number, or text: "front"',
    "delay": "seconds (a number) or an interval of days to seconds",
    "not_before": "a timestamp",
    "max_attempts": _WHOLE,
}


def option_words(name: str, kind: pa.DataType) -> str | None:
    """Returns the type that an option's column must have; None when the column has it."""
    is_number = pa.types.is_integer(kind)
    if name == "dedup":
        fits = kind == pa.string()
    elif name == "priority":
        fits = is_number or kind == pa.string()
    elif name == "delay":
        fits = is_number or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind)
    elif name == "not_before":
        fits = pa.types.is_timestamp(kind) and kind.tz is not None
    else:
        fits = is_number
    return None if fits or pa.types.is_null(kind) else _KINDS[name]


def _options(given: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Returns the options of rows in their form for the commit, which judges them: text, whole numbers,
    milliseconds.
    """
    made = {}
    for name in OPTIONS:
        if name in given:
            values = [None if value is None else _plain(name, value) for value in given[name].to_pylist()]
            made[name] = pa.array(values, pa.string() if name == "dedup" else pa.int64())
    return made


def _seconds(delay: Any) -> float | timedelta:
    return delay if isinstance(delay, timedelta | int | float) else float(delay)  # a Decimal is no number to a push


def _plain(name: str, value: Any) -> Any:
    match name:
        case "priority" if isinstance(value, str):
            if value != "front":
                raise ConfigError(f'priority must be a whole number or "front", not {value!r}')
            return FRONT
        case "delay":
            return duration_ms(_seconds(value), "delay")
        case "not_before":
            return to_ms(value, "not_before")
        case _:
            return value


_TEXT = ("topic", "kind", "key", "scope", "correlation_id", "causation_id", "correlation")
_IGNORED = ("seq", "id", "recorded_at")
_KNOWN = (
    *("kind", "payload", "topic", "key", "scope", "headers", "tags", "occurred_at", "cause"),
    *("correlation_id", "causation_id", "correlation", *OPTIONS),
)
_TIME = pa.timestamp("us", "UTC")
_EARLIEST = pa.scalar(datetime.min.replace(tzinfo=UTC), _TIME)
_LATEST = pa.scalar(datetime.max.replace(tzinfo=UTC), _TIME)
"""Between these a time can be read again: Spark knows later ones, as milliseconds taken for seconds are."""


class SinkLayout(msgspec.Struct, frozen=True):
    """The way in which the rows of a frame become events."""

    location: JournalLocation
    topic: str | None
    kind: str | None
    columns: frozenset[str]
    journal: str | None
    """The id of the journal of the plan; None when there was no journal yet."""
    typed: str = ""
    """The fields of the payload that are typed columns of files, when they come from the struct and not from its
    text.
    """

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions) -> SinkLayout:
        """Returns the layout of a frame's schema; raises ConfigError when its rows cannot be events."""
        kind = options.kind or ("message" if options.queue else None)
        names = schema.names
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(f"the frame has the column {twice!r} twice")
        unknown = [name for name in names if name not in _KNOWN and name not in _IGNORED]
        if unknown:
            raise ConfigError(
                f"an event has no column {unknown[0]!r}; there are {', '.join(_KNOWN)}. "
                'Put the rest into the payload: struct(…).alias("payload")'
            )
        for field in schema.fields:
            if field.name not in OPTIONS:
                check_form(field.name, field.dataType)
        found = arrow_schema_of(schema)
        for name in found.names:
            _check_type(name, found.field(name).type)
        if "payload" not in found.names:
            raise ConfigError('the frame has no column "payload": JSON text, a struct, or bytes')
        if "kind" not in found.names and kind is None:
            raise ConfigError('the frame has no column "kind"; add it, or set option("kind", …) for all rows')
        if "topic" not in found.names and options.topic is None:
            raise ConfigError('say where to write: option("topic", …), option("queue", …), or a column "topic"')
        _check_together(found.names, options)
        columns = frozenset(found.names) - set(_IGNORED)
        if options.topic is not None:
            columns -= {"topic"}
        return cls(options.location, options.topic, kind, columns, options.journal)

    def events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows as the columns of blocks: topic, kind, payload, binary, key, scope, headers, …"""
        count = batch.num_rows
        given = {name: plain(batch.column(name)) for name in batch.schema.names if name in self.columns}
        for name in ("occurred_at", "not_before"):
            if name in given:
                _check_times(name, given[name])
        made: dict[str, pa.Array] = {
            "topic": given["topic"] if self.topic is None else _repeated(self.topic, count),
            "kind": self._kinds(given, count),
        }
        payload = given["payload"]
        if pa.types.is_string(payload.type):
            made["payload"] = payload.fill_null("null") if payload.null_count else payload
        elif pa.types.is_binary(payload.type):
            made["payload"] = payload.fill_null(b"null") if payload.null_count else payload
            made["binary"] = pc.is_valid(payload)
        else:
            made["payload"] = json_text(payload)
        for field in columns_schema(self.typed):
            made[TYPED + field.name] = pc.struct_field(payload, field.name).cast(field.type)
        for name in ("key", "scope", "headers", "occurred_at"):
            if name in given:
                made[name] = given[name]
        if "tags" in given:
            packed = [None if tags is None else stored_tags(tags) for tags in given["tags"].to_pylist()]
            made["tags"] = pa.array(packed, pa.string())
        self._link(given, made)
        made.update(_options(given))
        return pa.RecordBatch.from_pydict(made)

    def _kinds(self, given: dict[str, pa.Array], count: int) -> pa.Array:
        if "kind" not in given:
            return _repeated(self.kind or "", count)
        column = given["kind"]
        return column.fill_null(self.kind) if column.null_count and self.kind else column

    def _link(self, given: dict[str, pa.Array], made: dict[str, pa.Array]) -> None:
        """Adds causes: an effect has its cause's correlation id, or the cause's own id if the cause has none."""
        correlation = given.get("correlation_id", given.get("correlation"))
        cause = given.get("cause")
        if cause is None:
            if "causation_id" in given:
                made["causation"] = given["causation_id"]
            if correlation is not None:
                made["correlation"] = correlation
            return
        if pa.types.is_struct(cause.type):
            ids, inherited = (pc.struct_field(cause, name) for name in ("id", "correlation_id"))
        else:
            ids = cause
            open_ = ids if correlation is None else pc.if_else(pc.is_null(correlation), ids, None)
            inherited = correlations(self.location, open_, self.journal)
        known = [column for column in (correlation, inherited, ids) if column is not None]
        made["causation"] = ids
        made["correlation"] = pc.coalesce(*known)


def typed_columns(schema: StructType) -> str:
    """Returns the fields of a frame's payload that can be typed columns of files, as text like `customer STRING`."""
    payload = next((field.dataType for field in schema.fields if field.name == "payload"), None)
    if not isinstance(payload, StructType):
        return ""
    found: list[str] = []
    for field in payload.fields:
        one = f"`{field.name}` {field.dataType.simpleString().upper()}"
        with suppress(ConfigError):  # a nested value, or a name that events have: it stays in the JSON text
            if not isinstance(field.dataType, BinaryType) and "`" not in field.name:
                columns_schema(", ".join([*found, one]))
                found.append(one)
    return ", ".join(found)


def _check_together(names: Sequence[str], options: WriteOptions) -> None:
    """Raises ConfigError for columns that contradict each other, or the target."""
    if "correlation" in names and "correlation_id" in names:
        raise ConfigError("the columns 'correlation' and 'correlation_id' say the same thing: keep one of them")
    wanted = next((name for name in DELIVERY if name in names), None)
    if wanted is not None and not options.queue:
        raise ConfigError(
            f"the column {wanted!r} says how a message is delivered, which only a queue understands: "
            'write with option("queue", …), or leave the column out'
        )


def _check_type(name: str, kind: pa.DataType) -> None:
    if name in OPTIONS:
        words = option_words(name, kind)
        if words is not None:
            raise ConfigError(f"the column {name!r} must be {words}, not {kind}")
        return
    fits = True
    wanted = "text"
    if name in _TEXT:
        fits = kind == pa.string()
    elif name == "headers":
        wanted = "a map of text to text"
        fits = pa.types.is_map(kind) and kind.key_type == pa.string() and kind.item_type == pa.string()
    elif name == "tags":
        fits, wanted = pa.types.is_list(kind) and kind.value_type == pa.string(), "an array of text"
    elif name == "occurred_at":
        fits, wanted = kind == _TIME, "a timestamp"
    elif name == "cause":
        wanted = "text, or a struct of id and correlation_id"
        fits = kind == pa.string() or (
            pa.types.is_struct(kind)
            and {field.name for field in kind} == {"id", "correlation_id"}
            and all(field.type == pa.string() for field in kind)
        )
    if not fits:
        raise ConfigError(f"the column {name!r} must be {wanted}, not {kind}")


def _repeated(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _check_times(name: str, column: pa.Array) -> None:
    bounds = pc.min_max(column)
    first, last = bounds["min"], bounds["max"]
    if first.is_valid and (pc.less(first, _EARLIEST).as_py() or pc.greater(last, _LATEST).as_py()):
        raise ConfigError(f"the column {name!r} has a time outside of the years 1 to 9999 of UTC")


def plain(column: pa.Array) -> pa.Array:
    """Returns the column with 32-bit offsets, also of texts in a map or in a cause, and with times in UTC.

    Spark may send text and bytes with 64-bit offsets, and sends times in the session's zone, whose name (`UTC+01:00`)
    only Java may know.
    """
    wanted = _plain_type(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind) and pa.types.is_large_string(kind.key_type) and pa.types.is_large_string(kind.item_type):
        return pa.map_(pa.string(), pa.string())
    if pa.types.is_list(kind) and pa.types.is_large_string(kind.value_type):
        return pa.list_(pa.string())
    if pa.types.is_struct(kind) and all(pa.types.is_large_string(field.type) for field in kind):
        return pa.struct([(field.name, pa.string()) for field in kind])
    return kind

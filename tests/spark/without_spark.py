"""Drives the data sources as Spark does, in this process: options in, rows out, without a session or a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.core.documents.ddl import SchemaText, _parts, fields
from penstock.spark.source import PenstockSource

Row = dict[str, Any]
Place = str | Path | Mapping[str, object]
"""A url, or options with one among them."""
_TYPES: dict[str, T.DataType] = {
    "BIGINT": T.LongType(),
    "BINARY": T.BinaryType(),
    "DOUBLE": T.DoubleType(),
    "INT": T.IntegerType(),
    "INTERVAL DAY TO SECOND": T.DayTimeIntervalType(),
    "STRING": T.StringType(),
    "TIMESTAMP": T.TimestampType(),
    "VARIANT": T.VariantType(),
}


def struct(ddl: str) -> T.StructType:
    """The schema that Spark would parse; only a session can ask Spark itself."""
    found = fields(SchemaText("schema", ddl))
    return T.StructType([T.StructField(name, _type(kind)) for name, kind in found.items()])


def _type(text: str) -> T.DataType:
    nested = re.fullmatch(r"(ARRAY|MAP|STRUCT)<(.*)>", text.strip())
    if nested is None:
        return _TYPES[text.strip()]
    if nested[1] == "STRUCT":
        return struct(nested[2])
    parts = [_type(part) for part in _parts(nested[2], SchemaText("schema", text))]
    return T.ArrayType(*parts) if nested[1] == "ARRAY" else T.MapType(*parts)


def source(place: Place, *, of: type[DataSource] = PenstockSource, **options: object) -> Any:
    """The data source `of` over a place, with these options."""
    named = place if isinstance(place, Mapping) else {"url": place}
    return of({name: str(value) for name, value in {**named, **options}.items()})


def schema_of(found: DataSource, ddl: str | None = None) -> T.StructType:
    given = found.schema() if ddl is None else ddl
    return struct(given) if isinstance(given, str) else given


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def rows_of(reader: Any, shares: Sequence[Any] | None = None) -> list[Row]:
    """The rows of all tasks; in the order of tasks, as rows have it."""
    shares = reader.partitions() if shares is None else shares
    return [row for share in shares for batch in reader.read(share) for row in _dictionaries(batch)]


def _dictionaries(batch: pa.RecordBatch) -> Iterator[Row]:
    for row in batch.to_pylist():
        yield {**row, "headers": dict(row["headers"])} if row.get("headers") is not None else row


def read(
    place: Place,
    schema: str | None = None,
    *,
    of: type[DataSource] = PenstockSource,
    **options: object,
) -> list[Row]:
    """A batch query: plans it and runs its tasks."""
    found = source(place, of=of, **options)
    return rows_of(found.reader(schema_of(found, schema)))


def seqs(rows: Sequence[Row]) -> list[int]:
    return [row["seq"] for row in rows]


class Stream:
    """A streaming query: plans batch after batch, notes each in its checkpoint, and gives their rows.

    A checkpoint is a list of offsets; a query that is made with one goes on where the one before it ended.
    """

    def __init__(
        self,
        place: Place,
        checkpoint: list[dict[str, int]] | None = None,
        *,
        schema: str | None = None,
        of: type[DataSource] = PenstockSource,
        available_now: bool = False,
        **options: object,
    ) -> None:
        found = source(place, of=of, **options)
        self.reader = found.streamReader(schema_of(found, schema))
        self.checkpoint = [] if checkpoint is None else checkpoint
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def batch(self) -> list[Row] | None:
        """The next batch; None when there is nothing to read."""
        reader, known = self.reader, self.checkpoint
        start = known[-1] if known else reader.initialOffset()
        reader.done(start)
        end = json.loads(json.dumps(reader.end_after(start, limited=reader.limited)))
        if known and end == start:
            return None
        known.append(end)
        if len(known) > 1:
            reader.commit(start)
        return rows_of(reader, reader.partitions(start, end))

    def batches(self) -> list[list[Row]]:
        """Everything there is to read now."""
        return list(iter(self.batch, None))

    def rows(self) -> list[Row]:
        return [row for batch in self.batches() for row in batch]

    def stop(self) -> None:
        self.reader.stop()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
Task = Sequence[Row] | pa.RecordBatch


def batch_of(rows: Task, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    names = {name: None for row in rows for name in row}
    columns = {name: pa.array([row.get(name) for row in rows], types.get(name)) for name in names}
    return pa.record_batch(columns)


def write(
    place: Place,
    *tasks: Task,
    types: Mapping[str, pa.DataType] = {},
    of: type[DataSource] = PenstockSource,
    **options: object,
) -> None:
    """A batch write: each list of rows is a task, then the driver commits."""
    batches = [batch_of(task, types) for task in tasks]
    writer = source(place, of=of, **options).writer(from_arrow_schema(batches[0].schema), False)
    writer.commit([writer.write(iter([batch])) for batch in batches])


@contextmanager
def task_of(query: str, batch: int) -> Iterator[None]:
    """Within, this process is a task of a query's batch."""
    context = TaskContext._getOrCreate()
    context._localProperties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)  # type: ignore[arg-type]


def write_batch(
    place: Place,
    batch: int,
    *tasks: Task,
    query: str = "query",
    of: type[DataSource] = PenstockSource,
    **options: object,
) -> None:
    """One batch of a streaming write, whose writer Spark makes anew every time."""
    batches = [batch_of(task, {}) for task in tasks]
    writer = source(place, of=of, **options).streamWriter(from_arrow_schema(batches[0].schema), False)
    with task_of(query, batch):
        shares = [writer.write(iter([rows])) for rows in batches]
    writer.commit(shares, batch)

"""From blocks to the record batches Spark asked for: the events' own columns, and columns parsed from payloads.

Spark does not tell a Python source which columns a query needs, so a schema given by the user decides: a column that
was left out is not built. Whatever is no column of an event is looked for in the payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.engine.contract import Engine
from penstock.errors import ConfigError, PositionTrimmed
from penstock.journal.commit.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.storage.block import Block
from penstock.journal.storage.to_arrow import PayloadType, arrow_schema, joined, record_batch
from penstock.spark.source.filters import NO_FILTER, RowFilter
from penstock.spark.source.options import ReadOptions

_BATCH_ROWS = 65_536
_CHUNK_BYTES = 8 << 20
"""How much a task reads from one snapshot: a slow query must not hold one, and with it the store's log, for long."""

_DDL = {
    "seq": "BIGINT",
    "topic": "STRING",
    "kind": "STRING",
    "key": "STRING",
    "scope": "STRING",
    "payload": "STRING",
    "headers": "MAP<STRING, STRING>",
    "occurred_at": "TIMESTAMP",
    "recorded_at": "TIMESTAMP",
    "id": "STRING",
    "correlation_id": "STRING",
    "causation_id": "STRING",
}


def source_schema(options: ReadOptions) -> str:
    """The columns of a read, as the DDL text that Spark parses."""
    columns = dict(_DDL)
    if options.payload == "binary":
        columns["payload"] = "BINARY"
    parts = [f"{name} {type_}" for name, type_ in columns.items()]
    if options.payload_schema is not None:
        at = list(columns).index("payload")
        parts[at] = f"payload STRUCT<{options.payload_schema}>" if options.payload_struct else options.payload_schema
    return ", ".join(parts)


class SourceLayout(msgspec.Struct, frozen=True):
    """Which columns a query gets, in order, and where each comes from."""

    schema: pa.Schema
    own: tuple[str, ...]
    """Columns of the event that must be built."""
    parsed: pa.Schema | None
    """Fields to be parsed from the payload."""
    struct: bool
    payload: PayloadType

    @classmethod
    def of(cls, wanted: StructType, options: ReadOptions) -> SourceLayout:
        """The layout of a schema; ConfigError when it asks for what there is not."""
        schema = to_arrow_schema(wanted, timezone="UTC")
        names = schema.names
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(
                f"column {twice!r} would be there twice: every event has one, and payloadSchema names one too; "
                'set option("payloadColumns", "struct") to get the parsed fields as payload.…'
            )
        base = arrow_schema(options.payload)
        own: list[str] = []
        parsed: list[Any] = []
        struct = options.payload_schema is not None and options.payload_struct
        for field in schema:
            if struct and field.name == "payload":
                if not pa.types.is_struct(field.type):
                    raise ConfigError('with payloadColumns=struct the column "payload" must be a struct')
                parsed.extend(field.type)
            elif field.name in base.names:
                if field.type != base.field(field.name).type:
                    raise ConfigError(
                        f"column {field.name!r} is {base.field(field.name).type} here; the schema asks for {field.type}"
                    )
                own.append(field.name)
            elif options.payload_schema is None or struct:
                raise ConfigError(
                    f"an event has no column {field.name!r}; there are {', '.join(base.names)}. "
                    "To get fields of the payload, set payloadSchema"
                )
            else:
                parsed.append(field)
        for field in parsed:
            _check_parsable(field)
        return cls(schema, tuple(own), pa.schema(parsed) if parsed else None, struct, options.payload)

    def batch(self, block: Block, start: int, stop: int, filter: RowFilter) -> pa.RecordBatch:
        """The events of rows start … stop-1 of a block that pass the filter, as Spark wants them."""
        needed = (*self.own, *(name for name in filter.columns if name not in self.own))
        own = record_batch(block, self.payload, needed, wanted=range(start, stop))
        columns = {name: own.column(name) for name in needed}
        if self.parsed is not None:
            fields = _parse(block, self.parsed)
            if self.struct:
                columns["payload"] = pa.StructArray.from_arrays(fields, fields=list(self.parsed))
            else:
                columns.update(zip(self.parsed.names, fields, strict=True))
        if stop - start < block.count:
            columns = {name: column.slice(start, stop - start) for name, column in columns.items()}
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        return filter.apply(batch, columns)


def read_range(
    engine: Engine,
    topic: str,
    after: int,
    through: int,
    layout: SourceLayout,
    filter: RowFilter = NO_FILTER,
    *,
    strict: bool,
) -> Iterator[pa.RecordBatch]:
    """The events after < position ≤ through, from snapshots held only while blocks are fetched.

    `strict`: history removed meanwhile raises PositionTrimmed; else what is left is read.
    """
    while after < through:
        blocks, reached = _fetch(engine, topic, after, through, filter, strict)
        for block in joined(iter(blocks), _BATCH_ROWS):
            start = block.row_after(after) if block.first <= after else 0
            stop = block.row_after(through) if block.last > through else block.count
            if stop > start:
                batch = layout.batch(block, start, stop, filter)
                if batch.num_rows:
                    yield batch
        after = reached


def _fetch(
    engine: Engine, topic: str, after: int, through: int, filter: RowFilter, strict: bool
) -> tuple[list[Block], int]:
    """Some blocks from a position on, and how far they reach."""
    blocks: list[Block] = []
    size = 0
    with engine.read() as snap:
        view = TopicView.open(snap, topic)
        if view is None:
            raise ConfigError(f"topic {topic!r} is not there any more: the journal was replaced while it was read")
        check_kept(view, after, through, strict)
        for block in view.blocks(after, through):
            if filter.may_hold(block):
                blocks.append(block)
                size += len(block.payload)
            after = block.last
            if size >= _CHUNK_BYTES:
                return blocks, after
    return blocks, through


def check_kept(view: TopicView, after: int, through: int, strict: bool) -> None:
    """PositionTrimmed when events of the range were removed, unless the query said it can do without."""
    trimmed = load_state(view.snap, view.number, view.name).trimmed
    if strict and after < trimmed and after < through:
        raise PositionTrimmed(
            f"events {after + 1} to {min(trimmed, through)} of topic {view.name!r} were removed before this query read "
            f"them; the oldest stored is {trimmed + 1}. Set failOnDataLoss=false to go on without them, or give the "
            "query a consumer, so that compaction waits for it",
            oldest=trimmed + 1,
        )


def _check_parsable(field: Any) -> None:
    kind = field.type
    if pa.types.is_map(kind):
        raise ConfigError(f"payloadSchema cannot have a map ({field.name!r}): read payload as text and use from_json")
    if pa.types.is_struct(kind):
        for child in kind:
            _check_parsable(child)
    if pa.types.is_list(kind):
        _check_parsable(kind.value_field)


def _parse(block: Block, wanted: pa.Schema) -> list[Any]:
    """The wanted fields of every payload of a block: a missing one is null, one of another type an error."""
    payload = block.payload
    if not len(payload):
        return [pa.nulls(block.count, field.type) for field in wanted]
    try:
        table = pa.json.read_json(
            pa.BufferReader(pa.py_buffer(payload)),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(payload) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=wanted, newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise ConfigError(_misfit(block, str(error))) from error
    if table.num_rows != block.count:
        raise ConfigError(_misfit(block, f"{block.count} payloads were read as {table.num_rows} JSON values"))
    return [table.column(name).combine_chunks() for name in wanted.names]


def _misfit(block: Block, reason: str) -> str:
    row = reason.rpartition(" in row ")[2]
    place = (
        f"event {block.seq(int(row))}" if row.isdigit() and int(row) < block.count else f"after event {block.first - 1}"
    )
    return (
        f"payloadSchema does not fit the payloads of topic {block.topic!r} ({place}): {reason}. "
        "Give the field another type, or read payload as text and use from_json"
    )

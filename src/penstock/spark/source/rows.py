"""From blocks to the record batches Spark asked for: the events' own columns, and columns parsed from payloads.

Spark does not tell a Python source which columns a query needs, so a schema given by the user decides: a column that
was left out is not built. Whatever is no column of an event is looked for in the payload. Offsets and filters choose
rows first: a payload that was not asked for cannot be a misfit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal.storage.block import Block
from penstock.journal.storage.to_arrow import PayloadType, arrow_schema, joined, record_batch
from penstock.payloads.parsing import ParsedColumns, PayloadParser
from penstock.spark.payload.crashes import decoding
from penstock.spark.payload.forms import check_form
from penstock.spark.source.filters import NO_FILTER, RowFilter
from penstock.spark.source.journals import SourceJournal
from penstock.spark.source.misfits import CORRUPT, BadRecords, refused
from penstock.spark.source.options import Mode, ReadOptions
from penstock.spark.source.ranges import Range

_BATCH_ROWS = 65_536

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
        if options.mode == "PERMISSIVE":
            parts.append(f"{CORRUPT} STRING")
    return ", ".join(parts)


class SourceLayout(msgspec.Struct, frozen=True):
    """Which columns a query gets, in order, and where each comes from."""

    schema: pa.Schema
    own: tuple[str, ...]
    """Columns of the event that must be built."""
    parser: PayloadParser | None
    """Parses fields from the payload."""
    struct: bool
    payload: PayloadType
    mode: Mode
    bad: BadRecords | None

    @classmethod
    def of(cls, wanted: StructType, options: ReadOptions) -> SourceLayout:
        """The layout of a schema; ConfigError when it asks for what there is not."""
        names = wanted.names
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(
                f"column {twice!r} would be there twice: every event has one, and payloadSchema names one too; "
                'set option("payloadColumns", "struct") to get the parsed fields as payload.…'
            )
        base = arrow_schema(options.payload)
        struct = options.payload_schema is not None and options.payload_struct
        for field in wanted.fields:
            check_form(field.name, field.dataType)
        schema = to_arrow_schema(wanted, timezone="UTC")
        own: list[str] = []
        parsed: list[pa.Field] = []
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
            elif field.name == CORRUPT and options.mode == "PERMISSIVE":
                if not isinstance(wanted[CORRUPT].dataType, StringType):
                    raise ConfigError(f"the column {CORRUPT!r} is text, for the payloads that do not fit")
            elif options.payload_schema is None or struct:
                raise ConfigError(
                    f"an event has no column {field.name!r}; there are {', '.join(base.names)}. "
                    "To get fields of the payload, set payloadSchema"
                )
            else:
                parsed.append(field)
        return cls(
            schema,
            tuple(own),
            PayloadParser(pa.schema(parsed)) if parsed else None,
            struct,
            options.payload,
            options.mode,
            None if options.bad_records is None else BadRecords.of(options),
        )

    def batch(self, block: Block, start: int, stop: int, filter: RowFilter) -> pa.RecordBatch:
        """The events of rows start … stop-1 of a block that pass the filter, as Spark wants them."""
        keep = self._kept(block, start, stop, filter)
        rows = range(start, stop) if keep is None else np.arange(start, stop)[keep].tolist()
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        own = record_batch(block, self.payload, self.own, wanted=rows)
        columns = {name: _chosen(own.column(name), block, start, stop, keep) for name in self.own}
        fit = None
        if self.parser is not None:
            payloads = record_batch(block, "binary", ("payload",)).column("payload")
            payloads = _chosen(payloads, block, start, stop, keep)
            binary = None
            if block.wire.binary is not None:
                binary = np.frombuffer(block.wire.binary, dtype=np.uint8)[rows] != 0
            parse = partial(self.parser.parse, payloads, binary)
            parsed = decoding(block.topic, block.seq(rows[0]), block.seq(rows[-1]), parse)
            if self.struct:
                mask = None if parsed.absent is None else pa.array(parsed.absent)
                columns["payload"] = pa.StructArray.from_arrays(
                    parsed.columns, fields=list(self.parser.schema), mask=mask
                )
            else:
                columns.update(zip(self.parser.schema.names, parsed.columns, strict=True))
            fit = self._judged(block, rows, payloads, parsed, columns)
        if CORRUPT in self.schema.names and CORRUPT not in columns:
            columns[CORRUPT] = pa.nulls(len(rows), pa.string())
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        return batch if fit is None else batch.filter(fit)

    def _kept(self, block: Block, start: int, stop: int, filter: RowFilter) -> NDArray[np.bool_] | None:
        """Which of the rows pass the filter; None when all do."""
        if not filter.conditions:
            return None
        columns = record_batch(block, "binary", filter.columns)
        keep = filter.mask({name: columns.column(name).slice(start, stop - start) for name in filter.columns})
        return None if keep.all() else keep

    def _judged(
        self,
        block: Block,
        rows: Sequence[int],
        payloads: pa.BinaryArray,
        parsed: ParsedColumns,
        columns: dict[str, pa.Array],
    ) -> pa.BooleanArray | None:
        """What happens to rows that do not fit; the mask of those that stay, None when all do."""
        if not parsed.misfits:
            return None
        if self.bad is not None:
            self.bad.put([(Event(block, rows[misfit.row]), misfit.reason) for misfit in parsed.misfits])
        elif self.mode == "FAILFAST":
            first = parsed.misfits[0]
            raise refused(block.topic, block.seq(rows[first.row]), first.reason)
        if self.mode == "PERMISSIVE":
            texts: list[str | None] = [None] * len(rows)
            for misfit in parsed.misfits:
                texts[misfit.row] = payloads[misfit.row].as_py().decode(errors="replace")
            columns[CORRUPT] = pa.array(texts, pa.string())
            return None
        fit = np.ones(len(rows), bool)
        fit[[misfit.row for misfit in parsed.misfits]] = False
        return pa.array(fit)


def _chosen(column: pa.Array, block: Block, start: int, stop: int, keep: NDArray[np.bool_] | None) -> pa.Array:
    if stop - start < block.count:
        column = column.slice(start, stop - start)
    return column if keep is None else column.filter(pa.array(keep))


def read_range(
    journal: SourceJournal, share: Range, layout: SourceLayout, filter: RowFilter = NO_FILTER, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """The events of a task's share, fetched some blocks at a time.

    `strict`: history removed meanwhile raises PositionTrimmed; else what is left is read.
    """
    after, through = share.after, share.through
    for fetched in journal.blocks(share.topic, after, through, strict=strict):
        for block in joined(filter_blocks(fetched, filter), _BATCH_ROWS):
            start = block.row_after(after) if block.first <= after else 0
            stop = block.row_after(through) if block.last > through else block.count
            if stop > start:
                batch = layout.batch(block, start, stop, filter)
                if batch.num_rows:
                    yield batch
            after = max(after, block.last)  # blocks that are merged meanwhile come again, as part of the next ones


def filter_blocks(blocks: list[Block], filter: RowFilter) -> Iterator[Block]:
    """Those of which a row may pass."""
    return (block for block in blocks if filter.may_hold(block))

"""From blocks to the record batches Spark asked for: filters, the events' own columns, columns parsed from payloads.

Spark does not tell a Python source which columns a query needs, so a schema given by the user decides: a column that
was left out is not built. Whatever is no column of an event is looked for in the payload. Offsets and filters choose
rows first: a payload that was not asked for cannot be a misfit. Positions and recording times narrow what is read,
kinds and keys skip blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from penstock.clock import to_ms
from penstock.documents.payloads import ParsedColumns, PayloadParser, is_variant, variant_of
from penstock.errors import ConfigError, UnknownQueue
from penstock.events import Draft, Event
from penstock.journal.blocks import Block, read_block, select
from penstock.journal.keys import MAX_SEQ
from penstock.journal.reading import Bounds
from penstock.journal.to_arrow import arrow_schema, joined, record_batch
from penstock.protocol.bulk import Wanted
from penstock.spark.journals import SourceJournal, writing
from penstock.spark.options import EVENT_COLUMNS, JournalPlace, Mode, PayloadForm, ReadOptions
from penstock.spark.payload import check_form, decoding
from penstock.spark.versions import arrow_schema_of
from penstock.surface.journal import Journal
from penstock.surface.queue import Queue

_LOOKED_UP = {"kind": "kinds", "key": "keys", "scope": "scopes", "id": "ids", "correlation_id": "correlations"}
_EVER = -(1 << 62), 1 << 62
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal")


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
        if self.compare == "starts_with":
            return pc.starts_with(column, self.value)
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
            if condition.column != "recorded_at" or condition.compare not in COMPARISONS:
                continue
            value: datetime = condition.value
            if condition.compare in ("equal", "greater", "greater_equal"):
                low = value if low is None else max(low, value)
            if condition.compare in ("equal", "less", "less_equal"):
                high = value if high is None else min(high, value)
        return low, high

    def positions(self) -> list[int] | None:
        """The only positions that can pass; None: that is not known."""
        lists = [one.value for one in self.conditions if one.column == "seq" and one.compare == "is_in"]
        return sorted(set.intersection(*map(set, lists))) if lists else None

    def wanted(self) -> Wanted | None:
        """What a journal can look up of it; None for nothing."""
        found: dict[str, Any] = {}
        for one in self.conditions:
            if one.column in _LOOKED_UP and one.compare in ("equal", "is_in"):
                values = {one.value} if one.compare == "equal" else set(one.value)
                name = _LOOKED_UP[one.column]
                found[name] = values & found.get(name, values)
            elif one.compare == "starts_with" and one.column == "key":
                found["key_prefix"] = max(one.value, found.get("key_prefix", ""), key=len)
            elif one.column == "occurred_at" and one.compare in COMPARISONS:
                low, high = found.get("occurred", _EVER)
                ms = to_ms(one.value, "occurred_at")
                if one.compare in ("equal", "greater", "greater_equal"):
                    low = max(low, ms)
                if one.compare in ("equal", "less", "less_equal"):
                    high = min(high, ms)
                found["occurred"] = low, high
        for name in _LOOKED_UP.values() & found.keys():
            found[name] = tuple(sorted(found[name]))
        return Wanted(**found) if found else None

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


_FEW = 8
"""Of a block whose rows are so many times as many as are wanted, those are taken out first."""

CORRUPT = "_corrupt_record"
"""The column that holds the text of payloads that do not fit, in the mode PERMISSIVE."""


def refused(topic: str, seq: int, reason: str) -> ConfigError:
    """The error of a query that takes no misfits."""
    return ConfigError(
        f"payloadSchema does not fit the payload of event {seq} of topic {topic!r}: {reason}. Give the field another "
        "type, read payload as text and use from_json, or say what becomes of such rows: mode=PERMISSIVE, "
        "mode=DROPMALFORMED or badRecords=<queue or topic>"
    )


class BadRecords(msgspec.Struct, frozen=True):
    """The queue or topic that takes the events that do not fit, each once.

    An event put there has the kind, key, scope, payload and headers of the one that does not fit, which is its cause;
    headers say where that one is and what is wrong with it. Tasks may run twice, so the event's id and the schema are
    its dedup key.
    """

    place: JournalPlace
    name: str
    schema: str

    @classmethod
    def of(cls, options: ReadOptions) -> BadRecords:
        assert options.bad_records is not None
        return cls(options.place, options.bad_records, options.payload_schema or "")

    def put(self, events: Sequence[tuple[Event, str]]) -> None:
        """Puts events there, with the reasons; those that are there already are left alone."""
        drafts = [self._draft(event, reason) for event, reason in events]
        with self._journal() as journal:
            queue = self._queue(journal)
            if queue is not None:
                if queue.policy.throttle is not None or queue.policy.debounce is not None:
                    raise self._keeps_one("queue", "has a throttle or a debounce")
                queue.push_many(drafts)
            else:
                topic = journal.topic(self.name)
                if topic.settings.by_key:
                    raise self._keeps_one("topic", "keeps the newest event of every key")
                topic.append_many(drafts)

    def _queue(self, journal: Journal) -> Queue | None:
        """The queue of the name, if there is one; none is made, nor made again that is dropped meanwhile."""
        try:
            return journal.queue(self.name, create=False)
        except UnknownQueue:
            return None

    def _keeps_one(self, what: str, why: str) -> ConfigError:
        return ConfigError(
            f"badRecords: {what} {self.name!r} {why}, so that of several records with one key only one would be there: "
            "name another queue or topic"
        )

    def _journal(self) -> AbstractContextManager[Journal]:
        server = self.place.server
        if server is None:
            return writing(self.place.url)
        from penstock.remote import connect

        return connect(server.url, token=None if server.token is None else server.token.reveal())

    def _draft(self, event: Event, reason: str) -> Draft:
        known = f"{event.id}\0{self.schema}"
        return Draft(
            event.kind,
            _payload(event),
            key=event.key,
            scope=event.scope,
            headers={
                **event.headers,
                "penstock-topic": event.topic,
                "penstock-seq": str(event.seq),
                "penstock-reason": reason[:1000],
            },
            occurred_at=event.occurred_at,
            dedup=f"misfit:{hashlib.sha256(known.encode()).hexdigest()}",
            cause=event,
        )


def _payload(event: Event) -> msgspec.Raw | bytes:
    """The payload as it is stored: JSON stays the same text, bytes stay bytes."""
    return event.raw if event.binary else msgspec.Raw(event.raw)


_BATCH_ROWS = 65_536


def source_schema(options: ReadOptions) -> str:
    """The columns of a read, as the DDL text that Spark parses."""
    columns = dict(EVENT_COLUMNS)
    if options.payload != "string":
        columns["payload"] = options.payload.upper()
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
    payload: PayloadForm
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
        base = arrow_schema("string" if options.payload == "string" else "binary")
        if options.payload == "variant" and "payload" in names:
            base = base.set(base.get_field_index("payload"), arrow_schema_of(wanted).field("payload"))
            if not is_variant(base.field("payload").type):
                raise ConfigError('with payloadFormat=variant the column "payload" is VARIANT')
        struct = options.payload_schema is not None and options.payload_struct
        for field in wanted.fields:
            check_form(field.name, field.dataType)
        schema = arrow_schema_of(wanted)
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
        own = record_batch(block, "string" if self.payload == "string" else "binary", self.own, wanted=rows)
        columns = {name: _chosen(own.column(name), block, start, stop, keep) for name in self.own}
        if self.payload == "variant" and "payload" in columns:
            columns["payload"] = self._variants(block, rows, columns["payload"])
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

    def _variants(self, block: Block, rows: Sequence[int], payloads: pa.BinaryArray) -> pa.Array:
        for row in rows if block.wire.binary is not None else ():
            if block.is_binary(row):
                raise ConfigError(
                    f"event {block.seq(row)} of topic {block.topic!r} has bytes, which no VARIANT holds: leave it out "
                    "(kinds, startingOffsets), or set payloadFormat=binary"
                )
        found = [variant_of(msgspec.Raw(payload)) for payload in payloads.to_pylist()]
        return pa.array(found, self.schema.field("payload").type)

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


class Range(InputPartition):
    """One task's share: the events of a topic within some bounds, in order."""

    def __init__(self, topic: str, spans: Sequence[Bounds]) -> None:
        super().__init__(None)
        self.journal: str | None = None
        """The id of the journal it was cut from."""
        self.topic = topic
        self.spans = tuple(spans)

    def __repr__(self) -> str:
        first, last = self.spans[0][0], self.spans[-1][1]
        return f"{self.topic}({first}, {last}]" + (f" in {len(self.spans)} spans" if len(self.spans) > 1 else "")


def read_range(
    journal: SourceJournal, share: Range, layout: SourceLayout, filter: RowFilter = NO_FILTER, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """The events of a task's share, fetched some blocks at a time.

    `strict`: history removed meanwhile raises PositionTrimmed; else what is left is read.
    """
    parts = _scattered if len(share.spans) > 1 else _together
    for block, start, stop in parts(journal, share, filter, strict):
        batch = layout.batch(block, start, stop, filter)
        if batch.num_rows:
            yield batch


Part = tuple[Block, int, int]
"""A block, and which of its rows are wanted: from one, up to another."""


def _together(journal: SourceJournal, share: Range, filter: RowFilter, strict: bool) -> Iterator[Part]:
    """The rows of one span; small blocks are joined."""
    ((after, through),) = share.spans
    for fetched in journal.blocks(share.topic, after, through, strict=strict):
        for block in joined(filter_blocks(fetched, filter), _BATCH_ROWS):
            start = block.row_after(after) if block.first <= after else 0
            stop = block.row_after(through) if block.last > through else block.count
            if stop > start:
                yield block, start, stop
            after = max(after, block.last)  # blocks that are merged meanwhile come again, as part of the next ones


def _scattered(journal: SourceJournal, share: Range, filter: RowFilter, strict: bool) -> Iterator[Part]:
    """The rows of many spans: of a block that has a few of them, they are made a block of their own."""
    few: list[Block] = []
    for block, rows in _rows_by_block(journal, share, filter, strict):
        if len(rows) * _FEW <= block.count:
            few.append(read_block(select(block, rows), share.topic))
        else:
            yield block, rows[0], rows[-1] + 1  # those between them are in no span: the filter leaves them out
    for block in joined(iter(few), _BATCH_ROWS):
        yield block, 0, block.count


def _rows_by_block(
    journal: SourceJournal, share: Range, filter: RowFilter, strict: bool
) -> Iterator[tuple[Block, list[int]]]:
    """The blocks that spans lie in, each once, and the rows of it that they have."""
    held: Block | None = None
    rows: list[int] = []
    for after, through in share.spans:
        if held is not None and held.first <= after + 1 and through <= held.last:
            rows.extend(range(held.row_after(after), held.row_after(through)))
            continue
        for fetched in journal.blocks(share.topic, after, through, strict=strict):
            for block in filter_blocks(fetched, filter):
                if held is not None and rows:
                    yield held, rows
                held, rows = block, list(range(block.row_after(after), block.row_after(through)))
                after = max(after, block.last)
    if held is not None and rows:
        yield held, rows


def filter_blocks(blocks: list[Block], filter: RowFilter) -> Iterator[Block]:
    """Those of which a row may pass."""
    return (block for block in blocks if filter.may_hold(block))

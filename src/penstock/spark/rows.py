"""From blocks to the record batches Spark asked for: filters, the events' own columns, columns parsed from payloads.

Spark does not tell a Python source which columns a query needs, so the user's schema decides: a column that is left out
is not built. Other columns come from the payload. Offsets and filters choose rows first, so the payload of an unwanted
row cannot be a misfit.

Filters are options too, although Spark could pass the query's own filters: up to 4.3, Spark reuses the plan of a
filtered read for other reads of the same frame, which then have too few rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from penstock.core.documents.ddl import SchemaText, fields
from penstock.core.documents.payloads import ParsedColumns, PayloadParser, is_variant, variant_of
from penstock.core.events import Draft, Event
from penstock.core.journal.blocks import Block, may_hold
from penstock.core.journal.reading import Bounds, wanted_rows
from penstock.core.journal.to_arrow import arrow_schema, coalesce, record_batch
from penstock.core.model.conditions import Where, moment
from penstock.core.model.query import EventQuery
from penstock.core.names import TAG_END, is_whole, stored_tag
from penstock.core.protocol.bulk import Wanted, blocks_of
from penstock.core.surface.journal import Journal
from penstock.core.surface.queue import Queue
from penstock.errors import ConfigError, UnknownQueue
from penstock.spark.journals import SourceJournal, writing
from penstock.spark.options import EVENT_COLUMNS, JournalLocation, Mode, PayloadForm, ReadOptions
from penstock.spark.payload import check_form, decoding
from penstock.spark.versions import arrow_schema_of

_TEXTS = {"kind": "kinds", "key": "keys", "scope": "scopes", "id": "ids", "correlation_id": "correlations"}
"""Columns of text that a journal looks up, and what `Wanted` calls their values."""
_EVER = -(1 << 52), 1 << 52
"""Before and after all positions, and all times in milliseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowFilter(msgspec.Struct, frozen=True):
    """The wanted rows of a topic: those that pass all of it."""

    values: dict[str, frozenset[str | int]] = {}
    """By column, what it may be."""
    prefix: str = ""
    """The beginning of the wanted keys."""
    tags: frozenset[str] = frozenset()
    """The tags that an event must have."""
    bounds: dict[str, Bounds] = {}
    """By column, the least and the greatest that it may be; times in milliseconds."""
    where: Where | None = None
    """The condition that is asked of every row that passes all else."""

    @property
    def columns(self) -> list[str]:
        """The columns it looks at."""
        return sorted({*self.values, *self.bounds, *(["key"] if self.prefix else [])})

    @property
    def everything(self) -> bool:
        return not self.columns and not self.tags and self.where is None

    def between(self, column: str) -> Bounds:
        """Returns the least and the greatest that a column may be."""
        return self.bounds.get(column, _EVER)

    def wanted(self) -> Wanted | None:
        """Returns the part that a journal can look up; None for nothing."""
        found: dict[str, Any] = {name: self.values[column] for column, name in _TEXTS.items() if column in self.values}
        if "seq" in self.values:
            found["seqs"] = self.values["seq"]
        found = {name: tuple(sorted(values)) for name, values in found.items()}
        if self.prefix:
            found["key_prefix"] = self.prefix
        if self.tags:
            found["tags"] = tuple(sorted(self.tags))
        if "occurred_at" in self.bounds:
            found["occurred"] = self.bounds["occurred_at"]
        return Wanted(**found) if found else None

    def may_hold(self, block: Block) -> bool:
        """Returns False when no row of a block can pass, found without reading them one by one."""
        if "kind" in self.values and self.values["kind"].isdisjoint(block.wire.kinds):
            return False
        if not all(may_hold(block.wire.tags, stored_tag(tag)) for tag in self.tags):
            return False
        begins = self.values.get("key", [self.prefix] if self.prefix else [])
        return not 0 < len(begins) <= _FEW or any(may_hold(block.wire.key, str(begin)) for begin in begins)

    def rows(self, block: Block, start: int, stop: int) -> NDArray[np.int64]:
        """Returns the rows start … stop-1 of a block that pass."""
        columns = record_batch(block, "binary", self.columns)
        passing = np.ones(stop - start, dtype=np.bool_)
        for name in self.columns:
            column = columns.column(name).slice(start, stop - start)
            if name in self.values:
                values = pa.array(list(self.values[name]), column.type)
                passing &= np.asarray(pc.is_in(column, value_set=values))
            if name in self.bounds:
                low, high = self.bounds[name]
                scale = 1 if name == "seq" else 1000  # columns of times are in microseconds
                numbers = np.asarray(column.view(pa.int64()))
                passing &= (numbers >= low * scale) & (numbers <= high * scale)
            if name == "key" and self.prefix:
                passing &= np.asarray(pc.starts_with(column, self.prefix).fill_null(False))
        rows = start + np.flatnonzero(passing)
        if self.tags:
            rows = np.array(wanted_rows(EventQuery(tags=self.tags), block, rows.tolist()), dtype=np.int64)
        if self.where is None:
            return rows
        return np.array([row for row in rows.tolist() if self.where.matches(Event(block, row))], dtype=np.int64)


_FEW = 16
"""Keys that are searched for in a block as bytes before it is opened."""


def option_filter(options: ReadOptions) -> RowFilter:
    """Returns the filter of the options `kinds`, `keys`, `tags` and `where`; of whole columns, as far as it can be."""
    named = {"kind": options.kinds, "key": options.keys}
    values: dict[str, frozenset[str | int]] = {name: texts for name, texts in named.items() if texts is not None}
    bounds: dict[str, Bounds] = {}
    tags, prefix, left = set(options.tags), "", False
    for part in () if options.where is None else options.where.parts:
        match part:
            case column, ("==" | "in") as sign, given if (
                found := _values(column, given if sign == "in" else [given])
            ) is not None:
                values[column] = found & values.get(column, found)
            case "key", "startswith", str(given) if given and not prefix:
                prefix = given
            case "tags", "contains", str(given) if given and TAG_END not in given:
                tags.add(given)
            case column, ("==" | "<" | "<=" | ">" | ">=") as sign, given if exact := _exactly(column, given):
                low, high = bounds.get(column, _EVER)
                up, down = exact
                if sign in ("==", ">", ">="):
                    low = max(low, down + 1 if sign == ">" else up)
                if sign in ("==", "<", "<="):
                    high = min(high, up - 1 if sign == "<" else down)
                bounds[column] = low, high
            case _:
                left = True
    return RowFilter(values, prefix, frozenset(tags), bounds, options.where if left else None)


def _values(column: str, given: Sequence[object]) -> frozenset[str | int] | None:
    """Returns the values that a column may have, of a condition that it has one of several values; None when that is
    not for a journal."""
    if column in _TEXTS:
        texts = frozenset(value for value in given if isinstance(value, str))
        return texts if len(texts) == len(set(given)) else None
    if column == "seq" and all(is_whole(value) for value in given):
        return frozenset(value for value in given if isinstance(value, int) and 0 < value < _EVER[1])
    return None


def _exactly(column: str, given: object) -> Bounds | None:
    """Returns a position, or a time in milliseconds, rounded up and down; None when it is neither."""
    if column == "seq" and is_whole(given):
        return (min(max(given, -1), _EVER[1]),) * 2
    time = moment(given) if column in ("occurred_at", "recorded_at") and isinstance(given, str) else None
    if time is None:
        return None
    micros = (time - _EPOCH) // timedelta(microseconds=1)
    return -(-micros // 1000), micros // 1000


CORRUPT = "_corrupt_record"
"""The column that holds the text of payloads that do not fit, in the mode PERMISSIVE."""


def refused(topic: str, seq: int, reason: str) -> ConfigError:
    """Returns the error of a query that takes no misfits."""
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

    location: JournalLocation
    name: str
    schema: str

    @classmethod
    def of(cls, options: ReadOptions) -> BadRecords:
        assert options.bad_records is not None
        return cls(options.location, options.bad_records, options.payload_schema or "")

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
        """Returns the queue of the name, if there is one; none is made, nor made again that is dropped meanwhile."""
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
        server = self.location.server
        if server is None:
            return writing(self.location.url)
        from penstock.remote.backend import RemoteJournal

        return RemoteJournal(server.url, token=None if server.token is None else server.token.reveal())

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
    """Returns the payload as it is stored: JSON stays the same text, bytes stay bytes."""
    return event.raw if event.binary else msgspec.Raw(event.raw)


def source_schema(options: ReadOptions) -> str:
    """Returns the columns of a read, as the DDL text that Spark parses."""
    columns = dict(EVENT_COLUMNS)
    if options.payload != "string":
        columns["payload"] = options.payload.upper()
    parts = [f"{name} {type_}" for name, type_ in columns.items()]
    if options.payload_schema is not None:
        at = list(columns).index("payload")
        parts[at] = f"payload STRUCT<{options.payload_schema}>" if options.payload_struct else _prefixed(options)
        if options.mode == "PERMISSIVE":
            parts.append(f"{CORRUPT} STRING")
    return ", ".join(parts)


def _prefixed(options: ReadOptions) -> str:
    """Returns the columns of a payloadSchema by the names that they have beside those of events."""
    schema, prefix = options.payload_schema or "", options.payload_prefix
    if not prefix:
        return schema
    found = fields(SchemaText("payloadSchema", schema)).items()
    return ", ".join(f"`{(prefix + name).replace('`', '``')}` {kind}" for name, kind in found)


class SourceLayout(msgspec.Struct, frozen=True):
    """The columns of a query, in order, with their sources."""

    schema: pa.Schema
    own: tuple[str, ...]
    """Columns of the event that must be built."""
    parser: PayloadParser | None
    """Parses fields from the payload."""
    struct: bool
    prefix: str
    """The prefix of the names of parsed columns."""
    payload: PayloadForm
    mode: Mode
    bad: BadRecords | None

    @classmethod
    def of(cls, wanted: StructType, options: ReadOptions) -> SourceLayout:
        """Returns the layout of a schema; raises ConfigError for unknown columns."""
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
            elif not field.name.startswith(options.payload_prefix):
                raise ConfigError(
                    f"an event has no column {field.name!r}; those of the payload begin with "
                    f"{options.payload_prefix!r}, as payloadPrefix says"
                )
            else:
                parsed.append(field.with_name(field.name.removeprefix(options.payload_prefix)))
        return cls(
            schema,
            tuple(own),
            PayloadParser(pa.schema(parsed)) if parsed else None,
            struct,
            options.payload_prefix,
            options.payload,
            options.mode,
            None if options.bad_records is None else BadRecords.of(options),
        )

    def batch(self, block: Block, start: int, stop: int, filter: RowFilter) -> pa.RecordBatch:
        """Returns the events of rows start … stop-1 of a block that pass the filter, as Spark wants them."""
        keep = None if filter.everything else filter.rows(block, start, stop)
        rows: Sequence[int] = range(start, stop) if keep is None else keep.tolist()
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)

        def chosen(column: pa.Array) -> pa.Array:
            return column.slice(start, stop - start) if len(rows) == stop - start else column.take(pa.array(keep))

        own = record_batch(block, "string" if self.payload == "string" else "binary", self.own, wanted=rows)
        columns = {name: chosen(own.column(name)) for name in self.own}
        if self.payload == "variant" and "payload" in columns:
            columns["payload"] = self._variants(block, rows, columns["payload"])
        fit = None
        if self.parser is not None:
            payloads = chosen(record_batch(block, "binary", ("payload",)).column("payload"))
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
                names = [self.prefix + name for name in self.parser.schema.names]
                columns.update(zip(names, parsed.columns, strict=True))
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

    def _judged(
        self,
        block: Block,
        rows: Sequence[int],
        payloads: pa.BinaryArray,
        parsed: ParsedColumns,
        columns: dict[str, pa.Array],
    ) -> pa.BooleanArray | None:
        """Returns the rows without misfits, or raises: the mask of those that stay, None when all do."""
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


class TopicRange(msgspec.Struct):
    """The events of a topic within some bounds, in order, and some that the plan has found."""

    topic: str
    spans: list[Bounds]
    found: bytes = b""
    """Blocks, as one message."""
    whole: bool = False
    """True if an event is at every position."""

    def __str__(self) -> str:
        found = f", {len(self.found):,} bytes" if self.found else ""
        return f"{self.topic}({', '.join(f'{low}…{high}' for low, high in self.spans)}{found})"


class TaskRanges(InputPartition):
    """The ranges that a task reads: ranges of one topic or of several."""

    def __init__(self, journal: str, ranges: Sequence[TopicRange]) -> None:
        super().__init__(None)
        self.journal = journal
        """The id of the journal that they were cut from: no task reads another one."""
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return ", ".join(map(str, self.ranges))


_BATCH_ROWS = 65_536
_SMALL_BATCH_BYTES = 1 << 20
"""Record batches with fewer bytes are joined: each costs a millisecond on its way to Spark."""


def read_ranges(
    journal: SourceJournal, share: TaskRanges, layout: SourceLayout, filter: RowFilter, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """Yields the events of a task's share, fetched some blocks at a time.

    With `strict`, history that was removed meanwhile raises PositionTrimmed; otherwise the remaining events are read.
    """
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in chain.from_iterable(_batches(journal, each, layout, filter, strict) for each in share.ranges):
        if not batch.num_rows:
            continue
        small.append(batch)
        size += batch.nbytes
        if size >= _SMALL_BATCH_BYTES:
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, size = [], 0
    if small:
        yield pa.concat_batches(small)


def _batches(
    journal: SourceJournal, share: TopicRange, layout: SourceLayout, filter: RowFilter, strict: bool
) -> Iterator[pa.RecordBatch]:
    """Yields the events of a topic's range; positions alone are known without reading anything."""
    if share.whole and layout.schema.names == ["seq"] and filter.everything:
        for after, through in share.spans:
            for low in range(after, through, _BATCH_ROWS):
                seqs = np.arange(low + 1, min(low + _BATCH_ROWS, through) + 1)
                yield pa.RecordBatch.from_arrays([pa.array(seqs)], schema=layout.schema)
    else:
        for block, start, stop in _parts(journal, share, filter, strict):
            yield layout.batch(block, start, stop, filter)


def _parts(
    journal: SourceJournal, share: TopicRange, filter: RowFilter, strict: bool
) -> Iterator[tuple[Block, int, int]]:
    """Blocks of a range that may hold wanted events, and which rows are the range's: from one, up to another."""
    for block in blocks_of(share.found, share.topic):
        yield block, 0, block.count
    for after, through in share.spans:
        for fetched in journal.blocks(share.topic, after, through, strict=strict):
            for block in coalesce((block for block in fetched if filter.may_hold(block)), _BATCH_ROWS):
                start = block.row_after(after) if block.first <= after else 0
                stop = block.row_after(through) if block.last > through else block.count
                if stop > start:
                    yield block, start, stop
                after = max(after, block.last)  # blocks that are merged meanwhile come again, as part of the next ones

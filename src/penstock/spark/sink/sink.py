"""Writing frames and streams to a topic or a queue: tasks stage blocks, the driver's commit publishes them at once.

The commit is one transaction of the journal, together with a mark that says which batch it was. A batch that is run
again, because whatever was killed before Spark could note its success, finds its mark and changes nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.entity.staging.declared import load_gates, names_in, with_installed
from penstock.errors import ConfigError, PenstockError
from penstock.journal.storage.from_arrow import BLOCK_PAYLOAD, blocks
from penstock.journal.storage.wire import Wire
from penstock.limits import MAX_KEY_BYTES
from penstock.spark.sink.layout import SinkLayout
from penstock.spark.sink.staging import Publication, StagedShare, Staging, StagingFolder, staging_root
from penstock.spark.source.options import WriteOptions, write_options
from penstock.spark.source.stores import journal_id
from penstock.transfer.objects import StagingArea, own_area

_GATHER_ROWS = 65_536


def encoded(batches: Iterator[pa.RecordBatch], layout: SinkLayout) -> Iterator[tuple[str, Wire]]:
    """The blocks of a task's rows; small record batches are gathered until they make a block worth its while."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        events = layout.events(batch)
        held.append(events)
        rows += events.num_rows
        size += events.column("payload").nbytes
        if size >= BLOCK_PAYLOAD or rows >= _GATHER_ROWS:
            yield from blocks(_whole(held))
            held, rows, size = [], 0, 0
    if held:
        yield from blocks(_whole(held))


def _whole(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def mark_name(*parts: str) -> str:
    """The name under which a journal remembers what a query or application has written."""
    name = ":".join(("spark", *parts))
    if len(name.encode()) > MAX_KEY_BYTES:
        name = f"spark:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def _staging(options: WriteOptions, owner: str) -> Staging:
    place, given = options.place, options.staging
    area = given if given is not None and "://" in given else own_area(place.url) if not place.served else None
    if area is not None:
        from penstock.spark.sink.objects import ObjectStaging

        return ObjectStaging(place, StagingArea(area), owner)
    if place.served:
        from penstock.spark.served.writing import ServedStaging

        return ServedStaging(place, owner)
    return StagingFolder(place.url, staging_root(place.url, given), owner)


def _planned(options: WriteOptions, staging: Staging, *, again: bool) -> tuple[str | None, tuple[str, ...]]:
    """The id of the journal that is written, None when there is none yet, and the gates that the commit itself asks.

    ConfigError when it cannot be written so. `again`: it may have been planned before, by another process.
    """
    place = options.place
    if place.server is None:
        return journal_id(place.url), _own_gates(options)
    from penstock.spark.served.connection import check_may_write, check_same
    from penstock.spark.sink.objects import ObjectStaging

    about = check_may_write(place.server, "this query", known=again)
    if place.writer is not None:
        check_same(place.server, about.id, journal_id(place.url))
    if isinstance(staging, ObjectStaging) and staging.area.url not in about.staging:
        raise ConfigError(
            f"{place.server.url} fetches nothing from {staging.area.url}, where this query would leave its blocks, but "
            f"from {', '.join(about.staging) or 'nowhere'}: start it with `penstock serve --staging {staging.area.url}`"
        )
    unknown = next((name for name in options.gates if name not in names_in(about.gates)), None)
    if unknown is not None:
        raise ConfigError(
            f"{place.server.url} does not ask the gate {unknown}, and gates are asked where a journal is written: "
            f"start it with `penstock serve --gates {unknown}`"
        )
    return about.id, ()


def _own_gates(options: WriteOptions) -> tuple[str, ...]:
    """The names of all gates that see rows of a write to a local journal; ConfigError when one cannot be had."""
    target = options.topic
    found = load_gates(with_installed(options.gates))
    for name in options.gates:
        if target is not None and target not in found[name].topics:
            raise ConfigError(f"the gate {name} sees {', '.join(found[name].topics)}, and this writes to {target}")
    return tuple(name for name, one in found.items() if target is None or target in one.topics)


class _TopicWriter:
    """What batch and stream writers share."""

    again = False
    """Whether writers are made anew for every batch of a query: then a server that starts again is waited for."""

    def __init__(self, options: WriteOptions, layout: SinkLayout, staging: Staging) -> None:
        self.options = options
        self.layout = layout
        self.staging = staging

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, overwrite: bool) -> Self:
        """The writer of a frame; ConfigError when it cannot be written."""
        if overwrite:
            raise ConfigError(
                'a journal only grows: use mode("append"), or outputMode "append" or "update" for a stream'
            )
        options, owner = write_options(given), uuid.uuid4().hex
        staging = _staging(options, owner)
        journal, gates = _planned(options, staging, again=cls.again)
        options = msgspec.structs.replace(options, journal=journal, gates=gates)
        return cls(options, SinkLayout.of(schema, options), staging)

    def _publish(self, staging: Staging, shares: Sequence[StagedShare], mark: str | None, version: int) -> None:
        queue = self.options.topic if self.options.queue else None
        staging.publish(shares, Publication(self.options.journal, mark, version, queue, self.options.gates))


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a frame once; with txnAppId and txnVersion, once for ever."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.staging.stage(encoded(iterator, self.layout), None, "0")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self.options
        staged = [message for message in messages if isinstance(message, StagedShare)]
        mark = None if options.app is None else mark_name("app", options.app, options.topic or "")
        if mark is not None or any(message.events for message in staged):
            self._publish(self.staging, staged, mark, options.version or 0)
        self.staging.remove()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.staging.remove()


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes a stream's batches, each once, whatever is killed when."""

    again = True

    def __init__(self, options: WriteOptions, layout: SinkLayout, staging: Staging) -> None:
        if options.app is not None:
            raise ConfigError("txnAppId and txnVersion are for batch writes; a stream is known by its checkpoint")
        super().__init__(options, layout, staging)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or batch is None:
            raise PenstockError("Spark did not tell the task which streaming query and batch it works for")
        return self.staging.of(query).stage(encoded(iterator, self.layout), query, batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, StagedShare)]
        queries = {message.query for message in staged}
        if len(queries) > 1:
            raise PenstockError(f"one batch has the rows of several queries: {', '.join(map(str, queries))}")
        for query in queries:
            assert query is not None
            staging = self.staging.of(query)
            if any(message.events for message in staged):
                self._publish(staging, staged, mark_name("query", query, self.options.topic or ""), batchId)
            staging.sweep(batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in messages if isinstance(message, StagedShare)}:
            if query is not None:
                self.staging.of(query).sweep(batchId)

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

from penstock.errors import ConfigError, PenstockError
from penstock.journal.storage.block import Wire
from penstock.journal.storage.from_arrow import BLOCK_PAYLOAD, blocks
from penstock.limits import MAX_KEY_BYTES
from penstock.spark.sink.layout import SinkLayout
from penstock.spark.sink.staging import StagedShare, Staging, StagingFolder, staging_root
from penstock.spark.source.options import WriteOptions, write_options
from penstock.spark.source.stores import journal_id

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
    if options.place.served:
        from penstock.spark.served.writing import ServedStaging

        return ServedStaging(options.place, owner)
    return StagingFolder(options.place.url, staging_root(options.place.url, options.staging), owner)


class _TopicWriter:
    """What batch and stream writers share."""

    def __init__(self, options: WriteOptions, layout: SinkLayout, owner: str) -> None:
        self.options = options
        self.layout = layout
        self.staging = _staging(options, owner)

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, overwrite: bool) -> Self:
        """The writer of a frame; ConfigError when it cannot be written."""
        if overwrite:
            raise ConfigError(
                'a journal only grows: use mode("append"), or outputMode "append" or "update" for a stream'
            )
        options = write_options(given)
        if options.place.served:
            from penstock.spark.served.connection import check_may_write

            found: str | None = check_may_write(options.place, "this query").id
        else:
            found = journal_id(options.place.url)
        options = msgspec.structs.replace(options, journal=found)
        return cls(options, SinkLayout.of(schema, options), uuid.uuid4().hex)

    def _publish(self, staging: Staging, shares: Sequence[StagedShare], mark: str | None, version: int) -> None:
        queue = self.options.topic if self.options.queue else None
        staging.publish(shares, self.options.journal, mark, version, queue)


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

    def __init__(self, options: WriteOptions, layout: SinkLayout, owner: str) -> None:
        if options.app is not None:
            raise ConfigError("txnAppId and txnVersion are for batch writes; a stream is known by its checkpoint")
        super().__init__(options, layout, owner)

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

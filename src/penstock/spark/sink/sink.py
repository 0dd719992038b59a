"""Writing frames and streams to a topic or a queue: tasks stage blocks, the driver's commit publishes them at once.

The commit is one transaction of the journal, together with a mark that says which batch it was. A batch that is run
again, because whatever was killed before Spark could note its success, finds its mark and changes nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Self

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, PenstockError, QueueFull
from penstock.journal.commit.bulk import append_wires
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.block import Wire
from penstock.journal.storage.from_arrow import BLOCK_PAYLOAD, blocks
from penstock.limits import MAX_KEY_BYTES
from penstock.queue.queue import LocalQueue
from penstock.spark.sink.layout import SinkLayout
from penstock.spark.sink.staging import StagedBlocks, StagingFolder, staging_root
from penstock.spark.source.options import WriteOptions, write_options
from penstock.spark.source.stores import journal_id, writing

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


def publish(options: WriteOptions, messages: Sequence[StagedBlocks], mark: str | None, version: int) -> bool:
    """Appends what tasks have staged, in one transaction; False when the mark says that it was done before."""
    with writing(options.place.url, options.journal) as journal:
        queue = journal.queue(options.topic or "") if options.queue else None

        def apply(commit: Commit) -> bool:
            if mark is not None:
                done = commit.get_mark(mark)
                if done is not None and done >= version:
                    return False
            if queue is not None:
                _check_push(commit, queue, messages)
            pieces = (piece for message in messages for piece in message.wires())
            for topic, group in groupby(pieces, key=lambda piece: piece[0]):
                append_wires(commit, topic, (wire for _, wire in group))
            if mark is not None:
                commit.set_mark(mark, version)
            return True

        return bool(journal.run(apply))


def _check_push(commit: Commit, queue: LocalQueue, messages: Sequence[StagedBlocks]) -> None:
    """Raises what pushing the messages one by one would raise; a push is otherwise nothing but its event."""
    state = queue._cache.state(commit, queue.name)
    if state.policy.priority and any(message.keyed for message in messages):
        raise ConfigError(f"queue {queue.name!r} has priorities, and messages with priorities have no ordering keys")
    most, held, more = state.policy.max_size, state.unsettled(commit), sum(message.events for message in messages)
    if most is not None and held + more > most:
        raise QueueFull(
            f"queue {queue.name!r} holds {held} messages of at most {most}; {more} more do not fit: "
            "take some, or raise max_size with configure"
        )


def mark_name(*parts: str) -> str:
    """The name under which a journal remembers what a query or application has written."""
    name = ":".join(("spark", *parts))
    if len(name.encode()) > MAX_KEY_BYTES:
        name = f"spark:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


class _TopicWriter:
    """What batch and stream writers share."""

    def __init__(self, options: WriteOptions, layout: SinkLayout, owner: str) -> None:
        self.options = options
        self.layout = layout
        self.folder = StagingFolder(staging_root(options.place.url, options.staging), owner)

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, overwrite: bool) -> Self:
        """The writer of a frame; ConfigError when it cannot be written."""
        if overwrite:
            raise ConfigError(
                'a journal only grows: use mode("append"), or outputMode "append" or "update" for a stream'
            )
        options = write_options(given)
        if options.place.served:
            raise ConfigError(f"frames cannot be written to a served journal ({options.place.url})")
        options = msgspec.structs.replace(options, journal=journal_id(options.place.url))
        return cls(options, SinkLayout.of(schema, options), uuid.uuid4().hex)


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a frame once; with txnAppId and txnVersion, once for ever."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.folder.stage(encoded(iterator, self.layout), None, "0")

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self.options
        staged = [message for message in messages if isinstance(message, StagedBlocks)]
        mark = None if options.app is None else mark_name("app", options.app, options.topic or "")
        if mark is not None or any(message.events for message in staged):
            publish(options, staged, mark, options.version or 0)
        self.folder.remove()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.folder.remove()


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
        return self._folder(query).stage(encoded(iterator, self.layout), query, batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = [message for message in messages if isinstance(message, StagedBlocks)]
        queries = {message.query for message in staged}
        if len(queries) > 1:
            raise PenstockError(f"one batch has the rows of several queries: {', '.join(map(str, queries))}")
        for query in queries:
            assert query is not None
            if any(message.events for message in staged):
                publish(self.options, staged, mark_name("query", query, self.options.topic or ""), batchId)
            self._folder(query).sweep(batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for query in {message.query for message in messages if isinstance(message, StagedBlocks)}:
            if query is not None:
                self._folder(query).sweep(batchId)

    def _folder(self, query: str) -> StagingFolder:
        return StagingFolder(str(self.folder.root), query)

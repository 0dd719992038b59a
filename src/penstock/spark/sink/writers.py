"""Writers of frames and streams, whatever they write to: tasks stage their rows, the driver's commit publishes them.

A commit publishes with a mark that says which batch it was. A batch that is run again, because whatever was killed
before Spark could note its success, finds its mark and changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import ConfigError, PenstockError


@dataclass
class TaskShare(WriterCommitMessage):
    """What one task has staged for a job, which is a query or a batch write."""

    job: str


class Target(Protocol):
    """What rows are written to."""

    app: str | None
    """The application whose versions of a batch write are written once."""
    version: int

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> TaskShare:
        """Keeps a task's rows until the commit; `number` is the micro-batch, 0 for a job that has only one."""
        ...

    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> None:
        """Makes rows visible, at once; nothing when `by`, an application or a query, has written the version before."""
        ...

    def sweep(self, job: str, through: int | None = None) -> None:
        """Removes what a job has left, of batches up to a number."""
        ...


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame once; with txnAppId and txnVersion, once for ever."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.stage(iterator, self.job, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        target = self.target
        target.publish(_shares(messages), None if target.app is None else ("app", target.app), target.version)
        target.sweep(self.job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.target.sweep(self.job)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream's batches, each once, whatever is killed when."""

    def __init__(self, target: Target) -> None:
        if target.app is not None:
            raise ConfigError("txnAppId and txnVersion are for batch writes; a stream is known by its checkpoint")
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or batch is None:
            raise PenstockError("Spark did not tell the task which streaming query and batch it works for")
        return self.target.stage(iterator, query, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        shares = _shares(messages)
        queries = {share.job for share in shares}
        if len(queries) > 1:
            raise PenstockError(f"one batch has the rows of several queries: {', '.join(queries)}")
        for query in queries:
            self.target.publish(shares, ("query", query), batchId)
            self.target.sweep(query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for query in {share.job for share in _shares(messages)}:
            self.target.sweep(query, batchId)


def check_appends(overwrite: bool, what: str) -> None:
    """ConfigError when a write would replace what is there."""
    if overwrite:
        raise ConfigError(f'{what} only grows: use mode("append"), or outputMode "append" or "update" for a stream')


def _shares(messages: Sequence[WriterCommitMessage | None]) -> list[TaskShare]:
    return [message for message in messages if isinstance(message, TaskShare)]

"""The progress of a running flow: its query, its rates, its lag, and its reports in the journal.

The lag comes from the journal and the buffer, because Spark reports it only after batches. Topics count events, buffers
count manifest entries, because the contents of an entry are known only after it is fetched.
"""

from __future__ import annotations

import ast
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import penstock
from penstock.buffer.format import parse_manifest
from penstock.core.observe.pipelines import HEARTBEAT, FlowStatus, State, report
from penstock.core.observe.workers import keep_newest
from penstock.core.surface.journal import Journal
from penstock.errors import Denied, PenstockError
from penstock.spark.buffer import read_options, resolved
from penstock.spark.journals import reading, writing
from penstock.spark.options import is_served
from penstock.spark.pipeline.flows import BoundFlow, Endpoint

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


Offsets = Mapping[int, Mapping[str, int]]
"""The offsets through which each source has been read: for each of its topics a position, for each manifest the next
sequence."""

_BUFFER_INTERVAL = 1.0
"""The seconds between two reads of the manifests of a buffer, because each read is a request to the object store."""


class Lag:
    """The unread amount of a flow's sources."""

    def __init__(self, flow: BoundFlow) -> None:
        self.flow = flow
        self._served: dict[str, Journal] = {}
        self._read_bounds: dict[int, tuple[float, dict[str, tuple[int, int]]]] = {}
        """The time when each buffer's manifests were last looked at, and where they began and ended."""

    def total(self, offsets: Offsets) -> int | None:
        """Returns the unread amount of all sources; None when a source cannot tell."""
        total = 0
        for at, source in enumerate(self.flow.sources):
            if source.in_journal:
                found: int | None = self._in_topics(source, offsets.get(at))
            elif source.kind == "buffer":
                found = self._in_buffer(at, source, offsets.get(at))
            else:
                found = None
            if found is None:
                return None
            total += found
        return total

    def read_to(self, offsets: Offsets) -> dict[str, int]:
        """Returns the first sequence that was not read of every manifest, by the buffer's url and the manifest's
        path.
        """
        found: dict[str, int] = {}
        for at, source in enumerate(self.flow.sources):
            if source.kind == "buffer":
                url = read_options(resolved(source.options)).url.rstrip("/")
                found |= {f"{url}/{path}": sequence for path, sequence in offsets.get(at, {}).items()}
        return found

    def _in_topics(self, source: Endpoint, offsets: Mapping[str, int] | None) -> int:
        assert source.url is not None
        journal = self._journal(source.url)
        total = 0
        for name in source.names if source.kind != "pattern" else tuple(offsets or ()):
            topic = journal.topic(name)
            consumer = source.options.get("consumer", self.flow.consumer)
            done = offsets.get(name) if offsets else topic.cursor(consumer)
            total += topic.left(done or 0)
        return total

    def _journal(self, url: str) -> Journal:
        if not is_served(url):
            return reading(url)
        if url not in self._served:
            self._served[url] = penstock.open(url, read_only=True)
        return self._served[url]

    def _in_buffer(self, at: int, source: Endpoint, offsets: Mapping[str, int] | None) -> int | None:
        """Returns the manifest's entries beyond what was read; those that were read and not acknowledged yet do not
        count.
        """
        known = self._read_bounds.get(at)
        if known is None or time.monotonic() >= known[0] + _BUFFER_INTERVAL:
            try:
                known = self._read_bounds[at] = time.monotonic(), _bounds(source)
            except PenstockError:  # a lag that is not known for a moment is nothing to stop a flow for
                return None
        return sum(max(0, end - (offsets or {}).get(path, begin)) for path, (begin, end) in known[1].items())


def _bounds(source: Endpoint) -> dict[str, tuple[int, int]]:
    """Returns the first and the last sequence of each manifest of a buffer."""
    options = read_options(resolved(source.options))
    store = options.open()
    found = {}
    for paths in options.shard_paths:
        manifest = parse_manifest(store.get(paths.manifest))
        first = manifest.first_sequence()
        found[paths.manifest] = (manifest.next_sequence if first is None else first, manifest.next_sequence)
    return found


_WINDOW = 10.0
"""The seconds over which rows a second are counted."""


class RunningFlow:
    """A flow, its query, and its state."""

    def __init__(self, flow: BoundFlow, pipeline: str, mode: Literal["once", "continuous"]) -> None:
        self.flow = flow
        self.query: StreamingQuery | None = None
        self.due = 0.0
        """The monotonic time of its next start, if the flow is not running."""
        self.failures = 0
        """The number of failures since a batch last succeeded."""
        self.backfills = False
        """True if the query reads sealed files, and another query continues from their end."""
        self.repeated = False
        """True if a run over existing events was started a second time."""
        self.status = FlowStatus(
            pipeline=pipeline,
            flow=flow.name,
            state="pending",
            mode=mode,
            sources=[source.label for source in flow.sources],
            target=flow.target.label,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=datetime.now(UTC),
        )
        self._seen = ""
        self._counted: deque[tuple[float, int]] = deque()
        self._began = time.monotonic()
        self._offsets: dict[int, dict[str, int]] = {}
        self._lag = Lag(flow)

    def started(self, query: StreamingQuery) -> None:
        """Notes that the query runs from now on."""
        self.query = query
        self._seen = ""
        self.status.state = "running"
        self._began = time.monotonic()
        self._counted.clear()

    def ended(self, state: State, error: str | None = None) -> None:
        """Notes that the query no longer runs."""
        self.query = None
        self.status.state = state
        self.status.error = error
        self.status.rows_per_second = None

    def refresh(self) -> None:
        """Reads the batches that were completed since the last call."""
        if self.query is None:
            return
        newest: Any = self.query.lastProgress
        if newest is not None and newest["timestamp"] > self._seen:
            # All of them are asked for only when there may be more than the newest: Spark keeps a hundred.
            one = bool(self._seen) and self.status.batch is not None and newest["batchId"] <= self.status.batch + 1
            fresh: list[Any] = [newest] if one else list(self.query.recentProgress)
            for progress in fresh:
                if progress["timestamp"] > self._seen:
                    self._record_progress(progress)
            self._seen = fresh[-1]["timestamp"]  # a batch may have ended after the newest was asked for
        self._rate()
        self.status.lag = self._lag.total(self._offsets)
        self.status.read_to = self._lag.read_to(self._offsets)

    def _record_progress(self, progress: Any) -> None:
        rows = sum(int(source["numInputRows"]) for source in progress["sources"])
        self.status.rows += rows
        self.status.rows_out += max(0, int(progress["sink"].get("numOutputRows") or 0))  # -1: the sink cannot say
        self._counted.append((time.monotonic(), rows))
        for at, source in enumerate(progress["sources"]):
            with suppress(ValueError, TypeError, AttributeError, SyntaxError):
                # JSON, which a dictionary of numbers reads like in Python too: some versions of Spark write that.
                found = ast.literal_eval(source["endOffset"])
                self._offsets[at] = {name: int(seq) for name, seq in found.items()}
        if "addBatch" in progress["durationMs"]:  # not the sign of life of an idle query
            self.status.batch = int(progress["batchId"])
            self.status.batch_seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
            self.failures = 0
            self.status.error = None

    def _rate(self) -> None:
        now = time.monotonic()
        while self._counted and self._counted[0][0] < now - _WINDOW:
            self._counted.popleft()
        span = min(_WINDOW, max(now - self._began, 1.0))
        self.status.rows_per_second = round(sum(rows for _, rows in self._counted) / span, 1)


class Reporter:
    """A reporter that writes the states of flows to the journal, at most once a second; a failed report is repeated
    later.
    """

    COMPACT = 500
    """The number of reports after which old reports are removed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._said: dict[str, tuple[float, bytes]] = {}
        self._next = 0.0
        self._written = 0

    def report(self, flows: list[RunningFlow], *, now: bool = False) -> None:
        """Reports the flows that have changed, and flows without a recent report."""
        moment = time.monotonic()
        if moment < self._next and not now:
            return
        self._next = moment + 1.0
        changed = [running.status for running in flows if self._is_news(running.status, moment)]
        if not changed:
            return
        with suppress(PenstockError), self._journal() as journal:
            topic = journal.topic("penstock.pipelines")
            if not self._written:
                keep_newest(topic)
            report(journal, changed)
            self._written += len(changed)
            for status in changed:
                self._said[status.key] = moment, msgspec.json.encode(status)
            if self._written // self.COMPACT != (self._written - len(changed)) // self.COMPACT:
                with suppress(Denied):
                    topic.compact_keys()

    def _journal(self) -> AbstractContextManager[Journal]:
        return penstock.open(self.url) if is_served(self.url) else writing(self.url)

    def _is_news(self, status: FlowStatus, moment: float) -> bool:
        said = self._said.get(status.key)
        return said is None or moment - said[0] > HEARTBEAT or said[1] != msgspec.json.encode(status)

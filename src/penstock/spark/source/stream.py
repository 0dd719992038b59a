"""The streaming side of the source: offsets, admission, and the cursor that follows a query.

Spark asks for the newest offset with the end of the last batch that its checkpoint holds as complete, also while
nothing happens; that, and not the source's `commit` (which comes one batch late), is where the cursor goes.

In a checkpoint an offset has the positions by topic: `{"orders": 250}`. A topic that is dropped and made anew goes on
with the positions of the one before: a query that had read all of it goes on too, and one that had not has lost events,
as by compaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.source.filters import option_filter
from penstock.spark.source.journals import SourceJournal, check_rights, dropped, open_source
from penstock.spark.source.options import ReadOptions, check_stream
from penstock.spark.source.ranges import Offsets, Range, Topics, cut, limited, narrowed, signed
from penstock.spark.source.rows import SourceLayout, read_range

_OTHER = "#"
"""Ends what is no topic in the offsets of older checkpoints, and is ignored: no topic has it in its name."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a journal's topics batch after batch; offsets are positions by topic."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_stream(options)
        self.options = options
        self.layout = SourceLayout.of(schema, options)
        self._target: Offsets | None = None
        """How far trigger(availableNow=True) reads."""
        self._latest: tuple[int | None, Offsets, Offsets] | None = None
        """The store's changes when it was looked into, where its topics began, and how far they went."""
        self._served: SourceJournal | None = None
        self._behind = True
        """Whether the offsets that this query goes on from may be newer than what this process has seen."""
        self._followed: Offsets = {}
        self._initial: Offsets | None = None
        self._anchored = True
        self._filter = option_filter(options)
        self._read_at = time.monotonic()

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def initialOffset(self) -> dict[str, int]:
        """Where a new query starts. Spark asks more than once and must get one answer."""
        if self._initial is None:
            journal = self._opened()
            check_rights(self.options)
            with journal.state() as found:
                self._initial = Topics(found, self.options).starts()
            self._anchored = not self._moving
            self._follow(self._initial, back=True)
        return _sorted(self._initial)

    @property
    def _moving(self) -> bool:
        """Whether the place where the query starts would be another one if it were asked for again, after a crash.

        Then the first batch is left empty: the checkpoint holds the place before anything depends on it.
        """
        start = self.options.start
        return self.options.start_ms is not None or "latest" in (
            start.values() if isinstance(start, dict) else (start,)
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        known = positions_of(start)
        began, latest = self._now()
        self._follow({name: position for name, position in known.items() if name in latest})
        if not self._anchored:
            self._anchored = True
            return _sorted(start)
        if self.options.hold is not None and os.path.exists(self.options.hold):  # noqa: PTH110
            return _sorted(start)
        end = latest if self._target is None else self._target
        self._check_ahead(known, end)
        begin = {**began, **known}
        end = {name: max(position, begin.get(name, 0)) for name, position in end.items()}
        if self._too_few(begin, end):
            return _sorted(start)
        self._read_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        return _sorted({**known, **end})

    def _too_few(self, start: Offsets, end: Offsets) -> bool:
        """Whether a batch waits for more; trigger(availableNow=True) takes what there is."""
        least = self.options.min_offsets
        if least is None or self._target is not None:
            return False
        waiting = sum(position - start.get(name, 0) for name, position in end.items())
        return waiting < least and time.monotonic() - self._read_at < self.options.max_delay

    def reportLatestOffset(self) -> dict[str, int]:
        return _sorted(self._now()[1])

    def prepareForTriggerAvailableNow(self) -> None:
        self._behind = True
        self._target = self._now()[1]

    def _now(self) -> tuple[Offsets, Offsets]:
        """Where the topics began, and how far they go; asked for every few milliseconds, so that an unchanged store is
        not looked into."""
        journal = self._opened()
        changes = journal.changes()
        if self._latest is None or changes is None or self._latest[0] != changes:
            with journal.state() as found:
                topics = Topics(found, self.options)
                self._latest = changes, topics.began(), topics.latest()
        return self._latest[1:]

    def _opened(self) -> SourceJournal:
        """The journal; at a server, the one that this query began with."""
        if not self.options.place.served:
            # Kept by the process, and opened anew when it was replaced.
            journal = open_source(self.options.place, newest=self._behind)
            self._behind = False
            return journal
        if self._served is None:
            self._served = open_source(self.options.place)
        return self._served

    def _check_ahead(self, start: Offsets, end: Offsets) -> None:
        for name, latest in end.items():
            if self.options.fail_on_data_loss and latest < start.get(name, 0):
                raise ConfigError(
                    f"this query has read topic {name!r} through {start[name]}, and the topic ends at {latest}: "
                    f"{self.options.place.url} is another journal, or was restored from a backup. Start with a new "
                    "checkpoint, or set failOnDataLoss=false to wait until the topic has grown again"
                )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        journal = self._opened()
        with journal.state() as found:
            topics = Topics(found, self.options)
            begin, through, latest = {**topics.began(), **positions_of(start)}, positions_of(end), topics.latest()
            ends = {name: min(position, latest[name]) for name, position in through.items() if name in latest}
            for name, position in through.items():
                after = begin.get(name, 0)
                if self.options.fail_on_data_loss and name not in ends and position > after:
                    raise dropped(name, after, position)
            ranges = cut(topics, narrowed(topics, begin, ends, self._filter))
        return signed(ranges, journal.id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        journal = open_source(self.options.place, partition.journal)
        return read_range(journal, partition, self.layout, self._filter, strict=self.options.fail_on_data_loss)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: see the top of this file."""

    def stop(self) -> None:
        """Nothing to let go of: the process ends."""

    # ── the cursor ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _follow(self, reached: Offsets, *, back: bool = False) -> None:
        """Moves the query's cursor, so that its lag can be seen and compaction waits for it."""
        if self.options.consumer is None:
            return
        moved = {name: position for name, position in reached.items() if self._followed.get(name) != position}
        if moved:
            self._opened().follow(self.options.consumer, moved, back=back)
            self._followed = reached


def positions_of(offset: Mapping[str, int]) -> Offsets:
    """The positions of an offset by topic."""
    return {name: position for name, position in offset.items() if not name.endswith(_OTHER)}


def _sorted(offsets: Offsets) -> dict[str, int]:
    """Spark compares offsets as JSON text: the same offsets must have the same text."""
    return {name: offsets[name] for name in sorted(offsets)}

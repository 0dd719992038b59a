"""The streaming side of the source: offsets, admission, and the cursor that follows a query.

Spark asks for the newest offset with the end of the last batch that its checkpoint holds as complete, also while
nothing happens; that, and not the source's `commit` (which comes one batch late), is where the cursor goes.

In a checkpoint an offset has the positions by topic, as `topic#` the number of each topic of which something was read
or left behind, and as `#` a checksum of the id of the journal in which they have these numbers:

    {"orders": 250, "orders#": 3, "#": 2898456003}

A topic that is dropped and made again has another number, so that a query does not go on in it as if it were the same.
In a copy of the journal numbers say nothing; positions do.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.source.filters import option_filter
from penstock.spark.source.journals import Reached, SourceJournal, check_rights, dropped, open_source
from penstock.spark.source.options import ReadOptions, check_stream
from penstock.spark.source.ranges import Offsets, Range, Topics, cut, limited, narrowed, signed
from penstock.spark.source.rows import SourceLayout, read_range

_NUMBER = "#"
"""Behind a topic's name, in an offset: no topic has it in its name."""
_JOURNAL = ""
"""Among the numbers of topics, in the place of a name: the journal's."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a journal's topics batch after batch; offsets are positions by topic."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_stream(options)
        self.options = options
        self.layout = SourceLayout.of(schema, options)
        self._target: tuple[Offsets, Offsets] | None = None
        """How far trigger(availableNow=True) reads, and the numbers of the topics that went so far."""
        self._latest: tuple[int | None, Offsets, Offsets] | None = None
        """The store's changes when it was looked into, how far its topics went, and their numbers."""
        self._served: SourceJournal | None = None
        self._behind = True
        """Whether the offsets that this query goes on from may be newer than what this process has seen."""
        self._followed: dict[str, Reached] = {}
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
                topics = Topics(found, self.options)
                starts, numbers = topics.starts(), _numbers(journal, topics)
            self._initial = starts | _named(numbers, [name for name, position in starts.items() if position])
            self._anchored = not self._moving
            self._follow(starts, numbers, back=True)
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
        begin, numbers = split_offset(start)
        latest, now = self._now()
        self._check_numbers(numbers, now)
        self._follow(begin, now)
        if not self._anchored:
            self._anchored = True
            return _sorted(start)
        if self.options.hold is not None and os.path.exists(self.options.hold):  # noqa: PTH110
            return _sorted(start)
        end = latest if self._target is None else self._left_to_read(now)
        self._check_ahead(begin, end)
        end = {name: max(position, begin.get(name, 0)) for name, position in end.items()}
        if self._too_few(begin, end):
            return _sorted(start)
        self._read_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        read = [name for name, position in end.items() if position > begin.get(name, 0) and name in now]
        known = begin if read and numbers.get(_JOURNAL) != now[_JOURNAL] else start  # no numbers of another journal
        return _sorted({**known, **end, **_named(now, read)})

    def _left_to_read(self, now: Offsets) -> Offsets:
        """The target, without topics that are gone; what has their names now is read by the next run."""
        assert self._target is not None
        ends, numbers = self._target
        return {name: position for name, position in ends.items() if now.get(name) == numbers[name]}

    def _check_numbers(self, known: Offsets, now: Offsets) -> None:
        if not self.options.fail_on_data_loss or known.get(_JOURNAL) != now[_JOURNAL]:
            return
        for name, number in known.items():
            if now.get(name, number) != number:
                raise ConfigError(
                    f"topic {name!r} in {self.options.place.url} was dropped and made again since this query read it: "
                    "its positions are those of other events. Start with a new checkpoint, or set "
                    "failOnDataLoss=false to go on behind the position that was reached"
                )

    def _too_few(self, start: Offsets, end: Offsets) -> bool:
        """Whether a batch waits for more; trigger(availableNow=True) takes what there is."""
        least = self.options.min_offsets
        if least is None or self._target is not None:
            return False
        waiting = sum(position - start.get(name, 0) for name, position in end.items())
        return waiting < least and time.monotonic() - self._read_at < self.options.max_delay

    def reportLatestOffset(self) -> dict[str, int]:
        return _sorted(self._now()[0])

    def prepareForTriggerAvailableNow(self) -> None:
        self._behind = True
        self._target = self._now()

    def _now(self) -> tuple[Offsets, Offsets]:
        """How far the topics go, and their numbers; asked for every few milliseconds, so that an unchanged store is not
        looked into."""
        journal = self._opened()
        changes = journal.changes()
        if self._latest is None or changes is None or self._latest[0] != changes:
            with journal.state() as found:
                topics = Topics(found, self.options)
                self._latest = changes, topics.latest(), _numbers(journal, topics)
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
            positions, numbers = split_offset(end)
            self._check_numbers(numbers, _numbers(journal, topics))
            begin, latest = split_offset(start)[0], topics.latest()
            ends = {name: min(position, latest[name]) for name, position in positions.items() if name in latest}
            for name, position in positions.items():
                if self.options.fail_on_data_loss and name not in ends and position > begin.get(name, 0):
                    raise dropped(name)
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
    def _follow(self, offsets: Offsets, numbers: Offsets, *, back: bool = False) -> None:
        """Moves the query's cursor, so that its lag can be seen and compaction waits for it."""
        if self.options.consumer is None:
            return
        reached = {name: (position, numbers[name]) for name, position in offsets.items() if name in numbers}
        moved = {name: place for name, place in reached.items() if self._followed.get(name) != place}
        if moved:
            self._opened().follow(self.options.consumer, moved, back=back)
            self._followed = reached


def split_offset(offset: Mapping[str, int]) -> tuple[Offsets, dict[str, int]]:
    """The positions of an offset by topic, and the numbers of the topics that were read."""
    positions = {name: value for name, value in offset.items() if not name.endswith(_NUMBER)}
    numbers = {name[:-1]: value for name, value in offset.items() if name.endswith(_NUMBER)}
    return positions, numbers


def _numbers(journal: SourceJournal, topics: Topics) -> Offsets:
    return {_JOURNAL: zlib.crc32(journal.id.encode()), **topics.numbers()}


def _named(numbers: Offsets, names: Sequence[str]) -> Offsets:
    """The numbers of topics as an offset has them."""
    return {f"{name}{_NUMBER}": numbers[name] for name in (_JOURNAL, *names)} if names else {}


def _sorted(offsets: Offsets) -> dict[str, int]:
    """Spark compares offsets as JSON text: the same offsets must have the same text."""
    return {name: offsets[name] for name in sorted(offsets)}

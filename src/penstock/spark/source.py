"""The data source `penstock`: topics of a journal as tables and streams, and as a place to write to.

Spark asks a stream for the newest offset with the end of the last completed batch, also while nothing happens. The
cursor moves to this end, where Spark passes it (`versions`), and not at the source's `commit`, which comes one batch
late.

In a checkpoint, an offset holds positions by topic: `{"orders": 250}`. A topic that is dropped and made anew continues
the positions of the old topic. A query that had read all of the old topic continues; a query that had not has lost
events, as after a compaction.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.core.journal.reading import Bounds
from penstock.core.protocol.bulk import TopicEnds
from penstock.errors import ConfigError
from penstock.spark.journals import SourceJournal, check_kept, check_reach, check_rights, dropped, open_source
from penstock.spark.options import Offset, ReadOptions, check_stream, read_options, resolved
from penstock.spark.rows import (
    RowFilter,
    SourceLayout,
    TaskRanges,
    TopicRange,
    option_filter,
    read_ranges,
    source_schema,
)
from penstock.spark.sentences import in_sentences
from penstock.spark.startup.settings import told_parallelism
from penstock.spark.versions import LimitedReader, check_batch_limits

_TASK_BYTES = 128 << 20
"""The most bytes that a task reads, about: as Spark does with files. A task costs some 50 ms before its first row."""
_LOOK_UP = 65_536
"""Positions from which on it is worth asking where wanted events may be: less is read as fast."""
_YEAR_9999 = 253_370_764_800_000
"""Milliseconds after which nothing is recorded."""
_SPREAD_BYTES = 2 << 20
"""From this size on a read is spread over the cores, even if one task could do it."""
_UNTOLD_TASKS, _UNTOLD_BYTES = 64, 4 << 20
"""The spread of a read where Spark's parallelism is not known: each task has as many bytes as Spark's own shares of
files have at the least. On a machine that runs two tasks at once 64 take some two seconds longer than two."""
_OPENED_BYTES = 64 << 10
"""The least bytes that a range counts for: a task could read so much in the time that it takes to look for the range.
"""

Offsets = dict[str, int]
"""The position through which each topic has been read."""


class Topics:
    """The topics a query reads, and where they begin and end now."""

    def __init__(self, journal: SourceJournal, options: ReadOptions) -> None:
        self.journal = journal
        self.options = options
        names = options.topics
        if options.patterns:
            wanted = re.compile(options.expression or ".*")
            names = tuple(name for name in journal.matching(options.patterns) if wanted.fullmatch(name))
        self.found = journal.ends(names)
        for name in options.topics:
            if name not in self.found:
                there = ", ".join(journal.matching(("*",))) or "none yet"
                raise ConfigError(f"there is no topic {name!r} in {options.location.url}; topics: {there}")

    def starts(self) -> Offsets:
        """Returns the offsets at which a query begins that has not read anything yet."""
        return {name: self._start(name, ends) for name, ends in self.found.items()}

    def ends(self) -> Offsets:
        """Returns the offsets at which a batch query ends."""
        return {name: self._end(name, ends) for name, ends in self.found.items()}

    def began(self) -> Offsets:
        """Returns the offset at which a stream begins with each topic that it meets only now."""
        return {name: ends.began for name, ends in self.found.items()}

    def latest(self) -> Offsets:
        """Returns the newest offset of each topic."""
        return {name: ends.latest for name, ends in self.found.items()}

    def _start(self, name: str, ends: TopicEnds) -> int:
        if self.options.start_ms is not None:
            return max(self.journal.position_before(name, self.options.start_ms), ends.trimmed)
        start = _resolve(_for_topic(self.options.start, name, "earliest"), ends)
        if start > ends.latest:
            raise ConfigError(f"startingOffsets is {start}, and topic {name!r} ends at {ends.latest}")
        return start

    def _end(self, name: str, ends: TopicEnds) -> int:
        if self.options.end_ms is not None:
            return self.journal.position_before(name, self.options.end_ms)
        return min(_resolve(_for_topic(self.options.end, name, "latest"), ends), ends.latest)


def _for_topic(offset: Offset | dict[str, Offset], name: str, default: Offset) -> Offset:
    return offset.get(name, default) if isinstance(offset, dict) else offset


def _resolve(offset: Offset, ends: TopicEnds) -> int:
    if isinstance(offset, int):
        return offset
    return ends.trimmed if offset == "earliest" else ends.latest


def planned(topics: Topics, starts: Mapping[str, int], ends: Mapping[str, int], filter: RowFilter) -> list[TaskRanges]:
    """Returns the ranges that tasks read between offsets, as far as a filter leaves them."""
    return cut(topics, narrowed(topics, starts, ends, filter))


def narrowed(topics: Topics, starts: Mapping[str, int], ends: Mapping[str, int], filter: RowFilter) -> list[TopicRange]:
    """Returns the ranges between offsets, as far as a filter leaves them."""
    (first, through), (low, high) = filter.between("seq"), filter.between("recorded_at")
    wanted = filter.wanted()
    ranges = []
    for name, end in sorted(ends.items()) if all(filter.values.values()) else ():
        start, end = max(starts.get(name, 0), first - 1), min(end, through)
        if low > 0:
            start = max(start, topics.journal.position_before(name, low))
        if high < _YEAR_9999:
            end = min(end, topics.journal.position_before(name, max(0, high + 1)))
        if start >= end:
            continue
        if topics.options.fail_on_data_loss:
            check_kept(name, start, end, topics.found[name].trimmed)
        whole = start >= topics.found[name].whole
        if wanted is None or end - start < _LOOK_UP:
            ranges.append(TopicRange(name, [(start, end)], whole=whole))
            continue
        found = topics.journal.spans(name, (start, end), wanted)
        if found.spans or found.found:
            ranges.append(TopicRange(name, found.spans, found.found, whole))
    return ranges


def cut(topics: Topics, ranges: Sequence[TopicRange]) -> list[TaskRanges]:
    """Returns the same events for tasks to read: of about equal size, each with ranges of as many topics as that takes.

    Large ranges are cut first, between blocks where that is possible, into halves of what a task reads. Then every
    piece goes to the task in whose part of all the bytes its middle lies. No piece is larger than such a part, so that
    no task is left without one.
    """
    sized = list(_sized(topics.journal, ranges))
    total = sum(size for _, _, size in sized)
    least = topics.options.min_partitions or 1
    count = max(least, _task_count(total, told_parallelism()))
    tasks: dict[int, list[TopicRange]] = {}
    held = 0
    for of, span, size in sized:
        size *= count  # in these units a task's part is `total`
        pieces = [span] if span is None else _pieces(topics, of, span, -(-2 * size // total), exactly=least >= count)
        bounds = [size * number // len(pieces) for number in range(len(pieces) + 1)]
        for piece, (low, high) in zip(pieces, pairwise(bounds), strict=True):
            task = (2 * held + low + high) // (2 * total)
            _put(tasks.setdefault(task, []), of, piece)
        held += size
    return [TaskRanges(topics.journal.id, found) for found in tasks.values()]


def _sized(journal: SourceJournal, ranges: Sequence[TopicRange]) -> Iterator[tuple[TopicRange, Bounds | None, int]]:
    """Yields every span of every range, and before them, as None, what the plan has found of it; each with what it
    counts.
    """
    sizes = iter(journal.sizes([(of.topic, span) for of in ranges for span in of.spans]))
    for of in ranges:
        if of.found:
            yield of, None, max(_OPENED_BYTES, len(of.found))
        for span in of.spans:
            yield of, span, max(_OPENED_BYTES, next(sizes))


def _task_count(size: int, parallelism: int | None) -> int:
    """Returns the number of tasks that read so many bytes."""
    by_size = -(-size // _TASK_BYTES)
    if parallelism is None:
        return max(by_size, min(_UNTOLD_TASKS, size // _UNTOLD_BYTES))
    count = max(by_size, min(parallelism, size // _SPREAD_BYTES))
    return count if count <= parallelism else -(-count // parallelism) * parallelism  # the last leave no core idle


def _pieces(topics: Topics, of: TopicRange, span: Bounds, count: int, *, exactly: bool) -> list[Bounds]:
    return [span] if count == 1 else list(pairwise(topics.journal.cuts(of.topic, span, count, exactly=exactly)))


def _put(ranges: list[TopicRange], of: TopicRange, piece: Bounds | None) -> None:
    """Adds a piece of a topic's range, or with None what the plan has found of it, to those of a task."""
    if not ranges or ranges[-1].topic != of.topic:
        ranges.append(TopicRange(of.topic, [], whole=of.whole))
    last = ranges[-1]
    if piece is None:
        last.found = of.found
    elif last.spans and last.spans[-1][1] == piece[0]:
        last.spans[-1] = last.spans[-1][0], piece[1]
    else:
        last.spans.append(piece)


def share_of(start: Mapping[str, int], end: Mapping[str, int], most: int) -> Offsets:
    """Offsets at most `most` positions after `start`: each topic gets its share of what waits, as in Kafka's."""
    waiting = {name: end[name] - start.get(name, 0) for name in end}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    offsets: Offsets = {}
    left = most
    for name in sorted(waiting):
        share = min(left, waiting[name], -(-most * waiting[name] // total))
        offsets[name] = start.get(name, 0) + share
        left -= share
    return offsets


def bytes_of(journal: SourceJournal, start: Offsets, end: Offsets, most: int) -> Offsets:
    """Offsets about `most` bytes after `start`, and at least an event: each topic gets its share of what waits."""
    offsets, sizes = dict(end), _sizes(journal, start, end)
    total = sum(sizes.values())
    shares = {name: size if total <= most else most * size // total for name, size in sizes.items()}
    while larger := [name for name in sizes if sizes[name] > shares[name] and offsets[name] > start.get(name, 0) + 1]:
        for name in larger:
            low = start.get(name, 0)
            offsets[name] = low + max(1, (offsets[name] - low) * shares[name] // sizes[name])
        sizes = _sizes(journal, start, {name: offsets[name] for name in larger})
    return offsets


def _sizes(journal: SourceJournal, start: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
    """Returns about how many bytes there are between offsets, by topic."""
    spans = [(name, (start.get(name, 0), high)) for name, high in end.items()]
    return dict(zip(end, journal.sizes(spans), strict=True))


LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger")
"""The options that limit the size of a stream's batches."""


def is_moving(options: ReadOptions) -> bool:
    """Returns True if the place where a stream starts would be another place if it were asked for again, after a crash.

    Then the first batch is left empty: the checkpoint holds the place before anything depends on it.
    """
    start = options.start
    return options.start_ms is not None or "latest" in (start.values() if isinstance(start, dict) else (start,))


@in_sentences
class PenstockSource(DataSource):
    """`spark.read.format("penstock").option("url", …).option("topic", …)`, and the same for streams and writes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = resolved(options)
        check_reach(self.given["url"])

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        options = read_options(self.given)
        check_batch_limits(options.given, LIMITS)  # Spark 4.0 cannot always say why a stream's reader was refused
        return source_schema(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(read_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import BatchWriter, TopicTarget, check_appends

        check_appends(overwrite, "a journal")
        return BatchWriter(TopicTarget(self.given, schema, again=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink import StreamWriter, TopicTarget, check_appends

        check_appends(overwrite, "a journal")
        return StreamWriter(TopicTarget(self.given, schema, again=True))


@in_sentences
class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name in (*LIMITS, "consumer"):
            if name.lower() in options.given:
                raise ConfigError(f"{name} is for streams; a batch reads everything at once and keeps no cursor")
        if options.start == "latest":
            raise ConfigError('startingOffsets "latest" leaves a batch nothing to read; use "earliest" or a position')
        if options.end == "earliest":
            raise ConfigError('endingOffsets "earliest" leaves a batch nothing to read; use "latest" or a position')
        self.options = options
        self.layout = SourceLayout.of(schema, options)
        self.filter = option_filter(options)

    def partitions(self) -> Sequence[InputPartition]:
        journal = open_source(self.options.location, newest=True)
        check_rights(self.options)
        topics = Topics(journal, self.options)
        return planned(topics, topics.starts(), topics.ends(), self.filter)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskRanges):  # Spark makes one of its own when there are none
            return iter(())
        journal = open_source(self.options.location, partition.journal)
        return read_ranges(journal, partition, self.layout, self.filter, strict=self.options.fail_on_data_loss)


@in_sentences
class StreamReader(LimitedReader):
    """Reads a journal's topics batch after batch; offsets are positions by topic."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_stream(options)
        check_batch_limits(options.given, LIMITS)
        self.options = options
        self.limited = options.max_offsets is not None or options.max_bytes is not None
        self.layout = SourceLayout.of(schema, options)
        self._target: Offsets | None = None
        """The offsets through which trigger(availableNow=True) reads."""
        self._latest: tuple[int | None, Offsets, Offsets] | None = None
        """The store's changes when it was looked into, where its topics began, and how far they went."""
        self._served: SourceJournal | None = None
        self._behind = True
        """True if the offsets that this query goes on from may be newer than what this process has seen."""
        self._followed: Offsets = {}
        self._initial: Offsets | None = None
        self._anchored = True
        self._batch: tuple[Offsets, Offsets] = {}, {}
        """The first and the last offsets of the newest batch."""
        self._filter = option_filter(options)
        self._read_at = time.monotonic()

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def initialOffset(self) -> dict[str, int]:
        """Returns the offsets at which a new query starts. Spark asks more than once and must get one answer."""
        if self._initial is None:
            journal = self._opened()
            check_rights(self.options)
            self._initial = Topics(journal, self.options).starts()
            self._anchored = not is_moving(self.options)
            self._follow(self._initial, back=True)
        return _sorted(self._initial)

    def end_after(self, start: dict[str, int], *, limited: bool) -> dict[str, int]:
        began, latest = self._now()
        self._batch = start, start
        if self._stays():
            return _sorted(start)
        end = latest if self._target is None else self._target
        self._check_ahead(start, end)
        begin = {**began, **start}
        end = {name: max(position, begin.get(name, 0)) for name, position in end.items()}
        if self._too_few(begin, end):
            return _sorted(start)
        self._read_at = time.monotonic()
        if limited:
            end = self._within_limits(begin, end)
        self._batch = begin, end
        return _sorted({**start, **end})

    def _within_limits(self, start: Offsets, end: Offsets) -> Offsets:
        if self.options.max_offsets is not None:
            end = share_of(start, end, self.options.max_offsets)
        if self.options.max_bytes is not None:
            moved = {name: high for name, high in end.items() if high > start.get(name, 0)}
            end = {**end, **bytes_of(self._opened(), start, moved, self.options.max_bytes)}
        return end

    def _stays(self) -> bool:
        """Returns True if the next batch is left empty: the first of a query that starts at a moving place, or
        on hold."""
        if not self._anchored:
            self._anchored = True
            return True
        return self.options.hold is not None and os.path.exists(self.options.hold)  # noqa: PTH110

    def _too_few(self, start: Offsets, end: Offsets) -> bool:
        """Returns True if a batch waits for more; trigger(availableNow=True) takes what there is."""
        least = self.options.min_offsets
        if least is None or self._target is not None:
            return False
        waiting = sum(position - start.get(name, 0) for name, position in end.items())
        return waiting < least and time.monotonic() - self._read_at < self.options.max_delay

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """Returns the offsets that `lastProgress` shows as the latest: how far a topic goes, and what of it the batch
        has."""
        latest = self._now()[1]
        start, end = self._batch
        there = {name: end[name] for name in sorted(end.keys() & latest.keys())}
        sizes = _sizes(self._opened(), start, there)
        return {
            name: {
                "latest": latest[name],
                "events": high - start[name],
                "bytes": sizes[name],
                "lag": latest[name] - high,
            }
            for name, high in there.items()
        }

    def prepareForTriggerAvailableNow(self) -> None:
        self._behind = True
        self._target = self._now()[1]

    def _now(self) -> tuple[Offsets, Offsets]:
        """Returns the first and the newest offsets of the topics; asked for every few milliseconds, so that an
        unchanged store is not looked into."""
        journal = self._opened()
        changes = journal.changes()
        if self._latest is None or changes is None or self._latest[0] != changes:
            topics = Topics(journal, self.options)
            self._latest = changes, topics.began(), topics.latest()
        return self._latest[1:]

    def _opened(self) -> SourceJournal:
        """Returns the journal; at a server, the one that this query began with."""
        if not self.options.location.served:
            # Kept by the process, and opened anew when it was replaced.
            journal = open_source(self.options.location, newest=self._behind)
            self._behind = False
            return journal
        if self._served is None:
            self._served = open_source(self.options.location)
        return self._served

    def _check_ahead(self, start: Offsets, end: Offsets) -> None:
        for name, latest in end.items():
            if self.options.fail_on_data_loss and latest < start.get(name, 0):
                raise ConfigError(
                    f"this query has read topic {name!r} through {start[name]}, and the topic ends at {latest}: "
                    f"{self.options.location.url} is another journal, or was restored from a backup. Start with a new "
                    "checkpoint, or set failOnDataLoss=false to wait until the topic has grown again"
                )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self.plan(start, end)
        topics = Topics(self._opened(), self.options)
        begin, latest = {**topics.began(), **start}, topics.latest()
        ends = {name: min(position, latest[name]) for name, position in end.items() if name in latest}
        for name, position in end.items():
            after = begin.get(name, 0)
            if self.options.fail_on_data_loss and name not in ends and position > after:
                raise dropped(name, after, position)
        return planned(topics, begin, ends, self._filter)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskRanges)
        journal = open_source(self.options.location, partition.journal)
        return read_ranges(journal, partition, self.layout, self._filter, strict=self.options.fail_on_data_loss)

    def stop(self) -> None:
        """Does nothing, because the process ends."""

    # ── the cursor ───────────────────────────────────────────────────────────────────────────────────────────────────
    def done(self, reached: dict[str, int]) -> None:
        latest = self._now()[1] if self.options.consumer is not None else {}
        self._follow({name: position for name, position in reached.items() if name in latest})

    def _follow(self, reached: Offsets, *, back: bool = False) -> None:
        """Moves the query's cursor, so that its lag can be seen and compaction waits for it."""
        if self.options.consumer is None:
            return
        moved = {name: position for name, position in reached.items() if self._followed.get(name) != position}
        if moved:
            self._opened().follow(self.options.consumer, moved, back=back)
            self._followed = reached


def _sorted(offsets: Offsets) -> dict[str, int]:
    """Returns offsets in a fixed order, because Spark compares offsets as JSON text."""
    return {name: offsets[name] for name in sorted(offsets)}

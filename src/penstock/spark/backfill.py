"""Streams of sealed history: Spark reads the files, and the source `penstock` goes on from where they end.

A checkpoint holds the positions through which a query has read, and not its reader. So a query may start over a
checkpoint with a `SealedStream`, which gives sealed files to Spark's own Parquet reader, and then continue over the
same checkpoint with the source. Only the checkpoint holds where the first ends and the second begins. Either reads an
interrupted batch again, because the events between two positions are the same.

A batch keeps the order of positions, for flows that write the events they read. Spark's reader puts the largest files
first, so every file has its own part in the plan. The source reads small files, for which this costs more than it
saves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from penstock.core.journal.reading import Bounds
from penstock.core.journal.sealed.segments import SealedFiles
from penstock.errors import StorageError
from penstock.limits import BACKFILL_EVENTS, BACKFILL_FILE_EVENTS, BACKFILL_FILES
from penstock.spark.history import Lakes, fits, frame_of_plan, parsed, read_files, scala_object, spark_reads
from penstock.spark.journals import SourceJournal, check_kept, check_rights, dropped, open_source
from penstock.spark.options import ReadOptions, read_options
from penstock.spark.rows import SourceLayout, source_schema
from penstock.spark.source import Offsets, Topics, is_moving
from penstock.spark.versions import STREAM_CLASSES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_streams: WeakValueDictionary[str, SealedStream] = WeakValueDictionary()
"""The streams by their names in Spark's plans."""
_numbers = count(1)


def sealed_streams(
    spark: SparkSession, sources: Sequence[Mapping[str, str]], checkpoint: str
) -> list[DataFrame] | None:
    """Returns a stream of the sealed files ahead of a query for each of its sources; None when the sources are faster.

    `sources` are the options of the query's sources, which are all in journals. The streams also give a batch of the
    query that was planned and not completed. Over Spark Connect only the source can be read.
    """
    if getattr(spark, "_jvm", None) is None:
        return None
    progress = checkpoint_progress(spark, checkpoint, len(sources))
    if progress is None:
        return None
    streams = []
    for at, given in enumerate(sources):
        done = progress.done[at] if progress.done else None
        planned = progress.planned[at] if progress.planned else {}
        stream = _stream_of(spark, given, done, planned)
        if stream is None:
            return None
        streams.append(stream)
    ahead = [one for stream in streams for files in stream.files.values() for one in files]
    events = sum(one.last - one.first + 1 for one in ahead)
    if events < BACKFILL_EVENTS or events < BACKFILL_FILE_EVENTS * sum(len(one.paths) for one in ahead):
        return None
    return [stream.frame() for stream in streams]


def followed_options(name: str) -> Mapping[str, str] | None:
    """Returns the options of the source that a stream of sealed files stands for, by the stream's name in a plan."""
    stream = _streams.get(name)
    return None if stream is None else stream.given


# ── how far a query has come ─────────────────────────────────────────────────────────────────────────────────────────
class CheckpointProgress(NamedTuple):
    """The offsets of a query's sources, in their order, as its checkpoint has them."""

    done: list[Offsets] | None
    """The offsets through which all batches are complete; None when no batch is."""
    planned: list[Offsets] | None
    """The end of a batch that was planned and is not complete; None when there is none."""


def checkpoint_progress(spark: SparkSession, checkpoint: str, sources: int) -> CheckpointProgress | None:
    """Returns the progress of a query; None when the checkpoint has another format than that of Spark 4.0 to 4.3."""
    try:
        offsets = {at: _offsets(text, sources) for at, text in _log(spark, f"{checkpoint}/offsets")}
        newest, complete = (
            max(offsets, default=-1),
            max((at for at, _ in _log(spark, f"{checkpoint}/commits")), default=-1),
        )
        if newest - complete not in (0, 1):
            return None
        done = None if complete < 0 else offsets[complete]
        return CheckpointProgress(done, offsets[newest] if newest > complete else None)
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
        return None


def _log(spark: SparkSession, folder: str) -> Iterator[tuple[int, str]]:
    """Yields the entries of one of a checkpoint's logs, by the number of the batch."""
    from pyspark.errors import AnalysisException

    if "://" not in folder:
        found = [(file.name, file.read_text("utf-8")) for file in Path(folder).glob("[0-9]*")]
    else:
        try:
            rows = spark.read.option("wholetext", True).text(folder).select("_metadata.file_name", "value").collect()
        except AnalysisException:  # there is none yet
            return
        found = [(row.file_name, row.value) for row in rows]
    yield from ((int(name), text) for name, text in found if name.isdigit())


def _offsets(text: str, sources: int) -> list[Offsets]:
    """Returns the offsets of all sources in an entry of the log, which has a version, the query's settings, and a
    line each.
    """
    version, _, *lines = text.splitlines()
    if version != "v1" or len(lines) != sources:
        raise ValueError("offsets of another kind")
    return [{} if line == "-" else msgspec.json.decode(line, type=Offsets) for line in lines]


# ── the files ahead ──────────────────────────────────────────────────────────────────────────────────────────────────
def _stream_of(
    spark: SparkSession, given: Mapping[str, str], done: Offsets | None, planned: Offsets
) -> SealedStream | None:
    """Returns the stream of the sealed files ahead of a source; None when the source must continue by itself."""
    asked = read_options(given)
    if asked.max_bytes is not None or not spark_reads(asked) or (done is None and is_moving(asked)):
        return None
    if done is None:
        check_rights(asked)
    stream = SealedStream(spark, given, asked, open_source(asked.location, newest=True))
    topics = Topics(stream.source, asked)
    stream.begin = {**topics.began(), **(topics.starts() if done is None else done)}
    for name, ends in topics.found.items():
        after = stream.begin[name]
        if after < ends.trimmed and asked.fail_on_data_loss:
            return None  # the source says what is missing
        stream.files[name] = stream.run_of(name, (max(after, ends.trimmed), ends.latest))
    if len(topics.found) > 1 and (
        asked.max_offsets is not None or sum(map(len, stream.files.values())) > BACKFILL_FILES
    ):
        return None  # a batch has all files of several topics: else a watermark would pass over those of later topics
    if any(position > stream.end_of(name) for name, position in planned.items()):
        return None
    return stream


class SealedStream:
    """A stream of sealed files, in the shape of a source of the JVM's."""

    def __init__(
        self, spark: SparkSession, given: Mapping[str, str], asked: ReadOptions, source: SourceJournal
    ) -> None:
        self.given = given
        self.source = source
        self.begin: Offsets = {}
        """The position through which each topic has been read when the stream begins."""
        self.files: dict[str, list[SealedFiles]] = {}
        """The files of each topic that follow this position without a gap."""
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._asked = asked
        self._schema: StructType = parsed(source_schema(asked))
        parser = SourceLayout.of(self._schema, asked).parser
        self._typed = None if parser is None else {one.name: str(one.type) for one in parser.schema}
        self._lakes = Lakes(spark, asked)
        self._name = f"penstock history {next(_numbers)}"
        _streams[self._name] = self

    def frame(self) -> DataFrame:
        """Returns the frame of the stream."""
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self._spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        return frame_of_plan(self._spark, self._plan())

    def _plan(self) -> Any:
        relations = scala_object(self._spark, f"{STREAM_CLASSES}.StreamingExecutionRelation")
        return relations.apply(self, self._spark._jsparkSession)

    def run_of(self, topic: str, span: Bounds) -> list[SealedFiles]:
        """Returns the files that Spark can read and that follow a position without a gap."""
        run: list[SealedFiles] = []
        reached, end = span
        most = self._asked.max_offsets
        for one in self.source.sealed(topic, span, columns=self._typed is not None) if reached < end else ():
            follows = one.first <= reached + 1 <= one.last if not run else one.first == reached + 1
            fitting = most is None or one.last - one.first < most
            if not (follows and fitting and self._lakes.hold(one) and fits(one, self._typed)):
                break
            run.append(one)
            reached = one.last
        return run

    def end_of(self, topic: str) -> int:
        """Returns the position through which a topic's files go."""
        files = self.files.get(topic)
        return files[-1].last if files else self.begin.get(topic, 0)

    def _next_end(self, start: Offsets) -> Offsets:
        """Returns the end of the batch that begins at some offsets: as many whole files as a batch may have."""
        if len(self.files) > 1:
            return {**start, **{name: max(start[name], self.end_of(name)) for name in self.files}}
        [(name, files)] = self.files.items()
        ahead = [one.last for one in files if one.last > start[name]][:BACKFILL_FILES]
        most = self._asked.max_offsets
        ends = [last for last in ahead if most is None or last - start[name] <= most]
        return {**start, name: ends[-1] if ends else start[name]}

    # ── what Spark calls ─────────────────────────────────────────────────────────────────────────────────────────────
    def latestOffset(self, start: Any, limit: Any) -> Any:
        """Returns the end of the next batch; all batches before it are complete."""
        reached = self.begin if start is None else _decoded(start)
        if self._asked.consumer is not None:
            self.source.follow(self._asked.consumer, reached, back=start is None)
        if self._asked.hold is not None and Path(self._asked.hold).exists():
            return start
        end = self._next_end({**self.begin, **reached})
        return start if end == reached and start is not None else self._encoded(end)

    def getBatch(self, start: Any, end: Any) -> Any:
        """Returns the plan of a batch."""
        begins = {**self.begin, **(_decoded(start.get()) if start.isDefined() else {})}
        ends = self.source.ends(list(self.files))
        frames = []
        for name, through in _decoded(end).items():
            span = begins.get(name, 0), through
            if span[0] >= through:
                continue
            if name not in ends:
                raise dropped(name, *span)
            if self._asked.fail_on_data_loss:
                check_kept(name, *span, ends[name].trimmed)
            span = max(span[0], ends[name].trimmed), through
            files = self.run_of(name, span)  # looked for again: a seal may have joined some
            if span[0] < through and (not files or files[-1].last < through):
                raise StorageError(
                    f"sealed files of topic {name!r} were replaced or removed while a stream began to read them; try "
                    "again",
                    retryable=True,
                )
            frames += [self._events(name, one, span) for one in files]
        if not frames:
            nothing = scala_object(self._spark, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation")
            rows, stream = self._jvm.PythonUtils.toSeq([]), self._jvm.scala.Option.empty()
            return frame_of_plan(self._spark, nothing.apply(self._plan().output(), rows, True, stream))._jdf
        while len(frames) > 1:  # in pairs: Spark looks at all of a plan for each step
            frames = [
                one.unionAll(frames[at + 1]) if at + 1 < len(frames) else one
                for at, one in enumerate(frames)
                if at % 2 == 0
            ]
        return frames[0]._jdf

    def _events(self, topic: str, one: SealedFiles, span: Bounds) -> DataFrame:
        """Returns the events of a segment, in their order."""
        frame = read_files(self._spark, {topic: [one]}, {topic: span}, self._asked, self._schema, stream=True)
        return frame if len(one.paths) == 1 else frame.coalesce(1).sortWithinPartitions("seq")

    def getOffset(self) -> Any:
        """Returns nothing: Spark asks `latestOffset`."""
        return self._jvm.scala.Option.empty()

    def schema(self) -> Any:
        return self._spark._jsparkSession.parseDataType(self._schema.json())

    def deserializeOffset(self, text: str) -> Any:
        return self._encoded(msgspec.json.decode(text, type=Offsets))

    def getDefaultReadLimit(self) -> Any:
        return self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Does nothing, because the files are known already."""

    def reportLatestOffset(self) -> Any:
        return self._encoded({name: self.end_of(name) for name in self.files})

    def commit(self, end: Any) -> None:
        """Does nothing, because `latestOffset` knows the complete batches."""

    def stop(self) -> None:
        """Does nothing, because there is nothing to release."""

    def toString(self) -> str:
        return self._name

    def hashCode(self) -> int:
        return hash(self._name) & 0x7FFF_FFFF

    def equals(self, other: Any) -> bool:
        return str(other.toString()) == self._name

    def _encoded(self, offsets: Offsets) -> Any:
        text = json.dumps(offsets, sort_keys=True)  # as the source's: Spark compares texts
        return self._jvm.org.apache.spark.sql.execution.streaming.SerializedOffset.apply(text)

    class Java:
        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )


def _decoded(offset: Any) -> Offsets:
    return msgspec.json.decode(str(offset.json()), type=Offsets)

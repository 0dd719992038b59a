"""`read_topic`: a topic as one frame. Spark's own Parquet reader reads its sealed files, and the source reads the rest.

The events of the frame are fixed by positions: from the beginning to the end of each topic when the frame is made. A
sealed file is another place for some of these events, and never changes the set of events. So Spark reads a file only
where it gives the rows that the source would give; the source reads everything else:

- what is not sealed, or lies where Spark has no file system for it;
- with `payloadSchema`, files without typed columns of the same types, or with a payload that does not fit its columns;
- all of a topic, with `where` and `keys`, which the source looks up in the index, and with `payloadFormat=variant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from heapq import nlargest
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.core.journal.reading import Bounds
from penstock.core.journal.sealed.segments import SealedFiles
from penstock.core.local.backend import LocalJournal
from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError, StorageError
from penstock.spark.journals import LocalSource, SourceJournal, check_kept, check_rights, open_source
from penstock.spark.options import EVENT_COLUMNS, JournalLocation, ReadOptions, location_of_journal, read_options
from penstock.spark.options import resolved as resolved_options
from penstock.spark.places import places
from penstock.spark.rows import CORRUPT, source_schema
from penstock.spark.source import BatchReader, Topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

OptionValue = str | int | bool
_VERIFY = "parquet.page.verify-checksum.enabled"
"""The setting with which Spark's Parquet reader compares the checksums of pages."""
_HADOOP_SCHEMES = {"file": "", "s3": "s3a", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs"}
"""Arrow's names for places, and Hadoop's."""
_SETTINGS = {"endpoint": "endpoint", "access key": "access.key"}
"""The parameters of a lake's url, and their names in Spark's file system for S3."""
_RANGES = {
    *("topic", "topics", "topicpattern", "queue", "startingoffsets", "endingoffsets"),
    *("startingtimestamp", "endingtimestamp"),
}
"""The options that choose events; the source gets positions instead."""
_MOST_RUNS = 4
"""The most stretches of a topic that Spark reads: between two stretches, the source has a part of its own to plan."""


def read_topic(
    spark: SparkSession, journal: Journal | str, topic: str | None = None, **options: OptionValue
) -> DataFrame:
    """Returns a topic in its current state, with the rows and columns of the source `penstock` for the same options.

    Spark reads sealed history from its Parquet files, and only the columns and row groups that a query needs. With
    `payloadSchema`, it uses the files' typed columns. The source reads events that are not sealed. `options` are the
    options of the source, in its spelling; `topics`, `topicPattern` or `queue` may replace `topic`.

    The frame has the events that exist when it is made, also while sealing continues. It fails after its topic was
    dropped, unless all of its events are sealed.
    """
    location = location_of_journal(journal, "a frame of a topic")
    given = _resolved(location, topic, options)
    asked = read_options(given)
    schema = parsed(source_schema(asked))
    reader = BatchReader(asked, schema)
    typed = None if reader.layout.parser is None else {one.name: str(one.type) for one in reader.layout.parser.schema}
    lakes = Lakes(spark, asked)
    files: dict[str, list[SealedFiles]] = {}
    if isinstance(journal, LocalJournal):
        source: SourceJournal = LocalSource(journal, asked.location)
    else:
        source = open_source(asked.location, newest=True)
    check_rights(asked)
    topics = Topics(source, asked)
    starts, ends = topics.starts(), topics.ends()
    spans: dict[str, Bounds] = {}
    for name, start in starts.items():
        trimmed, end = topics.found[name].trimmed, ends[name]
        if asked.fail_on_data_loss and start < end:
            check_kept(name, start, end, trimmed)
        spans[name] = max(start, trimmed), end
        if spark_reads(asked) and spans[name][0] < end:
            found = source.sealed(name, spans[name], columns=typed is not None)
            files[name] = _largest_runs([one for one in found if lakes.hold(one) and fits(one, typed)])
    if not spans:  # a pattern that no topic matches
        return spark.read.format("penstock").options(**given).load()
    gaps = [_gaps(name, span, files.get(name, [])) for name, span in spans.items()]
    if asked.start == "earliest" and asked.start_ms is None:
        gaps = [_from_oldest(source, parts, spans) for parts in gaps]
    layers = [{part.topic: part for part in layer if part is not None} for layer in zip_longest(*gaps)]
    frames = []
    for by_reference in (False, True):
        some = {name: [one for one in found if bool(one.base_id) is by_reference] for name, found in files.items()}
        if any(some.values()):
            frames.append(read_files(spark, some, spans, asked, schema))
    if not layers and not frames:
        layers = [{name: _Part(name, end, end) for name, (_, end) in spans.items()}]
    frames += [_read_source(spark, given, layer) for layer in layers]
    return reduce(lambda one, other: one.unionAll(other), frames)


def _resolved(location: JournalLocation, topic: str | None, options: Mapping[str, OptionValue]) -> dict[str, str]:
    """Returns the source's options as it knows them itself."""
    named = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if {"url", "path"} & {name.lower() for name in named}:
        raise ConfigError("the journal is named twice: it is the argument before the topic, and no option here")
    if topic is not None:
        named["topic"] = topic
    if location.token is not None and "token" not in named:
        named["token"] = location.token.reveal()
    return resolved_options({"url": location.url, **named})


def parsed(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


# ── which files Spark reads ──────────────────────────────────────────────────────────────────────────────────────────
def spark_reads(asked: ReadOptions) -> bool:
    """Returns True if sealed files can answer a read."""
    by_index = asked.where is not None or asked.keys is not None or bool(asked.tags)
    return not by_index and asked.kinds != frozenset() and asked.payload != "variant"


def fits(files: SealedFiles, typed: Mapping[str, str] | None) -> bool:
    """Returns True if files have the requested typed columns."""
    return typed is None or typed.items() <= files.columns.items()


def _largest_runs(found: Sequence[SealedFiles]) -> list[SealedFiles]:
    """Returns the files of the stretches with the most events."""
    runs: list[list[SealedFiles]] = []
    for one in found:
        if runs and runs[-1][-1].last + 1 == one.first:
            runs[-1].append(one)
        else:
            runs.append([one])
    if len(runs) > _MOST_RUNS:
        runs = nlargest(_MOST_RUNS, runs, key=lambda run: sum(one.count for one in run))
    return sorted((one for run in runs for one in run), key=lambda one: one.first)


class Lakes:
    """The lakes that Spark's tasks can read."""

    def __init__(self, spark: SparkSession, asked: ReadOptions) -> None:
        self._context = getattr(spark, "_jsc", None)  # over Spark Connect there is none
        self._jvm = getattr(spark, "_jvm", None)
        self._served = asked.location.served
        self._known: dict[tuple[str, str, tuple[str, ...]], bool] = {}

    def hold(self, files: SealedFiles) -> bool:
        """Returns True if tasks can read some files. The pip package of Spark brings a file system for folders only."""
        if files.scheme == "file":
            # The folder of a served journal belongs to the server and may be on another machine.
            return not self._served or (self._is_here() and all(Path(path).exists() for path in files.paths))
        key = files.scheme, files.paths[0].partition("/")[0], tuple(files.settings)
        if key not in self._known:
            self._known[key] = self._has_file_system(*key)
        return self._known[key]

    def _is_here(self) -> bool:
        return self._context is not None and str(self._context.sc().master()).startswith("local")

    def _has_file_system(self, scheme: str, bucket: str, settings: Iterable[str]) -> bool:
        """Returns True if Spark has a file system for a scheme, with settings of its own where the lake's url has them.

        Spark's file system takes no endpoint and no credentials from a url: without settings of its own it would look
        in another place, or be refused.
        """
        if scheme not in _HADOOP_SCHEMES or self._context is None or self._jvm is None:
            return False
        from py4j.protocol import Py4JError

        configured = self._context.hadoopConfiguration()
        try:
            self._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(_HADOOP_SCHEMES[scheme], configured)
        except Py4JError:
            return False
        names = [_SETTINGS[one] for one in settings]
        return all(
            configured.get(f"fs.s3a.{name}") or configured.get(f"fs.s3a.bucket.{bucket}.{name}") for name in names
        )


# ── the frames ───────────────────────────────────────────────────────────────────────────────────────────────────────
class _Part(NamedTuple):
    """Events of a topic that the source reads: after a position, or from the oldest on, and through another."""

    topic: str
    after: int | None
    through: int


def _gaps(topic: str, span: Bounds, files: Sequence[SealedFiles]) -> list[_Part]:
    """Returns the parts of a span that are in none of some files."""
    after, end = span
    gaps = []
    for one in files:
        if one.first > after + 1:
            gaps.append(_Part(topic, after, one.first - 1))
        after = max(after, one.last)
    if after < end:
        gaps.append(_Part(topic, after, end))
    return gaps


def _from_oldest(source: SourceJournal, parts: list[_Part], spans: Mapping[str, Bounds]) -> list[_Part]:
    """Returns the parts of a topic, from its oldest event on where events expire.

    Some may expire before the source plans its read, which would miss them if it was told a position.
    """
    if parts and parts[0].after == spans[parts[0].topic][0] and source.expires(parts[0].topic):
        return [parts[0]._replace(after=None), *parts[1:]]
    return parts


def _read_source(spark: SparkSession, given: Mapping[str, str], parts: Mapping[str, _Part]) -> DataFrame:
    """Returns the source's frame of a part of each topic."""
    kept = {name: value for name, value in given.items() if name not in _RANGES}
    starts = {name: "earliest" if part.after is None else part.after for name, part in parts.items()}
    ends = {name: part.through for name, part in parts.items()}
    return (
        spark.read.format("penstock")
        .options(**kept)
        .option("topic", ",".join(parts))
        .option("startingOffsets", msgspec.json.encode(starts).decode())
        .option("endingOffsets", msgspec.json.encode(ends).decode())
        .load()
    )


def read_files(
    spark: SparkSession,
    files: Mapping[str, Sequence[SealedFiles]],
    spans: Mapping[str, Bounds],
    asked: ReadOptions,
    schema: StructType,
    *,
    stream: bool = False,
) -> DataFrame:
    """Returns Spark's own frame of sealed files, with the source's columns.

    Either all files hold positions, or none does.

    `stream`: the frame is the batch of a stream.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    stored = parsed(", ".join(f"{name} {kind}" for name, kind in {**EVENT_COLUMNS, "payload_bytes": "BINARY"}.items()))
    if asked.payload_schema is not None:
        stored = stored.__class__([*stored.fields, *parsed(asked.payload_schema).fields])
    found = [one for some in files.values() for one in some]
    paths = [_escaped(one.scheme, path) for one in found for path in one.paths]
    try:
        frame = spark.read.schema(stored).option(_VERIFY, "true").parquet(*paths)
    except AnalysisException as error:
        names = ", ".join(name for name, some in files.items() if some)
        raise StorageError(f"sealed history of topic {names} cannot be read by Spark: {error}") from error
    if stream:
        frame = _batch_of_stream(spark, frame)
    if found[0].base_id:
        frame = frame.withColumns(places(found))
    for name, some in files.items():
        for outside, condition in _outside(some, spans[name]):
            if outside:
                here = F.expr(condition)
                frame = frame.where(here if len(files) == 1 else (F.col("topic") != F.lit(name)) | here)
    if asked.kinds is not None:
        frame = frame.where(F.col("kind").isin(sorted(asked.kinds)))
    binary = any(one.binary for one in found)
    return frame.select(*(_column(field.name, asked, binary=binary).alias(field.name) for field in schema.fields))


def _batch_of_stream(spark: SparkSession, files: DataFrame) -> DataFrame:
    """Returns the frame of some files as Spark wants the batches of a stream, with a mark at the leaf of its plan."""
    relations = scala_object(spark, "org.apache.spark.sql.execution.datasources.LogicalRelation")
    return frame_of_plan(spark, relations.apply(files._jdf.queryExecution().analyzed().relation(), True))


def scala_object(spark: SparkSession, name: str) -> Any:
    """Returns an object of Scala's, by its name."""
    found: Any = reduce(getattr, f"{name}$.MODULE$".split("."), spark._jvm)
    return found


def frame_of_plan(spark: SparkSession, plan: Any) -> DataFrame:
    """Returns the frame of a logical plan in the JVM."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    jvm: Any = spark._jvm
    return ClassicFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _outside(files: Sequence[SealedFiles], span: Bounds) -> Iterator[tuple[bool, str]]:
    """Returns True if files hold events before and behind a span, with the condition that leaves them out."""
    start, end = span
    yield bool(files) and files[0].first <= start, f"seq > {start}"
    yield bool(files) and files[-1].last > end, f"seq <= {end}"


def _column(name: str, asked: ReadOptions, *, binary: bool) -> Column:
    """Returns a column of the source, made of those in the files; `binary`: some payloads are bytes."""
    from pyspark.sql import functions as F

    text, raw = F.col("payload"), F.col("payload_bytes")
    if name == CORRUPT:
        return F.lit(None).cast("string")
    if name != "payload":
        return F.col(f"`{name if name in EVENT_COLUMNS else name.removeprefix(asked.payload_prefix)}`")
    if asked.payload_schema is not None:
        fields = F.struct(*(F.col(f"`{one.name}`") for one in parsed(asked.payload_schema).fields))
        return F.when(text != F.lit("null"), fields)
    if asked.payload == "binary":
        return F.coalesce(text.cast("binary"), raw)
    return F.coalesce(text, F.decode(raw, "UTF-8")) if binary else text


def _escaped(scheme: str, path: str) -> str:
    """Returns the path under which Spark finds a file; signs that it would take for a pattern are escaped."""
    path = re.sub(r"([\\*?\[\]{}])", r"\\\1", path)
    return path if scheme == "file" else f"{_HADOOP_SCHEMES[scheme]}://{path}"

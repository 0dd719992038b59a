"""`seal`: settled history becomes Parquet, by Spark's tasks where a master is given; `lake`: a topic as one frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs

from penstock.api import local, open_local
from penstock.errors import ConfigError, StorageError
from penstock.journal.reading import TopicView
from penstock.journal.sealed.columns import columns_text
from penstock.journal.sealed.files import open_lake
from penstock.journal.sealed.sealing import Range, WriteSegments, seal_topic
from penstock.journal.sealed.segments import FILE_EVENTS, SealReport, Segment, load_segments
from penstock.journal.sealed.tables import TableRequest
from penstock.journal.sealed.writing import SealTarget, write_segment
from penstock.journal.to_arrow import arrow_schema
from penstock.local.backend import LocalJournal
from penstock.names import TableFormat, check_name, split_url
from penstock.protocol.bulk import SealRequest
from penstock.remote.backend import RemoteJournal, seal_served
from penstock.spark.journals import check_reach, reading
from penstock.spark.options import EVENT_COLUMNS, JournalLocation, absolute_url, is_served, location_of_journal
from penstock.spark.served import served_journal
from penstock.spark.startup.sessions import active_context, context
from penstock.surface.journal import Journal
from penstock.units import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def seal(
    journal: Journal | str,
    topic: str,
    *,
    lake: str,
    through: int | None = None,
    master: str | None = None,
    format: TableFormat | None = None,
    columns: str | type[object] | None = None,
    catalog: str | None = None,
    partition_by: str | None = None,
    compact: bool = False,
    file_events: int = FILE_EVENTS,
    progress: Progress | None = None,
) -> SealReport:
    """Moves a topic's settled history into Parquet under `lake` (a folder, s3://bucket/prefix, …).

    Reads go on as before, across both. Without `through`, everything but the newest block is settled. Call it again to
    go on, also after a kill: what was sealed stays, what was half done is done again. With `master`, or
    where this process has a Spark session that reaches the journal, Spark's tasks write the files: the same bytes.

    `format="delta"` or `"iceberg"` registers the files in a table as well; an Iceberg table is in the `catalog` named,
    or one beside the lake. `columns="customer STRING, total DOUBLE"` (or a declared event type) adds fields of the
    payload as typed columns; `partition_by` one of them (or "kind"), and each of its values has files of its own, in a
    folder below the day's. Later seals to the same lake go on with all this. `compact` joins small files of a day.

    A served journal (http://…, with PENSTOCK_TOKEN) is sealed by its server, to a lake that it was started with.
    """
    served = _served(journal)
    if served is not None:
        if master is not None:
            raise ConfigError("a served journal is sealed by its server: leave master out, or seal where the store is")
        wanted = SealRequest(
            lake, through, format, columns_text(columns) or None, catalog, partition_by, compact, file_events
        )
        with served as opened_there:
            return seal_served(opened_there, topic, wanted, progress)
    with _opened(journal) as opened:
        write = _on_spark(opened, master) if master is not None or _session_reaches(opened) else None
        return seal_topic(
            opened.backend.core,
            topic,
            lake=lake,
            through=through,
            file_events=file_events,
            table=TableRequest(format, columns, catalog, partition_by),
            compact=compact,
            progress=progress,
            write=write,
        )


def _served(journal: Journal | str) -> AbstractContextManager[RemoteJournal] | None:
    """The journal behind a server's url, closed afterwards where it is opened here; None: it is no served one."""
    if isinstance(journal, RemoteJournal):
        return nullcontext(journal)
    return RemoteJournal(journal) if isinstance(journal, str) and is_served(journal) else None


@contextmanager
def _opened(journal: Journal | str) -> Iterator[LocalJournal]:
    if isinstance(journal, str):
        open_local(journal, read_only=True).close()  # a mistyped name makes no journal
        with open_local(journal) as opened:
            yield opened
    else:
        yield local(journal, "sealing a topic")


def _session_reaches(journal: LocalJournal) -> bool:
    """Whether this process has a Spark session whose tasks can open the journal."""
    running = active_context()
    if running is None:
        return False
    try:
        check_reach(_url_of(journal), running.master)
    except ConfigError:
        return False
    return True


def _url_of(journal: LocalJournal) -> str:
    return absolute_url(f"{journal.backend.engine.scheme}:{journal.backend.engine.location}")


def _on_spark(journal: LocalJournal, master: str | None) -> WriteSegments:
    url = _url_of(journal)

    def write(target: SealTarget, ranges: list[Range]) -> Iterator[Segment]:
        if not ranges:
            return
        running = context("penstock seal", master)
        check_reach(url, running.master)
        task = _SegmentTask(url, journal.id, target)
        step = max(1, running.defaultParallelism)
        for start in range(0, len(ranges), step):
            some = ranges[start : start + step]
            yield from running.parallelize(some, len(some)).map(task).collect()

    return write


class _SegmentTask:
    """The work of a Spark task: one file."""

    def __init__(self, url: str, journal: str, target: SealTarget) -> None:
        self.url = url
        self.journal = journal
        self.target = target

    def __call__(self, bounds: Range) -> Segment:
        return write_segment(reading(self.url, self.journal).backend.engine, self.target, *bounds)


_DDL = ", ".join(f"{name} {type_}" for name, type_ in {**EVENT_COLUMNS, "payload_bytes": "BINARY"}.items())
_VERIFY = "parquet.page.verify-checksum.enabled"
"""Spark's Parquet reader compares the checksums of pages when this is set, and else none."""
_HADOOP_SCHEMES = {"s3": "s3a", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs"}
"""Arrow's names for places, and Hadoop's."""


def lake(
    spark: SparkSession, journal: Journal | str, topic: str, *, payload: Literal["json", "binary"] = "json"
) -> DataFrame:
    """A topic as it is now, with the columns of the source `penstock`: sealed history straight from its Parquet files.

    What is not sealed yet comes through the source, so the frame has every event once, also when sealing goes on while
    it is read. Lakes that Spark has no file system for are read through the source as well, and so are those of a
    served journal (http://…). A frame whose topic was dropped since fails when it is used (PositionTrimmed once
    there is one of its name again), unless all of its rows are in sealed files, which stay.
    """
    check_name(topic)
    if payload not in ("json", "binary"):
        raise ConfigError(f'payload is "json" or "binary", not {payload!r}')
    location = location_of_journal(journal, "a lake frame")
    if location.served:
        return _served_lake(spark, location, topic, payload)
    url = location.url
    opening: AbstractContextManager[LocalJournal] = (
        nullcontext(journal) if isinstance(journal, LocalJournal) else open_local(url, read_only=True)
    )
    with opening as opened, opened.backend.engine.read() as snap:
        view = TopicView.open(snap, topic, opened.backend.core.clock.now_ms())
        if view is None:
            raise ConfigError(f"there is no topic {topic!r} in {url}")
        trimmed, latest = view.trimmed(), view.latest()
        segments = list(load_segments(snap, view.topic_id, trimmed))
    if segments and not all(_reachable(spark, lake) for lake in {segment.lake for segment in segments}):
        segments = []
    after = segments[-1].last if segments else trimmed
    source = spark.read.format("penstock").options(url=url, topic=topic, payloadFormat=payload)
    tail = source.options(startingOffsets=str(after), endingOffsets=str(latest)).load()
    if not segments:
        return tail
    sealed = _sealed(spark, segments, topic, payload)
    if segments[0].first <= trimmed:
        sealed = sealed.where(f"seq > {trimmed}")
    return sealed if after == latest else sealed.unionAll(tail)


def _served_lake(spark: SparkSession, location: JournalLocation, topic: str, payload: str) -> DataFrame:
    """A topic of a served journal, all of it through the server: the lake's files are the server's to reach."""
    ends = served_journal(location, None).ends([topic]).get(topic)
    if ends is None:
        raise ConfigError(f"there is no topic {topic!r} in {location.url}")
    source = spark.read.format("penstock").options(url=location.url, topic=topic, payloadFormat=payload)
    if location.token is not None:
        source = source.option("token", location.token.reveal())
    return source.options(startingOffsets=str(ends.trimmed), endingOffsets=str(ends.latest)).load()


def _sealed(spark: SparkSession, segments: list[Segment], topic: str, payload: str) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        reader = spark.read.schema(_DDL).option(_VERIFY, "true")
        files = reader.parquet(*(_path(one, file.path) for one in segments for file in one.files))
    except AnalysisException as error:
        raise StorageError(f"sealed history of topic {topic!r} cannot be read by Spark: {error}") from error
    text, raw = F.col("payload"), F.col("payload_bytes")
    if payload == "binary":
        column = F.coalesce(text.cast("binary"), raw)
    elif any(segment.binary for segment in segments):
        column = F.coalesce(text, F.decode(raw, "UTF-8"))
    else:
        column = text
    return files.select(*(column.alias(name) if name == "payload" else name for name in arrow_schema().names))


def _path(segment: Segment, file: str) -> str:
    """Where Spark finds a file; signs that it would take for a pattern are escaped."""
    _, root = open_lake(segment.lake)
    path = re.sub(r"([\\*?\[\]{}])", r"\\\1", f"{root}/{file}")
    scheme = split_url(segment.lake).scheme if "://" in segment.lake else "file"
    return path if scheme == "file" else f"{_HADOOP_SCHEMES[scheme]}://{path}"


def _reachable(spark: SparkSession, lake: str) -> bool:
    """Whether Spark has a file system for a lake: the pip package brings the local one only.

    A lake's url may name an endpoint and credentials. Spark's file system does not take them from a url: unless the
    session is set up with its own, it would look in another place, or be turned away.
    """
    parts = split_url(lake) if "://" in lake else split_url("file:")
    if parts.scheme == "file":
        return True
    context = getattr(spark, "_jsc", None)
    if parts.scheme not in _HADOOP_SCHEMES or context is None:
        return False
    from py4j.protocol import Py4JError

    settings = context.hadoopConfiguration()
    try:
        file_system = spark._jvm.org.apache.hadoop.fs.FileSystem  # type: ignore[union-attr]
        file_system.getFileSystemClass(_HADOOP_SCHEMES[parts.scheme], settings)
    except Py4JError:
        return False
    needed = []
    if "endpoint_override" in parse_qs(parts.query):
        needed.append("endpoint")
    if parts.username:
        needed.append("access.key")
    return all(
        settings.get(f"fs.s3a.{name}") or settings.get(f"fs.s3a.bucket.{parts.hostname}.{name}") for name in needed
    )

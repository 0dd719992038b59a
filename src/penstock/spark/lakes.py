"""`lake()`: a topic with sealed history as one frame, read by Spark's own Parquet reader where it is sealed."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs

from penstock.api import open_local
from penstock.errors import ConfigError, StorageError
from penstock.journal.commit.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import open_lake
from penstock.journal.sealed.segments import Segment, load_segments
from penstock.journal.storage.to_arrow import arrow_schema
from penstock.local.journal import LocalJournal
from penstock.names import check_name, split_url
from penstock.spark.served.journal import served_journal
from penstock.spark.source.place import JournalPlace, place_of_journal
from penstock.surface.journal import Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL = (
    "seq BIGINT, topic STRING, kind STRING, key STRING, scope STRING, payload STRING, headers MAP<STRING, STRING>, "
    "occurred_at TIMESTAMP, recorded_at TIMESTAMP, id STRING, correlation_id STRING, causation_id STRING, "
    "payload_bytes BINARY"
)
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
    place = place_of_journal(journal, "a lake frame")
    if place.served:
        return _served(spark, place, topic, payload)
    url = place.url
    opening: AbstractContextManager[LocalJournal] = (
        nullcontext(journal) if isinstance(journal, LocalJournal) else open_local(url, read_only=True)
    )
    with opening as opened, opened._engine.read() as snap:
        view = TopicView.open(snap, topic)
        if view is None:
            raise ConfigError(f"there is no topic {topic!r} in {url}")
        latest = view.latest()
        state = load_state(snap, view.number, topic)
        segments = list(load_segments(snap, view.number, state.trimmed))
    if segments and not all(_reachable(spark, lake) for lake in {segment.lake for segment in segments}):
        segments = []
    after = segments[-1].last if segments else state.trimmed
    source = spark.read.format("penstock").options(url=url, topic=topic, payloadFormat=payload)
    tail = source.options(startingOffsets=str(after), endingOffsets=str(latest)).load()
    if not segments:
        return tail
    sealed = _sealed(spark, segments, topic, payload)
    if segments[0].first <= state.trimmed:
        sealed = sealed.where(f"seq > {state.trimmed}")
    return sealed if after == latest else sealed.unionAll(tail)


def _served(spark: SparkSession, place: JournalPlace, topic: str, payload: str) -> DataFrame:
    """A topic of a served journal, all of it through the server: the lake's files are the server's to reach."""
    ends = served_journal(place, None).ends([topic]).ends.get(topic)
    if ends is None:
        raise ConfigError(f"there is no topic {topic!r} in {place.url}")
    source = spark.read.format("penstock").options(url=place.url, topic=topic, payloadFormat=payload)
    if place.token is not None:
        source = source.option("token", place.token.reveal())
    return source.options(startingOffsets=str(ends.trimmed), endingOffsets=str(ends.latest)).load()


def _sealed(spark: SparkSession, segments: list[Segment], topic: str, payload: str) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        files = spark.read.schema(_DDL).parquet(*(_path(one, file.path) for one in segments for file in one.files))
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

"""The data source `penstock`: topics of a journal as tables and streams, and as a place to write to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.source.filters import option_filter, take_filters
from penstock.spark.source.journals import check_rights, open_source
from penstock.spark.source.options import ReadOptions, read_options, resolved
from penstock.spark.source.ranges import Range, Topics, cut, narrowed, signed
from penstock.spark.source.rows import SourceLayout, read_range, source_schema
from penstock.spark.source.stores import check_reach

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


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
        return source_schema(read_options(self.given))

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = PushdownReader if _PUSHDOWN_WORKER in sys.modules else BatchReader
        return kind(read_options(self.given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.source.stream import StreamReader

        return StreamReader(read_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.sink import TopicTarget
        from penstock.spark.sink.writers import BatchWriter, check_appends

        check_appends(overwrite, "a journal")
        return BatchWriter(TopicTarget(self.given, schema, again=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink.sink import TopicTarget
        from penstock.spark.sink.writers import StreamWriter, check_appends

        check_appends(overwrite, "a journal")
        return StreamWriter(TopicTarget(self.given, schema, again=True))


class BatchReader(DataSourceReader):
    """Reads what is there when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "consumer"):
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
        journal = open_source(self.options.place, newest=True)
        check_rights(self.options)
        with journal.state() as found:
            topics = Topics(found, self.options)
            ranges = cut(topics, narrowed(topics, topics.starts(), topics.ends(), self.filter))
        return signed(ranges, journal.id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):  # Spark makes one of its own when there are none
            return iter(())
        journal = open_source(self.options.place, partition.journal)
        return read_range(journal, partition, self.layout, self.filter, strict=self.options.fail_on_data_loss)


class PushdownReader(BatchReader):
    """The same, with filters; Spark refuses a reader that has `pushFilters` unless its setting for it is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        done, rest = take_filters(filters)
        self.filter = self.filter.and_(done)
        return rest

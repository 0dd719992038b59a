"""Who may ask a buffer for what: reads, streams and writes by the name `penstock-buffer`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

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

from penstock.buffer.format import parse_manifest
from penstock.errors import ConfigError
from penstock.spark.buffer.options import BufferReadOptions, read_options, resolved, write_options
from penstock.spark.buffer.rows import DDL, BufferLayout, ManifestRange, cut, read_run


class BufferSource(DataSource):
    """`spark.read.format("penstock-buffer").option("url", "s3://…")`, and the same for streams and writes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = resolved(options)

    @classmethod
    def name(cls) -> str:
        return "penstock-buffer"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BufferBatchReader(read_options(self.given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.buffer.stream import BufferStreamReader

        return BufferStreamReader(read_options(self.given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.buffer.sink import BufferTarget
        from penstock.spark.sink.writers import BatchWriter, check_appends

        check_appends(overwrite, "a buffer")
        return BatchWriter(BufferTarget(write_options(self.given), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.buffer.sink import BufferTarget
        from penstock.spark.sink.writers import StreamWriter, check_appends

        check_appends(overwrite, "a buffer")
        return StreamWriter(BufferTarget(write_options(self.given), schema))


class BufferBatchReader(DataSourceReader):
    """Looks at what is in the manifest when the query is planned; owns nothing and acknowledges nothing."""

    def __init__(self, options: BufferReadOptions, schema: StructType) -> None:
        for name in ("startingOffsets", "maxOffsetsPerTrigger", "gcInterval"):
            if name.lower() in options.given:
                raise ConfigError(f"{name} is for streams; a batch looks at everything that is in the buffer now")
        self.options = options
        self.layout = BufferLayout.of(schema)

    def partitions(self) -> Sequence[InputPartition]:
        store = self.options.open()
        manifests = [place.manifest for place in self.options.places]
        return cut([(path, list(parse_manifest(store.get(path)))) for path in manifests], self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ManifestRange):  # Spark makes one of its own when there are none
            return iter(())
        return read_run(partition, self.options, self.layout)

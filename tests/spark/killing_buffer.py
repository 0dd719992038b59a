"""The source and sink `penstock-buffer` with kills at the stages of a batch, and the program that runs two flows.

in:  buffer → topic      out: topic → buffer

Each flow has a folder of its own for its order to kill; see `killing`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import killing
from killing import KillingSource, reach
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import penstock.spark
from penstock.buffer.manifest import ManifestObject
from penstock.spark.buffer import sink
from penstock.spark.buffer.source import BufferSource
from penstock.spark.buffer.stream import StreamReader


class KillingBufferSource(BufferSource):
    """The source `penstock-buffer`, with option kill: the folder of the order."""

    def __init__(self, options: Any) -> None:
        options = dict(options)
        self.folder = options.pop("kill")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "penstock-buffer-killing"

    def streamReader(self, schema: StructType) -> Any:
        reader = super().streamReader(schema)
        reader.__class__ = KillingBufferReader
        reader.folder = self.folder
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = KillingBufferWriter
        writer.kill = self.folder
        return writer


class KillingBufferReader(StreamReader):
    folder: str

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
        reach(self.folder, "planned")
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            reach(self.folder, "reading")
            yield batch.slice(half)


class KillingBufferWriter(sink.StreamWriter):
    kill: str

    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)
        reach(self.kill, "writing")
        return message

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        with _killed_before_the_put(self.kill):
            super().commit(messages, batchId)
        reach(self.kill, "published")


@contextlib.contextmanager
def _killed_before_the_put(folder: str) -> Iterator[None]:
    append = ManifestObject.append

    def killing(manifest: Any, entries: Any, mark: Any = None) -> int:
        reach(folder, "publishing")
        return append(manifest, entries, mark)

    ManifestObject.append = killing  # type: ignore[method-assign]
    try:
        yield
    finally:
        ManifestObject.append = append  # type: ignore[method-assign]


def run(writer: Any, checkpoint: Path) -> None:
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def into_topic(spark: SparkSession, folder: Path) -> None:
    """The flow in: everything in the buffer becomes events, two objects a batch."""
    kill, url = str(folder / "in"), f"file://{folder}/arriving"
    stream = spark.readStream.format("penstock-buffer-killing").options(url=url, kill=kill, maxOffsetsPerTrigger=2)
    events = stream.load().selectExpr("'arrived' as kind", "cast(entry as string) as payload")
    writer = events.writeStream.format("penstock-killing").options(url=str(folder / "shop.db"), kill=kill)
    run(writer.option("topic", "events"), folder / "in" / "checkpoint")


def into_buffer(spark: SparkSession, folder: Path) -> None:
    """The flow out: every event becomes an entry, six a batch."""
    kill, url = str(folder / "out"), str(folder / "shop.db")
    stream = spark.readStream.format("penstock-killing").options(url=url, kill=kill, topic="events")
    entries = stream.option("maxOffsetsPerTrigger", 6).load().selectExpr("payload as entry", "kind as metadata")
    writer = entries.writeStream.format("penstock-buffer-killing").options(url=f"file://{folder}/leaving", kill=kill)
    run(writer, folder / "out" / "checkpoint")


FLOWS = {"in": into_topic, "out": into_buffer}


def main(folder: Path) -> None:
    spark = penstock.spark.session("killing", master="local[2]")
    cloudpickle.register_pickle_by_value(killing)  # workers cannot import it
    spark.dataSource.register(KillingSource)
    spark.dataSource.register(KillingBufferSource)
    for name, flow in FLOWS.items():
        (folder / name / "program").write_text(str(os.getpid()))
        (folder / name / "jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
        flow(spark, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A source and sink that kill a process, once, at a stage of a batch; and the program that runs a query with them.

The order to kill lies in a file: `stage target hits`. Whoever reaches the stage counts down and, at zero, takes the
file away and kills the target with SIGKILL: itself (`worker`), Spark's JVM (`jvm`) or the driver program (`program`).
It dies with its victim, unless the target is called `jvm-orphan`: then it finishes what it was doing, for nobody.

    planned    the offsets are in the checkpoint's log, nothing has been read
    reading    a task has read some of its rows
    writing    a task has staged its rows
    publishing inside the sink's commit, in the middle of the journal's transaction
    published  the journal's transaction is done, the sink's commit has not returned: nothing in the commit log yet
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock.spark
from penstock.spark import sink
from penstock.spark.source import PenstockSource
from penstock.spark.stream import StreamReader

STAGES = ("planned", "reading", "writing", "publishing", "published")


def reach(folder: str, stage: str) -> None:
    """Kills whom the order names, if it is for this stage and its time has come."""
    order = Path(folder) / "order"
    try:
        wanted, target, hits = order.read_text().split()
    except FileNotFoundError:
        return
    if wanted != stage:
        return
    if int(hits) > 0:
        order.write_text(f"{wanted} {target} {int(hits) - 1}")
        return
    with contextlib.suppress(FileNotFoundError):
        order.rename(Path(folder) / "done")
        victim = os.getpid() if target == "worker" else int((Path(folder) / target.partition("-")[0]).read_text())
        os.kill(victim, signal.SIGKILL)
        while _alive(victim):
            time.sleep(0.01)
        if not target.endswith("-orphan"):
            os._exit(1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def order_kill(folder: Path, stage: str, target: str, hits: int = 0) -> None:
    (folder / "done").unlink(missing_ok=True)
    (folder / "order").write_text(f"{stage} {target} {hits}")


def was_killed(folder: Path) -> bool:
    return (folder / "done").exists()


class KillingSource(PenstockSource):
    """The source `penstock`, with option kill: the folder of the order."""

    def __init__(self, options: Any) -> None:
        options = dict(options)
        self.folder = options.pop("kill")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "penstock-killing"

    def streamReader(self, schema: StructType) -> Any:
        reader = super().streamReader(schema)
        reader.__class__ = KillingReader
        reader.folder = self.folder
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = KillingStreamWriter
        writer.kill = self.folder
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        writer = super().writer(schema, overwrite)
        writer.__class__ = KillingBatchWriter
        writer.kill = self.folder
        return writer


class KillingReader(StreamReader):
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


@contextlib.contextmanager
def _killed_while_publishing(folder: str) -> Iterator[None]:
    append = sink.append_wires

    def killing(commit: Any, topic: str, wires: Any) -> range:
        done = append(commit, topic, wires)
        reach(folder, "publishing")
        return done

    sink.append_wires = killing
    try:
        yield
    finally:
        sink.append_wires = append
    reach(folder, "published")


class KillingStreamWriter(sink.StreamWriter):
    kill: str

    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)
        reach(self.kill, "writing")
        return message

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        with _killed_while_publishing(self.kill):
            super().commit(messages, batchId)


class KillingBatchWriter(sink.BatchWriter):
    kill: str

    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)
        reach(self.kill, "writing")
        return message

    def commit(self, messages: Sequence[Any]) -> None:
        with _killed_while_publishing(self.kill):
            super().commit(messages)


def copy_orders(spark: SparkSession, folder: Path) -> None:
    """Copies topic orders to topic copies, everything that is there, in small batches."""
    url, kill = str(folder / "shop.db"), str(folder)
    stream = spark.readStream.format("penstock-killing").options(url=url, kill=kill, topic="orders", consumer="copier")
    frame = stream.option("maxOffsetsPerTrigger", 300).option("minPartitions", 2).load()
    frame = frame.select("kind", "payload", "key", F.col("id").alias("cause"))
    writer = frame.writeStream.format("penstock-killing").options(url=url, kill=kill, topic="copies")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def main(folder: Path) -> None:
    spark = penstock.spark.session("killing", master="local[2]")
    spark.dataSource.register(KillingSource)
    (folder / "program").write_text(str(os.getpid()))
    (folder / "jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    copy_orders(spark, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

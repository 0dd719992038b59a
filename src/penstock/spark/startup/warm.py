"""`python -m penstock.spark.startup.warm`: prepares the class archive now, so that every later session starts fast.

Sessions do this by themselves, in the background, after the first one has ended. Run it by hand where that cannot
happen (in the build of a container image) or where the first start already counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.spark.startup import java as javas
from penstock.spark.startup.archive import mode
from penstock.spark.startup.launch import connect, forget_gateway, goes_direct, launch, worker_variables
from penstock.spark.startup.scratch import Scratch
from penstock.spark.startup.sessions import archive_for
from penstock.spark.startup.settings import defaults, merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOWEST_PRIORITY = 19
_BATCH_SECONDS = 120


def warm() -> Path:
    """Makes the class archive for this Java and this Spark unless it is there, and returns where it is."""
    java = javas.find()
    if not goes_direct("local[2]", {}):
        raise ConfigError(
            "an archive is only used where Spark's own scripts are not needed: unset SPARK_HOME, SPARK_CONF_DIR, "
            "HADOOP_CONF_DIR and PYSPARK_SUBMIT_ARGS"
        )
    archive = archive_for(java)
    if archive is None:
        raise ConfigError("PENSTOCK_SPARK_ARCHIVE=off forbids the archive; unset it, or set it to on")
    archive.make(lambda flags: _rehearse(java, flags))
    return archive.path


def _rehearse(java: javas.Java, flags: list[str]) -> None:
    """Runs on a JVM of its own what pipelines run, so that it loads the classes they load."""
    from pyspark.sql import SparkSession

    scratch = Scratch()
    try:
        identity = {"spark.master": "local[2]", "spark.app.name": "penstock-warm"}
        jvm = launch(java, merged(identity, defaults("local[2]", scratch)), scratch, extra=flags)
        try:
            connect(jvm)
            with worker_variables("local[2]", scratch):
                session = SparkSession.builder.getOrCreate()
            with session as spark:
                _run_batch(spark, scratch.path)
                _run_stream(spark, scratch.path)
        finally:
            forget_gateway()
            jvm.close()
    finally:
        scratch.remove()


def _run_batch(spark: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as F

    files = str(folder / "parquet")
    rows = spark.range(1000).withColumn("part", F.col("id") % 7)
    rows.withColumn("json", F.to_json(F.struct("id", "part"))).write.option("compression", "zstd").parquet(files)
    read = spark.read.parquet(files)
    read.groupBy("part").agg(F.sum("id"), F.max("json")).orderBy("part").collect()
    parsed = read.select(F.from_json("json", "id long, part long").alias("row")).select("row.*")
    parsed.where("id > 5").join(rows.drop("part"), "id").count()
    spark.createDataFrame([(1, "one")], "id long, name string").toLocalIterator()


def _run_stream(spark: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as F

    spark.dataSource.register(_rehearsal_source())
    for number, stateful in enumerate((False, True)):
        frame = spark.readStream.format("penstock-rehearsal").load()
        if stateful:
            frame = frame.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute")).count()
            frame = frame.select(F.col("count").alias("id"), F.current_timestamp().alias("at"))
        query = (
            frame.writeStream.format("penstock-rehearsal")
            .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(_BATCH_SECONDS)


def _rehearsal_source() -> type:
    """A source and sink in Python with one batch of Arrow rows, which is what penstock's own are to the JVM."""
    from pyspark.sql import datasource as api
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class Reader(api.DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:
            return {"seq": 0}

        def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:
            return {"seq": 10}

        def prepareForTriggerAvailableNow(self) -> None:
            pass

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[api.InputPartition]:
            return [api.InputPartition((start["seq"], end["seq"]))]

        def read(self, partition: api.InputPartition) -> Iterator[object]:
            import datetime

            import pyarrow as pa

            moment = datetime.datetime.now(datetime.UTC)
            ids = list(range(*partition.value))
            schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
            yield pa.record_batch([pa.array(ids), pa.array([moment] * len(ids), schema.field("at").type)], schema)

    class Writer(api.DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[object]) -> api.WriterCommitMessage:
            for _ in iterator:
                pass
            return api.WriterCommitMessage()

        def commit(self, messages: object, batchId: int) -> None:
            pass

        def abort(self, messages: object, batchId: int) -> None:
            pass

    class Source(api.DataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-rehearsal"

        def schema(self) -> str:
            return "id long, at timestamp"

        def streamReader(self, schema: object) -> Reader:
            return Reader()

        def streamWriter(self, schema: object, overwrite: bool) -> Writer:
            return Writer()

    return Source


def main(arguments: list[str]) -> int:
    """The command: prints where the archive is, or nothing when it works in the background."""
    if arguments == ["--background"]:
        os.nice(_LOWEST_PRIORITY)
        if mode() == "on":
            warm()
        return 0
    if arguments:
        sys.stderr.write("usage: python -m penstock.spark.startup.warm\n")
        return 2
    try:
        path = warm()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

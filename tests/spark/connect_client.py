"""A program whose Spark is elsewhere: everything goes over Spark Connect.

python connect_client.py SC-URL JOURNAL FOLDER        prints one line of JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import penstock.spark
from penstock import Projection, on
from penstock.spark import flow, into, project, rebuild, run, topic


class Total(Projection):
    """The sum of an entity's numbers."""

    total: int = 0

    @on("made")
    def made(self, event: Any) -> None:
        self.total += event.payload["n"]


@flow(source=topic("orders"), target=topic("flowed"))
def flowed(orders: Any) -> Any:
    return orders.select("kind", "payload")


def finish(writer: Any, checkpoint: Path) -> None:
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def batch_by_batch(spark: Any, url: str, folder: Path, said: dict[str, Any]) -> None:
    """foreachBatch beside the source: into the journal, and by a function of the program's own."""
    stream = spark.readStream.format("penstock").options(url=url, topic="orders", payloadSchema="n BIGINT").load()

    def by_hand(batch: Any, number: int) -> None:
        rows = batch.selectExpr("kind", "struct(n) AS payload").write.format("penstock").mode("append")
        rows.options(url=url, topic="byhand", txnAppId="by hand", txnVersion=number).save()

    finish(stream.writeStream.foreachBatch(by_hand), folder / "by hand")
    sums = stream.groupBy("key").sum("n").selectExpr("'sum' AS kind", "key", "struct(`sum(n)` AS n) AS payload")
    write = into(url=url, topic="sums", txnAppId="sums")
    finish(sums.writeStream.foreachBatch(write).outputMode("update"), folder / "sums")
    nameless = sums.writeStream.foreachBatch(into(url=url, topic="sums")).outputMode("update")
    said["nameless"] = refusal(lambda: finish(nameless, folder / "nameless"))


def refusal(work: Any) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def main(remote: str, url: str, folder: Path) -> None:
    spark = penstock.spark.session("over Connect", master=remote)
    said: dict[str, Any] = {}
    orders = spark.read.format("penstock").options(url=url, topic="orders", payloadSchema="n BIGINT").load()
    said["sum"] = orders.where("seq > 10").selectExpr("sum(n)").first()[0]
    orders.selectExpr("kind", "struct(n) AS payload").write.format("penstock").mode("append").options(
        url=url, topic="written"
    ).save()
    stream = spark.readStream.format("penstock").options(url=url, topic="orders").load()
    writer = stream.select("kind", "payload").writeStream.format("penstock").options(url=url, topic="streamed")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    frame = spark.read.format("penstock").options(url=url, topic="orders").load()
    said["states"] = {row.key: row.state.total for row in project(frame, Total).collect()}
    said["lake"] = penstock.spark.read_topic(spark, url, "orders").count()
    batch_by_batch(spark, url, folder, said)
    states = project(stream, Total).selectExpr("'state' AS kind", "key", "state AS payload")
    finish(states.writeStream.format("penstock").options(url=url, topic="totals"), folder / "states")
    said["rebuilt"] = rebuild(url, "orders", Total).entities
    run([flowed], url=url, once=True)
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

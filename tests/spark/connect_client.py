"""A program whose Spark is elsewhere: everything goes over Spark Connect, and what cannot says so.

python connect_client.py SC-URL JOURNAL FOLDER        prints one line of JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import penstock.spark
from penstock import Projection, on
from penstock.spark import flow, project, run, topic


class Total(Projection):
    """The sum of an entity's numbers."""

    total: int = 0

    @on("made")
    def made(self, event: Any) -> None:
        self.total += event.payload["n"]


@flow(source=topic("orders"), target=topic("flowed"))
def flowed(orders: Any) -> Any:
    return orders.select("kind", "payload")


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
    said["lake"] = penstock.spark.lake(spark, url, "orders").count()
    said["projected stream"] = refusal(lambda: project(stream, Total))
    said["run"] = refusal(lambda: run([flowed], url=url, once=True))
    said["run by master"] = refusal(lambda: run([flowed], url=url, once=True, master=remote))
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

"""Two flows within a journal in object storage, with sources and sinks that kill, and the program that runs them.

    alone     the commit opens the journal and publishes by itself
    served    a server, which holds the lease, publishes what lies in the store; its url lies in the flow's folder

Each has a journal, a checkpoint and an order to kill of its own; see `killing`. Where the journals lie is in `where`, a
file of the folder above; credentials come from the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from killing_flows import Copying, Flow, register_sources
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock import Draft
from penstock.transfer.objects import StagingArea, own_area

PAD = "x" * 1500
"""Makes a task's share of a batch too large for its message, so that objects are part of the test."""


class Alone(Copying):
    per_batch = 300

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"{(folder.parent / 'where').read_text()}/{folder.name}"

    @property
    def writer(self) -> str | None:
        """The server that writes the journal."""
        return None

    def source(self, spark: SparkSession, format: str, **options: Any) -> Any:
        return super().source(spark, format, **options, **self._through())

    def query(self, spark: SparkSession) -> Any:
        return super().query(spark).options(**self._through())

    def _through(self) -> dict[str, str]:
        return {} if self.writer is None else {"writer": self.writer}

    def put(self, numbers: range) -> None:
        drafts = [Draft("placed", {"n": n, "pad": PAD}, key=f"k{n % 5}") for n in numbers]
        with penstock.open(self.writer or self.url) as journal:
            journal.topic("orders").append_many(drafts)

    def arrived(self) -> list[int]:
        with penstock.open(self.url, read_only=True) as journal:
            return [event.payload["n"] for event in journal.topic("copies").read()]

    def check_exactly_once(self) -> None:
        with penstock.open(self.url, read_only=True) as journal:
            orders, copies = journal.topic("orders"), journal.topic("copies")
            assert [copy.payload["n"] for copy in copies.read()] == list(range(self.fed))
            assert [copy.causation_id for copy in copies.read()] == [order.id for order in orders.read()]
            assert orders.cursor("copier") == self.fed
        assert not list(StagingArea(own_area(self.url) or "")._objects()), "what killed tasks have staged is swept away"


class Served(Alone):
    @property
    def writer(self) -> str | None:
        return (self.folder / "url").read_text()


def bucket_flows(folder: Path) -> list[Flow]:
    """The flows whose folders a test has made."""
    places = [(kind, folder / kind.__name__.lower()) for kind in (Alone, Served)]
    return [kind(place) for kind, place in places if place.exists()]


def main(folder: Path) -> None:
    # Two tasks of each flow must be able to wait for the others at their stage.
    spark = penstock.spark.session("bucket-flows", master="local[4]")
    register_sources(spark)
    (folder / "program").write_text(str(os.getpid()))
    (folder / "jvm").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    for query in [flow.start(spark) for flow in bucket_flows(folder)]:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

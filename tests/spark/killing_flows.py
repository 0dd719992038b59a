"""Flows with sources and sinks that kill, and the program that runs them at once, in one JVM.

    copying    topic  → topic
    arriving   buffer → queue, with columns that say how each message is delivered
    leaving    topic  → buffer
    passing    buffer → buffer
    serving    topic  → topic, both at a server
    storing    topic  → topic in object storage: the commit opens the journal and publishes by itself
    handing    the same, but a server, which holds the lease, publishes what lies in the store

Each has a folder of its own, with its journal, its buffer, its checkpoint and its order to kill; see `killing`. Where
the journals in object storage lie is in `where`, a file of the folder above; credentials come from the environment.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import killing
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from since import HAS_LIMITS, most
from tiny_data import TINY_DATA

import penstock
import penstock.spark
from penstock import Draft
from penstock.api import open_local
from penstock.buffer import Consumer, Producer
from penstock.buffer.format import decode_batch, parse_manifest
from penstock.core.journal.bulk import staged_batches
from penstock.objects.store import open_store
from penstock.transfer.objects import StagingArea, own_area

PAD = "x" * 5000
"""Makes a task's share of a batch too large for its message, so that staging files are part of the test."""


class Flow:
    """A query from one place to another; numbers go in, and are counted at the other end."""

    per_batch: int
    """How many numbers a batch has; a feeding is two batches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder / "shop.db")
        self.buffer = f"file://{folder}/buffer"
        self.fed = 0
        folder.mkdir(exist_ok=True)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Everything that is there, in small batches."""
        writer = self.query(spark).option("kill", str(self.folder)).trigger(availableNow=True)
        query: StreamingQuery = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        # Spark gives a source in Python ten seconds to start: one at a time has them even on a busy machine.
        # But some versions plan a batch in that time, where this one may wait for others at its stage.
        waits = self.folder / "done"
        while query.isActive and query.status["message"].startswith("Initializing") and not waits.exists():
            time.sleep(0.1)
        return query

    def feed(self) -> None:
        self.put(range(self.fed, self.fed + 2 * self.per_batch))
        self.fed += 2 * self.per_batch

    def check_whole_batches(self) -> None:
        arrived = self.arrived()
        assert arrived == list(range(len(arrived)))
        assert len(arrived) % self.per_batch == 0, "no half batch"
        assert len(arrived) < self.fed or not HAS_LIMITS  # else a batch has everything

    def check_exactly_once(self) -> None:
        assert self.arrived() == list(range(self.fed))
        assert not list(self.folder.glob("*.staging")), "what killed tasks have staged is swept away"

    def consume(self) -> None:
        """Takes away what has arrived, where that is possible."""

    def lose_newest_commit(self) -> None:
        commits = self.folder / "checkpoint" / "commits"
        newest = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def query(self, spark: SparkSession) -> Any:
        raise NotImplementedError

    def put(self, numbers: range) -> None:
        raise NotImplementedError

    def arrived(self) -> list[int]:
        """The numbers at the other end, in the order they have there."""
        raise NotImplementedError

    def source(self, spark: SparkSession, format: str, **options: Any) -> Any:
        return spark.readStream.format(format).options(kill=str(self.folder), **options).load()


class Copying(Flow):
    per_batch = 60
    served = False
    """Whether a server works for it; its address lies in the folder then, as `server`."""

    def query(self, spark: SparkSession) -> Any:
        asked = {"topic": "orders", "consumer": "copier", "minPartitions": 2, **most(self.per_batch)}
        frame = self.source(spark, "penstock-killing", url=self.place, **asked)
        frame = frame.select("kind", "payload", "key", F.col("id").alias("cause"))
        return frame.writeStream.format("penstock-killing").options(url=self.place, topic="copies")

    @property
    def place(self) -> str:
        """Where the query finds the journal."""
        return self.url

    @property
    def server(self) -> str:
        return (self.folder / "server").read_text()

    def put(self, numbers: range) -> None:
        with penstock.open(self.url) as journal:
            drafts = [Draft("placed", {"n": n, "pad": PAD}, key=f"k{n % 5}") for n in numbers]
            journal.topic("orders").append_many(drafts)

    def arrived(self) -> list[int]:
        with penstock.open(self.url, read_only=True) as journal:
            return [event.payload["n"] for event in journal.topic("copies").read()]

    def check_exactly_once(self) -> None:
        super().check_exactly_once()
        with penstock.open(self.url, read_only=True) as journal:
            orders, copies = journal.topic("orders"), journal.topic("copies")
            assert [copy.causation_id for copy in copies.read()] == [order.id for order in orders.read()]
            assert not HAS_LIMITS or orders.cursor("copier") == self.fed  # else it is a run behind


class Serving(Copying):
    served = True

    @property
    def place(self) -> str:
        return self.server

    def check_exactly_once(self) -> None:
        super().check_exactly_once()
        with open_local(self.url) as journal, journal._engine.read() as snap:
            assert not list(staged_batches(snap)), "what killed tasks have staged at the server is swept away"


class Storing(Copying):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = f"{(folder.parent / 'where').read_text()}/{folder.name}"

    def source(self, spark: SparkSession, format: str, **options: Any) -> Any:
        return super().source(spark, format, **options, **self._through())

    def query(self, spark: SparkSession) -> Any:
        return super().query(spark).options(**self._through())

    def _through(self) -> dict[str, str]:
        return {"writer": self.server} if self.served else {}

    def put(self, numbers: range) -> None:
        drafts = [Draft("placed", {"n": n, "pad": PAD}, key=f"k{n % 5}") for n in numbers]
        with penstock.open(self.server if self.served else self.url) as journal:
            journal.topic("orders").append_many(drafts)

    def check_exactly_once(self) -> None:
        super().check_exactly_once()
        assert not list(StagingArea(own_area(self.url) or "")._list_staged()), (
            "what killed tasks have staged is swept away"
        )


class Handing(Storing):
    served = True


def produce(buffer: str, numbers: range) -> None:
    """Three numbers an object, so that two objects are a batch."""
    with Producer(buffer) as producer:
        for first in numbers[::3]:
            producer.produce([f"{n}".encode() for n in range(first, first + 3)])
            producer.flush()


class Arriving(Flow):
    per_batch = 6

    def query(self, spark: SparkSession) -> Any:
        with penstock.open(self.url) as journal:
            journal.queue("events", priority=True, dedup_window=10_000)
        entries = self.source(spark, "penstock-buffer-killing", url=self.buffer, **most(2))
        messages = entries.selectExpr("cast(entry as string) as payload").selectExpr(
            "payload",
            "payload as dedup",
            "cast(payload % 3 as int) as priority",
            "if(payload % 5 = 0, 36000.0D, 0.0D) as delay",
            "cast(1 + payload % 2 as int) as max_attempts",
        )
        return messages.writeStream.format("penstock-killing").options(url=self.url, queue="events")

    def put(self, numbers: range) -> None:
        produce(self.buffer, numbers)

    def arrived(self) -> list[int]:
        with penstock.open(self.url) as journal:
            return [event.payload for event in journal.topic("events").read()]

    def check_exactly_once(self) -> None:
        super().check_exactly_once()
        with tempfile.TemporaryDirectory() as folder:  # taking changes the queue: what is taken is a copy's
            with penstock.open(self.url) as journal:
                journal.backup(Path(folder) / "copy.db")
            with penstock.open(Path(folder) / "copy.db") as copy:
                self.check_options(copy.queue("events"))

    def check_options(self, queue: penstock.Queue) -> None:
        listed = queue.messages(limit=10_000)
        now = [n for n in range(self.fed) if n % 5]
        assert {one.event.payload: one.priority for one in listed} == {n: n % 3 for n in range(self.fed)}
        assert sorted(one.event.payload for one in listed if one.state == "delayed") == [*range(0, self.fed, 5)]
        assert all(queue.push(n, dedup=f"{n}").duplicate for n in range(self.fed)), "their keys are known"
        taken = queue.take_many(len(listed))
        assert [one.payload for one in taken] == sorted(now, key=lambda n: (-(n % 3), n))
        for delivery in taken:
            delivery.nack()
        assert [event.payload for event in queue.failed()] == [n for n in now if n % 2 == 0], "one attempt each"


class Leaving(Flow):
    per_batch = 6

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.consumed: list[bytes] = []

    def query(self, spark: SparkSession) -> Any:
        events = self.source(spark, "penstock-killing", url=self.url, topic="events", **most(6))
        entries = events.selectExpr("payload as entry", "kind as metadata")
        return entries.writeStream.format("penstock-buffer-killing").options(url=self.buffer)

    def put(self, numbers: range) -> None:
        with penstock.open(self.url) as journal:
            journal.topic("events").append_many([Draft("left", n) for n in numbers])

    def arrived(self) -> list[int]:
        store = open_store(self.buffer)
        manifest = parse_manifest(store.get("ingest/manifest"))
        left = [entry for each in manifest for entry in decode_batch(store.get(each.location))]
        return [int(entry) for entry in [*self.consumed, *left]]

    def consume(self) -> None:
        with Consumer(self.buffer, gc_interval=None) as consumer:
            consumer.run(lambda batch: self.consumed.extend(batch), until_empty=True)


class Passing(Leaving):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.intake = f"file://{folder}/intake"

    def query(self, spark: SparkSession) -> Any:
        entries = self.source(spark, "penstock-buffer-killing", url=self.intake, **most(2))
        return entries.select("entry").writeStream.format("penstock-buffer-killing").options(url=self.buffer)

    def put(self, numbers: range) -> None:
        produce(self.intake, numbers)


KINDS: tuple[type[Flow], ...] = (Copying, Arriving, Leaving, Passing, Serving, Storing, Handing)


def flows_in(folder: Path) -> list[Flow]:
    """The flows whose folders a test has made."""
    places = [(kind, folder / kind.__name__.lower()) for kind in KINDS]
    return [kind(place) for kind, place in places if place.exists()]


def register_sources(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(killing)  # workers cannot import it
    spark.dataSource.register(killing.KillingSource)
    spark.dataSource.register(killing.KillingBufferSource)


def finish(spark: SparkSession, flows: Iterable[Flow]) -> dict[Flow, str]:
    """Runs flows to their end, at once, and returns those that failed, each with what Spark says of it.

    Without limits a run is one batch, and may be the one that a kill has interrupted: then it is run once more.
    """
    queries = {flow: flow.start(spark) for flow in flows}
    again = set() if HAS_LIMITS else set(queries)
    failed: dict[Flow, str] = {}
    while queries:
        for flow, query in [(flow, query) for flow, query in queries.items() if not query.isActive]:
            del queries[flow]
            if (error := query.exception()) is not None:
                failed[flow] = str(error)
            elif flow in again:
                again.remove(flow)
                queries[flow] = flow.start(spark)
        time.sleep(0.05)
    return failed


def main(folder: Path) -> None:
    flows = flows_in(folder)
    # Two tasks of each flow must be able to wait for the others at their stage.
    spark = penstock.spark.session("killing", master=f"local[{2 * len(flows)}]", **TINY_DATA)
    register_sources(spark)
    (folder / "program.pid").write_text(str(os.getpid()))
    (folder / "jvm.pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
    if failed := finish(spark, flows):
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

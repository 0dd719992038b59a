"""Rows of the object benchmark about journals of many events: opened after a kill, taken over, read by Spark."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import obstore
from obstore.store import from_url

import penstock
from benchmarks.harness import Table
from penstock.engines.slatedb.reading import READ_AHEAD_TASKS
from penstock.limits import LEASE_SECONDS, TABLE_COMMITS

sys.path[:0] = ["tests"]

from buffer.emulator import Emulator  # noqa: E402

PAYLOAD = {"order": 12345, "total": 99.5, "note": "x" * 60}
SETTLED_EVENTS = 500_000
"""Journals of so many events are opened when their compaction is at rest."""
_names = itertools.count()


_PROXY = """
import json, sys
sys.path[:0] = ["tests/engine/slatedb"]
from store_proxy import StoreProxy
proxy = StoreProxy(sys.argv[1])
print(proxy.endpoint, flush=True)
for line in sys.stdin:
    proxy.latency = float(line)
    print(json.dumps([proxy.counts, proxy.bytes_in, proxy.bytes_out]), flush=True)
"""


@dataclass(frozen=True)
class Traffic:
    """What has passed since the beginning."""

    counts: Counter[str]
    bytes_in: int
    bytes_out: int

    def __sub__(self, before: Traffic) -> Traffic:
        counts = self.counts - before.counts
        return Traffic(counts, self.bytes_in - before.bytes_in, self.bytes_out - before.bytes_out)

    @property
    def requests(self) -> int:
        return self.counts.total()


class Proxy:
    """Adds the latency and counts, in a process of its own: no store shares an interpreter with 64 threads."""

    def __init__(self, endpoint: str, latency: float) -> None:
        words = [sys.executable, "-c", _PROXY, endpoint]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.endpoint = self._said()
        self.latency = latency
        self.traffic()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def delay(self, latency: float) -> None:
        self.latency = latency
        self.traffic()

    def traffic(self) -> Traffic:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.latency}\n")
        counts, bytes_in, bytes_out = json.loads(self._said())
        return Traffic(Counter(counts), bytes_in, bytes_out)

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


class Stage:
    """An emulator behind a proxy, and a bucket in it."""

    def __init__(self, emulator: Emulator, latency: float) -> None:
        self.proxy = Proxy(emulator.endpoint, latency)
        self.options = {**emulator.options, "endpoint": self.proxy.endpoint}
        self.bucket = emulator.bucket()
        self.raw = from_url(f"{self.bucket}/raw", config=self.options, client_options={"allow_http": True})

    def open(self, name: str, **how: Any) -> Any:
        return penstock.open(f"{self.bucket}/{name}", store_options=self.options, **how)

    def put(self, size: int) -> float:
        begun = time.perf_counter()
        obstore.put(self.raw, f"o{next(_names)}", b"x" * size, mode="create")
        return time.perf_counter() - begun

    def get(self, size: int, count: int, at_once: int) -> float:
        """Seconds for so many bytes in as many ranges of one object, so many of them at once."""
        obstore.put(self.raw, "ranges", b"x" * size)
        piece = max(1, size // max(1, count))
        wanted = [(start, min(piece, size - start)) for start in range(0, size, piece)]
        begun = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda one: obstore.get_range(self.raw, "ranges", start=one[0], length=one[1]), wanted))
        return time.perf_counter() - begun

    @contextmanager
    def swift(self) -> Iterator[None]:
        """Without the latency, to load what is not measured."""
        latency = self.proxy.latency
        self.proxy.delay(0.0)
        try:
            yield
        finally:
            self.proxy.delay(latency)

    def load(self, name: str, events: int) -> None:
        """A journal with so many events, made without latency."""
        drafts = [penstock.Draft("k", PAYLOAD) for _ in range(min(events, 20_000))]
        with self.swift(), self.open(name) as journal:
            for _ in range(events // max(1, len(drafts))):
                journal.topic("t").append_many(drafts)
            if events >= SETTLED_EVENTS:
                self._settle()

    def _settle(self) -> None:
        """Until compaction is at rest: in the emulator, one request at a time, its megabytes are in everybody's way."""
        for _ in range(10):
            if self.requests(lambda: time.sleep(50)) <= 50:  # longer than the compactor's pause; the lease is in it
                return

    def requests(self, work: Callable[[], object]) -> int:
        before = self.proxy.traffic()
        work()
        return (self.proxy.traffic() - before).requests


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def spark_reading(table: Table, stage: Stage, label: str, events: int) -> None:
    """Two tasks read a topic from the bucket, from a folder of the same kind, and from a file beside it.

    Beside them stand GETs of the same bytes: how fast the emulator, which needs one of the two cores itself, can be.
    """
    import penstock.spark

    latency = stage.proxy.latency

    names = {"AWS_ENDPOINT_URL": "endpoint", "AWS_REGION": "region"}
    names |= {"AWS_ACCESS_KEY_ID": "access_key_id", "AWS_SECRET_ACCESS_KEY": "secret_access_key"}
    os.environ |= {name: stage.options[option] for name, option in names.items()}
    drafts = [penstock.Draft("k", {"order": n, "note": "x" * 60}) for n in range(10_000)]
    with tempfile.TemporaryDirectory() as folder, stage.swift():
        here, in_folder, there = f"{folder}/beside.db", f"slatedb:{folder}/beside", f"{stage.bucket}/spark"
        for url in (here, in_folder, there):
            with penstock.open(url) as journal:
                for _ in range(events // 10_000):
                    journal.topic("t").append_many(drafts)
                journal.maintain()
        stage.proxy.delay(latency)
        spark = penstock.spark.session("penstock-object", master="local[2]")

        def read(url: str) -> int:
            options = {"url": url, "topic": "t", "minPartitions": "2"}
            frame = spark.read.format("penstock").options(**options).load()
            return int(frame.selectExpr("sum(length(payload)) AS n").collect()[0]["n"])

        assert read(here) == read(in_folder)
        before = stage.proxy.traffic()
        assert read(here) == read(there)
        made = stage.proxy.traffic() - before
        rounds = [[timed(lambda url=url: read(url)) for url in (here, in_folder, there)] for _ in range(3)]
        raw = stage.get(made.bytes_out, made.counts["GET"], 2 * READ_AHEAD_TASKS)
        penstock.spark.stop()
    ratio = statistics.median(local / folder for local, folder, _ in rounds)
    table.row(f"Spark reads {events:,} events from a folder, two tasks", f"{ratio:.2f} × a file")
    ratio = statistics.median(local / bucket for local, _, bucket in rounds)
    gets = raw / statistics.median(bucket for _, _, bucket in rounds)
    made_of = f"{made.bytes_out / 1e6:.0f} MB in {made.counts['GET']} GETs, which alone take {gets:.2f} × as long"
    table.row(
        f"Spark reads {events:,} events, two tasks, {label}",
        f"{ratio:.2f} × a file ({made_of})",
        "≥ 0.7 ×",
        ratio >= 0.7,
    )


def opening(table: Table, stage: Stage, label: str, events: int = 0) -> None:
    """As many commits since the last table as there can be, perhaps over many events."""
    name = f"opening-{events}"
    loading = timed(lambda: stage.load(name, events)) if events else 0.0
    journal = stage.open(name)
    try:
        topic = journal.topic("t")
        engine = journal._engine
        for _ in range(20):  # the first table of a writer comes early
            topic.append("k", PAYLOAD)
        while engine._logged < TABLE_COMMITS - 2:
            topic.append("k", PAYLOAD)
        engine._lease.release()  # as after a kill, but without waiting for the lease
        before, begun = stage.proxy.traffic(), time.perf_counter()
        second = stage.open(name, takeover=True)
        took = time.perf_counter() - begun
        asked = (stage.proxy.traffic() - before).requests
        latest = second.topic("t").latest
        second.close()
    finally:
        journal.close()
    rounds = statistics.median(stage.put(700) for _ in range(15))
    if loading:
        print(f"  {events:,} events were loaded in {loading:.0f} s", flush=True)
    table.row(
        f"open after a kill, {latest:,} events, {label}",
        f"{took:.2f} s, {asked} requests ({took / rounds:.0f} × one PUT)", "≤ 3 s", took <= 3,
    )  # fmt: skip


_WRITER = """
import json, sys, time
import penstock
from penstock.engines.slatedb import lease
lease._system = lambda: ""  # a process of another machine: only the store tells of its end
url, store, how = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
journal = penstock.open(url, store_options=store, standby=how == "standby")
opened = time.time()
topic = journal.topic("t")
while True:
    seq = topic.append("k", how).seq
    print(seq, opened, time.time(), flush=True)
    time.sleep(0.05)
"""


def failover(table: Table, stage: Stage, label: str, events: int, rounds: int) -> None:
    """Writers are killed, each at another moment of its lease; the standby's first acknowledged append ends the time."""
    stage.load("failover", events)

    def start(how: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _WRITER, f"{stage.bucket}/failover", json.dumps(stage.options), how]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    took, asked = [], []
    writer = start("first")
    assert writer.stdout is not None and writer.stdout.readline()
    for number in range(rounds):
        standby = start("standby")
        assert standby.stdout is not None
        time.sleep(3 + LEASE_SECONDS * number / rounds)  # it waits, and knows the lease
        writer.send_signal(signal.SIGKILL)
        killed, before = time.time(), stage.proxy.traffic()
        writer.wait(60)
        _, _, acknowledged = standby.stdout.readline().split()
        took.append(float(acknowledged) - killed)
        asked.append((stage.proxy.traffic() - before).requests)
        writer = standby
    writer.kill()
    writer.wait(60)
    table.row(
        f"writer killed, first append elsewhere, {events:,} events, {label}",
        f"{statistics.median(took):.1f} s, at most {max(took):.1f} s ({rounds} kills, {statistics.median(asked):.0f} requests)",
        "< 10 s", max(took) < 10,
    )  # fmt: skip

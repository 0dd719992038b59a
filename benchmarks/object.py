"""A journal in object storage, on the S3 emulator, with 0 and 25 ms of latency added to every request.

    python -m benchmarks object          # about three minutes
    python -m benchmarks object quick    # 25 ms only, smaller
    python -m benchmarks object 10000000 # opens a journal of so many events after a kill, instead of a million

Everything is a ratio to what the store itself does beside it in the same run: a conditional PUT (or a GET) of the same
bytes through obstore. The emulator is moto on 127.0.0.1, one request at a time, behind a proxy that adds the latency and
counts: request-heavy figures are the emulator's limit, not SlateDB's. Requests per event do not depend on any of that.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
from obstore.store import from_url

import penstock
from benchmarks.harness import Table, percentile
from penstock.engine.slatedb.view import READ_AHEAD_TASKS
from penstock.limits import TABLE_COMMITS

sys.path[:0] = ["tests", "tests/engine/slatedb"]

from store_proxy import StoreProxy  # noqa: E402

from buffer.emulator import Emulator  # noqa: E402

PAYLOAD = {"order": 12345, "total": 99.5, "note": "x" * 60}
_names = itertools.count()


class Stage:
    """An emulator behind a proxy, and a bucket in it."""

    def __init__(self, emulator: Emulator, latency: float) -> None:
        self.proxy = StoreProxy(emulator.endpoint, latency)
        self.options = {**emulator.options, "endpoint": self.proxy.endpoint}
        self.bucket = emulator.bucket()
        self.raw = from_url(f"{self.bucket}/raw", config=self.options, client_options={"allow_http": True})

    def open(self, name: str, **how: Any) -> Any:
        return penstock.open(f"{self.bucket}/{name}", store_options=self.options, **how)

    def put(self, size: int) -> float:
        begun = time.perf_counter()
        obstore.put(self.raw, f"o{next(_names)}", b"x" * size, mode="create")
        return time.perf_counter() - begun

    def requests(self, work: Callable[[], object]) -> int:
        before = self.proxy.counts.total()
        work()
        return self.proxy.counts.total() - before


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def one_by_one(table: Table, stage: Stage, label: str, count: int) -> None:
    with stage.open("single") as journal:
        topic = journal.topic("t")
        topic.append("k", PAYLOAD)
        stage.proxy.bytes_in, stage.proxy.counts["PUT"] = 0, 0
        appends, puts = [], []
        requests = 0
        for _ in range(count):
            before = stage.proxy.counts.total()
            appends.append(timed(lambda: topic.append("k", PAYLOAD)))
            requests += stage.proxy.counts.total() - before
            puts.append(stage.put(700))
        ratio = percentile(appends, 0.5) / percentile(puts, 0.5)
        table.row(
            f"append one by one, {label}", f"{ratio:.2f} × the store's own PUT (p50 {percentile(appends, 0.5) * 1000:.1f} ms)",
            "≤ 1.3 ×", ratio <= 1.3,
        )  # fmt: skip
        table.row(f"requests per append, {label}", f"{requests / count:.2f}")


def many_threads(table: Table, stage: Stage, label: str, seconds: float) -> None:
    put_rate = 1 / statistics.median(stage.put(20_000) for _ in range(15))
    with stage.open("threads") as journal:
        topic = journal.topic("t")
        topic.append("k", PAYLOAD)
        done = [0] * 64
        until = time.perf_counter() + seconds

        def work(name: int) -> None:
            while time.perf_counter() < until:
                topic.append("k", PAYLOAD)
                done[name] += 1

        before = journal.describe().requests["log"]["put"]
        begun = time.perf_counter()
        threads = [threading.Thread(target=work, args=(name,)) for name in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begun
        logged = journal.describe().requests["log"]["put"] - before
    per_put, rate = sum(done) / logged, sum(done) / took
    table.row(f"64 threads, events per PUT, {label}", f"{per_put:.1f}", "≥ 28", per_put >= 28)
    ratio = rate / (28 * put_rate)
    table.row(f"64 threads, {label}", f"{rate:.0f}/s, {ratio:.2f} × 28 × PUT rate", "≥ 0.8 ×", ratio >= 0.8)


def batches(table: Table, stage: Stage, label: str, count: int) -> None:
    drafts = [penstock.Draft("k", PAYLOAD) for _ in range(1000)]
    with stage.open("batches") as journal:
        topic = journal.topic("t")
        topic.append_many(drafts)
        stage.proxy.bytes_in = 0
        topic.append_many(drafts)
        size = max(1000, stage.proxy.bytes_in)
        ratios = []
        for _ in range(count):
            raw = stage.put(size)
            ratios.append(raw / timed(lambda: topic.append_many(drafts)))
        ratio = statistics.median(ratios)
        table.row(
            f"append_many of 1,000 ({size // 1000} kB), {label}",
            f"{ratio:.2f} × PUT of the same bytes",
            "≥ 0.5 ×",
            ratio >= 0.5,
        )


def reading(table: Table, stage: Stage, label: str, events: int) -> None:
    drafts = [penstock.Draft("k", {"order": n, "note": os.urandom(200).hex()}) for n in range(5000)]
    with stage.open("reading") as journal:
        for _ in range(events // 5000):
            journal.topic("t").append_many(drafts)
        journal.maintain()
    with stage.open("reading", read_only=True) as reader:
        asked, stage.proxy.bytes_out = stage.proxy.counts["GET"], 0
        cold = timed(lambda: _read(reader))
        asked, size = stage.proxy.counts["GET"] - asked, stage.proxy.bytes_out
        raw = _raw_gets(stage, size, asked)
        warm = [timed(lambda: _read(reader)) for _ in range(3)]
        with tempfile.TemporaryDirectory() as folder, penstock.open(f"{folder}/beside.db") as local:
            for _ in range(events // 5000):
                local.topic("t").append_many(drafts)
            local.maintain()
            _read(local)
            beside = statistics.median(timed(lambda: _read(local)) for _ in range(3))
    table.row(
        f"read_arrow, cold, {events:,} events, {label}",
        f"{raw / cold:.2f} × GETs of the same bytes ({asked}, {READ_AHEAD_TASKS} at once)", "≥ 0.5 ×", raw / cold >= 0.5,
    )  # fmt: skip
    ratio = beside / statistics.median(warm)
    table.row(f"read_arrow, cached, {label}", f"{ratio:.2f} × sqlite", "≥ 0.8 ×", ratio >= 0.8)


def _read(journal: Any) -> int:
    return sum(batch.num_rows for batch in journal.topic("t").read_arrow())


def _raw_gets(stage: Stage, size: int, count: int) -> float:
    """Seconds for the same bytes in as many ranges of one object, as many at once as a scan has in flight."""
    obstore.put(stage.raw, "ranges", b"x" * size)
    piece = max(1, size // max(1, count))
    begun = time.perf_counter()
    with ThreadPoolExecutor(READ_AHEAD_TASKS) as pool:
        wanted = [(start, min(piece, size - start)) for start in range(0, size, piece)]
        list(pool.map(lambda one: obstore.get_range(stage.raw, "ranges", start=one[0], length=one[1]), wanted))
    return time.perf_counter() - begun


def opening(table: Table, stage: Stage, label: str, events: int = 0) -> None:
    """As many commits since the last table as there can be, perhaps over many events."""
    name = f"opening-{events}"
    journal = stage.open(name)
    try:
        topic = journal.topic("t")
        drafts = [penstock.Draft("k", PAYLOAD) for _ in range(10_000)]
        for _ in range(events // 10_000):
            topic.append_many(drafts)
        engine = journal._engine
        for _ in range(20):  # the first table of a writer comes early
            topic.append("k", PAYLOAD)
        while engine._logged < TABLE_COMMITS - 2:
            topic.append("k", PAYLOAD)
        engine._lease.release()  # as after a kill, but without waiting for the lease
        before, begun = stage.proxy.counts.total(), time.perf_counter()
        second = stage.open(name, takeover=True)
        took = time.perf_counter() - begun
        asked = stage.proxy.counts.total() - before
        latest = second.topic("t").latest
        second.close()
    finally:
        journal.close()
    rounds = statistics.median(stage.put(700) for _ in range(15))
    table.row(
        f"open after a kill, {latest:,} events, {label}",
        f"{took:.2f} s, {asked} requests ({took / rounds:.0f} × one PUT)", "≤ 3 s", took <= 3,
    )  # fmt: skip


_MEMORY = """
import json, sys
import penstock
url, store = sys.argv[1], json.loads(sys.argv[2])
drafts = [penstock.Draft("k", {"order": n, "note": "x" * 80}) for n in range(1000)]
with penstock.open(url, **store) as journal:
    for _ in range(100):
        journal.topic("t").append_many(drafts)
    assert sum(batch.num_rows for batch in journal.topic("t").read_arrow()) == 100_000
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def memory(table: Table, stage: Stage, label: str) -> None:
    """The most memory of a process that appends and reads 100,000 events, here and with sqlite."""

    def most(url: str, store: dict[str, Any]) -> float:
        words = [sys.executable, "-c", _MEMORY, url, json.dumps(store)]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout) / 1000

    with tempfile.TemporaryDirectory() as folder:
        beside = most(f"{folder}/beside.db", {})
    found = most(f"{stage.bucket}/memory", {"store_options": stage.options})
    more = found - beside
    table.row(f"memory beside sqlite, {label}", f"{more:+.0f} MB ({found:.0f}, {beside:.0f})", "≤ +150 MB", more <= 150)


def idle(table: Table, stage: Stage, label: str, seconds: float) -> None:
    with stage.open("idle") as journal:
        journal.topic("t").append("k", PAYLOAD)
        time.sleep(2)
        writer = stage.requests(lambda: time.sleep(seconds)) / seconds
        table.row(f"idle writer, {label}", f"{writer:.2f} requests/s", "≤ 0.5", writer <= 0.5)
    with stage.open("idle", read_only=True) as reader:
        over = threading.Event()
        thread = threading.Thread(target=lambda: _follow(reader, over, []), daemon=True)
        thread.start()
        time.sleep(3)
        found = stage.requests(lambda: time.sleep(seconds)) / seconds
        over.set()
        table.row(f"idle reader with a subscription, {label}", f"{found:.2f} requests/s", "≤ 2", found <= 2)


def _follow(reader: Any, over: threading.Event, seen: list[tuple[float, float]]) -> None:
    try:
        for event in reader.topic("t").subscribe(after=reader.topic("t").latest):
            if isinstance(event.payload, float):
                seen.append((event.payload, time.time()))
            if over.is_set():
                return
    except penstock.errors.Closed:
        return


def lag(table: Table, stage: Stage, label: str, count: int) -> None:
    with stage.open("lag") as journal, stage.open("lag-other") as _:
        journal.topic("t").append("k", 0)
        with stage.open("lag", read_only=True) as reader:
            seen: list[tuple[float, float]] = []
            over = threading.Event()
            thread = threading.Thread(target=_follow, args=(reader, over, seen), daemon=True)
            thread.start()
            time.sleep(1)
            before, begun = stage.proxy.counts.total(), time.perf_counter()
            for _ in range(count):
                journal.topic("t").append("k", time.time())
                time.sleep(0.5)
            time.sleep(1)
            rate = (stage.proxy.counts.total() - before - 2 * count) / (time.perf_counter() - begun)
            over.set()
        behind = percentile([then - sent for sent, then in seen], 0.5)
        table.row(
            f"reader behind its writer, 2 events/s, {label}",
            f"p50 {behind:.2f} s with {rate:.1f} requests/s",
            "≤ 1 s, ≤ 12/s",
            behind <= 1 and rate <= 12,
        )


def main() -> None:
    quick = "quick" in sys.argv
    events = next((int(word) for word in sys.argv[1:] if word.isdigit()), 100_000 if quick else 1_000_000)
    table = Table("object", "A journal in object storage", __doc__ or "")
    emulator = Emulator()
    try:
        for latency, label in ((0.0, "0 ms"), (0.025, "25 ms")):
            if quick and not latency:
                continue
            stage = Stage(emulator, latency)
            try:
                one_by_one(table, stage, label, 40 if quick else 100)
                many_threads(table, stage, label, 4 if quick else 8)
                batches(table, stage, label, 8 if quick else 15)
                reading(table, stage, label, 50_000 if quick else 100_000)
                opening(table, stage, label)
                lag(table, stage, label, 10)
                if latency:
                    opening(table, stage, label, events)
                    memory(table, stage, label)
                    idle(table, stage, label, 20 if quick else 40)
            finally:
                stage.proxy.stop()
    finally:
        emulator.stop()
    table.save()

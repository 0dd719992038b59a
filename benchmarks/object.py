"""A journal in object storage, on the S3 emulator, with 0 and 25 ms of latency added to every request.

    python -m benchmarks object             # opens a journal of a million events, Spark reads two million
    python -m benchmarks object quick       # both with a tenth, and shorter
    python -m benchmarks object 10000000    # opens a journal of so many events after a kill, instead of a million
    python -m benchmarks object quick reading spark    # only some of the rows

Everything is a ratio to what the store itself does beside it in the same run: a conditional PUT (or a GET) of the same
bytes through obstore. The emulator is moto on 127.0.0.1, one request at a time, behind a proxy that adds the latency and
counts: request-heavy figures are the emulator's limit, not SlateDB's. Requests per event do not depend on any of that.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import penstock
from benchmarks.harness import Table, percentile
from benchmarks.object_large import PAYLOAD, Emulator, Stage, failover, opening, spark_reading, timed
from penstock.engines.slatedb.reading import READ_AHEAD_TASKS


def one_by_one(table: Table, stage: Stage, label: str, count: int) -> None:
    with stage.open("single") as journal:
        topic = journal.topic("t")
        topic.append("k", PAYLOAD)
        appends, puts = [], []
        requests = 0
        for _ in range(count):
            requests += stage.requests(lambda: appends.append(timed(lambda: topic.append("k", PAYLOAD))))
            puts.append(stage.put(700))
        ratio = percentile(appends, 0.5) / percentile(puts, 0.5)
        table.row(
            f"append one by one, {label}", f"{ratio:.2f} × the store's own PUT (p50 {percentile(appends, 0.5) * 1000:.1f} ms)",
            "≤ 1.3 ×", ratio <= 1.3,
        )  # fmt: skip
        table.row(f"requests per append, {label}", f"{requests / count:.2f}")


def many_threads(table: Table, stage: Stage, label: str, rounds: int) -> None:
    """Rounds of sequential PUTs and of 64 threads in turns: both are rates, work by wall time, of the same moments."""
    put_time = append_time = 0.0
    puts = 0
    with stage.open("threads") as journal:
        topic = journal.topic("t")
        topic.append("k", PAYLOAD)
        done = [0] * 64

        def work(name: int, until: float) -> None:
            while time.perf_counter() < until:
                topic.append("k", PAYLOAD)
                done[name] += 1

        before = journal.describe().requests["log"]["put"]
        for _ in range(rounds):
            put_time += sum(stage.put(20_000) for _ in range(15))
            puts += 15
            begun = time.perf_counter()
            threads = [threading.Thread(target=work, args=(name, begun + 1.0)) for name in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            append_time += time.perf_counter() - begun
        logged = journal.describe().requests["log"]["put"] - before
    per_put, rate = sum(done) / logged, sum(done) / append_time
    table.row(f"64 threads, events per PUT, {label}", f"{per_put:.1f}", "≥ 28", per_put >= 28)
    ratio = rate / (28 * puts / put_time)
    table.row(f"64 threads, {label}", f"{rate:.0f}/s, {ratio:.2f} × 28 × PUT rate", "≥ 0.8 ×", ratio >= 0.8)


def batches(table: Table, stage: Stage, label: str, count: int) -> None:
    drafts = [penstock.Draft("k", PAYLOAD) for _ in range(1000)]
    with stage.open("batches") as journal:
        topic = journal.topic("t")
        topic.append_many(drafts)
        before = stage.proxy.traffic()
        topic.append_many(drafts)
        size = max(1000, (stage.proxy.traffic() - before).bytes_in)
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
    with tempfile.TemporaryDirectory() as folder, penstock.open(f"{folder}/beside.db") as local:
        for _ in range(events // 5000):
            local.topic("t").append_many(drafts)
        local.maintain()
        _read(local)  # the first one of a process imports Arrow
        colds, raws, asked = [], [], 0
        for _ in range(5):
            with stage.open("reading", read_only=True) as reader:
                before = stage.proxy.traffic()
                colds.append(timed(lambda: _read(reader)))
                made = stage.proxy.traffic() - before
                asked, size = made.counts["GET"], made.bytes_out
                raws.append(stage.get(size, asked, READ_AHEAD_TASKS))
        with stage.open("reading", read_only=True) as reader:
            _read(reader)
            pairs = [(timed(lambda: _read(local)), timed(lambda: _read(reader))) for _ in range(15)]
            begun = time.thread_time()
            _read(reader)
            own = time.thread_time() - begun
        begun = time.thread_time()
        _read(local)
        beside = time.thread_time() - begun
    ratio = statistics.median(raw / cold for raw, cold in zip(raws, colds, strict=True))
    table.row(
        f"read_arrow, cold, {events:,} events, {label}",
        f"{ratio:.2f} × GETs of the same bytes ({asked}, {READ_AHEAD_TASKS} at once)", "≥ 0.5 ×", ratio >= 0.5,
    )  # fmt: skip
    ratio = statistics.median(local / here for local, here in pairs)
    table.row(
        f"read_arrow, cached, {label}", f"{ratio:.2f} × sqlite (CPU of the calling thread {own / beside:.2f} × sqlite's)",
        "≥ 0.8 ×", ratio >= 0.8,
    )  # fmt: skip


def _read(journal: Any) -> int:
    return sum(batch.num_rows for batch in journal.topic("t").read_arrow())


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
            before, begun = stage.proxy.traffic(), time.perf_counter()
            for _ in range(count):
                journal.topic("t").append("k", time.time())
                time.sleep(0.5)
            time.sleep(1)
            rate = ((stage.proxy.traffic() - before).requests - 2 * count) / (time.perf_counter() - begun)
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
    rows: dict[str, Callable[[Table, Stage, str], object]] = {
        "appends": lambda table, stage, label: one_by_one(table, stage, label, 40 if quick else 100),
        "threads": lambda table, stage, label: many_threads(table, stage, label, 4 if quick else 8),
        "batches": lambda table, stage, label: batches(table, stage, label, 8 if quick else 15),
        "reading": lambda table, stage, label: reading(table, stage, label, 50_000 if quick else 100_000),
        "opening": opening,
        "lag": lambda table, stage, label: lag(table, stage, label, 10),
    }
    late: dict[str, Callable[[Table, Stage, str], object]] = {
        "opening": lambda table, stage, label: opening(table, stage, label, events),
        "memory": memory,
        "idle": lambda table, stage, label: idle(table, stage, label, 20 if quick else 40),
        "failover": lambda table, stage, label: failover(table, stage, label, min(events, 100_000), 3 if quick else 10),
        "spark": lambda table, stage, label: spark_reading(table, stage, label, 200_000 if quick else 2_000_000),
    }
    chosen = {word for word in sys.argv[1:] if word in rows or word in late} or {*rows, *late}
    table = Table("object", "A journal in object storage", __doc__ or "")
    emulator = Emulator()
    try:
        for latency, label in ((0.0, "0 ms"), (0.025, "25 ms")):
            stage = Stage(emulator, latency)
            try:
                for kind in (rows, late) if latency else (rows,):
                    for name, row in kind.items():
                        if name in chosen:
                            row(table, stage, label)
            finally:
                stage.proxy.stop()
    finally:
        emulator.stop()
    if chosen == {*rows, *late}:
        table.save()

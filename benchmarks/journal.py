"""The log: append, read, open, and whether anything grows with the size of the store.

    python -m benchmarks journal            # all of it, about five minutes
    python -m benchmarks journal quick      # without the ten-million-event stores

Everything is a ratio: to the machine's own rate of 100-byte write+fdatasync (raw), or to the standard library's sqlite3
fetching the same events as table rows (rows), measured in the same run, next to each other.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock.aio
from benchmarks.harness import Ratio, Table, latencies, median_ratio, rate, raw_rate

PAYLOAD = {"x": "y" * 92}  # 100 bytes of JSON
ROUNDS = 5


@contextmanager
def journal(folder: Path, scheme: str, **options: object) -> Iterator[penstock.Journal]:
    name = f"{scheme}-{time.perf_counter_ns()}"
    opened = penstock.open(f"{scheme}:{folder / name}", **options)  # type: ignore[arg-type]
    try:
        yield opened
    finally:
        opened.close()


def append_one(topic: penstock.Topic, count: int) -> int:
    for _ in range(count):
        topic.append("k", PAYLOAD)
    return count


def append_thousands(topic: penstock.Topic, count: int) -> int:
    drafts = [penstock.Draft("k", PAYLOAD) for _ in range(1000)]
    for _ in range(count):
        topic.append_many(drafts)
    return count * 1000


def append_threads(topic: penstock.Topic, threads: int, each: int) -> tuple[float, list[float]]:
    waits: list[float] = []

    def work() -> None:
        mine = []
        for _ in range(each):
            start = time.perf_counter()
            topic.append("k", PAYLOAD)
            mine.append(time.perf_counter() - start)
        waits.extend(mine)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - start), waits


def append_tasks(url: str, tasks: int, each: int) -> float:
    """Events a second that tasks of one event loop append, each waiting for its own."""

    async def work() -> float:
        async with await penstock.aio.open(url) as opened:
            topic = opened.topic("tasks")

            async def one() -> None:
                for _ in range(each):
                    await topic.append("k", PAYLOAD)

            start = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(tasks)))
            return tasks * each / (time.perf_counter() - start)

    return asyncio.run(work())


def single_waits(topic: penstock.Topic, count: int) -> list[float]:
    waits = []
    for _ in range(count):
        start = time.perf_counter()
        topic.append("k", PAYLOAD)
        waits.append(time.perf_counter() - start)
    return waits


def appends(table: Table, folder: Path) -> None:
    def raw() -> float:
        return raw_rate(folder)

    goals = {"sqlite": 0.8, "file": 0.8, "rocksdb": None}
    for scheme, goal in goals.items():
        with journal(folder, scheme) as opened:
            topic = opened.topic("one")
            append_one(topic, 300)
            got = median_ratio(ROUNDS, raw, lambda topic=topic: rate(lambda: append_one(topic, 600)))  # type: ignore[misc]
            table.row(
                f"append, one thread, {scheme}",
                f"{got:.2f} x raw",
                f"≥ {goal} x" if goal else "",
                goal and got >= goal,
                spread=got.spread,
            )
            table.row(f"the time of each append, {scheme}", latencies(single_waits(topic, 3000)))
    for scheme in ("sqlite",):
        with journal(folder, scheme) as opened:
            topic = opened.topic("threads")
            append_one(topic, 300)
            ratios, waits = [], []
            append_threads(topic, 64, 100)
            for _ in range(ROUNDS):
                base = raw()
                got, found = append_threads(topic, 64, 100)
                ratios.append(got / base)
                waits += found
            ratio = Ratio.of(ratios)
            table.row(
                f"append, 64 threads, {scheme}",
                f"{ratio:.1f} x raw; {latencies(waits)}",
                "≥ 3.5 x",
                ratio >= 3.5,
                spread=ratio.spread,
            )

            def threads(topic: penstock.Topic = topic) -> float:
                return append_threads(topic, 64, 100)[0]

            loops = (f"{scheme}:{folder / f'tasks-{number}'}" for number in range(ROUNDS + 1))
            got = median_ratio(ROUNDS, threads, lambda loops=loops: append_tasks(next(loops), 1_000, 10))  # type: ignore[misc]
            table.row(
                f"append, 1,000 tasks of an event loop, {scheme}",
                f"{got:.2f} x 64 threads",
                "≥ 0.8 x",
                got >= 0.8,
                spread=got.spread,
            )
    for scheme in ("sqlite", "file"):
        for durability, goal in (("disk", 60), ("process", 80)):
            with journal(folder, scheme, durability=durability) as opened:
                topic = opened.topic("many")
                append_thousands(topic, 5)
                got = median_ratio(ROUNDS, raw, lambda topic=topic: rate(lambda: append_thousands(topic, 40)))  # type: ignore[misc]
                table.row(
                    f"append_many of 1,000, {scheme}, {durability}",
                    f"{got:.0f} x raw (events)",
                    f"≥ {goal} x",
                    got >= goal,
                    spread=got.spread,
                )
    for scheme, goal in (("sqlite", 4.0), ("file", 10.0)):
        with journal(folder, scheme, durability="process") as opened:
            topic = opened.topic("one")
            append_one(topic, 300)
            got = median_ratio(ROUNDS, raw, lambda topic=topic: rate(lambda: append_one(topic, 3000)))  # type: ignore[misc]
            table.row(
                f"append, process durability, {scheme}",
                f"{got:.1f} x raw",
                f"≥ {goal} x",
                got >= goal,
                spread=got.spread,
            )


def fill_rows(path: Path, topic: penstock.Topic) -> sqlite3.Connection:
    """The same events as rows of a table, every field a column."""
    db = sqlite3.connect(path)
    db.execute(
        "create table events(seq integer primary key, topic text, kind text, key text, scope text, payload text,"
        " headers text, occurred_at int, recorded_at int, id text, correlation_id text, causation_id text)"
    )
    rows = (
        (e.seq, e.topic, e.kind, e.key, e.scope, e.raw.decode(), "{}", 0, 0, e.id, e.correlation_id, e.causation_id)
        for e in topic.read()
    )
    db.executemany("insert into events values(?,?,?,?,?,?,?,?,?,?,?,?)", rows)
    db.commit()
    return db


def reads(table: Table, folder: Path) -> None:
    for scheme in ("sqlite",):
        with journal(folder, scheme) as opened:
            thousands, merged = opened.topic("thousands"), opened.topic("merged")
            append_thousands(thousands, 300)
            for _ in range(3000):
                merged.append_many([penstock.Draft("k", PAYLOAD) for _ in range(100)])
            opened.maintain()
            db = fill_rows(folder / f"rows-{scheme}.db", thousands)

            def rows(db: sqlite3.Connection = db) -> float:
                return rate(lambda: sum(1 for _ in db.execute("select * from events order by seq")))

            def objects(topic: penstock.Topic = thousands) -> float:
                return rate(lambda: sum(1 for _ in topic.read()))

            def batches(topic: penstock.Topic) -> float:
                return rate(lambda: sum(batch.num_rows for batch in topic.read_arrow()))

            got = median_ratio(ROUNDS, rows, objects)
            table.row(f"read as Event objects, {scheme}", f"{got:.1f} x rows", "≥ 1.5 x", got >= 1.5, spread=got.spread)
            got = median_ratio(ROUNDS, rows, lambda topic=merged: batches(topic))  # type: ignore[misc]
            table.row(
                f"read_arrow over merged blocks, {scheme}", f"{got:.1f} x rows", "≥ 10 x", got >= 10, spread=got.spread
            )
            got = median_ratio(ROUNDS, rows, lambda topic=thousands: batches(topic))  # type: ignore[misc]
            table.row(
                f"read_arrow over blocks of 1,000, {scheme}", f"{got:.1f} x rows", "≥ 5 x", got >= 5, spread=got.spread
            )
            db.close()


def sizes(table: Table, folder: Path) -> None:
    for scheme in ("sqlite", "file"):
        with journal(folder, scheme, durability="process") as opened:
            topic = opened.topic("t")
            for _ in range(100_000):
                topic.append("k", PAYLOAD)
            opened.maintain()
            opened._engine.reclaim()
            opened.flush()
            got = opened.describe().size_bytes / len(topic) / 100
            table.row(
                f"bytes on disk, appended one by one, {scheme}", f"{got:.2f} x the payload", "≤ 1.6 x", got <= 1.6
            )


PROBE = """
import sys, time
import penstock
penstock.open("memory:").close()  # what is imported then is no part of opening
start = time.perf_counter()
journal = penstock.open(sys.argv[1])
latest = journal.topic("t").latest
took = time.perf_counter() - start
# Not ru_maxrss: that starts with the memory of the process this one was forked from.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(took, peak / 1024, latest)
"""


def probe_open(url: str) -> tuple[float, float]:
    """Seconds to open and find the end, and the process's memory in MB, in a fresh process."""
    runs = [
        subprocess.run([sys.executable, "-c", PROBE, url], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(5)
    ]
    return min(float(run[0]) for run in runs), min(float(run[1]) for run in runs)


def costs_at(topic: penstock.Topic) -> tuple[float, float, float]:
    """Microseconds for one append, one tail read, one get at random, at the topic's present size."""
    latest = topic.latest
    return (
        1e6 / rate(lambda: append_one(topic, 2000)),
        1e6 / rate(lambda: sum(len(list(topic.read(topic.latest - 10))) // 10 for _ in range(300))),
        1e6 / rate(lambda: sum(topic.get(1 + n * 7919 % latest) is not None for n in range(300))),
    )


def growth(table: Table, folder: Path, sizes: tuple[int, ...]) -> None:
    for scheme in ("sqlite", "file"):
        path = folder / f"growth-{scheme}"
        empty = folder / f"empty-{scheme}"
        penstock.open(f"{scheme}:{empty}").close()
        opened = penstock.open(f"{scheme}:{path}", durability="process")
        topic = opened.topic("t")
        drafts = [penstock.Draft("k", PAYLOAD) for _ in range(5000)]
        costs = []
        for size in sizes:
            while topic.latest < size:
                topic.append_many(drafts)
            append_one(topic, 200)
            costs.append(costs_at(topic))
        opened.close()
        for at, work in enumerate(("append (process)", "tail read of 10", "get at random")):
            first = costs[0][at]
            steps = ", ".join(f"{cost[at] / first:.2f}" for cost in costs)
            table.row(f"{work} at {' / '.join(f'{s:,}' for s in sizes)}, {scheme}", f"{steps} x", "flat")
        (took, memory), (took_empty, _) = probe_open(f"{scheme}:{path}"), probe_open(f"{scheme}:{empty}")
        goal = took <= 1 if scheme == "file" else took <= 3 * took_empty
        table.row(
            f"open a store of {sizes[-1]:,} events, {scheme}",
            f"{took / took_empty:.1f} x an empty one ({took * 1000:.1f} ms), {memory:.0f} MB",
            "≤ 1 s, < 100 MB" if scheme == "file" else "≤ 3 x, < 100 MB",
            goal and memory < 100,
        )


def main() -> None:
    quick = "quick" in sys.argv[1:]
    table = Table(
        "journal",
        "The log",
        "100-byte payloads, durability=disk unless the row says otherwise. raw is this machine's rate of 100-byte "
        "write+fdatasync; rows is the standard library's sqlite3 fetching the same events as table rows. Medians of "
        f"{ROUNDS} rounds, each measured next to its base. Run again with `python -m benchmarks journal`.",
    )
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
        folder = Path(name)
        table.row("raw write+fdatasync", f"{raw_rate(folder):,.0f}/s", "1.0")
        appends(table, folder)
        reads(table, folder)
        sizes(table, folder)
        growth(table, folder, (10_000, 200_000) if quick else (10_000, 1_000_000, 10_000_000))
    table.save()


if __name__ == "__main__":
    main()

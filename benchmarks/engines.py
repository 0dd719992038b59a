"""The engines: one small commit, large ones, reading, opening; and the SQLite layouts the default was chosen from.

    python -m benchmarks engines            # everything, about three minutes
    python -m benchmarks engines quick      # without the large file store and the SQLite layouts

Rates are ratios to the machine's own rate of 100-byte write+fdatasync (raw), measured next to each other, the median of
several rounds.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import apsw

from benchmarks.harness import Ratio, Table, latencies, median_ratio, percentile, rate, raw_rate
from penstock.core.engine.contract import Durability, Engine
from penstock.core.engine.sqlite import run_all
from penstock.core.engine.url import open_engine

SMALL = b"x" * 100
LARGE = os.urandom(120_000)
ROUNDS = 15
END = b"\xff" * 501
SINGLE_GOALS = {"sqlite": 0.85, "rocksdb": None, "file": 0.9}
PROCESS_GOALS = {"sqlite": 6.0, "rocksdb": None, "file": 15.0}


def note(table: Table, work: str, result: float, goal: float | None, unit: str) -> None:
    """A row; goals in × raw are to be reached, those in seconds not to be passed."""
    apart = result.spread if isinstance(result, Ratio) else None
    text = f"{result:.2f} {unit}" if result < 100 else f"{result:.0f} {unit}"
    if goal is None:
        table.row(work, text, spread=apart)
    elif unit == "s":
        table.row(work, text, f"≤ {goal} {unit}", result <= goal, spread=apart)
    else:
        table.row(work, text, f"≥ {goal} {unit}", result >= goal, spread=apart)


class Appender:
    """Puts new keys at the end of the key space, as the log does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers = itertools.count()

    def commits(self, count: int, value: bytes, *, sync: bool = True) -> int:
        for _ in range(count):
            with self.engine.write(sync=sync) as tx:
                tx.put(b"topic/" + next(self._numbers).to_bytes(8), value)
        return count

    def latencies(self, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            self.commits(1, SMALL)
            taken.append(time.perf_counter() - start)
        return taken


def alternate(appender: Appender) -> int:
    return sum(appender.commits(1, SMALL, sync=bool(number % 2)) for number in range(100))


def measure(table: Table, folder: Path, scheme: str) -> None:
    place = folder / scheme
    place.mkdir()

    def opened(name: str, durability: Durability = "disk") -> Engine:
        return open_engine(f"{scheme}:{place / name}", durability=durability)

    def raw() -> float:
        return raw_rate(folder, 100)

    disk, process = Appender(opened("disk")), Appender(opened("process", "process"))
    first = rate(lambda: disk.commits(400, SMALL)) / raw()
    note(table, f"{scheme}: one small put, the first 400 of a new store", first, None, "× raw")
    note(
        table,
        f"{scheme}: one small put",
        median_ratio(ROUNDS, raw, lambda: rate(lambda: disk.commits(100, SMALL))),
        SINGLE_GOALS[scheme],
        "× raw",
    )
    times = disk.latencies(2000)
    note(table, f"{scheme}: p99 ÷ p50 of it", percentile(times, 0.99) / percentile(times, 0.5), None, "")
    table.row(f"{scheme}: the time of one small put", latencies(times))
    note(
        table,
        f"{scheme}: one small put, durability=process",
        median_ratio(ROUNDS, raw, lambda: rate(lambda: process.commits(1000, SMALL))),
        PROCESS_GOALS[scheme],
        "× raw",
    )
    note(
        table,
        f"{scheme}: one small put, sync=False, every other one synced",
        median_ratio(ROUNDS, raw, lambda: rate(partial(alternate, disk))),
        None,
        "× raw",
    )
    note(
        table,
        f"{scheme}: one put of 120 kB, in thousandths of it",
        median_ratio(ROUNDS, raw, lambda: 1000 * rate(lambda: disk.commits(20, LARGE))),
        None,
        "× raw",
    )
    read(table, scheme, disk.engine)
    disk.engine.close()
    process.engine.close()
    opening = best(lambda: opened("disk").close(), 5)
    note(table, f"{scheme}: open and close", opening * 1e3, None, "ms")
    shutil.rmtree(folder / scheme)


def read(table: Table, scheme: str, engine: Engine) -> None:
    key = b"topic/" + (5).to_bytes(8)

    def get() -> None:
        with engine.read() as snapshot:
            snapshot.get(key)

    note(table, f"{scheme}: snapshot and get", each(get, 2000) * 1e6, None, "µs")
    note(table, f"{scheme}: changes", each(engine.changes, 5000) * 1e6, None, "µs")
    with engine.read() as snapshot:
        rows = rate(lambda: sum(1 for _ in snapshot.scan(b"", b"topic/" + (2000).to_bytes(8))))
    note(table, f"{scheme}: scan of small values", rows / 1000, None, "thousand a second")


def each(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def best(call: Callable[[], object], count: int) -> float:
    return min(each(call, 1) for _ in range(count))


def large_file_store(table: Table, folder: Path) -> None:
    """1.4 GB in 20 thousand keys: what ten million events in merged blocks come to."""
    url = f"file:{folder / 'large'}"
    engine = open_engine(url, durability="process")
    value = os.urandom(70_000)
    with_keys = iter(range(20_000))
    for _ in range(200):
        with engine.write() as tx:
            for number in itertools.islice(with_keys, 100):
                tx.put(b"topic/%012d" % number, value)
    engine.flush()
    # What a process that dies leaves: the files as they are now, opened elsewhere.
    (folder / "died").mkdir()
    for name in ("data", "index"):
        os.link(folder / "large" / name, folder / "died" / name)
    note(
        table,
        "file: open 1.4 GB, 20 thousand keys, after a crash",
        each(reader(f"file:{folder / 'died'}"), 1),
        1.0,
        "s",
    )
    engine.close()
    note(table, "file: open it after a clean close", each(reader(url), 1), 1.0, "s")
    shutil.rmtree(folder / "large")
    shutil.rmtree(folder / "died")


def reader(url: str) -> Callable[[], None]:
    return lambda: open_engine(url, read_only=True).close()


class Layout:
    """One way to keep keys and values in SQLite."""

    CLUSTERED = "CREATE TABLE kv(k BLOB PRIMARY KEY, v BLOB NOT NULL) STRICT, WITHOUT ROWID"
    INDEXED = "CREATE TABLE kv(id INTEGER PRIMARY KEY, k BLOB NOT NULL UNIQUE, v BLOB NOT NULL) STRICT"

    def __init__(self, path: Path, page: int, schema: str, allocated: int) -> None:
        connection = apsw.Connection(str(path))
        run_all(
            connection,
            f"PRAGMA page_size={page}; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL;"
            f"PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint={(8 << 20) // page}; {schema}",
        )
        if allocated:
            log = os.open(f"{path}-wal", os.O_RDWR)
            os.posix_fallocate(log, 0, allocated)
            os.close(log)
        self._execute = connection.cursor().execute
        self._numbers = itertools.count()

    def commits(self, count: int, value: bytes) -> int:
        for _ in range(count):
            self._execute("BEGIN IMMEDIATE")
            self._execute(
                "INSERT INTO kv(k,v) VALUES(?,?) ON CONFLICT(k) DO UPDATE SET v=excluded.v",
                (next(self._numbers).to_bytes(8), value),
            )
            self._execute("COMMIT")
        return count

    def get(self, number: int) -> object:
        return self._execute("SELECT v FROM kv WHERE k=?", (number.to_bytes(8),)).get


def sqlite_layouts(table: Table, folder: Path) -> None:
    raw = partial(raw_rate, folder, 100)
    for name, page, schema, allocated in (
        ("clustered, 8 kB pages", 8192, Layout.CLUSTERED, 9 << 20),
        ("clustered, 8 kB pages, log not allocated in advance", 8192, Layout.CLUSTERED, 0),
        ("indexed, 4 kB pages", 4096, Layout.INDEXED, 9 << 20),
        ("indexed, 8 kB pages", 8192, Layout.INDEXED, 9 << 20),
    ):
        layout = Layout(folder / name, page, schema, allocated)
        small = median_ratio(ROUNDS, raw, partial(rate, partial(layout.commits, 50, SMALL)))
        large = median_ratio(ROUNDS, raw, partial(rate, partial(layout.commits, 20, LARGE))) * 1000
        getting = best(lambda layout=layout: [layout.get(50 * ROUNDS + number) for number in range(20)], 20) / 20
        note(table, f"layout {name}: one small put", small, None, "× raw")
        note(table, f"layout {name}: one put of 120 kB, in thousandths", large, None, "× raw")
        note(table, f"layout {name}: get of 120 kB", getting * 1e6, None, "µs")


def main() -> None:
    quick = "quick" in sys.argv[1:]
    table = Table("engines", "Engines", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        for scheme in ("sqlite", "rocksdb", "file"):
            measure(table, folder, scheme)
        if not quick:
            large_file_store(table, folder)
            sqlite_layouts(table, folder)
    table.save()


if __name__ == "__main__":
    main()

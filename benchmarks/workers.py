"""Whole workers beside each other: each is the program that its library documents, and handles messages that are there.

    python -m benchmarks workers            # all of them
    ROUNDS=9 python -m benchmarks workers 8 # only the rows with eight at once

A round pushes messages of 100 bytes, then starts the worker, whose handler notes the time. A rate counts from the first
message that is handled to the last one, so that it says nothing of how long a worker takes to start. Every worker is a
process of its own, and rounds are alternated. Each peer has the settings that its documentation names as durable: a
message that was acknowledged, or removed, is on disk. Redis has `appendfsync always`. "by hand" is a loop over a table of
`sqlite3` in write-ahead mode with `synchronous=FULL`: one UPDATE … RETURNING takes, one DELETE acknowledges. "removes"
marks those that remove a message before it is handled: what they die with is lost. "loop" marks a library that has no
worker: the loop of its documentation. CPU time is that of the worker's process, without a server's. p50, p99 and the longest time are those from one message to the next.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Table, latencies, spread

ROUNDS = 5
MESSAGES = 500
WARM_UP = 100
"""Messages that are handled before the times count."""

BEGIN = """
import json, os, sys, threading, time
place, count, hands, warm_up = sys.argv[1], *map(int, sys.argv[2:])
payload, times, cpu, done = "y" * 98, [], [], threading.Event()
def note(*given):
    times.append(time.perf_counter())
    if len(times) in (warm_up, count):
        cpu.append(time.process_time())
    if len(times) == count:
        done.set()
def end():
    print(json.dumps([times, cpu]), flush=True)
    os._exit(0)
"""

PENSTOCK = """
import penstock
journal = penstock.open(place + "/penstock.db")
queue = journal.queue("jobs")
queue.push_many([payload] * count)
with queue.worker(lambda delivery: note(delivery.payload), concurrency=hands):
    done.wait()
end()
"""

PENSTOCK_LOOP = """
import penstock
journal = penstock.open(place + "/penstock.db")
queue = journal.queue("jobs")
queue.push_many([payload] * count)
def loop():
    while (delivery := queue.take()) is not None:
        note(delivery.payload)
        delivery.ack()
threads = [threading.Thread(target=loop) for _ in range(hands)]
for thread in threads: thread.start()
for thread in threads: thread.join()
end()
"""

HUEY = """
import logging
from huey import SqliteHuey
huey = SqliteHuey("jobs", filename=place + "/huey.db", fsync=True, results=False)
@huey.task()
def job(given):
    note(given)
for _ in range(count):
    job(payload)
logging.getLogger("huey").setLevel(logging.WARNING)
consumer = huey.create_consumer(workers=hands, worker_type="thread", periodic=False, check_worker_health=False)
consumer.start()
done.wait()
end()
"""

PERSIST_QUEUE = """
import persistqueue
queue = persistqueue.SQLiteAckQueue(place + "/persist", auto_commit=True, multithreading=True)
queue._conn.execute("PRAGMA synchronous=FULL")
for _ in range(count):
    queue.put(payload)
def loop():
    while True:
        try:
            item = queue.get(block=False)
        except persistqueue.Empty:
            return
        note(item)
        queue.ack(item)
threads = [threading.Thread(target=loop) for _ in range(hands)]
for thread in threads: thread.start()
for thread in threads: thread.join()
end()
"""

LITEQUEUE = """
import litequeue
queue = litequeue.LiteQueue(place + "/lite.db")
queue.conn.execute("PRAGMA synchronous=FULL")
with queue.transaction():
    for _ in range(count):
        queue.put(payload)
while (message := queue.pop()) is not None:
    note(message.data)
    queue.done(message.message_id)
end()
"""

LOCALQUEUE = """
import localqueue
queue = localqueue.SimpleQueue(place + "/local", durability=localqueue.DurabilityMode.DURABLE)
queue.put_many([payload] * count)
for _ in range(count):
    job = queue.get_nowait()
    note(job.data)
    queue.ack(job)
end()
"""

BY_HAND = """
import sqlite3
path = place + "/hand.db"
def connect():
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection
first = connect()
first.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, payload TEXT, taken REAL)")
first.execute("CREATE INDEX free ON jobs(id) WHERE taken IS NULL")
first.execute("BEGIN")
first.executemany("INSERT INTO jobs(payload) VALUES (?)", [(payload,)] * count)
first.execute("COMMIT")
TAKE = ("UPDATE jobs SET taken=unixepoch('subsec') WHERE id=(SELECT id FROM jobs WHERE taken IS NULL ORDER BY id LIMIT 1)"
        " RETURNING id, payload")
def loop():
    connection = connect()
    while True:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(TAKE).fetchall()
        connection.execute("COMMIT")
        if not rows:
            return
        note(rows[0][1])
        connection.execute("DELETE FROM jobs WHERE id=?", (rows[0][0],))
threads = [threading.Thread(target=loop) for _ in range(hands)]
for thread in threads: thread.start()
for thread in threads: thread.join()
end()
"""

RQ = """
import logging, types
from redis import Redis
from rq import Queue
from rq.worker import SimpleWorker
jobs = types.ModuleType("jobs"); jobs.note = note; note.__module__, note.__name__, note.__qualname__ = "jobs", "note", "note"
sys.modules["jobs"] = jobs
redis = Redis(unix_socket_path=place + "/redis.sock")
redis.flushall()
queue = Queue("jobs", connection=redis)
queue.enqueue_many([Queue.prepare_data(note, (payload,), result_ttl=0) for _ in range(count)])
logging.disable(logging.WARNING)
SimpleWorker([queue], connection=redis).work(burst=True, logging_level="ERROR")
end()
"""

PROCRASTINATE = """
import asyncio, logging
import procrastinate
logging.disable(logging.ERROR)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=f"host={place} user=bench dbname=postgres"))
@app.task(name="job")
async def job(given):
    note(given)
async def main():
    async with app.open_async():
        await job.batch_defer_async(*[{"given": payload}] * count)
        await app.run_worker_async(wait=False, concurrency=hands, delete_jobs="successful", listen_notify=False)
asyncio.run(main())
end()
"""


class Program(NamedTuple):
    """A worker: what runs it, and how many it handles at once at the most (None: any number)."""

    code: str
    most: int | None = None
    needs: str = ""


PROGRAMS = {
    "penstock, worker": Program(PENSTOCK),
    "penstock, loop of take and ack": Program(PENSTOCK_LOOP),
    "huey, consumer with threads on SQLite (removes)": Program(HUEY),
    "persist-queue, SQLiteAckQueue (loop)": Program(PERSIST_QUEUE),
    "litequeue (loop)": Program(LITEQUEUE, 1),
    "localqueue (loop)": Program(LOCALQUEUE, 1),
    "sqlite3 by hand (loop)": Program(BY_HAND),
    "RQ, SimpleWorker on Redis": Program(RQ, 1, "redis"),
    "procrastinate, worker on PostgreSQL": Program(PROCRASTINATE, None, "postgres"),
}


# ── the servers of some of them ──────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def redis_server(folder: Path) -> Iterator[None]:
    found = shutil.which("redis-server")
    if found is None:
        raise LookupError("redis-server is not on this machine")
    options = ["--port", "0", "--unixsocket", str(folder / "redis.sock"), "--dir", str(folder), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    server = subprocess.Popen([found, *options], stdout=subprocess.DEVNULL)
    try:
        while not (folder / "redis.sock").exists():
            time.sleep(0.02)
        yield
    finally:
        server.terminate()
        server.wait()


@contextmanager
def postgres_server(folder: Path) -> Iterator[None]:
    from benchmarks.queue_peers import Postgres

    try:
        server = Postgres(folder)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        raise LookupError(f"PostgreSQL does not run here: {error}") from error
    try:
        make = "from procrastinate import App, PsycopgConnector as C\nimport sys\n"
        make += "app = App(connector=C(conninfo=f'host={sys.argv[1]} user=bench dbname=postgres'))\n"
        make += "with app.open():\n    app.schema_manager.apply_schema()\n"
        where = str(folder / "postgres")
        made = subprocess.run([sys.executable, "-c", make, where], capture_output=True, text=True, check=False)
        if made.returncode:
            raise LookupError(made.stderr.strip().rpartition("\n")[2])
        (folder / "postgres-place").write_text(where)
        yield
    finally:
        server.close()


# ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Round(NamedTuple):
    """What a worker did, without its first messages."""

    gaps: list[float]
    """Seconds from each message to the next."""
    cpu: float
    """Seconds that its process computed for one message."""


def handled(program: Program, folder: Path, hands: int) -> Round:
    """Runs a worker."""
    place = folder / f"{time.monotonic_ns()}"
    place.mkdir()
    at = {"redis": folder, "postgres": folder / "postgres"}.get(program.needs, place)
    words = [sys.executable, "-c", BEGIN + program.code, str(at), str(MESSAGES), str(hands), str(WARM_UP)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    shutil.rmtree(place)
    if not done.stdout.strip():
        raise LookupError(done.stderr.strip().rpartition("\n")[2] or "it ended without a word")
    times, cpu = json.loads(done.stdout.strip().rpartition("\n")[2])
    if len(times) != MESSAGES:
        raise LookupError(f"{len(times):,} messages were handled, and {MESSAGES:,} were there")
    counted = sorted(times)[WARM_UP - 1 :]
    gaps = [later - earlier for earlier, later in itertools.pairwise(counted)]
    return Round(gaps, (cpu[1] - cpu[0]) / len(gaps))


def main() -> None:
    words = " ".join(sys.argv[1:])
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    table = Table("workers", "Whole workers", __doc__ or "", rounds=rounds)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("BENCH_FOLDER")) as name:
        folder = Path(name)
        servers = {"redis": redis_server, "postgres": postgres_server}
        running = []
        missing = {}
        try:
            for needed, start in servers.items():
                server = start(folder)
                try:
                    server.__enter__()
                    running.append(server)
                except (LookupError, ImportError) as error:
                    missing[needed] = str(error)
            for hands in (1, 8):
                measure(table, folder, hands, rounds, words, missing)
        finally:
            for server in reversed(running):
                server.__exit__(None, None, None)
    if not words:
        table.save()


def measure(table: Table, folder: Path, hands: int, rounds: int, words: str, missing: dict[str, str]) -> None:
    title = "one at a time" if hands == 1 else f"{hands} at a time"
    found: dict[str, list[Round]] = {}
    for number in range(rounds + 1):  # the first warms up
        for name, program in PROGRAMS.items():
            row = f"{title}: {name}"
            if words not in row or (program.most is not None and program.most < hands) or name in missing:
                continue
            if program.needs in missing:
                missing[name] = missing[program.needs]
                continue
            try:
                round_ = handled(program, folder, hands)
            except LookupError as error:
                missing[name] = str(error)
                found.pop(name, None)
                continue
            if number:
                found.setdefault(name, []).append(round_)
    best = next(iter(PROGRAMS))
    for name in PROGRAMS:
        row = f"{title}: {name}"
        if name not in found:
            if words in row and name in missing:
                table.row(row, f"not measured: {missing[name][:80]}")
            continue
        rates = [len(one.gaps) / sum(one.gaps) for one in found[name]]
        gaps = [gap for one in found[name] for gap in one.gaps]
        used = statistics.median(one.cpu for one in found[name]) * 1e6
        said = f"{statistics.median(rates):,.0f}/s, {used:,.0f} µs of CPU each; {latencies(gaps)}"
        goal, holds, apart = "", None, rates
        if name != best and best in found:
            apart = [sum(theirs.gaps) / sum(mine.gaps) for mine, theirs in zip(found[best], found[name], strict=True)]
            ratio = statistics.median(apart)
            said = f"the penstock worker is {ratio:.2f} × as fast: {said}"
            least = {"penstock, loop of take and ack": 1.0, "huey, consumer with threads on SQLite (removes)": 0.8}
            if hands == 1 and name in least:
                goal, holds = f"≥ {least[name]} ×", ratio >= least[name]
        table.row(row, said, goal, holds, spread=spread(apart))


if __name__ == "__main__":
    main()

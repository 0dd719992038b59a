"""The server: appending over HTTP, following by many, and a page over many topics.

    python -m benchmarks server

Server and clients are processes of their own on one machine. HTTP appends are batches of 100 events from 8 connections,
durable on disk; in-process is the same work by 8 threads on the same kind of store, in the same run. Server-sent events:
one event a step is appended by HTTP, and the time until each client has it is taken in the clients' process; 200 clients
against one. The overview page is measured with 10 topics and with 1,000, each with a cursor, turn by turn. Medians.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from benchmarks.harness import Table

CONNECTIONS = 8
BATCH = 100
SECONDS = 3.0
ROUNDS = 3
CLIENTS = 200
STEPS = 40

PAYLOAD = {"id": 4711, "customer": "c-0042", "total": 129.95, "note": "x" * 40}


@contextmanager
def serving(url: str) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    words = [sys.executable, "-m", "penstock.cli", "serve", "--create", "--url", url, "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
def in_threads(work: object) -> float:
    """Events a second that 8 threads append together; `work(until)` returns how many one of them did."""
    counts: list[int] = []
    until = time.perf_counter() + SECONDS
    threads = [threading.Thread(target=lambda: counts.append(work(until))) for _ in range(CONNECTIONS)]  # type: ignore[operator]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def append_in_process(folder: str) -> float:
    with penstock.open(Path(folder) / f"local-{time.monotonic_ns()}.db") as journal:
        topic = journal.topic("t")
        drafts = [penstock.Draft("placed", PAYLOAD) for _ in range(BATCH)]

        def work(until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                done += len(topic.append_many(drafts))
            return done

        return in_threads(work)


LOADER = """
import http.client, json, sys, threading, time
port, connections, batch, seconds = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
body = json.dumps([{"kind": "placed", "payload": json.loads(sys.argv[5])}] * batch).encode()
counts = []
def work():
    connection = http.client.HTTPConnection("127.0.0.1", port)
    done = 0
    while time.perf_counter() < until:
        connection.request("POST", "/v1/topics/t/events", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 201, answer.status
        done += batch
    counts.append(done)
begun = time.perf_counter(); until = begun + seconds
threads = [threading.Thread(target=work) for _ in range(connections)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(counts) / (time.perf_counter() - begun))
"""


def append_over_http(port: int) -> float:
    given = [str(port), str(CONNECTIONS), str(BATCH), str(SECONDS), json.dumps(PAYLOAD)]
    done = subprocess.run([sys.executable, "-c", LOADER, *given], capture_output=True, text=True, check=True)
    return float(done.stdout)


# ── following ────────────────────────────────────────────────────────────────────────────────────────────────────────
async def follow(port: int, topic: str, clients: int, steps: int) -> tuple[float, int]:
    """The median, over steps, of the time until the last client has an event; and how many events were missing."""
    streams = []
    for _ in range(clients):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /v1/topics/{topic}/live?after=latest HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        streams.append((reader, writer))
    for reader, _ in streams:
        while b": following" not in await reader.readline():
            pass
    await asyncio.sleep(0.3)
    got: list[list[float]] = [[] for _ in streams]

    async def listen(at: int, reader: asyncio.StreamReader) -> None:
        while len(got[at]) < steps:
            if (await reader.readline()).startswith(b"data: "):
                got[at].append(time.perf_counter())

    listeners = [asyncio.create_task(listen(at, reader)) for at, (reader, _) in enumerate(streams)]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"kind": "placed", "payload": PAYLOAD})
    sent = []

    def append() -> None:
        connection.request("POST", f"/v1/topics/{topic}/events", body, {"Content-Type": "application/json"})
        connection.getresponse().read()

    for _ in range(steps):
        sent.append(time.perf_counter())
        await asyncio.to_thread(append)
        await asyncio.sleep(0.04)
    _, late = await asyncio.wait(listeners, timeout=20)
    for task in late:
        task.cancel()
    connection.close()
    for _, writer in streams:
        writer.close()
    missing = sum(steps - len(times) for times in got)
    whole = [times for times in got if len(times) == steps]
    waits = [[times[step] - sent[step] for times in whole] for step in range(steps)]
    return statistics.median(statistics.median(wait) for wait in waits), missing


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def make_topics(path: Path, count: int) -> str:
    with penstock.open(path, durability="process") as journal:
        for number in range(count):
            topic = journal.topic(f"topic-{number:04}")
            topic.append_many([penstock.Draft("k", number)] * 20)
            topic.commit("reader", 10)
    return str(path)


def page_seconds(port: int) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begun = time.perf_counter()
    connection.request("GET", "/", headers={"Accept": "text/html"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    connection.close()
    return time.perf_counter() - begun


def main() -> None:
    notes = f"{__doc__}\nLoad average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    table = Table("server", "The server", notes)
    with tempfile.TemporaryDirectory() as folder:
        with serving(f"{folder}/served.db") as port:
            append_over_http(port)
            ratios = [append_over_http(port) / append_in_process(folder) for _ in range(ROUNDS)]
        ratio = statistics.median(ratios)
        work = f"append batches of {BATCH} from {CONNECTIONS} connections, HTTP"
        table.row(work, f"{ratio:.2f} × in-process", "≥ 0.5 ×", ratio >= 0.5)
        with serving(f"{folder}/live.db") as port:
            pairs = []
            missing = 0
            for step in range(ROUNDS):
                alone, lost = asyncio.run(follow(port, f"one-{step}", 1, STEPS))
                many, lost_many = asyncio.run(follow(port, f"many-{step}", CLIENTS, STEPS))
                pairs.append(many / alone)
                missing += lost + lost_many
        slower = statistics.median(pairs)
        said = f"{slower:.2f} × the latency of one, {missing} events lost"
        table.row(f"server-sent events to {CLIENTS} clients", said, "≤ 3 ×, none lost", slower <= 3 and missing == 0)
        few, many_topics = make_topics(Path(folder) / "few.db", 10), make_topics(Path(folder) / "many.db", 1000)
        with serving(few) as first, serving(many_topics) as second:
            page_seconds(first), page_seconds(second)
            times = [(page_seconds(first), page_seconds(second)) for _ in range(25)]
        dearer = statistics.median(many for _, many in times) / statistics.median(few for few, _ in times)
        table.row("the overview page with 1,000 topics", f"{dearer:.2f} × with ten", "≤ 3 ×", dearer <= 3)
    table.save()


if __name__ == "__main__":
    main()

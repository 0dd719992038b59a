"""A server under mixed load for long: clients write, read, follow, take and look, and its memory stays as it was.

    python -m torture.serving [--minutes 120] [--clients 6] [--seed 1]

A `penstock serve` of its own on 127.0.0.1, with what it keeps bounded by retention, is used by a few threads: events
and batches, payloads of some MiB now and then, pages, lines and Arrow streams, followers that come and go, pushes,
takes and acks, statistics and the console's pages. Every few seconds the kernel is asked what the process has. Memory,
descriptors and threads of the second half are those of the first, but for what an allocator leaves in pieces. Ends
with 1 when they are not.
"""

from __future__ import annotations

import http.client
import random
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import penstock
from penstock import Draft, Journal
from penstock.errors import PenstockError, PositionTrimmed
from searching import Search
from server.process import ServerProcess

GROWTH = 32 << 20
"""Bytes by which the second half may exceed the first: what an allocator leaves in pieces."""
EVERY = 5.0
"""Seconds between two looks at the server."""
KEPT = 2000
"""Events that a topic keeps."""
LARGE = 12
"""Events of some MiB that their topic keeps."""
MIB = 1 << 20


class Figures(NamedTuple):
    """What the kernel says a process has: memory in bytes, and of it what `malloc` holds in heaps."""

    resident: int
    proportional: int
    heaps: int
    descriptors: int
    threads: int

    def __str__(self) -> str:
        sizes = [f"{size / MIB:.1f}" for size in self[:3]]
        return (
            f"{sizes[0]} MiB resident ({sizes[1]} proportional, {sizes[2]} in heaps), {self.descriptors} descriptors, "
            f"{self.threads} threads"
        )


def figures(pid: int) -> Figures:
    folder = Path(f"/proc/{pid}")
    resident = proportional = heaps = 0
    is_heap = False
    for line in (folder / "smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            # glibc's heaps of threads begin at multiples of 64 MiB.
            is_heap = words[-1] == "[heap]" or (len(words) == 5 and int(words[0].split("-")[0], 16) % (64 * MIB) == 0)
        elif words[0] == "Rss:":
            resident += int(words[1]) * 1024
            heaps += int(words[1]) * 1024 if is_heap else 0
        elif words[0] == "Pss:":
            proportional += int(words[1]) * 1024
    return Figures(
        resident,
        proportional,
        heaps,
        len(list((folder / "fd").iterdir())),
        len(list((folder / "task").iterdir())),
    )


class Client:
    """One client of a server: each of its acts is one thing that programs and people do."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self.journal: Journal = penstock.open(url)
        self.small = self.journal.topic("small")
        self.large = self.journal.topic("large")
        self.work = self.journal.queue("work")
        self.acts: dict[Callable[[], object], int] = {
            self.append: 20,
            self.append_batch: 10,
            self.append_large: 2,
            self.read_page: 10,
            self.read_large: 2,
            self.read_lines: 2,
            self.read_arrow: 3,
            self.follow: 4,
            self.settle: 12,
            self.look: 6,
        }

    def act(self) -> str:
        """Does one of them, drawn by chance, and returns its name."""
        chosen = self._rng.choices(list(self.acts), list(self.acts.values()))[0]
        chosen()
        return chosen.__name__

    def _get(self, path: str, accept: str = "*/*") -> int:
        request = urllib.request.Request(self._url + path, headers={"Accept": accept})
        size = 0
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                while piece := answer.read(1 << 16):
                    size += len(piece)
        except urllib.error.HTTPError as refused:
            with refused:
                if refused.code == 410:
                    raise PositionTrimmed(path, oldest=0) from refused
                raise
        except http.client.IncompleteRead as broken:  # the only way in which an Arrow stream can say the same
            raise PositionTrimmed(path, oldest=0) from broken
        return size

    def _payload(self) -> dict[str, object]:
        return {"n": self._rng.randrange(1000), "text": "x" * self._rng.choice([10, 200, 3000])}

    def append(self) -> None:
        self.small.append("one", self._payload(), key=str(self._rng.randrange(50)))

    def append_batch(self) -> None:
        drafts = [Draft("many", self._payload(), key=str(self._rng.randrange(50))) for _ in range(100)]
        self.small.append_many(drafts)

    def append_large(self) -> None:
        self.large.append("large", {"text": "x" * self._rng.randrange(MIB, 8 * MIB)})

    def read_page(self) -> None:
        after = max(0, self.small.latest - self._rng.randrange(1, KEPT // 2))
        self._get(f"/v1/topics/small/events?after={after}&limit={self._rng.choice([10, 100, 1000])}")

    def read_large(self) -> None:
        self._get(f"/v1/topics/large/events?after={max(0, self.large.latest - self._rng.randrange(1, 4))}")

    def read_lines(self) -> None:
        self._get("/v1/topics/small/events?since=1h", "application/x-ndjson")

    def read_arrow(self) -> None:
        topic = self._rng.choice(["small", "small", "large"])
        self._get(f"/v1/topics/{topic}/events?since=1h", "application/vnd.apache.arrow.stream")

    def follow(self) -> None:
        topic = self._rng.choice([self.small, self.small, self.large])
        with topic.subscribe(after=max(0, topic.latest - self._rng.randrange(1, 5))) as events:
            for _ in range(self._rng.randrange(1, 20)):
                events.next(0.2)

    def settle(self) -> None:
        self.work.push_many([self._payload() for _ in range(self._rng.choice([1, 20]))])
        taken = self.work.take_many(20, lease=60)
        if taken:
            self.work.ack_many(taken)

    def look(self) -> None:
        pages = ["/", "/topics/small", "/queues/work", "/health", "/v1/stats", "/metrics", "/charts/overview?span=15m"]
        self._get(self._rng.choice(pages))


def prepare(url: str) -> None:
    """Makes what the clients use, and bounds what is kept of it."""
    with penstock.open(url) as journal:
        journal.topic("small").append("first", {"n": 0})
        journal.topic("small").configure(max_events=KEPT)
        journal.topic("large").append("first", {"n": 0})
        journal.topic("large").configure(max_events=LARGE)
        journal.queue("work").push({"n": 0})
        journal.topic("work").configure(max_events=KEPT)


class Load:
    """Threads that use a server until `stop`; what they did and what failed is counted."""

    def __init__(self, url: str, clients: int, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(url, random.Random(f"{seed}-{number}")))
            for number in range(clients)
        ]
        for each in self._threads:
            each.start()

    def _run(self, url: str, rng: random.Random) -> None:
        client = Client(url, rng)
        try:
            while not self._ends.is_set():
                try:
                    self.done[client.act()] += 1
                except PositionTrimmed:
                    self.done["late"] += 1  # what it was after was removed meanwhile, as it should be
                except (PenstockError, OSError) as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
        finally:
            client.journal.close()

    def stop(self) -> None:
        self._ends.set()
        for each in self._threads:
            each.join()


def soak(url: str, pid: int, minutes: float, clients: int, seed: int) -> list[str]:
    """Uses a server for so long, and says what grew."""
    prepare(url)
    samples: list[Figures] = []
    begun = shown = time.monotonic()
    load = Load(url, clients, seed)
    try:
        while (now := time.monotonic()) < begun + 60 * minutes:
            time.sleep(EVERY)
            sample = figures(pid)
            if now - begun > 60 * minutes * 0.2:  # caches have filled
                samples.append(sample)
            if now - shown >= 60:
                shown = now
                print(f"{(now - begun) / 60:.0f} min, {load.done.total()} acts: {sample}", flush=True)
    finally:
        load.stop()
    print(f"{load.done.total()} acts: {dict(load.done)}; {len(load.failed)} failed", flush=True)
    half = len(samples) // 2
    if half < 2:
        return load.failed[:10]
    before, after = _usual(samples[:half]), _usual(samples[half:])
    print(f"first half:  {before}\nsecond half: {after}\nat rest:     {figures(pid)}", flush=True)
    found = load.failed[:10]
    if after.resident > before.resident + GROWTH:
        found.append(f"memory grew from {before.resident:,} to {after.resident:,} bytes")
    if after.descriptors > before.descriptors + clients or after.threads > before.threads + clients:
        found.append(f"descriptors or threads grew: {before}, {after}")
    return found


def _usual(samples: list[Figures]) -> Figures:
    """The lower decile of each figure: what a server has between large bodies, however many of them met by chance."""
    return Figures(*(int(quantiles(each, n=10)[0]) for each in zip(*samples, strict=True)))


def main() -> int:
    search = Search("torture.serving", __doc__)
    search.parser.add_argument("--clients", type=int, default=6)
    options = search.begin()
    folder = Path(tempfile.mkdtemp(prefix="penstock-serving-"))
    try:
        with ServerProcess(f"sqlite:{folder / 'store'}") as server:
            found = soak(server.url, server.pid, options.minutes, options.clients, options.seed)
    finally:
        shutil.rmtree(folder)
    search.tell(found)
    return search.end(f"{options.clients} clients")


if __name__ == "__main__":
    sys.exit(main())

"""Overload and soak: thousands of threads, topics and cursors at once; then the same work for long, with flat figures.

    python -m torture.overload [--minutes 60] [--threads 2000] [--topics 10000] [--cursors 100000] [--seed 1]

Afterwards everything that was acknowledged is there, and memory, descriptors and threads of the second half of the soak
are those of its first half. Ends with 1 when they are not.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import penstock
from penstock import Draft, Journal
from searching import Search

SLOW = 20
"""Subscribers that never read."""
GROWTH = 2 << 20
"""Bytes of memory by which the second half of a soak may exceed the first: what an allocator leaves in pieces."""
ENGINE_GROWTH = {"rocksdb": (64 << 20, 32)}
"""Bytes and descriptors that an engine's own write buffers, cache and tables may take besides, until they are full."""


class Figures(NamedTuple):
    memory: int
    descriptors: int
    threads: int


def figures() -> Figures:
    gc.collect()
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return Figures(
        (resident - shared) * os.sysconf("SC_PAGE_SIZE"),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
    )


def crowd(journal: Journal, threads: int) -> list[str]:
    """So many threads append to one topic at the same moment."""
    topic = journal.topic("crowd")
    go, failed = threading.Event(), []

    def body(number: int) -> None:
        go.wait()
        try:
            topic.append("one", number, dedup=str(number))
        except BaseException as error:
            failed.append(f"a thread of {threads}: {type(error).__name__}: {error}")

    runners = [threading.Thread(target=body, args=(number,)) for number in range(threads)]
    for each in runners:
        each.start()
    go.set()
    for each in runners:
        each.join()
    if sorted(event.payload for event in topic.read()) != list(range(threads)):
        failed.append(f"{threads} threads appended, and {len(topic)} events are there")
    return failed


def many(journal: Journal, topics: int, cursors: int) -> list[str]:
    """So many topics with an event each, and so many cursors on one."""
    for begin in range(0, topics, 500):
        with journal.outbox() as outbox:
            for number in range(begin, min(topics, begin + 500)):
                outbox.stage(f"many-{number}", "one", number)
    topic = journal.topic("many-0")
    for begin in range(0, cursors, 1000):
        with journal.transaction() as tx:
            for number in range(begin, min(cursors, begin + 1000)):
                tx.commit("many-0", f"consumer-{number}", 1)
    found = []
    if (count := sum(name.startswith("many-") for name in journal.topics())) != topics:
        found.append(f"{topics} topics were made, and {count} are there")
    if len(topic.cursors()) != cursors:
        found.append(f"{cursors} cursors were committed, and {len(topic.cursors())} are there")
    return found


def soak(journal: Journal, engine: str, rng: random.Random, ends: float) -> list[str]:
    """The same small work again and again, with readers that never read; what is kept stays the same."""
    topic, queue = journal.topic("soak"), journal.queue("soak-work")
    topic.configure(max_events=2000)
    slow = [topic.subscribe(after=0) for _ in range(SLOW)]
    samples: list[Figures] = []
    begun, turns = time.monotonic(), 0
    while time.monotonic() < ends:
        for _ in range(50):
            topic.append_many([Draft("k", "x" * rng.choice([10, 1000]), key=str(rng.randrange(50)))] * 5)
            queue.push("message")
            delivery = queue.take(wait=0)
            if delivery is not None:
                delivery.ack()
            for _ in topic.read(limit=20, key=str(rng.randrange(50))):
                pass
            with topic.subscribe(after=max(0, topic.latest - 3)) as events:
                events.next()
        turns += 50
        if time.monotonic() - begun > (ends - begun) * 0.2:  # caches have filled
            samples.append(figures())
    for each in slow:
        each.close()
    if len(samples) < 4:
        return []
    half = len(samples) // 2
    before = Figures(*(max(each) for each in zip(*samples[:half], strict=True)))
    after = Figures(*(max(each) for each in zip(*samples[half:], strict=True)))
    print(f"soak: {turns} turns; {before} in the first half, {after} in the second", flush=True)
    found = []
    memory, descriptors = ENGINE_GROWTH.get(engine, (0, 0))
    if after.memory > before.memory + GROWTH + memory:
        found.append(f"memory grew from {before.memory:,} to {after.memory:,} bytes")
    if after.descriptors > before.descriptors + descriptors or after.threads > before.threads:
        found.append(f"descriptors or threads grew: {before}, {after}")
    return found


def main() -> int:
    search = Search("torture.overload", __doc__, engines=["sqlite", "rocksdb", "file"])
    search.parser.add_argument("--threads", type=int, default=2000)
    search.parser.add_argument("--topics", type=int, default=10_000)
    search.parser.add_argument("--cursors", type=int, default=100_000)
    options = search.begin()
    engine = options.engine or "sqlite"
    folder = Path(tempfile.mkdtemp(prefix="penstock-overload-"))
    ends = time.monotonic() + options.seconds
    try:
        with penstock.open(f"{engine}:{folder / 'store'}", durability="process") as journal:
            begun = time.monotonic()
            found = crowd(journal, options.threads)
            found += many(journal, options.topics, options.cursors)
            print(
                f"{engine}: {options.threads} threads, {options.topics} topics and {options.cursors} cursors "
                f"in {time.monotonic() - begun:.0f} s, {figures()}",
                flush=True,
            )
            found += soak(journal, engine, random.Random(options.seed), ends)
    finally:
        shutil.rmtree(folder)
    search.tell(found)
    return search.end(engine)


if __name__ == "__main__":
    sys.exit(main())

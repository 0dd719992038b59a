"""How fast this machine is."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.values import choice

if TYPE_CHECKING:
    from penstock.events import Draft
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic


def number(text: str) -> float:
    """A number of seconds."""
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not 0 < given <= 3600:  # also what is no number at all
        raise ValueError(f"a number of seconds above 0, not {text!r}")
    return given


PAYLOAD = {"id": 4711, "customer": "c-0042", "total": 129.95, "note": "x" * 40}


@command("bench", "penstock bench", "penstock bench --engine file --folder /var/lib")
@choice("--engine", "sqlite rocksdb file memory", default="sqlite", help="the engine to measure")
@click.option("--folder", metavar="FOLDER", help="where to measure; the disk matters")
@click.option("--seconds", type=number, default="1", help="about how long each row may take")
def bench(context: CommandContext, engine: str, folder: str | None, seconds: float) -> None:
    """Measures this machine with a quick table: raw disk syncs, then what penstock makes of them.

    Everything is written to a temporary folder and removed. "x raw" compares with the disk's own rate of 100-byte
    writes, each synced, measured in the same run: that is what acknowledged-means-on-disk costs without sharing.
    """
    import penstock

    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=folder) as place:
        raw = _rate(lambda: _raw_sync(Path(place) / "raw"), seconds)
        rows: list[tuple[str, float, float]] = [("raw write and sync", raw, 1.0)]
        url = "memory:" if engine == "memory" else f"{engine}:{place}/journal"
        with penstock.open(url) as journal:
            topic = journal.topic("bench")
            drafts = [penstock.Draft("k", PAYLOAD) for _ in range(1000)]
            for name, work in _work(journal, topic, drafts):
                rate = _rate(work, seconds)
                rows.append((name, rate, rate / raw))
                if not context.json:
                    context.err.write(f"\r{name:<40}")
                    context.err.flush()
    if not context.json:
        context.err.write("\r" + " " * 40 + "\r")
    shown = [(name, round(rate), round(ratio, 2)) for name, rate, ratio in rows]
    context.rows(("Work", "Per second", "x raw"), shown)


def _work(journal: Journal, topic: Topic, drafts: list[Draft]) -> list[tuple[str, Callable[[], int]]]:
    queue = journal.queue("bench-queue")

    def append_one() -> int:
        topic.append("k", PAYLOAD)
        return 1

    def append_many() -> int:
        return len(topic.append_many(drafts))

    def read() -> int:
        return sum(1 for _ in topic.read(max(0, topic.latest - 50_000)))

    def round_trip() -> int:
        queue.push(PAYLOAD)
        return queue.ack_many(queue.take_many(1))

    def round_trip_many() -> int:
        queue.push_many([PAYLOAD] * 100)
        return queue.ack_many(queue.take_many(100))

    return [
        ("append one event", append_one),
        ("append 1,000 at a time, events", append_many),
        ("read as objects, events", read),
        ("push, take, ack one message", round_trip),
        ("push, take, ack 100 at a time, messages", round_trip_many),
    ]


def _rate(work: Callable[[], int], seconds: float) -> float:
    work()
    done, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        done += work()
    return done / took


def _raw_sync(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(20):
            os.write(descriptor, b"x" * 100)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return 20

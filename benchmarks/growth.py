"""Times of every public operation in a small store and a large one, in every state of a store.

The rows are those of tests/growth, which counts what they do; here the processor's time is measured, in milliseconds.
After them: what has many topics or many cursors, what is done for each event, and appends beside the indexer.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import penstock
from benchmarks.harness import Table
from penstock import Draft, Journal, Topic

sys.path[:0] = ["tests"]

from growth import journal_rows, queue_rows  # noqa: E402
from growth.world import STATES, worlds  # noqa: E402

T = TypeVar("T")
FACTOR, FLOOR = 3, 1.0
"""The same answer may cost so many times as much in the large store; what takes less than a millisecond may anyway."""


def main() -> None:
    """`python -m benchmarks growth [words]`: all rows, or those whose names contain one of the words."""
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    small, large = [int(word) for word in sys.argv[1:] if word.isdigit()] or (3_000, 60_000)
    rows = [
        row for row in [*journal_rows.ROWS, *queue_rows.ROWS] if not words or any(word in row.name for word in words)
    ]
    table = Table(
        "growth",
        "Cost follows the answer",
        f"CPU time of one call in ms, SQLite, in a store of {small:,} → {large:,} events in each of twelve topics, and "
        "as many messages in each of five queues; right after building, closed and opened again, after `maintain()`. "
        "Run again with `python -m benchmarks growth`.",
    )
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        names = itertools.count()
        with worlds((small, large) if rows else (), lambda: str(Path(folder) / f"{next(names)}.db")) as built:
            for row in rows:
                shown, holds = [], True
                for state in STATES:
                    (few, before), (many, after) = [timed(row.on(built[state, size])) for size in (small, large)]
                    shown.append(f"{before:.1f} → {after:.1f}")
                    holds = holds and after <= FACTOR * max(before, FLOOR) * max(1, many / max(few, 1))
                table.row(row.name, ", ".join(shown), row.grows and "grows", holds)
        for measure in (many_topics, many_cursors, each_event, beside_the_indexer):
            if not words or measure.__name__ in words:
                measure(table, Path(folder))
    if not words:
        table.save()


def many_topics(table: Table, folder: Path) -> None:
    """What might ask every topic, with 200 topics and with 4,000."""
    compare(table, "200 → 4,000 topics", *[with_topics(folder, count) for count in (200, 4_000)])


def compare(table: Table, what: str, small: dict[str, float], large: dict[str, float]) -> None:
    for name, few in small.items():
        holds = large[name] <= FACTOR * max(few, FLOOR)
        table.row(f"{name}, {what}", f"{few:.2f} → {large[name]:.2f}", "≤ 3 x", holds)


def with_topics(folder: Path, count: int) -> dict[str, float]:
    url, found = f"sqlite:{folder / f'topics-{count}.db'}", {}
    with penstock.open(url, durability="process") as journal:
        cause = journal.topic("cause").append("placed")
        for number in range(count):
            journal.topic(f"topic-{number}").append("placed", correlation=f"chain {number // 3}")
        journal.topic("topic-7").append("paid", cause=cause)
        found["maintain, a topic"] = timed(journal.maintain)[1] / count
    journal, found["open"] = timed(lambda: penstock.open(url, durability="process"))
    with journal:
        chain, seven = f"chain {count // 6}", journal.topic("topic-7")
        found["correlated"] = timed(lambda: list(journal.correlated(chain)))[1]
        found["graph"] = timed(lambda: journal.graph(chain))[1]
        found["effects"] = timed(lambda: list(seven.effects(cause)))[1]
        found["ancestors"] = timed(lambda: list(seven.ancestors(cause.id)))[1]
        found["append(cause=id)"] = timed(lambda: seven.append("paid", cause=cause.id))[1]
        found["a transaction over three topics"] = timed(lambda: in_three(journal))[1]
        found["drop_topic"] = timed(lambda: journal.drop_topic("topic-9"))[1]
    return found


def in_three(journal: Journal) -> None:
    with journal.transaction() as tx:
        for number in range(3):
            tx.append(f"topic-{number}", "placed")


def many_cursors(table: Table, folder: Path) -> None:
    """A consumer of a topic that has many."""
    compare(table, "1,000 → 100,000 cursors", *[with_cursors(folder, count) for count in (1_000, 100_000)])


def with_cursors(folder: Path, count: int) -> dict[str, float]:
    with penstock.open(f"sqlite:{folder / f'cursors-{count}.db'}", durability="process") as journal:
        topic = journal.topic("log")
        topic.append_many([Draft("placed")] * 10)
        for start in range(0, count, 1_000):
            with journal.transaction() as tx:
                for number in range(start, start + 1_000):
                    tx.commit("log", f"consumer {number}", 1)
        commit, cursor = timed(lambda: topic.commit("consumer 5", 3))[1], timed(lambda: topic.cursor("consumer 7"))[1]
    return {"commit": commit, "cursor": cursor}


def each_event(table: Table, folder: Path) -> None:
    """What is done for every event of a store, in µs of CPU, and its bytes."""
    path = folder / "load.db"
    with penstock.open(f"sqlite:{path}", durability="process") as journal:
        topic = journal.topic("orders")
        topic.configure(indexed=False)
        loaded = timed(lambda: load(topic))[1]
    before = path.stat().st_size
    with penstock.open(f"sqlite:{path}", durability="process") as journal:
        journal.topic("orders").configure(indexed=True)
        indexed = timed(journal.maintain)[1]
        rest = {
            "export": lambda: journal.export(folder / "export", format="parquet"),
            "backup": lambda: journal.backup(folder / "backup.db"),
            "copy": lambda: journal.copy_to(f"sqlite:{folder / 'copy.db'}"),
        }
        costs = {"load": loaded, "index": indexed} | {name: timed(work)[1] for name, work in rest.items()}
    with penstock.open(f"sqlite:{folder / 'imported.db'}", durability="process") as journal:
        costs["import"] = timed(lambda: journal.import_(folder / "export"))[1]
    for name, cost in costs.items():
        goal = "≤ 3 µs" if name == "index" else ""
        table.row(
            f"{name}, for each event",
            f"{cost / EVENTS * 1000:.2f} µs",
            goal,
            cost / EVENTS * 1000 <= 3 if goal else None,
        )
    after = (folder / "copy.db").stat().st_size
    table.row("bytes on disk for each event", f"{before / EVENTS:.0f}, indexed {after / EVENTS:.0f}")


EVENTS = 200_000


def load(topic: Topic) -> None:
    for start in range(0, EVENTS, 1_000):
        drafts = [Draft("placed", {"n": n, "text": "x" * 60}, key=f"order {n}") for n in range(start, start + 1_000)]
        topic.append_many(drafts)


def beside_the_indexer(table: Table, folder: Path) -> None:
    """Appends while an idle journal brings its index up to date, and closing before it has."""
    url = f"sqlite:{folder / 'beside.db'}"
    with penstock.open(url) as journal:
        alone = percentile(journal.topic("alone"))
        load(journal.topic("orders"))
        begun = time.perf_counter()
    closed = time.perf_counter() - begun
    with penstock.open(url) as journal:
        beside = percentile(journal.topic("beside"))
    shown = f"p99 {alone * 1e6:.0f} → {beside * 1e6:.0f} µs"
    table.row("append, alone → beside the indexer", shown, "≤ 2 x", beside <= 2 * alone)
    table.row("closing after a bulk load", f"{closed * 1000:.0f} ms", "≤ 500 ms", closed <= 0.5)


def percentile(topic: Topic) -> float:
    """The 99th of a hundred appends takes as long; over a few seconds, so that the indexer finds the journal calm."""
    took = []
    for _ in range(800):
        begun = time.perf_counter()
        topic.append("placed", b"x" * 100)
        took.append(time.perf_counter() - begun)
        time.sleep(0.005)
    return sorted(took)[-8]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The answer, and the milliseconds that this thread had the processor."""
    start = time.thread_time()
    answer = work()
    return answer, (time.thread_time() - start) * 1000


if __name__ == "__main__":
    main()

"""Times of every public operation in a small store and a large one, in every state of a store.

The rows are those of tests/growth, which counts what they do; here the processor's time is measured, in milliseconds.
After them: what has many topics, many cursors, many messages under each rule of a queue, many batches in a buffer, and
what a client asks over HTTP; what is done for each event, and appends beside the indexer.
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
from benchmarks.server import serving
from penstock import Draft, Journal, Queue, Topic
from penstock.buffer import Consumer, Producer
from penstock.buffer.format import append, encode_batch, parse_manifest
from penstock.core.model.arguments import PolicyArguments, PushArguments
from penstock.limits import BUFFER_MANIFEST
from penstock.objects.store import open_store

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
        measures = (
            many_topics,
            many_cursors,
            many_messages,
            many_batches,
            over_http,
            each_event,
            beside_the_indexer,
        )
        for measure in measures:
            if not words or measure.__name__ in words:
                measure(table, Path(folder))
    if not words:
        table.save()


def many_topics(table: Table, folder: Path) -> None:
    """What might ask every topic, with 200 topics and with 10,000."""
    compare(table, "200 → 10,000 topics", *[with_topics(folder, count) for count in (200, 10_000)])


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
        topic.compact(1)  # finds the slowest cursor among all
        compact = timed(lambda: topic.compact(1))[1]
    return {"commit": commit, "cursor": cursor, "compact again": compact}


def many_messages(table: Table, folder: Path) -> None:
    """One message among many, under each rule that a queue may have."""
    for rule, (policy, pushed) in RULES.items():
        found = [with_messages(folder, rule, policy, pushed, count) for count in (1_000, 200_000)]
        compare(table, f"{rule}, 1,000 → 200,000 messages", *found)


RULES: dict[str, tuple[PolicyArguments, Callable[[int], PushArguments]]] = {
    "lanes": ({"fair_by": "tenant"}, lambda part: {"headers": {"tenant": f"tenant {part % 100}"}}),
    "delayed": ({}, lambda part: {"delay": 10_000 + part} if part else {}),
    "throttle": ({"throttle": 1_000}, lambda part: {"key": f"key {part}"}),
    "rate": ({"rate": "100000/s", "rate_per_key": "1000/s"}, lambda part: {"key": f"key {part}"}),
    "priorities": ({"priority": True}, lambda part: {"priority": part % 10}),
}
"""What a queue's policy says, and how the parts of what is pushed differ; the keys of a part are as many as it has."""


def with_messages(
    folder: Path, rule: str, policy: PolicyArguments, pushed: Callable[[int], PushArguments], count: int
) -> dict[str, float]:
    url, found = f"sqlite:{folder / f'{rule}-{count}.db'}", {}
    with penstock.open(url, durability="process") as journal:
        queue = journal.queue("jobs", lease=1_000, **policy)
        for part in range(0, count, 500):
            push_part(queue, pushed(part // 500))
        first = queue.take()
        assert first is not None
        found["push"] = timed(lambda: queue.push(1, **pushed(0)))[1]
        found["take"] = min(timed(queue.take)[1] for _ in range(3))  # one of them may checkpoint what was pushed
        found["ack"] = timed(first.ack)[1]
        found["take_many(10)"] = timed(lambda: queue.take_many(10))[1]
        found["peek"] = timed(lambda: queue.peek(5))[1]
        found["len"] = timed(lambda: len(queue))[1]
        found["messages(limit=5)"] = timed(lambda: list(queue.messages(limit=5)))[1]
    with penstock.open(url, durability="process") as journal:
        queue = journal.queue("jobs")
        found["take, reopened"] = timed(queue.take)[1]
    return found


def push_part(queue: Queue, options: PushArguments) -> None:
    if key := options.get("key"):
        queue.push_many([Draft("job", number, key=f"{key} {number}") for number in range(500)])
    else:
        queue.push_many(range(500), **options)


def many_batches(table: Table, folder: Path) -> None:
    """A producer and the consumer of a buffer whose manifest has many entries: each change writes all of it."""
    compare(table, "1,000 → 100,000 entries", *[with_batches(count) for count in (1_000, 100_000)])


def with_batches(count: int) -> dict[str, float]:
    url, store, found = f"memory://growth-{count}", open_store(f"memory://growth-{count}", {}), {}
    store.put("ingest/one.batch", encode_batch([b"entry"]))
    data = append(parse_manifest(None), [("ingest/one.batch", ())] * count)
    store.put_if(BUFFER_MANIFEST, data, None)
    with Producer(url, flush_interval=0) as producer:
        found["produce"] = spent(lambda: producer.produce([b"entry"]).result())
    with Consumer(url, gc_interval=None) as consumer:
        found["next_batch, the first"] = spent(consumer.next_batch)
        found["next_batch"] = spent(consumer.next_batch)
        found["ack"] = spent(lambda: (consumer.ack_through(1), consumer.flush()))
    return found


def over_http(table: Table, folder: Path) -> None:
    """What a client asks a server of: its own work, and the waiting for the answer."""
    compare(table, "200 → 4,000 topics, over HTTP", *[served(folder, count) for count in (200, 4_000)])


def served(folder: Path, count: int) -> dict[str, float]:
    url = f"sqlite:{folder / f'served-{count}.db'}"
    with penstock.open(url, durability="process") as journal:
        for number in range(count):
            journal.topic(f"topic-{number}").append("placed", correlation=f"chain {number // 3}")
        for start in range(0, 50 * count, 1_000):
            drafts = [Draft("placed", key=f"key {number // 3}") for number in range(start, start + 1_000)]
            journal.topic("log").append_many(drafts)
        journal.maintain()
    with serving(url) as port, penstock.open(f"http://127.0.0.1:{port}") as journal:
        log, asked = (
            journal.topic("log"),
            {
                "correlated": lambda: list(journal.correlated(f"chain {count // 6}")),
                "read(key=)": lambda: list(log.read(key=f"key {5 * count}")),
                "append": lambda: log.append("placed"),
                "latest": lambda: log.latest,
            },
        )
        return {name: min(elapsed(work) for _ in range(5)) for name, work in asked.items()}


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
        indexed = spent(journal.maintain)  # the indexer's thread may do a part of it
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


def load(topic: Topic, count: int = EVENTS) -> None:
    for start in range(0, count, 1_000):
        drafts = [Draft("placed", {"n": n, "text": "x" * 60}, key=f"order {n}") for n in range(start, start + 1_000)]
        topic.append_many(drafts)


def beside_the_indexer(table: Table, folder: Path) -> None:
    """Appends of one event while the index of a bulk load catches up, against appends alone, in turns."""
    url = f"sqlite:{folder / 'beside.db'}"
    with penstock.open(url) as journal:
        load(journal.topic("orders"), 5 * EVENTS)
        begun = time.perf_counter()
    closed = time.perf_counter() - begun
    alone: list[float] = []
    beside: list[float] = []
    while len(beside) < 4_000:
        with penstock.open(f"sqlite:{folder / 'alone.db'}") as journal:
            alone += appends(journal)
        with penstock.open(url) as journal:  # goes on with the index where the last turn left it
            journal._core.indexer.request("orders")
            taken = appends(journal, while_indexing="orders")
            beside += taken
            if len(taken) < TURN:
                break
    few, many = (sorted(took)[-1 - len(took) // 100] for took in (alone, beside))
    shown = f"p99 {few * 1e6:.0f} → {many * 1e6:.0f} µs, {many / few:.2f} x, of {len(beside)}"
    table.row("append, alone → beside the indexer", shown, "≤ 2 x", many <= 2 * few)
    table.row("closing after a bulk load", f"{closed * 1000:.0f} ms", "≤ 500 ms", closed <= 0.5)


TURN = 200
"""Appends of one turn."""


def appends(journal: Journal, while_indexing: str | None = None) -> list[float]:
    """How long each append takes, for as long as a topic is not indexed; with pauses, as most programs make them."""
    topic, took = journal.topic("appended"), []
    while len(took) < TURN and (while_indexing is None or not journal._core.indexer.at_rest(while_indexing)):
        time.sleep(0.002)
        begun = time.perf_counter()
        topic.append("placed", b"x" * 100)
        took.append(time.perf_counter() - begun)
    return took


def spent(work: Callable[[], object]) -> float:
    """The milliseconds that all threads had the processor."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def elapsed(work: Callable[[], object]) -> float:
    """The milliseconds until it is done: the work of another process counts."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The answer, and the milliseconds that this thread had the processor."""
    start = time.thread_time()
    answer = work()
    return answer, (time.thread_time() - start) * 1000


if __name__ == "__main__":
    main()

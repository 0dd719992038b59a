"""Taking the first free message past a million that wait behind their ordering keys; redriving; clearing away.

    python -m benchmarks blocked            # a million messages
    python -m benchmarks blocked 100000

One key, or a hundred that take turns, are busy (a message of each is in flight) or have had their rate (`rate_per_key`).
Then a million messages of theirs are pushed, in batches of 5,000, and one of another key. Measured is the first take,
when the index of all that is at rest, and a second after the last push, when a thread of the process still builds it and
has the interpreter half of the time: the CPU time of the process, and the time it took. A take works in steps, each a
commit of its own behind which everybody else may come in: the longest one is shown. The same of redrive(limit=100) out of
as many dead letters, and of clearing away as many settled messages with keys.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import penstock
from benchmarks.entity import folder, rest
from benchmarks.harness import Table
from penstock import Draft
from penstock.core.journal.writer import Writer, WriteRequest

BATCH = 5000
WANTED, STEP = 0.05, 0.005


@contextmanager
def commits() -> Iterator[list[float]]:
    """CPU seconds of each commit that is made meanwhile, in whatever thread."""
    found: list[float] = []
    commit = Writer._commit

    def timed(self: Writer, batch: Sequence[WriteRequest[Any]]) -> None:
        began = time.thread_time()
        commit(self, batch)
        found.append(time.thread_time() - began)

    Writer._commit = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Writer._commit = commit  # type: ignore[method-assign]


def first_free(messages: int, keys: int, rate: str | None, rested: bool) -> tuple[float, float, list[float]]:
    """CPU seconds and seconds of a take past what is blocked, and CPU seconds of its commits."""
    with folder() as place, penstock.open(place / "blocked.db", durability="process") as journal:
        queue = journal.queue("jobs", lease=36_000, rate_per_key=rate)
        for key in range(keys):
            queue.push("first", key=f"key-{key}")
        taken = queue.take_many(keys)
        if rate is not None:
            queue.ack_many(taken)
        for at in range(0, messages, BATCH):
            queue.push_many([Draft("m", number, key=f"key-{number % keys}") for number in range(at, at + BATCH)])
        queue.push("free", key="free")
        time.sleep(1)
        if rested:
            rest(journal, "jobs")
        worked, began = time.process_time(), time.perf_counter()
        with commits() as steps:
            found = queue.take()
        assert found is not None and found.payload == "free"
        return time.process_time() - worked, time.perf_counter() - began, steps


def some_dead_letters(messages: int) -> tuple[float, list[float]]:
    """CPU seconds of redrive(limit=100) out of a number of dead letters, and of its commits."""
    with folder() as place, penstock.open(place / "dead.db", durability="process") as journal:
        queue = journal.queue("jobs", max_attempts=1, dead_letter="dead", lease=36_000)
        for at in range(0, messages, BATCH):
            queue.push_many(range(at, at + BATCH))
            taken = queue.take_many(BATCH)
            with journal.transaction() as tx:
                for delivery in taken:
                    tx.nack(delivery, dead=True)
        time.sleep(1)
        with commits() as steps:
            worked = time.thread_time()
            assert queue.redrive(limit=100) == 100
            return time.thread_time() - worked, steps


def clearing_away(messages: int) -> list[float]:
    """CPU seconds of the commits that remove settled messages with keys, in passing, while others are taken."""
    with folder() as place, penstock.open(place / "settled.db", durability="process") as journal:
        queue = journal.queue("jobs", lease=36_000)
        queue.push("held", key="held")
        held = queue.take()
        assert held is not None
        for at in range(0, messages, BATCH):
            queue.push_many([Draft("m", number, key=f"key-{number}") for number in range(at, at + BATCH)])
            queue.ack_many(queue.take_many(BATCH))
        with commits() as steps:
            held.ack()
            journal.maintain()
        return steps


def _longest(steps: Sequence[float]) -> str:
    return f"{len(steps)} commit{'s' * (len(steps) != 1)}, the longest {max(steps) * 1000:.1f} ms of CPU"


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    table = Table("blocked", "Taking past what waits behind keys", __doc__ or "")
    for keys in (1, 100):
        for rate, why in ((None, "in flight"), ("1/h", "out of rate")):
            cpu, wall, steps = first_free(messages, keys, rate, True)
            table.row(
                f"first free message past {messages:,} of {keys} key{'s' * (keys > 1)} {why}",
                f"{cpu * 1000:.0f} ms of CPU, {wall * 1000:.0f} ms; {_longest(steps)}",
                "≤ 50 ms, steps ≤ 5 ms",
                wall <= WANTED and max(steps) <= STEP,
            )
            _, wall, steps = first_free(messages, keys, rate, False)
            table.row("&nbsp;&nbsp;a second after they were pushed", f"{wall * 1000:.0f} ms; {_longest(steps)}")
    few, _ = some_dead_letters(min(messages, BATCH))
    many, steps = some_dead_letters(messages)
    table.row(
        f"redrive(limit=100) out of {messages:,} dead letters",
        f"{many / few:.1f} × the CPU time out of {min(messages, BATCH):,} ({few * 1000:.1f} ms); {_longest(steps)}",
        "≤ 2 ×",
        many <= 2 * few,
    )
    steps = clearing_away(messages)
    table.row(
        f"clearing away {messages:,} settled messages with keys", _longest(steps), "steps ≤ 5 ms", max(steps) <= STEP
    )
    table.save()


if __name__ == "__main__":
    main()

"""Run under the recorder: uses a journal in many ways, and marks in the record what was tried and what acknowledged.

    python workload.py <folder> <scheme> <durability> <seed> <steps> [<kinds>:<at>:<errno>:<more> …]

The store is <folder>/0/store; it is closed and opened again now and then. With failures given, there is one run for
each, in <folder>/0, <folder>/1, …; its store is opened again once, calls fail from that moment on, and no more before
its last few steps.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import penstock
from penstock import Draft, Journal
from penstock.core.model.take import TakeRequest
from penstock.errors import PenstockError
from torture.recorder import arm, armed_calls, mark


class Load:
    """Steps on one journal, each marked before it begins and after it was acknowledged."""

    def __init__(self, folder: Path, opened: Callable[[], Journal], rng: random.Random, *, failing: bool) -> None:
        self.folder = folder
        self.opened = opened
        self.rng = rng
        self.failing = failing
        self.number = 0
        self._open()

    def _open(self) -> None:
        self.journal = self.opened()
        self.topic = self.journal.topic("t")
        self.queue = self.journal.queue("q", lease=3600)

    def step(self) -> None:
        kinds: list[tuple[Callable[[str], None], int]] = [
            (self.append, 6),
            (self.batch, 3),
            (self.pair, 3),
            (self.push, 4),
            (self.take, 6),
            (self.cursor, 1),
            (self.compact, 1),
            (self.maintain, 1),
            (self.backup, 1),
            (self.reopen, 0 if self.failing else 1),
        ]
        doing = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        self.number += 1
        doing(f"n{self.number}")

    def append(self, label: str) -> None:
        size = self.rng.choice([10, 100, 5000])
        mark(trying=label, rows=1)
        receipt = self.topic.append("one", [label, 0, "x" * size], dedup=label)
        mark(appended=label, first=receipt.seq, rows=1, size=size)

    def batch(self, label: str) -> None:
        rows = self.rng.choice([2, 30])
        mark(trying=label, rows=rows)
        receipts = self.topic.append_many([Draft("many", [label, row, "y" * 50]) for row in range(rows)])
        mark(appended=label, first=receipts[0].seq, rows=rows)

    def pair(self, label: str) -> None:
        mark(trying=label, rows=1, pair=True)
        with self.journal.transaction() as tx:
            first = tx.append("t", "pair", [label, 0, ""])
            tx.append("pairs", "pair", label)
            tx.set_mark("m", self.number)
        mark(appended=label, first=first.seq, rows=1, mark=self.number)

    def push(self, label: str) -> None:
        mark(pushing=label)
        self.queue.push(label)
        mark(pushed=label)

    def take(self, label: str) -> None:
        delivery = self.queue.take(wait=0)
        if delivery is None:
            return
        message = delivery.payload
        mark(taken=message)
        if self.rng.random() < 0.7:
            mark(acking=message)
            if self.rng.random() < 0.5:
                delivery.ack()
                mark(acked=message)
            else:  # as a worker does
                following = delivery._hold.queue.ack_and_take(delivery, None, TakeRequest())
                mark(acked=message)
                for one in following:
                    mark(taken=one.payload)

    def cursor(self, label: str) -> None:
        latest = self.topic.latest
        self.topic.commit("reader", latest)
        mark(cursor=latest)

    def compact(self, label: str) -> None:
        through = max(0, self.topic.latest - 60)
        mark(compacting=through)
        self.topic.compact(through, force=True)

    def maintain(self, label: str) -> None:
        self.journal.maintain()

    def backup(self, label: str) -> None:
        path = self.folder / f"backup-{label}"
        latest = self.topic.latest
        self.journal.backup(path)
        mark(backup=path.name, latest=latest)

    def reopen(self, label: str = "") -> None:
        self.journal.close()
        self._open()


def run(folder: Path, scheme: str, durability: str, seed: int, steps: int, failing: str) -> Journal:
    def opened() -> Journal:
        return penstock.open(f"{scheme}:{folder / 'store'}", durability=durability)  # type: ignore[arg-type]

    load = Load(folder, opened, random.Random(seed), failing=bool(failing))
    load.append("first")
    mark(opened=True)
    if failing:
        load.reopen()
        kinds, at, error, more = failing.split(":")
        arm(kinds, int(at), int(error), more=int(more))
    for _ in range(steps):
        try:
            load.step()
        except PenstockError as error:
            mark(failed=f"{type(error).__name__}: {error}")
    if failing:
        reached = armed_calls()
        arm("", 0, 0)
        mark(calls=reached)
        for _ in range(5):  # the disk works again; whatever is acknowledged now holds too
            with suppress(PenstockError):
                load.append(f"after{load.number}")
            load.number += 1
    return load.journal


def main() -> None:
    root, scheme, durability, seed, steps = Path(sys.argv[1]), *sys.argv[2:6]
    for number, failing in enumerate(sys.argv[6:] or [""]):
        folder = root / str(number)
        folder.mkdir()
        mark(begin=number)
        journal = run(folder, scheme, durability, int(seed), int(steps), failing)
        mark(end=number)
        if failing:  # otherwise ended as a kill would: nothing is closed in good order
            with suppress(PenstockError):
                journal.close()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""One process of a history: uses the journal, and notes the beginning and the end of every operation, with its times.

A note is a line of JSON in one write to a file that no code of penstock touches. Times are the machine's monotonic
clock (the same for all its processes), for leases its wall clock as well.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock import Journal
from penstock.errors import Conflict, FenceActive, OutcomeUnknown, PenstockError, StaleDelivery

KEYS = ["ann", "bob"]
LEASE = 0.15
"""Seconds; short, so that leases end in the middle of a history."""


def set_up(journal: Journal) -> None:
    """Makes the topics and queues of a new store."""
    journal.topic("t").configure(dedup_window=None)
    journal.topic("once").configure(dedup_window=None)
    journal.topic("accounts")
    journal.queue("work", lease=LEASE, max_attempts=10**6)


class Notes:
    """The history of one thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.name = path.name
        self._number = 0

    def begin(self, op: str, **said: Any) -> int:
        self._number += 1
        self._write({"n": self._number, "op": op, "start": time.monotonic_ns(), "wall": time.time(), **said})
        return self._number

    def end(self, number: int, **said: Any) -> None:
        self._write({"n": number, "end": time.monotonic_ns(), "wall_end": time.time(), **said})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Worker:
    """One thread's use of the journal; `local` when the journal is in this process, and may be fenced."""

    def __init__(self, journal: Journal, notes: Notes, rng: random.Random, *, process: str, local: bool) -> None:
        self.journal, self.notes, self.rng, self.process = journal, notes, rng, process
        self.number = 0
        self.topic, self.once = journal.topic("t"), journal.topic("once")
        self.accounts, self.work = journal.topic("accounts"), journal.queue("work")
        self._operations: list[Callable[[str], None]] = [
            self.append, self.append, self.latest, self.read, self.change, self.change, self.change, self.look,
            self.dedup, self.dedup, self.push, self.push, self.take, self.take, self.take,
        ]  # fmt: skip
        if local:
            self._operations += [self.fence, self.fence, self.transact]

    def run(self, operations: int) -> None:
        for _ in range(operations):
            self.number += 1
            self.rng.choice(self._operations)(f"{self.notes.name}.{self.number}")
            if self.rng.random() < 0.1:
                time.sleep(self.rng.random() * 0.01)

    def _do(self, op: str, call: Callable[[], dict[str, Any]], **said: Any) -> None:
        number = self.notes.begin(op, process=self.process, **said)
        try:
            self.notes.end(number, **call())
        except OutcomeUnknown:
            pass  # without an end: it may have been done, as when the process is killed
        except FenceActive:
            self.notes.end(number, refused=True)
        except PenstockError as error:
            self.notes.end(number, failed=f"{op}: {type(error).__name__}: {error}")

    # ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, label: str) -> None:
        self._do("append", lambda: {"seqs": [self.topic.append("one", label).seq]}, labels=[label], topic="t")

    def latest(self, label: str) -> None:
        self._do("latest", lambda: {"saw": self.topic.latest}, topic="t")

    def read(self, label: str) -> None:
        """The end of the topic in one read: its last position, and what is there of each fence and transaction."""

        def call() -> dict[str, Any]:
            after = max(0, self.topic.latest - 40)
            found = [(event.seq, event.payload) for event in self.topic.read(after=after)]
            return {"saw": found[-1][0] if found else after, "after": after, "found": found}

        self._do("read", call, topic="t")

    def fence(self, label: str) -> None:
        labels = [f"{label}/{row}" for row in range(3)]
        number = self.notes.begin("fence", process=self.process, labels=labels, topic="t")
        try:
            with self.journal.fence() as fence:
                seen = self.topic.latest
                opened = time.monotonic_ns()
                for each in labels:
                    fence.submit("t", "fenced", each)
                if self.rng.random() < 0.5:
                    time.sleep(0.002)
                committing = time.monotonic_ns()
                receipts = fence.commit()
            seqs = [each.seq for each in receipts]
            self.notes.end(number, seqs=seqs, seen=seen, opened=opened, committing=committing)
        except FenceActive:
            self.notes.end(number, refused=True)

    def transact(self, label: str) -> None:
        labels = [f"{label}/{row}" for row in range(2)]

        def call() -> dict[str, Any]:
            with self.journal.transaction() as tx:
                receipts = [tx.append("t", "together", each) for each in labels]
            return {"seqs": [each.seq for each in receipts]}

        self._do("transact", call, labels=labels, topic="t")

    # ── expect ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def look(self, label: str) -> None:
        key = self.rng.choice(KEYS)
        self._do("look", lambda: {"saw": self.accounts.position_of(key)}, key=key, topic="accounts")

    def change(self, label: str) -> None:
        """Compare and set: a change on top of the one that was seen, which another may overtake."""
        key = self.rng.choice(KEYS)
        expected = self.accounts.position_of(key)
        if self.rng.random() < 0.3:
            time.sleep(0.001)

        def call() -> dict[str, Any]:
            try:
                receipt = self.accounts.append("change", [label, expected], key=key, expect=expected)
            except Conflict as error:
                return {"saw": error.actual}
            return {"seqs": [receipt.seq]}

        self._do("change", call, key=key, topic="accounts", labels=[label], expected=expected)

    # ── dedup ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def dedup(self, label: str) -> None:
        """One of the next few keys, which others are about to use as well."""
        key = f"d{self.number // 8}.{self.rng.randrange(3)}"

        def call() -> dict[str, Any]:
            receipt = self.once.append("once", [key, label], dedup=key)
            return {"seqs": [receipt.seq], "duplicate": receipt.duplicate}

        self._do("dedup", call, key=key, topic="once", labels=[label])

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, label: str) -> None:
        self._do("push", lambda: {"seqs": [self.work.push(label).seq]}, topic="work", labels=[label])

    def take(self, label: str) -> None:
        number = self.notes.begin("take", process=self.process)
        delivery = self.work.take(wait=0)
        if delivery is None:
            self.notes.end(number, message=None)
            return
        deadline = delivery.deadline.timestamp()
        self.notes.end(number, message=delivery.payload, attempt=delivery.attempt, deadline=deadline)
        fate = self.rng.random()
        if fate < 0.15:
            return  # kept until its lease ends
        time.sleep(self.rng.choice([0, 0, 0.01, LEASE * 1.2 if fate < 0.3 else 0]))
        held = number
        if fate > 0.85:
            number = self.notes.begin("extend", of=held)
            with suppress(StaleDelivery):
                delivery.extend(2 * LEASE)
                self.notes.end(number, deadline=delivery.deadline.timestamp())
        settle = "ack" if fate < 0.75 else "release"
        number = self.notes.begin(settle, of=held, message=delivery.payload)
        try:
            delivery.ack() if settle == "ack" else delivery.release()
            self.notes.end(number, done=True)
        except StaleDelivery:
            self.notes.end(number, done=False)


def work(url: str, folder: Path, name: str, seed: int, threads: int, operations: int) -> None:
    """A process of so many threads that share one journal."""
    with penstock.open(url) as journal:
        failed: list[BaseException] = []

        def body(number: int) -> None:
            notes = Notes(folder / "history" / f"{name}{'abcd'[number]}")
            local = not url.startswith("http")
            worker = Worker(journal, notes, random.Random(f"{seed} {number}"), process=name, local=local)
            try:
                worker.run(operations)
            except BaseException as error:
                failed.append(error)

        runners = [threading.Thread(target=body, args=(number,)) for number in range(threads)]
        for each in runners:
            each.start()
        for each in runners:
            each.join()
        if failed:
            raise failed[0]

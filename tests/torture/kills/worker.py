"""A process that works until it is killed, and notes in a file of its own what it tries and what was acknowledged.

A note is one line of JSON in one write to a file that no code of penstock touches. What is tried is noted before the
call, what is acknowledged after it: a label that was tried and not acknowledged may be there as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft, Journal, Projection
from penstock import on as handles
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.model.take import TakeRequest
from penstock.engines import file
from penstock.errors import Backpressure, Conflict, FenceActive, PenstockError, StaleDelivery

KEYS = ["ann", "bob", "cid", "dan"]
GROUPS = ["mail", "stock"]
KEPT = 300
"""How many events of the topic `t` compaction leaves."""
RING = 40
"""How many events the topic `ring` is asked to keep."""


class Oracle:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, **said: Any) -> None:
        os.write(self._file, json.dumps(said).encode() + b"\n")


class Changes(Projection):
    """How often an account was changed, and the last change."""

    count: int = 0
    last: str = ""

    @handles("change")
    def add(self, payload: Any) -> None:
        self.count += 1
        self.last = payload[0]


def set_up(journal: Journal, rng: random.Random) -> None:
    """Makes the topics and queues of a new store."""
    journal.topic("t").configure(verified=rng.random() < 0.5, indexed=rng.random() < 0.8, dedup_window=None)
    journal.topic("accounts").configure(verified=rng.random() < 0.5)
    journal.topic("state").configure(by_key=True)
    journal.topic("ring").configure(max_events=RING)
    journal.queue("dead", lease=0, max_attempts=10**6)
    journal.queue("work", lease=0, max_attempts=10**6, dead_letter="dead", priority=rng.random() < 0.3)
    journal.queue("fanout", mode="fanout", lease=0, max_attempts=10**6)
    for group in GROUPS:
        journal.queue("fanout").add_group(group)


class Worker:
    """One process's use of a journal."""

    def __init__(self, journal: Journal, oracle: Oracle, folder: Path, name: str, rng: random.Random) -> None:
        self.journal, self.oracle, self.folder, self.name, self.rng = journal, oracle, folder, name, rng
        self.number = 0
        self.topic = journal.topic("t")
        self.work, self.dead, self.fanout = (journal.queue(name) for name in ("work", "dead", "fanout"))
        self.again: list[str] = []
        """Labels that earlier workers tried to append with a dedup key, and mostly did."""
        self._usual = [
            self.append, self.append, self.repeat, self.batch, self.submit, self.expect, self.expect, self.transact,
            self.fence, self.push, self.push_many, self.take, self.go_on, self.take_many, self.give_up, self.redrive,
            self.consume, self.fan_out, self.take_group, self.take_group, self.cursor, self.project, self.project,
            self.state, self.ring,
        ]  # fmt: skip
        self._rare = [self.compact, self.compact_keys, self.maintain, self.seal, self.backup, self.export]

    def run(self) -> None:
        """Works for ever."""
        while True:
            self.do(self.rng.choice(self._rare if self.rng.random() < 0.06 else self._usual))

    def all_once(self) -> None:
        for operation in (*self._usual, *self._rare):
            self.do(operation)

    def do(self, operation: Callable[[str], None]) -> None:
        self.number += 1
        try:
            operation(f"{self.name}.{self.number}")
        except (Conflict, StaleDelivery, FenceActive, Backpressure):
            pass  # another process was first
        except PenstockError as error:
            self.oracle.note(failed=f"{operation.__name__}: {type(error).__name__}: {error}")

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, label: str) -> None:
        self.oracle.note(trying=label, rows=1, dedup=True)
        payload = [label, 0, "x" * self.rng.choice([1, 100, 5_000])]
        receipt = self.topic.append("one", payload, dedup=label, key=self.rng.choice(KEYS))
        self.again.append(label)
        self.oracle.note(appended=label, seqs=[receipt.seq], ids=[receipt.id])

    def repeat(self, label: str) -> None:
        """Appends once more what was appended, or may have been, with the same dedup key."""
        if self.again:
            earlier = self.rng.choice(self.again)
            receipt = self.topic.append("one", [earlier, 0, "again"], dedup=earlier)
            self.oracle.note(appended=earlier, seqs=[receipt.seq], ids=[receipt.id])

    def batch(self, label: str) -> None:
        rows = self.rng.choice([2, 20, 200])
        self.oracle.note(trying=label, rows=rows)
        drafts = [Draft("many", [label, row, "y" * 20], key=self.rng.choice(KEYS)) for row in range(rows)]
        receipts = self.topic.append_many(drafts)
        self.oracle.note(appended=label, seqs=[one.seq for one in receipts], ids=[one.id for one in receipts])

    def submit(self, label: str) -> None:
        for row in range(5):
            self.oracle.note(trying=f"{label}/{row}", rows=1)
        tickets = [self.topic.submit("ticket", [f"{label}/{row}", 0, ""]) for row in range(5)]
        for row, ticket in enumerate(tickets):
            receipt = ticket.result()
            self.oracle.note(appended=f"{label}/{row}", seqs=[receipt.seq], ids=[receipt.id])

    def expect(self, label: str) -> None:
        """A change that is valid only after the one it has seen; its payload names that one."""
        topic, key = self.journal.topic("accounts"), self.rng.choice(KEYS)
        seen = topic.position_of(key)
        receipt = topic.append("change", [label, seen], key=key, expect=seen)
        self.oracle.note(changed=key, seq=receipt.seq, seen=seen)

    def transact(self, label: str) -> None:
        self.oracle.note(trying=label, rows=1, pair=True, pushing=label)
        with self.journal.transaction() as tx:
            first = tx.append("t", "pair", [label, 0, ""])
            tx.append("pairs", "pair", label, cause=first)
            tx.push("work", label)
            tx.set_mark(self.name, self.number)
            if self.rng.random() < 0.2:
                self.oracle.note(cancelled=label)
                raise Conflict("rolled back on purpose", expected=0, actual=0)
        self.oracle.note(appended=label, seqs=[first.seq], ids=[first.id], pushed=label)
        self.oracle.note(mark=self.name, value=self.number)

    def fence(self, label: str) -> None:
        labels = [f"{label}/{row}" for row in range(3)]
        for one in labels:
            self.oracle.note(trying=one, rows=1)
        keep = self.rng.random() < 0.7
        if not keep:
            for one in labels:
                self.oracle.note(cancelled=one)
        with self.journal.fence(exclusive=self.rng.random() < 0.5) as fence:
            for one in labels:
                fence.submit("t", "fenced", [one, 0, ""], key=self.rng.choice(KEYS))
            if not keep:
                fence.cancel()
                return
            receipts = fence.commit()
        for one, receipt in zip(labels, receipts, strict=True):
            self.oracle.note(appended=one, seqs=[receipt.seq], ids=[receipt.id])

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, label: str) -> None:
        self.oracle.note(pushing=label)
        self.work.push(label, dedup=label)
        self.oracle.note(pushed=label)

    def push_many(self, label: str) -> None:
        labels = [f"{label}/{row}" for row in range(20)]
        for one in labels:
            self.oracle.note(pushing=one)
        self.work.push_many(labels)
        for one in labels:
            self.oracle.note(pushed=one)

    def take(self, label: str) -> None:
        delivery = self.work.take(wait=0, newest=False)
        if delivery is None:
            return
        self.oracle.note(settling=delivery.payload)
        delivery.ack()
        self.oracle.note(settled=delivery.payload)

    def go_on(self, label: str) -> None:
        """Acknowledges and takes in one commit, as a worker does."""
        delivery = self.work.take(wait=0)
        while delivery is not None:
            self.oracle.note(settling=delivery.payload)
            following = delivery._hold.queue.ack_and_take(delivery, None, TakeRequest())
            self.oracle.note(settled=delivery.payload)
            if self.rng.random() < 0.3:
                for one in following:
                    one.release()
                return
            delivery = following[0] if following else None

    def take_many(self, label: str) -> None:
        deliveries = self.work.take_many(10)
        kept = [one for one in deliveries if self.rng.random() < 0.7]
        for one in kept:
            self.oracle.note(settling=one.payload)
        if self.work.ack_many(kept) == len(kept):
            for one in kept:
                self.oracle.note(settled=one.payload)
        for one in deliveries:
            if one not in kept and self.rng.random() < 0.5:
                one.release() if self.rng.random() < 0.5 else one.nack(delay=0)

    def give_up(self, label: str) -> None:
        delivery = self.work.take(wait=0)
        if delivery is not None:
            delivery.nack(dead=True, error="given up on purpose")

    def redrive(self, label: str) -> None:
        self.dead.redrive(limit=5)

    def consume(self, label: str) -> None:
        """Consume, transform, produce: the message goes when its result is there, or neither."""
        delivery = self.work.take(wait=0)
        if delivery is None:
            return
        message = delivery.payload
        self.oracle.note(settling=message)
        with self.journal.transaction() as tx:
            tx.append("results", "done", message)
            tx.ack(delivery)
        self.oracle.note(settled=message, result=message)

    def fan_out(self, label: str) -> None:
        self.oracle.note(fanning=label)
        self.fanout.push(label)
        self.oracle.note(fanned=label)

    def take_group(self, label: str) -> None:
        group = self.rng.choice(GROUPS)
        for delivery in self.fanout.take_many(self.rng.choice([1, 5]), group=group):
            self.oracle.note(group=group, settling_one=delivery.payload)
            delivery.ack()
            self.oracle.note(group=group, settled_one=delivery.payload)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def cursor(self, label: str) -> None:
        latest = self.topic.latest
        self.topic.commit("reader", latest)
        self.oracle.note(cursor=latest)

    def project(self, label: str) -> None:
        """Keeps a state from which the next projection goes on."""
        self.journal.topic("accounts").project(Changes, self.rng.choice(KEYS))

    def state(self, label: str) -> None:
        key = str(self.rng.randrange(8))
        receipt = self.journal.topic("state").append("set", label, key=key)
        self.oracle.note(state=key, seq=receipt.seq, value=label)

    def ring(self, label: str) -> None:
        receipts = self.journal.topic("ring").append_many([Draft("turn", label)] * 7)
        self.oracle.note(ring=receipts[-1].seq)

    def compact(self, label: str) -> None:
        through = max(0, self.topic.latest - KEPT)
        self.oracle.note(compacting=through)
        self.topic.compact(through, force=True)

    def compact_keys(self, label: str) -> None:
        self.journal.topic("state").compact_keys()

    def maintain(self, label: str) -> None:
        self.journal.maintain()

    def seal(self, label: str) -> None:
        topic = self.journal.topic("old")
        receipts = topic.append_many([Draft("old", [label, row], key=self.rng.choice(KEYS)) for row in range(30)])
        self.oracle.note(old=label, first=receipts[0].seq)
        if self.rng.random() < 0.5 and self.name.endswith("a"):  # one process seals; a second is told to wait for it
            seal_topic(self.journal._core, "old", lake=str(self.folder / "lake"), through=receipts[0].seq)

    def backup(self, label: str) -> None:
        if sum(1 for one in self.folder.iterdir() if one.name.startswith("backup-")) < 3:
            latest = self.topic.latest
            self.journal.backup(self.folder / f"backup-{label}")
            self.oracle.note(backup=f"backup-{label}", latest=latest)

    def export(self, label: str) -> None:
        if sum(1 for one in self.folder.iterdir() if one.name.startswith("export-")) < 3:
            latest = self.journal.topic("accounts").latest
            self.journal.export(self.folder / f"export-{label}", topics=["accounts"], format="jsonl")
            self.oracle.note(export=f"export-{label}", latest=latest)


def work(url: str, folder: Path, name: str, seed: int, again: list[str], options: dict[str, Any]) -> None:
    """Opens the journal and works until the process is killed."""
    oracle = Oracle(folder / "oracle" / name)
    file.GARBAGE_BYTES, file.INDEX_COMMITS = 100_000, 40  # so that kills meet compactions and savings of the index
    journal = penstock.open(url, **options)
    worker = Worker(journal, oracle, folder, name, random.Random(seed))
    worker.again = again
    worker.run()

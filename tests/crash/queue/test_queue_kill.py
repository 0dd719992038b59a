"""Processes that push, take and acknowledge are killed again and again; a total-queue oracle judges what they did.

Every process writes one line per fact to a log of its own, after the fact: a push that returned, a delivery, an
acknowledgement that returned. Killing a process loses at most its last line. When all is over, the oracle asks:

- was every acknowledged push delivered at least once, under one position only?
- was no message delivered again after an acknowledgement of it had returned?
- was no message delivered while another delivery's lease on it was running? (attempts count up, none before its time)
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from waiting import DEADLINE

ROUNDS = 6
LEASE = 1.0

PROCESS = textwrap.dedent(
    """
    import json, os, random, sys, time
    import penstock
    from penstock.errors import StaleDelivery

    role, url, log, number = sys.argv[1:5]
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    os.write(out, b"\\n")  # a kill may have cut the note before: this one does not continue it

    def note(**fact):
        os.write(out, json.dumps(fact).encode() + b"\\n")

    def now():
        return time.time_ns() // 1_000_000

    def producer(journal):
        queue = journal.queue("jobs")
        for n in range(10**9):
            names = [f"{number}-{os.getpid()}-{n}-{i}" for i in range(random.choice((1, 1, 1, 7)))]
            key = random.choice((None, "a", "b"))
            receipts = [queue.push(names[0], key=key)] if len(names) == 1 else queue.push_many(names, key=key)
            for name, receipt in zip(names, receipts):
                note(pushed=name, seq=receipt.seq)
            time.sleep(random.random() * 0.004)

    def consumer(journal):
        queue = journal.queue("jobs")
        while True:
            deliveries = queue.take_many(random.choice((1, 1, 5)), wait=1)
            for one in deliveries:
                note(got=one.payload, seq=one.seq, attempt=one.attempt, at=now(),
                     until=round(one.deadline.timestamp() * 1000))
            if random.random() < 0.05:
                time.sleep(1.2)  # slower than the lease
            if len(deliveries) > 1 and random.random() < 0.7:
                queue.ack_many(deliveries)  # tells how many, not which: nothing to note
                continue
            for one in deliveries:
                try:
                    one.ack()
                except StaleDelivery:
                    note(stale=one.payload)
                else:
                    note(acked=one.payload, seq=one.seq, attempt=one.attempt)

    with penstock.open(url) as journal:
        {"producer": producer, "consumer": consumer}[role](journal)
    """
)


class Crowd:
    """Processes over one store that are killed and started again."""

    def __init__(self, folder: Path, url: str, roles: list[str]) -> None:
        self.folder = folder
        self.url = url
        self.script = folder / "process.py"
        self.script.write_text(PROCESS)
        self.roles = roles
        self.running: list[subprocess.Popen[bytes]] = [self._start(at) for at in range(len(roles))]

    def _start(self, at: int) -> subprocess.Popen[bytes]:
        log = self.folder / f"{at}.log"
        errors = (self.folder / f"{at}.err").open("ab")
        command = [sys.executable, str(self.script), self.roles[at], self.url, str(log), str(at)]
        try:
            return subprocess.Popen(command, stderr=errors)
        finally:
            errors.close()

    def kill_one(self, chance: random.Random) -> None:
        at = chance.randrange(len(self.roles))
        self._end(self.running[at])
        self.running[at] = self._start(at)

    def end(self) -> None:
        for process in self.running:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(DEADLINE) == -signal.SIGKILL, "a process had ended by itself: " + self.errors()

    def errors(self) -> str:
        return "".join(log.read_text() for log in sorted(self.folder.glob("*.err")))

    def wait_for_facts(self, size: int) -> None:
        """Waits until the processes have written this many more bytes about what they did."""
        before, deadline = self._written(), time.monotonic() + DEADLINE
        while self._written() < before + size:
            assert time.monotonic() < deadline, "nothing happens: " + self.errors()
            time.sleep(0.005)

    def _written(self) -> int:
        return sum(log.stat().st_size for log in self.folder.glob("*.log"))

    def facts(self) -> list[dict[str, Any]]:
        found = []
        for log in sorted(self.folder.glob("*.log")):
            for line in log.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # a line between two lives, or one that a kill cut
                    found.append(json.loads(line))
        return found


def drain(url: str, name: str = "jobs") -> list[dict[str, Any]]:
    """Takes and acknowledges everything that is left, waiting for leases of the dead to end."""
    facts = []
    with penstock.open(url) as journal:
        queue = journal.queue(name)
        deadline = time.monotonic() + DEADLINE
        while len(queue) and time.monotonic() < deadline:
            for one in queue.take_many(500, wait=0.2):
                until = round(one.deadline.timestamp() * 1000)
                at = time.time_ns() // 1_000_000
                facts.append({"got": one.payload, "seq": one.seq, "attempt": one.attempt, "at": at, "until": until})
                one.ack()
                facts.append({"acked": one.payload, "seq": one.seq, "attempt": one.attempt})
        assert len(queue) == 0 and list(queue) == [] and queue.pending() == [] and list(queue.failed()) == []
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.delayed, stats.failed) == (0, 0, 0, 0)
    return facts


def judge(facts: list[dict[str, Any]]) -> dict[str, int]:
    """The total-queue oracle."""
    position: dict[str, int] = {}
    deliveries: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for fact in facts:
        name = fact.get("pushed") or fact.get("got") or fact.get("acked")
        if name is not None:
            assert position.setdefault(name, fact["seq"]) == fact["seq"], f"{name} has two positions"
    assert len(set(position.values())) == len(position), "one position has two messages"
    for fact in facts:
        if "got" in fact:
            known = deliveries[fact["seq"]]
            assert fact["attempt"] not in known, f"{fact['got']}: attempt {fact['attempt']} was delivered twice"
            known[fact["attempt"]] = fact
    for fact in facts:
        if "pushed" in fact:
            assert fact["seq"] in deliveries, f"{fact['pushed']} was acknowledged to its producer and never delivered"
        if "acked" in fact:
            later = [attempt for attempt in deliveries[fact["seq"]] if attempt > fact["attempt"]]
            assert not later, f"{fact['acked']} was delivered again after it was acknowledged"
    for seq, attempts in deliveries.items():
        for attempt, fact in attempts.items():
            before = attempts.get(attempt - 1)
            if before is not None:
                assert fact["at"] >= before["until"] - 1, f"message {seq} was delivered twice within its lease"
    return {kind: sum(kind in fact for fact in facts) for kind in ("pushed", "got", "acked", "stale")}


@pytest.mark.slow
def test_killed_producers_and_consumers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        journal.queue("jobs", lease=LEASE, max_attempts=10_000)
    crowd = Crowd(tmp_path, url, ["producer", "consumer", "consumer", "producer"])
    chance = random.Random(5)
    try:
        for _ in range(ROUNDS):
            crowd.wait_for_facts(chance.randrange(50, 6000))
            crowd.kill_one(chance)
    finally:
        crowd.end()
    assert crowd.errors() == ""
    facts = crowd.facts() + drain(url)
    seen = judge(facts)
    assert seen["got"] >= seen["pushed"] > 0 and seen["acked"] > 0, seen

"""Makes a store with queues in every state, and tells what a store delivers: run with the code of a version, it leaves
that version's store and its answers for `test_queue_earlier_store.py`.

    python tests/contract/queue/earlier_store.py DIRECTORY
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path

import penstock
from penstock import Delivery, Journal, ManualClock, Queue

GROUPS = "mail", "audit"


def make(path: Path) -> None:
    """Makes a store with messages that are ready, in flight, delayed, held back, failed and settled."""
    clock = ManualClock()
    with penstock.open(f"sqlite://{path}", clock=clock) as journal:
        plain = journal.queue("plain", lease=30, max_attempts=3, dead_letter="dead")
        journal.queue("dead")
        plain.push_many(range(12))
        plain.push("later", delay=60)
        _work(plain)
        keyed = journal.queue("keyed", lease=30, max_attempts=2)
        keyed.push_many(range(40), key="long")
        for number in range(30):
            keyed.push(f"key {number}", key=f"k{number % 5}")
        keyed.push_many(range(300, 320))
        _work(keyed)
        keyed.discard([60])
        wide = journal.queue("wide", lease=30, max_in_flight_per_key=2, max_attempts=5)
        for number in range(60):
            wide.push(number, key=f"w{number % 3}")
        _work(wide)
        fair = journal.queue("fair", lease=30, fair_by="tenant", max_attempts=5)
        for number in range(30):
            key = f"f{number % 4}" if number % 2 else None
            fair.push(number, key=key, headers={"tenant": "abc"[min(number % 7, 2)]})
        _work(fair)
        urgent = journal.queue("urgent", lease=30, priority=True, max_attempts=5)
        for number in range(30):
            urgent.push(number, priority=number % 3)
        _work(urgent)
        slow = journal.queue("slow", lease=30, rate="100/s", rate_per_key="1/10s", breaker="50/1m")
        for number in range(12):
            slow.push(number, key=f"s{number % 2}")
        _work(slow)
        calm = journal.queue("calm", debounce=20)
        for number in range(6):
            calm.push(number, key=f"c{number % 2}")
        fanout = journal.queue("fanout", mode="fanout", lease=30)
        fanout.push_many(range(4))
        for name in GROUPS:
            fanout.add_group(name)
        fanout.push_many(range(4, 40), key="one")
        fanout.push("later", delay=60)
        _work(fanout, "mail")
        fanout.take(group="audit")


def _work(queue: Queue, group: str = "default") -> None:
    """Takes six messages: one is settled, two fail, one of them for good, one is given back, two stay in flight."""
    taken = [one for _ in range(6) if (one := queue.take(group=group)) is not None]
    for delivery, end in zip(taken, (_ack, _fail, _reject, _release), strict=False):
        end(delivery)
    queue.take_many(4, group=group)


def _ack(delivery: Delivery) -> None:
    delivery.ack()


def _fail(delivery: Delivery) -> None:
    delivery.nack(error="failed", delay=45)


def _reject(delivery: Delivery) -> None:
    delivery.nack(error="bad", dead=True)


def _release(delivery: Delivery) -> None:
    delivery.release()


def answers(journal: Journal, clock: ManualClock) -> dict[str, object]:
    """Says which messages each queue holds, and how it delivers them to the last one once all leases have ended."""
    queues = [journal.queue(name) for name in sorted(journal.queues())]
    groups = [(queue, group) for queue in queues for group in (GROUPS if queue.name == "fanout" else ("default",))]
    held = {f"{queue.name} {group}": _held(queue, group) for queue, group in groups}
    clock.advance(600)
    delivered = {f"{queue.name} {group}": _drain(queue, group, clock) for queue, group in groups}
    return {"held": held, "delivered": delivered}


def _held(queue: Queue, group: str) -> list[tuple[int, str, int]]:
    return [(one.seq, one.state, one.attempts) for one in queue.messages(group=group)]


def _drain(queue: Queue, group: str, clock: ManualClock) -> list[list[tuple[int, int]]]:
    """Takes everything, in steps of three messages that are settled together: positions and attempts."""
    steps: list[list[tuple[int, int]]] = []
    idle = 0
    while idle < 5:
        taken = queue.take_many(3, group=group)
        steps += [[(one.event.seq, one.attempt) for one in taken]] if taken else []
        for delivery in taken:
            delivery.ack()
        idle = 0 if taken else idle + 1
        if not taken:
            clock.advance(30)
    return steps


def main(directory: Path) -> None:
    """Makes a store in a directory, packed, and a file with its answers."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "queues.db"
        make(path)
        with gzip.GzipFile(directory / "queues.db.gz", "wb", mtime=0) as packed, path.open("rb") as stored:
            shutil.copyfileobj(stored, packed)
        clock = ManualClock()
        with penstock.open(f"sqlite://{path}", clock=clock) as journal:
            (directory / "queues.json").write_text(json.dumps(answers(journal, clock)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Every I/O call of a journal failing once: nothing acknowledged is lost, nothing is half there, and it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Delivery, Draft, Event, Journal, ManualClock
from penstock.errors import PenstockError, StorageError


class Faults:
    """Counts calls to an engine, and lets one of them fail."""

    def __init__(self) -> None:
        self.left = -1

    def call(self) -> None:
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                raise StorageError("the disk refused", retryable=True)


class Faulty:
    """A transaction whose every call may be the one that fails."""

    def __init__(self, tx: Any, faults: Faults) -> None:
        self._tx, self._faults = tx, faults

    @property
    def foreign(self) -> bool:
        return self._tx.foreign  # type: ignore[no-any-return]

    @property
    def writes(self) -> int:
        return self._tx.writes  # type: ignore[no-any-return]

    @property
    def begun(self) -> float:
        return self._tx.begun  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._tx, name)
        if name == "close":
            return method

        def counted(*args: Any, **options: Any) -> Any:
            try:
                self._faults.call()
            except StorageError:
                if name in ("put", "delete", "delete_range"):
                    self._tx.writes += 1  # as engines have it: a change that fails counts
                raise
            return method(*args, **options)

        return counted

    def scan(self, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in self._tx.scan(*args, **options):
            self._faults.call()
            yield row

    def __enter__(self) -> Any:
        self._faults.call()
        self._tx.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and hasattr(self._tx, "put"):
            try:
                self._faults.call()
            except StorageError as refused:
                self._tx.__exit__(StorageError, refused, None)
                raise
        self._tx.__exit__(kind, error, trace)


def make_faulty(journal: Journal) -> Faults:
    faults, engine = Faults(), journal._engine
    write, read = engine.write, engine.read
    engine.write = lambda **options: Faulty(write(**options), faults)  # type: ignore[method-assign]
    engine.read = lambda: Faulty(read(), faults)  # type: ignore[method-assign, assignment, return-value]
    journal._core.housekeeper.request = lambda topic: None  # type: ignore[method-assign]
    return faults


def state(journal: Journal) -> Any:
    """Everything anybody can see of a journal, but for the ids and times that every try gives anew."""
    found = {}
    for name in journal.topics():
        topic = journal.topic(name)
        events = [(e.seq, e.kind, e.payload, e.key, e.headers.keys(), e.causation_id is None) for e in topic.read()]
        found[name] = (events, topic.latest, topic.oldest, len(topic), topic.cursors(), topic.settings)
    queue = journal.queue("jobs")
    held = [(one.seq, one.attempt, one.deadline) for one in queue.pending()]
    messages = [(one.seq, one.state, one.due, one.event.payload) for one in queue.messages()]
    return found, journal.mark("m"), held, messages, queue.stats(), queue.policy


def transact(journal: Journal) -> None:
    with journal.transaction() as tx:
        receipt = tx.append("t", "in", 1, key="a")
        tx.append("new", "in", 2, cause=receipt)
        list(tx.read("t"))
        tx.commit("t", "c", receipt.seq)
        tx.set_mark("m", 5)
        tx.append_many("t", [Draft("in", 3, dedup="tx"), Draft("in", 4, cause=0)])


def held(journal: Journal) -> Delivery:
    """The message that a worker has taken."""
    queue = journal.queue("jobs")
    return queue.delivery(queue.pending()[0].token)


def transact_with_a_queue(journal: Journal) -> None:
    with journal.transaction() as tx:
        tx.append("t", "in", 1)
        tx.push("jobs", "from a transaction")
        tx.ack(held(journal))


WORK: dict[str, Callable[[Journal], Any]] = {
    "append": lambda journal: journal.topic("t").append("k", 1),
    "append to a new topic": lambda journal: journal.topic("new").append("k", 1, key="x"),
    "append_many": lambda journal: journal.topic("t").append_many([Draft("k", n, dedup=str(n)) for n in range(5)]),
    "expect": lambda journal: journal.topic("t").append("k", 1, key="none", expect=0),
    "a large batch": lambda journal: journal.topic("t").append_many([Draft("k", b"x" * 300_000) for _ in range(5)]),
    "submit": lambda journal: journal.topic("t").submit("k", 1).result(60),
    "commit": lambda journal: journal.topic("t").commit("c", 7),
    "seek": lambda journal: journal.topic("t").seek("d", 1),
    "compact": lambda journal: journal.topic("t").compact(7, force=True),
    "compact everything": lambda journal: journal.topic("t").compact(100, force=True),
    "compact_keys": lambda journal: journal.topic("t").compact_keys(),
    "configure": lambda journal: journal.topic("t").configure(dedup_window=100_000, max_events=5),
    "transaction": transact,
    "push": lambda journal: journal.queue("jobs").push("later", delay=5),
    "push_many": lambda journal: journal.queue("jobs").push_many([Draft("m", n, key="ab"[n % 2]) for n in range(6)]),
    "take": lambda journal: journal.queue("jobs").take(),
    "take_many": lambda journal: journal.queue("jobs").take_many(3),
    "claim": lambda journal: journal.queue("jobs").claim(min_idle=0, limit=1),
    "ack": lambda journal: held(journal).ack(),
    "ack_many": lambda journal: journal.queue("jobs").ack_many([one.token for one in journal.queue("jobs").pending()]),
    "nack": lambda journal: held(journal).nack(error="no"),
    "give up": lambda journal: held(journal).nack(error="no", dead=True),
    "extend": lambda journal: held(journal).extend(60),
    "redrive": lambda journal: journal.queue("jobs").redrive(),
    "change a policy": lambda journal: journal.queue("jobs").configure(max_attempts=5),
    "transaction with a queue": transact_with_a_queue,
}


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_failing_call_is_told_and_leaves_no_trace(
    scheme: str, work: Callable[[Journal], Any], tmp_path: Path
) -> None:
    def fresh(at: int) -> Journal:
        url = "memory:" if scheme == "memory" else f"sqlite:{tmp_path / str(at)}"
        journal = penstock.open(url, durability="process", clock=ManualClock())
        topic = journal.topic("t")
        for n in range(5):
            topic.append_many(
                [Draft("k", row, key=str(row), headers={"n": str(n)}, dedup=f"{n}/{row}") for row in range(3)]
            )
        topic.seek("d", 3)
        queue = journal.queue("jobs", max_attempts=2, retry=3, dead_letter="grave")
        queue.push_many(["dead", "held", *(Draft("m", n, key="ab"[n % 2]) for n in range(4))])
        for delivery in queue.take_many(2)[:1]:
            delivery.nack(dead=True)
        return journal

    with fresh(0) as journal:
        before = state(journal)
        make_faulty(journal)  # nothing fails here, but the housekeeper is kept from working meanwhile, as below
        work(journal)
        after = state(journal)
    assert after != before
    for n in range(1, 500):
        with fresh(n) as journal:
            faults = make_faulty(journal)
            faults.left = n
            try:
                work(journal)
            except PenstockError:
                failed = True
            else:
                failed = False
            fired, faults.left = faults.left == 0, -1
            # Space may be given back later: a failure there comes after the work was done, and says so.
            assert state(journal) == (before if failed and state(journal) == before else after), f"call {n}"
            if failed:
                assert fired
                if state(journal) == before:
                    work(journal)
                    assert state(journal) == after, f"again after call {n}"
            _still_whole(journal)
        if not fired:
            break
    assert not fired and n > 3


def _still_whole(journal: Journal) -> None:
    """Whatever failed before, the journal goes on as if nothing had been."""
    topic = journal.topic("t")
    latest = topic.latest
    receipt = topic.append("last", "word", key="z", dedup="last word")
    assert receipt.seq == latest + 1 and topic.append("last", dedup="last word").id == receipt.id
    events: list[Event] = list(topic.read())
    assert [e.id for e in events] == sorted({e.id for e in events}) and events[-1].id == receipt.id
    assert len(topic) == len(events) and topic.latest == receipt.seq

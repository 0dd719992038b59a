"""A journal in which everything that can be many is many: events, keys, topics, cursors, messages, groups, schedules.

A small one and a large one are made of the same parts, so that the same question has the same answer in both. Blocks
and runs are cut smaller than usual: a few thousand events are then as many blocks as a few million are otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args
from unittest.mock import patch

import penstock
from penstock import Draft, Journal, ManualClock, Projection, Queue, Topic, on
from penstock.core.journal import commit, locating, summaries
from penstock.core.journal.index import index, indexer, memtable, runs
from penstock.core.journal.upkeep import housekeeper, merging, summarising

SMALL, LARGE = 150, 2_400
State = Literal["built", "reopened", "maintained"]
"""Right after building; closed and opened again; the same after `maintain()`."""
STATES: tuple[State, ...] = get_args(State)

TOGETHER = 50
"""Events of one commit, where many are built."""
EACH = 3
"""Events of one key, of one correlation."""
LOGS = ("log", "compact", "compact_keys", "reindex", "dropped", "verified", "rebuilt", "emptied", "written", "erased")
"""Topics with the same events; each operation that would change them for others has its own."""

SIZES = [
    (locating, "UNFOLDED_TOPICS", 8),
    (indexer, "INDEX_RUN_EVENTS", 128),
    (indexer, "INDEX_RUN_BYTES", 16 << 10),
    (memtable, "INDEX_RUN_EVENTS", 128),
    (index, "INDEX_MEMORY_BYTES", 32 << 10),
    (indexer, "INDEX_MEMORY_BYTES", 32 << 10),
    (memtable, "INDEX_MEMORY_BYTES", 32 << 10),
    (indexer, "INDEX_STEP_BYTES", 16 << 10),
    (runs, "INDEX_CHUNK_BYTES", 2 << 10),
    (runs, "INDEX_LARGE_CHUNK_BYTES", 4 << 10),
    (merging, "BLOCK_BYTES", 8 << 10),
    (housekeeper, "MERGED_BYTES", 4 << 10),
    (housekeeper, "SMALL_BYTES", 1 << 10),
    (index, "MERGED_BYTES", 4 << 10),
    (summaries, "SUMMARY_EVENTS", 16),
    (summarising, "SUMMARY_RANGES", 4),
    (housekeeper, "SUMMARY_RANGES", 4),
    (commit, "SUMMARY_EVENTS", 16),
    (commit, "BLOCK_BYTES", 8 << 10),
    (commit, "SMALL_BYTES", 1 << 10),
]

_names = itertools.count()


@contextmanager
def small_parts() -> Iterator[None]:
    """Cuts blocks and runs small, and keeps the threads in the background from working: counts are exact then."""
    with ExitStack() as stack:
        for module, name, size in SIZES:
            stack.enter_context(patch.object(module, name, size))
        for thread, name in (
            (housekeeper.Housekeeper, "request"),
            (housekeeper.Housekeeper, "request_clearing"),
            (housekeeper.Housekeeper, "request_reclaim"),
            (indexer.Indexer, "request"),
            (indexer.Indexer, "request_merge"),
            (indexer.Indexer, "request_fold"),
            (indexer.Indexer, "make_room"),
        ):
            stack.enter_context(patch.object(thread, name, lambda self, topic=None: None))
        yield


class Count(Projection):
    """How many events an entity has."""

    events: int = 0

    @on("placed", "paid", "sent")
    def add(self, payload: Any) -> None:
        self.events += 1


class World:
    """A journal of one size in one state, and names for what is in it."""

    def __init__(self, journal: Journal, size: int, clock: ManualClock, place: Callable[[], str]) -> None:
        self.journal, self.size, self.clock = journal, size, clock
        self.place = place
        """Names a place for another journal of the same engine."""
        self.log = journal.topic("log")
        """Read by the rows of the table, and never written."""
        self.written = journal.topic("written")
        for name in (*LOGS, "hot", "settled"):
            list(journal.topic(name).read(key="none"))  # the first look-up after opening has a row of its own
        self.middle = f"key {size // EACH // 2}"
        """A key with a few events in the middle of every log."""
        self.chain = f"chain {size // EACH // 2}"
        """The correlation of those events."""

    def topic(self, name: str) -> Topic:
        return self.journal.topic(name)

    def queue(self, name: str) -> Queue:
        return self.journal.queue(name)


def build(journal: Any, size: int, clock: ManualClock) -> None:
    """Fills a journal with `size` of what is most, and a share of that of everything else."""
    for name in LOGS:
        topic = journal.topic(name)
        for start in range(0, size, TOGETHER):
            topic.append_many([_draft(number, size) for number in range(start, start + TOGETHER)])
            clock.advance(1)
        journal._core.housekeeper.maintain(name)  # what is done in passing, beside the commits
    log = journal.topic("log")
    cause = log.append("placed", {"n": 0}, key="causing")
    for _ in range(EACH):
        log.append("paid", {"n": 0}, key="caused", cause=cause)
    window = journal.topic("window")
    for start in range(0, size, TOGETHER):
        window.append_many([Draft("placed", dedup=f"dedup {number}") for number in range(start, start + TOGETHER)])
    for number in range(size // 15):
        journal.topic(f"other-{number:05}").append("placed", {"n": number}, correlation=f"alone {number}")
        log.commit(f"consumer {number}", log.latest - 2)
    journal._core.indexer.notes.fold()
    for name in ("log", "rebuilt"):
        journal.topic(name).project(Count, f"key {size // EACH // 2}")
    fill_queues(journal, size)


def _draft(number: int, size: int) -> Draft:
    middle = number == size // 2
    return Draft(
        "refunded" if middle else ("placed", "paid", "sent")[number % 3],
        {"n": number},
        key=f"key {number // EACH}",
        scope="rare" if middle else None,
        correlation=f"chain {number // EACH}",
    )


def fill_queues(journal: Journal, size: int) -> None:
    """Queues with many messages in every state."""
    few = size // 15
    for name in ("jobs", "settled", "purged", "moved", "dropped-queue"):
        queue = journal.queue(name, lease=100_000)
        queue.push_many({"n": number} for number in range(size))
        queue.push_many([{"n": number} for number in range(few)], delay=1_000)
        queue.take_many(few, consumer="first")
    ranked = journal.queue("ranked", priority=True)
    for priority in range(3):
        ranked.push_many([{"n": number} for number in range(size // 3)], priority=priority)
    lanes = journal.queue("lanes", fair_by="key:/", lease=100_000)
    limited = journal.queue("limited", throttle=100_000, rate="1000000/s", rate_per_key="1000/s", lease=100_000)
    for start in range(0, size, TOGETHER):
        numbers = range(start, start + TOGETHER)
        lanes.push_many([Draft("job", number, key=f"tenant {number % 10}/{number}") for number in numbers])
        limited.push_many([Draft("job", number, key=f"key {number}") for number in numbers])
    flying = journal.queue("flying", lease=100_000)
    flying.push_many(range(size + 40))
    for number in range(size // 2):
        flying.take_many(1 + number % 2)
    hot = journal.queue("hot", lease=100_000)
    for _ in range(0, size, TOGETHER):
        hot.push_many(range(TOGETHER), key="hot")
    assert hot.take() and not hot.take()
    hot.discard(range(3, size - 9, 2))
    journal.queue("waiting").push_many(range(size), delay=1_000)
    failing = journal.queue("failing", max_attempts=1, lease=100_000)
    failing.push_many(range(few + 20))
    lost = journal.queue("lost", max_attempts=1, dead_letter="letters", lease=100_000)
    lost.push_many(range(few + 20))
    rarely_lost = journal.queue("rarely-lost", max_attempts=1, dead_letter="letters", lease=100_000)
    rarely_lost.push_many(range(3))
    for queue, count in ((failing, few), (lost, few), (rarely_lost, 3)):
        for delivery in queue.take_many(count):
            delivery.nack(error="no", dead=True)
    groups = journal.queue("groups", mode="fanout")
    for number in range(few):
        groups.add_group(f"group {number}")
    groups.push_many(range(10))
    timed = journal.queue("timed")
    for number in range(few):
        timed.every(86_400, {"n": number}, name=f"schedule {number}")


@contextmanager
def worlds(sizes: Sequence[int], place: Callable[[], str]) -> Iterator[dict[tuple[State, int], World]]:
    """A world of each size in each state; `place` names places for their journals."""
    with ExitStack() as stack:
        found: dict[tuple[State, int], World] = {}
        for size in sizes:
            clock = ManualClock()
            built = stack.enter_context(penstock.open(place(), clock=clock))
            build(built, size, clock)
            copies = [place(), place()]
            for copy in copies:
                built.backup(copy)
            reopened, maintained = [stack.enter_context(penstock.open(copy, clock=clock)) for copy in copies]
            maintained.maintain()
            for state, journal in zip(STATES, (built, reopened, maintained), strict=True):
                found[state, size] = World(journal, size, clock, place)
        yield found


def in_memory() -> str:
    return f"memory:growth-{next(_names)}"

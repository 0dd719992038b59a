"""Housekeeping works in small commits, whatever has gathered: counted in rows, because time depends on the machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from journals import on

from penstock import Journal, ManualClock, Queue
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.local.backend import LocalJournal
from penstock.core.queue import upkeep
from penstock.core.queue.inspect import open_view
from penstock.core.queue.operations import settle
from penstock.core.queue.queue import LocalQueue
from penstock.core.queue.state import blocks, keys
from penstock.core.queue.state.cache import QueueState
from penstock.errors import StaleDelivery

pytestmark = on("memory", "sqlite")


class CountedTx:
    """A write transaction that counts the rows it reads and changes."""

    def __init__(self, tx: Any, commits: list[CountedTx]) -> None:
        self._tx = tx
        self._commits = commits
        self.rows = 0
        self.bytes = 0

    @property
    def foreign(self) -> bool:
        return bool(self._tx.foreign)

    @property
    def writes(self) -> int:
        return int(self._tx.writes)

    def get(self, key: bytes) -> bytes | None:
        self.rows += 1
        return self._tx.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for row in self._tx.scan(start, stop, reverse=reverse):
            self.rows += 1
            yield row

    def put(self, key: bytes, value: bytes) -> None:
        self.rows += 1
        self.bytes += len(value)
        self._tx.put(key, value)

    def delete(self, key: bytes) -> None:
        self.rows += 1
        self._tx.delete(key)

    def keep(self) -> None:
        self._tx.keep()

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.rows += sum(1 for _ in self._tx.scan(start, stop))
        self._tx.delete_range(start, stop)

    def __enter__(self) -> CountedTx:
        self._tx.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._commits.append(self)
        self._tx.__exit__(*exc)


@pytest.fixture
def local(journal: Journal) -> LocalJournal:
    assert isinstance(journal, LocalJournal)
    return journal


@pytest.fixture
def commits(local: LocalJournal, monkeypatch: pytest.MonkeyPatch) -> list[CountedTx]:
    """Every commit from here on."""
    found: list[CountedTx] = []
    engine = local._core.writer.engine
    write = engine.write
    monkeypatch.setattr(engine, "write", lambda *, sync=True: CountedTx(write(sync=sync), found))
    return found


def _fill(queue: Queue, count: int, **options: Any) -> None:
    queue.push_many(range(count), **options)


def test_leases_that_have_ended_are_taken_back_a_few_at_a_time(
    journal: Journal, clock: ManualClock, commits: list[CountedTx], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SWEEP_LEASES", 32)
    queue = journal.queue("q", lease=10, max_attempts=5)
    _fill(queue, 300)
    for _ in range(300):
        assert queue.take() is not None
    clock.advance(11)
    commits.clear()
    again = queue.take()
    assert again is not None and (again.seq, again.attempt) == (1, 2)
    assert max(commit.rows for commit in commits) < 32 * 8
    assert queue.stats().in_flight == 1 and queue.stats().ready == 299


def test_leases_that_go_on_are_looked_at_a_few_at_a_time_and_end_in_time(
    journal: Journal, clock: ManualClock, commits: list[CountedTx], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SWEEP_LEASES", 16)
    queue = journal.queue("q", lease=100, max_attempts=5)
    _fill(queue, 100)
    held = [queue.take(lease=10 if at == 0 else 100) for at in range(100)]
    clock.advance(11)
    commits.clear()
    again = queue.take()
    assert again is not None and again.seq == 1
    assert max(commit.rows for commit in commits) < 16 * 6
    fiftieth = held[49]
    assert fiftieth is not None
    fiftieth.extend(5)
    clock.advance(6)
    sooner = queue.take()
    assert sooner is not None and sooner.seq == 50
    clock.advance(90)
    assert sum(queue.take() is not None for _ in range(100)) == 98


def test_one_lease_of_many_messages_is_taken_back_in_parts(
    journal: Journal, clock: ManualClock, commits: list[CountedTx]
) -> None:
    queue = journal.queue("q", lease=10, max_attempts=5)
    _fill(queue, 1000)
    assert len(queue.take_many(1000)) == 1000
    clock.advance(11)
    commits.clear()
    assert [delivery.seq for delivery in queue.take_many(1000)] == list(range(1, 1001))
    returning = [commit for commit in commits if commit.rows > 100][:-1]
    assert len(returning) >= 3 and max(commit.rows for commit in returning) < 256 * 5


def test_what_was_known_of_removed_messages_goes_in_small_commits(
    local: LocalJournal, clock: ManualClock, commits: list[CountedTx], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "CLEAR_ROWS", 50)
    queue = local.queue("q", mode="fanout")
    queue.add_group("a")
    queue.push_many(range(400), delay=5, max_attempts=2)
    assert _delivery_rows(local, "q") == 800
    clock.advance(6)
    queue.ack_many(queue.take_many(400, group="a"))
    commits.clear()
    local.maintain()
    assert max(commit.rows for commit in commits) < 120
    assert _delivery_rows(local, "q") == 0
    assert len(local.topic("q")) == 0


@pytest.mark.parametrize("mode", ["work", "fanout"])
@pytest.mark.parametrize("before", [0, keys.MOST_PURGES - 1])
def test_a_purge_is_a_small_commit_and_its_rows_go_in_passing(
    local: LocalJournal,
    clock: ManualClock,
    commits: list[CountedTx],
    monkeypatch: pytest.MonkeyPatch,
    mode: Literal["work", "fanout"],
    before: int,
) -> None:
    monkeypatch.setattr(upkeep, "CLEAR_ROWS", 50)
    queue = local.queue("q", mode=mode)
    own = queue._backend
    assert isinstance(own, LocalQueue)
    own.change(_begin_with, before)
    queue.push("held")
    held = queue.take()
    queue.push_many(range(400), delay=60)
    assert held is not None and queue.take() is None
    commits.clear()
    assert queue.purge() == 401
    assert max(commit.rows for commit in commits) < 40
    assert len(queue) == queue.stats().delayed == queue.stats().in_flight == 0
    assert queue.peek(5) == queue.messages() == [] and queue.get(2) is None
    with pytest.raises(StaleDelivery):
        held.ack()
    queue.push("new")
    clock.advance(61)
    assert [one.payload for one in queue.take_many(5)] == ["new"]
    commits.clear()
    local.maintain()
    assert max(commit.rows for commit in commits) < 120
    with open_view(own) as view:
        rows = [key for key, _ in view.snap.scan(*keys.groups_range(view.state.topic))]
        prefix = keys.group_prefix(view.state.topic, 0, view.state.record.purges)[:8]
        assert rows and all(key.startswith(prefix) for key in rows)
    assert [one.payload for one in queue] == ["new"]


def _begin_with(commit: Commit, state: QueueState, purges: int) -> None:
    state.record.purges = purges
    state.save(commit)
    state.forget_groups()


def _delivery_rows(journal: LocalJournal, queue: str) -> int:
    """Rows that say when and how to deliver messages."""
    with journal._engine.read() as snap:
        state = journal._registry.cache.load(snap, queue)
        assert state is not None
        kinds = (keys.special_key, keys.override_key)
        return sum(1 for of in kinds for _ in snap.scan(of(state.topic, 0), of(state.topic, 1 << 60)))


def test_many_blocks_of_settled_messages_go_in_several_commits(journal: Journal, commits: list[CountedTx]) -> None:
    queue = journal.queue("q")
    for at in range(100):
        queue.push(random.Random(at).randbytes(70_000))
    queue.ack_many(queue.take_many(100))
    commits.clear()
    journal.maintain()
    assert max(commit.rows for commit in commits) < 60
    assert len(journal.topic("q")) == 0


def test_settled_blocks_behind_an_unsettled_message_are_exchanged_a_few_at_a_time(
    local: LocalJournal, commits: list[CountedTx], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "THIN_POSITIONS", 10)
    queue = local.queue("q", max_attempts=1)
    for at in range(60):
        queue.push(random.Random(at).randbytes(70_000), key=f"key-{at}")
    first, *rest = queue.take_many(60)
    first.nack(error="stays")
    queue.ack_many(rest)
    commits.clear()
    local.maintain()
    assert max(commit.rows for commit in commits) < 60
    assert max(commit.bytes for commit in commits) < 2 << 20
    assert [event.seq for event in local.topic("q").read()] == [1]
    assert [event.seq for event in local.topic("q").read(key="key-5")] == []
    assert len(local.topic("q")) == 1 and queue.stats().failed == 1


def test_a_group_that_comes_while_settled_messages_are_found_gets_what_is_stored(
    local: LocalJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = local.queue("q", mode="fanout")
    queue.add_group("a")
    _fill(queue, 20)
    queue.ack_many(queue.take_many(20, group="a"))
    look = local._registry.upkeep._find_standing

    def look_then_add(topic: str) -> upkeep.Standing:
        standing = look(topic)
        queue.add_group("b")
        return standing

    monkeypatch.setattr(local._registry.upkeep, "_find_standing", look_then_add)
    queue.push("new")
    local._core.housekeeper.maintain("q")
    late = [delivery.payload for delivery in queue.take_many(100, group="b")]
    stored = [event.payload for event in local.topic("q").read()]
    assert late[-1] == "new" and set(late) <= set(stored)
    assert len(stored) == 21


def test_compaction_by_key_exchanges_a_few_blocks_at_a_time(journal: Journal, commits: list[CountedTx]) -> None:
    topic = journal.topic("states")
    for at in range(60):
        topic.append("state", random.Random(at).randbytes(70_000), key=f"key-{at % 3}")
    commits.clear()
    assert topic.compact_keys() == 57
    assert max(commit.rows for commit in commits) < 60
    assert max(commit.bytes for commit in commits) < 2 << 20
    assert [event.seq for event in topic.read()] == [58, 59, 60]
    assert [event.seq for event in topic.read(key="key-0")] == [58]
    assert topic.compact_keys() == 0


def test_a_take_past_many_blocked_messages_opens_each_block_about_once(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "KEPT_BYTES", 250_000)
    queue = journal.queue("q")
    queue.push("first", key="busy")
    for _ in range(30):
        queue.push_many([1] * 2000, key="busy")
    queue.push("free", key="other")
    assert queue.take() is not None
    opened: list[bytes] = []
    open_one = blocks.BlockCache._open

    def counted(self: blocks.BlockCache, snap: Snapshot, key: bytes, value: bytes) -> blocks.Block:
        opened.append(key)
        return open_one(self, snap, key, value)

    monkeypatch.setattr(blocks.BlockCache, "_open", counted)
    free = queue.take()
    assert free is not None and free.payload == "free"
    assert len(set(opened)) > 4 and len(opened) <= 2 * len(set(opened))

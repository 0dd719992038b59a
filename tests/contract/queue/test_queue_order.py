"""Who is next: priorities, delays, ordering keys, and the other end of the queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Draft, Journal, ManualClock, Queue
from penstock.core.journal.commit import Commit
from penstock.core.queue import queue as waiting
from penstock.core.queue.operations.take import take
from penstock.core.queue.state import blocks
from penstock.errors import ConfigError

Reopen = Callable[[Journal], Journal]


def seqs(queue: Queue, limit: int = 100, **options: object) -> list[int]:
    return [delivery.seq for delivery in queue.take_many(limit, **options)]  # type: ignore[arg-type]


# ── priorities ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_higher_priorities_come_first_and_positions_decide_among_equals(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs", priority=True)
    for priority in (0, 5, 0, -3, 5, 2**31 - 1, -(2**31), 0):
        queue.push(priority, priority=priority)
    assert [event.seq for event in queue.peek(8)] == [6, 2, 5, 1, 3, 8, 4, 7]
    assert seqs(queue, 2) == [6, 2]
    queue = reopen(journal).queue("jobs")
    assert seqs(queue, 3) == [5, 1, 3]
    queue.push("now", priority=1)
    assert seqs(queue) == [9, 8, 4, 7] and queue.take() is None


def test_an_urgent_message_overtakes_a_long_backlog(journal: Journal) -> None:
    queue = journal.queue("jobs", priority=True)
    queue.push_many(range(5000))
    seqs(queue, 10)
    queue.push_many(["urgent", "urgent"], priority=9)
    assert seqs(queue, 3) == [5001, 5002, 11]


def test_priorities_need_a_queue_that_has_them(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="has no priorities"):
        journal.queue("plain").push(1, priority=1)
    queue = journal.queue("ranked", priority=True)
    for bad in (1.5, "1", 2**31, None, True):
        with pytest.raises(ConfigError):
            queue.push(1, priority=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ordering keys"):
        queue.push(1, key="k")
    with pytest.raises(ConfigError, match="keep their order"):
        journal.queue("plain").push(1, key="k", priority=1)
    assert journal.queue("plain").push(1, priority=0).seq == 1


def test_a_queue_can_get_priorities_later(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    queue.configure(priority=True)
    queue.push("first", priority=1)
    assert seqs(queue) == [4, 1, 2, 3]


# ── delays ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_delayed_message_waits_and_then_has_its_own_place(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    queue = journal.queue("jobs")
    queue.push("a", delay=10)
    queue.push("b")
    queue.push("c", not_before=datetime.fromtimestamp(clock.now_ms() / 1000 + 5, UTC))
    queue.push("d", not_before=datetime(2000, 1, 1, tzinfo=UTC))
    stats = queue.stats()
    assert (stats.ready, stats.delayed, len(queue)) == (2, 2, 4)
    assert seqs(queue, 1) == [2]
    queue = reopen(journal).queue("jobs")
    clock.advance(5)
    assert [event.seq for event in queue.peek(9)] == [3, 4] == seqs(queue)
    queue.push("e")
    clock.advance(5)
    assert queue.stats().delayed == 0 and queue.stats().ready == 2
    assert seqs(queue) == [1, 5]


def test_many_delays_come_out_in_the_order_of_their_times(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    chance = random.Random(7)
    delays = [chance.randint(1, 500) for _ in range(300)]
    for delay in delays:
        queue.push(delay, delay=delay)
    now = out = 0
    while now < 500:
        clock.advance(step := chance.randint(1, 40))
        now += step
        found = queue.take_many(1000)
        assert sorted(delivery.payload for delivery in found) == sorted(d for d in delays if now - step < d <= now)
        assert [delivery.seq for delivery in found] == sorted(delivery.seq for delivery in found)
        out += queue.ack_many(found)
    assert out == 300 and len(queue) == 0


# ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_keys_of_any_text_do_not_meet(journal: Journal) -> None:
    queue = journal.queue("jobs")
    keys = ["a", "a\0", "a\0\0\0\0\0\0\0\1", "ä", "日本", "x" * 400, "\x7f"]
    queue.push_many([Draft("m", None, key=key) for key in keys * 2])
    assert seqs(queue) == list(range(1, len(keys) + 1))


def test_a_key_pushed_through_the_topic_counts_too(journal: Journal) -> None:
    queue = journal.queue("jobs")
    for _ in range(2):
        journal.topic("jobs").append("m", 1, key="k")
    assert seqs(queue) == [1]


def test_a_long_backlog_behind_one_key_does_not_stop_the_others(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many([Draft("m", n, key="slow") for n in range(9000)])
    queue.push("last")
    assert seqs(queue, 1) == [1]
    assert seqs(queue, 5) == [9001]
    assert queue.stats().ready == 8999


# ── the front ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_front_stays_through_retries_redrive_and_move(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=2, dead_letter="jobs.dead")
    other = journal.queue("other")
    queue.push_many([1, 2])
    queue.push("a", priority="front")
    for _ in range(2):
        delivery = queue.take()
        assert delivery is not None and delivery.payload == "a"
        delivery.nack()
    assert queue.redrive() == 1
    assert [event.payload for event in queue.peek(9)] == ["a", 1, 2]
    other.push(9)
    assert queue.move(other) == 3
    assert [one.payload for one in other.take_many(9)] == ["a", 9, 1, 2]


def test_keys_and_fair_shares_have_no_front(journal: Journal) -> None:
    queue = journal.queue("jobs")
    with pytest.raises(ConfigError, match="front"):
        queue.push(1, priority="front", key="k")
    with pytest.raises(ConfigError, match='"front"'):
        queue.push(1, priority="back")  # type: ignore[arg-type]
    fair = journal.queue("fair", fair_by="tenant")
    with pytest.raises(ConfigError, match="no front"):
        fair.push(1, priority="front", headers={"tenant": "a"})
    assert len(queue) == 0 and len(fair) == 0


# ── much behind one key ──────────────────────────────────────────────────────────────────────────────────────────────
def test_a_take_gets_past_what_waits_behind_a_key_with_little_work(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[int] = []

    def counted(commit: Commit, *args: Any) -> Any:
        before = commit.tx.writes
        try:
            return take(commit, *args)
        finally:
            work.append(commit.tx.writes - before)

    monkeypatch.setattr(waiting, "take", counted)
    queue = journal.queue("jobs")
    queue.push_many([Draft("m", number, key="slow") for number in range(20_000)])
    queue.push_many([Draft("m", number, key=f"slow-{number % 7}") for number in range(7_000)])
    queue.push("free", key="free")
    first = queue.take()
    others = queue.take_many(7)
    assert first is not None and len(others) == 7
    found = queue.take()
    assert found is not None and found.payload == "free"
    assert sum(work) < 500 and max(work) < 300
    assert len(queue) == 27_001 and queue.stats().ready == 26_992 and queue.stats().in_flight == 9
    journal.maintain()
    work.clear()
    for delivery in (first, *others):
        delivery.ack()
    assert [one.payload for one in queue.take_many(9)] == [1, 7, 8, 9, 10, 11, 12, 13]
    assert queue.take() is None and max(work) < 100


@pytest.mark.parametrize("rate", [None, "1/h"])
@pytest.mark.parametrize("keys", [1, 100, 600])
def test_what_a_take_passes_is_counted_in_blocks_and_rows(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, keys: int, rate: str | None
) -> None:
    """Whether keys are busy or have had their rate: each block is opened once, a row for each key and 32 blocks."""
    queue = journal.queue("jobs", lease=3600, rate_per_key=rate)
    first = [queue.push("first", key=f"key-{number}").seq for number in range(keys)]
    taken = queue.take_many(len(first))
    assert len(taken) == keys
    if rate is not None:
        assert queue.ack_many(taken) == keys
    for at in range(0, 10_000, 250):
        queue.push_many([Draft("m", number, key=f"key-{number % keys}") for number in range(at, at + 250)])
    queue.push("free", key="free")
    opened: list[bytes] = []
    work: list[int] = []
    opening = blocks.open_block

    def counted_block(snap: Any, key: bytes, *rest: Any) -> Any:
        opened.append(key)
        return opening(snap, key, *rest)

    def counted(commit: Commit, *args: Any) -> Any:
        before = commit.tx.writes
        try:
            return take(commit, *args)
        finally:
            work.append(commit.tx.writes - before)

    monkeypatch.setattr(blocks, "open_block", counted_block)
    monkeypatch.setattr(waiting, "take", counted)
    found = queue.take()
    assert found is not None and found.payload == "free"
    assert len(opened) <= 40 + keys + 10
    assert max(work) < 256 * 8, "one step"
    if keys <= 100:
        waits = 0 if rate is None else 4 * keys  # a key without room has its next message wait for it
        assert sum(work) <= 2 * (keys + 8) + waits + 20
    assert len(queue) == 10_001 + (keys if rate is None else 0)
    assert queue.stats().in_flight == 1 + (keys if rate is None else 0)


def test_runs_of_held_messages_can_be_looked_at_discarded_and_moved(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs")
    queue.push_many([Draft("m", number, key="ab"[number % 2]) for number in range(60)])
    held = queue.take_many(2)
    assert queue.take() is None and [event.payload for event in queue] == list(range(60))
    queue = reopen(journal).queue("jobs")
    assert queue.get(31).payload == 30 and queue.peek(5) == []  # type: ignore[union-attr]
    assert queue.discard([31, 5, 60, 31]) == 3 and len(queue) == 57 and queue.get(31) is None
    other = queue.journal.queue("other")
    assert queue.move(other, limit=4) == 4 and [event.payload for event in other] == [2, 3, 5, 6]
    assert queue.journal.topic("jobs").compact(20, force=True).removed > 0
    assert [event.seq for event in queue] == [seq for seq in range(21, 60) if seq != 31]
    assert len(queue) == 38 == queue.stats().ready
    found = []
    while deliveries := queue.take_many(9):
        assert len({one.key for one in deliveries}) == len(deliveries)
        found.extend(one.seq for one in deliveries)
        queue.ack_many(deliveries)
    assert sorted(found) == [seq for seq in range(21, 60) if seq != 31] and len(queue) == 0
    assert found[::2] == sorted(found[::2]) and queue.ack_many([one.token for one in held]) == 0


def test_many_keyed_messages_are_taken_at_once(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many([Draft("m", number, key=f"k{number}") for number in range(3000)])
    assert len(queue.take_many(3000)) == 3000
    plain = journal.queue("plain")
    plain.push_many(range(2000))
    assert len(plain.take_many(2000, newest=True)) == 2000


def test_what_outlived_its_ttl_keeps_none_of_its_key_waiting(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", ttl=10, retry=60)
    queue.push("first", key="a")
    clock.advance(6)
    for payload in ("second", "third"):
        queue.push(payload, key="a")
    delivery = queue.take()
    assert delivery is not None and queue.take() is None
    delivery.nack()  # it waits for its retry, which it does not live to see
    clock.advance(5)
    assert [event.payload for event in queue.peek(3)] == ["second"]
    assert [(one.seq, one.blocked) for one in queue.messages()] == [(2, False), (3, True)]
    assert seqs(queue) == [2] and queue.peek(3) == []


# ── one message by its name ──────────────────────────────────────────────────────────────────────────────────────────
def test_a_take_may_name_its_message(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", lease=30)
    queue.push_many(["a", "b", "c"])
    queue.push("later", delay=10)
    named = queue.take(seq=3)
    assert named is not None and (named.payload, named.attempt) == ("c", 1)
    assert queue.take(seq=3) is None and queue.take(seq=4) is None and queue.take(seq=99) is None
    clock.advance(30)
    named = queue.take(seq=3, wait=1)
    assert named is not None and named.attempt == 2
    assert seqs(queue) == [1, 2, 4]


def test_the_next_message_of_a_key_is_found_and_taken_by_the_key(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(20))
    for payload in ("first", "second"):
        queue.push(payload, key="k")
    assert queue.take(seq=22) is None  # the first of its key has to be settled before
    event = queue.get(key="k")
    assert event is not None and event.payload == "first" and queue.get(key="other") is None
    for payload in ("first", "second"):
        delivery = queue.take(key="k")
        assert delivery is not None and delivery.payload == payload
        assert queue.take(key="k") is None and queue.messages(key="k")[0].state == "in_flight"
        delivery.ack()
    assert queue.messages(key="k") == [] and len(queue) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"seq": 1, "key": "k"},
        {"seq": 1, "newest": True},
        {"seq": 0},
        {"seq": -1},
        {"seq": "1"},
        {"key": ""},
        {"key": 1},
    ],
)
def test_a_take_that_names_no_message_is_refused(journal: Journal, options: dict[str, Any]) -> None:
    queue = journal.queue("jobs")
    queue.push(1)
    with pytest.raises(ConfigError):
        queue.take(**options)
    with pytest.raises(ConfigError, match="one of them"):
        queue.get()
    with pytest.raises(ConfigError), journal.transaction() as tx:
        tx.take_many(queue, 2, seq=1)
    assert len(queue.take_many(5)) == 1

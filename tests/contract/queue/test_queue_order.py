"""Who is next: priorities, delays, ordering keys, and the other end of the queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Draft, Journal, ManualClock, Queue, Retry
from penstock.errors import ConfigError
from penstock.journal.commit import Commit
from penstock.queue.operations.take import take
from penstock.queue.run import waiting
from penstock.queue.state import blocks

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


def test_a_failed_attempt_keeps_its_priority(journal: Journal) -> None:
    queue = journal.queue("jobs", priority=True)
    queue.push("low", priority=-1)
    queue.push("high", priority=1)
    queue.push("mid")
    for delivery in queue.take_many(3):
        delivery.nack()
    assert [delivery.payload for delivery in queue.take_many(3)] == ["high", "mid", "low"]


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


def test_delays_and_priorities_go_together(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", priority=True)
    queue.push("later but urgent", priority=5, delay=timedelta(seconds=10))
    queue.push("now")
    queue.push("also now")
    assert seqs(queue, 1) == [2]
    clock.advance(10)
    assert seqs(queue) == [1, 3]


def test_delay_and_not_before_are_one_or_the_other(journal: Journal) -> None:
    with pytest.raises(ConfigError, match="not both"):
        journal.queue("jobs").push(1, delay=1, not_before=datetime(2030, 1, 1, tzinfo=UTC))


# ── ordering keys ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_one_message_per_key_is_in_flight_and_other_keys_flow(journal: Journal) -> None:
    queue = journal.queue("jobs")
    for key in ("a", "a", "b", None, "a", "b"):
        queue.push(key, key=key) if key else queue.push(key)
    first = queue.take_many(10)
    assert [delivery.seq for delivery in first] == [1, 3, 4]
    assert queue.take() is None and queue.stats().ready == 3
    first[0].ack()
    assert seqs(queue) == [2]
    first[2].ack()
    assert queue.take() is None
    first[1].ack()
    assert seqs(queue) == [6]


def test_a_retry_keeps_its_key_blocked_and_giving_up_frees_it(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", retry=Retry.fixed(60), max_attempts=2, dead_letter="grave")
    queue.push_many([Draft("m", n, key="a") for n in range(3)])
    queue.push("free")
    queue.take().nack()  # type: ignore[union-attr]
    assert queue.ack_many(queue.take_many(5)) == 1, "the second of the key waits for the first's retry"
    clock.advance(60)
    first = queue.take()
    assert first is not None and (first.seq, first.attempt) == (1, 2)
    first.nack()
    second = queue.take()
    assert second is not None and second.seq == 2
    clock.advance(30)  # its lease ends, its retry is due a minute after that
    assert queue.take() is None
    clock.advance(60)
    assert [delivery.seq for delivery in queue.take_many(5)] == [2]
    assert [event.seq for event in journal.queue("grave")] == [1]


def test_a_failed_message_frees_its_key_and_comes_back_in_its_turn(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    queue.push_many([Draft("m", n, key="a") for n in range(4)])
    queue.take().nack()  # type: ignore[union-attr]
    second = queue.take()
    assert second is not None and second.seq == 2
    assert queue.redrive() == 1 and queue.take() is None, "the second is still in flight"
    second.ack()
    assert [event.seq for event in queue.peek(4)] == [1]
    assert seqs(queue) == [1]


def test_keys_survive_a_restart(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs")
    queue.push_many([Draft("m", n, key="ab"[n % 2]) for n in range(6)])
    tokens = [delivery.token for delivery in queue.take_many(10)]
    assert len(tokens) == 2
    queue = reopen(journal).queue("jobs")
    assert queue.take() is None and queue.ack_many(tokens[:1]) == 1
    assert seqs(queue) == [3]
    assert [one.key for one in queue.pending()] == ["b", "a"]


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


# ── the other end ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_newest_takes_from_the_other_end(journal: Journal, reopen: Reopen, clock: ManualClock) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(8))
    assert seqs(queue, 2, newest=True) == [8, 7] and seqs(queue, 2) == [1, 2]
    queue.push("top")
    queue = reopen(journal).queue("jobs")
    assert seqs(queue, 3, newest=True) == [9, 6, 5] and queue.stats().ready == 2
    clock.advance(31)
    assert seqs(queue, 3, newest=True) == [9, 8, 7] and seqs(queue, 9) == [1, 2, 3, 4, 5, 6]


def test_a_stack_and_a_queue_at_once_lose_nothing(journal: Journal) -> None:
    queue = journal.queue("jobs")
    chance = random.Random(3)
    left: list[int] = []
    for step in range(300):
        if chance.random() < 0.5:
            left.append(queue.push(step).seq)
        elif left:
            newest = chance.random() < 0.5
            delivery = queue.take(newest=newest)
            assert delivery is not None and delivery.seq == left.pop(-1 if newest else 0)
            if chance.random() < 0.3:
                delivery.release()
                left.append(delivery.seq)
                left.sort()
            else:
                delivery.ack()
        assert len(queue) == len(left)
    assert [event.seq for event in queue] == left


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

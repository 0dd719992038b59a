"""Looking into a queue, and repairing it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from journals import on

import penstock
from penstock import Draft, Journal, ManualClock, Queue
from penstock.core.journal import blocks, keys
from penstock.core.journal.writer import Writer
from penstock.core.queue.operations import repair
from penstock.core.queue.state import blocks as state_blocks
from penstock.errors import ConfigError, PoisonMessage, QueueFull, StaleDelivery, UnknownQueue

Reopen = Callable[[Journal], Journal]


@pytest.fixture
def queue(journal: Journal) -> Queue:
    return journal.queue("jobs")


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_looking_changes_nothing(queue: Queue) -> None:
    queue.push_many(["a", "b", "c"])
    held = queue.take()
    for _ in range(2):
        assert [event.payload for event in queue.peek(5)] == ["b", "c"] and queue.peek(0) == []
        assert queue.peek()[0].seq == 2
        assert queue.get(1).payload == "a" and queue.get(3).payload == "c"  # type: ignore[union-attr]
        assert queue.get(0) is None and queue.get(4) is None
        assert [event.payload for event in queue] == ["a", "b", "c"] and len(queue) == 3
    assert held is not None
    held.ack()
    assert queue.get(1) is None and [event.seq for event in queue] == [2, 3]
    for bad in (-1, "x"):
        with pytest.raises(ConfigError):
            queue.get(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        queue.peek(-1)


def test_an_empty_queue_is_still_a_queue(queue: Queue) -> None:
    assert bool(queue) and len(queue) == 0 and list(queue) == [] and queue.peek(3) == [] and queue.pending() == []
    stats = queue.stats()
    assert (stats.ready, stats.in_flight, stats.delayed, stats.failed, stats.oldest_age) == (0, 0, 0, 0, None)
    assert stats.groups == ("default",)


def test_stats_say_how_old_the_oldest_ready_message_is(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("ranked", priority=True)
    queue.push("old")
    clock.advance(10)
    queue.push("young", priority=1)
    clock.advance(5)
    assert queue.stats().oldest_age == 15
    queue.take_many(1)
    assert queue.stats().oldest_age == 15
    held = queue.take()
    assert queue.stats().oldest_age is None
    assert held is not None
    held.nack()
    assert queue.stats().oldest_age == 15


def test_pending_deliveries_say_who_has_what_since_when(queue: Queue, clock: ManualClock) -> None:
    queue.push("a", key="k")
    queue.push("b")
    queue.take(consumer="w1", lease=10)
    clock.advance(3)
    delivery = queue.take(consumer="w2", group="g")
    assert delivery is not None
    one, two = queue.pending()
    assert (one.seq, one.group, one.consumer, one.attempt, one.key) == (1, "default", "w1", 1, "k")
    assert one.deadline - one.delivered_at == timedelta(seconds=10)
    assert two.delivered_at - one.delivered_at == timedelta(seconds=3) and two.token == delivery.token
    assert [pending.seq for pending in queue.pending("g")] == [2] and queue.pending("nobody") == []


def test_consumers_are_seen_as_long_as_they_take(queue: Queue, clock: ManualClock, reopen: Reopen) -> None:
    queue.take(consumer="w1")
    queue.take(consumer="w2", group="mail")
    clock.advance(20)
    queue.take(consumer="w1")
    clock.advance(20)
    queue = reopen(queue.journal).queue("jobs")
    assert {one.name: (one.group, one.state) for one in queue.consumers()} == {
        "w1": ("default", "active"),
        "w2": ("mail", "stale"),
    }
    clock.advance(31)
    assert {one.state for one in queue.consumers()} == {"stale", "gone"}


def test_a_consumer_that_extends_its_lease_is_there_and_keeps_its_start(
    queue: Queue, clock: ManualClock, reopen: Reopen
) -> None:
    queue.push_many(range(12))
    began = clock.now_ms()
    held = queue.take_many(11, consumer="w1", lease=50)
    queue.take(consumer="w2")
    for _ in range(3):
        clock.advance(40)
        for delivery in held:
            delivery.extend(50)
    w1, w2 = queue.consumers()
    assert (w1.name, w1.state, w1.host, w1.in_hand, w1.holds) == (
        "w1", "active", os.uname().nodename, 11, list(range(1, 11))
    )  # fmt: skip
    assert w1.since is not None and w1.since.timestamp() * 1000 == began and w1.last_seen > w1.since
    assert (w2.name, w2.state, w2.in_hand) == ("w2", "gone", 0)
    queue = reopen(queue.journal).queue("jobs")
    clock.advance(5)
    queue.delivery(held[0].token).extend(50)  # of a process that did not take it
    again, _ = queue.consumers()
    assert (again.since, again.host) == (w1.since, w1.host) and again.last_seen > w1.last_seen


# ── move, purge ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_moved_messages_go_to_the_end_of_another_queue(queue: Queue, journal: Journal, clock: ManualClock) -> None:
    other = journal.queue("other")
    other.push("there already")
    queue.push_many(["held", Draft("job", "plain", headers={"h": "1"}), Draft("m", "keyed", key="k")])
    queue.push("delayed", delay=50)
    queue.push("tried")
    held = queue.take()
    tried = queue.take_many(9)[-1]
    queue.ack_many([])
    for delivery in queue.claim(min_idle=0, limit=9):
        delivery.release() if delivery.payload != "held" else None
    assert held is not None and tried.payload == "tried"
    assert queue.move(other, where=lambda event: event.payload != "tried") == 3
    assert [event.payload for event in other] == ["there already", "plain", "keyed", "delayed"]
    assert other.stats().delayed == 1
    clock.advance(50)
    moved = other.take_many(9)
    assert [(one.attempt, one.kind, one.key) for one in moved[1:]] == [
        (1, "job", None),
        (1, "m", "k"),
        (1, "message", None),
    ]
    assert dict(moved[1].headers) == {"h": "1"}
    assert [event.payload for event in queue] == ["held", "tried"]
    assert queue.move(other, limit=0) == 0 and queue.move(other, limit=5) == 2, "the lease of the first has ended"


def test_a_move_is_all_or_nothing(queue: Queue, journal: Journal) -> None:
    small = journal.queue("small", max_size=2)
    queue.push_many(range(3))
    with pytest.raises(QueueFull):
        queue.move(small)
    assert len(queue) == 3 and len(small) == 0 and queue.move(small, limit=2) == 2
    with pytest.raises(ConfigError, match="itself"):
        queue.move(queue)
    ranked = journal.queue("ranked", priority=True)
    queue.push("k", key="k")
    with pytest.raises(ConfigError, match="ordering keys"):
        queue.move(ranked)
    assert len(queue) == 2 and len(ranked) == 0
    gone = journal.queue("gone")
    gone.drop()
    with pytest.raises(UnknownQueue):
        queue.move(small, limit=0) or queue.redrive(to=gone)


def test_a_move_of_many_goes_in_steps_and_is_refused_whole(
    queue: Queue, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "MOVE_STEP", 2)
    small, ranked = journal.queue("small", max_size=6), journal.queue("ranked", priority=True)
    queue.push_many([*range(6), Draft("m", 6, key="k")])
    with pytest.raises(QueueFull, match="7 more do not fit"):
        queue.move(small)
    with pytest.raises(ConfigError, match="ordering keys"):
        queue.move(ranked)
    assert len(queue) == 7 and len(small) == len(ranked) == 0
    run, commits = Writer.run, 0

    def others_push(writer: Writer, request: Any) -> Any:
        nonlocal commits
        answer, commits = run(writer, request), commits + 1
        if commits == 2:  # the first made sure of the room
            small.push_many(["theirs"] * 3)
        return answer

    with monkeypatch.context() as patched, pytest.raises(QueueFull, match="2 messages went before it was full"):
        patched.setattr(Writer, "run", others_push)
        queue.move(small, limit=6)
    assert [event.payload for event in small] == [0, 1, "theirs", "theirs", "theirs"]
    assert [event.payload for event in queue] == [2, 3, 4, 5, 6]
    small.purge()
    assert queue.move(small) == 5 and [event.payload for event in small] == [2, 3, 4, 5, 6] and len(queue) == 0


def test_a_redrive_of_many_goes_in_steps(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "MOVE_STEP", 2)
    for name, dead_letter in (("kept", None), ("sent", "letters")):
        queue = journal.queue(name, max_attempts=1, dead_letter=dead_letter, max_size=5)
        queue.push_many(range(5))
        for delivery in queue.take_many(5):
            delivery.nack()
        queue.push("new")
        with pytest.raises(QueueFull, match="5 more do not fit"):
            queue.redrive()
        assert queue.redrive(dry_run=True) == 5 and len(queue) == 1
        assert queue.redrive(limit=3) == 3 and queue.redrive(dry_run=True) == 2
        queue.configure(max_size=None)
        assert queue.redrive() == 2 and queue.redrive() == 0 and len(queue) == 6


def test_messages_can_be_discarded_by_position(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    queue.push_many(range(3))
    queue.push_many([Draft("m", n, key="k") for n in range(3)])
    queue.push("later", delay=100)
    queue.take().nack()  # type: ignore[union-attr]
    held = queue.take()
    assert queue.discard([1, 2, 3, 3, 4, 7, 8, 0]) == 4, "1 failed, 2 in flight, 3 and 4 ready, 7 delayed"
    assert held is not None
    held.ack()
    assert [event.seq for event in queue] == [5, 6] and list(queue.failed()) == []
    clock.advance(200)
    assert [delivery.seq for delivery in queue.take_many(9)] == [5] and queue.discard([6]) == 1
    assert queue.discard([]) == 0
    for bad in (["x"], [-1]):
        with pytest.raises(ConfigError):
            queue.discard(bad)  # type: ignore[arg-type]


@on("memory", "sqlite")
def test_a_message_that_stays_does_not_keep_what_is_settled_after_it(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    queue.push("bad")
    queue.take().nack()  # type: ignore[union-attr]
    for start in range(30):
        queue.push_many([f"{start}-{n}" for n in range(1000)])
    held = queue.take_many(30_000)
    assert queue.ack_many(held[:20_000] + held[20_001:]) == 29_999
    before = journal._engine.size()
    journal.maintain()
    for _ in range(20):  # the thread that does this in passing may be at it: it takes turns
        if len(journal.topic("jobs")) < 3000:
            break
        journal.maintain()
    assert len(journal.topic("jobs")) < 3000 and journal._engine.size() <= before
    queue = reopen(journal).queue("jobs")
    assert [event.payload for event in queue] == ["bad", "20-0"]
    assert queue.push("next").seq == 30_002 and queue.journal.topic("jobs").latest == 30_002
    assert queue.redrive() == 1 and [delivery.payload for delivery in queue.take_many(5)] == ["bad", "next"]


@on("memory", "sqlite")
def test_a_cursor_on_the_topic_keeps_what_is_settled(journal: Journal) -> None:
    queue = journal.queue("jobs", max_attempts=1)
    queue.push("bad")
    queue.take().nack()  # type: ignore[union-attr]
    journal.topic("jobs").commit("reader", 1)
    for _ in range(30):
        queue.push_many(range(1000))
    queue.ack_many(queue.take_many(30_000))
    journal.maintain()
    assert len(journal.topic("jobs")) == 30_001
    journal.topic("jobs").commit("reader", 30_001)
    journal.maintain()
    assert len(journal.topic("jobs")) < 3000


# ── poison ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _damage(journal: Journal, topic: str, first: int, change: Callable[[bytes], bytes]) -> None:
    """Changes a stored block behind the journal's back."""
    engine = journal._engine
    with engine.read() as snap:
        number = int.from_bytes(snap.get(keys.topic_key(topic))[1:2])  # type: ignore[index]
        key = keys.block_key(number, first)
        value = snap.get(key)
    assert value is not None
    with engine.write() as tx:
        tx.put(key, change(value))


def _with_payload(raw: bytes) -> Callable[[bytes], bytes]:
    from penstock.core.journal.blocks import encode_block, read_block

    def change(value: bytes) -> bytes:
        wire = read_block(value, "jobs").wire
        wire.payload, wire.lengths = memoryview(raw), len(raw)
        return encode_block(wire)

    return change


def test_a_message_that_does_not_decode_is_delivered_as_poison_and_blocks_nobody(
    journal: Journal, reopen: Reopen
) -> None:
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=2)
    for payload in ("good", "bad", "fine"):
        queue.push({"p": payload})
    _damage(journal, "jobs", 2, _with_payload(b'{"p": \xff'))
    queue = reopen(journal).queue("jobs")
    deliveries = queue.take_many(5)
    assert [delivery.seq for delivery in deliveries] == [1, 2, 3]
    assert deliveries[0].poison is None and deliveries[2].payload == {"p": "fine"}
    with pytest.raises(PoisonMessage) as caught:
        deliveries[1].payload  # noqa: B018
    assert caught.value.raw == b'{"p": \xff'
    assert deliveries[1].poison is not None and deliveries[1].poison.raw == b'{"p": \xff'
    with pytest.raises(PoisonMessage), deliveries[1]:
        deliveries[1].payload  # noqa: B018
    with pytest.raises(PoisonMessage), queue.take() as again:  # type: ignore[union-attr]
        again.payload  # noqa: B018
    assert queue.take() is None
    (letter,) = queue.journal.queue("grave")
    assert letter.raw == b'{"p": \xff' and letter.headers["dead-error"].startswith("PoisonMessage")


def test_a_damaged_block_keeps_no_message_behind_it_past_its_ttl(
    journal: Journal, reopen: Reopen, clock: ManualClock
) -> None:
    queue = journal.queue("jobs", ttl=10)
    queue.push_many([1, 2, 3])
    queue.push("old")
    clock.advance(11)
    queue.push("new")
    _damage(journal, "jobs", 1, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    queue = reopen(journal).queue("jobs")
    assert [delivery.payload for delivery in queue.take_many(9)] == ["new"]


def test_a_damaged_block_is_delivered_as_poison_and_blocks_nobody(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs", dead_letter="grave", max_attempts=1)
    queue.push("before")
    queue.push_many([1, 2, 3])
    queue.push("after")
    _damage(journal, "jobs", 2, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    queue = reopen(journal).queue("jobs")
    deliveries = queue.take_many(9)
    assert [delivery.seq for delivery in deliveries] == [1, 2, 3, 4, 5]
    assert [delivery.poison is not None for delivery in deliveries] == [False, True, True, True, False]
    assert len(deliveries[1].poison.raw) > 10  # type: ignore[union-attr]
    assert [event.seq for event in queue] == [1, 2, 3, 4, 5]
    for delivery in deliveries[1:4]:
        delivery.nack(error="unreadable")
    letters = list(queue.journal.queue("grave"))
    assert [event.headers["dead-seq"] for event in letters] == ["2", "3", "4"]
    assert {event.kind for event in letters} == {"damaged"} and all(type(event.payload) is bytes for event in letters)
    assert queue.ack_many([deliveries[0], deliveries[4]]) == 2 and len(queue) == 0


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
class Counting:
    """A snapshot that counts what is read from it."""

    def __init__(self, snap: object) -> None:
        self.snap = snap
        self.rows = 0

    def get(self, key: bytes) -> bytes | None:
        self.rows += 1
        return self.snap.get(key)  # type: ignore[attr-defined,no-any-return]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False):  # type: ignore[no-untyped-def]
        for row in self.snap.scan(start, stop, reverse=reverse):  # type: ignore[attr-defined]
            self.rows += 1
            yield row

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *exc: object) -> None:
        self.snap.close()  # type: ignore[attr-defined]


@on("memory", "sqlite")
def test_stats_and_length_cost_the_same_whatever_the_queue_holds(
    queue: Queue, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = journal._engine.read
    made: list[Counting] = []

    def counting() -> object:
        snap = read()
        if threading.current_thread() is not threading.main_thread():
            return snap  # the housekeeper's own
        made.append(Counting(snap))
        return made[-1]

    def cost() -> int:
        made.clear()
        with monkeypatch.context() as patch:
            patch.setattr(journal._engine, "read", counting)
            queue.stats()
            len(queue)
        return sum(one.rows for one in made)

    queue.push("first", delay=1000)
    queue.take()
    little = cost()
    for _ in range(40):
        queue.push_many(range(100))
        queue.push_many(range(25), delay=1000)
        queue.ack_many(queue.take_many(50))
        queue.take_many(10)
    assert len(queue) > 2000 and cost() <= little + 10


@on("memory", "sqlite")
def test_opening_a_queue_does_not_load_its_backlog(queue: Queue, journal: Journal, reopen: Reopen) -> None:
    for _ in range(30):
        queue.push_many([{"n": n} for n in range(1000)])
    journal = reopen(journal)
    queue = journal.queue("jobs")
    delivery = queue.take()
    assert delivery is not None and delivery.seq == 1
    state = queue._backend.cache._states["jobs"]
    assert len(state.blocks._kept) < 31
    assert isinstance(queue, penstock.Queue)


@on("memory")
def test_what_is_kept_of_a_backlog_is_bounded_in_bytes(
    queue: Queue, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_blocks, "KEPT_BYTES", 500_000)
    for _ in range(20):
        queue.push_many([b"x" * 100_000] * 2)
    cache = queue._backend.cache._states["jobs"].blocks
    for _ in range(12):
        assert queue.ack_many(queue.take_many(3)) == 3
        journal.maintain()  # removes what is settled: what was kept of it goes with the next take
        kept = sum(len(block.payload) + 64 * block.count for block in cache._kept)
        assert 0 < kept == cache._bytes <= 500_000
    assert len(queue) == 4


def test_sending_a_few_dead_letters_back_decodes_only_these(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not, for each of them, every key and correlation of the block that it lies in."""
    queue = journal.queue("jobs", max_attempts=1, dead_letter="dead")
    queue.push_many(range(1000))
    taken = queue.take_many(1000)
    with journal.transaction() as tx:
        for delivery in taken:
            tx.nack(delivery, dead=True)
    decoded: list[int] = []
    original = blocks.texts_of
    monkeypatch.setattr(blocks, "texts_of", lambda one: (decoded.append(one.count), original(one))[1])
    assert queue.redrive(limit=10) == 10
    assert sum(decoded) <= 100
    monkeypatch.undo()
    assert queue.redrive() == 990
    assert sorted(delivery.payload for delivery in queue.take_many(1000)) == list(range(1000))


@pytest.mark.parametrize("dead_letter", ["dead", None])
def test_a_message_that_cannot_go_back_keeps_no_other_from_going(journal: Journal, dead_letter: str | None) -> None:
    queue = journal.queue("jobs", dead_letter=dead_letter, max_attempts=1)
    target = None if dead_letter else journal.queue("ranked", priority=True)
    for payload in ("a", "b", "c"):
        queue.push(payload, key="k" if payload == "b" else None)
        queue.take().nack()  # type: ignore[union-attr]
    if dead_letter:
        queue.configure(priority=True)
    for dry_run in (True, False):
        found = queue.redrive(to=target, dry_run=dry_run)
        (left,) = found.left
        assert found == 2 and left.count == 1 and "priorities" in left.reason
    assert [one.payload for one in (target or queue).take_many(5)] == ["a", "c"]
    other = journal.queue("other")
    assert queue.redrive(to=other) == 1 and other.take().payload == "b"  # type: ignore[union-attr]


def test_a_letter_s_headers_may_say_anything(journal: Journal) -> None:
    dead, queue = journal.queue("dead"), journal.queue("jobs", priority=True, dead_letter="dead")
    odd = {"dead-queue": "jobs", "dead-priority": "9999999999", "dead-max-attempts": "-5"}
    dead.push_many([1, 2], headers=odd)
    assert queue.redrive() == 2 and [one.payload for one in queue.take_many(5)] == [1, 2]


def test_a_claim_takes_over_what_is_idle(queue: Queue, clock: ManualClock) -> None:
    queue.push_many(range(4))
    old = queue.take_many(3, consumer="dead", lease=1000)
    clock.advance(10)
    old[1].extend(1000)
    clock.advance(10)
    assert queue.claim(min_idle=21) == [] and queue.claim(min_idle=1, limit=0) == []
    first, second = queue.claim(min_idle=15, consumer="alive", limit=10)
    assert [(one.seq, one.attempt, one.consumer) for one in (first, second)] == [(1, 2, "alive"), (3, 2, "alive")]
    assert first.token != old[0].token and first.deadline - old[1].deadline < timedelta()
    with pytest.raises(StaleDelivery):
        old[0].ack()
    old[1].ack()
    first.ack()
    assert sorted(event.seq for event in queue) == [3, 4]

"""Fair share: lanes take turns, whatever each of them has waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import pytest
from journals import DEADLINE, Place, eventually, on

from penstock import Draft, Event, Journal, ManualClock, Queue
from penstock.core.journal.writer import WriteRequest
from penstock.core.queue.state.keys import flow_rows
from penstock.errors import ConfigError

Start = Callable[..., threading.Thread]
Reopen = Callable[[Journal], Journal]


def payloads(queue: Queue, limit: int = 100, **options: str) -> list[object]:
    return [delivery.payload for delivery in queue.take_many(limit, **options)]


def push(queue: Queue, tenant: str, count: int, **options: str) -> None:
    queue.push_many([f"{tenant}{number}" for number in range(count)], headers={"tenant": tenant}, **options)


def test_a_tenant_that_comes_late_is_next(journal: Journal, reopen: Reopen) -> None:
    queue = journal.queue("jobs", fair_by="tenant")
    push(queue, "big", 3000)
    assert len(payloads(queue, 500)) == 500
    push(queue, "late", 2)
    assert payloads(queue, 2) == ["late0", "big500"]
    queue = reopen(journal).queue("jobs")
    assert payloads(queue, 2) == ["late1", "big501"]
    assert queue.stats().ready == 3002 - 504


def test_a_lane_does_not_save_up_turns_while_it_has_nothing(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant")
    push(queue, "a", 100)
    assert len(payloads(queue, 90)) == 90
    push(queue, "b", 100)
    found = payloads(queue, 20)
    assert sum(str(one).startswith("a") for one in found) == 10


def test_lanes_by_key_and_by_the_beginning_of_the_key(journal: Journal) -> None:
    whole = journal.queue("whole", fair_by="key", max_in_flight_per_key=10)
    part = journal.queue("part", fair_by="key:/")
    for queue in (whole, part):
        for key in ("x/1", "x/2", "x/3", "y/1"):
            queue.push(key, key=key)
    assert payloads(whole, 2) == ["x/1", "x/2"]
    assert payloads(part, 2) == ["x/1", "y/1"]
    assert payloads(part) == ["x/2", "x/3"]


def test_every_group_has_turns_of_its_own(journal: Journal) -> None:
    queue = journal.queue("news", mode="fanout", fair_by="tenant")
    queue.add_group("one")
    push(queue, "a", 3)
    push(queue, "b", 1)
    assert payloads(queue, 2, group="one") == ["a0", "b0"]
    assert payloads(queue, group="late") == ["a0", "b0", "a1", "a2"]
    assert payloads(queue, group="one") == ["a1", "a2"]


def test_messages_from_before_the_policy_and_from_the_topic_get_their_turns(journal: Journal) -> None:
    queue = journal.queue("jobs")
    push(queue, "a", 3)
    push(queue, "b", 1)
    assert queue.take().payload == "a0"
    queue.configure(fair_by="tenant")
    journal.topic("jobs").append("message", "c0", headers={"tenant": "c"})
    assert payloads(queue, 3) == ["a1", "b0", "c0"]
    queue.configure(fair_by=None)
    push(queue, "d", 1)
    assert payloads(queue) == ["a2", "d0"]
    assert len(queue) == 6


def test_moved_messages_and_letters_sent_back_have_their_turns(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant", max_attempts=1, dead_letter="dead")
    other = journal.queue("other")
    push(queue, "a", 1)
    queue.take().nack()
    push(queue, "b", 2)
    push(other, "c", 1)
    assert queue.redrive() == 1
    assert other.move(queue) == 1
    assert payloads(queue) == ["b0", "a0", "c0", "b1"]


def test_what_goes_unhandled_leaves_its_turn_to_the_next_of_its_lane(journal: Journal, clock: ManualClock) -> None:
    """However many of a lane's messages were discarded, moved or too old: it waits no longer than for its share."""
    queue, other = journal.queue("jobs", fair_by="tenant", ttl=60), journal.queue("other")

    def is_of(tenant: str, first: int, last: int) -> Callable[[Event], bool]:
        return lambda event: event.payload in {f"{tenant}{number}" for number in range(first, last)}

    push(queue, "old", 20)
    clock.advance(59)
    queue.push("old20", headers={"tenant": "old"})
    push(queue, "a", 20)
    push(queue, "b", 20)
    push(queue, "c", 20)
    assert queue.move(other, where=is_of("a", 0, 18)) == 18
    assert queue.discard([event.seq for event in queue if is_of("b", 1, 19)(event)]) == 18
    clock.advance(2)
    expected = ["old20", "a18", "b0", "c0", "a19", "b19", "c1", "c2", "c3"]
    assert [event.payload for event in queue.peek(9)] == expected
    assert payloads(queue, 6) == expected[:6]
    push(queue, "b", 1)
    assert payloads(queue, 5) == ["c1", "c2", "b0", "c3", "c4"]  # b had two turns; this is its third


def test_a_letter_sent_back_into_lanes_is_one_group_s(journal: Journal) -> None:
    """Where lanes take turns a message is sorted in for every group with its push."""
    queue = journal.queue("news", mode="fanout", fair_by="tenant", max_attempts=1, dead_letter="dead")
    queue.add_group("one")
    queue.add_group("two")
    push(queue, "a", 1, key="k")
    queue.take(group="one").nack()
    queue.take(group="two").ack()
    assert queue.redrive() == 1
    assert (queue.stats("one").ready, queue.stats("two").ready, len(queue)) == (1, 0, 1)
    assert queue.take(group="two") is None
    queue.take(group="one").ack()
    push(queue, "b", 1, key="k")
    assert payloads(queue, group="two") == payloads(queue, group="one") == ["b0"]


@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_a_delay_moves_into_a_queue_with_lanes(journal: Journal, clock: ManualClock, mode: str) -> None:
    queue, other = journal.queue("jobs", fair_by="tenant", mode=mode), journal.queue("other")
    if mode == "fanout":
        queue.add_group("default")
    push(other, "a", 1)
    other.push("late", delay=10, headers={"tenant": "a"}, max_attempts=7)
    push(other, "b", 1)
    assert other.move(queue) == 3
    assert (queue.stats().ready, queue.stats().delayed) == (2, 1)
    assert payloads(queue) == ["a0", "b0"]
    clock.advance(11)
    assert payloads(queue) == ["late"]
    assert (queue.stats().ready, queue.stats().delayed, queue.stats().in_flight) == (0, 0, 3)


@pytest.mark.parametrize("mode", ["work", "fanout"])
def test_a_purge_begins_the_turns_anew(journal: Journal, mode: Literal["work", "fanout"]) -> None:
    queue = journal.queue("jobs", fair_by="tenant", mode=mode)
    push(queue, "a", 3)
    push(queue, "b", 1)
    assert payloads(queue, 2) == ["a0", "b0"]
    assert payloads(queue) == ["a1", "a2"]
    queue.purge()
    push(queue, "a", 2)
    push(queue, "b", 1)
    assert payloads(queue) == ["a0", "b0", "a1"]


def test_the_last_group_leaves_its_lanes_to_the_next(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant", mode="fanout")
    push(queue, "a", 3)
    push(queue, "b", 1)
    queue.add_group("first")
    queue.remove_group("first")
    assert payloads(queue, group="next") == ["a0", "b0", "a1", "a2"]


def test_a_batch_of_many_lanes_dedup_keys_and_rates(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", fair_by="tenant", rate="2/s")
    drafts = [Draft("m", number, headers={"tenant": "ab"[number % 2]}, dedup=f"d{number}") for number in range(4)]
    queue.push_many(drafts)
    assert all(receipt.duplicate for receipt in queue.push_many(drafts))
    assert payloads(queue) == [0, 1]
    clock.advance(1)
    assert payloads(queue) == [2, 3]
    assert queue.take() is None


def test_messages_past_their_ttl_have_no_turn_any_more(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", fair_by="tenant", ttl=10)
    push(queue, "a", 3)
    clock.advance(11)
    push(queue, "b", 1)
    assert len(queue) == 1
    assert payloads(queue) == ["b0"]


def test_lanes_without_messages_leave_nothing_behind(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant")

    def rows() -> int:
        with journal._engine.read() as snap:
            return sum(1 for _ in snap.scan(*flow_rows(queue._backend.registry.record(queue.name).topic, 0, b"t")))

    for number in range(20):
        push(queue, f"t{number}", 1)
    push(queue, "t0", 5)
    queue.ack_many(queue.take_many(24))
    assert rows() == 1
    assert queue.discard([event.seq for event in queue]) == 1
    assert rows() == 0


def test_a_lane_that_has_one_message_at_a_time_has_its_share_and_no_more(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant")
    push(queue, "big", 20)
    found: list[object] = []
    for number in range(10):
        queue.push(f"once{number}", headers={"tenant": f"once{number}"})
        queue.push(f"small{number}", headers={"tenant": "small"})
        found += payloads(queue, 3)
    for name in ("big", "once", "small"):
        assert sum(str(one).startswith(name) for one in found) == 10


def test_long_and_odd_names_of_lanes(journal: Journal) -> None:
    queue = journal.queue("jobs", fair_by="tenant")
    push(queue, "x" * 5000, 1)
    push(queue, "\x00ü€", 1)
    assert len(payloads(queue)) == 2


@on("sqlite")
def test_two_processes_share_the_turns(place: Place, clock: ManualClock) -> None:
    first = place.open(clock=clock, durability="process").queue("jobs", fair_by="tenant")
    second = place.open(clock=clock, durability="process").queue("jobs")
    push(first, "a", 3)
    push(second, "b", 1)
    assert payloads(first, 1) + payloads(second, 1) + payloads(first, 1) == ["a0", "b0", "a1"]


@pytest.mark.parametrize("policy", [{"fair_by": "tenant"}, {"priority": True}])
def test_what_shares_a_commit_with_a_take_is_delivered_by_the_next_one(
    journal: Journal, in_threads: Start, policy: dict[str, object]
) -> None:
    """A push and a take that wait for the writer together are committed together."""
    queue = journal.queue("jobs", **policy)
    begun, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go.wait(DEADLINE)

    holder = in_threads(lambda: journal._core.writer.run(WriteRequest(hold)))
    assert begun.wait(DEADLINE)
    ticket = queue.submit("x", priority=1 if "priority" in policy else 0)
    got: list[object] = []
    taker = in_threads(lambda: got.append(queue.take()))
    eventually(lambda: len(journal._core.writer._pending) == 2, "both wait")
    go.set()
    holder.join(DEADLINE)
    taker.join(DEADLINE)
    ticket.result(DEADLINE)
    left = [delivery.payload for delivery in (*got, queue.take()) if delivery is not None]
    assert left == ["x"]


def test_what_contradicts_fair_share_is_refused(journal: Journal) -> None:
    for policy in ({"fair_by": ""}, {"fair_by": 5}, {"fair_by": "key:"}, {"fair_by": "tenant", "priority": True}):
        with pytest.raises(ConfigError, match="fair_by"):
            journal.queue("jobs", **policy)
    with pytest.raises(ConfigError, match="newest"):
        journal.queue("jobs", fair_by="tenant").take(newest=True)

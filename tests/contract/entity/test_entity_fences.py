"""Fences: hidden until commit, never written when cancelled; with the properties of the reference's eleven tests."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, only, payloads, seqs

import penstock
from penstock import Draft, Journal, ManualClock, Projection, Topic
from penstock import on as handles
from penstock.errors import Backpressure, ConfigError, Conflict, Denied, FenceActive, FenceCancelled, ReadOnly

Reopen = Callable[[Journal], Journal]


class Count(Projection):
    events: int = 0

    @handles("event", "root", "reaction", "later")
    def count(self, event: Any) -> None:
        self.events += 1


# ── the reference's eleven ───────────────────────────────────────────────────────────────────────────────────────────
def test_control_plane_smoke(journal: Journal, topic: Topic) -> None:
    pressure = journal.pressure()
    assert pressure.capacity > 0 and pressure.headroom <= pressure.capacity and pressure.utilization >= 0
    assert pressure.idle
    first = topic.append("root", {"n": 1}, key="player")
    ticket = topic.submit("reaction", {"n": 2}, key="player", cause=first)
    assert ticket.result(DEADLINE).seq == 2
    batch = topic.submit_many([Draft("event", {"n": 3}, key="player"), Draft("event", {"n": 4}, key="player", cause=0)])
    assert [one.seq for one in batch.result(DEADLINE)] == [3, 4] and len({one.id for one in batch.result()}) == 2
    outbox = journal.outbox()
    outbox.stage(topic, "event", {"n": 5}, key="player")
    assert len(outbox) == 1
    assert len(outbox.submit().result(DEADLINE)) == 1 and len(outbox) == 0
    reaction = topic.get(2)
    assert reaction is not None and reaction.causation_id == first.id and reaction.correlation_id == first.id
    generation = topic.position_of("player")
    assert generation == 5 and topic.project_if_changed(Count, "player", generation) is None
    topic.append("event", key="player")
    changed = topic.project_if_changed(Count, "player", generation)
    assert changed is not None and changed[0] > generation and changed[1] == Count(6)
    assert seqs(topic.read(kind="event")) == [3, 4, 5, 6]


def test_ready_tickets_show_themselves_without_waiting(topic: Topic) -> None:
    single, reaction = topic.submit("root"), topic.submit("reaction", cause="unknown")
    batch = topic.submit_many([Draft("event"), Draft("event")])
    for ticket in (single, reaction, batch):
        eventually(ticket.done)
    assert single.result(0).id and reaction.result(0).id
    assert len(batch.result(0)) == 2


@on("sqlite")
@pytest.mark.parametrize("many", [False, True])
def test_a_writer_under_pressure_asks_to_come_back(
    place: Place, many: bool, in_threads: Callable[..., threading.Thread]
) -> None:
    journal = place.open(writer_capacity=8, pressure=0.5)
    topic = journal.topic("orders")
    refused = threading.Event()

    def flood() -> None:
        while not refused.is_set():
            try:
                if many:
                    topic.try_submit_many([Draft("event"), Draft("event")])
                else:
                    topic.try_submit("event")
            except Backpressure as pressure:
                assert pressure.retry_after > 0
                refused.set()

    for thread in [in_threads(flood) for _ in range(4)]:
        thread.join(DEADLINE)
    assert refused.is_set()
    assert topic.try_submit("after") if journal.pressure().idle else True


def test_dropping_a_fence_cancels_it(journal: Journal, topic: Topic) -> None:
    fence = journal.fence()
    ticket = fence.submit(topic, "root")
    del fence
    gc.collect()
    assert isinstance(ticket.exception(DEADLINE), FenceCancelled)
    assert topic.append("later").seq == 1


def test_a_committed_fenced_reaction_keeps_its_causes(journal: Journal, topic: Topic) -> None:
    root = topic.append("root", key="player")
    fence = journal.fence()
    ticket = fence.submit(topic, "reaction", key="player", cause=root)
    assert seqs(topic.read(key="player")) == [1], "the earlier event stays visible"
    (receipt,) = fence.commit()
    assert ticket.result(0) == receipt
    stored = topic.get(receipt.seq)
    assert stored is not None and stored.id == receipt.id
    assert (stored.causation_id, stored.correlation_id) == (root.id, root.id)


def test_a_lossy_subscriber_may_miss_what_the_projection_counts(journal: Journal, topic: Topic) -> None:
    subscription = topic.subscribe("latest", buffer=2, on_lag="drop")
    subscription.next(0)
    topic.append_many([Draft("event", number, key="player") for number in range(10)])
    seen = []
    while (event := subscription.next(0)) is not None:
        seen.append(event.payload)
    assert seen and len(seen) + subscription.missed == 10
    assert topic.project(Count, "player") == Count(10)


# ── who may append meanwhile ─────────────────────────────────────────────────────────────────────────────────────────
def test_nobody_else_appends_while_an_exclusive_fence_is_open(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    fence = journal.fence()
    fence.submit("other", "event")
    outbox = journal.outbox()
    outbox.stage(topic, "event")
    attempts: list[Callable[[], object]] = [
        lambda: topic.append("event"),
        lambda: topic.append_many([Draft("event")]),
        lambda: topic.submit("event"),
        lambda: topic.try_submit_many([Draft("event")]),
        lambda: journal.topic("other").append("event"),
        lambda: journal.queue("work").push(1),
        outbox.flush,
        outbox.submit,
        journal.fence,
    ]
    for attempt in attempts:
        with pytest.raises(FenceActive):
            attempt()

    def elsewhere() -> None:
        with pytest.raises(FenceActive), journal.transaction() as tx:
            tx.append(topic, "event")

    in_threads(elsewhere).join()
    fence.commit()
    assert topic.append("event").seq == 1 and len(journal.topic("other")) == 1
    assert outbox.flush()


def test_cursors_and_compaction_are_no_appends(journal: Journal, topic: Topic) -> None:
    topic.append_many([Draft("event")] * 5)
    with journal.fence():
        topic.commit("reader", 3)
        topic.compact(2)
        with journal.transaction() as tx:
            tx.commit(topic, "reader", 4)
    assert topic.cursor("reader") == 4


def test_a_fence_that_is_not_exclusive_lets_others_write(journal: Journal, topic: Topic) -> None:
    one, two = journal.fence(exclusive=False), journal.fence(exclusive=False)
    hidden = one.submit(topic, "event", "one")
    topic.append("event", "plain")
    two.submit(topic, "event", "two")
    two.commit()
    assert payloads(topic.read()) == ["plain", "two"] and not hidden.done()
    with journal.fence():
        with pytest.raises(FenceActive):
            one.commit()
        assert one.state == "open"
    one.commit()
    assert payloads(topic.read()) == ["plain", "two", "one"]


@only(second_open=True)
def test_hidden_also_to_subscribers_projections_and_other_journals(
    place: Place, journal: Journal, topic: Topic
) -> None:
    other = place.open()
    subscription = topic.subscribe()
    watch = topic.watch(Count, "k")
    fence = journal.fence()
    fence.submit(topic, "event", key="k")
    fence.submit("work", "event")
    assert subscription.next(0) is None and watch.next(0) is None and topic.project(Count, "k") is None
    assert other.topic("orders").latest == 0 and len(journal.queue("work")) == 0
    fence.commit()
    assert subscription.next(DEADLINE) is not None and watch.next(DEADLINE) == Count(1)
    assert other.topic("orders").latest == 1 and len(journal.queue("work")) == 1


# ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_block_commits_on_a_clean_exit_and_cancels_on_an_exception(journal: Journal, topic: Topic) -> None:
    with journal.fence() as fence:
        kept = fence.submit(topic, "event", 1)
    assert kept.result(0).seq == 1 and fence.state == "committed"
    with pytest.raises(KeyError), journal.fence() as fence:
        lost = fence.submit(topic, "event", 2)
        raise KeyError
    assert isinstance(lost.exception(0), FenceCancelled) and payloads(topic.read()) == [1]
    with journal.fence() as fence:
        fence.submit(topic, "event", 3)
        fence.cancel()
    assert payloads(topic.read()) == [1]


def test_a_fence_ends_once(journal: Journal, topic: Topic) -> None:
    fence = journal.fence()
    assert fence.commit() == []
    fence.cancel()
    assert fence.state == "committed"
    for attempt in (fence.commit, lambda: fence.submit(topic, "event")):
        with pytest.raises(ConfigError, match="committed"):
            attempt()
    fence = journal.fence()
    fence.cancel()
    fence.cancel()
    for attempt in (fence.commit, lambda: fence.submit(topic, "event"), fence.outbox().submit):
        with pytest.raises(FenceCancelled):
            attempt()


def test_a_conflict_cancels_the_fence_and_tells_every_ticket(journal: Journal, topic: Topic) -> None:
    topic.append("event", key="k")
    fence = journal.fence()
    one, two = fence.submit(topic, "event"), fence.submit(topic, "event", key="k", expect=0)
    with pytest.raises(Conflict):
        fence.commit()
    for ticket in (one, two):
        assert isinstance(ticket.exception(0), Conflict)
    assert len(topic) == 1 and fence.state == "cancelled"
    topic.append("event")


def test_a_bad_draft_is_refused_when_submitted_and_leaves_the_fence_open(journal: Journal, topic: Topic) -> None:
    with journal.fence() as fence:
        for wrong in ({"cause": 0}, {"expect": 0}, {"occurred_at": "now"}):
            with pytest.raises(ConfigError):
                fence.submit(topic, "event", **wrong)
        with pytest.raises(ConfigError):
            fence.submit(topic, "")
        fence.submit(topic, "event", 1)
        assert len(fence) == 1
    assert payloads(topic.read()) == [1]


def test_integer_causes_count_the_fences_own_events(journal: Journal) -> None:
    fence = journal.fence()
    fence.submit("a", "event")
    outbox = fence.outbox()
    outbox.stage("b", "event")
    outbox.stage("a", "event", cause=0)
    with pytest.raises(ConfigError, match="submit"):
        outbox.flush()
    outbox.submit()
    fence.submit("b", "event", cause=0)
    first, second, third, fourth = fence.commit()
    assert journal.topic("a").get(third.seq).causation_id == second.id  # type: ignore[union-attr]
    assert journal.topic("b").get(fourth.seq).causation_id == first.id  # type: ignore[union-attr]


def test_tickets_of_a_fence_can_be_awaited(journal: Journal, topic: Topic) -> None:
    async def main() -> int:
        fence = journal.fence()
        ticket = fence.submit(topic, "event")

        async def commit() -> None:
            await asyncio.sleep(0)
            await asyncio.to_thread(fence.commit)

        task = asyncio.create_task(commit())
        receipt = await ticket
        await task
        return receipt.seq

    assert asyncio.run(main()) == 1


@only(on_disk=True, reads_beside_writer=True)
def test_a_read_only_journal_has_nothing_to_fence(place: Place, journal: Journal) -> None:
    reader = place.open(read_only=True)
    with pytest.raises(ReadOnly):
        reader.fence()


def test_a_fence_dropped_in_another_thread_frees_the_journal(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    def drop() -> None:
        journal.fence().submit(topic, "event")

    in_threads(drop).join()
    gc.collect()

    def free() -> bool:
        try:
            topic.append("later")
        except FenceActive:
            return False
        return True

    eventually(free)
    assert [one.kind for one in topic.read()] == ["later"]


def test_reactors_wait_for_a_fence_to_end(journal: Journal, topic: Topic) -> None:
    topic.append("event", 1)
    with journal.fence() as fence:
        with topic.react("echo", lambda event: Draft("echo", event.payload, topic="echoes")) as reactor:
            assert len(journal.topic("echoes")) == 0
            fence.submit(topic, "event", 2)
            fence.commit()
            eventually(lambda: len(journal.topic("echoes")) == 2)
        assert isinstance(reactor, penstock.Worker)


# ── busy writers ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_when_a_fence_is_open_nothing_of_others_comes_after_it(
    journal: Journal, clock: ManualClock, in_threads: Callable[..., threading.Thread]
) -> None:
    queue, topic, ticking = journal.queue("jobs"), journal.topic("orders"), journal.queue("ticking")
    ticking.every(0.001, "tick", name="t")
    stop = threading.Event()
    begun = threading.Barrier(6)

    def keep(work: Callable[[], object]) -> None:
        begun.wait(60)
        while not stop.is_set():
            with suppress(FenceActive):
                work()
            clock.advance(0.001)
            stop.wait(0.0005)  # or these threads would keep the interpreter from everybody else

    def transact() -> None:
        with journal.transaction() as tx:
            tx.append("orders", "made")
            tx.push("jobs", 1)

    for work in (
        lambda: topic.append("made"),
        lambda: topic.submit("made").result(),
        lambda: queue.push(1),
        lambda: queue.push_many([1, 2]),
        transact,
    ):
        in_threads(keep, work)
    begun.wait(60)
    try:
        for _ in range(10):
            fence = journal.fence()
            before = [journal.topic(name).latest for name in ("jobs", "orders", "ticking")]
            ticket = fence.submit("orders", "fenced")
            for _ in range(3):
                topic.get(1)
                clock.advance(0.001)
                assert [journal.topic(name).latest for name in ("jobs", "orders", "ticking")] == before
            fence.commit()
            assert ticket.result().seq == before[1] + 1
    finally:
        stop.set()
    eventually(lambda: journal.topic("ticking").latest > before[2], "ticks go on when the fence has ended")


def test_a_transaction_that_began_before_the_fence_is_waited_for(
    journal: Journal, in_threads: Callable[..., threading.Thread]
) -> None:
    opened: list[int] = []
    with journal.transaction() as tx:
        tx.append("orders", "first")

        def open_fence() -> None:
            fence = journal.fence()
            opened.append(journal.topic("orders").latest)
            fence.cancel()

        thread = in_threads(open_fence)
        eventually(lambda: journal._entities.fences.exclusive is not None)
        tx.append("orders", "second")
        assert not opened
    thread.join(60)
    assert opened == [2]


def test_dead_letters_wait_for_the_fence(journal: Journal, clock: ManualClock) -> None:
    queue = journal.queue("jobs", max_attempts=1, dead_letter="grave", lease=10)
    aged = journal.queue("aged", ttl=5, dead_letter="grave")
    queue.push_many(["rejected", "late", "fine"])
    aged.push("over")
    rejected, late = queue.take_many(2)
    fence = journal.fence()
    with pytest.raises(FenceActive):
        rejected.nack(dead=True)
    clock.advance(20)
    assert queue.take() is None and aged.take() is None
    assert journal.queues() == ["aged", "jobs"]
    fence.cancel()
    fine = queue.take()
    assert fine is not None and fine.payload == "fine" and aged.take() is None
    assert sorted(letter.payload for letter in journal.queue("grave")) == ["late", "over", "rejected"]


def test_what_was_refused_during_a_fence_is_recorded_after_it(journal: Journal, topic: Topic) -> None:
    def refuse(draft: Draft) -> None:
        raise Denied("no")

    topic.gate(refuse, record="refusals")
    with journal.fence() as fence:
        with pytest.raises(Denied):
            fence.submit(topic, "made")
        assert journal.topic("refusals").latest == 0
    eventually(lambda: journal.topic("refusals").latest == 1)


def test_a_second_fence_that_cannot_be_opened_leaves_the_first(journal: Journal, topic: Topic) -> None:
    fence = journal.fence()
    with pytest.raises(FenceActive):
        journal.fence()
    with pytest.raises(FenceActive):
        topic.append("made")
    fence.cancel()
    with journal.transaction(), pytest.raises(ConfigError):
        journal.fence()
    topic.append("made")
    with journal.fence():
        pass
    assert topic.latest == 1

"""Queues against a model that knows the rules of delivery and nothing of frontiers, lease records or indexes.

The model keeps every message with one status per group and finds what comes next by looking at all of them. Time is a
clock that the machine moves. Two journals have the store open, and either may do the next step, so that whatever
one of them remembers of the other's past is found out. Tokens are the queue's; everything else (who gets which message,
on which attempt, in which order, what is counted and listed) the model says first.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from queue_model import BREAKER_PAUSE, FRONT, Holding, Message, Model, Status

import penstock
from nightly import examples
from penstock import Delivery, ManualClock, Queue, Retry
from penstock.errors import ConfigError, FenceActive, QueueFull, StaleDelivery
from penstock.journal.upkeep.housekeeper import Housekeeper
from penstock.queue.operations import choice

GROUPS = ("default", "audit", "mail")
LEASE = 30


# ── the machine ──────────────────────────────────────────────────────────────────────────────────────────────────────
_stores = itertools.count()
STYLES = (
    "plain", "priority", "keyed", "fanout", "fanout-keyed", "ttl", "fanout-ttl", "fair", "fair-keyed",
    "throttle-keyed", "debounce-keyed", "fanout-debounce-keyed",
)  # fmt: skip


class QueueMachine(RuleBasedStateMachine):
    engine = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.url = (
            f"memory:queue-model-{next(_stores)}"
            if self.engine == "memory"
            else f"{self.engine}:{self.folder / 'store'}"
        )
        self.clock = ManualClock()
        self.journals = [self.open(), self.open()]
        self.handed: list[Delivery] = []
        self.crashed: list[penstock.Journal] = []
        self.tokens: dict[int, str] = {}
        self.numbers = itertools.count()

    def open(self) -> penstock.Journal:
        with mock.patch.object(Housekeeper, "begin"):
            journal = penstock.open(self.url, clock=self.clock, durability="process")
        # What a thread does in passing would come at another step each time; the rules do it themselves.
        journal._core.housekeeper.request = lambda topic: None  # type: ignore[attr-defined]
        return journal

    @initialize(
        style=st.sampled_from(STYLES),
        max_attempts=st.integers(1, 3),
        dead_letter=st.sampled_from([None, "grave"]),
        retry=st.sampled_from([None, Retry.immediate(), Retry.fixed(5), Retry.linear(3), Retry.schedule(0, 7)]),
        max_in_flight=st.sampled_from([None, None, 3]),
        max_size=st.sampled_from([None, None, 12]),
        rate=st.sampled_from([None, None, "3/10s"]),
        per_key=st.sampled_from([None, None, 1, 2]),
        at_once=st.sampled_from([1, 1, 2, 3]),
        breaker=st.sampled_from([None, None, "2/20s"]),
        retention=st.sampled_from(["hold", "dead_letter"]),
    )
    def begin(
        self,
        style: str,
        max_attempts: int,
        dead_letter: str | None,
        retry: Retry | None,
        max_in_flight: int | None,
        max_size: int | None,
        rate: str | None,
        per_key: int | None,
        at_once: int,
        breaker: str | None,
        retention: str,
    ) -> None:
        mode = "fanout" if style.startswith("fanout") else "work"
        self.policy: dict[str, Any] = {
            "mode": mode,
            "max_attempts": max_attempts,
            "dead_letter": dead_letter,
            "retry": retry,
            "max_in_flight": max_in_flight,
            "max_size": max_size if style == "plain" else None,
            "priority": style == "priority",
            "dedup_window": 20,
            "rate": rate,
            "breaker": breaker,
            "breaker_pause": BREAKER_PAUSE / 1000,
            "retention": retention if dead_letter else "hold",
        }
        if style.endswith("ttl"):
            self.policy |= {"ttl": 25, "dead_letter": None, "retention": "hold"}
        if style.endswith("keyed"):
            self.policy |= {"max_in_flight_per_key": at_once}
            if mode == "work":
                self.policy |= {"rate_per_key": per_key}
        if style.startswith("fair"):
            self.policy |= {"fair_by": "key" if style == "fair-keyed" else "tenant"}
        if style == "throttle-keyed":
            self.policy |= {"throttle": 6}
        if "debounce" in style:
            self.policy |= {"debounce": 5, "debounce_limit": 8}
        self.style = style
        self.keyed = style.endswith("keyed")
        self.make(0)
        self.journals[0].queue("aside", priority=style == "priority")
        self.model = Model(self.policy, mode, self.clock.now_ms())

    def make(self, which: int, **changed: Any) -> None:
        count = self.policy.get("rate_per_key")
        written = {"rate_per_key": f"{count}/10s"} if count else {}
        self.journals[which].queue("jobs", **(self.policy | written | changed))

    def queue(self, which: int) -> Queue:
        return self.journals[which].queue("jobs")

    which = st.integers(0, 1)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @rule(
        which=which,
        count=st.integers(1, 4),
        delay=st.sampled_from([0, 0, 0, 4, 40]),
        priority=st.sampled_from([0, 0, 5, -1]),
        key=st.sampled_from([None, "a", "a", "b"]),
        budget=st.sampled_from([None, None, 1, 4]),
        front=st.sampled_from([False, False, False, True]),
        in_transaction=st.booleans(),
        tenant=st.sampled_from(["a", "a", "b"]),
        reply=st.booleans(),
    )
    def push(
        self,
        which: int,
        count: int,
        delay: int,
        priority: int,
        key: str | None,
        budget: int | None,
        front: bool,
        in_transaction: bool,
        tenant: str,
        reply: bool,
    ) -> None:
        options: dict[str, Any] = {"max_attempts": budget}
        if self.keyed and key is not None:
            options["key"] = key
        else:
            options["delay"] = delay
        if self.policy["priority"]:
            options["priority"] = priority
        fair = self.policy.get("fair_by")
        if front and "key" not in options and not fair:
            options["priority"] = "front"
        if fair == "tenant":
            options["headers"] = {"tenant": tenant}
        lane = "" if not fair else tenant if fair == "tenant" else options.get("key", "")
        reply = reply and self.policy["mode"] == "work"
        if reply:
            count, in_transaction = 1, False
        payloads = [next(self.numbers) for _ in range(count)]
        queue = self.queue(which)
        limit = self.policy["max_size"]
        if limit is not None and len(self.model.unsettled()) - self.failed_count() + count > limit:
            with pytest.raises(QueueFull):
                queue.push_many(payloads, **options)
            return
        if reply:
            try:
                ticket = queue.push(payloads[0], reply=True, **options)
                receipts = [ticket.receipt]
                if not ticket.receipt.duplicate:
                    self.tokens[payloads[0]] = ticket._token
            except ConfigError as error:
                assert "wants no reply or is gone" in str(error) and "throttle" in self.policy
                return
        elif in_transaction:
            with queue.journal.transaction() as tx:
                receipts = tx.push_many("jobs", payloads, **options)
        else:
            receipts = queue.push_many(payloads, **options)
        for payload, receipt in zip(payloads, receipts, strict=True):
            rank = FRONT if options.get("priority") == "front" else options.get("priority", 0)
            message = Message(payload, options.get("key"), rank, budget, lane=lane, replies=reply)
            due = self.clock.now_ms() + options.get("delay", 0) * 1000
            seq = self.model.submit(message, due)
            assert (receipt.seq, receipt.duplicate) == seq

    @rule(which=which, key=st.sampled_from(["x", "y"]))
    def push_once(self, which: int, key: str) -> None:
        limit = self.policy["max_size"]
        known = self.model.dedups.get(key)
        fresh = known is None or self.model.now - known[1] >= self.policy["dedup_window"] * 1000
        if limit is not None and fresh and len(self.model.unsettled()) - self.failed_count() + 1 > limit:
            return
        payload = next(self.numbers)
        receipt = self.queue(which).push(payload, dedup=key)
        assert receipt.duplicate is not fresh
        if fresh:
            assert receipt.seq == self.model.push(Message(payload), 0)
            self.model.dedups[key] = receipt.seq, self.model.now
        else:
            assert known is not None and receipt.seq == known[0]

    @rule(which=which, window=st.sampled_from([10, 20, 90]), attempts=st.integers(1, 3))
    def configure(self, which: int, window: int, attempts: int) -> None:
        changes = {"dedup_window": window, "max_attempts": attempts}
        shortest = min(window, self.policy["dedup_window"])
        self.queue(which).configure(**changes)
        self.policy |= changes
        known = self.model.dedups
        # A key that no longer counts is forgotten: a longer window does not bring it back.
        for key in [key for key, (_, at) in known.items() if self.model.now - at >= shortest * 1000]:
            del known[key]

    @rule(which=which, limit=st.sampled_from([None, 1, 3]))
    def move(self, which: int, limit: int | None) -> None:
        chosen = self.model.free()[:limit]
        assert self.queue(which).move(self.journals[which].queue("aside"), limit=limit) == len(chosen)
        for seq in chosen:
            self.model.moved.append(self.model.messages[seq].payload)
            self.model.remove(seq)

    @rule(which=which, how=st.sampled_from(["keys", "events", "age"]))
    def forget(self, which: int, how: str) -> None:
        """Retention and compaction by key remove nothing that is not settled."""
        topic = self.journals[which].topic("jobs")
        if how == "keys":
            topic.compact_keys()
            return
        topic.configure(**{"max_events": 2} if how == "events" else {"max_age": 3})
        self.journals[which].maintain()
        topic.configure(max_events=None, max_age=None)
        if self.policy["retention"] == "dead_letter" and self.policy["dead_letter"]:
            self.model.retire(how)

    @rule(which=which)
    def fence(self, which: int) -> None:
        """What was under way is there when a fence is; then this process pushes nothing until it ends."""
        busy = [] if self.policy["max_size"] else [next(self.numbers) for _ in range(3)]
        tickets = [self.queue(which).submit(number) for number in busy]
        fence = self.journals[which].fence()
        for number, ticket in zip(busy, tickets, strict=True):
            assert ticket.done()
            assert ticket.result().seq == self.model.push(Message(number), 0)
        with pytest.raises(FenceActive):
            self.queue(which).push(-1)
        assert self.journals[which].topic("jobs").latest == self.model.latest
        fence.cancel()

    @rule(which=which, chance=st.integers(0, 9))
    def drop(self, which: int, chance: int) -> None:
        if chance:
            return
        model = self.model
        gone = model.unsettled()
        assert self.queue(which).drop() == len(gone)
        model.take_away(gone, "removed")
        self.make(1 - which, mode=model.mode)
        model.held.clear()
        model.begins.clear()
        model.paused.clear()
        model.views = {"": {}}
        for limits in (model.delivered, model.by_key, model.breakers, model.throttled, model.debounced, model.lanes):
            limits.clear()
        model.present = 0

    @rule(which=which, group=st.sampled_from([None, None, 0, 1]), resume=st.booleans())
    def pause(self, which: int, group: int | None, resume: bool) -> None:
        label = None if group is None else self.group(group)
        known = label is None or label in self.model.begins or (self.model.mode == "work" and label == "default")
        if not known:
            return
        name = label or ""
        if resume:
            assert self.queue(which).resume(label) == (name in self.model.paused)
            self.model.paused.discard(name)
        else:
            assert self.queue(which).pause(label) == (name not in self.model.paused)
            self.model.paused.add(name)

    def failed_count(self) -> int:
        return sum(one.state == "failed" for name in self.model.current() for one in self.model.views[name].values())

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def group(self, number: int) -> str:
        return GROUPS[number] if self.style.startswith("fanout") else "default"

    @rule(
        which=which,
        limit=st.integers(1, 5),
        group=st.integers(0, 2),
        newest=st.sampled_from([False, False, False, True]),
        lease=st.sampled_from([None, None, 10, 100]),
    )
    def take(self, which: int, limit: int, group: int, newest: bool, lease: int | None) -> None:
        newest = newest and not self.keyed and not self.policy.get("fair_by")
        name = self.model.name_of(self.group(group))
        expected: list[int] = []
        if not self.model.is_paused(self.group(group)):
            self.model.reclaim(name)
            self.model.expire()
            expected = self.model.take(name, limit, newest)
        found = self.queue(which).take_many(limit, group=self.group(group), newest=newest, lease=lease)
        assert [delivery.seq for delivery in found] == expected
        for delivery in found:
            status = self.model.views[name][delivery.seq]
            assert delivery.attempt == status.attempts + 1
            assert delivery.payload == self.model.messages[delivery.seq].payload
            assert delivery.group == self.group(group)
            self.model.hold(name, delivery.seq, delivery, lease or LEASE, self.group(group))
        self.handed.extend(found)

    @rule(which=which, group=st.integers(0, 2), idle=st.sampled_from([0, 8, 35]), limit=st.integers(1, 3))
    def claim(self, which: int, group: int, idle: int, limit: int) -> None:
        label = self.group(group)
        name = self.model.name_of(label)
        model = self.model
        found = self.queue(which).claim(min_idle=idle, group=label, limit=limit)
        taken: list[int] = []
        if model.is_paused(label):
            assert found == []
            return
        for token, one in sorted(model.held.items(), key=lambda item: self.order_of(item[0])):
            if one.view != name or one.label != label or len(taken) >= limit:
                continue
            if model.now - one.touched >= idle * 1000:
                message = model.messages[one.seq]
                if one.attempts >= (message.budget or self.policy["max_attempts"]):
                    model.fail(token, model.now, None, dead=False)
                    continue
                taken.append(one.seq)
                delivery = found[len(taken) - 1]
                assert delivery.seq == one.seq and delivery.attempt == one.attempts + 1
                del model.held[token]
                model.held[delivery.token] = Holding(
                    name,
                    one.seq,
                    one.attempts + 1,
                    model.now + LEASE * 1000,
                    model.now,
                    label,
                    one.turn,
                )
        assert len(found) == len(taken)
        self.handed.extend(found)

    def order_of(self, token: str) -> int:
        """Claims look at deliveries in the order in which they were made."""
        return next(at for at, delivery in enumerate(self.handed) if delivery.token == token)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    pick = st.integers(0, 10_000)

    @precondition(lambda self: self.handed)
    @rule(pick=pick, how=st.sampled_from(["ack", "result", "with", "transaction"]))
    def ack(self, pick: int, how: str) -> None:
        delivery = self.handed[pick % len(self.handed)]
        live = delivery.token in self.model.held

        def settle() -> None:
            if how == "ack":
                delivery.ack()
            elif how == "result":
                delivery.ack(result=pick)
            elif how == "with":
                with delivery:
                    delivery.ack()
            else:
                with delivery.queue.journal.transaction() as tx:
                    tx.ack(delivery)

        if live:
            settle()
            self.model.ack(delivery.token, pick if how == "result" else None)
        else:
            with pytest.raises(StaleDelivery):
                settle()

    @precondition(lambda self: self.handed)
    @rule(which=which, picks=st.lists(pick, min_size=1, max_size=6), by_token=st.booleans())
    def ack_many(self, which: int, picks: list[int], by_token: bool) -> None:
        queue = self.queue(which)
        chosen = [self.handed[pick % len(self.handed)] for pick in picks]
        handles: list[Any] = [one.token if by_token or one.queue is not queue else one for one in chosen]
        live = {one.token for one in chosen} & self.model.held.keys()
        assert queue.ack_many([*handles, "nonsense", "a" * 24]) == len(live)
        for token in live:
            self.model.ack(token)

    @precondition(lambda self: self.handed)
    @rule(
        pick=pick,
        delay=st.sampled_from([None, None, 0, 6]),
        dead=st.sampled_from([False, False, True]),
        how=st.sampled_from(["nack", "with", "transaction", "rolled back"]),
    )
    def nack(self, pick: int, delay: int | None, dead: bool, how: str) -> None:
        delivery = self.handed[pick % len(self.handed)]
        live = delivery.token in self.model.held
        if how == "rolled back":
            with pytest.raises((ZeroDivisionError, QueueFull)), delivery.queue.journal.transaction() as tx:
                if live:
                    tx.nack(delivery, dead=True)
                tx.push("jobs", -1)
                raise ZeroDivisionError
            return
        if how == "with":
            if not live or delivery._settled:
                return
            with pytest.raises(ZeroDivisionError), delivery:
                raise ZeroDivisionError
            self.model.fail(delivery.token, self.clock.now_ms(), None, dead=False)
            return

        def settle() -> None:
            if how == "nack":
                delivery.nack(delay=delay, dead=dead, error="no")
            else:
                with delivery.queue.journal.transaction() as tx:
                    tx.nack(delivery, delay=delay, dead=dead)

        if live:
            settle()
            self.model.fail(delivery.token, self.clock.now_ms(), delay, dead=dead)
        else:
            with pytest.raises(StaleDelivery):
                settle()

    @precondition(lambda self: self.handed)
    @rule(pick=pick)
    def release(self, pick: int) -> None:
        delivery = self.handed[pick % len(self.handed)]
        delivery.release()
        if delivery.token in self.model.held:
            self.model.release(delivery.token)

    @precondition(lambda self: self.handed)
    @rule(pick=pick, lease=st.sampled_from([None, 5, 60]))
    def extend(self, pick: int, lease: int | None) -> None:
        delivery = self.handed[pick % len(self.handed)]
        one = self.model.held.get(delivery.token)
        if one is None:
            with pytest.raises(StaleDelivery):
                delivery.extend(lease)
            return
        delivery.extend(lease)
        one.deadline, one.touched = self.clock.now_ms() + (lease or LEASE) * 1000, self.clock.now_ms()
        assert penstock.clock.to_ms(delivery.deadline, "deadline") == one.deadline

    # ── time and trouble ─────────────────────────────────────────────────────────────────────────────────────────────
    @rule(by=st.sampled_from([1, 4, 7, 20, 31]))
    def advance(self, by: int) -> None:
        self.clock.advance(by)
        self.model.now = self.clock.now_ms()

    @rule(which=which, crash=st.booleans())
    def reopen(self, which: int, crash: bool) -> None:
        """What one process held, another may settle by token; its handles die with it. A crash closes nothing."""
        gone = self.journals[which]
        if crash:
            self.crashed.append(gone)
        else:
            gone.close()
        self.journals[which] = self.open()
        self.handed = [delivery for delivery in self.handed if delivery.queue.journal is not gone]
        for token in sorted(self.model.held.keys() - {delivery.token for delivery in self.handed}):
            assert self.queue(which).ack_many([token]) == 1
            self.model.ack(token)

    @rule(which=which)
    def compact(self, which: int) -> None:
        self.journals[which].maintain()

    @rule(which=which, limit=st.sampled_from([None, 1, 2]))
    def redrive(self, which: int, limit: int | None) -> None:
        queue, model = self.queue(which), self.model
        failed = sorted({seq for view in model.views.values() for seq, one in view.items() if one.state == "failed"})[
            :limit
        ]
        left = None if limit is None else limit - len(failed)
        letters = [event.payload for event in self.journals[which].queue("grave")][:left]
        if self.policy["dead_letter"] is None:
            letters = []
        assert queue.redrive(limit=limit, dry_run=True) == len(failed) + len(letters)
        assert queue.redrive(limit=limit) == len(failed) + len(letters)
        for seq in failed:
            for view in model.views.values():
                if seq in view and view[seq].state == "failed":
                    view[seq] = Status()
        by_payload = {message.payload: message for message in model.messages.values()}
        for payload in letters:
            letter = next(one for one in model.dead if one[0] == payload)
            model.dead.remove(letter)
            first = by_payload[payload]
            again = Message(payload, first.key, first.priority, first.budget, lane=first.lane, replies=first.replies)
            model.push(again, 0, letter[1])

    @precondition(lambda self: self.style.startswith("fanout"))
    @rule(which=which, group=st.integers(0, 2), back=st.integers(0, 3))
    def add_group(self, which: int, group: int, back: int) -> None:
        name = GROUPS[group]
        after = max(0, self.model.latest - back)
        if name not in self.model.begins:
            self.model.add_group(name, after)
        self.queue(which).add_group(name, after=after)

    @rule(which=which, chance=st.integers(0, 9))
    def purge(self, which: int, chance: int) -> None:
        if chance:
            return
        gone = self.model.unsettled()
        assert self.queue(which).purge() == len(gone)
        self.model.take_away(gone, "removed")
        self.model.held.clear()
        for view in self.model.views.values():
            view.clear()
        self.model.lanes.clear()
        self.model.present = 0

    @rule(which=which, picks=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
    def run_now(self, which: int, picks: list[int]) -> None:
        waiting = sorted({seq for view in self.model.views.values() for seq, one in view.items() if one.due})
        chosen = [waiting[pick % len(waiting)] for pick in picks] if waiting else []
        self.queue(which).run_now(chosen)
        for seq in dict.fromkeys(chosen):
            self.model.run_now(seq)

    @rule(which=which, picks=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
    def discard(self, which: int, picks: list[int]) -> None:
        chosen = {pick % (self.model.latest + 1) for pick in picks}
        held = {one.seq for one in self.model.held.values()}
        gone = [seq for seq in chosen if seq in self.model.unsettled() and seq not in held]
        assert self.queue(which).discard(sorted(chosen)) == len(gone)
        self.model.take_away(gone, "discarded")
        for seq in sorted(gone):
            self.model.remove(seq)

    # ── what must agree ──────────────────────────────────────────────────────────────────────────────────────────────
    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        model = self.model
        model.expire()
        assert [event.payload for event in self.journals[0].queue("aside")] == model.moved
        for which in (0, 1):
            queue = self.queue(which)
            assert [event.seq for event in queue] == model.unsettled()
            listed = queue.messages(limit=10_000)
            assert sorted({one.seq for one in listed}) == model.unsettled()
            for one in listed:
                tried = [attempt.number for attempt in one.failed_attempts]
                assert tried == sorted(set(tried)) and all(1 <= number <= one.attempts for number in tried)
                assert all(attempt.delivered_at <= attempt.ended_at for attempt in one.failed_attempts)
            flying = sorted(one.seq for one in listed if one.state == "in_flight")
            assert flying == sorted(one.seq for one in model.held.values())
            assert {one.group or "" for one in queue.pauses()} == model.paused
            assert {one.token: one.seq for one in queue.pending()} == {
                token: one.seq for token, one in model.held.items()
            }
            for group in GROUPS if model.mode == "fanout" else ("default",):
                if model.mode == "fanout" and group not in model.begins:
                    continue
                name = group if model.mode == "fanout" else ""
                stats = queue.stats(group)
                assert (stats.ready, stats.in_flight, stats.delayed, stats.failed) == model.counts(name)
                states = [one.state for one in queue.messages(group=group, limit=10_000)]
                found = states.count("ready"), states.count("delayed"), states.count("failed")
                assert found == (stats.ready, stats.delayed, stats.failed) and stats.paused == model.is_paused(group)
                view = model.views[name]
                assert [event.seq for event in queue.failed(group)] == [
                    seq for seq, one in sorted(view.items()) if one.state == "failed"
                ]
                next_ones = model.eligible(name)
                if self.policy.get("fair_by") and any(view[seq].due for seq in next_ones):
                    assert {event.seq for event in queue.peek(100, group=group)} == set(next_ones)
                else:
                    assert [event.seq for event in queue.peek(3, group=group)] == next_ones[:3]
                assert stats.breaker == model.breaker_state(name)
                given_up = [*queue.failures(group), *queue.dead_letters()]
                for failure in given_up:
                    raised = (failure.error or "").startswith("ZeroDivisionError")
                    assert raised or failure.traceback is None, "a traceback is that of the last failure"
            graves = sorted(event.payload for event in self.journals[which].queue("grave"))
            assert graves == sorted(payload for payload, _ in model.dead)
        self.replies_agree()

    def replies_agree(self) -> None:
        """Whoever waits for an outcome was told what the model says; what its ttl took, once somebody looked."""
        told: dict[str | None, tuple[str, Any]] = {}
        for event in self.journals[0].topic("jobs.results").read() if self.tokens else ():
            told[event.key] = event.kind, event.payload["reason"] if event.kind == "failure" else event.payload
        for payload, token in self.tokens.items():
            expected = self.model.outcomes.get(payload)
            if expected is None or expected[0] != "expired":
                assert told.get(token) == expected

    def teardown(self) -> None:
        for journal in [*self.journals, *self.crashed]:
            journal.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class OnSqlite(QueueMachine):
    engine = "sqlite"


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages behind a busy key are set aside in runs already when there are two of them."""
    monkeypatch.setattr(choice, "SHORTEST_RUN", 2)


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_a_queue_in_memory_delivers_as_the_model_says() -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples(120), stateful_step_count=40, deadline=None, suppress_health_check=QUIET
        ),
    )


def test_a_queue_on_sqlite_delivers_as_the_model_says() -> None:
    run_state_machine_as_test(
        OnSqlite,
        settings=settings(
            max_examples=examples(25), stateful_step_count=40, deadline=None, suppress_health_check=QUIET
        ),
    )


def test_the_machine_can_fail() -> None:
    """A model that gets one rule wrong must be found out: otherwise the agreement above would mean nothing."""

    class Forgetful(QueueMachine):
        @rule()
        def forget_a_delivery(self) -> None:
            if self.model.held:
                self.model.held.popitem()

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Forgetful,
            settings=settings(
                max_examples=300,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=QUIET,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                database=None,
            ),
        )


def test_newest_and_ordering_keys_do_not_go_together() -> None:
    with penstock.open("memory:") as journal:
        queue = journal.queue("jobs")
        queue.push(1, key="a")
        with pytest.raises(ConfigError, match="ordering key"):
            queue.take(newest=True)
        assert queue.take() is not None

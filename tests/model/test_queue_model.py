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
from dataclasses import dataclass, field
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

import penstock
from penstock import Delivery, ManualClock, Queue, Retry
from penstock.errors import ConfigError, FenceActive, QueueFull, StaleDelivery
from penstock.journal.upkeep.housekeeper import Housekeeper
from penstock.queue.operations import choice

GROUPS = ("default", "audit", "mail")
LEASE = 30
FRONT = (1 << 31) - 1


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Message:
    payload: int
    key: str | None = None
    priority: int = 0
    budget: int | None = None
    at: int = 0


@dataclass
class Status:
    """What one group knows of one message."""

    state: str = "ready"
    due: int = 0
    attempts: int = 0
    sure: bool = True
    """Whether `attempts` is known; a merge of several groups' counts leaves it open."""


@dataclass
class Holding:
    """A delivery under way."""

    view: str
    seq: int
    attempts: int
    deadline: int
    touched: int
    label: str
    mode: str
    returns: bool = True


View = dict[int, Status]


@dataclass
class Model:
    policy: dict[str, Any]
    mode: str
    now: int
    latest: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    """Per group; the one called "" has everything in work mode, and in fanout what no group wanted."""
    begins: dict[str, int] = field(default_factory=dict)
    """Registered groups, in that order, and the position after which each begins."""
    held: dict[str, Holding] = field(default_factory=dict)
    dead: dict[int, str | None] = field(default_factory=dict)
    """Payloads of dead letters, and the group that gave each up."""
    dedups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The first message of each dedup key, and when that was."""
    moved: list[int] = field(default_factory=list)
    """Payloads that lie in another queue by now."""
    paused: set[str] = field(default_factory=set)
    """Groups that get nothing; the empty name stands for all of them."""

    def __post_init__(self) -> None:
        self.views[""] = {}

    def is_paused(self, group: str) -> bool:
        return "" in self.paused or group in self.paused

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def current(self) -> list[str]:
        return list(self.begins) if self.mode == "fanout" and self.begins else [""]

    def name_of(self, group: str) -> str:
        """The view that a take for a group is about."""
        if group not in self.begins and (self.mode == "fanout" or group != "default"):
            self.add_group(group, 0)
        return group if self.mode == "fanout" else ""

    def add_group(self, group: str, after: int) -> None:
        others = list(self.begins)
        self.begins[group] = after
        if self.mode == "work":
            return
        kept = self.views[""]
        wanted = {seq: status for seq, status in kept.items() if seq > after}
        self.views[""] = {seq: status for seq, status in kept.items() if seq <= after}
        if not others:
            self.views[group] = wanted
            return
        fresh: View = {}
        for seq in self.messages:
            known = [self.views[other][seq] for other in others if seq in self.views[other]]
            flying = any(one.seq == seq and one.view in others for one in self.held.values())
            if seq > after and (known or flying):
                untried = not flying and all(one.attempts == 0 and one.state == "ready" for one in known)
                fresh[seq] = Status(due=max(one.due for one in known) if untried else 0)
        self.views[group] = fresh | wanted

    def change_mode(self, mode: str) -> None:
        if mode == self.mode:
            return
        self.mode = mode
        if not self.begins:
            return
        if mode == "fanout":
            for group, after in self.begins.items():
                own = {one.seq: one for one in self.held.values() if one.view == group}
                for seq, one in own.items():
                    one.returns = one.returns or seq in self.views[""]
                self.views[group] = {
                    seq: Status(status.state, status.due, status.attempts, status.sure)
                    for seq, status in self.views[""].items()
                    if seq > after and seq not in own
                }
            first = min(self.begins.values())
            self.views[""] = {seq: status for seq, status in self.views[""].items() if seq <= first}
            return
        rank = {"ready": 0, "failed": 1}
        merged: View = {}
        for seq in self.messages:
            known = [self.views[group][seq] for group in self.begins if seq in self.views[group]]
            if known:
                best = min(known, key=lambda one: (rank[one.state], one.due))
                sure = len({one.attempts for one in known}) == 1 and best.sure and len(known) == len(self.begins)
                merged[seq] = Status(best.state, best.due, best.attempts, sure)
            elif seq in self.views[""]:
                merged[seq] = self.views[""][seq]
        heirs: set[int] = set()
        for group in self.begins:
            for one in self.held.values():
                if one.view == group:
                    one.returns = one.seq not in merged and one.seq not in heirs
                    if one.returns:
                        heirs.add(one.seq)
        self.views = {"": merged, **{group: {} for group in self.begins}}

    # ── delivering ───────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, message: Message, due: int, group: str | None = None) -> int:
        """A new message for everybody; a dead letter that goes back is for the group that gave it up."""
        self.latest += 1
        message.at = self.now
        self.messages[self.latest] = message
        for name in [group] if group and self.mode == "fanout" else self.current():
            self.views[name][self.latest] = Status(due=due if due > self.now else 0)
        return self.latest

    def homes(self, one: Holding) -> list[str]:
        """Where a message goes that is not acknowledged."""
        current = self.current()
        if one.view in current or self.mode == "work":
            return (current if self.mode == "work" else [one.view]) if one.returns else []
        return [name for name in current if self.begins.get(name, 0) < one.seq] or [""]

    def reclaim(self, name: str) -> None:
        """A take finds what has expired: its own group's, and deliveries from before a change of mode."""
        current = self.current()
        for token, one in sorted(self.held.items(), key=lambda item: item[1].seq):
            if one.deadline <= self.now and (one.view == name or one.view not in current):
                self.fail(token, one.deadline, None, dead=False)

    def eligible(self, name: str) -> list[int]:
        """What may be taken now, in order."""
        view = self.views[name]
        found = []
        flying = {
            self.messages[one.seq].key for one in self.held.values() if name in self.homes(one) or one.view == name
        }
        keys = {message.key for message in self.messages.values() if message.key is not None}
        first: dict[str, int | None] = {}
        for key in keys:
            mine = [seq for seq, one in sorted(view.items()) if self.messages[seq].key == key and one.state == "ready"]
            tried = [seq for seq in mine if view[seq].attempts]
            first[key] = None if key in flying else next(iter(tried or mine), None)
        for seq, one in view.items():
            key = self.messages[seq].key
            if one.state == "ready" and one.due <= self.now and (key is None or first[key] == seq):
                found.append(seq)
        return sorted(found, key=lambda seq: (-self.messages[seq].priority, seq))

    def take(self, name: str, limit: int, newest: bool) -> list[int]:
        """What a take should find, in that order."""
        order = self.eligible(name)
        if newest:
            order.reverse()
        cap = self.policy.get("max_in_flight")
        if cap is not None:
            limit = min(limit, cap - sum(one.view == name for one in self.held.values()))
        return order[: max(0, limit)]

    def hold(self, name: str, seq: int, delivery: Delivery, lease: float, label: str) -> None:
        status = self.views[name].pop(seq)
        attempts = status.attempts + 1 if status.sure else delivery.attempt
        self.held[delivery.token] = Holding(
            name, seq, attempts, self.now + round(lease * 1000), self.now, label, self.mode
        )

    def fail(self, token: str, since: int, delay: float | None, *, dead: bool) -> None:
        one = self.held.pop(token)
        message = self.messages[one.seq]
        homes = self.homes(one)
        if dead or one.attempts >= (message.budget or self.policy["max_attempts"]):
            if homes and self.policy["dead_letter"]:
                self.dead[message.payload] = one.view or None
            elif homes:
                for name in homes:
                    self.views[name][one.seq] = Status("failed", 0, one.attempts)
            return
        retry = self.policy["retry"]
        wait = delay if delay is not None else 0 if retry is None else retry.delay(one.attempts)
        due = since + round(wait * 1000)
        for name in homes:
            self.views[name][one.seq] = Status("ready", due if due > self.now else 0, one.attempts)

    def release(self, token: str) -> None:
        one = self.held.pop(token)
        for name in self.homes(one):
            self.views[name][one.seq] = Status("ready", 0, one.attempts - 1)

    def expire(self) -> None:
        """What has outlived its ttl, and nobody holds, is gone."""
        ttl = self.policy.get("ttl")
        for view in self.views.values() if ttl else ():
            for seq, one in list(view.items()):
                if one.state == "ready" and self.messages[seq].at <= self.now - ttl * 1000:
                    del view[seq]

    def free(self) -> list[int]:
        """What nobody holds and nobody has given up."""
        held = {one.seq for one in self.held.values()}
        failed = {seq for view in self.views.values() for seq, one in view.items() if one.state == "failed"}
        return [seq for seq in self.unsettled() if seq not in held and seq not in failed]

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────
    def counts(self, name: str) -> tuple[int, int, int, int]:
        view = self.views[name].values()
        ready = sum(one.state == "ready" and one.due <= self.now for one in view)
        delayed = sum(one.state == "ready" and one.due > self.now for one in view)
        old = self.mode == "work"
        flying = sum(one.view == name or (old and one.view != "") for one in self.held.values())
        return ready, flying, delayed, sum(one.state == "failed" for one in view)

    def unsettled(self) -> list[int]:
        seqs = {seq for view in self.views.values() for seq in view}
        return sorted(seqs | {one.seq for one in self.held.values()})


# ── the machine ──────────────────────────────────────────────────────────────────────────────────────────────────────
_stores = itertools.count()
STYLES = ("plain", "priority", "keyed", "fanout", "fanout-keyed", "modes", "ttl", "fanout-ttl")


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
        self.settled: list[Delivery] = []
        self.numbers = itertools.count()

    def open(self) -> penstock.Journal:
        with mock.patch.object(Housekeeper, "begin"):
            journal = penstock.open(self.url, clock=self.clock, durability="process")
        # What a thread does in passing would come at another step each time; the rules do it themselves.
        journal._housekeeper.request = lambda topic: None  # type: ignore[attr-defined]
        return journal

    @initialize(
        style=st.sampled_from(STYLES),
        max_attempts=st.integers(1, 3),
        dead_letter=st.sampled_from([None, "grave"]),
        retry=st.sampled_from([None, Retry.immediate(), Retry.fixed(5), Retry.linear(3), Retry.schedule(0, 7)]),
        max_in_flight=st.sampled_from([None, None, 3]),
        max_size=st.sampled_from([None, None, 12]),
    )
    def begin(
        self,
        style: str,
        max_attempts: int,
        dead_letter: str | None,
        retry: Retry | None,
        max_in_flight: int | None,
        max_size: int | None,
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
        }
        if style.endswith("ttl"):
            self.policy |= {"ttl": 25, "dead_letter": None}
        self.style = style
        self.keyed = style.endswith("keyed")
        self.journals[0].queue("jobs", **self.policy)
        self.journals[0].queue("aside", priority=style == "priority")
        self.model = Model(self.policy, mode, self.clock.now_ms())

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
    ) -> None:
        options: dict[str, Any] = {"max_attempts": budget}
        if self.keyed and key is not None:
            options["key"] = key
        else:
            options["delay"] = delay
        if self.policy["priority"]:
            options["priority"] = priority
        if front and "key" not in options:
            options["priority"] = "front"
        payloads = [next(self.numbers) for _ in range(count)]
        queue = self.queue(which)
        limit = self.policy["max_size"]
        if limit is not None and len(self.model.unsettled()) - self.failed_count() + count > limit:
            with pytest.raises(QueueFull):
                queue.push_many(payloads, **options)
            return
        if in_transaction:
            with queue.journal.transaction() as tx:
                receipts = tx.push_many("jobs", payloads, **options)
        else:
            receipts = queue.push_many(payloads, **options)
        for payload, receipt in zip(payloads, receipts, strict=True):
            rank = FRONT if options.get("priority") == "front" else options.get("priority", 0)
            message = Message(payload, options.get("key"), rank, budget)
            due = self.clock.now_ms() + options.get("delay", 0) * 1000
            assert receipt.seq == self.model.push(message, due)

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
            for view in self.model.views.values():
                view.pop(seq, None)

    @rule(which=which, how=st.sampled_from(["keys", "events", "age"]))
    def forget(self, which: int, how: str) -> None:
        """Retention and compaction by key remove nothing that is not settled."""
        topic = self.journals[which].topic("jobs")
        if how == "keys":
            topic.compact_keys()
        else:
            topic.configure(**{"max_events": 2} if how == "events" else {"max_age": 3})
            self.journals[which].maintain()

    @rule(which=which)
    def fence(self, which: int) -> None:
        """While an exclusive fence is open nothing can be pushed; what is there stays as it is."""
        fence = self.journals[which].fence()
        with pytest.raises(FenceActive):
            self.queue(which).push(-1)
        fence.cancel()

    @rule(which=which, chance=st.integers(0, 9))
    def drop(self, which: int, chance: int) -> None:
        if chance:
            return
        model = self.model
        assert self.queue(which).drop() == len(model.unsettled())
        self.journals[1 - which].queue("jobs", **(self.policy | {"mode": model.mode}))
        model.held.clear()
        model.begins.clear()
        model.paused.clear()
        model.views = {"": {}}

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
        return GROUPS[number] if self.style.startswith("fanout") or self.style == "modes" else "default"

    @rule(
        which=which,
        limit=st.integers(1, 5),
        group=st.integers(0, 2),
        newest=st.sampled_from([False, False, False, True]),
        lease=st.sampled_from([None, None, 10, 100]),
    )
    def take(self, which: int, limit: int, group: int, newest: bool, lease: int | None) -> None:
        newest = newest and not self.keyed
        name = self.model.name_of(self.group(group))
        expected: list[int] = []
        if not self.model.is_paused(self.group(group)):
            self.model.reclaim(name)
            expected = self.model.take(name, limit, newest)
        found = self.queue(which).take_many(limit, group=self.group(group), newest=newest, lease=lease)
        assert [delivery.seq for delivery in found] == expected
        for delivery in found:
            status = self.model.views[name][delivery.seq]
            assert delivery.attempt == status.attempts + 1 or not status.sure
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
                    name, one.seq, one.attempts + 1, model.now + LEASE * 1000, model.now, label, model.mode, one.returns
                )
        assert len(found) == len(taken)
        self.handed.extend(found)

    def order_of(self, token: str) -> int:
        """Claims look at deliveries in the order in which they were made."""
        return next(at for at, delivery in enumerate(self.handed) if delivery.token == token)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    pick = st.integers(0, 10_000)

    @precondition(lambda self: self.handed)
    @rule(pick=pick, how=st.sampled_from(["ack", "ack", "with", "transaction"]))
    def ack(self, pick: int, how: str) -> None:
        delivery = self.handed[pick % len(self.handed)]
        live = delivery.token in self.model.held

        def settle() -> None:
            if how == "ack":
                delivery.ack()
            elif how == "with":
                with delivery:
                    delivery.ack()
            else:
                with delivery.queue.journal.transaction() as tx:
                    tx.ack(delivery)

        if live:
            settle()
            del self.model.held[delivery.token]
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
            del self.model.held[token]

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

    @rule(which=which)
    def reopen(self, which: int) -> None:
        """What one process held, another may settle by token; its handles die with it."""
        self.journals[which].close()
        self.journals[which] = self.open()
        self.handed = [delivery for delivery in self.handed if not delivery.queue.journal.closed]
        for token in self.model.held.keys() - {delivery.token for delivery in self.handed}:
            assert self.queue(which).ack_many([token]) == 1
            del self.model.held[token]

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
            group = model.dead.pop(payload)
            first = by_payload[payload]
            model.push(Message(payload, first.key, first.priority, first.budget), 0, group)

    @precondition(lambda self: self.style.startswith("fanout") or self.style == "modes")
    @rule(which=which, group=st.integers(0, 2), back=st.integers(0, 3))
    def add_group(self, which: int, group: int, back: int) -> None:
        name = GROUPS[group]
        after = max(0, self.model.latest - back)
        if name not in self.model.begins:
            self.model.add_group(name, after)
        self.queue(which).add_group(name, after=after)

    @precondition(lambda self: self.style == "modes")
    @rule(which=which, mode=st.sampled_from(["work", "fanout"]))
    def change_mode(self, which: int, mode: str) -> None:
        self.queue(which).configure(mode=mode)
        self.model.change_mode(mode)

    @rule(which=which, chance=st.integers(0, 9))
    def purge(self, which: int, chance: int) -> None:
        if chance:
            return
        assert self.queue(which).purge() == len(self.model.unsettled())
        self.model.held.clear()
        for view in self.model.views.values():
            view.clear()

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
                assert [event.seq for event in queue.peek(3, group=group)] == model.eligible(name)[:3]
                given_up = [*queue.failures(group), *queue.dead_letters()]
                for failure in given_up:
                    raised = (failure.error or "").startswith("ZeroDivisionError")
                    assert raised or failure.traceback is None, "a traceback is that of the last failure"
            graves = sorted(event.payload for event in self.journals[which].queue("grave"))
            assert graves == sorted(model.dead)

    def teardown(self) -> None:
        for journal in self.journals:
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
        settings=settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=QUIET),
    )


def test_a_queue_on_sqlite_delivers_as_the_model_says() -> None:
    run_state_machine_as_test(
        OnSqlite,
        settings=settings(max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=QUIET),
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

"""What a program does with a queue: pushes, takes, settles, repairs, pauses; and what must come of it.

Tokens are the queue's; everything else (who gets which message, on which attempt, in which order, what is counted and
listed) the model says first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from model.homes import Home, Raised, step
from model.queue_model import BREAKER_PAUSE, FRONT, Holding, Message, Model, Status
from model.topic_rules import WHICH, TopicRules, moment
from penstock import Delivery, Journal, Queue
from penstock.core.model.take import TakeRequest
from penstock.core.queue.inspect import open_view
from penstock.errors import ConfigError, FenceActive, QueueFull, StaleDelivery, TopicInUse
from queue_check import check_queue

GROUPS = ("default", "audit", "mail")
LEASE = 30
STYLES = (
    "plain", "priority", "keyed", "keyed-ttl", "fanout", "fanout-priority", "fanout-keyed", "ttl", "fanout-ttl",
    "fair", "fair-keyed", "throttle-keyed", "debounce-keyed", "fanout-debounce-keyed",
)  # fmt: skip
PICK = st.integers(0, 10_000)
WITH_QUEUE = lambda self: self.jobs is not None
IN_HAND = lambda self: self.handed
IN_TRANSACTION = st.sampled_from([False, False, True])


class Handed(NamedTuple):
    """A delivery in every home: its token's name, the opening that took it, and its handles."""

    token: str
    which: int
    handles: dict[Home, Delivery]


def about(journal: Journal) -> dict[str, object]:
    """What a journal's description says that does not depend on where it is."""
    found = journal.describe()
    return {"topics": found.topics, "queues": found.queues, "paused": found.paused, "read_only": found.read_only}


class QueueRules(TopicRules):
    jobs: Model
    handed: list[Handed]

    def begin_queue(self, style: str, given: dict[str, Any], at_once: int, per_key: int | None) -> None:
        mode = "fanout" if style.startswith("fanout") else "work"
        self.policy: dict[str, Any] = {
            "mode": mode,
            "priority": style.endswith("priority"),
            "dedup_window": 20,
            "breaker_pause": BREAKER_PAUSE / 1000,
            **given,
        }
        if style != "plain":
            self.policy |= {"max_size": None}
        if not given["dead_letter"]:
            self.policy |= {"retention": "hold"}
        if style.endswith("ttl"):
            self.policy |= {"ttl": 9 if "keyed" in style else 25, "dead_letter": None, "retention": "hold"}
        if "keyed" in style:
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
        self.keyed = "keyed" in style
        self.pushed: dict[int, Message] = {}
        self.tokens: dict[int, str] = {}
        self.numbers = itertools.count()
        self.make_queue(0)
        self.ask(lambda home: home.journal(0).queue("aside", priority=style.endswith("priority")).name)
        self.ask(lambda home: home.journal(0).queue("grave").name)
        self.jobs = Model(self.policy, mode, self.clock.now_ms(), self.positions.newest("jobs"))

    def make_queue(self, which: int) -> None:
        count = self.policy.get("rate_per_key")
        written: Any = self.policy | ({"rate_per_key": f"{count}/10s"} if count else {})
        assert self.ask(lambda home: home.journal(which).queue("jobs", **written).name) == "jobs"

    def ask_queue(self, which: int, question: Callable[[Queue], object]) -> Any:
        return self.ask(lambda home: question(home.journal(which).queue("jobs")))

    def change_queue(self, which: int, in_transaction: bool, method: str, *args: Any, **options: Any) -> Any:
        """Does what a queue and a transaction both have a method for."""

        def call(home: Home) -> object:
            if not in_transaction:
                queue = home.journal(which).queue("jobs")
                given = [queue.journal.queue(one) if isinstance(one, str) else one for one in args]
                return getattr(queue, method)(*given, **options)
            with home.store(which).transaction() as tx:
                found = getattr(tx, method)("jobs", *args, **options)
            return home.journal(which).queue("jobs").delivery(found.token) if isinstance(found, Delivery) else found

        return self.ask(call)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @step(
        10,
        when=WITH_QUEUE,
        which=WHICH,
        count=st.integers(1, 4),
        delay=st.sampled_from([0, 0, 0, 4, 40]),
        priority=st.sampled_from([0, 0, 5, -1]),
        key=st.sampled_from([None, "a", "a", "b"]),
        budget=st.sampled_from([None, None, 1, 4]),
        front=st.sampled_from([False, False, False, True]),
        how=st.sampled_from(["many", "many", "moment", "submit", "transaction", "reply", "reply"]),
        tenant=st.sampled_from(["a", "a", "b"]),
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
        how: str,
        tenant: str,
    ) -> None:
        options: dict[str, Any] = {"max_attempts": budget}
        if self.keyed and key is not None:
            options["key"] = key
            delay = 0
        elif how == "moment":
            options["not_before"] = moment(self.clock.now_ms() + delay * 1000)
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
        reply = how == "reply" and self.policy["mode"] == "work"
        if reply or how == "submit":
            count = 1
        payloads = [next(self.numbers) for _ in range(count)]

        def call(home: Home) -> object:
            queue = home.journal(which).queue("jobs")
            if reply:
                return [queue.push(payloads[0], reply=True, **options)]
            if how == "submit":
                return [queue.submit(payloads[0], **options).result(60)]
            if how == "transaction":
                with home.store(which).transaction() as tx:
                    return tx.push_many("jobs", payloads, **options)
            return queue.push_many(payloads, **options)

        answer = self.ask(call)
        if self.has_no_room(count):
            assert answer == Raised(QueueFull)
            return
        if reply and answer == Raised(ConfigError):  # what it repeats wants no reply
            assert "throttle" in self.policy
            return
        assert not isinstance(answer, Raised), answer
        for payload, receipt in zip(payloads, answer, strict=True):
            rank = FRONT if options.get("priority") == "front" else options.get("priority", 0)
            message = Message(payload, options.get("key"), rank, budget, lane=lane, replies=reply)
            self.pushed[payload] = message
            seq, duplicate = self.jobs.submit(message, self.clock.now_ms() + delay * 1000)
            assert (receipt[1], receipt[4]) == (seq, duplicate)
            if reply and not duplicate:
                self.tokens[payload] = receipt[2]  # an outcome is found by the id of its message

    def has_no_room(self, count: int) -> bool:
        limit = self.policy["max_size"]
        failed = sum(one.state == "failed" for name in self.jobs.current() for one in self.jobs.views[name].values())
        return limit is not None and len(self.jobs.unsettled()) - failed + count > limit

    @step(2, when=WITH_QUEUE, which=WHICH, key=st.sampled_from(["x", "y"]))
    def push_once(self, which: int, key: str) -> None:
        known = self.jobs.dedups.get(key)
        fresh = known is None or self.jobs.now - known[1] >= self.policy["dedup_window"] * 1000
        if fresh and self.has_no_room(1):
            return
        payload = next(self.numbers)
        receipt = self.ask_queue(which, lambda queue: queue.push(payload, dedup=key))
        if fresh:
            self.pushed[payload] = Message(payload)
            known = self.jobs.dedups[key] = self.jobs.push(self.pushed[payload], 0), self.jobs.now
        assert known is not None and (receipt[1], receipt[4]) == (known[0], not fresh)

    @step(1, when=WITH_QUEUE, which=WHICH, window=st.sampled_from([10, 20, 90]), attempts=st.integers(1, 3))
    def configure_queue(self, which: int, window: int, attempts: int) -> None:
        changes: Any = {"dedup_window": window, "max_attempts": attempts}
        shortest = min(window, self.policy["dedup_window"])
        stored = self.ask_queue(which, lambda queue: queue.configure(**changes))
        assert (stored["dedup_window"], stored["max_attempts"]) == (window, attempts)
        assert self.ask_queue(1 - which, lambda queue: queue.policy) == stored
        self.policy |= changes
        known = self.jobs.dedups
        # A key that no longer counts is forgotten: a longer window does not bring it back.
        for key in [key for key, (_, at) in known.items() if self.jobs.now - at >= shortest * 1000]:
            del known[key]

    @step(1, when=WITH_QUEUE, which=WHICH)
    def fence(self, which: int) -> None:
        """What was under way is there when a fence is; then this process pushes nothing until it ends."""
        busy = [] if self.policy["max_size"] else [next(self.numbers) for _ in range(3)]

        def call(home: Home) -> object:
            journal = home.store(which)
            tickets = [journal.queue("jobs").submit(number) for number in busy]
            fence = journal.fence()
            try:
                assert all(ticket.done() for ticket in tickets)
                try:
                    home.journal(which).queue("jobs").push(-1)
                except FenceActive:
                    return [ticket.result() for ticket in tickets]
                raise AssertionError("a push passed the fence")
            finally:
                fence.cancel()

        answer = self.ask(call)
        for number in busy:
            self.pushed[number] = Message(number)
        assert [receipt[1] for receipt in answer] == [self.jobs.push(self.pushed[number], 0) for number in busy]

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def group(self, number: int) -> str:
        return GROUPS[number] if self.style.startswith("fanout") else "default"

    @step(
        12,
        when=WITH_QUEUE,
        which=WHICH,
        limit=st.integers(1, 5),
        group=st.integers(0, 2),
        newest=st.sampled_from([False, False, False, True]),
        lease=st.sampled_from([None, None, 10, 100]),
        consumer=st.sampled_from([None, "w1"]),
        tx=IN_TRANSACTION,
        only=st.sampled_from([None, None, None, "seq", "key"]),
        pick=PICK,
    )
    def take(
        self,
        which: int,
        limit: int,
        group: int,
        newest: bool,
        lease: int | None,
        consumer: str | None,
        tx: bool,
        only: str | None,
        pick: int,
    ) -> None:
        label, jobs = self.group(group), self.jobs
        unsettled = jobs.unsettled() or [jobs.latest + 1]
        wanted = {"seq": unsettled[pick % len(unsettled)], "key": "ab"[pick % 2]}.get(only or "")
        newest = newest and not self.keyed and not self.policy.get("fair_by") and wanted is None
        limit = limit if wanted is None else 1
        expected = self.expect(label, limit, newest, wanted)
        options: Any = {"group": label, "newest": newest, "lease": lease, "consumer": consumer}
        if only is not None:
            options[only] = wanted
        if limit > 1:
            found = self.change_queue(which, False, "take_many", limit, **options)
        else:
            one = self.change_queue(which, tx, "take", **options)
            found, self.raw = [] if one is None else [one], [[one] for one in self.raw]
        self.check_taken(found, expected, which, label, lease, consumer)

    def expect(self, label: str, limit: int, newest: bool = False, wanted: int | str | None = None) -> list[int]:
        """The positions that a take should find; counts them."""
        jobs, name = self.jobs, self.jobs.name_of(label)
        if jobs.is_paused(label):
            return []
        jobs.reclaim(name)
        jobs.expire()
        return jobs.take(name, limit, newest, wanted)

    def check_taken(
        self, found: Any, expected: list[int], which: int, label: str, lease: int | None, consumer: str | None
    ) -> None:
        jobs, name = self.jobs, self.jobs.name_of(label)
        assert [one["event"]["seq"] for one in found] == expected
        for place, one in enumerate(found):
            seq = one["event"]["seq"]
            assert one["attempt"] == jobs.views[name][seq].attempts + 1
            assert one["event"]["payload"] == jobs.messages[seq].payload
            assert (one["group"], one["consumer"]) == (label, consumer)
            jobs.hold(name, seq, one["token"], lease or LEASE, label)
            assert one["deadline"] == moment(jobs.held[one["token"]].deadline)
            self.hand(one["token"], which, place)

    def hand(self, token: str, which: int, place: int) -> None:
        """Keeps the handles of the delivery that has a place in the last answer."""
        self.handed.append(Handed(token, which, {home: self.raw[at][place] for at, home in enumerate(self.homes)}))

    @step(
        2,
        when=WITH_QUEUE,
        which=WHICH,
        group=st.integers(0, 2),
        idle=st.sampled_from([0, 8, 35]),
        limit=st.integers(1, 3),
    )
    def claim(self, which: int, group: int, idle: int, limit: int) -> None:
        label, jobs = self.group(group), self.jobs
        name = jobs.name_of(label)
        found = self.ask_queue(which, lambda queue: queue.claim(min_idle=idle, group=label, limit=limit))
        if jobs.is_paused(label):
            assert found == []
            return
        taken = 0
        for token, one in sorted(jobs.held.items(), key=lambda item: item[1].seq):
            if one.view != name or one.label != label or taken >= limit or jobs.now - one.touched < idle * 1000:
                continue
            if one.attempts >= (jobs.messages[one.seq].budget or self.policy["max_attempts"]):
                jobs.fail(token, jobs.now, None, dead=False)
                continue
            delivery = found[taken]
            assert (delivery["event"]["seq"], delivery["attempt"]) == (one.seq, one.attempts + 1)
            del jobs.held[token]
            deadline = jobs.now + LEASE * 1000
            jobs.held[delivery["token"]] = Holding(name, one.seq, one.attempts + 1, deadline, jobs.now, label, one.turn)
            self.hand(delivery["token"], which, taken)
            taken += 1
        assert len(found) == taken

    @step(1, when=IN_HAND, pick=PICK, which=WHICH)
    def find_again(self, pick: int, which: int) -> None:
        """A token gives its delivery to whoever has it, in this process or in another."""
        handed = self.picked(pick)
        one = self.jobs.held.get(handed.token)
        answer = self.ask(lambda home: [home.journal(which).queue("jobs").delivery(home.real(handed.token))])
        if one is None:
            assert answer == Raised(StaleDelivery, {"token": handed.token})
            return
        found = answer[0]
        assert (found["token"], found["event"]["seq"], found["attempt"]) == (handed.token, one.seq, one.attempts)
        self.hand(handed.token, which, 0)

    def picked(self, pick: int) -> Handed:
        """A delivery that was handed out: most often one that is still held."""
        held = [one for one in self.handed if one.token in self.jobs.held]
        among = held if held and pick % 4 else self.handed
        return among[pick // 4 % len(among)]

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def settle(self, handed: Handed, act: Callable[[Delivery], object]) -> bool:
        """Does something to a delivery in every home; whether it was still held, which all of them must know."""
        held = handed.token in self.jobs.held
        answer = self.ask(lambda home: act(handed.handles[home]))
        assert answer == (None if held else Raised(StaleDelivery, {"token": handed.token}))
        return held

    def settle_in_transaction(self, handed: Handed, act: Callable[[Any, Delivery], object]) -> bool:
        held = handed.token in self.jobs.held

        def call(home: Home) -> None:
            delivery = handed.handles[home]
            if home.served:
                delivery = home.store(handed.which).queue("jobs").delivery(delivery.token)
            with home.store(handed.which).transaction() as tx:
                act(tx, delivery)

        answer = self.ask(call)
        assert answer == (None if held else Raised(StaleDelivery, {"token": handed.token}))
        return held

    @step(5, when=IN_HAND, pick=PICK, how=st.sampled_from(["ack", "result", "with", "transaction"]))
    def ack(self, pick: int, how: str) -> None:
        handed = self.picked(pick)

        def settle(delivery: Delivery) -> None:
            if how == "with":
                with delivery:
                    delivery.ack()
            else:
                delivery.ack(result=pick if how == "result" else None)

        if how == "transaction":
            held = self.settle_in_transaction(handed, lambda tx, delivery: tx.ack(delivery))
        else:
            held = self.settle(handed, settle)
        if held:
            self.jobs.ack(handed.token, pick if how == "result" else None)

    @step(6, when=IN_HAND, pick=PICK, limit=st.integers(1, 3), reply=st.booleans())
    def ack_and_take(self, pick: int, limit: int, reply: bool) -> None:
        """What a worker does between two messages, in one commit."""
        handed, result = self.picked(pick), pick if reply else None
        one = self.jobs.held.get(handed.token)
        wanted = TakeRequest(limit, "default" if one is None else one.label)

        def call(home: Home) -> list[Delivery]:
            delivery = handed.handles[home]
            return delivery._hold.queue.ack_and_take(delivery, result, wanted)

        found = self.ask(call)
        if one is None:
            assert found == Raised(StaleDelivery, {"token": handed.token})
            return
        self.jobs.ack(handed.token, result)
        self.check_taken(found, self.expect(one.label, limit), handed.which, one.label, None, None)

    @step(2, when=IN_HAND, which=WHICH, picks=st.lists(PICK, min_size=1, max_size=6), by_token=st.booleans())
    def ack_many(self, which: int, picks: list[int], by_token: bool) -> None:
        chosen = [self.picked(pick) for pick in picks]
        held = {one.token for one in chosen} & self.jobs.held.keys()

        def call(home: Home) -> object:
            handles = [one.handles[home] for one in chosen]
            tokens: list[Any] = [
                handle.token if by_token or one.which != which else handle
                for one, handle in zip(chosen, handles, strict=True)
            ]
            return home.journal(which).queue("jobs").ack_many([*tokens, "nonsense", "a" * 24])

        assert self.ask(call) == len(held)
        for token in sorted(held):
            self.jobs.ack(token)

    @step(
        8,
        when=IN_HAND,
        pick=PICK,
        delay=st.sampled_from([None, None, 0, 6]),
        dead=st.sampled_from([False, False, True]),
        how=st.sampled_from(["nack", "nack", "with", "transaction", "rolled back"]),
    )
    def nack(self, pick: int, delay: int | None, dead: bool, how: str) -> None:
        handed = self.picked(pick)
        if how == "rolled back":
            self.nack_and_roll_back(handed)
            return
        if how == "with":
            self.fail_in_a_block(handed)
            return
        if how == "transaction":
            held = self.settle_in_transaction(handed, lambda tx, delivery: tx.nack(delivery, delay=delay, dead=dead))
        else:
            held = self.settle(handed, lambda delivery: delivery.nack(delay=delay, dead=dead, error="no"))
        if held:
            self.jobs.fail(handed.token, self.clock.now_ms(), delay, dead=dead)

    def nack_and_roll_back(self, handed: Handed) -> None:
        held = handed.token in self.jobs.held

        def call(home: Home) -> None:
            store = home.store(handed.which)
            with store.transaction() as tx:
                if held:
                    tx.nack(store.queue("jobs").delivery(home.real(handed.token)), dead=True)
                tx.push("jobs", -1)
                raise ZeroDivisionError

        assert self.ask(call) in (Raised(ZeroDivisionError), Raised(QueueFull))

    def fail_in_a_block(self, handed: Handed) -> None:
        """The failure is the caller's own, whether or not the lease was lost meanwhile."""
        if any(delivery._settled for delivery in handed.handles.values()):
            return

        def call(home: Home) -> None:
            with handed.handles[home]:
                raise ZeroDivisionError

        assert self.ask(call) == Raised(ZeroDivisionError)
        if handed.token in self.jobs.held:
            self.jobs.fail(handed.token, self.clock.now_ms(), None, dead=False)

    @step(2, when=IN_HAND, pick=PICK)
    def release(self, pick: int) -> None:
        handed = self.picked(pick)
        assert self.ask(lambda home: handed.handles[home].release()) is None
        if handed.token in self.jobs.held:
            self.jobs.release(handed.token)

    @step(2, when=IN_HAND, pick=PICK, lease=st.sampled_from([None, 5, 60]))
    def extend(self, pick: int, lease: int | None) -> None:
        handed = self.picked(pick)
        if self.settle(handed, lambda delivery: delivery.extend(lease)):
            one = self.jobs.held[handed.token]
            one.deadline, one.touched = self.clock.now_ms() + (lease or LEASE) * 1000, self.clock.now_ms()
            assert self.ask(lambda home: handed.handles[home].deadline) == moment(one.deadline)

    def lose_handles(self, which: int | None) -> None:
        """What one process held, another may settle by token; its handles die with it."""
        self.handed = [one for one in self.handed if which is not None and one.which != which]
        for token in sorted(self.jobs.held.keys() - {one.token for one in self.handed} if self.jobs else ()):
            acked = self.ask(lambda home, token=token: home.journal(0).queue("jobs").ack_many([home.real(token)]))
            assert acked == 1
            self.jobs.ack(token)

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    @step(1, when=WITH_QUEUE, which=WHICH)
    def roll_back(self, which: int) -> None:
        """Whatever a transaction has done to a queue, it is as if it had not."""

        def call(home: Home) -> None:
            store = home.store(which)
            with store.transaction() as tx:
                tx.push("aside", -1)
                delivery = tx.take("jobs")
                if delivery is not None:
                    tx.nack(delivery, dead=True)
                tx.move("jobs", "aside", limit=2)
                tx.redrive("jobs")
                tx.purge("jobs")
                raise ZeroDivisionError

        assert self.ask(call) in (Raised(ZeroDivisionError), Raised(QueueFull))

    @step(1, when=WITH_QUEUE, which=WHICH, limit=st.sampled_from([None, 1, 3]), tx=IN_TRANSACTION)
    def move(self, which: int, limit: int | None, tx: bool) -> None:
        chosen = self.jobs.as_shown().free()[:limit]
        assert self.change_queue(which, tx, "move", "aside", limit=limit) == len(chosen)
        self.jobs.notice(chosen)
        for seq in chosen:
            self.jobs.moved.append(self.jobs.messages[seq].payload)
            self.jobs.remove(seq)

    @step(3, when=WITH_QUEUE, which=WHICH, limit=st.sampled_from([None, 1, 2]), tx=IN_TRANSACTION)
    def redrive(self, which: int, limit: int | None, tx: bool) -> None:
        jobs = self.jobs
        views = jobs.as_shown().views.values()
        chosen = sorted({seq for view in views for seq, one in view.items() if one.state == "failed"})[:limit]
        left = None if limit is None else limit - len(chosen)
        # Leases that end at the same time end in an order of their own, and the first letters go back first.
        order = self.ask(
            lambda home: [
                [letter.event.payload, letter.event.headers.get("dead-group")]
                for letter in home.journal(which).queue("grave").dead_letters()
            ]
        )
        jobs.dead.sort(key=lambda letter: order.index(list(letter)))
        letters = (
            [letter for letter in jobs.dead if self.has_a_home(letter)][:left] if self.policy["dead_letter"] else []
        )
        count = len(chosen) + len(letters)
        planned = self.ask_queue(which, lambda queue: queue.redrive(limit=limit, dry_run=True))
        done = self.change_queue(which, tx, "redrive", limit=limit)
        assert (planned[0], done[0]) == (count, count)
        jobs.notice(chosen)
        for seq in chosen:
            for view in jobs.views.values():
                if seq in view and view[seq].state == "failed":
                    view[seq] = Status()
        for letter in letters:
            jobs.dead.remove(letter)
            first = self.pushed[letter[0]]
            again = Message(
                first.payload, first.key, first.priority, first.budget, lane=first.lane, replies=first.replies
            )
            jobs.push(again, 0, letter[1])

    def has_a_home(self, letter: tuple[int, str | None]) -> bool:
        """A letter goes back to the group that gave it up, if that is still there."""
        return letter[1] is None or letter[1] in self.jobs.begins

    @step(2, when=WITH_QUEUE, which=WHICH, picks=st.lists(PICK, min_size=1, max_size=3))
    def run_now(self, which: int, picks: list[int]) -> None:
        views = self.jobs.as_shown().views.values()
        waiting = sorted({seq for view in views for seq, one in view.items() if one.due})
        chosen = [waiting[pick % len(waiting)] for pick in picks] if waiting else []
        self.ask_queue(which, lambda queue: queue.run_now(chosen))
        self.jobs.notice(chosen)
        for seq in dict.fromkeys(chosen):
            self.jobs.run_now(seq)

    @step(2, when=WITH_QUEUE, which=WHICH, picks=st.lists(PICK, min_size=1, max_size=3))
    def discard(self, which: int, picks: list[int]) -> None:
        chosen = {pick % (self.jobs.latest + 1) for pick in picks}
        self.jobs.notice(chosen)
        self.jobs.expire()
        held = {one.seq for one in self.jobs.held.values()}
        gone = [seq for seq in chosen if seq in self.jobs.unsettled() and seq not in held]
        assert self.ask_queue(which, lambda queue: queue.discard(sorted(chosen))) == len(gone)
        self.jobs.take_away(gone, "discarded")
        for seq in sorted(gone):
            self.jobs.remove(seq)

    @step(1, when=WITH_QUEUE, which=WHICH, tx=IN_TRANSACTION)
    def purge(self, which: int, tx: bool) -> None:
        gone, shown = self.jobs.unsettled(), self.jobs.as_shown().unsettled()
        assert self.change_queue(which, tx, "purge") == len(shown)
        self.jobs.take_away(gone, "removed")
        self.jobs.held.clear()
        for view in self.jobs.views.values():
            view.clear()
        self.jobs.lanes.clear()
        self.jobs.present = 0

    @step(2, when=WITH_QUEUE, which=WHICH, how=st.sampled_from(["keys", "events", "age"]))
    def forget(self, which: int, how: str) -> None:
        """Retention and compaction by key remove nothing that is not settled."""
        topic = lambda home: home.journal(which).topic("jobs")
        if how == "keys":
            self.ask(lambda home: topic(home).compact_keys())
            return
        bound: Any = {"max_events": 2} if how == "events" else {"max_age": 3}
        self.ask(lambda home: topic(home).configure(**bound))
        self.maintain(which)
        self.ask(lambda home: topic(home).configure(max_events=None, max_age=None))
        if self.policy["retention"] == "dead_letter" and self.policy["dead_letter"]:
            self.jobs.retire(how)

    # ── dropping, pausing, groups ────────────────────────────────────────────────────────────────────────────────────
    @step(1, when=WITH_QUEUE, which=WHICH, topic=st.booleans())
    def drop_queue(self, which: int, topic: bool) -> None:
        """A queue's topic stays, and its positions go on; with the topic they are gone."""
        gone, shown = self.jobs.unsettled(), self.jobs.as_shown().unsettled()
        if topic:
            assert self.ask(lambda home: home.journal(which).drop_topic("jobs")) == Raised(TopicInUse)
            assert self.ask(lambda home: home.journal(which).drop_topic("jobs", force=True))["topic"] == "jobs"
        else:
            assert self.ask_queue(which, lambda queue: queue.drop()) == len(shown)
        self.jobs.take_away(gone, "removed")
        self.jobs.clear()
        if topic:
            self.positions.dropped("jobs", self.jobs.latest)
            self.jobs.latest = self.positions.newest("jobs")
            self.jobs.messages.clear()
            self.jobs.dedups.clear()
        self.make_queue(1 - which)

    @step(
        2,
        when=WITH_QUEUE,
        which=WHICH,
        group=st.sampled_from([None, None, 0, 1]),
        resume=st.sampled_from([True, True, False]),
    )
    def pause(self, which: int, group: int | None, resume: bool) -> None:
        label = None if group is None else self.group(group)
        name, paused = label or "", self.jobs.paused
        if resume:
            assert self.ask_queue(which, lambda queue: queue.resume(label)) == (name in paused)
            paused.discard(name)
            return
        answer = self.ask_queue(which, lambda queue: queue.pause(label))
        if label is None or label in self.jobs.begins or (self.jobs.mode == "work" and label == "default"):
            assert answer == (name not in paused)
            paused.add(name)
        else:
            assert answer == Raised(ConfigError)

    @step(
        2,
        when=lambda self: self.jobs is not None and self.style.startswith("fanout"),
        which=WHICH,
        group=st.integers(0, 2),
        back=st.integers(0, 3),
        remove=st.sampled_from([False, False, True]),
    )
    def change_groups(self, which: int, group: int, back: int, remove: bool) -> None:
        name = GROUPS[group]
        if remove:
            removed = self.ask_queue(which, lambda queue: queue.remove_group(name))
            assert removed == self.jobs.remove_group(name)
            return
        after = max(0, self.jobs.latest - back)
        if name not in self.jobs.begins:
            self.jobs.add_group(name, after)
        assert self.ask_queue(which, lambda queue: queue.add_group(name, after=after)) is None

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @step(
        3,
        when=WITH_QUEUE,
        which=WHICH,
        pick=PICK,
        state=st.sampled_from([None, "ready", "delayed", "in_flight", "failed"]),
        limit=st.sampled_from([0, 1, 2, 100]),
    )
    def look(self, which: int, pick: int, state: Any, limit: int) -> None:
        self.jobs.expire()
        jobs = self.jobs.as_shown()
        seq = pick % (jobs.latest + 2)
        event = self.ask_queue(which, lambda queue: queue.get(seq))
        assert (event and event["payload"]) == (jobs.messages[seq].payload if seq in jobs.unsettled() else None)
        found = self.ask_queue(which, lambda queue: [one.seq for one in queue.messages(key="a", limit=None)])
        assert sorted(set(found)) == [seq for seq in jobs.unsettled() if jobs.messages[seq].key == "a"]
        event = self.ask_queue(which, lambda queue: queue.get(key="a"))
        assert (event and event["seq"]) == (found[0] if found else None)
        page = self.ask_queue(which, lambda queue: queue.messages(state, after=seq, limit=limit))
        positions = list(dict.fromkeys(one["event"]["seq"] for one in page))
        assert len(positions) <= limit and all(one["state"] == (state or one["state"]) for one in page)
        if state is None:
            assert positions == [at for at in jobs.unsettled() if at > seq][:limit]
        consumers = self.ask_queue(
            which, lambda queue: [(one.name, one.group, one.state, one.in_hand, one.holds) for one in queue.consumers()]
        )
        assert all(name == "w1" for name, *_ in consumers)
        for ask in (Queue.peek, Queue.stats, Queue.failures):
            self.ask_queue(which, lambda queue, ask=ask.__name__: getattr(queue, ask)(group="nobody"))
        self.ask_queue(which, lambda queue: queue.pending("audit"))
        described = self.ask(lambda home: about(home.journal(which)))
        assert described["paused"] == sorted(f"jobs/{group}" if group else "jobs" for group in jobs.paused)

    # ── what must agree ──────────────────────────────────────────────────────────────────────────────────────────────
    def rows_agree(self) -> None:
        """Every message is in one place, and indexes and counters say the same as the rows, whatever was done."""
        for home in self.homes:
            journal = home.store(0)
            for name in ("jobs", "aside", "grave"):
                queue = journal.queue(name)
                with open_view(queue._backend) as view:
                    assert check_queue(view.snap, view.state) == [], f"in {home}"

    def queue_agrees(self, homes: list[Home], which: int) -> None:
        self.jobs.expire()
        jobs = self.jobs.as_shown()
        seen = self.ask(
            lambda home: {
                "aside": [event.payload for event in home.journal(which).queue("aside")],
                "unsettled": [event.seq for event in home.journal(which).queue("jobs")],
                "length": len(home.journal(which).queue("jobs")),
                "messages": home.journal(which).queue("jobs").messages(limit=10_000),
                "pauses": home.journal(which).queue("jobs").pauses(),
                "pending": home.journal(which).queue("jobs").pending(),
                "groups": home.journal(which).queue("jobs").groups(),
                "dead": [event.payload for event in home.journal(which).queue("grave")],
                "letters": home.journal(which).queue("jobs").dead_letters(),
            },
            homes,
        )
        assert seen["aside"] == jobs.moved
        assert seen["unsettled"] == jobs.unsettled()
        assert sorted({one["event"]["seq"] for one in seen["messages"]}) == jobs.unsettled()
        assert sorted(one["event"]["seq"] for one in seen["messages"] if one["state"] == "in_flight") == sorted(
            one.seq for one in jobs.held.values()
        )
        for one in seen["messages"]:
            tried = [attempt["number"] for attempt in one["failed_attempts"]]
            assert tried == sorted(set(tried)) and all(1 <= number <= one["attempts"] for number in tried)
            assert all(attempt["delivered_at"] <= attempt["ended_at"] for attempt in one["failed_attempts"])
        assert {one["group"] or "" for one in seen["pauses"]} == jobs.paused
        assert {one["token"]: (one["seq"], one["attempt"], one["deadline"]) for one in seen["pending"]} == {
            token: (one.seq, one.attempts, moment(one.deadline)) for token, one in jobs.held.items()
        }
        assert sorted(seen["dead"]) == sorted(payload for payload, _ in jobs.dead)
        assert seen["groups"] == sorted(jobs.begins) or jobs.mode == "work"
        assert seen["length"] == jobs.length()
        for group in jobs.begins if jobs.mode == "fanout" else ("default",):
            self.group_agrees(jobs, homes, which, group, seen["letters"])
        if self.tokens:
            self.replies_agree(homes, which)

    def group_agrees(
        self, jobs: Model, homes: list[Home], which: int, group: str, letters: list[dict[str, Any]]
    ) -> None:
        name = group if jobs.mode == "fanout" else ""
        seen = self.ask(
            lambda home: {
                "stats": home.journal(which).queue("jobs").stats(group),
                "messages": home.journal(which).queue("jobs").messages(group=group, limit=10_000),
                "failures": home.journal(which).queue("jobs").failures(group),
                "next": [event.seq for event in home.journal(which).queue("jobs").peek(100, group=group)],
            },
            homes,
        )
        stats, view = seen["stats"], jobs.views[name]
        counts = stats["ready"], stats["in_flight"], stats["delayed"], stats["failed"]
        assert counts == jobs.counts(name)
        states = [one["state"] for one in seen["messages"]]
        assert [states.count(state) for state in ("ready", "delayed", "failed")] == [counts[0], counts[2], counts[3]]
        assert (stats["paused"], stats["breaker"]) == (jobs.is_paused(group), self.jobs.breaker_state(name))
        failed = [seq for seq, one in sorted(view.items()) if one.state == "failed"]
        assert [one["event"]["seq"] for one in seen["failures"]] == failed
        coming = jobs.eligible(name)
        assert not {one["event"]["seq"] for one in seen["messages"] if one["blocked"]} & set(coming)
        if self.policy.get("fair_by") and any(view[seq].due for seq in coming):
            assert set(seen["next"]) == set(coming)
        else:
            assert seen["next"][:3] == coming[:3]
        for failure in [*seen["failures"], *letters]:
            raised = (failure["error"] or "").startswith("ZeroDivisionError")
            assert raised or failure["traceback"] is None, "a traceback is that of the last failure"

    def replies_agree(self, homes: list[Home], which: int) -> None:
        """Whoever waits for an outcome was told what the model says; what its ttl took, once somebody looked."""
        answers = self.ask(
            lambda home: [
                [event.key, event.kind, event.payload["reason"] if event.kind == "failure" else event.payload]
                for event in home.journal(which).topic("jobs.results").read()
            ],
            homes,
        )
        told = {token: (kind, outcome) for token, kind, outcome in answers}
        for payload, token in self.tokens.items():
            expected = self.jobs.outcomes.get(payload)
            if expected is None or expected[0] != "expired":
                assert told.get(token) == expected

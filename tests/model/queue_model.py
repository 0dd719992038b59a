"""The rules of delivery, in plain Python: nothing of frontiers, lease records, windows or indexes.

Every message has one status per group, and what comes next is found by looking at all of them. Limits are lists of
times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from penstock import Retry

FRONT = (1 << 31) - 1
RATE = (3, 10_000)
"""What "3/10s" says."""
BREAKER = (2, 20_000)
BREAKER_PAUSE = 8_000
WAITS: dict[Retry | None, Callable[[int], float]] = {
    None: lambda attempts: 0,
    Retry.immediate(): lambda attempts: 0,
    Retry.fixed(5): lambda attempts: 5,
    Retry.linear(3): lambda attempts: 3 * attempts,
    Retry.schedule(0, 7): lambda attempts: 0 if attempts == 1 else 7,
}
"""How long a message waits after so many attempts."""
Outcome = tuple[str, Any]


@dataclass
class Message:
    payload: int
    key: str | None = None
    priority: int = 0
    budget: int | None = None
    at: int = 0
    lane: str = ""
    replies: bool = False


@dataclass
class Status:
    """What one group knows of one message."""

    state: str = "ready"
    due: int = 0
    attempts: int = 0
    turn: int = 0
    """Whose turn it was when it was handed out, in a queue with fair share: it keeps that."""
    in_lane: bool = False
    """Whether it is ready there and waits for its lane's turn."""
    debounced: bool = False
    """Whether it waits for a newer push of its key; until then it keeps no other one of its key waiting."""


@dataclass
class Breaker:
    failures: list[int] = field(default_factory=list)
    open_until: int = 0
    probe: tuple[int, str] | None = None
    """The position and the delivery that are tried."""


@dataclass
class Holding:
    """A delivery under way."""

    view: str
    seq: int
    attempts: int
    deadline: int
    touched: int
    label: str
    turn: int = 0


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
    dead: list[tuple[int, str | None]] = field(default_factory=list)
    """Payloads of dead letters, and the group that gave each up."""
    dedups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The first message of each dedup key, and when that was."""
    moved: list[int] = field(default_factory=list)
    """Payloads that lie in another queue by now."""
    paused: set[str] = field(default_factory=set)
    """Groups that get nothing; the empty name stands for all of them."""
    delivered: dict[str, list[int]] = field(default_factory=dict)
    """When each group got messages, while there was a rate."""
    by_key: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    breakers: dict[str, Breaker] = field(default_factory=dict)
    throttled: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The last push of each key that was let through, and when that was."""
    debounced: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """The newest push of each key, when it is due, and when the first came that it stands for."""
    present: int = 0
    lanes: dict[str, int] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """What those who pushed a payload and wait were told last."""

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
                debounced = untried and any(one.debounced for one in known)
                fresh[seq] = Status(due=max(one.due for one in known) if untried else 0, debounced=debounced)
        self.views[group] = fresh | wanted

    def remove_group(self, group: str) -> bool:
        """What only the last group had not settled waits for the next one, as if it had not been tried."""
        if group not in self.begins:
            return False
        held = {one.seq for one in self.held.values() if one.view == group}
        view = self.views.pop(group)
        if len(self.begins) == 1:
            for seq in sorted(held | view.keys()):
                one = view.get(seq, Status())
                untried = seq not in held and one.attempts == 0 and one.state == "ready"
                self.views[""][seq] = Status(due=one.due if untried else 0, debounced=untried and one.debounced)
        self.held = {token: one for token, one in self.held.items() if one.view != group}
        del self.begins[group]
        self.paused.discard(group)
        self.delivered.pop(group, None)
        self.breakers.pop(group, None)
        return True

    def clear(self) -> None:
        """The queue is gone, and made anew."""
        for forgotten in (self.held, self.begins, self.paused, self.delivered, self.by_key, self.breakers):
            forgotten.clear()
        for forgotten in (self.throttled, self.debounced, self.lanes):
            forgotten.clear()
        self.views = {"": {}}
        self.present = 0

    # ── delivering ───────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, message: Message, due: int, group: str | None = None) -> int:
        """A new message for everybody; a dead letter that goes back is for the group that gave it up."""
        self.latest += 1
        message.at = self.now
        self.messages[self.latest] = message
        for name in [group] if group and self.mode == "fanout" else self.current():
            self.views[name][self.latest] = Status(due=due if due > self.now else 0)
        return self.latest

    def submit(self, message: Message, due: int) -> tuple[int, bool]:
        """A push, as far as a throttle or a debounce lets it; its position, and whether that was there before."""
        key, throttle, debounce = message.key, self.policy.get("throttle"), self.policy.get("debounce")
        if key is None or not (throttle or debounce):
            return self.push(message, due), False
        if throttle:
            seq, at = self.throttled.get(key, (0, -1_000_000))
            if self.now < at + throttle * 1000:
                return seq, True
            seq = self.push(message, due)
            self.throttled[key] = seq, self.now
            return seq, False
        seq, due, first = self.debounced.get(key, (0, 0, 0))
        if due > self.now and any(seq in view for view in self.views.values()):
            self.tell(seq, ("failure", "replaced"))
            for view in self.views.values():
                view.pop(seq, None)
        else:
            first = self.now
        due = min(self.now + 5_000, first + 8_000)
        seq = self.push(message, due)
        for view in self.views.values():
            if seq in view:
                view[seq].debounced = True
        self.debounced[key] = seq, due, first
        return seq, False

    def retire(self, how: str) -> None:
        """Retention wins over messages that nobody holds."""
        for name in dict.fromkeys([*self.current(), ""]):
            for seq in sorted(self.views[name]):
                if seq <= self.latest - 2 if how == "events" else self.messages[seq].at < self.now - 3_000:
                    del self.views[name][seq]
                    self.dead.append((self.messages[seq].payload, name or None))
                    self.tell(seq, ("failure", "retention"))

    def run_now(self, seq: int) -> None:
        """What waits for its time is ready now."""
        for view in self.views.values():
            if seq in view and view[seq].state == "ready":
                view[seq].due, view[seq].debounced = 0, False
                if self.messages[seq].key is None:
                    self.give_turn(seq, view[seq])
        key = self.messages[seq].key
        if key is not None and self.debounced.get(key, (0,))[0] == seq:
            del self.debounced[key]

    def reclaim(self, name: str) -> None:
        """A take finds what has expired of its own group."""
        for token, one in sorted(self.held.items(), key=lambda item: item[1].seq):
            if one.deadline <= self.now and one.view == name:
                self.fail(token, one.deadline, None, dead=False)

    def notice(self, seqs: Collection[int]) -> None:
        """Who changes messages by their positions finds which of their leases have ended; what is given up stays."""
        for token, one in sorted(self.held.items(), key=lambda item: item[1].seq):
            if one.deadline <= self.now and one.seq in seqs:
                self.fail(token, one.deadline, None, dead=False, stays=True)

    def as_shown(self) -> Model:
        """What looks show: the leases that have ended are noticed, and nothing is changed by that."""
        shown = deepcopy(self)
        shown.notice(range(self.latest + 1))
        shown.expire()
        return shown

    def eligible(self, name: str) -> list[int]:
        """What may be taken now, in order."""
        view = self.views[name]
        found = []
        flying = [self.messages[one.seq].key for one in self.held.values() if one.view == name]
        keys = {message.key for message in self.messages.values() if message.key is not None}
        seated: set[int] = set()
        for key in keys:
            mine = [seq for seq, one in sorted(view.items()) if self.messages[seq].key == key and one.state == "ready"]
            mine = [seq for seq in mine if not (view[seq].debounced and view[seq].due > self.now)]
            mine.sort(key=lambda seq: not view[seq].attempts)
            room = self.policy.get("max_in_flight_per_key", 1) - flying.count(key)
            seated.update(mine[: max(0, room)])
            for seq in mine[max(0, room) :]:
                if not view[seq].attempts:
                    view[seq].due = 0  # it waits for its key now, not for its key's rate
        for seq, one in view.items():
            key = self.messages[seq].key
            if one.state == "ready" and one.due <= self.now and (key is None or seq in seated):
                found.append(seq)
        for seq in view:
            view[seq].in_lane = view[seq].in_lane and seq in found
        for seq in sorted(found):
            if not view[seq].due:
                self.give_turn(seq, view[seq])
        return sorted(found, key=lambda seq: (-self.messages[seq].priority, self.turn_of(view, seq), seq))

    def give_turn(self, seq: int, status: Status) -> None:
        """A message is ready in a queue with fair share: a lane that had nothing begins with the present turn."""
        if self.policy.get("fair_by") and not status.turn and not status.in_lane:
            lane = self.messages[seq].lane
            if self.is_empty(lane):
                self.present = max([self.present, 1, *(turn for one, turn in self.lanes.items() if self.is_empty(one))])
                self.lanes[lane] = self.present
            status.in_lane = True

    def is_empty(self, lane: str) -> bool:
        return not any(self.in_lane(view, lane) for view in self.views.values())

    def in_lane(self, view: View, lane: str) -> list[int]:
        return sorted(seq for seq, one in view.items() if one.in_lane and self.messages[seq].lane == lane)

    def turn_of(self, view: View, seq: int) -> int:
        """One message of a lane after the other: whatever is gone by now takes no turn."""
        lane = self.messages[seq].lane
        return self.lanes[lane] + self.in_lane(view, lane).index(seq) if view[seq].in_lane else view[seq].turn

    def room(self, name: str, limit: int) -> int:
        """How many of the messages asked for a take may have."""
        cap = self.policy.get("max_in_flight")
        if cap is not None:
            limit = min(limit, cap - sum(one.view == name for one in self.held.values()))
        breaker = self.breakers.get(name)
        if breaker is not None and breaker.open_until:
            trying = breaker.probe is not None and breaker.probe[1] in self.held
            limit = 0 if self.now < breaker.open_until or trying else min(limit, 1)
        if self.policy.get("rate") is not None:
            count, period = RATE
            limit = min(limit, count - len(recent(self.delivered.get(name, []), self.now, period)))
        return max(0, limit)

    def take(self, name: str, limit: int, newest: bool, only: int | str | None = None) -> list[int]:
        """What a take should find, in that order; counts it. `only`: the message with that position or key."""
        limit = self.room(name, limit)
        found: list[int] = []
        for seq, one in sorted(self.views[name].items(), key=lambda item: (item[1].due, item[0])):
            if 0 < one.due <= self.now and self.messages[seq].key is None:
                one.due = 0
                self.give_turn(seq, one)
        while len(found) < limit:
            order = self.eligible_beside(name, found)
            if only is not None:
                key = only if isinstance(only, str) else self.messages[only].key if only in self.messages else None
                order = sorted(seq for seq in order if key in (None, self.messages[seq].key))[: 1 if key else None]
                order = [seq for seq in order if only in (seq, self.messages[seq].key)]  # a key's begin in order
            if not order:
                break
            seq = order[-1] if newest else order[0]
            status, lane = self.views[name][seq], self.messages[seq].lane
            if only is not None:
                status.in_lane = False  # another one has its lane's turn
            elif status.in_lane:
                status.turn, status.in_lane = self.lanes[lane], False
                self.lanes[lane] += 1
            due = self.key_due(name, self.messages[seq].key)
            if due:
                self.views[name][seq].due = due
                continue
            found.append(seq)
            self.present = max(self.present, self.views[name][seq].turn)
        if self.policy.get("rate") is not None:
            self.delivered.setdefault(name, []).extend([self.now] * len(found))
        return found

    def eligible_beside(self, name: str, found: list[int]) -> list[int]:
        """What may be taken after some others of the same take."""
        chosen = {str(seq): Holding(name, seq, 0, 0, 0, "") for seq in found}
        view = self.views[name]
        kept = {seq: view.pop(seq) for seq in found}
        self.held.update(chosen)
        try:
            return self.eligible(name)
        finally:
            for token in chosen:
                del self.held[token]
            view.update(kept)

    def key_due(self, name: str, key: str | None) -> int:
        """When a key may have its next delivery, where that is not now; else counts one."""
        count = self.policy.get("rate_per_key")
        if key is None or count is None:
            return 0
        begun = recent(self.by_key.get((name, key), []), self.now, RATE[1])
        if len(begun) >= count:
            return begun[len(begun) - count] + RATE[1]
        self.by_key[name, key] = [*begun, self.now]
        return 0

    def hold(self, name: str, seq: int, token: str, lease: float, label: str) -> None:
        status = self.views[name].pop(seq)
        self.held[token] = Holding(
            name, seq, status.attempts + 1, self.now + round(lease * 1000), self.now, label, turn=status.turn
        )
        breaker = self.breakers.get(name)
        if breaker is not None and breaker.open_until:
            breaker.probe = seq, token

    def fail(self, token: str, since: int, delay: float | None, *, dead: bool, stays: bool = False) -> None:
        one = self.held.pop(token)
        message = self.messages[one.seq]
        self.note(one.view, one.seq, failed=not dead)
        if dead or one.attempts >= (message.budget or self.policy["max_attempts"]):
            self.tell(one.seq, ("failure", "rejected" if dead else "attempts exhausted"))
            if self.policy["dead_letter"] and not stays:
                self.dead.append((message.payload, one.view or None))
            else:
                self.views[one.view][one.seq] = Status("failed", 0, one.attempts)
            return
        wait = WAITS[self.policy["retry"]](one.attempts) if delay is None else delay
        due = since + round(wait * 1000)
        due = due if due > self.now else 0
        self.views[one.view][one.seq] = Status("ready", due, one.attempts, turn=one.turn)

    def ack(self, token: str, result: Any = None) -> None:
        one = self.held.pop(token)
        self.tell(one.seq, ("result", result))
        self.note(one.view, one.seq, failed=False)

    def take_away(self, seqs: list[int], why: str) -> None:
        """Before messages go unhandled: who waits for one hears it, unless it was given up before."""
        for seq in seqs:
            if not any(seq in view and view[seq].state == "failed" for view in self.views.values()):
                self.tell(seq, ("failure", why))

    def remove(self, seq: int) -> None:
        """A message goes that nobody holds; who was behind it has its key now, and a turn: one after the other."""
        for name, view in self.views.items():
            if view.pop(seq, None) is not None:
                self.eligible(name)

    def tell(self, seq: int, outcome: Outcome) -> None:
        if self.messages[seq].replies:
            self.outcomes[self.messages[seq].payload] = outcome

    def note(self, name: str, seq: int, *, failed: bool) -> None:
        """The circuit breaker of a group hears how an attempt ended."""
        if self.policy.get("breaker") is None:
            return
        breaker = self.breakers.setdefault(name, Breaker())
        tried = breaker.probe is not None and breaker.probe[0] == seq
        if breaker.open_until and not tried:
            return
        if not failed:
            breaker.open_until = 0
        else:
            breaker.failures = [*recent(breaker.failures, self.now, BREAKER[1]), self.now]
            if not breaker.open_until and len(breaker.failures) < BREAKER[0]:
                return
            breaker.failures, breaker.open_until = [], self.now + BREAKER_PAUSE
        breaker.probe = None

    def breaker_state(self, name: str) -> str | None:
        if self.policy.get("breaker") is None:
            return None
        until = self.breakers.get(name, Breaker()).open_until
        return "closed" if not until else "open" if self.now < until else "half-open"

    def release(self, token: str) -> None:
        one = self.held.pop(token)
        self.views[one.view][one.seq] = Status("ready", 0, one.attempts - 1, turn=one.turn)

    def expire(self) -> None:
        """What has outlived its ttl, and nobody holds, is gone."""
        ttl = self.policy.get("ttl")
        for view in self.views.values() if ttl else ():
            for seq, one in list(view.items()):
                if one.state == "ready" and self.messages[seq].at <= self.now - ttl * 1000:
                    del view[seq]
                    self.tell(seq, ("expired", None))

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
        flying = sum(one.view == name for one in self.held.values())
        return ready, flying, delayed, sum(one.state == "failed" for one in view)

    def length(self) -> int:
        """What the group with most left has left, and what no group wanted."""
        most = max(sum(self.counts(name)[:3]) for name in self.current())
        return most + (sum(self.counts("")[:3]) if "" not in self.current() else 0)

    def unsettled(self) -> list[int]:
        seqs = {seq for view in self.views.values() for seq in view}
        return sorted(seqs | {one.seq for one in self.held.values()})


def recent(times: list[int], now: int, period: int) -> list[int]:
    """Those times that lie less than a period back."""
    return [at for at in times if at > now - period]

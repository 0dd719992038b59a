"""Flow control: the rate and the concurrency of a queue's deliveries.

Rates, windows and breakers are values without I/O. `Limiter` keeps their state in the store, inside the commit of a
take, so that they hold for every process that has the queue open.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.core.clock import parse_duration, seconds
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.names import check_whole
from penstock.core.queue.state import keys
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.consuming.delivery import Delivery
    from penstock.core.queue.operations.settle import LeaseHandle
    from penstock.core.queue.policy import QueuePolicy
    from penstock.core.queue.state.cache import QueueState
    from penstock.core.queue.state.group import Group

# ── rates ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
MOST = 1_000_000_000
LONGEST_PERIOD = 366 * 86_400.0


class Rate(msgspec.Struct, frozen=True):
    """At most `count` in any `period_ms`."""

    count: int
    period_ms: int


@lru_cache(256)
def read_rate(text: str) -> Rate:
    """Returns the parsed form of a rate; raises ConfigError for invalid text."""
    number, slash, period = text.replace(" ", "").replace("_", "").partition("/")
    if not slash or not number.isascii() or not number.isdigit() or not period:
        raise ConfigError(f"{text!r} is no rate: write a number and a period, like 100/s, 10/m, 1000/h or 5/30s")
    seconds = parse_duration(period if period[0].isdigit() else f"1{period}")
    count = int(number)
    if not 1 <= count <= MOST:
        raise ConfigError(f"{text!r} is no rate that can be used: the number must be from 1 to {MOST:,}")
    if not 0.001 <= seconds <= LONGEST_PERIOD:
        raise ConfigError(f"{text!r} is no rate that can be used: the period must be from 1 ms to a year")
    return Rate(count, round(seconds * 1000))


def check_rate(value: object, name: str) -> str | None:
    """Returns a rate as a caller gave it, in the form in which it is stored."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f'{name} must be text like "100/s", not {value!r:.80}')
    try:
        read_rate(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return value.replace(" ", "").replace("_", "")


# ── windows ───────────────────────────────────────────────────────────────────────────────────────────────────────────
SLOTS = 100


class Window(msgspec.Struct, array_like=True):
    """The start times and counts of a window, the oldest first."""

    begun: list[tuple[int, int]] = []

    def forget(self, rate: Rate, now: int) -> None:
        """Drops starts that are older than a period."""
        bound = now - rate.period_ms
        self.begun = [one for one in self.begun if one[0] > bound]

    def set_back(self, now: int) -> None:
        """Adjusts to a clock that was set back: no start is later than now."""
        self.begun = [(min(at, now), count) for at, count in self.begun]

    def room(self, rate: Rate, now: int) -> int:
        """Returns the number of further starts that are allowed now."""
        self.forget(rate, now)
        return max(0, rate.count - sum(count for _, count in self.begun))

    def next_ms(self, rate: Rate, now: int) -> int:
        """Returns the time when the next start is allowed: now, or when enough earlier starts are older than a
        period.
        """
        self.forget(rate, now)
        left = sum(count for _, count in self.begun)
        for at, count in self.begun:
            if left < rate.count:
                break
            left -= count
            now = at + rate.period_ms
        return now

    def note(self, rate: Rate, now: int, count: int) -> None:
        """Counts starts at this time."""
        slot = max(1, rate.period_ms // SLOTS)
        if self.begun:
            now = max(now, self.begun[-1][0])  # a clock may go back a little without an adjustment of windows
            if self.begun[-1][0] // slot == now // slot:
                count += self.begun.pop()[1]
        self.begun.append((now, count))

    def is_over(self, rate: Rate, now: int) -> bool:
        """Returns True if no start counts any more."""
        return not self.begun or self.begun[-1][0] + rate.period_ms <= now


# ── circuit breakers ──────────────────────────────────────────────────────────────────────────────────────────────────
BreakerState = Literal["closed", "open", "half-open"]


class Breaker(msgspec.Struct, array_like=True):
    """The circuit breaker of a group."""

    failures: Window = msgspec.field(default_factory=Window)
    open_until: int = 0
    """The time when one message may be tried; 0 while the breaker is closed."""
    probe: int = 0
    """The position of the message that is being tried; 0 for none."""
    probe_lease: int = 0

    def state(self, now: int) -> BreakerState:
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def room(self, now: int, asked: int) -> int:
        """Returns the number of messages that may be taken now."""
        state = self.state(now)
        if state == "closed":
            return asked
        return 0 if state == "open" or self.probe else min(asked, 1)

    def failed(self, rate: Rate, pause_ms: int, now: int, seq: int) -> bool:
        """Counts a failed attempt; returns True when the attempt opens the breaker."""
        if self.open_until:
            if seq != self.probe:
                return False  # the attempt began before the breaker opened
        else:
            self.failures.note(rate, now, 1)
            if self.failures.room(rate, now):
                return False
        self.failures = Window()
        self.open_until = now + pause_ms
        self.probe = self.probe_lease = 0
        return True

    def succeeded(self, seq: int) -> bool:
        """Notes that a message was handled; returns True when this closes the breaker."""
        if not self.open_until or seq != self.probe:
            return False
        self.open_until = self.probe = self.probe_lease = 0
        return True


# ── in a policy ───────────────────────────────────────────────────────────────────────────────────────────────────────
def check_fair_by(value: object) -> str | None:
    """Returns the checked `fair_by`: a header's name, "key", or "key:" with the separator that ends the relevant
    part of the key.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not value or value == "key:":
        raise ConfigError(
            f'fair_by must be the name of a header, "key", or "key:/" for the part of the key before a "/", '
            f"not {value!r:.80}"
        )
    return value


MOST_PER_KEY = 1024
"""The most messages of one key in flight: their positions are one row."""


def check_flow(fields: dict[str, Any]) -> None:
    """Converts the given fields to their stored form; a ConfigError names the first bad field."""
    for name in ("rate", "rate_per_key", "breaker"):
        if name in fields:
            fields[name] = check_rate(fields[name], name)
    for name in ("throttle", "debounce", "debounce_limit", "breaker_pause"):
        if name in fields and (fields[name] is not None or name == "breaker_pause"):
            fields[name] = seconds(fields[name], name, minimum=0.001)
            if fields[name] > LONGEST_PERIOD:
                raise ConfigError(f"{name} must be at most a year, not {fields[name]:g} s")
    if "fair_by" in fields:
        fields["fair_by"] = check_fair_by(fields["fair_by"])
    if "max_in_flight_per_key" in fields:
        most = check_whole(fields["max_in_flight_per_key"], "max_in_flight_per_key")
        if most > MOST_PER_KEY:
            raise ConfigError(f"max_in_flight_per_key must be at most {MOST_PER_KEY}, not {most}")


def check_flow_together(policy: QueuePolicy, queue: str) -> None:
    """Refuses limits by key where messages have no keys, and contradictory settings."""
    if policy.throttle is not None and policy.debounce is not None:
        raise ConfigError(f"queue {queue!r}: the first push wins (throttle) or the newest one (debounce), not both")
    if policy.debounce_limit is not None and (policy.debounce is None or policy.debounce_limit < policy.debounce):
        raise ConfigError(f"queue {queue!r}: debounce_limit= goes with debounce=, and is not shorter")
    if policy.priority and policy.fair_by is not None:
        raise ConfigError(
            f"queue {queue!r}: the highest priority goes first, or all have their turn (fair_by), not both"
        )
    if policy.priority:
        by_key = {
            "rate_per_key": policy.rate_per_key is not None,
            "max_in_flight_per_key": policy.max_in_flight_per_key != 1,
            "throttle": policy.throttle is not None,
            "debounce": policy.debounce is not None,
        }
        for name, is_given in by_key.items():
            if is_given:
                raise ConfigError(
                    f"queue {queue!r} has priorities, and messages with priorities have no ordering keys: "
                    f"{name} would never apply"
                )


def limits_takes(policy: QueuePolicy) -> bool:
    """Returns True if a take must consider more than the next message."""
    limits = policy.ttl, policy.max_in_flight, policy.rate, policy.rate_per_key, policy.breaker, policy.fair_by
    return any(limit is not None for limit in limits)


# ── in the store ──────────────────────────────────────────────────────────────────────────────────────────────────────
read_window = keys.row_decoder(Window)
read_breaker = keys.row_decoder(Breaker)


def load_breaker(snap: Snapshot, group: Group) -> Breaker:
    value = snap.get(keys.flow_key(group.topic, group.group_id, b"k"))
    return Breaker() if value is None else read_breaker(value, group.queue.name)


def save_breaker(commit: Commit, group: Group, breaker: Breaker) -> None:
    commit.tx.put(keys.flow_key(group.topic, group.group_id, b"k"), keys.encode(breaker))


def forget_breakers(commit: Commit, queue: QueueState) -> None:
    """Removes the breakers of a queue whose policy no longer has a breaker; a later breaker begins closed."""
    for group in queue.all_groups(commit.tx):
        commit.tx.delete(keys.flow_key(group.topic, group.group_id, b"k"))


def breaker_state(snap: Snapshot, group: Group, now: int) -> BreakerState | None:
    """Returns the state of a group's breaker; None where the policy has none."""
    queue = group.queue
    return None if queue.policy.breaker is None else load_breaker(snap, group).state(now)


class Limiter:
    """The limits on one take."""

    __slots__ = ("_breaker", "_commit", "_group", "_key_rate", "_now", "_queue", "_rate", "_window", "next_ms")

    def __init__(self, commit: Commit, group: Group) -> None:
        queue = group.queue
        policy = queue.record.policy
        self._commit = commit
        self._queue = queue
        self._group = group
        self._now = commit.now_ms
        self._rate = None if policy.rate is None else read_rate(policy.rate)
        self._key_rate = None if policy.rate_per_key is None else read_rate(policy.rate_per_key)
        self._window = Window() if self._rate is None else self._load(keys.flow_key(queue.topic, group.group_id, b"q"))
        self._breaker: Breaker | None = None
        self.next_ms = 0
        """The time when a refused take may try again; 0 without a refusal."""

    def room(self, asked: int) -> int:
        """Returns the number of requested messages that may be taken now."""
        if self._queue.record.policy.breaker is not None:
            # Not earlier: messages with ended leases are taken back first, and each of them is a failure.
            self._breaker = load_breaker(self._commit.tx, self._group)
        breaker = self._breaker
        if breaker is not None and breaker.open_until:
            pause_ms = round(self._queue.record.policy.breaker_pause * 1000)
            if breaker.open_until > self._now + pause_ms:  # the clock was set back, or the policy has a shorter pause
                breaker.open_until = self._now + pause_ms
                save_breaker(self._commit, self._group, breaker)
            if breaker.probe and self._group.lease(self._commit.tx, breaker.probe_lease) is None:
                breaker.probe = breaker.probe_lease = 0  # the message was given back, claimed or purged
            asked = breaker.room(self._now, asked)
            if not asked:
                self.next_ms = 0 if breaker.probe else breaker.open_until
                return 0
        if self._rate is None:
            return asked
        room = self._window.room(self._rate, self._now)
        if not room:
            self.next_ms = self._window.next_ms(self._rate, self._now)
        return min(asked, room)

    def taken(self, deliveries: list[Delivery]) -> None:
        """Counts messages that were taken."""
        count = len(deliveries)
        if self._breaker is not None and self._breaker.open_until and count:
            hold = deliveries[0]._hold
            if TYPE_CHECKING:
                assert isinstance(hold, LeaseHandle)
            self._breaker.probe, self._breaker.probe_lease = deliveries[0].event.seq, hold.lease_id
            save_breaker(self._commit, self._group, self._breaker)
        if self._rate is not None and count:
            self._window.note(self._rate, self._now, count)
            row = keys.flow_key(self._queue.topic, self._group.group_id, b"q")
            self._commit.tx.put(row, keys.encode(self._window))

    def take_key(self, key: str) -> int:
        """Counts a delivery of a key and returns 0.

        When the key's rate is used up, returns the time of its next delivery.
        """
        rate = self._key_rate
        if rate is None:
            return 0
        row = keys.flow_key(self._queue.topic, self._group.group_id, b"r", key)
        window = self._load(row)
        if not window.room(rate, self._now):
            return window.next_ms(rate, self._now)
        window.note(rate, self._now, 1)
        self._commit.tx.put(row, keys.encode(window))
        return 0

    def _load(self, row: bytes) -> Window:
        value = self._commit.tx.get(row)
        return Window() if value is None else read_window(value, self._queue.name)


def limiter_for(commit: Commit, group: Group) -> Limiter | None:
    """Returns the limits on a take; None where the policy has none."""
    queue = group.queue
    policy = queue.record.policy
    unlimited = policy.rate is None and policy.rate_per_key is None and policy.breaker is None
    return None if unlimited else Limiter(commit, group)

"""What a group's policy lets one take have, inside its commit: rates of the queue and of its keys, the breaker."""

from __future__ import annotations

from penstock.clock import set_back_ms
from penstock.journal.commit.commit import Commit
from penstock.queue.delivery import LocalDelivery
from penstock.queue.flow.breaker import Breaker
from penstock.queue.flow.circuit import load_breaker, save_breaker
from penstock.queue.flow.rate import Rate, read_rate
from penstock.queue.flow.rows import decode_row, encode_row, flow_key, flow_rows, forget_rows, read_row
from penstock.queue.flow.window import Window
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group


class Limiter:
    """The limits on one take."""

    __slots__ = ("_breaker", "_commit", "_group", "_key_rate", "_now", "_queue", "_rate", "_window", "next_ms")

    def __init__(self, commit: Commit, queue: QueueState, group: Group) -> None:
        policy = queue.record.policy
        self._commit = commit
        self._queue = queue
        self._group = group
        self._now = commit.now_ms
        self._rate = None if policy.rate is None else read_rate(policy.rate)
        self._key_rate = None if policy.rate_per_key is None else read_rate(policy.rate_per_key)
        self._window = Window() if self._rate is None else self._load(flow_key(queue.topic, group.number, b"q"))
        self._breaker: Breaker | None = None
        self.next_ms = 0
        """When a take that was refused may look again; 0: none was."""

    def room(self, asked: int) -> int:
        """How many of the messages asked for may be taken now."""
        if self._queue.record.policy.breaker is not None:
            # Not before: taking back what has lost its lease comes first, and each of those is a failure.
            self._breaker = load_breaker(self._commit.tx, self._group)
        breaker = self._breaker
        if breaker is not None and breaker.open_until:
            pause_ms = round(self._queue.record.policy.breaker_pause * 1000)
            back = set_back_ms(breaker.open_until - pause_ms, self._now)
            if back:  # the clock was set back, or the policy has a shorter pause since
                breaker.open_until -= back
                save_breaker(self._commit, self._group, breaker)
            if breaker.probe and self._group.lease(self._commit.tx, breaker.probe_lease) is None:
                breaker.probe = breaker.probe_lease = 0  # it was given back, claimed or purged
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

    def taken(self, deliveries: list[LocalDelivery]) -> None:
        """Some messages were taken."""
        count = len(deliveries)
        if self._breaker is not None and self._breaker.open_until and count:
            self._breaker.probe, self._breaker.probe_lease = deliveries[0].event.seq, deliveries[0]._hold.number
            save_breaker(self._commit, self._group, self._breaker)
        if self._rate is not None and count:
            self._window.note(self._rate, self._now, count)
            row = flow_key(self._queue.topic, self._group.number, b"q")
            self._commit.tx.put(row, encode_row(self._window))

    def take_key(self, key: str) -> int:
        """Counts a delivery of a key and returns 0; or, where its rate is used up, says when the next one may be."""
        rate = self._key_rate
        if rate is None:
            return 0
        row = flow_key(self._queue.topic, self._group.number, b"r", key)
        window = self._load(row)
        if not window.room(rate, self._now):
            return window.next_ms(rate, self._now)
        window.note(rate, self._now, 1)
        self._commit.tx.put(row, encode_row(window))
        return 0

    def _load(self, row: bytes) -> Window:
        return read_row(self._commit.tx, row, Window, self._queue.name) or Window()


def limiter_for(commit: Commit, queue: QueueState, group: Group) -> Limiter | None:
    """The limits on a take; None where the policy has none."""
    policy = queue.record.policy
    unlimited = policy.rate is None and policy.rate_per_key is None and policy.breaker is None
    return None if unlimited else Limiter(commit, queue, group)


def forget_windows(commit: Commit, queue: QueueState, group: Group, after: bytes) -> bytes:
    """Removes windows of keys in which nothing counts any more, some at a time; returns where to go on."""
    text = queue.record.policy.rate_per_key
    rate: Rate | None = None if text is None else read_rate(text)

    def is_over(value: bytes) -> bool:
        return rate is None or decode_row(value, Window, queue.name).is_over(rate, commit.now_ms)

    return forget_rows(commit, flow_rows(queue.topic, group.number, b"r"), after, is_over)

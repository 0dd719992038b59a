"""What a group's policy lets one take have, inside its commit: rates of the queue and of its keys."""

from __future__ import annotations

from penstock.journal.commit.commit import Commit
from penstock.queue.flow.rate import Rate, read_rate
from penstock.queue.flow.rows import decode_row, encode_row, flow_key, flow_rows, read_row
from penstock.queue.flow.window import Window
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group

FORGET_STEP = 1024
"""Rows of keys that one commit looks at to forget those that do not count any more."""


class Limiter:
    """The limits on one take."""

    __slots__ = ("_commit", "_group", "_key_rate", "_now", "_queue", "_rate", "_window", "next_ms")

    def __init__(self, commit: Commit, queue: QueueState, group: Group) -> None:
        policy = queue.record.policy
        self._commit = commit
        self._queue = queue
        self._group = group
        self._now = commit.now_ms
        self._rate = None if policy.rate is None else read_rate(policy.rate)
        self._key_rate = None if policy.rate_per_key is None else read_rate(policy.rate_per_key)
        self._window = Window() if self._rate is None else self._load(flow_key(queue.topic, group.number, b"q"))
        self.next_ms = 0
        """When a take that was refused may look again; 0: none was."""

    def room(self, asked: int) -> int:
        """How many of the messages asked for may be taken now."""
        if self._rate is None:
            return asked
        room = self._window.room(self._rate, self._now)
        if not room:
            self.next_ms = self._window.next_ms(self._rate, self._now)
        return min(asked, room)

    def taken(self, count: int) -> None:
        """Some messages were taken."""
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
    return None if policy.rate is None and policy.rate_per_key is None else Limiter(commit, queue, group)


def forget_keys(commit: Commit, queue: QueueState, group: Group, after: bytes) -> bytes | None:
    """Removes windows of keys in which nothing counts any more, some at a time; returns how far it came, None: to
    the end."""
    text = queue.record.policy.rate_per_key
    rate: Rate | None = None if text is None else read_rate(text)
    low, high = flow_rows(queue.topic, group.number, b"r")
    seen = 0
    last = b""
    over: list[bytes] = []
    for key, value in commit.tx.scan(max(low, after), high):
        if rate is None or decode_row(value, Window, queue.name).is_over(rate, commit.now_ms):
            over.append(key)
        seen, last = seen + 1, key
        if seen == FORGET_STEP:
            break
    for key in over:
        commit.tx.delete(key)
    return last + b"\0" if seen == FORGET_STEP else None

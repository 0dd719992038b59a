"""The record of a group, the keys of its rows, and the rows of failed attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.queue.state import keys
from penstock.core.queue.state.feed import TOLD_TOGETHER, Change
from penstock.core.queue.state.records import (
    NO_TRAIL,
    FailureTrail,
    GroupRecord,
    MessageRow,
    encode,
    read_message,
    read_trail,
)

if TYPE_CHECKING:
    from penstock.core.queue.state.cache import QueueState


class GroupRows:
    """The rows of a group."""

    __slots__ = ("group_id", "name", "prefix", "queue", "record", "topic")

    def __init__(self, queue: QueueState, group_id: int, name: str, record: GroupRecord) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.group_id = group_id
        self.name = name
        self.record = record
        self.prefix = keys.group_prefix(queue.topic, group_id, queue.record.purges)

    def save(self, commit: Commit) -> None:
        """Writes the record, when the commit ends: see `Commit.touch`."""
        if commit.now_ms > self.record.seen_ms:
            self.record.seen_ms = commit.now_ms
        commit.tx.keep()  # a consumer knows the lease, its deadline and its attempt, and may outlive this process
        commit.tx.put(self.prefix + keys.RECORD, encode(self.record))

    def row(self, kind: bytes, seq: int) -> bytes:
        """Returns the key of a row that is about one position, or one lease."""
        return self.prefix + kind + seq.to_bytes(8)

    def rows(self, kind: bytes, after: int = 0, through: int | None = None) -> tuple[bytes, bytes]:
        """Returns the range of all rows of one kind, or of the rows of some positions."""
        low, high = self.prefix + kind, self.prefix + bytes([kind[0] + 1])
        return self.row(kind, after + 1) if after else low, high if through is None else self.row(kind, through + 1)

    def due_rows(self, now: int) -> tuple[bytes, bytes]:
        """Returns the range of the index rows of messages whose time has come."""
        return self.prefix + keys.WAITING, keys.waiting_key(self.prefix, now + 1, 0)

    def count_in_state(self, state: int) -> int:
        """Returns the number of messages in a state."""
        record = self.record
        return (record.ready, record.waiting, record.held, record.failed)[state]

    def placed(self, snap: Snapshot, state: int, seq: int) -> MessageRow | None:
        """Returns the message at a position that has a row of its own in a state."""
        value = snap.get(self.prefix + keys.PLACES[state] + seq.to_bytes(8))
        return read_message(value, self.queue.name) if value else None

    def tell(self, commit: Commit, message: MessageRow, change: Change | None) -> None:
        """Records a change of a message in the queue's feed, if it has a feed."""
        if self.queue.feed is not None and change is not TOLD_TOGETHER:
            self.queue.feed.note(commit, change, message.seq, self.name, message.attempts)

    def trail(self, snap: Snapshot, message: MessageRow) -> FailureTrail:
        """Returns the traces of a message's failed attempts; nothing without failed attempts."""
        value = snap.get(self.row(keys.TRAIL, message.seq)) if message.traced else None
        return NO_TRAIL if value is None else read_trail(value, self.queue.name)

    def save_trail(self, commit: Commit, message: MessageRow, trail: FailureTrail) -> None:
        """Writes the traces of a message's attempts, or removes them; `move` stores whether there are traces."""
        if trail.attempts or trail.traceback is not None:
            message.traced = True
            commit.tx.put(self.row(keys.TRAIL, message.seq), encode(trail))
        elif message.traced:
            message.traced = False
            commit.tx.delete(self.row(keys.TRAIL, message.seq))

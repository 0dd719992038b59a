"""What is kept of a message's failed attempts: one row for each message that failed, and none for others.

The newest attempts, each in a line, and the traceback of the last. It is a row of its own, not a part of the message's,
because leases hold messages and are written often.
"""

from __future__ import annotations

import msgspec

from penstock.clock import from_ms
from penstock.engine.contract import Snapshot
from penstock.errors import Corrupt
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.keys import stored_name
from penstock.limits import ATTEMPTS_KEPT, MAX_ATTEMPT_ERROR_BYTES
from penstock.queue.state import keys
from penstock.queue.state.group import Group
from penstock.queue.state.presence import read_presence
from penstock.queue.state.records import Lease, MessageRow, encode
from penstock.surface.failure import Attempt, AttemptEnd, cut_middle


class AttemptRow(msgspec.Struct, array_like=True, frozen=True):
    """A failed attempt, as it is stored."""

    number: int
    delivered_ms: int
    ended_ms: int
    ended: AttemptEnd
    consumer: str | None = None
    host: str | None = None
    error: str | None = None

    def shown(self) -> Attempt:
        """The attempt as callers see it."""
        times = from_ms(self.delivered_ms), from_ms(self.ended_ms)
        return Attempt(self.number, *times, self.ended, self.consumer, self.host, self.error)


class FailureTrail(msgspec.Struct, array_like=True, frozen=True):
    """A message's failed attempts, and where the last of them failed."""

    attempts: list[AttemptRow] = []
    """The newest, the oldest of them first."""
    traceback: str | None = None

    def shown(self) -> list[Attempt]:
        return [attempt.shown() for attempt in self.attempts]


NO_TRAIL = FailureTrail()
_decode = msgspec.msgpack.Decoder(FailureTrail).decode


def read_trail(snap: Snapshot, group: Group, message: MessageRow) -> FailureTrail:
    """What a message's attempts left behind; nothing when none has failed."""
    value = snap.get(keys.trail_key(group.topic, group.number, message.seq)) if message.traced else None
    return NO_TRAIL if value is None else decode_trail(value, group.queue.name)


def decode_trail(value: bytes, queue: str) -> FailureTrail:
    """A row of a queue as the trail it holds; Corrupt when it is none."""
    if not value or not 0x80 <= value[0] < 0xC0:  # no text begins so: it is a traceback from before attempts were kept
        return FailureTrail(traceback=stored_name(value))
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"a record of queue {queue!r} does not decode: {error}", topic=queue) from error


def keep_trail(commit: Commit, message: MessageRow, group: Group, trail: FailureTrail) -> None:
    """Writes what a message's attempts left behind, or removes what was there."""
    if trail.attempts or trail.traceback is not None:
        message.traced = True
        commit.tx.put(keys.trail_key(group.topic, group.number, message.seq), encode(trail))
    elif message.traced:
        message.traced = False
        forget_trail(commit, group, message.seq)


def forget_trail(commit: Commit, group: Group, seq: int) -> None:
    commit.tx.delete(keys.trail_key(group.topic, group.number, seq))


def tried_again(
    commit: Commit, group: Group, lease: Lease, message: MessageRow, ended_ms: int, ended: AttemptEnd, error: str | None
) -> list[AttemptRow]:
    """A message's attempts with the one that ends now, under this lease."""
    attempt = AttemptRow(
        message.attempts,
        message.last_ms,
        ended_ms,
        ended,
        lease.consumer,
        None if lease.consumer is None else _host(commit, group, lease.label, lease.consumer),
        None if error is None else cut_middle(error, MAX_ATTEMPT_ERROR_BYTES),
    )
    return [*read_trail(commit.tx, group, message).attempts, attempt][-ATTEMPTS_KEPT:]


def _host(commit: Commit, group: Group, label: str, consumer: str) -> str | None:
    """The machine of a consumer, as far as it is still listed."""
    queue = group.queue
    number = queue.record.groups.get(label, 0)
    known = queue.seen.get((number, consumer))
    if known is None:
        row = commit.tx.get(keys.presence_key(queue.topic, number, consumer))
        known = None if row is None else read_presence(row)
    return None if known is None else known.host or None

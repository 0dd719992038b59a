"""What was given up, and why: failed messages and dead letters; and a delivery found by its token."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import from_ms
from penstock.errors import StaleDelivery
from penstock.events import Event
from penstock.limits import ATTEMPTS_KEPT
from penstock.observe.sample import FailedMessage
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.inspect import letters
from penstock.queue.inspect.letters import LetterPlace
from penstock.queue.inspect.positions import events_after, group_named, inspecting
from penstock.queue.operations.settle import stale
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.state.trail import read_trail
from penstock.queue.token import fits, read_token
from penstock.surface.failure import DEAD_QUEUE, Attempt

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue

_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode


def find_delivery(queue: LocalQueue, token: str) -> LocalDelivery:
    """The delivery a token names, as its holder would have it; StaleDelivery when its lease is gone."""
    address = read_token(token)
    if address is None:
        raise StaleDelivery(f"{token[:40]!r} is no delivery's token", token=token[:40])
    with inspecting(queue) as (snap, state):
        if address.group and address.group not in state.record.groups.values():
            raise stale(token, queue.name)
        group = state.group(snap, address.group)
        lease = group.lease(snap, address.number)
        if lease is None or not fits(state.topic, address, lease.secret) or address.index not in lease.held():
            raise stale(token, queue.name)
        message = lease.message(address.index)
        event = BlockCache(queue.name, state.topic).event(snap, message.seq)
        if event is None:
            raise stale(token, queue.name)
        hold = LeaseHandle(queue, lease.label, lease.consumer).under(group, address.number, lease)
        return LocalDelivery(hold, address.index, event, message.attempts, lease.deadline_of(address.index))


def failures(queue: LocalQueue, group: str = "default", after: int = 0) -> Iterator[FailedMessage]:
    """The queue's own failed messages beyond a position, in order."""
    with inspecting(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        chosen = group_named(snap, state, group)
        _, stop = keys.rows(chosen.topic, chosen.number, b"f")
        for key, _ in snap.scan(keys.failed_key(chosen.topic, chosen.number, after + 1), stop):
            seq = keys.tail_seq(key)
            event, message = blocks.event(snap, seq), chosen.message(snap, seq)
            if event is None or message is None:
                continue
            at = from_ms(message.last_ms) if message.last_ms else None
            trail = read_trail(snap, chosen, message)
            yield FailedMessage(
                event, queue.name, message.attempts, "attempts", message.error, at, trail.traceback, trail.shown()
            )


def dead_letters(queue: LocalQueue, after: LetterPlace | None = None) -> Iterator[FailedMessage]:
    """The dead letters of a queue: those in its dead-letter queue that come from it, or, of such a queue, all. Those
    behind a place cost nothing for what lies before it."""
    registry = queue._registry
    target = queue.policy.dead_letter
    place = after or LetterPlace("", 0)
    own = place.queue == queue.name != target
    if target is not None and not own and target in registry.names():
        for event in _events_after(registry.existing(target), place.seq if place.queue == target else 0):
            if letters.origin(event) == queue.name:
                yield letter(event)
    # An ordinary queue is not walked: a hundred thousand messages would be looked at for nothing.
    if queue.name != target and _receives_dead(queue):
        for event in _events_after(queue, place.seq if own else 0):
            if letters.origin(event) is not None:
                yield letter(event)


def _events_after(queue: LocalQueue, seq: int) -> Iterator[Event]:
    with inspecting(queue) as (snap, state):
        yield from events_after(snap, state, queue.journal.clock.now_ms(), seq)


def _receives_dead(queue: LocalQueue) -> bool:
    """Whether dead letters come, or came, to a queue: some queue's policy names it, or it begins with one."""
    if any(letters.origin(event) is not None for event in queue.peek(1)):
        return True
    registry = queue._registry
    records = (registry.record(name) for name in registry.names())
    return any(record is not None and record.policy.dead_letter == queue.name for record in records)


def letter(event: Event) -> FailedMessage:
    """A dead letter with what its headers say. Anyone may push such headers: what cannot be read is left out."""
    headers = event.headers
    return FailedMessage(
        event,
        headers.get(DEAD_QUEUE, ""),
        _count(headers.get(letters.ATTEMPTS, "")),
        headers.get(letters.REASON, ""),
        headers.get(letters.ERROR),
        _time(headers.get(letters.LAST, "")),
        headers.get(letters.TRACEBACK),
        _attempts(headers.get(letters.TRIED, "")),
    )


def _attempts(text: str) -> list[Attempt]:
    try:
        return _decode_attempts(text)[:ATTEMPTS_KEPT] if text else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

"""What was given up, and why: failed messages and dead letters; and a delivery found by its token."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.clock import from_ms
from penstock.errors import StaleDelivery
from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.queue.delivery import LeaseHandle, LocalDelivery
from penstock.queue.inspect.positions import group_named, looking
from penstock.queue.operations import dead
from penstock.queue.operations.settle import stale
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.token import fits, read_token

if TYPE_CHECKING:
    from penstock.queue.queue import LocalQueue


def find_delivery(queue: LocalQueue, token: str) -> LocalDelivery:
    """The delivery a token names, as its holder would have it; StaleDelivery when its lease is gone."""
    address = read_token(token)
    if address is None:
        raise StaleDelivery(f"{token[:40]!r} is no delivery's token", token=token[:40])
    with looking(queue) as (snap, state):
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
        hold = LeaseHandle(queue, lease.label, lease.consumer).under(address.group, address.number, lease)
        return LocalDelivery(hold, address.index, event, message.attempts, lease.deadline_of(address.index))


def failures(queue: LocalQueue, group: str = "default") -> Iterator[FailedMessage]:
    """The queue's own failed messages, in order of position."""
    with looking(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        chosen = group_named(snap, state, group)
        for key, _ in snap.scan(*keys.rows(chosen.topic, chosen.number, b"f")):
            seq = keys.tail_seq(key)
            event, message = blocks.event(snap, seq), chosen.message(snap, seq)
            if event is None or message is None:
                continue
            at = from_ms(message.last_ms) if message.last_ms else None
            yield FailedMessage(
                event, queue.name, message.attempts, "attempts", message.error, at, chosen.traceback(snap, message)
            )


def dead_letters(queue: LocalQueue) -> Iterator[FailedMessage]:
    """The dead letters of a queue: those in its dead-letter queue that come from it, or, of such a queue, all."""
    registry = queue._registry
    target = queue.policy.dead_letter
    if target is not None and target in registry.names():
        for event in registry.existing(target):
            if dead.origin(event) == queue.name:
                yield letter(event)
    # An ordinary queue is not walked: a hundred thousand messages would be looked at for nothing.
    if queue.name != target and _receives_dead(queue):
        for event in queue:
            if dead.origin(event) is not None:
                yield letter(event)


def _receives_dead(queue: LocalQueue) -> bool:
    """Whether dead letters come, or came, to a queue: some queue's policy names it, or it begins with one."""
    if any(dead.origin(event) is not None for event in queue.peek(1)):
        return True
    registry = queue._registry
    records = (registry.record(name) for name in registry.names())
    return any(record is not None and record.policy.dead_letter == queue.name for record in records)


def letter(event: Event) -> FailedMessage:
    """A dead letter with what its headers say. Anyone may push such headers: what cannot be read is left out."""
    headers = event.headers
    return FailedMessage(
        event,
        headers.get(dead.QUEUE, ""),
        _count(headers.get(dead.ATTEMPTS, "")),
        headers.get(dead.REASON, ""),
        headers.get(dead.ERROR),
        _time(headers.get(dead.LAST, "")),
        headers.get(dead.TRACEBACK),
    )


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

"""What the HTTP API and the command line need of a queue beyond its public face: a delivery found again by its token,
and failed messages with the reason they failed for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.clock import from_ms
from penstock.errors import StaleDelivery
from penstock.events import Event
from penstock.observe.sample import FailedMessage
from penstock.queue.delivery import Delivery, LeaseHandle
from penstock.queue.inspect import _group, looking
from penstock.queue.operations.dead import origin
from penstock.queue.operations.settle import stale
from penstock.queue.state import keys
from penstock.queue.state.blocks import BlockCache
from penstock.queue.token import fits, read_token

if TYPE_CHECKING:
    from penstock.api import Journal
    from penstock.queue.queue import Queue


def find_delivery(queue: Queue, token: str) -> Delivery:
    """The delivery a token names, as its holder would have it; StaleDelivery when nobody holds it any more."""
    address = read_token(token)
    if address is None:
        raise StaleDelivery(f"{token[:40]!r} is no delivery's token", token=token[:40])
    with looking(queue) as (snap, state):
        if address.group and address.group not in state.record.groups.values():
            raise stale(token, queue.name)
        group = state.group(snap, address.group)
        lease = group.lease(snap, address.number)
        if lease is None or not fits(queue._number, address, lease.secret) or address.index not in lease.held():
            raise stale(token, queue.name)
        message = lease.message(address.index)
        event = BlockCache(queue.name, state.topic).event(snap, message.seq)
        if event is None:
            raise stale(token, queue.name)
        hold = LeaseHandle(queue, lease.label, lease.consumer).under(address.group, address.number, lease)
        return Delivery(hold, address.index, event, message.attempts, lease.deadline_of(address.index))


def failures(queue: Queue, group: str = "default") -> Iterator[FailedMessage]:
    """The queue's own failed messages, in order of position."""
    with looking(queue) as (snap, state):
        blocks = BlockCache(queue.name, state.topic)
        chosen = _group(snap, state, group)
        for key, _ in snap.scan(*keys.rows(chosen.topic, chosen.number, b"f")):
            seq = keys.tail_seq(key)
            event, message = blocks.event(snap, seq), chosen.message(snap, seq)
            if event is None or message is None:
                continue
            at = from_ms(message.last_ms) if message.last_ms else None
            yield FailedMessage(event, queue.name, message.attempts, "attempts", message.error, at)


def letters(journal: Journal, name: str) -> Iterator[FailedMessage]:
    """The dead letters of a queue: those in its dead-letter queue that come from it, or, of such a queue, all."""
    queue = journal.queue(name)
    dead_letters = queue.policy.dead_letter
    if dead_letters is not None and dead_letters in journal.queues():
        for event in journal.queue(dead_letters):
            if origin(event) == name:
                yield letter(event)
    # An ordinary queue is not walked: a hundred thousand messages would be looked at for nothing.
    if name != dead_letters and _receives_dead(journal, queue):
        for event in queue:
            if origin(event) is not None:
                yield letter(event)


def _receives_dead(journal: Journal, queue: Queue) -> bool:
    """Whether dead letters come, or came, to a queue: some queue's policy names it, or it begins with one."""
    if any(origin(event) is not None for event in queue.peek(1)):
        return True
    return any(journal.queue(name).policy.dead_letter == queue.name for name in journal.queues())


def letter(event: Event) -> FailedMessage:
    """A dead letter with what its headers say."""
    headers = event.headers
    attempts = headers.get("dead-attempts", "")
    last = headers.get("dead-last-delivered-at")
    return FailedMessage(
        event,
        headers.get("dead-queue", ""),
        int(attempts) if attempts.isdigit() else 0,
        headers.get("dead-reason", ""),
        headers.get("dead-error"),
        datetime.fromisoformat(last) if last else None,
    )

"""Acts on messages: send back what was given up, edit it, delete it; release and settle what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.documents.conditions import Where
from penstock.errors import ConfigError, UnknownQueue
from penstock.events import Event
from penstock.queue.letters import origin
from penstock.queue.operations.repair import replace
from penstock.server.acts.act import ActCall, act, counted, happened
from penstock.server.acts.redriving import redrive_slowly

if TYPE_CHECKING:
    from penstock.surface.queue import Queue


def _choice(call: ActCall) -> Callable[[Event], bool] | None:
    """Which messages: those that were ticked, those of a condition, or all."""
    where = call.optional("where")
    condition = None if where is None else Where(where)
    scope = call.optional("scope") or "all"
    if scope == "all":
        return None
    if scope == "filter":
        if condition is None:
            raise ConfigError("a condition is missing, like: payload.total > 10")
        return condition.matches
    ids = frozenset(call.several("ids"))
    if not ids:
        raise ConfigError("choose some messages first")
    return lambda event: event.id in ids


@act("admin", "queue", "ids", "where", "scope", "limit", "rate")
def redrive(call: ActCall) -> str:
    """Sends dead letters and failed messages back: all of them, chosen ones, or those of a condition; or slowly."""
    queue, choice, limit, rate = call.queue(), _choice(call), call.whole("limit"), call.whole("rate")
    if rate == 0:
        raise ConfigError("the rate is a whole number of messages a second, like 10")
    if call.preview or rate is not None:
        count = queue.redrive(where=choice, limit=limit, dry_run=True)
        if not count:
            raise ConfigError("no message that was given up is among those")
        slowly = "" if rate is None else f", {rate:,} a second"
        if call.preview:
            return f"Send {counted(count, 'message')} back to their queue{slowly}, with a fresh budget?"
        assert rate is not None
        redrive_slowly(queue, choice, count, rate, call.stopping)
        return f"{counted(count, 'message')} will be sent back{slowly}"
    count = queue.redrive(where=choice, limit=limit)
    stay = [f"{counted(left.count, 'letter')} from {left.queue} stay: {left.reason}" for left in count.left]
    return "; ".join([happened(count, "message", "sent back"), *stay])


@act("admin", "queue", "ids", "where", "scope", "rate")
def delete(call: ActCall) -> str:
    """Removes messages that were given up, or that are not in flight. Its form has a redrive's rate."""
    queue, choice = call.queue(), _choice(call)
    if call.optional("rate") is not None:
        raise ConfigError("only what is sent back has a rate: empty that field to delete")
    found: dict[str, list[int]] = {}
    for group in queue.groups() if queue.policy.mode == "fanout" else ["default"]:
        for failure in queue.failures(group):
            if choice is None or choice(failure.event):
                found.setdefault(queue.name, []).append(failure.event.seq)
    for letter in queue.dead_letters():
        if choice is None or choice(letter.event):
            found.setdefault(letter.event.topic, []).append(letter.event.seq)
    count = sum(len(set(seqs)) for seqs in found.values())
    if not count:
        raise ConfigError("no message that was given up is among those")
    if call.preview:
        return f"Delete {counted(count, 'message')} that {queue.name} gave up? This cannot be undone."
    removed = sum(_discard(call, name, sorted(set(seqs))) for name, seqs in found.items())
    return happened(removed, "message", "deleted")


def _discard(call: ActCall, name: str, seqs: list[int]) -> int:
    """Removes messages of a queue, by their positions; none when it was dropped meanwhile."""
    try:
        return call.journal.queue(name, create=False).discard(seqs)
    except UnknownQueue:
        return 0


def _message(call: ActCall, queue: Queue) -> Event:
    """The message that a form is about."""
    seq = call.whole("seq")
    event = None if seq is None else queue.get(seq)
    if event is None:
        raise ConfigError(f"{queue.name} has no message {seq}: it was settled meanwhile")
    return event


@act("admin", "queue", "seq")
def delete_message(call: ActCall) -> str:
    """Removes one message that is not in flight, whatever its state."""
    queue = call.queue()
    event = _message(call, queue)
    if any(held.seq == event.seq for held in queue.pending()):
        raise ConfigError(f"message {event.seq} of {queue.name} is in flight: release it first, or settle it")
    if call.preview:
        return f"Delete 1 message, {queue.name} #{event.seq:,}? This cannot be undone."
    return happened(queue.discard([event.seq]), "message", "deleted")


@act("admin", "queue", "seq", "payload")
def edit(call: ActCall) -> str:
    """Pushes a message with another payload, and removes the old one, in one commit.

    A delayed one keeps its time, unless it has a key, and each its priority and its own budget. It was pushed already:
    no throttle or debounce applies to it.
    """
    queue, payload = call.queue(), call.payload()
    event = _message(call, queue)
    states = [one for one in queue.messages(after=event.seq - 1, limit=1) if one.event.id == event.id]
    try:
        target = call.journal.queue(origin(event) or queue.name, create=False)
    except (UnknownQueue, ConfigError):  # anyone may push a letter's headers: they may name nothing
        target = queue
    if call.preview:
        return f"Push 1 edited message to {target.name} and delete {queue.name} #{event.seq:,}?"
    if any(one.state == "in_flight" for one in states):
        raise ConfigError(f"message {event.seq} of {queue.name} is in flight: release it first")
    backend = call.journal._backend
    receipt = replace(backend.queue(queue.name), backend.queue(target.name), event, payload)
    if receipt is None:
        raise ConfigError(f"{queue.name} has no message {event.seq}: it was taken or settled meanwhile")
    return f"the edited message is {target.name} #{receipt.seq:,}"


@act("admin", "queue", "seq", "group")
def run_now(call: ActCall) -> str:
    """Makes a delayed message ready at once, or all of them."""
    queue, group, seq = call.queue(), call.optional("group"), call.whole("seq")
    waiting = [_message(call, queue).seq] if seq is not None else list(_delayed(queue, group))
    if call.preview:
        if not waiting:
            raise ConfigError(f"no message of {queue.name} waits for its time")
        return "" if seq is not None else f"Run {counted(len(waiting), 'delayed message')} of {queue.name} now?"
    return happened(queue.run_now(waiting, group=group), "message", "made ready")


def _delayed(queue: Queue, group: str | None) -> Iterator[int]:
    after = 0
    while page := queue.messages("delayed", group=group, after=after):
        yield from (one.seq for one in page)
        after = page[-1].seq


# ── in flight ────────────────────────────────────────────────────────────────────────────────────────────────────────
@act("write", "queue", "token")
def release(call: ActCall) -> str:
    """Takes a message from its holder and makes it ready again."""
    queue = call.queue()
    delivery = queue.delivery(call.text("token"))
    if call.preview:
        holder = delivery.consumer or "its holder"
        return f"Take 1 message, {queue.name} #{delivery.event.seq:,}, from {holder}? Another consumer will get it."
    delivery.release()
    return f"{queue.name} #{delivery.event.seq:,} is ready again"


@act("admin", "queue", "token", "outcome")
def settle(call: ActCall) -> str:
    """Settles a message in its holder's stead: done, or given up."""
    queue = call.queue()
    delivery = queue.delivery(call.text("token"))
    name = f"{queue.name} #{delivery.event.seq:,}"
    gives_up = call.optional("outcome") == "dead"
    if call.preview:
        done = "Give up" if gives_up else "Settle as done"
        return f"{done} 1 message, {name}, which {delivery.consumer or 'a consumer'} still works on?"
    if gives_up:
        delivery.nack(error="given up from the console", dead=True)
        return f"{name} was given up"
    delivery.ack()
    return f"{name} was settled"

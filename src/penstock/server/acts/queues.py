"""Acts on queues: push a message, change the policy, make, empty and drop queues, groups and schedules."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import ConfigError
from penstock.observe.workers import forget, gave_up
from penstock.queue.policy import DEFAULT, FIELDS, check_together, checked, refuse_other_mode
from penstock.queue.run.schedule import push_now
from penstock.server.acts.act import ActCall, act, counted, happened
from penstock.server.acts.policy import policy_given
from penstock.units import parse_duration


@act("write", "queue", "kind", "payload", "key", "delay", "priority")
def push(call: ActCall) -> str:
    queue, payload = call.queue(), call.payload()
    if call.preview:
        return ""
    receipt = queue.push(
        payload,
        kind=call.optional("kind") or "message",
        key=call.optional("key"),
        delay=call.duration("delay") or 0,
        priority=call.whole("priority") or 0,
    )
    return f"the message was pushed as {queue.name} #{receipt.seq:,}"


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@act("admin", "queue", *FIELDS)
def policy(call: ActCall) -> str:
    queue = call.queue()
    changes = checked(policy_given(call, emptied=True), queue.name)
    refuse_other_mode(queue.name, queue.policy, changes.get("mode", queue.policy.mode))
    values = msgspec.structs.asdict(queue.policy)
    changed = {name: value for name, value in changes.items() if values[name] != value}
    check_together(msgspec.structs.replace(queue.policy, **changed), queue.name)
    words = ", ".join(f"{name.replace('_', ' ')}" for name in changed)
    if call.preview:
        if not changed:
            return f"Nothing is different. Save the policy of {queue.name} all the same?"
        return f"Change {words} of {queue.name}, with {counted(len(queue), 'message')} in it?"
    queue.configure(**changed)
    return f"the policy of {queue.name} was changed: {words or 'nothing'}"


@act("admin", "queue", *FIELDS)
def make_queue(call: ActCall) -> str:
    name = call.text("queue")
    if name in call.journal.queues():
        raise ConfigError(f"there is a queue {name!r} already: its page changes its policy")
    wanted = checked(policy_given(call, emptied=False), name)
    check_together(msgspec.structs.replace(DEFAULT, **wanted), name)
    if call.preview:
        held = call.journal.topic(name).latest if name in call.journal.topics() else 0
        return f"{name} is a topic with {counted(held, 'event')}. Make it a queue as well?" if held else ""
    call.journal.queue(name, **wanted)
    return f"the queue {name} was made"


# ── pausing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@act("admin", "queue", "group")
def pause(call: ActCall) -> str:
    """Hands nothing out any more, to one group or to all."""
    queue, group = call.queue(), call.optional("group")
    name = queue.name if group is None else f"{queue.name}/{group}"
    if group is not None and group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    if call.preview:
        groups = [group] if group is not None else queue.groups() if queue.policy.mode == "fanout" else ["default"]
        found = [queue.stats(one) for one in groups]
        ready, in_flight = sum(one.ready for one in found), sum(one.in_flight for one in found)
        held = f"; {counted(in_flight, 'message')} in flight may still be settled" if in_flight else ""
        return f"Pause {name}? {counted(ready, 'ready message')} will wait until it is resumed{held}."
    return f"{name} is paused" if queue.pause(group) else f"{name} was paused already"


@act("admin", "queue", "group")
def resume(call: ActCall) -> str:
    queue, group = call.queue(), call.optional("group")
    name = queue.name if group is None else f"{queue.name}/{group}"
    if call.preview:
        return ""
    return f"{name} goes on" if queue.resume(group) else f"{name} was not paused"


# ── emptying and dropping ────────────────────────────────────────────────────────────────────────────────────────────
@act("admin", "queue")
def purge(call: ActCall) -> str:
    queue = call.queue()
    if call.preview:
        return f"Remove {_contents(call)} of {queue.name}, also those in flight? This cannot be undone."
    return happened(queue.purge(), "message", "removed")


@act("admin", "queue")
def drop_queue(call: ActCall) -> str:
    queue = call.queue()
    if call.preview:
        groups, schedules = queue.groups(), queue.schedules()
        with_ = f" with {counted(len(groups), 'group')} and {counted(len(schedules), 'schedule')}"
        return (
            f"Drop the queue {queue.name} and {_contents(call)} in it,{with_}? This cannot be undone; its topic stays."
        )
    return f"the queue {queue.name} was dropped with {counted(queue.drop(), 'message')}"


def _contents(call: ActCall) -> str:
    return counted(sum(1 for _ in call.queue()), "message")


# ── groups and schedules ─────────────────────────────────────────────────────────────────────────────────────────────
@act("write", "queue", "group", "after")
def add_group(call: ActCall) -> str:
    queue, group = call.queue(), call.text("group")
    latest = (call.optional("after") or "start") == "end"
    if call.preview:
        return ""
    queue.add_group(group, after="latest" if latest else 0)
    return f"the group {group} was added"


@act("admin", "queue", "group")
def remove_group(call: ActCall) -> str:
    queue, group = call.queue(), call.text("group")
    if group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    if call.preview:
        stats = queue.stats(group)
        waiting = stats.ready + stats.in_flight + stats.delayed + stats.failed
        return f"Remove the group {group} of {queue.name}? {counted(waiting, 'message')} will no longer wait for it."
    queue.remove_group(group)
    return f"the group {group} was removed"


MISSED: tuple[Literal["all", "last", "none"], ...] = ("all", "last", "none")


@act("write", "queue", "name", "when", "timezone", "payload", "kind", "missed")
def add_schedule(call: ActCall) -> str:
    queue, name, when = call.queue(), call.text("name"), call.text("when")
    payload = call.payload()
    wanted = call.optional("missed") or "all"
    missed = next((one for one in MISSED if one == wanted), None)
    if missed is None:
        raise ConfigError(f"missed is all, last or none, not {wanted[:40]!r}")
    is_cron = len(when.split()) in (5, 6) or when.startswith("@")
    interval = when if is_cron else parse_duration(when)
    if call.preview:
        known = any(one.name == name for one in queue.schedules())
        return f"{queue.name} has a schedule {name}. Replace it?" if known else ""
    made = queue.every(
        interval,
        payload,
        name=name,
        timezone=call.optional("timezone") or "UTC",
        missed=missed,
        kind=call.optional("kind") or "message",
    )
    return f"{name} ticks next at {made.next_tick:%Y-%m-%d %H:%M:%S} UTC"


@act("write", "queue", "name")
def remove_schedule(call: ActCall) -> str:
    queue, name = call.queue(), call.text("name")
    if call.preview:
        return f"Remove the schedule {name} of {queue.name}?"
    if not queue.unschedule(name):
        raise ConfigError(f"{queue.name} has no schedule {name[:80]!r}")
    return f"the schedule {name} was removed"


@act("write", "queue", "name")
def run_schedule(call: ActCall) -> str:
    """Pushes a schedule's message now; its ticks stay as they are."""
    queue, name = call.queue(), call.text("name")
    if call.preview:
        return ""
    receipt = push_now(call.journal._backend.queue(queue.name), name)
    return f"the message of {name} was pushed as {queue.name} #{receipt.seq:,}"


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@act("admin", "worker")
def forget_worker(call: ActCall) -> str:
    """Forgets that a worker gave up, which an operator has seen."""
    worker = call.text("worker")
    if not any(one.worker == worker for one in gave_up(call.journal)):
        raise ConfigError(f"no worker {worker[:80]!r} has given up, or it was started again")
    if call.preview:
        return f"Forget 1 report, that {worker} gave up? Nothing is started by that."
    forget(call.journal, worker)
    return f"{worker} is no longer reported"

"""Everything that the console does: a function for each act, and the table of them.

Each reads its form and returns a plan: what is done when the answer is yes, and the question, which may have to count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from penstock.documents.conditions import Where
from penstock.documents.events import DraftDocument
from penstock.errors import ConfigError, PenstockError, UnknownQueue
from penstock.events import Event
from penstock.journal.catalog import Settings
from penstock.observe import workers
from penstock.observe.logs import Log
from penstock.protocol import deliveries, messages, queues, topics
from penstock.protocol.fields import SettingsFields, policy_fields
from penstock.protocol.messages import PushRequest
from penstock.protocol.queues import DiscardRequest, NewGroup, NewSchedule, PauseRequest, RedriveRequest, RunNowRequest
from penstock.protocol.topics import CompactRequest, CursorChange, DropTopicQuery
from penstock.queue.letters import origin
from penstock.queue.operations.repair import replace
from penstock.queue.policy import DEFAULT, FIELDS, check_together, checked, refuse_other_mode
from penstock.queue.run.schedule import push_now
from penstock.server.acts.act import Act, ActCall, ActPlan, counted, happened
from penstock.server.acts.forms import whole
from penstock.server.acts.policy import policy_given
from penstock.surface.queue import Queue
from penstock.units import parse_duration, parse_moment, show_duration, show_size

_log = Log("penstock.server")
STEP: Final = 0.2
"""Seconds between two portions of what is sent back slowly."""


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def publish(call: ActCall) -> ActPlan:
    name, draft = call.text("topic"), call.filled(DraftDocument, topic=None).draft()
    is_new = name not in call.journal.topics()

    def do() -> str:
        (receipt,) = call.journal.topic(name).append_many([draft])
        return f"{draft.kind} was published as {name} #{receipt.seq:,}"

    return ActPlan(do, lambda: f"There is no topic {name} yet. Make it with this event?" if is_new else "")


def retention(call: ActCall) -> ActPlan:
    """Sets what a topic keeps; makes the topic when it is not there."""
    wanted, name = call.filled(Settings), call.text("topic")
    kept = {
        f"for {show_duration(wanted.max_age)}": wanted.max_age,
        f"the newest {counted(wanted.max_events or 0, 'event')}": wanted.max_events,
        f"{show_size(wanted.max_bytes or 0)} of events": wanted.max_bytes,
        "the newest event of every key": wanted.by_key or None,
    }
    words = ", ".join(said for said, value in kept.items() if value is not None) or "everything for ever"

    def question() -> str:
        if name not in call.journal.topics():
            return f"Make the topic {name} and keep {words}?"
        topic = call.topic
        stored = len(topic)
        going = 0 if wanted.max_events is None else max(0, stored - wanted.max_events)
        if wanted.max_age is not None:
            through = topic.position_at(datetime.now(UTC) - timedelta(seconds=wanted.max_age))
            going = max(going, min(stored, max(0, through - topic.oldest + 1)))
        removed = f" {counted(going, 'event')} of {stored:,} will be removed in passing." if going else ""
        return f"Keep {words} in {name}?{removed}"

    def do() -> str:
        values = msgspec.structs.asdict(wanted)
        changed = {field: values[field] for field in ("max_age", "max_events", "max_bytes", "by_key")}
        call.run(topics.CONFIGURE_TOPIC, SettingsFields(**changed))
        return f"{name} keeps {words}"

    return ActPlan(do, question)


def compact(call: ActCall) -> ActPlan:
    """Removes events through a position."""
    topic, through = call.topic, min(whole(call.text("through")), call.topic.latest)
    wanted = call.filled(CompactRequest, through=through)

    def question() -> str:
        slowest, waits = min(topic.cursors().values(), default=through), ""
        if slowest < through and not wanted.force:
            waits = f" The slowest consumer is at {slowest:,}: nothing after it will be removed."
        what = f"{counted(max(0, min(len(topic), through - topic.oldest + 1)), 'event')} of {topic.name}"
        return f"Remove {what}, through position {through:,}?{waits} This cannot be undone."

    return ActPlan(
        lambda: happened(call.run(topics.COMPACT_TOPIC, wanted).removed, "event", f"removed from {topic.name}"),
        question,
    )


def drop_topic(call: ActCall) -> ActPlan:
    """Removes a topic and everything that belongs to it."""
    topic, wanted = call.topic, call.filled(DropTopicQuery)

    def question() -> str:
        what, held = counted(len(topic), "event"), "0 queues"
        if topic.name in call.journal.queues():
            held = f"1 queue with {counted(len(call.journal.queue(topic.name, create=False)), 'message')}"
        if wanted.force:
            what += f", {counted(len(topic.cursors()), 'consumer')} and {held}"
        return f"Drop the topic {topic.name} with {what}? This cannot be undone."

    def do() -> str:
        report = call.run(topics.DROP_TOPIC, wanted)
        return f"the topic {topic.name} was dropped with {counted(report.events, 'event')}"

    return ActPlan(do, question)


def _target(call: ActCall) -> int:
    """Where a consumer is to be moved."""
    topic, to = call.topic, call.optional("to") or "position"
    latest = topic.latest
    if to not in ("start", "end", "time", "event", "position"):
        raise ConfigError(f"a consumer is moved to a position, a time, an event, the start or the end, not {to[:40]!r}")
    if to in ("start", "end"):
        return latest if to == "end" else 0
    if to == "time":
        return topic.position_at(parse_moment(call.text("value"), datetime.now(UTC)))
    position = call.whole("value")
    if position is None:
        raise ConfigError("a position is missing: a whole number, like 1200")
    if to == "event":  # which is the next one the consumer gets
        position = max(0, position - 1)
    if position > latest:
        raise ConfigError(f"{topic.name} ends at {latest:,}: {position:,} lies beyond it")
    return position


def seek(call: ActCall) -> ActPlan:
    """Moves a consumer, back or ahead."""
    topic, consumer, position = call.topic, call.text("consumer"), _target(call)

    def question() -> str:
        now = topic.cursor(consumer)
        if now is None:
            return f"{consumer} is new to {topic.name}. Let it begin at position {position:,}?"
        number = counted(abs(position - now), "event")
        effect = f"it will get {number} again" if position < now else f"it will skip {number}"
        effect = "nothing changes" if position == now else effect
        return f"Move {consumer} from {now:,} to {position:,} of {topic.name}: {effect}?"

    def do() -> str:
        moved = call.run(topics.MOVE_CURSOR, CursorChange(position=position, seek=True))
        return f"{consumer} is at {position:,}; {counted(moved.lag, 'event')} ahead"

    return ActPlan(do, question)


def forget(call: ActCall) -> ActPlan:
    """Forgets a consumer's position."""
    topic, consumer = call.topic, call.text("consumer")
    now = topic.cursor(consumer)
    if now is None:
        raise ConfigError(f"{topic.name} has no consumer {consumer[:80]!r}")

    anew = f"It would begin anew, with {counted(len(topic), 'event')}."

    def do() -> str:
        call.run(topics.FORGET_CURSOR)
        return f"{consumer} was forgotten"

    return ActPlan(do, lambda: f"Forget that {consumer} is at {now:,} of {topic.name}? {anew}")


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def push(call: ActCall) -> ActPlan:
    wanted = call.filled(PushRequest)

    def do() -> str:
        receipt = call.queue.push(
            wanted.payload, kind=wanted.kind, key=wanted.key, delay=wanted.delay, priority=wanted.priority
        )
        return f"the message was pushed as {call.text('queue')} #{receipt.seq:,}"

    return ActPlan(do)


def policy(call: ActCall) -> ActPlan:
    queue = call.queue
    wanted = checked(policy_given(call.fields, emptied=True), queue.name)
    refuse_other_mode(queue.name, queue.policy, wanted.get("mode", queue.policy.mode))
    values = msgspec.structs.asdict(queue.policy)
    changed = {name: value for name, value in wanted.items() if values[name] != value}
    check_together(msgspec.structs.replace(queue.policy, **changed), queue.name)
    words = ", ".join(changed)

    def question() -> str:
        if not changed:
            return f"Nothing is different. Save the policy of {queue.name} all the same?"
        return f"Change {words} of {queue.name}, with {counted(len(queue), 'message')} in it?"

    def do() -> str:
        call.run(queues.CONFIGURE_QUEUE, policy_fields(changed))
        return f"the policy of {queue.name} was changed: {words or 'nothing'}"

    return ActPlan(do, question)


def make_queue(call: ActCall) -> ActPlan:
    name = call.text("queue")
    if name in call.journal.queues():
        raise ConfigError(f"there is a queue {name!r} already: its page changes its policy")
    wanted = checked(policy_given(call.fields, emptied=False), name)
    check_together(msgspec.structs.replace(DEFAULT, **wanted), name)
    held = call.journal.topic(name).latest if name in call.journal.topics() else 0

    def do() -> str:
        call.run(queues.OPEN_QUEUE, policy_fields(wanted))
        return f"the queue {name} was made"

    return ActPlan(
        do, lambda: f"{name} is a topic with {counted(held, 'event')}. Make it a queue as well?" if held else ""
    )


def _groups(queue: Queue) -> list[str]:
    return queue.groups() if queue.policy.mode == "fanout" else ["default"]


def _paused(call: ActCall) -> str:
    """What is paused or goes on, as it is named."""
    group = call.optional("group")
    return call.text("queue") if group is None else f"{call.text('queue')}/{group}"


def pause(call: ActCall) -> ActPlan:
    """Hands nothing out any more, to one group or to all."""
    queue, group = call.queue, call.optional("group")
    if group is not None and group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")

    def question() -> str:
        found = [queue.stats(one) for one in ([group] if group is not None else _groups(queue))]
        ready, in_flight = sum(one.ready for one in found), sum(one.in_flight for one in found)
        held = f"; {counted(in_flight, 'message')} in flight may still be settled" if in_flight else ""
        return f"Pause {_paused(call)}? {counted(ready, 'ready message')} will wait until it is resumed{held}."

    def do() -> str:
        changed = call.run(queues.PAUSE_QUEUE, call.filled(PauseRequest)).changed
        return f"{_paused(call)} is paused" if changed else f"{_paused(call)} was paused already"

    return ActPlan(do, question)


def resume(call: ActCall) -> ActPlan:

    def do() -> str:
        changed = call.run(queues.RESUME_QUEUE, call.filled(PauseRequest)).changed
        return f"{_paused(call)} goes on" if changed else f"{_paused(call)} was not paused"

    return ActPlan(do)


def _contents(queue: Queue) -> str:
    return counted(sum(1 for _ in queue), "message")


def purge(call: ActCall) -> ActPlan:
    queue = call.queue
    return ActPlan(
        lambda: happened(call.run(queues.PURGE_QUEUE).removed, "message", "removed"),
        lambda: f"Remove {_contents(queue)} of {queue.name}, also those in flight? This cannot be undone.",
    )


def drop_queue(call: ActCall) -> ActPlan:
    queue = call.queue

    def question() -> str:
        groups, schedules = counted(len(queue.groups()), "group"), counted(len(queue.schedules()), "schedule")
        what = f"the queue {queue.name} and {_contents(queue)} in it, with {groups} and {schedules}"
        return f"Drop {what}? This cannot be undone; its topic stays."

    return ActPlan(
        lambda: f"the queue {queue.name} was dropped with {counted(call.run(queues.DROP_QUEUE).removed, 'message')}",
        question,
    )


def add_group(call: ActCall) -> ActPlan:

    def do() -> str:
        call.run(queues.ADD_GROUP, call.filled(NewGroup))
        return f"the group {call.text('name')} was added"

    return ActPlan(do)


def remove_group(call: ActCall) -> ActPlan:
    queue, group = call.queue, call.text("group")
    if group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")

    def question() -> str:
        stats = queue.stats(group)
        waiting = counted(stats.ready + stats.in_flight + stats.delayed + stats.failed, "message")
        return f"Remove the group {group} of {queue.name}? {waiting} will no longer wait for it."

    def do() -> str:
        call.run(queues.REMOVE_GROUP)
        return f"the group {group} was removed"

    return ActPlan(do, question)


def add_schedule(call: ActCall) -> ActPlan:
    """Adds a periodic message; when is a period or a cron line."""
    queue, when = call.queue, call.text("when")
    is_cron = len(when.split()) in (5, 6) or when.startswith("@")
    wanted = call.filled(NewSchedule, **({"cron": when} if is_cron else {"interval": parse_duration(when)}))
    known = any(one.name == wanted.name for one in queue.schedules())

    def do() -> str:
        made = call.run(queues.ADD_SCHEDULE, wanted)
        return f"{made.name} ticks next at {made.next_tick:%Y-%m-%d %H:%M:%S} UTC"

    return ActPlan(do, lambda: f"{queue.name} has a schedule {wanted.name}. Replace it?" if known else "")


def remove_schedule(call: ActCall) -> ActPlan:
    queue, name = call.queue, call.text("schedule")

    def do() -> str:
        if not call.run(queues.REMOVE_SCHEDULE).removed:
            raise ConfigError(f"{queue.name} has no schedule {name[:80]!r}")
        return f"the schedule {name} was removed"

    return ActPlan(do, lambda: f"Remove the schedule {name} of {queue.name}?")


def run_schedule(call: ActCall) -> ActPlan:
    """Pushes a schedule's message now; its ticks stay as they are."""
    queue, name = call.text("queue"), call.text("schedule")

    def do() -> str:
        receipt = push_now(call.journal._backend.queue(queue), name)
        return f"the message of {name} was pushed as {queue} #{receipt.seq:,}"

    return ActPlan(do)


def forget_worker(call: ActCall) -> ActPlan:
    """Forgets that a worker gave up, which an operator has seen."""
    worker = call.text("worker")
    if not any(one.worker == worker for one in workers.gave_up(call.journal)):
        raise ConfigError(f"no worker {worker[:80]!r} has given up, or it was started again")

    def do() -> str:
        workers.forget(call.journal, worker)
        return f"{worker} is no longer reported"

    return ActPlan(do, lambda: f"Forget 1 report, that {worker} gave up? Nothing is started by that.")


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
def _chosen(call: ActCall) -> RedriveRequest:
    """Which messages: those that were ticked, those of a condition, or all."""
    scope, where, ids = call.optional("scope") or "all", call.optional("where"), call.fields.get("ids", [])
    found = RedriveRequest(limit=call.whole("limit"))
    if scope == "filter":
        if where is None:
            raise ConfigError("a condition is missing, like: payload.total > 10")
        found.where = Where(where).text
    elif scope != "all":
        if not ids:
            raise ConfigError("choose some messages first")
        found.ids = [ids] if isinstance(ids, str) else ids
    return found


def redrive(call: ActCall) -> ActPlan:
    """Sends dead letters and failed messages back; with a rate slowly, in a thread that ends with the server."""
    rate, request = call.whole("rate"), _chosen(call)
    if rate == 0:
        raise ConfigError("the rate is a whole number of messages a second, like 10")
    slowly = "" if rate is None else f", {rate:,} a second"

    def count() -> int:
        found = call.run(queues.REDRIVE_QUEUE, msgspec.structs.replace(request, dry_run=True)).would_redrive
        if not found:
            raise ConfigError("no message that was given up is among those")
        return found

    def do() -> str:
        if rate is not None:
            number = count()
            threading.Thread(target=_redrive_slowly, args=(call, request, number, rate), daemon=True).start()
            return f"{counted(number, 'message')} will be sent back{slowly}"
        done = call.run(queues.REDRIVE_QUEUE, request)
        stay = [f"{counted(left.count, 'letter')} from {left.queue} stay: {left.reason}" for left in done.left]
        return "; ".join([happened(done.redriven or 0, "message", "sent back"), *stay])

    return ActPlan(do, lambda: f"Send {counted(count(), 'message')} back to their queue{slowly}, with a fresh budget?")


def _redrive_slowly(call: ActCall, request: RedriveRequest, left: int, rate: int) -> None:
    """What is sent back first and fails again lies behind those that still wait, and `left` ends it."""
    begun, sent = time.monotonic(), 0
    while left > 0 and not call.stopping():
        due = min(left, int((time.monotonic() - begun) * rate) + 1 - sent)
        if due > 0:
            try:
                done = call.run(queues.REDRIVE_QUEUE, msgspec.structs.replace(request, limit=due)).redriven
            except PenstockError as error:
                _log.warning("sending messages of %s back ended: %s", call.text("queue"), error)
                return
            if not done:
                return
            left, sent = left - done, sent + done
        time.sleep(STEP)


def delete(call: ActCall) -> ActPlan:
    """Removes messages that were given up. Its form has a redrive's rate."""
    if call.optional("rate") is not None:
        raise ConfigError("only what is sent back has a rate: empty that field to delete")
    queue, wanted = call.queue, _chosen(call)
    condition = None if wanted.where is None else Where(wanted.where)
    found: dict[str, set[int]] = {}
    failed = (one for group in _groups(queue) for one in queue.failures(group))
    for event in (one.event for source in (failed, queue.dead_letters()) for one in source):
        if (condition is None or condition.matches(event)) and (wanted.ids is None or event.id in wanted.ids):
            found.setdefault(event.topic, set()).add(event.seq)
    count = sum(map(len, found.values()))
    if not count:
        raise ConfigError("no message that was given up is among those")

    def do() -> str:
        removed = sum(_discard(call, name, sorted(seqs)) for name, seqs in found.items())
        return happened(removed, "message", "deleted")

    return ActPlan(do, lambda: f"Delete {counted(count, 'message')} that {queue.name} gave up? This cannot be undone.")


def _discard(call: ActCall, name: str, seqs: list[int]) -> int:
    """Removes messages of a queue, by their positions; none when it was dropped meanwhile."""
    try:
        return call.journal.queue(name, create=False).discard(seqs)
    except UnknownQueue:
        return 0


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _message(call: ActCall) -> Event:
    """The message that a form is about."""
    seq = call.whole("seq")
    event = None if seq is None else call.queue.get(seq)
    if event is None:
        raise ConfigError(f"{call.text('queue')} has no message {seq}: it was settled meanwhile")
    return event


def _name(event: Event) -> str:
    return f"{event.topic} #{event.seq:,}"


def delete_message(call: ActCall) -> ActPlan:
    """Removes one message that is not in flight, whatever its state."""
    event = _message(call)
    if any(held.seq == event.seq for held in call.queue.pending()):
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first, or settle it")

    def do() -> str:
        done = call.run(queues.DISCARD_MESSAGES, DiscardRequest([event.seq]))
        return happened(done.discarded, "message", "deleted")

    return ActPlan(do, lambda: f"Delete 1 message, {_name(event)}? This cannot be undone.")


def edit(call: ActCall) -> ActPlan:
    """Pushes a message with another payload, and removes the old one, in one commit. A dead letter goes to its queue.

    A delayed one keeps its time, unless it has a key, and each its priority and its own budget. It was pushed already:
    no throttle or debounce applies to it.
    """
    payload, event = call.filled(PushRequest).payload, _message(call)
    try:
        target = call.journal.queue(origin(event) or event.topic, create=False).name
    except (UnknownQueue, ConfigError):  # anyone may push a letter's headers: they may name nothing
        target = event.topic
    states = [one.state for one in call.queue.messages(after=event.seq - 1, limit=1) if one.event.id == event.id]
    if "in_flight" in states:
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first")

    def do() -> str:
        backend = call.journal._backend
        receipt = replace(backend.queue(event.topic), backend.queue(target), event, payload)
        if receipt is None:
            raise ConfigError(f"{event.topic} has no message {event.seq}: it was taken or settled meanwhile")
        return f"the edited message is {target} #{receipt.seq:,}"

    return ActPlan(do, lambda: f"Push 1 edited message to {target} and delete {_name(event)}?")


def run_now(call: ActCall) -> ActPlan:
    """Makes a delayed message ready at once, or all of them."""
    group, one = call.optional("group"), call.optional("seq") is not None
    seqs = [_message(call).seq] if one else list(_delayed(call.queue, group))

    def question() -> str:
        if not seqs:
            raise ConfigError(f"no message of {call.text('queue')} waits for its time")
        return "" if one else f"Run {counted(len(seqs), 'delayed message')} of {call.text('queue')} now?"

    return ActPlan(
        lambda: happened(call.run(queues.RUN_NOW, RunNowRequest(seqs, group)).made_ready, "message", "made ready"),
        question,
    )


def _delayed(queue: Queue, group: str | None) -> Iterator[int]:
    after = 0
    while page := queue.messages("delayed", group=group, after=after):
        yield from (one.seq for one in page)
        after = page[-1].seq


def release(call: ActCall) -> ActPlan:
    """Takes a message from its holder and makes it ready again."""
    held = call.queue.delivery(call.text("token"))
    name, holder = _name(held.event), held.consumer or "its holder"

    def do() -> str:
        held.release()
        return f"{name} is ready again"

    return ActPlan(do, lambda: f"Take 1 message, {name}, from {holder}? Another consumer will get it.")


def settle(call: ActCall) -> ActPlan:
    """Settles a message in its holder's stead: done, or given up."""
    held, gives_up = call.queue.delivery(call.text("token")), call.optional("outcome") == "dead"
    name, holder = _name(held.event), held.consumer or "a consumer"

    def do() -> str:
        if gives_up:
            held.nack(error="given up from the console", dead=True)
            return f"{name} was given up"
        held.ack()
        return f"{name} was settled"

    outcome = "Give up" if gives_up else "Settle as done"
    return ActPlan(do, lambda: f"{outcome} 1 message, {name}, which {holder} still works on?")


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────
CHOICE: Final = ("ids", "where", "scope", "limit", "rate")

ACTS: Final[dict[str, Act]] = {
    "publish": Act(publish, topics.APPEND_EVENTS, fields=DraftDocument.__struct_fields__, on_system=False),
    "retention": Act(retention, topics.CONFIGURE_TOPIC),
    "compact": Act(compact, topics.COMPACT_TOPIC, danger="typed"),
    "drop-topic": Act(drop_topic, topics.DROP_TOPIC, danger="typed"),
    "seek": Act(seek, topics.MOVE_CURSOR, fields=("value",)),
    "forget": Act(forget, topics.FORGET_CURSOR, danger="red"),
    "push": Act(push, messages.PUSH_MESSAGES),
    "policy": Act(policy, queues.CONFIGURE_QUEUE, fields=FIELDS),
    # As a topic with a history, which only an admin makes a queue.
    "make-queue": Act(make_queue, queues.OPEN_QUEUE, fields=FIELDS, role="admin"),
    "pause": Act(pause, queues.PAUSE_QUEUE),
    "resume": Act(resume, queues.RESUME_QUEUE),
    "purge": Act(purge, queues.PURGE_QUEUE, danger="typed"),
    "drop-queue": Act(drop_queue, queues.DROP_QUEUE, danger="typed"),
    "add-group": Act(add_group, queues.ADD_GROUP),
    "remove-group": Act(remove_group, queues.REMOVE_GROUP, danger="red"),
    "add-schedule": Act(add_schedule, queues.ADD_SCHEDULE, fields=("when",)),
    "remove-schedule": Act(remove_schedule, queues.REMOVE_SCHEDULE, danger="red"),
    "run-schedule": Act(run_schedule, queues.ADD_SCHEDULE, fields=("schedule",)),
    "redrive": Act(redrive, queues.REDRIVE_QUEUE, fields=CHOICE),
    "delete": Act(delete, queues.DISCARD_MESSAGES, danger="typed", fields=CHOICE),
    "delete-message": Act(delete_message, queues.DISCARD_MESSAGES, danger="red", fields=("seq",)),
    "edit": Act(edit, queues.MOVE_MESSAGES, fields=("seq", "payload")),
    "run-now": Act(run_now, queues.RUN_NOW, fields=("seq", "group")),
    "release": Act(release, deliveries.RELEASE_DELIVERY),
    # In its holder's stead: that is more than a consumer may.
    "settle": Act(settle, deliveries.ACK_DELIVERY, fields=("outcome",), role="admin"),
    "forget-worker": Act(forget_worker, topics.FORGET_CURSOR, role="admin", subject="worker"),
}
"""By the name that a form or a button has: what it does, and the operation whose role and names it has."""

"""Everything that the console does: one line for each act, and below the lines the questions that need counting."""

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
from penstock.server.acts.act import Act, ActCall, counted, happened
from penstock.server.acts.forms import whole
from penstock.server.acts.policy import policy_given
from penstock.surface.queue import Queue
from penstock.units import parse_duration, parse_moment, show_duration, show_size

_log = Log("penstock.server")
STEP: Final = 0.2
"""Seconds between two portions of what is sent back slowly."""


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def ask_publish(call: ActCall) -> str:
    name = call.text("topic")
    call.filled(DraftDocument, topic=None)
    there = call.journal.topic(name).latest or name in call.journal.topics()
    return "" if there else f"There is no topic {name} yet. Make it with this event?"


def publish(call: ActCall) -> str:
    draft = call.filled(DraftDocument, topic=None).draft()
    (receipt,) = call.journal.topic(call.text("topic")).append_many([draft])
    return f"{draft.kind} was published as {receipt.topic} #{receipt.seq:,}"


def _kept(settings: Settings) -> str:
    """What a topic keeps, in words."""
    kept = {
        f"for {show_duration(settings.max_age)}": settings.max_age,
        f"the newest {counted(settings.max_events or 0, 'event')}": settings.max_events,
        f"{show_size(settings.max_bytes or 0)} of events": settings.max_bytes,
        "the newest event of every key": settings.by_key or None,
    }
    return ", ".join(words for words, value in kept.items() if value is not None) or "everything for ever"


def ask_retention(call: ActCall) -> str:
    wanted = call.filled(Settings)
    topic = call.journal.topic(call.text("topic"))
    if not topic.latest and topic.name not in call.journal.topics():
        return f"Make the topic {topic.name} and keep {_kept(wanted)}?"
    stored = len(topic)
    going = 0 if wanted.max_events is None else max(0, stored - wanted.max_events)
    if wanted.max_age is not None:
        through = topic.position_at(datetime.now(UTC) - timedelta(seconds=wanted.max_age))
        going = max(going, min(stored, max(0, through - topic.oldest + 1)))
    removed = f" {counted(going, 'event')} of {stored:,} will be removed in passing." if going else ""
    return f"Keep {_kept(wanted)} in {topic.name}?{removed}"


def retention(call: ActCall) -> str:
    """Sets what a topic keeps; makes the topic when it is not there."""
    wanted = msgspec.structs.asdict(call.filled(Settings))
    changed = SettingsFields(**{name: wanted[name] for name in ("max_age", "max_events", "max_bytes", "by_key")})
    return f"{call.text('topic')} keeps {_kept(call.run(topics.CONFIGURE_TOPIC, changed))}"


def ask_compact(call: ActCall) -> str:
    topic, force = call.topic, call.filled(CompactRequest).force
    through = min(whole(call.text("through")), topic.latest)
    slowest = min(topic.cursors().values(), default=None)
    waits = ""
    if slowest is not None and slowest < through and not force:
        waits = f" The slowest consumer is at {slowest:,}: nothing after it will be removed."
    what = f"{counted(max(0, min(len(topic), through - topic.oldest + 1)), 'event')} of {topic.name}"
    return f"Remove {what}, through position {through:,}?{waits} This cannot be undone."


def compact(call: ActCall) -> str:
    wanted = call.filled(CompactRequest, through=min(whole(call.text("through")), call.topic.latest))
    return happened(call.run(topics.COMPACT_TOPIC, wanted).removed, "event", f"removed from {call.text('topic')}")


def ask_drop_topic(call: ActCall) -> str:
    topic = call.topic
    what = counted(len(topic), "event")
    if call.filled(DropTopicQuery).force:
        held = "0 queues"
        if topic.name in call.journal.queues():
            held = f"1 queue with {counted(len(call.journal.queue(topic.name, create=False)), 'message')}"
        what += f", {counted(len(topic.cursors()), 'consumer')} and {held}"
    return f"Drop the topic {topic.name} with {what}? This cannot be undone."


def drop_topic(call: ActCall) -> str:
    report = call.run(topics.DROP_TOPIC, call.filled(DropTopicQuery))
    return f"the topic {call.text('topic')} was dropped with {counted(report.events, 'event')}"


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


def ask_seek(call: ActCall) -> str:
    topic, consumer, position = call.topic, call.text("consumer"), _target(call)
    now = topic.cursor(consumer)
    if now is None:
        return f"{consumer} is new to {topic.name}. Let it begin at position {position:,}?"
    effect = "nothing changes"
    if position != now:
        again = position < now
        number = counted(abs(position - now), "event")
        effect = f"it will get {number} again" if again else f"it will skip {number}"
    return f"Move {consumer} from {now:,} to {position:,} of {topic.name}: {effect}?"


def seek(call: ActCall) -> str:
    moved = call.run(topics.MOVE_CURSOR, CursorChange(position=_target(call), seek=True))
    return f"{moved.consumer} is at {moved.position or 0:,}; {counted(moved.lag, 'event')} ahead"


def ask_forget(call: ActCall) -> str:
    topic, consumer = call.topic, call.text("consumer")
    now = topic.cursor(consumer)
    if now is None:
        raise ConfigError(f"{topic.name} has no consumer {consumer[:80]!r}")
    anew = f"It would begin anew, with {counted(len(topic), 'event')}."
    return f"Forget that {consumer} is at {now:,} of {topic.name}? {anew}"


def forget(call: ActCall) -> str:
    call.run(topics.FORGET_CURSOR)
    return f"{call.text('consumer')} was forgotten"


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def ask_push(call: ActCall) -> str:
    call.filled(PushRequest)
    return ""


def push(call: ActCall) -> str:
    wanted = call.filled(PushRequest)
    receipt = call.queue.push(
        wanted.payload, kind=wanted.kind, key=wanted.key, delay=wanted.delay, priority=wanted.priority
    )
    return f"the message was pushed as {receipt.topic} #{receipt.seq:,}"


def _changed(call: ActCall) -> dict[str, object]:
    """What a form would change of a policy."""
    queue = call.queue
    wanted = checked(policy_given(call.fields, emptied=True), queue.name)
    refuse_other_mode(queue.name, queue.policy, wanted.get("mode", queue.policy.mode))
    values = msgspec.structs.asdict(queue.policy)
    changed = {name: value for name, value in wanted.items() if values[name] != value}
    check_together(msgspec.structs.replace(queue.policy, **changed), queue.name)
    return changed


def ask_policy(call: ActCall) -> str:
    changed, queue = _changed(call), call.queue
    if not changed:
        return f"Nothing is different. Save the policy of {queue.name} all the same?"
    return f"Change {', '.join(changed)} of {queue.name}, with {counted(len(queue), 'message')} in it?"


def policy(call: ActCall) -> str:
    changed = _changed(call)
    call.run(queues.CONFIGURE_QUEUE, policy_fields(changed))
    return f"the policy of {call.text('queue')} was changed: {', '.join(changed) or 'nothing'}"


def _new_policy(call: ActCall) -> dict[str, object]:
    name = call.text("queue")
    if name in call.journal.queues():
        raise ConfigError(f"there is a queue {name!r} already: its page changes its policy")
    wanted = checked(policy_given(call.fields, emptied=False), name)
    check_together(msgspec.structs.replace(DEFAULT, **wanted), name)
    return wanted


def ask_make_queue(call: ActCall) -> str:
    _new_policy(call)
    name = call.text("queue")
    held = call.journal.topic(name).latest if name in call.journal.topics() else 0
    return f"{name} is a topic with {counted(held, 'event')}. Make it a queue as well?" if held else ""


def make_queue(call: ActCall) -> str:
    call.run(queues.OPEN_QUEUE, policy_fields(_new_policy(call)))
    return f"the queue {call.text('queue')} was made"


def _groups(queue: Queue) -> list[str]:
    return queue.groups() if queue.policy.mode == "fanout" else ["default"]


def _paused(call: ActCall) -> str:
    """What is paused or goes on, as it is named."""
    group = call.optional("group")
    return call.text("queue") if group is None else f"{call.text('queue')}/{group}"


def ask_pause(call: ActCall) -> str:
    queue, group = call.queue, call.optional("group")
    if group is not None and group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    found = [queue.stats(one) for one in ([group] if group is not None else _groups(queue))]
    ready, in_flight = sum(one.ready for one in found), sum(one.in_flight for one in found)
    held = f"; {counted(in_flight, 'message')} in flight may still be settled" if in_flight else ""
    return f"Pause {_paused(call)}? {counted(ready, 'ready message')} will wait until it is resumed{held}."


def pause(call: ActCall) -> str:
    changed = call.run(queues.PAUSE_QUEUE, call.filled(PauseRequest)).changed
    return f"{_paused(call)} is paused" if changed else f"{_paused(call)} was paused already"


def resume(call: ActCall) -> str:
    changed = call.run(queues.RESUME_QUEUE, call.filled(PauseRequest)).changed
    return f"{_paused(call)} goes on" if changed else f"{_paused(call)} was not paused"


def _contents(queue: Queue) -> str:
    return counted(sum(1 for _ in queue), "message")


def ask_purge(call: ActCall) -> str:
    queue = call.queue
    return f"Remove {_contents(queue)} of {queue.name}, also those in flight? This cannot be undone."


def ask_drop_queue(call: ActCall) -> str:
    queue = call.queue
    groups, schedules = counted(len(queue.groups()), "group"), counted(len(queue.schedules()), "schedule")
    what = f"the queue {queue.name} and {_contents(queue)} in it, with {groups} and {schedules}"
    return f"Drop {what}? This cannot be undone; its topic stays."


def drop_queue(call: ActCall) -> str:
    removed = call.run(queues.DROP_QUEUE).removed
    return f"the queue {call.text('queue')} was dropped with {counted(removed, 'message')}"


def add_group(call: ActCall) -> str:
    call.run(queues.ADD_GROUP, call.filled(NewGroup))
    return f"the group {call.text('name')} was added"


def ask_remove_group(call: ActCall) -> str:
    queue, group = call.queue, call.text("group")
    if group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    stats = queue.stats(group)
    waiting = stats.ready + stats.in_flight + stats.delayed + stats.failed
    return f"Remove the group {group} of {queue.name}? {counted(waiting, 'message')} will no longer wait for it."


def remove_group(call: ActCall) -> str:
    call.run(queues.REMOVE_GROUP)
    return f"the group {call.text('group')} was removed"


def _schedule(call: ActCall) -> NewSchedule:
    """A periodic message; when is a period or a cron line."""
    when = call.text("when")
    is_cron = len(when.split()) in (5, 6) or when.startswith("@")
    return call.filled(NewSchedule, **({"cron": when} if is_cron else {"interval": parse_duration(when)}))


def ask_add_schedule(call: ActCall) -> str:
    wanted, queue = _schedule(call), call.queue
    known = any(one.name == wanted.name for one in queue.schedules())
    return f"{queue.name} has a schedule {wanted.name}. Replace it?" if known else ""


def add_schedule(call: ActCall) -> str:
    made = call.run(queues.ADD_SCHEDULE, _schedule(call))
    return f"{made.name} ticks next at {made.next_tick:%Y-%m-%d %H:%M:%S} UTC"


def ask_remove_schedule(call: ActCall) -> str:
    return f"Remove the schedule {call.text('schedule')} of {call.queue.name}?"


def remove_schedule(call: ActCall) -> str:
    if not call.run(queues.REMOVE_SCHEDULE).removed:
        raise ConfigError(f"{call.text('queue')} has no schedule {call.text('schedule')[:80]!r}")
    return f"the schedule {call.text('schedule')} was removed"


def run_schedule(call: ActCall) -> str:
    """Pushes a schedule's message now; its ticks stay as they are."""
    receipt = push_now(call.journal._backend.queue(call.text("queue")), call.text("schedule"))
    return f"the message of {call.text('schedule')} was pushed as {receipt.topic} #{receipt.seq:,}"


def ask_forget_worker(call: ActCall) -> str:
    worker = call.text("worker")
    if not any(one.worker == worker for one in workers.gave_up(call.journal)):
        raise ConfigError(f"no worker {worker[:80]!r} has given up, or it was started again")
    return f"Forget 1 report, that {worker} gave up? Nothing is started by that."


def forget_worker(call: ActCall) -> str:
    """Forgets that a worker gave up, which an operator has seen."""
    ask_forget_worker(call)
    workers.forget(call.journal, call.text("worker"))
    return f"{call.text('worker')} is no longer reported"


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
def _chosen(call: ActCall) -> RedriveRequest:
    """Which messages: those that were ticked, those of a condition, or all."""
    scope, where, ids = call.optional("scope") or "all", call.optional("where"), call.fields.get("ids", [])
    limit = call.whole("limit")
    if scope == "all":
        return RedriveRequest(limit=limit)
    if scope == "filter":
        if where is None:
            raise ConfigError("a condition is missing, like: payload.total > 10")
        return RedriveRequest(where=Where(where).text, limit=limit)
    if not ids:
        raise ConfigError("choose some messages first")
    return RedriveRequest(ids=[ids] if isinstance(ids, str) else ids, limit=limit)


def _rate(call: ActCall) -> int | None:
    rate = call.whole("rate")
    if rate == 0:
        raise ConfigError("the rate is a whole number of messages a second, like 10")
    return rate


def _redrive(call: ActCall, request: RedriveRequest) -> int:
    """How many messages a redrive sends back, or would; ConfigError when it is none."""
    answer = call.run(queues.REDRIVE_QUEUE, msgspec.structs.replace(request, dry_run=True))
    count = answer.would_redrive or 0
    if not count:
        raise ConfigError("no message that was given up is among those")
    return count


def ask_redrive(call: ActCall) -> str:
    rate, count = _rate(call), _redrive(call, _chosen(call))
    slowly = "" if rate is None else f", {rate:,} a second"
    return f"Send {counted(count, 'message')} back to their queue{slowly}, with a fresh budget?"


def redrive(call: ActCall) -> str:
    """Sends dead letters and failed messages back; with a rate slowly, in a thread that ends with the server."""
    rate, request = _rate(call), _chosen(call)
    if rate is not None:
        count = _redrive(call, request)
        thread = threading.Thread(target=_redrive_slowly, args=(call, request, count, rate), daemon=True)
        thread.start()
        return f"{counted(count, 'message')} will be sent back, {rate:,} a second"
    done = call.run(queues.REDRIVE_QUEUE, request)
    stay = [f"{counted(left.count, 'letter')} from {left.queue} stay: {left.reason}" for left in done.left]
    return "; ".join([happened(done.redriven or 0, "message", "sent back"), *stay])


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


def _given_up(call: ActCall) -> dict[str, set[int]]:
    """The messages that a form chose of those that were given up: positions, by queue."""
    if call.optional("rate") is not None:
        raise ConfigError("only what is sent back has a rate: empty that field to delete")
    queue, wanted = call.queue, _chosen(call)
    condition, ids = None if wanted.where is None else Where(wanted.where), frozenset(wanted.ids or ())
    found: dict[str, set[int]] = {}
    failed = (one for group in _groups(queue) for one in queue.failures(group))
    for event in (one.event for source in (failed, queue.dead_letters()) for one in source):
        if (condition is None or condition.matches(event)) and (wanted.ids is None or event.id in ids):
            found.setdefault(event.topic, set()).add(event.seq)
    if not found:
        raise ConfigError("no message that was given up is among those")
    return found


def ask_delete(call: ActCall) -> str:
    count = sum(map(len, _given_up(call).values()))
    return f"Delete {counted(count, 'message')} that {call.text('queue')} gave up? This cannot be undone."


def delete(call: ActCall) -> str:
    removed = sum(_discard(call, name, sorted(seqs)) for name, seqs in _given_up(call).items())
    return happened(removed, "message", "deleted")


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


def ask_delete_message(call: ActCall) -> str:
    event = _message(call)
    if any(held.seq == event.seq for held in call.queue.pending()):
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first, or settle it")
    return f"Delete 1 message, {_name(event)}? This cannot be undone."


def delete_message(call: ActCall) -> str:
    ask_delete_message(call)
    done = call.run(queues.DISCARD_MESSAGES, DiscardRequest([_message(call).seq]))
    return happened(done.discarded, "message", "deleted")


def _edited(call: ActCall) -> tuple[Event, Queue]:
    """The message that is edited, and the queue that gets it: a dead letter goes back to its own."""
    event = _message(call)
    try:
        return event, call.journal.queue(origin(event) or event.topic, create=False)
    except (UnknownQueue, ConfigError):  # anyone may push a letter's headers: they may name nothing
        return event, call.queue


def ask_edit(call: ActCall) -> str:
    call.filled(PushRequest)
    event, target = _edited(call)
    return f"Push 1 edited message to {target.name} and delete {_name(event)}?"


def edit(call: ActCall) -> str:
    """Pushes a message with another payload, and removes the old one, in one commit.

    A delayed one keeps its time, unless it has a key, and each its priority and its own budget. It was pushed already:
    no throttle or debounce applies to it.
    """
    payload, (event, target) = call.filled(PushRequest).payload, _edited(call)
    states = [one.state for one in call.queue.messages(after=event.seq - 1, limit=1) if one.event.id == event.id]
    if "in_flight" in states:
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first")
    backend = call.journal._backend
    receipt = replace(backend.queue(event.topic), backend.queue(target.name), event, payload)
    if receipt is None:
        raise ConfigError(f"{event.topic} has no message {event.seq}: it was taken or settled meanwhile")
    return f"the edited message is {target.name} #{receipt.seq:,}"


def _delayed(call: ActCall) -> RunNowRequest:
    """One delayed message, or all of them."""
    group = call.optional("group")
    if call.optional("seq") is not None:
        return RunNowRequest([_message(call).seq], group)
    return RunNowRequest(list(_all_delayed(call.queue, group)), group)


def _all_delayed(queue: Queue, group: str | None) -> Iterator[int]:
    after = 0
    while page := queue.messages("delayed", group=group, after=after):
        yield from (one.seq for one in page)
        after = page[-1].seq


def ask_run_now(call: ActCall) -> str:
    waiting, name = _delayed(call).seqs, call.text("queue")
    if not waiting:
        raise ConfigError(f"no message of {name} waits for its time")
    return "" if call.optional("seq") else f"Run {counted(len(waiting), 'delayed message')} of {name} now?"


def run_now(call: ActCall) -> str:
    return happened(call.run(queues.RUN_NOW, _delayed(call)).made_ready, "message", "made ready")


def ask_release(call: ActCall) -> str:
    held = call.queue.delivery(call.text("token"))
    return f"Take 1 message, {_name(held.event)}, from {held.consumer or 'its holder'}? Another consumer will get it."


def release(call: ActCall) -> str:
    """Takes a message from its holder and makes it ready again."""
    held = call.queue.delivery(call.text("token"))
    held.release()
    return f"{_name(held.event)} is ready again"


def ask_settle(call: ActCall) -> str:
    held = call.queue.delivery(call.text("token"))
    done = "Give up" if call.optional("outcome") == "dead" else "Settle as done"
    return f"{done} 1 message, {_name(held.event)}, which {held.consumer or 'a consumer'} still works on?"


def settle(call: ActCall) -> str:
    """Settles a message in its holder's stead: done, or given up."""
    held = call.queue.delivery(call.text("token"))
    if call.optional("outcome") == "dead":
        held.nack(error="given up from the console", dead=True)
        return f"{_name(held.event)} was given up"
    held.ack()
    return f"{_name(held.event)} was settled"


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────
CHOICE: Final = ("ids", "where", "scope", "limit", "rate")

ACTS: Final[dict[str, Act]] = {
    "publish": Act(topics.APPEND_EVENTS, publish, ask_publish, fields=DraftDocument.__struct_fields__, on_system=False),
    "retention": Act(topics.CONFIGURE_TOPIC, retention, ask_retention),
    "compact": Act(topics.COMPACT_TOPIC, compact, ask_compact, danger="typed"),
    "drop-topic": Act(topics.DROP_TOPIC, drop_topic, ask_drop_topic, danger="typed"),
    "seek": Act(topics.MOVE_CURSOR, seek, ask_seek, fields=("value",)),
    "forget": Act(topics.FORGET_CURSOR, forget, ask_forget, danger="red"),
    "push": Act(messages.PUSH_MESSAGES, push, ask_push),
    "policy": Act(queues.CONFIGURE_QUEUE, policy, ask_policy, fields=FIELDS),
    # As a topic with a history, which only an admin makes a queue.
    "make-queue": Act(queues.OPEN_QUEUE, make_queue, ask_make_queue, fields=FIELDS, role="admin"),
    "pause": Act(queues.PAUSE_QUEUE, pause, ask_pause),
    "resume": Act(queues.RESUME_QUEUE, resume),
    "purge": Act(
        queues.PURGE_QUEUE,
        lambda call: happened(call.run(queues.PURGE_QUEUE).removed, "message", "removed"),
        ask_purge,
        danger="typed",
    ),
    "drop-queue": Act(queues.DROP_QUEUE, drop_queue, ask_drop_queue, danger="typed"),
    "add-group": Act(queues.ADD_GROUP, add_group),
    "remove-group": Act(queues.REMOVE_GROUP, remove_group, ask_remove_group, danger="red"),
    "add-schedule": Act(queues.ADD_SCHEDULE, add_schedule, ask_add_schedule, fields=("when",)),
    "remove-schedule": Act(queues.REMOVE_SCHEDULE, remove_schedule, ask_remove_schedule, danger="red"),
    "run-schedule": Act(queues.ADD_SCHEDULE, run_schedule, fields=("schedule",)),
    "redrive": Act(queues.REDRIVE_QUEUE, redrive, ask_redrive, fields=CHOICE),
    "delete": Act(queues.DISCARD_MESSAGES, delete, ask_delete, danger="typed", fields=CHOICE),
    "delete-message": Act(queues.DISCARD_MESSAGES, delete_message, ask_delete_message, danger="red", fields=("seq",)),
    "edit": Act(queues.MOVE_MESSAGES, edit, ask_edit, fields=("seq", "payload")),
    "run-now": Act(queues.RUN_NOW, run_now, ask_run_now, fields=("seq", "group")),
    "release": Act(deliveries.RELEASE_DELIVERY, release, ask_release),
    # In its holder's stead: that is more than a consumer may.
    "settle": Act(deliveries.ACK_DELIVERY, settle, ask_settle, fields=("outcome",), role="admin"),
    "forget-worker": Act(topics.FORGET_CURSOR, forget_worker, ask_forget_worker, role="admin", subject="worker"),
}
"""By the name that a form or a button has: what it does, what it asks first, and whose role and names it has."""

"""What a person can do from the console: each act asks first in words and numbers, is done, and is written down.

A form sends its fields to POST /acts/{act} with `preview`; the answer is the question to ask, with a number in it where
the act destroys or repeats something, or nothing when the act may be done at once. Sent again without `preview` it is
done; the answer says what was done, and so does an event in `penstock.audit`: its kind is `console.<act>`, its key the
topic or queue it was about, its payload an `AuditRecord`.

An act is a function under `@act(operation)`: it reads its form (ConfigError when that says nothing that could be done)
and returns the question, or does it and returns what was done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock.documents.conditions import Where
from penstock.documents.decoding import decoded
from penstock.documents.events import DraftDocument
from penstock.errors import ConfigError, PenstockError, UnknownQueue, UnknownTopic
from penstock.events import Event
from penstock.journal.catalog import Settings
from penstock.local.backend import LocalJournal
from penstock.names import AUDIT
from penstock.observe import workers
from penstock.observe.logs import Log
from penstock.observe.sample import held_messages
from penstock.protocol import queues, topics
from penstock.protocol.operation import JSON, Operation, Role
from penstock.queue.operations.repair import paced, replace
from penstock.queue.operations.settle import origin
from penstock.queue.policy import DEFAULT, FIELDS, check_together, checked, refuse_other_mode
from penstock.queue.schedule import push_now
from penstock.server import forms
from penstock.server.access import address_of
from penstock.server.forms import Value
from penstock.server.service import Refused, Service, guarded, read_form
from penstock.surface.queue import Queue
from penstock.surface.topic import Topic
from penstock.units import counted, parse_duration, parse_moment, show_duration, show_size

A = TypeVar("A")
S = TypeVar("S", bound=msgspec.Struct)

Danger = Literal["", "red", "typed"]
"""How an act is asked for: plainly, in red, or in red with the name of what it destroys to be typed."""
LONGEST: Final = 500
"""Characters of a field that are written down."""
_log = Log("penstock.server")


class ActCall:
    """One request to do something, or, with `preview`, to say what would be done."""

    def __init__(self, service: Service, fields: dict[str, Value], preview: bool) -> None:
        self.journal: LocalJournal = service.journal
        self.fields = fields
        self.preview = preview
        self.stopping = service.closing.is_set
        """Whether the server ends; what an act does in the background ends with it."""

    def run(self, operation: Operation[A], request: msgspec.Struct | None = None) -> A:
        """What an operation answers; the form has the names in its path."""
        return self.journal._backend.call(operation, *map(self.text, operation.names), request=request)

    def filled(self, kind: type[S], **other: object) -> S:
        """The form as a request."""
        return forms.filled(kind, self.fields, **other)

    def optional(self, name: str) -> str | None:
        """A field's text; None when it was left empty."""
        value = self.fields.get(name, "")
        if not isinstance(value, str):
            raise ConfigError(f"{name} is one value, not several")
        return value.strip() or None

    def text(self, name: str) -> str:
        """A field that must be filled in."""
        value = self.optional(name)
        if value is None:
            raise ConfigError(f"{name.replace('_', ' ')} is missing: fill it in")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number of at least 0."""
        text = self.optional(name)
        try:
            return None if text is None else forms.whole(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    @property
    def topic(self) -> Topic:
        """The topic, which must be there: a mistyped name must not make one."""
        found = self.text("topic")
        if found not in self.journal.topics():
            raise UnknownTopic(f"there is no topic {found[:80]!r}")
        return self.journal.topic(found)

    @property
    def queue(self) -> Queue:
        """The queue, which must be there."""
        return self.journal.queue(self.text("queue"), create=False)


class Act(msgspec.Struct):
    """Something a person can do. Role, names and whose topics it may touch are those of its operation."""

    run: Callable[[ActCall], str]
    role: Role
    subject: str
    """The field that names what the act is about."""
    danger: Danger
    fields: frozenset[str]
    on_system: bool
    """Whether it may be about a topic of penstock's own."""


ACTS: Final[dict[str, Act]] = {}
"""By the name that a form or a button has."""
Run = TypeVar("Run", bound=Callable[[ActCall], str])


def act(
    operation: Operation[Any],
    *,
    danger: Danger = "",
    fields: Iterable[str] = (),
    role: Role | None = None,
    subject: str | None = None,
    on_system: bool | None = None,
) -> Callable[[Run], Run]:
    """Makes a function the act of its name, which stands for an operation."""
    needed = role or operation.role
    assert needed is not None, f"{operation.name} needs no role: that is no act"
    about, request = subject or operation.names[0], operation.query or operation.body
    taken = request.__struct_fields__ if isinstance(request, msgspec.StructMeta) else ()
    known = frozenset((about, *operation.names, *taken, *fields))

    def declare(run: Run) -> Run:
        own = operation.on_system if on_system is None else on_system
        ACTS[run.__name__.replace("_", "-")] = Act(run, needed, about, danger, known, own)
        return run

    return declare


def happened(count: int, one: str, done: str) -> str:
    """What was done to so many: 1 message was deleted, 12 messages were deleted."""
    return f"{counted(count, one)} {'was' if count == 1 else 'were'} {done}"


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@act(topics.APPEND_EVENTS, fields=DraftDocument.__struct_fields__, on_system=False)
def publish(call: ActCall) -> str:
    name, draft = call.text("topic"), call.filled(DraftDocument, topic=None).draft()
    if call.preview:
        is_new = name not in call.journal.topics()
        return f"There is no topic {name} yet. Make it with this event?" if is_new else ""
    (receipt,) = call.journal.topic(name).append_many([draft])
    return f"{draft.kind} was published as {name} #{receipt.seq:,}"


@act(topics.CONFIGURE_TOPIC)
def retention(call: ActCall) -> str:
    """Sets what a topic keeps; makes the topic when it is not there."""
    wanted, name = call.filled(Settings), call.text("topic")
    kept = {
        f"for {show_duration(wanted.max_age)}": wanted.max_age,
        f"the newest {counted(wanted.max_events or 0, 'event')}": wanted.max_events,
        f"{show_size(wanted.max_bytes or 0)} of events": wanted.max_bytes,
        "the newest event of every key": wanted.by_key or None,
    }
    words = ", ".join(said for said, value in kept.items() if value is not None) or "everything for ever"
    if not call.preview:
        call.journal.topic(name).configure(
            max_age=wanted.max_age, max_events=wanted.max_events, max_bytes=wanted.max_bytes, by_key=wanted.by_key
        )
        return f"{name} keeps {words}"
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


@act(topics.COMPACT_TOPIC, danger="typed")
def compact(call: ActCall) -> str:
    """Removes events through a position."""
    topic, through = call.topic, min(forms.whole(call.text("through")), call.topic.latest)
    wanted = call.filled(topics.CompactRequest, through=through)
    if not call.preview:
        removed = topic.compact(through, force=wanted.force).removed
        return happened(removed, "event", f"removed from {topic.name}")
    slowest, waits = min(topic.cursors().values(), default=through), ""
    if slowest < through and not wanted.force:
        waits = f" The slowest consumer is at {slowest:,}: nothing after it will be removed."
    what = f"{counted(max(0, min(len(topic), through - topic.oldest + 1)), 'event')} of {topic.name}"
    return f"Remove {what}, through position {through:,}?{waits} This cannot be undone."


@act(topics.DROP_TOPIC, danger="typed")
def drop_topic(call: ActCall) -> str:
    """Removes a topic and everything that belongs to it."""
    topic, wanted = call.topic, call.filled(topics.DropTopicQuery)
    if not call.preview:
        report = call.journal.drop_topic(topic.name, wanted.force)
        return f"the topic {topic.name} was dropped with {counted(report.events, 'event')}"
    what, held = counted(len(topic), "event"), "0 queues"
    if topic.name in call.journal.queues():
        held = f"1 queue with {counted(len(call.journal.queue(topic.name, create=False)), 'message')}"
    if wanted.force:
        what += f", {counted(len(topic.cursors()), 'consumer')} and {held}"
    return f"Drop the topic {topic.name} with {what}? This cannot be undone."


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


@act(topics.MOVE_CURSOR, fields=("value",))
def seek(call: ActCall) -> str:
    """Moves a consumer, back or ahead."""
    topic, consumer, position = call.topic, call.text("consumer"), _target(call)
    if not call.preview:
        topic.seek(consumer, position)
        return f"{consumer} is at {position:,}; {counted(topic.lag(consumer), 'event')} ahead"
    now = topic.cursor(consumer)
    if now is None:
        return f"{consumer} is new to {topic.name}. Let it begin at position {position:,}?"
    number = counted(abs(position - now), "event")
    effect = f"it will get {number} again" if position < now else f"it will skip {number}"
    effect = "nothing changes" if position == now else effect
    return f"Move {consumer} from {now:,} to {position:,} of {topic.name}: {effect}?"


@act(topics.FORGET_CURSOR, danger="red")
def forget(call: ActCall) -> str:
    """Forgets a consumer's position."""
    topic, consumer = call.topic, call.text("consumer")
    now = topic.cursor(consumer)
    if now is None:
        raise ConfigError(f"{topic.name} has no consumer {consumer[:80]!r}")
    if call.preview:
        anew = f"It would begin anew, with {counted(len(topic), 'event')}."
        return f"Forget that {consumer} is at {now:,} of {topic.name}? {anew}"
    topic.forget(consumer)
    return f"{consumer} was forgotten"


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@act(queues.PUSH_MESSAGES)
def push(call: ActCall) -> str:
    wanted = call.filled(queues.PushRequest)
    if call.preview:
        return ""
    receipt = call.queue.push(
        wanted.payload, kind=wanted.kind, key=wanted.key, delay=wanted.delay, priority=wanted.priority
    )
    return f"the message was pushed as {call.text('queue')} #{receipt.seq:,}"


@act(queues.CONFIGURE_QUEUE, fields=FIELDS)
def policy(call: ActCall) -> str:
    queue = call.queue
    wanted = checked(forms.policy_given(call.fields, emptied=True), queue.name)
    refuse_other_mode(queue.name, queue.policy, wanted.get("mode", queue.policy.mode))
    values = msgspec.structs.asdict(queue.policy)
    changed = {name: value for name, value in wanted.items() if values[name] != value}
    check_together(msgspec.structs.replace(queue.policy, **changed), queue.name)
    words = ", ".join(changed)
    if call.preview and not changed:
        return f"Nothing is different. Save the policy of {queue.name} all the same?"
    if call.preview:
        return f"Change {words} of {queue.name}, with {held_messages(queue)} in it?"
    queue.configure(**changed)
    return f"the policy of {queue.name} was changed: {words or 'nothing'}"


@act(queues.OPEN_QUEUE, fields=FIELDS, role="admin")  # as a topic with a history, which only an admin makes a queue
def make_queue(call: ActCall) -> str:
    name = call.text("queue")
    if name in call.journal.queues():
        raise ConfigError(f"there is a queue {name!r} already: its page changes its policy")
    wanted = checked(forms.policy_given(call.fields, emptied=False), name)
    check_together(msgspec.structs.replace(DEFAULT, **wanted), name)
    if call.preview:
        held = call.journal.topic(name).latest if name in call.journal.topics() else 0
        return f"{name} is a topic with {counted(held, 'event')}. Make it a queue as well?" if held else ""
    call.journal.queue(name, **wanted)
    return f"the queue {name} was made"


def _groups(queue: Queue) -> list[str]:
    return queue.groups() if queue.policy.mode == "fanout" else ["default"]


def _paused(call: ActCall) -> str:
    """What is paused or goes on, as it is named."""
    group = call.optional("group")
    return call.text("queue") if group is None else f"{call.text('queue')}/{group}"


@act(queues.PAUSE_QUEUE)
def pause(call: ActCall) -> str:
    """Hands nothing out any more, to one group or to all."""
    queue, group = call.queue, call.optional("group")
    if group is not None and group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    if not call.preview:
        return f"{_paused(call)} is paused" if queue.pause(group) else f"{_paused(call)} was paused already"
    found = [queue.stats(one) for one in ([group] if group is not None else _groups(queue))]
    ready, in_flight = sum(one.ready for one in found), sum(one.in_flight for one in found)
    held = f"; {counted(in_flight, 'message')} in flight may still be settled" if in_flight else ""
    return f"Pause {_paused(call)}? {counted(ready, 'ready message')} will wait until it is resumed{held}."


@act(queues.RESUME_QUEUE)
def resume(call: ActCall) -> str:
    if call.preview:
        return ""
    changed = call.queue.resume(call.optional("group"))
    return f"{_paused(call)} goes on" if changed else f"{_paused(call)} was not paused"


@act(queues.PURGE_QUEUE, danger="typed")
def purge(call: ActCall) -> str:
    queue = call.queue
    if call.preview:
        return f"Remove {held_messages(queue)} of {queue.name}, also those in flight? This cannot be undone."
    return happened(queue.purge(), "message", "removed")


@act(queues.DROP_QUEUE, danger="typed")
def drop_queue(call: ActCall) -> str:
    queue = call.queue
    if call.preview:
        groups, schedules = counted(len(queue.groups()), "group"), counted(len(queue.schedules()), "schedule")
        what = f"the queue {queue.name} and {held_messages(queue)} in it, with {groups} and {schedules}"
        return f"Drop {what}? This cannot be undone; its topic stays."
    return f"the queue {queue.name} was dropped with {counted(queue.drop(), 'message')}"


@act(queues.ADD_GROUP)
def add_group(call: ActCall) -> str:
    if call.preview:
        return ""
    call.run(queues.ADD_GROUP, call.filled(queues.NewGroup))
    return f"the group {call.text('name')} was added"


@act(queues.REMOVE_GROUP, danger="red")
def remove_group(call: ActCall) -> str:
    queue, group = call.queue, call.text("group")
    if group not in queue.groups():
        raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
    if call.preview:
        stats = queue.stats(group)
        waiting = counted(stats.ready + stats.in_flight + stats.delayed + stats.failed, "message")
        return f"Remove the group {group} of {queue.name}? {waiting} will no longer wait for it."
    queue.remove_group(group)
    return f"the group {group} was removed"


@act(queues.ADD_SCHEDULE, fields=("when",))
def add_schedule(call: ActCall) -> str:
    """Adds a periodic message; when is a period or a cron line."""
    queue, when = call.queue, call.text("when")
    is_cron = len(when.split()) in (5, 6) or when.startswith("@")
    wanted = call.filled(queues.NewSchedule, **({"cron": when} if is_cron else {"interval": parse_duration(when)}))
    if call.preview:
        known = any(one.name == wanted.name for one in queue.schedules())
        return f"{queue.name} has a schedule {wanted.name}. Replace it?" if known else ""
    made = call.run(queues.ADD_SCHEDULE, wanted)
    return f"{made.name} ticks next at {made.next_tick:%Y-%m-%d %H:%M:%S} UTC"


@act(queues.REMOVE_SCHEDULE, danger="red")
def remove_schedule(call: ActCall) -> str:
    queue, name = call.queue, call.text("schedule")
    if call.preview:
        return f"Remove the schedule {name} of {queue.name}?"
    if not queue.unschedule(name):
        raise ConfigError(f"{queue.name} has no schedule {name[:80]!r}")
    return f"the schedule {name} was removed"


@act(queues.ADD_SCHEDULE, fields=("schedule",))
def run_schedule(call: ActCall) -> str:
    """Pushes a schedule's message now; its ticks stay as they are."""
    queue, name = call.text("queue"), call.text("schedule")
    if call.preview:
        return ""
    receipt = push_now(call.journal._backend.queue(queue), name)
    return f"the message of {name} was pushed as {queue} #{receipt.seq:,}"


@act(topics.FORGET_CURSOR, role="admin", subject="worker")
def forget_worker(call: ActCall) -> str:
    """Forgets that a worker gave up, which an operator has seen."""
    worker = call.text("worker")
    if not any(one.worker == worker for one in workers.gave_up(call.journal)):
        raise ConfigError(f"no worker {worker[:80]!r} has given up, or it was started again")
    if call.preview:
        return f"Forget 1 report, that {worker} gave up? Nothing is started by that."
    workers.forget(call.journal, worker)
    return f"{worker} is no longer reported"


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
CHOICE: Final = ("ids", "where", "scope", "limit", "rate")


def _chosen(call: ActCall) -> queues.RedriveRequest:
    """Which messages: those that were ticked, those of a condition, or all."""
    scope, where, ids = call.optional("scope") or "all", call.optional("where"), call.fields.get("ids", [])
    found = queues.RedriveRequest(limit=call.whole("limit"))
    if scope == "filter":
        if where is None:
            raise ConfigError("a condition is missing, like: payload.total > 10")
        found.where = Where(where).text
    elif scope != "all":
        if not ids:
            raise ConfigError("choose some messages first")
        found.ids = [ids] if isinstance(ids, str) else ids
    return found


@act(queues.REDRIVE_QUEUE, fields=CHOICE)
def redrive(call: ActCall) -> str:
    """Sends dead letters and failed messages back; with a rate slowly, in a thread that ends with the server."""
    rate, request = call.whole("rate"), _chosen(call)
    if rate == 0:
        raise ConfigError("the rate is a whole number of messages a second, like 10")
    if not call.preview and rate is None:
        done = call.run(queues.REDRIVE_QUEUE, request)
        stay = [f"{counted(left.count, 'letter')} from {left.queue} stay: {left.reason}" for left in done.left]
        return "; ".join([happened(done.redriven or 0, "message", "sent back"), *stay])
    count = call.run(queues.REDRIVE_QUEUE, msgspec.structs.replace(request, dry_run=True)).would_redrive
    if not count:
        raise ConfigError("no message that was given up is among those")
    slowly = "" if rate is None else f", {rate:,} a second"
    if call.preview:
        return f"Send {counted(count, 'message')} back to their queue{slowly}, with a fresh budget?"
    threading.Thread(target=_redrive_slowly, args=(call, request, count, rate), daemon=True).start()
    return f"{counted(count, 'message')} will be sent back{slowly}"


def _redrive_slowly(call: ActCall, request: queues.RedriveRequest, count: int, rate: int) -> None:
    def send(due: int) -> int:
        return call.run(queues.REDRIVE_QUEUE, msgspec.structs.replace(request, limit=due)).redriven or 0

    try:
        paced(send, count, rate, call.stopping)
    except PenstockError as error:
        _log.warning("sending messages of %s back ended: %s", call.text("queue"), error)


@act(queues.DISCARD_MESSAGES, danger="typed", fields=CHOICE)
def delete(call: ActCall) -> str:
    """Removes messages that were given up. Its form has a redrive's rate."""
    if call.optional("rate") is not None:
        raise ConfigError("only what is sent back has a rate: empty that field to delete")
    queue, wanted = call.queue, _chosen(call)
    condition = None if wanted.where is None else Where(wanted.where)
    found: dict[str, list[int]] = {}
    failed = (one for group in _groups(queue) for one in queue.failures(group))
    for event in {one.event.id: one.event for source in (failed, queue.dead_letters()) for one in source}.values():
        if (condition is None or condition.matches(event)) and (wanted.ids is None or event.id in wanted.ids):
            found.setdefault(event.topic, []).append(event.seq)
    count = sum(map(len, found.values()))
    if not count:
        raise ConfigError("no message that was given up is among those")
    if call.preview:
        return f"Delete {counted(count, 'message')} that {queue.name} gave up? This cannot be undone."
    return happened(sum(_discard(call, name, seqs) for name, seqs in found.items()), "message", "deleted")


def _discard(call: ActCall, name: str, seqs: list[int]) -> int:
    """Removes messages of a queue, by their positions; none when it was dropped meanwhile."""
    try:
        return call.journal.queue(name, create=False).discard(sorted(seqs))
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


@act(queues.DISCARD_MESSAGES, danger="red", fields=("seq",))
def delete_message(call: ActCall) -> str:
    """Removes one message that is not in flight, whatever its state."""
    event = _message(call)
    if any(held.seq == event.seq for held in call.queue.pending()):
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first, or settle it")
    if call.preview:
        return f"Delete 1 message, {_name(event)}? This cannot be undone."
    return happened(call.queue.discard([event.seq]), "message", "deleted")


@act(queues.MOVE_MESSAGES, fields=("seq", "payload"))
def edit(call: ActCall) -> str:
    """Pushes a message with another payload, and removes the old one, in one commit. A dead letter goes to its queue.

    A delayed one keeps its time, unless it has a key, and each its priority and its own budget. It was pushed already:
    no throttle or debounce applies to it.
    """
    payload, event = call.filled(queues.PushRequest).payload, _message(call)
    try:
        target = call.journal.queue(origin(event) or event.topic, create=False).name
    except (UnknownQueue, ConfigError):  # anyone may push a letter's headers: they may name nothing
        target = event.topic
    states = [one.state for one in call.queue.messages(after=event.seq - 1, limit=1) if one.event.id == event.id]
    if "in_flight" in states:
        raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first")
    if call.preview:
        return f"Push 1 edited message to {target} and delete {_name(event)}?"
    backend = call.journal._backend
    receipt = replace(backend.queue(event.topic), backend.queue(target), event, payload)
    if receipt is None:
        raise ConfigError(f"{event.topic} has no message {event.seq}: it was taken or settled meanwhile")
    return f"the edited message is {target} #{receipt.seq:,}"


@act(queues.RUN_NOW, fields=("seq", "group"))
def run_now(call: ActCall) -> str:
    """Makes a delayed message ready at once, or all of them."""
    queue, group = call.text("queue"), call.optional("group")
    one = call.optional("seq") is not None
    seqs = [_message(call).seq] if one else list(_delayed(call.queue, group))
    if not call.preview:
        return happened(call.queue.run_now(seqs, group=group), "message", "made ready")
    if not seqs:
        raise ConfigError(f"no message of {queue} waits for its time")
    return "" if one else f"Run {counted(len(seqs), 'delayed message')} of {queue} now?"


def _delayed(queue: Queue, group: str | None) -> Iterator[int]:
    after = 0
    while page := queue.messages("delayed", group=group, after=after):
        yield from (one.seq for one in page)
        after = page[-1].seq


@act(queues.RELEASE_DELIVERY)
def release(call: ActCall) -> str:
    """Takes a message from its holder and makes it ready again."""
    held = call.queue.delivery(call.text("token"))
    if call.preview:
        holder = held.consumer or "its holder"
        return f"Take 1 message, {_name(held.event)}, from {holder}? Another consumer will get it."
    held.release()
    return f"{_name(held.event)} is ready again"


@act(queues.ACK_DELIVERY, fields=("outcome",), role="admin")  # in its holder's stead: more than a consumer may
def settle(call: ActCall) -> str:
    """Settles a message in its holder's stead: done, or given up."""
    held, gives_up = call.queue.delivery(call.text("token")), call.optional("outcome") == "dead"
    name = _name(held.event)
    if call.preview:
        outcome = "Give up" if gives_up else "Settle as done"
        return f"{outcome} 1 message, {name}, which {held.consumer or 'a consumer'} still works on?"
    if gives_up:
        held.nack(error="given up from the console", dead=True)
        return f"{name} was given up"
    held.ack()
    return f"{name} was settled"


# ── the route ────────────────────────────────────────────────────────────────────────────────────────────────────────
class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a form, and whether the act is only to be described."""

    fields: dict[str, Value]
    preview: bool = False


class ActAnswer(msgspec.Struct, omit_defaults=True):
    """The question to ask before the act is done, or what was done."""

    question: str = ""
    danger: bool = False
    """Whether it destroys something."""
    typed: str | None = None
    """What has to be typed before it is done."""
    says: str = ""


class AuditRecord(msgspec.Struct):
    """An act that was done."""

    act: str
    subject: str
    role: str
    who: str
    """`local` where no token is asked for, else the beginning of the token's hash; never the token."""
    address: str
    """Where the request came from."""
    fields: dict[str, Value]
    says: str
    """What was done, in words."""


@guarded("write")
async def perform_act(request: Request, service: Service) -> Response:
    name = request.path_params["act"]
    act = ACTS.get(name)
    if act is None:
        raise Refused(404, "UnknownAct", f"the console cannot {name[:40]!r}")
    role = service.access.require(request, act.role)
    data = await read_form(request, service)
    given = decoded(data, msgspec.json.Decoder(ActRequest).decode, ActRequest)
    unknown = set(given.fields) - act.fields
    if unknown:
        raise ConfigError(f"{name} has no field {sorted(unknown)[0]!r}; there are {', '.join(sorted(act.fields))}")
    call = ActCall(service, given.fields, given.preview)
    subject = call.optional(act.subject) or ""
    if not act.on_system:
        service.access.check_change(subject)
    says = await run_in_threadpool(act.run, call)
    if given.preview:
        answer = ActAnswer(says, bool(act.danger), subject if act.danger == "typed" and says else None)
    else:
        answer = ActAnswer(says=says)
        kept = {field: _short(value) for field, value in given.fields.items() if value}
        who, address = service.access.identity(request), address_of(request)
        record = AuditRecord(name, subject[:200], role, who, address, kept, says)
        body: dict[str, object] = msgspec.to_builtins(record)
        audit = service.journal.topic(AUDIT)
        await run_in_threadpool(lambda: audit.append(f"console.{name}", body, key=subject[:200] or None))
    return Response(msgspec.json.encode(answer), media_type=JSON)


def _short(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return [one[:80] for one in value[:50]]

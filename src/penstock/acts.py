"""The acts that a person performs on a journal: an operation, the question asked before it, the sentence printed after
it.

The console and the command line present these acts. The console makes them from a form, the command line from options.
The words, the checks and the call of the operation are here, once.

An act is a value: its subject and its options. `question` says in words and numbers what the act would do, and is empty
for an act without a question. `perform` performs the act.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import ClassVar, Literal

import msgspec

from penstock.core.clock import Duration
from penstock.core.consuming.delivery import Delivery
from penstock.core.events import Draft, Event, GivenUpEvent
from penstock.core.local.backend import LocalJournal
from penstock.core.model.arguments import FilterArguments
from penstock.core.model.conditions import EventChoice, predicate
from penstock.core.model.take import DEFAULT_GROUP
from penstock.core.observe import workers
from penstock.core.observe.logs import Log
from penstock.core.observe.sample import held_messages
from penstock.core.protocol.queues import PushRequest
from penstock.core.queue.dead_letters import origin
from penstock.core.queue.operations.repair import Redriven, replace, send_at_rate
from penstock.core.queue.policy import DEFAULT, check_policy, check_together, refuse_other_mode
from penstock.core.queue.schedule import push_now
from penstock.core.surface.journal import Journal
from penstock.core.surface.queue import Queue
from penstock.core.surface.topic import Topic
from penstock.core.units import pluralize, show_duration, show_size
from penstock.errors import ConfigError, PenstockError, UnknownQueue

log = Log("penstock.acts")

Danger = Literal["", "red", "typed"]
"""How the console asks for an act: plainly, in red, or in red with the typed name of what the act destroys."""


class Done(msgspec.Struct):
    """The result of an act."""

    says: str
    """The result as a sentence, for people."""
    record: dict[str, object] = {}
    """The result as fields, for programs."""
    notes: list[str] = []
    """Further notes for a person."""


class NotThere(ConfigError):
    """The subject of an act does not exist."""


class Act(msgspec.Struct):
    """An act that a person performs."""

    danger: ClassVar[Danger] = ""

    def question(self) -> str:
        """Returns the question to ask first; empty when the act needs no question.

        Raises ConfigError when the act is impossible.
        """
        return ""

    @abstractmethod
    def perform(self) -> Done:
        """Performs the act."""


def happened(count: int, one: str, done: str) -> str:
    """Returns a sentence with a count: 1 message was deleted, 12 messages were deleted."""
    return f"{pluralize(count, one)} {'was' if count == 1 else 'were'} {done}"


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Publish(Act):
    """Appends an event; makes the topic when it is not there."""

    topic: Topic
    draft: Draft

    def question(self) -> str:
        is_new = self.topic.name not in self.topic.journal.topics()
        return f"There is no topic {self.topic.name} yet. Make it with this event?" if is_new else ""

    def perform(self) -> Done:
        (receipt,) = self.topic.append_many([self.draft])
        return Done(f"{self.draft.kind} was published as {self.topic.name} #{receipt.seq:,}", {"seq": receipt.seq})


class KeepHistory(Act):
    """Sets what a topic keeps; makes the topic when it is not there."""

    topic: Topic
    max_age: float | None
    max_events: int | None
    max_bytes: int | None
    by_key: bool

    @property
    def _words(self) -> str:
        kept = {
            f"for {show_duration(self.max_age)}": self.max_age,
            f"the newest {pluralize(self.max_events or 0, 'event')}": self.max_events,
            f"{show_size(self.max_bytes or 0)} of events": self.max_bytes,
            "the newest event of every key": self.by_key or None,
        }
        return ", ".join(said for said, value in kept.items() if value is not None) or "everything for ever"

    def question(self) -> str:
        topic = self.topic
        if topic.name not in topic.journal.topics():
            return f"Make the topic {topic.name} and keep {self._words}?"
        stored = len(topic)
        going = 0 if self.max_events is None else max(0, stored - self.max_events)
        if self.max_age is not None:
            through = topic.position_at(datetime.now(UTC) - timedelta(seconds=self.max_age))
            going = max(going, min(stored, max(0, through - topic.oldest + 1)))
        removed = f" {pluralize(going, 'event')} of {stored:,} will be removed in passing." if going else ""
        return f"Keep {self._words} in {topic.name}?{removed}"

    def perform(self) -> Done:
        self.topic.configure(
            max_age=self.max_age, max_events=self.max_events, max_bytes=self.max_bytes, by_key=self.by_key
        )
        return Done(f"{self.topic.name} keeps {self._words}")


class CompactTopic(Act):
    """Removes events through a position; stops at the slowest consumer unless forced."""

    danger = "typed"
    topic: Topic
    through: int
    force: bool = False

    def question(self) -> str:
        topic, through = self.topic, self.through
        slowest, waits = min(topic.cursors().values(), default=through), ""
        if slowest < through:
            waits = f" The slowest consumer is at {slowest:,}: nothing after it will be removed."
            if self.force:
                waits = f" The slowest consumer is at {slowest:,}, and will not get the rest."
        what = f"{pluralize(max(0, min(len(topic), through - topic.oldest + 1)), 'event')} of {topic.name}"
        return f"Remove {what}, through position {through:,}?{waits} This cannot be undone."

    def perform(self) -> Done:
        report = self.topic.compact(self.through, force=self.force)
        says = f"{happened(report.removed, 'event', f'removed from {self.topic.name}')}, {report.remaining:,} remain"
        if report.stopped_at is not None:
            says += f"; the consumer {report.stopped_at} has not read further"
        return Done(says, msgspec.structs.asdict(report))


class CompactKeys(Act):
    """Keeps the newest event of every key."""

    topic: Topic

    def perform(self) -> Done:
        removed = self.topic.compact_keys()
        record: dict[str, object] = {"removed": removed, "remaining": len(self.topic)}
        return Done(happened(removed, "event", f"removed from {self.topic.name}"), record)


class EraseEvents(Act):
    """Erases the contents of events, or masks fields of their payloads, and clears what is left in files."""

    danger = "typed"
    topic: Topic
    filter: FilterArguments
    seqs: list[int] | None = None
    fields: list[str] = []
    by: str | None = None

    def question(self) -> str:
        found = (event.seq for event in self.topic.read(**self.filter))
        count = sum(1 for seq in found if self.seqs is None or seq in self.seqs)
        what = f"{pluralize(count, 'event')} of {self.topic.name}"
        if self.fields:
            return f"Blank {', '.join(self.fields)} in the payloads of {what}? This cannot be undone."
        return f"Erase the contents of {what}, wherever they are stored? This cannot be undone."

    def perform(self) -> Done:
        topic = self.topic
        if self.fields:
            report = topic.mask(self.fields, self.seqs, by=self.by, **self.filter)
        else:
            report = topic.erase(self.seqs, by=self.by, **self.filter)
        topic.journal.maintain()
        says = happened(report.events, "event", f"{'masked' if self.fields else 'erased'} in {topic.name}")
        notes = [f"copies may remain in {place}" for place in report.remaining]
        return Done(says, msgspec.structs.asdict(report), notes)


class DropTopic(Act):
    """Removes a topic and everything that belongs to it; without `force` only a topic that nothing depends on."""

    danger = "typed"
    topic: Topic
    force: bool = False

    def question(self) -> str:
        topic, journal = self.topic, self.topic.journal
        going = [pluralize(len(topic), "event")]
        if self.force:
            going += [pluralize(consumers, "consumer")] if (consumers := len(topic.cursors())) else []
            if topic.name in journal.queues():
                held = pluralize(len(journal.queue(topic.name, create=False)), "message")
                going.append(f"1 queue with {held}")
        return f"Drop the topic {topic.name} with {' and '.join(going)}? This cannot be undone."

    def perform(self) -> Done:
        report = self.topic.journal.drop_topic(self.topic.name, self.force)
        return Done(
            f"the topic {self.topic.name} was dropped with {pluralize(report.events, 'event')}",
            {"removed": report.events, "files": report.files},
            [f"sealed events stay in {file}" for file in report.files],
        )


class MoveConsumer(Act):
    """Moves a consumer of a topic back or ahead."""

    topic: Topic
    consumer: str
    position: int

    def question(self) -> str:
        now, position = self.topic.cursor(self.consumer), self.position
        if now is None:
            return f"{self.consumer} is new to {self.topic.name}. Let it begin at position {position:,}?"
        number = pluralize(abs(self.topic.left(position) - self.topic.left(now)), "event")
        effect = f"it will get {number} again" if position < now else f"it will skip {number}"
        effect = "nothing changes" if position == now else effect
        return f"Move {self.consumer} from {now:,} to {position:,} of {self.topic.name}: {effect}?"

    def perform(self) -> Done:
        topic, consumer = self.topic, self.consumer
        before = topic.cursor(consumer)
        topic.seek(consumer, self.position)
        lag = topic.lag(consumer)
        came = "new here" if before is None else f"was at {before:,}"
        says = f"{consumer} is at {self.position:,} of {topic.name} ({came}); {pluralize(lag, 'event')} ahead"
        return Done(says, {"consumer": consumer, "before": before, "position": self.position, "lag": lag})


class ForgetConsumer(Act):
    """Forgets a consumer's position."""

    danger = "red"
    topic: Topic
    consumer: str

    def question(self) -> str:
        now = self.topic.cursor(self.consumer)
        if now is None:
            raise self._unknown()
        anew = f"It would begin anew, with {pluralize(len(self.topic), 'event')}."
        return f"Forget that {self.consumer} is at {now:,} of {self.topic.name}? {anew}"

    def perform(self) -> Done:
        if not self.topic.forget(self.consumer):
            raise self._unknown()
        return Done(f"{self.consumer} was forgotten", {"forgotten": self.consumer})

    def _unknown(self) -> ConfigError:
        return NotThere(f"topic {self.topic.name!r} has no consumer {self.consumer[:80]!r}")


class ForgetWorker(Act):
    """Removes the record that a worker gave up, once an operator has seen it."""

    journal: Journal
    worker: str

    def question(self) -> str:
        if not any(one.worker == self.worker for one in workers.gave_up(self.journal)):
            raise self._unknown()
        return f"Forget 1 report, that {self.worker} gave up? Nothing is started by that."

    def perform(self) -> Done:
        if not workers.forget(self.journal, self.worker):
            raise self._unknown()
        return Done(f"{self.worker} is no longer reported", {"worker": self.worker, "forgotten": True})

    def _unknown(self) -> ConfigError:
        return NotThere(f"no worker {self.worker[:80]!r} has given up, or it was started again")


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class ChangePolicy(Act):
    """Changes the given fields of a queue's policy."""

    queue: Queue
    wanted: Mapping[str, object]

    def __post_init__(self) -> None:
        queue = self.queue
        wanted = check_policy(self.wanted, queue.name)
        policy = queue.policy
        refuse_other_mode(queue.name, policy, wanted.get("mode", policy.mode))
        values = msgspec.structs.asdict(policy)
        self.wanted = {name: value for name, value in wanted.items() if values[name] != value}
        check_together(msgspec.structs.replace(policy, **self.wanted), queue.name)

    def question(self) -> str:
        if not self.wanted:
            return f"Nothing is different. Save the policy of {self.queue.name} all the same?"
        return f"Change {', '.join(self.wanted)} of {self.queue.name}, with {held_messages(self.queue)} in it?"

    def perform(self) -> Done:
        self.queue.configure(**self.wanted)  # type: ignore[arg-type]
        return Done(f"the policy of {self.queue.name} was changed: {', '.join(self.wanted) or 'nothing'}")


class MakeQueue(Act):
    """Makes a queue, also over a topic with a history."""

    journal: Journal
    name: str
    wanted: Mapping[str, object]

    def __post_init__(self) -> None:
        if self.name in self.journal.queues():
            raise ConfigError(f"there is a queue {self.name!r} already: its page changes its policy")
        self.wanted = check_policy(self.wanted, self.name)
        check_together(msgspec.structs.replace(DEFAULT, **self.wanted), self.name)

    def question(self) -> str:
        held = self.journal.topic(self.name).latest if self.name in self.journal.topics() else 0
        return f"{self.name} is a topic with {pluralize(held, 'event')}. Make it a queue as well?" if held else ""

    def perform(self) -> Done:
        self.journal.queue(self.name, **self.wanted)  # type: ignore[arg-type]
        return Done(f"the queue {self.name} was made")


class _Pausing(Act):
    """The subject of a pause: a queue, or one of its groups."""

    queue: Queue
    group: str | None = None

    @property
    def _named(self) -> str:
        return self.queue.name if self.group is None else f"{self.queue.name}/{self.group}"

    def _done(self, says: str, changed: bool) -> Done:
        left = self.queue.pauses()
        held = any(one.group is None or one.group == self.group for one in left)
        notes = [
            f"still paused: {self.queue.name if one.group is None else f'group {one.group}'}, "
            f"since {one.since:%F %T} UTC"
            for one in left
        ]
        return Done(says, {"group": self.group, "paused": held, "changed": changed}, notes)


class PauseQueue(_Pausing):
    """Stops deliveries, to one group or to all."""

    def question(self) -> str:
        queue, group = self.queue, self.group
        if group is not None and group not in queue.groups():
            raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
        found = [queue.stats(one) for one in ([group] if group is not None else delivering_groups(queue))]
        ready, in_flight = sum(one.ready for one in found), sum(one.in_flight for one in found)
        held = f"; {pluralize(in_flight, 'message')} in flight may still be settled" if in_flight else ""
        return f"Pause {self._named}? {pluralize(ready, 'ready message')} will wait until it is resumed{held}."

    def perform(self) -> Done:
        changed = self.queue.pause(self.group)
        done = self._done(f"{self._named} {'is paused' if changed else 'was paused already'}", changed)
        done.notes.clear()
        return done


class ResumeQueue(_Pausing):
    """Ends a pause: waiting takes continue."""

    def perform(self) -> Done:
        changed = self.queue.resume(self.group)
        return self._done(f"{self._named} {'goes on' if changed else 'was not paused'}", changed)


def delivering_groups(queue: Queue) -> list[str]:
    """Returns the groups that a queue delivers to; a work queue has one group."""
    return queue.groups() if queue.policy.mode == "fanout" else [DEFAULT_GROUP]


class PurgeQueue(Act):
    """Removes every message."""

    danger = "typed"
    queue: Queue

    def question(self) -> str:
        held = held_messages(self.queue)
        return f"Remove {held} of {self.queue.name}, also those in flight? This cannot be undone."

    def perform(self) -> Done:
        removed = self.queue.purge()
        return Done(happened(removed, "message", "removed"), {"removed": removed})


class DropQueue(Act):
    """Removes a queue with its messages, groups and schedules; its topic stays."""

    danger = "typed"
    queue: Queue

    def question(self) -> str:
        queue = self.queue
        groups, schedules = pluralize(len(queue.groups()), "group"), pluralize(len(queue.schedules()), "schedule")
        what = f"the queue {queue.name} and {held_messages(queue)} in it, with {groups} and {schedules}"
        return f"Drop {what}? This cannot be undone; its topic stays."

    def perform(self) -> Done:
        removed = self.queue.drop()
        says = f"the queue {self.queue.name} was dropped with {pluralize(removed, 'message')}"
        return Done(says, {"removed": removed})


class AddGroup(Act):
    """Registers a group, which gets the messages after a position."""

    queue: Queue
    name: str
    after: int | Literal["latest"] = 0

    def perform(self) -> Done:
        self.queue.add_group(self.name, after=self.after)
        return Done(f"the group {self.name} was added")


class RemoveGroup(Act):
    """Forgets a group, so that messages no longer wait for it."""

    danger = "red"
    queue: Queue
    group: str

    def question(self) -> str:
        queue, group = self.queue, self.group
        if group not in queue.groups():
            raise ConfigError(f"{queue.name} has no group {group[:80]!r}")
        stats = queue.stats(group)
        waiting = pluralize(stats.ready + stats.in_flight + stats.delayed + stats.failed, "message")
        return f"Remove the group {group} of {queue.name}? {waiting} will no longer wait for it."

    def perform(self) -> Done:
        self.queue.remove_group(self.group)
        return Done(f"the group {self.group} was removed")


class AddSchedule(Act):
    """Adds a periodic message, or replaces the periodic message of this name."""

    queue: Queue
    name: str
    when: Duration
    """A period, or a cron line."""
    payload: object = None
    timezone: str = "UTC"
    missed: Literal["all", "last", "none"] = "last"
    kind: str = "message"
    headers: Mapping[str, str] | None = None
    key: str | None = None
    priority: int = 0

    def question(self) -> str:
        known = any(one.name == self.name for one in self.queue.schedules())
        return f"{self.queue.name} has a schedule {self.name}. Replace it?" if known else ""

    def perform(self) -> Done:
        made = self.queue.every(
            self.when,
            self.payload,
            name=self.name,
            timezone=self.timezone,
            missed=self.missed,
            kind=self.kind,
            headers=self.headers,
            key=self.key,
            priority=self.priority,
        )
        return Done(f"{made.name} ticks next at {made.next_tick:%Y-%m-%d %H:%M:%S} UTC")


class RemoveSchedule(Act):
    """Removes a periodic message."""

    danger = "red"
    queue: Queue
    name: str

    def question(self) -> str:
        return f"Remove the schedule {self.name} of {self.queue.name}?"

    def perform(self) -> Done:
        if not self.queue.unschedule(self.name):
            raise NotThere(f"queue {self.queue.name!r} has no periodic message {self.name[:80]!r}")
        return Done(f"the schedule {self.name} was removed", {"removed": self.name})


class RunSchedule(Act):
    """Pushes a schedule's message now; its ticks do not change."""

    journal: LocalJournal
    queue: str
    name: str

    def perform(self) -> Done:
        receipt = push_now(self.journal.backend.queue(self.queue), self.name)
        return Done(f"the message of {self.name} was pushed as {self.queue} #{receipt.seq:,}")


class PushMessage(Act):
    """Pushes a message."""

    queue: Queue
    message: PushRequest

    def perform(self) -> Done:
        wanted = self.message
        receipt = self.queue.push(
            wanted.payload, kind=wanted.kind, key=wanted.key, delay=wanted.delay, priority=wanted.priority
        )
        return Done(f"the message was pushed as {self.queue.name} #{receipt.seq:,}")


# ── messages that were given up ──────────────────────────────────────────────────────────────────────────────────────
class SendBack(Act):
    """Sends dead letters and failed messages back to their queue, or to another queue, with a fresh budget."""

    queue: Queue
    where: EventChoice | None = None
    limit: int | None = None
    to: Queue | None = None
    rate: float | None = None
    """The number of messages a second; None sends all at once."""

    @property
    def _pace(self) -> str:
        return "" if self.rate is None else f", {self.rate:,.4g} a second"

    def count(self) -> Redriven:
        """Returns the number of messages that would be sent back, and the letters that cannot be sent."""
        return self.queue.redrive(to=self.to, limit=self.limit, where=self.where, dry_run=True)

    def question(self) -> str:
        return f"Send {pluralize(self._some(), 'message')} back to their queue{self._pace}, with a fresh budget?"

    def _some(self) -> int:
        count = self.count()
        if not count:
            raise _none_given_up()
        return count

    def perform(self, stopping: Callable[[], bool] = lambda: False) -> Done:
        """Sends the messages back; with a rate slowly, until `stopping`."""
        if self.rate is None:
            done = self.queue.redrive(to=self.to, limit=self.limit, where=self.where)
        else:

            def send(due: int) -> int:
                return self.queue.redrive(to=self.to, limit=due, where=self.where)

            done = Redriven(send_at_rate(send, self.count(), self.rate, stopping), self.count().left)
        return redriven(done, "redriven", "sent back")

    def announce(self) -> Done:
        """Returns what a redrive with a rate is about to do."""
        count = self._some()
        return Done(f"{pluralize(count, 'message')} will be sent back{self._pace}", {"would_redrive": count})


class SendBackMeanwhile(SendBack):
    """A redrive with a rate, which runs in a thread that ends with the server."""

    stopping: Callable[[], bool] = lambda: False

    def perform(self, stopping: Callable[[], bool] | None = None) -> Done:
        said = self.announce()
        threading.Thread(target=self._send, daemon=True).start()
        return said

    def _send(self) -> None:
        try:
            super().perform(self.stopping)
        except PenstockError as error:
            log.warning("sending messages of %s back ended: %s", self.queue.name, error)


def redriven(count: Redriven, name: str, done: str) -> Done:
    """Returns what a redrive did, or would do, and which letters stay."""
    stay = [f"{pluralize(left.count, 'letter')} from {left.queue} stay: {left.reason}" for left in count.left]
    record: dict[str, object] = {name: int(count)}
    if count.left:
        record["left"] = count.left
    return Done("; ".join([happened(count, "message", done), *stay]), record)


def _none_given_up() -> ConfigError:
    return ConfigError("no message that was given up is among those")


def given_up_events(queue: Queue) -> Iterator[Event]:
    """Yields the events of messages that a queue gave up, with their reasons: the failed messages of each group,
    then the dead letters.
    """
    failed = (one for group in delivering_groups(queue) for one in queue.failures(group))
    return (GivenUpEvent.of(one.event, one) for one in chain(failed, queue.dead_letters()))


def of_ids(ids: Iterable[str]) -> Callable[[Event], bool]:
    """Chooses events by their ids."""
    wanted = frozenset(ids)
    return lambda event: event.id in wanted


class Discard(Act):
    """Settles messages that are not in flight as if they had been handled."""

    danger = "typed"
    journal: Journal
    which: str
    """The messages in words, for the question."""
    seqs: Mapping[str, list[int]]
    """The positions of the messages, by queue."""

    @classmethod
    def given_up(cls, queue: Queue, where: EventChoice | None, limit: int | None = None) -> Discard:
        """Chooses among a queue's failed messages and its dead letters; ConfigError when no message is left."""
        chooser = predicate(where)
        chosen: dict[str, dict[int, None]] = {}
        wanted = (event for event in given_up_events(queue) if chooser is None or chooser(event))
        for event in islice(wanted, limit):
            chosen.setdefault(event.topic, {})[event.seq] = None
        if not chosen:
            raise _none_given_up()
        return cls(queue.journal, f"that {queue.name} gave up", {name: list(seqs) for name, seqs in chosen.items()})

    @property
    def _count(self) -> int:
        return sum(map(len, self.seqs.values()))

    def count_only(self) -> Done:
        """Returns the number of messages that the act would remove."""
        return Done(happened(self._count, "message", "found to delete"), {"would_discard": self._count})

    def question(self) -> str:
        return f"Delete {pluralize(self._count, 'message')} {self.which}? This cannot be undone."

    def perform(self) -> Done:
        removed = sum(self._discard(name, seqs) for name, seqs in self.seqs.items())
        return Done(happened(removed, "message", "deleted"), {"discarded": removed})

    def _discard(self, name: str, seqs: list[int]) -> int:
        """Removes messages of a queue; removes none when the queue was dropped meanwhile."""
        try:
            return self.journal.queue(name, create=False).discard(sorted(seqs))
        except UnknownQueue:
            return 0


# ── single messages ──────────────────────────────────────────────────────────────────────────────────────────────────
def _name(event: Event) -> str:
    return f"{event.topic} #{event.seq:,}"


class DeleteMessage(Act):
    """Removes one message that is not in flight, whatever its state."""

    danger = "red"
    queue: Queue
    event: Event

    def __post_init__(self) -> None:
        if any(held.seq == self.event.seq for held in self.queue.pending()):
            event = self.event
            raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first, or settle it")

    def question(self) -> str:
        return f"Delete 1 message, {_name(self.event)}? This cannot be undone."

    def perform(self) -> Done:
        return Done(happened(self.queue.discard([self.event.seq]), "message", "deleted"))


class EditMessage(Act):
    """Pushes a message with another payload, and removes the old message, in one commit.

    A dead letter goes to its original queue.

    A delayed message keeps its time, unless it has a key. Every message keeps its priority and its own budget. No
    throttle or debounce applies, because the message was pushed before.
    """

    journal: LocalJournal
    event: Event
    payload: object

    @property
    def _target(self) -> str:
        try:
            return self.journal.queue(origin(self.event) or self.event.topic, create=False).name
        except (UnknownQueue, ConfigError):  # any client may push such headers: they may name nothing
            return self.event.topic

    def __post_init__(self) -> None:
        event = self.event
        listed = self.journal.queue(event.topic, create=False).messages(after=event.seq - 1, limit=1)
        if any(one.state == "in_flight" for one in listed if one.event.id == event.id):
            raise ConfigError(f"message {event.seq} of {event.topic} is in flight: release it first")

    def question(self) -> str:
        return f"Push 1 edited message to {self._target} and delete {_name(self.event)}?"

    def perform(self) -> Done:
        event, target, backend = self.event, self._target, self.journal.backend
        receipt = replace(backend.queue(event.topic), backend.queue(target), event, self.payload)
        if receipt is None:
            raise ConfigError(f"{event.topic} has no message {event.seq}: it was taken or settled meanwhile")
        return Done(f"the edited message is {target} #{receipt.seq:,}")


class RunNow(Act):
    """Makes delayed messages ready at once, including messages that wait for their retry."""

    queue: Queue
    seqs: list[int] | None = None
    """The positions; None for every delayed message."""
    group: str | None = None

    def _chosen(self) -> list[int]:
        return self.seqs if self.seqs is not None else list(self._delayed())

    def _delayed(self) -> Iterator[int]:
        after = 0
        while page := self.queue.messages("delayed", group=self.group, after=after):
            yield from (one.seq for one in page)
            after = page[-1].seq

    def question(self) -> str:
        if self.seqs is not None:
            return ""
        found = self._chosen()
        if not found:
            raise ConfigError(f"no message of {self.queue.name} waits for its time")
        return f"Run {pluralize(len(found), 'delayed message')} of {self.queue.name} now?"

    def perform(self) -> Done:
        ready = self.queue.run_now(self._chosen(), group=self.group)
        return Done(happened(ready, "message", "made ready"), {"made_ready": ready})


class MoveMessages(Act):
    """Moves messages that are not in flight to the end of another queue."""

    queue: Queue
    to: Queue
    where: EventChoice | None = None
    limit: int | None = None

    def perform(self) -> Done:
        moved = self.queue.move(self.to, where=self.where, limit=self.limit)
        record: dict[str, object] = {"to": self.to.name, "moved": moved}
        return Done(happened(moved, "message", f"moved to {self.to.name}"), record)


Outcome = Literal["ack", "nack", "dead", "release", "extend"]


class SettleDelivery(Act):
    """Settles or extends a delivery by its token, in place of its holder."""

    delivery: Delivery
    how: Outcome
    error: str | None = None
    delay: float | None = None
    lease: float | None = None

    def question(self) -> str:
        held, name = self.delivery, _name(self.delivery.event)
        holder = held.consumer or "a consumer"
        match self.how:
            case "release":
                return f"Take 1 message, {name}, from {holder}? Another consumer will get it."
            case "ack":
                return f"Settle as done 1 message, {name}, which {holder} still works on?"
            case "dead":
                return f"Give up 1 message, {name}, which {holder} still works on?"
            case _:
                return ""

    def perform(self) -> Done:
        held, name = self.delivery, _name(self.delivery.event)
        match self.how:
            case "ack":
                held.ack()
                says = f"{name} was settled"
            case "release":
                held.release()
                says = f"{name} is ready again"
            case "extend":
                held.extend(self.lease)
                until = f"{held.deadline:%Y-%m-%d %H:%M:%S} UTC"
                return Done(f"{name} is held until {until}", {"seq": held.seq, "deadline": held.deadline})
            case _:
                held.nack(delay=self.delay, error=self.error, dead=self.how == "dead")
                says = f"{name} was given {'up' if self.how == 'dead' else 'back'}"
        return Done(says, {"seq": held.seq, "settled": self.how})

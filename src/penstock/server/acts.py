"""The acts that a person can perform from the console.

Each form stands for an act of `penstock.acts`; the console asks the person before the act, and records the act
afterwards.

A form sends its fields to POST /acts/{act} with `preview`. The answer is the question to ask; it contains a number if
the act destroys or repeats something. The answer is empty if the act needs no question. Sent again without `preview`,
the form performs the act, and the answer says what was done. An event in `penstock.audit` records the act: its kind is
`console.<act>`, its key is the topic or queue, and its payload is an `AuditRecord`.

A function under `@act(operation)` reads its form and returns the act. It raises ConfigError when the form describes no
act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from penstock import acts
from penstock.core.documents.decoding import decoded
from penstock.core.documents.events import DraftDocument, decode_binary
from penstock.core.events import Event
from penstock.core.journal.catalog import Settings
from penstock.core.local.backend import LocalJournal
from penstock.core.model.arguments import FilterArguments
from penstock.core.model.conditions import EventChoice, Where
from penstock.core.names import AUDIT
from penstock.core.protocol import queues, topics
from penstock.core.protocol.operation import JSON, Operation, Role
from penstock.core.queue.policy import FIELDS
from penstock.core.surface.queue import Queue
from penstock.core.surface.topic import Topic
from penstock.core.units import parse_moment
from penstock.errors import ConfigError, UnknownTopic
from penstock.server import forms
from penstock.server.access import address_of
from penstock.server.forms import Value
from penstock.server.service import Refused, Service, guarded, read_form

S = TypeVar("S", bound=msgspec.Struct)

LONGEST: Final = 500
"""The number of characters of a field that a record keeps."""


class ActCall:
    """A request to perform an act, or, with `preview`, to describe the act."""

    def __init__(self, service: Service, fields: dict[str, Value], preview: bool) -> None:
        self.journal: LocalJournal = service.journal
        self.fields = fields
        self.preview = preview
        self.stopping = service.closing.is_set
        """True if the server stops. An act's background work stops then too."""

    def filled(self, kind: type[S], **other: object) -> S:
        """Returns the form as a request."""
        return forms.filled(kind, self.fields, **other)

    def optional(self, name: str) -> str | None:
        """Returns the text of a field; None when the field is empty."""
        value = self.fields.get(name, "")
        if not isinstance(value, str):
            raise ConfigError(f"{name} is one value, not several")
        return value.strip() or None

    def text(self, name: str) -> str:
        """Returns the text of a field that must not be empty."""
        value = self.optional(name)
        if value is None:
            raise ConfigError(f"{name.replace('_', ' ')} is missing: fill it in")
        return value

    def whole(self, name: str) -> int | None:
        """Returns a field as a whole number of at least 0."""
        text = self.optional(name)
        try:
            return None if text is None else forms.whole(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    @property
    def topic(self) -> Topic:
        """The topic, which must exist: a mistyped name must not create a topic."""
        found = self.text("topic")
        if found not in self.journal.topics():
            raise UnknownTopic(f"there is no topic {found[:80]!r}")
        return self.journal.topic(found)

    @property
    def queue(self) -> Queue:
        """The queue, which must exist."""
        return self.journal.queue(self.text("queue"), create=False)


class ConsoleAct(msgspec.Struct):
    """A form of the console. Its operation decides the role, the names, and the topics that the form may change."""

    read: Callable[[ActCall], acts.Act]
    role: Role
    subject: str
    """The name of the field that holds the topic or queue of the act."""
    fields: frozenset[str]
    on_system: bool
    """True if the act may change a topic of penstock's own."""


ACTS: Final[dict[str, ConsoleAct]] = {}
"""The acts by name; forms and buttons carry this name."""
Read = TypeVar("Read", bound=Callable[[ActCall], acts.Act])


def act(
    operation: Operation[Any],
    *,
    fields: Iterable[str] = (),
    role: Role | None = None,
    subject: str | None = None,
    on_system: bool | None = None,
) -> Callable[[Read], Read]:
    """Makes a function the reader of a form. The form has the function's name and stands for an operation."""
    needed = role or operation.role
    assert needed is not None, f"{operation.name} needs no role: that is no act"
    about, request = subject or operation.names[0], operation.query or operation.body
    taken = request.__struct_fields__ if isinstance(request, msgspec.StructMeta) else ()
    known = frozenset((about, *operation.names, *taken, *fields))

    def declare(read: Read) -> Read:
        own = operation.on_system if on_system is None else on_system
        ACTS[read.__name__.replace("_", "-")] = ConsoleAct(read, needed, about, known, own)
        return read

    return declare


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@act(topics.APPEND_EVENTS, fields=DraftDocument.__struct_fields__, on_system=False)
def publish(call: ActCall) -> acts.Act:
    return acts.Publish(call.journal.topic(call.text("topic")), call.filled(DraftDocument, topic=None).draft())


@act(topics.CONFIGURE_TOPIC)
def retention(call: ActCall) -> acts.Act:
    wanted, topic = call.filled(Settings), call.journal.topic(call.text("topic"))
    return acts.KeepHistory(topic, wanted.max_age, wanted.max_events, wanted.max_bytes, wanted.by_key)


@act(topics.COMPACT_TOPIC)
def compact(call: ActCall) -> acts.Act:
    topic, through = call.topic, min(forms.whole(call.text("through")), call.topic.latest)
    return acts.CompactTopic(topic, through, call.filled(topics.CompactRequest, through=through).force)


@act(topics.ERASE_EVENTS)
def erase(call: ActCall) -> acts.Act:
    filter = FilterArguments(key=call.optional("key"), where=call.optional("where"))
    return acts.EraseEvents(call.topic, filter, by=call.optional("by") or "the console")


@act(topics.DROP_TOPIC)
def drop_topic(call: ActCall) -> acts.Act:
    return acts.DropTopic(call.topic, call.filled(topics.DropTopicQuery).force)


def _target(call: ActCall) -> int:
    """Returns the new position of a consumer."""
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
    if to == "event":  # this event is the next event that the consumer gets
        position = max(0, position - 1)
    if position > latest:
        raise ConfigError(f"{topic.name} ends at {latest:,}: {position:,} is beyond it")
    return position


@act(topics.MOVE_CURSOR, fields=("value",))
def seek(call: ActCall) -> acts.Act:
    return acts.MoveConsumer(call.topic, call.text("consumer"), _target(call))


@act(topics.FORGET_CURSOR)
def forget(call: ActCall) -> acts.Act:
    return acts.ForgetConsumer(call.topic, call.text("consumer"))


@act(topics.FORGET_CURSOR, role="admin", subject="worker")
def forget_worker(call: ActCall) -> acts.Act:
    return acts.ForgetWorker(call.journal, call.text("worker"))


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@act(queues.PUSH_MESSAGES)
def push(call: ActCall) -> acts.Act:
    return acts.PushMessage(call.queue, call.filled(queues.PushRequest))


@act(queues.CONFIGURE_QUEUE, fields=FIELDS)
def policy(call: ActCall) -> acts.Act:
    return acts.ChangePolicy(call.queue, forms.policy_given(call.fields, emptied=True))


@act(queues.OPEN_QUEUE, fields=FIELDS, role="admin")  # the topic may have a history, so this needs an admin
def make_queue(call: ActCall) -> acts.Act:
    return acts.MakeQueue(call.journal, call.text("queue"), forms.policy_given(call.fields, emptied=False))


@act(queues.PAUSE_QUEUE)
def pause(call: ActCall) -> acts.Act:
    return acts.PauseQueue(call.queue, call.optional("group"))


@act(queues.RESUME_QUEUE)
def resume(call: ActCall) -> acts.Act:
    return acts.ResumeQueue(call.queue, call.optional("group"))


@act(queues.PURGE_QUEUE)
def purge(call: ActCall) -> acts.Act:
    return acts.PurgeQueue(call.queue)


@act(queues.DROP_QUEUE)
def drop_queue(call: ActCall) -> acts.Act:
    return acts.DropQueue(call.queue)


@act(queues.ADD_GROUP)
def add_group(call: ActCall) -> acts.Act:
    wanted = call.filled(queues.NewGroup)
    return acts.AddGroup(call.queue, wanted.name, wanted.after)


@act(queues.REMOVE_GROUP)
def remove_group(call: ActCall) -> acts.Act:
    return acts.RemoveGroup(call.queue, call.text("group"))


@act(queues.ADD_SCHEDULE, fields=("when",))
def add_schedule(call: ActCall) -> acts.Act:
    """Reads a periodic message. The field `when` holds a period or a cron line."""
    wanted = call.filled(queues.NewSchedule)
    return acts.AddSchedule(
        call.queue,
        wanted.name,
        call.text("when"),
        decode_binary(wanted.payload) if wanted.binary else wanted.payload,
        wanted.timezone,
        wanted.missed,
        wanted.kind,
        wanted.headers,
        wanted.key,
        wanted.priority,
    )


@act(queues.REMOVE_SCHEDULE)
def remove_schedule(call: ActCall) -> acts.Act:
    return acts.RemoveSchedule(call.queue, call.text("schedule"))


@act(queues.ADD_SCHEDULE, fields=("schedule",))
def run_schedule(call: ActCall) -> acts.Act:
    return acts.RunSchedule(call.journal, call.text("queue"), call.text("schedule"))


# ── what was given up ────────────────────────────────────────────────────────────────────────────────────────────────
CHOICE: Final = ("ids", "where", "scope", "limit", "rate")


def _chosen(call: ActCall) -> EventChoice | None:
    """Returns the chosen messages: the ticked messages, the messages that match a condition, or None for all
    messages.
    """
    scope, where, ids = call.optional("scope") or "all", call.optional("where"), call.fields.get("ids", [])
    if scope == "all":
        return None
    if scope == "filter":
        if where is None:
            raise ConfigError("a condition is missing, like: payload.total > 10")
        return Where(where)
    if not ids:
        raise ConfigError("choose some messages first")
    return acts.of_ids([ids] if isinstance(ids, str) else ids)


@act(queues.REDRIVE_QUEUE, fields=CHOICE)
def redrive(call: ActCall) -> acts.Act:
    rate, limit = call.whole("rate"), call.whole("limit")
    if rate == 0:
        raise ConfigError("the rate is a whole number of messages a second, like 10")
    if rate is None:
        return acts.SendBack(call.queue, _chosen(call), limit)
    return acts.SendBackMeanwhile(call.queue, _chosen(call), limit, rate=rate, stopping=call.stopping)


@act(queues.DISCARD_MESSAGES, fields=CHOICE)
def delete(call: ActCall) -> acts.Act:
    """Reads the choice of given-up messages to delete. The form also has the field for a redrive's rate."""
    if call.optional("rate") is not None:
        raise ConfigError("only what is sent back has a rate: empty that field to delete")
    return acts.Discard.given_up(call.queue, _chosen(call))


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _message(call: ActCall) -> Event:
    """Returns the message that a form is about."""
    seq = call.whole("seq")
    event = None if seq is None else call.queue.get(seq)
    if event is None:
        raise ConfigError(f"{call.text('queue')} has no message {seq}: it was settled meanwhile")
    return event


@act(queues.DISCARD_MESSAGES, fields=("seq",))
def delete_message(call: ActCall) -> acts.Act:
    return acts.DeleteMessage(call.queue, _message(call))


@act(queues.MOVE_MESSAGES, fields=("seq", "payload"))
def edit(call: ActCall) -> acts.Act:
    payload = call.filled(queues.PushRequest).payload
    return acts.EditMessage(call.journal, _message(call), payload)


@act(queues.RUN_NOW, fields=("seq", "group"))
def run_now(call: ActCall) -> acts.Act:
    seqs = None if call.optional("seq") is None else [_message(call).seq]
    return acts.RunNow(call.queue, seqs, call.optional("group"))


@act(queues.RELEASE_DELIVERY)
def release(call: ActCall) -> acts.Act:
    return acts.SettleDelivery(call.queue.delivery(call.text("token")), "release")


@act(queues.ACK_DELIVERY, fields=("outcome",), role="admin")  # in place of the holder, which a consumer may not do
def settle(call: ActCall) -> acts.Act:
    gives_up = call.optional("outcome") == "dead"
    error = "given up from the console" if gives_up else None
    return acts.SettleDelivery(call.queue.delivery(call.text("token")), "dead" if gives_up else "ack", error)


# ── the route ────────────────────────────────────────────────────────────────────────────────────────────────────────
class ActRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a form; `preview` asks for a description only."""

    fields: dict[str, Value]
    preview: bool = False


class ActAnswer(msgspec.Struct, omit_defaults=True):
    """The question to ask before the act, or the description of what was done."""

    question: str = ""
    danger: bool = False
    """True if the act destroys something."""
    typed: str | None = None
    """The text that a person must type before the act is done."""
    says: str = ""


class AuditRecord(msgspec.Struct):
    """The record of an act."""

    act: str
    subject: str
    role: str
    who: str
    """`local` when the server needs no token, else the beginning of the token's hash; never the token."""
    address: str
    """The address that the request came from."""
    fields: dict[str, Value]
    says: str
    """The description of the act."""


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
    if given.preview:
        answer = await run_in_threadpool(lambda: _asked(act.read(call), subject))
    else:
        says = (await run_in_threadpool(lambda: act.read(call).perform())).says
        answer = ActAnswer(says=says)
        # The record of an erasure must not say whose events were erased.
        kept = {} if name == "erase" else {field: _short(value) for field, value in given.fields.items() if value}
        who, address = service.access.identity(request), address_of(request)
        record = AuditRecord(name, subject[:200], role, who, address, kept, says)
        body: dict[str, object] = msgspec.to_builtins(record)
        audit = service.journal.topic(AUDIT)
        await run_in_threadpool(lambda: audit.append(f"console.{name}", body, key=subject[:200] or None))
    return Response(msgspec.json.encode(answer), media_type=JSON)


def _asked(wanted: acts.Act, subject: str) -> ActAnswer:
    question = wanted.question()
    return ActAnswer(question, bool(wanted.danger), subject if wanted.danger == "typed" and question else None)


def _short(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return [one[:80] for one in value[:50]]

"""A queue at the other end of a url."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.clock import Seconds, SystemClock, seconds
from penstock.document import ReceiptDocument
from penstock.errors import ConfigError, PenstockError, StaleDelivery
from penstock.event import Draft, Event, Receipt
from penstock.journal.names import check_consumer, check_limit, check_position
from penstock.observed import Failure
from penstock.queue.delivery import describe
from penstock.queue.inspect import Consumer, PendingDelivery, QueueStats
from penstock.queue.policy import QueuePolicy, checked
from penstock.queue.push import read_wish
from penstock.queue.schedule import Schedule
from penstock.remote.events import RawEvent, draft_documents, event_of, events_of, payload_fields, receipt_of
from penstock.ticket import Ticket
from penstock.tracing import trace_headers, with_trace
from penstock.where import Where

if TYPE_CHECKING:
    from penstock.remote.journal import RemoteJournal
    from penstock.remote.queue_worker import RemoteQueueWorker

WAIT = 30.0
"""Seconds one request waits for a message; a longer wait is several requests."""


class _Delivery(msgspec.Struct):
    token: str
    attempt: int
    deadline: datetime
    group: str
    consumer: str | None
    event: RawEvent


class _Deliveries(msgspec.Struct):
    deliveries: list[_Delivery]


class _Queue(msgspec.Struct):
    name: str
    length: int
    policy: QueuePolicy
    groups: list[str]


class _Receipts(msgspec.Struct):
    receipts: list[ReceiptDocument]


class _Events(msgspec.Struct):
    events: list[RawEvent]
    next: int | None = None


class _Pending(msgspec.Struct):
    pending: list[PendingDelivery]


class _Consumers(msgspec.Struct):
    consumers: list[Consumer]


class _Schedules(msgspec.Struct):
    schedules: list[Schedule]


class _Failure(msgspec.Struct):
    queue: str
    attempts: int
    reason: str
    error: str | None
    at: datetime | None
    event: RawEvent


class _Failures(msgspec.Struct):
    failed: list[_Failure] = []
    dead: list[_Failure] = []


_decode_queue = msgspec.json.Decoder(_Queue).decode
_decode_stats = msgspec.json.Decoder(QueueStats).decode
_decode_deliveries = msgspec.json.Decoder(_Deliveries).decode
_decode_delivery = msgspec.json.Decoder(_Delivery).decode
_decode_receipt = msgspec.json.Decoder(ReceiptDocument).decode
_decode_receipts = msgspec.json.Decoder(_Receipts).decode
_decode_events = msgspec.json.Decoder(_Events).decode
_decode_event = msgspec.json.Decoder(RawEvent).decode
_decode_pending = msgspec.json.Decoder(_Pending).decode
_decode_consumers = msgspec.json.Decoder(_Consumers).decode
_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_policy = msgspec.json.Decoder(QueuePolicy).decode
_decode_schedules = msgspec.json.Decoder(_Schedules).decode
_decode_failures = msgspec.json.Decoder(_Failures).decode


class RemoteQueue:
    """Messages handed out under leases."""

    def __init__(self, journal: RemoteJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._http = journal._http

    @classmethod
    def open(cls, journal: RemoteJournal, name: str, policy: dict[str, Any]) -> RemoteQueue:
        """The queue, made at the server when it is not there (and this journal may write)."""
        body = _policy_body(policy, name)
        queue = cls(journal, name)
        if journal._read_only:
            queue._look()
        else:
            journal._http.send("PUT", "queues", name, body=body)
        return queue

    def __repr__(self) -> str:
        return f"<queue {self.name!r} of {self.journal!r}>"

    def _get(self, *path: str, **query: Any) -> bytes:
        return self._http.get("queues", self.name, *path, **query)

    def _send(self, method: str, *path: str, body: Any = None, wait: float = 0.0) -> bytes:
        self.journal._check_writable()
        return self._http.send(method, "queues", self.name, *path, body=body, wait=wait)

    def _look(self) -> _Queue:
        return _decode_queue(self._get())

    @property
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""
        return self._look().policy

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(self, payload: Any, **options: Any) -> Receipt:
        """Adds a message and returns when it is durable; the options are those of a local queue's `push`."""
        body = {**_push_fields(options), **payload_fields(payload)}
        return receipt_of(_decode_receipt(self._send("POST", "messages", body=body)))

    def submit(self, payload: Any, **options: Any) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once."""
        self.journal._check_writable()
        fields = _push_fields(options)  # here: the caller's trace context does not follow into another thread
        return self.journal._submit(lambda: self.push(payload, **fields))

    def push_many(self, payloads: Iterable[Any], **options: Any) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; a Draft brings what is its own."""
        shared = _push_fields(options)
        if shared.pop("dedup", None) is not None:
            raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
        own = {name: shared.get(name) for name in ("key", "headers", "cause")}
        kind = shared.get("kind", "message")
        messages = [item if isinstance(item, Draft) else Draft(kind, item, **own) for item in payloads]
        if not messages:
            return []
        for name in ("key", "headers", "cause", "kind"):
            shared.pop(name, None)
        answer = _decode_receipts(
            self._send("POST", "messages", body={**shared, "messages": draft_documents(messages, self.name)})
        )
        return [receipt_of(document) for document in answer.receipts]

    # ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def take(
        self,
        *,
        group: str = "default",
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> RemoteDelivery | None:
        """The next message, for this consumer until it is settled or its lease ends; None when there is none."""
        found = self.take_many(1, group=group, consumer=consumer, wait=wait, lease=lease, newest=newest)
        return found[0] if found else None

    def take_many(
        self,
        limit: int,
        *,
        group: str = "default",
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> list[RemoteDelivery]:
        """Up to `limit` messages, as many as there are; `wait`: how long to wait for the first."""
        if check_limit(limit) is None:
            raise ConfigError("take_many needs a limit: how many messages you can work on within one lease")
        left = seconds(wait, "wait")
        wish: dict[str, Any] = {"limit": limit, "group": check_consumer(group, "group"), "newest": newest}
        if consumer is not None:
            wish["consumer"] = check_consumer(consumer)
        if lease is not None:
            wish["lease"] = seconds(lease, "lease")
        if not limit:
            return []
        while True:
            step = min(left, WAIT)
            answer = _decode_deliveries(self._send("POST", "take", body={**wish, "wait": step}, wait=step))
            left -= step
            if answer.deliveries or left <= 0:
                return [RemoteDelivery(self, found) for found in answer.deliveries]

    async def take_async(self, **take: Any) -> RemoteDelivery | None:
        """`take` for an event loop."""
        return await asyncio.to_thread(lambda: self.take(**take))

    async def take_many_async(self, limit: int, **take: Any) -> list[RemoteDelivery]:
        """`take_many` for an event loop."""
        return await asyncio.to_thread(lambda: self.take_many(limit, **take))

    def ack_many(self, deliveries: Iterable[RemoteDelivery | str]) -> int:
        """Settles deliveries (or their tokens) in one atomic, durable commit; returns how many were still held."""
        tokens = []
        handles = list(deliveries)
        for handle in handles:
            if isinstance(handle, RemoteDelivery):
                if handle.queue.name != self.name:
                    raise ConfigError(f"a delivery of queue {handle.queue.name!r} was given to queue {self.name!r}")
                tokens.append(handle.token)
            elif isinstance(handle, str):
                tokens.append(handle)
            else:
                raise ConfigError(f"ack_many takes deliveries or their tokens, not {handle!r:.80}")
        if not tokens:
            return 0
        count = int(msgspec.json.decode(self._send("POST", "ack", body={"tokens": tokens}))["acknowledged"])
        for handle in handles:
            if isinstance(handle, RemoteDelivery):
                handle._settled = True
        return count

    def delivery(self, token: str) -> RemoteDelivery:
        """The delivery a token names; StaleDelivery when nobody holds it any more."""
        return RemoteDelivery(self, _decode_delivery(self._get("deliveries", token)))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        check_position(seq, "seq")
        try:
            return event_of(_decode_event(self._get("messages", str(seq))))
        except PenstockError as error:
            if "UnknownEvent" in str(error):
                return None
            raise

    def peek(self, limit: int = 1, *, group: str = "default") -> list[Event]:
        """The messages that would be taken next, without taking them."""
        check_limit(limit)
        return list(events_of(_decode_events(self._get("peek", limit=limit, group=group)).events))

    def __iter__(self) -> Iterator[Event]:
        after = 0
        while True:
            page = _decode_events(self._get("messages", after=after))
            yield from events_of(page.events)
            if page.next is None:
                return
            after = page.next

    def __len__(self) -> int:
        return self._look().length

    def __bool__(self) -> bool:
        return True

    def stats(self, group: str = "default") -> QueueStats:
        """How many messages are in which state."""
        return _decode_stats(self._get("stats", group=check_consumer(group, "group")))

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return _decode_pending(self._get("pending", group=group, limit=10_000)).pending

    def failed(self, group: str = "default") -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return (failure.event for failure in self.failures(group))

    def failures(self, group: str = "default") -> Iterator[Failure]:
        """The same with the reason each was given up for."""
        return _failures(_decode_failures(self._get("failed", group=group, limit=10_000)).failed)

    def letters(self) -> Iterator[Failure]:
        """The queue's dead letters, with the reason each was given up for."""
        return _failures(_decode_failures(self._get("dead", limit=10_000)).dead)

    def consumers(self) -> list[Consumer]:
        """The consumers that gave their name, and when they last took something."""
        return _decode_consumers(self._get("consumers")).consumers

    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return _decode_schedules(self._get("schedules")).schedules

    def groups(self) -> list[str]:
        """The names of the queue's groups, sorted."""
        return self._look().groups

    # ── repairing ────────────────────────────────────────────────────────────────────────────────────────────────────
    def claim(
        self,
        *,
        min_idle: Seconds,
        group: str = "default",
        consumer: str | None = None,
        limit: int = 1,
        lease: Seconds | None = None,
    ) -> list[RemoteDelivery]:
        """Takes over deliveries that nobody has extended for `min_idle`."""
        wish = {
            "min_idle": seconds(min_idle, "min_idle"),
            "group": group,
            "consumer": consumer,
            "limit": limit,
            "lease": None if lease is None else seconds(lease, "lease"),
        }
        found = _decode_deliveries(self._send("POST", "claim", body=wish)).deliveries
        return [RemoteDelivery(self, delivery) for delivery in found]

    def redrive(
        self,
        *,
        to: RemoteQueue | None = None,
        limit: int | None = None,
        where: Where | str | Callable[[Event], bool] | None = None,
        dry_run: bool = False,
    ) -> int:
        """Sends dead letters and failed messages back to their queue. `where` is a condition, asked by the server."""
        check_limit(limit)
        self._check_own(to)
        body: dict[str, Any] = {"to": None if to is None else to.name, "limit": limit, "dry_run": dry_run}
        if callable(where) and not isinstance(where, Where):
            # A function cannot travel: what it wants is found here, and named.
            groups = self.groups() if self.policy.mode == "fanout" else ["default"]
            given_up = [failure.event for group in groups for failure in self.failures(group)]
            given_up += [letter.event for letter in self.letters()]
            body["ids"] = sorted({event.id for event in given_up if where(event)})
        else:
            body["where"] = _condition(where)
        if not dry_run:
            self.journal._check_writable()
        answer = msgspec.json.decode(self._http.send("POST", "queues", self.name, "redrive", body=body))
        return int(answer["would_redrive" if dry_run else "redriven"])

    def _check_own(self, to: Any) -> None:
        if to is not None and (not isinstance(to, RemoteQueue) or to.journal is not self.journal):
            raise ConfigError(f"a queue of this journal is needed, not of another journal: {to!r:.80}")

    def move(
        self, to: RemoteQueue, *, limit: int | None = None, where: Where | str | Callable[[Event], bool] | None = None
    ) -> int:
        """Moves messages that nobody holds to the end of another queue, all or nothing; returns how many."""
        self._check_own(to)
        if to.name == self.name:
            raise ConfigError(f"queue {self.name!r} cannot be moved to itself")
        body: dict[str, Any] = {"to": to.name, "limit": check_limit(limit)}
        if callable(where) and not isinstance(where, Where):
            body["ids"] = [event.id for event in self if where(event)]
        else:
            body["where"] = _condition(where)
        return int(msgspec.json.decode(self._send("POST", "move", body=body))["moved"])

    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many."""
        return int(msgspec.json.decode(self._send("POST", "purge"))["removed"])

    def drop(self) -> int:
        """Removes the queue with its messages; returns how many those were."""
        self.journal._queues.pop(self.name, None)
        return int(msgspec.json.decode(self._send("DELETE"))["removed"])

    def configure(self, **policy: Any) -> QueuePolicy:
        """Changes the policy; deliveries under way finish under the old mode."""
        return _decode_policy(self._send("PATCH", body=_policy_body(policy, self.name)))

    def every(
        self,
        interval: Seconds | str,
        payload: Any = None,
        *,
        name: str,
        timezone: str = "UTC",
        missed: Literal["all", "last", "none"] = "all",
        kind: str = "message",
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Pushes a message periodically: every `interval` seconds, or by a cron line of five fields."""
        when = {"cron": interval} if isinstance(interval, str) else {"interval": seconds(interval, "interval")}
        body = {
            "name": check_consumer(name, "schedule"),
            **when,
            **payload_fields(payload),
            "timezone": timezone,
            "missed": missed,
            "kind": kind,
            "headers": None if headers is None else dict(headers),
            "key": key,
            "priority": priority,
        }
        return _decode_schedule(self._send("POST", "schedules", body=body))

    def unschedule(self, name: str) -> bool:
        """Removes a periodic message; False when there is none of that name."""
        answer = self._send("DELETE", "schedules", check_consumer(name, "schedule"))
        return bool(msgspec.json.decode(answer)["removed"])

    def add_group(self, name: str, *, after: int | Literal["latest"] = 0) -> None:
        """Registers a group that gets what comes after a position."""
        self._send("POST", "groups", body={"name": check_consumer(name, "group"), "after": after})

    def remove_group(self, name: str) -> bool:
        """Forgets a group, so that messages no longer wait for it; False when there is none of that name."""
        answer = self._send("DELETE", "groups", check_consumer(name, "group"))
        return bool(msgspec.json.decode(answer)["removed"])

    def worker(
        self,
        handler: Callable[[Any], Any],
        *,
        group: str = "default",
        concurrency: int = 1,
        consumer: str | None = None,
        lease: Seconds | None = None,
    ) -> RemoteQueueWorker:
        """A worker that gives messages to `handler`, `concurrency` at a time, and renews their leases meanwhile."""
        from penstock.remote.queue_worker import RemoteQueueWorker

        worker = RemoteQueueWorker(self, handler, group=group, concurrency=concurrency, consumer=consumer, lease=lease)
        self.journal._workers.add(worker)
        return worker


class RemoteDelivery:
    """A message that is yours until `deadline`: `ack` it, `nack` it, or use it as a context manager that does."""

    def __init__(self, queue: RemoteQueue, found: _Delivery) -> None:
        self.queue = queue
        self.token = found.token
        self.attempt = found.attempt
        self.deadline = found.deadline
        self.group = found.group
        self.consumer = found.consumer
        self.event = event_of(found.event)
        self._settled = False

    def __repr__(self) -> str:
        return f"<delivery {self.queue.name}#{self.seq} attempt {self.attempt} for {self.group!r}>"

    @property
    def seq(self) -> int:
        """The message's position in its queue."""
        return self.event.seq

    @property
    def payload(self) -> Any:
        """The message's payload, decoded."""
        return self.event.payload

    @property
    def kind(self) -> str:
        """The message's kind."""
        return self.event.kind

    @property
    def key(self) -> str | None:
        """The message's ordering key."""
        return self.event.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return self.event.headers

    def _do(self, what: str, body: Any = None) -> bytes:
        return self.queue._send("POST", "deliveries", self.token, what, body=body)

    def ack(self) -> None:
        """Settles the message, durably. StaleDelivery when the lease was lost, or the delivery was settled already."""
        self._do("ack")
        self._settled = True

    def nack(self, *, delay: Seconds | None = None, error: str | None = None, dead: bool = False) -> None:
        """Gives the message back to its position, after `delay` (the policy's, unless given); `dead` gives it up."""
        if error is not None and not isinstance(error, str):
            raise ConfigError(f"error must be text, not {error!r:.80}")
        wait = None if delay is None else seconds(delay, "delay")
        self._do("nack", {"delay": wait, "error": error, "dead": dead})
        self._settled = True

    def extend(self, lease: Seconds | None = None) -> None:
        """Keeps the message for `lease` more seconds from now (the policy's lease, unless given)."""
        body = {"lease": None if lease is None else seconds(lease, "lease")}
        answer = msgspec.json.decode(self._do("extend", body))
        self.deadline = datetime.fromisoformat(answer["deadline"])

    def release(self) -> None:
        """Gives the message back at once without counting the attempt: for shutting down."""
        self._do("release")
        self._settled = True

    def __enter__(self) -> RemoteDelivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
        elif not isinstance(error, Exception):
            self.release()
        else:
            try:
                self.nack(error=describe(error))
            except StaleDelivery:
                return  # the caller's own failure matters more than that the lease is lost


_PUSH_FIELDS = ("kind", "key", "priority", "delay", "not_before", "dedup", "max_attempts", "headers", "cause")


def _push_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a push as a body says them."""
    unknown = sorted(set(options) - set(_PUSH_FIELDS))
    if unknown:
        raise ConfigError(f"a push has no option {unknown[0]!r}; there are {', '.join(sorted(_PUSH_FIELDS))}")
    read_wish(
        SystemClock(),
        options.get("key"),
        options.get("priority", 0),
        options.get("delay", 0),
        options.get("not_before"),
        options.get("max_attempts"),
    )
    fields = {name: value for name, value in options.items() if value is not None}
    if isinstance(fields.get("delay"), timedelta):
        fields["delay"] = fields["delay"].total_seconds()
    cause = fields.get("cause")
    if isinstance(cause, Event | Receipt):
        fields["cause"] = cause.id
    trace = trace_headers()
    if trace is not None:
        fields["headers"] = with_trace(fields.get("headers"), trace)
    return fields


def _policy_body(policy: dict[str, Any], queue: str) -> dict[str, Any]:
    """A policy, checked here as a local queue would, as a body says it."""
    fields = checked(policy, queue)
    if "retry" in fields:
        fields["retry"] = msgspec.structs.asdict(fields["retry"])
    return fields


def _condition(where: Any) -> str | None:
    if where is None or isinstance(where, str):
        return where
    if isinstance(where, Where):
        return where.text
    raise ConfigError(f'a condition is a function or text, like "payload.total > 10", not {where!r:.80}')


def _failures(found: list[_Failure]) -> Iterator[Failure]:
    for one in found:
        yield Failure(event_of(one.event), one.queue, one.attempts, one.reason, one.error, one.at)

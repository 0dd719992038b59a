"""A kombu transport over the queues of a journal.

A delivered message has a lease until it is acknowledged. The lease is renewed while the process lives, however long a
task runs. When the process dies, the lease ends and another worker gets the message. Bindings of queues to exchanges
are events of the topic `kombu-bindings`, so all processes know them.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from queue import Empty
from typing import Any, TypeVar

import msgspec
from celery._state import get_current_task
from kombu.asynchronous.hub import Hub
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.url import parse_url

import penstock
from penstock.errors import (
    Backpressure,
    Closed,
    ConfigError,
    Denied,
    Locked,
    PoisonMessage,
    PositionTrimmed,
    QueueFull,
    StaleDelivery,
    StorageError,
    UnknownQueue,
    UnknownTopic,
)
from penstock.integrations.celery import place_of
from penstock.integrations.celery.waiting import LeaseRenewal, QueueWait
from penstock.integrations.opening import open_once, state_topic
from penstock.limits import MAX_KIND_LENGTH

T = TypeVar("T")

log = logging.getLogger("penstock.celery")

BINDINGS = "kombu-bindings"
BOUND, UNBOUND = "bound", "unbound"
MESSAGE = "penstock-message"
"""The property of a message with its place in the journal. The place is the same in every delivery of the message."""
EXPIRES = "expires"
"""The header with the time after which a message is not delivered, in seconds since 1970."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 200
AT_A_TIME = 10
"""The number of messages that are taken at once for a consumer without a prefetch count."""
ABANDONED = 60.0
"""The minimum number of seconds that a queue without a consumer is kept, when its consumer asked for its deletion
after a time without use.
"""


def safe_name(queue: str) -> str:
    """Returns the journal's name for a queue: the queue's own name, or, if a journal does not allow it, a name with
    a part of its hash.
    """
    name = _UNSAFE.sub("-", queue)[:_LONGEST_NAME]
    return name if name == queue and name.strip(".") else f"{name}-{blake2b(queue.encode(), digest_size=6).hexdigest()}"


class Binding(msgspec.Struct, frozen=True):
    """A queue that gets messages from an exchange."""

    exchange: str
    type: str
    routing_key: str
    pattern: str | None
    queue: str
    expires: float | None = None
    """The number of seconds without a consumer after which the queue may be deleted."""

    @property
    def key(self) -> str:
        """The key of the binding's events."""
        parts = "\n".join((self.exchange, self.routing_key, self.queue))
        return blake2b(parts.encode(), digest_size=16).hexdigest()


class Bindings:
    """All bindings of a journal, as of the last read of their topic."""

    def __init__(self, journal: penstock.Journal) -> None:
        self._topic = state_topic(journal, BINDINGS, None)
        self._position = 0
        self._found: dict[str, Binding] = {}

    def of(self, exchange: str) -> list[Binding]:
        """Returns the present bindings of an exchange."""
        try:
            self._read()
        except PositionTrimmed:  # compaction has removed events of changed bindings meanwhile
            self._position, self._found = 0, {}
            self._read()
        return [binding for binding in self._found.values() if binding.exchange == exchange]

    def _read(self) -> None:
        for event in self._topic.read(self._position):
            key = event.key or ""
            if event.kind == UNBOUND:
                self._found.pop(key, None)
            else:
                self._found[key] = msgspec.convert(event.payload, Binding)
            self._position = event.seq

    def bind(self, binding: Binding) -> None:
        """Stores a binding that does not exist yet."""
        if binding not in self.of(binding.exchange):
            self._topic.append(BOUND, binding, key=binding.key)

    def unbind(self, queue: str, exchange: str | None = None, routing_key: str | None = None) -> None:
        """Removes the bindings of a queue: all of them, or the bindings to an exchange by a routing key."""
        self.of("")
        for key, binding in list(self._found.items()):
            if binding.queue != queue or (exchange is not None and binding.exchange != exchange):
                continue
            if routing_key is None or binding.routing_key == routing_key:
                self._topic.append(UNBOUND, key=key)


class LeaseQoS(virtual.QoS):
    """The unacknowledged deliveries of a channel, each under a lease."""

    def __init__(self, channel: PenstockChannel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.leases: dict[str, penstock.Delivery] = {}

    def room(self) -> int:
        """Returns the number of further messages that may be delivered."""
        return max(self.prefetch_count - len(self.leases), 0) if self.prefetch_count else AT_A_TIME

    def can_consume(self) -> bool:
        """Returns True while there is room."""
        return self.room() > 0

    def ack(self, delivery_tag: str) -> None:
        """Acknowledges a message, durably."""
        self._settle(delivery_tag, lambda delivery: delivery.ack())

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Returns a message to its place, or gives it up.

        A message that was given up stays in the journal as failed.
        """
        if requeue:
            self._settle(delivery_tag, lambda delivery: delivery.nack(delay=0, error="requeued"))
        else:
            self._settle(delivery_tag, lambda delivery: delivery.nack(error="rejected", dead=True))

    def _settle(self, tag: str, settle: Any) -> None:
        delivery = self.leases.get(tag)
        if delivery is not None:
            try:
                settle(delivery)
            except StaleDelivery:
                log.warning("%r was settled too late: another worker may have it", delivery)
            self.leases.pop(tag, None)
        super().ack(tag)
        self.channel.connection.room_changed()

    def restore_unacked(self) -> list[Any]:
        """Returns all deliveries at once."""
        for tag in list(self.leases):
            self.leases.pop(tag).release()
        self._delivered.clear()
        self._dirty.clear()
        return []


class PenstockChannel(virtual.Channel):
    """A channel: consumers of queues, and the deliveries that they hold."""

    QoS = LeaseQoS
    supports_fanout = True
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "visibility_timeout",
        "max_attempts",
        "dedup_window",
    )

    visibility_timeout = 60.0
    """The number of seconds after which the messages of a dead worker go to another worker."""
    max_attempts = 100
    """The maximum number of deliveries of a message. After them the message stays in its queue as failed."""
    dedup_window = 3600.0
    """The number of seconds for which a message from a task is remembered, in case the task runs again and sends the
    message again.
    """

    connection: PenstockTransport

    def __init__(self, connection: PenstockTransport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.no_ack: set[str] = set()
        self._auto_delete: set[str] = set()
        self._expires: dict[str, float] = {}
        self._ttls: dict[str, float] = {}
        self._queues: dict[str, penstock.Queue] = {}

    @property
    def journal(self) -> penstock.Journal:
        """The journal behind the connection."""
        return self.connection.journal

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def queue(self, name: str) -> penstock.Queue:
        """Returns the journal's queue. A missing queue is made, and bound as this channel has bound it."""
        journal = self.journal
        found = self._queues.get(name)
        if found is None or found.journal is not journal:  # a forked process has opened its own journal
            stored = safe_name(name)
            try:
                found = journal.queue(stored, create=False)
            except UnknownQueue:
                found = journal.queue(
                    stored,
                    priority=True,
                    max_attempts=self.max_attempts,
                    dedup_window=self.dedup_window,
                    ttl=self._ttls.get(name),
                )
                for exchange, routing_key, arguments in list(self.state.queue_bindings(name)):
                    self._queue_bind(
                        exchange, *self.typeof(exchange).prepare_bind(name, exchange, routing_key, arguments)
                    )
            self._queues[name] = found
        return found

    def _using(self, name: str, act: Callable[[penstock.Queue], T]) -> T:
        """Runs an action on a queue. If another process has deleted the queue, the queue is made anew."""
        try:
            return act(self.queue(name))
        except UnknownQueue:
            self.forget(name)
            return act(self.queue(name))

    def forget(self, name: str) -> None:
        """Makes the channel look up the queue anew when it needs the queue again."""
        self._queues.pop(name, None)

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Returns the lifetime of a queue in a declaration, as AMQP's arguments."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def _new_queue(self, queue: str, auto_delete: bool = False, arguments: Any = None, **kwargs: Any) -> None:
        wanted = arguments or {}
        if auto_delete:
            self._auto_delete.add(queue)
        if wanted.get("x-expires"):
            self._expires[queue] = wanted["x-expires"] / 1000
        if wanted.get("x-message-ttl"):
            self._ttls[queue] = wanted["x-message-ttl"] / 1000
        self.forget(queue)
        self.queue(queue)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return safe_name(queue) in self.journal.queues()

    def _size(self, queue: str) -> int:
        counts = self._using(queue, lambda found: found.stats())
        return counts.ready + counts.delayed

    def _purge(self, queue: str) -> int:
        """Removes waiting messages. Delivered messages are not affected."""
        found, purged = self.queue(queue), 0
        for state in ("ready", "delayed"):
            while page := found.messages(state, limit=1000):
                gone = found.discard([message.seq for message in page])
                purged += gone
                if not gone:
                    break
        return purged

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Deletes a queue with its bindings and its messages."""
        if if_empty and self._size(queue):
            return
        self.connection.bindings.unbind(queue)
        self.state.queue_bindings_delete(queue)
        self.forget(queue)
        self._auto_delete.discard(queue)
        with suppress(UnknownTopic, Denied):  # a token with the role write leaves the queue, empty and unbound
            self.journal.drop_topic(safe_name(queue), force=True)

    # ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        expires = self._expires.get(queue, ABANDONED if queue in self._auto_delete else None)
        self.connection.bindings.bind(Binding(exchange, kind, routing_key, pattern, queue, expires))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Stops the delivery of an exchange's messages to a queue."""
        self.state.binding_delete(queue, exchange, routing_key)
        self.connection.bindings.unbind(queue, exchange, routing_key)

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Returns the bindings of an exchange. Deletes queues that their consumers have abandoned."""
        return [(one.routing_key, one.pattern, one.queue) for one in self._bound(exchange)]

    def _bound(self, exchange: str) -> Iterator[Binding]:
        for binding in self.connection.bindings.of(exchange):
            if binding.expires is not None and self._is_abandoned(binding):
                self.queue_delete(binding.queue)
            else:
                yield binding

    def _is_abandoned(self, binding: Binding) -> bool:
        """Returns True if messages of a temporary queue have waited longer than the queue may exist without
        consumers.
        """
        age = self._using(binding.queue, lambda found: found.stats()).oldest_age
        return age is not None and age > max(binding.expires or 0, ABANDONED)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """Returns the type of an exchange, even if another process has declared it."""
        if exchange not in self.state.exchanges:
            default = next((one.type for one in self.connection.bindings.of(exchange)), default)
        return super().typeof(exchange, default)

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
        for _, _, queue in self.get_table(exchange):
            self._put(queue, message, **kwargs)

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────
    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Returns a body in stored form: text stays text, so that other programs can read it; bytes are in the
        encoding.
        """
        return (body, "utf-8") if isinstance(body, str) else super().encode_body(body, encoding)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        headers, properties = message["headers"], message["properties"]
        expiration = properties.get("expiration")
        self._using(
            queue,
            lambda found: found.push(
                msgspec.Raw(dumps(message).encode()),
                kind=(headers.get("task") or "message")[:MAX_KIND_LENGTH],
                priority=self._get_message_priority(message),
                not_before=eta_of(headers.get("eta")),
                dedup=dedup_of(headers, sender_here()),
                headers={} if expiration is None else {EXPIRES: str(time.time() + int(expiration) / 1000)},
            ),
        )

    # ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────
    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Starts the delivery of a queue's messages."""
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        consumer = super().basic_consume(queue, no_ack, *args, **kwargs)
        self.connection.room_changed()
        return consumer

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer, and deletes its queue if the queue was to be deleted with it."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._auto_delete and queue not in self._active_queues:
            self.queue_delete(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Returns the next message, or None."""
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        return super().basic_get(queue, no_ack, **kwargs)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        while delivery := self._using(queue, lambda found: found.take(lease=self.visibility_timeout)):
            message = self.opened(queue, delivery)
            if message is not None:
                return message
        raise Empty

    def take(self, queue: str) -> list[penstock.Delivery]:
        """Returns the messages of a queue that can be delivered now."""
        room = self.qos.room()
        return list(self._using(queue, lambda found: found.take_many(room, lease=self.visibility_timeout)))

    def opened(self, queue: str, delivery: penstock.Delivery) -> dict[str, Any] | None:
        """Returns a delivery in kombu's form, held until it is acknowledged; None for a message that is not to be
        delivered.
        """
        expires = delivery.headers.get(EXPIRES)
        if expires is not None and float(expires) <= time.time():
            delivery.ack()
            return None
        try:
            message: dict[str, Any] = loads(delivery.event.raw)
            properties = message["properties"]
            properties["delivery_info"]["redelivered"] = delivery.attempt > 1
        except (ValueError, KeyError, TypeError, PoisonMessage) as error:
            delivery.nack(error=f"this message is none of kombu's: {error!r}", dead=True)
            return None
        properties["delivery_tag"], properties[MESSAGE] = delivery.token, f"{delivery.queue.name}#{delivery.seq}"
        if queue in self.no_ack:
            delivery.ack()
        else:
            self.qos.leases[delivery.token] = delivery
        return message


class PenstockTransport(virtual.Transport):
    """A connection to a journal."""

    Channel = PenstockChannel
    can_parse_url = True
    default_port = None
    driver_type = driver_name = "penstock"
    connection_errors = (*virtual.Transport.connection_errors, StorageError, Closed, Locked, Backpressure)
    channel_errors = (*virtual.Transport.channel_errors, QueueFull)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._wait: QueueWait | None = None
        self._renewal: LeaseRenewal | None = None
        self._hub: Hub | None = None
        self._waiting: set[tuple[PenstockChannel, str]] = set()
        """The queues, each with its channel, that the present wait is for."""
        self._turn = 0

    @property
    def journal(self) -> penstock.Journal:
        """The journal that the url names."""
        return open_once(place_of(url_of(self.client)), self.client.transport_options.get("token"))

    @property
    def bindings(self) -> Bindings:
        """The bindings of the journal."""
        journal = self.journal
        if self._bindings is None or self._bindings[0] is not journal:
            self._bindings = journal, Bindings(journal)
        return self._bindings[1]

    _bindings: tuple[penstock.Journal, Bindings] | None = None

    def driver_version(self) -> str:
        """Returns the version of penstock."""
        return penstock.__version__

    def establish_connection(self) -> Any:
        """Opens the journal."""
        self.journal.describe()
        return super().establish_connection()

    def verify_connection(self, connection: Any) -> bool:
        """Returns True while the journal is open."""
        return not self.journal.closed

    def close_connection(self, connection: Any) -> None:
        """Returns held deliveries, and ends the threads. The journal stays open for the process's other connections."""
        if self._hub is not None and self._wait is not None:
            self._hub.on_tick.discard(self._tick)
            self._hub.remove_reader(self._wait.fileno())
            self._hub = None
        for _, delivery in self._end_wait():
            delivery.release()
        super().close_connection(connection)
        for one in (self._wait, self._renewal):
            if one is not None:
                one.close()
        self._wait = self._renewal = None

    def room_changed(self) -> None:
        """Makes the wait check again what may be delivered."""
        if self._wait is not None:
            self._wait.wake()

    def register_with_event_loop(self, connection: Any, loop: Hub) -> None:
        """Delivers messages from kombu's event loop from now on, and no longer from `drain_events`."""
        if self._wait is None:
            self._wait = QueueWait()
        self._hub = loop
        loop.add_reader(self._wait, self._tick)
        loop.on_tick.add(self._tick)

    def _tick(self) -> None:
        if self._advance() and self._wait is not None:
            self._wait.wake()  # there may be more: the event loop returns at once

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers the messages that are there, or the first message within the time.

        Raises TimeoutError when no message comes.
        """
        if self._wait is None:
            self._wait = QueueWait()
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while not self._advance():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    if self._deliver_found():
                        return
                    raise TimeoutError
                self._wait.pause(left)
        finally:
            self._deliver_found()

    def _advance(self) -> int:
        """Delivers the messages that are there and returns their number.

        If there are none, waits for the next message.
        """
        assert self._wait is not None
        wanted = set(self._consuming())
        if not self._wait.is_over() and wanted == self._waiting:
            return 0
        delivered = self._deliver_found() + self._deliver_now()
        if not delivered:
            self._begin_wait()
        return delivered

    def _consuming(self) -> list[tuple[PenstockChannel, str]]:
        """Returns the queues that messages may be delivered from, each with its channel."""
        return [
            (channel, queue)
            for channel in self.channels
            if channel.qos.can_consume()
            for queue in channel._active_queues
        ]

    def _deliver_now(self) -> int:
        """Takes messages from every queue, each time beginning with another queue."""
        delivered, found = 0, self._consuming()
        self._turn += 1
        at = self._turn % len(found) if found else 0
        for channel, queue in found[at:] + found[:at]:
            if channel.qos.can_consume():  # the queues before this one may have used up the room
                delivered += self._hand_over(channel, queue, channel.take(queue))
        return delivered

    def _begin_wait(self) -> None:
        assert self._wait is not None
        waiting = set(self._consuming())
        queues = {queue: channel.queue(queue) for channel, queue in waiting}
        if queues:
            lease = min(channel.visibility_timeout for channel, _ in waiting)
            self._keep_leases(lease)
            self._wait.begin(queues, lease)
        self._waiting = waiting

    def _end_wait(self) -> list[tuple[str, penstock.Delivery]]:
        waiting, self._waiting = self._waiting, set()
        try:
            return [] if self._wait is None else self._wait.end()
        except UnknownQueue:  # another process has deleted it
            for channel, queue in waiting:
                channel.forget(queue)
            return []

    def _deliver_found(self) -> int:
        """Ends the wait, and delivers the messages that it has found.

        Messages that no consumer has room for are returned.
        """
        delivered = 0
        for queue, delivery in self._end_wait():
            channel = next((one for one, name in self._consuming() if name == queue), None)
            if channel is None:
                delivery.release()
            else:
                delivered += self._hand_over(channel, queue, [delivery])
        return delivered

    def _keep_leases(self, lease: float) -> None:
        if self._renewal is None:
            self._renewal = LeaseRenewal(lease, self._held)

    def _hand_over(self, channel: PenstockChannel, queue: str, deliveries: list[penstock.Delivery]) -> int:
        if deliveries:
            self._keep_leases(channel.visibility_timeout)
        delivered, left = 0, deque(deliveries)
        try:
            while left:
                message = channel.opened(queue, left.popleft())
                if message is not None:
                    delivered += 1
                    self._deliver(message, queue)
        finally:  # a consumer that raises gets no more of them
            for delivery in left:
                delivery.release()
        return delivered

    def _held(self) -> list[penstock.Delivery]:
        found = [] if self._wait is None else [delivery for _, delivery in self._wait.come()]
        return found + [one for channel in list(self.channels) for one in list(channel.qos.leases.values())]


def url_of(client: Any) -> str:
    """Returns the url of a connection. kombu takes the url apart when it switches between several brokers."""
    url = client.hostname or ""
    if "://" in url:
        return str(url)
    wanted = client.transport_cls, client.hostname, client.port, client.virtual_host
    for other in client.alt:
        parts = parse_url(other)
        if (parts["transport"], parts["hostname"], parts["port"], parts["virtual_host"] or "/") == wanted:
            return str(other)
    raise ConfigError(f"{client.transport_cls} is not one of the urls that this connection was made with")


def eta_of(eta: str | None) -> datetime | None:
    """Returns the time before which a task must not run, from its header."""
    if not eta:
        return None
    try:
        time = datetime.fromisoformat(eta)
    except (TypeError, ValueError):
        return None  # the worker reports it
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def dedup_of(headers: Mapping[str, Any], sender: str | None) -> str | None:
    """Returns the value that two sends have in common when the sending task ran twice: the sender's message and the id.

    Retries, and the next tasks of a chain or chord, have ids that were given to them earlier, so a repeated run sends
    the same ids again. Another message of the same task is another sender.
    """
    if sender is None or not headers.get("id"):
        return None
    sent = f"{sender}/{headers['id']}/{headers.get('retries') or 0}/{headers.get('replaced_task_nesting') or 0}"
    return sent if len(sent) <= _LONGEST_NAME else blake2b(sent.encode()).hexdigest()


def sender_here() -> str | None:
    """Returns the message of the task that runs in this thread; None outside tasks."""
    task = get_current_task()
    properties = None if task is None else task.request.get("properties")
    return None if properties is None else properties.get(MESSAGE)

"""A queue at the other end of a url."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.clock import Seconds, seconds
from penstock.conditions import EventChoice, Where
from penstock.errors import ConfigError, PenstockError
from penstock.events import Draft, Event, Receipt
from penstock.names import check_consumer, check_limit, check_position
from penstock.observe.sample import FailedMessage
from penstock.queue.inspect import PendingDelivery, QueueConsumer, QueueStats
from penstock.queue.policy import QueuePolicy
from penstock.queue.run.schedule import Schedule
from penstock.remote.delivery import RemoteDelivery
from penstock.remote.events import draft_documents, event_of, events_of, payload_fields, receipt_of
from penstock.remote.local_only import refused
from penstock.remote.queue_documents import (
    QueueDocument,
    condition,
    decode_consumers,
    decode_deliveries,
    decode_delivery,
    decode_event,
    decode_events,
    decode_failures,
    decode_pending,
    decode_policy,
    decode_queue,
    decode_receipt,
    decode_receipts,
    decode_schedule,
    decode_schedules,
    decode_stats,
    failures_of,
    policy_body,
    push_fields,
)
from penstock.surface.delivery import Delivery
from penstock.surface.queue import Queue
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.queue.run.middleware import Middleware
    from penstock.remote.journal import RemoteJournal
    from penstock.remote.queue_worker import RemoteQueueWorker

WAIT = 30.0
"""Seconds one request waits for a message; a longer wait is several requests."""


class RemoteQueue(Queue):
    """A queue of a served journal."""

    journal: RemoteJournal

    def __init__(self, journal: RemoteJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._http = journal._http

    @classmethod
    def open(cls, journal: RemoteJournal, name: str, policy: dict[str, Any]) -> RemoteQueue:
        """The queue, made at the server when it is not there (and this journal may write)."""
        body = policy_body(policy, name)
        queue = cls(journal, name)
        if journal._read_only:
            queue._look()
        else:
            journal._http.send("PUT", "queues", name, body=body)
        return queue

    def _get(self, *path: str, **query: Any) -> bytes:
        return self._http.get("queues", self.name, *path, **query)

    def _send(self, method: str, *path: str, body: Any = None, wait: float = 0.0) -> bytes:
        self.journal._check_writable()
        return self._http.send(method, "queues", self.name, *path, body=body, wait=wait)

    def _look(self) -> QueueDocument:
        return decode_queue(self._get())

    @property
    def policy(self) -> QueuePolicy:
        """How the queue delivers, as stored."""
        return self._look().policy

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def push(
        self,
        payload: Any,
        *,
        kind: str = "message",
        key: str | None = None,
        priority: int = 0,
        delay: Seconds = 0,
        not_before: datetime | None = None,
        dedup: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        cause: Any = None,
    ) -> Receipt:
        """Adds a message and returns when it is durable."""
        options = {
            "kind": kind,
            "key": key,
            "priority": priority,
            "delay": delay,
            "not_before": not_before,
            "dedup": dedup,
            "max_attempts": max_attempts,
            "headers": headers,
            "cause": cause,
        }
        body = {**push_fields(options), **payload_fields(payload)}
        return receipt_of(decode_receipt(self._send("POST", "messages", body=body)))

    def submit(self, payload: Any, **options: Any) -> Ticket[Receipt]:
        """`push` with a ticket: hands the message over and returns at once."""
        self.journal._check_writable()
        fields = push_fields(options)  # here: the caller's trace context does not follow into another thread
        return self.journal._submit(lambda: self.push(payload, **fields))

    def push_many(self, payloads: Iterable[Any], **options: Any) -> list[Receipt]:
        """Adds messages at consecutive positions, all or nothing; a Draft brings what is its own."""
        shared = push_fields(options)
        if shared.pop("dedup", None) is not None:
            raise ConfigError("one dedup key cannot be for many messages: push Draft objects with a dedup key each")
        own = {name: shared.get(name) for name in ("key", "headers", "cause")}
        kind = shared.get("kind", "message")
        messages = [item if isinstance(item, Draft) else Draft(kind, item, **own) for item in payloads]
        if not messages:
            return []
        for name in ("key", "headers", "cause", "kind"):
            shared.pop(name, None)
        answer = decode_receipts(
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
            answer = decode_deliveries(self._send("POST", "take", body={**wish, "wait": step}, wait=step))
            left -= step
            if answer.deliveries or left <= 0:
                return [RemoteDelivery(self, found) for found in answer.deliveries]

    async def take_async(
        self,
        *,
        group: str = "default",
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> RemoteDelivery | None:
        """`take` for an event loop."""
        found = await self.take_many_async(1, group=group, consumer=consumer, wait=wait, lease=lease, newest=newest)
        return found[0] if found else None

    async def take_many_async(
        self,
        limit: int,
        *,
        group: str = "default",
        consumer: str | None = None,
        wait: Seconds = 0,
        lease: Seconds | None = None,
        newest: bool = False,
    ) -> list[RemoteDelivery]:
        """`take_many` for an event loop."""
        return await asyncio.to_thread(
            lambda: self.take_many(limit, group=group, consumer=consumer, wait=wait, lease=lease, newest=newest)
        )

    def ack_many(self, deliveries: Iterable[Delivery | str]) -> int:
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
        return RemoteDelivery(self, decode_delivery(self._get("deliveries", token)))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def get(self, seq: int) -> Event | None:
        """The message at a position, without taking it; None when it is settled or never was."""
        check_position(seq, "seq")
        try:
            return event_of(decode_event(self._get("messages", str(seq))))
        except PenstockError as error:
            if "UnknownEvent" in str(error):
                return None
            raise

    def peek(self, limit: int = 1, *, group: str = "default") -> list[Event]:
        """The messages that would be taken next, without taking them."""
        check_limit(limit)
        return list(events_of(decode_events(self._get("peek", limit=limit, group=group)).events))

    def __iter__(self) -> Iterator[Event]:
        after = 0
        while True:
            page = decode_events(self._get("messages", after=after))
            yield from events_of(page.events)
            if page.next is None:
                return
            after = page.next

    def __len__(self) -> int:
        return self._look().length

    def stats(self, group: str = "default") -> QueueStats:
        """How many messages are in which state."""
        return decode_stats(self._get("stats", group=check_consumer(group, "group")))

    def pending(self, group: str | None = None) -> list[PendingDelivery]:
        """Every delivery in flight, of one group or of all."""
        return decode_pending(self._get("pending", group=group, limit=10_000)).pending

    def failed(self, group: str = "default") -> Iterator[Event]:
        """Messages given up that have no dead-letter queue to go to, in order of position."""
        return (failure.event for failure in self.failures(group))

    def failures(self, group: str = "default") -> Iterator[FailedMessage]:
        """The same with the reason each was given up for."""
        return failures_of(decode_failures(self._get("failed", group=group, limit=10_000)).failed)

    def dead_letters(self) -> Iterator[FailedMessage]:
        """The queue's dead letters, with the reason each was given up for."""
        return failures_of(decode_failures(self._get("dead", limit=10_000)).dead)

    def consumers(self) -> list[QueueConsumer]:
        """The consumers that gave their name, and when they last took something."""
        return decode_consumers(self._get("consumers")).consumers

    def schedules(self) -> list[Schedule]:
        """The queue's periodic messages, by name."""
        return decode_schedules(self._get("schedules")).schedules

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
        found = decode_deliveries(self._send("POST", "claim", body=wish)).deliveries
        return [RemoteDelivery(self, delivery) for delivery in found]

    def redrive(
        self,
        *,
        to: Queue | None = None,
        limit: int | None = None,
        where: EventChoice | None = None,
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
            given_up += [letter.event for letter in self.dead_letters()]
            body["ids"] = sorted({event.id for event in given_up if where(event)})
        else:
            body["where"] = condition(where)
        if not dry_run:
            self.journal._check_writable()
        answer = msgspec.json.decode(self._http.send("POST", "queues", self.name, "redrive", body=body))
        return int(answer["would_redrive" if dry_run else "redriven"])

    def _check_own(self, to: Any) -> None:
        if to is not None and (not isinstance(to, RemoteQueue) or to.journal is not self.journal):
            raise ConfigError(f"a queue of this journal is needed, not of another journal: {to!r:.80}")

    def move(self, to: Queue, *, limit: int | None = None, where: EventChoice | None = None) -> int:
        """Moves messages that nobody holds to the end of another queue, all or nothing; returns how many."""
        self._check_own(to)
        if to.name == self.name:
            raise ConfigError(f"queue {self.name!r} cannot be moved to itself")
        body: dict[str, Any] = {"to": to.name, "limit": check_limit(limit)}
        if callable(where) and not isinstance(where, Where):
            body["ids"] = [event.id for event in self if where(event)]
        else:
            body["where"] = condition(where)
        return int(msgspec.json.decode(self._send("POST", "move", body=body))["moved"])

    def discard(self, seqs: Iterable[int]) -> int:
        """Refused: not served yet."""
        raise refused("discarding messages by position", "do it where the store is, or take and ack them")

    def purge(self) -> int:
        """Removes every message, also those in flight; returns how many."""
        return int(msgspec.json.decode(self._send("POST", "purge"))["removed"])

    def drop(self) -> int:
        """Removes the queue with its messages; returns how many those were."""
        self.journal._queues.pop(self.name, None)
        return int(msgspec.json.decode(self._send("DELETE"))["removed"])

    def configure(self, **policy: Any) -> QueuePolicy:
        """Changes the policy; deliveries under way finish under the old mode."""
        return decode_policy(self._send("PATCH", body=policy_body(policy, self.name)))

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
        return decode_schedule(self._send("POST", "schedules", body=body))

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
        ahead: int | None = None,
        lease: Seconds | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> RemoteQueueWorker:
        """A worker that gives messages to `handler`, `concurrency` at a time, and renews their leases meanwhile."""
        if ahead is not None:
            raise refused("taking ahead", "a worker over http takes one message at a time for each of `concurrency`")
        if tuple(middleware):
            raise refused("a worker's middleware", "wrap the handler, or run the worker where the store is")
        from penstock.remote.queue_worker import RemoteQueueWorker

        worker = RemoteQueueWorker(self, handler, group=group, concurrency=concurrency, consumer=consumer, lease=lease)
        self.journal._workers.add(worker)
        return worker

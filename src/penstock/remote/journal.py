"""The journal at the other end of a url."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from penstock.clock import Clock, SystemClock
from penstock.documents.events import DraftDocument
from penstock.entity.outbox import stage
from penstock.errors import Closed
from penstock.events import Draft, Event, Receipt
from penstock.journal.description import Description, Pressure
from penstock.names import check_name
from penstock.protocol import journal as operations
from penstock.protocol.fields import policy_fields, policy_of
from penstock.protocol.journal import JournalDocument
from penstock.protocol.queues import LIST_QUEUES, OPEN_QUEUE, READ_QUEUE
from penstock.protocol.topics import DROP_TOPIC, LIST_TOPICS, DropTopicQuery
from penstock.queue.policy import checked, refuse_mismatch
from penstock.remote.backend import RemoteBackend
from penstock.remote.client import Client
from penstock.remote.events import draft_document, receipt_of
from penstock.remote.local_only import JournalElsewhere
from penstock.remote.queues import RemoteQueue
from penstock.remote.topic import RemoteTopic
from penstock.surface.outbox import Outbox
from penstock.surface.queue import Queue, named
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.dropping import DropReport
    from penstock.observe.sample import Sample
    from penstock.surface.arguments import DraftArguments, PolicyArguments
    from penstock.surface.topic import Topic
    from penstock.surface.worker import Worker

T = TypeVar("T")

SUBMITTERS = 1
"""Threads that carry submissions without a waiter; one, so that they are written in the order they were made."""


class RemoteJournal(JournalElsewhere):
    """A set of topics and queues served elsewhere. Thread-safe; close it, or use it as a context manager."""

    id = ""
    closed = False
    _backend: RemoteBackend

    def __init__(self, url: str, *, token: str | None = None, read_only: bool = False, timeout: float = 60.0) -> None:
        self._client = Client(url, token, timeout)
        self._read_only = read_only
        self._backend = RemoteBackend(self._client, read_only=read_only)
        self.clock: Clock = SystemClock()
        self.closed = False
        self._queues: dict[str, RemoteQueue] = {}
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._subscriptions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pool: ThreadPoolExecutor | None = None
        self._submitting = threading.Lock()
        self._submitted_last = False
        """Whether `close` has begun to wait for the submissions there are: no more are taken."""
        try:
            self.id = self._about().id  # a wrong address or token is found now
        except BaseException:
            self._client.close()  # no caller can: there is no journal to close
            raise

    def __repr__(self) -> str:
        return f"<journal at {self._client.url}{' (closed)' if self.closed else ''}>"

    def _about(self) -> JournalDocument:
        return self._client.call(operations.DESCRIBE_JOURNAL)

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str) -> RemoteTopic:
        """A handle on a topic; the topic exists from its first append."""
        return RemoteTopic(self, check_name(name))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._client.call(LIST_TOPICS).topics

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it; TopicInUse when something needs it, unless forced."""
        self._check_writable()
        self._queues.pop(name, None)
        return self._client.call(DROP_TOPIC, check_name(name), query=DropTopicQuery(force))

    def queue(self, name: str, *, create: bool = True, **policy: Unpack[PolicyArguments]) -> Queue:
        """A queue; it is made on first use, unless `create` is False: then one that is not there is UnknownQueue.

        A policy other than the stored one raises PolicyMismatch.
        """
        check_name(name, "queue")
        known = self._queues.get(name)
        if known is None or policy or not create:
            wanted = checked(named(policy), name)
            if self._read_only or not create:
                found = self._backend.call(READ_QUEUE, name)
                refuse_mismatch(name, policy_of(found.policy), wanted)
            else:
                self._backend.call(OPEN_QUEUE, name, request=policy_fields(wanted))
            known = self._queues.setdefault(name, RemoteQueue(self, name))
        return known.handle

    def queues(self) -> list[str]:
        """The names of all queues, sorted."""
        return self._client.call(LIST_QUEUES).queues

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def outbox(self) -> RemoteOutbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""
        return RemoteOutbox(self)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, causes before their effects."""
        return iter(self._backend.call(operations.READ_CORRELATED, correlation_id).events)

    def graph(self, correlation_id: str) -> str:
        """What caused what within a correlation, as a Mermaid flowchart."""
        from penstock.entity.causality import mermaid

        return mermaid(self.correlated(correlation_id))

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def pressure(self) -> Pressure:
        """How many submissions wait for the server's writer."""
        found = self._about().pressure
        return Pressure(found.queued, found.capacity)

    def describe(self) -> Description:
        """What the served journal is; its location is the server's url."""
        about = self._about()
        return Description(
            about.engine,
            self._client.url,
            about.size_bytes,
            about.durability,
            about.read_only or self._read_only,
            about.topics,
            about.queues,
            about.writer_capacity,
            about.gates,
            requests=about.requests,
            objects=about.objects,
            unstored_seconds=about.unstored_seconds,
            writer=about.writer,
            paused=about.paused,
        )

    def stats(self) -> Sample:
        """The server's newest sample: every topic and queue with its rates, backlogs and lags."""
        return self._client.call(operations.READ_STATS)

    def flush(self) -> None:
        """Returns when everything submitted so far, here and at the server, is on disk."""
        if self._pool is not None:
            self._submit(_nothing).result()  # behind all the others, which one thread carries
        self._client.call(operations.FLUSH_JOURNAL)

    def maintain(self) -> None:
        """Does all housekeeping at the server now: merges small blocks, applies retention."""
        self._check_writable()
        self._client.call(operations.MAINTAIN_JOURNAL)

    def _drain_pool(self) -> None:
        with self._submitting:
            self._submitted_last = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True)

    def close(self) -> None:
        """Stops workers, sends what was submitted, lets go of the connections. A second call does nothing."""
        if self.closed:
            return
        if self._client.inherited:  # a forked child: the threads, the submissions and the connections are the parent's
            self.closed = True
            self._client.close()
            return
        failures: list[BaseException] = []
        for worker in list(self._workers):
            try:
                worker.stop()
            except Exception as error:
                failures.append(error)
        self._drain_pool()
        self.closed = True
        for subscription in list(self._subscriptions):
            subscription._journal_closed()
        self._client.close()
        if failures:
            raise failures[0]

    # ── for topics and queues ────────────────────────────────────────────────────────────────────────────────────────
    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the journal is closed")

    def _append_several(self, documents: list[DraftDocument]) -> list[Receipt]:
        answer = self._client.call(operations.APPEND_SEVERAL, body=documents)
        return [receipt_of(document) for document in answer.receipts]

    def _check_writable(self) -> None:
        self._backend.check_writable()

    def _add_worker(self, worker: Worker) -> None:
        self._workers.add(worker)

    def _submit(self, work: Callable[[], T]) -> Ticket[T]:
        """Does something in the background; the ticket says how it went."""
        self._client.check_open()
        ticket: Ticket[T] = Ticket()

        def carry() -> None:
            try:
                ticket.resolve(work())
            except BaseException as error:
                ticket.fail(error)

        with self._submitting:
            if self._submitted_last:
                raise Closed("the journal is closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SUBMITTERS, "penstock-remote")
            self._pool.submit(carry)
        return ticket


def _nothing() -> None:
    """What is submitted to learn when all before it is done."""


class RemoteOutbox(Outbox):
    """Gathers drafts for any topics and appends them together. Not shared between threads."""

    def __init__(self, journal: RemoteJournal) -> None:
        self._journal = journal
        self._staged: list[tuple[str, Draft]] = []

    def __len__(self) -> int:
        return len(self._staged)

    def stage(self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is sent yet."""
        self._staged.append(stage(self._journal, topic, kind, payload, draft))
        return len(self._staged) - 1

    def clear(self) -> None:
        """Drops everything staged."""
        self._staged.clear()

    def flush(self) -> list[Receipt]:
        """Appends everything staged, all or nothing; one receipt each, in order. On an error it stays staged."""
        if not self._staged:
            return []
        receipts = self._journal._append_several(self._documents())
        self._staged.clear()
        return receipts

    def submit(self) -> Ticket[list[Receipt]]:
        """Hands everything staged over as one batch and is empty again at once."""
        documents = self._documents()
        self._staged.clear()
        return self._journal._submit(lambda: self._journal._append_several(documents) if documents else [])

    def _documents(self) -> list[DraftDocument]:
        self._journal._check_open()
        self._journal._check_writable()
        return [draft_document(draft, topic) for topic, draft in self._staged]

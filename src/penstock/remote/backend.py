"""A journal at the other end of a url: the backend of its handles. Each operation is a request."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.clock import Clock, SystemClock
from penstock.core.entity.outbox import Staged
from penstock.core.events import Event, Receipt
from penstock.core.journal.description import Description, Pressure
from penstock.core.journal.sealed.segments import LakeSummary, SealReport
from penstock.core.model.calls import GatherRequest
from penstock.core.names import check_name, check_seconds
from penstock.core.observe.sample import Sample
from penstock.core.protocol import topics as wire
from penstock.core.protocol.bulk import LIST_LAKES, SEAL_TOPIC, SealRequest, TopicsQuery
from penstock.core.protocol.fields import policy_fields, policy_of
from penstock.core.protocol.operation import WRITTEN, Operation, convert_answer
from penstock.core.protocol.queues import OPEN_QUEUE, PUSH_TOGETHER, READ_QUEUE
from penstock.core.queue.policy import check_policy, refuse_mismatch
from penstock.core.surface.backend import JournalAddress
from penstock.core.surface.journal import Journal
from penstock.core.ticket import Ticket
from penstock.core.units import Progress
from penstock.errors import Backpressure, Closed, ConfigError, ReadOnly
from penstock.limits import (
    BACKPRESSURE_RETRY,
    SERVER_TIMEOUT,
    TIMEOUT_SECONDS_LEAST,
    WRITER_CAPACITY,
    WRITER_PRESSURE,
)
from penstock.remote.client import Client
from penstock.remote.events import draft_document, event_of, read_across, receipt_of
from penstock.remote.queues import RemoteQueue
from penstock.remote.topic import RemoteTopic

if TYPE_CHECKING:
    from typing import NoReturn

    from penstock import Queue, Worker
    from penstock.core.journal.across import AcrossQuery
    from penstock.core.surface.backend import TopicScan
    from penstock.remote.subscription import RemoteFollower, RemoteJournalSubscription


A = TypeVar("A")
T = TypeVar("T")

SUBMITTERS = 1
"""The number of threads that send submissions without a waiter.

With one thread, submissions are written in the order in which they were made.
"""


class RemoteBackend:
    """The backend that sends operations to the server with the store."""

    def __init__(self, client: Client, *, read_only: bool) -> None:
        self.client = client
        self.read_only = read_only
        self.clock: Clock = SystemClock()
        self.closed = False
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self.subscriptions: weakref.WeakSet[RemoteFollower] = weakref.WeakSet()
        self._queues: dict[str, RemoteQueue] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._submitting = threading.Condition()
        self._waiting = 0
        """The number of unfinished submissions."""
        self._submitted_last = False
        """True once `close` waits for the pending submissions. No further submission is accepted."""
        try:
            self.id = self._about().id  # a wrong address or token raises an error now
        except BaseException:
            client.close()  # no caller can close it, because there is no journal yet
            raise

    def __repr__(self) -> str:
        return f"<journal at {self.client.url}{' (closed)' if self.closed else ''}>"

    def call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None, wait: float = 0.0) -> A:
        """Returns an operation's answer.

        `names` are the names in its path. `wait` is the time that the server may take.
        """
        if operation.changes(request):
            self.check_writable()
        if operation is wire.DROP_TOPIC:
            self._queues.pop(names[0], None)  # the next request makes a queue of this name anew
        query, body = (request, None) if operation.query is not None else (None, request)
        answer: A = _read(self.client.call(operation, *names, query=query, body=body, wait=wait))
        return answer

    def find(self, operation: Operation[A], *names: str) -> A | None:
        """Returns the answer to a look-up; None when the thing does not exist."""
        answer: A | None = _read(self.client.find(operation, *names))
        return answer

    def push_together(self, calls: GatherRequest) -> list[Receipt]:
        self.check_writable()
        return [receipt_of(one) for one in self.call(PUSH_TOGETHER, request=calls)]

    def check_writable(self) -> None:
        """Raises ReadOnly when the journal was opened read-only."""
        if self.read_only:
            raise ReadOnly("this journal was opened with read_only=True")

    def store(self, what: str, instead: str) -> NoReturn:
        raise ConfigError(f"{what} is not served over http: {instead}")

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str) -> RemoteTopic:
        return RemoteTopic(self, name)

    def open_queue(self, journal: Journal, name: str, policy: Mapping[str, object], create: bool) -> Queue:
        known = self._queues.get(name)
        if known is None or policy or not create:
            wanted = check_policy(policy, name)
            if self.read_only or not create:
                found = self.call(READ_QUEUE, name)
                refuse_mismatch(name, policy_of(found.policy), wanted)
            else:
                self.call(OPEN_QUEUE, name, request=policy_fields(wanted))
            known = self._queues.setdefault(name, RemoteQueue(journal, self, name))
        return known.handle

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def append_staged(self, staged: list[Staged]) -> list[Receipt]:
        receipts = self._append_several(staged)()
        staged.clear()
        return receipts

    def submit_staged(self, staged: list[Staged]) -> Ticket[list[Receipt]]:
        return self.submit(self._append_several(staged))

    def _append_several(self, staged: list[Staged]) -> Callable[[], list[Receipt]]:
        """Checks and encodes the drafts now, and returns a function that sends them as a single batch."""
        self.client.check_open()
        self.check_writable()
        documents = [draft_document(draft, topic) for topic, draft in staged]

        def send() -> list[Receipt]:
            answer = self.client.call(wire.APPEND_SEVERAL, body=documents)
            return [receipt_of(document) for document in answer]

        return send if documents else list

    def read(self, query: AcrossQuery) -> Iterator[Event]:
        return read_across(self, query)

    def subscribe(self, query: AcrossQuery, buffer: int, *, latest: bool) -> RemoteJournalSubscription:
        from penstock.remote.subscription import RemoteJournalSubscription

        if latest:
            ends = self.call(wire.READ_ACROSS, request=wire.AcrossRequest(topics=list(query.topics), limit=0)).ends
            query = msgspec.structs.replace(query, after=ends)
        return RemoteJournalSubscription(self, query, buffer)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        from penstock.core.entity.causality import causes_first, recorded

        yield from causes_first(sorted(self.causes(wire.READ_CORRELATED, correlation_id), key=recorded))

    def scans(self, names: Iterable[str]) -> AbstractContextManager[dict[str, TopicScan]]:
        from penstock.remote.scanning import open_scans

        return open_scans(self, names)

    def causes(self, operation: Operation[wire.EventList[Event]], name: str) -> Iterator[Event]:
        """Yields the events of an answer, which arrives in pages."""
        query = wire.CausesQuery()
        while True:
            page = self.call(operation, name, request=query)
            yield from page.events
            if page.next is None:
                return
            query = wire.CausesQuery(after=page.next)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _about(self) -> wire.JournalDocument:
        return self.client.call(wire.DESCRIBE_JOURNAL)

    def pressure(self) -> Pressure:
        return self._about().pressure

    def address(self) -> JournalAddress:
        return JournalAddress(self.client.url, self.client.token)

    def describe(self) -> Description:
        """Returns the served journal's description; its location is the server's URL."""
        about = self._about()
        own = msgspec.structs.replace(about, location=self.client.url, read_only=about.read_only or self.read_only)
        return msgspec.convert(own, Description, from_attributes=True)

    def stats(self) -> Sample:
        return self.client.call(wire.READ_STATS)

    def flush(self) -> None:
        if self._pool is not None:
            self.submit(_nothing).result()  # after all other submissions, which one thread sends
        self.client.call(wire.FLUSH_JOURNAL)

    def audit(self, kind: str, subject: str, record: dict[str, object]) -> None:
        """Does nothing: the audit topic is the server's own and takes no records from clients."""

    # ── in the background ────────────────────────────────────────────────────────────────────────────────────────────
    def submit(self, work: Callable[[], T], *, patient: bool = True) -> Ticket[T]:
        """Runs work in the background. The ticket has its result.

        When there are too many unfinished submissions, it waits, or without `patient` raises Backpressure.
        """
        self.client.check_open()
        ticket: Ticket[T] = Ticket()

        def carry() -> None:
            try:
                ticket.resolve(work())
            except BaseException as error:
                ticket.fail(error)
            finally:
                with self._submitting:
                    self._waiting -= 1
                    self._submitting.notify()

        with self._submitting:
            if not patient and self._waiting >= WRITER_CAPACITY * WRITER_PRESSURE:
                raise Backpressure(
                    f"{self._waiting} submissions wait for the server; try again in {BACKPRESSURE_RETRY * 1000:g} ms",
                    retry_after=BACKPRESSURE_RETRY,
                )
            self._submitting.wait_for(lambda: self._waiting < WRITER_CAPACITY or self._submitted_last)
            if self._submitted_last:
                raise Closed("the journal is closed")
            self._waiting += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SUBMITTERS, "penstock-remote")
            self._pool.submit(carry)
        return ticket

    def _drain_pool(self) -> None:
        with self._submitting:
            self._submitted_last = True
            self._submitting.notify_all()
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True)

    def close(self) -> None:
        """Stops workers, sends pending submissions and closes the connections. A second call does nothing."""
        if self.closed:
            return
        # a forked child: the threads, the submissions and the connections belong to the parent
        if self.client.inherited:
            self.closed = True
            self.client.close()
            return
        failures: list[BaseException] = []
        for worker in list(self.workers):
            try:
                worker.stop()
            except Exception as error:
                failures.append(error)
        self._drain_pool()
        self.closed = True
        for subscription in list(self.subscriptions):
            subscription._journal_closed()
        self.client.close()
        if failures:
            raise failures[0]


def _nothing() -> None:
    """Does nothing. Its completion shows that all earlier submissions are finished."""


def _read(answer: Any) -> Any:
    """Returns an answer with its documents converted to values."""
    return convert_answer(answer, _VALUES, event_of)


_VALUES = {document: kind for kind, document in WRITTEN.items()}

_STEP_SECONDS = 3_600.0
"""The number of seconds that the server may take for a step, including the steps of other clients before it."""


class RemoteJournal(Journal):
    """A journal at the other end of a url, for the parts of penstock that need more from its server than the handles
    offer.
    """

    _backend: RemoteBackend

    def __init__(
        self, url: str, *, token: str | None = None, read_only: bool = False, timeout: float | None = None
    ) -> None:
        seconds = SERVER_TIMEOUT if timeout is None else check_seconds(timeout, "timeout", TIMEOUT_SECONDS_LEAST)
        self._client = Client(url, token, seconds)
        super().__init__(RemoteBackend(self._client, read_only=read_only))


def seal_served(journal: RemoteJournal, topic: str, wanted: SealRequest, progress: Progress | None) -> SealReport:
    """Asks the server to seal, and again while positions are left. The report covers all steps together."""
    journal._backend.check_writable()
    check_name(topic)
    done: SealReport | None = None
    while True:
        step = journal._client.call(SEAL_TOPIC, topic, body=wanted, wait=_STEP_SECONDS)
        if done is not None:
            step = replace(
                step,
                events=done.events + step.events,
                files=done.files + step.files,
                bytes=done.bytes + step.bytes,
                unfit=done.unfit + step.unfit,
            )
        done = step
        if progress is not None and step.events:
            progress(step.events, step.events + step.left)
        if not step.left:
            return step
        # events that are appended meanwhile are for the next call
        wanted = replace(wanted, through=step.through + step.left)


def lakes_served(journal: RemoteJournal, topics: list[str]) -> list[LakeSummary]:
    """Returns the contents of the lakes of a served journal's topics."""
    return journal._client.call(LIST_LAKES, query=TopicsQuery(topics)) if topics else []

"""A topic at the other end of a url: what its handle stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, TypeVar

from penstock.clock import Seconds
from penstock.documents.events import DraftDocument
from penstock.entity.projection import Projection, check_projection
from penstock.entity.states import Freshness, folded
from penstock.events import Draft, Event, Receipt
from penstock.journal.catalog import Settings
from penstock.journal.prepare import make_draft
from penstock.journal.reading import EventQuery
from penstock.names import check_position, check_text
from penstock.protocol import topics as operations
from penstock.protocol.topics import READ_ANCESTORS, READ_EFFECTS, ReadQuery
from penstock.remote.events import draft_documents, receipt_of
from penstock.remote.reading import read_batches, read_events
from penstock.remote.subscription import RemoteSubscription

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.entity.states import Progress, RebuildReport
    from penstock.remote.backend import RemoteBackend
    from penstock.remote.worker import RemoteTopicWorker
    from penstock.surface.arguments import DraftArguments
    from penstock.surface.subscription import OnLag
    from penstock.surface.topic import Topic
    from penstock.ticket import Ticket

P = TypeVar("P", bound=Projection)


class RemoteTopic:
    """What a `Topic` of a served journal stands on."""

    def __init__(self, backend: RemoteBackend, name: str) -> None:
        self.backend = backend
        self.name = name

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object, draft: DraftArguments) -> Receipt:
        return self.append_many((make_draft(kind, payload, draft),))[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        return self._send(self._documents(drafts))

    def submit(self, kind: object, payload: object, draft: DraftArguments, *, patient: bool) -> Ticket[Receipt]:
        documents = self._documents((make_draft(kind, payload, draft),))
        return self.backend.submit(lambda: self._send(documents)[0])

    def submit_many(self, drafts: Iterable[Draft], *, patient: bool) -> Ticket[list[Receipt]]:
        documents = self._documents(drafts)
        return self.backend.submit(lambda: self._send(documents))

    def _documents(self, drafts: Iterable[Draft]) -> list[DraftDocument]:
        self.backend.check_writable()
        return draft_documents(drafts, self.name)

    def _send(self, documents: list[DraftDocument]) -> list[Receipt]:
        if not documents:
            return []
        answer = self.backend.client.call(operations.APPEND_EVENTS, self.name, body=documents)
        return [receipt_of(document) for document in answer.receipts]

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def latest(self) -> int:
        return self.backend.call(operations.READ_TOPIC, self.name).latest

    def oldest(self) -> int:
        return self.backend.call(operations.READ_TOPIC, self.name).oldest

    def length(self) -> int:
        return self.backend.call(operations.READ_TOPIC, self.name).events

    def settings(self) -> Settings:
        return self.backend.call(operations.READ_TOPIC, self.name).settings

    def read(self, query: EventQuery) -> Iterator[Event]:
        return read_events(self.backend, self.name, query)

    def read_arrow(
        self, after: int, limit: int | None, through: int | None, rows: int, payload: Literal["string", "binary"]
    ) -> Iterator[pa.RecordBatch]:
        query = ReadQuery(after=after, through=through, limit=limit, payload=payload)
        return read_batches(self.backend.client, self.name, query, rows)

    def get(self, seq: int) -> Event | None:
        return self.find(str(seq)) if seq else None

    def find(self, id: str) -> Event | None:
        return self.backend.find(operations.READ_EVENT, self.name, id)

    def subscribe(
        self, after: int | Literal["latest"], buffer: int, on_lag: OnLag, wanted: EventQuery
    ) -> RemoteSubscription:
        return RemoteSubscription(self, after, buffer=buffer, on_lag=on_lag, wanted=wanted)

    def worker(
        self,
        topic: Topic,
        consumer: str,
        handler: Callable[[list[Event]], object],
        batch: int,
        idle: Seconds,
        restarts: int,
        wanted: EventQuery,
    ) -> RemoteTopicWorker:
        from penstock.remote.worker import RemoteTopicWorker

        return RemoteTopicWorker(
            self, topic, consumer, handler, batch=batch, idle=idle, restarts=restarts, wanted=wanted
        )

    # ── event sourcing: the events travel, the projection does not ───────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        return next((event.seq for event in self.read(EventQuery(key, limit=1, reverse=True))), 0)

    def project(self, projection: type[P], key: str | None, freshness: Freshness) -> P | None:
        return self._folded(projection, key)[1]

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        check_position(position, "position")
        check_projection(projection)
        if (self.position_of(key) if key is not None else self.latest()) == position:
            return None
        newest, state = self._folded(projection, key)
        return None if newest == position else (newest, state)

    def _folded(self, projection: type[P], key: str | None) -> tuple[int, P | None]:
        """Both of one answer: the events in it are of one topic, and end where that ended."""
        return folded(projection, self.read(EventQuery(None if key is None else check_text(key, "key"))))

    def rebuild(self, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
        from penstock.remote.rebuilding import rebuild_served

        self.backend.check_writable()
        return rebuild_served(self, projection, whole=whole, progress=progress)

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.entity.causality import id_of

        at: str | None = id_of(event)
        if isinstance(event, Event):
            yield event
            at = event.causation_id
        if at is not None:
            yield from self.backend.causes(READ_ANCESTORS, at)

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.entity.causality import id_of

        return self.backend.causes(READ_EFFECTS, id_of(event))

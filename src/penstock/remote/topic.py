"""A topic at the other end of a url."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from penstock.clock import Seconds, to_ms
from penstock.documents.conditions import Where
from penstock.documents.events import DraftDocument
from penstock.entity.projection import Projection, check_projection
from penstock.errors import ConfigError
from penstock.events import Draft, Event, Receipt, parse_id
from penstock.journal.catalog import Settings
from penstock.journal.cursors import TopicConsumer
from penstock.journal.following import reading, select
from penstock.journal.prepare import make_draft
from penstock.journal.settings import checked_settings
from penstock.journal.upkeep import CompactReport
from penstock.limits import ARROW_BATCH_ROWS, SUBSCRIPTION_BUFFER, WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.names import check_consumer, check_limit, check_position, check_whole
from penstock.protocol import topics as operations
from penstock.protocol.fields import SettingsFields
from penstock.protocol.journal import READ_ANCESTORS, READ_EFFECTS
from penstock.protocol.topics import (
    CompactRequest,
    CursorChange,
    CursorDocument,
    PositionQuery,
    ReadQuery,
    TopicDocument,
)
from penstock.remote.events import draft_documents, receipt_of
from penstock.remote.local_only import TopicElsewhere
from penstock.remote.reading import PAGE, read_batches, read_lines, read_pages
from penstock.remote.subscription import RemoteSubscription
from penstock.surface.subscription import OnLag
from penstock.ticket import Ticket

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.entity.rebuild import RebuildReport
    from penstock.entity.states import Freshness
    from penstock.remote.journal import RemoteJournal
    from penstock.surface.arguments import DraftArguments, SettingsArguments
    from penstock.surface.worker import Worker

P = TypeVar("P", bound=Projection)


class RemoteTopic(TopicElsewhere):
    """A topic of a served journal."""

    journal: RemoteJournal

    def __init__(self, journal: RemoteJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._client = journal._client

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self.journal!r}>"

    def _document(self) -> TopicDocument:
        return self._client.call(operations.READ_TOPIC, self.name)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Receipt:
        """Appends one event and returns when it is durable. Keyword arguments are those of `Draft`."""
        return self.append_many((make_draft(kind, payload, draft),))[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing; one receipt each, in order."""
        return self._send(self._documents(drafts))

    def submit(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Hands an event over and returns a ticket at once."""
        documents = self._documents((make_draft(kind, payload, draft),))
        return self.journal._submit(lambda: self._send(documents)[0])

    def submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Hands a batch over: `append_many` with a ticket."""
        documents = self._documents(drafts)
        return self.journal._submit(lambda: self._send(documents))

    try_submit = submit
    try_submit_many = submit_many

    def _documents(self, drafts: Iterable[Draft]) -> list[DraftDocument]:
        self.journal._check_writable()
        return draft_documents(drafts, self.name)

    def _send(self, documents: list[DraftDocument]) -> list[Receipt]:
        if not documents:
            return []
        answer = self._client.call(operations.APPEND_EVENTS, self.name, body=documents)
        return [receipt_of(document) for document in answer.receipts]

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        """The highest position ever assigned (0: none); compaction never lowers it."""
        return self._document().latest

    @property
    def oldest(self) -> int:
        """The first position still stored (0: none)."""
        return self._document().oldest

    def __len__(self) -> int:
        return self._document().events

    def read(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        since: datetime | None = None,
        reverse: bool = False,
        where: Where | str | None = None,
    ) -> Iterator[Event]:
        """Streams events after a position, oldest first (newest first: `reverse`), up to the newest one now.

        `where` is a condition the server asks (see `documents.conditions`), so that only what fulfils it travels.
        """
        wish = reading(
            after,
            limit,
            through=through,
            key=key,
            key_prefix=key_prefix,
            kind=kind,
            scope=scope,
            since=since,
            where=where,
        )
        if wish.nothing:
            return iter(())
        kinds = wish.wanted.kinds
        query = ReadQuery(
            after=after,
            through=through,
            key=key,
            key_prefix=wish.wanted.key_prefix,
            kind=[] if kinds is None else sorted(kinds),
            scope=scope,
            since=None if since is None else since.isoformat(),
            where=None if wish.where is None else wish.where.text,
            limit=limit,
            reverse=reverse,
        )
        if reverse or (limit is not None and limit <= PAGE):
            return read_pages(self.journal._backend, self.name, query)
        return read_lines(self._client, self.name, query)

    def read_arrow(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        batch_rows: int = ARROW_BATCH_ROWS,
        payload: Literal["string", "binary"] = "string",
    ) -> Iterator[pa.RecordBatch]:
        """Streams events as Arrow record batches of up to `batch_rows` rows."""
        check_position(after, "after")
        check_limit(limit)
        if through is not None:
            check_position(through, "through")
        check_whole(batch_rows, "batch_rows")
        if payload not in ("string", "binary"):
            raise ConfigError(f'payload is "string" or "binary", not {payload!r}')
        if limit == 0:
            return iter(())
        query = ReadQuery(after=after, through=through, limit=limit, payload=payload)
        return read_batches(self._client, self.name, query, batch_rows)

    def get(self, seq: int) -> Event | None:
        """The event at a position, or None."""
        check_position(seq, "seq")
        return self._one(str(seq)) if seq else None

    def find(self, id: str) -> Event | None:
        """The event with an id, or None."""
        if not isinstance(id, str):
            raise ConfigError(f"an event is found by its id, which is text, not {id!r:.80}")
        return None if parse_id(id) is None else self._one(id)

    def _one(self, name: str) -> Event | None:
        return self.journal._backend.find(operations.READ_EVENT, self.name, name)

    def position_at(self, time: datetime) -> int:
        """The last position recorded before a time; 0 for none."""
        to_ms(time, "time")
        query = PositionQuery(time.isoformat())
        return self._client.call(operations.FIND_POSITION, self.name, query=query).position

    def subscribe(
        self,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        where: Where | str | None = None,
    ) -> RemoteSubscription:
        """Follows the topic: the history after a position, then live; no gap and no duplicate at the seam."""
        if after != "latest":
            check_position(after, "after")
        selection = select(key, key_prefix, kind, scope, where)
        return RemoteSubscription(self, after, buffer=buffer, on_lag=on_lag, selection=selection)

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def commit(self, consumer: str, seq: int) -> None:
        """Remembers durably that a consumer is done with everything through `seq`; a smaller one changes nothing."""
        self._move(consumer, seq, seek=False)

    def seek(self, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor anywhere, also back."""
        self._move(consumer, seq, seek=True)

    def _move(self, consumer: str, seq: int, *, seek: bool) -> None:
        self.journal._check_writable()
        check_consumer(consumer)
        check_position(seq, "seq")
        change = CursorChange(position=seq, seek=seek)
        self._client.call(operations.MOVE_CURSOR, self.name, consumer, body=change)

    def forget(self, consumer: str) -> bool:
        """Drops a consumer's cursor; False when there was none."""
        self.journal._check_writable()
        check_consumer(consumer)
        return self._client.call(operations.FORGET_CURSOR, self.name, consumer).forgotten

    def _cursor(self, consumer: str) -> CursorDocument:
        check_consumer(consumer)
        return self._client.call(operations.READ_CURSOR, self.name, consumer)

    def cursor(self, consumer: str) -> int | None:
        """How far a consumer has come, or None when it never committed."""
        return self._cursor(consumer).position

    def cursors(self) -> dict[str, int]:
        """Every consumer and how far it has come."""
        return self._document().cursors

    def consumers(self) -> list[TopicConsumer]:
        """Every consumer with its position, its lag, and when its cursor last moved."""
        found = self._client.call(operations.LIST_CURSORS, self.name).cursors
        return [TopicConsumer(one.consumer, one.position or 0, one.lag, one.moved_at) for one in found]

    def lag(self, consumer: str) -> int:
        """How many positions a consumer is behind the newest event."""
        return self._cursor(consumer).lag

    def worker(
        self,
        consumer: str,
        handler: Callable[[list[Event]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
        key: str | None = None,
        key_prefix: str | None = None,
        kind: str | Sequence[str] | None = None,
        scope: str | None = None,
        where: Where | str | None = None,
    ) -> Worker:
        """A worker that hands this topic's events to `handler` in batches, at least once; `start()` or `run()` it."""
        from penstock.remote.worker import RemoteTopicWorker

        check_consumer(consumer)
        selection = select(key, key_prefix, kind, scope, where)
        worker = RemoteTopicWorker(
            self, consumer, handler, batch=batch, idle=idle, restarts=restarts, selection=selection
        )
        self.journal._workers.add(worker)
        return worker

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def settings(self) -> Settings:
        """What the topic keeps and for how long."""
        return self._document().settings

    def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        """Changes the topic's settings."""
        self.journal._check_writable()
        fields = SettingsFields(**checked_settings(changes))
        return self._client.call(operations.CONFIGURE_TOPIC, self.name, body=fields)

    def compact(self, through: int, *, force: bool = False) -> CompactReport:
        """Removes events through a position, inclusive; stops at the slowest cursor unless forced."""
        self.journal._check_writable()
        check_position(through, "through")
        return self._client.call(operations.COMPACT_TOPIC, self.name, body=CompactRequest(through=through, force=force))

    def compact_keys(self) -> int:
        """Keeps only the newest event of every key, now; returns how many went."""
        self.journal._check_writable()
        return self._client.call(operations.COMPACT_TOPIC, self.name, body=CompactRequest(keys=True)).removed

    # ── entities and causes ──────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, key: str) -> int:
        """The position of the entity's newest event; 0 for none."""
        newest = next(self.read(key=key, reverse=True, limit=1), None)
        return newest.seq if newest else 0

    def project(self, projection: type[P], key: str | None = None, *, freshness: Freshness = "consistent") -> P | None:
        """State folded from an entity's events, here: the events travel, the projection does not."""
        return self._folded(projection, key)[1]

    def project_if_changed(self, projection: type[P], key: str | None, generation: int) -> tuple[int, P | None] | None:
        """None when the entity is still at `generation`, else its generation now and its state."""
        check_position(generation, "generation")
        check_projection(projection)
        if (self.generation(key) if key is not None else self.latest) == generation:
            return None
        newest, state = self._folded(projection, key)
        return None if newest == generation else (newest, state)

    def _folded(self, projection: type[P], key: str | None) -> tuple[int, P | None]:
        """Generation and state, both of one answer: the events in it are of one topic, and end where that ended."""
        from penstock.entity.projection import folder_of

        newest = 0

        def noted() -> Iterator[Event]:
            nonlocal newest
            for event in self.read(key=key):
                newest = event.seq
                yield event

        state = folder_of(projection).fold_events(projection(), noted())
        return newest, state if newest else None

    def rebuild(
        self, projection: type[P], *, whole: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> RebuildReport:
        """Folds every entity anew, here, and saves the states there: what `project` starts from where the store is."""
        from penstock.remote.rebuilding import rebuild_served

        self.journal._check_writable()
        return rebuild_served(self, projection, whole=whole, progress=progress)

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """The event, its cause, its cause's cause, … as far as they are stored."""
        from penstock.entity.causality import id_of

        at: str | None = id_of(event)
        if isinstance(event, Event):
            yield event
            at = event.causation_id
        if at is not None:
            yield from self.journal._backend.call(READ_ANCESTORS, at).events

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """What an event caused directly, in the order it was recorded."""
        from penstock.entity.causality import id_of

        return iter(self.journal._backend.call(READ_EFFECTS, id_of(event)).events)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Every event of a correlation, of all topics, in the order they were recorded."""
        return self.journal.correlated(correlation_id)

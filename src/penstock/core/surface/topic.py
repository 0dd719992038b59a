"""A topic: the handle to append to a log and to read it, wherever the journal is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, Unpack

from penstock.core import protocol
from penstock.core.clock import to_ms
from penstock.core.events import Draft, parse_id
from penstock.core.journal.catalog import Settings
from penstock.core.journal.commit import checked_settings
from penstock.core.journal.cursors import TopicConsumer
from penstock.core.model.arguments import (
    DraftArguments,
    FilterArguments,
    SettingsArguments,
    query_fields,
    show_arguments,
)
from penstock.core.model.plan import BatchPlan
from penstock.core.model.query import EVERYTHING, EventQuery, check_follower
from penstock.core.names import (
    check_consumer,
    check_function,
    check_items,
    check_limit,
    check_position,
    check_text,
    check_whole,
)
from penstock.core.schema import PayloadT
from penstock.errors import ConfigError, PositionTrimmed
from penstock.limits import ARROW_BATCH_ROWS, SUBSCRIPTION_BUFFER, WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

    from penstock.core.clock import Duration
    from penstock.core.consuming.subscription import OnLag, Subscription
    from penstock.core.consuming.worker import Worker
    from penstock.core.entity.projection import Projection
    from penstock.core.entity.proof import CheckReport, InclusionProof, TreeRoot
    from penstock.core.entity.receipts import VerifyReport
    from penstock.core.entity.states import Freshness, RebuildReport, Watch
    from penstock.core.events import Event, PayloadType, Receipt
    from penstock.core.journal.log import TopicLog
    from penstock.core.journal.upkeep.erasing import EraseReport
    from penstock.core.journal.upkeep.retention import CompactReport
    from penstock.core.protocol.operation import Operation
    from penstock.core.surface.journal import Journal
    from penstock.core.ticket import Ticket

A = TypeVar("A")
P = TypeVar("P", bound="Projection")

SET_GATES = "set it in the process that serves the journal"


class Topic(Generic[PayloadT]):
    """A log: events in order, from position 1. A cheap handle; the topic exists from its first append."""

    def __init__(self, journal: Journal, name: str, payload: PayloadType[PayloadT] | None = None) -> None:
        self.journal = journal
        self.name = name
        self._at = journal._backend.topic(name)
        self._payload = payload

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self.journal!r}>"

    def _call(self, operation: Operation[A], *names: str, request: msgspec.Struct | None = None) -> A:
        """Returns the answer of an operation on this topic."""
        return self.journal._backend.call(operation, self.name, *names, request=request)

    def _log(self, what: str, instead: str) -> TopicLog:
        """Returns the topic in its store; for a served journal raises ConfigError, which says what to do instead."""
        return self.journal._backend.store(what, instead).log(self.name)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @show_arguments(DraftArguments, Draft)
    def append(self, kind: object, payload: PayloadT | None = None, **draft: Unpack[DraftArguments]) -> Receipt:
        """Appends one event and returns when it is durable. The keyword arguments are the fields of `Draft`."""
        if self._payload is not None:
            kind, payload = self._payload.draft(kind, payload)
        return self._at.append(kind, payload, draft)

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing; one receipt each, in order."""
        return self._at.append_many(drafts if self._payload is None else self._payload.drafts(drafts))

    @show_arguments(DraftArguments, Draft)
    def submit(self, kind: object, payload: PayloadT | None = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Submits an event and returns a ticket at once; waits only when the writer's capacity is full."""
        if self._payload is not None:
            kind, payload = self._payload.draft(kind, payload)
        return self._at.submit(kind, payload, draft, patient=True)

    def submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Submits a batch of events and returns a ticket at once."""
        checked = drafts if self._payload is None else self._payload.drafts(drafts)
        return self._at.submit_many(checked, patient=True)

    @show_arguments(DraftArguments, Draft)
    def try_submit(
        self, kind: object, payload: PayloadT | None = None, **draft: Unpack[DraftArguments]
    ) -> Ticket[Receipt]:
        """Does what `submit` does, but raises Backpressure(retry_after) instead of waiting when the writer is behind.

        Over HTTP, the ticket raises Backpressure when the server's writer is behind.
        """
        if self._payload is not None:
            kind, payload = self._payload.draft(kind, payload)
        return self._at.submit(kind, payload, draft, patient=False)

    def try_submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Does what `submit_many` does, but raises Backpressure(retry_after) instead of waiting."""
        checked = drafts if self._payload is None else self._payload.drafts(drafts)
        return self._at.submit_many(checked, patient=False)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        """The highest position ever assigned (0: none); compaction never lowers it."""
        return self._at.latest

    @property
    def oldest(self) -> int:
        """The first position still stored (0: none)."""
        return self._at.oldest

    def __len__(self) -> int:
        return self._at.length()

    def __bool__(self) -> bool:
        return True

    @show_arguments(FilterArguments, None)
    def read(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reverse: bool = False,
        **filter: Unpack[FilterArguments],
    ) -> Iterator[Event[PayloadT]]:
        """Streams events after a position, oldest first (newest first with `reverse`), up to the newest event at the
        call.

        `since` and `until` limit the time of recording: at or after `since`, before `until`. `key`, `key_prefix`,
        `kind` (one or several), `scope` and `where` (a condition like "payload.total > 10", checked at the store)
        filter events. `after=0` starts at the oldest stored event. A position whose next event compaction has removed
        raises PositionTrimmed.
        """
        query = EventQuery(
            **query_fields(filter),
            after=after,
            through=through,
            limit=limit,
            since=since,
            until=until,
            reverse=reverse,
        )
        found = iter(()) if query.nothing else self._at.read(query)
        return found if self._payload is None else map(self._payload.typed, found)

    def read_arrow(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        batch_rows: int = ARROW_BATCH_ROWS,
        payload: Literal["string", "binary"] = "string",
    ) -> Iterator[pa.RecordBatch]:
        """Streams events as Arrow record batches of up to `batch_rows` rows, without touching rows one by one.

        Payloads are a column of JSON text. `payload="binary"` makes it a column of bytes, for topics whose payloads are
        bytes that are not text.
        """
        check_position(after, "after")
        check_limit(limit)
        if through is not None:
            check_position(through, "through")
        check_whole(batch_rows, "batch_rows")
        if payload not in ("string", "binary"):
            raise ConfigError(f'payload is "string" or "binary", not {payload!r}')
        return iter(()) if limit == 0 else self._at.read_arrow(after, limit, through, batch_rows, payload)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns the topic as an Arrow stream: `polars.DataFrame(topic)`, `pyarrow.table(topic)`.

        The stream has the columns of `read_arrow`, from one snapshot, cast to requested types.
        """
        from penstock.core.journal.to_arrow import arrow_stream

        return arrow_stream(self.read_arrow(), requested_schema)

    def get(self, seq: int) -> Event[PayloadT] | None:
        """Returns the event at a position, or None."""
        found = self._at.get(check_position(seq, "seq"))
        return found if self._payload is None or found is None else self._payload.typed(found)

    def find(self, id: str) -> Event[PayloadT] | None:
        """Returns the event with an id, or None."""
        if not isinstance(id, str):
            raise ConfigError(f"an event is found by its id, which is text, not {id!r:.80}")
        found = None if parse_id(id) is None else self._at.find(id)
        return found if self._payload is None or found is None else self._payload.typed(found)

    def position_at(self, time: datetime) -> int:
        """Returns the last position recorded before a time; 0 for none."""
        to_ms(time, "time")
        return self._call(protocol.topics.FIND_POSITION, request=protocol.topics.PositionQuery(time.isoformat()))

    @show_arguments(FilterArguments, None)
    def subscribe(
        self,
        after: int | Literal["latest"] = 0,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        on_lag: OnLag = "catch_up",
        **filter: Unpack[FilterArguments],
    ) -> Subscription[PayloadT]:
        """Follows the topic: the history after a position, then live events, without a gap or a duplicate.

        Filters by key, kind, scope and condition work as in `read`. Filtered events count as seen.
        """
        if after != "latest":
            check_position(after, "after")
        wanted = EventQuery(**query_fields(filter))
        found = self._at.subscribe(after, buffer, on_lag, check_follower(wanted))
        found._payload = self._payload
        return found

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def commit(self, consumer: str, seq: int) -> None:
        """Stores durably that a consumer has processed every event through `seq`; a smaller position changes
        nothing.
        """
        self._move_cursor(consumer, seq, seek=False)

    def seek(self, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor to any position, also back."""
        self._move_cursor(consumer, seq, seek=True)

    def forget(self, consumer: str) -> bool:
        """Drops a consumer's cursor, so that compaction no longer waits for it; returns False for an unknown
        consumer.
        """
        return self._call(protocol.topics.FORGET_CURSOR, check_consumer(consumer))

    def cursor(self, consumer: str) -> int | None:
        """Returns the position of a consumer, or None when it never committed."""
        return self._cursor(consumer).position

    def cursors(self) -> dict[str, int]:
        """Returns the position of every consumer, by name."""
        return {one.consumer: one.position or 0 for one in self._call(protocol.topics.LIST_CURSORS).cursors}

    def consumers(self) -> list[TopicConsumer]:
        """Returns every consumer with its position, its lag, and when its cursor last moved."""
        found = self._call(protocol.topics.LIST_CURSORS).cursors
        return [TopicConsumer(one.consumer, one.position or 0, one.lag, one.moved_at) for one in found]

    def lag(self, consumer: str) -> int:
        """Returns the number of events a consumer has left to read."""
        return self._cursor(consumer).lag

    def left(self, after: int) -> int:
        """Returns the number of events that are left to read after a position, without removed and expired events."""
        return self._call(protocol.topics.READ_LEFT, request=protocol.topics.LeftQuery(check_position(after, "after")))

    @show_arguments(FilterArguments, None)
    def worker(
        self,
        consumer: str,
        handler: Callable[[list[Event[PayloadT]]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Duration = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
        **filter: Unpack[FilterArguments],
    ) -> Worker:
        """Returns a worker that gives this topic's events to `handler` in batches, at least once; `start()` or `run()`
        it.

        A failed handler gets its batch again. A handler that fails more than `restarts` times within a minute makes the
        worker give up, which `penstock check` reports until the worker is started again.

        Filters by key, kind, scope and condition work as in `read`; the cursor also moves past filtered events.
        """
        check_consumer(consumer)
        if self._payload is not None:
            from penstock.core.consuming.worker import adapt_handler

            handler = adapt_handler(handler, self._payload.typed_all)
        wanted = EventQuery(**query_fields(filter))
        plan = BatchPlan(consumer, handler, batch, idle, restarts, check_follower(wanted))
        worker = self._at.worker(self, plan)
        self.journal._backend.workers.add(worker)
        return worker

    def _move_cursor(self, consumer: str, seq: int, *, seek: bool) -> None:
        change = protocol.topics.CursorChange(position=check_position(seq, "seq"), seek=seek)
        self._call(protocol.topics.MOVE_CURSOR, check_consumer(consumer), request=change)

    def _cursor(self, consumer: str) -> protocol.topics.CursorDocument:
        return self._call(protocol.topics.READ_CURSOR, check_consumer(consumer))

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def settings(self) -> Settings:
        """The settings of the topic's retention."""
        return self._at.settings()

    @show_arguments(SettingsArguments)
    def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        """Changes the topic's settings (see `Settings`): retention, compaction by key, the dedup window."""
        from penstock.core.protocol.fields import SettingsFields

        return self._call(protocol.topics.CONFIGURE_TOPIC, request=SettingsFields(**checked_settings(changes)))

    def compact(self, through: int, *, force: bool = False) -> CompactReport:
        """Removes events through a position, inclusive; stops at the slowest cursor unless forced; frees the space."""
        check_position(through, "through")
        request = protocol.topics.CompactRequest(through=through, force=force)
        return self._call(protocol.topics.COMPACT_TOPIC, request=request)

    def compact_keys(self) -> int:
        """Removes all but the newest event of every key, now; returns the number of removed events.

        See also `configure(by_key=True)`.
        """
        return self._call(protocol.topics.COMPACT_TOPIC, request=protocol.topics.CompactRequest(keys=True)).removed

    @show_arguments(FilterArguments, None)
    def erase(
        self, seqs: Iterable[int] | None = None, *, by: str | None = None, **filter: Unpack[FilterArguments]
    ) -> EraseReport:
        """Erases the contents of events wherever the journal holds them: payload, headers, key, scope and tags.

        The events are the events at the positions `seqs`, and the events that match the filters of `read`:
        `key="customer-7"`. Position, id, times, kind, correlation and cause stay. Reads show the event with `erased`, a
        payload of None and who erased it (`by`). A queue gives up its messages; dead letters, results, saved states and
        dedup keys are removed too. `maintain()` then clears the remains in the engine and the lakes. See the page on
        erasing.
        """
        return self._erase([], seqs, by, filter)

    @show_arguments(FilterArguments, None)
    def mask(
        self,
        fields: Iterable[str],
        seqs: Iterable[int] | None = None,
        *,
        by: str | None = None,
        **filter: Unpack[FilterArguments],
    ) -> EraseReport:
        """Blanks payload fields of events: null replaces the value of `"email"` or `"address.street"`.

        The events are chosen as for `erase`. Everything else stays, including key and headers.
        """
        wanted = list(check_items([fields] if isinstance(fields, str) else fields, "fields"))
        if not wanted:
            raise ConfigError('say which fields to blank: fields=["email", "address.street"]')
        return self._erase(wanted, seqs, by, filter)

    def _erase(
        self, fields: list[str], seqs: Iterable[int] | None, by: str | None, filter: FilterArguments
    ) -> EraseReport:
        query = EventQuery(**query_fields(filter))
        chosen = None if seqs is None else [check_position(seq, "seqs") for seq in check_items(seqs, "seqs")]
        request = protocol.topics.EraseRequest(
            key=query.key if filter.get("key") is not None else None,
            key_prefix=query.key_prefix if filter.get("key_prefix") is not None else None,
            kind=sorted(query.kinds or ()),
            scope=query.scope,
            tag=sorted(query.tags or ()),
            where=query.where,
            seqs=chosen,
            fields=fields,
            by=by,
        )
        return self._call(protocol.topics.ERASE_EVENTS, request=request)

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        """Returns the position of an entity's newest event, 0 without events; `expect=` is compared with it."""
        return self._at.position_of(check_text(key, "key"))

    def entities(self) -> Iterator[str]:
        """Yields every key that has events, each once, in no particular order. In this process only."""
        from penstock.core.entity.states import entities

        instead = "read the topic and gather the keys, or ask where the store is"
        return entities(self._log("the list of entities", instead))

    def reindex(self) -> None:
        """Drops the index of entities, causes and correlations, and builds it anew while the journal is in use.

        In this process only.
        """
        from penstock.core.entity.states import reindex

        reindex(self._log("reindexing", "run `penstock index rebuild` where the store is"))

    # ── projections ──────────────────────────────────────────────────────────────────────────────────────────────────
    def project(
        self,
        projection: type[P],
        key: str | None = None,
        *,
        freshness: Freshness = "consistent",
        through: int | None = None,
        as_of: datetime | None = None,
    ) -> P | None:
        """Returns an entity's state, folded from its events; None without events.

        Without a key, returns the whole topic's state.

        `through` and `as_of` give the state after a position, or at a time; it is folded from stored events, so removed
        events raise PositionTrimmed. `freshness="cached"` may return an earlier state, without looking for newer
        events.
        """
        if through is None and as_of is None:
            return self._at.project(projection, key, freshness)
        return self._project_through(projection, key, through, as_of)

    def _project_through(
        self, projection: type[P], key: str | None, through: int | None, as_of: datetime | None
    ) -> P | None:
        from penstock.core.entity.projection import check_projection
        from penstock.core.entity.states import folded

        check_projection(projection)
        if as_of is not None:
            if through is not None:
                raise ConfigError("give through= for a position or as_of= for a time, not both")
            through = self.position_at(as_of)
        query = EventQuery(through=through, key=None if key is None else check_text(key, "key"))
        if through and through < (oldest := self.oldest) - 1:
            raise PositionTrimmed(
                f"topic {self.name!r} begins at {oldest}: what it was after {through} cannot be folded any more",
                oldest=oldest,
            )
        return folded(projection, self._at.read(query))[1] if through else None

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        """Returns None when the newest event of the entity is still at `position`, else its new position and the
        state.
        """
        return self._at.project_if_changed(projection, key, position)

    def watch(self, projection: type[P], key: str | None = None) -> Watch[P]:
        """Returns a watch of the entity's state: the state now, and again whenever the entity has new events.

        In this process only.
        """
        from penstock.core.entity.states import Watch

        instead = "subscribe to the topic and call project_if_changed for the keys that come"
        store = self.journal._backend.store("a watch", instead)
        return Watch(store.log(self.name), store.entities.states, projection, key)

    def rebuild(
        self,
        projection: type[P],
        *,
        whole: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RebuildReport:
        """Folds every entity anew and saves the states; with `whole`, folds the whole topic's state instead.

        `progress` is called now and then with the folded and the total number of events. On a served journal the events
        are transferred, and all states are in memory until the end; `penstock.spark.rebuild` folds topics that do not
        fit.
        """
        return self._at.rebuild(
            projection, whole=whole, progress=None if progress is None else check_function(progress, "progress")
        )

    def verify_states(self, projection: type[P]) -> list[str | None]:
        """Folds the events of every saved state again, and returns the keys of states that differ.

        The key None stands for the state of the whole topic; `rebuild` repairs all states. In this process only.
        """
        from penstock.core.entity.states import verify_states

        instead = "run `penstock rebuild --check` where the store is"
        return verify_states(self._log("checking saved states", instead), projection)

    # ── causality ────────────────────────────────────────────────────────────────────────────────────────────────────
    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        """Yields the event, then its cause, its cause's cause, …, from any topics."""
        return self._at.ancestors(event)

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        """Yields the events that an event caused directly, from any topics."""
        return self._at.effects(event)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Yields every event of a correlation, of all topics, in the order of recording."""
        return self.journal.correlated(correlation_id)

    # ── verification ─────────────────────────────────────────────────────────────────────────────────────────────────
    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Reads the topic, names the first damaged event, and publishes a Merkle root over all events.

        In a topic with `configure(verified=True)`, it also finds an event that was changed, exchanged, added or removed
        outside of the journal since its commit. In other topics, it finds only changes of events under an earlier root.
        In this process only.
        """
        from penstock.core.entity.receipts import verify

        log = self._log("verifying a topic", "run `penstock verify` where the store is")
        return verify(log, progress=None if progress is None else check_function(progress, "progress"))

    def check(self, receipt: Receipt) -> CheckReport:
        """Returns True if a receipt's event is still stored as it was when the receipt was given. In this
        process only."""
        from penstock.core.entity.receipts import check

        return check(self._log("checking a receipt", "do it where the store is"), receipt)

    def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> InclusionProof:
        """Returns a proof, for a reader with the root, that an event is in this topic; `penstock.check_proof` checks
        it.

        The proof is under `root`, or under the newest root of `verify` that covers the event. Raises Unprovable without
        such a root, or when nearby events were removed since. In this process only.
        """
        from penstock.core.entity.receipts import prove

        instead = "run `penstock proof` where the store is; check_proof needs no journal"
        return prove(self._log("a proof", instead), of, root)

    # ── reactors and gates ───────────────────────────────────────────────────────────────────────────────────────────
    def react(
        self,
        consumer: str,
        handler: Callable[[Event[PayloadT]], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Duration = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> Worker:
        """Returns a worker that appends the drafts that `handler` returns for each event, caused by the event, exactly
        once for each event.

        A draft goes to the topic that it names, else to this topic. `start()` or `run()` it, like `worker`. In this
        process only.
        """
        from penstock.core.entity.reactor import Reactor

        check_consumer(consumer)
        if self._payload is not None:
            from penstock.core.consuming.worker import adapt_handler

            handler = adapt_handler(handler, self._payload.typed)
        store = self.journal._backend.store("a reactor", "use worker() with dedup keys, or run it where the store is")
        plan = BatchPlan(consumer, handler, batch, idle, restarts, EVERYTHING)
        reactor = Reactor(store.log(self.name), store.entities.fences, plan)
        store.workers.add(reactor)
        return reactor

    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: Topic | str | None = None,
    ) -> None:
        """Adds a gate: `check` sees every draft for this topic before it is appended, and refuses it by raising Denied.

        `kind` limits it to some kinds. `record` names a topic in which refusals are recorded as events. In this
        process only.
        """
        recorded = record.name if isinstance(record, Topic) else record
        store = self.journal._backend.store("a gate", SET_GATES)
        store.entities.gates.add(self.name, check, kind=kind, name=name, record=recorded)

    def ungate(self, check: Callable[[Draft], None]) -> bool:
        """Removes a gate; returns False for an unknown gate. In this process only."""
        return self.journal._backend.store("a gate", SET_GATES).entities.gates.remove(self.name, check)

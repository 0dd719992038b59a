"""A topic of a journal in this process: the topic's log, and what event sourcing makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from sys import modules
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from penstock.clock import Seconds, to_ms
from penstock.entity import streams
from penstock.entity.projection import Projection
from penstock.entity.states import Freshness, project, project_if_changed
from penstock.errors import ConfigError
from penstock.events import Draft, Event, Receipt, parse_id
from penstock.journal import keys
from penstock.journal.catalog import Settings
from penstock.journal.commit import Commit
from penstock.journal.cursors import TopicConsumer, drop_cursor, move_cursor, read_consumers, read_cursors
from penstock.journal.following import reading, select
from penstock.journal.log import TopicLog
from penstock.journal.prepare import PreparedBatch, prepare_one
from penstock.journal.reading import TopicView
from penstock.journal.settings import change_settings, checked_settings
from penstock.journal.upkeep import CompactReport, compact, compact_by_key
from penstock.journal.writer import WriteRequest
from penstock.limits import ARROW_BATCH_ROWS, SUBSCRIPTION_BUFFER, WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.names import check_consumer, check_limit, check_position, check_whole
from penstock.observe.spans import sending
from penstock.surface.topic import Topic
from penstock.ticket import Ticket

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.documents.conditions import Where
    from penstock.entity.proof import CheckReport, InclusionProof, TreeRoot
    from penstock.entity.rebuild import RebuildReport
    from penstock.entity.receipts import VerifyReport
    from penstock.entity.states import Watch
    from penstock.journal.following import LocalSubscription
    from penstock.local.journal import LocalJournal
    from penstock.surface.arguments import DraftArguments, SettingsArguments
    from penstock.surface.subscription import OnLag
    from penstock.surface.worker import Worker

P = TypeVar("P", bound=Projection)


class LocalTopic(Topic):
    """A topic of a journal in this process."""

    journal: LocalJournal

    def __init__(self, journal: LocalJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._core = journal._core
        self._log = TopicLog(journal._core, name)
        self._writer = journal._core.writer

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self.journal!r}>"

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Receipt:
        span = sending(self.name, "append", None, draft.get("headers")) if "opentelemetry.trace" in modules else None
        try:
            if draft or self._core.guards:
                batch = self._log.prepare(kind, payload, draft)
            else:
                batch = prepare_one(kind, payload)
            return self._writer.run(WriteRequest(Commit.append, batch.size, (self.name, batch)))[0]
        finally:
            if span is not None:
                span.end()

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        rows = list(drafts)
        span = sending(self.name, "append", len(rows)) if "opentelemetry.trace" in modules else None
        try:
            batch = self._log.prepare_many(rows)
            self._core.indexer.make_room(self.name)
            return self._writer.run(WriteRequest(Commit.append, batch.size, (self.name, batch)))
        finally:
            if span is not None:
                span.end()

    def submit(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        return self._submit_one(self._log.prepare(kind, payload, draft), patient=True)

    def submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        return self._submit_many(self._log.prepare_many(drafts), patient=True)

    def try_submit(self, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        return self._submit_one(self._log.prepare(kind, payload, draft), patient=False)

    def try_submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        return self._submit_many(self._log.prepare_many(drafts), patient=False)

    def _submit_one(self, batch: PreparedBatch, *, patient: bool) -> Ticket[Receipt]:
        return self._writer.submit(WriteRequest(Commit.append_one, batch.size, (self.name, batch)), patient=patient)

    def _submit_many(self, batch: PreparedBatch, *, patient: bool) -> Ticket[list[Receipt]]:
        return self._writer.submit(WriteRequest(Commit.append, batch.size, (self.name, batch)), patient=patient)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        return self._log.latest

    @property
    def oldest(self) -> int:
        return self._log.oldest

    def __len__(self) -> int:
        return self._log.ask(TopicView.count, 0)

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
        """Streams events of one consistent snapshot: those after a position, oldest first (newest first: `reverse`).

        `after=0` starts at the oldest stored event; a position whose next event compaction removed raises
        PositionTrimmed. The snapshot is taken when the first event is asked for, and held until the iterator is
        exhausted or closed. `key_prefix`: events whose key begins so. `where` is a condition on events, see
        `penstock.documents.conditions`.
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
        return wish.chosen(lambda limit: self._log.read(after, limit, wish.last, wish.wanted, wish.since_ms, reverse))

    def read_arrow(
        self,
        after: int = 0,
        limit: int | None = None,
        *,
        through: int | None = None,
        batch_rows: int = ARROW_BATCH_ROWS,
        payload: Literal["string", "binary"] = "string",
    ) -> Iterator[pa.RecordBatch]:
        from penstock.journal.to_arrow import read_batches

        check_position(after, "after")
        check_limit(limit)
        if through is not None:
            check_position(through, "through")
        check_whole(batch_rows, "batch_rows")
        if payload not in ("string", "binary"):
            raise ConfigError(f'payload is "string" or "binary", not {payload!r}')
        if limit == 0:
            return iter(())
        end = keys.MAX_SEQ if through is None else through
        core = self._core
        return read_batches(core.engine, self.name, after, limit, end, batch_rows, payload, core.clock.now_ms())

    def get(self, seq: int) -> Event | None:
        return self._log.get(check_position(seq, "seq"))

    def find(self, id: str) -> Event | None:
        if not isinstance(id, str):
            raise ConfigError(f"an event is found by its id, which is text, not {id!r:.80}")
        number = parse_id(id)
        return None if number is None else self._log.ask(lambda view: view.find(number), None)

    def position_at(self, time: datetime) -> int:
        ms = to_ms(time, "time")
        return self._log.ask(lambda view: view.position_before(ms), 0)

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
    ) -> LocalSubscription:
        from penstock.journal.following import LocalSubscription

        if after != "latest":
            check_position(after, "after")
        selection = select(key, key_prefix, kind, scope, where)
        return LocalSubscription(self._log, after, buffer=buffer, on_lag=on_lag, selection=selection)

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def commit(self, consumer: str, seq: int) -> None:
        self._move_cursor(consumer, seq, back=False)

    def seek(self, consumer: str, seq: int) -> None:
        self._move_cursor(consumer, seq, back=True)

    def _move_cursor(self, consumer: str, seq: int, *, back: bool) -> None:
        check_consumer(consumer)
        check_position(seq, "seq")
        name = self.name
        self._writer.run(WriteRequest(lambda commit: move_cursor(commit, name, consumer, seq, back)))

    def forget(self, consumer: str) -> bool:
        check_consumer(consumer)
        name = self.name
        return self._writer.run(WriteRequest(lambda commit: drop_cursor(commit, name, consumer)))

    def cursor(self, consumer: str) -> int | None:
        return self._log.cursor(check_consumer(consumer))

    def cursors(self) -> dict[str, int]:
        return self._log.ask(lambda view: read_cursors(view.snap, view.number), {})

    def consumers(self) -> list[TopicConsumer]:
        return self._log.ask(lambda view: read_consumers(view.snap, view.number, view.latest()), [])

    def lag(self, consumer: str) -> int:
        return self._log.lag(check_consumer(consumer))

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
        from penstock.journal.worker import TopicWorker

        check_consumer(consumer)
        selection = select(key, key_prefix, kind, scope, where)
        worker = TopicWorker(
            self._log, consumer, handler, batch=batch, idle=idle, restarts=restarts, selection=selection
        )
        self._core.workers.add(worker)
        return worker

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def settings(self) -> Settings:
        return self._log.ask(lambda view: view.record.settings, Settings())

    def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        name, wanted = self.name, checked_settings(changes)
        settings = self._writer.run(WriteRequest(lambda commit: change_settings(commit, name, wanted)))
        self._core.housekeeper.request(name)
        return settings

    def compact(self, through: int, *, force: bool = False) -> CompactReport:
        check_position(through, "through")
        core, name = self._core, self.name

        def apply(commit: Commit) -> CompactReport:
            for discard in core.trims if force else ():
                discard(commit, name, through)
            return compact(commit, name, through, () if force else core.holds)

        report = self._writer.run(WriteRequest(apply))
        if report.removed:
            self._writer.reclaim()
        return report

    def compact_keys(self) -> int:
        """Keeps only the newest event of every key, now; returns how many went. See also `configure(by_key=True)`.

        Messages of a queue that are not settled stay, whatever their key.
        """
        core = self._core
        self._writer.check_idle_here()
        removed = compact_by_key(core.engine, self._writer, self.name, core.housekeeper.holds)
        if removed:
            self._writer.reclaim()
        return removed

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, key: str) -> int:
        return streams.generation(self._log, key)

    def entities(self) -> Iterator[str]:
        return streams.entities(self._log)

    def reindex(self) -> None:
        streams.reindex(self._log)

    # ── projections ──────────────────────────────────────────────────────────────────────────────────────────────────
    def project(self, projection: type[P], key: str | None = None, *, freshness: Freshness = "consistent") -> P | None:
        return project(self._log, self.journal._entities.states, projection, key, freshness)[1]

    def project_if_changed(self, projection: type[P], key: str | None, generation: int) -> tuple[int, P | None] | None:
        return project_if_changed(self._log, self.journal._entities.states, projection, key, generation)

    def watch(self, projection: type[P], key: str | None = None) -> Watch[P]:
        from penstock.entity.states import Watch

        return Watch(self._log, self.journal._entities.states, projection, key)

    def rebuild(
        self,
        projection: type[P],
        *,
        whole: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> RebuildReport:
        from penstock.entity.rebuild import rebuild

        return rebuild(self._log, self.journal._entities.states, projection, whole=whole, progress=progress)

    def verify_states(self, projection: type[P]) -> list[str | None]:
        from penstock.entity.states import verify_states

        return verify_states(self._log, projection)

    # ── causality ────────────────────────────────────────────────────────────────────────────────────────────────────
    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.entity.causality import ancestors

        return ancestors(self._core, event)

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.entity.causality import effects

        return effects(self._core, event)

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        from penstock.entity.causality import correlated

        return correlated(self._core, correlation_id)

    # ── verification ─────────────────────────────────────────────────────────────────────────────────────────────────
    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        from penstock.entity.receipts import verify

        return verify(self._log, progress=progress)

    def check(self, receipt: Receipt) -> CheckReport:
        from penstock.entity.receipts import check  # what few programs call is imported when it is called

        return check(self._log, receipt)

    def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> InclusionProof:
        from penstock.entity.receipts import prove

        return prove(self._log, of, root)

    # ── reactors and gates ───────────────────────────────────────────────────────────────────────────────────────────
    def react(
        self,
        consumer: str,
        handler: Callable[[Event], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> Worker:
        check_consumer(consumer)
        from penstock.entity.reactor import Reactor

        fences = self.journal._entities.fences
        reactor = Reactor(self._log, fences, consumer, handler, batch=batch, idle=idle, restarts=restarts)
        self._core.workers.add(reactor)
        return reactor

    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: Topic | str | None = None,
    ) -> None:
        recorded = record.name if isinstance(record, Topic) else record
        self.journal._entities.gates.add(self.name, check, kind=kind, name=name, record=recorded)

    def ungate(self, check: Callable[[Draft], None]) -> bool:
        return self.journal._entities.gates.remove(self.name, check)

"""Topics: append, read, follow, remember how far a consumer has come, and remove what nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from sys import modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import msgspec

from penstock.clock import Seconds, seconds, to_ms
from penstock.documents.decoding import nearest
from penstock.errors import ConfigError
from penstock.events import Draft, Event, Receipt, parse_id
from penstock.journal.commit.catalog import Settings, TopicRecord, load_record, mark_aged, save_record
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.dedup import change_window
from penstock.journal.commit.prepare import FindCause, PreparedBatch, make_draft, prepare, prepare_one
from penstock.journal.commit.writer import WriteRequest
from penstock.journal.cursors import (
    TopicConsumer,
    drop_cursor,
    move_cursor,
    read_consumers,
    read_cursor,
    read_cursors,
)
from penstock.journal.following.selection import event_filter, select
from penstock.journal.following.subscription import LocalSubscription
from penstock.journal.index.lookup import Lookup, entity_events
from penstock.journal.reading import EventFilter, TopicView
from penstock.journal.storage import keys
from penstock.journal.storage.links import load_blake3
from penstock.journal.upkeep.compaction import CompactReport, compact, compact_by_key
from penstock.journal.worker import TopicWorker
from penstock.limits import ARROW_BATCH_ROWS, SUBSCRIPTION_BUFFER, WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.names import check_consumer, check_limit, check_position, check_whole
from penstock.observe.spans import sending
from penstock.surface.subscription import OnLag
from penstock.surface.worker import Worker
from penstock.ticket import Ticket

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.documents.conditions import Where
    from penstock.journal.journal import BaseJournal
    from penstock.surface.arguments import DraftArguments, SettingsArguments

T = TypeVar("T")


class BaseTopic:
    """A log: events in order, from position 1. A cheap handle; the topic exists from its first append."""

    def __init__(self, journal: BaseJournal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._writer = journal._writer

    def __repr__(self) -> str:
        return f"<topic {self.name!r} of {self.journal!r}>"

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: Any, payload: Any = None, **draft: Unpack[DraftArguments]) -> Receipt:
        """Appends one event and returns when it is durable. Keyword arguments are those of `Draft`."""
        span = sending(self.name, "append", None, draft.get("headers")) if "opentelemetry.trace" in modules else None
        try:
            if draft or self.journal._guards:
                batch = self._prepare(kind, payload, draft)
            else:
                batch = prepare_one(kind, payload)
            return self._writer.run(WriteRequest(Commit.append, batch.size, (self.name, batch)))[0]
        finally:
            if span is not None:
                span.end()

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends events at consecutive positions, all or nothing; one receipt each, in order."""
        rows = list(drafts)
        span = sending(self.name, "append", len(rows)) if "opentelemetry.trace" in modules else None
        try:
            batch = self._prepare_many(rows)
            self.journal._indexer.make_room(self.name)
            return self._writer.run(WriteRequest(Commit.append, batch.size, (self.name, batch)))
        finally:
            if span is not None:
                span.end()

    def submit(self, kind: Any, payload: Any = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Hands an event over and returns a ticket at once; waits only when the writer's capacity is full."""
        return self._submit_one(self._prepare(kind, payload, draft), patient=True)

    def submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Hands a batch over: `append_many` with a ticket."""
        return self._submit_many(self._prepare_many(drafts), patient=True)

    def try_submit(self, kind: Any, payload: Any = None, **draft: Unpack[DraftArguments]) -> Ticket[Receipt]:
        """Like `submit`, but raises Backpressure(retry_after) instead of waiting when the writer is behind."""
        return self._submit_one(self._prepare(kind, payload, draft), patient=False)

    def try_submit_many(self, drafts: Iterable[Draft]) -> Ticket[list[Receipt]]:
        """Like `submit_many`, but raises Backpressure(retry_after) instead of waiting."""
        return self._submit_many(self._prepare_many(drafts), patient=False)

    def _submit_one(self, batch: PreparedBatch, *, patient: bool) -> Ticket[Receipt]:
        return self._writer.submit(WriteRequest(Commit.append_one, batch.size, (self.name, batch)), patient=patient)

    def _submit_many(self, batch: PreparedBatch, *, patient: bool) -> Ticket[list[Receipt]]:
        return self._writer.submit(WriteRequest(Commit.append, batch.size, (self.name, batch)), patient=patient)

    def _prepare(
        self, kind: Any, payload: Any, draft: Mapping[str, Any], find_cause: FindCause | None = None
    ) -> PreparedBatch:
        """Checks and encodes one event, and asks the gates and fences that may refuse it."""
        journal = self.journal
        if journal._guards:
            made = make_draft(kind, payload, draft)
            for guard in journal._guards:
                guard(self.name, (made,))
        if draft:
            return prepare((make_draft(kind, payload, draft),), self.name, find_cause or journal._find_cause)
        return prepare_one(kind, payload)

    def _prepare_many(self, drafts: Iterable[Draft], find_cause: FindCause | None = None) -> PreparedBatch:
        journal = self.journal
        if journal._guards:
            drafts = list(drafts)
            for guard in journal._guards:
                guard(self.name, drafts)
        return prepare(drafts, self.name, find_cause or journal._find_cause)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        """The highest position ever assigned (0: none); compaction never lowers it."""
        return self._lookup(TopicView.latest, 0)

    @property
    def oldest(self) -> int:
        """The first position still stored (0: none)."""
        return self._lookup(TopicView.oldest, 0)

    def __len__(self) -> int:
        return self._lookup(TopicView.count, 0)

    def __bool__(self) -> bool:
        return True

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
        check_position(after, "after")
        check_limit(limit)
        if through is not None:
            check_position(through, "through")
        wanted = event_filter(key, kind, scope, key_prefix)
        since_ms = None if since is None else to_ms(since, "since")
        if limit == 0:
            return iter(())
        end = keys.MAX_SEQ if through is None else through
        if where is not None:
            from penstock.documents.conditions import Where

            condition = where if isinstance(where, Where) else Where(where)
            return islice(filter(condition, self._read(after, None, end, wanted, since_ms, reverse)), limit)
        return self._read(after, limit, end, wanted, since_ms, reverse)

    def _read(
        self, after: int, limit: int | None, through: int, wanted: EventFilter, since_ms: int | None, reverse: bool
    ) -> Iterator[Event]:
        lookup = None if wanted.key is None else self.journal._index.lookup(self.name)
        with self.journal._engine.read() as snap:
            view = TopicView.open(snap, self.name, self.journal.clock.now_ms())
            if view is not None:
                yield from read_view(view, after, limit, through, wanted, since_ms, reverse, lookup)

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

        Payloads are a column of JSON text; `payload="binary"` makes it one of bytes, which a topic needs whose payloads
        are bytes that are not text.
        """
        from penstock.journal.storage.to_arrow import read_batches

        check_position(after, "after")
        check_limit(limit)
        if through is not None:
            check_position(through, "through")
        check_whole(batch_rows, "batch_rows")
        if payload not in ("string", "binary"):
            raise ConfigError(f'payload is "string" or "binary", not {payload!r}')
        if limit == 0:
            return iter(())
        return read_batches(
            self.journal._engine,
            self.name,
            after,
            limit,
            keys.MAX_SEQ if through is None else through,
            batch_rows,
            payload,
            self.journal.clock.now_ms(),
        )

    def get(self, seq: int) -> Event | None:
        """The event at a position, or None."""
        check_position(seq, "seq")
        return self._lookup(lambda view: view.get(seq), None)

    def find(self, id: str) -> Event | None:
        """The event with an id, or None."""
        if not isinstance(id, str):
            raise ConfigError(f"an event is found by its id, which is text, not {id!r:.80}")
        number = parse_id(id)
        return None if number is None else self._lookup(lambda view: view.find(number), None)

    def position_at(self, time: datetime) -> int:
        """The last position recorded before a time; 0 for none."""
        ms = to_ms(time, "time")
        return self._lookup(lambda view: view.position_before(ms), 0)

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
        """Follows the topic: the history after a position, then live; no gap and no duplicate at the seam.

        `key`, `key_prefix`, `kind`, `scope`, `where`: only such events, as in `read`. What is left out counts as seen.
        """
        if after != "latest":
            check_position(after, "after")
        selection = select(key, key_prefix, kind, scope, where)
        return LocalSubscription(self, after, buffer=buffer, on_lag=on_lag, selection=selection)

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def commit(self, consumer: str, seq: int) -> None:
        """Remembers durably that a consumer is done with everything through `seq`; a smaller one changes nothing."""
        self._move_cursor(consumer, seq, back=False)

    def seek(self, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor anywhere, also back."""
        self._move_cursor(consumer, seq, back=True)

    def _move_cursor(self, consumer: str, seq: int, *, back: bool) -> None:
        check_consumer(consumer)
        check_position(seq, "seq")
        name = self.name
        self._writer.run(WriteRequest(lambda commit: move_cursor(commit, name, consumer, seq, back=back)))

    def forget(self, consumer: str) -> bool:
        """Drops a consumer's cursor, so that compaction no longer waits for it; False when there was none."""
        check_consumer(consumer)
        name = self.name
        return self._writer.run(WriteRequest(lambda commit: drop_cursor(commit, name, consumer)))

    def cursor(self, consumer: str) -> int | None:
        """How far a consumer has come, or None when it never committed."""
        check_consumer(consumer)
        return self._lookup(lambda view: read_cursor(view.snap, view.number, consumer), None)

    def cursors(self) -> dict[str, int]:
        """Every consumer and how far it has come."""
        return self._lookup(lambda view: read_cursors(view.snap, view.number), {})

    def consumers(self) -> list[TopicConsumer]:
        """Every consumer with its position, its lag, and when its cursor last moved."""
        return self._lookup(lambda view: read_consumers(view.snap, view.number, view.latest()), [])

    def lag(self, consumer: str) -> int:
        """How many positions a consumer is behind the newest event."""
        check_consumer(consumer)
        return self._lookup(lambda view: view.latest() - (read_cursor(view.snap, view.number, consumer) or 0), 0)

    def worker(
        self,
        consumer: str,
        handler: Callable[[list[Event]], Any],
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
        """A worker that hands this topic's events to `handler` in batches, at least once; `start()` or `run()` it.

        `key`, `key_prefix`, `kind`, `scope`, `where`: only such events, as in `read`; the cursor moves past
        the others too.
        """
        check_consumer(consumer)
        selection = select(key, key_prefix, kind, scope, where)
        worker = TopicWorker(self, consumer, handler, batch=batch, idle=idle, restarts=restarts, selection=selection)
        self.journal._workers.add(worker)
        return worker

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def settings(self) -> Settings:
        """What the topic keeps and for how long."""
        return self._lookup(lambda view: view.record.settings, Settings())

    def configure(self, **changes: Unpack[SettingsArguments]) -> Settings:
        """Changes the topic's settings (see `Settings`): retention, compaction by key, the dedup window."""
        wanted = _checked_settings(changes)
        name = self.name

        def apply(commit: Commit) -> Settings:
            head = commit.ensure(name)
            settings = msgspec.structs.replace(head.settings, **wanted)
            _check_together(name, head.settings, settings)
            if settings != head.settings:
                save_record(commit.tx, name, TopicRecord(head.number, settings))
                mark_aged(commit.tx, name, settings)
                now_ms = max(commit.now_ms, head.recorded_ms)
                change_window(commit.tx, head.number, head.settings.dedup_window, settings.dedup_window, now_ms)
                head.settings = settings
            return settings

        settings = self._writer.run(WriteRequest(apply))
        self.journal._housekeeper.request(name)
        return settings

    def compact(self, through: int, *, force: bool = False) -> CompactReport:
        """Removes events through a position, inclusive; stops at the slowest cursor unless forced; frees the space."""
        check_position(through, "through")
        journal, name = self.journal, self.name

        def apply(commit: Commit) -> CompactReport:
            report = compact(commit, name, through, () if force else journal._holds)
            for settle in journal._trims if force else ():
                settle(commit, name, through)
            return report

        report = self._writer.run(WriteRequest(apply))
        if report.removed:
            self.journal._writer.reclaim()
        return report

    def compact_keys(self) -> int:
        """Keeps only the newest event of every key, now; returns how many went. See also `configure(by_key=True)`.

        Messages of a queue that are not settled stay, whatever their key.
        """
        name, holds = self.name, self.journal._housekeeper.holds
        self._writer.check_idle_here()
        removed = compact_by_key(self.journal._engine, self._writer, name, holds)
        if removed:
            self.journal._writer.reclaim()
        return removed

    # ── the way to the store ─────────────────────────────────────────────────────────────────────────────────────────
    def _lookup(self, question: Callable[[TopicView], T], otherwise: T) -> T:
        """Asks the newest committed state; a topic nobody wrote to answers `otherwise`."""
        with self.journal._engine.read() as snap:
            record = load_record(snap, self.name)
            if record is None:
                return otherwise
            aged = record.settings.max_age is not None
            now_ms = self.journal.clock.now_ms() if aged else None
            return question(TopicView(snap, self.name, record, now_ms))


def read_view(
    view: TopicView,
    after: int,
    limit: int | None,
    through: int,
    wanted: EventFilter,
    since_ms: int | None,
    reverse: bool,
    lookup: Lookup | None = None,
) -> Iterator[Event]:
    """The events a `read` wants from one view of a topic; those of one entity through its index."""
    view.check_not_trimmed(after)
    if since_ms is not None:
        after = max(after, view.position_before(since_ms))
    if lookup is not None:
        return entity_events(lookup.open(view), wanted, after, limit, through, reverse=reverse)
    return view.events(after, through, limit, wanted, reverse=reverse)


def _check_together(topic: str, before: Settings, settings: Settings) -> None:
    """Refuses settings that would make each other worthless."""
    if settings.chained and settings.by_key:
        raise ConfigError(f"topic {topic!r} cannot keep hash chains and be compacted by key: chains need every event")
    if before.chained and not settings.chained:
        raise ConfigError(f"topic {topic!r} keeps hash chains for good: a chain with a gap would prove nothing")
    if settings.chained and not before.chained:
        load_blake3()


def _checked_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(changes) - set(Settings.__struct_fields__))
    if unknown:
        raise ConfigError(f"a topic has no setting {unknown[0]!r}{nearest(unknown[0], Settings.__struct_fields__)}")
    checked = dict(changes)
    for name in ("max_age", "dedup_window"):
        if checked.get(name) is not None:
            checked[name] = seconds(checked[name], name)
    for name in ("max_events", "max_bytes"):
        check_limit(checked.get(name), name, 1)
    for name in ("by_key", "chained", "indexed"):
        if name in checked and not isinstance(checked[name], bool):
            raise ConfigError(f"{name} must be True or False, not {checked[name]!r}")
    return checked

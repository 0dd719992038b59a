"""The operations on topics and on the journal as a whole: each in one commit or from one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.clock import Clock, from_ms, to_ms
from penstock.core.documents.events import DraftDocument, PlainDraft
from penstock.core.entity.causality import CausesPage, ancestors_page, correlated_page, effects_page
from penstock.core.entity.outbox import Staged, appending_staged
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal import cursors
from penstock.core.journal.across import across_query, check_positions, read_page
from penstock.core.journal.catalog import Settings, load_record, topic_names
from penstock.core.journal.commit import Commit, change_settings, checked_settings
from penstock.core.journal.core import JournalCore
from penstock.core.journal.index.index import read_view
from penstock.core.journal.log import TopicLog
from penstock.core.journal.owners import this_process
from penstock.core.journal.reading import TopicView
from penstock.core.journal.upkeep.by_key import compact_by_key
from penstock.core.journal.upkeep.dropping import DropReport
from penstock.core.journal.upkeep.erasing import EraseReport, erase
from penstock.core.journal.upkeep.retention import CompactReport, compact_some
from penstock.core.journal.writer import WriteRequest
from penstock.core.local.backend import LocalBackend, PendingCommit, can_prepare_at_once
from penstock.core.model.query import EventQuery
from penstock.core.names import check_consumer, check_name, check_text
from penstock.core.observe import pipelines, workers
from penstock.core.observe.sample import Sample
from penstock.core.protocol import topics as wire
from penstock.core.protocol.fields import SettingsFields, given_fields
from penstock.core.protocol.operation import PAGE_BYTES, PAGE_EVENTS, READ_TOPICS, Caller
from penstock.core.units import parse_moment
from penstock.errors import ConfigError, PositionTrimmed

T = TypeVar("T")

REPORTS = frozenset((pipelines.TOPIC, workers.TOPIC))
"""The topics of penstock's own in which programs on any machine report their state."""


# ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────────
def describe_journal(at: LocalBackend, caller: Caller) -> wire.JournalDocument:
    from penstock import __version__

    return wire.JournalDocument(
        **msgspec.structs.asdict(at.describe()),
        version=__version__,
        id=at.id,
        pressure=at.pressure(),
        staging=caller.staging,
        lakes=list(caller.lakes),
        role=caller.role,
    )


def read_openapi(at: LocalBackend) -> msgspec.Raw:
    """Returns the OpenAPI document.

    It is the same for every client and says nothing about the data, so it needs no token.
    """
    from penstock.core.protocol.openapi import document

    return msgspec.Raw(document())


def read_stats(at: LocalBackend, caller: Caller) -> Sample:
    return caller.sample or at.stats()


def flush_journal(at: LocalBackend) -> bool:
    at.core.flush()
    return True


def maintain_journal(at: LocalBackend) -> bool:
    at.core.maintain()
    return True


def read_correlated(at: LocalBackend, correlation: str, query: wire.CausesQuery) -> wire.EventList[Event]:
    return _page(correlated_page, at, correlation, query)


def read_ancestors(at: LocalBackend, event: str, query: wire.CausesQuery) -> wire.EventList[Event]:
    return _page(ancestors_page, at, event, query)


def read_effects(at: LocalBackend, event: str, query: wire.CausesQuery) -> wire.EventList[Event]:
    return _page(effects_page, at, event, query)


def _page(
    page: Callable[[JournalCore, str, str | None, int, int], CausesPage],
    at: LocalBackend,
    id: str,
    query: wire.CausesQuery,
) -> wire.EventList[Event]:
    return wire.EventList(
        *page(at.core, id, query.after, PAGE_EVENTS if query.limit is None else query.limit, PAGE_BYTES)
    )


# ── several topics ───────────────────────────────────────────────────────────────────────────────────────────────────
def read_across(at: LocalBackend, wanted: wire.AcrossRequest) -> wire.AcrossPage[Event]:
    query = across_query(
        wanted.topics or None, wanted.after, wanted.through, _requested_history(at.clock, wanted), READ_TOPICS
    )
    limit = PAGE_EVENTS if wanted.limit is None else wanted.limit
    step, ends = read_page(at.core, query, limit, PAGE_BYTES)
    return wire.AcrossPage(step.events, None if step.done else step.reached, ends)


def requested_events(query: wire.FilterQuery, **further: Any) -> EventQuery:
    """Returns the query of a request, without positions."""
    return EventQuery(
        key=query.key,
        key_prefix=query.key_prefix,
        kinds=query.kind or None,
        scope=query.scope,
        tags=query.tag or None,
        where=query.where if query.where and query.where.strip() else None,
        **further,
    )


def _requested_history(clock: Clock, query: wire.HistoryQuery) -> EventQuery:
    """Does the same for events that are there; times may be relative to the journal's clock."""
    now = from_ms(clock.now_ms())
    times = {name: parse_moment(text, now) for name, text in (("since", query.since), ("until", query.until)) if text}
    return requested_events(query, reverse=query.reverse, **times)


def read_cursors(at: LocalBackend, consumer: str) -> dict[str, int]:
    check_consumer(consumer)
    found: dict[str, int] = {}
    with at.core.engine.read() as snap:
        for name in topic_names(snap):
            record = load_record(snap, name)
            position = None if record is None else cursors.read_cursor(snap, record.topic_id, consumer)
            if position is not None:
                found[name] = position
    return found


def move_cursors(at: LocalBackend, consumer: str, to: wire.PositionsDocument) -> dict[str, int]:
    check_consumer(consumer)
    positions = check_positions(to.positions, "positions")

    def apply(commit: Commit) -> dict[str, int]:
        there = {name: seq for name, seq in positions.items() if commit.head(name) is not None}
        for name, seq in there.items():
            cursors.move_cursor(commit, name, consumer, seq)
        return there

    return at.core.run(apply)


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
def append_events(
    at: LocalBackend, caller: Caller, name: str, drafts: Draft | Sequence[Draft] | Sequence[PlainDraft]
) -> PendingCommit[Receipt] | PendingCommit[list[Receipt]]:
    """Appends events. A draft has a receipt, several drafts have a list of receipts."""
    log = at.log(name)
    caller.check_append(name)
    if isinstance(drafts, Draft):
        one = _for_caller(drafts, caller)
        if one.dedup is None:
            one.dedup = caller.dedup

        def prepare_single() -> WriteRequest[Receipt]:
            batch = _ready_log(at, log).prepare_many((one,))
            return WriteRequest(Commit.append_one, batch.size, (name, batch))

        return PendingCommit(prepare_single, _at_once(at, log, (one,)))
    plain = [one for one in drafts if isinstance(one, PlainDraft)]
    if plain and not caller.headers:
        return PendingCommit(lambda: log.appending(_ready_log(at, log).prepare_plain(plain)), _at_once(at, log, ()))
    rows = [_for_caller(one.draft() if isinstance(one, PlainDraft) else one, caller) for one in drafts]
    return PendingCommit(lambda: log.appending(_ready_log(at, log).prepare_many(rows)), _at_once(at, log, rows))


def append_several(at: LocalBackend, caller: Caller, drafts: list[DraftDocument]) -> PendingCommit[list[Receipt]]:
    """Appends an atomic batch to several topics; every draft names its topic."""
    staged: list[Staged] = []
    for number, document in enumerate(drafts):
        if document.topic is None:
            raise ConfigError(f"draft {number} names no topic")
        caller.check_append(document.topic)
        staged.append((check_name(document.topic), document.draft()))
    at_once = can_prepare_at_once(at, (draft for _, draft in staged))
    return PendingCommit(lambda: appending_staged(at.core, staged), at_once)


def _for_caller(draft: Draft, caller: Caller) -> Draft:
    if caller.headers:
        draft.headers = {**caller.headers, **(draft.headers or {})}
    return draft


def _at_once(at: LocalBackend, log: TopicLog, drafts: Iterable[Draft]) -> bool:
    return log.name not in REPORTS and can_prepare_at_once(at, drafts)


def _ready_log(at: LocalBackend, log: TopicLog) -> TopicLog:
    """Returns the log; a new topic of reports keeps only the newest reports."""
    if log.name in REPORTS and not log.latest:
        workers.keep_newest(at.journal.topic(log.name))
    return log


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def list_topics(at: LocalBackend) -> list[str]:
    return at.core.topics()


def read_topic(at: LocalBackend, name: str) -> wire.TopicDocument:
    """Describes a topic. A topic without events is empty and not missing: it exists from its first append."""

    def described(view: TopicView) -> wire.TopicDocument:
        moved = cursors.read_cursors(view.snap, view.topic_id)
        return wire.TopicDocument(name, view.count(), view.oldest(), view.latest(), moved, view.record.settings)

    return at.log(name).ask(described, wire.TopicDocument(name, 0, 0, 0, {}, Settings()))


def configure_topic(at: LocalBackend, name: str, fields: SettingsFields) -> Settings:
    log, wanted = at.log(name), checked_settings(given_fields(fields))
    settings = at.core.run(lambda commit: change_settings(commit, log.name, wanted))
    at.core.housekeeper.request(log.name)
    return settings


def drop_topic(at: LocalBackend, name: str, query: wire.DropTopicQuery) -> DropReport:
    report = at.core.drop_topic(name, query.force)
    at.entities.states.clear()
    return report


def compact_topic(at: LocalBackend, name: str, wanted: wire.CompactRequest) -> CompactReport:
    if not wanted.keys and wanted.through is None:
        raise ConfigError('say what may go: "through" or "keys"')
    log = at.log(name)
    report = _compact_keys(log) if wanted.through is None else _compact(log, wanted.through, wanted.force)
    if report.removed > report.remaining // 16:
        at.core.writer.reclaim()
    elif report.removed:  # the file may have much more free space than this has freed
        at.core.housekeeper.request_reclaim()
    return report


def _compact(log: TopicLog, through: int, force: bool) -> CompactReport:
    """Removes events in small commits, which are on disk when this returns."""
    core, name = log.core, log.name
    holds, trims = ((), core.trims) if force else (core.holds, ())
    report, more = core.run(lambda commit: compact_some(commit, name, through, holds, trims))
    if not more:
        return report
    through, removed = min(through, report.latest), report.removed  # events that are appended meanwhile stay
    while more:
        report, more = core.run(lambda commit: compact_some(commit, name, through, holds, trims), relaxed=True)
        removed += report.removed
    core.flush()
    return replace(report, removed=removed)


def _compact_keys(log: TopicLog) -> CompactReport:
    """Keeps the newest event of every key; unsettled messages of a queue stay, whatever their key."""
    core = log.core
    core.writer.check_idle_here()
    removed = compact_by_key(core.writer, log.name, core.housekeeper.holds)
    count, latest = log.ask(lambda view: (view.count(), view.latest()), (0, 0))
    return CompactReport(removed, count, latest)


# ── erasing ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def erase_events(at: LocalBackend, caller: Caller, name: str, wanted: wire.EraseRequest) -> EraseReport:
    """Erases or masks events, and records the caller in each event."""
    at.log(name)
    query = requested_events(wanted)
    if wanted.seqs is None and query.everything:
        raise ConfigError("say which events to erase: by seqs, key, key_prefix, kind, scope, tags or where")
    for field in wanted.fields:
        if not check_text(field, "fields") or not all(field.split(".")):
            raise ConfigError(f"a field to mask is a name, or names with dots (address.street), not {field!r:.80}")
    by = None if wanted.by is None else check_text(wanted.by, "by")
    if caller.owner != "local":
        by = f"{by} ({caller.owner})" if by else caller.owner
    report = erase(at.core, name, query, wanted.seqs, by or this_process(), tuple(wanted.fields))
    at.entities.states.clear()
    return report


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
FILTER_SCAN_LIMIT: Final = 200_000
"""The events that a page checks for a rare condition before it returns with the reached position."""


def read_event(at: LocalBackend, name: str, event: str) -> Event | None:
    """Returns an event by its position or its id."""
    topic = at.topic(name)
    check_name(name)
    numeric = event.isascii() and event.isdigit() and len(event) <= 18
    return topic.get(int(event)) if numeric else topic.find(event)


def read_events(at: LocalBackend, name: str, query: wire.ReadQuery) -> wire.EventPage[Event]:
    return WantedEvents(at.log(name), query).page(PAGE_EVENTS if query.limit is None else query.limit)


class ReadRange(NamedTuple):
    """The positions of a request: after (exclusive), through (inclusive); and the end of the topic."""

    after: int
    through: int
    latest: int


class WantedEvents:
    """The events of a topic that a request wants."""

    def __init__(self, log: TopicLog, query: wire.ReadQuery) -> None:
        self.log = log
        self.query = query
        self.filter = _requested_history(log.core.clock, query)

    def range(self) -> ReadRange:
        """Returns the requested positions in the topic's current state."""
        return self.log.ask(self._range, ReadRange(self.query.after, 0, 0))

    def _range(self, view: TopicView) -> ReadRange:
        latest, after = view.latest(), self.query.after
        through = latest if self.query.through is None else min(self.query.through, latest)
        view.check_not_trimmed(after)
        if (since := self.filter.since_ms) is not None:
            after = max(after, view.position_before(since))
        if (until := self.filter.until_ms) is not None:
            through = min(through, view.position_before(until))
        return ReadRange(after, through, latest)

    def rows(self, start: int, end: int, read: Callable[[Iterator[Event]], T]) -> T | None:
        """Returns the rows that `read` makes of the events between two positions; the caller still has to check a
        condition.

        Returns None for a missing topic; raises PositionTrimmed when it was dropped since `start` was reached.
        """
        query = self._rows_between(start, end)
        found = self.log.ask(lambda view: read(read_view(view, query, self.log.core.index.open)), None)
        if found is None and start:
            raise dropped(self.log.name, start)
        return found

    def page(self, limit: int) -> wire.EventPage[Event]:
        """Returns a page of events, bounded in number and bytes, from one snapshot."""

        def read(view: TopicView) -> wire.EventPage[Event]:
            after, through, latest = self._range(view)
            rows = self._rows_between(after, through)
            if not limit or through <= after:
                return wire.EventPage([], None, latest)
            return wire.EventPage(*self._bounded(read_view(view, rows, self.log.core.index.open), limit), latest)

        return self.log.ask(read, wire.EventPage([], None, 0))

    def _rows_between(self, after: int, through: int) -> EventQuery:
        """Returns the query for rows between two positions, of which the condition is asked afterwards."""
        return replace(self.filter, where=None, after=after, through=through, since=None, until=None)

    def _bounded(self, rows: Iterator[Event], limit: int) -> tuple[list[Event], int | None]:
        """Returns as many events as fit, and the position after which more follow."""
        events: list[Event] = []
        size = scanned = 0
        last: Event | None = None
        where = self.filter.condition
        for event in rows:
            if last is not None and (
                len(events) >= limit or size >= PAGE_BYTES or scanned >= limit + FILTER_SCAN_LIMIT
            ):
                return events, last.seq - 1 if self.query.reverse else last.seq
            last = event
            scanned += 1  # noqa: SIM113 - asked before it is counted
            if where is None or where.matches(event):
                events.append(event)
                size += len(event.raw)
        return events, None


def dropped(topic: str, after: int) -> PositionTrimmed:
    return PositionTrimmed(f"topic {topic!r} was dropped while it was read", oldest=after + 1)


def find_position(at: LocalBackend, name: str, query: wire.PositionQuery) -> int:
    if not query.time:
        raise ConfigError("time is missing: /position?time=2024-05-01T12:00:00Z")
    return _position_at(at, at.log(name), query.time)


def _position_at(at: LocalBackend, log: TopicLog, time: str) -> int:
    """Returns the last position that was recorded before a time, which is ISO text or a duration before now."""
    ms = to_ms(parse_moment(time, from_ms(at.clock.now_ms())), "time")
    return log.ask(lambda view: view.position_before(ms), 0)


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def list_cursors(at: LocalBackend, name: str) -> wire.CursorList:
    def listed(view: TopicView) -> wire.CursorList:
        found = cursors.read_consumers(view)
        return wire.CursorList([_document(one) for one in found], view.latest())

    return at.log(name).ask(listed, wire.CursorList([], 0))


def read_cursor(at: LocalBackend, name: str, consumer: str) -> wire.CursorDocument:
    check_consumer(consumer)

    def found(view: TopicView) -> wire.CursorDocument:
        one = cursors.read_consumer(view, consumer)
        return wire.CursorDocument(consumer, None, view.lag(0)) if one is None else _document(one)

    return at.log(name).ask(found, wire.CursorDocument(consumer, None, 0))


def _document(one: cursors.TopicConsumer) -> wire.CursorDocument:
    return wire.CursorDocument(one.name, one.position, one.lag, one.moved_at)


def read_left(at: LocalBackend, name: str, query: wire.LeftQuery) -> int:
    return at.log(name).ask(lambda view: view.lag(query.after), 0)


def move_cursor(at: LocalBackend, name: str, consumer: str, change: wire.CursorChange) -> wire.CursorDocument:
    if sum(value is not None for value in (change.position, change.time, change.to)) != 1:
        raise ConfigError('say where to: one of "position", "time", "to"')
    log, seek = at.log(name), change.seek
    check_consumer(consumer)
    position = 0 if change.to == "start" else change.position
    if change.time is not None:
        position = _position_at(at, log, change.time)

    def apply(commit: Commit) -> wire.CursorDocument:
        latest = commit.latest(log.name)
        to = latest if position is None else position
        return _document(cursors.move_cursor(commit, log.name, consumer, to, seek))

    return at.core.run(apply)


def forget_cursor(at: LocalBackend, name: str, consumer: str) -> bool:
    log = at.log(name)
    check_consumer(consumer)
    return at.core.run(lambda commit: cursors.drop_cursor(commit, log.name, consumer))

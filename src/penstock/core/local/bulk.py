"""The operations for programs that read very many events, such as Spark's tasks: stored blocks, sizes and cuts of
ranges, positions of wanted events, correlation ids, and states of many entities.

Spark's planners on this machine and servers run the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TypeVar

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.entity import states
from penstock.core.entity.projection import Declared
from penstock.core.events import Event, parse_id
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    TEXTS,
    Block,
    Columns,
    build_wire,
    encode_block,
    pack_seqs,
    plain_size,
    positions_in,
    set_runs_of,
    whole_value,
)
from penstock.core.journal.bulk import drop_job
from penstock.core.journal.catalog import open_block, topic_names
from penstock.core.journal.index.index import EntityIndex, prefixed_in_runs
from penstock.core.journal.index.runs import load_directory
from penstock.core.journal.reading import Bounds, TopicView
from penstock.core.journal.sealed.files import list_segments, sealed_start
from penstock.core.journal.sealed.segments import LakeSummary, SealedFiles, lake_summaries, load_segments
from penstock.core.local.backend import LocalBackend
from penstock.core.model.query import EventQuery
from penstock.core.names import check_name
from penstock.core.protocol import bulk as wire
from penstock.core.protocol.bulk import SpansDocument, TopicEnds, Wanted, message_of
from penstock.core.protocol.operation import PAGE_BYTES, Caller
from penstock.errors import ConfigError, UnknownTopic
from penstock.limits import MAX_KEY_BYTES

T = TypeVar("T")


@contextmanager
def _topic(at: LocalBackend, name: str) -> Iterator[TopicView]:
    """Opens a topic in its own snapshot; raises UnknownTopic when it was never written to."""
    with at.core.engine.read() as snap:
        view = TopicView.open(snap, check_name(name), at.clock.now_ms())
        if view is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        yield view


# ── stored blocks, as they are ───────────────────────────────────────────────────────────────────────────────────────
class StoredBlock(msgspec.Struct, gc=False):
    """A block's bytes, and the positions of its first and last event."""

    first: int
    last: int
    value: bytes


def stored_blocks(view: TopicView, after: int, through: int) -> Iterator[StoredBlock]:
    """Yields the blocks with events in after < position ≤ through, ascending; sealed blocks are made of row groups."""
    for part in view.stretches(after, through):
        if part.in_files:
            for block in view.blocks(part.after, part.through):
                yield StoredBlock(block.first, block.last, encode_block(block.wire))
        else:
            yield from view.hot_blocks(part.after, part.through, _stored)


def _stored(snap: Snapshot, key: bytes, value: bytes, topic: str) -> StoredBlock:
    value = whole_value(snap, value, topic)
    return StoredBlock(*positions_in(value, topic), value)


def list_lakes(at: LocalBackend, query: wire.TopicsQuery) -> list[LakeSummary]:
    with at.core.engine.read() as snap:
        names = [check_name(name) for name in query.topic] or list(topic_names(snap))
        return [one for name in names for one in lake_summaries(snap, name)]


def list_sealed(at: LocalBackend, name: str, query: wire.SealedQuery) -> list[SealedFiles]:
    with _topic(at, name) as view:
        low, high = max(query.after, view.trimmed()), query.through
        return list(list_segments(view.snap, view.topic_id, view.name, low, high, columns=query.columns))


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_ends(at: LocalBackend, query: wire.TopicsQuery) -> wire.EndsDocument:
    with at.core.engine.read() as snap:
        now, names = at.clock.now_ms(), map(check_name, query.topic or list(topic_names(snap)))
        views = (TopicView.open(snap, name, now) for name in names)
        return wire.EndsDocument(at.core.id, {view.name: _ends_of(view) for view in views if view is not None})


def _ends_of(view: TopicView) -> TopicEnds:
    trimmed, state = view.trimmed(), view.state()
    return TopicEnds(trimmed, view.latest(), state.began, max(trimmed, state.began, state.compacted))


_UNPACKED = 3
"""The approximate number of bytes for one byte of a Parquet file."""


def read_sizes(at: LocalBackend, ranges: Sequence[wire.RangeRequest]) -> list[int]:
    if len(ranges) > wire.MOST_RANGES:
        raise ConfigError(f"{len(ranges):,} ranges are too many at once; at most {wire.MOST_RANGES:,}")
    with at.core.engine.read() as snap:
        return [_range_size(snap, check_name(one.topic), one.after, one.through) for one in ranges]


def _range_size(snap: Snapshot, topic: str, after: int, through: int) -> int:
    """Returns about how many bytes a range has, from the size of the hot block in its middle."""
    view = TopicView.open(snap, topic)
    if view is None or after >= (through := min(through, view.latest())):
        return 0
    size, filed = 0, min(view.state().in_files, through)
    hot = through - max(after, filed)
    for part in view.stretches(after, filed):
        hot += 0 if part.in_files else part.through - part.after
    for segment in load_segments(view.snap, view.topic_id, after, filed):
        share = min(segment.last, filed) - max(segment.first - 1, after)
        size += _UNPACKED * segment.size * share // (segment.last - segment.first + 1)
    low, _ = keys.block_range(view.topic_id)
    middle = (max(after, filed) + through + 1) // 2
    for key, value in view.snap.scan(low, keys.block_key(view.topic_id, middle + 1), reverse=True):
        count = open_block(view.snap, key, value, view.name).count
        return size + hot * plain_size(value) // count
    return size


def read_cuts(at: LocalBackend, name: str, query: wire.CutsQuery) -> list[int]:
    if query.after >= query.through:
        return []
    with _topic(at, name) as view:
        through = min(query.through, view.latest())
        return _range_cuts(view, query.after, through, query.pieces, exactly=query.exactly)


def _range_cuts(view: TopicView, after: int, through: int, pieces: int, *, exactly: bool) -> list[int]:
    """Returns the bounds of about equal pieces of a range, including `after` and `through`, cut between blocks.

    When no block ends near a cut, there are fewer pieces, unless `exactly` is set.
    """
    span = through - after
    pieces = min(pieces, span)
    bounds = [after]
    for piece in range(1, pieces):
        at = after + span * piece // pieces
        first = _start_near(view, at + 1)
        if first is not None and bounds[-1] < first - 1 <= at:
            at = first - 1
        elif not exactly:
            continue
        if at > bounds[-1]:
            bounds.append(at)
    return [*bounds, through]


def _start_near(view: TopicView, seq: int) -> int | None:
    """Returns the beginning of the block that holds a position; the row group, when it is sealed."""
    if seq <= view.state().in_files and (start := sealed_start(view.snap, view.topic_id, view.name, seq)):
        return start
    block = view.block_holding(seq)
    return None if block is None else block.first


# ── wanted events ────────────────────────────────────────────────────────────────────────────────────────────────────
FOUND_BYTES = 512 << 10
"""The most bytes of events that were found during the planning and go with the plan, so that they are not read
again.
"""
FOUND_EVENTS = 4_096
LOOKED_UP = 65_536
"""The most events that are looked up; for more events, all blocks that may hold them are read."""
MOST_TERMS = 1_000
"""The most keys, ids, correlations or positions that are looked up."""
_NEAR = 8_192
"""The positions between two events that are read together, because a block is read as a whole."""


def read_spans(at: LocalBackend, name: str, asked: wire.SpansRequest) -> SpansDocument:
    """Returns the spans in after < position ≤ through that may have wanted events: some found events, and bounds of all
    others.

    The index may find more events than wanted, because only one field is looked up.
    """
    wanted = asked.wanted
    with _topic(at, name) as view:
        kinds = None if wanted.kinds is None else frozenset(wanted.kinds)
        scope = wanted.scopes[0] if wanted.scopes is not None and len(wanted.scopes) == 1 else None
        low, high = max(asked.after, view.trimmed()), min(asked.through, view.latest())
        query = EventQuery(kinds=kinds, scope=scope)
        spans = _merge_near(view.spans(low, high, query, occurred=wanted.occurred)) if low < high else []
        found, known = _looked_up(at.core.index, view, low, high, wanted) if spans else (None, low)
        events = [] if found is None else list(islice(found, LOOKED_UP + 1))
        if found is None or len(events) > LOOKED_UP:
            return SpansDocument(spans)
        rest = intersect(spans, [(known, high)]) if known < high else []
        by_seq = {event.seq: event for event in events}
        seqs = sorted(by_seq)
        if len(seqs) <= FOUND_EVENTS and sum(len(event.raw) for event in by_seq.values()) <= FOUND_BYTES:
            return SpansDocument(rest, message_of([_block_of([by_seq[seq] for seq in seqs])] if seqs else []))
        return SpansDocument(_merge_near([*intersect(spans, _near_together(seqs)), *rest]))


def _looked_up(
    entities: EntityIndex, view: TopicView, after: int, through: int, wanted: Wanted
) -> tuple[Iterable[Event] | None, int]:
    """Returns all events, through a position, that match one wanted field; None when no field is looked up."""
    if seqs := _terms(wanted.seqs):
        return _events_at(view, [seq for seq in seqs if after < seq <= through]), through
    if ids := _terms(wanted.ids):
        numbers = [number for id in ids if (number := parse_id(id)) is not None]
        events = [event for number in numbers if (event := view.find(number)) is not None]
        return [event for event in events if after < event.seq <= through], through
    if terms := _terms(wanted.keys):
        index = entities.open(view)
        known = min(through, index.known)
        return (event for key in terms for some in index.events(key, after, known) for event in some), known
    if terms := _terms(wanted.tags):
        index = entities.open(view)
        known = min(through, index.known)
        pieces = index.tagged(EventQuery(tags=terms), after, known)
        return (Event(block, row) for block, rows in pieces for row in rows), known
    if terms := _terms(wanted.correlations):
        index = entities.open(view)
        known = min(through, index.known)
        found = chain.from_iterable(map(index.correlated, terms))
        return (event for event in found if after < event.seq <= known), known
    if wanted.key_prefix:
        directory = load_directory(view.snap, view.topic_id, view.name)
        query = EventQuery(key_prefix=wanted.key_prefix, through=through)
        known = max(after, min(through, directory.through))
        return prefixed_in_runs(view, directory, query, after, LOOKED_UP), known
    return None, after


def _terms(terms: tuple[T, ...] | None) -> tuple[T, ...]:
    """Returns the terms that are worth a look-up."""
    return () if terms is None or len(terms) > MOST_TERMS else terms


def _block_of(events: Sequence[Event]) -> bytes:
    """Returns a block of events in order of their positions, with their positions, times and ids."""
    rows = [(event._rows, event._row) for event in events]
    columns = Columns([event.kind for event in events], [bytes(some.raw_payload(row)) for some, row in rows])
    columns.binary = [event.binary for event in events]
    columns.headers = [event.headers for event in events]
    columns.occurred = [some.occurred_ms(row) for some, row in rows]
    for name in TEXTS:
        setattr(columns, name, [getattr(some, name)(row) for some, row in rows])
    wire = build_wire(columns, events[0].seq, 0, 0)
    set_runs_of(wire, [some.id_number(row) for some, row in rows], [some.recorded_ms(row) for some, row in rows])
    wire.seqs = pack_seqs([event.seq for event in events])
    return encode_block(wire)


def _events_at(view: TopicView, seqs: Iterable[int]) -> Iterator[Event]:
    """Yields the events at ascending positions."""
    block: Block | None = None
    for seq in seqs:
        if block is None or seq > block.last:
            block = view.block_holding(seq)
        row = None if block is None else block.row_of(seq)
        if block is not None and row is not None:
            yield Event(block, row)


def _near_together(positions: Iterable[int]) -> list[Bounds]:
    """Bounds around ascending positions."""
    return _merge_near(((seq - 1, seq) for seq in positions), _NEAR)


def _merge_near(spans: Iterable[Bounds], near: int = 0) -> list[Bounds]:
    """Returns ascending bounds, with touching or near bounds joined."""
    found: list[Bounds] = []
    for low, high in spans:
        if found and low - found[-1][1] <= near:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def intersect(some: Sequence[Bounds], others: Sequence[Bounds]) -> list[Bounds]:
    """Returns the intersection of two lists of bounds, each in order and without overlaps."""
    found: list[Bounds] = []
    at = other = 0
    while at < len(some) and other < len(others):
        low, high = max(some[at][0], others[other][0]), min(some[at][1], others[other][1])
        if low < high:
            found.append((low, high))
        if some[at][1] < others[other][1]:
            at += 1
        else:
            other += 1
    return found


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def find_correlations(at: LocalBackend, ids: Sequence[str]) -> dict[str, str | None]:
    """Returns the correlation id by event id, None where an event has none; unknown ids are left out.

    Ids increase with positions, so events in the order of their ids are in few blocks, and each block is opened once.
    """
    if len(ids) > wire.MOST_IDS:
        raise ConfigError(f"{len(ids):,} ids are too many at once; at most {wire.MOST_IDS:,}")
    wanted = sorted((number, id) for id in ids if (number := parse_id(id)) is not None)
    found: dict[str, str | None] = {}
    at_hand: dict[str, Block] = {}
    with at.core.engine.read() as snap:
        views = [view for name in list(topic_names(snap)) if (view := TopicView.open(snap, name)) is not None]
        for number, id in wanted:
            block, row = _locate(views, at_hand, number)
            if block is not None and row is not None:
                found[id] = block.correlation(row)
    return found


def _locate(views: list[TopicView], at_hand: dict[str, Block], number: int) -> tuple[Block | None, int | None]:
    """Returns the block and row of an id; blocks of earlier look-ups are checked first."""
    for block in at_hand.values():
        row = block.row_of_id(number)
        if row is not None:
            return block, row
    for view in views:
        event = view.find(number)
        if event is not None:
            rows = event._rows
            assert isinstance(rows, Block)  # views read blocks
            at_hand[view.name] = rows
            return rows, event._row
    return None, None


# ── staged blocks ────────────────────────────────────────────────────────────────────────────────────────────────────
def drop_staged(at: LocalBackend, caller: Caller, query: wire.DropQuery) -> int:
    if not query.job:
        raise ConfigError("say what to drop: /staging?job=…")
    return at.core.run(lambda commit: drop_job(commit, query.job, caller.owner))


# ── what projected streams remember between batches, and states that were folded anew elsewhere ───────────────────────
# A repeated request changes nothing: a state has its position, and an older state never replaces a newer state.
def find_states(at: LocalBackend, topic: str, asked: wire.StatesRequest) -> wire.StatesDocument:
    wanted = states.StreamedStates(check_name(topic), asked.name, asked.version, asked.query)
    found: list[states.StreamedState] = []
    size = done = 0
    with at.core.engine.read() as snap:
        topic_id = states.states_topic(snap, wanted.topic)
        filed = states.filed_states(snap, topic_id, wanted)
        for key in asked.keys:
            done += 1
            one = states.load_streamed(snap, topic_id, wanted, key)
            if one is None:
                continue
            found.append(one)
            size += len(one.state)
            if size >= PAGE_BYTES:
                break
    return wire.StatesDocument(at.core.id, done, found, filed)


def save_states(at: LocalBackend, topic: str, asked: wire.SaveStatesRequest) -> int:
    _check_journal(asked.journal, at.core.id)
    wanted = states.StreamedStates(check_name(topic), asked.name, asked.version, asked.query)
    for one in asked.states:
        _check_state(one)
    at.core.run(lambda commit: states.save_streamed(commit, wanted, asked.states, whole=asked.whole))
    return len(asked.states)


def fold_topic(at: LocalBackend, topic: str) -> wire.FoldedTopic:
    with at.core.engine.read() as snap:
        of = states.rebuilt(snap, check_name(topic))
    return wire.FoldedTopic(at.core.id, of.through, of.events, of.compacted)


def replace_states(at: LocalBackend, topic: str, asked: wire.RebuiltStatesRequest) -> int:
    _check_journal(asked.journal, at.core.id)
    if len(asked.name.encode()) > states.MAX_FILED_BYTES:
        raise ConfigError(f"the name of projection {asked.name!r} is longer than {states.MAX_FILED_BYTES} bytes")
    saved = []
    for one in asked.states:
        if one.key:
            _check_state(one)
        found = one.fingerprint, one.generation, one.first, asked.compacted, one.state
        saved.append((one.key, states.Saved(*found, states.FOLD)))
    declared = Declared(asked.name, asked.version, [])
    at.core.run(partial(states.replace_states, check_name(topic), declared, saved, begin=asked.begin))
    at.entities.states.clear()
    return len(saved)


def _check_journal(asked: str, id: str) -> None:
    if asked != id:
        raise ConfigError("another journal is served here than where these states were loaded: no state was saved")


def _check_state(one: states.StreamedState) -> None:
    if not one.key or len(one.key.encode()) > MAX_KEY_BYTES:
        raise ConfigError(f"a key is text of 1 to {MAX_KEY_BYTES:,} bytes, not {one.key[:40]!r}")
    if not 1 <= one.first <= one.generation:
        raise ConfigError(f"the state of {one.key[:40]!r} begins at {one.first} and ends at {one.generation}")

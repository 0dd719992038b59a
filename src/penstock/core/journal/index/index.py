"""Looking up the events of an entity, the effects of an event, and the events of a correlation.

`EntityIndex` belongs to an open journal: it keeps the memtables and the runs' filters, and tells a commit how far an
entity has come. A `Lookup` finds events in one snapshot. Nothing is built here: `indexer` builds the runs.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.core.engine.contract import Engine, Snapshot
from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, text_values
from penstock.core.journal.catalog import Head, TopicRecord, last_block, open_block
from penstock.core.journal.index import memtable
from penstock.core.journal.index.memtable import Memtable, Newest, Piece, block_size
from penstock.core.journal.index.runs import (
    CAUSES,
    CORRELATIONS,
    ENTITIES,
    FILTER,
    TAGS,
    BloomFilter,
    Directory,
    Run,
    load_directory,
    prefix,
    read_chunk,
    run_key,
    span_of,
    text_begin,
)
from penstock.core.journal.reading import TopicView, wanted_rows
from penstock.core.journal.sealed.files import blocks_with
from penstock.core.journal.sealed.segments import Segment
from penstock.core.journal.summaries import TermHashes, stored_hashes
from penstock.core.model.query import EventQuery
from penstock.limits import INDEX_FAN_IN, INDEX_MEMORY_BYTES, MERGED_BYTES

if TYPE_CHECKING:
    from penstock.core.journal.commit import Commit


_FILTERS = 64
"""Run filters kept in memory."""
_KNOWN_ENTITIES = 100_000
"""The most entities of a topic whose newest position the writer remembers."""


class EntityIndex:
    """The index of a journal's topics, with what is kept of it in memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.memtables: dict[str, Memtable] = {}
        self._lock = threading.Lock()
        self._filters: OrderedDict[tuple[int, int], BloomFilter] = OrderedDict()
        self.crowded: Callable[[str], None] = lambda topic: None
        """Told of a topic in which a look-up had to ask many runs."""
        self.lookups = 0
        """The number of look-ups there were, more or less: background work makes way for them."""

    def open(self, view: TopicView) -> Lookup:
        """A look-up in one view of a topic."""
        self.lookups += 1
        return Lookup(self, view, keys.MAX_SEQ, keep=True)

    def open_within(self, view: TopicView, needed: int = keys.MAX_SEQ) -> Lookup:
        """Does the same in a transaction, whose own events must not be remembered; complete through `needed`
        at least."""
        tail = self.memtables.get(view.name)
        if tail is None or (needed < keys.MAX_SEQ and tail.covered < needed):
            with self._engine.read() as snap:
                committed = TopicView.open(snap, view.name)
                if committed is not None:
                    self.open(committed)
        return Lookup(self, view, needed, keep=False)

    def forget(self, name: str) -> None:
        self.memtables.pop(name, None)

    # ── what a commit asks ───────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, commit: Commit, head: Head, key: str) -> int:
        """The position of an entity's newest event, this commit's own included."""
        additions = commit.additions.get(head.name)
        position = additions.newest_of(key) if additions else 0
        if position:
            return position
        known = head.newest
        if known is None or len(known) > _KNOWN_ENTITIES:
            known, head.since = {}, head.latest
            head.newest = known
        if key not in known:
            found = self._newest_within(commit, head, key, head.since)
            known[key] = found._rows.seq(found._row) if found else 0  # a call less than `found.seq`
        return known[key]

    def _newest_within(self, commit: Commit, head: Head, key: str, through: int) -> Event | None:
        view = TopicView(commit.tx, head.name, TopicRecord(head.topic_id, head.settings))
        return self.open_within(view, through).newest(key, through)

    # ── what look-ups share ──────────────────────────────────────────────────────────────────────────────────────────
    def adopt(self, name: str, known: Memtable | None, tail: Memtable) -> None:
        """Keeps a tail for the next look-up, unless another thread was faster, or has one of a newer snapshot."""
        with self._lock:
            if self.memtables.get(name) is known and (
                known is None or (known.epoch, known.base) <= (tail.epoch, tail.base)
            ):
                self.memtables[name] = tail

    def cut(self, name: str, topic_id: int, through: int) -> None:
        """Forgets, in memory, what runs cover, or was removed, through a position of the topic with this number."""
        memtable = self.memtables.get(name)
        if memtable is not None and memtable.epoch[0] == topic_id and through > memtable.base:
            memtable.without(through, partial(self.adopt, name, memtable))

    def may_hold(self, snap: Snapshot, topic: int, run: Run, key: str) -> bool:
        """Returns True if a run may hold an entity."""
        if not run.entities:
            return True
        known = self._filters.get((topic, run.id))
        if known is None:
            value = snap.get(run_key(topic, run.id, FILTER))
            if not value:
                return True
            known = BloomFilter(value)
            with self._lock:
                self._filters[topic, run.id] = known
                while len(self._filters) > _FILTERS:
                    self._filters.popitem(last=False)
        return zlib.crc32(key.encode()) in known


# ── One look-up: an entity's events, its newest one, what an event caused, what belongs together ──
# A look-up asks the runs (see `runs.Directory`), oldest first, then the memtable: the events that no run covers yet.
# So it costs what the entity has, plus a few look-ups, however many events the topic has.


class Lookup:
    """A look-up in a topic: everything it finds is as of its view's snapshot, whatever is in memory by now."""

    __slots__ = ("_behind", "_extra", "_index", "_limit", "_tail", "_trimmed", "_view", "directory")

    def __init__(self, index: EntityIndex, view: TopicView, needed: int, *, keep: bool) -> None:
        """Brings what is in memory up to the snapshot, or at least through the position `needed`."""
        self._index = index
        self._view = view
        self._behind = False
        self._extra: Memtable | None = None
        self.directory = directory = load_directory(view.snap, view.topic_id, view.name)
        state = view.state()
        self._trimmed = max(state.trimmed, view.hidden)
        base = max(directory.through, state.trimmed)
        tail = index.memtables.get(view.name)
        if tail is not None and tail.epoch == (view.topic_id, directory.epoch) and tail.base <= base:
            self._tail, self._limit = tail, tail.state[0]
            if self._limit >= max(directory.through, state.sealed):
                if self._limit < needed:
                    self._catch_up(tail, max(state.trimmed, state.compacted, state.referred), keep)
                    if keep and directory.through > tail.base:  # as another process has built a run
                        index.cut(view.name, view.topic_id, directory.through)
                return
        self._begin(Memtable((view.topic_id, directory.epoch), base), tail, needed, keep)

    @property
    def known(self) -> int:
        """Through which position terms are looked up; after it, where nothing indexes the topic, blocks are read."""
        return self._limit if self._behind else keys.MAX_SEQ

    def _begin(self, tail: Memtable, before: Memtable | None, needed: int, keep: bool) -> None:
        """Reads everything the runs do not cover into a memtable."""
        view, base = self._view, tail.base
        self._tail, self._limit = tail, base
        if base >= needed:
            return
        hashed = list(stored_hashes(view.snap, view.topic_id, view.name, base))
        if _waiting_bytes(view, base, hashed) > INDEX_MEMORY_BYTES:
            self._behind = True
            return
        for hashes in hashed:
            _read_into(tail, view, hashes.first - 1)
            tail.add_hashes(hashes)
        _read_into(tail, view, keys.MAX_SEQ)
        tail.covered = max(tail.covered, view.state().referred)  # no term of a bulk segment is ever in memory
        self._limit = tail.covered
        if keep:
            # The next look-up knows the newest block again, and does not read it for nothing.
            rows = view.snap.scan(*keys.block_range(view.topic_id), reverse=True)
            newest = next(((key, len(value), value[-4:]) for key, value in rows), None)
            tail.state = (tail.covered, newest, monotonic())
            self._index.adopt(view.name, before, tail)

    def _catch_up(self, tail: Memtable, reshaped: int, keep: bool) -> None:
        """Reads what the memtable does not have yet; after `reshaped`, blocks follow each other without a hole."""
        view, (limit, known, changed) = self._view, tail.state
        if keep and changed >= view.snap.begun and (latest := view.latest()) <= limit:
            self._limit = latest  # what it got since this snapshot was begun is none of the snapshot's
            return
        self._limit = limit
        large = known is not None and known[1] >= MERGED_BYTES and limit >= reshaped
        if large and view.snap.get(keys.block_key(view.topic_id, limit + 1)) is None:
            return  # a large block is never merged with what follows: it need not be read to see that it is the newest
        newer: list[tuple[Block, int]] = []
        newest: Newest | None = None
        for key, value in view.snap.scan(*keys.block_range(view.topic_id), reverse=True):
            seen = (key, len(value), value[-4:])
            newest = newest or seen
            if seen == known:
                break
            block = open_block(view.snap, key, value, view.name)
            if block.last <= limit:
                break
            newer.append((block, block_size(block)))
            if block.first <= limit:
                break
        newer.reverse()
        if keep and (newest == known or tail.extend(limit, newer, newest)):
            if newer:
                self._limit = newer[-1][0].last
            if tail.size > 2 * INDEX_MEMORY_BYTES:  # no indexer builds runs here: do not keep the whole topic in memory
                self._index.forget(view.name)
        elif newer:
            # A transaction's own events concern no other caller; and what another thread has put into the memtable
            # meanwhile may be newer than this snapshot.
            self._extra = Memtable(tail.epoch, limit)
            for block, size in newer:
                self._extra.add(block, size)

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def events(self, key: str, after: int, through: int, *, reverse: bool = False) -> Iterator[list[Event]]:
        """The events of an entity in after < position ≤ through, some at a time, in order."""
        for block, rows in self.pieces(key, after, through, reverse=reverse):
            yield [Event(block, row) for row in rows]

    def newest(self, key: str, through: int = keys.MAX_SEQ) -> Event | None:
        """The newest event of an entity at or before a position."""
        for block, rows in self.pieces(key, 0, through, reverse=True):
            return Event(block, rows[0])
        return None

    def pieces(self, key: str, after: int, through: int, *, reverse: bool = False) -> Iterator[Piece]:
        """The same as rows of blocks, never none of one, for those who read whole columns."""
        after = max(after, self._trimmed)
        referred = max(after, self._view.state().referred)
        if reverse and referred < through:  # the newest event is found without a look at what is older
            yield from self._indexed(key, referred, through, reverse)
            through = referred
        for one in self._view.bulk_segments(after, through, reverse=reverse):
            if not (self._behind or one.may_hold(key)):
                continue  # the index has nothing in such a segment, so that it may be asked across
            low, high = max(after, one.first - 1), min(through, one.last)
            if reverse:
                yield from self._indexed(key, high, through, reverse)
                through = low
            else:
                yield from self._indexed(key, after, low, reverse)
                after = high
            yield from self._in_segment(one, key, low, high, reverse)
        yield from self._indexed(key, after, through, reverse)

    def _in_segment(self, segment: Segment, key: str, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        """Those in a segment that a bulk write made: it has filters of its own."""
        if not segment.may_hold(key):
            return
        for block in blocks_with(segment, self._view.name, key, reverse=reverse):
            rows = wanted_rows(EventQuery(key=key), block, range(block.row_after(after), block.row_after(through)))
            if rows:
                yield block, rows[::-1] if reverse else rows

    def _indexed(self, key: str, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        """Those in positions that no bulk segment holds."""
        if after >= through:
            return iter(())
        recent = self._recent(key, max(after, self.directory.through), through, reverse)
        if not self.directory.runs:
            return recent
        covered = self._run_pieces(ENTITIES, key, after, through, reverse=reverse)
        return chain(recent, covered) if reverse else chain(covered, recent)

    def _recent(self, key: str, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        """Those that no run covers."""
        if self._behind:
            return self._in_blocks(EventQuery(key=key), after, through, reverse)
        known = self._tail.pieces(self._view, memtable.KEYS, key, after, min(through, self._limit), reverse=reverse)
        if self._extra is None:
            return known
        low = max(after, self._limit)
        newer = self._extra.pieces(self._view, memtable.KEYS, key, low, through, reverse=reverse)
        return chain(newer, known) if reverse else chain(known, newer)

    def _in_blocks(self, wanted: EventQuery, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        for block in (self._view.blocks_back if reverse else self._view.blocks)(after, through):
            rows = wanted_rows(wanted, block, range(block.row_after(after), block.row_after(through)))
            if rows:
                yield block, rows[::-1] if reverse else rows

    def _run_pieces(
        self, section: bytes, term: str, after: int, through: int, *, reverse: bool = False
    ) -> Iterator[Piece]:
        """The rows of a term in the runs; those of causes and correlations say where its events are.

        Each run answers for its own positions, and no other run for these.
        """
        runs = self.directory.runs
        low, high = after, min(through, self.directory.through)
        asked = 0
        for run in reversed(runs) if reverse else runs:
            after, through = max(low, run.first - 1), min(high, run.last)
            if after >= through:
                continue
            low, high = (low, after) if reverse else (through, high)
            if section.decode() not in run.sections:
                continue
            if section == ENTITIES and not self._index.may_hold(self._view.snap, self._view.topic_id, run, term):
                continue
            asked += 1
            if asked == INDEX_FAN_IN:
                self._index.crowded(self._view.name)
            chunks = (
                self._chunks_back(run, section, term, through) if reverse else self._chunks(run, section, term, after)
            )
            for block, start, stop in chunks:
                seqs = block.seqs
                while start < stop and seqs[start] <= after:
                    start += 1
                while start < stop and seqs[stop - 1] > through:
                    stop -= 1
                if start < stop:
                    yield block, range(stop - 1, start - 1, -1) if reverse else range(start, stop)

    def _chunks(self, run: Run, section: bytes, term: str, after: int) -> Iterator[tuple[Block, int, int]]:
        """The chunks of a run that hold a term after a position, with the rows that are the term's.

        A term lies inside one chunk, or begins one and fills it and those that follow.
        """
        view = self._view
        low = run_key(view.topic_id, run.id, section)
        begin = bound = low + prefix(term)
        if after >= run.first:
            for stored, _ in view.snap.scan(begin, begin + (after + 2).to_bytes(8), reverse=True):
                begin = stored
                break
        found = False
        for _, value in view.snap.scan(begin, bound + b"\xff" * 9):
            found = True
            block = read_chunk(value, view.name)
            start, stop = span_of(block, term)
            yield block, start, stop
        if found:
            return
        for _, value in view.snap.scan(low, bound, reverse=True):
            block = read_chunk(value, view.name)
            start, stop = span_of(block, term)
            if start < stop:
                yield block, start, stop
            return

    def _chunks_back(self, run: Run, section: bytes, term: str, through: int) -> Iterator[tuple[Block, int, int]]:
        """Does the same from the newest back, at or before a position."""
        view = self._view
        low = run_key(view.topic_id, run.id, section)
        for _, value in view.snap.scan(
            low, low + prefix(term) + min(through + 1, keys.MAX_SEQ).to_bytes(8), reverse=True
        ):
            block = read_chunk(value, view.name)
            start, stop = span_of(block, term)
            if start < stop:
                yield block, start, stop
            if start > 0 or stop == 0:
                return

    def entities(self) -> Iterator[str]:
        """Every entity of the topic, each once."""
        seen: set[str] = set()
        view = self._view
        for run in self.directory.runs:
            if "e" not in run.sections:
                continue
            low = run_key(view.topic_id, run.id, ENTITIES)
            for _, value in view.snap.scan(low, keys.prefix_end(low)):
                block = read_chunk(value, view.name)
                for key, seq in zip(text_values(block.wire.key, block.count), block.seqs, strict=True):
                    if key is not None and key not in seen and seq > self._trimmed:
                        seen.add(key)
                        yield key
        for segment in view.bulk_segments(self._trimmed, keys.MAX_SEQ):
            for block in view.blocks(max(self._trimmed, segment.first - 1), segment.last) if segment.keys else ():
                fresh = {key for key in text_values(block.wire.key, block.count) if key is not None} - seen
                seen |= fresh
                yield from sorted(fresh)
        for tail, after, through in self._memtables(self._trimmed):
            for key in tail.entities(view, after, through):
                if key not in seen:
                    seen.add(key)
                    yield key

    # ── causes and correlations ──────────────────────────────────────────────────────────────────────────────────────
    def caused_by(self, id: str, since: int = 0) -> Iterator[Event]:
        """The events of this topic that an event caused, in order; `since`: those whose ids are not below a number."""
        return self._events_of_id(CAUSES, memtable.CAUSES, id, since)

    def correlated(self, id: str, since: int = 0) -> Iterator[Event]:
        """The events of this topic with a correlation id, in order; `since`: those whose ids are not below a number."""
        return self._events_of_id(CORRELATIONS, memtable.CORRELATIONS, id, since)

    def _events_of_id(self, section: bytes, column: int, id: str, since: int) -> Iterator[Event]:
        after = max(self._trimmed, self._view.position_before_id(since) if since else 0)
        runs = self._run_pieces(section, id, after, keys.MAX_SEQ)
        positions = (block.seqs[row] for block, rows in runs for row in rows)
        for block, rows in self._tail.rows_at(self._view, positions):
            yield from [Event(block, row) for row in rows]
        for tail, low, through in self._memtables(after):
            for block, rows in tail.pieces(self._view, column, id, low, through):
                yield from [Event(block, row) for row in rows]

    # ── tags ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def tagged(self, wanted: EventQuery, after: int, through: int, *, reverse: bool = False) -> Iterator[Piece]:
        """Returns the rows of the events that have all wanted tags, in order; never none of a block."""
        after = max(after, self._trimmed)
        covered = self._tagged_in_runs(wanted, after, through, reverse)
        recent = self._tagged_in_tails(wanted, after, through, reverse)
        return chain(recent, covered) if reverse else chain(covered, recent)

    def _tagged_in_runs(self, wanted: EventQuery, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        found = [self._run_pieces(TAGS, tag, after, through, reverse=reverse) for tag in wanted.tags or ()]
        positions = ((block.seqs[row] for block, rows in pieces for row in rows) for pieces in found)
        return self._tail.rows_at(self._view, in_all(list(positions), reverse=reverse))

    def _tagged_in_tails(self, wanted: EventQuery, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        if self._behind:
            yield from self._in_blocks(
                EventQuery(tags=wanted.tags), max(after, self.directory.through), through, reverse
            )
            return
        tails = list(self._memtables(after))
        for tail, low, high in reversed(tails) if reverse else tails:
            found = [tail.tagged(tag, low, min(high, through), reverse=reverse) for tag in wanted.tags or ()]
            yield from tail.rows_at(self._view, in_all(found, reverse=reverse))

    def _memtables(self, after: int) -> Iterator[tuple[Memtable, int, int]]:
        after = max(after, self.directory.through)
        if self._behind:
            for block in self._view.blocks_to_index(after, keys.MAX_SEQ):
                part = Memtable((0, 0), after)
                part.add(block, 0)
                yield part, after, keys.MAX_SEQ
        else:
            yield self._tail, after, self._limit
        if self._extra is not None:
            yield self._extra, max(after, self._limit), keys.MAX_SEQ


OpenIndex = Callable[[TopicView], Lookup]
"""`EntityIndex.open`, or `open_within` in a transaction."""


def _waiting_bytes(view: TopicView, base: int, hashed: Sequence[TermHashes]) -> int:
    """Returns the bytes of a topic that neither runs nor hashes cover, about."""
    block = last_block(view.snap, view.topic_id, view.name)
    if block is None:
        return 0
    waiting, covered = block.last - base, base
    for segment in view.bulk_segments(base, block.last):
        waiting -= segment.last - max(segment.first - 1, base)
    for one in hashed:
        waiting -= max(0, one.last - max(one.first - 1, covered))
        covered = max(covered, one.last)
    return waiting * (block.payload_size // block.count + 64)


def _read_into(tail: Memtable, view: TopicView, through: int) -> None:
    """Reads what a memtable does not have yet, through a position."""
    if tail.covered < through:
        for block in view.blocks_to_index(tail.covered, through):
            tail.add(block, block_size(block))


def read_view(view: TopicView, query: EventQuery, open_index: OpenIndex) -> Iterator[Event]:
    """Returns the wanted events of one view of a topic. The index finds the events of an entity or with tags."""
    after, limit = query.after, query.rows_wanted
    view.check_not_trimmed(after)
    if query.since_ms is not None:
        after = max(after, view.position_before(query.since_ms))
    if query.until_ms is not None:
        query = replace(query, through=min(query.through, view.position_before(query.until_ms)))
    if query.indexed and (not after or view.latest() - after > _NEAR):
        found = indexed_events(open_index(view), query, after, limit, query.through, reverse=query.reverse)
    elif query.key_prefix:
        found = prefixed_events(view, query, after, limit)
    else:
        found = view.events(after, query.through, limit, query, reverse=query.reverse)
    return query.fulfilled(found)


_NEAR = 16
"""So few newest positions are read as they lie, also for an entity or tags: opening the index would cost more."""


def in_all(sources: Sequence[Iterator[int]], *, reverse: bool = False) -> Iterator[int]:
    """Returns the positions that all sources have, in the order that all sources have."""
    sign = -1 if reverse else 1
    heads = [next(source, None) for source in sources]
    while heads and None not in heads:
        furthest = max(sign * head for head in heads if head is not None)
        if all(head == sign * furthest for head in heads):
            yield sign * furthest
            furthest += 1
        for at, source in enumerate(sources):
            head = heads[at]
            while head is not None and sign * head < furthest:
                head = next(source, None)
            heads[at] = head


def indexed_events(
    lookup: Lookup, wanted: EventQuery, after: int, limit: int | None, through: int, *, reverse: bool
) -> Iterator[Event]:
    """Returns the wanted events of one entity, or with some tags, in order."""
    if wanted.key == "":
        return iter(())
    if wanted.key is not None:
        pieces, rest = lookup.pieces(wanted.key, after, through, reverse=reverse), replace(wanted, key=None)
    else:
        pieces, rest = lookup.tagged(wanted, after, through, reverse=reverse), replace(wanted, tags=None)
    found = (Event(block, row) for block, rows in pieces for row in wanted_rows(rest, block, rows))
    return islice(found, limit)


# ── Keys that begin with a text: they lie together in a run ──


_PREFIXED = 20_000
"""Events that are put in order in memory; a reader of more reads the topic as it lies."""


def prefixed_events(view: TopicView, query: EventQuery, after: int, limit: int | None) -> Iterator[Event]:
    """The events a reader wants whose keys begin with a text, in order: from the runs, and after them as they lie."""
    directory = load_directory(view.snap, view.topic_id, view.name)
    through, reverse = query.through, query.reverse
    most = _PREFIXED if limit is None else min(_PREFIXED, 1_000 + 8 * limit)
    found = prefixed_in_runs(view, directory, query, max(after, view.trimmed()), most)
    if found is None:
        yield from view.events(after, through, limit, query, reverse=reverse)
        return
    left = keys.MAX_SEQ if limit is None else limit
    if not reverse:
        yield from found[:left]
        left -= min(left, len(found))
    for event in view.events(max(after, directory.through), through, left, query, reverse=reverse):
        yield event
        left -= 1
    if reverse:
        yield from found[::-1][:left]


def prefixed_in_runs(
    view: TopicView, directory: Directory, query: EventQuery, after: int, most: int
) -> list[Event] | None:
    """Those that runs cover, in order of their positions; None when they are more than `most`, or lie in segments that
    no run covers."""
    if next(view.bulk_segments(after, min(query.through, directory.through)), None) is not None:
        return None
    found: dict[int, Event] = {}
    for run in directory.runs:
        if run.last <= after or run.first > query.through or "e" not in run.sections:
            continue
        for block in _chunks_with(view, run, query.key_prefix or ""):
            seqs = block.seqs
            rows = wanted_rows(query, block, range(block.count))
            rows = [row for row in rows if after < seqs[row] <= query.through]
            found.update((seqs[row], Event(block, row)) for row in rows)
            if len(found) > most:
                return None
    return [found[seq] for seq in sorted(found)]


def _chunks_with(view: TopicView, run: Run, begin: str) -> Iterator[Block]:
    """The chunks of a run that may have keys that begin with a text."""
    low = run_key(view.topic_id, run.id, ENTITIES)
    start = low + text_begin(begin)
    first = next((key for key, _ in view.snap.scan(low, start, reverse=True)), start)
    for _, value in view.snap.scan(first, start + b"\xff"):  # no text has this byte
        yield read_chunk(value, view.name)

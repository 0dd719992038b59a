"""Look-ups of an entity's events, of an event's effects, and of the events of a correlation.

`EntityIndex` belongs to an open journal. It keeps the memtables and the filters of runs, and tells a commit the newest
position of an entity. A `Lookup` finds events in one snapshot. This module builds nothing: `indexer` builds the runs.
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
"""The number of run filters in memory."""
_KNOWN_ENTITIES = 100_000
"""The maximum number of a topic's entities whose newest position the writer remembers."""


class EntityIndex:
    """The index of a journal's topics, with the parts of it that are in memory."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.memtables: dict[str, Memtable] = {}
        self._lock = threading.Lock()
        self._filters: OrderedDict[tuple[int, int], BloomFilter] = OrderedDict()
        self.crowded: Callable[[str], None] = lambda topic: None
        """Called with a topic when a look-up in it had to ask many runs."""
        self.lookups = 0
        """The approximate number of look-ups. Background work pauses for look-ups."""

    def open(self, view: TopicView) -> Lookup:
        """Returns a look-up in one view of a topic."""
        self.lookups += 1
        return Lookup(self, view, keys.MAX_SEQ, keep=True)

    def open_within(self, view: TopicView, needed: int = keys.MAX_SEQ) -> Lookup:
        """Returns a look-up in a transaction, whose own events must not be kept in memory.

        The look-up covers at least the positions through `needed`.
        """
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
        """Returns the position of an entity's newest event, including events of this commit."""
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
            known[key] = found._rows.seq(found._row) if found else 0  # one call less than `found.seq`
        return known[key]

    def _newest_within(self, commit: Commit, head: Head, key: str, through: int) -> Event | None:
        view = TopicView(commit.tx, head.name, TopicRecord(head.topic_id, head.settings))
        return self.open_within(view, through).newest(key, through)

    # ── what look-ups share ──────────────────────────────────────────────────────────────────────────────────────────
    def adopt(self, name: str, known: Memtable | None, tail: Memtable) -> None:
        """Keeps a memtable for the next look-up, unless another thread has stored one meanwhile, or one of a newer
        snapshot.
        """
        with self._lock:
            if self.memtables.get(name) is known and (
                known is None or (known.epoch, known.base) <= (tail.epoch, tail.base)
            ):
                self.memtables[name] = tail

    def cut(self, name: str, topic_id: int, through: int) -> None:
        """Removes from memory the events that runs cover or that were removed, through a position of the topic with
        this number.
        """
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
# A look-up asks the runs (see `runs.Directory`), oldest first, and then the memtable, which holds the events that no
# run covers yet. So its cost depends on the number of the entity's events, plus a few look-ups, and not on the number
# of events in the topic.


class Lookup:
    """A look-up in a topic. Its results are as of its view's snapshot, even if the memtable has newer events."""

    __slots__ = ("_behind", "_extra", "_index", "_limit", "_tail", "_trimmed", "_view", "directory")

    def __init__(self, index: EntityIndex, view: TopicView, needed: int, *, keep: bool) -> None:
        """Brings the memory up to the snapshot, or at least through the position `needed`."""
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
                    if keep and directory.through > tail.base:  # another process has built a run
                        index.cut(view.name, view.topic_id, directory.through)
                return
        self._begin(Memtable((view.topic_id, directory.epoch), base), tail, needed, keep)

    @property
    def known(self) -> int:
        """The position through which terms are looked up.

        After it, blocks are read, in a topic that no indexer indexes.
        """
        return self._limit if self._behind else keys.MAX_SEQ

    def _begin(self, tail: Memtable, before: Memtable | None, needed: int, keep: bool) -> None:
        """Reads all events that no run covers into a memtable."""
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
        tail.covered = max(tail.covered, view.state().referred)  # terms of bulk segments are never in memory
        self._limit = tail.covered
        if keep:
            # The next look-up recognises the newest block and does not read it again.
            rows = view.snap.scan(*keys.block_range(view.topic_id), reverse=True)
            newest = next(((key, len(value), value[-4:]) for key, value in rows), None)
            tail.state = (tail.covered, newest, monotonic())
            self._index.adopt(view.name, before, tail)

    def _catch_up(self, tail: Memtable, reshaped: int, keep: bool) -> None:
        """Reads the events that the memtable does not have yet.

        With `reshaped`, blocks follow each other without a gap.
        """
        view, (limit, known, changed) = self._view, tail.state
        if keep and changed >= view.snap.begun and (latest := view.latest()) <= limit:
            self._limit = latest  # the memtable's later events are not in this snapshot
            return
        self._limit = limit
        large = known is not None and known[1] >= MERGED_BYTES and limit >= reshaped
        if large and view.snap.get(keys.block_key(view.topic_id, limit + 1)) is None:
            # a large block is never merged with later blocks, so it is known to be the newest without reading it
            return
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
            # A transaction's own events are not for other callers, and another thread may have added events to the
            # memtable that are newer than this snapshot.
            self._extra = Memtable(tail.epoch, limit)
            for block, size in newer:
                self._extra.add(block, size)

    # ── entities ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def events(self, key: str, after: int, through: int, *, reverse: bool = False) -> Iterator[list[Event]]:
        """Yields the events of an entity in after < position ≤ through, some at a time, in order."""
        for block, rows in self.pieces(key, after, through, reverse=reverse):
            yield [Event(block, row) for row in rows]

    def newest(self, key: str, through: int = keys.MAX_SEQ) -> Event | None:
        """Returns the newest event of an entity at or before a position."""
        for block, rows in self.pieces(key, 0, through, reverse=True):
            return Event(block, rows[0])
        return None

    def pieces(self, key: str, after: int, through: int, *, reverse: bool = False) -> Iterator[Piece]:
        """Yields the same events as rows of blocks, for callers that read whole columns. Every piece has rows."""
        after = max(after, self._trimmed)
        referred = max(after, self._view.state().referred)
        if reverse and referred < through:  # the newest event is found without reading older ones
            yield from self._indexed(key, referred, through, reverse)
            through = referred
        for one in self._view.bulk_segments(after, through, reverse=reverse):
            if not (self._behind or one.may_hold(key)):
                continue  # the index has no events of such a segment, so one query may span it
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
        """Yields the events of an entity in a bulk segment, which has its own filters."""
        if not segment.may_hold(key):
            return
        for block in blocks_with(segment, self._view.name, key, reverse=reverse):
            rows = wanted_rows(EventQuery(key=key), block, range(block.row_after(after), block.row_after(through)))
            if rows:
                yield block, rows[::-1] if reverse else rows

    def _indexed(self, key: str, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        """Yields the events of an entity at positions outside bulk segments."""
        if after >= through:
            return iter(())
        recent = self._recent(key, max(after, self.directory.through), through, reverse)
        if not self.directory.runs:
            return recent
        covered = self._run_pieces(ENTITIES, key, after, through, reverse=reverse)
        return chain(recent, covered) if reverse else chain(covered, recent)

    def _recent(self, key: str, after: int, through: int, reverse: bool) -> Iterator[Piece]:
        """Yields the events of an entity that no run covers."""
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
        """Yields the rows of a term in the runs. For causes and correlations, the rows say where the events are.

        Each run answers for its own positions, and no other run answers for these positions.
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
        """Yields the chunks of a run that hold a term after a position, with the indexes of the term's rows.

        A term is inside one chunk, or it begins a chunk and fills it and the following chunks.
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
        """Yields the same chunks from the newest back, at or before a position."""
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
        """Yields every entity of the topic, each once."""
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
        """Returns the events of this topic that an event caused, in order.

        With `since`, only events whose ids are not below a number.
        """
        return self._events_of_id(CAUSES, memtable.CAUSES, id, since)

    def correlated(self, id: str, since: int = 0) -> Iterator[Event]:
        """Returns the events of this topic with a correlation id, in order.

        With `since`, only events whose ids are not below a number.
        """
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
        """Yields the rows of the events that have all wanted tags, in order. Every piece has rows."""
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
    """Returns the approximate number of a topic's bytes that neither runs nor hashes cover."""
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
    """Reads into a memtable the events that it does not have yet, through a position."""
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
"""The number of newest positions that are read in order even for an entity or tags: opening the index would cost
more.
"""


def in_all(sources: Sequence[Iterator[int]], *, reverse: bool = False) -> Iterator[int]:
    """Yields the positions that all sources have, in the common order of the sources."""
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
"""The number of events that are sorted in memory. A reader of more events reads the topic in order."""


def prefixed_events(view: TopicView, query: EventQuery, after: int, limit: int | None) -> Iterator[Event]:
    """Yields the wanted events whose keys begin with a text, in order: first from the runs, then from the topic
    after them.
    """
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
    """Returns the events that runs cover, in order of position.

    Returns None when they are more than `most`, or in segments that no run covers.
    """
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
    """Yields the chunks of a run that may have keys that begin with a text."""
    low = run_key(view.topic_id, run.id, ENTITIES)
    start = low + text_begin(begin)
    first = next((key for key, _ in view.snap.scan(low, start, reverse=True)), start)
    for _, value in view.snap.scan(first, start + b"\xff"):  # no text contains this byte
        yield read_chunk(value, view.name)

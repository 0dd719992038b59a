"""Finding and streaming blocks in a snapshot: the one reader under reads, subscriptions, workers and transactions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, may_hold
from penstock.core.journal.catalog import (
    TopicRecord,
    TopicState,
    first_block,
    last_block,
    load_record,
    load_state,
    missing,
    open_block,
)
from penstock.core.journal.sealed.files import sealed_blocks
from penstock.core.journal.sealed.segments import Segment, load_segments, load_segments_back
from penstock.core.journal.summaries import Summary, stored_summaries
from penstock.core.model.query import EVERYTHING, EventQuery
from penstock.core.names import stored_tag
from penstock.errors import PositionTrimmed
from penstock.limits import SUMMARY_RANGES

if TYPE_CHECKING:
    pass


class Span(Protocol):
    """An object that holds the events of some positions."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


S = TypeVar("S", bound=Span)


class Stretch(NamedTuple):
    """The positions after the first number and through the second; either all or none of them are in files."""

    after: int
    through: int
    in_files: bool


Bounds = tuple[int, int]
"""The positions after the first number and through the second."""


def is_summarised(wanted: EventQuery) -> bool:
    """Returns True if summaries can exclude ranges without a wanted event."""
    return wanted.kinds is not None or wanted.scope is not None


def may_be_in(wanted: EventQuery, summary: Summary) -> bool:
    """Returns True if the events of a summary may include a wanted event."""
    if wanted.kinds is not None and summary.kinds is not None and wanted.kinds.isdisjoint(summary.kinds):
        return False
    return wanted.scope is None or summary.scopes is None or wanted.scope in summary.scopes


def wanted_rows(wanted: EventQuery, block: Block, rows: Sequence[int]) -> Sequence[int]:
    """Returns the wanted rows among some rows of a block; the caller still has to check `where`."""
    if wanted.kinds is not None:
        codes = {code for code, kind in enumerate(block.wire.kinds) if kind in wanted.kinds}
        if not codes:
            return ()
        if len(codes) < len(block.wire.kinds):
            kind_codes = block.kind_codes
            rows = [row for row in rows if kind_codes[row] in codes]
    if wanted.key is not None:
        if not may_hold(block.wire.key, wanted.key):
            return ()
        key = block.key
        rows = [row for row in rows if key(row) == wanted.key]
    if wanted.key_prefix:
        if not may_hold(block.wire.key, wanted.key_prefix):
            return ()
        key, begin = block.key, wanted.key_prefix
        rows = [row for row in rows if (key(row) or "").startswith(begin)]
    if wanted.scope is not None:
        if block.wire.scope is None:
            return ()
        scope = block.scope
        rows = [row for row in rows if scope(row) == wanted.scope]
    if wanted.tags is not None:
        stored = list(map(stored_tag, wanted.tags))
        if not all(may_hold(block.wire.tags, one) for one in stored):
            return ()
        tags = block.tags
        rows = [row for row in rows if (text := tags(row)) is not None and all(one in text for one in stored)]
    return rows


def overlap(wanted: Bounds, held: Bounds) -> bool:
    """Returns True if two ranges, ends included, overlap; a range that ends before it begins is empty."""
    return wanted[0] <= min(wanted[1], held[1]) and wanted[1] >= held[0]


class TopicView:
    """A topic in a snapshot. For a reader with a current time, events past `max_age` are hidden."""

    __slots__ = ("_state", "hidden", "name", "record", "snap", "topic_id")

    def __init__(self, snap: Snapshot, name: str, record: TopicRecord, now_ms: int | None = None) -> None:
        self.snap = snap
        self.name = name
        self.record = record
        self.topic_id = record.topic_id
        self._state: TopicState | None = None
        self.hidden = 0
        """The position up to which events are older than the topic's `max_age`: they may still be stored, but
        readers do not see them.
        """
        max_age = record.settings.max_age
        if max_age is not None and now_ms is not None:
            self.hidden = self.position_before(now_ms - int(max_age * 1000))

    @classmethod
    def open(cls, snap: Snapshot, name: str, now_ms: int | None = None) -> TopicView | None:
        """Returns the topic, or None when nothing was ever appended to it."""
        record = load_record(snap, name)
        return None if record is None else cls(snap, name, record, now_ms)

    def state(self) -> TopicState:
        """Returns the counters of the topic that outlive compaction; they are read once."""
        if self._state is None:
            self._state = load_state(self.snap, self.topic_id, self.name)
        return self._state

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def latest(self) -> int:
        """Returns the highest position ever assigned."""
        block = last_block(self.snap, self.topic_id, self.name)
        stored = block.last if block else 0
        return max(stored, self.state().latest)

    def oldest(self) -> int:
        """Returns the first position still stored; 0 for none."""
        state = self.state()
        if self.hidden > state.trimmed:
            return next((event.seq for event in self.events(self.hidden, keys.MAX_SEQ, 1)), 0)
        block = self._first_block()
        return max(block.first, state.trimmed + 1) if block else 0

    def count(self) -> int:
        state = self.state()
        stored = self.latest() - state.removed
        if self.hidden > state.trimmed:
            stored -= self.count_between(state.trimmed, self.hidden)
        return stored

    def trimmed(self) -> int:
        """Returns the position through which events were removed, or are hidden because of their age."""
        return max(self.hidden, self.state().trimmed)

    def began(self) -> int:
        """Returns the position after which the topic began; earlier positions belonged to dropped topics of this
        name.
        """
        return self.state().began

    def newest(self) -> int:
        """Returns the position of the newest event that the topic has had; 0 for none, also in a topic that was made
        anew.
        """
        latest = self.latest()
        return latest if latest > self.began() else 0

    def count_between(self, after: int, through: int) -> int:
        """Returns the number of stored events in after < position ≤ through."""
        holes = min(through, self.state().compacted)
        if holes <= after:
            return through - after
        count = through - holes
        for segment in load_segments(self.snap, self.topic_id, after, holes):
            # the whole segment counts, so its files need not be opened
            if segment.first > after and segment.last <= holes:
                count += self._count_in_blocks(after, segment.first - 1) + segment.count
                after = segment.last
        return count + self._count_in_blocks(after, holes)

    def lags(self, positions: Iterable[int], latest: int | None = None) -> dict[int, int]:
        """Returns the number of events that are left to read after each of some positions.

        Events that were removed, are hidden, or belonged to a dropped topic do not count. `latest` is the end of the
        topic for callers that know of unwritten events.
        """
        through = self.latest() if latest is None else latest
        begin, count, found = self.trimmed(), 0, {}
        for position in sorted(positions, reverse=True):
            after = min(max(position, begin), through)
            count += self.count_between(after, through)
            found[position], through = count, after
        return found

    def lag(self, position: int, latest: int | None = None) -> int:
        """Returns how many events are left to read after a position."""
        return self.lags((position,), latest)[position]

    def _count_in_blocks(self, after: int, through: int) -> int:
        return sum(block.row_after(through) - block.row_after(after) for block in self.blocks(after, through))

    def check_not_trimmed(self, after: int) -> None:
        """Raises PositionTrimmed when the event after `after` was removed by compaction."""
        trimmed = self.trimmed() if after else 0
        if 0 < after < trimmed:
            raise PositionTrimmed(
                f"topic {self.name!r} holds nothing up to {trimmed} any more, and cannot be read on after {after}: "
                f"start again at {trimmed} (or at 0 for the oldest)",
                oldest=self.oldest() or trimmed + 1,
            )

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def stretches(self, after: int, through: int) -> Iterator[Stretch]:
        """Yields the parts of after < position ≤ through, ascending; each part is in files or in hot blocks."""
        state = self.state()
        if after < min(through, state.sealed):
            yield Stretch(after, min(through, state.sealed), in_files=True)
            after = state.sealed
        if after < min(through, state.referred):
            for segment in load_segments(self.snap, self.topic_id, after, min(through, state.referred)):
                if after < segment.first - 1:
                    yield Stretch(after, segment.first - 1, in_files=False)
                    after = segment.first - 1
                yield Stretch(after, min(through, segment.last), in_files=True)
                after = segment.last
        if after < through:
            yield Stretch(after, through, in_files=False)

    def bulk_segments(self, after: int, through: int, *, reverse: bool = False) -> Iterator[Segment]:
        """Yields the segments of bulk writes with events in after < position ≤ through; no index covers them."""
        after, through = max(after, self.state().trimmed), min(through, self.state().referred)
        if after < through:
            for segment in (load_segments_back if reverse else load_segments)(self.snap, self.topic_id, after, through):
                if segment.filtered:
                    yield segment

    def blocks_to_index(self, after: int, through: int) -> Iterator[Block]:
        """Yields the blocks with events in after < position ≤ through, except the blocks of bulk segments."""
        for segment in self.bulk_segments(after, through):
            yield from self.blocks(after, min(through, segment.first - 1))
            after = max(after, segment.last)
        yield from self.blocks(after, through)

    def block_holding(self, seq: int) -> Block | None:
        """Returns the newest block that begins at or before a position."""
        state, low = self.state(), keys.block_range(self.topic_id)[0]
        hot = next(iter(self.snap.scan(low, keys.block_key(self.topic_id, seq + 1), reverse=True)), None)
        if hot is None:
            # Compaction by key may have emptied the positions between the files and the blocks.
            floor = state.trimmed
        elif state.referred <= (floor := keys.block_first(hot[0])):
            return open_block(self.snap, *hot, self.name)
        through = min(seq, state.in_files)
        if floor < through:
            filed = sealed_blocks(self.snap, self.topic_id, self.name, floor, through, state.trimmed, reverse=True)
            if (block := next(filed, None)) is not None:
                return block
        return None if hot is None else open_block(self.snap, *hot, self.name)

    def blocks(self, after: int, through: int) -> Iterator[Block]:
        """Yields the blocks with events in after < position ≤ through, ascending."""
        for part in self.stretches(after, through):
            if part.in_files:
                low, high, trimmed = part.after, part.through, self.state().trimmed
                yield from sealed_blocks(self.snap, self.topic_id, self.name, low, high, trimmed)
            else:
                yield from self._hot_blocks(part.after, part.through, open_block)

    def hot_blocks(self, after: int, through: int, open: Callable[[Snapshot, bytes, bytes, str], S]) -> Iterator[S]:
        """Yields the results of `open` for the keys and values of hot blocks, which are in the store itself."""
        for part in self.stretches(after, through):
            if not part.in_files:
                yield from self._hot_blocks(part.after, part.through, open)

    def _hot_blocks(self, after: int, through: int, open: Callable[[Snapshot, bytes, bytes, str], S]) -> Iterator[S]:
        state, start = self.state(), after + 1
        whole = max(after, state.trimmed, state.compacted)  # up to this position, events may be missing by design
        first, _ = keys.block_range(self.topic_id)
        if after:
            for key, value in self.snap.scan(first, keys.block_key(self.topic_id, start + 1), reverse=True):
                opening = open(self.snap, key, value, self.name)
                if opening.last >= start:
                    yield opening
                start = opening.last + 1
                whole = max(whole, opening.last)
                break
        stop = keys.block_key(self.topic_id, min(through, keys.MAX_SEQ) + 1)
        low = keys.block_key(self.topic_id, start) if after else first
        for key, value in self.snap.scan(low, stop):
            block = open(self.snap, key, value, self.name)
            if block.first > whole + 1:
                raise missing(self.name, whole + 1, block.first - 1)
            yield block
            whole = max(whole, block.last)
        if whole < through:
            self._check_is_end(whole + 1, through)

    def blocks_back(self, after: int, through: int) -> Iterator[Block]:
        """Yields the same blocks as `blocks`, descending."""
        state = self.state()
        if state.in_files <= after:
            yield from self._hot_blocks_back(after, through)
            return
        for part in reversed(list(self.stretches(after, through))):
            low, high = part.after, part.through
            if part.in_files:
                yield from sealed_blocks(self.snap, self.topic_id, self.name, low, high, state.trimmed, reverse=True)
            else:
                yield from self._hot_blocks_back(low, high)

    def _hot_blocks_back(self, after: int, through: int) -> Iterator[Block]:
        low, _ = keys.block_range(self.topic_id)
        stop = keys.block_key(self.topic_id, min(through, keys.MAX_SEQ) + 1)
        state = self.state()
        floor = max(after, state.trimmed, state.compacted)
        upper: int | None = None
        for key, value in self.snap.scan(low, stop, reverse=True):
            block = open_block(self.snap, key, value, self.name)
            if upper is None:
                if max(block.last, floor) < through:
                    self._check_is_end(max(block.last, floor) + 1, through)
            elif upper > max(block.last, floor) + 1:
                raise missing(self.name, max(block.last, floor) + 1, upper - 1)
            if block.last <= after:
                return
            yield block
            upper = block.first
            if upper <= after + 1:  # errors of earlier blocks do not concern this reader
                return
        if upper is None:
            self._check_is_end(floor + 1, through)
        elif upper > floor + 1:
            raise missing(self.name, floor + 1, upper - 1)

    def _check_is_end(self, first: int, through: int) -> None:
        """Raises Corrupt unless the topic ends before `first`: no block holds first … through."""
        if first <= (last := min(through, self.latest())):
            # found from the end of the topic, but not on the way there: a key was changed
            raise missing(self.name, first, last)
        if first > through or through >= keys.MAX_SEQ:
            return
        for key, _ in self.snap.scan(
            keys.block_key(self.topic_id, min(through, keys.MAX_SEQ) + 1), keys.block_range(self.topic_id)[1]
        ):
            raise missing(self.name, first, min(through, keys.block_first(key) - 1))

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def events(
        self, after: int, through: int, limit: int | None, wanted: EventQuery = EVERYTHING, *, reverse: bool = False
    ) -> Iterator[Event]:
        """Yields the wanted events, streamed."""
        after = max(after, self.hidden)
        left = keys.MAX_SEQ if limit is None else limit
        if left <= 0:
            return
        plain = wanted.everything
        spans = self.spans(after, through, wanted, reverse=reverse) if is_summarised(wanted) else ((after, through),)
        for low, high in spans:
            for block in (self.blocks_back if reverse else self.blocks)(low, high):
                start = block.row_after(low) if block.first <= low else 0
                stop = block.row_after(high) if block.last > high else block.count
                rows: Sequence[int] = range(start, stop)
                rows = rows if plain else wanted_rows(wanted, block, rows)
                if reverse:
                    rows = rows[::-1]
                if len(rows) >= left:
                    yield from [Event(block, row) for row in rows[:left]]
                    return
                yield from [Event(block, row) for row in rows]
                left -= len(rows)

    def spans(
        self, after: int, through: int, wanted: EventQuery, *, occurred: Bounds | None = None, reverse: bool = False
    ) -> Iterator[Bounds]:
        """Yields the spans in after < position ≤ through that may have wanted events; by their summaries, other
        positions have none.

        `occurred` limits the producers' times of the events (milliseconds, both ends included).
        """
        stored = stored_summaries(self.snap, self.topic_id, self.name, after, through, reverse=reverse)
        passed = 0
        for row in stored:
            for one in reversed(row) if reverse else row:
                if one.last <= after or one.first > through:
                    continue
                if may_be_in(wanted, one) and (occurred is None or overlap(occurred, one.occurred)):
                    passed += 1
                elif reverse:
                    if one.last < through:
                        yield one.last, through
                    through, passed = one.first - 1, 0
                else:
                    if one.first - 1 > after:
                        yield after, one.first - 1
                    after, passed = one.last, 0
                if passed == SUMMARY_RANGES:  # a reader that wants a few events need not wait for all summaries
                    bound = one.first - 1 if reverse else one.last
                    if after < bound < through:
                        yield (bound, through) if reverse else (after, bound)
                        after, through = (after, bound) if reverse else (bound, through)
                    passed = 0
        if after < through:
            yield after, through

    def get(self, seq: int) -> Event | None:
        if seq <= self.hidden:
            return None
        block = self.block_holding(seq)
        row = block.row_of(seq) if block else None
        if row is not None and block is not None:
            return Event(block, row)
        self.check_gone(seq)
        return None

    def check_gone(self, seq: int) -> None:
        """Raises Corrupt when a position is missing that compaction has not removed, and the topic continues after
        it.
        """
        state = self.state()
        if seq > max(state.trimmed, state.compacted):
            self._check_is_end(seq, seq)

    # ── searching ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _search(self, at_or_before: Callable[[Block], bool]) -> Block | None:
        """Returns the last block for which a condition holds, by binary search over positions.

        The condition holds for a prefix of the blocks.
        """
        first, last = self._first_block(), last_block(self.snap, self.topic_id, self.name)
        if last is None or self.state().referred > last.last:
            last = self.block_holding(self.state().in_files)
        if first is None or last is None or not at_or_before(first):
            return None
        if at_or_before(last):
            return last
        found, low, high = first, first.last + 1, last.first
        while low < high:
            middle = (low + high) // 2
            block = self.block_holding(middle)
            assert block is not None
            if at_or_before(block):
                found, low = block, max(block.last + 1, middle + 1)
            else:
                high = block.first
        return found

    def _first_block(self) -> Block | None:
        state = self.state()
        if state.in_files > state.trimmed:
            # the first block may be empty after compaction by key
            for block in self.blocks(state.trimmed, state.in_files):
                return block
        return first_block(self.snap, self.topic_id, self.name)

    def find(self, number: int) -> Event | None:
        """Returns the event that has an id. Ids increase with positions, so halving finds it."""
        block = self._search(lambda block: block.run_ids[0] <= number)
        row = block.row_of_id(number) if block else None
        return None if row is None or block is None or block.seq(row) <= self.hidden else Event(block, row)

    def position_before_id(self, number: int) -> int:
        """Returns the last stored position whose id is below a number; 0 for none."""
        block = self._search(lambda block: block.run_ids[0] < number)
        return 0 if block is None else block.seq(bisect_left(range(block.count), number, key=block.id_number) - 1)

    def position_before(self, ms: int) -> int:
        """Returns the last position recorded before a time; 0 for none."""
        block = self._search(lambda block: block.run_times[0] < ms)
        if block is None:
            state = self.state()
            return state.trimmed if state.recorded_ms and state.recorded_ms < ms else 0
        return block.seq(bisect_left(range(block.count), ms, key=block.recorded_ms) - 1)

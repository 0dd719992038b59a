"""The housekeeper: merging, retention and compaction by key, in a thread of its own that sleeps until there is work."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.clock import SystemClock, set_back_ms
from penstock.engine.contract import Engine, Snapshot
from penstock.errors import Corrupt, PenstockError, TopicInUse, UnknownTopic
from penstock.journal import keys
from penstock.journal.blocks import Block, Wire, joined, seal, select, stored_size, text_values
from penstock.journal.catalog import (
    Settings,
    TopicRecord,
    TopicState,
    load_looks,
    load_record,
    load_state,
    open_block,
    save_end,
    save_state,
    save_with_end,
    topic_names,
)
from penstock.journal.commit import Commit, forget_expired
from penstock.journal.cursors import read_cursors, slowest_cursor
from penstock.journal.index.runs import INDEX, drop_index, load_directory, trim_index
from penstock.journal.reading import EVERYTHING, TopicView
from penstock.journal.sealed.segments import drop_segments, load_segments, sealed_files
from penstock.journal.summaries import (
    RangeRows,
    Summary,
    pack_summaries,
    put_range_rows,
    range_rows,
    read_summaries,
    replace_range_rows,
    trim_hashes,
    trim_summaries,
)
from penstock.journal.waking import Background
from penstock.journal.writer import Writer
from penstock.limits import (
    BLOCK_BYTES,
    BLOCK_EVENTS,
    EXCHANGE_BYTES,
    MERGE_FAN_IN,
    MERGED_BYTES,
    RETENTION_BLOCKS,
    RETENTION_BYTES,
    RETENTION_SECONDS,
    SMALL_BYTES,
    SUMMARY_RANGES,
)
from penstock.observe.logs import Log
from penstock.units import in_parts

log = Log("penstock.housekeeper")

_ENOUGH = 4 * MERGE_FAN_IN * MERGE_FAN_IN
"""How many events or commits have to come before a topic without special settings is looked at again.

Rarely: a thread beside a busy writer waits for the interpreter's lock at every read, and slows the writer meanwhile.
"""


class Housekeeper(Background):
    """Does a topic's housekeeping after every few dozen commits to it."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("penstock-housekeeper", log)
        self._engine = writer.engine
        self._writer = writer
        self._noted: dict[str, tuple[int, int]] = {}
        self._demanding: set[str] = set()
        """Topics whose settings ask for something every few dozen commits."""
        self._merges: dict[str, int] = defaultdict(int)
        self._turn = threading.Lock()
        self.chores: list[Callable[[str], None]] = []
        """What the layers above do for a topic in passing, in the housekeeper's thread."""
        self.holds: list[Hold] = []
        """What retention and compaction by key wait for: messages that are not settled, not cursors."""
        self.before_retention: list[Callable[[Commit, str, int], bool]] = []
        """Called with the position through which retention wants to remove; True: there is more to do first."""
        self.drop_rules = DropRules()
        self._clearing = False
        """Whether topics were dropped whose rows are still to be cleared away."""
        self._reclaiming = False
        """Whether space was freed that is still to be given back."""
        self._aged: set[str] = set()
        """Topics with a max_age: time alone makes them due."""
        self._aged_checked_ms = self._swept_ms = writer.clock.now_ms()

    def note(self, topic: str, events: int) -> None:
        """A commit added events to a topic."""
        commits, added = self._noted.get(topic, (_ENOUGH, 0))
        commits, added = commits + 1, added + events
        # Small commits are merged by the writer itself: unless a topic has settings to apply, there is little to do.
        if commits % MERGE_FAN_IN == 0 and (added >= _ENOUGH or commits >= _ENOUGH or topic in self._demanding):
            commits = added = 0
            self.request(topic)
        self._noted[topic] = commits, added

    def request_clearing(self) -> None:
        """Asks for the rows of dropped topics to be cleared away soon."""
        self._clearing = True
        self._wake()

    def request_reclaim(self) -> None:
        """Asks for freed space to be given back soon."""
        self._reclaiming = True
        self._wake()

    def clear_dropped(self) -> None:
        """Clears the rows of dropped topics away now."""
        with self._turn:
            clear_dropped(self._writer, self.drop_rules, lambda: self._closed)

    def maintain(self, topic: str, *, thorough: bool = False, index: Callable[[str], None] | None = None) -> None:
        """Does one topic's housekeeping now, and `index`; thorough: merges even where it is hardly worth it.

        Corrupt when something cannot be read, after the rest of it was done; `penstock doctor` and the metrics say so
        from then on. It is tried again the next time: retention and compaction may have removed it by then.
        """
        unreadable: Corrupt | None = None
        for work in (partial(self._merge_in_turn, thorough=thorough), partial(self._apply, thorough=thorough), index):
            try:
                if work is not None:
                    work(topic)
            except Corrupt as error:
                unreadable = unreadable or error
            except PenstockError:
                raise  # the store's trouble, or the caller's
            except Exception as error:
                log.exception("housekeeping of topic %r failed", topic)
                unreadable = unreadable or Corrupt(f"{type(error).__name__}: {error}", topic=topic)
        self._note_unreadable(topic, unreadable, thorough)
        if unreadable is not None:
            raise unreadable

    def _note_unreadable(self, topic: str, error: Corrupt | None, thorough: bool) -> None:
        """Notes in the store why a topic cannot be read, where every process finds it, or that it can be read again.

        A pass takes another one's note back only when it has looked where the note points: a thorough one looks
        everywhere, any other one at the block that the note names.
        """
        why, at = ("", 0) if error is None else (str(error), error.seq or 0)
        with suppress(Corrupt):  # the block is still damaged, or the topic's record: the reader that wants it says so
            with self._engine.read() as snap:
                record = load_record(snap, topic)
                if record is None:
                    return
                known = load_state(snap, record.topic_id, topic)
                if known.unreadable == why or (not why and not thorough and not known.unreadable_at):
                    return
                if not why and not thorough:
                    block = TopicView(snap, topic, record).block_holding(known.unreadable_at)
                    if block is not None:
                        block.check_columns()
            self._writer.run_relaxed(_note, topic, known.unreadable, why, at)

    def _merge_in_turn(self, topic: str, thorough: bool) -> None:
        with self._turn:
            self._merge(topic, thorough)

    def _apply(self, topic: str, thorough: bool) -> None:
        """Applies a topic's settings, and does what else is done in passing."""
        with self._turn:
            freed, more = False, True
            while more and not self._closed:
                removed, more = self._writer.run_relaxed(self._retain, topic)
                freed = freed or removed
            if self._writer.run_relaxed(self._wants_newest_only, topic):
                freed = compact_by_key(self._writer, topic, self.holds) > 0 or freed
            if freed or thorough or self._sweep_is_due():
                from penstock.journal.bulk import sweep_staged

                freed = sweep_staged(self._writer) or freed
            if freed:
                self._writer.reclaim()
            for chore in self.chores:
                chore(topic)

    def _sweep_is_due(self) -> bool:
        """Whether it is time again to look for what large batches have left."""
        now = self._writer.clock.now_ms()
        if 0 <= now - self._swept_ms < RETENTION_SECONDS * 1000:
            return False
        self._swept_ms = now
        return True

    def _merge(self, topic: str, thorough: bool) -> None:
        """Merges the smallest blocks; and, when that has left enough middling ones, those."""
        if thorough:
            merge_tail(self._writer, topic, below=MERGED_BYTES, fan_in=2)
            fill_summaries(self._writer, topic, lambda: self._closed)
            join_summaries(self._writer, topic, fan_in=2)
            return
        join_summaries(self._writer, topic, fan_in=2 * SUMMARY_RANGES)
        small = merge_tail(self._writer, topic, below=SMALL_BYTES)
        # Without small blocks to merge, the commits since the last look left middling ones themselves.
        self._merges[topic] += 1 if small else MERGE_FAN_IN
        if self._merges[topic] >= MERGE_FAN_IN:
            self._merges[topic] = 0
            merge_tail(self._writer, topic, below=MERGED_BYTES)

    def begin(self) -> None:
        """Finds the topics that need a look also when no process appends to them."""
        with self._engine.read() as snap:
            aged = _aged_topics(snap)
            dropped = next(iter(snap.scan(keys.DROPPED, keys.prefix_end(keys.DROPPED))), None)
        for topic in aged:
            self._aged.add(topic)
            self.request(topic)
        if dropped is not None:  # a process that dropped it ended before all was cleared away
            self.request_clearing()

    def _retain(self, commit: Commit, topic: str) -> tuple[bool, bool]:
        """Applies a topic's settings, a part at a time: whether space was freed, and whether there is more."""
        head = commit.head(topic)
        if head is None:
            self._aged.discard(topic)
            return False, False
        settings = head.settings
        limited = settings.max_age is not None or settings.max_events is not None or settings.max_bytes is not None
        (self._demanding.add if limited or settings.by_key else self._demanding.discard)(topic)
        (self._aged.discard if settings.max_age is None else self._aged.add)(topic)
        forget_expired(commit.tx, head.topic_id, settings.dedup_window, max(commit.now_ms, head.recorded_ms))
        if limited:
            bound = retention_bound(commit, topic, settings, commit.now_ms)
            if bound:
                if any(prepare(commit, topic, bound) for prepare in self.before_retention):
                    return False, True
                report, more = compact_some(commit, topic, bound, self.holds)
                return report.removed > 0, more
        return False, False

    def _wants_newest_only(self, commit: Commit, topic: str) -> bool:
        """Whether a topic that keeps the newest event of every key has enough others."""
        head = commit.head(topic)
        if head is None or not head.settings.by_key:
            return False
        state = load_state(commit.tx, head.topic_id, topic)
        live = head.latest - state.removed
        through, _ = held_back(commit, topic, head.latest, self.holds)
        # As many new events as kept ones: each pass then costs no more than the appends that called for it.
        return through > state.compacted and (through - state.compacted) * 2 >= live

    def _nap(self) -> float | None:
        """How long to sleep at the most; for ever when only commits of this process make work."""
        if not self._aged and not self._engine.shared:
            return None
        return RETENTION_SECONDS if isinstance(self._writer.clock, SystemClock) else 0.02

    def _check_aged(self) -> None:
        """What was young enough at the last look may be too old by now."""
        now = self._writer.clock.now_ms()
        if not 0 <= now - self._aged_checked_ms < RETENTION_SECONDS * 1000:
            self._aged_checked_ms = now
            if self._engine.shared:  # another process may have given a topic its max_age, and have ended since
                with self._engine.read() as snap:
                    self._aged.update(_aged_topics(snap))
            with self._lock:
                self._due.update(self._aged)

    def _run(self) -> None:
        while not self._closed:
            self._wanted.wait(self._nap())
            self._wanted.clear()
            self._attempt("housekeeping of topics with a max_age", self._check_aged)
            if self._clearing and not self._closed:
                self._clearing = False
                self._attempt("housekeeping of the rows of dropped topics", self.clear_dropped)
            if self._reclaiming and not self._closed:
                self._reclaiming = False
                self._attempt("housekeeping of freed space", self._writer.reclaim)
            while not self._closed and (topic := self._next_due()) is not None:
                self._attempt(f"housekeeping of topic {topic!r}", partial(self.maintain, topic))


def _note(commit: Commit, topic: str, known: str, why: str, at: int) -> None:
    """Writes a note in the place of the one that was looked at; one that has come since stays."""
    head = commit.head(topic)
    if head is not None:
        state = load_state(commit.tx, head.topic_id, topic)
        if why or state.unreadable == known:
            save_state(commit.tx, head.topic_id, replace(state, unreadable=why, unreadable_at=at))


def _aged_topics(snap: Snapshot) -> list[str]:
    """The names of the topics that have a max_age."""
    return [keys.stored_name(key[1:]) for key, _ in snap.scan(keys.AGED, keys.prefix_end(keys.AGED))]


# ── Removing history: a prefix on request, by retention in passing, or all but the newest event of every key ──


_TRIES = 100
"""How often blocks that have changed are read again before compaction by key leaves the rest to the next time."""
SEGMENT_EVENTS = 2_000_000
"""Sealed events that one commit removes, about: a verified topic has a hash of each, and their files have many."""
SCAN_BYTES = 4 << 20
"""How much is read in one snapshot."""

_LOOKS_NOTED = 8
"""How many looks of one `max_age` are noted while the clock is behind: it is kept to that part of itself."""

Trim = Callable[[Commit, str, int], None]
"""Hears that a topic's history is about to be removed through a position, needed or not."""
Hold = Callable[[Commit, str], Iterable[tuple[str, int]]]
"""Who still needs a topic's history and through which position they are done with it."""


class CompactReport(msgspec.Struct, frozen=True):
    """What a compaction did."""

    removed: int = 0
    """Events removed."""
    remaining: int = 0
    """Events still stored."""
    latest: int = 0
    """The topic's highest position; compaction never lowers it."""
    stopped_at: str | None = None
    """The consumer whose cursor held compaction back."""


def cursor_holds(commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
    """Every named cursor holds what it has not passed; the slowest holds the most."""
    slowest = slowest_cursor(commit, topic)
    return () if slowest is None else (slowest,)


def compact_some(
    commit: Commit, topic: str, through: int, holds: Iterable[Hold], trims: Iterable[Trim] = ()
) -> tuple[CompactReport, bool]:
    """Compacts as far towards `through` as one commit should, and says whether there is more; `trims` hear of it."""
    step = one_step(commit, topic, through)
    for trim in trims:
        trim(commit, topic, step)
    report = compact(commit, topic, step, holds)
    return report, step < through and report.stopped_at is None


def compact(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> CompactReport:
    """Removes every event at or before `through`, or before the slowest holder."""
    head = commit.head(topic)
    if head is None:
        return CompactReport()
    through, stopped_at = held_back(commit, topic, min(through, head.latest), holds)
    state = load_state(commit.tx, head.topic_id, topic)
    removed = 0
    if through > state.trimmed:
        removed = remove_blocks(commit, topic, head.topic_id, state, through)
        drop_segments(commit.tx, head.topic_id, through)
        trim_index(commit.tx, head.topic_id, topic, through)
        trim_hashes(commit.tx, head.topic_id, through)
        trim_summaries(commit.tx, head.topic_id, through)
        head.newest = None
        state = replace(state, trimmed=through, removed=state.removed + removed)
        save_with_end(commit.tx, head, state)
    return CompactReport(removed, head.latest - state.removed, head.latest, stopped_at)


def held_back(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> tuple[int, str | None]:
    """How far a topic's history may be removed, and who does not let more of it go."""
    stopped_at = None
    for hold in holds:
        for holder, done in hold(commit, topic):
            if done < through:
                through, stopped_at = done, holder
    return through, stopped_at


def one_step(commit: Commit, topic: str, through: int) -> int:
    """How far one commit should remove a topic's history, so that no caller waits long behind it."""
    view = TopicView.open(commit.tx, topic)
    if view is None:
        return through
    size = 0
    for count, segment in enumerate(load_segments(commit.tx, view.topic_id, view.trimmed(), through)):
        if count == RETENTION_BLOCKS or size > SEGMENT_EVENTS:
            return segment.first - 1
        size += segment.count
    low, _ = keys.block_range(view.topic_id)
    size = 0
    for count, (key, value) in enumerate(commit.tx.scan(low, keys.block_key(view.topic_id, through + 1))):
        if count == RETENTION_BLOCKS or size > RETENTION_BYTES:
            return keys.block_first(key) - 1
        size += stored_size(value)
    return through


def remove_blocks(commit: Commit, topic: str, topic_id: int, state: TopicState, through: int) -> int:
    """Deletes whole blocks, and rewrites the one that `through` cuts; returns how many events are at or before it."""
    view = TopicView.open(commit.tx, topic)
    assert view is not None
    removed = view.count_between(state.trimmed, through)
    if through <= state.sealed:  # sealed files stay as they are: what is trimmed of them is left out when they are read
        commit.reshape()
        return removed
    # A block that begins right after the cut needs no look at the one before: damaged history can be removed too.
    clean_cut = commit.tx.get(keys.block_key(topic_id, through + 1)) is not None
    boundary = None if clean_cut else view.block_holding(through)
    low, _ = keys.block_range(topic_id)
    commit.reshape()
    commit.tx.delete_range(low, keys.block_key(topic_id, through + 1))
    if boundary is not None and boundary.last > through:
        rows = range(boundary.row_after(through), boundary.count)
        commit.tx.put(keys.block_key(topic_id, boundary.seq(rows[0])), select(boundary, rows))
    return removed


def retention_bound(commit: Commit, topic: str, settings: Settings, now_ms: int) -> int:
    """Through which position a topic's settings want its history removed; whole blocks at a time. 0: nothing."""
    view = TopicView.open(commit.tx, topic)
    if view is None:
        return 0
    bound = 0
    latest = commit.latest(topic)
    if settings.max_events is not None:
        bound = max(bound, latest - settings.max_events)
    if settings.max_age is not None:
        age_ms = int(settings.max_age * 1000)
        bound = max(bound, view.position_before(now_ms - age_ms), _seen_bound(commit, topic, age_ms))
    if settings.max_bytes is not None:
        bound = max(bound, _bytes_bound(view, settings.max_bytes))
    return bound


def _seen_bound(commit: Commit, topic: str, age_ms: int) -> int:
    """While the clock is behind a topic's recording time, which does not go back with it: through which position events
    were there a `max_age` ago, as noted by earlier looks."""
    now_ms, row, head = commit.now_ms, keys.aged_key(topic), commit.head(topic)
    noted = load_looks(commit.tx, topic)
    if head is None or head.recorded_ms <= now_ms:
        if noted:
            commit.tx.put(row, b"")
        return 0
    looks = [(at - set_back_ms(at, now_ms), last) for at, last in noted]
    bound = max([last for at, last in looks if at < now_ms - age_ms], default=0)
    kept = [one for one in looks if one[1] > bound]
    if not kept or kept[-1][0] <= now_ms - age_ms // _LOOKS_NOTED:
        kept.append((now_ms, head.latest))
    if kept != noted:
        commit.tx.put(row, msgspec.msgpack.encode(kept))
    return bound


def _bytes_bound(view: TopicView, limit: int) -> int:
    """The last position that does not fit when the newest blocks may take `limit` bytes; the newest always stays."""
    total = 0
    for key, value in view.snap.scan(*keys.block_range(view.topic_id), reverse=True):
        newest = total == 0
        total += stored_size(value)
        if total > limit and not newest:
            return open_block(view.snap, key, value, view.name).last
    return 0


def compact_by_key(writer: Writer, topic: str, holds: Sequence[Hold]) -> int:
    """Keeps only the newest event of every key (and every event without a key); returns how many went.

    Nothing goes that a queue holds. The topic is read beside the writer, twice; each commit exchanges a few blocks.
    """

    def begin(commit: Commit) -> tuple[int, int, int]:
        head = commit.head(topic)
        if head is None:
            return 0, 0, 0
        sealed = load_state(commit.tx, head.topic_id, topic).sealed
        return head.topic_id, sealed, held_back(commit, topic, head.latest, holds)[0]

    topic_id, at, through = writer.run_relaxed(begin)
    if through <= at:
        return 0
    newest = _newest_positions(writer.engine, topic_id, topic, at)
    removed = tries = 0
    while at < through and tries < _TRIES:
        with writer.engine.read() as snap:
            thinned, reached = _newest_only(snap, topic_id, topic, at, through, newest)
        if thinned and not writer.run_relaxed(exchange, topic, topic_id, thinned):
            tries += 1  # merged or removed since they were read
            continue
        removed += sum(one.removed for one in thinned)
        at, tries = reached, 0

    def end(commit: Commit) -> None:
        head = commit.head(topic)
        if head is not None and head.topic_id == topic_id:
            state = load_state(commit.tx, topic_id, topic)
            if state.compacted < through:
                save_state(commit.tx, topic_id, replace(state, compacted=through))

    writer.run_relaxed(end)
    return removed


def _newest_positions(engine: Engine, topic_id: int, topic: str, after: int) -> dict[str, int]:
    """Where the newest event of every key lies."""
    newest: dict[str, int] = {}
    more = True
    while more:
        more = False
        with engine.read() as snap:
            scanned = 0
            for _, value, block, *_ in stored_blocks(snap, topic_id, topic, after + 1, keys.MAX_SEQ):
                if scanned >= SCAN_BYTES:  # a snapshot held for long keeps the engine from cleaning up
                    more = True
                    break
                newest.update(
                    (key, seq)
                    for key, seq in zip(text_values(block.wire.key, block.count), block.seqs, strict=True)
                    if key is not None
                )
                scanned += stored_size(value)
                after = block.last
    return newest


def _newest_only(
    snap: Snapshot, topic_id: int, topic: str, after: int, through: int, newest: dict[str, int]
) -> tuple[list[ThinnedBlock], int]:
    """The next blocks that have events whose keys come again, without them; and how far it came."""
    thinned: list[ThinnedBlock] = []
    size = scanned = 0
    for stored in stored_blocks(snap, topic_id, topic, after + 1, through):
        block = stored.block
        if size >= EXCHANGE_BYTES or scanned >= SCAN_BYTES or len(thinned) == RETENTION_BLOCKS:
            return thinned, block.first - 1
        kept = [
            row
            for row, (key, seq) in enumerate(zip(text_values(block.wire.key, block.count), block.seqs, strict=True))
            if key is None or seq > through or seq >= newest.get(key, 0)
        ]
        scanned += stored_size(stored.value)
        if len(kept) < block.count:
            thinned.append(without(stored, kept))
            size += stored_size(stored.value)
    return thinned, through


# ── Taking single events out of stored blocks: read and rewritten beside the writer, exchanged a few blocks at a time


class BlockRow(NamedTuple):
    """A block with its key and value in the store."""

    key: bytes
    value: bytes
    block: Block
    first: int
    last: int


class ThinnedBlock(msgspec.Struct, frozen=True):
    """A block as it is stored, and what is to lie in its place."""

    key: bytes
    value: bytes
    last: int
    removed: int
    """How many events go."""
    first: int
    """Where the first one lies that stays; 0: none does."""
    kept: bytes


def stored_blocks(snap: Snapshot, topic_id: int, topic: str, start: int, stop: int) -> Iterator[BlockRow]:
    """The stored blocks with events in start … stop, ascending; Corrupt when one is missing between them.

    What is rewritten here counts as compacted afterwards, and no check could tell a lost block from a removed one.
    """
    record = load_record(snap, topic)
    if record is None or record.topic_id != topic_id:
        return  # dropped since: its blocks are being cleared away, and none of them is lost
    view = TopicView(snap, topic, record)
    yield from view.hot_blocks(max(start - 1, view.state().sealed), stop, _open_stored)


def _open_stored(snap: Snapshot, key: bytes, value: bytes, topic: str) -> BlockRow:
    block = open_block(snap, key, value, topic)
    return BlockRow(key, value, block, block.first, block.last)


def without(stored: BlockRow, kept: Sequence[int]) -> ThinnedBlock:
    """A block of which only some rows stay."""
    key, value, block, *_ = stored
    first = block.seq(kept[0]) if kept else 0
    return ThinnedBlock(key, value, block.last, block.count - len(kept), first, select(block, kept) if kept else b"")


def in_steps(blocks: Sequence[ThinnedBlock]) -> Iterator[list[ThinnedBlock]]:
    """As many at a time as one commit should exchange."""
    return in_parts(blocks, lambda block: stored_size(block.value), EXCHANGE_BYTES, RETENTION_BLOCKS)


def exchange(commit: Commit, topic: str, topic_id: int, part: Sequence[ThinnedBlock]) -> bool:
    """Puts thinned blocks in the place of what was stored; False when that has changed since it was read."""
    head, tx = commit.head(topic), commit.tx
    if head is None or head.topic_id != topic_id or any(tx.get(one.key) != one.value for one in part):
        return False
    commit.reshape()
    for one in part:
        tx.delete(one.key)
        if one.first:
            tx.put(keys.block_key(topic_id, one.first), one.kept)
    drop_index(tx, topic_id, topic)
    head.newest = None
    state = load_state(tx, topic_id, topic)
    removed = state.removed + sum(one.removed for one in part)
    compacted = max(state.compacted + 1, *(one.last for one in part))  # another number: saved states are void by it
    save_with_end(tx, head, replace(state, removed=removed, compacted=compacted))
    return True


# ── Merging small blocks of a topic's tail, in passing ──
# One commit makes one block, so that many small commits leave many small blocks. When enough small neighbours have
# gathered they become one: first the smallest among themselves, and when enough of the results have gathered, those. A
# block of `MERGED_BYTES` or more is left alone. The reading and joining happens beside the writer; only the exchange
# takes its turn, in a commit that need not be on disk (a lost merge loses nothing).


_TAIL_BLOCKS = 16 * MERGE_FAN_IN
_Row = tuple[bytes, bytes]


def merge_tail(writer: Writer, topic: str, *, below: int, fan_in: int = MERGE_FAN_IN) -> int:
    """Merges the trailing blocks smaller than `below` bytes if there are `fan_in` of them; returns how many were."""
    noted = writer.catalog.reshaped
    tail: list[_Row] = []
    with writer.engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return 0
        for key, value in snap.scan(*keys.block_range(record.topic_id), reverse=True):
            if stored_size(value) >= below or len(tail) == _TAIL_BLOCKS:
                break
            tail.append((key, value))
        if len(tail) < max(2, fan_in):
            return 0
        tail.reverse()
        chunks = list(_chunks(snap, tail, topic))
        covered = load_directory(snap, record.topic_id, topic).through if record.settings.indexed else keys.MAX_SEQ
    merged = 0
    for run, blocks in chunks:
        wire = joined(blocks)
        value, about = seal(wire), range_rows(wire, indexed=keys.block_first(run[-1][0]) > covered)
        if writer.run_relaxed(_put_joined, topic, record.topic_id, run, wire, value, about, noted):
            merged += len(run)
    return merged


def _chunks(snap: Snapshot, run: list[_Row], topic: str) -> Iterator[tuple[list[_Row], list[Block]]]:
    """Cuts a run where a merged block would grow past the usual size."""
    chunk: list[_Row] = []
    blocks: list[Block] = []
    size = events = 0
    for key, value in run:
        block = open_block(snap, key, value, topic)
        if chunk and (size + len(value) > BLOCK_BYTES or events + block.count > BLOCK_EVENTS):
            if len(chunk) > 1:
                yield chunk, blocks
            chunk, blocks, size, events = [], [], 0, 0
        chunk.append((key, value))
        blocks.append(block)
        size += len(value)
        events += block.count
    if len(chunk) > 1:
        yield chunk, blocks


def _put_joined(
    commit: Commit,
    topic: str,
    topic_id: int,
    run: list[_Row],
    wire: Wire,
    value: bytes,
    about: RangeRows | None,
    noted: int,
) -> bool:
    """Puts a merged block in the place of its parts, unless they have changed since they were read."""
    first, last = run[0][0], run[-1][0]
    if commit.catalog.reshaped != noted and list(commit.tx.scan(first, last + b"\0")) != run:
        return False
    commit.exchange()
    commit.tx.delete_range(first + b"\0", last + b"\0")
    commit.tx.put(first, value)
    if wire.seqs is None:
        replace_range_rows(commit.tx, topic_id, topic, wire.first, wire.first + wire.count - 1, about)
    return True


# ── Summaries: neighbours become one row, and blocks that have none, from an earlier version, get theirs ──


def join_summaries(writer: Writer, topic: str, *, fan_in: int) -> None:
    """Puts the newest summaries, if there are `fan_in` rows that are not full, into rows of `SUMMARY_RANGES` each."""
    rows: list[_Row] = []
    ranges: list[Summary] = []
    with writer.engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return
        for key, value in snap.scan(*keys.topic_range(keys.SUMMARY, record.topic_id), reverse=True):
            found = read_summaries(value, topic)
            if len(found) >= SUMMARY_RANGES:
                break
            rows.append((key, value))
            ranges[:0] = found
    if len(rows) < fan_in:
        return
    rows.reverse()
    parts = [ranges[at : at + SUMMARY_RANGES] for at in range(0, len(ranges), SUMMARY_RANGES)]

    def exchange(commit: Commit) -> None:
        first, last = rows[0][0], rows[-1][0] + b"\0"
        if commit.is_current(topic, record.topic_id) and list(commit.tx.scan(first, last)) == rows:
            commit.tx.delete_range(first, last)
            for part in parts:
                commit.tx.put(keys.summary_key(record.topic_id, part[0].first), pack_summaries(part))

    writer.run_relaxed(exchange)


def fill_summaries(
    writer: Writer,
    topic: str,
    stopped: Callable[[], bool] = lambda: False,
    *,
    after: int = 0,
    hashed: bool = False,
) -> None:
    """Makes the summaries of blocks after a position that have none, some at a time; `hashed`: their hashes, too."""
    while not stopped():
        with writer.engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None:
                return
            indexed = hashed and view.record.settings.indexed
            made, after = _unsummarised(view, max(after, view.state().trimmed, view.state().sealed), indexed)
        if made:
            writer.run_relaxed(_keep_summaries, topic, view.topic_id, made)
        if len(made) < SUMMARY_RANGES:
            return


def _unsummarised(view: TopicView, after: int, indexed: bool) -> tuple[dict[int, RangeRows], int]:
    """The rows about some blocks after a position, by the first positions of these, and how far was looked."""
    made: dict[int, RangeRows] = {}
    for low, high in view.spans(after, keys.MAX_SEQ, EVERYTHING, occurred=(1, 0)):
        for block in view.hot_blocks(low, high, open_block):
            after = block.last
            if low < block.first and block.last <= high:
                about = range_rows(block.wire, indexed=indexed and block.wire.seqs is None)
                made |= {block.first: about} if about is not None else {}
            if len(made) == SUMMARY_RANGES:
                return made, after
    return made, after


def _keep_summaries(commit: Commit, topic: str, topic_id: int, made: Mapping[int, RangeRows]) -> None:
    if commit.is_current(topic, topic_id):
        for first, about in made.items():
            put_range_rows(commit.tx, topic_id, first, about)


# ── Dropping a topic: one small commit makes it invisible, housekeeping clears its rows away a little at a time ──
#     g topic                   a topic that was dropped, whose rows are not all cleared yet (msgpack)
#
# The commit removes the topic's name and writes down its id; the rows under that id are then what no reader and no
# writer can reach. A process that is killed in the middle leaves the id, and the next one that opens the journal goes
# on. Numbers are never given out again, so that nothing of a topic can turn up in one of that name made later. Nor are
# positions: where the topic ended is kept under its name, and the next one begins after it.


_OWN = (
    keys.STATE,
    keys.BLOCK,
    keys.SUMMARY,
    keys.HASHES,
    keys.LEAVES,
    keys.CURSOR,
    keys.DEDUP,
    keys.SEALS,
    keys.SEGMENT,
    INDEX,
)

_STEP_ROWS = 1024
"""Rows that one commit removes at the most, so that no caller waits long behind it."""

KeyRange = tuple[bytes, bytes]
RowsOf = Callable[[int], Iterable[KeyRange]]
"""Where a layer keeps the rows of a topic."""
DropHook = Callable[[Commit, str, int], None]
"""Removes what a layer keeps under a topic's name, in the commit that drops it."""
UsersOf = Callable[[Commit, str], Iterable[str]]
"""What a layer knows of the topic being needed, for people."""


class DropReport(msgspec.Struct, frozen=True):
    """What was dropped with a topic."""

    topic: str
    events: int
    """Events that were stored, sealed ones included."""
    files: list[str] = []
    """Parquet files of sealed history: they stay where they are, and no journal knows them any more."""


class DroppedTopic(msgspec.Struct, array_like=True, frozen=True):
    """A topic whose rows are being cleared away."""

    name: str
    dropped_ms: int


_encode = msgspec.msgpack.Encoder().encode


class DropRules:
    """What the layers add to dropping a topic."""

    def __init__(self) -> None:
        self.users: list[UsersOf] = [_cursors_and_files]
        self.hooks: list[DropHook] = []
        self.rows: list[RowsOf] = [_journal_rows]

    def ranges(self, topic_id: int) -> list[KeyRange]:
        """Everywhere rows of a topic may be."""
        return [found for rows in self.rows for found in rows(topic_id)]


def _journal_rows(topic_id: int) -> list[KeyRange]:
    return [keys.topic_range(prefix, topic_id) for prefix in _OWN]


def _cursors_and_files(commit: Commit, topic: str) -> Iterable[str]:
    head = commit.head(topic)
    if head is None:
        return
    for consumer, seq in read_cursors(commit.tx, head.topic_id).items():
        yield f"the cursor of {consumer!r} at {seq}"
    files = len(sealed_files(commit.tx, head.topic_id))
    if files:
        yield f"{files} sealed file{'s' if files > 1 else ''} that would stay in the lake unknown to the journal"


def drop_topic(commit: Commit, topic: str, force: bool, rules: DropRules) -> DropReport:
    """Makes a topic invisible; TopicInUse when something needs it, unless forced."""
    commit.flush()
    head = commit.head(topic)
    if head is None:
        raise _unknown(commit.tx, topic)
    commit.check_barrier(topic)
    used = [] if force else [user for users in rules.users for user in users(commit, topic)]
    if used:
        raise TopicInUse(
            f"topic {topic!r} is in use by {_named(used)}: end these first, or drop it with them by force "
            "(force=True, --force)"
        )
    view = TopicView(commit.tx, topic, TopicRecord(head.topic_id, head.settings))
    files = [one.shown(file.path) for one in load_segments(commit.tx, head.topic_id) for file in one.files]
    report = DropReport(topic, view.count(), files)
    for hook in rules.hooks:
        hook(commit, topic, head.topic_id)
    commit.tx.delete(keys.topic_key(topic))
    commit.tx.delete(keys.aged_key(topic))
    for prefix in (keys.NAME, keys.OTHER_IDS, keys.UNFOLDED):
        commit.tx.delete(prefix + keys.hashed_topic(topic, head.topic_id))
    commit.tx.put(keys.dropped_key(head.topic_id), _encode(DroppedTopic(topic, commit.now_ms)))
    save_end(commit.tx, head)
    commit.forget_topic(topic)
    return report


def _unknown(snap: Snapshot, topic: str) -> UnknownTopic:
    """The error that a topic is not there, with the nearest name of those that are."""
    import difflib

    close = difflib.get_close_matches(topic, list(topic_names(snap)), 1)
    return UnknownTopic(f"there is no topic {topic!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def _named(used: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    rest = len(used) - most
    return ", ".join(used[:most]) + (f" and {rest} more" if rest > 0 else "")


def clear_dropped(writer: Writer, rules: DropRules, stopped: Callable[[], bool]) -> bool:
    """Removes the rows of every dropped topic, in small commits; whether there were any."""
    with writer.engine.read() as snap:
        scanned = snap.scan(keys.DROPPED, keys.prefix_end(keys.DROPPED))
        topic_ids = [keys.dropped_topic(key) for key, _ in scanned if key[1:]]
    for topic_id in topic_ids:
        ranges = rules.ranges(topic_id)
        for low, high in ranges:
            if not clear_rows(writer, low, high, stopped):
                return True
        from penstock.journal.bulk import sweep_staged

        sweep_staged(writer)
        writer.run_relaxed(_finish, topic_id, ranges)
    if topic_ids:
        writer.reclaim()
    return bool(topic_ids)


def clear_rows(writer: Writer, low: bytes, high: bytes, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Removes the rows between two keys, in small commits; False when it was stopped before the end."""
    while not stopped():
        with writer.engine.read() as snap:
            upto = _some(snap, low, high)
        if upto is None:
            return True
        writer.run_relaxed(_delete, low, upto)
        low = upto
    return False


def _some(snap: Snapshot, low: bytes, high: bytes) -> bytes | None:
    """A key before which there is as much as one commit should remove; None when there is nothing."""
    size, last = 0, None
    for count, (key, value) in enumerate(snap.scan(low, high)):
        if count == _STEP_ROWS or size > RETENTION_BYTES:
            return key
        size += len(key) + len(value)
        last = key
    return None if last is None else last + b"\0"


def _delete(commit: Commit, low: bytes, upto: bytes) -> None:
    commit.tx.delete_range(low, upto)


def _finish(commit: Commit, topic_id: int, ranges: Sequence[KeyRange]) -> None:
    """Forgets the id, unless a row turned up again: then the next time."""
    if not any(next(iter(commit.tx.scan(*between)), None) for between in ranges):
        commit.tx.delete(keys.dropped_key(topic_id))

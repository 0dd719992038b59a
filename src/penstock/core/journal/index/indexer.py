"""The building of the entity index: the newest events become a run, and runs become larger runs.

A separate thread beside the writer builds the index, in small commits that need not be on disk: a lost run is built
again. Every run costs one read and one write of its events. The number of levels is the number of digits of the topic's
size to the base `INDEX_FAN_IN`. New runs come before larger runs, because a look-up is faster with many runs than with
events that no run covers. When the journal has little work, runs are merged until there are as few as `maintain()`
would leave.

Several processes may build at the same time. The process that lists its run first wins; the other process discards its
run.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, islice

from msgspec.structs import replace

from penstock.core.engine.contract import Engine
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, text_values
from penstock.core.journal.catalog import last_block, load_record, load_state, topic_names
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import EntityIndex
from penstock.core.journal.index.memtable import Memtable
from penstock.core.journal.index.runs import (
    CAUSES,
    CORRELATIONS,
    ENTITIES,
    FILTER,
    TAGS,
    BloomFilter,
    Breathe,
    Chunk,
    Directory,
    IndexRows,
    Run,
    chunk_rows,
    chunks_of,
    event_rows,
    go_on,
    hashes_of_terms,
    load_directory,
    merged,
    read_chunk,
    run_key,
    save_directory,
    sorted_sources,
    tags_of,
    term_rows,
)
from penstock.core.journal.locating import CausalNotes, is_crowded
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import Segment
from penstock.core.journal.summaries import forget_hashes
from penstock.core.journal.upkeep.dropping import clear_rows
from penstock.core.journal.waking import Background
from penstock.core.journal.writer import Writer
from penstock.core.observe.logs import Log
from penstock.core.units import in_parts
from penstock.errors import Closed, PenstockError
from penstock.limits import (
    INDEX_CALM_SECONDS,
    INDEX_FAN_IN,
    INDEX_FILTER_TERMS,
    INDEX_MEMORY_BYTES,
    INDEX_RUN_BYTES,
    INDEX_RUN_EVENTS,
    INDEX_STEP_BYTES,
    INDEX_WAITING_EVENTS,
)

log = Log("penstock.indexer")

_WORK_SECONDS, _REST_SECONDS = 0.001, 0.0002
_WAY_SECONDS, _TURN_SECONDS = 0.001, 0.0003
"""The pause while a look-up runs, because a look-up needs the interpreter many times; and the time of work between
two pauses.
"""
_STALL_SECONDS, _STALL_STEP_SECONDS = 1.0, 0.002
"""The longest time that a batch waits for the indexer to catch up, and the pause between two checks."""
_READ_CHUNKS = 4
"""The number of chunks of one run that a merge reads at once."""
_CALM = 16
"""The number of commits between two checks below which a journal has time for further merging."""


class Indexer(Background):
    """Builds and merges the runs of a journal's topics."""

    def __init__(self, writer: Writer, index: EntityIndex) -> None:
        super().__init__("penstock-indexer", log)
        self._engine = writer.engine
        self._writer = writer
        self._index = index
        index.crowded = self.request_merge
        self._to_merge: set[str] = set()
        """Topics whose runs are to be checked when the journal has little work."""
        self.commits = 0
        """The number of commits of events, which the journal counts."""
        self._turn = threading.Lock()
        self._left = False
        """True if an earlier process has left events without an index."""
        self.notes = CausalNotes(writer, lambda: self._closed, self._yield_to_others)
        self._folding = False
        """True if topics are to be folded."""
        self._worked_since = 0.0
        self._lookups = 0

    def begin(self) -> None:
        """Schedules the events that an earlier process has not indexed, for a time when the journal has little work."""
        with self._engine.read() as snap:
            self._left = next(iter(snap.scan(keys.HASHES, keys.prefix_end(keys.HASHES))), None) is not None
            crowded = is_crowded(snap)
        if self._left:
            self._wake()
        if crowded:
            self.request_fold()

    def request_merge(self, topic: str) -> None:
        """Requests a merge into few runs when the journal has little work: a look-up had to ask many runs."""
        if topic not in self._to_merge and not self._engine.read_only:
            self._to_merge.add(topic)
            self._wake()

    def request_fold(self) -> None:
        """Requests that topics are folded (see `journal.locating`), because many topics are not folded."""
        self._folding = True
        self._wake()

    def at_rest(self, topic: str) -> bool:
        """Returns True if everything is indexed, in as few runs as there will be without further events."""
        if self._is_due(topic):
            return False
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            return record is None or not until_few(load_directory(snap, record.topic_id, topic).runs)

    def consider(self, topic: str) -> None:
        """Requests a check of a topic if enough events have gathered."""
        self._forget_removed(topic)
        if self._is_due(topic):
            self.request(topic)

    def _forget_removed(self, topic: str) -> None:
        """Removes from memory the events that retention has removed.

        This is needed for a topic that keeps fewer events than a run has: no run ever covers it.
        """
        if topic in self._index.memtables:
            with self._engine.read() as snap:
                record = load_record(snap, topic)
                trimmed = 0 if record is None else load_state(snap, record.topic_id, topic).trimmed
            if record is not None:
                self._index.cut(topic, record.topic_id, trimmed)

    def index(self, topic: str, *, thorough: bool = False) -> None:
        """Does the pending work for a topic now. With `thorough`, all events go into few runs."""
        with self._turn:
            while not self._closed and self._gather(topic, thorough):
                pass
            self._merge_all(topic, thorough)

    def _merge_all(self, topic: str, thorough: bool) -> None:
        while not self._closed and self._merge(topic, thorough):
            pass
        self._clear(topic)

    def _yield_to_others(self) -> None:
        """Lets other threads run: for a look-up immediately, otherwise after a millisecond of work.

        Without this pause, a thread that waits for the interpreter waits five milliseconds, until this thread is forced
        to release it.
        """
        worked, lookups = time.monotonic() - self._worked_since, self._index.lookups
        if lookups != self._lookups:
            if worked < _TURN_SECONDS:
                return
            self._lookups = lookups
            time.sleep(_WAY_SECONDS)
        elif worked > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
        else:
            return
        self._worked_since = time.monotonic()

    def _run(self) -> None:
        seen = (0, 0)
        while not self._closed:
            if self._wanted.wait(INDEX_CALM_SECONDS if self._to_merge or self._left else None):
                self._wanted.clear()
                self._do_due()
                seen = (self.commits, self._changes())
                continue
            now = (self.commits, self._changes())
            # Commits of other processes are not counted, but the store's change counter shows them.
            if now[0] - seen[0] < _CALM and (now[1] == seen[1] or now[0] != seen[0]):
                if self._left:
                    self._left = False
                    self._attempt("indexing what was left", self._take_up)
                    continue
                with self._lock:
                    topic = self._to_merge.pop()
                self._attempt(f"indexing topic {topic!r}", partial(self._merge_in_turn, topic))
            seen = (self.commits, self._changes())

    def _take_up(self) -> None:
        """Requests a check of the topics with events that no run covers."""
        with self._engine.read() as snap:
            numbers: set[int] = set()
            at = keys.HASHES
            while found := next(iter(snap.scan(at, keys.prefix_end(keys.HASHES))), None):
                numbers.add(topic_id := keys.topic_of(found[0]))
                at = keys.topic_range(keys.HASHES, topic_id)[1]
            records = {name: load_record(snap, name) for name in list(topic_names(snap))}
        for name, record in records.items():
            if record is not None and record.topic_id in numbers:
                self.request(name)

    def _changes(self) -> int:
        """Returns the store's change counter; 0 when it cannot be read now, as if nothing had changed."""
        try:
            return self._engine.changes()
        except Closed:
            self._closed = True
        except PenstockError as error:
            log.warning("the store did not tell whether it was written to: %s", error)
        return 0

    def _do_due(self) -> None:
        while not self._closed:
            if self._folding:
                self._folding = False
                self._attempt("noting causes", self.notes.fold)
            topic = self._next_due()
            if topic is None:
                return
            self._to_merge.add(topic)
            self._attempt(f"indexing topic {topic!r}", partial(self._index_if_due, topic))

    def _index_if_due(self, topic: str) -> None:
        self._fill_memtable(topic)
        if self._is_due(topic):
            self.index(topic)

    def _fill_memtable(self, topic: str) -> None:
        """Creates a topic's memtable, to which the writer then adds events.

        So a look-up during a bulk load finds it ready.
        """
        if topic not in self._index.memtables:
            with self._engine.read() as snap:
                view = TopicView.open(snap, topic)
                if view is not None and view.record.settings.indexed:
                    self._index.open(view)

    def make_room(self, topic: str) -> None:
        """Delays a batch for a moment while too many events of its topic are in no run yet.

        It is called before a batch is appended.

        So the load is no faster than the indexing beside it, as in other log-structured stores, and a look-up never has
        to search more events than fit in memory. The delay is limited: if the indexer fails, a caller must not wait
        without end.
        """
        memtable = self._index.memtables.get(topic)
        if memtable is None or not _is_full(memtable):
            return
        head = self._writer.catalog.heads.get(topic)
        if head is None or not head.settings.indexed or self._closed:
            return
        self.request(topic)
        until = time.monotonic() + _STALL_SECONDS
        while memtable is not None and _is_full(memtable) and time.monotonic() < until:
            time.sleep(_STALL_STEP_SECONDS)
            memtable = self._index.memtables.get(topic)

    def _merge_in_turn(self, topic: str) -> None:
        with self._turn:
            self._merge_all(topic, thorough=True)

    # ── new runs ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _is_due(self, topic: str) -> bool:
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            if record is None or not record.settings.indexed:
                return False
            block = last_block(snap, record.topic_id, topic)
            if block is None:
                return False
            directory = load_directory(snap, record.topic_id, topic)
            state = load_state(snap, record.topic_id, topic)
            base = max(directory.through, state.trimmed)
            if state.referred > base:
                return True
            waiting = block.last - base
            size = waiting * (block.payload_size // block.count + 48)
            return waiting >= INDEX_RUN_EVENTS or size >= INDEX_RUN_BYTES or bool(directory.rubbish)

    def _gather(self, topic: str, thorough: bool) -> bool:
        """Makes a run of the events that no run covers. Returns False when there are too few of them."""
        with self._engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None or not view.record.settings.indexed:
                return False
            directory = load_directory(snap, view.topic_id, topic)
            base = max(directory.through, view.trimmed())
            segment = next(view.bulk_segments(base, keys.MAX_SEQ), None)
            through = view.latest() if segment is None else segment.first - 1
            found = view.blocks(base, through)
            blocks = blocks_of_a_run(found, through, not directory.runs, self._yield_to_others)
            last = blocks[-1].last if blocks else base
            if segment is not None and last >= through:  # the index continues after the segment
                last = _end_of_bulk(view, segment)
            elif not blocks or not (thorough or are_enough(blocks)):
                return False
            sources = first_sources(blocks, base, self._yield_to_others)

        def advance(found: Directory) -> Directory | None:
            return replace(found, through=last) if found.through == directory.through else None

        run = self._building(topic, view.topic_id, directory, (base + 1, last), 0)
        done = run.build(sources, advance)
        if done:
            self._index.cut(topic, view.topic_id, last)
        return done

    def _building(
        self, topic: str, topic_id: int, directory: Directory, positions: tuple[int, int], level: int
    ) -> Building:
        return Building(
            self._writer,
            topic,
            topic_id,
            directory.epoch,
            positions,
            level,
            self._yield_to_others,
            lambda: self._closed,
        )

    # ── larger runs ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _merge(self, topic: str, thorough: bool) -> bool:
        """Merges several neighbouring runs into one. Returns False when no runs are worth merging."""
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            if record is None:
                return False
            directory = load_directory(snap, record.topic_id, topic)
            trimmed = load_state(snap, record.topic_id, topic).trimmed
        parts = worth_merging(directory.runs, thorough)
        if not parts:
            return False
        level = max(run.level for run in parts) + (0 if thorough else 1)
        run = self._building(topic, record.topic_id, directory, (parts[0].first, parts[-1].last), level)
        sources = {
            section: [
                stored_rows(self._engine, topic, record.topic_id, part, section, trimmed, self._yield_to_others)
                for part in parts
                if section.decode() in part.sections
            ]
            for section in (ENTITIES, CAUSES, CORRELATIONS, TAGS)
        }
        ids = {part.id for part in parts}

        def exchange(found: Directory) -> Directory | None:
            if not ids <= {one.id for one in found.runs}:
                return None
            left = tuple(one for one in found.runs if one.id not in ids)
            return replace(found, runs=left, rubbish=(*found.rubbish, *sorted(ids)))

        return run.build(sources, exchange)

    # ── rubbish ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _clear(self, topic: str) -> None:
        """Deletes the chunks of runs that are no longer listed, some at a time."""
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            rubbish = () if record is None else load_directory(snap, record.topic_id, topic).rubbish
        for run in rubbish:
            assert record is not None
            rows = run_key(record.topic_id, run), run_key(record.topic_id, run + 1)
            if clear_rows(self._writer, *rows, lambda: self._closed):
                self._writer.run_relaxed(forget_rubbish, topic, record.topic_id, run)


def forget_rubbish(commit: Commit, topic: str, topic_id: int, run: int) -> None:
    """Removes a run from the list of rubbish when its rows are deleted."""
    if commit.is_current(topic, topic_id):
        directory = load_directory(commit.tx, topic_id, topic)
        left = tuple(other for other in directory.rubbish if other != run)
        save_directory(commit.tx, topic_id, replace(directory, rubbish=left))


def _end_of_bulk(view: TopicView, first: Segment) -> int:
    """Returns the end of the bulk segments that follow one another from the first on."""
    last = first.last
    for segment in view.bulk_segments(last, keys.MAX_SEQ):
        if segment.first > last + 1:
            break
        last = segment.last
    return last


def _is_full(memtable: Memtable) -> bool:
    """Returns True if the events in no run are more than a look-up should search, or more than memory should hold."""
    return len(memtable) > INDEX_WAITING_EVENTS or memtable.size > INDEX_MEMORY_BYTES


# ── Writing a run of the entity index: announced, filled in steps, then listed or thrown away ──


_ABANDONED_MS = 3_600_000
"""The age in milliseconds after which an unfinished run counts as abandoned."""

Change = Callable[[Directory], Directory | None]
Sources = Mapping[bytes, Sequence[Iterator[IndexRows]]]
"""The sources of each section's rows. Each source is sorted, and the sources are in order of their positions."""


class Building:
    """A run that is being written."""

    def __init__(
        self,
        writer: Writer,
        topic: str,
        topic_id: int,
        epoch: int,
        positions: tuple[int, int],
        level: int,
        breathe: Breathe = go_on,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._writer = writer
        self._topic, self._topic_id, self._epoch = topic, topic_id, epoch
        self._positions = positions
        self._level = level
        self._yield_to_others, self._stopped = breathe, stopped
        self._id = self._size = 0
        self._sections = ""
        self._hashes = array("I")

    def build(self, sources: Sources, change: Change) -> bool:
        """Writes the run and lists it in the directory that `change` makes.

        Discards the run when `change` returns None.

        Also returns False when the index has changed too much meanwhile, or the journal is closing.
        """
        if any(sources.values()):
            if not self._do(self._announce):
                return False
            for section, some in sources.items():
                for part in in_parts(self._chunks(section, some), _chunk_size, INDEX_STEP_BYTES):
                    if self._stopped():
                        return False
                    self._write(section, part)
            if 0 < len(self._hashes) <= INDEX_FILTER_TERMS:
                self._do(partial(self._put, FILTER, [(b"", BloomFilter.build(self._hashes, self._yield_to_others))]))
        return self._do(partial(self._list, change))

    def _chunks(self, section: bytes, sources: Sequence[Iterator[IndexRows]]) -> Iterator[Chunk]:
        windows = merged(sources, self._yield_to_others)
        return chunks_of(self._hashed(windows) if section == ENTITIES else windows, self._yield_to_others)

    def _hashed(self, windows: Iterator[IndexRows]) -> Iterator[IndexRows]:
        """Yields the windows, and records the hashes of their entities for the filter."""
        for window in windows:
            if len(self._hashes) <= INDEX_FILTER_TERMS:
                self._hashes.extend(hashes_of_terms(dict.fromkeys(window.terms)))
            yield window

    def _write(self, section: bytes, chunks: Sequence[Chunk]) -> None:
        self._do(partial(self._put, section, chunks))
        self._size += sum(map(_chunk_size, chunks))
        if section.decode() not in self._sections:
            self._sections += section.decode()

    # ── in commits ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _do(self, apply: Callable[[Commit, Directory], bool]) -> bool:
        """Runs a step in its own commit, unless the topic was dropped: the housekeeper would not remove the step's
        rows.
        """

        def step(commit: Commit) -> bool:
            if not commit.is_current(self._topic, self._topic_id):
                return False
            return apply(commit, load_directory(commit.tx, self._topic_id, self._topic))

        return self._writer.run_relaxed(step)

    def _announce(self, commit: Commit, directory: Directory) -> bool:
        if directory.epoch != self._epoch:
            return False
        self._id = directory.next
        stale = [run for run, since in directory.building if commit.now_ms - since > _ABANDONED_MS]
        building = [one for one in directory.building if one[0] not in stale]
        building.append((self._id, commit.now_ms))
        rubbish = (*directory.rubbish, *stale)
        announced = replace(directory, next=self._id + 1, building=tuple(building), rubbish=rubbish)
        save_directory(commit.tx, self._topic_id, announced)
        return True

    def _put(self, section: bytes, chunks: Sequence[Chunk], commit: Commit, _: Directory) -> bool:
        for mark, value in chunks:
            commit.tx.put(run_key(self._topic_id, self._id, section, mark), value)
        return True

    def _list(self, change: Change, commit: Commit, directory: Directory) -> bool:
        """Lists the run. A run without a number had nothing to write."""
        left = tuple(one for one in directory.building if one[0] != self._id)
        mine = not self._id or len(left) < len(directory.building)
        rest = replace(directory, building=left)
        changed = change(rest) if mine and directory.epoch == self._epoch else None
        if changed is None:
            if self._id and self._id not in rest.rubbish:
                save_directory(commit.tx, self._topic_id, replace(rest, rubbish=(*rest.rubbish, self._id)))
            return False
        runs = changed.runs
        if self._sections:
            terms = len(self._hashes) if len(self._hashes) <= INDEX_FILTER_TERMS else 0
            level = max(self._level, _level(self._size))
            run = Run(self._id, *self._positions, level, self._size, terms, self._sections)
            runs = tuple(sorted([*runs, run], key=lambda one: one.first))
        save_directory(commit.tx, self._topic_id, replace(changed, runs=runs))
        forget_hashes(commit.tx, self._topic_id, changed.through)
        return True


def _chunk_size(chunk: Chunk) -> int:
    return len(chunk[1])


def _level(size: int) -> int:
    """Returns the level that a run of this size would have reached by merging runs of the usual size."""
    level, bound = 0, INDEX_FAN_IN * INDEX_RUN_BYTES
    while size >= bound:
        level, bound = level + 1, bound * INDEX_FAN_IN
    return level


# ── What goes into a run: which blocks make a first one, which neighbours become one, and the chunks of the first ──
# The functions below write no run and wait for nothing: `Indexer` calls them, and `Building` writes.


def blocks_of_a_run(blocks: Iterator[Block], latest: int, alone: bool, breathe: Breathe) -> list[Block]:
    """Returns the blocks for one run.

    The run has a few times the usual size when the index is behind. It has twice that size when there are no other runs
    and the whole topic fits, because smaller runs would be merged into one.
    """
    found: list[Block] = []
    size = count = 0
    for block in blocks:
        breathe()
        found.append(block)
        count += block.count
        size += block.payload_size + 48 * block.count
        left = (latest - block.last) * size // count
        if size >= 4 * INDEX_RUN_BYTES and not (alone and size + left <= 8 * INDEX_RUN_BYTES):
            break
    return found


def are_enough(blocks: Sequence[Block]) -> bool:
    """Returns True if blocks are worth a run of their own."""
    events = sum(block.count for block in blocks)
    return events >= INDEX_RUN_EVENTS or sum(block.payload_size for block in blocks) + 48 * events >= INDEX_RUN_BYTES


def first_sources(blocks: Sequence[Block], base: int, breathe: Breathe) -> Sources:
    """Returns the sources of a first run: the events of blocks after a position, each event once, wherever a block
    begins.
    """
    bases = list(accumulate((block.last for block in blocks), max, initial=base))
    after = list(zip(blocks, bases, strict=False))

    def terms(name: str) -> Iterator[IndexRows]:
        for block, base in after:
            column = getattr(block.wire, name)
            if column is not None:
                yield term_rows(text_values(column, block.count), block.seqs, base)

    def tags() -> Iterator[IndexRows]:
        for block, base in after:
            if block.wire.tags is not None:
                yield term_rows(*tags_of(text_values(block.wire.tags, block.count), block.seqs), base)

    events = (rows for block, base in after for rows in event_rows(block, base, breathe))
    found = {ENTITIES: events, CAUSES: terms("causation"), CORRELATIONS: terms("correlation"), TAGS: tags()}
    return {section: sorted_sources(rows, breathe) for section, rows in found.items()}


def worth_merging(runs: Sequence[Run], thorough: bool) -> Sequence[Run]:
    """Returns neighbouring runs that should become one run."""
    if thorough:
        return until_few(runs)
    for level in sorted({run.level for run in runs}):
        # A run of a lower level among them is merged too, because it would wait for neighbours that never come.
        for within, group in groupby(runs, key=lambda run: run.level <= level):
            stretch = list(group)
            if within and sum(run.level == level for run in stretch) >= INDEX_FAN_IN:
                return stretch
    return ()


def until_few(runs: Sequence[Run]) -> Sequence[Run]:
    """Returns the newest runs, as far back as together they have at least a quarter of the size of the run before
    them.
    """
    if len(runs) < 2:
        return ()
    start, size = len(runs) - 1, runs[-1].size
    for place in range(len(runs) - 2, -1, -1):
        if size * 4 >= runs[place].size:
            start = place
        size += runs[place].size
    return runs[start:] if start < len(runs) - 1 else ()


def stored_rows(
    engine: Engine, topic: str, topic_id: int, run: Run, section: bytes, trimmed: int, breathe: Breathe
) -> Iterator[IndexRows]:
    """Yields the rows of a run, as a source of `merged`.

    A few chunks are read at a time, each time in a new snapshot. Runs do not change, and a snapshot for the whole merge
    would prevent the engine from freeing space.
    """
    at = run_key(topic_id, run.id, section)
    stop = keys.prefix_end(at)
    while True:
        with engine.read() as snap:
            found = list(islice(snap.scan(at, stop), _READ_CHUNKS))
        for _, value in found:
            yield from chunk_rows(read_chunk(value, topic), trimmed, breathe)
        if len(found) < _READ_CHUNKS:
            return
        at = found[-1][0] + b"\0"

"""Building the entity index: the newest events become a run, runs become larger runs.

It happens in a thread of its own, beside the writer, in small commits that need not be on disk: a lost run is built
again. Every run costs one reading and one writing of its events, and there are as many levels as the topic's size has
digits to the base `INDEX_FAN_IN`. New runs come before larger ones: look-ups would rather ask many runs than search
events that are in none. When the journal is calm, the runs become as few as `maintain()` would leave.

Several processes may do it at once: the process that lists its run first wins, the other throws its own away.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from heapq import merge as merge_sorted
from itertools import groupby

from msgspec.structs import replace

from penstock.engine.contract import Engine, Snapshot
from penstock.errors import Closed, PenstockError
from penstock.journal import keys
from penstock.journal.blocks import Block, text_values
from penstock.journal.catalog import last_block, load_record, load_state
from penstock.journal.commit import Commit
from penstock.journal.index.index import EntityIndex
from penstock.journal.index.memtable import Memtable
from penstock.journal.index.runs import (
    CAUSES,
    CORRELATIONS,
    ENTITIES,
    FILTER,
    STEP_ROWS,
    BloomFilter,
    Breathe,
    Chunk,
    Directory,
    Pages,
    Row,
    Run,
    after,
    chunks_of,
    entities_of,
    in_order,
    load_directory,
    mark_chunks,
    mark_of,
    mark_seq,
    marks_of,
    parts_of,
    prefix,
    read_chunk,
    read_marks,
    rows_of,
    rows_of_chunk,
    run_key,
    save_directory,
)
from penstock.journal.reading import TopicView
from penstock.journal.summaries import forget_hashes
from penstock.journal.writer import Writer, WriteRequest
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
from penstock.observe.logs import Log

log = Log("penstock.indexer")

_WORK_SECONDS, _REST_SECONDS = 0.001, 0.0002
_WAY_SECONDS, _TURN_SECONDS = 0.001, 0.0003
"""The pause while a look-up is under way, which needs the interpreter many times, and the work between two of them."""
_STALL_SECONDS, _STALL_STEP_SECONDS = 1.0, 0.002
"""How long one batch waits, at the most, for the indexer to catch up, and how often it looks."""
_CALM = 16
"""A journal with fewer commits than this between two looks has time for merging more than it must."""


class Indexer:
    """Builds and merges the runs of a journal's topics."""

    def __init__(self, engine: Engine, writer: Writer, index: EntityIndex) -> None:
        self._engine = engine
        self._writer = writer
        self._index = index
        index.crowded = self.request_merge
        self._due: set[str] = set()
        self._to_merge: set[str] = set()
        """Topics whose runs are worth a look when the journal is calm."""
        self.commits = 0
        """Counted up by the journal at every commit of events."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._left = False
        """Whether an earlier process has left something unindexed."""
        self._worked_since = 0.0
        self._lookups = 0

    def begin(self) -> None:
        """Has what an earlier process left unindexed taken up when the journal is calm."""
        with self._engine.read() as snap:
            self._left = next(iter(snap.scan(keys.HASHES, keys.prefix_end(keys.HASHES))), None) is not None
        if self._left:
            with self._lock:
                self._start()

    def request(self, topic: str) -> None:
        """Asks for a look at a topic soon."""
        self._ask(self._due, topic)

    def request_merge(self, topic: str) -> None:
        """Asks for few runs when the journal is calm: a look-up had to ask many."""
        if topic not in self._to_merge and not self._engine.read_only:
            self._ask(self._to_merge, topic)

    def _ask(self, options: set[str], topic: str) -> None:
        with self._lock:
            if self._closed:
                return
            options.add(topic)
            self._start()
        self._wanted.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-indexer", daemon=True)
            self._thread.start()

    def at_rest(self, topic: str) -> bool:
        """Whether everything is indexed, in as few runs as it will be without further events."""
        if self._is_due(topic):
            return False
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            return record is None or not until_few(load_directory(snap, record.topic_id, topic).runs)

    def consider(self, topic: str) -> None:
        """Asks for a look at a topic if enough has gathered."""
        self._forget_removed(topic)
        if self._is_due(topic):
            self.request(topic)

    def _forget_removed(self, topic: str) -> None:
        """Lets go, in memory, of what retention has removed.

        In a topic that keeps less than makes a run, no run ever covers it.
        """
        if topic in self._index.memtables:
            with self._engine.read() as snap:
                record = load_record(snap, topic)
                trimmed = 0 if record is None else load_state(snap, record.topic_id, topic).trimmed
            if record is not None:
                self._index.cut(topic, record.topic_id, trimmed)

    def index(self, topic: str, *, thorough: bool = False) -> None:
        """Does what there is to do for a topic now; thorough: everything goes into few runs."""
        with self._turn:
            while not self._closed and self._gather(topic, thorough):
                pass
            self._merge_all(topic, thorough)

    def _merge_all(self, topic: str, thorough: bool) -> None:
        while not self._closed and self._merge(topic, thorough):
            pass
        self._clear(topic)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _breathe(self) -> None:
        """Makes way for others: for a look-up at once, else after a millisecond.

        Without it, a thread that waits for the interpreter waits until that is taken away from this thread: five
        milliseconds."""
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
            # Other processes' commits are not counted, but seen.
            if now[0] - seen[0] < _CALM and (now[1] == seen[1] or now[0] != seen[0]):
                if self._left:
                    self._left = False
                    self._try("", self._take_up)
                    continue
                with self._lock:
                    topic = self._to_merge.pop()
                self._try(topic, self._merge_in_turn)
            seen = (self.commits, self._changes())

    def _take_up(self, _: str) -> None:
        """Asks for a look at the topics with events that no run covers."""
        with self._engine.read() as snap:
            numbers: set[int] = set()
            at = keys.HASHES
            while found := next(iter(snap.scan(at, keys.prefix_end(keys.HASHES))), None):
                numbers.add(topic_id := keys.topic_of(found[0]))
                at = keys.topic_range(keys.HASHES, topic_id)[1]
            names = [keys.stored_name(key[1:]) for key, _ in snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))]
            records = {name: load_record(snap, name) for name in names}
        for name, record in records.items():
            if record is not None and record.topic_id in numbers:
                self.request(name)

    def _changes(self) -> int:
        """The store's change counter; one that cannot be read now has not moved."""
        try:
            return self._engine.changes()
        except Closed:
            self._closed = True
        except PenstockError as error:
            log.warning("the store did not tell whether it was written to: %s", error)
        return 0

    def _do_due(self) -> None:
        while not self._closed:
            with self._lock:
                if not self._due:
                    return
                topic = self._due.pop()
                self._to_merge.add(topic)
            self._try(topic, self._index_if_due)

    def _index_if_due(self, topic: str) -> None:
        self._fill_memtable(topic)
        if self._is_due(topic):
            self.index(topic)

    def _fill_memtable(self, topic: str) -> None:
        """Begins a topic's memtable, which the writer then adds to: a look-up during a bulk load finds it ready."""
        if topic not in self._index.memtables:
            lookup = self._index.lookup(topic)
            with self._engine.read() as snap:
                view = TopicView.open(snap, topic)
                if view is not None and view.record.settings.indexed:
                    lookup.open(view)

    def make_room(self, topic: str) -> None:
        """Before a batch is appended: waits a moment while too much of its topic is in no run yet.

        So the load slows down to what is indexed beside it, as in other log-structured stores, and a look-up never has
        more to search than fits in memory. Not for long: a caller of an indexer that fails would wait for ever.
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

    def _try(self, topic: str, work: Callable[[str], None]) -> None:
        try:
            work(topic)
        except Closed:
            self._closed = True
        except PenstockError as error:
            # Look-ups find unindexed events too: what went wrong here is tried again after the next commits.
            log.warning("indexing topic %r failed: %s", topic, error)
        except Exception:
            log.exception("indexing topic %r failed", topic)

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
            waiting = block.last - max(directory.through, load_state(snap, record.topic_id, topic).trimmed)
            size = waiting * (len(block.payload) // block.count + 48)
            return waiting >= INDEX_RUN_EVENTS or size >= INDEX_RUN_BYTES or bool(directory.rubbish)

    def _gather(self, topic: str, thorough: bool) -> bool:
        """Makes a run of what no run covers; False when that is too little."""
        with self._engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None or not view.record.settings.indexed:
                return False
            directory = load_directory(snap, view.topic_id, topic)
            base = max(directory.through, view.trimmed())
            blocks = blocks_of_a_run(view.blocks(base, keys.MAX_SEQ), self._breathe)
            if not blocks or not (thorough or are_enough(blocks)):
                return False
            last = blocks[-1].last
            written, entities = first_chunks(blocks, base, self._breathe)

        def advance(found: Directory) -> Directory | None:
            return replace(found, through=last) if found.through == directory.through else None

        run = Building(self._writer, topic, view.topic_id, directory, (base + 1, last), 0)
        if not written:
            done = run.skip(advance)
        elif run.begin():
            run.write(written)
            run.filter(entities, self._breathe)
            done = run.publish(advance)
        else:
            return False
        if done:
            self._index.cut(topic, view.topic_id, last)
        return done

    # ── larger runs ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _merge(self, topic: str, thorough: bool) -> bool:
        """Makes one run of several neighbours; False when there are none worth it."""
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
        run = Building(self._writer, topic, record.topic_id, directory, (parts[0].first, parts[-1].last), level)
        if not run.begin():
            return False
        entities: dict[str, None] | None = {}
        with_entities = [part for part in parts if "e" in part.sections]
        merge = EntityMerge(self._engine, topic, record.topic_id, with_entities, trimmed, self._breathe)
        for chunks, some in merge.steps():
            run.write([(ENTITIES, chunk) for chunk in chunks])
            if entities is not None:
                entities |= some
                entities = None if len(entities) > INDEX_FILTER_TERMS else entities
            if self._closed:
                return False
        for section in (CAUSES, CORRELATIONS):
            with_it = [part for part in parts if section.decode() in part.sections]
            for chunks in MarkMerge(self._engine, topic, record.topic_id, section, with_it, trimmed).steps():
                run.write([(section, chunk) for chunk in chunks])
                if self._closed:
                    return False
        run.filter(entities or (), self._breathe)
        ids = {part.id for part in parts}

        def exchange(found: Directory) -> Directory | None:
            if not ids <= {one.id for one in found.runs}:
                return None
            left = tuple(one for one in found.runs if one.id not in ids)
            return replace(found, runs=left, rubbish=(*found.rubbish, *sorted(ids)))

        return run.publish(exchange)

    # ── rubbish ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _clear(self, topic: str) -> None:
        """Deletes the chunks of runs that are no longer listed, a little at a time."""
        while not self._closed:
            with self._engine.read() as snap:
                record = load_record(snap, topic)
                if record is None:
                    return
                directory = load_directory(snap, record.topic_id, topic)
                if not directory.rubbish:
                    return
                run = directory.rubbish[0]
                start, stop = run_key(record.topic_id, run), run_key(record.topic_id, run + 1)
                upto = after_some(snap, start, stop)
            deletion = Deletion(topic, record.topic_id, run, start, upto or stop, upto is None)
            self._writer.run(WriteRequest(deletion, relaxed=True))


# ── Writing a run of the entity index: announced, filled in steps, then listed or thrown away; and deleting old ones ──


_ABANDONED_MS = 3_600_000
"""A run whose writing began this long ago was given up."""

Written = tuple[bytes, Chunk]
"""A section and a chunk of it."""


class Deletion:
    """Removes a part of a run, and its number from the list of rubbish when it was the last part."""

    def __init__(self, topic: str, topic_id: int, run: int, start: bytes, stop: bytes, done: bool) -> None:
        self._topic, self._topic_id, self._run = topic, topic_id, run
        self._start, self._stop, self._done = start, stop, done

    def __call__(self, commit: Commit) -> None:
        if not commit.is_current(self._topic, self._topic_id):
            return
        directory = load_directory(commit.tx, self._topic_id, self._topic)
        if self._run not in directory.rubbish:
            return
        commit.tx.delete_range(self._start, self._stop)
        if self._done:
            left = tuple(run for run in directory.rubbish if run != self._run)
            save_directory(commit.tx, self._topic_id, replace(directory, rubbish=left))


def _is_full(memtable: Memtable) -> bool:
    """Whether more is in no run than a look-up should search, or than should be kept in memory."""
    return len(memtable) > INDEX_WAITING_EVENTS or memtable.size > INDEX_MEMORY_BYTES


class Building:
    """A run being written: announced, filled in steps, then listed or thrown away."""

    def __init__(
        self,
        writer: Writer,
        topic: str,
        topic_id: int,
        directory: Directory,
        positions: tuple[int, int],
        level: int,
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._topic_id = topic_id
        self._epoch = directory.epoch
        self._positions = positions
        self._level = level
        self._id = 0
        self._size = 0
        self._entities = 0
        self._sections: set[str] = set()

    def begin(self) -> bool:
        """Takes a number; False when the index has changed too much since it was looked at."""
        return bool(self._do(self._announce))

    def _announce(self, commit: Commit) -> bool:
        if not commit.is_current(self._topic, self._topic_id):
            return False
        directory = load_directory(commit.tx, self._topic_id, self._topic)
        if directory.epoch != self._epoch:
            return False
        self._id = directory.next
        stale = [run for run, since in directory.building if commit.now_ms - since > _ABANDONED_MS]
        building = [one for one in directory.building if one[0] not in stale]
        building.append((self._id, commit.now_ms))
        save_directory(
            commit.tx,
            self._topic_id,
            replace(directory, next=self._id + 1, building=tuple(building), rubbish=(*directory.rubbish, *stale)),
        )
        return True

    def skip(self, change: Callable[[Directory], Directory | None]) -> bool:
        """Changes the directory without a run: there was nothing to index."""

        def apply(commit: Commit) -> bool:
            if not commit.is_current(self._topic, self._topic_id):
                return False
            directory = load_directory(commit.tx, self._topic_id, self._topic)
            if directory.epoch != self._epoch:
                return False
            changed = change(directory)
            if changed is not None:
                save_directory(commit.tx, self._topic_id, changed)
                forget_hashes(commit.tx, self._topic_id, changed.through)
            return changed is not None

        return bool(self._do(apply))

    def write(self, written: Sequence[Written]) -> None:
        """Adds chunks."""
        start = size = 0
        for stop, (section, (_, value)) in enumerate(written, 1):
            size += len(value)
            self._sections.add(section.decode())
            if size >= INDEX_STEP_BYTES or stop == len(written):
                self._do(partial(self._put, written[start:stop]))
                self._size += size
                start, size = stop, 0

    def _put(self, part: Sequence[Written], commit: Commit) -> None:
        if not commit.is_current(self._topic, self._topic_id):
            return  # no housekeeper would ever clear it away
        for section, (mark, value) in part:
            commit.tx.put(run_key(self._topic_id, self._id, section, mark), value)

    def filter(self, entities: Collection[str], breathe: Breathe) -> None:
        """Adds the filter of the entities, unless there are too many or none."""
        if not 0 < len(entities) <= INDEX_FILTER_TERMS:
            return
        built = BloomFilter.sized(len(entities))
        for count, entity in enumerate(entities):
            built.add(prefix(entity))
            if count % STEP_ROWS == 0:
                breathe()
        value = bytes(built)
        self._entities = len(entities)

        def put(commit: Commit) -> None:
            if commit.is_current(self._topic, self._topic_id):
                commit.tx.put(run_key(self._topic_id, self._id, FILTER), value)

        self._do(put)

    def publish(self, change: Callable[[Directory], Directory | None]) -> bool:
        """Lists the run in the directory that `change` makes; throws it away when that is None."""
        return bool(self._do(lambda commit: self._list(commit, change)))

    def _list(self, commit: Commit, change: Callable[[Directory], Directory | None]) -> bool:
        if not commit.is_current(self._topic, self._topic_id):
            return False
        directory = load_directory(commit.tx, self._topic_id, self._topic)
        mine = any(run == self._id for run, _ in directory.building)
        rest = replace(directory, building=tuple(one for one in directory.building if one[0] != self._id))
        changed = change(rest) if mine and directory.epoch == self._epoch else None
        if changed is None:
            if self._id not in rest.rubbish:
                rest = replace(rest, rubbish=(*rest.rubbish, self._id))
            save_directory(commit.tx, self._topic_id, rest)
            return False
        runs = changed.runs
        if self._sections:
            first, last = self._positions
            level = max(self._level, _level(self._size))
            run = Run(self._id, first, last, level, self._size, self._entities, "".join(sorted(self._sections)))
            runs = tuple(sorted([*runs, run], key=lambda one: one.first))
        save_directory(commit.tx, self._topic_id, replace(changed, runs=runs))
        forget_hashes(commit.tx, self._topic_id, changed.through)
        return True

    def _do(self, apply: Callable[[Commit], object]) -> object:
        return self._writer.run(WriteRequest(apply, relaxed=True))


def _level(size: int) -> int:
    """The level that a run of a size would have reached by merging runs of the usual size."""
    level, bound = 0, INDEX_FAN_IN * INDEX_RUN_BYTES
    while size >= bound:
        level, bound = level + 1, bound * INDEX_FAN_IN
    return level


# ── What goes into a run: which blocks make a first one, which neighbours become one, and the chunks of the first ──
# No run is written here and nothing is waited for: `indexer` asks, `builder` writes.


def blocks_of_a_run(blocks: Iterator[Block], breathe: Breathe) -> list[Block]:
    """As many blocks as make one run: a few times the usual size when building is behind."""
    found: list[Block] = []
    size = 0
    for block in blocks:
        breathe()
        found.append(block)
        size += len(block.payload) + 48 * block.count
        if size >= 4 * INDEX_RUN_BYTES:
            break
    return found


def are_enough(blocks: Sequence[Block]) -> bool:
    """Whether blocks are worth a run of their own."""
    events = sum(block.count for block in blocks)
    return events >= INDEX_RUN_EVENTS or sum(len(block.payload) for block in blocks) + 48 * events >= INDEX_RUN_BYTES


def first_chunks(blocks: Sequence[Block], base: int, breathe: Breathe) -> tuple[list[Written], dict[str, None]]:
    """The chunks of a first run, and its entities."""
    parts: list[Pages] = []
    causes: list[bytes] = []
    correlations: list[bytes] = []
    for block in blocks:
        part = rows_of(block, breathe)
        if block.first <= base:
            part = after(part, base)
        parts.extend(parts_of(part, breathe))
        if block.wire.causation is not None:
            causes.extend(marks_of(text_values(block.wire.causation, block.count), block.seqs))
        if block.wire.correlation is not None:
            correlations.extend(marks_of(text_values(block.wire.correlation, block.count), block.seqs))
    entities: dict[str, None] = {}
    written: list[Written] = []
    out: list[Row] = []
    for window in in_order(parts, breathe):
        entities |= entities_of(window)
        out += window
        breathe()
        written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=False, breathe=breathe))
    written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=True, breathe=breathe))
    for section, marks in ((CAUSES, causes), (CORRELATIONS, correlations)):
        kept = sorted(mark for mark in marks if int.from_bytes(mark[-8:]) > base)
        written.extend((section, chunk) for chunk in mark_chunks(kept))
    return written, entities


def worth_merging(runs: Sequence[Run], thorough: bool) -> Sequence[Run]:
    """Neighbours that should become one run."""
    if thorough:
        return until_few(runs)
    for level in sorted({run.level for run in runs}):
        # A run of a lower level among them goes along: it would wait for neighbours that never come.
        for within, group in groupby(runs, key=lambda run: run.level <= level):
            stretch = list(group)
            if within and sum(run.level == level for run in stretch) >= INDEX_FAN_IN:
                return stretch
    return ()


def until_few(runs: Sequence[Run]) -> Sequence[Run]:
    """The newest runs, as far back as they together weigh at least a quarter of the one before them."""
    if len(runs) < 2:
        return ()
    start, size = len(runs) - 1, runs[-1].size
    for place in range(len(runs) - 2, -1, -1):
        if size * 4 >= runs[place].size:
            start = place
        size += runs[place].size
    return runs[start:] if start < len(runs) - 1 else ()


def after_some(snap: Snapshot, start: bytes, stop: bytes) -> bytes | None:
    """A key before which there are a few megabytes; None when there is less."""
    size = 0
    for key, value in snap.scan(start, stop):
        if size >= 4 * INDEX_STEP_BYTES:
            return key
        size += len(value) + len(key)
    return None


# ── Merging runs of the entity index, a step at a time, without ever holding much of them in memory ──
# Each step reads in a snapshot of its own: runs do not change, and a snapshot held for the whole merge would keep the
# engine from cleaning up behind it.


_MARKS_STEP = 8192
_WINDOW_BYTES = 128 << 10
"""What is read of all runs together before they are merged, about."""


class _Source:
    """The chunks of one run, in order."""

    def __init__(self, topic: int, run: Run, section: bytes) -> None:
        self._low = run_key(topic, run.id, section)
        self._at = self._low
        self._stop = self._low + b"\xff" * 3  # a mark begins with its term's length, which is below 0xffff
        self.done = False

    def chunks(self, snap: Snapshot) -> Iterator[tuple[bytes, bytes]]:
        """The chunks not yet read, with their marks; remembers how far the caller has come."""
        for key, value in snap.scan(self._at, self._stop):
            self._at = key + b"\0"
            yield key[len(self._low) :], value
        self.done = True


class EntityMerge:
    """The entities of several runs, as one."""

    def __init__(
        self, engine: Engine, topic: str, topic_id: int, runs: Sequence[Run], trimmed: int, breathe: Breathe
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._sources = [_Source(topic_id, run, ENTITIES) for run in runs]
        self._share = _WINDOW_BYTES // max(1, len(runs))
        self._buffers: list[list[Row]] = [[] for _ in runs]
        self._trimmed = trimmed
        self._breathe = breathe
        self._out: list[Row] = []

    def steps(self) -> Iterator[tuple[list[Chunk], dict[str, None]]]:
        """Chunks of the merged run and the entities in them, about a commit's worth at a time."""
        while not self._finished():
            chunks: list[Chunk] = []
            entities: dict[str, None] = {}
            size = 0
            with self._engine.read() as snap:
                while size < INDEX_STEP_BYTES and not self._finished():
                    made = self._window(snap, entities)
                    chunks.extend(made)
                    size += sum(len(value) for _, value in made)
            yield chunks, entities
        rest = chunks_of(self._out, whole=True)
        if rest:
            yield rest, {}

    def _finished(self) -> bool:
        return all(source.done and not buffer for source, buffer in zip(self._sources, self._buffers, strict=True))

    def _window(self, snap: Snapshot, entities: dict[str, None]) -> list[Chunk]:
        """Merges what is certain: rows up to the smallest mark at which some run may go on."""
        for source, buffer in zip(self._sources, self._buffers, strict=True):
            if not buffer and not source.done:
                size = 0
                for _, value in source.chunks(snap):
                    buffer.extend(rows_of_chunk(read_chunk(value, self._topic), self._breathe))
                    self._breathe()
                    size += len(value)
                    if size >= self._share:
                        break
        bound = min(
            (buffer[-1][0] for source, buffer in zip(self._sources, self._buffers, strict=True) if not source.done),
            default=None,
        )
        window: list[Row] = []
        for buffer in self._buffers:
            count = len(buffer) if bound is None else bisect_right(buffer, bound, key=mark_of)
            window += buffer[:count]
            del buffer[:count]
        window = after(window, self._trimmed)
        window.sort(key=mark_of)
        entities |= entities_of(window)
        self._out += window
        return chunks_of(self._out, whole=False, breathe=self._breathe)


class MarkMerge:
    """The causes or correlations of several runs, as one."""

    def __init__(
        self, engine: Engine, topic: str, topic_id: int, section: bytes, runs: Sequence[Run], trimmed: int
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._sources = [_Source(topic_id, run, section) for run in runs]
        self._trimmed = trimmed

    def steps(self) -> Iterator[list[Chunk]]:
        """Chunks of the merged run, some at a time."""
        part: list[bytes] = []
        for mark in merge_sorted(*[self._marks(source) for source in self._sources]):
            if mark_seq(mark) > self._trimmed:
                part.append(mark)
            if len(part) == _MARKS_STEP:
                yield list(mark_chunks(part))
                part = []
        if part:
            yield list(mark_chunks(part))

    def _marks(self, source: _Source) -> Iterator[bytes]:
        while not source.done:
            marks: list[bytes] = []
            with self._engine.read() as snap:
                for _, value in source.chunks(snap):
                    marks.extend(read_marks(value, self._topic))
                    if len(marks) >= _MARKS_STEP:
                        break
            yield from marks

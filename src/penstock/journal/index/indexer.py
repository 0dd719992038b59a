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
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from penstock.engine.contract import Engine, Snapshot
from penstock.errors import Closed, PenstockError
from penstock.journal.commit.catalog import last_block, load_record, load_state
from penstock.journal.commit.writer import Writer, WriteRequest
from penstock.journal.index.builder import Building, Deletion, Written
from penstock.journal.index.directory import (
    CAUSES,
    CORRELATIONS,
    ENTITIES,
    Directory,
    Run,
    load_directory,
    run_key,
)
from penstock.journal.index.index import EntityIndex
from penstock.journal.index.merge import EntityMerge, MarkMerge
from penstock.journal.index.rows import (
    Breathe,
    Row,
    after,
    chunks_of,
    entities_of,
    in_order,
    mark_chunks,
    mark_of,
    marks_of,
    rows_of,
)
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import text_values
from penstock.limits import (
    INDEX_CALM_SECONDS,
    INDEX_FAN_IN,
    INDEX_FILTER_TERMS,
    INDEX_MEMORY_BYTES,
    INDEX_RUN_BYTES,
    INDEX_RUN_EVENTS,
    INDEX_STEP_BYTES,
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
        index.crowded = self.settle
        self._due: set[str] = set()
        self._unsettled: set[str] = set()
        """Topics whose runs are worth a look when the journal is calm."""
        self.commits = 0
        """Counted up by the journal at every commit of events."""
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._worked_since = 0.0
        self._looks = 0

    def request(self, topic: str) -> None:
        """Asks for a look at a topic soon."""
        self._ask(self._due, topic)

    def settle(self, topic: str) -> None:
        """Asks for few runs when the journal is calm: a look-up had to ask many."""
        if topic not in self._unsettled and not self._engine.read_only:
            self._ask(self._unsettled, topic)

    def _ask(self, options: set[str], topic: str) -> None:
        with self._lock:
            if self._closed:
                return
            options.add(topic)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-indexer", daemon=True)
                self._thread.start()
        self._wanted.set()

    def at_rest(self, topic: str) -> bool:
        """Whether everything is indexed, in as few runs as it will be without further events."""
        if self._is_due(topic):
            return False
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            return record is None or not _until_few(load_directory(snap, record.number, topic).runs)

    def consider(self, topic: str) -> None:
        """Asks for a look at a topic if enough has gathered."""
        if self._is_due(topic):
            self.request(topic)

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

        Without it, who waits for the interpreter waits until that is taken away from this thread: five milliseconds.
        """
        worked, looks = time.monotonic() - self._worked_since, self._index.looks
        if looks != self._looks:
            if worked < _TURN_SECONDS:
                return
            self._looks = looks
            time.sleep(_WAY_SECONDS)
        elif worked > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
        else:
            return
        self._worked_since = time.monotonic()

    def _run(self) -> None:
        seen = (0, 0)
        while not self._closed:
            if self._wanted.wait(INDEX_CALM_SECONDS if self._unsettled else None):
                self._wanted.clear()
                self._do_due()
                seen = (self.commits, self._engine.changes())
                continue
            now = (self.commits, self._engine.changes())
            # Other processes' commits are not counted, but seen.
            if now[0] - seen[0] < _CALM and (now[1] == seen[1] or now[0] != seen[0]):
                with self._lock:
                    topic = self._unsettled.pop()
                self._try(topic, self._settle)
            seen = (self.commits, self._engine.changes())

    def _do_due(self) -> None:
        while not self._closed:
            with self._lock:
                if not self._due:
                    return
                topic = self._due.pop()
                self._unsettled.add(topic)
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
        more to search than fits in memory. Not for long: who waits for an indexer that fails would wait for ever.
        """
        memtable = self._index.memtables.get(topic)
        if memtable is None or memtable.size <= INDEX_MEMORY_BYTES:
            return
        head = self._writer.catalog.heads.get(topic)
        if head is None or not head.settings.indexed or self._closed:
            return
        self.request(topic)
        until = time.monotonic() + _STALL_SECONDS
        while memtable is not None and memtable.size > INDEX_MEMORY_BYTES and time.monotonic() < until:
            time.sleep(_STALL_STEP_SECONDS)
            memtable = self._index.memtables.get(topic)

    def _settle(self, topic: str) -> None:
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
            block = last_block(snap, record.number, topic)
            if block is None:
                return False
            directory = load_directory(snap, record.number, topic)
            waiting = block.last - max(directory.through, load_state(snap, record.number, topic).trimmed)
            size = waiting * (len(block.payload) // block.count + 48)
            return waiting >= INDEX_RUN_EVENTS or size >= INDEX_RUN_BYTES or bool(directory.rubbish)

    def _gather(self, topic: str, thorough: bool) -> bool:
        """Makes a run of what no run covers; False when that is too little."""
        with self._engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None or not view.record.settings.indexed:
                return False
            directory = load_directory(snap, view.number, topic)
            base = max(directory.through, view.trimmed())
            blocks = _some(view.blocks(base, keys.MAX_SEQ), self._breathe)
            if not blocks or not (thorough or _enough(blocks)):
                return False
            last = blocks[-1].last
            keyless = view.record.settings.chained
            written, entities = _first_chunks(blocks, base, keyless, self._breathe)

        def advance(found: Directory) -> Directory | None:
            return replace(found, through=last) if found.through == directory.through else None

        run = Building(self._writer, topic, view.number, directory, (base + 1, last), 0)
        if not written:
            done = run.skip(advance)
        elif run.begin():
            run.write(written)
            run.filter(entities, self._breathe)
            done = run.publish(advance)
        else:
            return False
        if done:
            self._index.cut(topic, last, self._breathe)
        return done

    # ── larger runs ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _merge(self, topic: str, thorough: bool) -> bool:
        """Makes one run of several neighbours; False when there are none worth it."""
        with self._engine.read() as snap:
            record = load_record(snap, topic)
            if record is None:
                return False
            directory = load_directory(snap, record.number, topic)
            trimmed = load_state(snap, record.number, topic).trimmed
        parts = _worth_merging(directory.runs, thorough)
        if not parts:
            return False
        level = max(run.level for run in parts) + (0 if thorough else 1)
        run = Building(self._writer, topic, record.number, directory, (parts[0].first, parts[-1].last), level)
        if not run.begin():
            return False
        entities: set[str] | None = set()
        with_entities = [part for part in parts if "e" in part.sections]
        merge = EntityMerge(self._engine, topic, record.number, with_entities, trimmed, self._breathe)
        for chunks, some in merge.steps():
            run.write([(ENTITIES, chunk) for chunk in chunks])
            if entities is not None:
                entities |= some
                entities = None if len(entities) > INDEX_FILTER_TERMS else entities
            if self._closed:
                return False
        for section in (CAUSES, CORRELATIONS):
            with_it = [part for part in parts if section.decode() in part.sections]
            for chunks in MarkMerge(self._engine, topic, record.number, section, with_it, trimmed).steps():
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
                directory = load_directory(snap, record.number, topic)
                if not directory.rubbish:
                    return
                run = directory.rubbish[0]
                start, stop = run_key(record.number, run), run_key(record.number, run + 1)
                upto = _after_some(snap, start, stop)
            deletion = Deletion(topic, record.number, run, start, upto or stop, upto is None)
            self._writer.run(WriteRequest(deletion, relaxed=True))


def _some(blocks: Iterator[Block], breathe: Breathe) -> list[Block]:
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


def _enough(blocks: Sequence[Block]) -> bool:
    events = sum(block.count for block in blocks)
    return events >= INDEX_RUN_EVENTS or sum(len(block.payload) for block in blocks) + 48 * events >= INDEX_RUN_BYTES


def _first_chunks(
    blocks: Sequence[Block], base: int, keyless: bool, breathe: Breathe
) -> tuple[list[Written], set[str]]:
    """The chunks of a first run, and its entities."""
    parts: list[list[Row]] = []
    causes: list[bytes] = []
    correlations: list[bytes] = []
    for block in blocks:
        part = rows_of(block, keyless=keyless, breathe=breathe)
        if block.first <= base:
            part = after(part, base)
        part.sort(key=mark_of)
        parts.append(part)
        breathe()
        if block.wire.causation is not None:
            causes.extend(marks_of(text_values(block.wire.causation, block.count), block.seqs))
        if block.wire.correlation is not None:
            correlations.extend(marks_of(text_values(block.wire.correlation, block.count), block.seqs))
    entities: set[str] = set()
    written: list[Written] = []
    out: list[Row] = []
    for window in in_order(parts, breathe):
        entities |= entities_of(window)
        out += window
        written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=False, breathe=breathe))
    written.extend((ENTITIES, chunk) for chunk in chunks_of(out, whole=True, breathe=breathe))
    for section, marks in ((CAUSES, causes), (CORRELATIONS, correlations)):
        kept = sorted(mark for mark in marks if int.from_bytes(mark[-8:]) > base)
        written.extend((section, chunk) for chunk in mark_chunks(kept))
    return written, entities


def _worth_merging(runs: Sequence[Run], thorough: bool) -> Sequence[Run]:
    """Neighbours that should become one run."""
    if thorough:
        return _until_few(runs)
    for level in sorted({run.level for run in runs}):
        # A run of a lower level among them goes along: it would wait for neighbours that never come.
        for within, group in groupby(runs, key=lambda run: run.level <= level):
            stretch = list(group)
            if within and sum(run.level == level for run in stretch) >= INDEX_FAN_IN:
                return stretch
    return ()


def _until_few(runs: Sequence[Run]) -> Sequence[Run]:
    """The newest runs, as far back as they together weigh at least a quarter of the one before them."""
    if len(runs) < 2:
        return ()
    start, size = len(runs) - 1, runs[-1].size
    for place in range(len(runs) - 2, -1, -1):
        if size * 4 >= runs[place].size:
            start = place
        size += runs[place].size
    return runs[start:] if start < len(runs) - 1 else ()


def _after_some(snap: Snapshot, start: bytes, stop: bytes) -> bytes | None:
    """A key before which there are a few megabytes; None when there is less."""
    size = 0
    for key, value in snap.scan(start, stop):
        if size >= 4 * INDEX_STEP_BYTES:
            return key
        size += len(value) + len(key)
    return None

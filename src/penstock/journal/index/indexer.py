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
from collections.abc import Callable

from msgspec.structs import replace

from penstock.engine.contract import Engine
from penstock.errors import Closed, PenstockError
from penstock.journal.commit.catalog import last_block, load_record, load_state
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.journal.index.builder import Building, Deletion
from penstock.journal.index.contents import (
    after_some,
    are_enough,
    blocks_of_a_run,
    first_chunks,
    until_few,
    worth_merging,
)
from penstock.journal.index.directory import (
    CAUSES,
    CORRELATIONS,
    ENTITIES,
    Directory,
    load_directory,
    run_key,
)
from penstock.journal.index.index import EntityIndex
from penstock.journal.index.merge import EntityMerge, MarkMerge
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.limits import (
    INDEX_CALM_SECONDS,
    INDEX_FILTER_TERMS,
    INDEX_MEMORY_BYTES,
    INDEX_RUN_BYTES,
    INDEX_RUN_EVENTS,
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
        self._worked_since = 0.0
        self._lookups = 0

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
            return record is None or not until_few(load_directory(snap, record.number, topic).runs)

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
                trimmed = 0 if record is None else load_state(snap, record.number, topic).trimmed
            if record is not None:
                self._index.cut(topic, record.number, trimmed)

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
            if self._wanted.wait(INDEX_CALM_SECONDS if self._to_merge else None):
                self._wanted.clear()
                self._do_due()
                seen = (self.commits, self._changes())
                continue
            now = (self.commits, self._changes())
            # Other processes' commits are not counted, but seen.
            if now[0] - seen[0] < _CALM and (now[1] == seen[1] or now[0] != seen[0]):
                with self._lock:
                    topic = self._to_merge.pop()
                self._try(topic, self._merge_in_turn)
            seen = (self.commits, self._changes())

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
            blocks = blocks_of_a_run(view.blocks(base, keys.MAX_SEQ), self._breathe)
            if not blocks or not (thorough or are_enough(blocks)):
                return False
            last = blocks[-1].last
            written, entities = first_chunks(blocks, base, self._breathe)

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
            self._index.cut(topic, view.number, last)
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
        parts = worth_merging(directory.runs, thorough)
        if not parts:
            return False
        level = max(run.level for run in parts) + (0 if thorough else 1)
        run = Building(self._writer, topic, record.number, directory, (parts[0].first, parts[-1].last), level)
        if not run.begin():
            return False
        entities: dict[str, None] | None = {}
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
                upto = after_some(snap, start, stop)
            deletion = Deletion(topic, record.number, run, start, upto or stop, upto is None)
            self._writer.run(WriteRequest(deletion, relaxed=True))

"""The housekeeper: merging, retention and compaction by key, in a thread of its own that sleeps until there is work."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from penstock.clock import SystemClock
from penstock.engine.contract import Engine, Snapshot
from penstock.errors import Closed, Corrupt, PenstockError
from penstock.journal.commit.catalog import load_record, load_state, save_state
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.dedup import forget_expired
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.journal.storage import keys
from penstock.journal.upkeep.compaction import (
    Hold,
    compact,
    compact_by_key,
    held_back,
    one_step,
    retention_bound,
)
from penstock.journal.upkeep.dropping import DropRules, clear_dropped
from penstock.journal.upkeep.merging import merge_tail
from penstock.limits import MERGE_FAN_IN, MERGED_BYTES, RETENTION_SECONDS, SMALL_BYTES
from penstock.observe.logs import Log

log = Log("penstock.housekeeper")

_ENOUGH = 4 * MERGE_FAN_IN * MERGE_FAN_IN
"""How many events or commits have to come before a topic without special settings is looked at again.

Rarely: a thread beside a busy writer waits for the interpreter's lock at every read, and slows the writer meanwhile.
"""


class Housekeeper:
    """Does a topic's housekeeping after every few dozen commits to it."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self._noted: dict[str, tuple[int, int]] = {}
        self._demanding: set[str] = set()
        """Topics whose settings ask for something every few dozen commits."""
        self._merges: dict[str, int] = defaultdict(int)
        self._due: set[str] = set()
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.chores: list[Callable[[str], None]] = []
        """What the layers above do for a topic in passing, in the housekeeper's thread."""
        self.holds: list[Hold] = []
        """What retention and compaction by key wait for: messages that are not settled, not cursors."""
        self.before_retention: list[Callable[[Commit, str, int], bool]] = []
        """Called with the position through which retention wants to remove; True: there is more to do first."""
        self.drop_rules = DropRules()
        self._clearing = False
        """Whether topics were dropped whose rows are still to be cleared away."""
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

    def request(self, topic: str) -> None:
        """Asks for a topic's housekeeping soon."""
        with self._lock:
            if self._closed:
                return
            self._due.add(topic)
            self._start()
        self._wanted.set()

    def request_clearing(self) -> None:
        """Asks for the rows of dropped topics to be cleared away soon."""
        with self._lock:
            if self._closed:
                return
            self._clearing = True
            self._start()
        self._wanted.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-housekeeper", daemon=True)
            self._thread.start()

    def clear_dropped(self) -> None:
        """Clears the rows of dropped topics away now."""
        with self._turn:
            clear_dropped(self._engine, self._writer, self.drop_rules, lambda: self._closed)

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
        self._note_unreadable(topic, "" if unreadable is None else str(unreadable))
        if unreadable is not None:
            raise unreadable

    def _note_unreadable(self, topic: str, why: str) -> None:
        """Notes in the store why a topic cannot be read, or that it can: where every process finds it."""

        def note(commit: Commit) -> None:
            head = commit.head(topic)
            if head is not None:
                state = load_state(commit.tx, head.number, topic)
                save_state(commit.tx, head.number, replace(state, unreadable=why))

        with suppress(Corrupt):  # a damaged record of a topic is found by the reader that wants it
            with self._engine.read() as snap:
                record = load_record(snap, topic)
                known = why if record is None else load_state(snap, record.number, topic).unreadable
            if known != why:
                self._writer.run(WriteRequest(note, relaxed=True))

    def _merge_in_turn(self, topic: str, thorough: bool) -> None:
        with self._turn:
            self._merge(topic, thorough)

    def _apply(self, topic: str, thorough: bool) -> None:
        """Applies a topic's settings, and does what else is done in passing."""
        with self._turn:
            freed, more = False, True
            while more and not self._closed:
                removed, more = self._writer.run(WriteRequest(lambda commit: self._retain(commit, topic), relaxed=True))
                freed = freed or removed
            if self._writer.run(WriteRequest(lambda commit: self._wants_newest_only(commit, topic), relaxed=True)):
                freed = compact_by_key(self._engine, self._writer, topic, self.holds) > 0 or freed
            if freed or thorough or self._sweep_is_due():
                from penstock.journal.upkeep.sweeping import sweep_staged

                freed = sweep_staged(self._engine, self._writer) or freed
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
            merge_tail(self._engine, self._writer, topic, below=MERGED_BYTES, fan_in=2)
            return
        small = merge_tail(self._engine, self._writer, topic, below=SMALL_BYTES)
        # Without small blocks to merge, the commits since the last look left middling ones themselves.
        self._merges[topic] += 1 if small else MERGE_FAN_IN
        if self._merges[topic] >= MERGE_FAN_IN:
            self._merges[topic] = 0
            merge_tail(self._engine, self._writer, topic, below=MERGED_BYTES)

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
        freed = False
        forget_expired(commit.tx, head.number, settings.dedup_window, max(commit.now_ms, head.recorded_ms))
        if limited:
            bound = retention_bound(commit, topic, settings, commit.now_ms)
            if bound:
                if any(prepare(commit, topic, bound) for prepare in self.before_retention):
                    return False, True
                step = one_step(commit, topic, bound)
                report = compact(commit, topic, step, self.holds)
                freed = report.removed > 0
                if step < bound and report.stopped_at is None:
                    return freed, True
        return freed, False

    def _wants_newest_only(self, commit: Commit, topic: str) -> bool:
        """Whether a topic that keeps the newest event of every key has enough others."""
        head = commit.head(topic)
        if head is None or not head.settings.by_key:
            return False
        state = load_state(commit.tx, head.number, topic)
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

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(self._nap())
            self._wanted.clear()
            if not self._try("topics with a max_age", self._check_aged):
                return
            if self._clearing and not self._closed:
                self._clearing = False
                if not self._try("the rows of dropped topics", self.clear_dropped):
                    return
            while not self._closed:
                with self._lock:
                    if not self._due:
                        break
                    topic = self._due.pop()
                if not self._try(f"topic {topic!r}", partial(self.maintain, topic)):
                    return
            if self._closed:
                return

    def _try(self, what: str, work: Callable[[], None]) -> bool:
        """Does something that may fail; False when the journal was closed meanwhile."""
        try:
            work()
        except Closed:
            return False
        except PenstockError as error:
            # Housekeeping is an optimisation: the next commits, which report their own failures, ask again.
            log.warning("housekeeping of %s failed: %s", what, error)
        except Exception:
            log.exception("housekeeping of %s failed", what)
        return True


def _aged_topics(snap: Snapshot) -> list[str]:
    """The names of the topics that have a max_age."""
    return [keys.stored_name(key[1:]) for key, _ in snap.scan(keys.AGED, keys.prefix_end(keys.AGED))]

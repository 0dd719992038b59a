"""The housekeeper: merging, retention and compaction by key, in a thread of its own that sleeps until there is work."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from penstock.core.clock import SystemClock
from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.catalog import load_record, load_state, save_state
from penstock.core.journal.commit import Commit, forget_expired
from penstock.core.journal.reading import TopicView
from penstock.core.journal.upkeep.by_key import compact_by_key
from penstock.core.journal.upkeep.dropping import DropRules, clear_dropped
from penstock.core.journal.upkeep.merging import merge_tail
from penstock.core.journal.upkeep.retention import Hold, compact_some, held_back, retention_bound
from penstock.core.journal.upkeep.summarising import fill_summaries, join_summaries
from penstock.core.journal.waking import Background
from penstock.core.journal.writer import Writer
from penstock.core.observe.logs import Log
from penstock.errors import Corrupt, PenstockError
from penstock.limits import MERGE_FAN_IN, MERGED_BYTES, RETENTION_SECONDS, SMALL_BYTES, SUMMARY_RANGES

log = Log("penstock.housekeeper")

_ENOUGH = 4 * MERGE_FAN_IN * MERGE_FAN_IN
"""The number of events or commits before a topic without special settings is looked at again.

Rarely: a thread beside a busy writer waits for the interpreter's lock at every read, and slows the writer meanwhile.
"""


class Housekeeper(Background):
    """Does a topic's housekeeping after every few dozen commits to it."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("penstock-housekeeper", log)
        self._engine = writer.engine
        self._writer = writer
        self._considered: dict[str, tuple[int, int]] = {}
        """The commits and events of topics when they were last due."""
        self._demanding: set[str] = set()
        """Topics whose settings ask for something every few dozen commits."""
        self._merges: dict[str, int] = defaultdict(int)
        self._turn = threading.Lock()
        self.chores: list[Callable[[str], None]] = []
        """The work of the layers above for a topic, in the housekeeper's thread."""
        self.holds: list[Hold] = []
        """The holds that retention and compaction by key wait for: messages that are not settled, not cursors."""
        self.before_retention: list[Callable[[Commit, str, int], bool]] = []
        """Called with the position through which retention wants to remove; True: there is more to do first."""
        self.drop_rules = DropRules()
        self._clearing = False
        """True if topics were dropped whose rows are still to be cleared away."""
        self.resume: Callable[[], None] = lambda: None
        """Ends the erasures that were cut off."""
        self._resuming = False
        """True if erasures were cut off by the end of an earlier process."""
        self._reclaiming = False
        """True if space was freed that is still to be given back."""
        self._aged: set[str] = set()
        """Topics with a max_age: time alone makes them due."""
        self._aged_checked_ms = self._swept_ms = writer.clock.now_ms()

    def consider(self, topic: str, commits: int, events: int) -> None:
        """Asks for a look at a topic if enough has gathered; `commits`, `events`: those of this process so far."""
        commits_then, events_then = self._considered.get(topic, (-_ENOUGH, 0))
        # Small commits are merged by the writer itself: unless a topic has settings to apply, there is little to do.
        if commits - commits_then >= _ENOUGH or events - events_then >= _ENOUGH or topic in self._demanding:
            self._considered[topic] = commits, events
            self.request(topic)

    def request_clearing(self) -> None:
        """Asks for the rows of dropped topics to be cleared away soon."""
        self._clearing = True
        self._wake()

    def request_reclaim(self) -> None:
        """Asks for freed space to be given back soon."""
        self._reclaiming = True
        self._wake()

    def in_turn(self) -> threading.Lock:
        """Returns the lock that is held while blocks and the rows about them are exchanged."""
        return self._turn

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
                from penstock.core.journal.bulk import sweep_staged

                freed = sweep_staged(self._writer) or freed
            if freed:
                self._writer.reclaim()
            for chore in self.chores:
                chore(topic)

    def _sweep_is_due(self) -> bool:
        """Returns True if it is time again to look for what large batches have left."""
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
            erasing = next(iter(snap.scan(keys.erasing_key(0), keys.prefix_end(keys.ERASING))), None)
        for topic in aged:
            self._aged.add(topic)
            self.request(topic)
        if dropped is not None:  # a process that dropped it ended before all was cleared away
            self.request_clearing()
        if erasing is not None:  # as one that erased events of it
            self._resuming = True
            self._wake()

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
        """Returns True if a topic that keeps the newest event of every key has enough others."""
        head = commit.head(topic)
        if head is None or not head.settings.by_key:
            return False
        state = load_state(commit.tx, head.topic_id, topic)
        live = head.latest - state.removed
        through, _ = held_back(commit, topic, head.latest, self.holds)
        # As many new events as kept ones: each pass then costs no more than the appends that called for it.
        return through > state.compacted and (through - state.compacted) * 2 >= live

    def _nap(self) -> float | None:
        """Returns the longest time to sleep; for ever when only commits of this process make work."""
        if not self._aged and not self._engine.shared:
            return None
        return RETENTION_SECONDS if isinstance(self._writer.clock, SystemClock) else 0.02

    def _check_aged(self) -> None:
        """Looks again at topics with a `max_age`, whose events may be too old by now."""
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
            if self._resuming and not self._closed:
                self._resuming = False
                self._attempt("the end of an erasure that was cut off", self.resume)
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

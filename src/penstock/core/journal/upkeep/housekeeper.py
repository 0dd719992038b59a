"""The housekeeper: merging, retention and compaction by key, in a separate thread that sleeps until there is work."""

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
"""The number of events or commits after which a topic without special settings is checked again.

The number is high, because a thread beside a busy writer waits for the interpreter's lock at every read, and slows the
writer meanwhile.
"""


class Housekeeper(Background):
    """Does a topic's housekeeping after every few dozen commits to the topic."""

    def __init__(self, writer: Writer) -> None:
        super().__init__("penstock-housekeeper", log)
        self._engine = writer.engine
        self._writer = writer
        self._considered: dict[str, tuple[int, int]] = {}
        """The numbers of commits and events of each topic when it was last due."""
        self._demanding: set[str] = set()
        """Topics whose settings need work every few dozen commits."""
        self._merges: dict[str, int] = defaultdict(int)
        self._turn = threading.Lock()
        self.chores: list[Callable[[str], None]] = []
        """The work that the layers above do for a topic in the housekeeper's thread."""
        self.holds: list[Hold] = []
        """The holds that limit retention and compaction by key: unsettled messages, but not cursors."""
        self.before_retention: list[Callable[[Commit, str, int], bool]] = []
        """Called with the position through which retention is about to remove.

        Returns True if other work must be done first.
        """
        self.drop_rules = DropRules()
        self._clearing = False
        """True if rows of dropped topics are still to be removed."""
        self.resume: Callable[[], None] = lambda: None
        """Completes interrupted erasures."""
        self._resuming = False
        """True if an earlier process ended during an erasure."""
        self._reclaiming = False
        """True if freed space is still to be given back."""
        self._aged: set[str] = set()
        """Topics with a `max_age`, which become due as time passes."""
        self._aged_checked_ms = self._swept_ms = writer.clock.now_ms()

    def consider(self, topic: str, commits: int, events: int) -> None:
        """Requests a check of a topic if enough has gathered.

        `commits` and `events` are the counts of this process so far.
        """
        commits_then, events_then = self._considered.get(topic, (-_ENOUGH, 0))
        # The writer itself merges small commits. So a topic without settings to apply needs little work.
        if commits - commits_then >= _ENOUGH or events - events_then >= _ENOUGH or topic in self._demanding:
            self._considered[topic] = commits, events
            self.request(topic)

    def request_clearing(self) -> None:
        """Requests the removal of dropped topics' rows soon."""
        self._clearing = True
        self._wake()

    def request_reclaim(self) -> None:
        """Requests that freed space is given back soon."""
        self._reclaiming = True
        self._wake()

    def in_turn(self) -> threading.Lock:
        """Returns the lock that is held while blocks and the rows about them are exchanged."""
        return self._turn

    def clear_dropped(self) -> None:
        """Removes the rows of dropped topics now."""
        with self._turn:
            clear_dropped(self._writer, self.drop_rules, lambda: self._closed)

    def maintain(self, topic: str, *, thorough: bool = False, index: Callable[[str], None] | None = None) -> None:
        """Does one topic's housekeeping now, and `index`.

        With `thorough`, it also merges where there is little benefit.

        Raises Corrupt when something cannot be read, after the other work was done. From then on, `penstock doctor` and
        the metrics report it. The next call tries again, because retention and compaction may have removed the damage
        by then.
        """
        unreadable: Corrupt | None = None
        for work in (partial(self._merge_in_turn, thorough=thorough), partial(self._apply, thorough=thorough), index):
            try:
                if work is not None:
                    work(topic)
            except Corrupt as error:
                unreadable = unreadable or error
            except PenstockError:
                raise  # a failure of the store, or the caller's mistake
            except Exception as error:
                log.exception("housekeeping of topic %r failed", topic)
                unreadable = unreadable or Corrupt(f"{type(error).__name__}: {error}", topic=topic)
        self._note_unreadable(topic, unreadable, thorough)
        if unreadable is not None:
            raise unreadable

    def _note_unreadable(self, topic: str, error: Corrupt | None, thorough: bool) -> None:
        """Records in the store why a topic cannot be read, so that every process finds the note; or that the topic can
        be read again.

        A pass removes the note of another pass only after it has read the place that the note names. A thorough pass
        reads every place; any other pass reads the block that the note names.
        """
        why, at = ("", 0) if error is None else (str(error), error.seq or 0)
        with suppress(Corrupt):  # the block or the topic's record is still damaged: its readers report it
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
        """Applies a topic's settings, and does the other background work."""
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
        """Returns True if it is time to look for the remains of large batches again."""
        now = self._writer.clock.now_ms()
        if 0 <= now - self._swept_ms < RETENTION_SECONDS * 1000:
            return False
        self._swept_ms = now
        return True

    def _merge(self, topic: str, thorough: bool) -> None:
        """Merges the smallest blocks. If that leaves enough medium blocks, it merges these too."""
        if thorough:
            merge_tail(self._writer, topic, below=MERGED_BYTES, fan_in=2)
            fill_summaries(self._writer, topic, lambda: self._closed)
            join_summaries(self._writer, topic, fan_in=2)
            return
        join_summaries(self._writer, topic, fan_in=2 * SUMMARY_RANGES)
        small = merge_tail(self._writer, topic, below=SMALL_BYTES)
        # If there were no small blocks to merge, the commits since the last check made medium blocks directly.
        self._merges[topic] += 1 if small else MERGE_FAN_IN
        if self._merges[topic] >= MERGE_FAN_IN:
            self._merges[topic] = 0
            merge_tail(self._writer, topic, below=MERGED_BYTES)

    def begin(self) -> None:
        """Finds the topics that need a check even when no process appends to them."""
        with self._engine.read() as snap:
            aged = _aged_topics(snap)
            dropped = next(iter(snap.scan(keys.DROPPED, keys.prefix_end(keys.DROPPED))), None)
            erasing = next(iter(snap.scan(keys.erasing_key(0), keys.prefix_end(keys.ERASING))), None)
        for topic in aged:
            self._aged.add(topic)
            self.request(topic)
        if dropped is not None:  # the process that dropped it ended before all rows were removed
            self.request_clearing()
        if erasing is not None:  # the same for a process that erased events of it
            self._resuming = True
            self._wake()

    def _retain(self, commit: Commit, topic: str) -> tuple[bool, bool]:
        """Applies a topic's settings, one part at a time.

        Returns whether space was freed, and whether there is more to do.
        """
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
        """Returns True if a topic that keeps the newest event of every key has enough other events."""
        head = commit.head(topic)
        if head is None or not head.settings.by_key:
            return False
        state = load_state(commit.tx, head.topic_id, topic)
        live = head.latest - state.removed
        through, _ = held_back(commit, topic, head.latest, self.holds)
        # A pass waits for as many new events as there are kept events. So a pass costs no more than the appends before
        # it.
        return through > state.compacted and (through - state.compacted) * 2 >= live

    def _nap(self) -> float | None:
        """Returns the longest time to sleep; None when only commits of this process make work."""
        if not self._aged and not self._engine.shared:
            return None
        return RETENTION_SECONDS if isinstance(self._writer.clock, SystemClock) else 0.02

    def _check_aged(self) -> None:
        """Checks again the topics with a `max_age`, whose events may be too old by now."""
        now = self._writer.clock.now_ms()
        if not 0 <= now - self._aged_checked_ms < RETENTION_SECONDS * 1000:
            self._aged_checked_ms = now
            if self._engine.shared:  # another process may have set the topic's max_age and ended since
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
    """Replaces the note that the pass has read. A note that was written since remains."""
    head = commit.head(topic)
    if head is not None:
        state = load_state(commit.tx, head.topic_id, topic)
        if why or state.unreadable == known:
            save_state(commit.tx, head.topic_id, replace(state, unreadable=why, unreadable_at=at))


def _aged_topics(snap: Snapshot) -> list[str]:
    """Returns the names of the topics that have a `max_age`."""
    return [keys.stored_name(key[1:]) for key, _ in snap.scan(keys.AGED, keys.prefix_end(keys.AGED))]

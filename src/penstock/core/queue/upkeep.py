"""The background work of queues: removes messages that every group has settled, and keeps the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.journal.catalog import load_state
from penstock.core.journal.commit import Commit
from penstock.core.journal.keys import block_key
from penstock.core.journal.upkeep.retention import compact, one_step
from penstock.core.journal.upkeep.thinning import BlockRow, ThinnedBlock, exchange, in_steps, stored_blocks, without
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueCache, QueueState, last_failures, presences
from penstock.core.queue.state.places import UNFINISHED
from penstock.core.queue.state.records import encode

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore

# Modules that work on messages are imported only for a queue with messages: see the registry.

CLEAR_ROWS = 1024
"""The most rows of removed messages that one commit deletes."""
CUT_EVENTS = 4096
"""A block with more events is removed when all of them are settled, never cut."""
THIN_POSITIONS = 20_000
"""The number of settled messages behind an unsettled message from which single settled messages are removed."""
THIN_BLOCKS = 32
"""The most blocks that are searched together for settled messages, outside the writer."""
FORGET_CONSUMER_MS = 24 * 3600 * 1000


class Standing(msgspec.Struct, frozen=True):
    """The position through which a queue was settled at the last check outside the writer.

    Settled messages stay settled, so this position holds as long as the queue's record is the same.
    """

    record: bytes
    settled: int


def settled_through(snap: Snapshot, queue: QueueState) -> int:
    """Returns the position up to which every message is settled for all groups."""
    return min(group.floor(snap) for group in queue.all_groups(snap))


class QueueUpkeep:
    """The compaction of queues' topics, which keeps unsettled messages."""

    def __init__(self, core: JournalCore, cache: QueueCache) -> None:
        self._core = core
        self._cache = cache
        self._thinned: dict[int, int] = {}
        self._thinning: set[int] = set()
        """The topics whose pass over settled blocks has begun."""
        self._forgotten: dict[int, bytes] = {}
        """The keys through which the rows of flow control were searched, by topic."""

    def holds(self, commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
        """Keeps unsettled messages during compaction on request."""
        queue = self._cache.find(commit, topic)
        return () if queue is None else [(f"queue {topic}", settled_through(commit.tx, queue))]

    def trimmed(self, commit: Commit, topic: str, through: int) -> None:
        """Notes that a forced compaction is about to remove messages, settled or not."""
        queue = self._cache.find(commit, topic)
        if queue is not None:
            from penstock.core.queue.operations.settle import settle_through
            from penstock.core.queue.results import answer_removed

            through = min(through, queue.latest(commit))
            answer_removed(commit, queue, through)
            settle_through(commit, queue, through)

    def give_way(self, commit: Commit, topic: str, through: int) -> bool:
        """Lets retention win where the policy says so: messages that it passes become dead letters, some at a time."""
        queue = self._cache.find(commit, topic)
        if queue is None or queue.policy.retention != "dead_letter" or commit.fenced:
            return False
        from penstock.core.queue.operations.settle import RETIRED, give_up_through

        queue.blocks.refresh(commit)
        through = min(through, queue.latest(commit))
        return any(give_up_through(commit, group, through, RETIRED) for group in queue.all_groups(commit.tx))

    def _expire(self, topic: str) -> None:
        """Gives up what has outlived the queue's ttl, in those groups that have some."""
        with self._core.engine.read() as snap, self._cache.beside(snap, topic) as queue:
            overdue = 0 if queue is None else queue.overdue_through(snap, self._core.clock.now_ms())
            groups = [] if queue is None or not overdue else queue.all_groups(snap)
            late = [group.name for group in groups if group.oldest(snap, overdue, 0, UNFINISHED)]
        for name in late:
            self._repeat(partial(self._give_up_late, topic, name))

    def _give_up_late(self, topic: str, name: str, commit: Commit) -> bool:
        queue = self._cache.find(commit, topic)
        group_id = 0 if queue is None or not name else queue.record.groups.get(name)
        if queue is None or group_id is None:
            return False
        if commit.fenced and (queue.policy.dead_letter is not None or queue.traits.replies):
            return False  # no caller appends while an exclusive fence is open
        from penstock.core.queue.operations.settle import EXPIRED, give_up_through

        queue.blocks.refresh(commit)
        overdue = min(queue.overdue_through(commit.tx, commit.now_ms), queue.latest(commit))
        return give_up_through(commit, queue.group(commit.tx, group_id), overdue, EXPIRED)

    def maintain(self, topic: str) -> None:
        """Removes what is settled, in the housekeeper's thread: looks beside the writer, commits a little at a time."""
        with self._core.engine.read() as snap:
            if snap.get(keys.queue_key(topic)) is None:
                return
        self._expire(topic)
        self.remove_settled(topic)
        while self._thin(topic):
            pass
        self._forget_consumers(topic)
        self._core.run(lambda commit: self._forget_flow(commit, topic), relaxed=True)

    def remove_settled(self, topic: str) -> None:
        """Removes messages that are settled from the beginning on, and rows about them, a little at a time."""
        standing = self._find_standing(topic)
        self._repeat(lambda commit: self._remove(commit, topic, standing))
        self._repeat(lambda commit: self._clear(commit, topic, standing))

    def _repeat(self, step: Callable[[Commit], bool]) -> None:
        """Commits a step again and again, until it says that there is no more to do."""
        while self._core.writer.run_relaxed(step):
            pass

    # ── what is settled from the beginning on ────────────────────────────────────────────────────────────────────────
    def _find_standing(self, topic: str) -> Standing:
        """Returns the position through which a queue is settled, found beside the writer: there may be very many
        groups."""
        with self._core.engine.read() as snap, self._cache.beside(snap, topic) as queue:
            return Standing(b"", 0) if queue is None else Standing(encode(queue.record), settled_through(snap, queue))

    def _remove(self, commit: Commit, topic: str, standing: Standing) -> bool:
        """Removes some blocks of what is settled from the beginning on; True when there is more."""
        queue = self._cache.find(commit, topic)
        if queue is None or queue.record.over_log or encode(queue.record) != standing.record:
            return False
        state = load_state(commit.tx, queue.topic, topic)
        settled = min(self._done_with(commit, queue, standing.settled), queue.latest(commit))
        through = one_step(commit, topic, settled)
        if through == settled > state.sealed:
            through = _whole_blocks(commit, queue, settled)
        if through <= state.trimmed:
            return False
        compact(commit, topic, through, ())
        return through < settled

    def _clear(self, commit: Commit, topic: str, standing: Standing) -> bool:
        """Deletes some rows about messages that are removed, settled as dead letters, or purged; True when there is
        more."""
        queue = self._cache.find(commit, topic)
        if queue is None:
            return False
        tx, left = commit.tx, CLEAR_ROWS
        trimmed = queue.view(tx).trimmed()
        removed = [
            (key(queue.topic, 0), key(queue.topic, trimmed + 1)) for key in (keys.special_key, keys.override_key)
        ]
        for low, high in [*keys.purged_ranges(queue.topic, queue.record.purges), *removed]:
            gone = [key for key, _ in islice(tx.scan(low, high), left)]
            if gone:
                tx.delete_range(low, gone[-1] + b"\0")
            left -= len(gone)
        settled = max(trimmed, standing.settled if encode(queue.record) == standing.record else 0)
        letters = tx.scan(keys.letter_key(queue.topic, "", 0), keys.letter_key(queue.topic, "", settled + 1))
        for seq in [keys.tail_seq(key) for key, _ in islice(letters, left)]:
            queue.forget_letter(commit, seq)
            left -= 1
        return left == 0

    def _done_with(self, commit: Commit, queue: QueueState, through: int) -> int:
        """Returns the position through which all but this queue (cursors, for example) let history be removed, up to
        `through`."""
        for hold in self._core.holds:
            if hold not in self._core.housekeeper.holds:  # messages that are not settled
                through = min([through, *(done for _, done in hold(commit, queue.name))])
        return through

    # ── what is settled behind an unsettled message ──────────────────────────────────────────────────────────────────
    def _thin(self, topic: str) -> bool:
        """Removes settled blocks behind an unsettled message that is in the way: a failed one may stay for years."""
        with self._core.engine.read() as snap, self._cache.beside(snap, topic) as queue:
            if queue is None or queue.record.over_log:
                return False
            record, topic_id = encode(queue.record), queue.topic
            state = load_state(snap, topic_id, topic)
            start = max(self._thinned.get(topic_id, 0), state.trimmed, state.sealed)
            stop = min(group.passed() for group in queue.all_groups(snap))
            least = 1 if topic_id in self._thinning else THIN_POSITIONS  # a pass that has begun goes to its end
            if stop - start < least:
                self._thinning.discard(topic_id)
                return False
            self._thinning.add(topic_id)
            reached, thinned = thin(snap, queue, start, stop)
        for part in in_steps(thinned):
            if not self._core.writer.run_relaxed(self._exchange, topic, record, topic_id, part):
                self._thinning.discard(topic_id)
                return False
        self._thinned[topic_id] = reached
        return reached > start

    def _exchange(self, commit: Commit, topic: str, record: bytes, topic_id: int, part: list[ThinnedBlock]) -> bool:
        """Exchanges blocks for thinner ones; False when something has changed since they were looked at."""
        queue, last = self._cache.find(commit, topic), part[-1].last
        if queue is None or encode(queue.record) != record or self._done_with(commit, queue, last) < last:
            return False
        return exchange(commit, topic, topic_id, part)

    # ── consumers ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _forget_consumers(self, topic: str) -> None:
        """Consumers that have not been seen for a day, and failures of the day before."""
        with self._core.engine.read() as snap, self._cache.beside(snap, topic) as queue:
            rows = [] if queue is None else presences(snap, queue.topic)
            bound = self._core.clock.now_ms() - FORGET_CONSUMER_MS
            gone = [(key, value) for key, value, presence in rows if presence.seen_ms < bound]
            failures = [] if queue is None else last_failures(snap, queue.topic)
            gone += [(key, value) for key, value, failure in failures if failure.attempt.ended_ms < bound]

        def delete(commit: Commit) -> bool:
            for key, value in [gone.pop() for _ in range(min(CLEAR_ROWS, len(gone)))]:
                if commit.tx.get(key) == value:
                    commit.tx.delete(key)
            return bool(gone)

        if gone:
            self._repeat(delete)

    def _forget_flow(self, commit: Commit, topic: str) -> None:
        """Removes some rates of keys without a delivery for a period, and some of what was remembered of pushes."""
        from penstock.core.queue.operations.push import forget_flow

        queue = self._cache.find(commit, topic)
        if queue is not None:
            self._forgotten[queue.topic] = forget_flow(commit, queue, self._forgotten.get(queue.topic, b""))


def _whole_blocks(commit: Commit, queue: QueueState, through: int) -> int:
    """Returns the place to cut at or before a position: in the middle of a block only if that is small."""
    if commit.tx.get(block_key(queue.topic, through + 1)) is not None:
        return through
    block = queue.view(commit.tx).block_holding(through)
    if block is None or block.last <= through or block.count <= CUT_EVENTS:
        return through
    return block.first - 1


def thin(snap: Snapshot, queue: QueueState, start: int, stop: int) -> tuple[int, list[ThinnedBlock]]:
    """Returns the blocks of start+1 … stop without what is settled, where that is much; and how far it came."""
    topic = queue.topic
    reached, size = stop, 0
    found: list[BlockRow] = []
    for stored in stored_blocks(snap, topic, queue.name, start + 1, stop):
        block = stored.block
        if block.last > stop or len(found) == THIN_BLOCKS or size > THIN_POSITIONS:
            reached = block.first - 1
            break
        found.append(stored)
        size += block.count
    unsettled: set[int] = set()
    for group in queue.all_groups(snap):
        unsettled.update(message.seq for message in group.parked(snap, reached, start))
        held = (one.seq for one in group.in_flight(snap, start))
        unsettled.update(takewhile(lambda seq: seq <= reached, held))
    thinned: list[ThinnedBlock] = []
    for stored in found:
        block = stored.block
        kept = [row for row, seq in enumerate(block.seqs) if seq in unsettled or seq <= start]
        if len(kept) * 2 <= block.count:
            thinned.append(without(stored, kept))
    return max(start, reached), thinned

"""What queues do in passing: remove what every group has settled, and keep what some group has not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from penstock.journal.commit.catalog import TopicRecord, load_state, save_state
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import WriteRequest
from penstock.journal.index.directory import drop_index
from penstock.journal.reading import TopicView
from penstock.journal.storage.block import Block
from penstock.journal.storage.joining import select
from penstock.journal.storage.keys import block_key
from penstock.journal.upkeep.compaction import compact
from penstock.queue.operations.overdue import give_up_through, trim
from penstock.queue.operations.settle import EXPIRED, RETIRED
from penstock.queue.state import keys
from penstock.queue.state.cache import QueueCache, QueueState
from penstock.queue.state.runs import members

if TYPE_CHECKING:
    from penstock.journal.journal import BaseJournal

SETTLED_MESSAGES = 1024
"""How many settled messages make a look at the topic worth it."""
REMOVE_AT_ONCE = 50_000
"""The most positions one commit removes: nobody should have to wait long behind it."""
THIN_POSITIONS = 20_000
"""How much must have piled up behind an unsettled message before settled ones are picked out."""
THIN_BLOCKS = 32
"""The most blocks one commit looks at for that."""
FORGET_CONSUMER_MS = 24 * 3600 * 1000


def settled_through(commit: Commit, queue: QueueState) -> int:
    """Every position up to here is settled, for everybody."""
    tx = commit.tx
    floor = min(group.floor(tx) for group in queue.keeping(tx))
    for other in queue.left_behind(tx):
        floor = min([floor, *(lease.seq(index) - 1 for _, lease in other.leases(tx) for index in lease.held())])
    return floor


class QueueUpkeep:
    """Compacts the topics of queues, and keeps others from compacting away what is not settled."""

    def __init__(self, journal: BaseJournal, cache: QueueCache) -> None:
        self._journal = journal
        self._cache = cache
        self._settled: dict[str, int] = {}
        self._thinned: dict[int, int] = {}
        self._thinning: set[int] = set()
        """Topics whose pass over settled blocks has begun."""

    def holds(self, commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
        """For compaction on request: unsettled messages stay."""
        queue = self._cache.find(commit, topic)
        return () if queue is None else [(f"queue {topic}", settled_through(commit, queue))]

    def trimmed(self, commit: Commit, topic: str, through: int) -> None:
        """A forced compaction has removed messages, settled or not."""
        queue = self._cache.find(commit, topic)
        if queue is not None:
            trim(commit, queue, min(through, queue.latest(commit)))

    def give_way(self, commit: Commit, topic: str, through: int) -> bool:
        """Where the policy lets retention win: messages that it passes become dead letters, some at a time."""
        queue = self._cache.find(commit, topic)
        if queue is None or queue.policy.retention != "dead_letter" or commit.fenced:
            return False
        queue.blocks.refresh(commit)
        through = min(through, queue.latest(commit))
        return any(give_up_through(commit, queue, group, through, RETIRED) for group in queue.keeping(commit.tx))

    def _expire(self, commit: Commit, topic: str) -> bool:
        """Gives up some of what has outlived the queue's ttl; True when there is more."""
        queue = self._cache.find(commit, topic)
        if queue is None or queue.policy.ttl is None or (commit.fenced and queue.policy.dead_letter is not None):
            return False
        queue.blocks.refresh(commit)
        overdue = min(queue.overdue_through(commit.tx, commit.now_ms), queue.latest(commit))
        if not overdue:
            return False
        return any(give_up_through(commit, queue, group, overdue, EXPIRED) for group in queue.keeping(commit.tx))

    def note(self, queue: str, count: int) -> None:
        """Messages of a queue were settled."""
        settled = self._settled.get(queue, 0) + count
        if settled < SETTLED_MESSAGES:
            self._settled[queue] = settled
            return
        self._settled[queue] = 0
        self._journal._housekeeper.request(queue)

    def keep(self, topic: str) -> None:
        """Removes what is settled, in the housekeeper's thread; a part at a time."""
        with self._journal._engine.read() as snap:
            if snap.get(keys.queue_key(topic)) is None:
                return
        writer = self._journal._writer
        for step in (self._expire, self._remove, self._thin, self._forget_consumers):
            while writer.run(WriteRequest(lambda commit, step=step: step(commit, topic), relaxed=True)):
                pass

    def _remove(self, commit: Commit, topic: str) -> bool:
        """Removes some of what is settled from the beginning on; True when there is more."""
        queue = self._cache.find(commit, topic)
        if queue is None:
            return False
        trimmed = load_state(commit.tx, queue.topic, topic).trimmed
        settled = settled_through(commit, queue)
        if settled <= trimmed:
            return False
        through = min(settled, trimmed + REMOVE_AT_ONCE)
        remove_through(commit, queue, through, self._journal)
        return through < settled and load_state(commit.tx, queue.topic, topic).trimmed >= through

    def _thin(self, commit: Commit, topic: str) -> bool:
        """Removes settled blocks behind an unsettled message that is in the way: a failed one may stay for years."""
        queue = self._cache.find(commit, topic)
        if queue is None:
            return False
        start = max(self._thinned.get(queue.topic, 0), load_state(commit.tx, queue.topic, topic).trimmed)
        stop = self._handed_out(commit, queue)
        least = 1 if queue.topic in self._thinning else THIN_POSITIONS  # a pass that has begun goes to its end
        if stop - start < least:
            self._thinning.discard(queue.topic)
            return False
        self._thinning.add(queue.topic)
        self._thinned[queue.topic] = thin(commit, queue, start, stop)
        return self._thinned[queue.topic] > start

    def _handed_out(self, commit: Commit, queue: QueueState) -> int:
        """Everything up to here was handed out to all groups, and read by every cursor."""
        handed_out = min(group.passed() for group in queue.keeping(commit.tx))
        for hold in self._journal._holds:
            if hold != self.holds:
                handed_out = min([handed_out, *(done for _, done in hold(commit, queue.name))])
        return handed_out

    def _forget_consumers(self, commit: Commit, topic: str) -> bool:
        """Consumers that have not been seen for a day."""
        queue = self._cache.find(commit, topic)
        if queue is not None:
            for key, value in list(commit.tx.scan(*keys.presence_range(queue.topic))):
                if commit.now_ms - keys.unpack_seq(value) > FORGET_CONSUMER_MS:
                    commit.tx.delete(key)
        return False


def remove_through(commit: Commit, queue: QueueState, through: int, journal: BaseJournal) -> int:
    """Removes messages up to a position that nobody holds, and what was known about their delivery."""
    removed = compact(commit, queue.name, through, journal._holds).removed
    trimmed = load_state(commit.tx, queue.topic, queue.name).trimmed
    commit.tx.delete_range(keys.special_key(queue.topic, 0), keys.special_key(queue.topic, trimmed + 1))
    commit.tx.delete_range(keys.override_key(queue.topic, 0), keys.override_key(queue.topic, trimmed + 1))
    for group in queue.everyone(commit.tx):
        low, high = (keys.traceback_key(queue.topic, group.number, seq) for seq in (0, trimmed + 1))
        commit.tx.delete_range(low, high)
    return removed


def thin(commit: Commit, queue: QueueState, start: int, stop: int) -> int:
    """Removes what is settled from blocks of start+1 … stop that hold little else; returns how far it came."""
    tx, topic = commit.tx, queue.topic
    view = TopicView(tx, queue.name, TopicRecord(topic))
    reached, size = stop, 0
    blocks: list[Block] = []
    for block in view.blocks(start, stop):
        if block.last > stop or len(blocks) == THIN_BLOCKS or size > THIN_POSITIONS:
            reached = block.first - 1
            break
        blocks.append(block)
        size += block.count
    unsettled: set[int] = set()
    for group in queue.everyone(tx):
        low, high = (keys.message_key(topic, group.number, at) for at in (start + 1, reached + 1))
        unsettled.update(keys.tail_seq(key) for key, _ in tx.scan(low, high))
        unsettled.update(seq for seq, _ in members(tx, group, reached))
        unsettled.update(lease.seq(index) for _, lease in group.leases(tx) for index in lease.held())
    thinner: list[tuple[Block, list[int]]] = []
    for block in blocks:
        kept = [row for row, seq in enumerate(block.seqs) if seq in unsettled or seq <= start]
        if len(kept) * 2 <= block.count:
            thinner.append((block, kept))
    removed = 0
    for block, kept in thinner:
        removed += block.count - len(kept)
        commit.reshape()
        tx.delete(block_key(topic, block.first))
        if kept:
            tx.put(block_key(topic, block.seq(kept[0])), select(block, kept))
    if removed:
        state, head = load_state(tx, topic, queue.name), commit.ensure(queue.name)
        drop_index(tx, topic, queue.name)
        changed = msgspec.structs.replace(
            state,
            removed=state.removed + removed,
            latest=head.latest,
            recorded_ms=head.recorded_ms,
            last_id=head.last_id.to_bytes(16),
            compacted=max(state.compacted, reached),
        )
        save_state(tx, topic, changed)
    return max(start, reached)

"""One write transaction of the journal: what everybody who commits together shares.

Group commit hands several calls' work to one `Commit`; a user's transaction owns one alone. Appending assigns positions
and ids at once and gathers the events per topic (a `TopicAdditions`); `flush` writes each of them as one block.
Nothing outside changes until the engine's transaction has ended well: only then `publish` moves the heads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol

from penstock.engine.contract import WriteTx
from penstock.errors import Conflict, FenceActive
from penstock.events import Receipt, format_id
from penstock.journal.commit.catalog import Barrier, Catalog, Head, create_topic
from penstock.journal.commit.dedup import Original, find_original, remember
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.commit.recent import RecentBlock, RecentBlocks
from penstock.journal.storage import keys
from penstock.journal.storage.block import Columns, build_block
from penstock.journal.storage.links import add_links
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS

_RANDOM_BITS = (1 << 80) - 1 - (1 << 61)  # the run's ids count up from here: keep the top random bit free for the carry


class EntityHistory(Protocol):
    """What a commit asks of an entity's past."""

    def generation(self, commit: Commit, head: Head, key: str) -> int:
        """The position of an entity's newest event, this commit's events included."""
        ...

    def link(self, commit: Commit, head: Head, key: str) -> bytes:
        """The newest link of an entity's hash chain, without this commit's events."""
        ...


class LateRow(Protocol):
    """What several operations of a commit may change in memory, and the commit writes once."""

    def save(self, commit: Commit) -> None:
        """Writes it into the commit's transaction."""
        ...


class TopicAdditions:
    """The events one commit adds to one topic."""

    __slots__ = ("_noted", "base_id", "columns", "first", "head", "links", "newest", "owned", "recorded_ms", "size")

    def __init__(self, head: Head, now_ms: int) -> None:
        self.head = head
        self.first = head.latest + 1
        self.recorded_ms = max(now_ms, head.recorded_ms)
        self.base_id = next_id(head.last_id, self.recorded_ms)
        self.columns: Columns | None = None
        self.owned = False
        self.size = 0
        self.newest: dict[str, int] | None = None
        self.links: dict[str, bytes] | None = None

    def __len__(self) -> int:
        return 0 if self.columns is None else len(self.columns.kinds)

    def add(self, columns: Columns, size: int) -> None:
        self.size += size
        if self.columns is None:
            self.columns = columns
            return
        if not self.owned:  # the first batch's columns are its caller's, who may need them for a second try
            self.columns = self.columns.take(0, len(self.columns.kinds))
            self.owned = True
        self.columns.extend(columns)

    def newest_of(self, key: str) -> int:
        """The position of a key's newest event among these; 0 for none."""
        if self.newest is None:
            self.newest, self._noted = {}, 0
        if self._noted < len(self):
            self.note_newest(self.newest, self._noted)
            self._noted = len(self)
        return self.newest.get(key, 0)

    def note_newest(self, newest: dict[str, int], start: int = 0) -> None:
        """Writes down where these events leave each entity."""
        column = self.columns.key if self.columns is not None else None
        if column is not None:
            found = zip(column[start:], range(self.first + start, self.first + len(column)), strict=True)
            newest.update([(key, seq) for key, seq in found if key is not None])


class Commit:
    """A write transaction under way, with its own view of every topic's end."""

    __slots__ = (
        "_additions",
        "_catalog",
        "_entities",
        "_late",
        "_new_heads",
        "_reshaping",
        "gathered",
        "now_ms",
        "touched",
        "tx",
    )

    def __init__(self, catalog: Catalog, tx: WriteTx, now_ms: int, entities: EntityHistory) -> None:
        self._catalog = catalog
        self._entities = entities
        self._additions: dict[str, TopicAdditions] = {}
        self._new_heads: dict[str, Head] = {}
        self._reshaping = False
        self.tx = tx
        self.now_ms = now_ms
        self.gathered = 0
        """Changes gathered in memory, less the writes that `flush` made of them. Added to what the engine's
        transaction counts, it says how much was changed so far: see `changes`."""
        self._late: dict[LateRow, None] = {}
        """What is written once, at the end, however often it changed meanwhile."""
        self.touched: dict[str, int] = {}
        """Topics whose waiters should look again after the commit, with how many events were added."""
        if tx.foreign:
            catalog.forget()

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def changes(self) -> int:
        """Grows with every change, written or gathered: an operation that fails after it has grown spoils the whole."""
        return self.tx.writes + self.gathered

    def touch(self, row: LateRow) -> None:
        """Says that a row has changed in memory (or is about to): it is written once, when the commit ends."""
        self.gathered += 1
        self._late[row] = None

    # ── who may append ───────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def fenced(self) -> bool:
        """Whether an exclusive fence keeps everybody else from appending."""
        barrier = self._catalog.barrier
        return barrier is not None and not barrier.passing

    def raise_barrier(self, barrier: Barrier) -> None:
        """From here on only the barrier's owner appends: what came before is committed, what comes after is refused."""
        self._catalog.barrier = barrier

    def check_barrier(self, topic: str) -> None:
        """FenceActive when somebody else's fence is open."""
        if self.fenced:
            raise FenceActive(
                f"an exclusive fence is open: nothing else can be appended to {topic!r} until it has ended"
            )

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def head(self, name: str) -> Head | None:
        """A topic's head, or None when nobody has created it."""
        return self._new_heads.get(name) or self._catalog.head(self.tx, name)

    def ensure(self, name: str) -> Head:
        """A topic's head; the topic is created when it is not there."""
        head = self.head(name)
        if head is None:
            head = self._new_heads[name] = create_topic(self.tx, name)
        return head

    def latest(self, name: str) -> int:
        """The highest position of a topic, this commit's events included."""
        additions = self._additions.get(name)
        if additions is not None:
            return additions.first + len(additions) - 1
        head = self.head(name)
        return head.latest if head else 0

    @property
    def epoch(self) -> int:
        """What was cached under another epoch may be wrong by now."""
        return self._catalog.epoch

    @property
    def reshaped(self) -> int:
        """Grows whenever blocks may have been exchanged by anybody but the housekeeper."""
        return self._catalog.reshaped

    def reshape(self) -> None:
        """Says that this commit exchanges or removes blocks."""
        self._note_reshaping()
        self.exchange()

    def _note_reshaping(self) -> None:
        # Counted now, for whoever comes later in this commit, and once more when it has ended: the housekeeper may have
        # noted the number already and still read the blocks as they were before.
        self._catalog.reshaped += 1
        self._reshaping = True

    def exchange(self) -> None:
        """Says that this commit puts blocks in the place of others, with the same events."""
        self._catalog.exchanged += 1

    def additions(self, name: str) -> TopicAdditions | None:
        return self._additions.get(name)

    def _lot(self, name: str) -> TopicAdditions:
        additions = self._additions.get(name)
        if additions is None:
            additions = self._additions[name] = TopicAdditions(self.ensure(name), self.now_ms)
        return additions

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, name: str, batch: PreparedBatch) -> list[Receipt]:
        """Adds a batch and says where its events will be; raises before anything is changed."""
        if not batch.columns.kinds:
            return []
        if self._catalog.barrier is not None:
            self.check_barrier(name)
        if batch.dedups is None and batch.expects is None and batch.cause_rows is None:
            return self._add(self._additions.get(name) or self._lot(name), batch.columns, batch.size)
        if batch.dedups is None and batch.cause_rows is None:
            self._check_expects(name, batch.columns.key or [], batch.expects or (), range(len(batch)))
            return self._add(self._lot(name), batch.columns, batch.size)
        return self._append_looking(name, batch)

    def check(self, name: str, batch: PreparedBatch) -> None:
        """Raises what appending a batch would raise, and changes nothing: for batches that succeed or fail together."""
        if batch.expects is not None:
            known, repeats = self._duplicates(name, batch.dedups or ())
            fresh = [row for row in range(len(batch)) if row not in known and row not in repeats]
            self._check_expects(name, batch.columns.key or [], batch.expects, fresh)

    def _add(self, additions: TopicAdditions, columns: Columns, size: int) -> list[Receipt]:
        offset = len(additions)
        name, seq, number = additions.head.name, additions.first + offset, additions.base_id + offset
        count = len(columns.kinds)
        if additions.head.settings.chained:
            return self._add_linked(additions, columns, size)
        additions.add(columns, size)
        self.gathered += 1
        correlations = columns.correlation
        if correlations is None:
            if count == 1:
                return [Receipt(name, seq, number)]
            return [Receipt(name, seq + row, number + row) for row in range(count)]
        return [Receipt(name, seq + row, number + row, correlations[row]) for row in range(count)]

    def _add_linked(self, additions: TopicAdditions, columns: Columns, size: int) -> list[Receipt]:
        """Adds events to a topic that keeps hash chains."""
        offset = len(additions)
        name, seq, number = additions.head.name, additions.first + offset, additions.base_id + offset
        if additions.links is None:
            additions.links = {}
        find = partial(self._entities.link, self, additions.head)
        self.gathered += 1  # first: the links of a batch that fails in the middle must not be built upon
        add_links(columns, seq, number, additions.recorded_ms, additions.links, find)
        additions.add(columns, size)
        correlations, links = columns.correlation, columns.chain or []
        return [
            Receipt(name, seq + row, number + row, correlations[row] if correlations else None, False, made)
            for row, made in enumerate(links)
        ]

    def _append_looking(self, name: str, batch: PreparedBatch) -> list[Receipt]:
        """Appends what needs a look at the store first; a draft whose dedup key is known gets its old receipt."""
        columns, count = batch.columns, len(batch.columns.kinds)
        known, repeats = self._duplicates(name, batch.dedups or ())
        fresh = [row for row in range(count) if row not in known and row not in repeats]
        if batch.expects is not None:
            self._check_expects(name, columns.key or [], batch.expects, fresh)
        receipts = dict(known)
        if fresh:
            additions = self._lot(name)
            if len(fresh) < count or batch.cause_rows:  # the batch stays as it is, for a second try
                columns = columns.pick(fresh)
            if batch.cause_rows:
                self._link_causes(additions, columns, fresh, batch.cause_rows, known, repeats)
            receipts.update(zip(fresh, self._add(additions, columns, batch.size), strict=True))
            if batch.dedups is not None:
                self._remember(additions, batch.dedups, fresh, receipts)
        for row, original in repeats.items():
            receipts[row] = _as_duplicate(receipts[original])
        return [receipts[row] for row in range(count)]

    def _check_expects(
        self, name: str, entities: Sequence[str | None], expects: Sequence[int | None], rows: Sequence[int]
    ) -> None:
        """Every expectation is about the entity as it was before this batch."""
        head = self.head(name)
        for row in rows:
            key, expected = entities[row], expects[row]
            if expected is None or key is None:
                continue
            actual = self._entities.generation(self, head, key) if head else 0
            if actual != expected:
                raise Conflict(
                    f"entity {key!r} of topic {name!r} is at position {actual}, not {expected}: "
                    "read it again and decide anew",
                    expected=expected,
                    actual=actual,
                )

    def _link_causes(
        self,
        additions: TopicAdditions,
        columns: Columns,
        fresh: Sequence[int],
        cause_rows: dict[int, int],
        known: dict[int, Receipt],
        repeats: dict[int, int],
    ) -> None:
        """Turns 'the n-th draft of this batch' into ids, now that ids are known."""
        place = {row: at for at, row in enumerate(fresh)}
        first = additions.base_id + len(additions)
        causation, correlation = columns.causation, columns.correlation
        assert causation is not None and correlation is not None
        for row, cause in cause_rows.items():
            if row not in place:
                continue
            cause = repeats.get(cause, cause)
            if cause in known:
                id, inherited = known[cause].id, known[cause].correlation_id
            else:
                id, inherited = format_id(first + place[cause]), correlation[place[cause]]
            at = place[row]
            causation[at] = id
            correlation[at] = correlation[at] or inherited or id

    # ── dedup keys ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _duplicates(self, name: str, dedups: Sequence[str | None]) -> tuple[dict[int, Receipt], dict[int, int]]:
        """The drafts appended before, with their receipts; those that repeat one of this batch, with its row."""
        known: dict[int, Receipt] = {}
        repeats: dict[int, int] = {}
        first_row: dict[str, int] = {}
        head = self.head(name)
        for row, dedup in enumerate(dedups):
            if dedup is None:
                continue
            if dedup in first_row:
                repeats[row] = first_row[dedup]
                continue
            first_row[dedup] = row
            if head is not None:
                now_ms = max(self.now_ms, head.recorded_ms)
                original = find_original(self.tx, head.number, head.settings.dedup_window, dedup, now_ms)
                if original is not None:
                    known[row] = Receipt(name, original.seq, int.from_bytes(original.id), original.correlation, True)
        return known, repeats

    def count_fresh(self, name: str, dedups: Sequence[str | None]) -> int:
        """How many events a batch with these dedup keys would really add."""
        known, repeats = self._duplicates(name, dedups)
        return len(dedups) - len(known) - len(repeats)

    def _remember(
        self,
        additions: TopicAdditions,
        dedups: Sequence[str | None],
        fresh: Sequence[int],
        receipts: dict[int, Receipt],
    ) -> None:
        head = additions.head
        for row in fresh:
            dedup, receipt = dedups[row], receipts[row]
            if dedup is not None:
                original = Original(
                    receipt.seq, receipt._number.to_bytes(16), additions.recorded_ms, receipt.correlation_id
                )
                remember(self.tx, head.number, head.settings.dedup_window, dedup, original)

    # ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def get_mark(self, name: str) -> int | None:
        value = self.tx.get(keys.mark_key(name))
        return None if value is None else int.from_bytes(value, signed=True)

    def set_mark(self, name: str, value: int) -> None:
        self.tx.put(keys.mark_key(name), value.to_bytes(8, signed=True))

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, name: str, key: str) -> int:
        head = self.head(name)
        return self._entities.generation(self, head, key) if head else 0

    def flush(self) -> None:
        """Writes the gathered events into the transaction, so that its reads see them."""
        before = self.tx.writes
        while self._late:
            self._late.popitem()[0].save(self)
        for name, additions in self._additions.items():
            count = len(additions)
            if not count:
                continue
            self._write_blocks(additions)
            head = additions.head
            last = additions.first + count - 1
            ended = Head(name, head.number, head.settings, last, additions.recorded_ms, additions.base_id + count - 1)
            ended.tail = head.tail
            if head.newest is not None:
                additions.note_newest(head.newest)
                ended.newest, ended.since = head.newest, head.since
            if additions.links is not None and head.links is not None:
                head.links.update(additions.links)
                ended.links, ended.linked = head.links, head.linked
            self._new_heads[name] = ended
            self.touched[name] = self.touched.get(name, 0) + count
        self._additions.clear()
        self.gathered -= self.tx.writes - before  # these were counted when they were gathered

    def _write_blocks(self, additions: TopicAdditions) -> None:
        columns, head = additions.columns, additions.head
        assert columns is not None
        count = len(columns.kinds)
        if additions.size <= 4 * BLOCK_BYTES and count <= BLOCK_EVENTS:
            self._write_block(head, RecentBlock(additions.first, additions.recorded_ms, additions.base_id, columns))
            return
        head.tail = None
        start, weights = 0, columns.weights()
        while start < count:
            stop = start + _fitting(weights, start)
            first = additions.first + start
            value = build_block(columns.take(start, stop), first, additions.recorded_ms, additions.base_id + start)
            self.tx.put(keys.block_key(head.number, first), value)
            start = stop

    def _write_block(self, head: Head, part: RecentBlock) -> None:
        """Writes one commit's events: as a block of their own, or together with the small ones before them."""
        tail, stamp = head.tail, self._catalog.exchanged
        if tail is None or tail.stamp != stamp:
            tail = head.tail = RecentBlocks(stamp)
        if tail.parts and tail.full and tail.takes(part, 0):
            first = keys.block_key(head.number, tail.parts[0].first)
            self._note_reshaping()
            self.tx.delete_range(first + b"\0", keys.block_key(head.number, part.first))
            self.tx.put(first, tail.joined(part))
            head.tail = None
            return
        value = build_block(part.columns, part.first, part.recorded_ms, part.base_id)
        self.tx.put(keys.block_key(head.number, part.first), value)
        if tail.takes(part, len(value)):
            tail.add(part, len(value))
        else:
            head.tail = None

    def publish(self) -> None:
        """The transaction has ended well: the writer's view of the topics follows."""
        if self._reshaping:
            self._catalog.reshaped += 1
        for head in self._new_heads.values():
            self._catalog.adopt(head)


_randoms: list[bytes] = []
# A forked child must not give out the ids its parent gives out.
os.register_at_fork(after_in_child=_randoms.clear)


def _random() -> bytes:
    """Ten random bytes, from the system's supply by the kilobyte: a call for each would cost more than the id."""
    try:
        return _randoms.pop()
    except IndexError:
        supply = os.urandom(2560)
        _randoms.extend([supply[at : at + 10] for at in range(10, len(supply), 10)])
        return supply[:10]


def next_id(last_id: int, ms: int) -> int:
    """The id of a run's first event: a UUIDv7 of time `ms`, above every id the topic has given out."""
    if last_id >> 80 == ms:
        return last_id + 1 + int.from_bytes(_random()[:3])
    random = int.from_bytes(_random()) & _RANDOM_BITS
    random = (random & ~(0xF << 76)) | (0x7 << 76)
    random = (random & ~(0x3 << 62)) | (0x2 << 62)
    return (ms << 80) | random


def _fitting(weights: Sequence[int], start: int) -> int:
    """How many events from `start` on make a block of the usual size; at least one."""
    fitting = 0
    for total in accumulate(weights[start : start + BLOCK_EVENTS]):
        if total > BLOCK_BYTES and fitting:
            break
        fitting += 1
    return fitting


def _as_duplicate(receipt: Receipt) -> Receipt:
    return Receipt(receipt.topic, receipt.seq, receipt._number, receipt.correlation_id, True)

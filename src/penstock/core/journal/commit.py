"""A write transaction of the journal, which all callers that commit together share.

Group commit gives the work of several calls to one `Commit`; a user's transaction has a `Commit` of its own. Appending
assigns positions and ids at once and gathers the events per topic (a `TopicAdditions`); `flush` writes each of them as
one block. Nothing outside changes until the engine's transaction has succeeded; only then `publish` moves the heads.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import lt
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace

from penstock.core.clock import seconds
from penstock.core.documents.decoding import nearest
from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.events import Event, Receipt, format_id
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    Block,
    Columns,
    PlacedRows,
    Wire,
    build_joined,
    build_wire,
    compressed,
    compressed_if_large,
    encode_block,
    join_columns,
)
from penstock.core.journal.catalog import (
    Barrier,
    Catalog,
    Head,
    RecentBlock,
    RecentBlocks,
    Settings,
    TopicRecord,
    create_topic,
    load_state,
    mark_aged,
    save_record,
    save_state,
    save_with_end,
)
from penstock.core.journal.index.index import read_view
from penstock.core.journal.keys import block_key
from penstock.core.journal.prepare import PreparedBatch
from penstock.core.journal.reading import TopicView, wanted_rows
from penstock.core.journal.summaries import keep_hashes, leaves, range_rows, replace_range_rows, summarise
from penstock.core.model.query import EventQuery
from penstock.core.names import check_limit, unpack_tags
from penstock.core.observe.logs import Log
from penstock.errors import ConfigError, Conflict, FenceActive
from penstock.limits import (
    BLOCK_BYTES,
    BLOCK_EVENTS,
    MAX_POSITION,
    MERGE_FAN_IN,
    MERGED_BYTES,
    SMALL_BYTES,
    SUMMARY_EVENTS,
)

if TYPE_CHECKING:
    from penstock.core.journal.index.index import EntityIndex
    from penstock.core.journal.index.memtable import Newest

log = Log("penstock.writer")

_VERSION_BITS = 0x7 << 76 | 0x2 << 62
_RANDOM_BITS = (1 << 80) - 1 & ~(0xF << 76 | 0x3 << 62 | 1 << 61 | keys.ID_BITS | 1 << 31)
_COUNTED_BITS = (1 << 31) - 1
"""The random bits of an id.

Commits of one millisecond count up above the bits of the topic, the ids of a run count below them. In both, the top bit
is free for the carry.
"""


class LateRow(Protocol):
    """A row that several operations of a commit may change in memory, and that the commit writes once."""

    def save(self, commit: Commit) -> None:
        """Writes the row into the commit's transaction."""
        ...


class TopicAdditions(msgspec.Struct, eq=False, weakref=False):
    """The events that one commit adds to one topic."""

    head: Head
    first: int
    recorded_ms: int
    base_id: int
    parts: list[Columns]
    """The columns of each batch, which belong to the caller: they are not changed, so that a second attempt is
    possible.
    """
    count: int = 0
    size: int = 0
    newest: dict[str, int] | None = None
    noted: int = 0
    """The number of parts whose events are in `newest`, and the number of these events."""
    noted_count: int = 0
    blocks: list[Block] | None = None
    """The first parts as blocks, to check conditions against."""
    tags: set[str] | None = None
    """The tags of the events in `blocks`."""

    def newest_of(self, key: str) -> int:
        """Returns the position of a key's newest event among these; 0 for none."""
        if self.newest is None:
            self.newest = {}
        for part in self.parts[self.noted :]:
            _note_newest(self.newest, part, self.first + self.noted_count)
            self.noted += 1
            self.noted_count += len(part.kinds)
        return self.newest.get(key, 0)

    def matching(self, query: EventQuery) -> Event | None:
        """Returns the first of these events that a query wants; None without a match."""
        if self.blocks is None or self.tags is None:
            self.blocks, self.tags = [], set()
        first = self.blocks[-1].last + 1 if self.blocks else self.first
        for part in self.parts[len(self.blocks) :]:
            offset = first - self.first
            self.blocks.append(Block(build_wire(part, first, self.recorded_ms, self.base_id + offset), self.head.name))
            self.tags.update(tag for text in part.tags or () for tag in unpack_tags(text))
            first += len(part.kinds)
        if query.tags is not None and not query.tags <= self.tags:
            return None
        wanted = (
            Event(block, row)
            for block in self.blocks
            for row in wanted_rows(query, block, range(block.row_after(query.after), block.row_after(query.through)))
        )
        return next(query.fulfilled(wanted), None)


def _note_newest(newest: dict[str, int], columns: Columns, first: int) -> None:
    """Notes the newest position of each entity among events."""
    entities = columns.key
    if entities is None:
        return
    if len(entities) > 1:
        newest.update([(key, seq) for seq, key in enumerate(entities, first) if key is not None])
    elif entities[0] is not None:
        newest[entities[0]] = first


class Commit:
    """A write transaction under way, with its own view of every topic's end."""

    __slots__ = (
        "_indexing",
        "_last_id",
        "_late",
        "_new_heads",
        "_reshaping",
        "additions",
        "catalog",
        "entities",
        "gathered",
        "now_ms",
        "touched",
        "tx",
    )

    def __init__(self, catalog: Catalog, tx: WriteTx, now_ms: int, entities: EntityIndex) -> None:
        self.catalog = catalog
        self.entities = entities
        self.additions: dict[str, TopicAdditions] = {}
        """The gathered events, by topic."""
        self._new_heads: dict[str, Head] = {}
        self._reshaping = False
        self._last_id = catalog.last_id
        self._indexing: list[tuple[str, int, list[Wire | None], list[str | None] | None, Newest]] = []
        """The updates for the memtables, which are applied in order after the transaction has succeeded."""
        self.tx = tx
        self.now_ms = now_ms
        self.gathered = 0
        """The changes gathered in memory, minus the writes that `flush` made of them.

        The sum with the count of the engine's transaction is the number of changes so far: see `changes`.
        """
        self._late: dict[LateRow, None] = {}
        """The rows that are written once, at the end, however often they change."""
        self.touched: dict[str, int] = {}
        """The topics whose waiters should look again after the commit, with the number of added events."""
        if tx.foreign:
            catalog.forget(foreign=True)
            catalog.refresh_barrier(tx)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def changes(self) -> int:
        """A number that grows with every change, written or gathered: an operation that fails after a change spoils
        the whole commit.
        """
        return self.tx.writes + self.gathered

    def touch(self, row: LateRow) -> None:
        """Notes that a row has changed in memory (or is about to change); it is written once, when the commit ends."""
        self.gathered += 1
        self._late[row] = None

    # ── who may append ───────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def fenced(self) -> bool:
        """True if an exclusive fence keeps other callers from appending."""
        barrier = self.catalog.barrier
        if barrier is self.catalog.elsewhere:  # its process may have died
            before = self.tx.writes
            self.catalog.refresh_barrier(self.tx)
            # the fences of dead processes may be removed, whatever the outcome of the operation
            self.gathered -= self.tx.writes - before
            barrier = self.catalog.barrier
        return barrier is not None and not barrier.passing

    def raise_barrier(self, barrier: Barrier) -> None:
        """Lets only the barrier's owner append: earlier drafts are committed, later drafts are refused."""
        self.catalog.barrier = barrier

    def check_barrier(self, topic: str | None = None) -> None:
        """Raises FenceActive when another caller's fence is open.

        Without a name, the check is for an append to several topics.
        """
        if self.fenced:
            assert self.catalog.barrier is not None
            whose = f" of {self.catalog.barrier.owner}" if self.catalog.barrier.owner else ""
            where = "" if topic is None else f" to {topic!r}"
            raise FenceActive(
                f"an exclusive fence{whose} is open: nothing else can be appended{where} until it has ended"
            )

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def head(self, name: str) -> Head | None:
        """Returns a topic's head, or None when it was never created."""
        return self._new_heads.get(name) or self.catalog.heads.get(name) or self.catalog.load(self.tx, name)

    def ensure(self, name: str) -> Head:
        """Returns a topic's head; the topic is created when it is not there."""
        head = self.head(name)
        if head is None:
            head = self._new_heads[name] = create_topic(self.tx, name)
        return head

    def is_current(self, name: str, topic_id: int) -> bool:
        """Returns True if an earlier topic still exists: it was neither dropped nor made anew."""
        head = self.head(name)
        return head is not None and head.topic_id == topic_id

    def forget_topic(self, name: str) -> None:
        """Notes that this commit has removed a topic: later operations neither see nor extend it."""
        self.flush()
        self._new_heads.pop(name, None)
        self._indexing = [one for one in self._indexing if one[0] != name]
        self._reshaping = True
        self.catalog.forget()
        self.touched.setdefault(name, 0)  # its followers look again

    def latest(self, name: str) -> int:
        """Returns the highest position of a topic, this commit's events included."""
        additions = self.additions.get(name)
        if additions is not None:
            return additions.first + additions.count - 1
        head = self.head(name)
        return head.latest if head else 0

    def reshape(self) -> None:
        """Notes that this commit exchanges or removes blocks."""
        self._note_reshaping()
        self.exchange()

    def _note_reshaping(self) -> None:
        # Counted now, for later requests of this commit, and again at its end: the housekeeper may have noted the
        # number already and still read the old blocks.
        self.catalog.reshaped += 1
        self._reshaping = True

    def exchange(self) -> None:
        """Notes that this commit replaces blocks by blocks with the same events."""
        self.catalog.exchanged += 1

    def begin(self, name: str) -> TopicAdditions:
        """Begins the additions of this commit to a topic."""
        head = self._new_heads.get(name) or self.catalog.heads.get(name) or self.ensure(name)
        recorded_ms = head.recorded_ms
        if self.now_ms > recorded_ms:
            recorded_ms = self.now_ms
        last_id = self._last_id
        if head.last_id > last_id or last_id >> 80 != recorded_ms:
            last_id = head.last_id
        base_id = self._last_id = next_id(last_id, recorded_ms, head.id_bits)
        additions = self.additions[name] = TopicAdditions(head, head.latest + 1, recorded_ms, base_id, [])
        return additions

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, name: str, batch: PreparedBatch) -> list[Receipt]:
        """Adds a batch and returns the receipts of its events; raises errors before anything changes."""
        columns = batch.columns
        if self.catalog.barrier is not None and columns.kinds:
            self.check_barrier(name)
        if batch.dedups is not None or batch.cause_rows is not None:
            return append_checked(self, name, batch)
        if batch.expects is not None or batch.conditions is not None:
            self.check_conditions(name, batch, range(len(columns.kinds)))
        elif not columns.kinds:
            return []
        return self.add(self.additions.get(name) or self.begin(name), columns, batch.size)

    def append_one(self, name: str, batch: PreparedBatch) -> Receipt:
        """Adds a batch of one event and returns its receipt."""
        return self.append(name, batch)[0]

    def check(self, name: str, batch: PreparedBatch) -> None:
        """Raises the errors of an append of a batch, without a change: for batches that succeed or fail together."""
        if batch.expects is not None or batch.conditions is not None:
            known, repeats = find_duplicates(self, name, batch.dedups or ())
            fresh = [row for row in range(len(batch)) if row not in known and row not in repeats]
            self.check_conditions(name, batch, fresh)

    def add(self, additions: TopicAdditions, columns: Columns, size: int) -> list[Receipt]:
        """Adds checked columns to a topic's additions, and returns the receipts."""
        offset, count = additions.count, len(columns.kinds)
        name, seq, number = additions.head.name, additions.first + offset, additions.base_id + offset
        if seq + count - 1 > MAX_POSITION:
            raise topic_is_full(name, seq - 1, count)
        additions.parts.append(columns)
        additions.count = offset + count
        additions.size += size
        self.gathered += 1
        correlations = columns.correlation
        if correlations is None:
            if count == 1:
                return [Receipt(name, seq, number)]
            return [Receipt(name, seq + row, number + row) for row in range(count)]
        return [Receipt(name, seq + row, number + row, correlations[row]) for row in range(count)]

    def check_conditions(self, name: str, batch: PreparedBatch, rows: Sequence[int]) -> None:
        """Raises Conflict unless the conditions of a batch's events hold for the topic before the batch."""
        if batch.expects is not None:
            self.check_expects(name, batch.columns.key or [], batch.expects, rows)
        if batch.conditions is not None:
            for query in {id(one): one for row in rows for one in batch.conditions[row] or ()}.values():
                found = self.matching(name, query)
                if found is not None:
                    raise Conflict(
                        f"event {found.seq} ({found.kind!r}) of topic {name!r} matches unless= and came after position "
                        f"{query.after}: read and decide again",
                        expected=query.after,
                        actual=found.seq,
                    )

    def matching(self, name: str, query: EventQuery) -> Event | None:
        """Returns the first event of a topic that a query wants, this commit's own included; None for none."""
        head, additions = self.head(name), self.additions.get(name)
        if head is None or self.latest(name) <= query.after:
            return None
        if head.latest > query.after:
            view = TopicView(self.tx, name, TopicRecord(head.topic_id, head.settings), self.now_ms)
            for found in read_view(view, replace(query, limit=1), self.entities.open_within):
                return found
        return None if additions is None else additions.matching(query)

    def check_expects(
        self, name: str, entities: Sequence[str | None], expects: Sequence[int | None], rows: Sequence[int]
    ) -> None:
        """Checks every expectation against the entity before this batch."""
        head = self._new_heads.get(name) or self.catalog.heads.get(name) or self.head(name)
        for row in rows:
            key, expected = entities[row], expects[row]
            if expected is None or key is None:
                continue
            actual = self._newest(head, key) if head else 0
            if actual != expected:
                raise conflict(name, key, expected, actual)

    def check_expected(self, name: str, key: str, expected: int) -> None:
        """Raises Conflict when an entity's newest event is at another position."""
        actual = self.generation(name, key)
        if actual != expected:
            raise conflict(name, key, expected, actual)

    # ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def get_mark(self, name: str) -> int | None:
        return read_mark(self.tx, name)

    def set_mark(self, name: str, value: int, content: int | None = None) -> None:
        said = b"" if content is None else content.to_bytes(8)
        self.tx.put(keys.mark_key(name), value.to_bytes(8, signed=True) + said)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, name: str, key: str) -> int:
        head = self.head(name)
        return self._newest(head, key) if head else 0

    def _newest(self, head: Head, key: str) -> int:
        """Returns the position of an entity's newest event that readers see; events past `max_age` do not count."""
        found = self.entities.generation(self, head, key)
        if found and head.settings.max_age is not None:
            record = TopicRecord(head.topic_id, head.settings)
            if found <= TopicView(self.tx, head.name, record, self.now_ms).hidden:
                return 0
        return found

    def flush(self) -> None:
        """Writes the gathered events into the transaction, so that its reads see them."""
        before = self.tx.writes
        while self._late:
            self._late.popitem()[0].save(self)
        for name, additions in self.additions.items():
            count, head, first = additions.count, additions.head, additions.first
            if not count:
                continue
            parts = additions.parts
            columns = parts[0] if len(parts) == 1 else join_columns(parts)
            part = (first, additions.recorded_ms, additions.base_id, columns)
            if additions.size <= 4 * BLOCK_BYTES and count <= BLOCK_EVENTS:
                key, value, wire = write_block(self.tx, head, self.catalog.exchanged, part)
                if wire is None:
                    self._note_reshaping()
                wires = [wire]
            else:
                head.tail = None
                key, value, wires = write_blocks(self.tx, head, part)
            if head.settings.verified:
                seqs, ids = range(first, first + count), range(additions.base_id, additions.base_id + count)
                keep_hashes(self.tx, head.topic_id, seqs, leaves(columns, seqs, ids, [additions.recorded_ms] * count))
            unfolded = head.unfolded
            if not unfolded and (columns.correlation is not None or columns.causation is not None):
                unfolded = self.note_causes(head)
            if name in self.entities.memtables:
                if wires[0] is None:
                    wires = [build_wire(columns, first, additions.recorded_ms, additions.base_id)]
                self._indexing.append((name, first - 1, wires, columns.key, (key, len(value), value[-4:])))
            ended = Head(
                name,
                head.topic_id,
                head.settings,
                first + count - 1,
                additions.recorded_ms,
                additions.base_id + count - 1,
            )
            ended.tail, ended.id_bits, ended.unfolded = head.tail, head.id_bits, unfolded
            if head.newest is not None:
                _note_newest(head.newest, columns, first)
                ended.newest, ended.since = head.newest, head.since
            self._new_heads[name] = ended
            self.touched[name] = self.touched.get(name, 0) + count
        self.additions.clear()
        self.gathered -= self.tx.writes - before  # these changes were counted when they were gathered

    def note_causes(self, head: Head) -> bool:
        """Notes in the store that the causes and correlations of a topic after its end must be noted."""
        key = keys.UNFOLDED + keys.hashed_topic(head.name, head.topic_id)
        if not head.unfolded and self.tx.get(key) is None:
            self.tx.put(key, keys.pack_seq(head.latest))
            self.catalog.unfolded += 1
        return True

    def move_end(self, head: Head, latest: int, recorded_ms: int, last_id: int, count: int, *, causal: bool) -> None:
        """Moves the end of a topic after blocks were written; `causal`: their events may have causes or
        correlations.
        """
        unfolded = self.note_causes(head) if causal else head.unfolded
        self._new_heads[head.name] = head.ended(latest, recorded_ms, last_id, unfolded=unfolded)
        self.touched[head.name] = self.touched.get(head.name, 0) + count

    def publish(self) -> None:
        """Updates the writer's view of the topics after the transaction has succeeded.

        Nothing here can undo the commit, so a failure concerns no caller: the view is dropped and read anew.
        """
        try:
            if self._reshaping:
                self.catalog.reshaped += 1
            if self._new_heads:
                self.catalog.heads.update(self._new_heads)
                for head in self._new_heads.values():
                    if head.last_id > self.catalog.last_id:
                        self.catalog.last_id = head.last_id
            for name, covered, wires, entities, newest in self._indexing:
                memtable = self.entities.memtables.get(name)
                if memtable is not None and not memtable.add_committed(name, covered, wires, entities, newest):
                    self.entities.memtables.pop(name, None)
        except Exception:
            self.catalog.forget()
            self.entities.memtables.clear()
            log.exception("the view of the topics is read anew: a commit could not be taken over into it")


def read_mark(snap: Snapshot, name: str) -> int | None:
    """Returns a mark's number; None when it was never set."""
    value = snap.get(keys.mark_key(name))
    return None if value is None else int.from_bytes(value[:8], signed=True)


def read_mark_content(snap: Snapshot, name: str) -> int | None:
    """Returns the hash of the content that was written with a mark's number; None for a mark without a hash."""
    value = snap.get(keys.mark_key(name)) or b""
    return int.from_bytes(value[8:]) if len(value) > 8 else None


_randoms: list[int] = []
# A forked child must not assign the ids that its parent assigns.
os.register_at_fork(after_in_child=_randoms.clear)


def next_id(last_id: int, ms: int, bits: int) -> int:
    """Returns the id of a run's first event: a UUIDv7 of time `ms`, above every earlier id of the topic.

    Twelve of its bits are a hash of the topic's name, so that a search for an id asks few topics (see
    `journal.locating`).
    """
    try:
        random = _randoms.pop()
    except IndexError:  # read from the system by the kilobyte: a call for each id would cost more than the id
        supply = os.urandom(2560)
        _randoms.extend([int.from_bytes(supply[at : at + 10]) for at in range(10, len(supply), 10)])
        random = int.from_bytes(supply[:10])
    if last_id >> 80 == ms:
        return (last_id >> 44) + 1 << 44 | bits | random & _COUNTED_BITS
    return ms << 80 | random & _RANDOM_BITS | bits | _VERSION_BITS


# ── Appends that ask the store first: dedup keys, causes that are drafts of the same batch ──


def append_checked(commit: Commit, name: str, batch: PreparedBatch) -> list[Receipt]:
    """Appends a batch; a draft whose dedup key is known gets its old receipt."""
    columns, count = batch.columns, len(batch.columns.kinds)
    known, repeats = find_duplicates(commit, name, batch.dedups or ())
    fresh = [row for row in range(count) if row not in known and row not in repeats]
    commit.check_conditions(name, batch, fresh)
    receipts = dict(known)
    if fresh:
        additions = commit.additions.get(name) or commit.begin(name)
        if len(fresh) < count or batch.cause_rows:  # the batch is not changed, so that a second attempt is possible
            columns = columns.pick(fresh)
        if batch.cause_rows:
            _link_causes(additions, columns, fresh, batch.cause_rows, known, repeats)
        receipts.update(zip(fresh, commit.add(additions, columns, batch.size), strict=True))
        for row in fresh:
            dedup = None if batch.dedups is None else batch.dedups[row]
            if dedup is not None:
                _remember(commit, name, dedup, receipts[row], additions.recorded_ms)
    for row, original in repeats.items():
        receipts[row] = _as_duplicate(receipts[original])
    return [receipts[row] for row in range(count)]


def _link_causes(
    additions: TopicAdditions,
    columns: Columns,
    fresh: Sequence[int],
    cause_rows: dict[int, int],
    known: dict[int, Receipt],
    repeats: dict[int, int],
) -> None:
    """Turns 'the n-th draft of this batch' into ids, now that ids are known."""
    index_of = {row: at for at, row in enumerate(fresh)}
    first = additions.base_id + additions.count
    causation, correlation = columns.causation, columns.correlation
    assert causation is not None and correlation is not None
    for row, cause in cause_rows.items():
        if row not in index_of:
            continue
        cause = repeats.get(cause, cause)
        if cause in known:
            id, inherited = known[cause].id, known[cause].correlation_id
        else:
            id, inherited = format_id(first + index_of[cause]), correlation[index_of[cause]]
        at = index_of[row]
        causation[at] = id
        correlation[at] = correlation[at] or inherited or id


def find_duplicates(
    commit: Commit, name: str, dedups: Sequence[str | None]
) -> tuple[dict[int, Receipt], dict[int, int]]:
    """Returns the drafts that were appended before, with their receipts; and the drafts that repeat a draft of this
    batch, with its row.
    """
    known: dict[int, Receipt] = {}
    repeats: dict[int, int] = {}
    first_row: dict[str, int] = {}
    head = commit.head(name)
    earlier: list[EarlierWindow] | None = None
    for row, dedup in enumerate(dedups):
        if dedup is None:
            continue
        if dedup in first_row:
            repeats[row] = first_row[dedup]
            continue
        first_row[dedup] = row
        if head is not None:
            window, recorded_ms = head.settings.dedup_window, max(commit.now_ms, head.recorded_ms)
            if earlier is None:
                earlier = earlier_windows(commit.tx, head.topic_id)
            original = find_original(commit.tx, head.topic_id, window, earlier, dedup, recorded_ms, commit.now_ms)
            if original is not None:
                known[row] = Receipt(name, original.seq, int.from_bytes(original.id), original.correlation, True)
    return known, repeats


def remember_dedup(commit: Commit, name: str, dedup: str, receipt: Receipt) -> None:
    """Makes a dedup key stand for an event that was appended without the key."""
    _remember(commit, name, dedup, receipt, max(commit.now_ms, commit.ensure(name).recorded_ms))


def _remember(commit: Commit, name: str, dedup: str, receipt: Receipt, at_ms: int) -> None:
    head = commit.ensure(name)
    behind = commit.now_ms if commit.now_ms < at_ms else 0
    original = Original(receipt.seq, receipt._number.to_bytes(16), at_ms, receipt.correlation_id, behind)
    remember(commit.tx, head.topic_id, head.settings.dedup_window, dedup, original)


def topic_is_full(name: str, latest: int, count: int) -> ConfigError:
    """Returns the error of an append without positions left."""
    return ConfigError(
        f"topic {name!r} is at position {latest} of {MAX_POSITION}: {count} more events have no place in it; "
        "append to a new topic"
    )


def conflict(name: str, key: str, expected: int, actual: int) -> Conflict:
    """Returns the error of an append whose expectation of an entity is wrong."""
    return Conflict(
        f"entity {key!r} of topic {name!r} is at position {actual}, not {expected}: read it and decide again",
        expected=expected,
        actual=actual,
    )


def _as_duplicate(receipt: Receipt) -> Receipt:
    return Receipt(receipt.topic, receipt.seq, receipt._number, receipt.correlation_id, True)


# ── Writing a commit's events as blocks: a large batch as several, a small one beside its neighbours or with them ──
# Single appends leave one small block each. The writer keeps their columns. The commit that would write the last of
# `MERGE_FAN_IN` small blocks instead writes one block for all of them, which replaces the others in the same
# transaction. The housekeeper reads and merges blocks that the writer does not remember, after a restart or when other
# processes write too.


def write_block(tx: WriteTx, head: Head, stamp: int, part: RecentBlock) -> tuple[bytes, bytes, Wire | None]:
    """Writes one commit's events as a block of their own, or together with the preceding small blocks.

    Returns the stored key and value, and the block itself when it holds only these events.
    """
    first, recorded_ms, base_id, columns = part
    tail = head.tail
    if tail is None or tail.stamp != stamp:
        tail = head.tail = RecentBlocks(stamp, [])
    fits = tail.next in (first, 0)
    parts = tail.parts
    if fits and (len(parts) >= MERGE_FAN_IN - 1 or tail.size >= BLOCK_BYTES // 2):
        joined = build_joined([*parts, part])
        key, value = block_key(head.topic_id, parts[0][0]), encode_block(compressed_if_large(joined))
        tx.delete_range(key + b"\0", block_key(head.topic_id, first))
        tx.put(key, value)
        last = joined.first + joined.count - 1
        about = range_rows(joined, indexed=head.settings.indexed)
        replace_range_rows(tx, head.topic_id, head.name, joined.first, last, about)
        head.tail = None
        return key, value, None
    wire = build_wire(columns, first, recorded_ms, base_id)
    large = len(wire.payload) >= MERGED_BYTES
    key, value = block_key(head.topic_id, first), encode_block(compressed(wire) if large else wire)
    tx.put(key, value)
    if wire.count >= SUMMARY_EVENTS:
        summarise(tx, head.topic_id, wire, indexed=head.settings.indexed, made_of=columns)
    size = len(value)
    if fits and size < SMALL_BYTES and not large:
        parts.append(part)
        tail.size += size
        tail.next = first + len(columns.kinds)
    else:
        head.tail = None
    return key, value, wire


def write_blocks(tx: WriteTx, head: Head, part: RecentBlock) -> tuple[bytes, bytes, list[Wire | None]]:
    """Writes more events than make one block; returns the last block's key and value, and all of them."""
    position, recorded_ms, base_id, columns = part
    start, count, weights = 0, len(columns.kinds), columns.weights()
    wires: list[Wire | None] = []
    while start < count:
        stop = start + _events_that_fit(weights, start)
        some = columns.slice(start, stop)
        wire = build_wire(some, position + start, recorded_ms, base_id + start)
        key, value = block_key(head.topic_id, position + start), encode_block(compressed_if_large(wire))
        tx.put(key, value)
        summarise(tx, head.topic_id, wire, indexed=head.settings.indexed, made_of=some)
        wires.append(wire)
        start = stop
    return key, value, wires


def _events_that_fit(weights: Sequence[int], start: int) -> int:
    """Returns the number of events from `start` on that make a block of the usual size; at least one."""
    return max(1, bisect_right(list(accumulate(weights[start : start + BLOCK_EVENTS])), BLOCK_BYTES))


# ── Dedup keys: what a topic remembers of an event appended with one, for as long as the topic's window says ──
# Dedup keys are in buckets of time at least as long as the window. So two look-ups find any valid key, and old keys are
# removed a bucket at a time. The time is the topic's recording time, which never goes back, so a clock that is set back
# cannot make a key unknown. A clock that is set back also does not extend a window: while the recording time stands
# still, the clock's own time counts.


_SHORTEST_BUCKET_MS = 60_000
_encode = msgspec.msgpack.Encoder().encode


class Original(msgspec.Struct, array_like=True, frozen=True):
    """The first event that was appended with a dedup key."""

    seq: int
    id: bytes
    recorded_ms: int
    correlation: str | None = None
    at_ms: int = 0
    """The clock's own time, when the clock is behind the recording time; else 0."""


_decode = msgspec.msgpack.Decoder(Original).decode


def dedup_position(value: bytes) -> int:
    """Returns the position of the event that a stored dedup key stands for."""
    return keys.stored(_decode, value, "the record of a dedup key").seq


def _bucket(window: float | None, ms: int) -> int:
    """Returns the bucket of a time; a topic that remembers forever has one bucket, 0."""
    return 0 if window is None else max(1, ms // max(_SHORTEST_BUCKET_MS, int(window * 1000)))


def _is_remembered(original: Original, window: float | None, now_ms: int) -> bool:
    return window is None or now_ms - original.recorded_ms < window * 1000


class EarlierWindow(msgspec.Struct, array_like=True, frozen=True):
    """An earlier dedup window of a topic, whose keys are still in its buckets."""

    window: float | None
    until_ms: int
    through: int = MAX_POSITION
    """The topic's end at the change: a key of the same millisecond may belong to an event before or after the
    change.
    """


_decode_windows = msgspec.msgpack.Decoder(list[EarlierWindow]).decode


def earlier_windows(snap: Snapshot, topic: int) -> list[EarlierWindow]:
    """Returns the earlier windows of a topic whose keys may still count, in order."""
    value = snap.get(keys.windows_key(topic))
    return [] if value is None else keys.stored(_decode_windows, value, "the record of earlier dedup windows")


def find_original(
    tx: WriteTx,
    topic: int,
    window: float | None,
    earlier: Sequence[EarlierWindow],
    dedup: str,
    recorded_ms: int,
    now_ms: int,
) -> Original | None:
    """Returns the event of a dedup key, if the topic still remembers the key by its recording time and by the clock."""
    for length, at in ((window, recorded_ms), *((one.window, one.until_ms) for one in reversed(earlier))):
        newest = _bucket(length, at)
        for bucket in (newest, newest - 1) if newest else (0,):
            key = keys.dedup_key(topic, bucket, dedup)
            value = tx.get(key)
            original = None if value is None else keys.stored(_decode, value, "the record of a dedup key")
            if (
                original is None
                or not _is_remembered(original, window, recorded_ms)
                or _was_forgotten(original, earlier)
            ):
                continue
            at_ms = original.at_ms or original.recorded_ms
            if at_ms > now_ms:  # the clock was set back
                at_ms = now_ms
                tx.put(key, _encode(msgspec.structs.replace(original, at_ms=at_ms)))
            if window is None or now_ms - at_ms < window * 1000:
                return original
    return None


def _was_forgotten(original: Original, earlier: Sequence[EarlierWindow]) -> bool:
    """Returns True if a key had expired when the window was changed: such a key never counts again."""
    return any(
        original.seq <= one.through
        and original.recorded_ms <= one.until_ms  # a later call may give a key to an earlier event
        and not _is_remembered(original, one.window, one.until_ms)
        for one in earlier
    )


def remember(tx: WriteTx, topic: int, window: float | None, dedup: str, original: Original) -> None:
    tx.put(keys.dedup_key(topic, _bucket(window, original.recorded_ms), dedup), _encode(original))


def forget_expired(tx: WriteTx, topic: int, window: float | None, now_ms: int) -> None:
    """Removes the buckets in which no key can count any more."""
    newest = _bucket(window, now_ms)
    earlier = earlier_windows(tx, topic)
    if earlier:
        left = [one for one in earlier if window is None or now_ms - one.until_ms < window * 1000]
        if left:  # earlier windows may have any bucket number
            if len(left) < len(earlier):
                tx.put(keys.windows_key(topic), _encode(left))
            return
        tx.delete(keys.windows_key(topic))
        tx.delete_range(keys.dedup_key(topic, newest + 1, ""), keys.windows_key(topic))
    if newest <= 1:
        return
    start, stop = keys.dedup_range(topic, newest - 1)
    if next(iter(tx.scan(start, stop)), None) is not None:
        tx.delete_range(start, stop)


def change_window(commit: Commit, head: Head, new: float | None) -> None:
    """Changes the dedup window of a topic from now on; the change itself forgets no key.

    An expired key stays forgotten, even when the window grows. The change rewrites no key: look-ups also ask the
    buckets of earlier windows, until all their keys have expired.
    """
    tx, topic, old, now_ms = commit.tx, head.topic_id, head.settings.dedup_window, max(commit.now_ms, head.recorded_ms)
    if old != new:
        earlier = [one for one in earlier_windows(tx, topic) if new is None or now_ms - one.until_ms < new * 1000]
        changed = EarlierWindow(old, now_ms, commit.latest(head.name))
        tx.put(keys.windows_key(topic), _encode([*earlier, changed]))


# ── Events put into a topic as they were in another store: with their positions, ids and times ──
# Only for copies: the topic must be empty, or hold the beginning of the same history.


def adopt_topic(commit: Commit, name: str, settings: Settings | None, start_over: bool = False) -> None:
    """Creates a topic with another topic's settings, unless it exists; an empty topic takes over the settings.

    With `start_over`, positions of a dropped topic of this name are assigned again.
    """
    commit.flush()
    head = commit.head(name)
    if head is None:
        if start_over:
            commit.tx.delete(keys.ended_key(name))
        commit._new_heads[name] = create_topic(commit.tx, name, settings)
        if settings is not None:
            mark_aged(commit.tx, name, settings)
    elif settings is not None and not head.latest and head.settings != settings:
        save_record(commit.tx, name, TopicRecord(head.topic_id, settings))
        mark_aged(commit.tx, name, settings)
        head.settings = settings


def append_copies(commit: Commit, name: str, rows: PlacedRows, latest: int, trimmed: int = MAX_POSITION) -> None:
    """Adds events that follow position `latest`, in order; Conflict when the topic does not end there.

    `trimmed` is the position through which history was removed; other missing events were compacted by key.
    """
    head = _head_to_copy(commit, name, latest)
    ids = list(map(rows.id, range(len(rows))))
    if rows.seqs[0] <= latest or ids[0] <= head.last_id or rows.times[0] < head.recorded_ms:
        raise ConfigError(f"event {rows.seqs[0]} of topic {name!r} does not follow what the topic holds")
    for what, numbers in (("position", rows.seqs), ("id", ids)):
        if not all(map(lt, numbers, numbers[1:])):
            raise ConfigError(f"the {what}s of topic {name!r} do not increase from {rows.seqs[0]} to {rows.seqs[-1]}")
    first, last = rows.seqs[0], rows.seqs[-1]
    if last > MAX_POSITION:
        raise topic_is_full(name, latest, len(rows))
    holes = last - latest - len(rows)
    if holes:
        state = load_state(commit.tx, head.topic_id, name)
        if not latest:
            state = replace(state, trimmed=min(first - 1, trimmed))
        if last - max(latest, state.trimmed) > len(rows):
            state = replace(state, compacted=max(state.compacted, last))
        save_state(commit.tx, head.topic_id, replace(state, removed=state.removed + holes))
    commit.tx.put(keys.block_key(head.topic_id, first), rows.pack())
    if head.settings.verified:
        keep_hashes(commit.tx, head.topic_id, rows.seqs, leaves(rows.columns, rows.seqs, ids, rows.times))
    if any(id & keys.ID_BITS != head.id_bits for id in ids):
        commit.tx.put(keys.OTHER_IDS + keys.hashed_topic(name, head.topic_id), b"")
    causal = rows.columns.correlation is not None or rows.columns.causation is not None
    commit.move_end(head, last, rows.times[-1], ids[-1], len(rows), causal=causal)


def end_copies(commit: Commit, name: str, through: int, latest: int) -> None:
    """Ends a topic at a position after `latest`, its own end, as after events that were compacted away."""
    head = _head_to_copy(commit, name, latest)
    state = load_state(commit.tx, head.topic_id, name)
    if state.removed == latest:
        state = replace(state, trimmed=through)
    else:
        state = replace(state, compacted=max(state.compacted, through))
    ended = head.ended(through, head.recorded_ms, head.last_id, unfolded=head.unfolded)
    save_with_end(commit.tx, ended, replace(state, removed=state.removed + through - latest))
    commit.move_end(head, through, head.recorded_ms, head.last_id, 0, causal=False)


def _head_to_copy(commit: Commit, name: str, latest: int) -> Head:
    """Returns the head of a topic that copies are added to; Conflict when it does not end at `latest`."""
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    if head.latest != latest:
        raise Conflict(
            f"topic {name!r} ends at {head.latest}, not at {latest}: another writer appends to it while it is copied",
            expected=latest,
            actual=head.latest,
        )
    return head


# ── A topic's settings: checked, compared with each other, and changed ──


def checked_settings(changes: Mapping[str, Any]) -> dict[str, object]:
    """Returns valid changes; raises ConfigError for the first invalid change."""
    unknown = sorted(set(changes) - set(Settings.__struct_fields__))
    if unknown:
        raise ConfigError(f"a topic has no setting {unknown[0]!r}{nearest(unknown[0], Settings.__struct_fields__)}")
    checked = dict(changes)
    for name in ("max_age", "dedup_window"):
        if checked.get(name) is not None:
            checked[name] = seconds(checked[name], name)
    for name in ("max_events", "max_bytes"):
        check_limit(checked.get(name), name, 1)
    for name in ("by_key", "verified", "indexed"):
        if name in checked and not isinstance(checked[name], bool):
            raise ConfigError(f"{name} must be True or False, not {checked[name]!r}")
    return checked


def change_settings(commit: Commit, topic: str, changes: Mapping[str, object]) -> Settings:
    """Applies checked changes to a topic's settings, with their consequences; returns the new settings."""
    commit.flush()  # earlier appends of this commit are written under the earlier settings
    head = commit.ensure(topic)
    settings = msgspec.structs.replace(head.settings, **changes)
    _check_together(topic, head.settings, settings)
    if settings != head.settings:
        save_record(commit.tx, topic, TopicRecord(head.topic_id, settings))
        mark_aged(commit.tx, topic, settings)
        change_window(commit, head, settings.dedup_window)
        head.settings = settings
    return settings


def _check_together(topic: str, before: Settings, settings: Settings) -> None:
    """Refuses settings that contradict each other."""
    if settings.verified and settings.by_key:
        raise ConfigError(f"topic {topic!r} cannot be verified and be compacted by key: verifying needs every event")
    if before.verified and not settings.verified:
        raise ConfigError(f"topic {topic!r} stays verified: a topic in which some events have no hash proves nothing")

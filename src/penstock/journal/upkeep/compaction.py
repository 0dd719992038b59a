"""Removing history: a prefix on request, by retention in passing, or all but the newest event of every key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from penstock.clock import set_back_ms
from penstock.engine.contract import Engine, Snapshot
from penstock.journal.commit.catalog import Settings, TopicState, load_looks, load_state, open_block, save_state
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.journal.cursors import read_cursors
from penstock.journal.index.directory import trim_index
from penstock.journal.reading import TopicView
from penstock.journal.sealed.segments import drop_segments
from penstock.journal.storage import keys
from penstock.journal.storage.apart import stored_size
from penstock.journal.storage.columns import text_values
from penstock.journal.storage.joining import select
from penstock.journal.storage.leaves import trim_hashes
from penstock.journal.upkeep.thinning import ThinnedBlock, exchange, stored_blocks, without
from penstock.limits import EXCHANGE_BYTES, RETENTION_BLOCKS, RETENTION_BYTES

_TRIES = 100
"""How often blocks that have changed are read again before compaction by key leaves the rest to the next time."""
SCAN_BYTES = 4 << 20
"""How much is read in one snapshot."""

_LOOKS_NOTED = 8
"""How many looks of one `max_age` are noted while the clock is behind: it is kept to that part of itself."""

Trim = Callable[[Commit, str, int], None]
"""Hears that a topic's history is about to be removed through a position, needed or not."""
Hold = Callable[[Commit, str], Iterable[tuple[str, int]]]
"""Who still needs a topic's history and through which position they are done with it."""


class CompactReport(msgspec.Struct, frozen=True):
    """What a compaction did."""

    removed: int = 0
    """Events removed."""
    remaining: int = 0
    """Events still stored."""
    latest: int = 0
    """The topic's highest position; compaction never lowers it."""
    stopped_at: str | None = None
    """The consumer whose cursor held compaction back."""


def cursor_holds(commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
    """Every named cursor holds what it has not passed."""
    head = commit.head(topic)
    return read_cursors(commit.tx, head.number).items() if head else ()


def compact(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> CompactReport:
    """Removes every event at or before `through`, or before the slowest holder."""
    head = commit.head(topic)
    if head is None:
        return CompactReport()
    through, stopped_at = held_back(commit, topic, min(through, head.latest), holds)
    state = load_state(commit.tx, head.number, topic)
    removed = 0
    if through > state.trimmed:
        removed = remove_blocks(commit, topic, head.number, state, through)
        drop_segments(commit.tx, head.number, through)
        trim_index(commit.tx, head.number, topic, through)
        trim_hashes(commit.tx, head.number, through)
        head.newest = None
        state = msgspec.structs.replace(
            state,
            trimmed=through,
            removed=state.removed + removed,
            latest=head.latest,
            recorded_ms=head.recorded_ms,
            last_id=head.last_id.to_bytes(16),
        )
        save_state(commit.tx, head.number, state)
    return CompactReport(removed, head.latest - state.removed, head.latest, stopped_at)


def held_back(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> tuple[int, str | None]:
    """How far a topic's history may be removed, and who does not let more of it go."""
    stopped_at = None
    for hold in holds:
        for holder, done in hold(commit, topic):
            if done < through:
                through, stopped_at = done, holder
    return through, stopped_at


def one_step(commit: Commit, topic: str, through: int) -> int:
    """How far one commit should remove a topic's history, so that no caller waits long behind it."""
    view = TopicView.open(commit.tx, topic)
    if view is None:
        return through
    low, _ = keys.block_range(view.number)
    size = 0
    for count, (key, value) in enumerate(commit.tx.scan(low, keys.block_key(view.number, through + 1))):
        if count == RETENTION_BLOCKS or size > RETENTION_BYTES:
            return keys.block_first(key) - 1
        size += stored_size(value)
    return through


def remove_blocks(commit: Commit, topic: str, number: int, state: TopicState, through: int) -> int:
    """Deletes whole blocks, and rewrites the one that `through` cuts; returns how many events are at or before it."""
    view = TopicView.open(commit.tx, topic)
    assert view is not None
    removed = 0
    if state.compacted > state.trimmed:  # positions have holes: count what is there
        for block in view.blocks(0, through):
            removed += block.row_after(through)
    else:
        removed = through - state.trimmed
    if through <= state.sealed:  # sealed files stay as they are: what is trimmed of them is left out when they are read
        commit.reshape()
        return removed
    # A block that begins right after the cut needs no look at the one before: damaged history can be removed too.
    clean_cut = commit.tx.get(keys.block_key(number, through + 1)) is not None
    boundary = None if clean_cut else view.block_holding(through)
    low, _ = keys.block_range(number)
    commit.reshape()
    commit.tx.delete_range(low, keys.block_key(number, through + 1))
    if boundary is not None and boundary.last > through:
        rows = range(boundary.row_after(through), boundary.count)
        commit.tx.put(keys.block_key(number, boundary.seq(rows[0])), select(boundary, rows))
    return removed


def retention_bound(commit: Commit, topic: str, settings: Settings, now_ms: int) -> int:
    """Through which position a topic's settings want its history removed; whole blocks at a time. 0: nothing."""
    view = TopicView.open(commit.tx, topic)
    if view is None:
        return 0
    bound = 0
    latest = commit.latest(topic)
    if settings.max_events is not None:
        bound = max(bound, latest - settings.max_events)
    if settings.max_age is not None:
        age_ms = int(settings.max_age * 1000)
        bound = max(bound, view.position_before(now_ms - age_ms), _seen_bound(commit, topic, age_ms))
    if settings.max_bytes is not None:
        bound = max(bound, _bytes_bound(view, settings.max_bytes))
    return bound


def _seen_bound(commit: Commit, topic: str, age_ms: int) -> int:
    """While the clock is behind a topic's recording time, which does not go back with it: through which position events
    were there a `max_age` ago, as noted by earlier looks."""
    now_ms, row, head = commit.now_ms, keys.aged_key(topic), commit.head(topic)
    noted = load_looks(commit.tx, topic)
    if head is None or head.recorded_ms <= now_ms:
        if noted:
            commit.tx.put(row, b"")
        return 0
    looks = [(at - set_back_ms(at, now_ms), last) for at, last in noted]
    bound = max([last for at, last in looks if at < now_ms - age_ms], default=0)
    kept = [one for one in looks if one[1] > bound]
    if not kept or kept[-1][0] <= now_ms - age_ms // _LOOKS_NOTED:
        kept.append((now_ms, head.latest))
    if kept != noted:
        commit.tx.put(row, msgspec.msgpack.encode(kept))
    return bound


def _bytes_bound(view: TopicView, limit: int) -> int:
    """The last position that does not fit when the newest blocks may take `limit` bytes; the newest always stays."""
    total = 0
    for key, value in view.snap.scan(*keys.block_range(view.number), reverse=True):
        newest = total == 0
        total += stored_size(value)
        if total > limit and not newest:
            return open_block(view.snap, key, value, view.name).last
    return 0


def compact_by_key(engine: Engine, writer: Writer, topic: str, holds: Sequence[Hold]) -> int:
    """Keeps only the newest event of every key (and every event without a key); returns how many went.

    Nothing goes that a queue holds. The topic is read beside the writer, twice; each commit exchanges a few blocks.
    """

    def begin(commit: Commit) -> tuple[int, int, int]:
        head = commit.head(topic)
        if head is None:
            return 0, 0, 0
        sealed = load_state(commit.tx, head.number, topic).sealed
        return head.number, sealed, held_back(commit, topic, head.latest, holds)[0]

    number, at, through = writer.run(WriteRequest(begin, relaxed=True))
    if through <= at:
        return 0
    newest = _newest_positions(engine, number, topic, at)
    removed = tries = 0
    while at < through and tries < _TRIES:
        with engine.read() as snap:
            thinned, reached = _newest_only(snap, number, topic, at, through, newest)
        if thinned and not writer.run(WriteRequest(partial(_exchange, topic, number, thinned), relaxed=True)):
            tries += 1  # merged or removed since they were read
            continue
        removed += sum(one.removed for one in thinned)
        at, tries = reached, 0

    def end(commit: Commit) -> None:
        head = commit.head(topic)
        if head is not None and head.number == number:
            state = load_state(commit.tx, number, topic)
            if state.compacted < through:
                save_state(commit.tx, number, msgspec.structs.replace(state, compacted=through))

    writer.run(WriteRequest(end, relaxed=True))
    return removed


def _exchange(topic: str, number: int, blocks: Sequence[ThinnedBlock], commit: Commit) -> bool:
    return exchange(commit, topic, number, blocks)


def _newest_positions(engine: Engine, number: int, topic: str, after: int) -> dict[str, int]:
    """Where the newest event of every key lies."""
    newest: dict[str, int] = {}
    more = True
    while more:
        more = False
        with engine.read() as snap:
            scanned = 0
            for _, value, block in stored_blocks(snap, number, topic, after + 1, keys.MAX_SEQ):
                if scanned >= SCAN_BYTES:  # a snapshot held for long keeps the engine from cleaning up
                    more = True
                    break
                newest.update(
                    (key, seq)
                    for key, seq in zip(text_values(block.wire.key, block.count), block.seqs, strict=True)
                    if key is not None
                )
                scanned += stored_size(value)
                after = block.last
    return newest


def _newest_only(
    snap: Snapshot, number: int, topic: str, after: int, through: int, newest: dict[str, int]
) -> tuple[list[ThinnedBlock], int]:
    """The next blocks that have events whose keys come again, without them; and how far it came."""
    thinned: list[ThinnedBlock] = []
    size = scanned = 0
    for stored in stored_blocks(snap, number, topic, after + 1, through):
        block = stored[2]
        if size >= EXCHANGE_BYTES or scanned >= SCAN_BYTES:
            return thinned, block.first - 1
        kept = [
            row
            for row, (key, seq) in enumerate(zip(text_values(block.wire.key, block.count), block.seqs, strict=True))
            if key is None or seq > through or seq >= newest.get(key, 0)
        ]
        scanned += stored_size(stored[1])
        if len(kept) < block.count:
            thinned.append(without(stored, kept))
            size += stored_size(stored[1])
    return thinned, through

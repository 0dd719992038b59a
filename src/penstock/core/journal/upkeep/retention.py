"""Retention: the oldest part of a topic's history is removed, on request or by the topic's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from penstock.core.journal import keys
from penstock.core.journal.blocks import block_of_rows, stored_size
from penstock.core.journal.catalog import Settings, TopicState, load_looks, load_state, open_block, save_with_end
from penstock.core.journal.commit import Commit
from penstock.core.journal.cursors import slowest_cursor
from penstock.core.journal.index.runs import trim_index
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import drop_segments, load_segments
from penstock.core.journal.summaries import trim_hashes, trim_summaries
from penstock.limits import RETENTION_BLOCKS, RETENTION_BYTES

SEGMENT_EVENTS = 2_000_000
"""The approximate number of sealed events that one commit removes.

A verified topic has a hash of each event, and the files have many events.
"""


_LOOKS_NOTED = 8
"""The number of notes for one `max_age` while the clock is behind.

Retention is exact to this fraction of the `max_age`.
"""

Trim = Callable[[Commit, str, int], None]
"""Called when a topic's history through a position is about to be removed, even if something needs that history."""
Hold = Callable[[Commit, str], Iterable[tuple[str, int]]]
"""The holders that still need a topic's history, each with the position through which it needs nothing more."""


class CompactReport(msgspec.Struct, frozen=True):
    """The result of a compaction."""

    removed: int = 0
    """Events removed."""
    remaining: int = 0
    """Events still stored."""
    latest: int = 0
    """The topic's highest position. Compaction never lowers it."""
    stopped_at: str | None = None
    """The consumer whose cursor limited the compaction."""


def cursor_holds(commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
    """Returns a hold for every named cursor: a cursor holds the events that it has not passed.

    The slowest cursor holds the most.
    """
    slowest = slowest_cursor(commit, topic)
    return () if slowest is None else (slowest,)


def compact_some(
    commit: Commit, topic: str, through: int, holds: Iterable[Hold], trims: Iterable[Trim] = ()
) -> tuple[CompactReport, bool]:
    """Compacts towards `through` as far as one commit should, and returns whether there is more to do.

    `trims` are called before events are removed.
    """
    step = one_step(commit, topic, through)
    for trim in trims:
        trim(commit, topic, step)
    report = compact(commit, topic, step, holds)
    return report, step < through and report.stopped_at is None


def compact(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> CompactReport:
    """Removes every event at or before `through`, or before the slowest holder's position."""
    head = commit.head(topic)
    if head is None:
        return CompactReport()
    through, stopped_at = held_back(commit, topic, min(through, head.latest), holds)
    state = load_state(commit.tx, head.topic_id, topic)
    removed = 0
    if through > state.trimmed:
        removed = remove_blocks(commit, topic, head.topic_id, state, through)
        drop_segments(commit.tx, head.topic_id, through)
        trim_index(commit.tx, head.topic_id, topic, through)
        trim_hashes(commit.tx, head.topic_id, through)
        trim_summaries(commit.tx, head.topic_id, through)
        head.newest = None
        state = replace(state, trimmed=through, removed=state.removed + removed)
        save_with_end(commit.tx, head, state)
    return CompactReport(removed, head.latest - state.removed, head.latest, stopped_at)


def held_back(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> tuple[int, str | None]:
    """Returns the position through which a topic's history may be removed, and the holder of the rest."""
    stopped_at = None
    for hold in holds:
        for holder, done in hold(commit, topic):
            if done < through:
                through, stopped_at = done, holder
    return through, stopped_at


def one_step(commit: Commit, topic: str, through: int) -> int:
    """Returns the position through which one commit should remove a topic's history, so that no caller waits long
    behind it."""
    view = TopicView.open(commit.tx, topic)
    if view is None:
        return through
    size = 0
    for count, segment in enumerate(load_segments(commit.tx, view.topic_id, view.trimmed(), through)):
        if count == RETENTION_BLOCKS or size > SEGMENT_EVENTS:
            through = segment.first - 1
            break
        size += segment.count
    low, _ = keys.block_range(view.topic_id)
    size = 0
    for count, (key, value) in enumerate(commit.tx.scan(low, keys.block_key(view.topic_id, through + 1))):
        if count == RETENTION_BLOCKS or size > RETENTION_BYTES:
            return keys.block_first(key) - 1
        size += stored_size(value)
    return through


def remove_blocks(commit: Commit, topic: str, topic_id: int, state: TopicState, through: int) -> int:
    """Deletes whole blocks, and rewrites the block that `through` divides.

    Returns the number of events at or before `through`.
    """
    view = TopicView.open(commit.tx, topic)
    assert view is not None
    removed = view.count_between(state.trimmed, through)
    if through <= state.sealed:  # sealed files do not change: a read leaves out their trimmed events
        commit.reshape()
        return removed
    # If a block begins right after the cut, the block before is not read. So damaged history can be removed too.
    clean_cut = commit.tx.get(keys.block_key(topic_id, through + 1)) is not None
    in_file = next(load_segments(commit.tx, topic_id, through - 1, through), None) is not None
    boundary = None if clean_cut or in_file else view.block_holding(through)
    low, _ = keys.block_range(topic_id)
    commit.reshape()
    commit.tx.delete_range(low, keys.block_key(topic_id, through + 1))
    if boundary is not None and boundary.last > through:
        rows = range(boundary.row_after(through), boundary.count)
        commit.tx.put(keys.block_key(topic_id, boundary.seq(rows[0])), block_of_rows(boundary, rows))
    return removed


def retention_bound(commit: Commit, topic: str, settings: Settings, now_ms: int) -> int:
    """Returns the position through which a topic's settings want its history removed, in whole blocks; 0 for none."""
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
    """Returns the position of the last event that is at least a `max_age` old, according to notes from earlier checks.

    The notes are used while the clock is behind the topic's recording time, which never goes back.
    """
    now_ms, row, head = commit.now_ms, keys.aged_key(topic), commit.head(topic)
    noted = load_looks(commit.tx, topic)
    if head is None or head.recorded_ms <= now_ms:
        if noted:
            commit.tx.put(row, b"")
        return 0
    looks = [(min(at, now_ms), last) for at, last in noted]
    bound = max([last for at, last in looks if at < now_ms - age_ms], default=0)
    kept = [one for one in looks if one[1] > bound]
    if not kept or kept[-1][0] <= now_ms - age_ms // _LOOKS_NOTED:
        kept.append((now_ms, head.latest))
    if kept != noted:
        commit.tx.put(row, msgspec.msgpack.encode(kept))
    return bound


def _bytes_bound(view: TopicView, limit: int) -> int:
    """Returns the last position that does not fit when the newest blocks may take `limit` bytes.

    The newest block always remains.
    """
    total = 0
    for key, value in view.snap.scan(*keys.block_range(view.topic_id), reverse=True):
        newest = total == 0
        total += stored_size(value)
        if total > limit and not newest:
            return open_block(view.snap, key, value, view.name).last
    return 0

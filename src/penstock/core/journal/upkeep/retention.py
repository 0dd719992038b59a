"""Retention: a prefix of a topic's history is removed, on request or by the topic's settings."""

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
"""Sealed events that one commit removes, about: a verified topic has a hash of each, and their files have many."""


_LOOKS_NOTED = 8
"""The number of looks of one `max_age` that are noted while the clock is behind: it is kept to that part of itself."""

Trim = Callable[[Commit, str, int], None]
"""Hears that a topic's history is about to be removed through a position, needed or not."""
Hold = Callable[[Commit, str], Iterable[tuple[str, int]]]
"""Who still needs a topic's history and through which position they are done with it."""


class CompactReport(msgspec.Struct, frozen=True):
    """The result of a compaction."""

    removed: int = 0
    """Events removed."""
    remaining: int = 0
    """Events still stored."""
    latest: int = 0
    """The topic's highest position; compaction never lowers it."""
    stopped_at: str | None = None
    """The consumer whose cursor held compaction back."""


def cursor_holds(commit: Commit, topic: str) -> Iterable[tuple[str, int]]:
    """Every named cursor holds what it has not passed; the slowest holds the most."""
    slowest = slowest_cursor(commit, topic)
    return () if slowest is None else (slowest,)


def compact_some(
    commit: Commit, topic: str, through: int, holds: Iterable[Hold], trims: Iterable[Trim] = ()
) -> tuple[CompactReport, bool]:
    """Compacts as far towards `through` as one commit should, and says whether there is more; `trims` hear of it."""
    step = one_step(commit, topic, through)
    for trim in trims:
        trim(commit, topic, step)
    report = compact(commit, topic, step, holds)
    return report, step < through and report.stopped_at is None


def compact(commit: Commit, topic: str, through: int, holds: Iterable[Hold]) -> CompactReport:
    """Removes every event at or before `through`, or before the slowest holder."""
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
    """Deletes whole blocks, and rewrites the one that `through` cuts; returns how many events are at or before it."""
    view = TopicView.open(commit.tx, topic)
    assert view is not None
    removed = view.count_between(state.trimmed, through)
    if through <= state.sealed:  # sealed files stay as they are: what is trimmed of them is left out when they are read
        commit.reshape()
        return removed
    # A block that begins right after the cut needs no look at the one before: damaged history can be removed too.
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
    looks = [(min(at, now_ms), last) for at, last in noted]
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
    for key, value in view.snap.scan(*keys.block_range(view.topic_id), reverse=True):
        newest = total == 0
        total += stored_size(value)
        if total > limit and not newest:
            return open_block(view.snap, key, value, view.name).last
    return 0

"""The dropping of a topic: one small commit makes it invisible, and its rows are removed some at a time.

    g topic                   a topic that was dropped, whose rows are not all cleared yet (msgpack)

The commit removes the topic's name and records its id; after that, no reader and no writer can reach the rows under
that id. A process that is killed in the middle leaves the id, and the next process that opens the journal continues.
Ids are never reused, so no row of a topic can appear in a later topic of the same name. Positions are not reused
either: the topic's last position is kept under its name, and a later topic begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.journal import keys
from penstock.core.journal.catalog import TopicRecord, save_end, topic_names
from penstock.core.journal.commit import Commit
from penstock.core.journal.cursors import read_cursors
from penstock.core.journal.index.runs import INDEX
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import load_segments, sealed_files
from penstock.core.journal.writer import Writer
from penstock.core.names import did_you_mean
from penstock.errors import TopicInUse, UnknownTopic
from penstock.limits import RETENTION_BYTES

_OWN = (
    keys.STATE,
    keys.BLOCK,
    keys.SUMMARY,
    keys.HASHES,
    keys.LEAVES,
    keys.CURSOR,
    keys.DEDUP,
    keys.SEALS,
    keys.SEGMENT,
    keys.ERASING,
    keys.ERASED_LEAF,
    INDEX,
)

_STEP_ROWS = 1024
"""The maximum number of rows that one commit removes, so that no caller waits long."""

KeyRange = tuple[bytes, bytes]
RowsOf = Callable[[int], Iterable[KeyRange]]
"""The key ranges in which a layer keeps the rows of a topic."""
DropHook = Callable[[Commit, str, int], None]
"""Removes the data of a layer under a topic's name, in the commit that drops the topic."""
UsersOf = Callable[[Commit, str], Iterable[str]]
"""The reasons why a layer needs a topic, in words for people."""


class DropReport(msgspec.Struct, frozen=True):
    """The result of dropping a topic."""

    topic: str
    events: int
    """The number of events that were stored, including sealed events."""
    files: list[str] = []
    """Parquet files of sealed history. They remain in place, and no journal knows them any more."""


class DroppedTopic(msgspec.Struct, array_like=True, frozen=True):
    """A topic whose rows are being removed."""

    name: str
    dropped_ms: int


_encode = msgspec.msgpack.Encoder().encode


class DropRules:
    """The rules that the layers add to dropping a topic."""

    def __init__(self) -> None:
        self.users: list[UsersOf] = [_cursors_and_files]
        self.hooks: list[DropHook] = []
        self.rows: list[RowsOf] = [_journal_rows]

    def ranges(self, topic_id: int) -> list[KeyRange]:
        """Returns all key ranges that may contain rows of a topic."""
        return [found for rows in self.rows for found in rows(topic_id)]


def _journal_rows(topic_id: int) -> list[KeyRange]:
    return [keys.topic_range(prefix, topic_id) for prefix in _OWN]


def _cursors_and_files(commit: Commit, topic: str) -> Iterable[str]:
    head = commit.head(topic)
    if head is None:
        return
    for consumer, seq in read_cursors(commit.tx, head.topic_id).items():
        yield f"the cursor of {consumer!r} at {seq}"
    files = len(sealed_files(commit.tx, head.topic_id))
    if files:
        yield f"{files} sealed file{'s' if files > 1 else ''} that would stay in the lake unknown to the journal"


def drop_topic(commit: Commit, topic: str, force: bool, rules: DropRules) -> DropReport:
    """Makes a topic invisible. Raises TopicInUse when something needs the topic, unless `force` is True."""
    commit.flush()
    head = commit.head(topic)
    if head is None:
        raise _unknown(commit.tx, topic)
    commit.check_barrier(topic)
    used = [] if force else [user for users in rules.users for user in users(commit, topic)]
    if used:
        raise TopicInUse(
            f"topic {topic!r} is in use by {_first_few(used)}: end these first, or drop it with them by force "
            "(force=True, --force)"
        )
    view = TopicView(commit.tx, topic, TopicRecord(head.topic_id, head.settings))
    files = [one.shown(file) for one in load_segments(commit.tx, head.topic_id) for file in one.paths]
    report = DropReport(topic, view.count(), files)
    for hook in rules.hooks:
        hook(commit, topic, head.topic_id)
    commit.tx.delete(keys.topic_key(topic))
    commit.tx.delete(keys.aged_key(topic))
    for prefix in (keys.NAME, keys.OTHER_IDS, keys.UNFOLDED):
        commit.tx.delete(prefix + keys.hashed_topic(topic, head.topic_id))
    commit.tx.put(keys.dropped_key(head.topic_id), _encode(DroppedTopic(topic, commit.now_ms)))
    save_end(commit.tx, head)
    commit.forget_topic(topic)
    return report


def _unknown(snap: Snapshot, topic: str) -> UnknownTopic:
    """Returns the error for a missing topic, with the most similar existing name."""
    return UnknownTopic(f"there is no topic {topic!r}{did_you_mean(topic, topic_names(snap))}")


def _first_few(used: Sequence[str], most: int = 5) -> str:
    """Returns the first few reasons as text, with the number of the others."""
    rest = len(used) - most
    return ", ".join(used[:most]) + (f" and {rest} more" if rest > 0 else "")


def clear_dropped(writer: Writer, rules: DropRules, stopped: Callable[[], bool]) -> bool:
    """Removes the rows of every dropped topic, in small commits. Returns True if there were any."""
    with writer.engine.read() as snap:
        scanned = snap.scan(keys.DROPPED, keys.prefix_end(keys.DROPPED))
        topic_ids = [keys.dropped_topic(key) for key, _ in scanned if key[1:]]
    for topic_id in topic_ids:
        ranges = rules.ranges(topic_id)
        for low, high in ranges:
            if not clear_rows(writer, low, high, stopped):
                return True
        from penstock.core.journal.bulk import sweep_staged

        sweep_staged(writer)
        writer.run_relaxed(_finish, topic_id, ranges)
    if topic_ids:
        writer.reclaim()
    return bool(topic_ids)


def clear_rows(writer: Writer, low: bytes, high: bytes, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Removes the rows between two keys, in small commits. Returns False when it was stopped before the end."""
    while not stopped():
        with writer.engine.read() as snap:
            upto = _some(snap, low, high)
        if upto is None:
            return True
        writer.run_relaxed(_delete, low, upto)
        low = upto
    return False


def _some(snap: Snapshot, low: bytes, high: bytes) -> bytes | None:
    """Returns a key before which there are as many rows as one commit should remove; None when there are no rows."""
    size, last = 0, None
    for count, (key, value) in enumerate(snap.scan(low, high)):
        if count == _STEP_ROWS or size > RETENTION_BYTES:
            return key
        size += len(key) + len(value)
        last = key
    return None if last is None else last + b"\0"


def _delete(commit: Commit, low: bytes, upto: bytes) -> None:
    commit.tx.delete_range(low, upto)


def _finish(commit: Commit, topic_id: int, ranges: Sequence[KeyRange]) -> None:
    """Removes the id, unless a row has appeared again. In that case the next call continues."""
    if not any(next(iter(commit.tx.scan(*between)), None) for between in ranges):
        commit.tx.delete(keys.dropped_key(topic_id))

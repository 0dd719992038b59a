"""Events put into a topic as they were in another store: with their positions, ids and times.

Only for copies: the topic must be empty, or hold the beginning of the same history.
"""

from __future__ import annotations

from operator import lt

from msgspec.structs import replace

from penstock.errors import ConfigError, Conflict
from penstock.journal.commit.catalog import (
    Head,
    Settings,
    TopicRecord,
    create_topic,
    load_state,
    mark_aged,
    save_record,
    save_state,
)
from penstock.journal.commit.checked import topic_is_full
from penstock.journal.commit.commit import Commit
from penstock.journal.index.rows import build_copies
from penstock.journal.storage import keys
from penstock.journal.storage.leaves import keep_hashes, leaves
from penstock.journal.storage.wire import ID_BYTES, Columns
from penstock.limits import MAX_POSITION

ID_BITS = 8 * ID_BYTES
"""Of an id, those below its time."""


class Copies:
    """Events of another store: their positions, ids, times and everything else."""

    __slots__ = ("columns", "ids", "seqs", "times")

    def __init__(self, seqs: list[int], ids: list[int], times: list[int], columns: Columns) -> None:
        self.seqs = seqs
        self.ids = ids
        self.times = times
        self.columns = columns

    @classmethod
    def none(cls) -> Copies:
        return cls([], [], [], Columns([], []))

    def __len__(self) -> int:
        return len(self.seqs)

    def extend(self, other: Copies) -> None:
        self.seqs.extend(other.seqs)
        self.ids.extend(other.ids)
        self.times.extend(other.times)
        self.columns.extend(other.columns)

    def drop_first(self, count: int) -> None:
        del self.seqs[:count], self.ids[:count], self.times[:count]
        self.columns = self.columns.slice(count, len(self.columns))


def adopt_topic(commit: Commit, name: str, settings: Settings | None, start_over: bool = False) -> None:
    """Creates a topic with another one's settings, unless it is there; one that is empty takes them over.

    `start_over`: positions of a topic of this name that was dropped are given out again.
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
        save_record(commit.tx, name, TopicRecord(head.number, settings))
        mark_aged(commit.tx, name, settings)
        head.settings = settings


def append_copies(commit: Commit, name: str, rows: Copies, latest: int) -> None:
    """Adds events that follow position `latest`, in order; Conflict when the topic does not end there."""
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    if head.latest != latest:
        raise Conflict(
            f"topic {name!r} ends at {head.latest}, not at {latest}: another writer appends to it while it is copied",
            expected=latest,
            actual=head.latest,
        )
    if rows.seqs[0] <= latest or rows.ids[0] <= head.last_id or rows.times[0] < head.recorded_ms:
        raise ConfigError(f"event {rows.seqs[0]} of topic {name!r} does not follow what the topic holds")
    _check_order(name, rows)
    first, last = rows.seqs[0], rows.seqs[-1]
    if last > MAX_POSITION:
        raise topic_is_full(name, latest, len(rows))
    holes = last - latest - len(rows)
    if holes:
        state = load_state(commit.tx, head.number, name)
        if not latest:
            state = replace(state, trimmed=first - 1)
        if last - first + 1 > len(rows) or (latest and first > latest + 1):
            state = replace(state, compacted=max(state.compacted, last))
        save_state(commit.tx, head.number, replace(state, removed=state.removed + holes))
    commit.tx.put(keys.block_key(head.number, first), build_copies(rows.columns, rows.seqs, rows.ids, rows.times))
    if head.settings.verified:
        keep_hashes(commit.tx, head.number, rows.seqs, leaves(rows.columns, rows.seqs, rows.ids, rows.times))
    commit._new_heads[name] = Head(name, head.number, head.settings, last, rows.times[-1], rows.ids[-1])
    commit.touched[name] = commit.touched.get(name, 0) + len(rows)


def _check_order(name: str, rows: Copies) -> None:
    """ConfigError unless positions and ids increase, and each id has the time at which its event was recorded."""
    for what, numbers in (("position", rows.seqs), ("id", rows.ids)):
        if not all(map(lt, numbers, numbers[1:])):
            raise ConfigError(f"the {what}s of topic {name!r} do not increase from {rows.seqs[0]} to {rows.seqs[-1]}")
    for seq, number, ms in zip(rows.seqs, rows.ids, rows.times, strict=True):
        if number >> ID_BITS != ms:
            raise ConfigError(f"event {seq} of topic {name!r} was recorded at another time than its id says")

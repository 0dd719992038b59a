"""Appends that ask the store first: dedup keys, causes that are drafts of the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, Conflict
from penstock.events import Receipt, format_id
from penstock.journal.commit.dedup import Original, find_original, remember
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.storage.wire import Columns
from penstock.limits import MAX_POSITION

if TYPE_CHECKING:
    from penstock.journal.commit.commit import Commit, TopicAdditions


def append_checked(commit: Commit, name: str, batch: PreparedBatch) -> list[Receipt]:
    """Appends a batch; a draft whose dedup key is known gets its old receipt."""
    columns, count = batch.columns, len(batch.columns.kinds)
    known, repeats = find_duplicates(commit, name, batch.dedups or ())
    fresh = [row for row in range(count) if row not in known and row not in repeats]
    if batch.expects is not None:
        commit.check_expects(name, columns.key or [], batch.expects, fresh)
    receipts = dict(known)
    if fresh:
        additions = commit.additions.get(name) or commit.begin(name)
        if len(fresh) < count or batch.cause_rows:  # the batch stays as it is, for a second try
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
    place = {row: at for at, row in enumerate(fresh)}
    first = additions.base_id + additions.count
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


def find_duplicates(
    commit: Commit, name: str, dedups: Sequence[str | None]
) -> tuple[dict[int, Receipt], dict[int, int]]:
    """The drafts appended before, with their receipts; those that repeat one of this batch, with its row."""
    known: dict[int, Receipt] = {}
    repeats: dict[int, int] = {}
    first_row: dict[str, int] = {}
    head = commit.head(name)
    for row, dedup in enumerate(dedups):
        if dedup is None:
            continue
        if dedup in first_row:
            repeats[row] = first_row[dedup]
            continue
        first_row[dedup] = row
        if head is not None:
            window, recorded_ms = head.settings.dedup_window, max(commit.now_ms, head.recorded_ms)
            original = find_original(commit.tx, head.number, window, dedup, recorded_ms, commit.now_ms)
            if original is not None:
                known[row] = Receipt(name, original.seq, int.from_bytes(original.id), original.correlation, True)
    return known, repeats


def remember_dedup(commit: Commit, name: str, dedup: str, receipt: Receipt) -> None:
    """From now on a dedup key stands for an event that was appended without it."""
    _remember(commit, name, dedup, receipt, max(commit.now_ms, commit.ensure(name).recorded_ms))


def _remember(commit: Commit, name: str, dedup: str, receipt: Receipt, at_ms: int) -> None:
    head = commit.ensure(name)
    behind = commit.now_ms if commit.now_ms < at_ms else 0
    original = Original(receipt.seq, receipt._number.to_bytes(16), at_ms, receipt.correlation_id, behind)
    remember(commit.tx, head.number, head.settings.dedup_window, dedup, original)


def topic_is_full(name: str, latest: int, count: int) -> ConfigError:
    """The error of an append that has no positions left."""
    return ConfigError(
        f"topic {name!r} is at position {latest} of {MAX_POSITION}: {count} more events have no place in it; "
        "append to a new topic"
    )


def conflict(name: str, key: str, expected: int, actual: int) -> Conflict:
    """The error of an append that expected an entity to be elsewhere."""
    return Conflict(
        f"entity {key!r} of topic {name!r} is at position {actual}, not {expected}: read it again and decide anew",
        expected=expected,
        actual=actual,
    )


def _as_duplicate(receipt: Receipt) -> Receipt:
    return Receipt(receipt.topic, receipt.seq, receipt._number, receipt.correlation_id, True)

"""Sorting messages into the lanes of a queue with fair share: as they are pushed, else when a take reaches them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.events import Receipt
from penstock.journal.commit.commit import Commit
from penstock.journal.storage.wire import Columns
from penstock.queue.flow.turns import lane_of
from penstock.queue.state.cache import QueueState
from penstock.queue.state.group import Group
from penstock.queue.state.records import MessageRow


def give_turns(
    commit: Commit, queue: QueueState, receipts: list[Receipt], columns: Columns, rows: Iterable[int], fair_by: str
) -> None:
    """Sorts some rows of a batch of new messages in, for every group that has sorted in what lies before them."""
    fresh = [row for row in rows if not receipts[row].duplicate]
    for group in queue.delivering(commit.tx):
        for row in fresh:
            seq = receipts[row].seq
            if group.record.frontier != seq - 1:
                break
            key = None if columns.key is None else columns.key[row]
            headers = None if columns.headers is None else columns.headers[row]
            group.advance(commit, seq)
            group.seat(commit, MessageRow(seq, key=key), lane_of(fair_by, key, headers))


def sort_in(commit: Commit, queue: QueueState, group: Group, latest: int, step: int) -> None:
    """Sorts some messages in that were not when they were pushed: they were there before the policy, or before the
    group, or were appended to the topic."""
    for _ in range(step):
        first, through = group.record.frontier + 1, latest
        cover = group.next_cover(commit.tx)
        if cover is not None and cover[0] <= through:
            through = cover[0] - 1
        if first > through:
            return
        found = queue.blocks.find(commit.tx, first, through)
        if found is None:
            group.advance(commit, through)
            continue
        rows, row = found
        group.advance(commit, rows.seq(row))
        group.seat(commit, MessageRow(rows.seq(row), key=rows.key(row)))

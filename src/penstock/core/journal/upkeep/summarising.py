"""Summaries: neighbouring rows are joined into one row, and blocks of earlier versions without a summary get one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.core.journal import keys
from penstock.core.journal.catalog import load_record, open_block
from penstock.core.journal.commit import Commit
from penstock.core.journal.reading import TopicView
from penstock.core.journal.summaries import (
    RangeRows,
    Summary,
    pack_summaries,
    put_range_rows,
    range_rows,
    read_summaries,
)
from penstock.core.journal.writer import Writer
from penstock.core.model.query import EVERYTHING
from penstock.limits import SUMMARY_RANGES

_Row = tuple[bytes, bytes]


def join_summaries(writer: Writer, topic: str, *, fan_in: int) -> None:
    """Joins the newest summaries into rows of `SUMMARY_RANGES` each, if there are `fan_in` rows that are not full."""
    rows: list[_Row] = []
    ranges: list[Summary] = []
    with writer.engine.read() as snap:
        record = load_record(snap, topic)
        if record is None:
            return
        for key, value in snap.scan(*keys.topic_range(keys.SUMMARY, record.topic_id), reverse=True):
            found = read_summaries(value, topic)
            if len(found) >= SUMMARY_RANGES:
                break
            rows.append((key, value))
            ranges[:0] = found
    if len(rows) < fan_in:
        return
    rows.reverse()
    parts = [ranges[at : at + SUMMARY_RANGES] for at in range(0, len(ranges), SUMMARY_RANGES)]

    def exchange(commit: Commit) -> None:
        first, last = rows[0][0], rows[-1][0] + b"\0"
        if commit.is_current(topic, record.topic_id) and list(commit.tx.scan(first, last)) == rows:
            commit.tx.delete_range(first, last)
            for part in parts:
                commit.tx.put(keys.summary_key(record.topic_id, part[0].first), pack_summaries(part))

    writer.run_relaxed(exchange)


def fill_summaries(
    writer: Writer,
    topic: str,
    stopped: Callable[[], bool] = lambda: False,
    *,
    after: int = 0,
    hashed: bool = False,
) -> None:
    """Makes the missing summaries of blocks after a position, some at a time.

    With `hashed`, it also makes their hashes.
    """
    while not stopped():
        with writer.engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None:
                return
            indexed = hashed and view.record.settings.indexed
            made, after = _unsummarised(view, max(after, view.state().trimmed, view.state().sealed), indexed)
        if made:
            writer.run_relaxed(_keep_summaries, topic, view.topic_id, made)
        if len(made) < SUMMARY_RANGES:
            return


def _unsummarised(view: TopicView, after: int, indexed: bool) -> tuple[dict[int, RangeRows], int]:
    """Returns new rows about some blocks after a position, by the blocks' first positions, and the position that was
    reached.
    """
    made: dict[int, RangeRows] = {}
    for low, high in view.spans(after, keys.MAX_SEQ, EVERYTHING, occurred=(1, 0)):
        for block in view.hot_blocks(low, high, open_block):
            after = block.last
            if low < block.first and block.last <= high:
                about = range_rows(block.wire, indexed=indexed and block.wire.seqs is None)
                made |= {block.first: about} if about is not None else {}
            if len(made) == SUMMARY_RANGES:
                return made, after
    return made, after


def _keep_summaries(commit: Commit, topic: str, topic_id: int, made: Mapping[int, RangeRows]) -> None:
    if commit.is_current(topic, topic_id):
        for first, about in made.items():
            put_range_rows(commit.tx, topic_id, first, about)

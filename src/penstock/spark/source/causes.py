"""Looking up the correlation ids of many causes at once.

Ids increase with positions, so that causes taken in the order of their ids lie in few blocks, and each block is opened
once however many causes it holds.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.events import parse_id
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.journal.storage.block import Block
from penstock.spark.source.stores import reading


def correlations(url: str, ids: Any, journal: str | None = None) -> Any:
    """The correlation id of each event named by its id, as a column; null where there is none, or no such event."""
    distinct = [id for id in pc.unique(ids).to_pylist() if id is not None]
    found = _look_up(url, distinct, journal)
    values = pa.array([found.get(id) for id in distinct], pa.string())
    return values.take(pc.index_in(ids, value_set=pa.array(distinct, pa.string())))


def _look_up(url: str, ids: list[str], journal: str | None) -> dict[str, str | None]:
    wanted = sorted((number, id) for id in ids if (number := parse_id(id)) is not None)
    if not wanted:
        return {}
    found: dict[str, str | None] = {}
    at_hand: dict[str, Block] = {}
    with reading(url, journal)._engine.read() as snap:
        names = [key[1:].decode() for key, _ in snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))]
        views = [view for name in names if (view := TopicView.open(snap, name)) is not None]
        for number, id in wanted:
            block, row = _place(views, at_hand, number)
            if block is not None and row is not None:
                found[id] = block.correlation(row)
    return found


def _place(views: list[TopicView], at_hand: dict[str, Block], number: int) -> tuple[Block | None, int | None]:
    """The block and row of an id; blocks found before are asked first."""
    for block in at_hand.values():
        row = block.row_of_id(number)
        if row is not None:
            return block, row
    for view in views:
        event = view.find(number)
        if event is not None:
            rows = event._rows
            assert isinstance(rows, Block)  # views read blocks
            at_hand[view.name] = rows
            return rows, event._row
    return None, None

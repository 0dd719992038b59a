"""The correlation ids of many events at once.

Ids increase with positions, so that events taken in the order of their ids lie in few blocks, and each block is opened
once however many of them it holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.contract import Snapshot
from penstock.events import parse_id
from penstock.journal import keys
from penstock.journal.blocks import Block
from penstock.journal.reading import TopicView


def topic_names(snap: Snapshot) -> list[str]:
    """Every topic, sorted."""
    return [key[1:].decode() for key, _ in snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC))]


def correlations_of(snap: Snapshot, ids: Iterable[str]) -> dict[str, str | None]:
    """By event id, its correlation id, None where it has none; ids that no event has are left out."""
    wanted = sorted((number, id) for id in ids if (number := parse_id(id)) is not None)
    if not wanted:
        return {}
    found: dict[str, str | None] = {}
    at_hand: dict[str, Block] = {}
    views = [view for name in topic_names(snap) if (view := TopicView.open(snap, name)) is not None]
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

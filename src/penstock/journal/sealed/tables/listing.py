"""What lies in the lakes of a journal's topics."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.engine.contract import Snapshot
from penstock.journal.commit.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.report import LakeSummary
from penstock.journal.sealed.segments import TableSettings, load_seals, load_segments
from penstock.names import shown_url


def lake_summaries(snap: Snapshot, topic: str) -> Iterator[LakeSummary]:
    """The lakes that a topic is sealed in, in the order in which its history begins there."""
    view = TopicView.open(snap, topic)
    if view is None:
        return
    seals = load_seals(snap, view.number)
    found: dict[str, list[int]] = {lake: [0, 0, 0, 0] for lake in seals.tables}
    for segment in load_segments(snap, view.number, load_state(snap, view.number, topic).trimmed):
        numbers = found.setdefault(segment.lake, [0, 0, 0, 0])
        numbers[:3] = numbers[0] + len(segment.files), numbers[1] + segment.count, numbers[2] + segment.size
        numbers[3] = segment.last
    for lake, (files, events, size, through) in found.items():
        settings = seals.tables.get(lake, TableSettings())
        yield LakeSummary(
            topic,
            shown_url(lake),
            settings.format,
            settings.columns,
            files,
            events,
            size,
            through,
            settings.catalog,
            settings.partition_by,
        )

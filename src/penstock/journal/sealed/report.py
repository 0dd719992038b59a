"""What a seal did, how it tells meanwhile, and what lies in a lake, with the line with which other programs read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from penstock.engine.contract import Snapshot
from penstock.journal.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.segments import TableSettings, load_seals, load_segments
from penstock.names import shown_url

FILE_EVENTS = 1_000_000
"""Events in one file, at the most."""

Progress = Callable[[int, int], None]
"""Called with how many events are sealed, and how many will be."""


class SealReport(msgspec.Struct, frozen=True):
    """What a seal did."""

    topic: str
    lake: str
    """Where the files are; without the options and credentials that its url may have."""
    events: int
    """Events sealed by this call."""
    files: int
    bytes: int
    through: int
    """Everything at or before this position is sealed now."""
    format: str = "parquet"
    """What the files are registered as."""
    unfit: int = 0
    """Payloads sealed by this call that do not fit the typed columns; their JSON text is whole."""
    left: int = 0
    """Positions that were to be sealed and were not yet: a server seals in steps."""


class LakeSummary(msgspec.Struct, frozen=True):
    """A topic's sealed history in one lake."""

    topic: str
    lake: str
    """Where it lies; without the options and credentials that its url may have."""
    format: str
    columns: str
    """The typed columns beside the JSON text."""
    files: int
    events: int
    bytes: int
    through: int
    """The last position that is sealed there."""
    catalog: str = ""
    partition_by: str = ""
    """The column by whose values files are parted within their day."""

    def readers(self) -> dict[str, str]:
        """By program: the line that reads it. DuckDB needs its extension `delta` for a Delta table."""
        folder = f"{self.lake}/{self.topic}"
        files = f"{folder}/date=*/*/*.parquet" if self.partition_by else f"{folder}/date=*/*.parquet"
        if self.format == "delta":
            duckdb, polars = f"SELECT count(*) FROM delta_scan('{folder}')", f'polars.scan_delta("{folder}")'
        else:
            duckdb = f"SELECT count(*) FROM read_parquet('{files}', hive_partitioning=true)"
            polars = f'polars.scan_parquet("{files}", hive_partitioning=True)'
        return {"DuckDB": duckdb, "Polars": polars, "Spark": f'spark.read.parquet("{folder}")'}


# ── What lies in the lakes of a journal's topics ──


def lake_summaries(snap: Snapshot, topic: str) -> Iterator[LakeSummary]:
    """The lakes that a topic is sealed in, in the order in which its history begins there."""
    view = TopicView.open(snap, topic)
    if view is None:
        return
    seals = load_seals(snap, view.topic_id)
    found: dict[str, list[int]] = {lake: [0, 0, 0, 0] for lake in seals.tables}
    for segment in load_segments(snap, view.topic_id, load_state(snap, view.topic_id, topic).trimmed):
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

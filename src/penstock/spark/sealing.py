"""`seal`: settled history becomes Parquet in a lake; with a master, Spark's tasks write the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.api import LocalJournal, local, open_local
from penstock.errors import ConfigError
from penstock.journal.sealed.sealing import FILE_EVENTS, Progress, Range, SealReport, WriteSegments, seal_topic
from penstock.journal.sealed.segments import Segment
from penstock.journal.sealed.tables.table import TableRequest
from penstock.journal.sealed.writing import SealPlace, write_segment
from penstock.names import TableFormat
from penstock.spark.source.place import absolute_url, is_served
from penstock.spark.source.stores import check_reach, reading
from penstock.surface.journal import Journal


def seal(
    journal: Journal | str,
    topic: str,
    *,
    lake: str,
    through: int | None = None,
    master: str | None = None,
    format: TableFormat | None = None,
    columns: str | type[Any] | None = None,
    catalog: str | None = None,
    compact: bool = False,
    file_events: int = FILE_EVENTS,
    progress: Progress | None = None,
) -> SealReport:
    """Moves a topic's settled history into Parquet under `lake` (a folder, s3://bucket/prefix, …).

    Reads go on as before, across both. Without `through`, everything but the newest block is settled. Call it again to
    go on, also after a kill: what was sealed stays, what was half done is done again. With `master`, Spark's tasks
    write the files.

    `format="delta"` or `"iceberg"` registers the files in a table as well; an Iceberg table is in the `catalog` named,
    or one beside the lake. `columns="customer STRING, total DOUBLE"` (or a declared event type) adds fields of the
    payload as typed columns. Later seals to the same lake go on with both. `compact` joins small files of a day.
    """
    with _opened(journal) as opened:
        write = None if master is None else _on_spark(opened, master)
        return seal_topic(
            opened,
            topic,
            lake=lake,
            through=through,
            file_events=file_events,
            table=TableRequest(format, columns, catalog),
            compact=compact,
            progress=progress,
            write=write,
        )


@contextmanager
def _opened(journal: Journal | str) -> Iterator[LocalJournal]:
    if isinstance(journal, str) and is_served(journal):
        raise ConfigError(
            "sealing moves history out of the store, and is not served over http: seal where the store is"
        )
    if isinstance(journal, str):
        open_local(journal, read_only=True).close()  # a mistyped name makes no journal
        with open_local(journal) as opened:
            yield opened
    else:
        yield local(journal, "sealing a topic")


def _on_spark(journal: LocalJournal, master: str) -> WriteSegments:
    url = absolute_url(f"{journal._engine.scheme}:{journal._engine.location}")

    def write(place: SealPlace, ranges: list[Range]) -> Iterator[Segment]:
        from penstock.spark.startup.sessions import session

        if not ranges:
            return
        context = session("penstock seal", master=master).sparkContext
        check_reach(url, context.master)
        task = _SegmentTask(url, journal._record.id, place)
        step = max(1, context.defaultParallelism)
        for start in range(0, len(ranges), step):
            some = ranges[start : start + step]
            yield from context.parallelize(some, len(some)).map(task).collect()

    return write


class _SegmentTask:
    """The work of a Spark task: one file."""

    def __init__(self, url: str, journal: str, place: SealPlace) -> None:
        self.url = url
        self.journal = journal
        self.place = place

    def __call__(self, bounds: Range) -> Segment:
        return write_segment(reading(self.url, self.journal)._engine, self.place, *bounds)

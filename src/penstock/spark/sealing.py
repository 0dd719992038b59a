"""`seal`: moves settled history into Parquet, with Spark's tasks if a master is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.api import local, open_local
from penstock.core.journal.sealed.columns import columns_text
from penstock.core.journal.sealed.sealing import Range, WriteSegments, seal_topic
from penstock.core.journal.sealed.segments import FILE_EVENTS, SealReport, Segment
from penstock.core.journal.sealed.tables import TableRequest
from penstock.core.journal.sealed.writing import SealTarget, write_segment
from penstock.core.local.backend import LocalJournal
from penstock.core.names import TableFormat
from penstock.core.protocol.bulk import SealRequest
from penstock.core.surface.journal import Journal
from penstock.core.units import Progress
from penstock.errors import ConfigError
from penstock.remote.backend import RemoteJournal, seal_served
from penstock.spark.journals import check_reach, reading
from penstock.spark.options import absolute_url, is_served
from penstock.spark.startup.sessions import active_context, context


def seal(
    journal: Journal | str,
    topic: str,
    *,
    lake: str,
    through: int | None = None,
    master: str | None = None,
    format: TableFormat | None = None,
    columns: str | type[object] | None = None,
    catalog: str | None = None,
    partition_by: str | None = None,
    compact: bool = False,
    file_events: int = FILE_EVENTS,
    progress: Progress | None = None,
) -> SealReport:
    """Moves a topic's settled history into Parquet under `lake` (a folder, s3://bucket/prefix, …).

    Reads continue as before, across both. Without `through`, every event except those of the newest block is settled.
    Call it again to continue, also after a kill: sealed events stay, and unfinished work is repeated. With `master`, or
    with a Spark session in this process that reaches the journal, Spark's tasks write the same files.

    `format="delta"` or `"iceberg"` also registers the files in a table; an Iceberg table is in the named `catalog`, or
    in a catalog beside the lake. `columns="customer STRING, total DOUBLE"` (or a declared event type) adds payload
    fields as typed columns. `partition_by` names one of them (or "kind"): each of its values has its own files, in a
    folder below the day's folder. Later seals to the same lake keep these settings. `compact` joins small files of a
    day.

    A served journal (http://…, with PENSTOCK_TOKEN) is sealed by its server, to a lake that it was started with.
    """
    served = _served(journal)
    if served is not None:
        if master is not None:
            raise ConfigError("a served journal is sealed by its server: leave master out, or seal where the store is")
        wanted = SealRequest(
            lake, through, format, columns_text(columns) or None, catalog, partition_by, compact, file_events
        )
        with served as opened_there:
            return seal_served(opened_there, topic, wanted, progress)
    with _opened(journal) as opened:
        write = _on_spark(opened, master) if master is not None or _session_reaches(opened) else None
        return seal_topic(
            opened.backend.core,
            topic,
            lake=lake,
            through=through,
            file_events=file_events,
            table=TableRequest(format, columns, catalog, partition_by),
            compact=compact,
            progress=progress,
            write=write,
        )


def _served(journal: Journal | str) -> AbstractContextManager[RemoteJournal] | None:
    """Returns the journal behind a server's url, closed afterwards where it is opened here; None: it is no served
    one.
    """
    if isinstance(journal, RemoteJournal):
        return nullcontext(journal)
    return RemoteJournal(journal) if isinstance(journal, str) and is_served(journal) else None


@contextmanager
def _opened(journal: Journal | str) -> Iterator[LocalJournal]:
    if isinstance(journal, str):
        open_local(journal, read_only=True).close()  # a mistyped name makes no journal
        with open_local(journal) as opened:
            yield opened
    else:
        yield local(journal, "sealing a topic")


def _session_reaches(journal: LocalJournal) -> bool:
    """Returns True if this process has a Spark session whose tasks can open the journal."""
    running = active_context()
    if running is None:
        return False
    try:
        check_reach(_url_of(journal), running.master)
    except ConfigError:
        return False
    return True


def _url_of(journal: LocalJournal) -> str:
    return absolute_url(f"{journal.backend.engine.scheme}:{journal.backend.engine.location}")


def _on_spark(journal: LocalJournal, master: str | None) -> WriteSegments:
    url = _url_of(journal)

    def write(target: SealTarget, ranges: list[Range]) -> Iterator[Segment]:
        if not ranges:
            return
        running = context("penstock seal", master)
        check_reach(url, running.master)
        task = _SegmentTask(url, journal.id, target)
        step = max(1, running.defaultParallelism)
        for start in range(0, len(ranges), step):
            some = ranges[start : start + step]
            yield from running.parallelize(some, len(some)).map(task).collect()

    return write


class _SegmentTask:
    """The work of a Spark task: one file."""

    def __init__(self, url: str, journal: str, target: SealTarget) -> None:
        self.url = url
        self.journal = journal
        self.target = target

    def __call__(self, bounds: Range) -> Segment:
        return write_segment(reading(self.url, self.journal).backend.engine, self.target, *bounds)

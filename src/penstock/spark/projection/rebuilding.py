"""`rebuild`: every entity of a topic folded anew on Spark, and the states saved for projections in-process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql import types as T

from penstock.api import local, open_local
from penstock.entity.projection.projection import Projection, check_projection
from penstock.entity.projection.rebuild import RebuildReport, StateSaving
from penstock.entity.projection.snapshot import pack_state
from penstock.local.journal import LocalJournal
from penstock.names import check_name
from penstock.remote.rebuilding import RemoteStateSaving
from penstock.spark.projection.arrowmap import map_in_arrow
from penstock.spark.projection.fold import Folded, fold_sorted
from penstock.spark.projection.projecting import ordered_events
from penstock.spark.projection.shipping import Shipped
from penstock.spark.served.connection import check_may_write, client_of, patiently
from penstock.spark.source.place import JournalPlace, place_of_journal
from penstock.spark.source.stores import check_reach

if TYPE_CHECKING:
    from penstock.surface.journal import Journal

R = TypeVar("R")

_SCHEMA = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField("generation", T.LongType()),
        T.StructField("first", T.LongType()),
        T.StructField("state", T.BinaryType()),
    ]
)
_ARROW = pa.schema([("key", pa.string()), ("generation", pa.int64()), ("first", pa.int64()), ("state", pa.binary())])
_EMIT = 8192
"""States in one record batch."""


def rebuild(
    journal: Journal | str,
    topic: str,
    projection: type[Projection],
    *,
    master: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RebuildReport:
    """Folds every entity of a topic on Spark and saves the states: what `topic.rebuild` does, with tasks.

    It folds what is there when it begins; `topic.project` goes on from the saved states with what came since. Saved
    states, of this version of the projection and of others, are removed when all are folded. Without `master`, the
    session that is there is used, or one on this machine. `progress` is told how many states of how many are saved.
    """
    from penstock.spark.startup.sessions import session

    check_name(topic)
    check_projection(projection)
    with _opened(journal, topic, projection) as (place, saving):
        if not saving.of.through:
            return RebuildReport(0, 0, 0)
        spark = session("penstock rebuild") if master is None else session("penstock rebuild", master=master)
        check_reach(place.url, spark.conf.get("spark.master"))
        asked = {"url": place.url, "topic": topic, "endingOffsets": str(saving.of.through)}
        if place.token is not None:
            asked["token"] = place.token.reveal()
        events = spark.read.format("penstock").options(**asked).load()
        folded = map_in_arrow(ordered_events(events, projection), StateFold(Shipped(projection)), _SCHEMA).cache()
        try:
            total = folded.count()  # a handler that fails does so before anything is removed
            saving.begin()
            rows = ((row.key, row.generation, row.first, bytes(row.state)) for row in folded.toLocalIterator())
            saved = saving.save(rows if progress is None else _told(rows, total, progress))
        finally:
            folded.unpersist()
        return RebuildReport(saved, saving.of.events, saving.of.through)


def _told(rows: Iterator[R], total: int, progress: Callable[[int, int], None]) -> Iterator[R]:
    for count, row in enumerate(rows, 1):
        yield row
        if count % 1000 == 0 or count == total:
            progress(count, total)


class StateFold:
    """The task of a rebuild: rows come sorted, states go out as they are stored."""

    def __init__(self, shipped: Shipped) -> None:
        self.shipped = shipped

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projection = self.shipped.projection
        held: list[Folded] = []
        for one in fold_sorted(batches, self.shipped, lambda key: Folded(key, projection())):
            held.append(one)
            if len(held) == _EMIT:
                yield _packed(held)
                held = []
        if held:
            yield _packed(held)


def _packed(held: list[Folded]) -> pa.RecordBatch:
    columns = [
        [one.key for one in held],
        [one.generation for one in held],
        [one.first for one in held],
        [pack_state(one.state) for one in held],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


@contextmanager
def _opened(
    journal: Journal | str, topic: str, projection: type[Projection]
) -> Iterator[tuple[JournalPlace, StateSaving | RemoteStateSaving]]:
    """Where the events are read, and where the states go."""
    place = place_of_journal(journal, "rebuilding states on Spark")
    if place.served:
        check_may_write(place, "a rebuild, which saves states,", role="admin")
        yield place, RemoteStateSaving(client_of(place), topic, projection, patiently)
        return
    if isinstance(journal, str):
        open_local(journal, read_only=True).close()  # a mistyped name makes no journal
        with open_local(journal) as opened:
            yield place, _saving(opened, topic, projection)
    else:
        yield place, _saving(local(journal, "rebuilding states on Spark"), topic, projection)


def _saving(journal: LocalJournal, topic: str, projection: type[Projection]) -> StateSaving:
    return StateSaving(journal.topic(topic)._log, journal._entities.states, projection)

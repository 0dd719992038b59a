"""`project` and `rebuild`: the state of every entity, folded on Spark by the class that also runs in-process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api import local, open_local
from penstock.entity.projection import EVENT, Projection, check_projection, folder_of
from penstock.entity.states import RebuildReport, StateSaving
from penstock.errors import ConfigError
from penstock.local.backend import LocalJournal
from penstock.names import check_name
from penstock.remote.topic import RemoteStateSaving
from penstock.spark.journals import check_reach, patiently
from penstock.spark.options import JournalLocation, location_of_journal
from penstock.spark.projection.fold import NEEDED, OPTIONAL, STORED, BatchFold
from penstock.spark.projection.shipping import Shipped, result_schema
from penstock.spark.served import check_may_write, client_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Map = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    from penstock.surface.journal import Journal


def map_in_arrow(frame: DataFrame, function: Map, schema: StructType) -> DataFrame:
    """A frame of what a function makes of each partition's record batches."""
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None or find_spec("pandas") is not None:
        return frame.mapInArrow(function, schema)
    from pyspark.sql import DataFrame as ClassicFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    mapped = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = mapped(*[frame[name] for name in frame.columns])
    return ClassicFrame(plan.mapInArrow(column._jc, False, None), frame.sparkSession)


def project(events: DataFrame, projection: type[Projection], *, journal: Journal | str | None = None) -> DataFrame:
    """The state of every entity of a frame of events: `key`, `generation` (its newest position), `state` (a struct).

    The frame has the columns of a topic, or at least key, seq, kind and payload; the result is what `Topic.project`
    gives for each key. On a stream every batch gives the entities it has changed; what is remembered between batches
    lies in the journal: the one the stream reads, or the one named here.
    """
    shipped, schema = Shipped(projection), result_schema(projection)
    if events.isStreaming:
        rows = events.select(*_columns(events, projection))
        from penstock.spark.projection.keeping import stream_fold

        fold = stream_fold(events, shipped, schema, journal)
        return map_in_arrow(rows.repartition("key"), fold, schema)
    return map_in_arrow(ordered_events(events, projection), BatchFold(shipped, schema), schema)


def ordered_events(events: DataFrame, projection: type[Projection]) -> DataFrame:
    """What a projection needs of events, those of a key together and in order."""
    rows = events.select(*_columns(events, projection))
    return rows.repartition("key").sortWithinPartitions("key", "seq")


def _columns(events: DataFrame, projection: type[Projection]) -> list[str]:
    """The columns that have to travel: all there are when a handler wants the event itself."""
    folder = folder_of(projection)
    missing = [name for name in NEEDED if name not in events.columns]
    if missing:
        raise ConfigError(f"a frame of events has no column {missing[0]!r}; project needs {', '.join(NEEDED)}")
    steps: list[Any] = [step for steps in folder._steps.values() for step in steps]
    wanted: tuple[str, ...] = ()
    if any(EVENT in step.wants for step in steps):
        wanted = OPTIONAL
    elif any(step.schema is not None and step.schema.newest > 1 for step in steps):
        wanted = ("headers",)
    return [*NEEDED, *(name for name in wanted if name in events.columns)]


R = TypeVar("R")


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
    with _opened(journal, topic, projection) as (location, saving):
        if not saving.of.through:
            return RebuildReport(0, 0, 0)
        spark = session("penstock rebuild") if master is None else session("penstock rebuild", master=master)
        check_reach(location.url, spark.conf.get("spark.master"))
        asked = {"url": location.url, "topic": topic, "endingOffsets": str(saving.of.through)}
        if location.token is not None:
            asked["token"] = location.token.reveal()
        events = spark.read.format("penstock").options(**asked).load()
        folded = map_in_arrow(
            ordered_events(events, projection), BatchFold(Shipped(projection), STORED), STORED
        ).cache()
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


@contextmanager
def _opened(
    journal: Journal | str, topic: str, projection: type[Projection]
) -> Iterator[tuple[JournalLocation, StateSaving | RemoteStateSaving]]:
    """Where the events are read, and where the states go."""
    location = location_of_journal(journal, "rebuilding states on Spark")
    if location.served:
        check_may_write(location, "a rebuild, which saves states,", role="admin")
        yield location, RemoteStateSaving(client_of(location), topic, projection, patiently)
        return
    if isinstance(journal, str):
        open_local(journal, read_only=True).close()  # a mistyped name makes no journal
        with open_local(journal) as opened:
            yield location, _saving(opened, topic, projection)
    else:
        yield location, _saving(local(journal, "rebuilding states on Spark"), topic, projection)


def _saving(journal: LocalJournal, topic: str, projection: type[Projection]) -> StateSaving:
    return StateSaving(journal._backend.log(topic), journal._entities.states, projection)

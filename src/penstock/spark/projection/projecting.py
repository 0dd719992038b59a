"""`project`: the state of every entity, folded on Spark by the class that also runs in-process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.entity.projection.folding import EVENT, folder_of
from penstock.entity.projection.projection import Projection
from penstock.errors import ConfigError
from penstock.spark.projection.arrowmap import map_in_arrow
from penstock.spark.projection.fold import NEEDED, OPTIONAL, BatchFold
from penstock.spark.projection.shipping import Shipped
from penstock.spark.projection.states import result_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.surface.journal import Journal


def project(events: DataFrame, projection: type[Projection], *, journal: Journal | str | None = None) -> DataFrame:
    """The state of every entity of a frame of events: `key`, `generation` (its newest position), `state` (a struct).

    The frame has the columns of a topic, or at least key, seq, kind and payload; the result is what `Topic.project`
    gives for each key. On a stream every batch gives the entities it has changed; what is remembered between batches
    lies in the journal: the one the stream reads, or the one named here.
    """
    shipped, schema = Shipped(projection), result_schema(projection)
    if events.isStreaming:
        rows = events.select(*_columns(events, projection))
        from penstock.spark.projection.follow import stream_fold

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

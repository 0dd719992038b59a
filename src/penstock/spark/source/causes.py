"""The correlation ids of many causes at once, as columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.source.journals import open_source
from penstock.spark.source.place import JournalPlace


def correlations(place: JournalPlace, ids: pa.StringArray, journal: str | None = None) -> pa.StringArray:
    """The correlation id of each event named by its id, as a column; null where there is none, or no such event."""
    distinct = [id for id in pc.unique(ids).to_pylist() if id is not None]
    found = open_source(place, journal).correlations(distinct) if distinct else {}
    values = pa.array([found.get(id) for id in distinct], pa.string())
    return values.take(pc.index_in(ids, value_set=pa.array(distinct, pa.string())))

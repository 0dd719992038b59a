"""The fold in a Spark task: rows, sorted by key and position, into states, with the projection's own handlers.

Spark's stateful operators pay for every key in every batch. Here a task gets whole record batches, decodes their
payloads together, and runs the handlers in one loop; what a stream remembers between batches lies in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from penstock.core.clock import to_ms
from penstock.core.entity.projection import Projection, folder_of
from penstock.core.entity.states import pack_state
from penstock.core.events import parse_id
from penstock.core.names import pack_tags
from penstock.errors import ConfigError
from penstock.spark.layout import plain
from penstock.spark.projection.shipping import Shipped, StateRows

NEEDED = ("key", "seq", "kind", "payload")
OPTIONAL = ("topic", "scope", "headers", "occurred_at", "recorded_at", "id", "correlation_id", "causation_id", "tags")
_EMIT = 8192
"""States in one record batch."""


class Rows:
    """The rows of a record batch, as a fold looks at a block: columns by index, unpacked when first asked for."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        kinds = batch.column("kind").dictionary_encode()
        payload = batch.column("payload")
        binary = pa.types.is_binary(payload.type)
        self.wire = SimpleNamespace(kinds=kinds.dictionary.to_pylist(), binary=b"\1" if binary else None)
        self.kind_codes = kinds.indices.to_pylist()
        payload = payload.fill_null(b"null" if binary else "null")
        bounds = np.frombuffer(payload.buffers()[1], dtype=np.int32)[payload.offset : payload.offset + len(payload) + 1]
        data = payload.buffers()[2]
        self.payload = b"" if data is None else memoryview(data)[int(bounds[0]) : int(bounds[-1])].tobytes()
        self.payload_offsets = (bounds - bounds[0]).tolist()
        self._columns: dict[str, list[Any]] = {}

    def _column(self, name: str) -> list[Any]:
        found = self._columns.get(name)
        if found is None:
            there = name in self._batch.schema.names
            found = self._batch.column(name).to_pylist() if there else [None] * self._batch.num_rows
            self._columns[name] = found
        return found

    @property
    def topic(self) -> str:
        names = self._column("topic")
        return names[0] or "" if names else ""

    def seq(self, row: int) -> int:
        return self._column("seq")[row]  # type: ignore[no-any-return]

    def kind(self, row: int) -> str:
        return self.wire.kinds[self.kind_codes[row]]  # type: ignore[no-any-return]

    def is_binary(self, row: int) -> bool:
        return self.wire.binary is not None

    def raw_payload(self, row: int) -> memoryview:
        return memoryview(self.payload)[self.payload_offsets[row] : self.payload_offsets[row + 1]]

    def key(self, row: int) -> str | None:
        return self._column("key")[row]  # type: ignore[no-any-return]

    def scope(self, row: int) -> str | None:
        return self._column("scope")[row]  # type: ignore[no-any-return]

    def headers(self, row: int) -> Mapping[str, str]:
        return MappingProxyType(dict(self._column("headers")[row] or ()))

    def occurred_ms(self, row: int) -> int:
        return self._ms("occurred_at", row)

    def recorded_ms(self, row: int) -> int:
        return self._ms("recorded_at", row)

    def _ms(self, name: str, row: int) -> int:
        value = self._column(name)[row]
        if value is None:
            raise ConfigError(f"a handler asks for {name}, and the frame that is projected has no such column")
        return to_ms(value, name)

    def id_number(self, row: int) -> int:
        value = self._column("id")[row]
        number = None if value is None else parse_id(value)
        if number is None:
            raise ConfigError("a handler asks for an event's id, and the frame that is projected has no such column")
        return number

    def correlation(self, row: int) -> str | None:
        return self._column("correlation_id")[row]  # type: ignore[no-any-return]

    def causation(self, row: int) -> str | None:
        return self._column("causation_id")[row]  # type: ignore[no-any-return]

    def tags(self, row: int) -> str | None:
        return pack_tags(self._column("tags")[row] or ())

    def extract(self, row: int) -> bytes:
        raise ConfigError("an event handed to a projection on Spark cannot be kept: take from it what you need")


class Folded:
    """The entity at hand while sorted rows go by."""

    __slots__ = ("first", "generation", "key", "state", "topic")

    def __init__(self, key: str, state: Projection, generation: int = 0, first: int = 0) -> None:
        self.key = key
        self.state = state
        self.generation = generation
        self.first = first


Load = Callable[[str], Folded]
"""The function that loads the state from which an entity's fold begins: with nothing, or with what a stream has of it.
"""


def fold_sorted(batches: Iterator[pa.RecordBatch], shipped: Shipped, load: Load) -> Iterator[Folded]:
    """Folds rows sorted by key and position; yields every entity when its last row has gone by."""
    folder = folder_of(shipped.projection)
    current: Folded | None = None
    for given in batches:
        batch = pa.RecordBatch.from_arrays([plain(column) for column in given.columns], given.schema.names)
        if batch.column("key").null_count:
            batch = batch.filter(pc.is_valid(batch.column("key")))
        if not batch.num_rows:
            continue
        keys, seqs = batch.column("key"), np.asarray(batch.column("seq"))
        runs = _runs(keys)
        states: list[Any] = []
        kept: list[np.ndarray[Any, Any]] = []
        done: list[Folded] = []
        for start, stop in pairwise(runs):
            key = keys[start].as_py()
            if current is None or current.key != key:
                if current is not None:
                    done.append(current)
                current = load(key)
            at = start + int(np.searchsorted(seqs[start:stop], current.generation, side="right"))
            if at == stop:  # a batch that is run again: its rows are in the state already
                continue
            states.extend([current.state] * (stop - at))
            kept.append(np.arange(at, stop))
            current.first = current.first or int(seqs[at])
            current.generation = int(seqs[stop - 1])
        if states:
            whole = len(states) == batch.num_rows
            folder.fold_each(Rows(batch if whole else batch.take(pa.array(np.concatenate(kept)))), states)
        yield from done
    if current is not None:
        yield current


def _runs(keys: Any) -> list[int]:
    """Returns the starts of runs of equal keys, and, last, the end of the rows."""
    count = len(keys)
    if count == 1:
        return [0, 1]
    changes = pc.not_equal(keys.slice(1), keys.slice(0, count - 1))
    starts = np.flatnonzero(np.asarray(changes)) + 1
    return [0, *starts.tolist(), count]


def emit(folded: Iterator[Folded], make: Callable[[list[Folded]], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Entities as record batches."""
    while held := list(islice(folded, _EMIT)):
        yield make(held)


def in_columns(schema: StructType) -> Callable[[list[Folded]], pa.RecordBatch]:
    """Makes rows whose states are structs."""
    states = StateRows(schema)

    def make(held: list[Folded]) -> pa.RecordBatch:
        return states.batch([one.key for one in held], [one.generation for one in held], [one.state for one in held])

    return make


STORED = T.StructType(
    [
        T.StructField("key", T.StringType()),
        T.StructField("generation", T.LongType()),
        T.StructField("first", T.LongType()),
        T.StructField("state", T.BinaryType()),
    ]
)
"""The columns of states as they are stored."""


def as_stored(held: list[Folded]) -> pa.RecordBatch:
    """Makes rows of `STORED`."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([one.key for one in held], pa.string()),
            "generation": pa.array([one.generation for one in held], pa.int64()),
            "first": pa.array([one.first for one in held], pa.int64()),
            "state": pa.array([pack_state(one.state) for one in held], pa.binary()),
        }
    )


class BatchFold:
    """The task of a batch projection, or of a rebuild: rows come sorted, every entity begins with the defaults."""

    def __init__(self, shipped: Shipped, schema: StructType) -> None:
        self.shipped = shipped
        self.schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projection = self.shipped.projection
        folded = fold_sorted(batches, self.shipped, lambda key: Folded(key, projection()))
        yield from emit(folded, as_stored if self.schema == STORED else in_columns(self.schema))

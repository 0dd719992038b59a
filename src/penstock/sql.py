"""SQL over topics: DuckDB runs the query, and this module provides the events.

Each topic that a query names is a view with the columns of sealed history: the columns of `read_arrow`, `payload_bytes`
for payloads that are no text, and typed columns (the requested columns, or the columns that the topic was sealed with).
DuckDB itself reads sealed files, through `CheckedFiles`, which compares checksums. Everything else comes from a
`TopicTable`, which DuckDB treats as an Arrow dataset: DuckDB names the needed columns and rows. The journal looks up
the positions, recording times, keys and kinds of this filter. Arrow applies the filter itself, so a look-up must leave
nothing out, but may leave too much in.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.clock import FIRST_MS, LAST_MS
from penstock.core.documents.decoding import nearest
from penstock.core.events import Event
from penstock.core.journal.blocks import Block
from penstock.core.journal.reading import Bounds
from penstock.core.model.query import EventQuery
from penstock.core.protocol.topics import LIST_TOPICS
from penstock.errors import ConfigError, PenstockError, StorageError, UnknownTopic
from penstock.limits import ARROW_BATCH_ROWS, MAX_KEY_BYTES

try:
    import duckdb
    import fsspec
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
except ImportError as error:
    raise ConfigError('SQL needs the extra: pip install "penstock[sql]"') from error

from penstock.core.journal.sealed.columns import TypedColumns, columns_text, text_and_bytes
from penstock.core.journal.sealed.writing import sealed_schema
from penstock.core.journal.to_arrow import arrow_schema, coalesce, record_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.core.journal.sealed.files import SealedBytes
    from penstock.core.surface.backend import Backend, TopicScan

_SETTINGS = "SET TimeZone = 'UTC'; SET python_enable_replacements = false; SET autoinstall_known_extensions = false"
"""Times are shown as stored; a name is a topic and never a variable of the caller; nothing is downloaded."""
_LOOKED_UP = 20_000
"""The events of a key that are read one by one through the index; further events are read by block."""
_NAMES = re.compile(r'"([A-Za-z0-9._-]{1,255})"|([A-Za-z0-9._]{1,255})')
"""The pattern of a topic's name in a query."""
_BY_KEY = re.compile(r"""\bkey"?\s*(==?|in)\s*\(?\s*['?$]""", re.IGNORECASE)
"""The pattern of a query that may look for a key. It is only a hint; the answer is the same without it."""
_DEEPEST = 32
"""The depth of nested lists and mappings in a parameter."""
_BEGIN = datetime.fromtimestamp(0, UTC)
"""The time when a sealed file was changed last: never."""
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


def run_sql(
    backend: Backend,
    query: str,
    parameters: Sequence[object] | Mapping[str, object],
    columns: Mapping[str, str | type[object]],
) -> pa.Table:
    """Returns the whole answer to a query, from one state of the journal; `columns`: typed columns, by topic."""
    if not isinstance(query, str) or not query.strip():
        raise ConfigError(f"a query is text like 'select kind, count(*) from orders group by 1', not {query!r:.80}")
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping):
        raise ConfigError(f"parameters are a list of values, or a mapping by name, not {parameters!r:.80}")
    _check_depth(list(parameters.values()) if isinstance(parameters, Mapping) else parameters)
    failures: list[Exception] = []
    names = {quoted or plain for quoted, plain in _NAMES.findall(query)}
    typed = {topic: columns_text(wanted) for topic, wanted in columns.items()}
    with backend.scans(names) as scans, duckdb.connect() as connection:
        if len(scans) > len({name.lower() for name in scans}):
            raise ConfigError(f"some of {', '.join(sorted(scans))} are one name in SQL: query one of them at a time")
        if unread := typed.keys() - scans.keys():
            raise ConfigError(f"columns names {', '.join(sorted(unread))}, which is no topic that the query reads")
        connection.execute(_SETTINGS)
        turn, sealed = threading.Lock(), CheckedFiles(failures)
        connection.register_filesystem(sealed)
        try:
            for name, scan in scans.items():
                text = typed.get(name, scan.columns)
                direct = text == scan.columns and _BY_KEY.search(query) is None
                _create_view(connection, name, TopicTable(scan, text, turn, failures), sealed, direct)
            answer = connection.sql(query, params=parameters)
            return pa.table({}) if answer is None else answer.to_arrow_table()
        except duckdb.Error as error:
            raise (failures[0] if failures else _explained(error, backend)) from error
        except PenstockError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"a parameter of the query, or its text, cannot be used: {error}") from error


def _check_depth(value: object, depth: int = 0) -> None:
    """Raises ConfigError for parameters that contain themselves, in which DuckDB would not find the end."""
    if depth > _DEEPEST:
        raise ConfigError(f"a parameter of the query is nested more than {_DEEPEST} deep, or holds itself")
    if isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            _check_depth(one, depth + 1)


def _create_view(
    connection: duckdb.DuckDBPyConnection, name: str, table: TopicTable, sealed: CheckedFiles, direct: bool
) -> None:
    """Makes a topic a view.

    With `direct`, DuckDB reads sealed files itself, which is the fastest way to read many events. A query that may look
    for a key is faster with the index, and files have only the typed columns that they were sealed with.
    """
    files, through = table.scan.files() if direct else ([], table.scan.after)
    names = [sealed.add(file) for file in files]
    connection.register(f"penstock {name}", table)
    columns = ", ".join(f'"{column}"' for column in table.schema.names)
    source = f'SELECT {columns} FROM "penstock {name}"'
    if files:
        table.after = through
        source += f" UNION ALL SELECT {columns} FROM read_parquet({names}, hive_partitioning = false)"
        source += f" WHERE seq > {table.scan.after}" if table.scan.after else ""
    connection.execute(f'CREATE TEMP VIEW "{name}" AS {source}')


def _explained(error: duckdb.Error, backend: Backend) -> Exception:
    """Returns the problem of a query in DuckDB's words, with the place; a missing topic is reported in our own
    words.
    """
    missing = _NO_TABLE.search(str(error))
    if missing is not None:
        return UnknownTopic(f"there is no topic {missing[1]!r}{nearest(missing[1], backend.call(LIST_TOPICS))}")
    if isinstance(error, duckdb.OperationalError):
        return StorageError(f"the query failed: {error}")
    return ConfigError(f"the query cannot be run: {error}")


class TopicTable(ds.Dataset):  # type: ignore[misc]
    """A topic as an Arrow dataset for DuckDB, which asks for `schema`, then for a `scanner`."""

    def __init__(self, scan: TopicScan, columns: str, turn: threading.Lock, failures: list[Exception]) -> None:
        self.scan = scan
        self.after = scan.after
        self._turn = turn
        self._failures = failures
        self._typed = TypedColumns(columns)
        self._schema = pa.schema([*sealed_schema(), *self._typed.schema])

    @property
    def schema(self) -> pa.Schema:
        """The topic's columns."""
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> Scanner:
        """Returns the wanted columns of the rows that pass."""
        schema = self._schema if columns is None else pa.schema([self._schema.field(name) for name in columns])
        batches = self._one_by_one(self._filtered(schema, filter))
        return Scanner(pa.RecordBatchReader.from_batches(schema, batches))

    def _one_by_one(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields batches to one thread at a time: all of a query reads one snapshot.

        Notes errors, which DuckDB's own errors would hide.
        """
        try:
            while True:
                with self._turn:
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        except Exception as error:
            self._failures.append(error)
            raise

    def _filtered(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        text = "" if filter is None else str(filter)
        needed = list(dict.fromkeys([*schema.names, *(name for name in self._schema.names if name in text)]))
        for batch in self._batches(needed, [] if filter is None else implied_filters(filter)):
            found = pa.Table.from_batches([batch])
            yield from (found if filter is None else found.filter(filter).select(schema.names)).to_batches()

    def _batches(self, names: Sequence[str], conditions: list[Condition]) -> Iterator[pa.RecordBatch]:
        """Yields the events for which conditions hold, and perhaps others."""
        scan = self.scan
        after, through = self._between(conditions)
        keys, kinds = _allowed_values(conditions, "key"), _allowed_values(conditions, "kind")
        if keys is not None:
            possible = [key for key in sorted(keys) if 0 < len(key.encode()) <= MAX_KEY_BYTES]
            queries = (EventQuery(key=key, after=after, through=through) for key in possible)
            found = list(islice(chain.from_iterable(map(scan.events, queries)), _LOOKED_UP + 1))
            if len(found) <= _LOOKED_UP:
                if found:
                    yield self._batch_of_events(names, found)
                return
        for low, high in [(after, through)] if kinds is None else scan.spans(after, through, kinds):
            blocks = scan.blocks(low, high)
            if kinds is not None:
                blocks = (block for block in blocks if not kinds.isdisjoint(block.wire.kinds))
            for block in coalesce(blocks, ARROW_BATCH_ROWS):
                start = block.row_after(low) if block.first <= low else 0
                stop = block.row_after(high) if block.last > high else block.count
                if stop > start:
                    yield self._batch_of_block(names, block).slice(start, stop - start)

    def _between(self, conditions: list[Condition]) -> Bounds:
        """Returns the positions that conditions leave, and perhaps one more at either end."""
        after, through = self.after, self.scan.through
        for column, compare, values in conditions:
            if column == "seq":
                low, high = min(values) - 1, max(values)
            elif column == "recorded_at" and isinstance(values[0], int):
                first, last = (max(FIRST_MS, min(one // 1000, LAST_MS - 1)) for one in (min(values), max(values)))
                low, high = self.scan.position_before(first), self.scan.position_before(last + 1)
            else:
                continue
            if compare != "to":
                after = max(after, low)
            if compare != "from":
                through = min(through, high)
        return after, max(after, through)

    def _batch_of_block(self, names: Sequence[str], block: Block) -> pa.RecordBatch:
        own = [name for name in names if name in arrow_schema().names and name != "payload"]
        columns = dict(zip(own, record_batch(block, "binary", own).columns, strict=True))
        if len(own) < len(names):
            binary = None if block.wire.binary is None else np.frombuffer(block.wire.binary, dtype=np.uint8) != 0
            columns |= self._of_payloads(names, record_batch(block, "binary", ["payload"]).column(0), binary)
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)

    def _batch_of_events(self, names: Sequence[str], events: list[Event]) -> pa.RecordBatch:
        payloads = pa.array([event.raw for event in events], pa.binary())
        columns = self._of_payloads(names, payloads, np.array([event.binary for event in events]))
        for name in names:
            if name not in columns:
                values = [list(one.headers.items()) if name == "headers" else getattr(one, name) for one in events]
                columns[name] = pa.array(values, self._schema.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)

    def _of_payloads(
        self, names: Sequence[str], payloads: pa.BinaryArray, binary: NDArray[np.bool_] | None
    ) -> dict[str, pa.Array]:
        """Returns the columns that are made of payloads."""
        columns = dict(zip(("payload", "payload_bytes"), text_and_bytes(payloads, binary), strict=True))
        if set(self._typed.schema.names).isdisjoint(names):
            return columns
        return columns | dict(zip(self._typed.schema.names, self._typed.of(payloads, binary), strict=True))


class CheckedFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The sealed files of a query.

    DuckDB compares no checksums itself, so it gets only bytes whose checksums were compared.
    """

    protocol = "penstock"
    cachable = False

    def __init__(self, failures: list[Exception]) -> None:
        super().__init__()
        self._failures = failures
        self._files: list[SealedBytes] = []

    def add(self, file: SealedBytes) -> str:
        """Adds a file and returns the name under which a query finds it."""
        self._files.append(file)
        return f"{self.protocol}://{len(self._files) - 1}"

    def glob(self, path: str, **_: object) -> list[str]:
        return [path]

    def info(self, path: str, **_: object) -> dict[str, object]:
        return {"name": path, "size": self._named(path).size, "type": "file"}

    def modified(self, path: str) -> datetime:
        return _BEGIN

    def _open(self, path: str, mode: str = "rb", **_: object) -> _SealedReader:
        return _SealedReader(self._named(path), self._failures)

    def _named(self, path: str) -> SealedBytes:
        return self._files[int(path.removeprefix(f"{self.protocol}://"))]


class _SealedReader(io.RawIOBase):
    """A sealed file for DuckDB. Several threads may use it, each with a place of its own."""

    def __init__(self, file: SealedBytes, failures: list[Exception]) -> None:
        super().__init__()
        self._file = file
        self._failures = failures
        self._place = threading.local()
        with self._noting():
            self._opened = file.open()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place.at = offset + (0, self.tell(), self._file.size)[whence]
        return self.tell()

    def tell(self) -> int:
        at: int = getattr(self._place, "at", 0)
        return at

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        with self._noting():
            found = self._file.read(self._opened, at, self._file.size if size is None or size < 0 else at + size)
        self._place.at = at + len(found)
        return found

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Notes an error of ours, which DuckDB's own error would hide."""
        try:
            yield
        except Exception as error:
            self._failures.append(error)
            raise


class Scanner(NamedTuple):
    """The interface that DuckDB asks of a dataset."""

    reader: pa.RecordBatchReader

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns the rows, some at a time."""
        return self.reader


# ── What a filter says of the rows that pass ──


Condition = tuple[str, str, list[Any]]
"""A column, `is_in`, `from` or `to`, and the values to compare with. Times are microseconds since 1970."""
_COMPARISONS = {"equal": "is_in", "greater": "from", "greater_equal": "from", "less": "to", "less_equal": "to"}
_PART = re.compile(r"(call|end|field_ref|nested_field_ref|literal|options): '(.*)'")
_Tree = tuple[str, Any]
"""An expression's type, and its name, its value, or the function and its arguments."""


def implied_filters(filter: pc.Expression) -> list[Condition]:
    """Returns conditions that hold for every row that passes a filter. The filter may have further conditions.

    Arrow does not show the parts of an expression. The serialised form of an expression is an Arrow file: the compared
    values are its columns, and its calls are lines of metadata, `call: 'equal'`, each before its arguments.
    """
    (serialised,) = filter.__reduce__()[1]
    with pa.ipc.open_file(serialised) as file:
        scalars = [column[0] for column in file.get_batch(0).columns]
        lines = file.schema.to_string(truncate_metadata=False, show_field_metadata=False).splitlines()
    try:
        values = [one.value if isinstance(one, pa.TimestampScalar) else one.as_py() for one in scalars]
    except (OverflowError, ValueError):  # a value is a time that Python has no date for
        return []
    parts = iter([(found[1], found[2]) for line in lines if (found := _PART.fullmatch(line))])
    return list(_implied(_tree(parts, values)))


def _tree(parts: Iterator[tuple[str, str]], values: Sequence[object]) -> _Tree:
    part, text = next(parts)
    if part in ("literal", "options"):
        return part, values[int(text)]
    if part != "call":
        return part, text
    return "call", (text, list(iter(lambda: _tree(parts, values), ("end", text))))


def _implied(tree: _Tree) -> Iterator[Condition]:
    match tree:
        case "call", ("and_kleene", [one, other]):
            yield from _implied(one)
            yield from _implied(other)
        case "call", ("if_else", [("call", ("is_valid", _)), found, ("literal", None)]):  # how DuckDB writes `in`
            yield from _implied(found)
        case "call", ("is_in", [("field_ref", column), ("options", {"value_set": [_, *_] as values})]):
            if None not in values:
                yield column, "is_in", values
        case "call", (compare, [("field_ref", column), ("literal", value)]) if compare in _COMPARISONS:
            if value is not None:
                yield column, _COMPARISONS[compare], [value]


def _allowed_values(conditions: list[Condition], column: str) -> frozenset[str] | None:
    """Returns the values that a column may have; None when they are unknown."""
    sets = [frozenset(values) for name, compare, values in conditions if (name, compare) == (column, "is_in")]
    return frozenset.intersection(*sets) if sets else None

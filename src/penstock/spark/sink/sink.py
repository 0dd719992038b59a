"""Topics and queues as targets: tasks stage blocks, the driver's commit publishes them at once.

The commit is one transaction of the journal, together with a mark that says which batch it was. A batch that is run
again, because whatever was killed before Spark could note its success, finds its mark and changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.entity.staging.declared import load_gates, names_in, with_installed
from penstock.errors import ConfigError
from penstock.journal.storage.from_arrow import BLOCK_PAYLOAD, blocks
from penstock.journal.storage.wire import Wire
from penstock.limits import MAX_KEY_BYTES
from penstock.spark.sink.layout import SinkLayout
from penstock.spark.sink.staging import Publication, StagedShare, Staging
from penstock.spark.sink.writers import TaskShare
from penstock.spark.source.options import WriteOptions, write_options
from penstock.spark.source.stores import journal_id
from penstock.transfer.objects import StagingArea, area_of

_GATHER_ROWS = 65_536


def encoded(batches: Iterator[pa.RecordBatch], layout: SinkLayout) -> Iterator[tuple[str, Wire]]:
    """The blocks of a task's rows; small record batches are gathered until they make a block worth its while."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        events = layout.events(batch)
        held.append(events)
        rows += events.num_rows
        size += events.column("payload").nbytes
        if size >= BLOCK_PAYLOAD or rows >= _GATHER_ROWS:
            yield from blocks(_whole(held))
            held, rows, size = [], 0, 0
    if held:
        yield from blocks(_whole(held))


def _whole(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def mark_name(*parts: str) -> str:
    """The name under which a journal remembers what a query or application has written."""
    name = ":".join(("spark", *parts))
    if len(name.encode()) > MAX_KEY_BYTES:
        name = f"spark:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def _staging(options: WriteOptions) -> Staging:
    place, given = options.place, options.staging
    if given is not None:
        return Staging(place, StagingArea(given))
    return Staging(place, None if place.served else area_of(place.url))


def _planned(options: WriteOptions, staging: Staging, *, again: bool) -> tuple[str | None, tuple[str, ...]]:
    """The id of the journal that is written, None when there is none yet, and the gates that the commit itself asks.

    ConfigError when it cannot be written so. `again`: it may have been planned before, by another process.
    """
    place = options.place
    if place.server is None:
        return journal_id(place.url), _own_gates(options)
    from penstock.spark.served.connection import check_may_write, check_same

    about = check_may_write(place.server, "this query", known=again)
    if place.writer is not None:
        check_same(place.server, about.id, journal_id(place.url))
    area = staging.area
    if area is not None and area.url not in about.staging:
        raise ConfigError(
            f"{place.server.url} fetches nothing from {area.url}, where this query would leave its blocks, but "
            f"from {', '.join(about.staging) or 'nowhere'}: start it with `penstock serve --staging {area.url}`"
        )
    unknown = next((name for name in options.gates if name not in names_in(about.gates)), None)
    if unknown is not None:
        raise ConfigError(
            f"{place.server.url} does not ask the gate {unknown}, and gates are asked where a journal is written: "
            f"start it with `penstock serve --gates {unknown}`"
        )
    return about.id, ()


def _own_gates(options: WriteOptions) -> tuple[str, ...]:
    """The names of all gates that see rows of a write to a local journal; ConfigError when one cannot be had."""
    target = options.topic
    found = load_gates(with_installed(options.gates))
    for name in options.gates:
        if target is not None and target not in found[name].topics:
            raise ConfigError(f"the gate {name} sees {', '.join(found[name].topics)}, and this writes to {target}")
    return tuple(name for name, one in found.items() if target is None or target in one.topics)


class TopicTarget:
    """A topic or a queue that a frame is written to."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, again: bool) -> None:
        """ConfigError when the frame cannot be written. `again`: as for `_planned`."""
        options = write_options(given)
        self.app, self.version = options.app, options.version or 0
        self.staging = _staging(options)
        journal, gates = _planned(options, self.staging, again=again)
        self.options = msgspec.structs.replace(options, journal=journal, gates=gates)
        self.layout = SinkLayout.of(schema, self.options)

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> StagedShare:
        return self.staging.stage(encoded(batches, self.layout), job, number)

    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> None:
        options, staged = self.options, [share for share in shares if isinstance(share, StagedShare)]
        if any(share.events for share in staged) or self.app is not None:
            mark = None if by is None else mark_name(*by, options.topic or "")
            queue = options.topic if options.queue else None
            self.staging.publish(staged, Publication(options.journal, mark, version, queue, options.gates))

    def sweep(self, job: str, through: int | None = None) -> None:
        self.staging.sweep(job, through)

"""What a projected stream remembers between batches: the states of its entities, kept in the journal.

    p topic name@query version key      like a saved state of the projection, but of one streaming query

A task loads the entities of its rows, folds what is new to them, and saves them in one commit before its rows go on. A
saved state says which position it has reached: whatever part of a batch is run again changes nothing and gives the same
rows. A stream over a whole topic from its beginning also saves the states as the projection's own snapshots, which
`Topic.project` then begins with.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from penstock.api import LocalJournal, local
from penstock.entity.projection.projection import Declared
from penstock.entity.projection.snapshot import Saved, load_saved, pack_state, save, unpack_state
from penstock.errors import ConfigError, PenstockError, TopicDropped
from penstock.journal.commit.catalog import load_record, load_state
from penstock.journal.commit.commit import Commit
from penstock.spark.projection.fold import Folded, emit, fold_sorted
from penstock.spark.projection.shipping import Shipped
from penstock.spark.projection.states import StateRows
from penstock.spark.source.options import read_options
from penstock.spark.source.place import absolute_url, is_served
from penstock.spark.source.stores import check_reach, journal_id, reading, writing
from penstock.surface.journal import Journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATELESS = ("Project", "SubqueryAlias", "EventTimeWatermark")


class StreamFold:
    """The task of a streaming projection."""

    def __init__(self, shipped: Shipped, schema: StructType, url: str, topic: str, whole: bool) -> None:
        self.shipped = shipped
        self.schema = schema
        self.url = url
        self.topic = topic
        self.whole = whole
        self.journal = journal_id(url)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        table = table.take(pc.sort_indices(table, [("key", "ascending"), ("seq", "ascending")])).combine_chunks()
        declared = self._declared()
        with reading(self.url, self.journal)._engine.read() as snap:
            record = load_record(snap, self.topic)
            if record is None:
                raise ConfigError(f"there is no topic {self.topic!r} in {self.url} to keep a stream's states with")

            def load(key: str) -> Folded:
                return self._begun(key, load_saved(snap, record.number, declared, key), declared)

            folded = list(fold_sorted(iter(table.to_batches()), self.shipped, load))
        self._keep(record.number, declared, folded)
        yield from emit(iter(folded), StateRows(self.schema))

    def _declared(self) -> Declared:
        """The projection as this query's states are filed: by the query's id, which restarts do not change."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if not query:
            raise PenstockError("Spark did not tell the task which streaming query it works for")
        own = self.shipped.projection.__projection__
        declared = Declared(f"{own.name}@{query}", own.version, [])
        declared.fingerprint = own.fingerprint
        return declared

    def _begun(self, key: str, saved: Saved | None, declared: Declared) -> Folded:
        projection = self.shipped.projection
        if saved is None:
            return Folded(key, projection())
        if saved.fingerprint != declared.fingerprint:
            raise ConfigError(
                f"projection {projection.__name__} has other fields or handlers than when this stream began: "
                "start it with a new checkpoint"
            )
        try:
            return Folded(key, unpack_state(projection, saved.state), saved.generation, saved.first)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the state of {key!r} that this stream has saved cannot be read by projection {projection.__name__} "
                f"any more ({error}): start it with a new checkpoint"
            ) from error

    def _keep(self, number: int, declared: Declared, folded: list[Folded]) -> None:
        own = self.shipped.projection.__projection__
        packed = [(one, pack_state(one.state)) for one in folded]

        def apply(commit: Commit) -> None:
            if not commit.is_current(self.topic, number):
                raise TopicDropped(f"topic {self.topic!r} was dropped while a stream kept its states with it")
            state = load_state(commit.tx, number, self.topic)
            for one, body in packed:
                saved = Saved(declared.fingerprint, one.generation, one.first, 0, body)
                save(commit.tx, number, declared, one.key, saved)
                if self.whole and not state.compacted and one.first > state.trimmed:
                    save(commit.tx, number, own, one.key, saved)

        with writing(self.url, self.journal) as journal:
            journal.run(apply)


def _url_of(journal: LocalJournal) -> str:
    return f"{journal._engine.scheme}:{journal._engine.location}"


def stream_fold(events: DataFrame, shipped: Shipped, schema: StructType, journal: Journal | str | None) -> StreamFold:
    """The task of a stream, with the journal found in what the frame reads, or given."""
    if getattr(events, "_jdf", None) is None:
        raise ConfigError(
            "a stream over Spark Connect (sc://) cannot be projected: its states would be kept by tasks that know "
            "nothing of this program's journal. Project in a program with a session of its own, or project a batch"
        )
    source = _source_of(events)
    if journal is not None:
        url = journal if isinstance(journal, str) else _url_of(local(journal, "a projected stream"))
        url = absolute_url(url)
    elif source is not None:
        url = source[0]
    else:
        raise ConfigError(
            "a projected stream remembers its states in a journal: this frame does not read one directly, "
            "so name it: project(events, Projection, journal=…)"
        )
    if is_served(url):
        raise ConfigError(
            "a projected stream's states are kept in a journal that its tasks open themselves, not in a served one "
            f"({url}): name one that every task can reach: project(events, Projection, journal=…)"
        )
    check_reach(url)
    if source is not None and source[0] == url:
        return StreamFold(shipped, schema, url, source[1], source[2])
    own = shipped.projection.__projection__
    topic = f"states-{own.name}"
    if not topic.replace("-", "").replace(".", "").replace("_", "").isalnum() or not topic.isascii():
        topic = f"states-{zlib.crc32(own.name.encode()):08x}"
    with writing(url) as opened:
        opened.topic(topic).configure()
    return StreamFold(shipped, schema, url, topic, False)


def _source_of(events: DataFrame) -> tuple[str, str, bool] | None:
    """The journal and topic a stream reads, and whether the frame is that topic, whole and from its beginning."""
    plan = getattr(events, "_jdf", None)
    if plan is None:  # Spark Connect: the plan is elsewhere
        return None
    top = node = plan.queryExecution().analyzed()
    stateless = True
    while node.children().size() == 1:
        stateless = stateless and node.nodeName() in _STATELESS
        node = node.children().apply(0)
    if node.children().size() or not node.getClass().getSimpleName().startswith("StreamingRelationV2"):
        return None
    if node.sourceName() != "penstock":
        return None
    options = read_options(_settled(node))
    if len(options.topics) != 1:
        raise ConfigError("project one topic at a time: positions of several topics are not in one order")
    attributes = {_name(attribute): attribute.exprId().id() for attribute in _each(node.output())}
    kept = {_name(attribute): attribute.exprId().id() for attribute in _each(top.output())}
    same = all(kept.get(name) == attributes.get(name) for name in ("key", "seq", "kind", "payload"))
    whole = stateless and same and options.start == "earliest" and options.start_ms is None
    return options.place.url, options.topics[0], whole


def _settled(node: Any) -> dict[str, str]:
    from penstock.spark.source.options import settled

    given = node.extraOptions()
    return settled({str(name): str(given.get(name)) for name in given.keySet().toArray()})


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _name(attribute: Any) -> str:
    return str(attribute.name())

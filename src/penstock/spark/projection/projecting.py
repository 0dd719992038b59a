"""`project` and `rebuild`: the state of every entity, folded on Spark by the class that also runs in-process.

Of a projected stream, tasks load the states of their rows' entities, fold what is new, and save before rows go on. A
saved state says which position it has reached: whatever part of a batch is run again changes nothing and gives the same
rows. A stream over a whole topic from its beginning also saves the states as the projection's own snapshots, which
`Topic.project` then begins with. States lie in a journal that tasks open themselves, or at a server.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import StructType

from penstock.api import local, open_local
from penstock.core.entity.projection import EVENT, Projection, check_projection, folder_of
from penstock.core.entity.states import (
    FiledStates,
    RebuildReport,
    StateSaving,
    StreamedState,
    StreamedStates,
    pack_state,
    unpack_state,
)
from penstock.core.local.backend import LocalJournal
from penstock.core.names import check_name
from penstock.core.protocol.bulk import FIND_STATES, MOST_STATES, SAVE_STATES, SaveStatesRequest, StatesRequest
from penstock.core.protocol.fields import SettingsFields
from penstock.core.protocol.topics import CONFIGURE_TOPIC
from penstock.core.surface.journal import Journal
from penstock.core.units import Progress
from penstock.errors import ConfigError, PenstockError
from penstock.remote.topic import RemoteStateSaving, shares
from penstock.spark.backfill import followed_options
from penstock.spark.history import read_topic
from penstock.spark.journals import check_reach, check_same, journal_id, patiently, reading, writing
from penstock.spark.options import JournalLocation, location_of_journal, read_options, resolved
from penstock.spark.projection.fold import (
    NEEDED,
    OPTIONAL,
    STORED,
    BatchFold,
    Folded,
    emit,
    fold_sorted,
    in_columns,
)
from penstock.spark.projection.shipping import Shipped, result_schema
from penstock.spark.served import ask_server, check_may_write, client_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Map = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: Map, schema: StructType) -> DataFrame:
    """Returns a frame of what a function makes of each partition's record batches."""
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
    """Returns the state of every entity of a frame of events: `key`, `generation` (its newest position), `state` (a
    struct).

    The frame has the columns of a topic, or at least key, seq, kind and payload; the result equals `Topic.project` for
    each key. On a stream, every batch gives its changed entities; the states between batches are in the journal that
    the stream reads, or in the journal named here.
    """
    shipped, schema = Shipped(projection), result_schema(projection)
    if events.isStreaming:
        rows = events.select(*_columns(events, projection))
        fold = stream_fold(events, shipped, schema, journal)
        return map_in_arrow(rows.repartition("key"), fold, schema)
    return map_in_arrow(ordered_events(events, projection), BatchFold(shipped, schema), schema)


def ordered_events(events: DataFrame, projection: type[Projection]) -> DataFrame:
    """Returns the columns of events that a projection needs, with the events of a key together and in order."""
    rows = events.select(*_columns(events, projection))
    return rows.repartition("key").sortWithinPartitions("key", "seq")


def _columns(events: DataFrame, projection: type[Projection]) -> list[str]:
    """Returns the columns that have to travel: all there are when a handler wants the event itself."""
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
    """Folds every entity of a topic on Spark and saves the states, like `topic.rebuild`, with tasks.

    It folds the events that exist when it begins; `topic.project` continues from the saved states with newer events.
    Saved states, of all versions of the projection, are removed when all are folded. Without `master`, the active
    session is used, or a session on this machine. `progress` gets the saved and the total number of states.
    """
    from penstock.spark.startup.sessions import session

    check_name(topic)
    check_projection(projection)
    with _opened(journal, topic, projection) as (location, saving):
        if not saving.of.through:
            return RebuildReport(0, 0, 0)
        spark = session("penstock rebuild") if master is None else session("penstock rebuild", master=master)
        check_reach(location.url, spark.conf.get("spark.master"))
        token = {} if location.token is None else {"token": location.token.reveal()}
        events = read_topic(spark, location.url, topic, endingOffsets=saving.of.through, **token)
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


def _told(rows: Iterator[R], total: int, progress: Progress) -> Iterator[R]:
    for count, row in enumerate(rows, 1):
        yield row
        if count % 1000 == 0 or count == total:
            progress(count, total)


@contextmanager
def _opened(
    journal: Journal | str, topic: str, projection: type[Projection]
) -> Iterator[tuple[JournalLocation, StateSaving | RemoteStateSaving]]:
    """Returns the journal from which events are read, and the journal to which states go."""
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
    return StateSaving(journal.backend.log(topic), journal.backend.entities.states, projection)


# ── streams ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class LoadedStates(NamedTuple):
    """The states of some entities."""

    states: Mapping[str, StreamedState]
    filed: FiledStates | None
    """Of which projection the query's states are; None when it has none."""


def keeper_of(location: JournalLocation) -> StateKeeper:
    """Returns the keeper of a journal's states; ConfigError when they cannot be kept there.

    Where a server writes the journal, it is asked for what it has written as well: a reader of its own may be behind.
    """
    if location.server is None:
        return StateKeeper(location, journal_id(location.url))
    about = check_may_write(location.server, "a projected stream, which keeps its states,", role="admin")
    return StateKeeper(location.server, about.id)


class StateKeeper:
    """A keeper of the states of streams in a task: it loads and saves them in a journal that it opens, or at a server.

    Every request may be repeated.
    """

    def __init__(self, location: JournalLocation, id: str | None) -> None:
        self.location = location
        self.id = id

    def make_topic(self, name: str) -> None:
        """Makes the topic that states are kept with, where that is none of the stream's own."""
        if self.location.served:
            ask_server(self.location, CONFIGURE_TOPIC, name, request=SettingsFields())
            return
        with writing(self.location.url, self.id) as journal:
            journal.topic(name).configure()
            self.id = journal.id

    def load(self, wanted: StreamedStates, keys: Sequence[str]) -> LoadedStates:
        """Returns the states of entities that have one."""
        at = 0
        found: dict[str, StreamedState] = {}
        while True:
            asked = StatesRequest(wanted.name, wanted.version, wanted.query, list(keys[at : at + MOST_STATES]))
            if self.location.served:
                answer = ask_server(self.location, FIND_STATES, wanted.topic, request=asked)
            else:
                answer = reading(self.location.url, self.id).backend.call(FIND_STATES, wanted.topic, request=asked)
            check_same(self.location, answer.journal, self.id)
            at += answer.found
            found.update((one.key, one) for one in answer.states)
            if at >= len(keys):
                return LoadedStates(found, answer.filed)

    def save(self, wanted: StreamedStates, states: Sequence[StreamedState], *, whole: bool) -> None:
        """Stores states; raises PositionTrimmed when they were folded from a dropped topic."""
        for some in shares(states):
            asked = SaveStatesRequest(self.id or "", wanted.name, wanted.version, wanted.query, some, whole)
            if self.location.served:
                ask_server(self.location, SAVE_STATES, wanted.topic, request=asked)
                continue
            with writing(self.location.url, self.id) as journal:
                journal.backend.call(SAVE_STATES, wanted.topic, request=asked)


_planned: ContextVar[list[StreamFold] | None] = ContextVar("projected streams that are planned", default=None)
_STATELESS = ("Project", "SubqueryAlias", "EventTimeWatermark")


class StreamFold:
    """The task of a streaming projection."""

    def __init__(
        self,
        shipped: Shipped,
        schema: StructType,
        keeper: StateKeeper,
        topic: str,
        *,
        whole: bool,
    ) -> None:
        self.shipped = shipped
        self.schema = schema
        self.keeper = keeper
        self.topic = topic
        self.whole = whole

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        table = table.take(pc.sort_indices(table, [("key", "ascending"), ("seq", "ascending")])).combine_chunks()
        wanted = self.wanted(_query_of_task())
        keys = [key for key in pc.unique(table.column("key")).to_pylist() if key is not None]
        found = self.keeper.load(wanted, keys)
        self.check(found)

        def load(key: str) -> Folded:
            return self._begun(key, found.states.get(key))

        folded = list(fold_sorted(iter(table.to_batches()), self.shipped, load))
        fingerprint = self.shipped.projection.__projection__.fingerprint
        states = [
            StreamedState(one.key, fingerprint, one.generation, one.first, pack_state(one.state)) for one in folded
        ]
        self.keeper.save(wanted, states, whole=self.whole)
        yield from emit(iter(folded), in_columns(self.schema))

    def wanted(self, query: str) -> StreamedStates:
        """Returns the states of a query."""
        own = self.shipped.projection.__projection__
        return StreamedStates(self.topic, own.name, own.version, query)

    def check(self, found: LoadedStates) -> None:
        """Raises ConfigError when a query's saved states are of another projection."""
        own, filed = self.shipped.projection.__projection__, found.filed
        if filed is None or (filed.version, filed.fingerprint) == (own.version, own.fingerprint):
            return
        name = self.shipped.projection.__name__
        if filed.version != own.version:
            said = f"is of version {own.version}, and the states that this stream has saved are of {filed.version}"
        else:
            said = "has other fields or handlers than when this stream began"
        raise ConfigError(f"projection {name} {said}: start it with a new checkpoint")

    def _begun(self, key: str, saved: StreamedState | None) -> Folded:
        projection = self.shipped.projection
        if saved is None:
            return Folded(key, projection())
        try:
            return Folded(key, unpack_state(projection, saved.state), saved.generation, saved.first)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the state of {key!r} that this stream has saved cannot be read by projection {projection.__name__} "
                f"any more ({error}): start it with a new checkpoint"
            ) from error


def _query_of_task() -> str:
    """Returns the id of the streaming query that this task works for; restarts do not change it."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if not query:
        raise PenstockError("Spark did not tell the task which streaming query it works for")
    return query


@contextmanager
def planned_folds() -> Iterator[list[StreamFold]]:
    """Gathers the projected streams that are made inside, for those who check them before they run."""
    found: list[StreamFold] = []
    token = _planned.set(found)
    try:
        yield found
    finally:
        _planned.reset(token)


def stream_fold(events: DataFrame, shipped: Shipped, schema: StructType, journal: Journal | str | None) -> StreamFold:
    """Returns the task of a stream, with the journal found in what the frame reads, or given."""
    fold = _fold_of(events, shipped, schema, journal)
    planned = _planned.get()
    if planned is not None:
        planned.append(fold)
    return fold


def _fold_of(events: DataFrame, shipped: Shipped, schema: StructType, journal: Journal | str | None) -> StreamFold:
    source = _source_of(events)
    location = source.location if source is not None else None
    if journal is not None:
        named = location_of_journal(journal, "a projected stream")
        location = location if location is not None and named.url == location.url and named.token is None else named
    if location is None:
        raise ConfigError(
            "a projected stream remembers its states in a journal: this frame does not read one directly, "
            "so name it: project(events, Projection, journal=…)"
        )
    check_reach(location.url)
    keeper = keeper_of(location)
    if source is not None and source.location.url == location.url:
        topic, whole = source.topic, source.whole
    else:
        topic, whole = _states_name(shipped.projection.__projection__.name), False
        if _planned.get() is None:  # else nothing is to be changed
            keeper.make_topic(topic)
    return StreamFold(shipped, schema, keeper, topic, whole=whole)


def _states_name(projection: str) -> str:
    """Returns the topic that states are kept with where that is none of the stream's own."""
    topic = f"states-{projection}"
    if topic.isascii() and topic.replace("-", "").replace(".", "").replace("_", "").isalnum():
        return topic
    return f"states-{zlib.crc32(projection.encode()):08x}"


class FollowedTopic(NamedTuple):
    """The topic that a stream reads: a topic, and whether the frame is that topic, whole and from its beginning."""

    location: JournalLocation
    topic: str
    whole: bool


def _source_of(events: DataFrame) -> FollowedTopic | None:
    """Returns the topic that a stream reads; None when it reads something else as well, or no topic."""
    plan = getattr(events, "_jdf", None)
    found = _source_over_connect(events) if plan is None else _source_here(plan.queryExecution().analyzed())
    if found is None:
        return None
    given, same = found
    options = read_options(resolved(given))
    if len(options.topics) != 1:
        raise ConfigError("project one topic at a time: positions of several topics are not in one order")
    whole = same and options.start == "earliest" and options.start_ms is None
    whole = whole and options.fail_on_data_loss  # else it may leave events out, of a restored backup
    whole = whole and not {"kinds", "keys", "tags", "where", "payloadschema"} & options.given
    return FollowedTopic(options.location, options.topics[0], whole)


def _source_here(top: Any) -> tuple[Mapping[str, str], bool] | None:
    """Returns the options of the source that a plan of Spark's reads, and whether the plan leaves its events as they
    are.
    """
    node, same = top, True
    while node.children().size() == 1:
        same = same and node.nodeName() in _STATELESS
        node = node.children().apply(0)
    given = None if node.children().size() else _options_at(node)
    if given is None:
        return None
    known, kept = _attributes(node.output()), _attributes(top.output())
    return given, same and all(kept.get(name) == known.get(name) for name in NEEDED)


def _options_at(leaf: Any) -> Mapping[str, str] | None:
    """Returns the options of the source at the leaf of a plan; None when it is another."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingExecutionRelation":
        return followed_options(str(leaf.source().toString()))
    if not kind.startswith("StreamingRelationV2") or leaf.sourceName() != "penstock":
        return None
    given = leaf.extraOptions()
    return {str(name): str(given.get(name)) for name in given.keySet().toArray()}


def _source_over_connect(events: Any) -> tuple[Mapping[str, str], bool] | None:
    """Returns the same of a plan on its way to a server, which is a message of Spark Connect's protocol."""
    node, same = events._plan.to_proto(events.sparkSession.client).root, True
    while (kind := node.WhichOneof("rel_type")) != "read":
        inner = getattr(node, kind or "", None)
        if inner is None or not inner.DESCRIPTOR.fields_by_name.get("input"):
            return None
        if kind == "project":  # columns without another name are the source's own
            same = same and all(
                one.WhichOneof("expr_type") in ("unresolved_attribute", "unresolved_star") for one in inner.expressions
            )
        else:
            same = same and kind in ("subquery_alias", "with_watermark")
        node = inner.input
    source = node.read.data_source
    return (dict(source.options), same) if source.format == "penstock" else None


def _attributes(output: Any) -> dict[str, int]:
    """Columns of a plan, by which Spark tells one from another."""
    attributes = [output.apply(at) for at in range(output.size())]
    return {str(attribute.name()): attribute.exprId().id() for attribute in attributes}

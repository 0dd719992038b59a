"""A journal: the handle that a program holds, wherever the store is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Self, Unpack

from penstock.core import protocol
from penstock.core.consuming.handover import finish
from penstock.core.events import PayloadType, Receipt
from penstock.core.model.arguments import FilterArguments, PolicyArguments, query_fields, show_arguments
from penstock.core.model.query import EventQuery, check_follower
from penstock.core.names import (
    check_consumer,
    check_function,
    check_items,
    check_mapping,
    check_name,
    check_path,
    check_text,
    check_whole,
)
from penstock.core.queue.policy import QueuePolicy
from penstock.core.schema import PayloadT
from penstock.core.surface.topic import Topic
from penstock.errors import ConfigError, PolicyMismatch
from penstock.limits import SUBSCRIPTION_BUFFER

if TYPE_CHECKING:
    from types import UnionType

    import pyarrow as pa

    from penstock.core.consuming.subscription import JournalSubscription
    from penstock.core.entity.copying import CopyFormat, ExportReport, ImportReport
    from penstock.core.entity.fence import Fence
    from penstock.core.entity.outbox import Outbox
    from penstock.core.events import Event
    from penstock.core.journal.description import Description, Pressure
    from penstock.core.journal.moving import CopyReport
    from penstock.core.journal.upkeep.dropping import DropReport
    from penstock.core.model.calls import GatherRequest
    from penstock.core.observe.sample import Sample
    from penstock.core.queue.tasks.state import TaskState
    from penstock.core.surface.backend import Backend
    from penstock.core.surface.queue import Queue
    from penstock.core.surface.transaction import Transaction

USE_OUTBOX = "use outbox() for one atomic batch, or run the program where the store is"

# Modules that few programs use are imported on the call, so that command lines start faster.


class Journal:
    """A set of topics and queues in one store, with one commit order; `penstock.open` gives one.

    A journal is thread-safe. Close it, or use it as a context manager. A served journal has the same methods;
    operations that need the store itself (transactions, fences, backups, …) raise ConfigError there.
    """

    _backend: Backend
    """The interface beneath the journal's handles."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.clock = backend.clock

    def __repr__(self) -> str:
        return repr(self._backend)

    @property
    def id(self) -> str:
        """The store's own name, which is the same under every address of the store."""
        return self._backend.id

    @property
    def closed(self) -> bool:
        """True if the journal is closed."""
        return self._backend.closed

    # ── topics and queues ────────────────────────────────────────────────────────────────────────────────────────────
    def topic(self, name: str, *, payload: type[PayloadT] | UnionType | None = None) -> Topic[PayloadT]:
        """Returns a handle on a topic; the topic exists from its first append.

        `payload` is the type of the payloads (a msgspec Struct, a dataclass, a TypedDict, a pydantic model, a union of
        declared events). Payloads that are appended through this handle must fit the type, and payloads that are read
        are values of the type.
        """
        return Topic(self, check_name(name), None if payload is None else PayloadType(payload))

    def _topic_of(self, given: Topic | str) -> tuple[str, PayloadType | None]:
        """Returns the name and the payload type of a topic, from its name or its handle."""
        if isinstance(given, str):
            return check_name(given), None
        if not isinstance(given, Topic):
            raise ConfigError(f"a topic is named, or given by its handle, not by {given!r:.80}")
        if given.journal is not self:
            raise ConfigError(f"topic {given.name!r} belongs to another journal")
        return given.name, given._payload

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        return self._backend.call(protocol.topics.LIST_TOPICS)

    def drop_topic(self, name: str, force: bool = False) -> DropReport:
        """Removes a topic and everything that belongs to it. A later topic of this name is a new topic.

        Raises TopicInUse when the topic has cursors, sealed files or a queue; `force` drops it with them. Raises
        UnknownTopic for a missing topic. The topic is gone when this returns; its rows are cleared in the background,
        or by `maintain`.
        """
        query = protocol.topics.DropTopicQuery(force)
        return self._backend.call(protocol.topics.DROP_TOPIC, check_name(name), request=query)

    @show_arguments(PolicyArguments, QueuePolicy)
    def queue(
        self,
        name: str,
        *,
        create: bool = True,
        policy: Literal["match", "update"] = "match",
        payload: type[PayloadT] | UnionType | None = None,
        **options: Unpack[PolicyArguments],
    ) -> Queue[PayloadT]:
        """Returns a queue over the topic of this name, and makes a missing queue. See `QueuePolicy` for the options.

        With `create=False`, a missing queue raises UnknownQueue, which names the nearest queue.

        Options that differ from the stored policy raise PolicyMismatch, so that two programs that disagree find out.
        `policy="update"` changes the stored policy instead, except the mode, and records the change in the log and in
        `penstock.audit`.

        `payload` is the type of the messages' payloads, as in `topic`. The payload of a message that does not fit
        raises an error on access, which counts as a failure of the handler.
        """
        from penstock.core.surface.queue import Queue, update_policy, with_queue_names

        check_name(name, "queue")
        if policy not in ("match", "update"):
            raise ConfigError(f'policy is "match" or "update", not {policy!r:.80}')
        wanted = with_queue_names(options)
        try:
            found = self._backend.open_queue(self, name, wanted, create)
        except PolicyMismatch:
            if policy == "match":
                raise
            found = update_policy(self.queue(name), wanted)
        return found if payload is None else Queue(self, found._backend, PayloadType(payload))

    def queues(self) -> list[str]:
        """Returns the names of all queues, sorted."""
        from penstock.core.protocol.queues import LIST_QUEUES

        return self._backend.call(LIST_QUEUES)

    # ── across topics ────────────────────────────────────────────────────────────────────────────────────────────────
    @show_arguments(FilterArguments, None)
    def read(
        self,
        topics: str | Sequence[str] | None = None,
        after: Mapping[str, int] | None = None,
        limit: int | None = None,
        *,
        through: Mapping[str, int] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reverse: bool = False,
        **filter: Unpack[FilterArguments],
    ) -> Iterator[Event]:
        """Streams the events of several topics, from one state of the journal, in the order of recording.

        `topics` are names and patterns like "shop.*"; the default is all topics except penstock's own topics
        (`penstock.*`, a queue's results). `after` and `through` are positions by topic: a topic that is missing in
        `after` is read from its beginning, and a topic that is missing in `through` is not read. The other arguments
        are as in `Topic.read`. To continue later, keep `positions[event.topic] = event.seq`, or `commit` it.
        """
        events = EventQuery(
            **query_fields(filter),
            limit=limit,
            since=since,
            until=until,
            reverse=reverse,
        )
        from penstock.core.journal.across import across_query

        query = across_query(topics, after, through, events)
        return iter(()) if query.events.nothing else self._backend.read(query)

    @show_arguments(FilterArguments, None)
    def subscribe(
        self,
        topics: str | Sequence[str] | None = None,
        after: Mapping[str, int] | Literal["latest"] | None = None,
        *,
        buffer: int = SUBSCRIPTION_BUFFER,
        **filter: Unpack[FilterArguments],
    ) -> JournalSubscription:
        """Follows several topics: their history after positions, like `read`, then live events, without a gap or a
        duplicate.

        Matching topics that are made later are followed from their beginning. `after="latest"` follows only new events.
        """
        from penstock.core.journal.across import across_query

        events = check_follower(EventQuery(**query_fields(filter)))
        query = across_query(topics, None if after == "latest" else after, None, events)
        return self._backend.subscribe(query, check_whole(buffer, "buffer"), latest=after == "latest")

    def commit(self, consumer: str, positions: Mapping[str, int]) -> None:
        """Stores durably that a consumer has processed every event through a position in each topic, in one commit.

        The position is the consumer's cursor in each of these topics: compaction waits for it, and a smaller position
        changes nothing. Topics that were dropped meanwhile are ignored.
        """
        from penstock.core.journal.across import check_positions

        request = protocol.topics.PositionsDocument(check_positions(positions, "positions"))
        self._backend.call(protocol.topics.MOVE_CURSORS, check_consumer(consumer), request=request)

    def cursor(self, consumer: str) -> dict[str, int]:
        """Returns the position of a consumer in each topic where it has committed, for `read` and `subscribe`."""
        return self._backend.call(protocol.topics.READ_CURSORS, check_consumer(consumer))

    # ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def outbox(self) -> Outbox:
        """Gathers drafts for any topics locally and appends them as one atomic batch."""
        from penstock.core.entity.outbox import Outbox

        return Outbox(self)

    def transaction(self) -> Transaction:
        """Begins a transaction: all or nothing across topics and queues, with its own writes visible inside.

        In this process only.
        """
        from penstock.core.surface.transaction import Transaction

        return Transaction(self, self._backend.store("a transaction", USE_OUTBOX))

    def fence(self, *, exclusive: bool = True) -> Fence:
        """Opens a fence, which hides its events until it commits. With `exclusive`, no other caller appends meanwhile.

        In this process only.
        """
        return self._backend.store("a fence", USE_OUTBOX).entities.fences.open(exclusive=exclusive)

    def mark(self, name: str) -> int | None:
        """Returns the newest committed value of a mark (see `Transaction.set_mark`). In this process only."""
        instead = "marks belong to transactions, which run where the store is"
        return self._backend.store("a mark", instead).core.mark(check_consumer(name, "mark"))

    def correlated(self, correlation_id: str) -> Iterator[Event]:
        """Yields every event of a correlation, of all topics, in the order of recording."""
        return self._backend.correlated(correlation_id)

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        columns: Mapping[str, str | type[object]] | None = None,
    ) -> pa.Table:
        """Returns the answer to an SQL query over topics, as an Arrow table: `select kind, count(*) from orders group
        by 1`.

        Topics are views by name (`"shop.orders"`). `parameters` are the values of `?`, or by name of `$key`. `columns`
        makes columns of payload fields: `{"orders": Order}` takes the fields of a type, `{"orders": "total DOUBLE"}`
        takes the named fields. DuckDB runs the query in this process. The whole query sees one state of the journal.
        The table belongs to the caller, and nothing stays open.
        """
        from penstock.sql import run_sql

        return run_sql(self._backend, query, parameters, check_mapping(columns, "columns"))

    def graph(self, correlation_id: str) -> str:
        """Returns the causes and effects within a correlation, as a Mermaid flowchart."""
        from penstock.core.entity.causality import mermaid

        return mermaid(self.correlated(correlation_id))

    def push_together(self, calls: GatherRequest) -> list[Receipt]:
        """Pushes calls of tasks in one commit; `Tasks.gather` makes the request."""
        from penstock.core.model.calls import GatherRequest

        if not isinstance(calls, GatherRequest):
            raise ConfigError(f"calls are what Tasks.gather makes, not {calls!r:.80}")
        return self._backend.push_together(calls)

    def task(self, id: str) -> TaskState | None:
        """Returns the state of a task's call by its receipt's id: waiting, running, done, failed or dead, with its
        result or error, attempts and times. Returns None for an unknown call, or when its result is no longer kept.
        """
        from penstock.core.queue.tasks.looking import with_result

        found = self._backend.find(protocol.queues.READ_TASK, check_text(id, "id"))
        return None if found is None else with_result(found)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def pressure(self) -> Pressure:
        """Returns the number of submissions that wait for the writer."""
        return self._backend.pressure()

    def describe(self) -> Description:
        """Returns the description of this journal: engine, place, size, durability, topics, queues, gates."""
        return self._backend.describe()

    def stats(self) -> Sample:
        """Returns every topic and queue with its backlogs and lags, at one time; for a served journal also with
        rates.
        """
        return self._backend.stats()

    def flush(self) -> None:
        """Waits until everything submitted so far is on disk, whatever the durability."""
        self._backend.flush()

    def maintain(self) -> None:
        """Does all housekeeping now: merges small blocks, applies retention.

        Housekeeping also runs in the background.
        """
        self._backend.call(protocol.topics.MAINTAIN_JOURNAL)

    # ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy while the journal is in use; the same engine opens it.

        A journal in a bucket takes a path, or a url in the same bucket. In this process only.
        """
        store = self._backend.store("a backup", "run `penstock backup` where the store is")
        store.open_core().engine.backup(check_path(destination, "destination"))

    def copy_to(
        self,
        url: str | os.PathLike[str],
        *,
        store_options: Mapping[str, object] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CopyReport:
        """Copies the whole journal into a new place on any engine, while it is in use, and compares every row.

        The copy has all positions, ids, cursors, queues, snapshots and marks, in the state at its end. An interrupted
        copy continues when it is called again. `progress` gets the copied and the total bytes. In this process only.
        """
        from penstock.core.engine.contract import ObjectOptions
        from penstock.core.engine.url import open_engine
        from penstock.core.journal.moving import copy_store

        core = self._backend.store("a copy", "run `penstock copy` where the store is").open_core()
        tell = None if progress is None else check_function(progress, "progress")
        target = open_engine(url, options=None if store_options is None else ObjectOptions(store=store_options))
        try:
            return copy_store(core.engine, self.id, target, tell)
        finally:
            target.close()

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        format: CopyFormat | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ExportReport:
        """Writes topics (default: all) into a folder, as JSON Lines or Parquet; a second run continues.

        A path that ends with .jsonl, .parquet, .arrow or .csv is a file for one named topic. `progress` is called now
        and then with the written and the total number of events. In this process only.
        """
        from penstock.core.entity.copying import export

        store = self._backend.store("an export", "run `penstock export` where the store is")
        named = None if topics is None else [check_name(one) for one in check_items(topics, "topics")]
        tell = None if progress is None else check_function(progress, "progress")
        return export(store.open_core(), check_path(path), topics=named, format=format, progress=tell)

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        start_over: bool = False,
    ) -> ImportReport:
        """Reads an export into topics of the same names, with the same positions, ids, times and causes.

        The events of a file go to the one named topic, which may have another name. Events that exist already, from an
        interrupted import, are skipped. With `start_over`, a name whose topic was dropped gets its positions from the
        export, although they were assigned before. In this process only.
        """
        from penstock.core.entity.copying import import_

        store = self._backend.store("an import", "run `penstock import` where the store is")
        named = None if topics is None else [check_name(one) for one in check_items(topics, "topics")]
        tell = None if progress is None else check_function(progress, "progress")
        return import_(store.open_core(), check_path(path), topics=named, progress=tell, start_over=start_over)

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def close(self) -> None:
        """Stops workers, commits pending submissions, and releases the store. A second call does nothing.

        The failure of a worker is raised here, after everything is closed.
        """
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Closing waits for workers, whose handlers may run in this event loop.
        await finish(self.close)

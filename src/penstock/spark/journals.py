"""Journals in Spark's processes: planners, tasks and commits each run in a process of their own.

A worker process runs many tasks and commits, so it keeps journals open: for reading, and for writing where this
excludes no other process. Processes are forked from one another, and engines refuse use by a child, so the key has the
process id. A process that Spark ends, or that is killed, leaves nothing behind, because an open journal holds nothing
between two commits.

Work that is planned in one process runs in another process, perhaps on another machine. So every share of the work has
the journal's id, and a process that finds another journal under the same name refuses.

Planning asks a few small questions, operations that a store here and a server answer alike; tasks fetch blocks and
decode them where they run.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api import open_local
from penstock.core.engine.contract import ObjectEngine, ObjectOptions
from penstock.core.engine.url import parse_url
from penstock.core.entity.gate import add_gates, load_gates
from penstock.core.journal.blocks import Block
from penstock.core.journal.commit import Commit
from penstock.core.journal.cursors import move_cursor
from penstock.core.journal.reading import Bounds, TopicView
from penstock.core.journal.sealed.segments import SealedFiles
from penstock.core.local.backend import LocalJournal
from penstock.core.protocol.bulk import (
    FIND_CORRELATIONS,
    LIST_SEALED,
    MOST_IDS,
    MOST_RANGES,
    READ_CUTS,
    READ_ENDS,
    READ_SIZES,
    READ_SPANS,
    CutsQuery,
    RangeRequest,
    SealedQuery,
    SpansDocument,
    SpansRequest,
    TopicEnds,
    TopicsQuery,
    Wanted,
)
from penstock.core.protocol.operation import Operation
from penstock.core.protocol.topics import FIND_POSITION, READ_ACROSS, READ_TOPIC, AcrossRequest, PositionQuery
from penstock.errors import (
    Backpressure,
    ConfigError,
    Locked,
    NoStore,
    OutcomeUnknown,
    PenstockError,
    PositionTrimmed,
    StorageError,
    UnknownTopic,
)
from penstock.limits import SPARK_HOLD_SECONDS
from penstock.spark.options import JournalLocation, ReadOptions, is_served
from penstock.spark.startup.settings import MASTER_VARIABLE

_KEPT = 16
"""The journals that a process keeps open, for reading or for writing."""
TURN_SECONDS = 20.0
"""The time that a commit waits until another commit releases a journal in an object store: longer than opening
takes.
"""
_TURN_PAUSE = 0.1


PATIENCE = 60.0
"""The seconds to wait for a known server or store that does not answer."""
_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)

T = TypeVar("T")


def patiently(ask: Callable[[], T], patience: float | None = None) -> T:
    """Returns the result of `ask`; repeats the call while the server does not answer, or has no room.

    `ask` is also repeated when it may have succeeded, so a repetition must be harmless.
    """
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    tries = 0
    while True:
        try:
            return ask()
        except (StorageError, Backpressure) as error:
            if not passes(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
        tries += 1


def passes(error: StorageError | Backpressure) -> bool:
    """Returns True if a failed call may succeed later."""
    return isinstance(error, Backpressure | OutcomeUnknown) or error.retryable


class _OpenJournal(NamedTuple):
    journal: LocalJournal
    identity: tuple[int, int] | None


_kept: dict[tuple[int, str, bool], _OpenJournal] = {}
"""By process, url, and whether it is open for writing."""


def reading(url: str, id: str | None = None, *, newest: bool = False) -> LocalJournal:
    """Returns the journal, open for reading; it stays open for the next task of this process.

    `id` is the id of the journal of the plan; another journal raises ConfigError. With `id`, or with `newest`, the
    reader sees every earlier commit; a kept reader of a bucket may otherwise be a moment behind.
    """
    journal = _opened(url)
    if id is not None or newest:
        try:
            journal.backend.engine.catch_up()
        except ConfigError:
            if journal.backend.engine.usable():
                raise
            journal = _opened(url)  # in a bucket, too, a store may have been deleted and made again
    _check_same(journal, url, id)
    return journal


def _opened(url: str, *, write: bool = False) -> LocalJournal:
    slot = (os.getpid(), url, write)
    kept = _kept.get(slot)
    if kept is not None:
        usable = not kept.journal.closed and kept.journal.backend.engine.usable()
        if usable and kept.identity == _identity(kept.journal):
            return kept.journal
        del _kept[slot]
        with suppress(PenstockError):  # its file was replaced: a caller that needs the same journal gives its id
            kept.journal.close()
    for other in [other for other in _kept if other[0] != slot[0]]:
        del _kept[other]  # the parent's: not ours to close
    while len(_kept) >= _KEPT:
        _kept.pop(next(iter(_kept))).journal.close()
    journal = _opened_to_write(url) if write else open_local(url, read_only=True, options=_options(url))
    _kept[slot] = _OpenJournal(journal, _identity(journal))
    return journal


def release_journals() -> None:
    """Closes the journals that this process keeps open.

    A process that Spark ends, or that is killed, need not call it, because no commit is under way.
    """
    own = [slot for slot in _kept if slot[0] == os.getpid()]
    for slot in own:
        _kept.pop(slot).journal.close()


def _options(url: str) -> ObjectOptions | None:
    """Returns the options for an object store, in which a checkpoint keeps a task's tables even after compaction."""
    return ObjectOptions(hold=SPARK_HOLD_SECONDS) if parse_url(url).in_object_store else None


@contextmanager
def writing(url: str, id: str | None = None, gates: Sequence[str] = ()) -> Iterator[LocalJournal]:
    """Opens the journal for one change. `id` is as in `reading`; `gates` names the gates that see the rows.

    Only a SQLite journal stays open for the next change, because other processes can still write it; a change with
    gates has its own journal object. When no other process has the file open, closing it would make SQLite checkpoint
    its log, which costs more than the change itself.
    """
    if parse_url(url)[0] == "sqlite" and not gates:
        journal = _opened(url, write=True)
        _check_same(journal, url, id)
        yield journal
        return
    with _opened_to_write(url) as journal:
        _check_same(journal, url, id)
        add_gates(journal.backend.entities.gates, load_gates(gates))
        yield journal


def _opened_to_write(url: str) -> LocalJournal:
    """Opens a journal to write; waits for its turn in an object store, which commits of other queries, or of a
    killed driver, hold for a short time.
    """
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            return open_local(url)
        except Locked as error:
            if not parse_url(url).in_object_store:
                raise
            if time.monotonic() > deadline:
                raise Locked(
                    f'{error}. From Spark, name a server that writes it: option("writer", "https://…")'
                ) from error
        time.sleep(_TURN_PAUSE)


def journal_id(url: str) -> str | None:
    """Returns the id of the journal at a url; None when there is none yet."""
    where = parse_url(url)
    if not where.in_bucket and not os.path.exists(where.path):  # noqa: PTH110
        return None
    try:
        return reading(url).id or None
    except NoStore:  # a bucket, or a folder with nothing but what tasks have staged
        return None


def check_reach(url: str, master: str | None = None) -> None:
    """Raises ConfigError when Spark's tasks run on other machines and the journal is a file of this machine.

    `master` is Spark's master; by default the master that `session()` passed to its processes.
    """
    if is_served(url):
        return
    master = master or os.environ.get(MASTER_VARIABLE, "local")
    where = parse_url(url)
    if where.in_bucket or master.startswith("local"):
        return
    raise ConfigError(
        f"the master {master} runs tasks on other machines, and the journal {where.path} is a file of this machine. "
        'Use a master like "local[4]", or the url of a server (`penstock serve` on this machine, then url=http://…). '
        "Or use a journal in object storage (s3://bucket/shop), or a buffer"
    )


def _check_same(journal: LocalJournal, url: str, id: str | None) -> None:
    if id is not None and journal.id != id:
        raise ConfigError(
            f"on {socket.gethostname()} there is another journal at {url} than where this query was planned: it was "
            "replaced meanwhile, or this machine has a file of the same name; tasks on several machines need the url "
            "of a server (http://…), a journal in object storage, or a buffer"
        )


def check_same(location: JournalLocation, found: str, id: str | None) -> None:
    """Raises ConfigError when a server's journal differs from the journal of the plan."""
    if id is not None and found != id:
        raise ConfigError(
            f"there is another journal at {location.url} than where this query was planned: it was replaced, or "
            "the address leads to another server from here"
        )


def _identity(journal: LocalJournal) -> tuple[int, int] | None:
    """Returns the identity of a journal's file: a store that was deleted and made again has the same url but another
    identity.
    """
    location = journal.backend.engine.location
    try:
        found = os.stat(location or "")  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


_CHUNK_BYTES = 8 << 20
"""The bytes that a task reads from one snapshot: a slow query must not hold a snapshot, and with it the store's log,
for long.
"""
_BEHIND_SECONDS, _BEHIND_PAUSE = 5.0, 0.05
"""The seconds to wait for a reader that is behind the plan, which is much longer than its pause between two looks."""


_MOST_NAMED = 100
"""The most topics in one request; for more topics, all ends are requested."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SourceJournal(ABC):
    """A journal that Spark reads: planning asks for a few numbers, tasks fetch blocks.

    Numbers that only grow may have grown between two requests.
    """

    def __init__(self, location: JournalLocation, id: str) -> None:
        self.location = location
        self.id = id
        """The id of the journal."""

    @abstractmethod
    def ask(self, operation: Operation[T], *names: str, request: object = None) -> T:
        """Returns the answer of an operation; `names` are the names in its path."""

    def changes(self) -> int | None:
        """Returns a number that changes with every commit; None when asking costs as much as looking."""
        return None

    def matching(self, patterns: tuple[str, ...]) -> list[str]:
        """Returns the topics that match names and patterns, as in `journal.read`."""
        asked = AcrossRequest(topics=list(patterns), limit=0)  # the ends alone, no event is looked at
        return sorted(self.ask(READ_ACROSS, request=asked).ends)

    def ends(self, names: Sequence[str]) -> dict[str, TopicEnds]:
        """Returns the first and the last positions of topics; missing topics are left out."""
        if not names:
            return {}
        found = self.ask(READ_ENDS, request=TopicsQuery(list(names) if len(names) <= _MOST_NAMED else []))
        check_same(self.location, found.journal, self.id)
        return {name: found.ends[name] for name in names if name in found.ends}

    def position_before(self, topic: str, ms: int) -> int:
        """Returns the last position recorded before a time; 0 for none."""
        return self.ask(FIND_POSITION, topic, request=PositionQuery((_EPOCH + timedelta(milliseconds=ms)).isoformat()))

    def sizes(self, ranges: Iterable[tuple[str, Bounds]]) -> list[int]:
        """Returns about how many bytes ranges of topics have; 0 for a dropped topic."""
        asked = [RangeRequest(topic, *span) for topic, span in ranges]
        parts = (asked[at : at + MOST_RANGES] for at in range(0, len(asked), MOST_RANGES))
        return [size for part in parts for size in self.ask(READ_SIZES, request=part)]

    def cuts(self, topic: str, span: Bounds, pieces: int, *, exactly: bool) -> list[int]:
        """Returns the bounds of so many pieces of a range, of about equal size, or exactly so many."""
        return self._ask_of(READ_CUTS, topic, CutsQuery(*span, pieces, exactly), list(span))

    def spans(self, topic: str, span: Bounds, wanted: Wanted) -> SpansDocument:
        """Returns the spans of a range that may have wanted events."""
        return self._ask_of(READ_SPANS, topic, SpansRequest(wanted, span[1], span[0]), SpansDocument([span]))

    def sealed(self, topic: str, span: Bounds, *, columns: bool) -> list[SealedFiles]:
        """Returns the Parquet files with sealed events of a range; `columns` includes their typed columns."""
        return self._ask_of(LIST_SEALED, topic, SealedQuery(*span, columns), [])

    def expires(self, topic: str) -> bool:
        """Returns True if a topic's events expire."""
        try:
            return self.ask(READ_TOPIC, topic).settings.max_age is not None
        except UnknownTopic:
            return False

    def _ask_of(self, operation: Operation[T], topic: str, request: object, otherwise: T) -> T:
        """Returns an answer about a topic; `otherwise` for a topic that was dropped meanwhile, which its tasks
        report.
        """
        try:
            return self.ask(operation, topic, request=request)
        except UnknownTopic:
            return otherwise

    def correlations(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Returns the correlation id by event id; unknown event ids are left out."""
        found: dict[str, str | None] = {}
        for at in range(0, len(ids), MOST_IDS):
            found.update(self.ask(FIND_CORRELATIONS, request=list(ids[at : at + MOST_IDS])))
        return found

    @abstractmethod
    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        """Returns the blocks with events in after < position ≤ through, some at a time.

        With `strict`, raises PositionTrimmed when events were removed, or the topic was dropped; otherwise yields the
        remaining events.
        """

    @abstractmethod
    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        """Moves a consumer's cursors, up to the ends of the topics; the cursor of a missing topic stays."""


def dropped(topic: str, after: int, through: int) -> PositionTrimmed:
    """Returns the error of a query whose topic is gone; no events are left out silently."""
    return PositionTrimmed(
        f"topic {topic!r} was dropped before this query had read its events {after + 1} to {through}. Set "
        "failOnDataLoss=false to go on without them",
        oldest=through + 1,
    )


def check_kept(topic: str, after: int, through: int, trimmed: int) -> None:
    """Raises PositionTrimmed when events of a range were removed."""
    if after < min(trimmed, through):
        raise PositionTrimmed(
            f"events {after + 1} to {min(trimmed, through)} of topic {topic!r} were removed before this query read "
            f"them; the oldest stored is {trimmed + 1}. Set failOnDataLoss=false to go on without them, or give the "
            "query a consumer, so that compaction waits for it",
            oldest=trimmed + 1,
        )


def open_source(location: JournalLocation, id: str | None = None, *, newest: bool = False) -> SourceJournal:
    """Opens the journal of a location. `id` is the id of the journal of the plan; another journal raises ConfigError.

    With `newest`, every earlier commit is visible. This process's reader of a bucket may otherwise be a moment behind,
    while planning uses offsets of other readers: offsets in a checkpoint, or of events that were just appended.
    """
    if location.served:
        from penstock.spark.served import served_journal

        return served_journal(location, id)
    return LocalSource(reading(location.url, id, newest=newest), location)


def check_rights(options: ReadOptions) -> None:
    """Raises ConfigError when a read changes something at a server (a cursor, bad records) that its token must not
    change.
    """
    if options.location.server is not None and (options.consumer is not None or options.bad_records is not None):
        from penstock.spark.served import check_may_write

        doing = "the cursor of option consumer" if options.consumer is not None else "option badRecords"
        check_may_write(options.location.server, doing)


class LocalSource(SourceJournal):
    """A journal whose store this process opens itself."""

    def __init__(self, journal: LocalJournal, location: JournalLocation) -> None:
        super().__init__(location, journal.id)
        self._journal = journal
        self._engine = journal.backend.engine

    def ask(self, operation: Operation[T], *names: str, request: object = None) -> T:
        return self._journal.backend.call(operation, *names, request=request)

    def changes(self) -> int | None:
        return self._engine.changes()

    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        while after < through:
            found, after = self._fetch(topic, after, through, strict)
            yield found

    def _fetch(self, topic: str, after: int, through: int, strict: bool) -> tuple[list[Block], int]:
        """Returns several blocks from a position on, and the position that they reach; a snapshot is held only
        meanwhile.

        This process's reader of a bucket may be a moment behind the planner's reader; then it looks again.
        """
        deadline = time.monotonic() + _BEHIND_SECONDS
        while True:
            with self._engine.read() as snap:
                view = TopicView.open(snap, topic)
                if view is not None:
                    if strict:
                        check_kept(topic, after, through, view.trimmed())
                    blocks, reached = _chunk(view, after, through)
                    if reached > after:
                        return blocks, reached
            late = time.monotonic() > deadline
            if view is None and (late or not isinstance(self._engine, ObjectEngine)):
                if strict:
                    raise dropped(topic, after, through)
                return [], through
            if late:
                raise StorageError(f"topic {topic!r} is not there as far as it was planned; try again", retryable=True)
            time.sleep(_BEHIND_PAUSE)
            self._engine.catch_up()

    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        if self.location.server is not None:
            from penstock.spark.served import served_journal

            served_journal(self.location.server, self.id).follow(consumer, reached, back=back)
            return

        def move(commit: Commit) -> None:
            for name, position in reached.items():
                if commit.head(name) is not None and commit.latest(name) >= position:
                    move_cursor(commit, name, consumer, position, back=back)

        with writing(self.location.url) as journal:
            journal.backend.core.run(move, relaxed=True)


def _chunk(view: TopicView, after: int, through: int) -> tuple[list[Block], int]:
    """Returns several blocks, and the position that they reach: to the end of the range unless there are more, or the
    topic ends before."""
    blocks: list[Block] = []
    size = 0
    for block in view.blocks(after, through):
        blocks.append(block)
        size += block.payload_size
        if size >= _CHUNK_BYTES:
            return blocks, block.last
    whole = bool(blocks) and blocks[-1].last >= through
    return blocks, through if whole else min(through, view.latest())


def correlations(location: JournalLocation, ids: pa.StringArray, journal: str | None = None) -> pa.StringArray:
    """Returns the correlation id of each event named by its id, as a column; null where there is none, or no such
    event.
    """
    distinct = [id for id in pc.unique(ids).to_pylist() if id is not None]
    found = open_source(location, journal).correlations(distinct) if distinct else {}
    values = pa.array([found.get(id) for id in distinct], pa.string())
    return values.take(pc.index_in(ids, value_set=pa.array(distinct, pa.string())))

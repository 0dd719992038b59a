"""What the source asks of a journal, wherever that is: a store of this machine or a bucket, or a server.

Planning looks at one state of the journal (`JournalState`), tasks fetch blocks and decode them where they run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from penstock.engine.contract import Snapshot
from penstock.errors import PositionTrimmed, StorageError
from penstock.journal.commit.commit import Commit
from penstock.journal.cursors import move_cursor
from penstock.journal.reading import TopicView
from penstock.journal.storage.block import Block
from penstock.local.journal import LocalJournal
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.place import JournalPlace
from penstock.spark.source.stores import REMOTE, reading, writing
from penstock.transfer.causes import correlations_of, topic_names
from penstock.transfer.ranges import range_cuts, range_size

_CHUNK_BYTES = 8 << 20
"""How much a task reads from one snapshot: a slow query must not hold one, and with it the store's log, for long."""
_BEHIND_SECONDS, _BEHIND_PAUSE = 5.0, 0.05
"""For how long a reader that is behind the plan is waited for: much longer than it pauses between two looks."""


class PlannedTopic(Protocol):
    """One topic as planning sees it."""

    name: str
    began: int
    """Positions up to here were of topics of this name that were dropped."""
    trimmed: int
    """Positions up to here were removed."""
    latest: int

    def position_before(self, ms: int) -> int:
        """The last position recorded before a time; 0 for none."""
        ...

    def size(self, after: int, through: int) -> int:
        """About how many bytes a range has."""
        ...

    def cuts(self, after: int, through: int, pieces: int, *, exactly: bool) -> list[int]:
        """The bounds of pieces of about equal size."""
        ...


class JournalState(Protocol):
    """One state of a journal."""

    def names(self) -> Sequence[str]:
        """Every topic."""
        ...

    def topics(self, names: Sequence[str]) -> Mapping[str, PlannedTopic]:
        """Those of the topics that are there."""
        ...


class SourceJournal(Protocol):
    """A journal that Spark reads."""

    @property
    def id(self) -> str:
        """The journal's own."""
        ...

    def changes(self) -> int | None:
        """Another number when anything has changed; None when asking costs as much as looking."""
        ...

    def state(self) -> AbstractContextManager[JournalState]:
        """The journal as it is now."""
        ...

    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        """The blocks with events in after < position ≤ through, some at a time.

        `strict`: PositionTrimmed when some of the events were removed, or the topic was dropped; else what is left
        comes.
        """
        ...

    def correlations(self, ids: Sequence[str]) -> Mapping[str, str | None]:
        """By event id, its correlation id; ids that no event has are left out."""
        ...

    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        """Moves a consumer's cursors, as far as the topics go; one of a topic that is not there stays."""
        ...


def dropped(topic: str, after: int, through: int) -> PositionTrimmed:
    """What a query hears whose topic is gone: no events are left out without a word."""
    return PositionTrimmed(
        f"topic {topic!r} was dropped before this query had read its events {after + 1} to {through}. Set "
        "failOnDataLoss=false to go on without them",
        oldest=through + 1,
    )


def check_kept(topic: str, after: int, through: int, trimmed: int) -> None:
    """PositionTrimmed when events of a range were removed."""
    if after < min(trimmed, through):
        raise PositionTrimmed(
            f"events {after + 1} to {min(trimmed, through)} of topic {topic!r} were removed before this query read "
            f"them; the oldest stored is {trimmed + 1}. Set failOnDataLoss=false to go on without them, or give the "
            "query a consumer, so that compaction waits for it",
            oldest=trimmed + 1,
        )


def open_source(place: JournalPlace, id: str | None = None, *, newest: bool = False) -> SourceJournal:
    """The journal that a place names. `id` is its own where the work was planned; ConfigError when it is another.

    `newest`: everything that was committed before is seen. This process's reader of a bucket may be a moment behind
    others, and planning with it takes offsets of theirs: those in a checkpoint, or of events that were just appended.
    """
    if place.served:
        from penstock.spark.served.journal import served_journal

        return served_journal(place, id)
    return LocalSource(reading(place.url, id, newest=newest), place)


def check_rights(options: ReadOptions) -> None:
    """ConfigError when a read changes something at a server (a cursor, bad records) that its token may not."""
    if options.place.server is not None and (options.consumer is not None or options.bad_records is not None):
        from penstock.spark.served.connection import check_may_write

        doing = "the cursor of option consumer" if options.consumer is not None else "option badRecords"
        check_may_write(options.place.server, doing)


class LocalSource:
    """A journal whose store this process opens itself."""

    def __init__(self, journal: LocalJournal, place: JournalPlace) -> None:
        self._engine = journal._engine
        self._place = place
        self.id = journal.id

    def changes(self) -> int | None:
        return self._engine.changes()

    @contextmanager
    def state(self) -> Iterator[JournalState]:
        with self._engine.read() as snap:
            yield _SnapshotState(snap)

    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        while after < through:
            found, after = self._fetch(topic, after, through, strict)
            yield found

    def _fetch(self, topic: str, after: int, through: int, strict: bool) -> tuple[list[Block], int]:
        """Some blocks from a position on, and how far they reach; a snapshot is held only meanwhile.

        This process's reader of a bucket may be a moment behind the one that planned: then it is looked at again.
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
            if view is None and (late or self._engine.scheme not in REMOTE):
                if strict:
                    raise dropped(topic, after, through)
                return [], through
            if late:
                raise StorageError(f"topic {topic!r} is not there as far as it was planned; try again", retryable=True)
            time.sleep(_BEHIND_PAUSE)
            self._engine.catch_up()

    def correlations(self, ids: Sequence[str]) -> Mapping[str, str | None]:
        with self._engine.read() as snap:
            return correlations_of(snap, ids)

    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        if self._place.server is not None:
            from penstock.spark.served.journal import served_journal

            served_journal(self._place.server, self.id).follow(consumer, reached, back=back)
            return

        def move(commit: Commit) -> None:
            for name, position in reached.items():
                if commit.head(name) is not None and commit.latest(name) >= position:
                    move_cursor(commit, name, consumer, position, back=back)

        with writing(self._place.url) as journal:
            journal._core.run(move, relaxed=True)


def _chunk(view: TopicView, after: int, through: int) -> tuple[list[Block], int]:
    """Some blocks, and how far they reach: to the end of the range unless there are more, or the topic ends before."""
    blocks: list[Block] = []
    size = 0
    for block in view.blocks(after, through):
        blocks.append(block)
        size += len(block.payload)
        if size >= _CHUNK_BYTES:
            return blocks, block.last
    whole = bool(blocks) and blocks[-1].last >= through
    return blocks, through if whole else min(through, view.latest())


class _SnapshotState:
    """One snapshot."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap

    def names(self) -> Sequence[str]:
        return topic_names(self._snap)

    def topics(self, names: Sequence[str]) -> Mapping[str, PlannedTopic]:
        views = {name: TopicView.open(self._snap, name) for name in names}
        return {name: _SnapshotTopic(view) for name, view in views.items() if view is not None}


class _SnapshotTopic:
    """One topic in a snapshot."""

    def __init__(self, view: TopicView) -> None:
        self._view = view
        self.name = view.name
        self.began = view.began()
        self.trimmed = view.trimmed()
        self.latest = view.latest()

    def position_before(self, ms: int) -> int:
        return self._view.position_before(ms)

    def size(self, after: int, through: int) -> int:
        return range_size(self._view, after, through)

    def cuts(self, after: int, through: int, pieces: int, *, exactly: bool) -> list[int]:
        return range_cuts(self._view, after, through, pieces, exactly=exactly)

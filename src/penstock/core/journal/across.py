"""Reading several topics as one log: their events in the order they were recorded, from one snapshot.

Ids are in the order of recording: by the millisecond, and within a millisecond in the order of this process's commits.
So a merge by id gives every reader the same order. The progress of a reader is a position in every topic: so a reader
also finds late commits of a process whose clock is behind.

A merge asks each topic for a few events at a time, and leaves no scan open in between: SQLite walks over all open
cursors whenever a cursor is opened. Between two requests the merge knows only a position of a topic, and a lower bound
for the id of its next event. Neither depends on a snapshot, so a follower continues with them in the next snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from heapq import heappop, heappush, heapreplace
from itertools import count, islice
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from penstock.core.consuming.subscription import JournalSubscription
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block
from penstock.core.journal.following import STEP
from penstock.core.journal.index.index import read_view
from penstock.core.journal.index.memtable import block_size
from penstock.core.journal.reading import TopicView
from penstock.core.journal.waking import ReadingAhead
from penstock.core.model.query import EVERYTHING, EventQuery
from penstock.core.names import SYSTEM, WILD, check_name, check_position, check_topics, check_whole, is_system
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore

FIRST_FILL: Final = 1
LARGEST_FILL: Final = 1024
FILL_GROWTH: Final = 4
"""The number of events that a topic is asked for at first and at most, and the factor by which the number grows."""
READER_BYTES: Final = 32 << 20
FOLLOWER_BYTES: Final = 8 << 20
"""The bytes of blocks read ahead that a merge keeps, whatever the number of topics."""
BLOCK_BYTES: Final = 1 << 10
"""The approximate bytes that a block of one small event takes in memory."""
_PATIENCE: Final = 4
"""The number of events per topic after which a follower looks at all topics again."""
_ASK_FIRST: Final = -1 << 128
"""A bound below every id: an unknown topic is asked before the merge returns an event."""


class AcrossQuery(msgspec.Struct, frozen=True):
    """The wanted events of the wanted topics."""

    topics: tuple[str, ...] = ()
    """Names, and patterns like shop.*; the empty tuple stands for every topic except penstock's own topics."""
    events: EventQuery = EVERYTHING
    """The wanted events of each topic; the positions in this query are ignored."""
    after: Mapping[str, int] = {}
    """The positions to continue after, by topic; other topics are read from their beginning."""
    through: Mapping[str, int] | None = None
    """The positions to end at, by topic; other topics are not read. None stands for the current end of each topic."""
    most_topics: int | None = None
    """The most topics that the query may match; None for any number."""


class AcrossStep(msgspec.Struct, frozen=True):
    """Several events, and the positions that a reader has reached with them."""

    events: list[Event]
    reached: dict[str, int]
    """By topic: the position to continue after (backwards: through)."""
    done: bool
    """True if this snapshot has no further events."""


def across_query(
    topics: str | Sequence[str] | None,
    after: Mapping[str, int] | None,
    through: Mapping[str, int] | None,
    events: EventQuery,
    most_topics: int | None = None,
) -> AcrossQuery:
    """Returns a reader's arguments, checked."""
    return AcrossQuery(
        check_topics(topics),
        events,
        {} if after is None else check_positions(after, "after"),
        None if through is None else check_positions(through, "through"),
        most_topics,
    )


def check_positions(positions: Mapping[str, int], what: str) -> dict[str, int]:
    """Returns a position in each of some topics."""
    if not isinstance(positions, Mapping):
        raise ConfigError(f"{what} must be positions by topic, like {{'orders': 17}}, not {positions!r:.80}")
    return {check_name(name): check_position(seq, f"{what}[{name!r}]") for name, seq in positions.items()}


def matching(core: JournalCore, snap: Snapshot, topics: tuple[str, ...], among: set[str] | None = None) -> list[str]:
    """Returns the topics of a snapshot, or of `among`, that match names and patterns, sorted.

    A pattern matches none of penstock's own topics, unless it begins with their prefix: penstock.*, or, for the topics
    of a queue, the queue's name: emails.*.
    """
    found: dict[str, None] = {}
    for one in topics or ("*",):
        wild = WILD.search(one)
        if wild is None:
            found |= dict.fromkeys([one] if among is None or one in among else ())
            continue
        beginning = one[: wild.start()]
        for name in _names_with_prefix(snap, beginning) if among is None else among:
            if fnmatchcase(name, one) and not _is_internal(core, snap, name, beginning):
                found[name] = None
    return sorted(found)


def _names_with_prefix(snap: Snapshot, text: str) -> Iterator[str]:
    """Returns the names of topics that begin with a text."""
    first = keys.TOPIC + text.encode()
    return (keys.stored_name(key[1:]) for key, _ in snap.scan(first, keys.prefix_end(first)))


def _is_internal(core: JournalCore, snap: Snapshot, name: str, beginning: str) -> bool:
    owner = SYSTEM if is_system(name) else core.owner_of_topic(snap, name)
    return owner is not None and not beginning.startswith(owner)


def wanted_topics(core: JournalCore, snap: Snapshot, query: AcrossQuery, among: set[str] | None = None) -> list[str]:
    """Returns the topics of a snapshot, or of `among`, that a query matches; raises ConfigError for too many topics."""
    found = matching(core, snap, query.topics, among)
    if query.most_topics is not None and len(found) > query.most_topics:
        raise ConfigError(
            f"{', '.join(query.topics) or 'no name'} stands for {len(found):,} topics, and one request reads at most "
            f"{query.most_topics:,}: name fewer, or give a pattern that stands for fewer"
        )
    return found


class Source:
    """A topic of a merge: the positions that are still to be read, and the events that were read ahead."""

    __slots__ = ("ahead", "bound", "fill", "fresh", "held", "high", "low", "name", "order")

    def __init__(self, name: str, order: int, low: int, bound: int) -> None:
        self.name = name
        self.order = order
        """The order among topics with equal ids."""
        self.bound = bound
        """The last wanted position."""
        self.low = low
        self.high = bound
        """The last position to ask for; the first is the position after `low`."""
        self.fresh = True
        """True if the end of the topic must be read."""
        self.ahead: list[Event] = []
        """The events read ahead; the next event is the last item."""
        self.held = 0
        """The approximate bytes that the events read ahead keep in memory."""
        self.fill = FIRST_FILL

    def ended(self) -> bool:
        """Returns whether nothing is left to be asked for."""
        return self.low >= self.high and not self.fresh

    def reached(self, *, reverse: bool) -> int:
        """Returns the position that a reader continues after (backwards: through) when it has received all events
        except those read ahead.
        """
        if not self.ahead:
            return self.high if reverse else self.low
        return self.ahead[-1].seq if reverse else self.ahead[-1].seq - 1

    def give_back(self, *, reverse: bool) -> int:
        """Drops the events read ahead, which will be read again; returns the freed bytes."""
        if reverse:
            self.high = self.reached(reverse=True)
        else:
            self.low = self.reached(reverse=False)
        self.ahead.clear()
        freed, self.held, self.fill = self.held, 0, FIRST_FILL
        return freed


class Merge:
    """The events of several topics in the order of their ids."""

    def __init__(self, core: JournalCore, query: AcrossQuery, most_held: int, *, to_its_end: bool = True) -> None:
        """Begins a merge. With `to_its_end` all of it will be read, so reading the end of each topic pays."""
        self._core = core
        self._query = query
        self._ends_first = to_its_end or query.events.reverse or not query.events.everything
        self._reverse = query.events.reverse
        self._heap: list[tuple[int, int, Source]] = []
        """Each topic under the lower bound for the id of its next event (backwards: the upper bound, negated)."""
        self._orders = count()
        self._most_held = most_held
        self._held = 0
        self.sources: dict[str, Source] = {}
        """The topics that may have further events."""
        self.moved: dict[str, Source] = {}
        """The topics that were read, or returned an event."""
        self.ends: dict[str, int] = {}
        """The ends of topics, as far as they were read."""

    def add(self, names: Iterable[str], after: Mapping[str, int]) -> None:
        """Adds topics, to be read after a position; the end of a topic that is already read is read again."""
        through = self._query.through
        for name in names:
            source = self.sources.get(name)
            if source is not None:
                source.fresh = True
                continue
            low, bound = after.get(name, 0), keys.MAX_SEQ if through is None else through.get(name, 0)
            if low < bound:
                source = self.sources[name] = Source(name, next(self._orders), low, bound)
                heappush(self._heap, (_ASK_FIRST, source.order, source))

    def reached(self) -> dict[str, int]:
        """Returns the reached positions of topics that were read, or returned an event, since the last call."""
        found = {name: source.reached(reverse=self._reverse) for name, source in self.moved.items()}
        self.moved.clear()
        self.ends.clear()
        return found

    def events(self, snap: Snapshot, now_ms: int, looks: int | None = None) -> Iterator[Event]:
        """Yields the next events, until the topics end, or until so many positions were searched in vain."""
        heap, reverse = self._heap, self._reverse
        while heap:
            _, order, source = heap[0]
            self.moved[source.name] = source
            event: Event | None = None
            if source.ahead:
                event = source.ahead.pop()
            elif looks is None:
                self._fill(source, snap, now_ms)
            elif looks > 0:
                looks -= self._fill(source, snap, now_ms)
            else:
                return
            if source.ahead:
                identity = source.ahead[-1]._identity()
                heapreplace(heap, (-identity if reverse else identity, order, source))
                if self._held > self._most_held:
                    self._give_back()
            else:
                self._held -= source.held
                source.held = 0
                if source.ended():
                    heappop(heap)
                    del self.sources[source.name]
            if event is not None:
                yield event

    def _fill(self, source: Source, snap: Snapshot, now_ms: int) -> int:
        """Reads the next events of a topic; returns the number of positions that were searched in vain."""
        view = TopicView.open(snap, source.name, now_ms)
        if view is None:
            source.high, source.fresh = source.low, False
            del self.moved[source.name]
            return 0
        view.check_not_trimmed(source.low)
        if source.fresh:
            self._find_ends(source, view)
        wanted, most, left = self._query.events, source.fill, source.high - source.low
        low, high = source.low, source.high
        if not wanted.indexed and not wanted.everything and left > STEP:
            low, high = (high - STEP, high) if self._reverse else (low, low + STEP)
        found: list[Event] = []
        if low < high:
            if wanted.everything:  # of many topics: a query of its own for each costs as much as its events
                found.extend(view.events(low, high, most, reverse=self._reverse))
            else:
                limit = most if wanted.where is None else None
                own = replace(wanted, after=low, through=high, since=None, until=None, limit=limit)
                found.extend(islice(read_view(view, own, self._core.index.open), most))
        if len(found) == most:
            share = self._most_held // (BLOCK_BYTES * len(self.sources))
            source.fill = max(FIRST_FILL, min(most * FILL_GROWTH, LARGEST_FILL, share))
            low, high = found[-1].seq, found[-1].seq - 1
        elif self._ends_first:
            low, high = high, low
        else:
            low = source.high = min(source.bound, view.latest())
        if self._reverse:
            source.high = high
        else:
            source.low = low
        source.ahead = found[::-1]
        source.held = sum(map(block_size, {event._rows for event in found if isinstance(event._rows, Block)}))
        self._held += source.held
        return 0 if wanted.everything or wanted.indexed else left - (source.high - source.low) - len(found)

    def _find_ends(self, source: Source, view: TopicView) -> None:
        """Notes which existing positions of a topic are wanted."""
        wanted = self._query.events
        source.fresh = False
        source.low = max(source.low, view.trimmed())
        if not self._ends_first:
            return  # the end is read when the topic returns fewer events than requested
        end = self.ends[source.name] = view.latest()
        source.high = min(source.bound, end)
        if wanted.since_ms is not None:
            source.low = max(source.low, view.position_before(wanted.since_ms))
        if wanted.until_ms is not None:
            source.high = min(source.high, view.position_before(wanted.until_ms))

    def _give_back(self) -> None:
        """Drops the events read ahead of the topics whose turn comes last, until half of the bytes are free."""
        for _, _, source in sorted(self._heap, reverse=True):
            if self._held <= self._most_held // 2 or source is self._heap[0][2]:
                return
            if source.ahead:
                self._held -= source.give_back(reverse=self._reverse)


def read_across(core: JournalCore, query: AcrossQuery) -> Iterator[Event]:
    """Streams the wanted events of one snapshot, which is taken when the first event is requested."""
    with core.engine.read() as snap:
        merge = Merge(core, query, READER_BYTES, to_its_end=query.events.limit is None)
        merge.add(wanted_topics(core, snap, query), query.after)
        yield from islice(merge.events(snap, core.clock.now_ms()), query.events.limit)


def read_page(core: JournalCore, query: AcrossQuery, limit: int, most_bytes: int) -> tuple[AcrossStep, dict[str, int]]:
    """Reads the next wanted events, bounded in number, in bytes and in searched positions.

    Also returns where the reading ends: at `through`, or at the current ends of the wanted topics.
    """
    reverse = query.events.reverse
    with core.engine.read() as snap:
        names = wanted_topics(core, snap, query)
        merge = Merge(core, query, READER_BYTES)
        merge.add(names, query.after)
        events = _next_events(merge, snap, core.clock.now_ms(), limit, most_bytes)
        if query.through is None:
            ends = merge.ends | _ends(snap, [name for name in names if name not in merge.ends])
        else:
            ends = dict(query.through)
    reached = {**(ends if reverse else query.after), **merge.reached()}
    return AcrossStep(events, reached, not merge.sources), ends


def topic_ends(core: JournalCore, query: AcrossQuery) -> dict[str, int]:
    """Returns where the wanted topics end in one snapshot."""
    with core.engine.read() as snap:
        return _ends(snap, wanted_topics(core, snap, query))


def _ends(snap: Snapshot, names: Iterable[str]) -> dict[str, int]:
    views = (TopicView.open(snap, name) for name in names)
    return {view.name: view.latest() for view in views if view is not None}


def _next_events(merge: Merge, snap: Snapshot, now_ms: int, limit: int, most_bytes: int) -> list[Event]:
    """Returns the next events of a merge, bounded in number, in bytes and in searched positions."""
    found: list[Event] = []
    size = 0
    for event in merge.events(snap, now_ms, STEP) if limit else ():
        found.append(event)
        size += len(event.raw)
        if len(found) >= limit or size >= most_bytes:
            break
    return found


class AcrossReader:
    """Reads several topics step by step: first the existing events, then new events.

    It looks only at topics that have changed.
    """

    def __init__(self, core: JournalCore, query: AcrossQuery) -> None:
        self._core = core
        self._query = query
        self._merge = Merge(core, query, FOLLOWER_BYTES)
        self._all_due = True
        """True if any topic may have events that the merge does not know."""
        self._given = 0
        """The number of events that were returned since all topics were read."""
        self.signal = core.hub.follow_all()
        self.seen = 0
        """The signal's version before the last step; later events may be unread."""
        self.reached = dict(query.after)
        """The positions through which the topics were read, including events that the query does not want."""

    def step(self, limit: int, most_bytes: int = keys.MAX_SEQ) -> AcrossStep:
        """Reads the next events; the answer has the reached positions of the topics involved."""
        self.seen = self.signal.version
        touched = self.signal.taken()
        self._all_due = self._all_due or touched is None
        try:
            with self._core.engine.read() as snap:
                self._add_topics(snap, touched or set())
                events = _next_events(self._merge, snap, self._core.clock.now_ms(), limit, most_bytes)
        except BaseException:  # the events of this step are read again
            self._merge, self._all_due = Merge(self._core, self._query, FOLLOWER_BYTES), True
            raise
        self._given += len(events)
        reached = self._merge.reached()
        self.reached |= reached
        return AcrossStep(events, reached, not self._merge.sources and not self._all_due)

    def _add_topics(self, snap: Snapshot, touched: set[str]) -> None:
        """Adds topics that may have further events to the merge.

        It adds all of them only when the other topics are read, or after a while.

        Another process may commit all the time, and looking at all topics for each step costs more than the step.
        """
        if self._all_due and (not self._merge.sources or self._given > _PATIENCE * len(self.reached)):
            self._merge.add(wanted_topics(self._core, snap, self._query), self.reached)
            self._all_due, self._given = False, 0
        elif touched:
            self._merge.add(wanted_topics(self._core, snap, self._query, touched), self.reached)


class LocalJournalSubscription(ReadingAhead, JournalSubscription):
    """A subscription to the events of several topics after positions."""

    def __init__(self, core: JournalCore, query: AcrossQuery, buffer: int) -> None:
        self._reader = AcrossReader(core, query)
        self._buffer = check_whole(buffer, "buffer")
        super().__init__(core, self._reader.signal)
        self._given = dict(query.after)
        self._reached: dict[str, int] = {}
        """The positions of the topics whose events are ahead, after these events."""

    @property
    def positions(self) -> dict[str, int]:
        with self._turn:
            return dict(self._given)

    def _read_on(self) -> bool:
        step = self._reader.step(self._buffer)
        self._ahead.extend(step.events)
        self._reached = step.reached
        if not step.events:
            self._given |= step.reached
        return not step.done

    def _hand_out(self, event: Event) -> None:
        if self._ahead:
            self._given[event.topic] = event.seq
        else:
            self._given |= self._reached

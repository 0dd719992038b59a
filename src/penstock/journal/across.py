"""Reading several topics as one log: their events in the order they were recorded, from one snapshot.

Ids are in the order of recording: by the millisecond, and within one as this process committed them. So a merge by id
gives every reader the same order. How far a reader has come is a position in every topic: what is committed late, by a
process whose clock is behind, is found all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from heapq import merge
from itertools import islice
from operator import methodcaller
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError
from penstock.events import Event
from penstock.journal import keys
from penstock.journal.following import STEP
from penstock.journal.log import read_view
from penstock.journal.reading import EVERYTHING, EventQuery, TopicView
from penstock.journal.waking import ReadingAhead
from penstock.names import SYSTEM, WILD, check_name, check_position, check_topics, check_whole, is_system
from penstock.surface.subscription import JournalSubscription

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore

_recorded = methodcaller("_identity")


class AcrossQuery(msgspec.Struct, frozen=True):
    """Which events of which topics are wanted."""

    topics: tuple[str, ...] = ()
    """Names, and patterns like shop.*; none: every topic but those that penstock writes for itself."""
    events: EventQuery = EVERYTHING
    """What is wanted of each; its positions count for nothing."""
    after: Mapping[str, int] = {}
    """Where to go on, by topic; those that are not in it are read from their beginning."""
    through: Mapping[str, int] | None = None
    """Where to end, by topic: nothing of those that are not in it. None: where each ends now."""


class AcrossStep(msgspec.Struct, frozen=True):
    """Some events, and how far a reader has come with them."""

    events: list[Event]
    reached: dict[str, int]
    """By topic: what to go on after (backwards: through)."""
    ends: dict[str, int]
    """Where the wanted topics end."""
    done: bool
    """Whether there is nothing more, as of this snapshot."""


def across_query(
    topics: str | Sequence[str] | None,
    after: Mapping[str, int] | None,
    through: Mapping[str, int] | None,
    events: EventQuery,
) -> AcrossQuery:
    """A reader's arguments, checked."""
    return AcrossQuery(
        check_topics(topics),
        events,
        {} if after is None else check_positions(after, "after"),
        None if through is None else check_positions(through, "through"),
    )


def check_positions(positions: Mapping[str, int], what: str) -> dict[str, int]:
    """A position in each of some topics."""
    if not isinstance(positions, Mapping):
        raise ConfigError(f"{what} must be positions by topic, like {{'orders': 17}}, not {positions!r:.80}")
    return {check_name(name): check_position(seq, f"{what}[{name!r}]") for name, seq in positions.items()}


def matching(core: JournalCore, snap: Snapshot, topics: tuple[str, ...], among: set[str] | None = None) -> list[str]:
    """The topics of a snapshot, or those `among` them, that names and patterns stand for, sorted.

    A pattern stands for no topic that penstock writes for itself, unless its beginning says so: penstock.*, and for
    those of a queue its name: emails.*.
    """
    found: dict[str, None] = {}
    for one in topics or ("*",):
        wild = WILD.search(one)
        if wild is None:
            found |= dict.fromkeys([one] if among is None or one in among else ())
            continue
        beginning = one[: wild.start()]
        for name in _beginning(snap, beginning) if among is None else among:
            if fnmatchcase(name, one) and not _is_internal(core, snap, name, beginning):
                found[name] = None
    return sorted(found)


def _beginning(snap: Snapshot, text: str) -> Iterator[str]:
    """The names of topics that begin with a text."""
    first = keys.TOPIC + text.encode()
    return (keys.stored_name(key[1:]) for key, _ in snap.scan(first, keys.prefix_end(first)))


def _is_internal(core: JournalCore, snap: Snapshot, name: str, beginning: str) -> bool:
    owner = SYSTEM if is_system(name) else core.owner_of_topic(snap, name)
    return owner is not None and not beginning.startswith(owner)


def read_across(core: JournalCore, query: AcrossQuery) -> Iterator[Event]:
    """Streams the wanted events of one snapshot, which is taken when the first is asked for: a block of each topic is
    in memory."""
    with core.engine.read() as snap:
        streams = []
        for view in _views(core, snap, query.topics):
            own = replace(_within(query.events, *_bounds(view, query)), limit=query.events.limit)
            streams.append(read_view(view, own, core.index.open))
        yield from islice(merge(*streams, key=_recorded, reverse=query.events.reverse), query.events.limit)


def read_step(
    core: JournalCore, query: AcrossQuery, limit: int, most_bytes: int, among: set[str] | None = None
) -> AcrossStep:
    """The next of the wanted events, bounded in number and bytes, and in what is looked at for them.

    `among`: the topics that may have any.
    """
    reverse = query.events.reverse
    reached, ends = dict((query.through if reverse else query.after) or {}), {}
    found: list[Event] = []
    cut: list[str] = []
    """Topics that were looked at as far as a step goes, and go on: their next event may precede those of others."""

    def stream(view: TopicView, low: int, high: int) -> Iterator[Event]:
        begin, end = low, high
        if query.events.key is None and high - low > STEP:
            begin, end = (high - STEP, high) if reverse else (low, low + STEP)
        if begin < end:
            yield from read_view(view, _within(query.events, begin, end), core.index.open)
        reached[view.name] = begin if reverse else end
        if (begin, end) != (low, high):
            cut.append(view.name)

    with core.engine.read() as snap:
        streams = []
        for view in _views(core, snap, query.topics, among):
            ends[view.name] = view.latest()
            low, high = _bounds(view, query)
            if reverse:
                reached[view.name] = high
            streams.append(stream(view, low, high))
        size, more = 0, False
        for event in merge(*streams, key=_recorded, reverse=reverse):
            more = bool(cut) or len(found) >= limit or size >= most_bytes
            if more:
                break
            found.append(event)
            reached[event.topic] = event.seq - 1 if reverse else event.seq
            size += len(event.raw)
    return AcrossStep(found, reached, ends, not more and not cut)


def _views(
    core: JournalCore, snap: Snapshot, topics: tuple[str, ...], among: set[str] | None = None
) -> Iterator[TopicView]:
    now = core.clock.now_ms()
    for name in matching(core, snap, topics, among):
        view = TopicView.open(snap, name, now)
        if view is not None:
            yield view


def _bounds(view: TopicView, query: AcrossQuery) -> tuple[int, int]:
    """After which position and through which one a topic is wanted; what is not there any more is left out."""
    low, high = query.after.get(view.name, 0), view.latest()
    view.check_not_trimmed(low)
    low = max(low, view.trimmed())
    if query.through is not None:
        high = min(high, query.through.get(view.name, 0))
    if query.events.since_ms is not None:
        low = max(low, view.position_before(query.events.since_ms))
    if query.events.until_ms is not None:
        high = min(high, view.position_before(query.events.until_ms))
    return low, max(low, high)


def _within(query: EventQuery, after: int, through: int) -> EventQuery:
    return replace(query, after=after, through=through, since_ms=None, until_ms=None, limit=None)


class AcrossReader:
    """Reads several topics step by step: what is there, then what comes. It looks only where something was written."""

    def __init__(self, core: JournalCore, query: AcrossQuery) -> None:
        self._core = core
        self._query = query
        self.signal = core.hub.follow_all()
        self.seen = 0
        """The signal's version before the last step: what comes later was perhaps not read."""
        self.reached = dict(query.after)
        """How far the topics were read: past what was not chosen."""
        self._among: set[str] | None = None
        """The topics that may have more; None: all of them."""

    def step(self, limit: int, most_bytes: int = keys.MAX_SEQ) -> AcrossStep:
        """The next events."""
        self.seen = self.signal.version
        touched = self.signal.taken()
        self._among = None if touched is None or self._among is None else self._among | touched
        step = read_step(self._core, replace(self._query, after=self.reached), limit, most_bytes, self._among)
        self.reached = step.reached
        if step.done:
            self._among = set()
        return step


class LocalJournalSubscription(ReadingAhead, JournalSubscription):
    """Events of several topics after positions, as they come."""

    def __init__(self, core: JournalCore, query: AcrossQuery, buffer: int) -> None:
        self._reader = AcrossReader(core, query)
        self._buffer = check_whole(buffer, "buffer")
        super().__init__(core, self._reader.signal)
        self._given = self._reader.reached

    @property
    def positions(self) -> dict[str, int]:
        with self._turn:
            return dict(self._given)

    def _read_on(self) -> bool:
        step = self._reader.step(self._buffer)
        self._ahead.extend(step.events)
        if not step.events:
            self._given = step.reached
        return not step.done

    def _hand_out(self, event: Event) -> None:
        self._given = {**self._given, event.topic: event.seq} if self._ahead else self._reader.reached

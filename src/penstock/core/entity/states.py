"""The newest state of an entity: a saved state and the later events; watches, checks and rebuilds of states."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from penstock.core.consuming.subscription import LiveIterator
from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.entity.projection import Declared, Fold, Projection, check_projection, folder_of, not_erased
from penstock.core.events import Event
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block, text_values
from penstock.core.journal.catalog import TopicState, load_record, load_state
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import EntityIndex, read_view
from penstock.core.journal.index.memtable import Piece
from penstock.core.journal.index.runs import drop_index
from penstock.core.journal.keys import MAX_SEQ, prefix_end, topic_range
from penstock.core.journal.log import TopicLog
from penstock.core.journal.reading import TopicView
from penstock.core.journal.upkeep.dropping import clear_rows
from penstock.core.journal.waking import Signalled
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.query import EventQuery
from penstock.core.names import check_position, check_text
from penstock.core.units import Progress, in_parts
from penstock.errors import Closed, ConfigError, PositionTrimmed, UnknownTopic

P = TypeVar("P", bound=Projection)
T = TypeVar("T")
Freshness = Literal["consistent", "cached"]

SAVE_AFTER = 100
"""The number of newly folded events after which a state is saved in the store."""
_REMEMBERED = 1024
"""The number of states kept in memory."""


class StateCache:
    """The recently folded states, in memory, as bytes: every caller gets its own state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._saved: OrderedDict[tuple[int, str, int, str | None], Saved] = OrderedDict()
        """The states by the id of their topic, so that states of a dropped topic are no longer found."""
        self._topic_ids: dict[str, tuple[int, int]] = {}
        """By name: `Engine.changes` at the look-up of a topic's id, and the id, 0 for none."""

    def get(self, topic: int, declared: Declared, key: str | None) -> Saved | None:
        return self._saved.get((topic, declared.name, declared.version, key))

    def put(self, topic: int, declared: Declared, key: str | None, saved: Saved) -> None:
        wanted = (topic, declared.name, declared.version, key)
        with self._lock:
            self._saved[wanted] = saved
            self._saved.move_to_end(wanted)
            while len(self._saved) > _REMEMBERED:
                self._saved.popitem(last=False)

    def topic_id_of(self, log: TopicLog) -> int:
        """Returns the current id of a topic, 0 for none.

        The id is looked up again only after a commit of any process.
        """
        changes = log.core.engine.changes()  # before the look-up: a commit between the two means another look-up
        known = self._topic_ids.get(log.name)
        if known is None or known[0] != changes:
            with log.core.engine.read() as snap:
                record = load_record(snap, log.name)
            known = self._topic_ids[log.name] = changes, 0 if record is None else record.topic_id
        return known[1]

    def clear(self) -> None:
        self._saved.clear()


def project(
    log: TopicLog, states: StateCache, projection: type[P], key: str | None, freshness: Freshness
) -> tuple[int, P | None]:
    """Returns the position and the state of an entity (or of the whole topic); 0 and None without events."""
    folder = folder_of(projection)
    declared = folder.declared
    if key is not None:
        check_text(key, "key")
    if freshness not in ("consistent", "cached"):
        raise ConfigError(f'freshness is "consistent" or "cached", not {freshness!r}')
    core, name = log.core, log.name
    if freshness == "cached":
        remembered = states.get(states.topic_id_of(log), declared, key)
        if remembered is not None and remembered.fingerprint == declared.fingerprint:
            return remembered.generation, unpack_state(projection, remembered.state)
    with core.engine.read() as snap:
        view = TopicView.open(snap, name)
        if view is None:
            return 0, None
        state_of_topic = view.state()
        start = _newest_valid(view, declared, key, state_of_topic, states.get(view.topic_id, declared, key))
        state = _unpacked(projection, start) if start is not None else None
        if freshness == "cached" and start is not None and state is not None:
            return start.generation, state
        if state is None:
            state, start = projection(), None
        pieces = _events_to_fold(core.index, view, key, start.generation if start is not None else 0)
        first, last, count = folder.fold_pieces(state, pieces)
    if not count:
        return (start.generation, state) if start is not None else (0, None)
    first = start.first if start is not None else first
    saved = Saved(declared.fingerprint, last, first, state_of_topic.version, pack_state(state), FOLD)
    states.put(view.topic_id, declared, key, saved)
    if count >= SAVE_AFTER and not core.engine.read_only:
        _save_soon(log, view.topic_id, declared, key, saved)
    return last, state


def project_if_changed(
    log: TopicLog, states: StateCache, projection: type[P], key: str | None, position: int
) -> tuple[int, P | None] | None:
    """Returns None when the newest event of the entity is still at `position`, else its new position and the state."""
    check_position(position, "position")
    check_projection(projection)
    if (newest_position(log, check_text(key, "key")) if key is not None else log.ask(TopicView.newest, 0)) == position:
        return None
    newest, state = project(log, states, projection, key, "consistent")
    return None if newest == position else (newest, state)


def folded(projection: type[P], events: Iterable[Event]) -> tuple[int, P | None]:
    """Returns the position of the last event, and the state folded from the events; 0 and None without events."""
    newest = 0

    def noted() -> Iterator[Event]:
        nonlocal newest
        for event in events:
            newest = event.seq
            yield event

    state = folder_of(projection).fold_events(projection(), noted())
    return newest, state if newest else None


def _events_to_fold(index: EntityIndex, view: TopicView, key: str | None, after: int) -> Iterable[Piece]:
    """Returns the events to fold: of an entity, or of the whole topic."""
    if key is not None:
        return index.open(view).pieces(key, after, keys.MAX_SEQ)
    return (
        (block, range(block.row_after(after) if block.first <= after else 0, block.count))
        for block in view.blocks(after, keys.MAX_SEQ)
    )


def _newest_valid(
    view: TopicView, declared: Declared, key: str | None, state: TopicState, remembered: Saved | None
) -> Saved | None:
    """Returns the newest valid saved state."""
    if remembered is not None and is_valid(remembered, declared, state):
        return remembered
    saved = load_saved(view.snap, view.topic_id, declared, key)
    return saved if saved is not None and is_valid(saved, declared, state) else None


def _unpacked(projection: type[P], saved: Saved) -> P | None:
    """Returns a saved state, or None when the projection can no longer read it and must fold it anew."""
    try:
        return unpack_state(projection, saved.state)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _save_soon(log: TopicLog, topic_id: int, declared: Declared, key: str | None, saved: Saved) -> None:
    def apply(commit: Commit) -> None:
        current = commit.is_current(log.name, topic_id)
        if current and load_state(commit.tx, topic_id, log.name).version == saved.compacted:
            save(commit.tx, topic_id, declared, key, saved)

    with suppress(Closed):  # the state was folded anyway, but will not be saved
        log.core.writer.submit(WriteRequest(apply, len(saved.state), relaxed=True), nested=True)


# ── Folded states kept in the store, so that a projection reads only what is new ──
#     p topic name-length name version key        a saved state: the entity's, or (empty key) the whole topic's
#
# A saved state is used only when it is what folding would give: the projection has the same version, fields and kinds,
# and none of the events it was folded from has been removed since. Losing one loses time, nothing else.


SNAPSHOT = b"p"
FOLD = 1
"""A number that is saved with a projection's states, and that grows when earlier states may be wrong: states without
it may hold events twice, because look-ups found events twice in a store that was sealed or compacted by key.
"""


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """A stored state."""

    fingerprint: int
    generation: int
    """The position of the newest event in it."""
    first: int
    """The position of the oldest event in it."""
    compacted: int
    """The topic's `TopicState.version` when the state was folded."""
    state: bytes
    fold: int = 0
    """`FOLD` at the time of saving; 0 for states of a streaming query, which uses no look-ups."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def saved_key(topic: int, declared: Declared, key: str | None) -> bytes:
    return _versions(topic, declared) + declared.version.to_bytes(4) + (key or "").encode()


def _versions(topic: int, declared: Declared) -> bytes:
    name = declared.name.encode()
    return SNAPSHOT + topic.to_bytes(4) + len(name).to_bytes(1) + name


def load_saved(snap: Snapshot, topic: int, declared: Declared, key: str | None) -> Saved | None:
    """Returns a saved state, or None without a readable state."""
    value = snap.get(saved_key(topic, declared, key))
    return None if value is None else _saved(value)


def _saved(value: bytes) -> Saved | None:
    body = keys.without_checksum(value)
    try:
        return None if body is None else _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def saved_states(snap: Snapshot, topic: int, declared: Declared) -> Iterator[tuple[str | None, Saved]]:
    """Yields the readable states of the declared version with their keys, None for the whole topic."""
    low = _versions(topic, declared) + declared.version.to_bytes(4)
    for stored, value in snap.scan(low, prefix_end(low)):
        saved = _saved(value)
        if saved is not None:
            yield stored[len(low) :].decode() or None, saved


def first_saved(snap: Snapshot, topic: int, declared: Declared) -> tuple[int, Saved] | None:
    """Returns the version and the state of the first state under a projection's name, of any version."""
    low = _versions(topic, declared)
    for key, value in snap.scan(low, prefix_end(low)):
        saved = _saved(value)
        if saved is not None:
            return int.from_bytes(key[len(low) : len(low) + 4]), saved
    return None


def is_valid(saved: Saved, declared: Declared, state: TopicState) -> bool:
    """Returns True if a fold from the beginning would give the same state."""
    made_like = (saved.fold, saved.fingerprint, saved.compacted)
    return made_like == (FOLD, declared.fingerprint, state.version) and saved.first > state.trimmed


def check_folded(saved: Saved, key: str | None, state: TopicState, latest: int) -> None:
    """Refuses a state with positions that the topic has not reached, because `project` would skip their events."""
    if not 1 <= saved.first <= saved.generation <= latest:
        raise ConfigError(
            f"the state of {(key or 'the whole topic')[:40]!r} says that it was folded from events {saved.first} to "
            f"{saved.generation}; the topic's are {state.began + 1} to {latest}"
        )
    check_not_dropped(saved, key, state)


def check_not_dropped(saved: Saved, key: str | None, state: TopicState) -> None:
    """Raises PositionTrimmed when a state was folded from events of a dropped topic that was made anew."""
    if saved.first <= state.began:
        raise PositionTrimmed(
            f"the state of {(key or 'the whole topic')[:40]!r} was folded from event {saved.first} on, of a topic that "
            f"was dropped: the topic that was made again begins after {state.began}",
            oldest=state.began + 1,
        )


def save(tx: WriteTx, topic: int, declared: Declared, key: str | None, saved: Saved) -> None:
    """Stores a state, unless a newer state is stored."""
    known = load_saved(tx, topic, declared, key)
    if (
        known is not None
        and known.generation >= saved.generation
        and msgspec.structs.replace(known, generation=saved.generation, state=saved.state) == saved
    ):
        return
    tx.put(saved_key(topic, declared, key), keys.with_checksum(_encode(saved)))


def drop_states(tx: WriteTx, topic: int, declared: Declared) -> None:
    """Removes every state of a projection, of any version."""
    low = _versions(topic, declared)
    tx.delete_range(low, prefix_end(low))


def drop_states_of(tx: WriteTx, topic: int, erased: Collection[str]) -> int:
    """Removes the states of some keys and of the whole topic, of every projection and of every streaming query."""
    low, end = topic_range(SNAPSHOT, topic)
    gone = 0
    while (row := next(iter(tx.scan(low, end)), None)) is not None:
        low = row[0][: 6 + row[0][5] + 4]  # before the key: topic, name, version
        for key in ("", *erased):
            stored = low + key.encode()
            if tx.get(stored) is not None:
                tx.delete(stored)
                gone += 1
        low += b"\xff"  # after every key, which is text
    return gone


def pack_state(projection: Projection) -> bytes:
    """Returns a state's bytes; raises ConfigError for an attribute that is no field, or that cannot be stored."""
    if len(vars(projection)) != len(projection.__projection__.fields):
        _check_fields(projection)
    try:
        return msgspec.msgpack.encode(projection)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"a state of projection {type(projection).__qualname__} cannot be saved: {error}; "
            "let its fields hold plain values, dataclasses or msgspec Structs"
        ) from error


def _check_fields(projection: Projection) -> None:
    """Raises ConfigError when a handler has set an attribute that would not be saved."""
    for name in vars(projection).keys() - projection.__projection__.fields:
        if not hasattr(type(getattr(type(projection), name, None)), "__get__"):  # the value of a cached property
            raise ConfigError(
                f"a handler of projection {type(projection).__qualname__} sets {name!r}, which is no field of it and "
                "would not be part of the state: declare it with a type and a default"
            )


_decoders: dict[type[Any], Any] = {}


def unpack_state(projection: type[P], state: bytes) -> P:
    """Returns a new state for the caller."""
    decode = _decoders.get(projection)
    if decode is None:
        try:
            decode = msgspec.msgpack.Decoder(projection).decode
        except (TypeError, NameError) as error:
            raise ConfigError(
                f"the fields of projection {projection.__qualname__} cannot be read back: {error}; "
                "annotate them with types that can be resolved where the class is defined"
            ) from error
        _decoders[projection] = decode
    found: P = decode(state)
    return found


# ── States as they change: the newest one at once, then another whenever the entity has new events ──


class Watch(Signalled, LiveIterator[P]):
    """A watch of a projection's states: iterate over it (also with `async for`), or call `next`.

    States that were replaced before the watcher looked are skipped: each item is the newest state.
    """

    def __init__(self, log: TopicLog, states: StateCache, projection: type[P], key: str | None) -> None:
        self._log = log
        self._states = states
        self._projection = projection
        self._key = key
        super().__init__(log.core.hub, log.core.hub.signal(log.name))
        self.generation = 0
        """The position of the last returned state."""
        check_projection(projection)

    def _is_closed(self) -> bool:
        if self._log.core.closed and not self._closed:
            raise Closed("the journal was closed under this watch")
        return self._closed

    def _ready(self, *, ask: bool) -> P | None:
        generation, state = project(self._log, self._states, self._projection, self._key, "consistent")
        if generation == self.generation:
            return None
        self.generation = generation
        return state


# ── Entities of a topic: how far one has come, which there are, and the index they are found by ──


def newest_position(log: TopicLog, key: str) -> int:
    """Returns the position of an entity's newest event; 0 when it has none."""

    def newest(view: TopicView) -> int:
        event = log.core.index.open(view).newest(key)
        return event.seq if event is not None else 0

    return log.ask(newest, 0)


def entities(log: TopicLog) -> Iterator[str]:
    """Yields every key that has events, each once, in no particular order."""
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, log.name, log.core.clock.now_ms())
        if view is not None:
            yield from log.core.index.open(view).entities()


def reindex(log: TopicLog) -> None:
    """Drops a topic's index and summaries, and builds them anew in the background."""
    name, core = log.name, log.core
    core.writer.check_idle_here()
    topic_id = log.ask(lambda view: view.topic_id, 0)  # no topic has this id
    for prefix in (keys.SUMMARY, keys.HASHES):
        clear_rows(core.writer, *keys.topic_range(prefix, topic_id))

    def drop(commit: Commit) -> None:
        if commit.is_current(name, topic_id):
            drop_index(commit.tx, topic_id, name)

    core.run(drop)  # the rows of its runs are removed later, together with the synced change
    core.indexer.request(name)


# ── Checking saved states against the events they say they were folded from ──


def verify_states(log: TopicLog, projection: type[P]) -> list[str | None]:
    """Returns the keys (None: the whole topic) of valid saved states that differ from a new fold."""
    folder, core = folder_of(projection), log.core
    wrong: list[str | None] = []
    with core.engine.read() as snap:
        view = TopicView.open(snap, log.name)
        if view is None:
            return wrong
        topic = view.state()
        for key, saved in saved_states(snap, view.topic_id, folder.declared):
            if not is_valid(saved, folder.declared, topic):
                continue
            events = read_view(view, EventQuery(key=key, through=min(saved.generation, MAX_SEQ)), core.index.open)
            folded = pack_state(folder.fold_events(projection(), events))
            try:
                same = unpack_state(projection, saved.state) == unpack_state(projection, folded)
            except msgspec.DecodeError:
                same = False
            if not same or saved.generation > view.latest():
                wrong.append(key)
    return wrong


# ── States that a streaming query keeps between its batches, filed like saved states of its projection ──
#     p topic name@query version key      like a saved state of the projection, but of one streaming query
#
# A state says which position it has reached: one that is saved again, or after a newer one, changes nothing. So tasks
# may save theirs in several commits, and repeat what was cut off.


MAX_FILED_BYTES = 255
"""The most bytes of a projection's name and its query's name together, which must fit into a key of the store."""


class StreamedStates(msgspec.Struct, frozen=True):
    """The states of a projection in one streaming query, which are stored with a topic."""

    topic: str
    name: str
    """The name of the projection."""
    version: int
    query: str
    """The id of the query, which is the same after restarts."""

    def declared(self) -> Declared:
        """Returns the declaration under which this query's states are stored."""
        name = f"{self.name}@{self.query}"
        if len(name.encode()) > MAX_FILED_BYTES:
            raise ConfigError(f"the name of projection {self.name!r} and of its query are too long together")
        return Declared(name, self.version, [])


class StreamedState(msgspec.Struct, frozen=True):
    """The state of an entity between two batches."""

    key: str
    fingerprint: int
    """The fingerprint of the projection; a state of another fingerprint is not continued."""
    generation: int
    """The position of the newest event in it."""
    first: int
    """The position of the oldest event in it."""
    state: bytes


class FiledStates(msgspec.Struct, frozen=True):
    """The projection whose states a query has saved; another projection cannot continue them."""

    version: int
    fingerprint: int


def states_topic(snap: Snapshot, topic: str) -> int:
    """Returns the id of the topic that holds the states; raises ConfigError for a missing topic."""
    record = load_record(snap, topic)
    if record is None:
        raise ConfigError(f"there is no topic {topic!r} to keep a stream's states with")
    return record.topic_id


def load_streamed(snap: Snapshot, topic_id: int, wanted: StreamedStates, key: str) -> StreamedState | None:
    """Returns an entity's state after the query's last batch."""
    saved = load_saved(snap, topic_id, wanted.declared(), key)
    return None if saved is None else StreamedState(key, saved.fingerprint, saved.generation, saved.first, saved.state)


def filed_states(snap: Snapshot, topic_id: int, wanted: StreamedStates) -> FiledStates | None:
    """Returns the projection that made the query's saved states; None when it has saved none."""
    found = first_saved(snap, topic_id, wanted.declared())
    return None if found is None else FiledStates(found[0], found[1].fingerprint)


def save_streamed(commit: Commit, wanted: StreamedStates, states: Iterable[StreamedState], *, whole: bool) -> None:
    """Stores states, unless newer states are stored.

    With `whole`, the states were folded from the whole topic, and are also saved as the projection's own states, if
    none of their events was removed.
    """
    topic_id = states_topic(commit.tx, wanted.topic)
    of_query, own = wanted.declared(), Declared(wanted.name, wanted.version, [])
    topic = load_state(commit.tx, topic_id, wanted.topic)
    for one in states:
        saved = Saved(one.fingerprint, one.generation, one.first, 0, one.state)
        check_not_dropped(saved, one.key, topic)
        save(commit.tx, topic_id, of_query, one.key, saved)
        if whole and not topic.version and one.first > topic.trimmed:
            check_folded(saved, one.key, topic, commit.latest(wanted.topic))
            save(commit.tx, topic_id, own, one.key, msgspec.structs.replace(saved, fold=FOLD))


# ── Folding every entity of a topic again, in one pass over its events ──


_STATES_IN_MEMORY = 20_000
_SAVED_AT_ONCE, _SAVED_BYTES = 1_000, 4 << 20
"""The most states, and bytes of states, that one commit saves."""


class RebuildReport(msgspec.Struct, frozen=True):
    """The result of a rebuild."""

    entities: int
    """The number of states that were folded and saved."""
    events: int
    """The number of events that were read."""
    through: int
    """The position up to which the events were read."""


def rebuild(
    log: TopicLog, states: StateCache, projection: type[P], *, whole: bool, progress: Progress | None
) -> RebuildReport:
    """Removes every saved state of a projection, of all versions, and folds the states anew."""
    log.core.check_open()
    return _Rebuild(log, states, projection, whole, progress).run()


class Rebuilt(msgspec.Struct, frozen=True):
    """The part of a topic that a rebuild folds; zeros for a missing topic."""

    through: int = 0
    events: int = 0
    compacted: int = 0
    """The topic's `TopicState.version`: a state of another version is not used."""


def rebuilt(snap: Snapshot, topic: str) -> Rebuilt:
    view = TopicView.open(snap, topic)
    if view is None:
        return Rebuilt()
    return Rebuilt(view.newest(), view.count(), view.state().version)


class StateSaving:
    """The saving of the states of one rebuild, which replace all earlier states."""

    def __init__(self, log: TopicLog, states: StateCache, projection: type[Any]) -> None:
        self._topic = log.name
        self._core = log.core
        self._states = states
        self._declared = folder_of(projection).declared
        with self._core.engine.read() as snap:
            self.of = rebuilt(snap, self._topic)

    def begin(self) -> None:
        """Removes the saved states of all versions of the projection."""
        if self.of.through:
            self._core.run(partial(replace_states, self._topic, self._declared, (), begin=True), relaxed=True)
            self._states.clear()

    def save(self, folded: Iterable[tuple[str | None, int, int, bytes]]) -> int:
        """Saves states (keys, newest and first positions, and bytes), some at a time. Returns their number."""
        count = 0
        fingerprint = self._declared.fingerprint
        for some in in_parts(folded, lambda one: len(one[3]), _SAVED_BYTES, _SAVED_AT_ONCE):
            part = [
                (key, Saved(fingerprint, newest, first, self.of.compacted, state, FOLD))
                for key, newest, first, state in some
            ]
            self._core.run(partial(replace_states, self._topic, self._declared, part), relaxed=True)
            count += len(part)
        return count


def replace_states(
    topic: str, declared: Declared, states: Iterable[tuple[str | None, Saved]], commit: Commit, *, begin: bool = False
) -> None:
    """Saves states of a rebuild; with `begin`, removes every saved state of the projection first."""
    head = commit.head(topic)
    if head is None:
        raise _dropped(topic)
    state = load_state(commit.tx, head.topic_id, topic)
    if begin:
        drop_states(commit.tx, head.topic_id, declared)
    for key, saved in states:
        check_folded(saved, key, state, commit.latest(topic))
        save(commit.tx, head.topic_id, declared, key, saved)


def _dropped(topic: str) -> UnknownTopic:
    return UnknownTopic(f"topic {topic!r} was dropped while its states were rebuilt")


class _Rebuild:
    """A pass of a rebuild; states that do not fit into memory wait in the store until their next event."""

    def __init__(
        self, log: TopicLog, states: StateCache, projection: type[Any], whole: bool, progress: Progress | None
    ) -> None:
        self._topic = log.name
        self._core = log.core
        self._folder: Fold[Any] = folder_of(projection)
        self._projection = projection
        self._whole = whole
        self._progress = progress
        self._saving = StateSaving(log, states, projection)
        self._live: dict[str | None, list[Any]] = {}
        """By key: the state, the first position, the newest position."""
        self._saved: dict[str | None, int] = {}
        """By key: the newest position of a state that waits in the store."""

    def run(self) -> RebuildReport:
        through, total = self._saving.of.through, self._saving.of.events
        self._saving.begin()
        after = events = 0
        while after < through:
            # A snapshot for the whole pass would keep the engine from cleaning up behind the writer.
            with self._core.engine.read() as snap:
                for step, block in enumerate(self._view(snap).blocks(after, through)):
                    events += self._fold(block, after, through)
                    after = min(block.last, through)
                    if step >= 63:
                        break
                else:
                    after = through
            if self._progress is not None:
                self._progress(events, total)
        self._save_all()
        return RebuildReport(len(self._saved), events, through)

    def _view(self, snap: Snapshot) -> TopicView:
        view = TopicView.open(snap, self._topic)
        if view is None:
            raise _dropped(self._topic)
        if (began := view.began()) >= self._saving.of.through:
            raise PositionTrimmed(
                f"topic {self._topic!r} was dropped while its states were rebuilt: rebuild the states of the new topic",
                oldest=began + 1,
            )
        return view

    def _fold(self, block: Block, after: int, through: int) -> int:
        if len(self._live) >= _STATES_IN_MEMORY:
            self._save_all()
        rows = range(block.row_after(after), block.row_after(through))
        keys = None if self._whole or block.wire.key is None else text_values(block.wire.key, block.count)
        own: list[int] = []
        states: list[Any] = []
        for row in rows if self._whole or keys is not None else ():
            key, seq = None if keys is None else keys[row], block.seq(row)
            if key is None and not self._whole:
                continue
            live = self._live.get(key)
            if live is None:
                live = self._live[key] = self._load(key) or [self._projection(), seq, 0]
            if seq > live[2]:  # otherwise `project` has saved a newer state meanwhile, which includes this event
                live[2] = seq
                own.append(row)
                states.append(live[0])
        told = not_erased(block, own)  # an erased event has no key: where some are left out, all states are the topic's
        self._folder.fold_rows(block, told, states[: len(told)])
        return len(rows)

    def _load(self, key: str | None) -> list[Any] | None:
        newest = self._saved.get(key)
        if newest is None:
            return None
        declared, of = self._folder.declared, self._saving.of
        with self._core.engine.read() as snap:
            saved = load_saved(snap, self._view(snap).topic_id, declared, key)
        if (
            saved is None
            or saved.generation < newest  # events in between would be missing in the state
            or (saved.fingerprint, saved.compacted) != (declared.fingerprint, of.compacted)
        ):
            raise ConfigError(
                f"another rebuild of {declared.name} runs at the same time, or the topic was compacted by key: "
                "let that finish, and rebuild again"
            )
        return [unpack_state(self._projection, saved.state), saved.first, saved.generation]

    def _save_all(self) -> None:
        self._saving.save((key, newest, first, pack_state(state)) for key, (state, first, newest) in self._live.items())
        self._saved.update((key, live[2]) for key, live in self._live.items())
        self._live.clear()

"""Folding every entity of a topic again, in one pass over its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.engine.contract import Snapshot
from penstock.entity.projection import Declared, Fold, Projection, folder_of
from penstock.entity.states import (
    Saved,
    StateCache,
    check_folded,
    drop_states,
    load_saved,
    pack_state,
    save,
    unpack_state,
)
from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic
from penstock.journal.blocks import text_values
from penstock.journal.catalog import load_state
from penstock.journal.commit import Commit
from penstock.journal.reading import TopicView

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog


P = TypeVar("P", bound=Projection)
T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Told how many of how many events are done."""

_STATES_IN_MEMORY = 20_000
_SAVED_AT_ONCE = 1_000


class RebuildReport(msgspec.Struct, frozen=True):
    """What a rebuild did."""

    entities: int
    """How many states were folded and saved."""
    events: int
    """How many events were read."""
    through: int
    """The position up to which they were read."""


def rebuild(
    log: TopicLog, states: StateCache, projection: type[P], *, whole: bool, progress: Progress | None
) -> RebuildReport:
    """Throws every saved state of a projection away and folds them anew; older versions' states go, too."""
    log.core.check_open()
    return _Rebuild(log, states, projection, whole, progress).run()


class Rebuilt(msgspec.Struct, frozen=True):
    """What of a topic a rebuild folds, when it begins: nothing of one that is not there."""

    through: int = 0
    events: int = 0
    compacted: int = 0
    """How far compaction by key has come: a state that is older than that is not used."""


def rebuilt(snap: Snapshot, topic: str) -> Rebuilt:
    view = TopicView.open(snap, topic)
    if view is None:
        return Rebuilt()
    compacted = load_state(snap, view.number, topic).compacted
    return Rebuilt(view.newest(), view.count(), compacted)


class StateSaving:
    """Puts the states of one rebuild into the store, wherever they are folded: in the place of all there were."""

    def __init__(self, log: TopicLog, states: StateCache, projection: type[Any]) -> None:
        self._topic = log.name
        self._core = log.core
        self._states = states
        self._declared = folder_of(projection).declared
        with self._core.engine.read() as snap:
            self.of = rebuilt(snap, self._topic)

    def begin(self) -> None:
        """Removes what is saved, of this version of the projection and of others."""
        if self.of.through:
            self._core.run(partial(replace_states, self._topic, self._declared, (), begin=True), relaxed=True)
            self._states.clear()

    def save(self, folded: Iterable[tuple[str | None, int, int, bytes]]) -> int:
        """Saves states: their keys, newest and first positions, and bytes; some at a time. Returns how many."""
        count = 0
        fingerprint = self._declared.fingerprint
        for some in _in_parts(folded, _SAVED_AT_ONCE):
            part = [
                (key, Saved(fingerprint, newest, first, self.of.compacted, state)) for key, newest, first, state in some
            ]
            self._core.run(partial(replace_states, self._topic, self._declared, part), relaxed=True)
            count += len(part)
        return count


def replace_states(
    topic: str, declared: Declared, states: Iterable[tuple[str | None, Saved]], commit: Commit, *, begin: bool = False
) -> None:
    """Saves states of a rebuild; `begin`: first all goes that is saved of the projection, of whatever version."""
    head = commit.head(topic)
    if head is None:
        raise _dropped(topic)
    state = load_state(commit.tx, head.number, topic)
    if begin:
        drop_states(commit.tx, head.number, declared)
    for key, saved in states:
        check_folded(saved, key, state, commit.latest(topic))
        save(commit.tx, head.number, declared, key, saved)


def _dropped(topic: str) -> UnknownTopic:
    return UnknownTopic(f"topic {topic!r} was dropped while its states were rebuilt")


def _in_parts(folded: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(folded)
    while part := list(islice(rest, size)):
        yield part


class _Rebuild:
    """One pass; states that do not fit into memory wait in the store until their next event comes."""

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
        """State, first position, newest position; by key."""
        self._saved: dict[str | None, int] = {}
        """By key: the newest position in the state that waits in the store."""

    def run(self) -> RebuildReport:
        through, total = self._saving.of.through, self._saving.of.events
        self._saving.begin()
        after = events = 0
        while after < through:
            # A snapshot held for the whole pass would keep the engine from cleaning up behind the writer.
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
                f"topic {self._topic!r} was dropped while its states were rebuilt: rebuild those of the one made anew",
                oldest=began + 1,
            )
        return view

    def _fold(self, block: Any, after: int, through: int) -> int:
        rows = range(block.row_after(after), block.row_after(through))
        if self._whole:
            self._fold_rows(None, block, rows)
            return len(rows)
        by_key: dict[str, list[int]] = {}
        values = text_values(block.wire.key, block.count) if block.wire.key is not None else None
        for row in rows if values is not None else ():
            key = values[row]  # type: ignore[index]
            if key is not None:
                by_key.setdefault(key, []).append(row)
        for key, own in by_key.items():
            self._fold_rows(key, block, own)
        return len(rows)

    def _fold_rows(self, key: str | None, block: Any, rows: Any) -> None:
        live = self._live.get(key)
        if live is None:
            live = self._load(key) or [self._projection(), block.seq(rows[0]), 0]
            if len(self._live) >= _STATES_IN_MEMORY:
                self._save_all()
            self._live[key] = live
        if block.seq(rows[0]) <= live[2]:  # `project` has saved a newer state meanwhile, and these events are in it
            rows = [row for row in rows if block.seq(row) > live[2]]
            if not rows:
                return
        self._folder.fold_pieces(live[0], ((block, rows),))
        live[2] = block.seq(rows[-1])

    def _load(self, key: str | None) -> list[Any] | None:
        newest = self._saved.get(key)
        if newest is None:
            return None
        declared, of = self._folder.declared, self._saving.of
        with self._core.engine.read() as snap:
            saved = load_saved(snap, self._view(snap).number, declared, key)
        if (
            saved is None
            or saved.generation < newest  # events in between would be in no state
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

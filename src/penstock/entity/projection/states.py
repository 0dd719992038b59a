"""The newest state of an entity: what was saved of it, and the events that came after."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from penstock.entity.projection.folding import folder_of
from penstock.entity.projection.projection import Declared, Projection, check_projection
from penstock.entity.projection.snapshot import Saved, is_valid, load_saved, pack_state, save, unpack_state
from penstock.entity.streams import generation as generation_of
from penstock.errors import Closed, ConfigError
from penstock.journal.commit.catalog import TopicState, load_record, load_state
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.journal.index.lookup import Lookup
from penstock.journal.reading import TopicView
from penstock.journal.storage import keys
from penstock.names import check_position, check_text

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog

P = TypeVar("P", bound=Projection)
Freshness = Literal["consistent", "cached"]

SAVE_AFTER = 100
"""Newly folded events after which a state is saved in the store."""
_REMEMBERED = 1024
"""States kept in memory."""


class StateCache:
    """The states folded lately, in memory, as bytes: every caller gets a state of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._saved: OrderedDict[tuple[int, str, int, str | None], Saved] = OrderedDict()
        """By the number of their topic, as the saved ones: those of a topic that was dropped are not found any more."""
        self._numbers: dict[str, tuple[int, int]] = {}
        """By name: `Engine.changes` when a topic's number was looked up, and the number; 0 for none."""

    def get(self, topic: int, declared: Declared, key: str | None) -> Saved | None:
        return self._saved.get((topic, declared.name, declared.version, key))

    def put(self, topic: int, declared: Declared, key: str | None, saved: Saved) -> None:
        place = (topic, declared.name, declared.version, key)
        with self._lock:
            self._saved[place] = saved
            self._saved.move_to_end(place)
            while len(self._saved) > _REMEMBERED:
                self._saved.popitem(last=False)

    def number_of(self, log: TopicLog) -> int:
        """The number of the topic that has a name now; 0 for none. Looked up only after a commit, of any process."""
        changes = log.core.engine.changes()  # before the look: a commit between the two means another look
        known = self._numbers.get(log.name)
        if known is None or known[0] != changes:
            with log.core.engine.read() as snap:
                record = load_record(snap, log.name)
            known = self._numbers[log.name] = changes, 0 if record is None else record.number
        return known[1]

    def clear(self) -> None:
        self._saved.clear()


def project(
    log: TopicLog, states: StateCache, projection: type[P], key: str | None, freshness: Freshness
) -> tuple[int, P | None]:
    """An entity's (or the whole topic's) generation and state; 0 and None when it has no events."""
    folder = folder_of(projection)
    declared = folder.declared
    if key is not None:
        check_text(key, "key")
    if freshness not in ("consistent", "cached"):
        raise ConfigError(f'freshness is "consistent" or "cached", not {freshness!r}')
    core, name = log.core, log.name
    if freshness == "cached":
        remembered = states.get(states.number_of(log), declared, key)
        if remembered is not None and remembered.fingerprint == declared.fingerprint:
            return remembered.generation, unpack_state(projection, remembered.state)
    lookup = core.index.lookup(name) if key is not None else None
    with core.engine.read() as snap:
        view = TopicView.open(snap, name)
        if view is None:
            return 0, None
        state_of_topic = load_state(snap, view.number, name)
        start = _start(view, declared, key, state_of_topic, states.get(view.number, declared, key))
        state = _unpacked(projection, start) if start is not None else None
        if freshness == "cached" and start is not None and state is not None:
            return start.generation, state
        if state is None:
            state, start = projection(), None
        pieces = _Pieces(view, lookup, key, start.generation if start is not None else 0)
        state, last, count = folder.fold_pieces(state, pieces)
    if not count:
        return (start.generation, state) if start is not None else (0, None)
    first = start.first if start is not None else pieces.first
    saved = Saved(declared.fingerprint, last, first, state_of_topic.compacted, pack_state(state))
    states.put(view.number, declared, key, saved)
    if count >= SAVE_AFTER and not core.engine.read_only:
        _save_soon(log, view.number, declared, key, saved)
    return last, state


def project_if_changed(
    log: TopicLog, states: StateCache, projection: type[P], key: str | None, generation: int
) -> tuple[int, P | None] | None:
    """None when the entity is still at `generation`, else its generation now and its state."""
    check_position(generation, "generation")
    check_projection(projection)
    if (generation_of(log, key) if key is not None else log.ask(TopicView.newest, 0)) == generation:
        return None
    newest, state = project(log, states, projection, key, "consistent")
    return None if newest == generation else (newest, state)


class _Pieces:
    """What is to be folded, and where it began."""

    def __init__(self, view: TopicView, lookup: Lookup | None, key: str | None, after: int) -> None:
        self._view, self._lookup, self._key, self._after = view, lookup, key, after
        self.first = 0

    def __iter__(self) -> Any:
        if self._key is not None:
            assert self._lookup is not None
            found: Any = self._lookup.open(self._view).pieces(self._key, self._after, keys.MAX_SEQ)
        else:
            found = self._whole()
        for block, rows in found:
            if not self.first and len(rows):
                self.first = block.seq(rows[0])
            yield block, rows

    def _whole(self) -> object:
        after = self._after
        for block in self._view.blocks(after, keys.MAX_SEQ):
            yield block, range(block.row_after(after) if block.first <= after else 0, block.count)


def _start(
    view: TopicView, declared: Declared, key: str | None, state: TopicState, remembered: Saved | None
) -> Saved | None:
    """The newest saved state that can be trusted."""
    if remembered is not None and is_valid(remembered, declared, state):
        return remembered
    saved = load_saved(view.snap, view.number, declared, key)
    return saved if saved is not None and is_valid(saved, declared, state) else None


def _unpacked(projection: type[P], saved: Saved) -> P | None:
    """A saved state, or None when the projection can no longer read it: then it is folded anew."""
    try:
        return unpack_state(projection, saved.state)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _save_soon(log: TopicLog, number: int, declared: Declared, key: str | None, saved: Saved) -> None:
    def apply(commit: Commit) -> None:
        if commit.is_current(log.name, number):
            save(commit.tx, number, declared, key, saved)

    with suppress(Closed):  # the state was folded all the same, only it will not be found saved
        log.core.writer.submit(WriteRequest(apply, len(saved.state), relaxed=True), nested=True)

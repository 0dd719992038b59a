"""Folding every entity of a topic again, in one pass over its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.entity.projection.folding import Fold, folder_of
from penstock.entity.projection.projection import Projection
from penstock.entity.projection.snapshot import (
    Saved,
    drop_other_versions,
    drop_version,
    load_saved,
    pack_state,
    save,
    unpack_state,
)
from penstock.errors import ConfigError, TopicDropped
from penstock.journal.commit.catalog import load_state
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.writer import WriteRequest
from penstock.journal.reading import TopicView
from penstock.journal.storage.columns import text_values

if TYPE_CHECKING:
    from penstock.entity.topic import EntityTopic

P = TypeVar("P", bound=Projection)
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


def rebuild(topic: EntityTopic, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
    """Throws every saved state of a projection away and folds them anew; older versions' states go, too."""
    topic.journal._check_open()
    return _Rebuild(topic, projection, whole, progress).run()


class _Rebuild:
    """One pass; states that do not fit into memory wait in the store until their next event comes."""

    def __init__(self, topic: EntityTopic, projection: type[Any], whole: bool, progress: Progress | None) -> None:
        self._topic = topic
        self._journal = topic.journal
        self._folder: Fold[Any] = folder_of(projection)
        self._projection = projection
        self._whole = whole
        self._progress = progress
        self._live: dict[str | None, list[Any]] = {}
        """State, first position, newest position; by key."""
        self._entities: set[str | None] = set()

    def run(self) -> RebuildReport:
        with self._journal._engine.read() as snap:
            view = TopicView.open(snap, self._topic.name)
            if view is None:
                return RebuildReport(0, 0, 0)
            self._number = view.number
            state = load_state(snap, view.number, self._topic.name)
            self._compacted, through = state.compacted, view.latest()
            total = view.count()
        self._change(self._drop)
        self._journal._states.clear()
        after = events = 0
        while after < through:
            # A snapshot held for the whole pass would keep the engine from cleaning up behind the writer.
            with self._journal._engine.read() as snap:
                view = TopicView.open(snap, self._topic.name)
                if view is None or view.number != self._number:
                    raise self._dropped()
                for step, block in enumerate(view.blocks(after, through)):
                    events += self._fold(block, after, through)
                    after = min(block.last, through)
                    if step >= 63:
                        break
                else:
                    after = through
            if self._progress is not None:
                self._progress(events, total)
        self._save_all()
        return RebuildReport(len(self._entities), events, through)

    def _drop(self, commit: Commit) -> None:
        drop_version(commit.tx, self._number, self._folder.declared)
        drop_other_versions(commit.tx, self._number, self._folder.declared)

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
            self._entities.add(key)
        self._folder.fold_pieces(live[0], ((block, rows),))
        live[2] = block.seq(rows[-1])

    def _load(self, key: str | None) -> list[Any] | None:
        if key not in self._entities:
            return None
        with self._journal._engine.read() as snap:
            saved = load_saved(snap, self._number, self._folder.declared, key)
        if saved is None:
            raise ConfigError(f"another rebuild of {self._folder.declared.name} runs at the same time: let it finish")
        return [unpack_state(self._projection, saved.state), saved.first, saved.generation]

    def _save_all(self) -> None:
        items = list(self._live.items())
        declared = self._folder.declared
        for start in range(0, len(items), _SAVED_AT_ONCE):
            part = [
                (key, Saved(declared.fingerprint, newest, first, self._compacted, pack_state(state)))
                for key, (state, first, newest) in items[start : start + _SAVED_AT_ONCE]
            ]

            def apply(commit: Commit, part: list[tuple[str | None, Saved]] = part) -> None:
                for key, saved in part:
                    save(commit.tx, self._number, declared, key, saved)

            self._change(apply)
        self._live.clear()

    def _change(self, apply: Callable[[Commit], None]) -> None:
        def checked(commit: Commit) -> None:
            if not commit.is_current(self._topic.name, self._number):
                raise self._dropped()
            apply(commit)

        self._journal._writer.run(WriteRequest(checked, relaxed=True))

    def _dropped(self) -> TopicDropped:
        return TopicDropped(f"topic {self._topic.name!r} was dropped while its states were rebuilt")

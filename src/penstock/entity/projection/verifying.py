"""Checking saved states against the events they say they were folded from."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.entity.projection.folding import folder_of
from penstock.entity.projection.projection import Projection
from penstock.entity.projection.snapshot import is_valid, pack_state, saved_states, unpack_state
from penstock.journal.commit.catalog import load_state
from penstock.journal.log import read_view
from penstock.journal.reading import EventFilter, TopicView
from penstock.journal.storage.keys import MAX_SEQ

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog

P = TypeVar("P", bound=Projection)


def verify_states(log: TopicLog, projection: type[P]) -> list[str | None]:
    """The keys (None: the whole topic) of saved states that `project` would use, and that folding does not give."""
    folder, core = folder_of(projection), log.core
    lookup = core.index.lookup(log.name)
    wrong: list[str | None] = []
    with core.engine.read() as snap:
        view = TopicView.open(snap, log.name)
        if view is None:
            return wrong
        topic = load_state(snap, view.number, log.name)
        for key, saved in saved_states(snap, view.number, folder.declared):
            if not is_valid(saved, folder.declared, topic):
                continue
            by_key, through = (None if key is None else lookup), min(saved.generation, MAX_SEQ)
            events = read_view(view, 0, None, through, EventFilter(key), None, reverse=False, lookup=by_key)
            folded = pack_state(folder.fold_events(projection(), events))
            try:
                same = unpack_state(projection, saved.state) == unpack_state(projection, folded)
            except msgspec.DecodeError:
                same = False
            if not same or saved.generation > view.latest():
                wrong.append(key)
    return wrong

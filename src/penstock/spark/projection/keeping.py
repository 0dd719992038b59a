"""Where a projected stream keeps its states: in a journal that tasks open themselves, or at a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from penstock.entity.projection.streamed import (
    FiledStates,
    StreamedState,
    StreamedStates,
    filed_states,
    load_streamed,
    save_streamed,
    states_topic,
)
from penstock.journal.commit.commit import Commit
from penstock.protocol.bulk import (
    FIND_STATES,
    MOST_STATES,
    SAVE_STATES,
    SaveStatesRequest,
    StatesRequest,
)
from penstock.remote.journal import RemoteJournal
from penstock.remote.rebuilding import shares
from penstock.spark.served.connection import check_may_write, check_same, client_of, patiently
from penstock.spark.source.place import JournalPlace
from penstock.spark.source.stores import journal_id, reading, writing


class LoadedStates(NamedTuple):
    """The states of some entities."""

    states: Mapping[str, StreamedState]
    filed: FiledStates | None
    """Of which projection the query's states are; None when it has none."""


class StateKeeper(Protocol):
    """Loads and saves the states of streams, in a task."""

    def make_topic(self, name: str) -> None:
        """Makes the topic that states are kept with, where that is none of the stream's own."""

    def load(self, wanted: StreamedStates, keys: Sequence[str]) -> LoadedStates: ...

    def save(self, wanted: StreamedStates, states: Sequence[StreamedState], *, whole: bool) -> None:
        """Keeps states; PositionTrimmed when they were folded from a topic that was dropped."""


def keeper_of(place: JournalPlace) -> StateKeeper:
    """The keeper of a journal's states; ConfigError when they cannot be kept there.

    Where a server writes the journal, it is asked for what it has written as well: a reader of its own may be behind.
    """
    if place.server is None:
        return OpenedKeeper(place.url, journal_id(place.url))
    about = check_may_write(place.server, "a projected stream, which keeps its states,", role="admin")
    return ServedKeeper(place.server, about.id)


class OpenedKeeper:
    """A journal that tasks open."""

    def __init__(self, url: str, id: str | None) -> None:
        self.url = url
        self.id = id

    def make_topic(self, name: str) -> None:
        with writing(self.url, self.id) as journal:
            journal.topic(name).configure()
            self.id = journal.id

    def load(self, wanted: StreamedStates, keys: Sequence[str]) -> LoadedStates:
        with reading(self.url, self.id)._engine.read() as snap:
            number = states_topic(snap, wanted.topic)
            found = (load_streamed(snap, number, wanted, key) for key in keys)
            states = {one.key: one for one in found if one is not None}
            return LoadedStates(states, filed_states(snap, number, wanted))

    def save(self, wanted: StreamedStates, states: Sequence[StreamedState], *, whole: bool) -> None:
        def apply(commit: Commit) -> None:
            save_streamed(commit, wanted, states, whole=whole)

        with writing(self.url, self.id) as journal:
            journal._core.run(apply)


class ServedKeeper:
    """A journal at a server. Every request may be repeated."""

    def __init__(self, place: JournalPlace, id: str) -> None:
        self.place = place
        self.id = id

    def make_topic(self, name: str) -> None:
        token = None if self.place.token is None else self.place.token.reveal()
        with RemoteJournal(self.place.url, token=token) as journal:
            if name not in journal.topics():
                journal.topic(name).configure()

    def load(self, wanted: StreamedStates, keys: Sequence[str]) -> LoadedStates:
        at = 0
        found: dict[str, StreamedState] = {}
        while True:
            asked = StatesRequest(wanted.name, wanted.version, wanted.query, list(keys[at : at + MOST_STATES]))
            answer = patiently(partial(client_of(self.place).call, FIND_STATES, wanted.topic, body=asked))
            check_same(self.place, answer.journal, self.id)
            at += answer.found
            found.update((one.key, one) for one in answer.states)
            if at >= len(keys):
                return LoadedStates(found, answer.filed)

    def save(self, wanted: StreamedStates, states: Sequence[StreamedState], *, whole: bool) -> None:
        for some in shares(states):
            asked = SaveStatesRequest(self.id, wanted.name, wanted.version, wanted.query, some, whole)
            patiently(partial(client_of(self.place).call, SAVE_STATES, wanted.topic, body=asked))

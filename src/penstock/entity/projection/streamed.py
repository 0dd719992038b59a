"""States that a streaming query keeps between its batches, filed like saved states of its projection.

    p topic name@query version key      like a saved state of the projection, but of one streaming query

A state says which position it has reached: one that is saved again, or after a newer one, changes nothing. So tasks may
save theirs in several commits, and repeat what was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.engine.contract import Snapshot
from penstock.entity.projection.projection import Declared
from penstock.entity.projection.snapshot import Saved, check_folded, check_not_dropped, first_saved, load_saved, save
from penstock.errors import ConfigError
from penstock.journal.commit.catalog import load_record, load_state
from penstock.journal.commit.commit import Commit

MAX_FILED_BYTES = 255
"""Of a projection's name and its query's, together, as a key of the store has room for them."""


class StreamedStates(msgspec.Struct, frozen=True):
    """Which states: those of a projection in one streaming query, kept with a topic."""

    topic: str
    name: str
    """The projection's."""
    version: int
    query: str
    """The query's id, which restarts do not change."""

    def declared(self) -> Declared:
        """The projection as this query's states are filed."""
        name = f"{self.name}@{self.query}"
        if len(name.encode()) > MAX_FILED_BYTES:
            raise ConfigError(f"the name of projection {self.name!r} and of its query are too long together")
        return Declared(name, self.version, [])


class StreamedState(msgspec.Struct, frozen=True):
    """One entity's state between two batches."""

    key: str
    fingerprint: int
    """Of the projection that made it: another one's is not gone on with."""
    generation: int
    """The position of the newest event in it."""
    first: int
    """The position of the oldest event in it."""
    state: bytes


class FiledStates(msgspec.Struct, frozen=True):
    """Of which projection the states are that a query has saved: another one cannot go on with them."""

    version: int
    fingerprint: int


def states_topic(snap: Snapshot, topic: str) -> int:
    """The number of the topic that states are kept with; ConfigError when there is none."""
    record = load_record(snap, topic)
    if record is None:
        raise ConfigError(f"there is no topic {topic!r} to keep a stream's states with")
    return record.number


def load_streamed(snap: Snapshot, number: int, wanted: StreamedStates, key: str) -> StreamedState | None:
    """An entity's state, as the query's last batch left it."""
    saved = load_saved(snap, number, wanted.declared(), key)
    return None if saved is None else StreamedState(key, saved.fingerprint, saved.generation, saved.first, saved.state)


def filed_states(snap: Snapshot, number: int, wanted: StreamedStates) -> FiledStates | None:
    """What the query's states are of; None when it has saved none."""
    found = first_saved(snap, number, wanted.declared())
    return None if found is None else FiledStates(found[0], found[1].fingerprint)


def save_streamed(commit: Commit, wanted: StreamedStates, states: Iterable[StreamedState], *, whole: bool) -> None:
    """Keeps states, unless newer ones are there. `whole`: they were folded from the whole topic, and are saved as the
    projection's own too, where no event was removed that is in them."""
    number = states_topic(commit.tx, wanted.topic)
    of_query, own = wanted.declared(), Declared(wanted.name, wanted.version, [])
    topic = load_state(commit.tx, number, wanted.topic)
    for one in states:
        saved = Saved(one.fingerprint, one.generation, one.first, 0, one.state)
        check_not_dropped(saved, one.key, topic)
        save(commit.tx, number, of_query, one.key, saved)
        if whole and not topic.compacted and one.first > topic.trimmed:
            check_folded(saved, one.key, topic, commit.latest(wanted.topic))
            save(commit.tx, number, own, one.key, saved)

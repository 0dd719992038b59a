"""What projected streams remember between batches, for tasks elsewhere: loaded some MiB at a time, saved in one commit.
And states that were folded anew elsewhere, in the place of those that were saved.

A request that is repeated changes nothing: a state says which position it has reached, and an older one never takes the
place of a newer one.
"""

from __future__ import annotations

from functools import partial

from penstock.entity.projection import Declared
from penstock.entity.states import (
    MAX_FILED_BYTES,
    Saved,
    StreamedState,
    StreamedStates,
    filed_states,
    load_streamed,
    rebuilt,
    save_streamed,
    states_topic,
)
from penstock.entity.states import replace_states as replace_all
from penstock.errors import ConfigError
from penstock.journal.commit import Commit
from penstock.limits import MAX_KEY_BYTES
from penstock.names import check_name
from penstock.protocol import bulk as operations
from penstock.protocol.bulk import (
    FoldedTopic,
    RebuiltStatesRequest,
    SaveStatesRequest,
    StatesDocument,
    StatesRequest,
    StatesSaved,
)
from penstock.server.api.binding import Call, serves
from penstock.server.limits import BLOCKS_BYTES


@serves(operations.FIND_STATES)
def find_states(call: Call[None, StatesRequest]) -> StatesDocument:
    asked, journal = call.body, call.service.journal
    wanted = StreamedStates(check_name(call.name("topic")), asked.name, asked.version, asked.query)
    states: list[StreamedState] = []
    size = done = 0
    with journal._engine.read() as snap:
        topic_id = states_topic(snap, wanted.topic)
        filed = filed_states(snap, topic_id, wanted)
        for key in asked.keys:
            done += 1
            one = load_streamed(snap, topic_id, wanted, key)
            if one is None:
                continue
            states.append(one)
            size += len(one.state)
            if size >= BLOCKS_BYTES:
                break
    return StatesDocument(journal.id, done, states, filed)


@serves(operations.SAVE_STATES)
def save_states(call: Call[None, SaveStatesRequest]) -> StatesSaved:
    asked, journal = call.body, call.service.journal
    _check_journal(asked.journal, journal.id)
    wanted = StreamedStates(check_name(call.name("topic")), asked.name, asked.version, asked.query)
    for one in asked.states:
        _check(one)
    journal._core.run(partial(_save, asked, wanted))
    return StatesSaved(len(asked.states))


@serves(operations.FOLD_TOPIC)
def fold_topic(call: Call[None, None]) -> FoldedTopic:
    journal = call.service.journal
    with journal._engine.read() as snap:
        of = rebuilt(snap, check_name(call.name("topic")))
    return FoldedTopic(journal.id, of.through, of.events, of.compacted)


@serves(operations.REPLACE_STATES)
def replace_states(call: Call[None, RebuiltStatesRequest]) -> StatesSaved:
    asked, journal = call.body, call.service.journal
    _check_journal(asked.journal, journal.id)
    if len(asked.name.encode()) > MAX_FILED_BYTES:
        raise ConfigError(f"the name of projection {asked.name!r} is longer than {MAX_FILED_BYTES} bytes")
    saved = []
    for one in asked.states:
        if one.key:
            _check(one)
        saved.append((one.key, Saved(one.fingerprint, one.generation, one.first, asked.compacted, one.state)))
    declared = Declared(asked.name, asked.version, [])
    topic = check_name(call.name("topic"))
    journal._core.run(partial(replace_all, topic, declared, saved, begin=asked.begin))
    journal._entities.states.clear()
    return StatesSaved(len(saved))


def _check_journal(asked: str, id: str) -> None:
    if asked != id:
        raise ConfigError("another journal is served here than where these states were loaded: none was saved")


def _check(one: StreamedState) -> None:
    if not one.key or len(one.key.encode()) > MAX_KEY_BYTES:
        raise ConfigError(f"a key is text of 1 to {MAX_KEY_BYTES:,} bytes, not {one.key[:40]!r}")
    if not 1 <= one.first <= one.generation:
        raise ConfigError(f"the state of {one.key[:40]!r} begins at {one.first} and ends at {one.generation}")


def _save(asked: SaveStatesRequest, wanted: StreamedStates, commit: Commit) -> None:
    save_streamed(commit, wanted, asked.states, whole=asked.whole)

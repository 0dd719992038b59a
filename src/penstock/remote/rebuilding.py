"""Rebuilding the saved states of a served journal: folded here, since the projection is here, and saved there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.entity.projection import Projection, check_projection, folder_of
from penstock.entity.states import Progress, RebuildReport, StreamedState, pack_state
from penstock.journal.reading import EventQuery
from penstock.protocol.bulk import FOLD_TOPIC, MOST_STATES, REPLACE_STATES, RebuiltStatesRequest
from penstock.remote.client import Client
from penstock.units import in_parts

if TYPE_CHECKING:
    from penstock.events import Event
    from penstock.remote.topic import RemoteTopic

_SAVE_BYTES = 4 << 20
"""Bytes of states after which a request to save them ends, and the next one begins."""
_EVENTS_AT_ONCE = 1_000
"""Events whose entities are gathered before they are folded."""


class RemoteStateSaving:
    """Puts the states of one rebuild into a served journal. `ask` makes a request, and may make it again."""

    def __init__(
        self,
        client: Client,
        topic: str,
        projection: type[Any],
        ask: Callable[[Callable[[], Any]], Any] = lambda request: request(),
    ) -> None:
        self._client = client
        self._topic = topic
        self._declared = folder_of(projection).declared
        self._ask = ask
        self.of = ask(lambda: client.call(FOLD_TOPIC, topic))

    def begin(self) -> None:
        """Removes what is saved, of this version of the projection and of others."""
        self._send([], begin=True)

    def save(self, folded: Iterable[tuple[str | None, int, int, bytes]]) -> int:
        """Saves states: their keys, newest and first positions, and bytes; some at a time. Returns how many."""
        fingerprint = self._declared.fingerprint
        count = 0
        states = (StreamedState(key or "", fingerprint, newest, first, state) for key, newest, first, state in folded)
        for some in shares(states):
            self._send(some, begin=False)
            count += len(some)
        return count

    def _send(self, states: list[StreamedState], *, begin: bool) -> None:
        own, of = self._declared, self.of
        asked = RebuiltStatesRequest(of.journal, of.compacted, own.name, own.version, states, begin)
        self._ask(lambda: self._client.call(REPLACE_STATES, self._topic, body=asked))


def shares(states: Iterable[StreamedState]) -> Iterator[list[StreamedState]]:
    """As many states at a time as are worth a request."""
    return in_parts(states, lambda one: len(one.state), _SAVE_BYTES, MOST_STATES)


def rebuild_served(
    topic: RemoteTopic, projection: type[Projection], *, whole: bool, progress: Progress | None
) -> RebuildReport:
    """Folds every event of a served topic and saves the states, when all are folded; until then they are in memory."""
    check_projection(projection)
    saving = RemoteStateSaving(topic.backend.client, topic.name, projection)
    through, total = saving.of.through, saving.of.events
    if not through:
        return RebuildReport(0, 0, 0)
    fold: Any = folder_of(projection).fold_events
    states: dict[str | None, list[Any]] = {}
    """State, newest position, first position; by key."""
    done = 0
    events = topic.read(EventQuery(through=through))
    while some := list(islice(events, _EVENTS_AT_ONCE)):
        done += len(some)
        for key, own in _by_key(some, whole).items():
            held = states.setdefault(key, [projection(), 0, own[0].seq])
            held[0] = fold(held[0], own)
            held[1] = own[-1].seq
        if progress is not None:
            progress(done, max(done, total))
    saving.begin()
    saved = saving.save((key, newest, first, pack_state(state)) for key, (state, newest, first) in states.items())
    return RebuildReport(saved, done, through)


def _by_key(events: list[Event], whole: bool) -> dict[str | None, list[Event]]:
    if whole:
        return {None: events}
    by_key: dict[str | None, list[Event]] = {}
    for event in events:
        if event.key is not None:
            by_key.setdefault(event.key, []).append(event)
    return by_key

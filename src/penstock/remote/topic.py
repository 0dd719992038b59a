"""A topic at the other end of a url: the backend of its handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.core.documents.events import DraftDocument
from penstock.core.entity.projection import Projection, check_projection, folder_of
from penstock.core.entity.states import Freshness, RebuildReport, StreamedState, folded, pack_state
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.catalog import Settings
from penstock.core.journal.prepare import make_draft
from penstock.core.model.query import EventQuery
from penstock.core.names import check_position, check_text
from penstock.core.protocol import topics as wire
from penstock.core.protocol.bulk import FOLD_TOPIC, MOST_STATES, REPLACE_STATES, RebuiltStatesRequest
from penstock.core.units import Progress, in_parts
from penstock.remote.client import Client
from penstock.remote.events import draft_documents, read_batches, read_events, receipt_of
from penstock.remote.subscription import RemoteSubscription

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import Ticket, Topic
    from penstock.core.consuming.subscription import OnLag
    from penstock.core.model.arguments import DraftArguments
    from penstock.core.model.plan import BatchPlan
    from penstock.remote.backend import RemoteBackend
    from penstock.remote.worker import RemoteTopicWorker


P = TypeVar("P", bound=Projection)


class RemoteTopic:
    """The backend of a `Topic` of a served journal."""

    def __init__(self, backend: RemoteBackend, name: str) -> None:
        self.backend = backend
        self.name = name

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, kind: object, payload: object, draft: DraftArguments) -> Receipt:
        return self.append_many((make_draft(kind, payload, draft),))[0]

    def append_many(self, drafts: Iterable[Draft]) -> list[Receipt]:
        return self._send(self._documents(drafts))

    def submit(self, kind: object, payload: object, draft: DraftArguments, *, patient: bool) -> Ticket[Receipt]:
        documents = self._documents((make_draft(kind, payload, draft),))
        return self.backend.submit(lambda: self._send(documents, patient)[0], patient=patient)

    def submit_many(self, drafts: Iterable[Draft], *, patient: bool) -> Ticket[list[Receipt]]:
        documents = self._documents(drafts)
        return self.backend.submit(lambda: self._send(documents, patient), patient=patient)

    def _documents(self, drafts: Iterable[Draft]) -> list[DraftDocument]:
        self.backend.check_writable()
        return draft_documents(drafts, self.name)

    def _send(self, documents: list[DraftDocument], patient: bool = True) -> list[Receipt]:
        """Sends drafts. Without `patient`, raises Backpressure at once when the server's writer is behind."""
        if not documents:
            return []
        query = wire.AppendQuery(patient)
        answer = self.backend.client.call(wire.APPEND_EVENTS, self.name, query=query, body=documents)
        return [receipt_of(document) for document in answer]

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def latest(self) -> int:
        return self.backend.call(wire.READ_TOPIC, self.name).latest

    @property
    def oldest(self) -> int:
        return self.backend.call(wire.READ_TOPIC, self.name).oldest

    def length(self) -> int:
        return self.backend.call(wire.READ_TOPIC, self.name).events

    def settings(self) -> Settings:
        return self.backend.call(wire.READ_TOPIC, self.name).settings

    def read(self, query: EventQuery) -> Iterator[Event]:
        return read_events(self.backend, self.name, query)

    def read_arrow(
        self, after: int, limit: int | None, through: int | None, rows: int, payload: Literal["string", "binary"]
    ) -> Iterator[pa.RecordBatch]:
        query = wire.ReadQuery(after=after, through=through, limit=limit, payload=payload)
        return read_batches(self.backend.client, self.name, query, rows)

    def get(self, seq: int) -> Event | None:
        return self.find(str(seq)) if seq else None

    def find(self, id: str) -> Event | None:
        return self.backend.find(wire.READ_EVENT, self.name, id)

    def subscribe(
        self, after: int | Literal["latest"], buffer: int, on_lag: OnLag, wanted: EventQuery
    ) -> RemoteSubscription:
        return RemoteSubscription(self, after, buffer=buffer, on_lag=on_lag, wanted=wanted)

    def worker(self, topic: Topic, plan: BatchPlan) -> RemoteTopicWorker:
        from penstock.remote.worker import RemoteTopicWorker

        return RemoteTopicWorker(self, topic, plan)

    # ── event sourcing: the events travel, the projection does not ───────────────────────────────────────────────────
    def position_of(self, key: str) -> int:
        return next((event.seq for event in self.read(EventQuery(key=key, limit=1, reverse=True))), 0)

    def project(self, projection: type[P], key: str | None, freshness: Freshness) -> P | None:
        return self._folded(projection, key)[1]

    def project_if_changed(self, projection: type[P], key: str | None, position: int) -> tuple[int, P | None] | None:
        check_position(position, "position")
        check_projection(projection)
        if (self.position_of(key) if key is not None else self.latest) == position:
            return None
        newest, state = self._folded(projection, key)
        return None if newest == position else (newest, state)

    def _folded(self, projection: type[P], key: str | None) -> tuple[int, P | None]:
        """Returns the position and the state from one answer: its events are of one topic and end at the topic's end
        at that time.
        """
        return folded(projection, self.read(EventQuery(key=None if key is None else check_text(key, "key"))))

    def rebuild(self, projection: type[P], *, whole: bool, progress: Progress | None) -> RebuildReport:
        self.backend.check_writable()
        return rebuild_served(self, projection, whole=whole, progress=progress)

    def ancestors(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.core.entity.causality import id_of

        at: str | None = id_of(event)
        seen: set[str] = set()
        if isinstance(event, Event):
            yield event
            seen.add(event.id)
            at = event.causation_id
        for cause in self.backend.causes(wire.READ_ANCESTORS, at) if at is not None else ():
            if cause.id in seen:  # a loop, which a server without memory between two pages notices late
                return
            seen.add(cause.id)
            yield cause

    def effects(self, event: Event | Receipt | str) -> Iterator[Event]:
        from penstock.core.entity.causality import id_of

        return self.backend.causes(wire.READ_EFFECTS, id_of(event))


_SAVE_BYTES = 4 << 20
"""The size of the states in one request to save them, in bytes. More states go into the next request."""
_EVENTS_AT_ONCE = 1_000
"""The number of events whose entities are gathered before these entities are folded."""


class RemoteStateSaving:
    """The saving of one rebuild's states in a served journal. `ask` makes a request, and may repeat it."""

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
        """Removes the saved states of all versions of the projection."""
        self._send([], begin=True)

    def save(self, folded: Iterable[tuple[str | None, int, int, bytes]]) -> int:
        """Saves states (keys, newest and first positions, and bytes), some at a time. Returns their number."""
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
    """Yields as many states at a time as are worth a request."""
    return in_parts(states, lambda one: len(one.state), _SAVE_BYTES, MOST_STATES)


def rebuild_served(
    topic: RemoteTopic, projection: type[Projection], *, whole: bool, progress: Progress | None
) -> RebuildReport:
    """Folds every event of a served topic, and saves the states when all events are folded.

    Until then, the states are in memory.
    """
    check_projection(projection)
    saving = RemoteStateSaving(topic.backend.client, topic.name, projection)
    through, total = saving.of.through, saving.of.events
    if not through:
        return RebuildReport(0, 0, 0)
    fold: Any = folder_of(projection).fold_events
    states: dict[str | None, list[Any]] = {}
    """The state, its newest position and its first position, by key."""
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

"""A topic at the other end of a url, for queries. Its blocks are transferred in stored form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.core.clock import from_ms
from penstock.core.events import Event
from penstock.core.journal.blocks import Block
from penstock.core.journal.reading import Bounds
from penstock.core.journal.sealed.files import SealedBytes, without
from penstock.core.model.query import EventQuery
from penstock.core.protocol import bulk as wire
from penstock.core.protocol.operation import BLOCKS
from penstock.core.protocol.topics import FIND_POSITION, LIST_TOPICS, READ_TOPIC, PositionQuery
from penstock.remote.events import read_events

if TYPE_CHECKING:
    from penstock.core.surface.backend import TopicScan
    from penstock.remote.backend import RemoteBackend


@contextmanager
def open_scans(backend: RemoteBackend, wanted: Iterable[str]) -> Iterator[dict[str, TopicScan]]:
    """Opens scans of the existing topics. Each scan ends where its topic ends, all in one state of the journal."""
    names = sorted({*wanted} & {*backend.call(LIST_TOPICS)})
    # no name would mean all topics
    ends = backend.call(wire.READ_ENDS, request=wire.TopicsQuery(names)).ends if names else {}
    lakes = backend.call(wire.LIST_LAKES, request=wire.TopicsQuery(names)) if names else []
    columns = {lake.topic: lake.columns for lake in lakes if lake.columns}
    yield {name: RemoteScan(backend, name, found, columns.get(name, "")) for name, found in ends.items()}


class RemoteScan:
    """A topic of a served journal, up to its end at the beginning of the query."""

    def __init__(self, backend: RemoteBackend, name: str, ends: wire.TopicEnds, columns: str) -> None:
        self._backend = backend
        self._name = name
        self.columns = columns
        self.through = ends.latest
        oldest = backend.call(READ_TOPIC, name).oldest  # without events that are older than the topic's `max_age`
        self.after = max(ends.trimmed, oldest - 1) if oldest else ends.latest

    def files(self) -> tuple[list[SealedBytes], int]:
        return [], self.after

    def position_before(self, ms: int) -> int:
        return self._backend.call(FIND_POSITION, self._name, request=PositionQuery(from_ms(ms).isoformat()))

    def spans(self, after: int, through: int, kinds: frozenset[str]) -> list[Bounds]:
        request = wire.SpansRequest(wire.Wanted(kinds=tuple(sorted(kinds))), through, after)
        return self._backend.call(wire.READ_SPANS, self._name, request=request).spans

    def blocks(self, after: int, through: int) -> Iterator[Block]:
        while after < through:
            query = wire.BlocksQuery(after, through, strict=False)
            message, headers = self._backend.client.download(wire.READ_BLOCKS, self._name, query=query, accept=BLOCKS)
            for block in wire.blocks_of(message, self._name):
                yield without(block, after)  # blocks that were merged since the last answer begin before its end
            after = int(headers[wire.REACHED_HEADER])

    def events(self, query: EventQuery) -> Iterator[Event]:
        return read_events(self._backend, self._name, query)

"""Stored blocks as answers, and what a reader of many needs to know before: ends, sizes, places to cut."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.errors import ConfigError, PositionTrimmed
from penstock.journal.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.names import check_name
from penstock.protocol import bulk as operations
from penstock.protocol.bulk import (
    JOURNAL_HEADER,
    MOST_IDS,
    REACHED_HEADER,
    BlocksQuery,
    Correlations,
    CutsDocument,
    CutsQuery,
    EndsDocument,
    EndsQuery,
    SpansDocument,
    SpansRequest,
    TopicEnds,
)
from penstock.protocol.operation import BLOCKS
from penstock.server.api.binding import Call, serves
from penstock.server.limits import BLOCKS_BYTES
from penstock.server.memory import HeldResponse
from penstock.server.problems import Refused
from penstock.server.service import Service
from penstock.transfer.reading import (
    correlations_of,
    ends_of,
    message_of,
    places_of,
    range_cuts,
    range_size,
    stored_blocks,
    topic_names,
)


@serves(operations.READ_ENDS)
def read_ends(call: Call[EndsQuery, None]) -> EndsDocument:
    journal = call.service.journal
    ends: dict[str, TopicEnds] = {}
    with journal._engine.read() as snap:
        for name in call.query.topic or topic_names(snap):
            view = TopicView.open(snap, check_name(name))
            if view is not None:
                ends[name] = ends_of(view)
    return EndsDocument(journal.id, ends)


@serves(operations.READ_CUTS)
def read_cuts(call: Call[CutsQuery, None]) -> CutsDocument:
    query = call.query
    if query.after >= query.through:
        return CutsDocument(0, [])
    with _topic(call.service, call.name("topic")) as view:
        through = min(query.through, view.latest())
        size = range_size(view, query.after, through)
        if not query.pieces:
            return CutsDocument(size, [])
        return CutsDocument(size, range_cuts(view, query.after, through, query.pieces, exactly=query.exactly))


@serves(operations.READ_SPANS)
def read_spans(call: Call[None, SpansRequest]) -> SpansDocument:
    asked = call.body
    with _topic(call.service, call.name("topic")) as view:
        log = call.service.journal._backend.log(view.name)
    return places_of(log, asked.after, asked.through, asked.wanted)


@serves(operations.READ_BLOCKS)
async def read_blocks(call: Call[BlocksQuery, None]) -> Response:
    """Some blocks: as many as are worth a request, so that a slow reader holds no more than those of the memory."""
    service, packed = call.service, "gzip" in call.request.headers.get("accept-encoding", "")
    message, reached = await run_in_threadpool(_blocks, service, call.name("topic"), call.query)
    if packed:
        message = await run_in_threadpool(_gzipped, message)
    answer = HeldResponse(service.budget, message, 200, BLOCKS)
    answer.headers[JOURNAL_HEADER] = service.journal.id
    answer.headers[REACHED_HEADER] = str(reached)
    if packed:
        answer.headers["Content-Encoding"] = "gzip"
    return answer


def _blocks(service: Service, topic: str, query: BlocksQuery) -> tuple[bytes, int]:
    """Blocks as one message, and how far they reach."""
    after, through = query.after, query.through
    values: list[bytes] = []
    size = 0
    with _topic(service, topic) as view:
        trimmed = load_state(view.snap, view.topic_id, topic).trimmed
        if query.strict and after < min(trimmed, through):
            raise PositionTrimmed(
                f"events {after + 1} to {min(trimmed, through)} of topic {topic!r} were removed; "
                f"the oldest stored is {trimmed + 1}",
                oldest=trimmed + 1,
            )
        for block in stored_blocks(view, after, through):
            values.append(block.value)
            size += len(block.value)
            if size >= BLOCKS_BYTES:
                return message_of(values), min(block.last, through)
    return message_of(values), max(after, through)


def _gzipped(message: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(message) + packer.flush()


@contextmanager
def _topic(service: Service, name: str) -> Iterator[TopicView]:
    """A topic in a snapshot of its own; Refused when there is none."""
    check_name(name)
    with service.journal._engine.read() as snap:
        view = TopicView.open(snap, name)
        if view is None:
            raise Refused(404, "UnknownTopic", f"there is no topic {name!r}")
        yield view


@serves(operations.FIND_CORRELATIONS)
def find_correlations(call: Call[None, list[str]]) -> Correlations:
    if len(call.body) > MOST_IDS:
        raise ConfigError(f"{len(call.body):,} ids are too many at once; at most {MOST_IDS:,}")
    with call.service.journal._engine.read() as snap:
        return Correlations(correlations_of(snap, call.body))

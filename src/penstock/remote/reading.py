"""Reading a topic of a served journal: page by page, as a stream of lines, or as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from urllib3.exceptions import HTTPError

from penstock.clock import from_ms
from penstock.documents.events import EventDocument
from penstock.errors import ConfigError, PositionTrimmed
from penstock.events import Event
from penstock.journal.across import AcrossQuery
from penstock.journal.keys import MAX_SEQ
from penstock.journal.reading import EventQuery
from penstock.protocol import topics as operations
from penstock.protocol.operation import ARROW, LINES, PAGE_EVENTS
from penstock.protocol.problems import Problem, error_of_problem
from penstock.protocol.topics import READ_ACROSS, AcrossRequest, ReadQuery
from penstock.remote.events import event_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.remote.backend import RemoteBackend
    from penstock.remote.client import Client


class _FailureLine(msgspec.Struct):
    """The last line of a stream that could not go on."""

    problem: Problem


_decode_event = msgspec.json.Decoder(EventDocument).decode
_decode_failure = msgspec.json.Decoder(_FailureLine).decode


def wire_filter(query: EventQuery) -> dict[str, Any]:
    """Which events are wanted, beyond positions, as query parameters."""
    return {
        "key": query.key,
        "key_prefix": query.key_prefix,
        "kind": sorted(query.kinds or ()),
        "scope": query.scope,
        "where": None if query.where is None else query.where.text,
    }


def wire_times(query: EventQuery) -> dict[str, Any]:
    """The times between which events are wanted, as query parameters."""
    times = (("since", query.since_ms), ("until", query.until_ms))
    return {name: None if ms is None else from_ms(ms).isoformat() for name, ms in times}


def read_across(backend: RemoteBackend, query: AcrossQuery) -> Iterator[Event]:
    """The wanted events of several topics, a page at a time; where they ended at the first page is the end of all."""
    wanted, through = query.events, None if query.through is None else dict(query.through)
    asked = AcrossRequest(
        topics=list(query.topics),
        after=dict(query.after),
        through=through,
        reverse=wanted.reverse,
        **wire_times(wanted),
        **wire_filter(wanted),
    )
    left = wanted.limit
    while left is None or left > 0:
        asked.limit = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
        page = backend.call(READ_ACROSS, request=asked)
        yield from page.events
        left = None if left is None else left - len(page.events)
        if page.next is None:
            return
        if asked.through is None:
            asked.through = page.ends
        if wanted.reverse:
            asked.through = page.next
        else:
            asked.after = page.next


def read_events(backend: RemoteBackend, topic: str, query: EventQuery) -> Iterator[Event]:
    """The wanted events: a stream, or pages where few are wanted or the newest come first."""
    asked = ReadQuery(
        after=query.after,
        through=None if query.through == MAX_SEQ else query.through,
        limit=query.limit,
        reverse=query.reverse,
        **wire_times(query),
        **wire_filter(query),
    )
    if query.reverse or (query.limit is not None and query.limit <= PAGE_EVENTS):
        return read_pages(backend, topic, asked)
    return read_lines(backend.client, topic, asked)


def read_pages(backend: RemoteBackend, topic: str, query: ReadQuery) -> Iterator[Event]:
    """A page at a time; the newest position of the first page is the end of all."""
    left, reverse, latest = query.limit, query.reverse, 0
    while left is None or left > 0:
        query.limit = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
        page = backend.call(operations.READ_EVENTS, topic, request=query)
        if page.latest < latest:
            raise PositionTrimmed(f"topic {topic!r} was dropped while it was read", oldest=latest + 1)
        latest = page.latest
        yield from page.events
        left = None if left is None else left - len(page.events)
        if page.next is None:
            return
        if query.through is None:
            query.through = page.latest
        if not reverse:
            query.after = page.next
        elif page.next <= query.after:
            return
        else:
            query.through = page.next


def read_lines(client: Client, topic: str, query: ReadQuery) -> Iterator[Event]:
    """One answer, an event per line; an error that came amid it is its last line."""
    for line in client.lines(operations.READ_EVENTS, topic, query=query, accept=LINES):
        if line.startswith(b'{"problem":'):
            problem = _decode_failure(line).problem
            raise error_of_problem(problem.status, problem)
        yield event_of(_decode_event(line))


def read_batches(client: Client, topic: str, query: ReadQuery, rows: int) -> Iterator[pa.RecordBatch]:
    """One answer as Arrow record batches of up to `rows` rows."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError('Arrow needs the extra: pip install "penstock[arrow]"') from error
    answer = client.stream(operations.READ_EVENTS, topic, query=query, accept=ARROW)
    try:
        with pa.ipc.open_stream(pa.PythonFile(answer, "r")) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)
    except HTTPError as error:
        raise client.broken("GET", error) from error
    finally:
        answer.close()

"""Events over HTTP, encoded as documents and decoded into the classes of a local journal.

They are read in pages, as a stream of lines, or as Arrow record batches.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from urllib3.exceptions import HTTPError

from penstock.core.clock import to_ms
from penstock.core.documents.events import DraftDocument, EventDocument, ReceiptDocument, base64_json
from penstock.core.events import Draft, Event, Receipt, parse_id
from penstock.core.journal.across import AcrossQuery
from penstock.core.journal.keys import MAX_SEQ
from penstock.core.journal.prepare import prepare
from penstock.core.model.query import EventQuery
from penstock.core.names import check_items, pack_tags, unpack_tags
from penstock.core.protocol import topics as wire
from penstock.core.protocol.operation import ARROW, LINES, PAGE_EVENTS
from penstock.core.protocol.problems import Problem, error_of_problem
from penstock.errors import ConfigError, PositionTrimmed

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.remote.backend import RemoteBackend
    from penstock.remote.client import Client


class DocumentRows:
    """Events that arrived as documents, in the form of rows. `Event` reads its fields from them."""

    __slots__ = ("_documents", "topic")

    def __init__(self, topic: str, documents: list[EventDocument]) -> None:
        self.topic = topic
        self._documents = documents

    def seq(self, row: int) -> int:
        return self._documents[row].seq

    def kind(self, row: int) -> str:
        return self._documents[row].kind

    def is_binary(self, row: int) -> bool:
        document = self._documents[row]
        return document.binary and not document.poison

    def raw_payload(self, row: int) -> memoryview:
        document = self._documents[row]
        if document.binary:
            return memoryview(base64.b64decode(msgspec.json.decode(document.payload, type=str)))
        return memoryview(bytes(document.payload))

    def key(self, row: int) -> str | None:
        return self._documents[row].key

    def scope(self, row: int) -> str | None:
        return self._documents[row].scope

    def headers(self, row: int) -> Mapping[str, str]:
        return self._documents[row].headers

    def occurred_ms(self, row: int) -> int:
        return to_ms(self._documents[row].occurred_at, "occurred_at")

    def recorded_ms(self, row: int) -> int:
        return to_ms(self._documents[row].recorded_at, "recorded_at")

    def id_number(self, row: int) -> int:
        return parse_id(self._documents[row].id) or 0

    def correlation(self, row: int) -> str | None:
        return self._documents[row].correlation_id

    def causation(self, row: int) -> str | None:
        return self._documents[row].causation_id

    def tags(self, row: int) -> str | None:
        return pack_tags(self._documents[row].tags)

    def extract(self, row: int) -> bytes:
        """Returns a block with only this event, for pickling."""
        from penstock.core.journal.blocks import Columns, build_block

        columns = Columns([self.kind(row)], [bytes(self.raw_payload(row))])
        columns.binary = [self.is_binary(row)]
        columns.key = [self.key(row)]
        columns.scope = [self.scope(row)]
        columns.headers = [dict(self.headers(row)) or None]
        columns.occurred = [self.occurred_ms(row)]
        columns.correlation = [self.correlation(row)]
        columns.causation = [self.causation(row)]
        columns.tags = [self.tags(row)]
        return build_block(columns, self.seq(row), self.recorded_ms(row), self.id_number(row))


def event_of(document: EventDocument) -> Event:
    return Event(DocumentRows(document.topic, [document]), 0)


def receipt_of(document: ReceiptDocument) -> Receipt:
    return Receipt(
        document.topic, document.seq, parse_id(document.id) or 0, document.correlation_id, document.duplicate
    )


def draft_documents(drafts: Iterable[Draft], topic: str) -> list[DraftDocument]:
    """Returns the documents of drafts for a topic. Checks the drafts as a local append does."""
    rows = check_items(drafts, "drafts")
    batch = prepare(rows, topic, None)
    columns, documents = batch.columns, []
    for row, draft in enumerate(rows):
        binary = columns.binary is not None and columns.binary[row]
        raw = columns.payloads[row]
        headers = None if columns.headers is None else columns.headers[row]
        cause = draft.cause
        condition = None if batch.conditions is None else batch.conditions[row]
        documents.append(
            DraftDocument(
                kind=columns.kinds[row],
                payload=base64_json(raw) if binary else msgspec.Raw(raw),
                binary=binary,
                key=draft.key,
                scope=draft.scope,
                headers=dict(headers) if headers else None,
                occurred_at=draft.occurred_at,
                dedup=draft.dedup,
                cause=cause.id if isinstance(cause, Event | Receipt) else cause,
                correlation=draft.correlation,
                expect=draft.expect,
                tags=None if columns.tags is None else list(unpack_tags(columns.tags[row])) or None,
                unless=None if condition is None else list(condition),
            )
        )
    return documents


def draft_document(draft: Draft, topic: str) -> DraftDocument:
    """Returns the document of a draft that names its topic. A cause that is an index stays for its batch."""
    cause = draft.cause
    if isinstance(cause, int):
        draft = msgspec.structs.replace(draft, cause=None)
    (document,) = draft_documents((draft,), topic)
    if isinstance(cause, int):
        document.cause = cause
    document.topic = topic
    return document


class _FailureLine(msgspec.Struct):
    """The last line of a stream that an error has ended."""

    problem: Problem


_decode_event = msgspec.json.Decoder(EventDocument).decode
_decode_failure = msgspec.json.Decoder(_FailureLine).decode


def wire_filter(query: EventQuery) -> dict[str, Any]:
    """Returns a query's filters as query parameters, without its positions."""
    return {
        "key": query.key,
        "key_prefix": query.key_prefix,
        "kind": sorted(query.kinds or ()),
        "scope": query.scope,
        "tag": sorted(query.tags or ()),
        "where": query.where,
    }


def wire_times(query: EventQuery) -> dict[str, Any]:
    """Returns the range of times of the wanted events, as query parameters."""
    times = (("since", query.since), ("until", query.until))
    return {name: None if time is None else time.isoformat() for name, time in times}


def read_across(backend: RemoteBackend, query: AcrossQuery) -> Iterator[Event]:
    """Yields the wanted events of several topics, a page at a time.

    The ends of the topics at the first page are the end of the read.
    """
    wanted, through = query.events, None if query.through is None else dict(query.through)
    asked = wire.AcrossRequest(
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
        page = backend.call(wire.READ_ACROSS, request=asked)
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
    """Returns the wanted events: from a stream, or from pages when few events are wanted or the newest come first."""
    asked = wire.ReadQuery(
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


def read_pages(backend: RemoteBackend, topic: str, query: wire.ReadQuery) -> Iterator[Event]:
    """Yields events a page at a time. The newest position at the first page is the end of the read."""
    left, reverse, latest = query.limit, query.reverse, 0
    while left is None or left > 0:
        query.limit = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
        page = backend.call(wire.READ_EVENTS, topic, request=query)
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


def read_lines(client: Client, topic: str, query: wire.ReadQuery) -> Iterator[Event]:
    """Reads an answer with an event in each line. An error that occurred during the answer is its last line."""
    for line in client.lines(wire.READ_EVENTS, topic, query=query, accept=LINES):
        if line.startswith(b'{"problem":'):
            problem = client.read_line(_decode_failure, line).problem
            raise error_of_problem(problem.status, problem)
        yield event_of(client.read_line(_decode_event, line))


def read_batches(client: Client, topic: str, query: wire.ReadQuery, rows: int) -> Iterator[pa.RecordBatch]:
    """Reads an answer as Arrow record batches of up to `rows` rows."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError('Arrow needs the extra: pip install "penstock[arrow]"') from error
    answer = client.stream(wire.READ_EVENTS, topic, query=query, accept=ARROW)
    try:
        with pa.ipc.open_stream(pa.PythonFile(answer, "r")) as reader:
            for batch in reader:
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)
    except HTTPError as error:
        raise client.broken(error) from error
    finally:
        answer.close()

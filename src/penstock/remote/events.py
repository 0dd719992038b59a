"""Events and receipts out of the documents a server sends: the same classes that a local journal gives."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from penstock.clock import to_ms
from penstock.documents.events import DraftDocument, EventDocument, ReceiptDocument, base64_json
from penstock.events import Draft, Event, Receipt, parse_id
from penstock.journal.prepare import prepare


class DocumentRows:
    """Events that came as documents, as rows: what `Event` looks its fields up in."""

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

    def extract(self, row: int) -> bytes:
        """A block of this one event, for pickling."""
        from penstock.journal.blocks import Columns, build_block

        columns = Columns([self.kind(row)], [bytes(self.raw_payload(row))])
        columns.binary = [self.is_binary(row)]
        columns.key = [self.key(row)]
        columns.scope = [self.scope(row)]
        columns.headers = [dict(self.headers(row)) or None]
        columns.occurred = [self.occurred_ms(row)]
        columns.correlation = [self.correlation(row)]
        columns.causation = [self.causation(row)]
        return build_block(columns, self.seq(row), self.recorded_ms(row), self.id_number(row))


def events_of(documents: Iterable[EventDocument]) -> Iterator[Event]:
    """Events, each a row of its own."""
    for document in documents:
        yield event_of(document)


def event_of(document: EventDocument) -> Event:
    return Event(DocumentRows(document.topic, [document]), 0)


def receipt_of(document: ReceiptDocument) -> Receipt:
    return Receipt(
        document.topic, document.seq, parse_id(document.id) or 0, document.correlation_id, document.duplicate
    )


def draft_documents(drafts: Iterable[Draft], topic: str) -> list[DraftDocument]:
    """What is sent of drafts for one topic: checked as a local append would."""
    rows = list(drafts)
    columns = prepare(rows, topic, None).columns
    documents = []
    for row, draft in enumerate(rows):
        binary = columns.binary is not None and columns.binary[row]
        raw = columns.payloads[row]
        headers = None if columns.headers is None else columns.headers[row]
        cause = draft.cause
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
            )
        )
    return documents


def draft_document(draft: Draft, topic: str) -> DraftDocument:
    """One draft that names its topic. A cause that is an index is left to the batch it belongs to."""
    cause = draft.cause
    if isinstance(cause, int):
        draft = msgspec.structs.replace(draft, cause=None)
    (document,) = draft_documents((draft,), topic)
    if isinstance(cause, int):
        document.cause = cause
    document.topic = topic
    return document

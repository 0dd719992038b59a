"""Events as JSON documents, as the command line, the HTTP API and exports write them.

An event's document has `seq, topic, kind, id, recorded_at, occurred_at, payload`, and `key, scope, headers,
correlation_id, causation_id, tags` when it has them. A payload appended as bytes is base64 text, and `binary` says so.
A draft's document has the fields of `Draft`. An event's document is also a draft's: exported events can be imported.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.core.documents.decoding import decoded
from penstock.core.events import Draft, Event, Receipt, format_id
from penstock.core.model.query import EventQuery
from penstock.errors import ConfigError, PoisonMessage

_encode = msgspec.json.Encoder().encode
_is_json = msgspec.json.Decoder(msgspec.Raw).decode


class EventDocument(msgspec.Struct, omit_defaults=True):
    """An event as a JSON document; the payload is copied in and out unchanged."""

    seq: int
    topic: str
    kind: str
    id: str
    recorded_at: datetime
    occurred_at: datetime
    payload: msgspec.Raw
    key: str | None = None
    scope: str | None = None
    headers: dict[str, str] = {}
    correlation_id: str | None = None
    causation_id: str | None = None
    tags: tuple[str, ...] = ()
    binary: bool = False
    poison: bool = False
    """True when the stored payload does not decode; `payload` is then its bytes as base64."""


class DraftDocument(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A draft as a JSON document.

    An event's document is also a draft's document: fields without a use for a draft are ignored.
    """

    kind: str
    payload: Any = None
    key: str | None = None
    scope: str | None = None
    headers: dict[str, str] | None = None
    occurred_at: datetime | None = None
    dedup: str | None = None
    cause: str | int | None = None
    """The id of the event that caused this event, or, in a batch, the index of an earlier draft."""
    correlation: str | None = None
    expect: int | None = None
    """The expected position of the entity's newest event; another position is a Conflict."""
    tags: list[str] | None = None
    """Names by which the event is found besides its key."""
    unless: list[EventQuery] | None = None
    """A list of conditions; an event that matches any of them is a Conflict."""
    after: int | None = None
    """The position up to which the caller has read: `unless` is about the events after it."""
    binary: bool = False
    """The payload is base64 text."""
    topic: str | None = None
    """The topic of the draft, in a batch over several topics."""
    causation_id: str | None = None
    """The name of `cause` in an event's document."""
    correlation_id: str | None = None
    """The name of `correlation` in an event's document."""
    seq: int | None = None
    """A field of events; ignored, like the fields below."""
    id: str | None = None
    recorded_at: datetime | None = None
    poison: bool = False

    def draft(self) -> Draft:
        """Returns the draft this document describes."""
        payload = self.payload
        if self.binary:
            payload = decode_binary(payload)
        return Draft(
            self.kind,
            payload,
            key=self.key,
            scope=self.scope,
            headers=self.headers or None,
            occurred_at=self.occurred_at,
            dedup=self.dedup,
            cause=self.cause if self.cause is not None else self.causation_id,
            correlation=self.correlation if self.correlation is not None else self.correlation_id,
            expect=self.expect,
            tags=self.tags,
            unless=self.unless,
            after=self.after,
        )


class ReceiptDocument(msgspec.Struct, omit_defaults=True):
    """A receipt as a JSON document."""

    topic: str
    seq: int
    id: str
    correlation_id: str | None = None
    duplicate: bool = False


def event_document(event: Event) -> EventDocument:
    """Returns the document of an event, its payload spliced in as it is stored."""
    raw = event.raw
    binary = event.binary
    poison = False
    if binary:
        payload = base64_json(raw)
    else:
        try:
            payload = _is_json(raw)
            if b"\n" in raw:  # documents are lines
                payload = msgspec.Raw(_encode(event.payload))
        except (msgspec.DecodeError, UnicodeDecodeError, PoisonMessage):
            payload, binary, poison = base64_json(raw), True, True
    return EventDocument(
        event.seq,
        event.topic,
        event.kind,
        event.id,
        event.recorded_at,
        event.occurred_at,
        payload,
        event.key,
        event.scope,
        dict(event.headers),
        event.correlation_id,
        event.causation_id,
        event.tags,
        binary,
        poison,
    )


def base64_json(data: bytes) -> msgspec.Raw:
    """Returns bytes as base64 text in JSON."""
    return msgspec.Raw(b'"%b"' % base64.b64encode(data))


def event_json(event: Event) -> bytes:
    """Returns the document of an event as one line of JSON, without its end."""
    return _encode(event_document(event))


class PlainDraft(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields that most drafts have. It is decoded first, because a large batch of full documents costs more than
    twice as much."""

    kind: str
    payload: Any = None
    key: str | None = None

    def draft(self) -> Draft:
        """Returns the draft this document describes."""
        return Draft(self.kind, self.payload, key=self.key)


def receipts_json(receipts: Sequence[Receipt]) -> bytes:
    """Returns `{"receipts": […]}` of many receipts, each as `receipt_document` writes it.

    Receipts of one commit differ little, so their common part is encoded once.
    """
    topic, high, begin, id = "", -1, "", ""
    said = []
    for receipt in receipts:
        if receipt.topic != topic:
            topic = receipt.topic
            begin = f'{{"topic":{_encode(topic).decode()},"seq":'
        number = receipt._number
        if number >> 48 != high:
            high = number >> 48
            id = format_id(number)[:24]
        more = ""
        if receipt.correlation_id is not None:
            more = f',"correlation_id":{_encode(receipt.correlation_id).decode()}'
        if receipt.duplicate:
            more += ',"duplicate":true'
        said.append(f'{begin}{receipt.seq},"id":"{id}{number & 0xFFFFFFFFFFFF:012x}"{more}}}')
    return f'{{"receipts":[{",".join(said)}]}}'.encode()


def receipt_document(receipt: Receipt) -> ReceiptDocument:
    """Returns the document of a receipt."""
    return ReceiptDocument(receipt.topic, receipt.seq, receipt.id, receipt.correlation_id, receipt.duplicate)


def decode_binary(text: object) -> bytes:
    """Returns the bytes behind a binary payload's base64 text."""
    if not isinstance(text, str):
        raise ConfigError("a binary payload is base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"a binary payload is base64 text: {error}") from error


_decode_draft = msgspec.json.Decoder(DraftDocument).decode


def draft_from_json(line: bytes | str) -> Draft:
    """Returns the draft that one line of JSON describes; raises ConfigError for any other line."""
    data = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
    return decoded(data, _decode_draft, DraftDocument, "this line").draft()

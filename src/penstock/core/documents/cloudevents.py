"""Events as CloudEvents 1.0, and back: structured (one JSON document), batches of them, and binary (HTTP headers).

    type            kind                        subject         key
    source          header `ce-source`          id              header `ce-id`, else the event's id
    time            occurred_at                 data            payload; bytes are `data_base64`
    correlationid   correlation id              causationid     causation id
    sequence        position (20 digits)        traceparent     header `traceparent`; also `tracestate`
    tags            tags, as a JSON array of text

Any other attribute `x` is the header `ce-x`. Incoming events are deduplicated by source and id, which are unique
together in CloudEvents: a producer may repeat a request whose answer was lost.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from penstock.core.documents.decoding import decoded
from penstock.core.events import Draft, Event
from penstock.errors import ConfigError

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
BINARY: Final = "application/cloudevents"
"""The media type that asks for an answer in binary mode: the event's attributes are headers, its data is the body."""

PREFIX: Final = "ce-"
_NAME = re.compile(r"[a-z0-9]+")
_REQUIRED: Final = ("id", "source", "type")
_PLAIN: Final = frozenset(("traceparent", "tracestate"))
"""Extensions that are event headers of the same name."""
_FIELDS: Final = ("subject", "time", "data", "data_base64", "datacontenttype", "correlationid", "causationid", "tags")
_OWN: Final = frozenset((*_REQUIRED, "specversion", *_FIELDS))
"""Attributes that are fields of an event, or made from them."""
_DEDUP_BYTES: Final = 200
_encode = msgspec.json.Encoder().encode
_decode_one = msgspec.json.Decoder(dict[str, Any]).decode
_decode_tags = msgspec.json.Decoder(list[str]).decode
_decode_many = msgspec.json.Decoder(list[dict[str, Any]]).decode


# ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def attributes_of(event: Event) -> dict[str, str]:
    """Returns the attributes of an event, without its data."""
    headers = event.headers
    found = {
        "specversion": "1.0",
        "id": headers.get("ce-id") or event.id,
        "source": headers.get("ce-source") or f"/topics/{event.topic}",
        "type": event.kind,
        "time": event.occurred_at.isoformat().replace("+00:00", "Z"),
        "sequence": f"{event.seq:020}",
        "datacontenttype": headers.get("ce-datacontenttype") or _content_type(event),
    }
    if event.key:
        found["subject"] = event.key
    if event.correlation_id is not None:
        found["correlationid"] = event.correlation_id
    if event.causation_id is not None:
        found["causationid"] = event.causation_id
    if event.tags:
        found["tags"] = _encode(event.tags).decode()
    for name, value in headers.items():
        attribute = name if name in _PLAIN else name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
        if attribute and attribute not in _OWN and _NAME.fullmatch(attribute):
            found[attribute] = value
    return found


def _content_type(event: Event) -> str:
    return "application/octet-stream" if event.binary else "application/json"


def to_cloudevent(event: Event) -> dict[str, object]:
    """Returns an event as a CloudEvent in structured mode."""
    document: dict[str, object] = dict(attributes_of(event))
    if event.binary:
        document["data_base64"] = base64.b64encode(event.raw).decode()
    else:
        document["data"] = event.payload
    return document


def to_json(event: Event) -> bytes:
    """Returns the document of `to_cloudevent` as JSON text; the payload is spliced in as it is stored."""
    if event.binary:
        return _encode(to_cloudevent(event))
    return _encode({**attributes_of(event), "data": msgspec.Raw(event.raw)})


def to_http(event: Event) -> tuple[dict[str, str], bytes]:
    """Returns an event in binary mode: the headers of a request or an answer, and its body."""
    attributes = attributes_of(event)
    headers = {"content-type": attributes.pop("datacontenttype")}
    headers |= {PREFIX + name: quote(value, safe=_UNQUOTED) for name, value in attributes.items()}
    return headers, event.raw


_UNQUOTED: Final = "!#$&'()*+,/:;<=>?@[\\]^`{|}~-._ "
"""The characters that a header's value may have unquoted: printable ASCII except the quotation mark and the percent
sign."""


# ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def from_cloudevent(document: Mapping[str, object], where: str = "the CloudEvent") -> Draft:
    """Returns the draft of an event that came as a CloudEvent in structured mode; ConfigError names what is wrong
    with it.
    """
    data, encoded = document.get("data"), document.get("data_base64")
    if encoded is not None:
        if data is not None or not isinstance(encoded, str):
            raise ConfigError(f"{where} has data and data_base64, or a data_base64 that is no text")
        try:
            data = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise ConfigError(f"{where} has a data_base64 that is no base64 text") from error
    given = {name: value for name, value in document.items() if name not in ("data", "data_base64")}
    return _draft(given, data, where)


def from_json(data: bytes, *, batch: bool = False) -> list[Draft]:
    """Returns the drafts of a body in structured mode: one CloudEvent, or with `batch` an array of them."""
    if not batch:
        return [from_cloudevent(decoded(data, _decode_one, dict[str, Any]))]
    found = decoded(data, _decode_many, list[dict[str, Any]])
    return [from_cloudevent(document, f"CloudEvent {number}") for number, document in enumerate(found)]


def from_http(headers: Iterable[tuple[str, str]], content_type: str, body: bytes) -> Draft:
    """Returns the draft of an event that came in binary mode: attributes in `ce-` headers, data in the body."""
    given: dict[str, object] = {}
    for name, value in headers:
        if name.lower().startswith(PREFIX):
            given[name.lower().removeprefix(PREFIX)] = unquote(value.strip().strip('"'))
    media = content_type.partition(";")[0].strip().lower()
    if not body:
        return _draft(given, None, "the CloudEvent")
    if media in ("", "application/json") or media.endswith("+json"):
        return _draft(given, decoded(body, msgspec.json.decode, object), "the CloudEvent")
    return _draft({**given, "datacontenttype": content_type}, body, "the CloudEvent")


def _draft(given: Mapping[str, object], data: object, where: str) -> Draft:
    attributes = {name: _text(name, value, where) for name, value in given.items() if value is not None}
    if attributes.get("specversion") != "1.0":
        raise ConfigError(f"{where} has the specversion {attributes.get('specversion')!r}; 1.0 is understood")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise ConfigError(f"{where} has no {name}, which every CloudEvent must have")
    headers = {"ce-id": attributes["id"], "ce-source": attributes["source"]}
    content = attributes.get("datacontenttype", "")
    if content and content.partition(";")[0].strip().lower() != "application/json":
        headers["ce-datacontenttype"] = content
    for name, value in attributes.items():
        if name in _PLAIN:
            headers[name] = value
        elif name not in _OWN:
            headers[PREFIX + name] = value
    return Draft(
        attributes["type"],
        data,
        key=attributes.get("subject") or None,
        headers=headers,
        occurred_at=_time(attributes.get("time"), where),
        dedup=_dedup(attributes["source"], attributes["id"]),
        cause=attributes.get("causationid") or None,
        correlation=attributes.get("correlationid") or None,
        tags=_tags(attributes.get("tags"), where),
    )


def _text(name: str, value: object, where: str) -> str:
    """Returns an attribute's value as text; CloudEvents also has booleans and whole numbers."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where} has an attribute {name[:40]!r}: names are lower-case letters and digits")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    raise ConfigError(f"{where} has an attribute {name} that is no text, number or truth value")


def _tags(text: str | None, where: str) -> list[str] | None:
    """Returns the tags in an attribute: a JSON array, or text of another producer, which is one tag."""
    if not text or not text.startswith("["):
        return [text] if text else None
    return decoded(text.encode(), _decode_tags, list[str], f"the attribute tags of {where}")


def _time(text: str | None, where: str) -> datetime | None:
    if not text:
        return None
    try:
        found = msgspec.convert(text, datetime)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} has the time {text[:40]!r}, which is no RFC 3339 time") from error
    if found.tzinfo is None:
        raise ConfigError(f"{where} has the time {text[:40]!r}, which has no time zone")
    return found


def _dedup(source: str, id: str) -> str:
    """Returns source and id as one text, which a dedup key has room for."""
    key = f"cloudevent {len(source)} {source} {id}"
    if len(key.encode()) <= _DEDUP_BYTES:
        return key
    import hashlib  # a command that appends no CloudEvents should not wait for this import

    return f"cloudevent {hashlib.sha256(key.encode()).hexdigest()}"

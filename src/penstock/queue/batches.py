"""What a push appends: payloads and their fields, as a batch of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.errors import ConfigError
from penstock.journal.commit.prepare import PreparedBatch
from penstock.journal.storage.payload import encode_payload, is_binary
from penstock.journal.storage.wire import Columns
from penstock.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES
from penstock.names import check_kind
from penstock.surface.delivery import Delivery


def plain_batch(kind: str, payloads: list[Any]) -> PreparedBatch:
    """Payloads of one kind with nothing else to them: no drafts on the way."""
    check_kind(kind)
    kinds_of = set(map(type, payloads))
    encoded = _encode_simple(payloads) if kinds_of <= _SIMPLE else None
    if encoded is None:
        encoded = list(map(encode_payload, payloads))
    columns = Columns([kind] * len(encoded), encoded)
    if any(issubclass(one, bytes | bytearray | memoryview) for one in kinds_of):
        columns.binary = list(map(is_binary, payloads))
    size = sum(map(len, encoded))
    if size > MAX_BATCH_BYTES:
        raise ConfigError(f"a batch of {size:,} bytes is too large; at most {MAX_BATCH_BYTES:,} are allowed: split it")
    return PreparedBatch(columns, size)


_SIMPLE = {str, int, bool}
_encode_json = msgspec.json.Encoder().encode


def _encode_simple(payloads: list[Any]) -> list[bytes] | None:
    """Values that need no second look once they are JSON; None when one of them needs the long way and its errors."""
    try:
        encoded = list(map(_encode_json, payloads))
    except Exception:
        return None
    return encoded if not encoded or max(map(len, encoded)) <= MAX_PAYLOAD_BYTES else None


def draft_fields(
    key: str | None, dedup: str | None, headers: Mapping[str, str] | None, cause: object
) -> dict[str, Any]:
    """The part of a push that goes into the event itself."""
    fields: dict[str, Any] = {}
    if key is not None:
        fields["key"] = key
    if dedup is not None:
        fields["dedup"] = dedup
    if headers is not None:
        fields["headers"] = headers
    if cause is not None:
        fields["cause"] = cause.event if isinstance(cause, Delivery) else cause  # it stands for its message
    return fields

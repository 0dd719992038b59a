"""From drafts to columns: wrong arguments are found here, in the caller's thread, before the call waits.

A `PreparedBatch` holds the events that one call appends to one topic. Options that need the store (dedup keys, expected
generations, causes within the batch) stay beside the columns, and the commit decides them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from sys import modules
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from penstock.core.clock import to_ms
from penstock.core.documents.decoding import nearest
from penstock.core.events import Draft, Event, Receipt
from penstock.core.journal.blocks import Columns, column_picker
from penstock.core.model.query import EventQuery
from penstock.core.names import (
    check_headers,
    check_items,
    check_kind,
    check_position,
    check_text,
    is_whole,
    stored_tags,
)
from penstock.core.observe.tracing import trace_headers, with_trace
from penstock.errors import ConfigError
from penstock.limits import MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES, MAX_POSITION

FindCause = Callable[[str], Event | None]
"""Finds the event that a cause given as text names, anywhere in the journal."""

_BYTES_LIKE = (bytes, bytearray, memoryview)


class PreparedBatch(msgspec.Struct, eq=False, weakref=False):
    """The events of one call to one topic, checked and encoded."""

    columns: Columns
    size: int
    dedups: Sequence[str | None] | None = None
    expects: Sequence[int | None] | None = None
    conditions: Sequence[tuple[EventQuery, ...] | None] | None = None
    """For each event, the queries of which none may find an event, or the event is not appended."""
    cause_rows: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.columns.kinds)

    def pick(self, rows: Sequence[int]) -> PreparedBatch:
        """Returns the batch of some of the events, none of which names another event of the batch as its cause."""
        columns, some = self.columns.pick(rows), column_picker(rows)
        dedups, expects, conditions = self.dedups, self.expects, self.conditions
        return PreparedBatch(
            columns,
            sum(map(len, columns.payloads)),
            None if dedups is None else some(dedups),
            None if expects is None else some(expects),
            None if conditions is None else some(conditions),
        )


_known_kinds: set[str] = set()


def make_draft(kind: object, payload: object, fields: Mapping[str, Any]) -> Draft:
    """Returns a draft from a call's arguments; a ConfigError names a misspelt argument and the nearest known
    argument.
    """
    try:
        return Draft(kind, payload, **fields)
    except TypeError as error:
        known = [name for name in Draft.__struct_fields__ if name not in ("kind", "payload")]
        unknown = next((name for name in fields if name not in known), None)
        if unknown is None:
            raise ConfigError(f"a draft cannot be made: {error}") from None
        raise ConfigError(f"an event has no {unknown!r}{nearest(unknown, known)}") from None


def prepare_one(kind: object, payload: object) -> PreparedBatch:
    """Returns the batch of one event with only a kind and a payload."""
    if kind.__class__ is not str:
        return prepare((Draft(kind, payload),), None, None)
    if kind not in _known_kinds:
        _remember_kind(kind)
    encoded = encode_payload(payload)
    columns = Columns([kind], [encoded])
    if payload.__class__ is not dict and isinstance(payload, _BYTES_LIKE):
        columns.binary = [True]
    if "opentelemetry.trace" in modules:
        trace = trace_headers()
        if trace is not None:
            columns.headers = [trace]
    return PreparedBatch(columns, len(encoded))


def prepare(drafts: Iterable[Draft], topic: str | None, find_cause: FindCause | None) -> PreparedBatch:
    """Returns the batch of several drafts for one topic; a ConfigError names the first invalid draft."""
    rows = drafts if isinstance(drafts, tuple) else check_items(drafts, "drafts")
    if not rows:
        return PreparedBatch(Columns([], []), 0)
    if set(map(type, rows)) != {Draft}:
        for row in rows:
            if not isinstance(row, Draft):
                raise ConfigError(f"append_many takes Draft objects, not {type(row).__name__}")
    if len(rows) == 1 and _says_little(rows[0]):
        return _prepare_alone(rows[0])
    fields = list(zip(*map(astuple, rows), strict=True))
    kinds, given, topics, keys, scopes, headers, occurred, dedups, causes, correlations, expects, *rest = fields
    tags, unless, after = rest
    count = len(rows)
    header_list = list(headers) if _some(headers) else None
    kind_list = list(kinds)
    payloads: Sequence[object] = given
    if set(map(type, kinds)) != {str}:
        kind_list, payloads, header_list = _without_types(kind_list, payloads, header_list)
    if _some(topics) and any(name is not None and name != topic for name in topics):
        other = next(name for name in topics if name is not None and name != topic)
        raise ConfigError(
            f"a draft for topic {other!r} was given to topic {topic!r}; use journal.outbox() for several topics"
        )
    columns = plain_columns(kind_list, payloads, keys)
    if _some(scopes):
        columns.scope = checked_texts(scopes, "scope")
    if header_list is not None:
        columns.headers = [None if one is None else check_headers(one) for one in header_list]
    trace = trace_headers()
    if trace is not None:
        columns.headers = [with_trace(one, trace) for one in columns.headers or [None] * count]
    if _some(occurred):
        columns.occurred = [None if at is None else to_ms(at, "occurred_at") for at in occurred]
    batch = sized_batch(columns)
    if _some(dedups):
        batch.dedups = checked_texts(dedups, "dedup")
    if _some(expects):
        for expect, key in zip(expects, keys, strict=True):
            if expect is not None:
                check_expect(expect, key)
        batch.expects = expects
    if _some(tags):
        columns.tags = [None if some is None else stored_tags(some) for some in tags]
    if _some(unless) or _some(after):
        batch.conditions = list(map(condition_of, unless, after))
    if _some(correlations):
        columns.correlation = checked_texts(correlations, "correlation")
    if _some(causes):
        _resolve_causes(batch, causes, count, find_cause)
    return batch


def condition_of(unless: object, after: int | None) -> tuple[EventQuery, ...] | None:
    """Returns the queries of which none may find an event, from the `unless` and the `after` of an append."""
    if unless is None:
        if after is not None:
            raise ConfigError("after= needs unless=: it is the position after which no event may match")
        return None
    found = (unless,) if isinstance(unless, EventQuery) or not isinstance(unless, Iterable) else tuple(unless)
    if after is not None:
        check_position(after, "after")
    return tuple(_condition(one, after) for one in found)


def _condition(query: object, after: int | None) -> EventQuery:
    if not isinstance(query, EventQuery):
        raise ConfigError(f"unless must be an EventQuery, or several, not {query!r:.80}: EventQuery(tags=…, kinds=…)")
    if query.limit is not None or query.reverse or query.through != MAX_POSITION or query.since or query.until:
        raise ConfigError("unless= asks whether any event matches: leave limit, reverse, through, since and until out")
    return query if after is None else replace(query, after=after)


def plain_columns(kinds: list[str], payloads: Sequence[object], keys: Sequence[str | None]) -> Columns:
    """Returns checked and encoded columns of drafts that have a kind, a payload and a key: kinds, payloads, keys."""
    for kind in set(kinds) - _known_kinds:
        _remember_kind(kind)
    columns = Columns(kinds, encode_payloads(payloads))
    if any(issubclass(one, _BYTES_LIKE) for one in set(map(type, payloads))):
        columns.binary = list(map(is_binary, payloads))
    if _some(keys):
        columns.key = checked_texts(keys, "key")
    return columns


def sized_batch(columns: Columns) -> PreparedBatch:
    """Returns the batch of columns; ConfigError when it is too large."""
    size = sum(columns.weights())
    if size > MAX_BATCH_BYTES:
        raise ConfigError(f"a batch of {size:,} bytes is too large; at most {MAX_BATCH_BYTES:,} are allowed: split it")
    return PreparedBatch(columns, size)


def _says_little(draft: Draft) -> bool:
    """Returns True for a draft with a kind, a payload, a key, tags and conditions, and nothing else."""
    return (
        draft.kind.__class__ is str
        and (draft.key is not None or draft.expect is None)
        and draft.topic is None
        and draft.scope is None
        and draft.headers is None
        and draft.occurred_at is None
        and draft.dedup is None
        and draft.cause is None
        and draft.correlation is None
    )


def _prepare_alone(draft: Draft) -> PreparedBatch:
    """Returns the batch of one such draft with a third of the usual work; event sourcing mostly appends such drafts."""
    batch = prepare_one(draft.kind, draft.payload)
    if draft.key is not None:
        batch.columns.key = [check_text(draft.key, "key")]
    if draft.tags is not None:
        batch.columns.tags = [stored_tags(draft.tags)]
    if draft.expect is not None:
        check_expect(draft.expect, draft.key)
        batch.expects = (draft.expect,)
    if draft.unless is not None or draft.after is not None:
        batch.conditions = (condition_of(draft.unless, draft.after),)
    return batch


def check_expect(expect: int, key: str | None) -> None:
    """Raises ConfigError for an expectation that cannot be compared."""
    check_position(expect, "expect")
    if key is None:
        raise ConfigError("expect= needs key=: it is the position of the entity's newest event")


def _some(column: Sequence[object]) -> bool:
    return column.count(None) != len(column)


def checked_texts(column: Sequence[Any], what: str) -> list[str | None]:
    """Returns a column of valid optional texts; a ConfigError names an invalid text."""
    try:
        distinct: Iterable[object] = set(column)
    except TypeError:  # an unhashable value, which the check below names
        distinct = column
    for text in distinct:
        if text is not None:
            check_text(text, what)
    return list(column)


def _remember_kind(kind: Any) -> None:
    check_kind(kind)
    if len(_known_kinds) > 10_000:  # otherwise kinds made from data would pile up
        _known_kinds.clear()
    _known_kinds.add(kind)


def _without_types(
    kinds: list[Any], payloads: Sequence[object], headers: list[Any] | None
) -> tuple[list[str], list[object], list[object] | None]:
    """Replaces instances of declared event types by their kind, payload and version header."""
    from penstock.core.schema import encode_event, schema_of_type

    payload_list = check_items(payloads, "payloads")
    for row, kind in enumerate(kinds):
        if isinstance(kind, str):
            continue
        if schema_of_type(type(kind)) is not None and payload_list[row] is not None:
            raise ConfigError(f"a {type(kind).__name__} is the payload itself: give no second one")
        kinds[row], payload_list[row], extra = encode_event(kind)
        if extra:
            if headers is None:
                headers = [None] * len(kinds)
            headers[row] = {**(headers[row] or {}), **extra}
    return kinds, payload_list, headers


def _resolve_causes(batch: PreparedBatch, causes: Sequence[object], count: int, find_cause: FindCause | None) -> None:
    columns = batch.columns
    causation: list[str | None] = [None] * count
    correlation: list[str | None] = columns.correlation or [None] * count
    rows: dict[int, int] = {}
    for row, cause in enumerate(causes):
        if cause is None:
            continue
        if is_whole(cause):
            if not 0 <= cause < row:
                raise ConfigError(
                    f"cause={cause} of draft {row} must be the index of an earlier draft of the same batch"
                )
            rows[row] = cause
            continue
        inherited: str | None
        if isinstance(cause, Event | Receipt):
            causation[row], inherited = cause.id, cause.correlation_id
        elif isinstance(cause, str):
            check_text(cause, "cause")
            found = find_cause(cause) if find_cause else None
            causation[row], inherited = cause, found.correlation_id if found else None
        else:
            raise ConfigError(
                f"cause must be an Event, a Receipt, an event's id or the index of an earlier draft, not {cause!r:.80}"
            )
        if correlation[row] is None:
            correlation[row] = inherited or causation[row]
    columns.causation = causation
    columns.correlation = correlation
    batch.cause_rows = rows or None


# ── Payloads to bytes: JSON text for JSON-like values, bytes as they are ──


def _plain_model(value: object) -> object:
    """Returns the JSON-like form of a value that msgspec does not know: the fields of a pydantic model."""
    pydantic = modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_plain_model).encode


def encode_payload(payload: object, *, typed: bool = False) -> bytes:
    """Returns the stored bytes of a payload; raises ConfigError when it has no JSON form, or would be read back as
    another value.

    `typed`: a declared type decides the value that is read back.
    """
    if isinstance(payload, _BYTES_LIKE):
        encoded = bytes(payload)
    else:
        try:
            encoded = _encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"a payload of type {type(payload).__name__} cannot be written as JSON: {error}; "
                "give JSON-like values (or bytes)"
            ) from error
        # NaN and infinities have no JSON form: the encoder writes null for them, which would lose them silently. `find`
        # is used because `in` on bytes makes and drops an exception at every call.
        if encoded.find(b"null") >= 0 and _has_non_finite(payload):
            raise ConfigError("a payload holds NaN or an infinity, which JSON cannot say; use None or text instead")
        shape = b"" if typed else encoded.translate(_DIGITS)  # inline, which saves the call of `_may_change`
        if shape.find(b'0":') >= 0 or shape.find(b"T00:00") >= 0:
            refuse_changed(payload)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise ConfigError(
            f"a payload of {len(encoded):,} bytes is too large; at most {MAX_PAYLOAD_BYTES:,} are allowed: "
            "store it elsewhere and append a reference"
        )
    return encoded


def encode_payloads(payloads: Sequence[object]) -> list[bytes]:
    """Returns the stored bytes of many payloads, with less work for each; `encode_payload` makes the error for a bad
    payload.
    """
    if any(issubclass(one, _BYTES_LIKE) for one in set(map(type, payloads))):
        return list(map(encode_payload, payloads))
    try:
        encoded = list(map(_encode, payloads))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return list(map(encode_payload, payloads))
    changes = _may_change(b" ".join(encoded))
    for payload, one in zip(payloads, encoded, strict=True):
        if changes or b"null" in one or len(one) > MAX_PAYLOAD_BYTES:
            encode_payload(payload)
    return encoded


_DIGITS = bytes.maketrans(b"123456789", b"000000000")


def _may_change(encoded: bytes) -> bool:
    """Returns True if JSON text has a key that ends with a digit, or text like a time: only few payloads need a
    further check.
    """
    shape = encoded.translate(_DIGITS)
    return b'0":' in shape or b"T00:00" in shape


def refuse_changed(value: object) -> None:
    """Raises ConfigError when a value without a declared type would be read back as another value."""
    if isinstance(value, dict):
        for key, one in value.items():
            if not isinstance(key, str) and not isinstance(key, Enum):
                raise ConfigError(
                    f"a payload has the key {key!r:.40}, and JSON has text as keys: it would come back as "
                    f"{str(key)!r:.40}. Use str(key), or declare the payload's type"
                )
            refuse_changed(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            refuse_changed(one)
    elif isinstance(value, datetime) and value.tzinfo is None:
        raise ConfigError(
            f"a payload holds a time without a time zone, {value.isoformat()}: its moment is "
            "not known. Use datetime.now(UTC), or value.astimezone()"
        )


def is_binary(payload: object) -> bool:
    """Returns True if a payload is kept as bytes rather than as JSON."""
    return isinstance(payload, _BYTES_LIKE)


def _has_non_finite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_non_finite, value))
    if value is None or isinstance(value, str | int | bytes):
        return False
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain_model)
    except (TypeError, ValueError, OverflowError):
        return False  # the value was encoded, so it is of a type that cannot hold a number
    return isinstance(plain, float | dict | list | tuple | set | frozenset) and _has_non_finite(plain)

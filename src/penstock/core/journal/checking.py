"""Checks of blocks from elsewhere: contents that no append could have made are found before the block is stored.

Every block of a client goes through `checked_wire`: its events are unpacked, checked like appended events, and packed
into a new block. So the stored block always has the form of an append, whatever the client packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from penstock.core.clock import FIRST_MS, LAST_MS
from penstock.core.journal.blocks import (
    FORMAT,
    Block,
    Columns,
    RowOptions,
    Wire,
    build_wire,
    columns_of,
    decode_pending,
    offsets,
    options_of,
    text_values,
    with_options,
)
from penstock.core.journal.prepare import checked_texts, sized_batch
from penstock.core.names import (
    check_headers,
    check_kind,
    check_name,
    check_position,
    check_text,
    stored_tags,
    unpack_tags,
)
from penstock.errors import ConfigError, Corrupt
from penstock.limits import BLOCK_EVENTS, MAX_HEADERS, MAX_PAYLOAD_BYTES

_value = msgspec.json.Decoder(msgspec.Raw).decode


def checked_wire(topic: str, body: bytes | memoryview) -> Wire:
    """Returns a new block with the events of a block from another process; raises ConfigError when an append would
    refuse an event.
    """
    check_name(topic)
    try:
        given = decode_pending(body)
        wire = build_wire(_checked_columns(given, topic), 0, 0, 0)
        options = options_of(given)
        if options is not None:
            check_options(options, wire)
            wire = with_options(wire, options)
        return wire
    except IndexError:
        raise ConfigError(f"a block for topic {topic!r} cannot be taken: a column has too few values") from None
    except (ConfigError, Corrupt, UnicodeDecodeError) as error:
        raise ConfigError(f"a block for topic {topic!r} cannot be taken: {error}") from error


def _checked_columns(wire: Wire, topic: str) -> Columns:
    if wire.format != FORMAT or not 0 < wire.count <= BLOCK_EVENTS or wire.run_counts != wire.count:
        raise ConfigError("it is no block of new events of this version")
    if wire.seqs is not None:
        raise ConfigError("it brings positions, which are the journal's to give")
    block = Block(wire, topic)
    if max(block.kind_codes) >= len(wire.kinds):
        raise ConfigError(f"an event has kind number {max(block.kind_codes)}, of {len(wire.kinds)} listed")
    headers = None if wire.headers is None else _checked_headers(block, offsets(wire.headers.counts, wire.count)[-1])
    wire.headers = None
    columns = columns_of(block, range(wire.count))
    columns.headers = headers
    sized_batch(columns)
    for kind in set(columns.kinds):
        check_kind(kind)
    for row, ms in enumerate(columns.occurred or ()):
        if ms is not None and not FIRST_MS <= ms <= LAST_MS:
            raise ConfigError(f"event {row}: occurred_at must be in the years 1 to 9999 of UTC, not at {ms} ms")
    for name in ("key", "scope", "correlation", "causation"):
        checked_texts(getattr(columns, name) or (), name)
    for text in set(columns.tags or ()) - {None}:
        if text != stored_tags(unpack_tags(text)):
            raise ConfigError(f"the tags of an event are written as {text!r:.80}, which is no list of tags in order")
    _check_payloads(columns)
    return columns


def _checked_headers(block: Block, total: int) -> list[Mapping[str, str] | None]:
    """Returns the headers of each event; a forged number of headers is refused at the first event."""
    headers = block.wire.headers
    assert headers is not None
    if headers.total != total:
        raise ConfigError(f"its events have {total} headers, and {headers.total} are listed")
    found: list[Mapping[str, str] | None] = []
    for row, (start, stop) in enumerate(pairwise(offsets(headers.counts, block.count))):
        if stop - start > MAX_HEADERS:
            raise ConfigError(f"event {row} has {stop - start} headers; at most {MAX_HEADERS} are allowed")
        own = check_headers(block.headers(row)) if stop > start else {}
        if len(own) < stop - start:
            raise ConfigError(f"event {row} has {stop - start} headers, of which two have one name")
        found.append(own)
    return found


def _check_payloads(columns: Columns) -> None:
    """Checks that each payload is JSON, or marked as bytes."""
    longest = max(map(len, columns.payloads))
    if longest > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"a payload of {longest:,} bytes is too large to append")
    rows = range(len(columns))
    if columns.binary is not None:
        rows = [row for row in rows if not columns.binary[row]]  # type: ignore[assignment]
    payloads = [columns.payloads[row] for row in rows]
    try:
        deque(map(_value, payloads), maxlen=0)
        b"".join(payloads).decode()  # the decoder of values that are kept as bytes does not check this
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        for row, payload in zip(rows, payloads, strict=True):
            _check_payload(row, payload)
        raise


def _check_payload(row: int, payload: bytes) -> None:
    try:
        _value(payload)
        payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = payload[:60].decode(errors="replace")
        raise ConfigError(f"the payload of event {row} is not JSON: {shown!r} ({error})") from error


def check_options(options: RowOptions, wire: Wire) -> None:
    """Raises ConfigError for impossible options of an event; the commit judges the options that only a queue
    understands.
    """
    if options.lengths() != {wire.count}:
        raise ConfigError(f"it has options for {options.lengths()} events, and {wire.count} events")
    for dedup in set(options.dedup or ()) - {None}:
        check_text(dedup, "dedup")
    for row, moment in enumerate(options.not_before or ()):
        if moment is not None and not FIRST_MS <= moment <= LAST_MS:
            raise ConfigError(f"event {row}: not_before must be in the years 1 to 9999 of UTC, not at {moment} ms")
    if options.expect is not None:
        keys = text_values(wire.key, wire.count)
        for row, expect in enumerate(options.expect):
            if expect is not None:
                check_position(expect, f"expect of event {row}")
                if keys[row] is None:
                    raise ConfigError(f"expect= of event {row} needs key=: it is the position of its newest event")

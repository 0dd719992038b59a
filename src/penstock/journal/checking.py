"""Blocks that came from elsewhere: what no append could have made is found before it is stored, not when it is read.

Every block that a client sends goes through `checked_wire`. Types and signs are the decoder's to judge; here
each column is looked at as a whole: that it has a value for every event, packed as this journal packs it, and that each
value is one that an append takes. An error says which column and which event of the block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, compress, pairwise

import msgspec

from penstock.clock import FIRST_MS, LAST_MS
from penstock.errors import ConfigError, Corrupt
from penstock.journal.blocks import (
    FORMAT,
    CodedText,
    Headers,
    Ints,
    PlainText,
    RowOptions,
    SignedInts,
    Text,
    Wire,
    decode_pending,
    offsets,
    options_of,
    text_values,
    unpack_ints,
    unpack_signed,
)
from penstock.limits import (
    BLOCK_EVENTS,
    MAX_BATCH_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_PAYLOAD_BYTES,
)
from penstock.names import check_kind, check_name, check_position, check_text

_value = msgspec.json.Decoder(msgspec.Raw).decode
_FLAGS = b"\0\1"
_IS_ZERO = bytes([1]) + bytes(255)
"""Turns a byte that is 0 into 1, and every other into 0."""
_BYTES = bytes(range(256))


def checked_wire(topic: str, body: bytes | memoryview) -> Wire:
    """A block that another process encoded; ConfigError when an append could not have made it."""
    check_name(topic)
    try:
        wire = decode_pending(body)
        _check(wire)
    except (ConfigError, Corrupt) as error:
        raise ConfigError(f"a block for topic {topic!r} cannot be taken: {error}") from error
    return wire


def _check(wire: Wire) -> None:
    count = wire.count
    if wire.format != FORMAT or not 0 < count <= BLOCK_EVENTS or wire.run_counts != count:
        raise ConfigError("it is no block of new events of this version")
    if wire.seqs is not None:
        raise ConfigError("it brings positions, which are the journal's to give")
    for kind in wire.kinds:
        check_kind(kind)
    _check_codes(wire.kinds, wire.kind_codes, count, "kind")
    _check_payloads(wire)
    if wire.occurred is not None:
        _check_times(wire.occurred, count)
    for name in ("key", "scope", "correlation", "causation"):
        column: Text | None = getattr(wire, name)
        if column is not None:
            _check_texts(column, count, name, MAX_KEY_BYTES)
    if wire.headers is not None:
        _check_headers(wire.headers, count)
    options = options_of(wire)
    if options is not None:
        check_options(options, wire)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _sum_and_highest(column: Ints, count: int, name: str) -> tuple[int, int]:
    """Of a column's numbers, which must be packed in the narrowest width: joining blocks relies on it."""
    if isinstance(column, int):
        return column * count, column
    numbers = unpack_ints(column, count)
    width, high = len(column) // count, max(numbers)
    if width > 1 and high < 1 << 4 * width:
        raise ConfigError(f"its column {name} has {width} bytes for each number, of which the highest is {high}")
    return sum(numbers), high


def _check_codes(values: Sequence[object], codes: Ints, count: int, name: str) -> None:
    """A dictionary of different values, and numbers that each lead to one."""
    known = len(values)
    if len(set(values)) != known or known > count:
        raise ConfigError(f"its column {name} lists {known} values for {count} events, or one twice")
    if isinstance(codes, bytes) and len(codes) == count:  # a byte each, without a look at every one
        beyond = codes.translate(None, _BYTES[:known])
        high = max(beyond) if beyond else 0
    else:
        high = _sum_and_highest(codes, count, name)[1]
    if high >= known or not known:
        row = list(unpack_ints(codes, count)).index(high)
        raise ConfigError(f"event {row} has {name} number {high}, of {known} listed")


def _check_times(column: SignedInts, count: int) -> None:
    times = [column] if isinstance(column, int) else unpack_signed(column, count)
    if not FIRST_MS <= min(times) <= max(times) <= LAST_MS:
        row = next(row for row, ms in enumerate(times) if not FIRST_MS <= ms <= LAST_MS)
        raise ConfigError(f"event {row}: occurred_at must lie in the years 1 to 9999 of UTC, not at {times[row]} ms")


# ── payloads ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _check_payloads(wire: Wire) -> None:
    count, size = wire.count, len(wire.payload)
    wanted, longest = _sum_and_highest(wire.lengths, count, "payload")
    if wanted != size:
        raise ConfigError(f"its payloads have {size:,} bytes, and should have {wanted:,}")
    if longest > MAX_PAYLOAD_BYTES or size > MAX_BATCH_BYTES:
        raise ConfigError(f"a payload of {longest:,} bytes, or all of {size:,}, are too large to append")
    data = bytes(wire.payload)
    payloads = [data[start:stop] for start, stop in pairwise(offsets(wire.lengths, count))]
    rows: Sequence[int] = range(count)
    if wire.binary is not None:
        _check_flags(wire.binary, count, "binary")
        as_json = wire.binary.translate(_IS_ZERO)
        rows, payloads = list(compress(rows, as_json)), list(compress(payloads, as_json))
        data = b"".join(payloads)
    try:
        deque(map(_value, payloads), maxlen=0)
        data.decode()  # which the decoder of values that are kept as bytes does not look at
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


def _check_flags(flags: bytes, count: int, name: str) -> None:
    if len(flags) != count or flags.translate(None, _FLAGS):
        raise ConfigError(f"its column {name} does not say yes or no for each of {count} events")


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _check_texts(column: Text, count: int, name: str, most: int, *, least: int = 1, optional: bool = True) -> None:
    """Texts of `least` to `most` bytes, and, where they are optional, rows without one."""
    if isinstance(column, CodedText):
        for value in column.values:
            size = -1 if value is None else len(value.encode())
            if not (least <= size <= most or (value is None and optional)):
                raise ConfigError(f"an event has a {name} of {max(size, 0)} bytes; {least} to {most:,} are allowed")
        _check_codes(column.values, column.codes, count, name)
        return
    data = column.data
    wanted, longest = _sum_and_highest(column.lengths, count, name)
    if wanted != len(data):
        raise ConfigError(f"its column {name} has {len(data):,} bytes, and should have {wanted:,}")
    if longest > most:
        raise ConfigError(f"an event has a {name} of {longest:,} bytes; {least} to {most:,} are allowed")
    if least or column.nulls is not None:
        _check_nulls(column, count, name, optional=optional)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"its column {name} is no text: {error}") from error
    if not data.isascii():
        cut = next((row for row, start in enumerate(offsets(column.lengths, count)) if _is_inner(data, start)), None)
        if cut is not None:
            raise ConfigError(f"the {name} of event {cut} begins within a character")


def _check_nulls(column: PlainText, count: int, name: str, *, optional: bool) -> None:
    """Rows without a text are those that say so, and no others are empty."""
    if column.nulls is not None:
        _check_flags(column.nulls, count, f"of a missing {name}")
        if not optional:
            raise ConfigError(f"its column {name} says that some are missing")
    if isinstance(column.lengths, bytes) and len(column.lengths) == count:
        empty = column.lengths.translate(_IS_ZERO)
    else:
        empty = bytes(length == 0 for length in unpack_ints(column.lengths, count))
    missing = bytes(count) if column.nulls is None else column.nulls
    if empty != missing:
        row = next(row for row in range(count) if empty[row] != missing[row])
        raise ConfigError(f"the {name} of event {row} is empty, or is said to be missing and is there")


def _is_inner(data: bytes, at: int) -> bool:
    """Whether a byte of UTF-8 is not the first one of a character."""
    return at < len(data) and data[at] & 0xC0 == 0x80


# ── headers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _check_headers(column: Headers, count: int) -> None:
    total, names, values = column.total, column.names, column.values
    wanted, most = _sum_and_highest(column.counts, count, "headers")
    if wanted != total:
        raise ConfigError(f"its events have {wanted} headers, and {total} are listed")
    if most > MAX_HEADERS:
        raise ConfigError(f"an event has {most} headers; at most {MAX_HEADERS} are allowed")
    if not total or names is None or values is None:
        if total or names is not None or values is not None:
            raise ConfigError(f"its {total} headers have no names or no values, or there are some of none")
        return
    _check_texts(names, total, "header name", MAX_HEADER_BYTES, optional=False)
    _check_texts(values, total, "header value", MAX_HEADER_BYTES, least=0, optional=False)
    starts = offsets(column.counts, count)
    if most > 1:
        _check_names_differ(names, total, starts)
    longest = _longest(names, total) + _longest(values, total)
    if most * longest > MAX_HEADER_BYTES or total * longest > MAX_BATCH_BYTES:
        _check_header_sizes(names, values, total, starts)


def _check_names_differ(names: Text, total: int, starts: Sequence[int]) -> None:
    """No event has two headers of one name. Events tend to have the same names in the same order: each order once."""
    if not isinstance(names, CodedText):
        each: bytes | tuple[object, ...] = tuple(text_values(names, total))
    elif isinstance(names.codes, int) or len(names.codes) == total:
        each = bytes(total) if isinstance(names.codes, int) else names.codes
    else:
        each = tuple(unpack_ints(names.codes, total))
    for order in {each[start:stop] for start, stop in pairwise(starts)}:
        if len(set(order)) < len(order):
            raise ConfigError(f"an event has {len(order)} headers, of which two have one name")


def _longest(column: Text, count: int) -> int:
    """How many bytes a text has at the most, about."""
    if isinstance(column, CodedText):
        return max(len((value or "").encode()) for value in column.values)
    if isinstance(column.lengths, int):
        return column.lengths
    return 255 if len(column.lengths) == count else max(unpack_ints(column.lengths, count))


def _check_header_sizes(names: Text, values: Text, total: int, starts: Sequence[int]) -> None:
    sizes = [len((text or "").encode()) for text in chain(text_values(names, total), text_values(values, total))]
    if sum(sizes) > MAX_BATCH_BYTES:
        raise ConfigError(f"its headers have {sum(sizes):,} bytes; at most {MAX_BATCH_BYTES:,} are allowed")
    for row, (start, stop) in enumerate(pairwise(starts)):
        size = sum(sizes[start:stop]) + sum(sizes[total + start : total + stop])
        if size > MAX_HEADER_BYTES:
            raise ConfigError(f"event {row} has headers of {size:,} bytes; at most {MAX_HEADER_BYTES:,} are allowed")


# ── what events ask for ──────────────────────────────────────────────────────────────────────────────────────────────
def check_options(options: RowOptions, wire: Wire) -> None:
    """ConfigError when an event asks for what none can; what only a queue understands is judged in the commit."""
    if options.lengths() != {wire.count}:
        raise ConfigError(f"it has options for {options.lengths()} events, and {wire.count} events")
    for dedup in set(options.dedup or ()) - {None}:
        check_text(dedup, "dedup")
    for row, moment in enumerate(options.not_before or ()):
        if moment is not None and not FIRST_MS <= moment <= LAST_MS:
            raise ConfigError(f"event {row}: not_before must lie in the years 1 to 9999 of UTC, not at {moment} ms")
    if options.expect is not None:
        keys = text_values(wire.key, wire.count)
        for row, expect in enumerate(options.expect):
            if expect is not None:
                check_position(expect, f"expect of event {row}")
                if keys[row] is None:
                    raise ConfigError(f"expect= of event {row} needs key=: it is the position of its newest event")

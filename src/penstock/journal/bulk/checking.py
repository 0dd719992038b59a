"""Blocks that came from elsewhere: what is wrong with one is found before it is stored, not when it is read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.journal.storage.block import Block
from penstock.journal.storage.columns import text_values
from penstock.journal.storage.pending import RowOptions, decode_pending, options_of
from penstock.journal.storage.wire import FORMAT, Wire
from penstock.limits import BLOCK_EVENTS, MAX_HEADERS, MAX_KEY_BYTES, MAX_PAYLOAD_BYTES
from penstock.names import check_kind, check_name, check_position

_value = msgspec.json.Decoder(msgspec.Raw).decode


def checked_wire(topic: str, body: bytes) -> Wire:
    """A block that another process encoded; ConfigError when it could not be read, or holds what no event may."""
    check_name(topic)
    try:
        wire = decode_pending(body)
        _check(wire, topic)
    except (msgspec.DecodeError, ValueError, IndexError, TypeError) as error:
        raise ConfigError(f"a block for topic {topic!r} cannot be read: {error}") from error
    except ConfigError:
        raise
    except PenstockError as error:
        raise ConfigError(f"a block for topic {topic!r} cannot be read: {error}") from error
    return wire


def _check(wire: Wire, topic: str) -> None:
    count = wire.count
    if wire.format != FORMAT or not 0 < count <= BLOCK_EVENTS or wire.run_counts != count:
        raise ConfigError(f"a block for topic {topic!r} is no block of new events of this version")
    if wire.seqs is not None or wire.chain is not None:
        raise ConfigError(f"a block for topic {topic!r} brings positions or links, which are the journal's to give")
    block = Block(wire, topic)
    for kind in wire.kinds:
        check_kind(kind)
    codes = block.kind_codes
    if len(codes) != count or max(codes) >= len(wire.kinds) or min(codes) < 0:
        raise ConfigError(f"a block for topic {topic!r} has kinds that are not listed")
    if wire.binary is not None and len(wire.binary) != count:
        raise ConfigError(f"a block for topic {topic!r} says of {len(wire.binary)} payloads whether they are bytes")
    if wire.occurred is not None and len(block.occurred_times) != count:
        raise ConfigError(f"a block for topic {topic!r} has {len(block.occurred_times)} times for {count} events")
    _check_payloads(block)
    for name, column in (
        ("key", wire.key),
        ("scope", wire.scope),
        ("correlation", wire.correlation),
        ("causation", wire.causation),
    ):
        if column is not None:
            _check_texts(text_values(column, count), name, topic, count)
    if wire.headers is not None:
        for row in range(count):
            if len(block.headers(row)) > MAX_HEADERS:
                raise ConfigError(f"an event for topic {topic!r} has more than {MAX_HEADERS} headers")
    options = options_of(wire)
    if options is not None:
        _check_options(options, block)


def _check_options(options: RowOptions, block: Block) -> None:
    """What only a queue understands is judged by the queue, in the commit."""
    if options.lengths() != {block.count}:
        raise ConfigError(f"a block for topic {block.topic!r} has options for {options.lengths()} events")
    if options.dedup is not None:
        _check_texts(options.dedup, "dedup", block.topic, block.count)
    for row, expect in enumerate(options.expect or ()):
        if expect is not None:
            check_position(expect, "expect")
            if block.key(row) is None:
                raise ConfigError("expect= needs key=: it is the position of the entity's newest event")


def _check_payloads(block: Block) -> None:
    bounds, binary, data = block.payload_offsets, block.wire.binary, block.payload
    if len(bounds) != block.count + 1:
        raise ConfigError(f"a block for topic {block.topic!r} has {len(bounds) - 1} payloads for {block.count} events")
    for row in range(block.count):
        start, stop = bounds[row], bounds[row + 1]
        if stop - start > MAX_PAYLOAD_BYTES:
            raise ConfigError(f"a payload of {stop - start:,} bytes is too large; at most {MAX_PAYLOAD_BYTES:,}")
        if binary is None or not binary[row]:
            _value(data[start:stop])


def _check_texts(texts: Sequence[object], name: str, topic: str, count: int) -> None:
    if len(texts) != count:
        raise ConfigError(f"a block for topic {topic!r} has {len(texts)} values of {name} for {count} events")
    for text in set(texts):
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"an event for topic {topic!r} has a {name} that is no text: {text!r:.80}")
        if text is not None and not 0 < len(text.encode()) <= MAX_KEY_BYTES:
            raise ConfigError(f"an event for topic {topic!r} has a {name} of {len(text.encode())} bytes")

"""Hash chains: every event of an entity carries a link made of everything it says and of the link before it.

A link is the BLAKE3 hash of the event, keyed with its predecessor's link (zeros for an entity's first event). Whoever
changes, removes or reorders an entity's events breaks every later link. Events without a key form one chain of their
own. Links are made when positions and ids are known: inside the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError
from penstock.journal.block import Columns

if TYPE_CHECKING:
    from penstock.event import Event

GENESIS = bytes(32)
"""What an entity's first event is linked to; also what an event without a link has in its place."""

_encode = msgspec.msgpack.Encoder().encode

Predecessor = Callable[[str], bytes]
"""The newest link of an entity (the empty key: of the events without one)."""


def load_blake3() -> Any:
    """The hash function; ConfigError when it is not installed."""
    try:
        from blake3 import blake3
    except ImportError as error:
        raise ConfigError('hash chains need the blake3 package: pip install "penstock[entity]"') from error
    return blake3


def link_of(hash: Any, before: bytes, event: Event) -> bytes:
    """The link a stored event should have: the hash of the same tuple that `add_links` makes."""
    rows, row = event._rows, event._row
    headers = rows.headers(row)
    said = _encode(
        (
            rows.seq(row),
            rows.id_number(row).to_bytes(16),
            rows.occurred_ms(row),
            rows.kind(row),
            rows.raw_payload(row),
            rows.is_binary(row),
            rows.key(row),
            rows.scope(row),
            list(headers.items()) if headers else None,
            rows.correlation(row),
            rows.causation(row),
        )
    )
    return hash(said, key=before).digest()  # type: ignore[no-any-return]


def stored_link(event: Event) -> bytes | None:
    """The link an event carries, or None when it was appended before its topic kept chains."""
    found = event._rows.chain(event._row)
    return None if found is None or found == GENESIS else found


def add_links(
    columns: Columns, seq: int, number: int, recorded_ms: int, links: dict[str, bytes], find: Predecessor
) -> None:
    """Links events that get positions from `seq` and ids from `number` on; `links` follows."""
    hash, encode = load_blake3(), _encode
    made: list[bytes] = []
    nothing: list[Any] = [None] * len(columns)
    for kind, payload, key, scope, headers, occurred, correlation, causation, binary in zip(
        columns.kinds,
        columns.payloads,
        columns.key or nothing,
        columns.scope or nothing,
        columns.headers or nothing,
        columns.occurred or nothing,
        columns.correlation or nothing,
        columns.causation or nothing,
        columns.binary or nothing,
        strict=True,
    ):
        before = links.get(key or "")
        if before is None:
            before = find(key or "")
        said = encode(
            (
                seq,
                number.to_bytes(16),
                recorded_ms if occurred is None else occurred,
                kind,
                payload,
                bool(binary),
                key,
                scope,
                list(headers.items()) if headers else None,
                correlation,
                causation,
            )
        )
        links[key or ""] = before = hash(said, key=before).digest()
        made.append(before)
        seq += 1
        number += 1
    columns.chain = made

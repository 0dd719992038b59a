"""Hash chains: every event of an entity carries a link made of everything it says and of the link before it.

A link is the BLAKE3 hash of the event, keyed with its predecessor's link (zeros for an entity's first event). Changing,
removing or reordering an entity's events breaks every later link. Events without a key form one chain of their
own. Links are made when positions and ids are known: inside the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError
from penstock.journal.storage.block import Block, columns_of
from penstock.journal.storage.wire import Columns

if TYPE_CHECKING:
    from penstock.events import Event

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
    """The link a stored event should have."""
    block, row = event._rows, event._row
    assert isinstance(block, Block)  # only stored events have links
    seq = block.seq(row)
    names = [name_of(block.id_number(row), seq)]
    (said,) = said_by(columns_of(block, [row]), [seq], names, [block.occurred_ms(row)])
    return hash(said, key=before).digest()  # type: ignore[no-any-return]


def name_of(number: int, seq: int) -> bytes:
    """An id without the position in it: ids and positions count up together, so the events of a batch share this."""
    return (number - seq).to_bytes(16)


def stored_link(event: Event) -> bytes | None:
    """The link an event carries, or None when it was appended before its topic kept chains."""
    found = event._rows.chain(event._row)
    return None if found is None or found == GENESIS else found


def said_by(columns: Columns, seqs: Iterable[int], names: Iterable[bytes], occurred: Iterable[int]) -> Iterator[bytes]:
    """What each event says, as the bytes its link is made of: a tuple of six, or of eleven when it has more to say."""
    encode = _encode
    nothing: list[object] = [None] * len(columns)
    binaries, scopes, headers = columns.binary, columns.scope, columns.headers
    correlations, causations = columns.correlation, columns.causation
    short = zip(seqs, names, occurred, columns.kinds, columns.payloads, columns.key or nothing, strict=False)
    if not (binaries or scopes or headers or correlations or causations):
        for row in short:
            yield encode(row)
        return
    for row, binary, scope, header, correlation, causation in zip(
        short,
        binaries or nothing,
        scopes or nothing,
        headers or nothing,
        correlations or nothing,
        causations or nothing,
        strict=True,
    ):
        if binary or scope is not None or header or correlation is not None or causation is not None:
            pairs = list(header.items()) if header else None
            yield encode((*row, bool(binary), scope, pairs, correlation, causation))
        else:
            yield encode(row)


def add_links(
    columns: Columns, seq: int, number: int, recorded_ms: int, links: dict[str, bytes], find: Predecessor
) -> None:
    """Links events that get positions from `seq` and ids from `number` on; `links` follows."""
    hash, count = load_blake3(), len(columns)
    if columns.occurred is None:
        occurred = [recorded_ms] * count
    else:
        occurred = [recorded_ms if at is None else at for at in columns.occurred]
    made: list[bytes] = []
    told = said_by(columns, range(seq, seq + count), [name_of(number, seq)] * count, occurred)
    for key, said in zip(columns.key or [None] * count, told, strict=True):
        entity = key or ""
        before = links.get(entity)
        if before is None:
            before = find(entity)
        links[entity] = before = hash(said, key=before).digest()
        made.append(before)
    columns.chain = made

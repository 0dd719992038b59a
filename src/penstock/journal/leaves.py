"""What each event says, as the bytes that are hashed, and the hashes that a verified topic keeps of its events.

    l topic first             the hashes of the events first …, written with them by the commit that appended them

A hash is the event's leaf in the topic's Merkle tree, see `penstock.entity.receipts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.engine.contract import Snapshot, WriteTx
from penstock.journal import keys
from penstock.journal.blocks import Block, Columns, columns_of, spread

HASH_BYTES = 32

_encode = msgspec.msgpack.Encoder().encode


def leaf_hash(said: bytes) -> bytes:
    """The hash of a leaf."""
    from hashlib import sha256  # OpenSSL takes 3 ms to load, and most programs hash nothing

    return sha256(b"\x00" + said).digest()


def leaves(columns: Columns, seqs: Iterable[int], ids: Iterable[int], recorded: Sequence[int]) -> Iterator[bytes]:
    """Everything each event says, as bytes: position, id, times, kind, payload, and the optional columns in order."""
    nothing: list[None] = [None] * len(columns)
    for seq, id, ms, occurred, kind, payload, binary, key, scope, headers, correlation, causation in zip(
        seqs,
        ids,
        recorded,
        columns.occurred or nothing,
        columns.kinds,
        columns.payloads,
        columns.binary or nothing,
        columns.key or nothing,
        columns.scope or nothing,
        columns.headers or nothing,
        columns.correlation or nothing,
        columns.causation or nothing,
        strict=True,
    ):
        times = ms, ms if occurred is None else occurred
        pairs = sorted(headers.items()) if headers else None
        yield _encode(
            (seq, id.to_bytes(16), *times, kind, payload, bool(binary), key, scope, pairs, correlation, causation)
        )


def leaves_of(block: Block) -> Iterator[bytes]:
    """What each event of a block says."""
    ids, recorded, seqs = spread(block)
    return leaves(columns_of(block, range(block.count)), seqs, ids, recorded)


def leaf_of(block: Block, row: int) -> bytes:
    """What one event of a block says."""
    (said,) = leaves(columns_of(block, [row]), [block.seq(row)], [block.id_number(row)], [block.recorded_ms(row)])
    return said


# ── the hashes of a verified topic ───────────────────────────────────────────────────────────────────────────────────
def keep_hashes(tx: WriteTx, topic: int, seqs: Sequence[int], said: Iterable[bytes]) -> None:
    """Writes down the hashes of events that are being appended; a row for each run of positions without a hole."""
    hashes = list(map(leaf_hash, said))
    start = 0
    for stop in range(1, len(seqs) + 1):
        if stop == len(seqs) or seqs[stop] != seqs[stop - 1] + 1:
            tx.put(keys.leaves_key(topic, seqs[start]), b"".join(hashes[start:stop]))
            start = stop


def kept_hashes(snap: Snapshot, topic: int) -> Iterator[tuple[int, bytes]]:
    """The positions and hashes of the events that were appended since the topic is verified, in order."""
    for key, value in snap.scan(*keys.topic_range(keys.LEAVES, topic)):
        first = keys.block_first(key)
        for at in range(0, len(value), HASH_BYTES):
            yield first + at // HASH_BYTES, value[at : at + HASH_BYTES]


def kept_hash(snap: Snapshot, topic: int, seq: int) -> bytes | None:
    """The hash of the event that was appended at a position; None where none was kept."""
    for key, value in snap.scan(keys.leaves_key(topic, 0), keys.leaves_key(topic, seq + 1), reverse=True):
        at = (seq - keys.block_first(key)) * HASH_BYTES
        return value[at : at + HASH_BYTES] or None
    return None


def trim_hashes(tx: WriteTx, topic: int, through: int) -> None:
    """Removes the hashes of events that compaction has removed; a row that goes on after them stays whole."""
    low, high = keys.leaves_key(topic, 0), keys.leaves_key(topic, through + 1)
    for key, value in tx.scan(low, high, reverse=True):
        ends = keys.block_first(key) + len(value) // HASH_BYTES - 1 <= through
        tx.delete_range(low, high if ends else key)
        return

"""The bytes of the buffer, as pure functions: no store, no clock, no state.

Two formats, both version 1, all integers little-endian:

- a **batch object** is the entries, each after its length, then a 7-byte footer (`batch`);
- a **manifest** is the queue of batch objects, then a 22-byte footer with the next sequence and the epoch (`manifest`).

Every decoder treats its input as hostile: lengths and counts are checked against the bytes that are really there before
anything is allocated, decompression is bounded, and whatever does not fit raises `Corrupt`.
"""

from penstock.buffer.format.batch import (
    MAX_BATCH_BYTES,
    Compression,
    DecodedBatch,
    decode_arrow,
    decode_batch,
    encode_batch,
    encode_entries,
    open_batch,
    seal_batch,
)
from penstock.buffer.format.descriptor import Descriptor, Metadata
from penstock.buffer.format.manifest import (
    Manifest,
    append,
    dequeue,
    encode_entry,
    next_epoch,
    parse_manifest,
    set_epoch,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "Compression",
    "DecodedBatch",
    "Descriptor",
    "Manifest",
    "Metadata",
    "append",
    "decode_arrow",
    "decode_batch",
    "dequeue",
    "encode_batch",
    "encode_entries",
    "encode_entry",
    "next_epoch",
    "open_batch",
    "parse_manifest",
    "seal_batch",
    "set_epoch",
]

"""The buffer: many stateless writers and one fenced reader, through object storage.

    producer ──► {prefix}/{ULID}.batch ──► manifest (one conditional put) ──► consumer ──► ack ──► collector

A `Producer` uploads batches of entries and appends their locations to a manifest; the one `Consumer` of that manifest
reads it in order, fetches, and removes what it acknowledged. They do not talk to each other: the store is the only
meeting place. Bytes are opendata's (`format`), so its producers and consumers can share a manifest with these.

These invariants hold:

- a ticket resolves only when the manifest names the batch, and the manifest only names batches that are stored;
- sequences are contiguous per manifest, start at 0 and are never used again;
- only the consumer that took the newest epoch can remove entries; all others get `Fenced`;
- the collector deletes nothing that a manifest names, or that a producer may still append.

    format      the bytes, as pure functions
    settings    the arguments of both sides
    producer    entries to batches to objects
    draining    from a buffer into a journal
    manifest    the shared object: every change is one conditional put
    consumer    reading, acknowledging, running handlers, deleting batches that no manifest names
"""

from penstock.buffer.consumer import Batch, Consumer, Fetcher, RunReport
from penstock.buffer.draining import DrainReport, drain
from penstock.buffer.format import Descriptor, Metadata
from penstock.buffer.producer import Produced, Producer, UnflushedBatch

__all__ = [
    "Batch",
    "Consumer",
    "Descriptor",
    "DrainReport",
    "Fetcher",
    "Metadata",
    "Produced",
    "Producer",
    "RunReport",
    "UnflushedBatch",
    "drain",
]

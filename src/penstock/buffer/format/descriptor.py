"""Descriptors: what a manifest entry says about its batch."""

from __future__ import annotations

import msgspec


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """What one `produce` call said about its entries; it covers them from `start_index` to the next range's start."""

    start_index: int
    ingested_at_ms: int
    payload: bytes = b""


class Descriptor(msgspec.Struct, frozen=True):
    """One manifest entry: which object comes next. Picklable and comparable."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()
    crc: int | None = None
    """The CRC-32 of the batch object's bytes; None when its producer gave none."""

"""The manifest: a queue of batch locations, oldest first, then a footer.

    entry    length of the rest (u32) · sequence (u64) · location length (u16) · location (UTF-8) · ranges (u32)
             then per range: start index (u32) · ingestion time ms (i64) · payload length (u32) · payload
    footer   entry count (u32) · next sequence (u64) · epoch (u64) · version (u16)
    crc      behind an entry's last range: magic (4 bytes) · CRC-32 of the batch object (u32)
    mark     behind that (see `mark`); readers that know neither skip both

Entries are never rewritten: appending and dequeuing copy their bytes verbatim, so whatever a newer writer put behind an
entry's last range survives. Appending looks at the footer alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.buffer.format.descriptor import Descriptor, Metadata
from penstock.buffer.format.mark import Mark, decode_mark, encode_mark, may_be_mark
from penstock.errors import ConfigError, Corrupt

Buffer = bytes | memoryview | Any

VERSION = 1
FOOTER_SIZE = 22
MAX_LOCATION = 0xFFFF
#: No consumer ever owns this epoch: the reference keeps it for "not initialised".
RESERVED_EPOCH = (1 << 64) - 1

_FOOTER = struct.Struct("<IQQH")
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<QH")  # after the length: sequence, location length
_RANGE = struct.Struct("<IqI")
_ENTRY_MIN = _HEAD.size + _LENGTH.size
_CRC = struct.Struct("<4sI")
_CRC_MAGIC = b"PScr"
_EMPTY = _FOOTER.pack(0, 0, 0, VERSION)


class Manifest:
    """A manifest's footer, and its entries decoded only when asked for."""

    __slots__ = ("count", "data", "epoch", "next_sequence")

    def __init__(self, data: Buffer) -> None:
        if len(data) == 0:
            raise Corrupt("a manifest must not be empty: a missing object is an empty queue, zero bytes are damage")
        if len(data) < FOOTER_SIZE:
            raise Corrupt(f"a manifest of {len(data)} bytes is too short for its {FOOTER_SIZE}-byte footer")
        count, next_sequence, epoch, version = _FOOTER.unpack_from(data, len(data) - FOOTER_SIZE)
        if version != VERSION:
            raise Corrupt(f"manifest version {version} is unsupported (only {VERSION})", offset=len(data) - 2)
        self.data = data
        self.count: int = count
        self.next_sequence: int = next_sequence
        self.epoch: int = epoch

    # No __len__: list() would allocate what the footer claims before anything was checked.

    def __iter__(self) -> Iterator[Descriptor]:
        """Every entry, oldest first."""
        for start, end, sequence in self._walk():
            yield self._decode(start, end, sequence)

    def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Up to `limit` entries with a sequence above `sequence` (None: from the first); reads no further."""
        found: list[Descriptor] = []
        if limit <= 0:
            return found
        for start, end, each in self._walk():
            if sequence is None or each > sequence:
                found.append(self._decode(start, end, each))
                if len(found) == limit:
                    break
        return found

    def first_sequence(self) -> int | None:
        """The oldest entry's sequence, or None when there are no entries."""
        for _, _, sequence in self._walk():
            return sequence
        return None

    def locations(self) -> Iterator[tuple[int, str]]:
        """Every entry's sequence and location, without decoding metadata."""
        for start, end, sequence in self._walk():
            yield sequence, self._location(start, end)

    def marks(self, through: int | None = None) -> Iterator[Mark]:
        """The marks of the entries (up to a sequence) that have one."""
        for start, end, sequence in self._walk():
            if through is not None and sequence > through:
                return
            if may_be_mark(self.data, end):
                begin = self._ranges_end(start, end)
                if self._crc(begin, end) is not None:
                    begin += _CRC.size
                mark = decode_mark(self.data, begin, end)
                if mark is not None:
                    yield mark

    def _ranges_end(self, start: int, end: int) -> int:
        """Where an entry's last metadata range ends."""
        data = self.data
        offset: int = start + _HEAD.size + _HEAD.unpack_from(data, start)[1]
        if offset + _LENGTH.size > end:
            raise Corrupt("a location does not fit its manifest entry", offset=start)
        ranges = _LENGTH.unpack_from(data, offset)[0]
        offset += _LENGTH.size
        for _ in range(ranges):
            if offset + _RANGE.size > end:
                raise Corrupt("a metadata range does not fit its manifest entry", offset=offset)
            offset += _RANGE.size + _RANGE.unpack_from(data, offset)[2]
        return offset

    def _crc(self, begin: int, end: int) -> int | None:
        """The checksum behind an entry's last range, if there is one."""
        if end - begin < _CRC.size:
            return None
        magic, crc = _CRC.unpack_from(self.data, begin)
        return int(crc) if magic == _CRC_MAGIC else None

    def _walk(self) -> Iterator[tuple[int, int, int]]:
        """Each entry's start (after its length), end and sequence, checked against the bytes that are there."""
        data = self.data
        body = len(data) - FOOTER_SIZE
        if self.count * (_LENGTH.size + _ENTRY_MIN) > body:
            raise Corrupt(f"a manifest of {len(data)} bytes cannot hold the {self.count} entries it counts")
        length_at, head_at = _LENGTH.unpack_from, _HEAD.unpack_from
        offset = 0
        previous = -1
        for index in range(self.count):
            start = offset + 4
            if start > body:
                raise Corrupt(f"the length of manifest entry {index} lies past the entries", offset=offset)
            end = start + length_at(data, offset)[0]
            if end > body:
                raise Corrupt(f"manifest entry {index} ends at byte {end}, the entries at {body}", offset=offset)
            if end - start < _ENTRY_MIN:
                raise Corrupt(f"manifest entry {index} has {end - start} bytes, at least {_ENTRY_MIN}", offset=offset)
            sequence = head_at(data, start)[0]
            if sequence <= previous or sequence >= self.next_sequence:
                raise Corrupt(
                    f"manifest entry {index} has sequence {sequence}: after {previous}, before {self.next_sequence}",
                    offset=start,
                )
            yield start, end, sequence
            previous = sequence
            offset = end
        if offset != body:
            raise Corrupt(f"{body - offset} bytes are left over after the last manifest entry", offset=offset)

    def _location(self, start: int, end: int) -> str:
        size = _HEAD.unpack_from(self.data, start)[1]
        begin = start + _HEAD.size
        if begin + size + _LENGTH.size > end:
            raise Corrupt(f"a location of {size} bytes does not fit its manifest entry", offset=begin)
        try:
            return str(self.data[begin : begin + size], "utf-8")
        except UnicodeDecodeError as error:
            raise Corrupt("a manifest entry's location is not UTF-8", offset=begin + error.start) from None

    def _decode(self, start: int, end: int, sequence: int) -> Descriptor:
        location = self._location(start, end)
        data = self.data
        offset = start + _HEAD.size + _HEAD.unpack_from(data, start)[1]
        ranges = _LENGTH.unpack_from(data, offset)[0]
        offset += _LENGTH.size
        if ranges * _RANGE.size > end - offset:
            raise Corrupt(f"entry {sequence} counts {ranges} metadata ranges in {end - offset} bytes", offset=offset)
        metadata: list[Metadata] = []
        for index in range(ranges):
            payload = offset + _RANGE.size
            if payload > end:
                raise Corrupt(f"metadata range {index} of entry {sequence} does not fit", offset=offset)
            start_index, ingested_at_ms, size = _RANGE.unpack_from(data, offset)
            offset = payload + size
            if offset > end:
                raise Corrupt(f"metadata range {index} of entry {sequence} is shorter than stated", offset=payload)
            metadata.append(Metadata(start_index, ingested_at_ms, bytes(data[payload:offset])))
        return Descriptor(sequence, location, tuple(metadata), self._crc(offset, end))


def parse_manifest(data: Buffer | None) -> Manifest:
    """Reads a manifest's footer; None (the object is missing) is an empty one. Entries are checked as they are read."""
    return Manifest(_EMPTY if data is None else data)


def empty_manifest(next_sequence: int) -> Manifest:
    """A manifest without entries whose next one gets this sequence."""
    return Manifest(_FOOTER.pack(0, next_sequence, 0, VERSION))


def encode_entry(
    sequence: int,
    location: str,
    metadata: Sequence[Metadata] = (),
    mark: Mark | None = None,
    crc: int | None = None,
) -> bytes:
    """One manifest entry."""
    name = location.encode()
    if len(name) > MAX_LOCATION:
        raise ConfigError(f"a location has at most {MAX_LOCATION} bytes, this one {len(name)}: {location[:80]!r}…")
    parts = [b"", _HEAD.pack(sequence, len(name)), name, _LENGTH.pack(len(metadata))]
    for each in metadata:
        parts.append(_RANGE.pack(each.start_index, each.ingested_at_ms, len(each.payload)))
        parts.append(each.payload)
    if crc is not None:
        parts.append(_CRC.pack(_CRC_MAGIC, crc))
    if mark is not None:
        parts.append(encode_mark(mark))
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


def append(
    manifest: Manifest,
    entries: Iterable[tuple[str, Sequence[Metadata]]],
    mark: Mark | None = None,
    checksums: Mapping[str, int] | None = None,
) -> bytes:
    """The manifest with these (location, metadata) at its end; the entries already there are copied, not decoded.

    The mark goes with the last of them, so that it stays for as long as any of them does. `checksums` has the CRC-32 of
    the objects at the locations it names.
    """
    sequence = manifest.next_sequence
    parts: list[Buffer] = [memoryview(manifest.data)[: len(manifest.data) - FOOTER_SIZE]]
    added = list(entries)
    for location, metadata in added:
        last = sequence == manifest.next_sequence + len(added) - 1
        crc = checksums.get(location) if checksums else None
        parts.append(encode_entry(sequence, location, metadata, mark if last else None, crc))
        sequence += 1
    count = manifest.count + len(parts) - 1
    if sequence >= 1 << 64 or count >= 1 << 32:
        raise ConfigError(f"the manifest is full: {count} entries, next sequence {sequence}")
    parts.append(_FOOTER.pack(count, sequence, manifest.epoch, VERSION))
    return b"".join(parts)


def dequeue(manifest: Manifest, through: int) -> bytes:
    """The manifest without its leading entries whose sequence is at most `through`; the others are copied verbatim."""
    cut = removed = 0
    for _, end, sequence in manifest._walk():
        if sequence > through:
            break
        cut = end
        removed += 1
    body = memoryview(manifest.data)[cut : len(manifest.data) - FOOTER_SIZE]
    footer = _FOOTER.pack(manifest.count - removed, manifest.next_sequence, manifest.epoch, VERSION)
    return b"".join((body, footer))


def set_epoch(manifest: Manifest, epoch: int) -> bytes:
    """The manifest with another epoch."""
    body = memoryview(manifest.data)[: len(manifest.data) - FOOTER_SIZE]
    return b"".join((body, _FOOTER.pack(manifest.count, manifest.next_sequence, epoch, VERSION)))


def next_epoch(epoch: int) -> int:
    """The epoch a new consumer takes: one more, wrapping, never the reserved one."""
    following = (epoch + 1) & RESERVED_EPOCH
    return 0 if following == RESERVED_EPOCH else following

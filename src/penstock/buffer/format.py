"""The bytes of the buffer, as pure functions: no store, no clock, no state.

Two formats, both version 1, all integers little-endian:

- a **batch object** is the entries, each after its length, then a 7-byte footer;
- a **manifest** is the queue of batch objects, then a 22-byte footer with the next sequence and the epoch.

Every decoder treats its input as hostile. Lengths and counts are checked against the bytes at hand before memory is
allocated, decompression is bounded, and input that does not fit raises `Corrupt`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from penstock.errors import ConfigError, Corrupt

np: Any
try:
    import numpy as np
except ImportError:  # numpy only makes the check for entries of one length faster
    np = None

if TYPE_CHECKING:
    import pyarrow


# ── The batch object: entries, each after its length (u32), then compression (u8), count (u32), version (u16) ──
# Compression covers the entries, not the footer. Bytes between the last entry and the footer are ignored.


Compression = Literal["none", "zstd"]
Buffer = bytes | bytearray | memoryview | Any

BATCH_VERSION = 1
#: The largest block (entries with their lengths, uncompressed) that is written. Readers accept no larger block unless
#: told otherwise.
MAX_BATCH_BYTES = 512 << 20

_FOOTER = struct.Struct("<BIH")
_LENGTH = struct.Struct("<I")
_CODES: dict[str, int] = {"none": 0, "zstd": 1}
_SMALL = 4096
_PREFIXES = tuple(_LENGTH.pack(length) for length in range(_SMALL))
#: The number of entries that one call unpacks: large enough to spread the cost of the call, small enough that compiling
#: the format stays cheap.
_RUN = 1000
_RUN_BYTES = 256 << 10
#: With fewer entries, looking for a common length costs more than it saves.
_UNIFORM_FROM = 16


# ── encoding ──


def encode_entries(entries: Sequence[bytes]) -> bytes:
    """Returns entries in the form of a batch, each entry after its length.

    Results may be concatenated into one batch.
    """
    lengths = list(map(len, entries))
    first = lengths[0] if lengths else 0
    if lengths.count(first) == len(lengths):
        prefix = _prefix(first)
        encoded = prefix + prefix.join(entries) if lengths else b""
        expected = len(lengths) * (_LENGTH.size + first)
    else:
        parts: list[bytes] = [b""] * (2 * len(lengths))
        parts[::2] = map(_PREFIXES.__getitem__ if max(lengths) < _SMALL else _prefix, lengths)
        parts[1::2] = entries
        encoded = b"".join(parts)
        expected = len(lengths) * _LENGTH.size + sum(lengths)
    if len(encoded) != expected:  # the length of a memoryview of larger items is not its number of bytes
        raise TypeError("entries must be bytes")
    return encoded


def _prefix(length: int) -> bytes:
    if length < _SMALL:
        return _PREFIXES[length]
    if length > MAX_BATCH_BYTES:
        raise ConfigError(f"an entry of {length} bytes is larger than a batch may be ({MAX_BATCH_BYTES})")
    return _LENGTH.pack(length)


def batch_footer(count: int, compression: Compression = "none") -> bytes:
    """Returns the footer that follows a batch's entries."""
    try:
        return _FOOTER.pack(_CODES[compression], count, BATCH_VERSION)
    except KeyError:
        raise ConfigError(f"compression must be one of {', '.join(_CODES)}, not {compression!r}") from None


def compress_entries(encoded: Buffer, *, checksum: bool = True) -> bytes:
    """Returns encoded entries as one zstd frame, with zstd's own checksum unless told otherwise; every reader takes
    both.
    """
    import zstandard

    compressed: bytes = zstandard.ZstdCompressor(level=3, write_checksum=checksum).compress(encoded)
    return compressed


def seal_batch(encoded: Iterable[Buffer], count: int, compression: Compression = "none") -> bytes:
    """Returns a whole batch object from the results of `encode_entries`, with `count` entries altogether."""
    footer = batch_footer(count, compression)
    if compression == "none":
        return b"".join(chain(encoded, (footer,)))
    return compress_entries(b"".join(encoded)) + footer


def encode_batch(entries: Sequence[bytes], compression: Compression = "none") -> bytes:
    """Returns a whole batch object with these entries."""
    return seal_batch((encode_entries(entries),), len(entries), compression)


# ── decoding ──


class DecodedBatch:
    """A batch object whose structure has been checked. Entries become Python objects only when asked for."""

    __slots__ = ("_data", "_entries", "count", "end", "length", "size")

    def __init__(self, data: Buffer, end: int, count: int) -> None:
        self._data = data
        self._entries: list[bytes] | None = None
        self.end = end  # where the footer of an uncompressed object begins
        self.count = count
        self.length = _common_length(data, end, count)  # the length of every entry, when all have the same
        if self.length is None:
            self._entries, self.size = _split(data, end, count)
        else:
            self.size = count * (_LENGTH.size + self.length)

    @property
    def entries(self) -> list[bytes]:
        """Every entry, in the order it was produced; a list that is made on first use."""
        if self._entries is None:
            self._entries = list(chain.from_iterable(self._runs()))
        return self._entries

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._runs()) if self._entries is None else iter(self._entries)

    def _runs(self) -> Iterator[tuple[bytes, ...]]:
        length = self.length or 0
        stride = _LENGTH.size + length
        run = max(1, min(_RUN, _RUN_BYTES // stride))
        whole, rest = divmod(self.count, run)
        unpack = _unpacker(length, run)
        for index in range(whole):
            yield unpack(self._data, index * run * stride)
        if rest:
            yield _unpacker(length, rest)(self._data, whole * run * stride)

    def to_arrow(self) -> pyarrow.Array:
        """Returns the entries as one Arrow binary array, made without a Python object per entry (needs
        penstock[arrow]).
        """
        from penstock.buffer.arrow import block_to_arrow

        return block_to_arrow(memoryview(self._data)[: self.end], self.count)

    def __reduce__(self) -> tuple[object, ...]:
        return DecodedBatch, self._stored()

    def _stored(self) -> tuple[bytes, int, int]:
        return bytes(memoryview(self._data)[: self.end]), self.end, self.count


def open_batch(data: Buffer, *, limit: int = MAX_BATCH_BYTES) -> DecodedBatch:
    """Checks a batch object; raises `Corrupt` when the bytes are no batch object, or unpack to more than `limit`
    bytes.
    """
    return DecodedBatch(*unwrap(data, limit))


def unwrap(data: Buffer, limit: int) -> tuple[Buffer, int, int]:
    """Returns the bytes that hold the entries, where they end, and how many entries there should be."""
    size = len(data)
    if size < _FOOTER.size:
        raise Corrupt(f"a batch of {size} bytes is too small for its {_FOOTER.size}-byte footer", offset=size)
    end = size - _FOOTER.size
    code, count, version = _FOOTER.unpack_from(data, end)
    if code not in _CODES.values():
        raise Corrupt(f"batch compression {code} is unsupported (0 none, 1 zstd)", offset=end)
    if version != BATCH_VERSION:
        raise Corrupt(f"batch version {version} is unsupported (only {BATCH_VERSION})", offset=end + 5)
    if code == _CODES["zstd"]:
        data = _decompress(memoryview(data)[:end], limit)
        end = len(data)
    elif end > limit:
        raise Corrupt(f"a batch of {end} bytes is larger than the {limit} allowed", offset=0)
    if count * _LENGTH.size > end:
        raise Corrupt(f"a batch of {end} bytes cannot hold the {count} entries it counts", offset=end)
    return data, end, count


def decode_arrow(data: Buffer, limit: int = MAX_BATCH_BYTES) -> pyarrow.Array:
    """Returns the entries of a batch object as one Arrow binary array, without a Python object per entry."""
    from penstock.buffer.arrow import block_to_arrow

    unwrapped, end, count = unwrap(data, limit)
    return block_to_arrow(memoryview(unwrapped)[:end], count)


def decode_batch(data: Buffer, *, limit: int = MAX_BATCH_BYTES) -> list[bytes]:
    """Returns the entries of a batch object."""
    return open_batch(data, limit=limit).entries


def _split(data: Buffer, end: int, count: int) -> tuple[list[bytes], int]:
    """Returns entries of differing lengths, and where they end.

    Slices past the end are too short and fail the last check.
    """
    block: bytes = data if type(data) is bytes else bytes(data)
    length_at = _LENGTH.unpack_from
    entries: list[bytes] = []
    append = entries.append
    offset = 0
    try:
        for _ in repeat(None, count):
            start = offset + 4
            offset = start + length_at(block, offset)[0]
            append(block[start:offset])
    except struct.error:
        raise Corrupt(
            f"truncated batch: the length of entry {len(entries)} of {count} is past the end", offset=min(offset, end)
        ) from None
    if offset > end:
        raise Corrupt(f"truncated batch: its {count} entries need {offset} bytes, there are {end}", offset=end)
    return entries, offset


def _common_length(data: Buffer, end: int, count: int) -> int | None:
    """Returns the common length of all entries, or None when the lengths differ (or the entries are too few to
    matter).
    """
    if count < _UNIFORM_FROM:
        return None
    length: int = _LENGTH.unpack_from(data, 0)[0]
    stride = _LENGTH.size + length
    # The last and the second entry are checked first: batches of differing lengths rarely pass this check.
    if count * stride > end or not (
        length == _LENGTH.unpack_from(data, (count - 1) * stride)[0] == _LENGTH.unpack_from(data, stride)[0]
    ):
        return None
    if np is not None:
        lengths = np.ndarray((count,), np.dtype("<u4"), memoryview(data), 0, (stride,))
        return length if bool((lengths == length).all()) else None
    block = data if type(data) is bytes else bytes(data)
    prefix = block[:4]
    same = all(block[lane : count * stride : stride].count(prefix[lane]) == count for lane in range(4))
    return length if same else None


@functools.lru_cache(maxsize=64)
def _unpacker(length: int, run: int) -> Callable[[Buffer, int], tuple[bytes, ...]]:
    return struct.Struct(f"<{f'4x{length}s' * run}").unpack_from


# ── zstd ──

#: Four bytes can unpack to a block of 128 KiB, so this many bytes exceed a limit by at most 16 MiB.
_FEED = 512


def _decompress(data: memoryview, limit: int) -> bytes:
    """Unpacks every frame, never holding more than `limit` bytes whatever the frames claim or produce."""
    import zstandard  # the import takes 14 ms, which a buffer without compression saves

    try:
        stated = zstandard.get_frame_parameters(data).content_size
        if stated not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
            if stated > limit:
                raise Corrupt(f"the batch says it unpacks to {stated} bytes; {limit} are allowed", offset=0)
            if stated > 0:
                try:
                    return bytes(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
                except zstandard.ZstdError:
                    pass  # several frames, or damage: the stream reader distinguishes them
        return _decompress_stream(zstandard, data, limit)
    except zstandard.ZstdError as error:
        raise Corrupt(f"the batch does not decompress: {error}", offset=0) from None


def _decompress_stream(zstandard: ModuleType, data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    offset = 0
    while offset < len(data):
        # The decoder itself allocates the window; 128 MiB is the most that zstd's own tools accept.
        frame = zstandard.ZstdDecompressor(max_window_size=128 << 20).decompressobj()
        while not frame.eof:
            piece = data[offset : offset + _FEED]
            if not piece:
                raise Corrupt("truncated batch: its zstd frame does not end", offset=len(data))
            part = frame.decompress(piece)
            offset += len(piece)
            total += len(part)
            if total > limit:
                raise Corrupt(f"the batch unpacks to more than the {limit} bytes allowed", offset=offset)
            parts.append(part)
        offset -= len(frame.unused_data)
    return b"".join(parts)


# ── Descriptors: what a manifest entry says about its batch ──


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """The metadata of a `produce` call. It covers the entries from `start_index` to the start of the next range."""

    start_index: int
    ingested_at_ms: int
    payload: bytes = b""


class Descriptor(msgspec.Struct, frozen=True):
    """An entry of the manifest: the next object to read. Picklable and comparable."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()
    crc: int | None = None
    """The CRC-32 of the batch object's bytes; None when its producer gave none."""


# ── The manifest: a queue of batch locations, oldest first, then a footer ──
#     entry    length of the rest (u32) · sequence (u64) · location length (u16) · location (UTF-8) · ranges (u32)
#              then per range: start index (u32) · ingestion time ms (i64) · payload length (u32) · payload
#     footer   entry count (u32) · next sequence (u64) · epoch (u64) · version (u16)
#     crc      behind an entry's last range: magic (4 bytes) · CRC-32 of the batch object (u32)
#     mark     behind that (see `Mark`); readers that know neither skip both
#
# Entries are never rewritten: appending and dequeuing copy their bytes verbatim, so whatever a newer writer put behind
# an entry's last range survives. Appending looks at the footer alone.


MANIFEST_VERSION = 1
MANIFEST_FOOTER_SIZE = 22
MAX_LOCATION = 0xFFFF
#: No consumer ever owns this epoch: the reference implementation keeps it for "not initialised".
RESERVED_EPOCH = (1 << 64) - 1

_MANIFEST_FOOTER = struct.Struct("<IQQH")
_HEAD = struct.Struct("<QH")  # after the length: sequence, location length
_RANGE = struct.Struct("<IqI")
_ENTRY_MIN = _HEAD.size + _LENGTH.size
_CRC = struct.Struct("<4sI")
_CRC_MAGIC = b"PScr"
_EMPTY_MANIFEST = _MANIFEST_FOOTER.pack(0, 0, 0, MANIFEST_VERSION)


class Manifest:
    """A manifest's footer, and its entries decoded only when asked for."""

    __slots__ = ("count", "data", "epoch", "next_sequence", "path")

    def __init__(self, data: Buffer, path: str | None = None) -> None:
        self.path = path
        """The object that the manifest was read from; errors about damage name it."""
        if len(data) == 0:
            raise self._corrupt(
                "a manifest must not be empty: a missing object is an empty queue, zero bytes are damage"
            )
        if len(data) < MANIFEST_FOOTER_SIZE:
            raise self._corrupt(
                f"a manifest of {len(data)} bytes is too short for its {MANIFEST_FOOTER_SIZE}-byte footer"
            )
        count, next_sequence, epoch, version = _MANIFEST_FOOTER.unpack_from(data, len(data) - MANIFEST_FOOTER_SIZE)
        if version != MANIFEST_VERSION:
            raise self._corrupt(
                f"manifest version {version} is unsupported (only {MANIFEST_VERSION})", offset=len(data) - 2
            )
        self.data = data
        self.count: int = count
        self.next_sequence: int = next_sequence
        self.epoch: int = epoch

    # No __len__: list() would allocate as much as the footer claims before anything was checked.

    def _corrupt(self, why: str, offset: int | None = None) -> Corrupt:
        return Corrupt(why, file=self.path, offset=offset)

    def __iter__(self) -> Iterator[Descriptor]:
        """Yields every entry, oldest first."""
        for start, end, sequence in self._walk():
            yield self._decode(start, end, sequence)

    def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Returns up to `limit` entries with a sequence above `sequence` (None: from the first); reads no further."""
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
        """Returns the oldest entry's sequence, or None when there are no entries."""
        for _, _, sequence in self._walk():
            return sequence
        return None

    def locations(self) -> Iterator[tuple[int, str]]:
        """Yields every entry's sequence and location, without decoding metadata."""
        for start, end, sequence in self._walk():
            yield sequence, self._location(start, end)

    def marks(self, through: int | None = None) -> Iterator[Mark]:
        """Yields the marks of the entries (up to a sequence) that have one."""
        for start, end, sequence in self._walk():
            if through is not None and sequence > through:
                return
            if may_be_mark(self.data, end):
                _, begin = self._ranges(start, end, sequence)
                if self._crc(begin, end) is not None:
                    begin += _CRC.size
                mark = decode_mark(self.data, begin, end)
                if mark is not None:
                    yield mark

    def _crc(self, begin: int, end: int) -> int | None:
        """Returns the checksum behind an entry's last range, if there is one."""
        if end - begin < _CRC.size:
            return None
        magic, crc = _CRC.unpack_from(self.data, begin)
        return int(crc) if magic == _CRC_MAGIC else None

    def _walk(self) -> Iterator[tuple[int, int, int]]:
        """Yields each entry's start (after its length), end and sequence, checked against the bytes at hand."""
        data = self.data
        body = len(data) - MANIFEST_FOOTER_SIZE
        if self.count * (_LENGTH.size + _ENTRY_MIN) > body:
            raise self._corrupt(f"a manifest of {len(data)} bytes cannot hold the {self.count} entries it counts")
        length_at, head_at = _LENGTH.unpack_from, _HEAD.unpack_from
        offset = 0
        previous = -1
        for index in range(self.count):
            start = offset + 4
            if start > body:
                raise self._corrupt(f"the length of manifest entry {index} is past the entries", offset=offset)
            end = start + length_at(data, offset)[0]
            if end > body:
                raise self._corrupt(f"manifest entry {index} ends at byte {end}, the entries at {body}", offset=offset)
            if end - start < _ENTRY_MIN:
                raise self._corrupt(
                    f"manifest entry {index} has {end - start} bytes, at least {_ENTRY_MIN}", offset=offset
                )
            sequence = head_at(data, start)[0]
            if sequence <= previous or sequence >= self.next_sequence:
                raise self._corrupt(
                    f"manifest entry {index} has sequence {sequence}: after {previous}, before {self.next_sequence}",
                    offset=start,
                )
            yield start, end, sequence
            previous = sequence
            offset = end
        if offset != body:
            raise self._corrupt(f"{body - offset} bytes are left over after the last manifest entry", offset=offset)

    def _location_end(self, start: int, end: int) -> int:
        begin = start + _HEAD.size
        size: int = _HEAD.unpack_from(self.data, start)[1]
        if begin + size + _LENGTH.size > end:
            raise self._corrupt(f"a location of {size} bytes does not fit its manifest entry", offset=begin)
        return begin + size

    def _location(self, start: int, end: int) -> str:
        begin = start + _HEAD.size
        try:
            return str(self.data[begin : self._location_end(start, end)], "utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt("a manifest entry's location is not UTF-8", offset=begin + error.start) from None

    def _decode(self, start: int, end: int, sequence: int) -> Descriptor:
        metadata, after = self._ranges(start, end, sequence)
        return Descriptor(sequence, self._location(start, end), tuple(metadata), self._crc(after, end))

    def _ranges(self, start: int, end: int, sequence: int) -> tuple[list[Metadata], int]:
        """Returns an entry's metadata, and where the metadata ends."""
        data, offset = self.data, self._location_end(start, end)
        ranges = _LENGTH.unpack_from(data, offset)[0]
        offset += _LENGTH.size
        if ranges * _RANGE.size > end - offset:
            raise self._corrupt(
                f"entry {sequence} counts {ranges} metadata ranges in {end - offset} bytes", offset=offset
            )
        metadata: list[Metadata] = []
        for index in range(ranges):
            payload = offset + _RANGE.size
            if payload > end:
                raise self._corrupt(f"metadata range {index} of entry {sequence} does not fit", offset=offset)
            start_index, ingested_at_ms, size = _RANGE.unpack_from(data, offset)
            offset = payload + size
            if offset > end:
                raise self._corrupt(
                    f"metadata range {index} of entry {sequence} is shorter than stated", offset=payload
                )
            metadata.append(Metadata(start_index, ingested_at_ms, bytes(data[payload:offset])))
        return metadata, offset


def parse_manifest(data: Buffer | None, path: str | None = None) -> Manifest:
    """Reads a manifest's footer; None (a missing object) gives an empty manifest.

    Entries are checked when they are read.
    """
    return Manifest(_EMPTY_MANIFEST if data is None else data, path)


def empty_manifest(next_sequence: int) -> Manifest:
    """Returns a manifest without entries, whose next entry gets this sequence."""
    return Manifest(_MANIFEST_FOOTER.pack(0, next_sequence, 0, MANIFEST_VERSION))


def encode_entry(
    sequence: int, location: str, metadata: Sequence[Metadata] = (), mark: Mark | None = None, crc: int | None = None
) -> bytes:
    """Returns the bytes of a manifest entry."""
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
    """Returns the manifest with these (location, metadata) entries at its end; existing entries are copied, not
    decoded.

    The last new entry carries the mark, so that the mark stays as long as any of the new entries. `checksums` maps
    locations to the CRC-32 of their objects.
    """
    sequence = manifest.next_sequence
    parts: list[Buffer] = [memoryview(manifest.data)[: len(manifest.data) - MANIFEST_FOOTER_SIZE]]
    added = list(entries)
    for location, metadata in added:
        last = sequence == manifest.next_sequence + len(added) - 1
        crc = checksums.get(location) if checksums else None
        parts.append(encode_entry(sequence, location, metadata, mark if last else None, crc))
        sequence += 1
    count = manifest.count + len(parts) - 1
    if sequence >= 1 << 64 or count >= 1 << 32:
        raise ConfigError(f"the manifest is full: {count} entries, next sequence {sequence}")
    parts.append(_MANIFEST_FOOTER.pack(count, sequence, manifest.epoch, MANIFEST_VERSION))
    return b"".join(parts)


def dequeue(manifest: Manifest, through: int) -> bytes:
    """Returns the manifest without its leading entries whose sequence is at most `through`; the others are copied
    verbatim.
    """
    cut = removed = 0
    for _, end, sequence in manifest._walk():
        if sequence > through:
            break
        cut = end
        removed += 1
    body = memoryview(manifest.data)[cut : len(manifest.data) - MANIFEST_FOOTER_SIZE]
    footer = _MANIFEST_FOOTER.pack(manifest.count - removed, manifest.next_sequence, manifest.epoch, MANIFEST_VERSION)
    return b"".join((body, footer))


def set_epoch(manifest: Manifest, epoch: int) -> bytes:
    """Returns the manifest with another epoch."""
    body = memoryview(manifest.data)[: len(manifest.data) - MANIFEST_FOOTER_SIZE]
    return b"".join((body, _MANIFEST_FOOTER.pack(manifest.count, manifest.next_sequence, epoch, MANIFEST_VERSION)))


def next_epoch(epoch: int) -> int:
    """Returns the epoch of a new consumer: one more than the last epoch, wrapping, and never the reserved epoch."""
    following = (epoch + 1) & RESERVED_EPOCH
    return 0 if following == RESERVED_EPOCH else following


# ── Marks: which append of which writer ended with a manifest entry ──
#     mark    name (UTF-8) · number (u64) · name length (u16) · magic (4 bytes)
#
# A writer that may have to repeat itself (a Spark query that was killed) gives every append a mark. When it finds its
# name with that number, or a higher one, in the manifest, the append was done. The magic comes last, so that entries
# without a mark are told apart at a glance.


_MARK_MAGIC = b"PSmk"
_MARK_TAIL = struct.Struct("<QH4s")
MAX_MARK_NAME = 512


class Mark(NamedTuple):
    """The name of a writer and the number of its append; numbers of one name only grow."""

    name: str
    number: int


def encode_mark(mark: Mark) -> bytes:
    """Returns the bytes that follow an entry's last metadata range."""
    name = mark.name.encode()
    if not 0 < len(name) <= MAX_MARK_NAME or not 0 <= mark.number < 1 << 64:
        raise ConfigError(f"a mark has a name of 1 to {MAX_MARK_NAME} bytes and a number of 64 bits, not {mark!r}")
    return name + _MARK_TAIL.pack(mark.number, len(name), _MARK_MAGIC)


def may_be_mark(data: Any, end: int) -> bool:
    """Returns True when the bytes before `end` look like a mark. A metadata payload may look like a mark by chance."""
    return bytes(data[max(0, end - len(_MARK_MAGIC)) : end]) == _MARK_MAGIC


def decode_mark(data: Any, begin: int, end: int) -> Mark | None:
    """Returns the mark that fills the bytes from begin to end exactly, or None when the bytes are no mark."""
    if end - begin <= _MARK_TAIL.size:
        return None
    number, length, magic = _MARK_TAIL.unpack_from(data, end - _MARK_TAIL.size)
    if magic != _MARK_MAGIC or begin + length + _MARK_TAIL.size != end:
        return None
    try:
        return Mark(str(bytes(data[begin : begin + length]), "utf-8"), number)
    except UnicodeDecodeError:
        return None

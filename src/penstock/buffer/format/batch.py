"""The batch object: entries, each after its length (u32), then compression (u8), count (u32), version (u16).

Compression covers the entries, not the footer. Bytes between the last entry and the footer are ignored.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import ConfigError, Corrupt

np: Any
try:
    import numpy as np
except ImportError:  # numpy only makes the check for entries of one length faster
    np = None

if TYPE_CHECKING:
    import pyarrow

Compression = Literal["none", "zstd"]
Buffer = bytes | bytearray | memoryview | Any

VERSION = 1
#: The largest block (entries with their lengths, uncompressed) that is written or, unless told otherwise, read.
MAX_BATCH_BYTES = 512 << 20

_FOOTER = struct.Struct("<BIH")
FOOTER_SIZE = _FOOTER.size
_LENGTH = struct.Struct("<I")
_CODES: dict[str, int] = {"none": 0, "zstd": 1}
_SMALL = 4096
_PREFIXES = tuple(_LENGTH.pack(length) for length in range(_SMALL))
#: Entries unpacked by one call: enough that the call costs nothing, few enough that compiling the format is cheap too.
_RUN = 1000
_RUN_BYTES = 256 << 10
#: Below this, looking for a common length costs more than it saves.
_UNIFORM_FROM = 16


# ── encoding ──


def encode_entries(entries: Sequence[bytes]) -> bytes:
    """Entries as they stand in a batch, each after its length; results may be concatenated into one batch."""
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
    if len(encoded) != expected:  # a memoryview of larger items has another length than it has bytes
        raise TypeError("entries must be bytes")
    return encoded


def _prefix(length: int) -> bytes:
    if length < _SMALL:
        return _PREFIXES[length]
    if length > MAX_BATCH_BYTES:
        raise ConfigError(f"an entry of {length} bytes is larger than a batch may be ({MAX_BATCH_BYTES})")
    return _LENGTH.pack(length)


def batch_footer(count: int, compression: Compression = "none") -> bytes:
    """What follows a batch's entries."""
    try:
        return _FOOTER.pack(_CODES[compression], count, VERSION)
    except KeyError:
        raise ConfigError(f"compression must be one of {', '.join(_CODES)}, not {compression!r}") from None


def compress_entries(encoded: Buffer, *, checksum: bool = True) -> bytes:
    """Encoded entries as one zstd frame, with zstd's own checksum unless told otherwise; every reader takes both."""
    compressed: bytes = load_zstandard().ZstdCompressor(level=3, write_checksum=checksum).compress(encoded)
    return compressed


def seal_batch(encoded: Iterable[bytes], count: int, compression: Compression = "none") -> bytes:
    """A whole batch object from the results of `encode_entries`, holding `count` entries altogether."""
    footer = batch_footer(count, compression)
    if compression == "none":
        return b"".join(chain(encoded, (footer,)))
    return compress_entries(b"".join(encoded)) + footer


def encode_batch(entries: Sequence[bytes], compression: Compression = "none") -> bytes:
    """A whole batch object holding these entries."""
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
        self.length = _common_length(data, end, count)  # of every entry, when they all have the same
        if self.length is None:
            self._entries, used = _split(data, end, count)
            self.size = used
        else:
            self.size = count * (_LENGTH.size + self.length)

    def entries(self) -> list[bytes]:
        """Every entry, as a list."""
        if self._entries is not None:
            return self._entries
        entries: list[bytes] = []
        for run in self._runs():
            entries += run
        return entries

    def __iter__(self) -> Iterator[bytes]:
        if self._entries is not None:
            return iter(self._entries)
        return chain.from_iterable(self._runs())

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
        """The entries as one Arrow binary array."""
        from penstock.buffer.format.arrow import block_to_arrow

        return block_to_arrow(memoryview(self._data)[: self.end], self.count, self.length)

    def __reduce__(self) -> tuple[object, ...]:
        return DecodedBatch, (bytes(memoryview(self._data)[: self.end]), self.end, self.count)


def open_batch(data: Buffer, *, limit: int = MAX_BATCH_BYTES) -> DecodedBatch:
    """Checks a batch object; `Corrupt` when it is not one, or unpacks to more than `limit` bytes."""
    return DecodedBatch(*_unwrap(data, limit))


def _unwrap(data: Buffer, limit: int) -> tuple[Buffer, int, int]:
    """The bytes that hold the entries, where they end, and how many entries there should be."""
    size = len(data)
    if size < _FOOTER.size:
        raise Corrupt(f"a batch of {size} bytes is too small for its {_FOOTER.size}-byte footer", offset=size)
    end = size - _FOOTER.size
    code, count, version = _FOOTER.unpack_from(data, end)
    if code not in _CODES.values():
        raise Corrupt(f"batch compression {code} is unsupported (0 none, 1 zstd)", offset=end)
    if version != VERSION:
        raise Corrupt(f"batch version {version} is unsupported (only {VERSION})", offset=end + 5)
    if code == _CODES["zstd"]:
        data = _decompress(memoryview(data)[:end], limit)
        end = len(data)
    elif end > limit:
        raise Corrupt(f"a batch of {end} bytes is larger than the {limit} allowed", offset=0)
    if count * _LENGTH.size > end:
        raise Corrupt(f"a batch of {end} bytes cannot hold the {count} entries it counts", offset=end)
    return data, end, count


def decode_arrow(data: Buffer, *, limit: int = MAX_BATCH_BYTES) -> pyarrow.Array:
    """The entries of a batch object as one Arrow binary array, without a Python object per entry."""
    from penstock.buffer.format.arrow import block_to_arrow

    unwrapped, end, count = _unwrap(data, limit)
    return block_to_arrow(memoryview(unwrapped)[:end], count, _common_length(unwrapped, end, count))


def decode_batch(data: Buffer, *, limit: int = MAX_BATCH_BYTES) -> list[bytes]:
    """The entries of a batch object."""
    return open_batch(data, limit=limit).entries()


def _split(data: Buffer, end: int, count: int) -> tuple[list[bytes], int]:
    """Entries of differing lengths, and where they end. Slices past the end come out short and fail the last check."""
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
            f"truncated batch: the length of entry {len(entries)} of {count} lies past the end", offset=min(offset, end)
        ) from None
    if offset > end:
        raise Corrupt(f"truncated batch: its {count} entries need {offset} bytes, there are {end}", offset=end)
    return entries, offset


def _common_length(data: Buffer, end: int, count: int) -> int | None:
    """The length every entry has, or None when they differ (or are too few for it to matter)."""
    if count < _UNIFORM_FROM:
        return None
    length: int = _LENGTH.unpack_from(data, 0)[0]
    stride = _LENGTH.size + length
    # The last and the second entry are looked at first: batches of differing lengths rarely get further.
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

#: Four bytes can unpack to a block of 128 KiB, so this many overshoot a limit by at most 16 MiB.
_FEED = 512


def load_zstandard() -> ModuleType:
    """The library that packs batches; `ConfigError` says what to install where it is missing."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError('zstd batches need zstandard: pip install "penstock[buffer]"') from error
    return zstandard


def _decompress(data: memoryview, limit: int) -> bytes:
    """Unpacks every frame, never holding more than `limit` bytes whatever the frames claim or produce."""
    zstandard = load_zstandard()
    try:
        stated = zstandard.get_frame_parameters(data).content_size
        if stated not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
            if stated > limit:
                raise Corrupt(f"the batch says it unpacks to {stated} bytes; {limit} are allowed", offset=0)
            if stated > 0:
                try:
                    return bytes(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
                except zstandard.ZstdError:
                    pass  # several frames, or damage: the stream tells them apart
        return _decompress_stream(zstandard, data, limit)
    except zstandard.ZstdError as error:
        raise Corrupt(f"the batch does not decompress: {error}", offset=0) from None


def _decompress_stream(zstandard: ModuleType, data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    offset = 0
    while offset < len(data):
        # The window is what the decoder itself allocates; 128 MiB is the most zstd's own tools accept.
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

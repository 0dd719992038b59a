"""Compressing single columns of blocks, with zstd."""

from __future__ import annotations

from threading import local

from penstock.errors import Corrupt, StorageError

_LEVEL = 1
"""zstd's level. Higher levels are slower, and make columns of this size hardly smaller."""


class _Codecs(local):
    """The codecs of a thread: they must not be shared, and making them costs more than using them."""

    def __init__(self) -> None:
        from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

        self.compress = ZstdCompressor(level=_LEVEL).compress
        self.decompress = ZstdDecompressor().decompress
        self.size_of = frame_content_size
        self.error = ZstdError


_codecs: list[_Codecs] = []
"""The codecs, once one is needed: importing zstd takes 14 ms, and small stores need none."""


def compress(plain: bytes | memoryview) -> bytes:
    """Returns the zstd frame of some bytes; the bytes themselves when zstd cannot be loaded now."""
    try:
        return _loaded().compress(plain)
    except StorageError:
        return bytes(plain)


def decompress(packed: memoryview, size: int) -> bytes:
    """Returns the `size` bytes of a frame; Corrupt when it holds something else."""
    codecs = _codecs[0] if _codecs else _loaded()
    try:
        if codecs.size_of(packed) == size:
            return codecs.decompress(packed)
    except codecs.error as error:
        raise Corrupt(str(error)) from error
    raise Corrupt(f"it does not hold the {size:,} bytes that it should")


def separate(column: bytes, width: int) -> bytes:
    """Returns the bytes of values of some width in another order: the first byte of each value, then the second …"""
    return b"".join([column[at::width] for at in range(width)])


def interleave(separated: bytes, width: int) -> bytes:
    """Returns the bytes that `separate` was given."""
    count, rest = divmod(len(separated), width)
    if rest:
        raise Corrupt(f"{len(separated)} bytes are no values of {width} bytes")
    column = bytearray(len(separated))
    for at in range(width):
        column[at::width] = separated[at * count : (at + 1) * count]
    return bytes(column)


def _loaded() -> _Codecs:
    if not _codecs:
        try:
            _codecs.append(_Codecs())
        except OSError as error:  # the process has no descriptor left to read the module with
            raise StorageError(f"zstd cannot be loaded: {error}", retryable=True) from error
    return _codecs[0]

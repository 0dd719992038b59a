"""CRC-32 that does not let go of the interpreter for a few kilobytes.

`zlib.crc32` releases Python's global lock above 5 KiB, for what takes five microseconds. A thread that merges blocks
beside a busy writer then asks for the lock back at every block, waits up to the switch interval each time, and makes
the writer wake it in vain at every write. Below `SMALL_BYTES` the sum is made in pieces that keep the lock.
"""

from __future__ import annotations

import zlib

PIECE_BYTES = 5 << 10
"""Up to here zlib keeps the lock."""
SMALL_BYTES = 64 << 10
"""From here on the sum takes long enough to let others work meanwhile."""


def crc32(data: bytes | memoryview, value: int = 0) -> int:
    """What `zlib.crc32` gives."""
    size = len(data)
    if size <= PIECE_BYTES or size > SMALL_BYTES:
        return zlib.crc32(data, value)
    view = memoryview(data)
    for at in range(0, size, PIECE_BYTES):
        value = zlib.crc32(view[at : at + PIECE_BYTES], value)
    return value

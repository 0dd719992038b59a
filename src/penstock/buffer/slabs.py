"""Memory that is used again. Touching fresh pages costs more than copying into them, and batches are megabytes."""

from __future__ import annotations

import threading
import weakref
from typing import Any

np: Any
try:
    import numpy as np
except ImportError:  # then reads take fresh memory every time
    np = None


_FIRST = 64 << 10
_SMALLEST_STEP = 64 << 10


class Slabs:
    """Free memory, up to a number of bytes; what is more is left to the garbage collector."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._free: list[memoryview] = []
        self._free_bytes = 0
        self._lock = threading.Lock()

    def allocate(self, size: int = _FIRST) -> memoryview:
        """Memory of at least `size` bytes, with anything in it."""
        with self._lock:
            for index in range(len(self._free) - 1, -1, -1):
                if len(self._free[index]) >= size:
                    slab = self._free.pop(index)
                    self._free_bytes -= len(slab)
                    return slab
        return _fresh(_FIRST if size <= _FIRST else _rounded(size))

    def give_back(self, slab: memoryview) -> None:
        """Takes memory that no reader looks at any more."""
        with self._lock:
            self._keep(slab)

    def _keep(self, slab: memoryview) -> None:
        if self._free_bytes + len(slab) <= self._most_bytes:
            self._free.append(slab)
            self._free_bytes += len(slab)

    def _come_back(self, slab: memoryview) -> None:
        """As `give_back`, called wherever the last view goes: by the garbage collector even amid `allocate`, in the
        thread that holds the lock. So nothing is waited for; a slab that comes at such a moment is left to it."""
        if self._lock.acquire(blocking=False):
            try:
                self._keep(slab)
            finally:
                self._lock.release()

    def lend(self, slab: memoryview, size: int) -> memoryview:
        """The first `size` bytes to look at; the slab comes back by itself when the last view of them is gone."""
        lent = np.frombuffer(slab, np.uint8, size)  # an object that views keep alive and that can be watched
        weakref.finalize(lent, self._come_back, slab).atexit = False
        return memoryview(lent).toreadonly()

    @property
    def can_lend(self) -> bool:
        return np is not None


def _rounded(size: int) -> int:
    """Up to an eighth more: the next batch, which is about as large, should fit into the same memory."""
    step = max(_SMALLEST_STEP, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def _fresh(size: int) -> memoryview:
    # numpy's memory is not cleared first, which for a batch would cost more than filling it.
    return memoryview(bytearray(size) if np is None else np.empty(size, np.uint8))

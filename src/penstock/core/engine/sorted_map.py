"""An ordered map of bytes to anything, whose snapshots cost nothing until the map is changed under them.

Keys are in chunks of a few hundred, each two parallel lists. A snapshot remembers the list of chunks. A chunk (and the
list) is copied when it first changes while a snapshot shares it. Without an open snapshot, an append at the end of the
key space is two list appends.

Not thread-safe: callers that share a map between threads serialise `put`, `delete`, `delete_range` and `snapshot`.
Snapshots themselves may be read from any thread, whatever the map does meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from penstock.core.engine.contract import Held

V = TypeVar("V")

CHUNK = 512
"""Entries a chunk holds before it is split: small enough to copy in a few microseconds."""


class _Chunk(Generic[V]):
    __slots__ = ("keys", "stamp", "values")

    def __init__(self, keys: list[bytes], values: list[V], stamp: int) -> None:
        self.keys = keys
        self.values = values
        self.stamp = stamp


class _Sorted(Generic[V]):
    """Chunks in order, and the first key of each."""

    __slots__ = ("_chunks", "_firsts")

    _firsts: list[bytes]
    _chunks: list[_Chunk[V]]

    def get(self, key: bytes) -> V | None:
        """Returns the value of a key, or None."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        index = bisect_left(chunk.keys, key)
        if index < len(chunk.keys) and chunk.keys[index] == key:
            return chunk.values[index]
        return None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, V]]:
        """Yields the rows with start ≤ key < stop. The map must not change meanwhile; scan a snapshot if it may."""
        firsts, chunks = self._firsts, self._chunks
        if start >= stop or not chunks:
            return
        first = max(bisect_right(firsts, start) - 1, 0)
        last = bisect_left(firsts, stop)
        for at in range(last - 1, first - 1, -1) if reverse else range(first, last):
            keys, values = chunks[at].keys, chunks[at].values
            low, high = bisect_left(keys, start), bisect_left(keys, stop)
            if reverse:
                yield from zip(reversed(keys[low:high]), reversed(values[low:high]), strict=True)
            else:
                yield from zip(keys[low:high], values[low:high], strict=True)


class Frozen(_Sorted[V], Held):
    """The map as it was when `SortedMap.snapshot` was called, until `close`."""

    __slots__ = ("_map", "_stamp")

    def __init__(self, source: SortedMap[V], firsts: list[bytes], chunks: list[_Chunk[V]], stamp: int) -> None:
        self._map: SortedMap[V] | None = source
        self._firsts = firsts
        self._chunks = chunks
        self._stamp = stamp

    def close(self) -> None:
        """Lets the map change its chunks in place again; from any thread, without the map's lock."""
        source, self._map = self._map, None
        if source is not None:
            source._released.append(self._stamp)


class SortedMap(_Sorted[V]):
    """An ordered map with snapshots."""

    __slots__ = ("_count", "_list_stamp", "_now", "_open", "_released", "_shared")

    def __init__(self) -> None:
        self._firsts = []
        self._chunks = []
        self._count = 0
        self._now = 1
        self._list_stamp = 1
        self._open: set[int] = set()
        # The stamps of closed snapshots, dropped at a later call: closing a snapshot needs no lock, so the garbage
        # collector may do it.
        self._released: list[int] = []
        # the newest stamp that an open snapshot can see; chunks with later stamps belong to the map alone
        self._shared = 0

    def __len__(self) -> int:
        return self._count

    def snapshot(self) -> Frozen[V]:
        """Returns a snapshot of the map, which later changes do not affect."""
        if len(self._released) >= CHUNK:  # a map that is only read drops them too
            self._forget_closed()
        stamp = self._now
        self._open.add(stamp)
        self._shared = stamp
        self._now = stamp + 1
        return Frozen(self, self._firsts, self._chunks, stamp)

    def _forget_closed(self) -> None:
        while self._released:
            self._open.discard(self._released.pop())
        self._shared = max(self._open, default=0)

    def put(self, key: bytes, value: V) -> V | None:
        """Sets a key and returns its old value."""
        if self._released:
            self._forget_closed()
        chunks = self._chunks
        if not chunks:
            self._own_lists()
            self._firsts.append(key)
            self._chunks.append(_Chunk([key], [value], self._now))
            self._count = 1
            return None
        at = len(chunks) - 1
        if key < self._firsts[at]:
            at = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = self._own(at)
        keys = chunk.keys
        if key > keys[-1]:
            index = len(keys)
        else:
            index = bisect_left(keys, key)
            if keys[index] == key:
                old = chunk.values[index]
                chunk.values[index] = value
                return old
        keys.insert(index, key)
        chunk.values.insert(index, value)
        self._count += 1
        if index == 0:
            self._own_lists()
            self._firsts[at] = key
        if len(keys) > CHUNK:
            self._split(at, index)
        return None

    def delete(self, key: bytes) -> V | None:
        """Removes a key and returns its value; None for a missing key."""
        if self._released:
            self._forget_closed()
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        keys = self._chunks[at].keys
        index = bisect_left(keys, key)
        if index == len(keys) or keys[index] != key:
            return None
        chunk = self._own(at)
        old = chunk.values[index]
        del chunk.keys[index], chunk.values[index]
        self._count -= 1
        self._tidy(at)
        return old

    def delete_range(self, start: bytes, stop: bytes) -> list[tuple[bytes, V]]:
        """Removes the keys start ≤ key < stop and returns them with their values."""
        if self._released:
            self._forget_closed()
        removed: list[tuple[bytes, V]] = []
        if start >= stop or not self._chunks:
            return removed
        at = max(bisect_right(self._firsts, start) - 1, 0)
        while at < len(self._chunks) and self._firsts[at] < stop:
            keys = self._chunks[at].keys
            low, high = bisect_left(keys, start), bisect_left(keys, stop)
            if low == high:
                at += 1
                continue
            chunk = self._own(at)
            removed += zip(chunk.keys[low:high], chunk.values[low:high], strict=True)
            del chunk.keys[low:high], chunk.values[low:high]
            emptied = not chunk.keys
            self._tidy(at)
            at += not emptied
        self._count -= len(removed)
        return removed

    def _own_lists(self) -> None:
        if self._list_stamp <= self._shared:
            self._firsts = self._firsts.copy()
            self._chunks = self._chunks.copy()
            self._list_stamp = self._now

    def _own(self, at: int) -> _Chunk[V]:
        chunk = self._chunks[at]
        if chunk.stamp <= self._shared:
            self._own_lists()
            chunk = _Chunk(chunk.keys.copy(), chunk.values.copy(), self._now)
            self._chunks[at] = chunk
        return chunk

    def _split(self, at: int, index: int) -> None:
        """Splits a full chunk into halves. A chunk that grew at its end keeps all but its newest key, so that appending
        fills chunks."""
        self._own_lists()
        chunk = self._chunks[at]
        cut = len(chunk.keys) - 1 if index == len(chunk.keys) - 1 else len(chunk.keys) // 2
        right = _Chunk(chunk.keys[cut:], chunk.values[cut:], self._now)
        del chunk.keys[cut:], chunk.values[cut:]
        self._chunks.insert(at + 1, right)
        self._firsts.insert(at + 1, right.keys[0])

    def _tidy(self, at: int) -> None:
        """Drops a chunk that removals have emptied, and updates the first key of any other chunk."""
        keys = self._chunks[at].keys
        if not keys:
            self._own_lists()
            del self._chunks[at], self._firsts[at]
        elif keys[0] != self._firsts[at]:
            self._own_lists()
            self._firsts[at] = keys[0]

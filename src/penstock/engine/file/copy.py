"""Writing the live part of a file store into a new data file: compaction, and backups."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.engine.base import END
from penstock.engine.file.disk import Disk
from penstock.engine.file.index import Index
from penstock.engine.file.log import COMMIT, COPY, DELETE, PUT, START, DataFile, Record, encode, make_header
from penstock.engine.memory.sorted_map import Frozen

COPY_BYTES = 1 << 20
"""About how many bytes of values go into one record of a copy."""


class Cancelled(Exception):
    """The store is being closed, so the copy is not wanted any more."""


class Copy:
    """A new data file that is being filled; `data` and `index` are what an engine needs to go on with it."""

    def __init__(self, disk: Disk, path: Path, *, generation: int, base: int) -> None:
        self._disk = disk
        create_data_file(disk, path, generation=generation, base=base)
        self.data = DataFile(disk, path, writable=True)
        self.index = Index()
        self.end = START
        self.seq = base

    def add_state(self, keys: Frozen[int], source: DataFile, stop: Callable[[], bool]) -> None:
        """Copies every value of a snapshot; a damaged one raises `Corrupt` instead of being copied."""
        changes: dict[bytes, bytes | None] = {}
        waiting = 0
        for key, place in keys.scan(b"", END):
            value = source.value(place)
            changes[key] = value
            waiting += len(key) + len(value)
            if waiting >= COPY_BYTES:
                self._append(changes, [], COPY)
                changes, waiting = {}, 0
                if stop():
                    raise Cancelled
        if changes:
            self._append(changes, [], COPY)

    def add_record(self, record: Record, source: DataFile) -> None:
        """Copies a commit made after the snapshot."""
        changes: dict[bytes, bytes | None] = {}
        ranges: list[tuple[bytes, bytes]] = []
        for kind, key, place, stop in record.operations:
            if kind == PUT:
                changes[key] = source.value(place)
            elif kind == DELETE:
                changes[key] = None
            else:
                ranges.append((key, stop))
        self.seq = record.seq
        self._append(changes, ranges, COMMIT)

    def sync(self) -> None:
        self._disk.sync(self.data.descriptor)

    def _append(self, changes: dict[bytes, bytes | None], ranges: list[tuple[bytes, bytes]], kind: int) -> None:
        # Nothing reads the file before all of it is on disk, so every record may say that it is.
        record, operations = encode(
            changes, ranges, offset=self.end, seq=self.seq, synced=self.seq, seed=self.data.seed, kind=kind
        )
        self._disk.write(self.data.descriptor, record, self.end)
        self.index.apply(operations)
        self.end += len(record)


def create_data_file(disk: Disk, path: Path, *, generation: int, base: int) -> None:
    """Makes an empty data file, on disk before this returns."""
    descriptor = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(descriptor, make_header(int.from_bytes(os.urandom(8)), generation, base), 0)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)

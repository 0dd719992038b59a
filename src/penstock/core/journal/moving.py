"""Copying a whole journal into another store, whatever the engines: row by row, so that nothing is translated.

Positions, ids, cursors, queues, snapshots and marks are rows, so a copy has all of them. A first pass copies the rows
while the journal is in use, a second pass copies newer rows; then every row is compared. Until this is done the target
is marked as unfinished, and cannot be opened as a journal. An interrupted copy continues: existing rows are only
compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import msgspec

from penstock.core.engine.base import END
from penstock.core.engine.contract import Engine, Snapshot
from penstock.core.journal import keys
from penstock.core.units import Progress
from penstock.errors import ConfigError, Corrupt

BATCH_BYTES = 4 << 20
"""The bytes that one commit of a copy holds."""

Row = tuple[bytes, bytes]


class CopyReport(msgspec.Struct, frozen=True):
    """The result of a copy: all rows and bytes, and the number of rows that had to be written."""

    rows: int
    size_bytes: int
    written: int


def copy_store(source: Engine, store_id: str, target: Engine, progress: Progress | None = None) -> CopyReport:
    """Makes `target` a copy of `source`; raises ConfigError when it holds something else already."""
    claim = _UnfinishedMark(target, store_id)
    claim.begin()
    tell = _ProgressMeter(0 if progress is None else source.size(), progress)  # for a bucket this takes many requests
    written = 0
    for _ in range(2):  # the second pass is short: it copies the rows that were written during the first pass
        source.catch_up()  # a reader of a bucket may be behind the acknowledged commits of its writer
        with source.read() as wanted:
            written += _write_differences(wanted, claim, tell)
            tell.rest()
            target.flush()
            rows, size = _compare(wanted, claim)
    with target.write() as tx:
        claim.check(tx)
        tx.delete(keys.COPYING)
    return CopyReport(rows, size, written)


def check_finished(snapshot: Snapshot, location: str | None) -> None:
    """Raises ConfigError when a store is a copy that was not finished."""
    if snapshot.get(keys.COPYING) is not None:
        raise ConfigError(
            f"{location} is an unfinished copy of another journal: run the same `penstock copy` again to finish it"
        )


class _UnfinishedMark:
    """The mark of an unfinished target of one journal: a copy may change the target only as long as the mark exists."""

    def __init__(self, target: Engine, store_id: str) -> None:
        self.target = target
        self._mark = store_id.encode()

    def begin(self) -> None:
        """Marks an empty store, in the transaction that finds it empty, because another process may make a journal
        there.
        """
        where = self.target.location
        with self.target.write() as tx:
            claimed = tx.get(keys.COPYING)
            if claimed is None:
                if next(tx.scan(b"", END), None) is not None:
                    raise ConfigError(f"{where} holds a journal already: copy into a new place")
                tx.put(keys.COPYING, self._mark)
            elif claimed != self._mark:
                raise ConfigError(f"{where} is an unfinished copy of another journal than this one")

    def check(self, snapshot: Snapshot) -> None:
        """Raises ConfigError when another copy has finished the target, which may be in use since then."""
        if snapshot.get(keys.COPYING) != self._mark:
            raise ConfigError(
                f"{self.target.location} was finished by another copy of this journal while this one was under way; "
                "it is a journal now, and this copy leaves it as it is"
            )


class _ProgressMeter:
    """A progress counter: the copied bytes, of an estimate that is corrected when it proves wrong."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, max(1, total), progress

    def add(self, size: int) -> None:
        self._done += size
        self._total = max(self._total, self._done)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def rest(self) -> None:
        """Reports the rest as copied: the estimate was the size on disk, which differs from the size of the rows."""
        self._total = max(1, self._done)
        self.add(0)


def _write_differences(wanted: Snapshot, claim: _UnfinishedMark, tell: _ProgressMeter) -> int:
    """Writes rows that the target lacks or has with other values, and removes rows that it should not have."""
    written = 0
    changes: list[tuple[bytes, bytes | None]] = []
    waiting = seen = 0
    with claim.target.read() as present:
        for key, value in _differences(_rows(wanted), _rows(present)):
            if value is _SAME:  # the very object: a row may hold the same bytes
                seen += len(key)
                continue
            changes.append((key, value))
            waiting += len(key) + len(value or b"")
            if waiting >= BATCH_BYTES:
                written += _write(claim, changes)
                tell.add(waiting + seen)
                changes, waiting, seen = [], 0, 0
    written += _write(claim, changes)
    tell.add(waiting + seen)
    return written


_SAME = b"\0same"


def _differences(wanted: Iterator[Row], present: Iterator[Row]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yields every key of either store: with its right value, None for a key that must be removed, `_SAME` for an
    equal row.
    """
    want, have = next(wanted, None), next(present, None)
    while want is not None or have is not None:
        if have is None or (want is not None and want[0] < have[0]):
            assert want is not None
            yield want
            want = next(wanted, None)
        elif want is None or have[0] < want[0]:
            yield have[0], None
            have = next(present, None)
        else:
            yield (want[0], _SAME) if want[1] == have[1] else want
            want, have = next(wanted, None), next(present, None)


def _rows(snapshot: Snapshot) -> Iterator[Row]:
    return (row for row in snapshot.scan(b"", END) if row[0] != keys.COPYING)


def _write(claim: _UnfinishedMark, changes: list[tuple[bytes, bytes | None]]) -> int:
    if changes:
        with claim.target.write(sync=False) as tx:
            claim.check(tx)
            for key, value in changes:
                if value is None:
                    tx.delete(key)
                else:
                    tx.put(key, value)
    return len(changes)


def _compare(wanted: Snapshot, claim: _UnfinishedMark) -> tuple[int, int]:
    """Reads both stores again and compares every row; raises Corrupt when they differ."""
    rows = size = 0
    with claim.target.read() as present:
        claim.check(present)
        for row, found in zip_longest(_rows(wanted), _rows(present)):
            key, value = row or found
            if row != found:
                raise Corrupt(f"the copy at {claim.target.location} differs from its source at key {key[:40]!r}")
            rows += 1
            size += len(key) + len(value)
    return rows, size

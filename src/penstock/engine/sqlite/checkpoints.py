"""The write-ahead log of a store, as the writing connection has it: its size on disk, its syncs, its checkpoints."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import apsw

from penstock.durable import sync_file
from penstock.engine.sqlite.format import WAIT_SECONDS
from penstock.engine.sqlite.log import LogDoubt
from penstock.errors import OutcomeUnknown, StorageError

PAGE_BYTES = 4096
CHECKPOINT_PAGES, CHECKPOINT_COMMITS = 2000, 256
"""The log is copied into the database after so many pages; after fewer when they came in this many small commits,
because a log short enough to be written over again and again syncs faster than one that grows."""
LONG_LOG_PAGES = 8 * CHECKPOINT_PAGES
"""A log this long is kept so by readers that never leave a gap: writers then wait a moment for one."""
LOG_BYTES = 32 + CHECKPOINT_PAGES * (PAGE_BYTES + 24)
"""How much of the write-ahead log is allocated in advance: as much as is filled between two checkpoints."""
BEGIN_WRITE = "BEGIN IMMEDIATE"
ROLLBACK = "ROLLBACK"


class WriteAheadLog:
    """When the log is copied into the database so that it can start over, and what is done when a sync of it fails."""

    def __init__(self, path: Path, doubt: LogDoubt, writer: apsw.Connection) -> None:
        self._path = path
        self.doubt = doubt
        self._writer = writer
        self.pages = 0
        self.checked_pages = 0
        self.unchecked_commits = 0

    def allocate(self) -> None:
        """Grows the log file to its working size; inside SQLite's write lock, so that no other process writes to it."""
        if not hasattr(os, "posix_fallocate"):
            return
        self._writer.execute(BEGIN_WRITE)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(descriptor, 0, LOG_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            pass  # a full disk, or a file system without it: the log grows as it is written
        finally:
            self._writer.execute(ROLLBACK)

    def checkpoint_in_passing(self, syncing: bool) -> None:
        """Copies the log into the database now and then, so that it can start over."""
        pages = self.pages
        if pages < self.checked_pages:
            self.checked_pages = 0
        grown = pages - self.checked_pages
        # A commit that is not synced gains nothing from a short log, and a checkpoint costs two syncs.
        enough = CHECKPOINT_COMMITS if syncing else 8 * CHECKPOINT_COMMITS
        if grown < CHECKPOINT_COMMITS or (grown < CHECKPOINT_PAGES and self.unchecked_commits < enough):
            return
        self.checked_pages, self.unchecked_commits = pages, 0
        with suppress(apsw.Error):  # the commit is done; what hinders this will be met by the next write
            if pages < LONG_LOG_PAGES:
                self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self.checkpoint_waiting(apsw.SQLITE_CHECKPOINT_RESTART, milliseconds=50)

    def checkpoint_waiting(self, mode: int, *, milliseconds: int) -> None:
        self._writer.set_busy_timeout(milliseconds)
        try:
            with suppress(apsw.BusyError):
                self._checkpoint(mode)
        finally:
            self._writer.set_busy_handler(wait_a_little)

    def _checkpoint(self, mode: int) -> None:
        try:
            self._writer.wal_checkpoint(mode=mode)
        except apsw.IOError:
            self.doubt.raise_()  # it syncs the log first
            raise

    def repair(self) -> None:
        """Makes the log whole after a sync of it failed, while no process writes to it."""
        frames = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        self._writer.execute(BEGIN_WRITE)
        try:
            self.doubt.repair(frames)
        finally:
            self._writer.execute(ROLLBACK)

    def sync(self) -> None:
        """Syncs the log; OutcomeUnknown when that fails."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutcomeUnknown(f"{self._path} could not be synced: {error}; it may be lost in a power cut") from error
        try:
            sync_file(descriptor)
        except OSError as error:
            self.doubt.raise_()
            raise OutcomeUnknown(f"{self._path} could not be synced: {error}; it may be lost in a power cut") from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Closes the writing connection; the last one of a store copies the log into the database."""
        if self.doubt.raised:
            try:
                self.repair()
            except (StorageError, apsw.Error):
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # never from a log with a hole
        self._writer.close(True)


def wait_a_little(calls: int) -> bool:
    """SQLite's busy handler: short sleeps first, because most commits of other processes take under a millisecond."""
    pause = min(0.0002 * (calls + 1), 0.005)
    if calls * 0.005 > WAIT_SECONDS:
        return False
    time.sleep(pause)
    return True

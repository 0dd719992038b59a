"""Opening a RocksDB database: its options, coming back after a crash, and instances that follow another process's."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import rocksdict

from penstock.engine.open_files import OpenFiles
from penstock.engine.rocksdb.log import Voucher, check_types
from penstock.engine.rocksdb.manifest import check_end, cut_torn_end
from penstock.errors import Corrupt

WRITE_BUFFER_BYTES = 16 << 20

log = logging.getLogger("penstock.engine.rocksdb.engine")


def open_database(folder: Path) -> rocksdict.Rdict:
    """Opens a database for writing, as it was after its last commit, or before the first one a crash took.

    Only commits that were not synced may be behind the point it comes back to: where a record in the log shows that
    more was on disk, what is missing was damaged, and `Corrupt` says so and leaves everything as it is.
    """
    check_end(folder)
    check_types(folder)
    try:
        return _open_database(folder)
    except Exception as error:
        if "MANIFEST" not in str(error) or "Corruption" not in str(error) or not cut_torn_end(folder):
            raise
    log.warning("the manifest of rocksdb:%s had a torn end, which a crash left", folder)
    return _open_database(folder)


def _open_database(folder: Path) -> rocksdict.Rdict:
    # A log cut exactly between two records looks whole, also when a later one follows: only one log can be trusted so.
    if len([path for path in folder.glob("[0-9]*.log") if path.stat().st_size]) < 2:
        try:
            return rocksdict.Rdict(str(folder), make_options(whole=True))
        except Exception as error:
            if "Corruption" not in str(error):
                raise
    found = rocksdict.Rdict(str(folder), make_options(), access_type=rocksdict.AccessType.read_only())
    last = found.latest_sequence_number()
    found.close()
    if (known := Voucher(folder).highest()) > last:
        raise Corrupt(
            f"the log of rocksdb:{folder} is damaged: it ends at {last} although {known} was on disk; restore a backup"
        )
    log.warning("rocksdb:%s comes back as it was before its last unsynced commits, which a crash took", folder)
    return rocksdict.Rdict(str(folder), make_options())


class Secondary:
    """An instance that follows the writer's files, and the folder RocksDB wants for its own log."""

    def __init__(self, folder: Path) -> None:
        own = tempfile.mkdtemp(prefix="penstock-rocksdb-")
        self._folder = folder
        self._files = list_files(folder)
        try:
            options = make_options()
            options.set_max_log_file_size(0)  # it never begins another one, so the folder may go
            self.db = rocksdict.Rdict(str(folder), options, access_type=rocksdict.AccessType.secondary(own))
        finally:
            # RocksDB goes on writing to its log there without its name; a reader that dies leaves nothing behind.
            shutil.rmtree(own, ignore_errors=True)

    def catch_up(self) -> bool:
        """Takes in what was appended to the writer's log; False when more than that happened and a new one is needed.

        After a compaction an instance that was open before can show deleted keys again (RocksDB 10), and one that is
        opened while files are being removed can miss what was in them. So it is used only while the files stay.
        """
        self.db.try_catch_up_with_primary()
        return self.is_whole()

    def is_whole(self) -> bool:
        return list_files(self._folder) == self._files

    def close(self) -> None:
        self.db.close()


class DatabaseFiles(OpenFiles):
    """The lock of a database that is open for writing, and the log that its commits go to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "LOCK"))
        self._database = folder
        self._log = newest_log(folder)

    def _look(self) -> str | None:
        if self._log is not None and not self._log.exists():
            newest = newest_log(self._database)  # RocksDB makes the next one before it removes one
            if newest is None or _number(newest) < _number(self._log):
                return str(self._log)
            self._log = newest
        return super()._look()

    def has_lock(self) -> bool:
        """Whether no other process can have the folder: else no file may be made in it by name."""
        return super()._look() is None


def newest_log(folder: Path) -> Path | None:
    """The log that commits go to now; None when there is none."""
    return max(folder.glob("[0-9]*.log"), key=_number, default=None)


def _number(log: Path) -> int:
    return int(log.stem) if log.stem.isdecimal() else -1


def list_files(folder: Path) -> dict[str, int]:
    """The files that make up a database, with the size of the one that lists the others."""
    names = [name for name in os.listdir(folder) if name.endswith((".sst", ".log")) or name.startswith("MANIFEST")]  # noqa: PTH208
    return {name: _size(folder / name) if name.startswith("MANIFEST") else 0 for name in names}


def _size(path: Path) -> int:
    """The size of a file; -1 when it is gone, as the writer's are when it has just replaced them."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def make_options(*, whole: bool = False) -> rocksdict.Options:
    """How penstock opens a database: bounded memory and files.

    `whole` refuses a log with anything wrong in it; otherwise the log is read up to the first thing wrong.
    """
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_max_open_files(512)
    options.set_is_fd_close_on_exec(True)
    # Files in which half of a window is deleted are compacted early, so that scans do not walk over the dead.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    modes = rocksdict.DBRecoveryMode
    options.set_wal_recovery_mode(modes.absolute_consistency() if whole else modes.point_in_time())
    return options

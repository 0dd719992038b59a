"""Opening a RocksDB database: its options, and instances that follow another process's."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import rocksdict

from penstock.engine.contract import Durability

WRITE_BUFFER_BYTES = 16 << 20


class Secondary:
    """An instance that follows the writer's files, and the folder RocksDB wants for its own log."""

    def __init__(self, folder: Path) -> None:
        self._own = tempfile.mkdtemp(prefix="penstock-rocksdb-")
        self._folder = folder
        self._files = list_files(folder)
        try:
            self.db = rocksdict.Rdict(
                str(folder), make_options(), access_type=rocksdict.AccessType.secondary(self._own)
            )
        except BaseException:
            shutil.rmtree(self._own, ignore_errors=True)
            raise

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
        shutil.rmtree(self._own, ignore_errors=True)


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


def make_options(durability: Durability = "disk") -> Any:
    """How penstock opens a database: bounded memory and files, and damage reported where it is not just a crash."""
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
    # With every commit synced only the last record can be torn, so damage before it is corruption and is reported.
    # Without, a crash of the machine may tear an earlier one: what lies before it is the state to come back to.
    modes = rocksdict.DBRecoveryMode
    options.set_wal_recovery_mode(
        modes.tolerate_corrupted_tail_records() if durability == "disk" else modes.point_in_time()
    )
    return options

"""How a SlateDB database is recognised as a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import slatedb.uniffi as sl

from penstock.engine.base import END, check_folder_name, check_only_own, other_format
from penstock.engine.contract import Snapshot
from penstock.engine.slatedb.bridge import call
from penstock.engine.slatedb.database import flush_log
from penstock.engine.slatedb.place import Place
from penstock.errors import ConfigError, NoStore

FORMAT = b"penstock slatedb 1"
UNFINISHED = b"penstock slatedb backup, unfinished"
FORMAT_KEY = b"\xff" * 505
"""Longer than a key may be, so no scan reaches it: its bounds are cut to 501 bytes."""


def check_folder(place: Place, read_only: bool) -> None:
    """ConfigError when a store in a folder cannot be there, NoStore when it is not."""
    folder = place.folder
    if folder is None:
        return
    check_folder_name(folder, "slatedb")
    if (folder / "manifest").is_dir():
        return
    check_only_own(folder, "slatedb", "penstock".__eq__)
    if read_only:
        raise NoStore(f"there is no store at {folder}; open it for writing once to make it")


def is_made(view: Snapshot, name: str, read_only: bool) -> bool:
    """Whether a database holds a store of this format; ConfigError when it holds something else."""
    found = view.get(FORMAT_KEY)
    if found == FORMAT:
        return True
    if found == UNFINISHED:
        raise ConfigError(
            f"{name} is a backup that was interrupted, and holds part of its journal only: delete it and back up again"
        )
    if found is not None:
        raise other_format(name, found, FORMAT)
    if next(view.scan(b"", END), None) is not None:
        raise ConfigError(f"{name} is a SlateDB database of another program; give the journal its own place")
    if read_only:
        raise ConfigError(f"{name} is empty, not a store; open it for writing once to make it one")
    return False


def put_format(database: sl.Db, format: bytes, timeout: float) -> None:
    """Says in a database, durably, what it holds."""
    call(database.put(FORMAT_KEY, format), timeout)
    flush_log(database, timeout)


@contextmanager
def unfinished(database: sl.Db, timeout: float) -> Iterator[None]:
    """Whatever ends the block before its own end leaves a database that cannot be opened as a store."""
    put_format(database, UNFINISHED, timeout)
    yield
    put_format(database, FORMAT, timeout)

"""What a fork does to RocksDB: its threads are not in the child, and everything that waits for them hangs.

So a child forked after RocksDB was used opens no database, and never lets go of its parent's: the objects it inherited
are kept from being destroyed, because destroying them joins threads that are not there.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from typing import Protocol

from penstock.errors import ConfigError


class Holder(Protocol):
    """Something that holds objects of RocksDB's."""

    def _rocksdb_objects(self) -> Iterable[object]: ...


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_used = False
_forked_from: int | None = None


def note(holder: Holder) -> None:
    """Says that RocksDB runs in this process, and who holds its objects; ConfigError where it cannot run."""
    global _used
    if _forked_from is not None:
        raise ConfigError(
            f"this process was forked from process {_forked_from}, which had a rocksdb store open, and RocksDB's "
            "threads do not survive a fork: open the store in a process that is started afresh "
            '(multiprocessing.get_context("spawn"), subprocess), or fork before the first rocksdb store is opened'
        )
    _used = True
    _holders.add(holder)


def _keep_for_ever() -> None:
    global _forked_from
    if not _used:
        return
    _forked_from = os.getppid()
    for holder in list(_holders):
        for each in holder._rocksdb_objects():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


os.register_at_fork(after_in_child=_keep_for_ever)

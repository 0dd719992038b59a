"""The files of a store as a killed process leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path

LEFT_BEHIND = ("lock", "LOCK", "store-shm", "penstock")
"""Locks, leases and shared memory: they mean nothing to the process that opens a dead one's store."""


def copy_as_it_is(source: Path, target: Path) -> None:
    """Copies a store's files at one moment; where threads of RocksDB or SlateDB exchange some meanwhile, once more."""
    while True:
        before = sorted(path.name for path in source.rglob("*"))
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        except shutil.Error:
            pass
        else:
            if before == sorted(path.name for path in source.rglob("*")):
                return
        shutil.rmtree(target)

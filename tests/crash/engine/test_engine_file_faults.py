"""What the file engine says when a sync fails or the disk is full. `torture.failing` fails
every call, `torture.cuts` cuts the power.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.engines.file import Disk, FileEngine
from penstock.errors import StorageError

END = b"\xff" * 600
State = dict[bytes, bytes]


def state(engine: FileEngine) -> State:
    with engine.read() as snapshot:
        return dict(snapshot.scan(b"", END))


def test_after_a_failed_sync_nothing_more_is_written_until_it_is_opened_again(tmp_path: Path) -> None:
    class SyncFails(Disk):
        broken = False

        def sync(self, descriptor: int) -> None:
            if self.broken:
                raise OSError(errno.EIO, "the disk is dying")
            super().sync(descriptor)

    disk = SyncFails()
    engine = FileEngine(str(tmp_path / "store"), disk=disk)
    with engine.write() as tx:
        tx.put(b"safe", b"1")
    disk.broken = True
    with pytest.raises(StorageError, match="dying"), engine.write() as tx:
        tx.put(b"lost", b"1")
    disk.broken = False

    for _ in range(2):
        with pytest.raises(StorageError, match="open it again"), engine.write() as tx:
            tx.put(b"more", b"1")
    with pytest.raises(StorageError, match="open it again"):
        engine.flush()
    with pytest.raises(StorageError, match="open it again"):
        engine.reclaim()
    assert state(engine) == {b"safe": b"1"}
    engine.close()

    engine = FileEngine(str(tmp_path / "store"))
    assert state(engine) == {b"safe": b"1"}
    with engine.write() as tx:
        tx.put(b"more", b"1")
    assert state(engine) == {b"safe": b"1", b"more": b"1"}
    engine.close()


def test_a_full_disk_is_retryable_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    class Full(Disk):
        full = False

        def write(self, descriptor: int, data: bytes, offset: int) -> None:
            if self.full:
                super().write(descriptor, data[:-5], offset)
                raise OSError(errno.ENOSPC, "no space")
            super().write(descriptor, data, offset)

    disk = Full()
    engine = FileEngine(str(tmp_path / "store"), disk=disk)
    with engine.write() as tx:
        tx.put(b"before", b"1")
    disk.full = True
    with pytest.raises(StorageError) as caught, engine.write() as tx:
        tx.put(b"during", b"x" * 10_000)
    assert caught.value.retryable
    disk.full = False
    with engine.write() as tx:
        tx.put(b"after", b"1")

    assert state(engine) == {b"before": b"1", b"after": b"1"}
    engine.close()
    assert state(FileEngine(str(tmp_path / "store"), read_only=True)) == {b"before": b"1", b"after": b"1"}

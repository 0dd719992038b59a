"""What the file engine says when a sync fails or the disk is full. `torture.failing` fails
every call. `torture.cuts` cuts the power, here with compactions, which its short runs do not have.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.engine.contract import WriteTx
from penstock.engines.file import Disk, FileEngine
from penstock.errors import StorageError

END = b"\xff" * 600
SECTOR = 512
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


class PowerCutDisk(Disk):
    """Remembers what a power cut would leave: synced bytes for sure, of the others any sectors, in any order."""

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        self.pending: dict[int, list[tuple[int, bytes | None]]] = {}
        self.names: dict[Path, int] = {}
        self.renames: list[tuple[Path | None, Path, int]] = []
        self.between_calls: Callable[[], None] = lambda: None

    def open(self, path: Path, flags: int) -> int:
        new = bool(flags & os.O_CREAT)
        descriptor = super().open(path, flags)
        if new:
            inode = os.fstat(descriptor).st_ino
            self.durable[inode] = b""
            self.pending[inode] = []
            self.renames.append((None, path, inode))
        self.between_calls()
        return descriptor

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        super().write(descriptor, data, offset)
        self.pending[os.fstat(descriptor).st_ino].append((offset, data))
        self.between_calls()

    def truncate(self, descriptor: int, length: int) -> None:
        super().truncate(descriptor, length)
        self.pending[os.fstat(descriptor).st_ino].append((length, None))
        self.between_calls()

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        super().allocate(descriptor, offset, min(length, 8192))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        status = os.fstat(descriptor)
        self.durable[status.st_ino] = os.pread(descriptor, status.st_size, 0)
        self.pending[status.st_ino] = []
        self.between_calls()

    def rename(self, source: Path, target: Path) -> None:
        inode = source.stat().st_ino
        super().rename(source, target)
        self.renames.append((source, target, inode))
        self.between_calls()

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._rename(self.names, [step for step in self.renames if step[1].parent == folder])
        self.renames = [step for step in self.renames if step[1].parent != folder]
        self.between_calls()

    @staticmethod
    def _rename(names: dict[Path, int], steps: list[tuple[Path | None, Path, int]]) -> None:
        for source, target, inode in steps:
            if source is not None:
                names.pop(source, None)
            names[target] = inode

    def cut(self, rng: random.Random, place: Path) -> None:
        """Writes what is left into another folder; changes of names survive up to some point, in order."""
        names = self.names.copy()
        self._rename(names, self.renames[: rng.randint(0, len(self.renames))])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for path, inode in names.items():
            if path.name in ("data", "index"):
                (place / path.name).write_bytes(self._left(rng, inode))

    def _left(self, rng: random.Random, inode: int) -> bytes:
        content = bytearray(self.durable[inode])
        for offset, data in self.pending[inode]:
            if data is None:
                if rng.random() < 0.5:
                    del content[offset:]
                    content.extend(bytes(max(offset - len(content), 0)))
                continue
            keep = rng.choice([0.0, 0.5, 0.9, 1.0])
            for at in range(offset - offset % SECTOR, offset + len(data), SECTOR):
                if rng.random() < keep:
                    begin, end = max(at, offset), min(at + SECTOR, offset + len(data))
                    content.extend(bytes(max(end - len(content), 0)))
                    content[begin:end] = data[begin - offset : end - offset]
        return bytes(content)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_moment_leaves_a_whole_prefix_with_everything_synced(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk = PowerCutDisk()
    relaxed_share = rng.choice([0.0, 0.3, 1.0])
    states: list[State] = [{}]
    synced = 0

    def cut_the_power() -> None:
        if rng.random() < 0.15:
            disk.cut(rng, tmp_path / "after")
            survivor = FileEngine(str(tmp_path / "after"), durability="process")
            assert state(survivor) in states[synced:], seed
            survivor.close()

    disk.between_calls = cut_the_power
    engine = FileEngine(str(tmp_path / "store"), disk=disk)
    for _ in range(40):
        choice = rng.random()
        if choice < 0.05:
            engine.flush()
            synced = len(states) - 1
        elif choice < 0.15:
            engine.reclaim()
        elif choice < 0.2:
            engine.close()
            synced = len(states) - 1
            engine = FileEngine(str(tmp_path / "store"), disk=disk)
        else:
            relaxed = rng.random() < relaxed_share
            with engine.write(sync=not relaxed) as tx:
                states.append(change_something(rng, tx, states[-1]))  # from here on it may be there, as a whole
            if not relaxed:
                synced = len(states) - 1
    engine.close()
    disk.between_calls = lambda: None


def change_something(rng: random.Random, tx: WriteTx, now: State) -> State:
    after = now.copy()
    for _ in range(rng.randint(0, 3)):
        key = b"k%d" % rng.randrange(12)
        if rng.random() < 0.3:
            tx.delete_range(key, b"k5")
            after = {name: value for name, value in after.items() if not key <= name < b"k5"}
        else:
            after[key] = rng.randbytes(rng.choice([0, 10, 700, 3000]))
            tx.put(key, after[key])
    return after

"""The sqlite engine on a full disk, with a log that is cut, and with files that are not its own.

Failing writes and syncs are `torture.failing`, changed bytes `torture.damage`.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from penstock.core.engine.sqlite import PAGE_BYTES, SqliteEngine
from penstock.errors import ConfigError, Corrupt, StorageError

END = b"\xff" * 600
FRAME = PAGE_BYTES + 24
State = dict[bytes, bytes]


def state(engine: SqliteEngine) -> State:
    with engine.read() as snapshot:
        return dict(snapshot.scan(b"", END))


class Disk(apsw.VFS):
    """A file system that counts syncs, and may be full."""

    def __init__(self) -> None:
        super().__init__("disk", "")
        self.syncs = 0
        self.full = False

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return DiskFile(self, name, flags)


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.disk.full:
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise apsw.FullError("injected")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.disk.syncs += 1
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


def test_a_commit_syncs_once_and_a_relaxed_one_not_at_all(tmp_path: Path, disk: Disk) -> None:
    engine = SqliteEngine(str(tmp_path / "store"), vfs="disk")

    def syncs(*, sync: bool = True) -> int:
        before = disk.syncs
        with engine.write(sync=sync) as tx:
            tx.put(b"a", b"%d" % next(numbers))
        return disk.syncs - before

    numbers = itertools.count()
    syncs()
    assert [syncs() for _ in range(5)] == [1] * 5
    assert [syncs(sync=False) for _ in range(5)] == [0] * 5
    assert [syncs(sync=bool(number % 2)) for number in range(6)] == [0, 1] * 3
    engine.close()
    engine = SqliteEngine(str(tmp_path / "store"), vfs="disk", durability="process")
    syncs()
    assert [syncs() for _ in range(5)] == [0] * 5
    engine.close()


def test_a_commit_that_repeats_a_relaxed_one_puts_it_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    engine = SqliteEngine(str(tmp_path / "store"))
    with engine.write(sync=False) as tx:
        tx.put(b"a", b"1")
    assert synced == []
    with engine.write() as tx:
        tx.put(b"a", b"1")
    assert synced == [(tmp_path / "store-wal").stat().st_ino]
    with engine.write() as tx:
        tx.put(b"a", b"1")
    assert len(synced) == 1
    engine.close()


def test_a_full_disk_is_retryable(tmp_path: Path, disk: Disk) -> None:
    engine = SqliteEngine(str(tmp_path / "store"), vfs="disk")
    disk.full = True
    with pytest.raises(StorageError) as caught, engine.write() as tx:
        tx.put(b"a", b"1")
    assert caught.value.retryable
    disk.full = False
    with engine.write() as tx:
        tx.put(b"a", b"2")

    assert state(engine) == {b"a": b"2"}
    engine.close()


def dead_store(folder: Path) -> tuple[Path, list[State]]:
    """A store whose process died with everything still in the log, and the state after each commit."""
    engine = SqliteEngine(str(folder / "live" / "store"))
    states: list[State] = [{}]
    for number in range(8):
        with engine.write() as tx:
            tx.put(b"one", b"%d" % number)
            tx.put(b"k%d" % number, bytes([number]) * 9_000)
            tx.put(b"two", b"%d" % number)
        states.append(state(engine))
    shutil.copytree(folder / "live", folder / "dead", ignore=shutil.ignore_patterns("*-shm"))
    engine.close()
    return folder / "dead", states


def test_a_log_cut_anywhere_comes_back_as_the_commits_before_the_cut(tmp_path: Path) -> None:
    dead, states = dead_store(tmp_path)
    log = (dead / "store-wal").read_bytes()
    end = len(log.rstrip(b"\0"))
    rng = random.Random(7)
    cuts = {0, 1, 31, 32, *range(32, end + FRAME, FRAME), *(rng.randrange(end) for _ in range(15))}
    seen = set()
    for cut in sorted(cuts):
        after = tmp_path / "after"
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(dead, after)
        (after / "store-wal").write_bytes(log[:cut])
        engine = SqliteEngine(str(after / "store"), durability="process")
        found = state(engine)
        assert found in states
        seen.add(states.index(found))
        with engine.write() as tx:
            tx.put(b"after", b"1")
        engine.close()
        engine = SqliteEngine(str(after / "store"), read_only=True)
        assert state(engine) == {**found, b"after": b"1"}
        engine.close()
    assert seen == set(range(9))


def test_a_damaged_database_is_reported_as_corrupt(tmp_path: Path) -> None:
    engine = SqliteEngine(str(tmp_path / "store"))
    with engine.write() as tx:
        for number in range(500):
            tx.put(b"k%d" % number, b"x" * 200)
    engine.close()
    path = tmp_path / "store"
    data = bytearray(path.read_bytes())
    data[2 * PAGE_BYTES :] = random.Random(9).randbytes(len(data) - 2 * PAGE_BYTES)
    path.write_bytes(data)

    with pytest.raises(Corrupt) as caught:
        engine = SqliteEngine(str(path))
        try:
            state(engine)
        finally:
            with suppress(StorageError):
                engine.close()
    assert caught.value.file == str(path)


def test_a_database_of_another_program_or_format_is_refused(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "other"))
    other.execute("CREATE TABLE notes(text); INSERT INTO notes VALUES ('mine')")
    other.close()
    with pytest.raises(ConfigError, match="another program"):
        SqliteEngine(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="another program"):
        SqliteEngine(str(tmp_path / "other"), read_only=True)
    assert apsw.Connection(str(tmp_path / "other")).execute("PRAGMA journal_mode").get == "delete"

    SqliteEngine(str(tmp_path / "newer")).close()
    newer = apsw.Connection(str(tmp_path / "newer"))
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(ConfigError, match="format 99"):
        SqliteEngine(str(tmp_path / "newer"))

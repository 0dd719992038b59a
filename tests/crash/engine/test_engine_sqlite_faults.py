"""The sqlite engine when writes and syncs fail, one after the other, and when its log is cut or damaged."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
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


class Faults(apsw.VFS):
    """A file system whose N-th write, sync or truncation fails, with half of a write done."""

    def __init__(self) -> None:
        super().__init__("faults", "")
        self.calls = 0
        self.syncs = 0
        self.failing = 0
        self.for_good = False
        self.error: type[apsw.Error] = apsw.IOError

    def arm(self, failing: int, error: type[apsw.Error], *, for_good: bool) -> None:
        self.calls, self.failing, self.error, self.for_good = 0, failing, error, for_good

    def fails(self) -> bool:
        self.calls += 1
        return bool(self.failing) and (self.calls >= self.failing if self.for_good else self.calls == self.failing)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, faults: Faults, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.faults = faults
        super().__init__("", name, flags)

    def check(self) -> None:
        if self.faults.fails():
            raise self.faults.error("injected")

    def xWrite(self, data: bytes, offset: int) -> None:
        if self.faults.fails():
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise self.faults.error("injected")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.faults.syncs += 1
        self.check()
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:
        self.check()
        super().xTruncate(newsize)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.setattr("penstock.core.engine.sqlite.LOG_BYTES", 50_000)  # copies of the store are made all the time
    faults = Faults()
    yield faults
    faults.unregister()


def some_work(engine: SqliteEngine, acknowledged: list[State]) -> list[State]:
    """Commits and a compaction; notes acknowledged states, and gives those that failed after the last one."""
    unknown: list[State] = []

    def commit(after: State, change: Callable[[object], None], *, sync: bool = True) -> None:
        unknown.append(after)
        with engine.write(sync=sync) as tx:
            change(tx)
        acknowledged.append(after)
        unknown.clear()
        assert state(engine) == after

    def attempt(call: Callable[[], None]) -> None:
        try:
            call()
        except StorageError:
            assert state(engine) == acknowledged[-1]

    for number in range(4):
        now = acknowledged[-1]
        key, large = b"k%d" % number, bytes([number]) * 9_000
        attempt(
            lambda key=key, large=large, now=now, number=number: commit(
                {**now, key: large, b"n": key},
                lambda tx: (tx.put(key, large), tx.put(b"n", key)),
                sync=number != 2,
            )
        )
    now = acknowledged[-1]
    attempt(
        lambda: commit(
            {key: value for key, value in now.items() if not b"k0" <= key < b"k2"},
            lambda tx: tx.delete_range(b"k0", b"k2"),
        )
    )
    attempt(engine.reclaim)
    now = acknowledged[-1]
    attempt(lambda: commit({**now, b"last": b"1"}, lambda tx: tx.put(b"last", b"1")))
    return unknown


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # close() meets the same failing disk
@pytest.mark.parametrize(
    ("error", "for_good", "step"),
    [(apsw.IOError, False, 2), (apsw.FullError, False, 5), (apsw.IOError, True, 5), (apsw.FullError, True, 7)],
    ids=["io error", "disk full", "io errors from then on", "disk full from then on"],
)
def test_whichever_write_or_sync_fails_what_was_acknowledged_is_there_and_nothing_is_half_there(
    tmp_path: Path, faults: Faults, error: type[apsw.Error], for_good: bool, step: int
) -> None:
    failing = 0
    while True:
        failing += step
        place = tmp_path / str(failing)
        faults.arm(failing, error, for_good=for_good)
        acknowledged: list[State] = [{}]
        unknown: list[State] = []
        try:
            engine = SqliteEngine(str(place / "store"), vfs="faults")
        except StorageError:
            engine = None
        else:
            unknown = some_work(engine, acknowledged)
        reached = faults.calls >= failing
        faults.failing = 0
        after = tmp_path / "after"
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(place, after, ignore=shutil.ignore_patterns("*-shm"))
        survivor = SqliteEngine(str(after / "store"), durability="process")
        found = state(survivor)
        assert found in [acknowledged[-1], *unknown], failing
        with survivor.write() as tx:
            tx.put(b"again", b"1")
        assert state(survivor) == {**found, b"again": b"1"}
        survivor.close()
        if engine is not None:
            with engine.write() as tx:  # and the engine itself goes on, now that the disk does
                tx.put(b"again", b"1")
            assert state(engine) == {**acknowledged[-1], b"again": b"1"}
            engine.close()
        if not reached:
            assert acknowledged[-1][b"last"] == b"1"
            break
    assert failing > 25


def test_a_commit_syncs_once_and_a_relaxed_one_not_at_all(tmp_path: Path, faults: Faults) -> None:
    engine = SqliteEngine(str(tmp_path / "store"), vfs="faults")

    def syncs(*, sync: bool = True) -> int:
        before = faults.syncs
        with engine.write(sync=sync) as tx:
            tx.put(b"a", b"%d" % next(numbers))
        return faults.syncs - before

    numbers = itertools.count()
    syncs()
    assert [syncs() for _ in range(5)] == [1] * 5
    assert [syncs(sync=False) for _ in range(5)] == [0] * 5
    assert [syncs(sync=bool(number % 2)) for number in range(6)] == [0, 1] * 3
    engine.close()
    engine = SqliteEngine(str(tmp_path / "store"), vfs="faults", durability="process")
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


def test_a_full_disk_is_retryable(tmp_path: Path, faults: Faults) -> None:
    engine = SqliteEngine(str(tmp_path / "store"), vfs="faults")
    faults.arm(1, apsw.FullError, for_good=True)
    with pytest.raises(StorageError) as caught, engine.write() as tx:
        tx.put(b"a", b"1")
    assert caught.value.retryable
    faults.failing = 0
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
            tx.put(b"k%d" % number, bytes([number]) * 20_000)
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


def test_a_flipped_bit_in_the_log_never_leaves_half_a_commit(tmp_path: Path) -> None:
    dead, states = dead_store(tmp_path)
    log = (dead / "store-wal").read_bytes()
    end = len(log.rstrip(b"\0"))
    rng = random.Random(8)
    for _ in range(25):
        at = rng.randrange(end)
        after = tmp_path / "after"
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(dead, after)
        (after / "store-wal").write_bytes(log[:at] + bytes([log[at] ^ 1 << rng.randrange(8)]) + log[at + 1 :])
        engine = SqliteEngine(str(after / "store"), durability="process")
        assert state(engine) in states
        engine.close()


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

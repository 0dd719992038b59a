"""What every connection of the SQLite engine is told, read back from SQLite itself."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from penstock.core.engine.sqlite import APPLICATION_ID, CACHE_KIB, FORMAT, LOG_LIMIT_BYTES, PAGE_BYTES, SqliteEngine

FULL, NORMAL = 2, 1
INCREMENTAL = 2


def ask(connection: apsw.Connection, *names: str) -> dict[str, object]:
    return {name: connection.execute(f"PRAGMA {name}").get for name in names}


@pytest.fixture
def store(tmp_path: Path) -> SqliteEngine:
    engine = SqliteEngine(str(tmp_path / "store.db"))
    yield engine
    engine.close()


def test_the_writing_connection_has_every_setting(store: SqliteEngine) -> None:
    expected = {
        "journal_mode": "wal",
        "wal_autocheckpoint": 0,
        "journal_size_limit": LOG_LIMIT_BYTES,
        "cache_size": -CACHE_KIB,
        "synchronous": FULL,
        "query_only": 0,
        "page_size": PAGE_BYTES,
        "auto_vacuum": INCREMENTAL,
        "application_id": APPLICATION_ID,
        "user_version": FORMAT,
    }
    assert ask(store._writer, *expected) == expected


@pytest.mark.parametrize("read_only", [False, True])
def test_every_reading_connection_only_reads_and_never_checkpoints(store: SqliteEngine, read_only: bool) -> None:
    engine = SqliteEngine(str(store.location), read_only=True) if read_only else store
    with engine.read() as first, engine.read() as second:
        for connection in (first._connection, second._connection, engine._watcher):
            assert connection is not None
            found = ask(connection, "query_only", "wal_autocheckpoint", "journal_mode")
            assert found == {"query_only": 1, "wal_autocheckpoint": 0, "journal_mode": "wal"}
    if read_only:
        engine.close()


def test_a_commit_syncs_unless_it_is_relaxed_and_the_next_one_syncs_again(store: SqliteEngine) -> None:
    for sync, expected in ((True, FULL), (False, NORMAL), (False, NORMAL), (True, FULL)):
        with store.write(sync=sync) as tx:
            tx.put(b"k", bytes([sync]))
            assert ask(store._writer, "synchronous") == {"synchronous": expected}


def test_a_store_that_need_not_survive_the_machine_never_syncs(tmp_path: Path) -> None:
    engine = SqliteEngine(str(tmp_path / "fast.db"), durability="process")
    with engine.write() as tx:
        tx.put(b"k", b"v")
        assert ask(engine._writer, "synchronous") == {"synchronous": NORMAL}
    engine.close()


def test_a_log_that_a_long_read_made_large_is_cut_when_it_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.engine.sqlite.LOG_LIMIT_BYTES", 16 << 20)
    engine = SqliteEngine(str(tmp_path / "store.db"))
    log = Path(f"{engine.location}-wal")
    with engine.read():
        for key in range(24):
            with engine.write(sync=False) as tx:
                tx.put(bytes([key + 1]), bytes(1 << 20))
    assert log.stat().st_size > 16 << 20
    engine._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    with engine.write() as tx:
        tx.put(b"k", b"v")
    assert log.stat().st_size <= 16 << 20
    engine.close()

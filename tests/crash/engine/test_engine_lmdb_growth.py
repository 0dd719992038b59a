"""The lmdb engine where the system grants little address space: it asks for more as the store grows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine.lmdb.engine import LmdbEngine
from penstock.errors import StorageError

END = b"\xff" * 600


def fill(engine: LmdbEngine, begin: int, end: int) -> int:
    """Puts values of 10 kB until all are there, trying again when the store was full; how often it was."""
    refused = 0
    for number in range(begin, end):
        while True:
            try:
                with engine.write() as tx:
                    tx.put(b"%06d" % number, b"x" * 10_000)
                break
            except StorageError as error:
                assert error.retryable
                refused += 1
                assert refused < 20
    return refused


def test_a_full_map_grows_and_the_same_transaction_then_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.lmdb.environment.MAP_BYTES", (1 << 20,))
    engine = LmdbEngine(str(tmp_path / "store"), durability="process")

    assert fill(engine, 0, 500) >= 2
    with engine.read() as snapshot:
        assert sum(1 for _ in snapshot.scan(b"", END)) == 500
    engine.close()


def test_a_full_map_waits_for_open_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.lmdb.environment.MAP_BYTES", (1 << 20,))
    engine = LmdbEngine(str(tmp_path / "store"), durability="process")
    with engine.read() as snapshot, pytest.raises(AssertionError):
        fill(engine, 0, 500)
    assert snapshot is not None

    fill(engine, 0, 500)
    engine.close()


def test_another_process_follows_when_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.lmdb.environment.MAP_BYTES", (1 << 20,))
    engine = LmdbEngine(str(tmp_path / "store"), durability="process")
    fill(engine, 0, 10)
    script = f"""
from penstock.engine.lmdb import environment as lmdb_environment
from penstock.engine.lmdb.engine import LmdbEngine
lmdb_environment.MAP_BYTES = (1 << 24,)
engine = LmdbEngine({str(tmp_path / "store")!r}, durability="process")
with engine.write() as tx:
    for number in range(1000):
        tx.put(b"other%d" % number, b"x" * 10_000)
engine.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

    with engine.read() as snapshot:
        assert sum(1 for _ in snapshot.scan(b"", END)) == 1010
    fill(engine, 10, 20)
    engine.close()


def test_a_process_with_little_address_space_can_open_a_store(tmp_path: Path) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from penstock.engine.lmdb.engine import LmdbEngine
engine = LmdbEngine({str(tmp_path / "store")!r})
with engine.write() as tx:
    tx.put(b"a", b"1")
engine.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    engine = LmdbEngine(str(tmp_path / "store"))
    with engine.read() as snapshot:
        assert snapshot.get(b"a") == b"1"
    engine.close()

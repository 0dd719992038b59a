"""An lmdb file that was cut off or whose meta pages are damaged is refused, before LMDB maps it and dies of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.engine.lmdb import pages
from penstock.engine.lmdb.engine import LmdbEngine
from penstock.engine.lmdb.environment import explain
from penstock.errors import ConfigError, Corrupt, PenstockError, StorageError

OPEN = """
import sys, penstock
try:
    with penstock.open(sys.argv[1]) as journal:
        for event in journal.topic("t").read():
            event.payload
        journal.topic("t").append("more")
    print("whole")
except penstock.errors.PenstockError as error:
    print(type(error).__name__)
"""


def make(folder: Path) -> bytes:
    with penstock.open(f"lmdb:{folder}") as journal:
        for number in range(30):
            journal.topic("t").append("k", "x" * (number * 300))
    return (folder / "data.mdb").read_bytes()


def test_a_file_cut_anywhere_is_corrupt_and_never_a_signal(tmp_path: Path) -> None:
    data = make(tmp_path / "whole")
    store = tmp_path / "store"
    store.mkdir()
    seen = set()
    for cut in [1, 100, 4096, 5000, 8192, *range(12288, len(data), 8192 + 4096), len(data) - 1]:
        (store / "data.mdb").write_bytes(data[:cut])
        done = subprocess.run([sys.executable, "-c", OPEN, f"lmdb:{store}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"cut at {cut}: {done.returncode} {done.stderr}"
        seen.add(done.stdout.strip())
        (store / "data.mdb").unlink()
        (store / "lock.mdb").unlink(missing_ok=True)
    assert "Corrupt" in seen and seen <= {"Corrupt", "whole"}  # free pages at the end are not missed


def test_a_meta_page_damaged_in_what_can_be_checked_is_refused(tmp_path: Path) -> None:
    data = make(tmp_path / "whole")
    store = tmp_path / "store"
    for page in (0, 4096):
        # flags, magic, version, page size, root of the data
        for at, wrong in ((10, b"\xff"), (16, b"\0"), (20, b"\7"), (41, b"\x33"), (134, b"\x44")):
            store.mkdir(exist_ok=True)
            (store / "data.mdb").write_bytes(data[: page + at] + wrong + data[page + at + 1 :])
            try:
                LmdbEngine(str(store)).close()
            except (Corrupt, ConfigError):
                continue
            assert page + at == _older_root(data), f"byte {page + at} was not noticed"


def _older_root(data: bytes) -> int:
    """Where the older meta page names its root: LMDB does not look at it."""
    transactions = [int.from_bytes(data[page + 144 : page + 152], "little") for page in (0, 4096)]
    return 4096 * transactions.index(min(transactions)) + 134


def test_a_full_disk_is_said_to_be_full_although_lmdb_calls_it_an_io_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    import lmdb

    error = lmdb.Error("Input/output error")
    error.code = errno.EIO
    assert "is full" not in str(explain(error, f"lmdb:{tmp_path}"))

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    told: PenstockError = explain(error, f"lmdb:{tmp_path}")
    assert isinstance(told, StorageError) and told.retryable and "is full" in str(told)


def test_a_file_that_others_commit_to_while_it_is_checked_is_not_called_damaged(tmp_path: Path) -> None:
    """What the check saw may be of two moments; only what stays as it is can be wrong."""
    with penstock.open(f"lmdb:{tmp_path / 'store'}") as journal:
        journal.topic("t").append("k", "x" * 10_000)
    path = tmp_path / "store" / "data.mdb"
    whole = path.read_bytes()
    looks: list[int] = []

    def racing(place: Path) -> None:
        looks.append(len(looks))
        if len(looks) < 3:  # another process commits meanwhile
            path.write_bytes(whole[:8000] + bytes([len(looks)]) + whole[8001:])
            raise Corrupt("of two moments")
        path.write_bytes(whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_check", racing)
        pages.check_file(tmp_path / "store")
        assert len(looks) == 3
        patch.setattr(pages, "_check", lambda place: (_ for _ in ()).throw(Corrupt("and it stays")))
        with pytest.raises(Corrupt, match="stays"):
            pages.check_file(tmp_path / "store")

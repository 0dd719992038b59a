"""A directory as a store: on disk before it is acknowledged, and safe between threads and processes."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.core.durable import lock_file
from penstock.errors import ConfigError, StorageError
from penstock.objects.store import open_store


def test_an_object_is_on_disk_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Written, synced, renamed, and then its directory synced: in that order, also for new directories."""
    happened: list[str] = []
    sync, rename = os.fsync, Path.rename

    def watched_sync(file):
        happened.append("sync " + ("directory" if stat.S_ISDIR(os.fstat(file).st_mode) else "file"))
        return sync(file)

    def watched_rename(self, target):
        happened.append("rename")
        return rename(self, target)

    store = open_store(f"file://{tmp_path}")
    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    store.put("ingest/x.batch", b"1")
    assert happened == ["sync directory", "sync file", "rename", "sync directory"]
    happened.clear()
    store.put_if("ingest/manifest", b"1", None)
    assert happened == ["sync file", "rename", "sync directory"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_store(f"file://{tmp_path}")
    store.put("ingest/x", b"old")

    def full(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space") as refused:
            store.put("ingest/x", b"new")
    assert refused.value.retryable
    assert [path.name for path in (tmp_path / "ingest").iterdir()] == ["x"]
    assert bytes(store.get("ingest/x")) == b"old"


def test_a_path_cannot_leave_the_directory(tmp_path: Path):
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(ConfigError):
        store.get("../secret")


def test_a_directory_name_with_spaces_works(tmp_path: Path):
    store = open_store(f"file://{tmp_path}/with%20space")
    store.put("a/x", b"1")
    assert (tmp_path / "with space" / "a" / "x").read_bytes() == b"1"


def test_a_folder_nobody_may_write_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_store(f"file://{tmp_path}")

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match="Permission denied") as refused:
            store.put("a", b"1")
    assert not refused.value.retryable


WRITER = """
import sys
from penstock.objects.store import VersionConflict, open_store
store = open_store(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        found = store.read("ingest/count")
        try:
            store.put_if("ingest/count", str(int(found.data) + 1).encode(), found.version)
            break
        except VersionConflict:
            pass
"""


def test_processes_that_count_in_one_file_never_lose_a_step(tmp_path: Path):
    """Compare and swap between processes: the sum of everybody's increments is what is stored."""
    url = f"file://{tmp_path}"
    store = open_store(url)
    store.put_if("ingest/count", b"0", None)
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, url, "60"]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert bytes(store.get("ingest/count")) == b"180"
    assert [path.name for path in (tmp_path / "ingest").iterdir() if path.name.endswith(".tmp")] == []


def test_a_reader_waits_until_what_it_would_see_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between the rename and the directory's sync a power cut could take the new version back."""
    store = open_store(f"file://{tmp_path}")
    version = store.put_if("ingest/manifest", b"old", None)
    renamed, go_on = threading.Event(), threading.Event()
    sync = os.fsync
    writer = threading.Thread(daemon=True, target=store.put_if, args=("ingest/manifest", b"new", version))

    def slow_sync(file):
        if threading.current_thread() is writer and stat.S_ISDIR(os.fstat(file).st_mode):
            renamed.set()
            go_on.wait(30)
        return sync(file)

    monkeypatch.setattr(os, "fsync", slow_sync)
    writer.start()
    assert renamed.wait(30)
    seen: list[bytes] = []
    reader = threading.Thread(daemon=True, target=lambda: seen.append(bytes(store.read("ingest/manifest").data)))
    reader.start()
    reader.join(0.1)
    assert not seen
    go_on.set()
    reader.join(30)
    writer.join(30)
    assert seen == [b"new"]


def test_puts_at_once_share_syncs_of_their_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every put returns after a sync that began when its name was there; but not every put syncs."""
    store = open_store(f"file://{tmp_path}")
    store.put("ingest/first", b"1")
    happened: list[tuple[str, str]] = []
    everybody = threading.Event()
    sync, rename = os.fsync, Path.rename

    def watched_sync(file):
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            return sync(file)
        happened.append(("begin", ""))
        assert everybody.wait(30)
        done = sync(file)
        happened.append(("end", ""))
        return done

    def watched_rename(self, target):
        done = rename(self, target)
        happened.append(("renamed", target.name))
        if sum(what == "renamed" for what, _ in happened) == 16:
            everybody.set()
        return done

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "rename", watched_rename)

    def put(name: str):
        store.put(f"ingest/{name}", b"1")
        happened.append(("returned", name))

    threads = [threading.Thread(daemon=True, target=put, args=(f"{n}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for n in range(16):
        between = happened[happened.index(("renamed", f"{n}")) : happened.index(("returned", f"{n}"))]
        began = between.index(("begin", ""))
        assert ("end", "") in between[began:]
    assert happened.count(("begin", "")) < 16


def test_a_failed_sync_of_the_directory_is_nobody_elses_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_store(f"file://{tmp_path}")
    store.put("ingest/first", b"1")
    waiting, sync = threading.Event(), os.fsync
    failures = [OSError(5, "Input/output error")]

    def fail_once(file):
        if stat.S_ISDIR(os.fstat(file).st_mode) and failures:
            assert waiting.wait(30)
            raise failures.pop()
        return sync(file)

    monkeypatch.setattr(os, "fsync", fail_once)
    outcomes: list[str] = []

    def put(name: str):
        try:
            store.put(f"ingest/{name}", b"1")
            outcomes.append("done")
        except StorageError:
            outcomes.append("refused")

    threads = [threading.Thread(daemon=True, target=put, args=(f"{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    waiting.set()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["done", "done", "done", "refused"]


def test_a_lock_file_that_is_removed_between_opening_and_locking_it_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, removed = tmp_path / "lock", fcntl.flock, []

    def flock(file: int, how: int) -> None:
        if not removed:
            removed.append(True)
            path.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)

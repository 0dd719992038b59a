"""A store whose files are deleted, moved or replaced while it is open: nothing more is acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.core.engine.base import OpenFiles
from penstock.errors import OutcomeUnknown, PenstockError, StorageError
from server.serving import serving

PARTS = {
    "sqlite": ("store", "store-wal", "store-shm"),
    "file": ("store/data", "store/lock"),
    "rocksdb": ("store/LOCK",),
}


def files_of(folder: Path) -> list[Path]:
    return [folder / "store"] if (folder / "store").is_dir() else list(folder.glob("store*"))


def delete(folder: Path) -> None:
    for path in files_of(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def restore(folder: Path) -> None:
    copies = folder / "copies"
    copies.mkdir()
    for path in files_of(folder):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copies / path.name)
    delete(folder)
    for path in copies.iterdir():
        path.rename(folder / path.name)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.fixture(params=["quiet", "quiet for seconds", "busy"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the folder has been as it is for so long that its own time tells that nothing in it has changed."""
    if request.param == "quiet":
        monkeypatch.setattr("penstock.core.engine.base.QUIET_NS", -(10**9))
    if request.param == "quiet for seconds":  # on a file system that counts them
        monkeypatch.setattr("penstock.core.engine.base.COARSE_NS", 1)
        monkeypatch.setattr("penstock.core.engine.base.COARSE_QUIET_NS", -(10**9))


@pytest.mark.usefixtures("look")
@pytest.mark.parametrize("happens", [delete, restore, rename])
@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb", "slatedb"])
def test_a_store_that_has_lost_its_name_acknowledges_nothing_and_its_readers_say_so(
    scheme: str, happens: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    url = f"{scheme}:{folder / 'store'}"
    with penstock.open(url) as journal, penstock.open(url, read_only=True) as reader:
        topic = journal.topic("t")
        topic.append("k", 1)
        topic.append("k", 2)
        assert [event.payload for event in reader.topic("t").read()] == [1, 2]
        happens(folder)

        assert not journal._engine.usable()
        with pytest.raises(StorageError, match=r"open it again|No such file"):
            list(reader.topic("t").read())
        for work in (lambda: topic.append("k", 3), lambda: topic.append("k", 4), journal.flush):
            with pytest.raises(StorageError, match=r"deleted, moved or replaced while it was open.*open it again"):
                work()
    if happens is restore and scheme != "slatedb":  # whose lease lasts a little longer than its holder
        with penstock.open(url) as journal:
            assert [event.payload for event in journal.topic("t").read()] == [1, 2]
            journal.topic("t").append("k", 3)


@pytest.mark.parametrize(("scheme", "part"), [(scheme, part) for scheme in PARTS for part in PARTS[scheme]])
def test_one_file_that_was_removed_is_enough(scheme: str, part: str, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        journal.topic("t").append("k", 1)
        (tmp_path / part).unlink()
        with pytest.raises(OutcomeUnknown, match=f"{part} is not what was opened"):
            journal.topic("t").append("k", 2)


@pytest.mark.parametrize(("scheme", "logs"), [("sqlite", "store-wal"), ("rocksdb", "store/*.log")])
def test_what_was_acknowledged_into_a_log_that_was_removed_is_saved_by_closing(
    scheme: str, logs: str, tmp_path: Path
) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        journal.topic("t").append("k", 1)
        for path in tmp_path.glob(logs):
            path.unlink()
        with pytest.raises(OutcomeUnknown):
            journal.topic("t").append("k", 2)
    with penstock.open(url) as journal:
        assert next(journal.topic("t").read()).payload == 1


@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb", "slatedb"])
def test_closing_says_that_the_store_is_gone_unless_a_commit_has_said_it(scheme: str, tmp_path: Path) -> None:
    journal = penstock.open(f"{scheme}:{tmp_path / 'store'}")
    journal.topic("t").append("k", 1)
    delete(tmp_path)
    with pytest.raises(StorageError, match="deleted, moved or replaced"):
        journal.close()
    assert journal.closed


@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb"])
def test_closing_changes_nothing_of_the_store_that_was_put_in_its_place(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    journal = penstock.open(url)
    journal.topic("t").append("k", "before")
    restore(tmp_path)
    for _ in range(50):
        with pytest.raises(PenstockError):
            journal.topic("t").append("k", "x" * 1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    journal.close()

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("scheme", ["sqlite", "file", "rocksdb"])
def test_a_store_that_is_moved_back_goes_on_with_what_was_written_meanwhile(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / "stores"
    folder.mkdir()
    with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
        topic = journal.topic("t")
        topic.append("k", 1)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(OutcomeUnknown):
            topic.append("k", 2)
        (tmp_path / "elsewhere").rename(folder)

        assert topic.append("k", 3).seq == 3
        assert [event.payload for event in topic.read()] == [1, 2, 3]


def test_a_sqlite_store_behind_a_link_has_its_log_synced_and_looked_at(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "shop.db")
    with penstock.open(tmp_path / "link.db", durability="process") as journal:
        journal.topic("t").append("k", 1)
        journal.flush()
        (tmp_path / "real" / "shop.db-wal").unlink()
        with pytest.raises(OutcomeUnknown):
            journal.topic("t").append("k", 2)


def test_a_compaction_of_a_file_store_is_no_loss(tmp_path: Path) -> None:
    with penstock.open(f"file:{tmp_path / 'store'}") as journal:
        topic = journal.topic("t")
        for number in range(200):
            topic.append("k", "x" * 5000)
            if number % 50 == 49:
                topic.compact(number)
                journal._engine.reclaim()
                assert journal._engine.usable()
        topic.append("k", "last")


def test_a_served_journal_that_was_removed_is_not_healthy(tmp_path: Path) -> None:
    journal = penstock.open(f"sqlite:{tmp_path / 'store'}")
    with serving(journal) as served:
        assert served.ask("GET", "/healthz").status == 200
        delete(tmp_path)
        health = served.ask("GET", "/healthz")
        assert (health.status, health.json) == (503, {"status": "replaced"})
    with pytest.raises(StorageError, match="deleted, moved or replaced"):
        journal.close()


def test_a_folder_that_changed_a_moment_ago_is_looked_through_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    files = OpenFiles(str(tmp_path / "a"), str(tmp_path / "b"))
    assert files.missing() is None
    (tmp_path / "b").rename(tmp_path / "c")  # within one tick of the file system's clock, perhaps
    assert files.missing() == str(tmp_path / "b")


@pytest.mark.parametrize("read_only", [False, True])
def test_who_waits_for_something_new_in_a_store_that_was_replaced_does_not_wait_for_ever(
    tmp_path: Path, read_only: bool
) -> None:
    url = f"sqlite:{tmp_path / 'store'}"
    penstock.open(url).close()
    with penstock.open(url, read_only=read_only) as journal:
        waiting = journal.topic("t").subscribe()
        restore(tmp_path)
        with pytest.raises(StorageError, match="deleted, moved or replaced"):
            next(iter(waiting))


def test_a_worker_of_a_store_that_was_replaced_does_not_wait_for_ever(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as journal:
        queue = journal.queue("jobs")
        restore(tmp_path)
        with pytest.raises(StorageError, match="deleted, moved or replaced"):
            queue.take(wait=300)

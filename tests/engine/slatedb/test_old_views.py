"""What a reader knows may be old, or of a store that is gone: then it is not passed off as what is there now."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from object_homes import Home

import penstock
from buffer.emulator import Emulator
from penstock.core.engine import base
from penstock.core.local.backend import LocalJournal
from penstock.core.units import in_parts
from penstock.engines.slatedb import reading
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.engines.slatedb.reading import Follower
from penstock.errors import ConfigError, StorageError
from waiting import eventually


@pytest.fixture
def bucket(emulator: Emulator) -> Home:
    return Home(f"{emulator.bucket()}/shop", emulator.options)


def follower_of(reader: LocalJournal) -> Follower:
    engine = reader._engine
    assert isinstance(engine, SlatedbEngine) and engine._follower is not None
    return engine._follower


def rest(reader: LocalJournal) -> Follower:
    """As if nobody had read for an hour."""
    found = follower_of(reader)
    found._looked -= 3600
    found._seen -= 3600
    return found


class SeenLock:
    """A lock of which can be told that somebody waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting = threading.Event()

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self.waiting.set()
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("away", [False, True])
def test_after_a_rest_a_read_waits_for_the_look_of_another_thread(
    bucket: Home, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took what was known an hour ago, because somebody else was just looking."""
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    reader = bucket.open(read_only=True)
    assert reader.topic("t").latest == 1
    writer.topic("t").append("k", 1)
    found = rest(reader)
    lock: Any = SeenLock()
    found._lock = lock
    looking, go_on = threading.Event(), threading.Event()
    look = found._read_log

    def slowly() -> bool:
        looking.set()
        go_on.wait()
        found._pause = 1000.0  # the other thread does not look again
        if away:
            raise StorageError("the store is away", retryable=True)
        return look()

    monkeypatch.setattr(found, "_read_log", slowly)
    seen: list[int | str] = []

    def read() -> None:
        try:
            seen.append(reader.topic("t").latest)
        except StorageError as error:
            seen.append(str(error))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    threads[0].start()
    looking.wait()
    threads[1].start()
    eventually(lambda: lock.waiting.is_set() or not threads[1].is_alive())
    go_on.set()
    for thread in threads:
        thread.join()
    assert seen == (["the store is away"] * 2 if away else [2, 2])
    bucket.close()


def remove_store(journal: LocalJournal) -> None:
    engine: Any = journal._engine
    journal.close()
    if engine._location.folder is not None:
        shutil.rmtree(engine._location.folder)
    else:
        engine._location.objects.delete([path for path, _ in engine._location.objects.sizes()])


@pytest.mark.parametrize("at_once", [True, False])
def test_a_store_made_anew_is_not_mixed_with_the_one_that_was_there(
    home: Home, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new store's log was read on behind the old one's: first events of one journal, then of another."""
    monkeypatch.setattr(reading, "CALM_SECONDS", -1.0)
    first = home.open()
    first.topic("t").append_many([penstock.Draft("old", n) for n in range(3)])
    reader = home.open(read_only=True)
    assert reader.topic("t").latest == 3
    remove_store(first)
    second = home.open()
    for number in range(12):
        second.topic("t").append("new", number)
    for _ in range(2):
        follower_of(reader)._pause = 0.0
        with pytest.raises(ConfigError, match="another was made in its place"):
            if at_once:
                reader._engine.catch_up()
            else:
                list(reader.topic("t").read())
    assert not reader._engine.usable()
    with home.open(read_only=True) as again:
        assert {event.kind for event in again.topic("t").read()} == {"new"}


def test_a_reader_takes_no_change_of_writers_for_another_store(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CALM_SECONDS", -1.0)
    monkeypatch.setattr(reading, "MANIFEST_SECONDS", 0.0)
    journal = home.open()
    journal.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    for number in range(1, 6):
        if number % 2:
            journal.close()
        journal = home.open(takeover=True)
        journal.topic("t").append("k", number)
        reader._engine.catch_up()
        assert [event.payload for event in reader.topic("t").read()] == list(range(number + 1))
    assert reader._engine.usable()


def test_a_damaged_lease_is_no_readers_trouble(folder: Home, tmp_path: Path) -> None:
    with folder.open() as journal:
        journal.topic("t").append("k", 0)
        for file in (tmp_path / "shop" / "penstock").glob("lease.*"):
            file.write_bytes(b"{")
        with folder.open(read_only=True) as reader:
            reader._engine.catch_up()
            assert reader.topic("t").latest == 1


def test_a_reader_that_is_closed_while_it_looks_is_no_attribute_error(
    bucket: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.open().topic("t").append("k", 0)
    reader = bucket.open(read_only=True)
    found = follower_of(reader)

    def closed_meanwhile(self: Follower) -> None:
        self._reader = None

    tables = found._reader
    monkeypatch.setattr(Follower, "_checkpoint", property(closed_meanwhile), raising=False)
    assert not found._is_ahead()
    monkeypatch.undo()
    found._reader = tables
    bucket.close()


# ── backups by readers ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_backup_by_a_reader_holds_everything_that_was_acknowledged(bucket: Home, tmp_path: Path) -> None:
    writer = bucket.open()
    writer.topic("t").append("k", 0)
    reader = bucket.open(read_only=True)
    assert reader.topic("t").latest == 1
    found = follower_of(reader)
    for number, place in enumerate((str(tmp_path / "monday"), f"{bucket.url}-tuesday"), 1):
        found._pause = 1000.0  # it does not look by itself
        writer.topic("t").append("k", number)
        reader.backup(place)
        url = place if "://" in place else f"slatedb:{place}"
        options = bucket.options if "://" in place else None
        with penstock.open(url, read_only=True, store_options=options) as backup:
            assert [event.payload for event in backup.topic("t").read()] == list(range(number + 1))
    bucket.close()


def test_a_backup_that_a_reader_could_not_finish_is_no_journal(bucket: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of the rows opened as a journal that had lost the others."""
    writer = bucket.open()
    for number in range(20):
        writer.topic("t").append("k", "x" * 500 + str(number))
    reader = bucket.open(read_only=True)

    def cut_short(*given: Any) -> Any:
        parts = in_parts(*given)
        yield next(parts)
        raise StorageError("the store is away")

    monkeypatch.setattr(base, "COPY_BYTES", 4000)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.core.engine.base.in_parts", cut_short)
        with pytest.raises(StorageError, match="away"):
            reader.backup(f"{bucket.url}-monday")
    for read_only in (True, False):
        with pytest.raises(ConfigError, match="is a backup that was interrupted"):
            penstock.open(f"{bucket.url}-monday", read_only=read_only, store_options=bucket.options)
    reader.backup(f"{bucket.url}-tuesday")
    with penstock.open(f"{bucket.url}-tuesday", store_options=bucket.options) as backup:
        assert backup.topic("t").latest == 20 == len(list(backup.topic("t").read()))
    bucket.close()

"""Backups of a journal in a bucket: of the same tables, in a place of their own; copies bring them back."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Coroutine
from typing import Any

import pytest
import slatedb.uniffi as sl
from object_homes import Home, collect

import penstock
from buffer.emulator import Emulator
from penstock.engines.slatedb import database
from penstock.engines.slatedb import engine as upkeep
from penstock.engines.slatedb.bridge import call
from penstock.errors import ConfigError, StorageError
from penstock.objects.cloud import CloudStore
from penstock.objects.store import open_store
from waiting import eventually


@pytest.fixture
def bucket(emulator: Emulator) -> str:
    return emulator.bucket()


def payloads(url: str, options: dict[str, Any], **how: Any) -> list[Any]:
    with penstock.open(url, store_options=options, **how) as journal:
        return [event.payload for event in journal.topic("t").read()]


def test_a_backup_in_the_bucket_is_the_state_of_its_moment_and_copies_no_table(bucket: str, emulator: Emulator) -> None:
    home = Home(f"{bucket}/shop", emulator.options)
    with home.open() as journal:
        topic = journal.topic("t")
        topic.append_many([penstock.Draft("k", random.Random(n).randbytes(500).hex()) for n in range(2000)])
        topic.append("k", "the log's newest")
        journal.queue("q").push("waiting")
        size = journal.describe().size_bytes
        journal.backup(f"{bucket}/monday")
        topic.append("k", "later")
        with penstock.open(f"{bucket}/monday", read_only=True, store_options=emulator.options) as copy:
            events = [event.payload for event in copy.topic("t").read()]
            assert len(events) == 2001 and events[-1] == "the log's newest"
            assert copy.queue("q").stats().ready == 1
            assert copy.describe().size_bytes < size / 4
        # It is a journal like any other: opened for writing it goes its own way.
        with penstock.open(f"{bucket}/monday", store_options=emulator.options) as copy:
            copy.topic("t").append("k", "only in the backup")
            delivery = copy.queue("q").take()
            assert delivery is not None
            delivery.ack()
        assert [event.payload for event in topic.read(after=2000)] == ["the log's newest", "later"]
        assert journal.queue("q").stats().ready == 1
    assert payloads(f"{bucket}/monday", emulator.options)[-1] == "only in the backup"


def test_a_copy_of_a_backup_is_the_journal_again(bucket: str, emulator: Emulator) -> None:
    with Home(f"{bucket}/shop", emulator.options).open() as journal:
        journal.topic("t").append_many([penstock.Draft("k", n) for n in range(50)])
        journal.backup(f"{bucket}/tuesday")
        journal.topic("t").append("k", "after it")
    report = penstock.copy(f"{bucket}/tuesday", f"{bucket}/again", store_options=emulator.options)
    assert report.written == report.rows
    assert payloads(f"{bucket}/again", emulator.options) == list(range(50))


def test_a_reader_makes_a_backup_in_the_bucket_with_the_logs_newest_events(bucket: str, emulator: Emulator) -> None:
    home = Home(f"{bucket}/shop", emulator.options)
    with home.open() as journal, home.open(read_only=True) as reader:
        journal.topic("t").append("k", 1)
        eventually(lambda: reader.topic("t").latest == 1)
        reader.backup(f"{bucket}/wednesday")
    assert payloads(f"{bucket}/wednesday", emulator.options, read_only=True) == [1]


def test_a_checkpoint_without_an_end_keeps_the_tables_of_a_backup(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = database._settings

    def soon(lease: float, local: bool) -> str:
        # The writer looks for the compactor's tables often: what is collected here is not kept for it otherwise.
        return json.dumps(json.loads(made.__wrapped__(lease, True)) | {"manifest_poll_interval": "200ms"})

    monkeypatch.setattr(database, "_settings", soon)
    monkeypatch.setattr(upkeep, "collectable_age", lambda lease: 0.0)
    with Home(f"{bucket}/shop", emulator.options).open() as journal:
        engine: Any = journal._engine
        journal.topic("t").append_many([penstock.Draft("k", "x" * 1000) for _ in range(500)])
        assert not endless_checkpoints(engine)
        journal.backup(f"{bucket}/thursday")
        assert len(endless_checkpoints(engine)) == 1
        before = tables(engine)
        engine.reclaim()
        eventually(lambda: tables(engine) - before)  # the compactor's new run
        collect(engine, 0)
        assert before <= tables(engine)
    assert len(payloads(f"{bucket}/thursday", emulator.options, read_only=True)) == 500


def test_the_tables_of_a_backup_that_was_deleted_are_collected(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = database._settings
    monkeypatch.setattr(database, "_settings", lambda lease, local: soon.__wrapped__(lease, True))
    monkeypatch.setattr(upkeep, "collectable_age", lambda lease: 0.0)
    monkeypatch.setattr(database, "SNAPSHOT_SECONDS", 1)
    with Home(f"{bucket}/shop", emulator.options).open() as journal:
        engine: Any = journal._engine
        for name in ("friday", "saturday"):
            journal.topic("t").append_many([penstock.Draft("k", "x" * 1000) for _ in range(500)])
            journal.backup(f"{bucket}/{name}")
        assert journal.describe().objects["backups"] == 2 == len(endless_checkpoints(engine))
        before = tables(engine)
        for name in ("friday", "saturday"):
            store = open_store(f"{bucket}/{name}", emulator.options)
            assert isinstance(store, CloudStore)
            store.delete([path for path, _ in store.sizes()])
            if name == "friday":
                journal.backup(f"{bucket}/sunday")
                assert len(endless_checkpoints(engine)) == 2
                penstock.open(f"{bucket}/sunday", read_only=True, store_options=emulator.options).close()
                there = open_store(f"{bucket}/sunday", emulator.options)
                assert isinstance(there, CloudStore)
                there.delete([path for path, _ in there.sizes()])
        engine.reclaim()
        assert endless_checkpoints(engine) == [] and "backups" not in journal.describe().objects

        def freed() -> bool:
            # Nothing keeps replaced tables until the writer has looked for its new ones: it may miss some.
            with contextlib.suppress(StorageError):
                journal.topic("more").append("k", 1)  # collection stops before the newest table
                engine.reclaim()
                collect(engine, 0)
            return not before & tables(engine)

        def is_whole() -> bool:
            with contextlib.suppress(StorageError):
                return len(list(journal.topic("t").read())) == 1_000
            return False

        admin = sl.AdminBuilder(engine._location.path, engine._location.store).build()
        for found in call(admin.list_checkpoints(None), 30):  # of cloning itself, for five minutes
            call(admin.delete_checkpoint(found.id), 30)
        eventually(freed)
        eventually(is_whole)
    assert len(payloads(f"{bucket}/shop", emulator.options, read_only=True)) == 1_000


class Killed(BaseException):
    """Ends a backup as a kill would: nothing after it is done."""


@pytest.mark.parametrize("when", ["before the clone", "after the clone"])
def test_a_kill_amid_a_backup_leaves_nothing_for_good(
    bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def kill(*given: object) -> None:
        for one in given:
            if isinstance(one, Coroutine):
                one.close()  # never begun
        raise Killed

    with Home(f"{bucket}/shop", emulator.options).open() as journal:
        engine: Any = journal._engine
        journal.topic("t").append("k", 1)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(upkeep, *(("_complete", kill) if when == "after the clone" else ("call", kill)))
            upkeep.clone(engine._location, upkeep.backup_location(engine._location, f"{bucket}/monday"))
        assert len(endless_checkpoints(engine)) == (when == "after the clone")
        assert journal.describe().objects["backups"] == 1
        engine.reclaim()
        assert journal.describe().objects["backups"] == 1, "it may be about to be made, or is there"

        store = open_store(f"{bucket}/monday", emulator.options)
        assert isinstance(store, CloudStore)
        store.delete([path for path, _ in store.sizes()])
        monkeypatch.setattr(upkeep, "collectable_age", lambda lease: 0.0)
        engine.reclaim()
        assert endless_checkpoints(engine) == [] and "backups" not in journal.describe().objects


def tables(engine: Any) -> set[str]:
    return {path for path, _ in engine._location.objects.sizes() if "compacted/" in path}


def endless_checkpoints(engine: Any) -> list[str]:
    admin = sl.AdminBuilder(engine._location.path, engine._location.store).build()
    return [found.id for found in call(admin.list_checkpoints(None), 30) if found.expire_time_secs is None]


def test_a_backup_refuses_places_that_cannot_hold_it(bucket: str, emulator: Emulator) -> None:
    Home(f"{bucket}/taken", emulator.options).open().close()
    with Home(f"{bucket}/shop", emulator.options).open() as journal:
        journal.topic("t").append("k", 1)
        for destination, says in (
            ("s3://another/place", "same bucket"),
            ("gs://bucket/place", "same bucket"),
            (f"{bucket}/shop/inside", "a path of its own"),
            (f"{bucket}/shop", "a path of its own"),
            (f"{bucket}/taken", "never overwrites"),
            (bucket, "names a bucket and nothing in it"),
        ):
            with pytest.raises(ConfigError, match=says):
                journal.backup(destination)
        assert [event.payload for event in journal.topic("t").read()] == [1]


def test_a_backup_of_a_folder_goes_into_a_folder(folder: Home) -> None:
    with folder.open() as journal, pytest.raises(ConfigError, match="goes into a folder"):
        journal.backup("s3://bucket/place")

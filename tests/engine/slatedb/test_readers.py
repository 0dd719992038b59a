"""Readers on any machine: they follow the writer, keep their snapshots, and survive compaction and collection."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import slatedb.uniffi as sl
from object_homes import Home
from store_proxy import StoreProxy

from buffer.emulator import Emulator
from penstock.api import open_local
from penstock.engines.slatedb import database, reading
from penstock.engines.slatedb.bridge import call
from penstock.engines.slatedb.database import ObjectOptions, flush_tables
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.engines.slatedb.lease import FolderStore
from penstock.engines.slatedb.reading import commits_in
from penstock.errors import ReadOnly, StorageError
from penstock.limits import TABLE_COMMITS
from server.serving import serving
from waiting import DEADLINE, eventually


def test_a_reader_follows_the_writer_and_refuses_to_write(home: Home) -> None:
    writer = home.open()
    writer.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    assert [event.payload for event in reader.topic("t").read()] == [0]
    for number in range(1, 30):
        writer.topic("t").append("k", number)
    eventually(lambda: reader.topic("t").latest == 30)
    assert [event.payload for event in reader.topic("t").read()] == list(range(30))
    assert sum(batch.num_rows for batch in reader.topic("t").read_arrow()) == 30
    with pytest.raises(ReadOnly):
        reader.topic("t").append("k", "no")


def test_a_reader_that_catches_up_sees_what_was_acknowledged_before(home: Home) -> None:
    writer = home.open()
    writer.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    for number in range(1, 21):
        assert reader.topic("t").latest <= number
        writer.topic("t").append("k", number)
        reader._engine.catch_up()
        assert reader.topic("t").latest == number + 1
        if number % 7 == 0:
            writer._engine.reclaim()


def test_opening_ends_beside_a_writer_that_is_faster_than_the_reader(
    folder: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the reader looks at the log, the log has grown: so it is at 50 commits a second and 25 ms a request."""
    writer = folder.open()
    for number in range(20):
        writer.topic("t").append("k", number)
    looks = 0
    exists = FolderStore.exists

    def grow_and_look(store: FolderStore, path: str) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 200, "it would never end"
        writer.topic("t").append("k", 20 + looks)
        return exists(store, path)

    monkeypatch.setattr(FolderStore, "exists", grow_and_look)
    reader = folder.open(read_only=True)
    assert 20 <= reader.topic("t").latest <= 20 + looks
    before = writer.topic("t").latest
    reader._engine.catch_up()
    assert reader.topic("t").latest >= before and looks < 100


def test_a_reader_that_is_far_behind_takes_from_tables_what_is_in_them(folder: Home) -> None:
    """Else a writer that is faster than its reader would leave it more to read at every look."""
    writer = folder.open()
    writer.topic("t").append("k", 0)
    reader = folder.open(read_only=True)
    engine: Any = reader._engine
    known = engine._follower.log_reads
    for number in range(1, 3 * TABLE_COMMITS):
        writer.topic("t").append("k", number)
    flush_tables(writer._engine._database, DEADLINE)
    writer.topic("t").append("k", 3 * TABLE_COMMITS)
    assert [event.payload for event in reader.topic("t").read()] == list(range(3 * TABLE_COMMITS + 1))
    assert engine._follower.log_reads - known < TABLE_COMMITS


def test_a_subscription_on_a_reader_has_no_gap_and_no_duplicate(home: Home) -> None:
    writer = home.open()
    writer.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    seen: list[int] = []

    def follow() -> None:
        for event in reader.topic("t").subscribe(after=0):
            seen.append(event.payload)
            if event.payload == 40:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for number in range(1, 41):
        writer.topic("t").append("k", number)
        if number % 10 == 0:
            writer._engine.reclaim()
    thread.join(DEADLINE)
    assert seen == list(range(41))


def test_readers_see_queues_and_entities_too(folder: Home) -> None:
    writer = folder.open()
    writer.queue("work").push({"job": 1})
    writer.topic("orders").append("placed", {"n": 1}, key="o1")
    reader = folder.open(read_only=True)
    assert reader.queues() == ["work"] and reader.queue("work").stats().ready == 1
    assert [event.payload for event in reader.topic("orders").read(key="o1")] == [{"n": 1}]


def test_a_snapshot_stands_still_while_newer_tables_are_opened_under_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MANIFEST_SECONDS", 0.0)
    monkeypatch.setattr(reading, "FOLLOW_BYTES", 1000)
    writer = home.open()
    options = ObjectOptions(hold=3600, store=home.options)  # without a checkpoint it may be told to read again
    reader = open_local(home.url, read_only=True, options=options)
    home.opened.append(reader)
    engine = writer._engine
    held: list[tuple[Any, int]] = []
    for number in range(6):
        with engine.write() as tx:
            tx.put(b"z%d" % number, b"x" * 400)
            tx.put(b"zcount", b"%d" % number)
            tx.delete(b"z%d" % (number - 3))
        if number % 2:
            engine.reclaim()
        eventually(lambda number=number: _get(reader, b"zcount") == b"%d" % number)
        held.append((reader._engine.read(), number))
    for snapshot, number in held:
        assert snapshot.get(b"zcount") == b"%d" % number
        expected = [b"z%d" % n for n in range(max(0, number - 2), number + 1)] + [b"zcount"]
        assert [key for key, _ in snapshot.scan(b"z", b"{")] == expected
        assert [key for key, _ in snapshot.scan(b"z", b"{", reverse=True)] == expected[::-1]
        snapshot.close()


def test_a_snapshot_whose_tables_have_moved_says_so_and_the_next_one_is_whole(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint SlateDB's reader moves on by itself, once after it was opened; here again and again."""
    monkeypatch.setattr(database, "READER_POLL_MS", 20)
    monkeypatch.setattr(reading.Follower, "_make_checkpoint", lambda self, manifest: (None, manifest))
    monkeypatch.setattr(reading, "MANIFEST_SECONDS", 0.0)
    writer = home.open()
    with writer._engine.write() as tx:
        tx.put(b"z0", b"first")
    reader = home.open(read_only=True)
    eventually(lambda: _get(reader, b"z0") == b"first")
    held = reader._engine.read()
    assert [key for key, _ in held.scan(b"z", b"{")] == [b"z0"]
    with writer._engine.write() as tx:
        tx.put(b"z1", b"second")
    tables = reader._engine._follower._reader
    known = commits_in(tables)
    flush_tables(writer._engine._database, DEADLINE)
    eventually(lambda: commits_in(tables) > known)
    for read in (lambda: held.get(b"z1"), lambda: list(held.scan(b"z", b"{")), lambda: list(held.scan(b"y", b"z"))):
        with pytest.raises(StorageError, match="read again") as caught:
            read()
        assert caught.value.retryable
    held.close()
    eventually(lambda: _get(reader, b"z1") == b"second")
    with reader._engine.read() as now:
        assert [key for key, _ in now.scan(b"z", b"{")] == [b"z0", b"z1"]


def test_the_tables_of_a_folder_are_pinned_by_a_checkpoint_until_the_reader_is_closed(tmp_path: Path) -> None:
    home = Home(f"slatedb:{tmp_path / 'shop'}", {})
    writer = home.open()
    writer.topic("t").append("k", 1)
    admin = sl.AdminBuilder(writer._engine._location.path, writer._engine._location.store).build()
    with home.open(read_only=True):
        [found] = call(admin.list_checkpoints(None), DEADLINE)
        assert found.name is not None and found.name.startswith("penstock reader ") and found.expire_time_secs
    assert call(admin.list_checkpoints(None), DEADLINE) == []


def _get(journal: Any, key: bytes) -> bytes | None:
    with journal._engine.read() as snapshot:
        return snapshot.get(key)  # type: ignore[no-any-return]


def test_a_reader_that_slept_through_a_collection_of_the_log_finds_its_way(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = home.open()
    writer.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    assert reader.topic("t").latest == 1
    for number in range(1, 20):
        writer.topic("t").append("k", number)
    engine = writer._engine
    assert isinstance(engine, SlatedbEngine)
    engine.reclaim()
    _collect_log(engine)
    writer.topic("t").append("k", 20)
    monkeypatch.setattr(reading, "MANIFEST_SECONDS", 0.0)
    eventually(lambda: reader.topic("t").latest == 21)
    assert [event.payload for event in reader.topic("t").read()] == list(range(21))


def _collect_log(engine: SlatedbEngine) -> None:
    """Removes every object of the log that a table covers, however young: what a reader that slept for hours finds."""
    admin = sl.AdminBuilder(engine._location.path, engine._location.store).build()
    age = sl.GarbageCollectorDirectoryOptions(min_age_ms=0, dry_run=False)
    options = sl.GarbageCollectorOptions(
        manifest_options=None, wal_options=age, wal_fence_options=None, compacted_options=None,
        compactions_options=None, detach_options=None,
    )  # fmt: skip
    call(admin.run_gc_once(options), DEADLINE)


def test_a_named_checkpoint_keeps_a_readers_tables_while_it_reads(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MANIFEST_SECONDS", 0.0)
    monkeypatch.setattr(reading, "FOLLOW_BYTES", 1000)
    writer = home.open()
    engine: Any = writer._engine
    for number in range(3):
        writer.topic("t").append("k", {"number": number, "text": "x" * 500})
    engine.reclaim()
    writer.topic("t").append("k", {"number": 3, "text": "only in the log"})
    options = ObjectOptions(hold=3600, store=home.options)
    reader = open_local(home.url, read_only=True, options=options)
    try:
        (first,) = _checkpoints(engine)
        assert str(os.getpid()) in first.name and first.expire_time_secs is not None
        assert [event.payload["number"] for event in reader.topic("t").read()] == [0, 1, 2, 3]
        for number in range(4, 8):  # more than the reader keeps over its tables: it opens newer ones
            writer.topic("t").append("k", {"number": number, "text": "x" * 500})
        engine.reclaim()
        eventually(lambda: reader.topic("t").latest == 8 and [one.id for one in _checkpoints(engine)] != [first.id])
        eventually(lambda: reader.topic("t").latest == 8 and len(_checkpoints(engine)) == 1)
        assert [event.payload["number"] for event in reader.topic("t").read()] == list(range(8))
    finally:
        reader.close()
    assert _checkpoints(engine) == []


def _checkpoints(engine: Any) -> list[Any]:
    """Those of readers: the compactor has some of its own."""
    admin = sl.AdminBuilder(engine._location.path, engine._location.store).build()
    return [one for one in call(admin.list_checkpoints(None), DEADLINE) if (one.name or "").startswith("penstock")]


def test_a_reader_follows_from_one_writer_to_the_next(home: Home) -> None:
    first = home.open()
    first.topic("t").append("k", 0)
    reader = home.open(read_only=True)
    second = home.open(takeover=True)
    second.topic("t").append("k", 1)
    eventually(lambda: reader.topic("t").latest == 2)
    assert [event.payload for event in reader.topic("t").read()] == [0, 1]


def test_a_relaxed_commit_reaches_readers_without_a_further_one(folder: Home) -> None:
    writer = folder.open()
    reader = folder.open(read_only=True)
    with writer._engine.write(sync=False) as tx:
        tx.put(b"zrelaxed", b"1")
    assert _get(writer, b"zrelaxed") == b"1"
    eventually(lambda: _get(reader, b"zrelaxed") == b"1")


def test_the_console_of_a_reader_shows_what_the_writer_has_done(folder: Home) -> None:
    writer = folder.open()
    writer.topic("orders").append("placed", {"n": 1}, key="o1")
    writer.queue("work").push({"job": 1})
    with serving(folder.open(read_only=True)) as console:
        for page in ("/", "/topics/orders", "/queues/work", "/metrics"):
            with urllib.request.urlopen(f"{console.url}{page}", timeout=60) as answer:
                assert answer.status == 200 and (page == "/metrics" or b"<html" in answer.read()), page


def test_what_a_commit_brings_costs_a_reader_few_requests(behind: Home, proxy: StoreProxy, emulator: Emulator) -> None:
    """Of each object of the log: is it there, twice, its bytes, and whether another one follows, once in vain."""
    writer = Home(behind.url, emulator.options)
    journal, reader = writer.open(), behind.open(read_only=True)
    engine: Any = reader._engine
    eventually(lambda: reader.topic("t").latest == 0)
    heads, checks = proxy.counts["HEAD"], engine._follower.log_checks
    for number in range(1, 6):
        journal.topic("t").append("k", number)
        eventually(lambda: reader.topic("t").latest == number)  # noqa: B023
    made = proxy.counts["HEAD"] - heads - (engine._follower.log_checks - checks)
    assert made <= 2 * engine._follower.log_reads
    writer.close()


def test_an_idle_reader_asks_the_store_less_than_twice_a_second(behind: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in pauses, not in seconds: after a while without news each is as long as it may become."""
    now = time.monotonic()
    writer = behind.open()
    engine: Any = behind.open(read_only=True)._engine
    writer.close()
    reader = engine._follower

    class Clock:
        monotonic = staticmethod(lambda: now)

    monkeypatch.setattr(reading, "time", Clock)
    before = 0
    for tick in range(120 * 100):
        if tick == 20 * 100:  # twenty seconds to come to rest, and a hundred to count in
            before = reader.log_checks
        now += 0.01
        reader.refresh()
    assert 130 < reader.log_checks - before < 200

"""One writer, never two: who is refused, who waits, who takes over, and what the old one learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import slatedb.uniffi as sl
from object_homes import Home, collect

import penstock
from penstock.engines.slatedb import engine as engine_module
from penstock.engines.slatedb import lease as lease_module
from penstock.engines.slatedb.bridge import call
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.errors import ConfigError, Corrupt, Fenced, Locked, OutcomeUnknown
from penstock.limits import TABLE_COMMITS
from waiting import DEADLINE, eventually

WRITER = """
import json, sys
import penstock
store = json.loads(sys.argv[3]) or None
journal = penstock.open(sys.argv[1], lease=float(sys.argv[2]), timeout=20, store_options=store)
topic = journal.topic("t")
print("open", flush=True)
for line in sys.stdin:
    try:
        print(topic.append("k", line.strip()).seq, flush=True)
    except penstock.errors.PenstockError as error:
        print(type(error).__name__, flush=True)
"""


class Elsewhere:
    """A writer in another process, told line by line what to append."""

    def __init__(self, home: Home, lease: float = 2.0) -> None:
        import json

        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, home.url, str(lease), json.dumps(home.options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self.answer() == "open"

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def append(self, word: str) -> str:
        self.tell(word)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def words(journal: Any) -> list[Any]:
    return [event.payload for event in journal.topic("t").read()]


def test_a_second_writer_is_told_who_the_first_is(home: Home) -> None:
    home.open().topic("t").append("k", "first")
    with pytest.raises(Locked, match=rf"process {os.getpid()} on .* since 20\d\d-\d\d-\d\d .* takeover=True"):
        home.open()


def test_a_closed_journal_is_opened_again_at_once(home: Home) -> None:
    for number in range(3):
        journal = home.open()
        assert journal.topic("t").append("k", number).seq == number + 1
        journal.close()


def test_a_takeover_ends_the_first_writer_and_loses_nothing(home: Home) -> None:
    first = home.open()
    for number in range(5):
        first.topic("t").append("k", number)
    second = home.open(takeover=True)

    with pytest.raises((Fenced, OutcomeUnknown), match="standby=True"):  # as soon or late as it finds out
        first.topic("t").append("k", "too late")
    with pytest.raises(Fenced, match="standby=True"):
        first.topic("t").append("k", "still too late")
    assert second.topic("t").append("k", 5).seq == 6
    assert words(second) == [0, 1, 2, 3, 4, 5]
    first.close()
    assert second.topic("t").append("k", 6).seq == 7, "closing the old one does not end the new one"


def test_a_standby_goes_on_where_the_first_writer_closed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RETRIES", 600)  # it looks every tenth of a second
    waits = threading.Event()
    monkeypatch.setattr(engine_module, "warm_up", lambda *given: waits.set())
    first = home.open(lease=60)
    first.topic("t").append("k", "a")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(home.open(standby=True)), daemon=True)
    waiting.start()
    assert waits.wait(DEADLINE)
    assert first.topic("t").append("k", "b").seq == 2 and not found
    first.close()
    waiting.join(DEADLINE)
    assert words(found[0]) == ["a", "b"] and found[0].topic("t").append("k", "c").seq == 3


def test_a_standby_takes_over_from_a_killed_writer(home: Home) -> None:
    writer = Elsewhere(home)
    try:
        assert [writer.append(word) for word in "abc"] == ["1", "2", "3"]
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(home.open(standby=True)), daemon=True)
        waiting.start()
        writer.process.kill()
        waiting.join(DEADLINE)
    finally:
        writer.end()
    assert words(found[0]) == ["a", "b", "c"] and found[0].topic("t").append("k", "d").seq == 4


def test_takeover_and_standby_are_two_wishes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of them"):
        penstock.open(f"slatedb:{tmp_path / 'x'}", takeover=True, standby=True)
    with pytest.raises(ConfigError, match="object store"):
        penstock.open(tmp_path / "x.db", standby=True)
    with pytest.raises(ConfigError, match="lease must be"):
        penstock.open(f"slatedb:{tmp_path / 'x'}", lease=0)


@pytest.mark.parametrize("age_ms", [None, 0], ids=["our ages", "everything collectable"])
def test_a_stopped_writer_woken_after_takeover_and_collection_acknowledges_nothing(
    home: Home, age_ms: int | None
) -> None:
    writer = Elsewhere(home, lease=1.0)
    try:
        assert [writer.append(word) for word in "ab"] == ["1", "2"]
        os.kill(writer.process.pid, signal.SIGSTOP)
        os.waitpid(writer.process.pid, os.WUNTRACED)
        second = home.open(lease=1.0)  # waits for the lease: a stopped process is not found alive
        for number in range(20):
            second.topic("t").append("k", number)
        second._engine.reclaim()
        collect(second._engine, age_ms)
        os.kill(writer.process.pid, signal.SIGCONT)

        assert writer.append("too late") in ("Fenced", "OutcomeUnknown")
        assert writer.append("again") == "Fenced"
        assert words(second) == ["a", "b", *range(20)]
        assert second.topic("t").append("k", "last").seq == 23
        second.close()
    finally:
        writer.end()
    assert words(home.open()) == ["a", "b", *range(20), "last"]


def test_collection_removes_nothing_young(home: Home) -> None:
    journal = home.open()
    for number in range(10):
        journal.topic("t").append("k", number)
    engine = journal._engine
    assert isinstance(engine, SlatedbEngine)
    before = {path for path, _ in engine._location.objects.sizes() if path.startswith(("wal/", "compacted/"))}
    engine.reclaim()
    collect(engine)
    after = {path for path, _ in engine._location.objects.sizes()}
    assert before <= after


def test_writers_that_end_before_their_first_table_leave_no_ever_longer_log(home: Home) -> None:
    """Opening replays the log since the last table: a loop of crashes must not make it longer each time."""

    def length() -> int:
        place = home.opened[0]._engine._location
        admin = sl.AdminBuilder(place.path, place.store).build()
        manifest = call(admin.read_manifest(None), 30)
        assert manifest is not None
        newest = max(int(path[4:-4]) for path, _ in place.objects.sizes() if path.startswith("wal/"))
        return newest - manifest.replay_after_wal_id

    for number in range(9):
        journal = home.open(takeover=number > 0)  # the one before is not closed: it was killed
        for _ in range(8):
            journal.topic("t").append("k", number)
    assert TABLE_COMMITS < 9 * 8
    eventually(lambda: length() < TABLE_COMMITS)
    assert len(list(journal.topic("t").read())) == 72


def test_of_two_standbys_one_takes_over_and_the_other_waits_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RETRIES", 300)  # the other one looks every tenth of a second
    writer = Elsewhere(home)
    opened: list[Any] = []
    try:
        assert writer.append("a") == "1"
        waiting = [
            threading.Thread(target=lambda: opened.append(home.open(standby=True, lease=30)), daemon=True)
            for _ in range(2)
        ]
        for thread in waiting:
            thread.start()
    finally:
        writer.end()
    eventually(lambda: opened)
    first = opened[0]
    assert first.topic("t").append("k", "b").seq == 2
    assert len(opened) == 1 and any(thread.is_alive() for thread in waiting)
    first.close()
    for thread in waiting:
        thread.join(DEADLINE)
    second = opened[1]
    assert second.topic("t").append("k", "c").seq == 3 and words(second) == ["a", "b", "c"]


def test_a_log_that_moved_while_it_was_opened_is_opened_again(folder: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.open().topic("t").append("k", "a")
    opened, failures = engine_module.open_database, [sl.Error.Data("wal truncated at wal file `3`")]

    def open_database(*given: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*given, **options)

    monkeypatch.setattr(engine_module, "open_database", open_database)
    assert words(folder.open(takeover=True)) == ["a"] and not failures


def test_a_log_that_lacks_an_object_is_said_to_be_damaged(folder: Home, tmp_path: Path) -> None:
    journal = folder.open()
    for number in range(5):
        journal.topic("t").append("k", number)
    sorted((tmp_path / "shop" / "wal").glob("*.sst"))[-3].unlink()
    with pytest.raises(Corrupt, match="lacks a part of its log"):
        folder.open(takeover=True)

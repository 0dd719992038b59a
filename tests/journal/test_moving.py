"""A journal moves between engines: everything comes along, live, resumable, compared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft
from penstock.core.engine.url import open_engine
from penstock.core.journal import keys, moving
from penstock.errors import ConfigError, StorageError

SCHEMES = ["sqlite", "rocksdb", "file", "slatedb"]


def fill(journal: Any) -> None:
    for number in range(50):
        journal.topic("orders").append("placed", {"n": number}, key=f"o{number % 7}", dedup=f"d{number}")
    journal.topic("orders").commit("billing", 20)
    journal.queue("mail").push_many([{"to": number} for number in range(10)])
    delivery = journal.queue("mail").take()
    assert delivery is not None
    delivery.ack()
    with journal.transaction() as tx:
        tx.set_mark("m", 7)


def seen(journal: Any) -> Any:
    return (
        [event.as_dict() for event in journal.topic("orders").read()],
        journal.topic("orders").cursors(),
        journal.mark("m"),
        journal.queues(),
        journal.queue("mail").stats(),
        [event.seq for event in journal.topic("orders").read(key="o3")],
    )


@pytest.mark.parametrize("target", SCHEMES)
@pytest.mark.parametrize("source", ["sqlite", "slatedb"])
def test_a_copy_holds_everything_and_goes_on(tmp_path: Path, source: str, target: str) -> None:
    old, new = f"{source}:{tmp_path / 'old'}", f"{target}:{tmp_path / 'new'}"
    clock = penstock.ManualClock()
    with penstock.open(old, clock=clock) as journal:
        fill(journal)
        before = seen(journal)
    told: list[tuple[int, int]] = []
    report = penstock.copy(old, new, progress=lambda done, total: told.append((done, total)))

    assert report.rows > 50 and report.written == report.rows and told[-1][0] == told[-1][1]
    with penstock.open(new, clock=clock) as copy:
        assert seen(copy) == before
        assert copy.topic("orders").append("placed", {"n": 1}, dedup="d1").duplicate
        assert copy.topic("orders").append("placed", {"n": 50}).seq == 51
        assert copy.queue("mail").take() is not None


def test_there_and_back_again_is_the_same_journal(tmp_path: Path) -> None:
    clock = penstock.ManualClock()
    with penstock.open(tmp_path / "a.db", clock=clock) as journal:
        fill(journal)
        before = seen(journal)
        journal.copy_to(f"slatedb:{tmp_path / 'b'}")
    penstock.copy(f"slatedb:{tmp_path / 'b'}", tmp_path / "c.db")
    with penstock.open(tmp_path / "c.db", clock=clock) as back:
        assert seen(back) == before


def test_a_journal_is_copied_while_it_is_in_use(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "a.db") as journal:
        fill(journal)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                journal.topic("orders").append("more", 1)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            journal.copy_to(f"slatedb:{tmp_path / 'b'}")
        finally:
            stop.set()
            thread.join(60)
        latest = journal.topic("orders").latest
    with penstock.open(f"slatedb:{tmp_path / 'b'}") as copy:
        seqs = [event.seq for event in copy.topic("orders").read()]
        assert seqs == list(range(1, len(seqs) + 1)) and 50 <= len(seqs) <= latest


def test_an_interrupted_copy_does_not_open_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BATCH_BYTES", 500)
    real, left = moving._write, [5]

    def failing(*args: Any) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise StorageError("the disk is full")
        return real(*args)

    clock = penstock.ManualClock()
    with penstock.open(tmp_path / "a.db", clock=clock) as journal:
        fill(journal)
        before = seen(journal)
        monkeypatch.setattr(moving, "_write", failing)
        with pytest.raises(StorageError):
            journal.copy_to(f"file:{tmp_path / 'b'}")
        monkeypatch.setattr(moving, "_write", real)
        with pytest.raises(ConfigError, match="unfinished copy"):
            penstock.open(f"file:{tmp_path / 'b'}")
        report = journal.copy_to(f"file:{tmp_path / 'b'}")
        assert 0 < report.written < report.rows
    with penstock.open(f"file:{tmp_path / 'b'}", clock=clock) as copy:
        assert seen(copy) == before


def test_a_place_that_holds_something_is_refused(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "a.db") as journal, penstock.open(tmp_path / "b.db") as other:
        fill(journal)
        with pytest.raises(ConfigError, match="holds a journal already"):
            journal.copy_to(tmp_path / "b.db")
        other.topic("t").append("k")
        with other._engine.write() as tx:
            tx.put(keys.COPYING, b"another")
        with pytest.raises(ConfigError, match="another journal"):
            journal.copy_to(tmp_path / "b.db")


def payloads(url: str) -> list[Any]:
    with penstock.open(url, read_only=True) as journal:
        return [event.payload for event in journal.topic("t").read()]


def before_step(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], None], call: int) -> None:
    """Has something happen, once, before the n-th call of one of the copy's steps."""
    real, calls = getattr(moving, name), [0]

    def step(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            work()
        return real(*args)

    monkeypatch.setattr(moving, name, step)


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("_write_differences", 1),
        ("_write", 1),
        ("_write", 3),
        ("_compare", 1),
        ("_write_differences", 2),
        ("_compare", 2),
    ],
)
def test_a_copy_that_another_one_has_finished_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    url = f"sqlite:{tmp_path / 'b'}"
    monkeypatch.setattr(moving, "BATCH_BYTES", 1)
    with penstock.open(tmp_path / "a.db") as source:
        source.topic("t").append_many([Draft("k", number) for number in range(3)])

        def finish() -> None:
            source.copy_to(url)
            with penstock.open(url) as copy:
                copy.topic("t").append("k", "of the copy")

        before_step(monkeypatch, step, finish, call)
        with pytest.raises(ConfigError, match="finished by another copy"):
            source.copy_to(url)
    assert payloads(url) == [0, 1, 2, "of the copy"]


def test_a_place_where_a_journal_is_made_while_a_copy_begins_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path / 'b'}"

    target = open_engine(url)
    real = target.write

    def write(*, sync: bool = True) -> Any:
        monkeypatch.undo()
        with penstock.open(url) as journal:
            journal.topic("t").append("k", "its own")
        return real(sync=sync)

    monkeypatch.setattr(target, "write", write)
    with penstock.open(tmp_path / "a.db") as opened:
        source: Any = opened
        source.topic("t").append("k", 1)
        with pytest.raises(ConfigError, match="holds a journal already"):
            moving.copy_store(source._engine, source.id, target)
    target.close()
    assert payloads(url) == ["its own"]

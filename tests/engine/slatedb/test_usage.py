"""What a journal in object storage says of its use of the store: requests, bytes and objects by cause."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from object_homes import Home

from buffer.emulator import Emulator
from penstock.core.journal import writer as writer_module
from penstock.core.sampling.collect import gauges
from waiting import eventually


def test_requests_and_bytes_are_counted_by_cause(emulator: Emulator) -> None:
    home = Home(f"{emulator.bucket()}/shop", emulator.options)
    with home.open() as journal:
        assert journal.describe().location == home.url
        before = journal.describe().requests["log"]
        for _ in range(5):
            journal.topic("t").append("k", "x" * 1000)
        after = journal.describe()
        assert 5 <= after.requests["log"]["put"] - before["put"] <= 7  # a relaxed commit may have had one of its own
        assert after.requests["log"]["bytes"] - before["bytes"] > 0
        assert after.requests["lease"]["put"] >= 1 and after.requests["database"]["put"] >= 1
        assert after.objects["log"] >= 5 and after.objects["lease"] >= 1 and after.objects["manifests"] >= 1
        text = gauges(journal.stats()).prometheus_text()
        assert 'penstock_store_requests{cause="log",kind="put"}' in text
        assert 'penstock_store_bytes{cause="log"}' in text
        assert "penstock_store_unstored_seconds 0" in text
    with home.open(read_only=True) as reader:
        assert reader.describe().requests["following"]["head"] >= 1


def test_a_commit_nobody_waited_for_is_unstored_until_the_next_one(folder: Home) -> None:
    with folder.open() as journal:
        engine: Any = journal._engine
        assert engine.unstored_seconds() == 0
        with engine.write(sync=False) as tx:
            tx.put(b"relaxed", b"1")
        with engine.write(sync=False) as tx:
            tx.put(b"relaxed", b"2")
        # Not later than a second after it, SlateDB has put it into the log by itself: what is told is one or the other.
        told = engine.unstored_seconds()
        assert told > 0 or engine._database.status().durable_seq >= engine._newest
        with engine.write() as tx:
            tx.put(b"waited for", b"3")
        assert engine.unstored_seconds() == 0


def test_a_commit_lingers_for_further_callers_and_by_default_for_nobody(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, in_threads: Callable[..., threading.Thread]
) -> None:
    """The wait is the writer's own, so the test decides when it is over: when everybody has come."""
    home = Home(f"{emulator.bucket()}/shop", emulator.options)
    callers, waits = 8, []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        eventually(lambda: len(core.writer._pending) == callers)

    monkeypatch.setattr(writer_module, "time", SimpleNamespace(sleep=sleep))
    with home.open(linger=0.25) as journal:
        core = journal._core
        callers = 1
        journal.topic("t").append("k", 0)
        callers, waits[:] = 8, []
        before = journal.describe().requests["log"]["put"]
        threads = [in_threads(journal.topic("t").append, "k", number) for number in range(callers)]
        for thread in threads:
            thread.join(60)
        assert waits == [0.25] and journal.describe().requests["log"]["put"] - before == 1
        assert journal.topic("t").latest == 9
        callers = 1  # what closing writes
    waits.clear()
    with home.open() as journal:
        journal.topic("t").append("k", 9)
    assert waits == []


def test_process_durability_is_said_to_be_disk(folder: Home) -> None:
    """What is not in the object store is in this process's memory: there is nothing in between."""
    with folder.open(durability="process") as journal:
        assert journal.describe().durability == "disk"
        journal.topic("t").append("k", 1)
        engine: Any = journal._engine
        assert engine._database.status().durable_seq >= engine._newest and engine.unstored_seconds() == 0

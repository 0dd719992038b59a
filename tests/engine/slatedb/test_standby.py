"""What a standby has done before its time comes, so that less is left to do then."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from object_homes import Home
from store_proxy import StoreProxy

from penstock import Draft
from penstock.engines.slatedb import engine as engine_module
from penstock.engines.slatedb import lease as lease_module
from penstock.engines.slatedb.database import flush_tables
from penstock.engines.slatedb.reading import _warm_up
from waiting import DEADLINE

TERM = 1.0


def test_a_standby_that_takes_over_fetches_no_table(
    behind: Home, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the put of its lease to its first acknowledged append: only the log, manifests, and what is written."""
    monkeypatch.setattr(lease_module, "_system", lambda: "")  # as on another machine: only the store tells
    warmed = threading.Event()

    def warm_up(*given: Any) -> None:
        _warm_up(*given)
        warmed.set()

    monkeypatch.setattr(engine_module, "warm_up", warm_up)
    first = behind.open(lease=TERM)
    for _ in range(5):
        first.topic("t").append_many([Draft("k", {"n": n, "pad": "x" * 100}) for n in range(2_000)])
    make_table(first)
    for number in range(20):
        first.topic("t").append("k", number)

    asked: list[str] = []

    def note(method: str, path: str) -> bool:
        asked.append(f"{method} {path}")
        return False

    def open_database(*given: Any, **options: Any) -> Any:
        asked.clear()  # the lease is taken
        return opened(*given, **options)

    opened = engine_module.open_database
    monkeypatch.setattr(engine_module, "open_database", open_database)
    proxy.silence = note
    second = behind.open(takeover=True, lease=TERM)
    second.topic("t").append("k", "cold")
    assert tables(asked), "without a wait there is something to fetch"
    make_table(second)

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(behind.open(standby=True, lease=TERM)), daemon=True)
    waiting.start()
    assert warmed.wait(DEADLINE)
    lease = second._engine._lease  # type: ignore[attr-defined]
    lease._ending.set()  # it renews no more, as if it were killed
    waiting.join(DEADLINE)
    assert found[0].topic("t").append("k", "warm").seq == 10_022
    assert tables(asked) == []


def tables(asked: list[str]) -> list[str]:
    return [line for line in asked if line.startswith("GET") and "/compacted/" in line]


def make_table(journal: Any) -> None:
    flush_tables(journal._engine._database, DEADLINE)

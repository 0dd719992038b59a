"""States over http, folded where the projection is: of one topic and one moment, whatever happens on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import penstock
from penstock import Draft, Projection, on
from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError, TopicDropped
from penstock.local.journal import LocalJournal
from penstock.server.api import reading
from server.serving import Served


class Kinds(Projection):
    """Which kinds of events an entity had."""

    seen: list[str] = []

    @on("placed", "made anew")
    def add(self, event: Any) -> None:
        self.seen.append(event.kind)


OLD, NEW = Kinds(["placed"] * 3), Kinds(["made anew"] * 5)


def fill(journal: penstock.Journal) -> None:
    journal.topic("orders").append_many([Draft("placed", key="a") for _ in range(3)])


def make_anew(journal: penstock.Journal) -> None:
    """All its events are in one commit: no reader ever sees three of them."""
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([Draft("made anew", key="a") for _ in range(5)])


def before_look(
    journal: penstock.Journal, patch: pytest.MonkeyPatch, look: int, act: Callable[[], object]
) -> Callable[[], bool]:
    """Does something just before the n-th time the server looks at the journal; returns whether it was done."""
    assert isinstance(journal, LocalJournal)
    test, read, left = threading.get_ident(), journal._core.engine.read, [look]

    def looking() -> AbstractContextManager[Snapshot]:
        housekeeping = threading.current_thread().name.startswith("penstock-")
        if threading.get_ident() != test and not housekeeping and left[0] > 0:
            left[0] -= 1
            if left[0] == 0:
                act()
        return read()

    patch.setattr(journal._core.engine, "read", looking)
    return lambda: left[0] == 0


@pytest.mark.parametrize("key", ["a", None])
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_state_is_of_one_topic(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, key: str | None, piece: int
) -> None:
    """Whenever the topic is made anew: every look of the server is tried."""
    monkeypatch.setattr(reading, "STREAM_EVENTS", piece)
    found: list[Any] = []
    done, look = True, 0
    while done:
        look += 1
        fill(journal)
        with monkeypatch.context() as patch, penstock.open(served.url) as remote:
            topic = remote.topic("orders")
            acted = before_look(journal, patch, look, lambda: make_anew(journal))
            try:
                found.append(topic.project_if_changed(Kinds, key, 0))
            except TopicDropped:
                found.append(None)
            done = acted()
        journal.drop_topic("orders")
    assert look > 4 and (5, NEW) in found and found[-1] == (3, OLD)
    assert all(one in (None, (3, OLD), (5, NEW)) for one in found), found


def test_a_state_of_an_entity_that_is_gone_is_none(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    with penstock.open(served.url) as remote:
        topic = remote.topic("orders")
        read = topic.read

        def compacted_before(*given: Any, **chosen: Any) -> Any:
            if not chosen.get("reverse"):
                journal.topic("orders").compact(3)
            return read(*given, **chosen)

        monkeypatch.setattr(topic, "read", compacted_before)
        assert topic.project_if_changed(Kinds, "a", 2) == (0, None)
        assert topic.project(Kinds, "a") is None


def test_what_is_told_over_http_is_what_is_told_beside_the_store(served: Served, journal: penstock.Journal) -> None:
    with penstock.open(served.url) as remote:
        here, there = journal.topic("orders"), remote.topic("orders")

        def both(key: str | None, generation: int) -> Any:
            found = here.project_if_changed(Kinds, key, generation)
            assert there.project_if_changed(Kinds, key, generation) == found
            assert there.project(Kinds, key) == here.project(Kinds, key)
            return found

        assert both("a", 0) is both(None, 0) is None and both("a", 3) == (0, None)
        fill(journal)
        assert both("a", 0) == both(None, 1) == (3, OLD)
        assert both("a", 3) is both(None, 3) is both("b", 0) is None
        here.append("unknown", key="b")
        assert both("b", 0) == (4, Kinds()) and both(None, 3) == (4, OLD)
        make_anew(journal)
        assert both("a", 9) == both(None, 9) == (5, NEW), "another generation, although not a newer one"
        here.compact(5)
        assert both("a", 5) == (0, None) and both(None, 5) is None
        with pytest.raises(ConfigError, match="generation"):
            there.project_if_changed(Kinds, "a", -1)
        with pytest.raises(ConfigError, match="Projection"):
            there.project_if_changed(dict, "a", 0)  # type: ignore[type-var]

"""States over http, folded where the projection is: of one topic and one moment, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Draft, Projection, on
from penstock.core.model.query import EventQuery
from penstock.errors import ConfigError
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


def test_a_state_of_an_entity_that_is_gone_is_none(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal)
    with penstock.open(served.url) as remote:
        topic = remote.topic("orders")
        read = topic._at.read

        def compacted_before(query: EventQuery) -> Iterator[penstock.Event]:
            if not query.reverse:
                journal.topic("orders").compact(3)
            return read(query)

        monkeypatch.setattr(topic._at, "read", compacted_before)
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
        assert both("a", 4) == both(None, 4) == (9, NEW)
        here.compact(9)
        assert both("a", 9) == (0, None) and both(None, 9) is None
        with pytest.raises(ConfigError, match="position"):
            there.project_if_changed(Kinds, "a", -1)
        with pytest.raises(ConfigError, match="Projection"):
            there.project_if_changed(dict, "a", 0)  # type: ignore[type-var]

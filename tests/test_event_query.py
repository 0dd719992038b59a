"""Which events are wanted, as a value that a program makes."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from penstock import EventQuery, Journal
from penstock.errors import ConfigError


@pytest.fixture
def journal() -> Any:
    with penstock.open("memory:") as opened:
        topic = opened.topic("orders")
        for number in range(4):
            topic.append("paid" if number % 2 else "placed", {"n": number}, key=f"o{number}", scope="eu")
        yield opened


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (EventQuery(), [1, 2, 3, 4]),
        (EventQuery(kinds={"paid"}), [2, 4]),
        (EventQuery(kinds="paid"), [2, 4]),
        (EventQuery(kinds=["paid", "placed"], key="o2"), [3]),
        (EventQuery(key_prefix="o", where="payload.n > 2"), [4]),
        (EventQuery(scope="us"), []),
        (EventQuery(kinds=()), []),
    ],
)
def test_an_event_matches_when_all_that_is_given_holds(journal: Journal, query: EventQuery, wanted: list[int]) -> None:
    assert [event.seq for event in journal.topic("orders").read() if query.matches(event)] == wanted


def test_a_condition_says_what_an_index_can_look_up() -> None:
    query = EventQuery(where="key == 'o1' and kind in ('paid', 'placed') and payload.n > 1")
    assert (query.key, query.kinds, query.key_prefix) == ("o1", frozenset({"paid", "placed"}), None)
    assert EventQuery(where="key startswith 'o'", kinds="paid").key_prefix == "o"
    assert EventQuery(where="kind == 'paid'", kinds={"placed"}).kinds == frozenset({"placed"})


def test_queries_are_values() -> None:
    first = EventQuery(kinds={"paid"}, where="payload.n > 1", since=datetime(2026, 1, 1, tzinfo=UTC))
    assert first == EventQuery(kinds=("paid",), where="payload.n > 1", since=datetime(2026, 1, 1, tzinfo=UTC))
    assert replace(first, limit=3).kinds == frozenset({"paid"})
    assert EventQuery(through=None) == EventQuery()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key": "a", "key_prefix": "b"}, "not both"),
        ({"kinds": 7}, "text or several texts"),
        ({"kinds": [7]}, "text or several texts"),
        ({"scope": b"x"}, "scope must be text"),
        ({"after": -1}, "after must be a position"),
        ({"through": "end"}, "through must be a position"),
        ({"limit": -1}, "limit must be"),
        ({"where": "payload. >"}, "payload"),
        ({"where": 7}, "a condition is text"),
        ({"since": datetime(2026, 1, 1)}, "since"),
    ],
)
def test_a_query_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EventQuery(**given)


def test_help_shows_the_fields() -> None:
    assert {"key", "key_prefix", "kinds", "scope", "where", "since"} <= inspect.signature(EventQuery).parameters.keys()

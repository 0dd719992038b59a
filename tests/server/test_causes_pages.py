"""Pages of effects, ancestors and correlations: everything comes once, whatever was removed between two pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft, Event
from penstock.core.journal import reading
from penstock.core.journal.blocks import Block
from penstock.core.journal.index import index
from penstock.core.protocol.operation import PAGE_EVENTS
from penstock.errors import PositionTrimmed
from server.serving import Served


@pytest.fixture
def remote(served: Served) -> Iterator[penstock.Journal]:
    with penstock.open(served.url) as opened:
        yield opened


def fan(journal: penstock.Journal, count: int, *topics: str) -> str:
    """An event with effects in several topics, in turn; returns its id."""
    first = journal.topic("causes").append("first", correlation="all")
    for start in range(0, count, 10):
        name = topics[start // 10 % len(topics)]
        drafts = [Draft("effect", number, cause=first.id, correlation="all") for number in range(start, start + 10)]
        journal.topic(name).append_many(drafts)
    return first.id


def chain(journal: penstock.Journal, *topics: str) -> str:
    """Ten links of a chain of causes in each topic; returns the id of its end."""
    receipt: penstock.Receipt | None = None
    for number in range(10 * len(topics)):
        receipt = journal.topic(topics[number // 10]).append("link", number, cause=receipt)
    assert receipt is not None
    return receipt.id


def page(served: Served, walk: str, id: str, limit: int, after: str | None = None) -> tuple[list[Any], str | None]:
    answer = served.get(f"/v1/{walk}/{id}", limit=limit, **({} if after is None else {"after": after}))
    assert answer.status == 200, answer.json
    events = answer.json["events"]
    assert len(events) <= limit
    return events, answer.json.get("next")


def rest(served: Served, walk: str, id: str, limit: int, after: str | None) -> list[Any]:
    found: list[Any] = []
    while after is not None:
        more, after = page(served, walk, id, limit, after)
        found += more
    return found


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_pages_of_any_size_hold_everything_once_and_in_order(
    served: Served, journal: penstock.Journal, limit: int, indexed: bool
) -> None:
    first, last = fan(journal, 60, "a", "b.c", "d"), chain(journal, "x", "y")
    if indexed:
        journal.maintain()
    topic = journal.topic("causes")
    for walk, id, count, events in (
        ("effects", first, 60, topic.effects(first)),
        ("correlated", "all", 61, topic.correlated("all")),
        ("ancestors", last, 20, topic.ancestors(last)),
    ):
        some, after = page(served, walk, id, limit)
        found = [event["id"] for event in some + rest(served, walk, id, limit, after)]
        expected = [event.id for event in events]
        if walk == "correlated":  # those of one millisecond are in no order across topics
            found, expected = sorted(found), sorted(expected)
        assert found == expected and len(found) == count


@pytest.mark.parametrize("walk", ["effects", "correlated"])
def test_the_rest_comes_when_what_was_read_is_compacted_before_the_next_page(
    served: Served, journal: penstock.Journal, walk: str
) -> None:
    first = fan(journal, 60, "a", "b")
    id = "all" if walk == "correlated" else first
    read, after = page(served, walk, id, 25)
    for name in {event["topic"] for event in read}:
        journal.topic(name).compact(max(event["seq"] for event in read if event["topic"] == name))
    found = [event["id"] for event in read + rest(served, walk, id, 25, after)]
    assert len(found) == len(set(found)) == (61 if walk == "correlated" else 60)


def test_the_rest_of_a_chain_comes_when_what_was_read_is_compacted_before_the_next_page(
    served: Served, journal: penstock.Journal
) -> None:
    last = chain(journal, "early", "late")
    read, after = page(served, "ancestors", last, 10)
    assert journal.topic("late").compact(10).removed == 10
    found = [event["payload"] for event in read + rest(served, "ancestors", last, 10, after)]
    assert found == list(range(19, -1, -1))


@pytest.mark.parametrize("walk", ["effects", "correlated"])
@pytest.mark.parametrize("topic", ["a", "b"])
def test_a_walk_of_which_something_was_removed_unread_says_so(
    served: Served, journal: penstock.Journal, walk: str, topic: str
) -> None:
    """Whether it was the very next event or the next of another topic."""
    first = fan(journal, 60, "a", "b")
    id = "all" if walk == "correlated" else first
    _, after = page(served, walk, id, 5)
    journal.topic(topic).compact(20)
    answer = served.get(f"/v1/{walk}/{id}", limit=5, after=after)
    assert (answer.status, answer.json["error"]) == (410, "PositionTrimmed")
    assert "from the beginning" in answer.json["detail"]
    some, after = page(served, walk, id, 5)
    assert len(some + rest(served, walk, id, 5, after)) == (41 if walk == "correlated" else 40)


def test_a_chain_whose_next_link_was_removed_says_so(served: Served, journal: penstock.Journal) -> None:
    last = chain(journal, "early", "late")
    _, after = page(served, "ancestors", last, 10)
    journal.topic("early").compact(10)
    answer = served.get(f"/v1/ancestors/{last}", limit=10, after=after)
    assert (answer.status, answer.json["error"]) == (410, "PositionTrimmed")


@pytest.mark.parametrize("walk", ["effects", "correlated", "ancestors"])
@pytest.mark.parametrize("after", ["7", "x.y.z", "%s", "%s.=.", "%s.ab.t"])
def test_another_text_than_the_end_of_a_page_is_refused(served: Served, walk: str, after: str) -> None:
    after = after.replace("%s", "0190163d-8694-739b-aea5-966c26f8ad91")
    answer = served.get(f"/v1/{walk}/nobody", after=after)
    assert (answer.status, answer.json["error"]) == (400, "ConfigError") and "`next`" in answer.json["detail"]


def test_a_handle_says_that_something_was_removed_while_it_walked(
    journal: penstock.Journal, remote: penstock.Journal
) -> None:
    first = journal.topic("causes").append("first")
    journal.topic("a").append_many([Draft("effect", number, cause=first) for number in range(PAGE_EVENTS + 10)])
    walk = remote.topic("a").effects(first)
    assert next(walk).seq == 1
    journal.topic("a").compact(PAGE_EVENTS)
    assert [event.seq for event in walk] == list(range(2, PAGE_EVENTS + 11))
    walk = remote.topic("a").effects(first)
    assert next(walk).seq == PAGE_EVENTS + 1 and len(list(walk)) == 9
    journal.topic("a").append_many([Draft("effect", number, cause=first) for number in range(2 * PAGE_EVENTS)])
    walk = remote.topic("a").effects(first)
    assert next(walk).seq == PAGE_EVENTS + 1
    journal.topic("a").compact(2 * PAGE_EVENTS + 1)
    with pytest.raises(PositionTrimmed, match="from the beginning"):
        list(walk)


def test_a_loop_of_causes_is_walked_once(
    journal: penstock.Journal, remote: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    """Into a loop of eight, from an event outside of it."""
    with penstock.open("memory:") as other:
        receipt: penstock.Receipt | None = None
        for number in range(9):
            receipt = other.topic("loop").append("link", number, cause=receipt)
        other.export(tmp_path / "loop.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "loop.jsonl").read_text().splitlines()]
    lines[0]["causation_id"] = lines[7]["id"]
    (tmp_path / "loop.jsonl").write_text("\n".join(map(json.dumps, lines)))
    journal.import_(tmp_path / "loop.jsonl", topics=["loop"])
    end = lines[8]["id"]
    expected = list(range(8, -1, -1))
    stored = journal.topic("loop").get(9)
    assert stored is not None
    for home in (journal, remote):
        for named in (end, stored):
            assert [event.payload for event in home.topic("loop").ancestors(named)] == expected
        inside = home.topic("loop").get(4)
        assert inside is not None
        assert [event.payload for event in home.topic("loop").ancestors(inside)] == [3, 2, 1, 0, 7, 6, 5, 4]
    for limit in (1, 2, 3, 5, 20):
        some, after = page(served, "ancestors", end, limit)
        found = [event["payload"] for event in some + rest(served, "ancestors", end, limit, after)]
        assert found[:9] == expected and len(found) <= 5 * 9


@pytest.mark.parametrize("indexed", [False, True])
def test_pages_read_each_event_about_once(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    count = 4_000
    first = journal.topic("causes").append("first", correlation="all")
    drafts = [Draft("effect", number, cause=first.id, correlation="all") for number in range(count)]
    journal.topic("a").append_many(drafts)
    if indexed:
        journal.maintain()
    made = 0

    def counted(block: Block, row: int) -> Event:
        nonlocal made
        made += 1
        return Event(block, row)

    for module in (index, reading):
        monkeypatch.setattr(module, "Event", counted)
    for walk, id in (("effects", first.id), ("correlated", "all")):
        made = 0
        some, after = page(served, walk, id, 400)
        assert len(some + rest(served, walk, id, 400, after)) >= count
        assert count <= made < 2 * count

"""Following some of a topic's events: by key, kind, scope or condition; the position moves past the others."""

from __future__ import annotations

from typing import Any

import pytest
from journals import eventually, on

from penstock import Draft, Journal, Topic
from penstock.core.journal import following
from penstock.core.journal.blocks import Block, text_reader
from penstock.core.journal.catalog import open_block
from penstock.errors import ConfigError


def fill(topic: Topic, start: int, count: int = 6) -> None:
    topic.append_many(
        [
            Draft(
                ("placed", "paid")[n % 2],
                {"n": n},
                key=("eu/1", "us/1", "eu/2")[n % 3],
                scope="shop" if n % 2 else None,
            )
            for n in range(start, start + count)
        ]
    )


CHOICES: list[tuple[dict[str, Any], Any]] = [
    ({"key": "eu/1"}, lambda event: event.key == "eu/1"),
    ({"key_prefix": "eu/"}, lambda event: event.key.startswith("eu/")),
    ({"kind": "paid"}, lambda event: event.kind == "paid"),
    ({"kind": ["paid", "placed"], "scope": "shop"}, lambda event: event.scope == "shop"),
    ({"where": "payload.n > 3", "key_prefix": "us"}, lambda event: event.payload["n"] > 3 and event.key == "us/1"),
]


@pytest.mark.parametrize("choice", [{}, {"kind": "paid"}, {"key": "eu/1"}])
def test_following_begins_at_the_oldest_event_however_much_was_compacted_before_it(
    journal: Journal, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search goes a number of positions at a time; a first step in which there is nothing any more is none."""
    monkeypatch.setattr(following, "STEP", 16)
    topic = journal.topic("orders")
    fill(topic, 0, 60)
    topic.compact(50)
    wanted = [event.seq for event in topic.read(**choice)]
    with topic.subscribe(**choice) as subscription:
        assert [event.seq for _ in wanted if (event := subscription.next(0)) is not None] == wanted
    handled: list[int] = []
    with topic.worker("c", lambda events: handled.extend(event.seq for event in events), **choice):
        eventually(lambda: handled == wanted)


def test_the_position_moves_past_what_was_left_out(journal: Journal) -> None:
    topic = journal.topic("orders")
    fill(topic, 0)
    with topic.subscribe(kind="lost") as subscription:
        assert subscription.next(0) is None
        eventually(lambda: subscription.next(0) is None and subscription.position == 6, "all six are behind it")
        topic.append("lost", 1)
        found = subscription.next(60)
        assert found is not None and found.seq == subscription.position == 7


@on("memory", "sqlite", "file")
def test_what_cannot_be_chosen_is_not_decoded_and_nothing_is_read_twice(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = journal.topic("orders")
    for start in range(0, 60, 6):
        fill(topic, start)
    opened: list[bytes] = []
    decoded: list[int] = []

    def open_counted(key: bytes, *given: Any) -> Block:
        opened.append(key)
        return open_block(key, *given)

    def read_counted(column: Any, count: int) -> Any:
        decoded.append(count)
        return text_reader(column, count)

    monkeypatch.setattr("penstock.core.journal.reading.open_block", open_counted)
    monkeypatch.setattr("penstock.core.journal.blocks.text_reader", read_counted)
    with topic.subscribe(kind="lost", key_prefix="eu/") as subscription:
        assert subscription.next(0) is None and subscription.position == 60
        assert decoded == [], "no block has events of that kind: none of their keys is looked at"
        read = len(opened)
        for _ in range(5):
            subscription._signal.notify()
            assert subscription.next(0) is None
        assert len(opened) == read > 0, "a look with nothing new reads no block"


def test_a_worker_gets_what_it_chose_and_its_cursor_passes_the_rest(journal: Journal) -> None:
    topic = journal.topic("orders")
    fill(topic, 0)
    seen: list[int] = []
    with topic.worker("mailer", lambda events: seen.extend(event.seq for event in events), kind="paid", idle=0.01):
        eventually(lambda: seen == [2, 4, 6], "history is handled")
        topic.append("placed", 1)
        topic.append("placed", 1)
        eventually(lambda: topic.cursor("mailer") == 8, "the cursor passes what was not chosen")
        topic.append("paid", 1)
        eventually(lambda: seen == [2, 4, 6, 9] and topic.cursor("mailer") == 9, "and the next one comes")
    assert topic.lag("mailer") == 0


def test_a_worker_whose_cursor_is_moved_back_begins_there(journal: Journal) -> None:
    topic = journal.topic("orders")
    fill(topic, 0)
    seen: list[int] = []
    with topic.worker("mailer", lambda events: seen.extend(event.seq for event in events), key_prefix="us", idle=0.01):
        eventually(lambda: seen == [2, 5], "history is handled")
    topic.seek("mailer", 3)
    with topic.worker("mailer", lambda events: seen.extend(event.seq for event in events), key_prefix="us", idle=0.01):
        eventually(lambda: seen == [2, 5, 5], "again from the third on")


def test_a_transaction_reads_by_the_beginning_of_keys(journal: Journal) -> None:
    topic = journal.topic("orders")
    fill(topic, 0)
    with journal.transaction() as tx:
        tx.append("orders", "paid", {"n": 9}, key="us/9")
        assert [event.seq for event in tx.read("orders", key_prefix="us")] == [2, 5, 7]


def test_wishes_that_contradict_themselves_are_refused(journal: Journal) -> None:
    topic = journal.topic("orders")
    with pytest.raises(ConfigError, match="not both"):
        topic.read(key="a", key_prefix="a")
    with pytest.raises(ConfigError, match="not both"):
        topic.subscribe(key="a", key_prefix="a")
    with pytest.raises(ConfigError, match="no kind"):
        topic.worker("c", print, kind=[])
    with pytest.raises(ConfigError):
        topic.subscribe(where="payload.n >")

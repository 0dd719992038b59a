"""Groups: fanout and work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Journal, ManualClock, Queue
from penstock.errors import ConfigError, InvalidName

Reopen = Callable[[Journal], Journal]


@pytest.fixture
def news(journal: Journal) -> Queue:
    return journal.queue("news", mode="fanout")


def seqs(queue: Queue, group: str = "default", limit: int = 100) -> list[int]:
    return [delivery.seq for delivery in queue.take_many(limit, group=group)]


# ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_in_work_mode_all_groups_share_the_messages(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(3))
    one, two = queue.take(group="a"), queue.take(group="b")
    assert one is not None and two is not None
    assert (one.seq, one.group, two.seq, two.group) == (1, "a", 2, "b")
    assert queue.groups() == ["a", "b", "default"]
    assert [p.seq for p in queue.pending("a")] == [1] and len(queue.pending()) == 2
    one.ack()
    two.ack()
    assert [event.seq for event in queue] == [3], "an acknowledgement removes the message for everybody"


def test_a_claim_minds_the_group_it_names(journal: Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(range(2))
    queue.take(group="a")
    queue.take(group="b")
    assert [delivery.seq for delivery in queue.claim(min_idle=0, group="b", limit=9)] == [2]


# ── fanout ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_goes_when_all_groups_are_done(news: Queue, journal: Journal) -> None:
    news.add_group("a")
    news.add_group("b")
    news.push_many(range(4))
    news.ack_many(news.take_many(4, group="a"))
    assert [event.seq for event in news] == [1, 2, 3, 4]
    mine = news.take_many(3, group="b")
    mine[0].ack()
    mine[2].ack()
    assert [event.seq for event in news] == [2, 4] and news.get(1) is None and news.get(2) is not None
    journal.maintain()
    assert journal.topic("news").oldest == 2
    mine[1].ack()
    news.ack_many(news.take_many(9, group="b"))
    journal.maintain()
    assert list(news) == [] and journal.topic("news").oldest == 0 and journal.topic("news").latest == 4


def test_a_group_begins_where_it_says(news: Queue) -> None:
    news.push_many(range(5))
    news.add_group("all")
    news.add_group("tail", after=3)
    news.add_group("new", after="latest")
    news.add_group("tail", after=0)
    news.push("six")
    assert (seqs(news, "all"), seqs(news, "tail"), seqs(news, "new")) == ([1, 2, 3, 4, 5, 6], [4, 5, 6], [6])
    with pytest.raises(ConfigError, match="ends at 6"):
        news.add_group("beyond", after=7)
    for bad in ("", "  ", 4):
        with pytest.raises(InvalidName):
            news.add_group(bad)  # type: ignore[arg-type]


# ── beginnings ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_no_group_wants_is_kept_until_one_comes_or_it_is_removed(journal: Journal, clock: ManualClock) -> None:
    news = journal.queue("news", mode="fanout", priority=True)
    news.push_many(["a", "b", "c"])
    news.push("urgent", priority=5)
    news.push("later", delay=60)
    news.add_group("late", after="latest")
    assert len(news) == 5 and news.stats("late").ready == 0 and news.take(group="late") is None
    journal.maintain()
    assert len(journal.topic("news")) == 5 and news.get(2) is not None
    assert news.discard([2, 2, 99]) == 1 and len(news) == 4 and news.get(2) is None
    news.push("d")
    assert [one.payload for one in news.take_many(9, group="late")] == ["d"]
    news.add_group("early")
    assert len(news) == 5 and news.stats("early").delayed == 1
    found = news.take_many(9, group="early")
    assert [one.payload for one in found] == ["urgent", "a", "c", "d"]
    news.ack_many(found)
    clock.advance(60)
    assert [one.payload for one in news.take_many(9, group="early")] == ["later"]
    other = journal.queue("other", mode="fanout")
    other.push_many(range(3))
    other.add_group("late", after="latest")
    assert other.purge() == 3 and len(other) == 0
    other.push("new")
    assert len(other) == 1 and other.take(group="new").payload == "new"  # type: ignore[union-attr]

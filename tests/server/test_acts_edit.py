"""Editing a message from the console: one message stays one, whatever its queue's policy says of pushes."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import Retry
from server.serving import Answer, Served


def edit(served: Served, queue: str, seq: int, payload: str = '"new"') -> Answer:
    return served.post("/acts/edit", {"fields": {"queue": queue, "seq": str(seq), "payload": payload}})


def contents(queue: penstock.Queue) -> list[Any]:
    return [event.payload for event in queue]


@pytest.mark.parametrize("policy", [{"throttle": 60}, {"debounce": 60}, {"retry": Retry.fixed(60)}, {"max_size": 1}])
def test_a_message_with_a_key_is_there_after_it_was_edited(
    served: Served, journal: penstock.Journal, policy: dict[str, Any]
) -> None:
    queue = journal.queue("jobs", **policy)
    queue.push("old", key="a")
    if "retry" in policy:
        delivery = queue.take()
        assert delivery is not None
        delivery.nack()
    assert edit(served, "jobs", 1).json["says"] == "the edited message is jobs #2"
    assert contents(queue) == ["new"]
    taken = queue.take()
    assert taken is not None and (taken.payload, taken.key) == ("new", "a")


def test_a_dead_letter_that_was_pushed_a_moment_ago_is_edited_and_not_lost(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("jobs", throttle=60, dead_letter="jobs.dead", max_attempts=1)
    queue.push("old", key="a")
    queue.take().nack()  # type: ignore[union-attr]
    assert edit(served, "jobs.dead", 1).json["says"] == "the edited message is jobs #2"
    assert contents(queue) == ["new"] and contents(journal.queue("jobs.dead")) == []


def test_an_edited_letter_has_its_priority_and_its_own_budget_again(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("jobs", priority=True, dead_letter="jobs.dead")
    queue.push("low", priority=3)
    queue.push("old", priority=9, max_attempts=7)
    queue.take().nack(dead=True)  # type: ignore[union-attr]
    assert edit(served, "jobs.dead", 1).status == 200
    found = {one.event.payload: (one.priority, one.max_attempts) for one in queue.messages()}
    assert found == {"low": (3, 3), "new": (9, 7)}


def test_groups_that_are_done_with_a_message_do_not_get_the_edited_one(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("news", mode="fanout", dead_letter="news.dead", max_attempts=1)
    for group in ("mail", "search"):
        queue.add_group(group)
    queue.push("old")
    queue.push("other")
    queue.take(group="mail").nack()  # type: ignore[union-attr]
    queue.take(group="search").ack()  # type: ignore[union-attr]
    assert edit(served, "news.dead", 1).status == 200
    assert [event.payload for event in queue.peek(5, group="mail")] == ["other", "new"]
    assert [event.payload for event in queue.peek(5, group="search")] == ["other"]
    queue.take(group="search").ack()  # type: ignore[union-attr]
    assert edit(served, "news", 2, '"newer"').status == 200
    assert [event.payload for event in queue.peek(5, group="mail")] == ["new", "newer"]
    assert queue.peek(5, group="search") == []


def test_a_letter_of_a_group_that_is_gone_stays(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("news", mode="fanout", dead_letter="news.dead", max_attempts=1)
    for group in ("mail", "search"):
        queue.add_group(group)
    queue.push("old")
    queue.take(group="mail").nack()  # type: ignore[union-attr]
    queue.remove_group("mail")
    assert "no group 'mail'" in edit(served, "news.dead", 1).json["detail"]
    assert contents(journal.queue("news.dead")) == ["old"] and len(queue) == 1


def test_a_schedule_takes_a_cron_line_with_seconds_and_numbers_are_plain(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("jobs")
    for name, when in (("six", "*/10 0 6 * * *"), ("five", "0 6 * * *"), ("often", "1h30m"), ("word", "@daily")):
        fields = {"queue": "jobs", "name": name, "when": when}
        assert served.post("/acts/add-schedule", {"fields": fields}).status == 200
    found = {one.name: one.cron or one.interval for one in queue.schedules()}
    assert found == {"six": "*/10 0 6 * * *", "five": "0 6 * * *", "often": 5400.0, "word": "@daily"}
    answer = served.post("/acts/redrive", {"fields": {"queue": "jobs", "limit": "²"}})
    assert answer.status == 400 and "whole number" in answer.json["detail"]


def test_pages_take_digits_that_are_no_number_for_text(served: Served, journal: penstock.Journal) -> None:
    journal.queue("jobs").push("x")
    assert served.get("/topics/jobs/events/%C2%B2").status == 404
    for path in ("/queues/jobs/messages?after=%C2%B2", "/?page=%C2%B2", "/topics/jobs?page=%C2%B2"):
        assert served.get(path).status == 200, path

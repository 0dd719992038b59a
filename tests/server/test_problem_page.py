"""What went wrong, as a page for a person: a heading in words, what was asked for, and the ways back."""

from __future__ import annotations

import re

import pytest

import penstock
from penstock import errors
from server.serving import Served

PAGE = {"Accept": "text/html"}


@pytest.mark.parametrize(
    ("path", "status", "heading", "says"),
    [
        ("/topics/ordres", 404, "There is no topic ordres", '<a href="/topics/orders">Topic orders</a>'),
        ("/queues/mail", 404, "There is no queue mail", '<a href="/queues/mails">Queue mails</a>'),
        ("/topics/mail", 404, "There is no topic mail", 'href="/search?q=mail">Search for mail</a>'),
        ("/topics/orders/events/99", 404, "There is no event 99 in orders", '<a href="/topics/orders">The events'),
        ("/nowhere", 404, "There is no such page", "Nothing is at /nowhere"),
        ("/topics/a%20b", 400, "That cannot be done as asked", "a b"),
        ("/queues/mails?state=lost", 400, "That cannot be done as asked", "lost"),
    ],
)
def test_a_page_that_is_not_there_says_so_in_words_and_leads_back(
    served: Served, journal: penstock.Journal, path: str, status: int, heading: str, says: str
) -> None:
    journal.topic("orders").append("placed")
    journal.queue("mails")
    answer = served.ask("GET", path, headers=PAGE)
    text = answer.data.decode()
    assert answer.status == status and f"<h1>{heading}</h1>" in text and says in text
    assert all(f'<a href="{page}"' in text for page in ("/", "/topics", "/queues")) and 'role="search"' in text
    names = [name for name in vars(errors) if name[0].isupper()] + ["NotFound", "UnknownEvent"]
    assert not re.search(rf"\b({'|'.join(names)})\b", text), "a class's name is no word of a person's"


def test_a_defect_is_a_page_without_details(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("secret details")

    monkeypatch.setattr("penstock.server.pages.topic.existing_topic", broken)
    answer = served.ask("GET", "/topics/orders", headers=PAGE)
    assert answer.status == 500 and b"<h1>The server failed</h1>" in answer.data and b"secret" not in answer.data


def test_a_message_that_died_and_is_not_stored_any_more_leads_to_its_dead_letter(
    served: Served, journal: penstock.Journal
) -> None:
    mails = journal.queue("mails", max_attempts=1, dead_letter="mails.dead")
    mails.push_many(["a", "b"])
    for delivery in mails.take_many(2):
        delivery.nack(error="no")
    journal.topic("mails").compact(2, force=True)
    assert journal.topic("mails").get(2) is None
    answer = served.ask("GET", "/topics/mails/events/2", headers=PAGE)
    text = answer.data.decode()
    assert answer.status == 404 and '<a href="/topics/mails.dead/events/2">Its dead letter, mails.dead #2</a>' in text

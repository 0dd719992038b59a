"""What pages say, read without a browser: which journal, what a list leaves out, what a search finds."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import penstock
from server.serving import Served, serving
from waiting import eventually

PAGES = ("/", "/topics", "/queues", "/search?q=x", "/topics/orders", "/topics/orders/events/1", "/queues/emails",
         "/schedules", "/pipelines", "/buffers", "/health", "/docs", "/nowhere")  # fmt: skip


def text_of(served: Served, path: str) -> str:
    return unescape(served.ask("GET", path, headers={"Accept": "text/html"}).data.decode())


def rows(page: str, table: str) -> list[str]:
    """What the rows of a table are known by."""
    return re.findall(r'<tr data-key="([^"]*)"', page.partition(f'id="{table}"')[2].partition("</table>")[0])


def test_every_page_names_its_journal(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "shop.db") as journal, serving(journal) as served:
        journal.topic("orders").append("placed")
        journal.queue("emails").push("x")
        for path in PAGES:
            page = text_of(served, path)
            assert f'title="{tmp_path}/shop.db">shop.db</span>' in page and "· shop.db · penstock</title>" in page, path


def test_a_stranger_is_told_nothing_of_the_journal(guarded: Served) -> None:
    lost = guarded.ask("GET", "/nowhere", token="no-such-token-here", headers={"Accept": "text/html"})
    assert lost.status == 404 and b"Not found" in lost.data and b'class="journal"' not in lost.data


def test_an_empty_journal_shows_the_first_three_commands(served: Served, journal: penstock.Journal) -> None:
    page = text_of(served, "/")
    commands = page.partition('<pre class="commands"')[2].partition(">")[2].partition("</pre>")[0].splitlines()
    assert [line.split()[:2] for line in commands] == [["penstock", one] for one in ("append", "push", "tail")]
    assert all(line.endswith(f"--url {served.url}") for line in commands)
    journal.topic("orders").append("placed")
    eventually(lambda: rows(text_of(served, "/"), "topics") == ["orders"])


def test_queues_are_no_topics_and_those_of_penstock_are_behind_a_switch(
    served: Served, journal: penstock.Journal
) -> None:
    journal.topic("orders").append("placed")
    journal.queue("emails").push("x")
    assert served.post("/acts/pause", {"fields": {"queue": "emails"}}).status == 200  # which is written down
    page = text_of(served, "/topics")
    assert rows(page, "topics") == ["orders"] and "Show 1 system topic<" in page
    page = text_of(served, "/topics?system=1")
    assert sorted(rows(page, "topics")) == ["orders", "penstock.audit"] and "Hide 1 system topic<" in page


def test_a_search_finds_names_event_ids_and_keys(served: Served, journal: penstock.Journal) -> None:
    placed = journal.topic("orders").append("placed", key="ada")
    journal.topic("payments").append("paid", key="ada")
    journal.queue("ada.mails").push("x", key="ben")

    def found(sought: str) -> list[str]:
        page = text_of(served, f"/search?q={sought}")
        return re.findall(r'class="seq">([^<]*)</a>', page)

    assert found(placed.id) == ["orders #1"]
    assert sorted(found("ada")) == ["orders #1", "payments #1"]
    assert found("ben") == ["ada.mails #1"] and found("nobody") == []
    assert rows(text_of(served, "/search?q=ADA"), "queues") == ["ada.mails/default"]


def test_a_search_that_stops_says_where_it_goes_on(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        journal.topic(name).append("placed", key="ada")
    monkeypatch.setattr("penstock.server.pages.search.FOUND_SECONDS", -1.0)
    address, found = "/search?q=ada", []
    for stopped_before in ("a", "b", "c", None):
        page = text_of(served, address)
        found += re.findall(r'class="seq">([^<]*)</a>', page)
        assert ("The search stopped before" in page) == (stopped_before is not None)
        if stopped_before is not None:
            assert f"stopped before {stopped_before}." in page
            address = "/search" + re.findall(r'id="found-more".*?href="([^"]*)"', page)[0]
    assert found == ["a #1", "b #1", "c #1"]


@pytest.mark.parametrize("dead", [False, True])
def test_what_is_paused_is_a_warning_and_what_failed_is_an_alert(
    served: Served, journal: penstock.Journal, dead: bool
) -> None:
    queue = journal.queue("emails", max_attempts=1, dead_letter="emails.dead")
    queue.push("x")
    if dead:
        queue.take().nack()  # type: ignore[union-attr]
    queue.pause()
    page = text_of(served, "/queues")
    assert f'class="health {"alert" if dead else "warning"}"' in page
    assert f'<tr data-key="emails/default" class="{"alert" if dead else "warning"}">' in page


def test_a_dead_letter_is_shown_with_both_of_its_positions(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("emails", max_attempts=1, dead_letter="emails.dead")
    queue.push_many(range(3))
    first, _, third = queue.take_many(3)
    third.nack(error="no")
    row = text_of(served, "/queues/emails?tab=dead").partition('id="dead"')[2].partition("</tbody>")[0]
    assert re.findall(r">#(\d+)<", row) == ["3", "1"] and 'title="emails.dead #1"' in row
    first.ack()

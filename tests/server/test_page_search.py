"""The console's search, filters and tables: texts in payloads, how far a look went, last events, time zones."""

from __future__ import annotations

import re

import pytest

import penstock
from penstock.server.pages import search, topic
from server.serving import Served
from server.test_page_failures import shown, text_of


def test_search_finds_text_in_payloads_and_says_how_far_it_looked(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 30)
    for n in range(100):
        journal.topic("orders").append("placed", {"to": f"Ann-{n}@example.com", "city": "Köln"})
    journal.queue("mails").push({"to": "ann-7@example.com"})
    page = text_of(served, "/search?q=ann-7")
    within = page.partition('id="within"')[2].partition("</ol>")[0]
    assert set(re.findall(r"(orders|mails) #(\d+)<", within)) == {
        *(("orders", str(seq)) for seq in (71, 72, 73, 74, 75, 76, 77, 78, 79, 80)), ("mails", "1")
    }  # fmt: skip
    assert "31 events of 2 topics were looked at" in shown(page)
    assert "Older events of 1 topic" in page
    older = re.search(r'href="(/topics/orders\?text=ann-7&before=71)"', page)
    assert older is not None and ">#8</a>" in text_of(served, older[1])
    assert ">#100</a>" in text_of(served, "/topics/orders?text=k%C3%B6ln")
    assert "orders #100" in shown(text_of(served, "/search?q=K%C3%96LN"))


def test_search_goes_on_where_its_time_was_up(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FOUND_SECONDS", 0.0)
    for name in ("a", "b", "c"):
        journal.topic(name).append("placed", {"to": "ann"})
    found, path = [], "/search?q=ann"
    for _ in range(3):
        page = text_of(served, path)
        found += re.findall(r"([abc]) #1<", page.partition('id="within"')[2].partition("</ol>")[0])
        further = re.search(r'href="([^"]+)" id="within-more"', page)
        path = "/search" + further[1] if further else ""
    assert found == ["a", "b", "c"] and path == ""


def test_a_filter_of_a_topic_says_how_far_it_looked_and_goes_on(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "PAGE_SCAN_LIMIT", 40)
    journal.topic("orders").append_many([penstock.Draft("placed", {"n": n}) for n in range(100)])
    path, found = "/topics/orders?where=payload.n+=+3", []
    for _ in range(3):
        page = text_of(served, path)
        found.append(re.findall(r'class="seq">#(\d+)<', page))
        further = re.search(r'rel="next" href="(\?[^"]+)">Look further', page)
        if further is None:
            break
        assert "40 events were looked at, back to #" in shown(page)
        path = "/topics/orders" + further[1]
    assert found == [[], [], ["4"]]


def test_search_knows_topics_and_queues_by_a_part_of_their_name(served: Served, journal: penstock.Journal) -> None:
    journal.topic("warehouse.inventory").append("counted")
    journal.queue("inventory-mails")
    journal.topic("orders").append("placed")
    said = shown(text_of(served, "/search?q=VENTOR"))
    assert "warehouse.inventory" in said and "inventory-mails" in said and "orders" not in said


def test_tables_are_filtered_above_and_show_the_last_event(served: Served, journal: penstock.Journal) -> None:
    for n in range(20):
        journal.topic(f"sensors.{n:02}").append("measured")
    page = text_of(served, "/topics")
    assert page.index('name="topics-q"') < page.index('<table id="topics"')
    newest = next(iter(journal.topic("sensors.03").read())).recorded_at
    row = page.partition('data-key="sensors.03"')[2].partition("</tr>")[0]
    assert newest.isoformat(timespec="seconds") in row


def test_a_schedule_shows_its_time_zone(served: Served, journal: penstock.Journal) -> None:
    reports = journal.queue("reports")
    reports.every("0 6 * * mon", {"report": 1}, name="weekly", timezone="Europe/Berlin")
    reports.every(900, {"report": 2}, name="often")
    page = shown(text_of(served, "/schedules"))
    assert "Time zone" in page and "weekly reports 0 6 * * mon Europe/Berlin" in page
    assert "often reports every 15 min –" in page


def test_a_legend_says_what_its_tile_says(served: Served, journal: penstock.Journal) -> None:
    journal.queue("mails", dead_letter="mails.dead")
    for path, tiles in (("/", {"dead": "dead-count", "ready": "backlog"}), ("/queues/mails", {"dead": "dead-count"})):
        page = text_of(served, path)
        said = re.search(r'data-tiles="(\{.*?\})"', page)
        assert said is not None
        for label, tile in tiles.items():
            assert f'"{label}":"{tile}"' in said[1] and f'id="{tile}"' in page


def test_events_are_found_by_their_tags_and_show_them(served: Served, journal: penstock.Journal) -> None:
    shop = journal.topic("shop")
    for n in range(4):
        shop.append("placed", {"n": n}, tags=["customer:ada", f"lane:{n % 2}", "<b>"])
    shop.append("placed", {"n": 9}, key="customer:ada", tags=["customer:ada"])
    page = text_of(served, "/topics/shop/events/2")
    assert '<a href="/topics/shop?tag=customer%3Aada">customer:ada</a>' in page and "&lt;b&gt;" not in shown(page)

    def rows(path: str) -> list[str]:
        return re.findall(r'class="seq">(?:shop )?#(\d+)<', text_of(served, path))

    assert rows("/topics/shop?tag=customer:ada&tag=lane:1") == ["4", "2"] == rows("/topics/shop?tag=lane:1&tag=")
    assert rows("/topics/shop?tag=none") == []
    assert shown(page).count("lane:1") == 1 and 'class="tag" title="lane:1"' in text_of(served, "/topics/shop")
    assert rows("/search?q=customer:ada") == ["5", "4", "3", "2", "1"]

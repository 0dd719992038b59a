"""Looking at things in a real browser: lists and events side by side, readable tables, screens of every size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from playwright.sync_api import Page, expect

import penstock
from penstock.observe.pipelines import FlowStatus, report
from server.accessibility import SCREENS, complaints, open_live
from server.serving import Served, serving

LONG = "a-name-that-goes-on-and-on." * 9


FEW_SCREENS = [("dark", 390), ("light", 1440)]


def test_axe_finds_nothing_in_light_and_dark_on_screens_of_every_size(
    open_page: Callable[..., Page], journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    journal.queue("emails").every(60, {"n": 1}, name="digest")
    journal.topic(LONG[:255]).append("k", LONG, key=LONG[:300])
    journal.topic("orders").commit(LONG[:200], 3)
    news = journal.queue("news", mode="fanout", max_attempts=1)
    for n in range(6):
        news.add_group(f"reader-service-europe-{n:02}")
    report(journal, [FlowStatus(pipeline="shop", flow="f", state="failed", error=LONG, started_at=datetime.now(UTC))])
    with serving(journal) as served:
        page = open_page()
        wrong = []
        for path, screens in (
            ("/", SCREENS),
            ("/topics/orders", FEW_SCREENS),
            ("/queues/emails", FEW_SCREENS),
            ("/queues/news", FEW_SCREENS),
            ("/queues/emails/messages", FEW_SCREENS),
            ("/pipelines", FEW_SCREENS),
            ("/schedules", FEW_SCREENS),
            ("/health", FEW_SCREENS),
            ("/topics/orders/events/30", FEW_SCREENS),
        ):
            open_live(page, served.url + path)
            if path == "/topics/orders":
                page.locator("#tail li .kind").first.click()
                expect(page.locator("#inspector .json")).to_be_visible()
            wrong += complaints(page, screens)
        assert wrong == [], "\n".join(wrong)


def test_names_that_differ_at_their_end_are_told_apart(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    news = journal.queue("news", mode="fanout")
    for n in range(6):
        news.add_group(f"reader-service-europe-{n:02}")
        journal.topic(f"warehouse.europe-central.inventory-{n:02}").append("counted")
    page = open_page()
    page.goto(served.url)
    expect(page.locator("#state")).to_have_text("live")
    cut = "links => links.filter(a => a.scrollHeight > a.clientHeight || a.scrollWidth > a.clientWidth).length"
    for width in (390, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        links = page.locator("#queues tbody a, #topics tbody a")
        expect(links).to_have_count(13)
        assert links.evaluate_all(cut) == 0, width
        numbers = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
        assert page.locator("#topics th, #topics td.number, #queues th").evaluate_all(numbers) == [], width


def test_why_a_pipeline_failed_is_on_the_screen(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    names = {"pipeline": "warehouse.europe-central", "flow": "inventory-by-shelf-and-hour"}
    failed = FlowStatus(**names, state="failed", error="ValueError: no such column", started_at=datetime.now(UTC))
    report(journal, [failed])
    page = open_page()
    page.set_viewport_size({"width": 1440, "height": 900})
    open_live(page, f"{served.url}/pipelines")
    heading = page.locator("#pipelines").get_by_role("columnheader", name="Error")
    for shown in (heading, page.locator("#pipelines td", has_text="no such column")):
        box = shown.bounding_box()
        assert box is not None and box["x"] + box["width"] <= 1440 and box["width"] > 200


def test_a_queue_and_its_topic_say_which_they_are_and_name_their_units(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    journal.queue("mails", lease=60, retry=penstock.Retry.immediate(), dead_letter="mails.dead").push("x")
    page = open_page()
    page.set_viewport_size({"width": 390, "height": 844})
    for path, kind in (
        ("/queues/mails", "Queue"),
        ("/queues/mails.dead", "Dead-letter queue"),
        ("/topics/mails", "Topic"),
    ):
        journal.queue("mails.dead")
        open_live(page, served.url + path)
        expect(page.locator(".kicker")).to_have_text(kind)
        assert page.title().startswith(path.rpartition("/")[2])
    page.goto(f"{served.url}/queues/mails")
    policy = page.locator("#policy-section table")
    expect(policy).to_contain_text("Lease1 min")
    expect(policy).to_contain_text("Retryat once")
    for word in ("60.0", "immediate()", "False", "None", "True"):
        expect(policy).not_to_contain_text(word)
    # On a phone the legend of a chart stands below it, and covers nothing.
    plot, legend = (page.locator('[data-chart="states"]').locator(part).bounding_box() for part in (".plot", ".legend"))
    assert plot is not None and legend is not None and legend["y"] >= plot["y"] + plot["height"] - 1


def test_the_header_takes_two_lines_on_a_phone(open_page: Callable[..., Page], served: Served) -> None:
    page = open_page()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(served.url)
    expect(page.locator("#state")).to_have_text("live")
    assert page.locator("header").evaluate("one => one.clientHeight") < 110
    search, keys = page.locator("#search").bounding_box(), page.locator("#help-button").bounding_box()
    assert search is not None and keys is not None and abs(search["y"] - keys["y"]) < search["height"] / 2


def test_an_event_is_a_sheet_on_a_phone(open_page: Callable[..., Page], served: Served, shop: penstock.Receipt) -> None:
    page = open_page()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{served.url}/topics/orders")
    page.locator("#tail li .kind").nth(3).click()
    sheet = page.locator("#inspector")
    expect(sheet.locator(".json")).to_contain_text("order: 26")
    box = sheet.bounding_box()
    assert box is not None and box["x"] == 0 and box["width"] == 390 and box["y"] + box["height"] == 800
    expect(sheet.locator("h2")).to_be_focused()
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    expect(page.locator('#tail li[data-seq="27"] a')).to_be_focused()
    page.goto(f"{served.url}/queues/emails")
    page.locator("#dead tbody tr").first.locator("td").nth(3).click()
    expect(sheet).to_contain_text("SMTPError: 550 mailbox full")
    expect(sheet.get_by_role("region", name="Failure")).to_contain_text("Attempts1")
    sheet.get_by_role("button", name="Close").click()
    expect(sheet).to_be_hidden()


def test_failed_attempts_are_shown_one_by_one_with_their_times(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("mail", max_attempts=3, dead_letter="mail.dead")
    queue.push({"to": "ann"})
    for n in range(2):
        with pytest.raises(OSError), queue.take(consumer=f"mailer-{n}"):  # type: ignore[union-attr]
            raise OSError(f"<b>down</b> {n}")
    page = open_page()
    page.goto(f"{served.url}/queues/mail/messages")
    page.locator("#messages tbody tr").first.locator("td").nth(8).click()
    tried = page.locator("#inspector").get_by_role("region", name="Failed attempts")
    expect(tried.get_by_role("listitem")).to_have_count(2)
    expect(tried.get_by_role("listitem").nth(1)).to_contain_text("OSError: <b>down</b> 1")
    expect(tried.get_by_role("listitem").nth(1)).to_contain_text(f"mailer-1 on {os.uname().nodename}")
    expect(tried.locator("time")).to_have_count(2)
    last = page.locator("#inspector").get_by_role("region", name="Error of the last attempt")
    expect(last).to_contain_text("Traceback (most recent call last)")
    expect(last).to_contain_text('raise OSError(f"<b>down</b> {n}")')
    delivery = queue.take()
    assert delivery is not None
    delivery.nack(error="never", dead=True)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{served.url}/queues/mail")
    page.locator("#dead tbody tr").first.locator("td").nth(3).click()
    items = page.locator("#inspector").get_by_role("region", name="Failed attempts").get_by_role("listitem")
    expect(items).to_have_count(3)
    expect(items.nth(2)).to_contain_text("rejected")
    assert page.evaluate("document.querySelector('#inspector').scrollWidth") <= 390
    once = journal.queue("once", max_attempts=1, dead_letter="once.dead")
    once.push("x")
    with pytest.raises(OSError), once.take():  # type: ignore[union-attr]
        raise OSError("gone")
    page.goto(f"{served.url}/topics/once.dead/events/1")
    expect(page.get_by_role("region", name="Traceback")).to_contain_text('raise OSError("gone")')


def test_a_payload_folds_and_keeps_its_numbers(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    topic = journal.topic("payloads")
    deep = {"a": {"b": {"c": {"d": "deep"}}}, "big": 12345678901234567890, "many": list(range(700)), "none": None}
    topic.append("k", deep)
    topic.append("k", b"\x00\x01bytes")
    topic.append("k", "x" * (1 << 20))
    page = open_page()
    page.goto(f"{served.url}/topics/payloads/events/1")
    tree = page.locator(".json")
    expect(tree).to_contain_text("big: 12345678901234567890")
    expect(tree).not_to_contain_text("deep")
    tree.locator("summary", has_text="b:").click()
    tree.locator("summary", has_text="c:").click()
    expect(tree).to_contain_text('d: "deep"')
    tree.locator("summary", has_text="many:").click()
    expect(tree).to_contain_text("… and 200 more")
    page.goto(f"{served.url}/topics/payloads/events/2")
    expect(page.locator("pre.raw")).to_have_text("00 01 62 79 74 65 73")
    page.goto(f"{served.url}/topics/payloads/events/3")
    expect(page.locator(".payload-box .note")).to_have_text("1.0 MiB, the beginning is shown")


def test_filters_are_kept_in_the_address(
    open_page: Callable[..., Page], served: Served, shop: penstock.Receipt
) -> None:
    page = open_page()
    page.goto(f"{served.url}/topics/orders")
    page.fill("#filter-key", "customer-3")
    page.fill("#filter-where", "payload.total > 20")
    page.fill("#filter-since", "1h")
    page.keyboard.press("Enter")
    expect(page.locator("#tail li")).to_have_count(3)
    address = page.url
    assert "key=customer-3" in address and "since=1h" in address
    other = open_page()
    other.goto(address)
    expect(other.locator("#tail li")).to_have_count(3)
    expect(other.locator("#filter-where")).to_have_value("payload.total > 20")
    other.goto(f"{served.url}/topics/orders?until=1h")
    expect(other.locator("#tail li")).to_have_count(0)


def test_a_thousand_topics_are_sorted_filtered_and_turned_over(
    open_page: Callable[..., Page], journal: penstock.Journal
) -> None:
    with journal.transaction() as together:
        for n in range(1_000):
            together.append(f"topic-{n:04}", "k", n)
            if n == 321:
                for _ in range(5):
                    together.append(f"topic-{n:04}", "k", n)
        together.append(LONG[:255], "k")
    with serving(journal) as served:
        page = open_page()
        page.goto(f"{served.url}/?sort=name")
        names = page.locator("#topics tbody td:first-child")
        expect(names).to_have_count(50)
        expect(names.first).to_have_text(LONG[:255])
        expect(names.first).to_have_attribute("title", LONG[:255])
        # However long the name, the numbers stay on the screen.
        box = page.locator("#topics tbody tr").first.locator("td").nth(5).bounding_box()
        assert box is not None and box["x"] + box["width"] <= 1200
        page.get_by_role("link", name="Next →").click()
        expect(names.first).to_have_text("topic-0049")
        page.get_by_role("columnheader", name="Events").get_by_role("link").click()
        expect(names.first).to_have_text("topic-0321")
        expect(page.get_by_role("columnheader", name="Events")).to_have_attribute("aria-sort", "descending")
        page.get_by_role("columnheader", name="Topic", exact=True).get_by_role("link").click()
        page.get_by_role("columnheader", name="Topic").get_by_role("link").click()
        expect(names.first).to_have_text("topic-0999")
        page.fill("#search", "topic-032")
        page.keyboard.press("Enter")
        expect(names).to_have_count(10)
        journal.topic("topic-0329").append("k")
        expect(page.locator('#topics tr[data-key="topic-0329"] td').nth(1)).to_have_text("2")


def test_of_ten_thousand_topics_a_page_has_fifty(open_page: Callable[..., Page], journal: penstock.Journal) -> None:
    with journal.transaction() as together:
        for n in range(10_000):
            together.append(f"topic-{n:04}", "k", n)
    with serving(journal) as served:
        page = open_page()
        page.goto(f"{served.url}/?sort=name&page=200")
        names = page.locator("#topics tbody td:first-child")
        expect(names).to_have_count(50)
        expect(names.last).to_have_text("topic-9999")
        expect(page.locator("#topic-count")).to_have_text("10,000")
        page.fill("#search", "topic-77")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("q=topic-77"))
        expect(names).to_have_count(50)
        page.get_by_role("link", name="Next →").click()
        expect(names).to_have_count(50)
        expect(page.get_by_role("link", name="Next →")).to_have_count(0)


def test_schedules_show_their_next_ticks(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    journal.queue("reports").every("30 2 * * *", {"report": 1}, name="nightly", timezone="Europe/Berlin")
    journal.queue("beats").every(3600, {}, name="hourly")
    page = open_page()
    page.goto(served.url)
    page.get_by_role("link", name="Schedules").click()
    expect(page.locator("#schedules tbody tr")).to_have_count(2)
    hourly = page.locator('#schedules tr[data-key="beats/hourly"]')  # which row is first depends on the hour
    expect(hourly).to_contain_text("every 1 h")
    expect(page.locator('#schedules tr[data-key="reports/nightly"]')).to_contain_text("30 2 * * * (Europe/Berlin)")
    ticks = [hourly.locator("td").nth(n).get_attribute("title") for n in (3, 4, 5)]
    moments = [datetime.fromisoformat(str(tick)) for tick in ticks]
    assert [(later - sooner).total_seconds() for sooner, later in pairwise(moments)] == [3600, 3600]


def test_the_api_is_shown_with_its_operations(open_page: Callable[..., Page], served: Served) -> None:
    page = open_page()
    page.goto(served.url)
    page.get_by_role("link", name="API").click()
    expect(page.locator("#api")).to_contain_text("append_events")
    page.locator(".opblock-summary", has_text="append_events").first.click()
    expect(page.locator("#api .opblock-body").first).to_be_visible()
    page.get_by_role("link", name="The console").click()
    expect(page.locator("h1")).to_have_text("Overview")

"""Looking at things in a real browser: lists and events side by side, readable tables, screens of every size."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

import penstock
from penstock.observe.pipelines import FlowStatus, report
from server.serving import Served, serving

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
LONG = "a-name-that-goes-on-and-on." * 9


SCREENS = [(scheme, width) for width in (390, 1440, 1920) for scheme in ("light", "dark")]
FEW_SCREENS = [("dark", 390), ("light", 1440)]


def complaints(page: Page) -> list[str]:
    """What axe, which is in the page already, finds wrong with the page as it is."""
    found: list[dict[str, Any]] = page.evaluate("axe.run({resultTypes: ['violations']}).then(said => said.violations)")
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def test_axe_finds_nothing_in_light_and_dark_on_screens_of_every_size(
    open_page: Callable[..., Page], journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    journal.queue("emails").every(60, {"n": 1}, name="digest")
    journal.topic(LONG[:255]).append("k", LONG, key=LONG[:300])
    report(journal, [FlowStatus(pipeline="shop", flow="f", state="failed", error=LONG, started_at=datetime.now(UTC))])
    with serving(journal) as served:
        page = open_page()
        wrong = []
        for path, screens in (
            ("/", SCREENS),
            ("/topics/orders", SCREENS),
            ("/queues/emails", SCREENS),
            ("/queues/emails/messages", FEW_SCREENS),
            ("/pipelines", FEW_SCREENS),
            ("/schedules", FEW_SCREENS),
            ("/health", FEW_SCREENS),
            ("/topics/orders/events/30", FEW_SCREENS),
        ):
            page.goto(served.url + path)
            expect(page.locator("#state")).to_have_text("live")
            page.evaluate(AXE)
            if path == "/topics/orders":
                page.locator("#tail li .kind").first.click()
                expect(page.locator("#inspector .json")).to_be_visible()
            page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
            for scheme, width in screens:
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.set_viewport_size({"width": width, "height": 900})
                wrong += [f"{path} {scheme} {width}: {one}" for one in complaints(page)]
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    wrong.append(f"{path} is {wide} px wide on a screen of {width}")
        assert wrong == [], "\n".join(wrong)


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
    rows = page.locator("#schedules tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("every 1 h")
    expect(page.locator('#schedules tr[data-key="reports/nightly"]')).to_contain_text("30 2 * * * (Europe/Berlin)")
    ticks = [rows.nth(0).locator("td").nth(n).get_attribute("title") for n in (3, 4, 5)]
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

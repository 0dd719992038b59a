"""The crowded and hostile journal on screens of every size, in light and dark, and by keys alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from server.accessibility import SCREENS, complaints, open_live
from server.browser import SLOW
from server.crowded import NASTY
from server.serving import Served


@pytest.mark.parametrize(
    ("path", "screens"),
    [
        ("/", [("dark", 390), ("light", 1920)]),
        ("/topics/nasty", [("light", 390), ("dark", 1440)]),
        ("/topics/nasty/events/1", [("dark", 390)]),
        ("/queues/news", [("light", 1440), ("dark", 1920)]),
    ],
)
def test_axe_finds_nothing_in_a_crowd(
    open_page: Callable[..., Page], crowd: Served, path: str, screens: list[tuple[str, int]]
) -> None:
    page = open_page()
    open_live(page, crowd.url + path)
    assert complaints(page, screens) == []


@pytest.mark.nightly("pages")
@pytest.mark.parametrize(
    "path",
    ["/", "/queues/mails", "/queues/invoices", "/queues/news", "/queues/tasks", "/queues/reports", "/queues/mails.dead",
     "/queues/mails/messages", "/queues/mails/messages?state=delayed", "/topics/nasty", "/topics/invoices",
     "/topics/nasty/events/1", "/schedules", "/pipelines", "/buffers", "/health"],
)  # fmt: skip
def test_axe_finds_nothing_on_any_page_of_a_crowd(open_page: Callable[..., Page], crowd: Served, path: str) -> None:
    page = open_page()
    open_live(page, crowd.url + path)
    assert complaints(page, SCREENS) == []


def test_axe_finds_nothing_on_the_page_that_asks_for_a_token(browser: Browser, guarded: Served) -> None:
    page = browser.new_page()  # its console says that the answer was a 401
    page.set_default_timeout(SLOW)
    page.goto(guarded.url)
    expect(page).to_have_url(f"{guarded.url}/login")
    wrong = complaints(page, SCREENS)
    page.locator("[name=token]").fill(NASTY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("not known")
    assert wrong + complaints(page, [("dark", 390), ("light", 1440)]) == []
    page.close()


def test_a_page_that_is_not_there_is_readable_and_leads_back(browser: Browser, crowd: Served) -> None:
    page = browser.new_page()  # its console says that the answer was a 404
    page.set_default_timeout(SLOW)
    page.goto(f"{crowd.url}/topics/" + "a-name-that-goes-on-and-on." * 8)
    expect(page.locator("h1")).to_have_text("Not found")
    assert complaints(page, [("light", 390), ("dark", 1440)]) == []
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("h1")).to_have_text("Overview")
    page.close()


def test_tables_are_turned_over_by_keys(open_page: Callable[..., Page], crowd: Served) -> None:
    page = open_page()
    open_live(page, crowd.url + "/queues/mails")
    page.keyboard.press("n")  # without a row in hand, the first table that has pages: the dead letters
    dead = page.locator("#dead tbody tr")
    expect(dead.first).to_contain_text("#51")
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_contain_text("#51")
    page.keyboard.press("n")
    expect(dead.first).to_contain_text("#101")
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("b")
    expect(dead.first).to_contain_text("#51")
    open_live(page, crowd.url + "/queues/mails?workers-page=2#workers")
    pager = page.get_by_role("navigation", name="Pages of workers")
    expect(pager).to_contain_text("Page 2 of 3")
    page.keyboard.press("n")
    expect(pager).to_contain_text("Page 3 of 3")
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("n")  # there is no fourth
    page.keyboard.press("b")
    expect(pager).to_contain_text("Page 2 of 3")
    # And link by link, as in any page: a pager's links are in the order of tabulation, and Enter follows them.
    expect(page.locator("#state")).to_have_text("live")
    pager.get_by_role("link", name="← Previous").focus()
    page.keyboard.press("Tab")
    expect(pager.get_by_role("link", name="Next →")).to_be_focused()
    page.keyboard.press("Enter")
    expect(pager).to_contain_text("Page 3 of 3")

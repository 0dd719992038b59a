"""A real Chromium, pages whose console must stay silent, and a small shop to look at.

Needs Debian's chromium (`apt-get install chromium`), or another Chromium named by PENSTOCK_CHROMIUM. Without one the
tests that use it are skipped, unless PENSTOCK_NEEDS_CHROMIUM is set.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Error, Page, expect, sync_playwright

import penstock
from server.serving import Served

SLOW = 60_000
"""Milliseconds the browser may take for what should happen at once, on however loaded a machine."""

expect.set_options(timeout=SLOW)

ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("PENSTOCK_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        missing = "no Chromium here: apt-get install chromium, or name one with PENSTOCK_CHROMIUM"
        # Continuous integration must not pass because it has no browser.
        (pytest.fail if os.environ.get("PENSTOCK_NEEDS_CHROMIUM") else pytest.skip)(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


def _go_on_where_it_reloads(page: Page) -> None:
    """A page loads itself anew after what was done; leaving it just then is told as a failure, and is tried again."""
    first = page.goto

    def goto(url: str, **options: Any) -> Any:
        deadline = time.monotonic() + 60
        while True:
            try:
                return first(url, **options)
            except Error as error:
                interrupted = "net::ERR_ABORTED" in str(error) or "interrupted by another navigation" in str(error)
                if not interrupted or time.monotonic() > deadline:
                    raise
                page.wait_for_load_state()

    page.goto = goto  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def tab(browser: Browser) -> tuple[Page, list[str]]:
    """One page for the tests of a module, and what it complained of: opening one costs as much as loading three."""
    complaints: list[str] = []

    def complain(message: Any) -> None:
        # A server that was stopped while the page was open is none of the page's making, and a refusal is shown.
        expected = "net::ERR_" in message.text or "a status of 400" in message.text
        if message.type in ("error", "warning") and not expected:
            complaints.append(f"{message.type}: {message.text}")

    def refuse(dialog: Dialog) -> None:
        complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    page = browser.new_page()
    page.set_default_timeout(SLOW)
    _go_on_where_it_reloads(page)
    page.on("console", complain)
    page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    page.on("dialog", refuse)
    return page, complaints


@pytest.fixture
def page(tab: tuple[Page, list[str]]) -> Iterator[Page]:
    """A page whose console must stay silent: errors, warnings and policy violations fail the test."""
    page, complaints = tab
    page.set_viewport_size({"width": 1200, "height": 800})
    yield page
    page.unroute_all(behavior="ignoreErrors")
    page.goto("about:blank")
    page.emulate_media(color_scheme="null", reduced_motion="null")
    page.context.clear_cookies()
    page.context.clear_permissions()
    told = complaints[:]
    complaints.clear()
    assert told == []


@pytest.fixture
def shop(journal: penstock.Journal) -> penstock.Receipt:
    """A small shop: orders, what they caused, consumers, a queue with dead letters."""
    receipt = None
    for n in range(30):
        receipt = journal.topic("orders").append(
            "order.placed", {"order": n, "total": n * 2.5}, key=f"customer-{n % 7}", headers={"source": "web"}
        )
        paid = journal.topic("payments").append("payment.received", {"order": n}, cause=receipt)
        journal.topic("shipments").append("shipped", {"order": n}, cause=paid)
    journal.topic("orders").commit("billing", 20)
    queue = journal.queue("emails", max_attempts=1, dead_letter="emails.dead")
    queue.push_many([{"to": f"user{n}@example.com"} for n in range(20)])
    for delivery in queue.take_many(5):
        delivery.nack(error="SMTPError: 550 mailbox full")
    queue.take_many(2, consumer="worker-1")
    plain = journal.queue("plain", max_attempts=1)
    plain.push("x")
    delivery = plain.take()
    assert delivery is not None and receipt is not None
    delivery.nack(error="ValueError: broken")
    return receipt


def log_in(page: Page, served: Served, token: str) -> None:
    page.goto(served.url)
    expect(page).to_have_url(f"{served.url}/login")
    page.locator("[name=token]").fill(token)
    page.get_by_role("button", name="Log in").click()


def open_live(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#state")).to_have_text("live")

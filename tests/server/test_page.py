"""The page in a real browser: every page, live updates, keys, logging in, a silent console."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

import penstock
from penstock.core.observe.pipelines import FlowStatus, report
from penstock.core.sampling.collect import take_sample
from penstock.core.sampling.history import History
from penstock.limits import BUFFER_MANIFEST
from server.browser import SLOW, log_in, open_live
from server.crowded import NASTY, add_hostile
from server.serving import ADMIN, TOKENS, Served, serving
from waiting import eventually


def test_every_page_shows_what_it_should(
    page: Page, journal: penstock.Journal, shop: penstock.Receipt, tmp_path: Path
) -> None:
    from penstock.buffer import Producer

    url = f"file://{tmp_path}/bucket"
    with Producer(url) as producer:
        producer.produce([b"a", b"b"]).result(60)
    flow = FlowStatus(
        pipeline="shop",
        flow="revenue",
        state="running",
        sources=["orders"],
        target="revenue",
        rows_per_second=1234.5,
        lag=17,
        started_at=datetime.now(UTC),
    )
    report(journal, [flow])
    with serving(journal, buffers={"intake": url}) as served:
        page.goto(served.url)
        expect(page.locator("#topics")).to_contain_text("orders")
        expect(page.locator("#queues")).to_contain_text("emails")
        expect(page.locator("#failed")).to_have_text("1")
        expect(page.locator("#state")).to_have_text("live")
        page.get_by_role("link", name="orders", exact=True).click()
        expect(page.locator("h1")).to_have_text("orders")
        expect(page.locator("#tail li")).to_have_count(30)
        page.get_by_role("link", name="Consumers", exact=True).click()
        expect(page.locator("#consumers")).to_contain_text("billing")
        page.goto(f"{served.url}/topics/orders/events/30")
        expect(page.locator(".json")).to_contain_text("order: 29")
        expect(page.locator("article time").first).to_have_text(re.compile(r"^\w+ \d+ \d\d:\d\d:\d\d.* UTC"))
        expect(page.get_by_role("region", name="Headers")).to_contain_text("web")
        page.get_by_role("link", name="What caused what").click()
        expect(page.locator(".graph li")).to_have_count(3)
        expect(page.locator(".graph")).to_contain_text("└─ ")
        page.goto(f"{served.url}/queues/emails?tab=dead")
        expect(page.locator("#dead")).to_contain_text("SMTPError: 550 mailbox full")
        page.goto(f"{served.url}/queues/emails?state=in_flight")
        expect(page.locator("#pending")).to_contain_text("worker-1")
        expect(page.locator("#ready")).to_have_text("13")
        page.goto(f"{served.url}/queues/emails.dead")
        expect(page.locator("#ready")).to_have_text("5")
        expect(page.locator("#dead tbody tr")).to_have_count(5)
        page.get_by_role("link", name="Messages").click()
        expect(page.locator('[data-chart="states"]').get_by_role("button", name="dead")).to_contain_text("5")
        page.goto(f"{served.url}/queues/plain?tab=dead")
        expect(page.locator("#failed-messages")).to_contain_text("ValueError: broken")
        page.goto(f"{served.url}/buffers")
        expect(page.locator("#buffers")).to_contain_text("intake")
        expect(page.locator("#buffers tbody td").nth(1)).to_have_text("1")
        # What a pipeline has read waits for nobody, though the manifest still names it.
        flow.read_to = {f"{url}/{BUFFER_MANIFEST}": 1}
        report(journal, [flow])
        expect(page.locator("#buffers tbody td").nth(1)).to_have_text("0")
        expect(page.locator("#buffers tbody td").nth(2)).to_have_text("1")
        page.goto(f"{served.url}/pipelines")
        shown = page.locator('#pipelines tr[data-key="shop/revenue"] td')
        expect(shown.nth(2).get_by_role("link", name="orders")).to_have_attribute("href", "/topics/orders")
        expect(shown.nth(3)).to_have_text("revenue")
        expect(shown.nth(4)).to_have_text("1,234/s")
        expect(shown.nth(5)).to_have_text("17")
        flow.state, flow.lag = "failed", 0
        report(journal, [flow])
        expect(shown.nth(1)).to_have_text("failed")
        expect(page.locator('#followers tr[data-key="billing/orders"] td').nth(3)).to_have_text("10")
        journal.topic("orders").commit("billing", 25)
        expect(page.locator('#followers tr[data-key="billing/orders"] td').nth(3)).to_have_text("5")


def test_the_overview_is_live(page: Page, served: Served, journal: penstock.Journal, shop: penstock.Receipt) -> None:
    page.goto(served.url)
    row = page.locator('#topics tr[data-key="orders"] td')
    expect(row.nth(1)).to_have_text("30")
    journal.topic("orders").append("order.placed", {})
    expect(row.nth(1)).to_have_text("31")
    journal.topic("brand.new").append("k")
    expect(page.locator('#topics tr[data-key="brand.new"] td').first).to_have_text("brand.new")
    page.get_by_role("link", name="brand.new").click()
    expect(page.locator("h1")).to_have_text("brand.new")


def test_the_first_line_says_what_is_wrong_and_leads_there(
    page: Page, served: Served, journal: penstock.Journal
) -> None:
    journal.queue("emails", max_attempts=1, dead_letter="emails.dead").push("x")
    page.goto(served.url)
    health = page.locator("#health")
    expect(health).to_have_text("All is well")
    expect(health).to_have_class("health good")
    delivery = journal.queue("emails").take()
    assert delivery is not None
    delivery.nack(error="550 mailbox full")
    expect(health).to_have_text("1 dead letter from emails")
    expect(health).to_have_class("health alert")
    expect(page.locator("#dead-count")).to_have_text("1")
    expect(page.locator("#backlog")).to_have_text("0")
    expect(page.locator("#oldest")).to_have_text("–")
    health.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("emails")
    expect(page.locator("#dead")).to_contain_text("550 mailbox full")
    for n in range(9):
        queue = journal.queue(f"jobs-{n}", max_attempts=1)
        queue.push("x")
        delivery = queue.take()
        assert delivery is not None
        delivery.nack()
    health.get_by_role("link", name="and 4 more").click()
    expect(page.locator("#findings tbody tr")).to_have_count(10)


def test_charts_show_the_past_by_range_also_after_a_restart(
    page: Page, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    """Three hours of a past that an earlier server wrote down; a browser that looks at it, and at what comes."""
    history = History(journal)
    start = time.time() // 60 * 60 - 3 * 3600
    for minute in range(180):
        sample = take_sample(journal)
        sample.at = start + 60 * minute
        for n, topic in enumerate(sample.topics.values()):
            topic.latest = 6_000 * minute * (n + 1)
        sample.queues["emails"][0].settle_times = {7: 94 * minute, 12: 6 * minute}
        history.add(sample)
    with serving(journal) as served:
        page.goto(served.url)
        rates = page.locator('[data-chart="rates"]')
        page.get_by_role("button", name="1 h", exact=True).click()
        expect(page).to_have_url(f"{served.url}/?range=1h")
        eventually(lambda: int(rates.get_attribute("data-points") or 0) in range(58, 62))
        page.get_by_role("button", name="24 h").click()
        eventually(lambda: int(rates.get_attribute("data-points") or 0) in range(34, 42))
        page.reload()
        expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
        # The pointer tells the value where it is; without it, the newest.
        eventually(lambda: int(rates.get_attribute("data-points") or 0) > 30)
        box = rates.locator(".u-over").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 20)
        expect(rates.locator(".value").first).to_have_text("2,100/s")
        shown = rates.get_by_role("button", name="events in")
        shown.click()
        expect(rates.get_by_role("button", name="events in")).to_have_attribute("aria-pressed", "false")
        page.goto(f"{served.url}/topics/orders?range=15m")
        lags = page.locator('[data-chart="lags"]')
        expect(lags.get_by_role("button")).to_contain_text("billing")
        page.goto(f"{served.url}/queues/emails?range=1h")
        states = page.locator('[data-chart="states"]')
        expect(states.get_by_role("button")).to_have_count(5)
        expect(states.get_by_role("button", name="dead")).to_contain_text("5")
        # A minute in which messages took a tenth of a second, and a few took four.
        settling = page.locator('[data-chart="settling"]')
        expect(settling.get_by_role("button")).to_contain_text(["p50", "p99"])
        lines = served.get("/charts/queues/emails", range="1h").json["charts"]["settling"]["series"]
        assert [max(value or 0 for value in line["values"]) for line in lines] == [0.0980, 3.7546]
        page.goto(f"{served.url}/topics/orders?range=1h")
        expect(page.locator('[data-chart="bytes"]').get_by_role("button")).to_contain_text("KiB/s")
        answer = served.get("/charts/overview", range="1y")
        assert answer.status == 400 and "15m, 1h, 24h, 7d" in answer.json["detail"]


def test_the_tail_follows_filters_and_can_be_paused(
    page: Page, served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    page.goto(f"{served.url}/topics/orders")
    expect(page.locator("#state")).to_have_text("live")
    journal.topic("orders").append("order.cancelled", {"reason": "changed my mind"}, key="customer-3")
    first = page.locator("#tail li").first
    expect(first).to_contain_text("order.cancelled")
    expect(first).to_contain_text("changed my mind")
    page.get_by_role("button", name="Pause").click()
    journal.topic("orders").append("late", 1)
    expect(page.locator("#latest")).to_have_text("32")
    expect(first).not_to_contain_text("late")
    page.get_by_role("button", name="Go on").click()
    expect(first).to_contain_text("late")
    page.fill("#filter-where", "payload.total > 60")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tail li")).to_have_count(5)
    expect(page.locator("#state")).to_have_text("live")
    journal.topic("orders").append("order.placed", {"total": 1})
    journal.topic("orders").append("order.placed", {"total": 100})
    expect(page.locator("#tail li")).to_have_count(6)
    expect(page.locator("#tail li").first).to_contain_text('"total":100')
    page.fill("#filter-where", "payload.total >")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#filter-problem")).to_contain_text("cannot be read")


def test_the_tail_follows_tags_and_what_the_address_chooses(
    page: Page, served: Served, journal: penstock.Journal
) -> None:
    shop = journal.topic("shop")
    shop.append("placed", 1, key="c-1", tags=["country:de", "large"])
    open_live(page, f"{served.url}/topics/shop?key_prefix=c-")
    page.fill("#filter-tag", "country:de")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#filter-tag")).to_have_value("country:de")
    expect(page.locator("#state")).to_have_text("live")
    shop.append("placed", 2, key="c-2", tags=["country:fr"])
    shop.append("placed", 3, key="c-3", tags=["country:de", "large"])
    expect(page.locator("#tail li")).to_have_count(2)
    expect(page.locator("#tail li").first.locator(".tag")).to_have_text(["country:de", "large"])
    page.goto(f"{served.url}/topics/shop?key_prefix=c-3")
    expect(page.locator("#state")).to_have_text("live")
    shop.append("placed", 4, key="c-1")
    shop.append("placed", 5, key="c-31")
    expect(page.locator("#tail li .payload")).to_have_text(["5", "3"])


def test_what_comes_while_the_page_loads_is_shown(
    page: Page, served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    """Also where it shows no event yet, and follows from where the topic ended when it was made."""

    def late(route: Route) -> None:
        journal.topic("orders").append("unheard.of", {"n": 1})
        route.continue_()

    page.route("**/events.js*", late, times=1)
    page.goto(f"{served.url}/topics/orders?kind=unheard.of")
    expect(page.locator("#tail li")).to_have_count(1)


def test_an_event_pressed_before_the_scripts_are_there_is_shown_when_they_are(
    page: Page, served: Served, shop: penstock.Receipt
) -> None:

    def late(route: Route) -> None:
        page.evaluate("document.querySelector('#tail li .kind').click()")
        route.continue_()

    page.route("**/events.js*", late, times=1)
    page.goto(f"{served.url}/topics/orders", wait_until="commit")
    expect(page.locator("#inspector")).to_contain_text("order.placed")


def test_an_event_is_inspected_in_place(page: Page, served: Served, shop: penstock.Receipt) -> None:
    page.goto(f"{served.url}/topics/orders")
    page.locator('#tail li[data-seq="7"] .kind').click()
    inspector = page.locator("#inspector")
    expect(inspector).to_be_visible()
    expect(inspector.locator(".json")).to_contain_text("total: 15")
    expect(inspector.get_by_role("region", name="Headers")).to_contain_text("source")
    expect(inspector.get_by_role("region", name="Cause and effects")).to_contain_text("caused payments #7")
    inspector.get_by_role("button", name="Raw").click()
    expect(inspector.locator("pre.raw")).to_contain_text('"total": 15')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    inspector.get_by_role("button", name="Copy", exact=True).click()
    eventually(lambda: '"total": 15' in page.evaluate("navigator.clipboard.readText()"))
    inspector.get_by_role("link", name="Newer").click()
    expect(inspector.locator("h2")).to_have_text("orders #8")
    inspector.get_by_role("link", name="What caused what").click()
    expect(page.locator(".graph")).to_contain_text("payment.received")


def test_older_events_are_a_click_away(page: Page, served: Served, journal: penstock.Journal) -> None:
    journal.topic("long").append_many([penstock.Draft("k", n) for n in range(120)])
    page.goto(f"{served.url}/topics/long")
    expect(page.locator("#tail li").first).to_contain_text("#120")
    page.get_by_role("link", name="Older events").click()
    expect(page.locator("#tail li").first).to_contain_text("#70")
    page.get_by_role("link", name="Older events").click()
    expect(page.locator("#tail li")).to_have_count(20)
    expect(page.get_by_role("link", name="Older events")).to_have_count(0)


def test_the_queues_page_is_live(page: Page, served: Served, journal: penstock.Journal, shop: penstock.Receipt) -> None:
    page.goto(f"{served.url}/queues/emails?state=in_flight")
    journal.queue("emails").push_many([{}] * 4)
    expect(page.locator("#ready")).to_have_text("17")
    journal.queue("emails").take(consumer="worker-2")
    expect(page.locator("#pending")).to_contain_text("worker-2")
    expect(page.locator("#in-flight")).to_have_text("3")
    page.locator(".tabs").get_by_role("link", name="Workers").click()
    worker = page.locator('#workers tr[data-key="emails/default/worker-2"] td')
    expect(worker.nth(0)).to_have_text("worker-2")
    expect(worker.nth(1)).to_have_text("active")
    expect(worker.nth(2)).to_contain_text("#8, for ")
    expect(worker.nth(4)).to_have_text(os.uname().nodename)
    held = page.locator('#workers tr[data-key="emails/default/worker-1"] td')
    expect(held.nth(2)).to_contain_text("#6, #7, for ")
    for column in (5, 6):  # since, and the last sign of life, in the reader's own time
        expect(worker.nth(column)).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))


def test_a_cell_leads_to_what_it_names_now(page: Page, served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("mails", lease=3600)
    queue.push_many([1, 2])
    first = queue.take(consumer="mailer")
    assert first is not None
    open_live(page, f"{served.url}/workers")
    works_on = page.locator("#workers tbody tr", has_text="mailer").locator("td").nth(3)
    expect(works_on.locator("a")).to_have_attribute("href", "/topics/mails/events/1")
    first.ack()
    expect(works_on).to_have_text("waits")
    expect(works_on.locator("a")).to_have_count(0)
    assert queue.take(consumer="mailer") is not None
    expect(works_on.locator("a")).to_have_attribute("href", "/topics/mails/events/2")


def test_nothing_in_the_data_becomes_markup(page: Page, served: Served, journal: penstock.Journal) -> None:
    """Dialogs and console errors (a blocked script is one) fail the test when the page closes."""
    lost = served.ask("GET", "/nothing%3Cscript%3E", headers={"Accept": "text/html"})
    assert lost.status == 404 and b"<script>" not in lost.data
    first = add_hostile(journal)
    topic = journal.topic("nasty")
    for path in ("/", f"/search?q={NASTY[:20]}", "/topics/nasty", "/topics/nasty?where=%3Cb%3E&kind=%3Cb%3E",
                 "/topics/nasty/events/1", "/queues/jobs", "/queues/jobs?tab=dead"):  # fmt: skip
        answer = page.goto(served.url + path)
        assert answer is not None and answer.ok
        assert page.locator("img").count() == 0
    page.goto(f"{served.url}/topics/nasty")
    topic.append(NASTY[:255], NASTY, key=NASTY, cause=first)
    expect(page.locator("#tail li")).to_have_count(2)
    expect(page.locator("#tail li").first).to_contain_text("<script>alert(1)</script>")
    page.locator("#tail li").first.locator(".kind").click()
    expect(page.locator("#inspector")).to_contain_text("onerror=alert(2)")
    page.locator("#inspector").get_by_role("link", name="What caused what").click()
    expect(page.locator(".graph li")).to_have_count(2)


def test_the_keyboard_is_enough(page: Page, served: Served, shop: penstock.Receipt) -> None:
    page.goto(served.url)
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("t")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("ship")
    page.keyboard.press("Enter")
    expect(page.locator("#topics tbody tr")).to_have_count(1)
    expect(page.locator("#state")).to_have_text("live")
    page.locator("#content").focus()
    page.keyboard.press("j")
    expect(page.locator("tr.current")).to_contain_text("shipments")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("shipments")
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.locator("h1")).to_have_text("Pipelines")
    expect(page.locator("#state")).to_have_text("live")
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.locator("h1")).to_have_text("Overview")


def background(page: Page) -> int:
    """How light the page is, from 0 to 765."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour[4:-1].split(",")[:3])


def test_dark_and_light(page: Page, served: Served) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(served.url)
    assert background(page) < 200
    page.locator("#theme").click()
    assert background(page) > 600
    page.reload()
    assert background(page) > 600
    page.keyboard.press("t")
    assert background(page) < 200


def test_the_page_comes_back_when_the_server_does(page: Page, journal: penstock.Journal) -> None:
    journal.topic("t").append("k", "before")
    with serving(journal) as served:
        open_live(page, f"{served.url}/topics/t")
    expect(page.locator("#state")).to_have_text("reconnecting…")
    expect(page.locator("#health")).to_have_text(re.compile(r"No data since \d\d:\d\d:\d\d"))
    expect(page.locator("#health")).to_have_class("health unknown")
    journal.topic("t").append("k", "while it was away")
    with serving(journal, reuse=served.port):
        expect(page.locator("#tail li").first).to_contain_text("while it was away")
        expect(page.locator("#health")).to_have_text("All is well")


def test_a_token_opens_the_page_and_logging_out_closes_it(
    browser: Browser, guarded: Served, shop: penstock.Receipt
) -> None:
    context = browser.new_context()  # its console says that the answer was a 403
    context.set_default_timeout(SLOW)
    page = context.new_page()
    log_in(page, guarded, "not-a-known-token")
    expect(page.get_by_role("alert")).to_contain_text("not known")
    log_in(page, guarded, ADMIN)
    expect(page.locator("h1")).to_have_text("Overview")
    (cookie,) = context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and ADMIN not in cookie["value"]
    assert ADMIN not in page.content()
    page.goto(f"{guarded.url}/queues/emails?tab=dead")
    page.get_by_role("button", name="Send all back").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_text("no dead letters")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{guarded.url}/login")
    page.goto(guarded.url)
    expect(page).to_have_url(f"{guarded.url}/login")
    context.close()


def test_it_can_be_mounted_in_another_application(
    page: Page, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    import penstock.server

    inner = penstock.server.app(journal, tokens=TOKENS)
    outer: Any = Starlette(routes=[Mount("/internal/events", app=inner)])
    outer.penstock = inner.state.service
    with serving(journal, app=outer) as served:
        home = f"{served.url}/internal/events/"
        page.goto(home)
        expect(page).to_have_url(f"{home}login")
        page.locator("[name=token]").fill(ADMIN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="orders", exact=True).click()
        expect(page.locator("#state")).to_have_text("live")
        page.locator('#tail li[data-seq="7"] .kind').click()
        expect(page.locator("#inspector .json")).to_contain_text("order: 6")
        page.goto(f"{home}queues/emails?tab=dead")
        page.get_by_role("button", name="Send all back").click()
        page.locator("#confirm-yes").click()
        expect(page.get_by_text("no dead letters")).to_be_visible()

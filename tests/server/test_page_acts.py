"""Doing things in a real browser: every form and button, asked back with a number, refused to those who only read."""

from __future__ import annotations

import socket
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

import penstock
from penstock.observe.workers import say_gave_up
from server.browser import log_in
from server.serving import READ, Served, wait_until


def say_yes(page: Page, question: str) -> None:
    expect(page.locator("#question")).to_contain_text(question)
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm")).to_be_hidden()


def test_an_event_is_published_like_a_recent_one(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    page = open_page()
    page.goto(f"{served.url}/topics/orders")
    form = page.locator("#publish")
    form.locator("[data-template]").select_option(index=1)
    expect(form.locator("[name=kind]")).to_have_value("order.placed")
    expect(form.locator("[name=key]")).to_have_value("customer-1")
    field = form.locator("[name=payload]")
    expect(field).to_have_value('{\n  "order": 29,\n  "total": 72.5\n}')
    field.fill('{"order": 99,')
    expect(form.get_by_role("alert")).to_contain_text("JSON")
    form.get_by_role("button", name="Publish").click()
    assert journal.topic("orders").latest == 30
    field.fill('{"order": 99}')
    form.get_by_role("button", name="Publish").click()
    expect(page.locator("#toast")).to_contain_text("order.placed was published as orders #31")
    expect(page.locator("#tail li").first).to_contain_text('{"order":99}')


def test_a_topic_and_a_queue_are_made_changed_and_dropped(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    page = open_page()
    page.goto(served.url)
    page.get_by_text("Make a topic or a queue").click()
    form = page.locator("#make-topic")
    form.locator("[name=topic]").fill("measures")
    form.locator("[name=max_age]").fill("7d")
    form.get_by_role("button", name="Make the topic").click()
    say_yes(page, "Make the topic measures and keep for 7 d?")
    expect(page.locator("#toast")).to_contain_text("measures keeps for 7 d")
    expect(page.locator("#topics")).to_contain_text("measures")
    page.get_by_text("Make a topic or a queue").click()
    form = page.locator("#make-queue")
    form.locator("[name=queue]").fill("jobs")
    form.locator("[name=lease]").fill("5m")
    form.get_by_role("button", name="Make the queue").click()
    expect(page.locator("#queues")).to_contain_text("jobs")
    page.goto(f"{served.url}/queues/jobs")
    page.locator("#push [name=payload]").fill('{"n": 1}')
    page.locator("#push").get_by_role("button", name="Push").click()
    expect(page.locator("#ready")).to_have_text("1")
    page.get_by_text("Change it").click()
    expect(page.locator("#policy [name=lease]")).to_have_value("5m")
    page.locator("#policy [name=lease]").fill("1h30m")
    page.locator("#policy").get_by_role("button", name="Save").click()
    say_yes(page, "Change lease of jobs, with 1 message in it?")
    expect(page.locator("#policy-section")).to_contain_text("1.5 h")
    page.get_by_text("Change it").click()
    page.get_by_label("Deliveries, at most").fill("100/s")
    page.get_by_label("Dead letters go to").fill("jobs.dead")
    page.get_by_label("Messages older than the topic keeps").select_option("dead_letter")
    page.locator("#policy").get_by_role("button", name="Save").click()
    say_yes(page, "Change dead letter, retention, rate of jobs, with 1 message in it?")
    expect(page.locator("#policy-section")).to_contain_text("100/s")
    assert journal.queue("jobs").policy.retention == "dead_letter"
    form = page.locator("#add-schedule")
    form.locator("[name=name]").fill("nightly")
    form.locator("[name=when]").fill("0 6 * * mon")
    form.get_by_role("button", name="Add the schedule").click()
    expect(page.locator("#schedules")).to_contain_text("nightly")
    page.get_by_role("button", name="Run now nightly").click()
    expect(page.locator("#toast")).to_contain_text("the message of nightly was pushed as jobs #2")
    page.get_by_role("button", name="Remove nightly").click()
    say_yes(page, "Remove the schedule nightly of jobs?")
    expect(page.locator("#schedules tbody tr")).to_have_count(0)
    page.get_by_role("button", name="Drop the queue").click()
    say_yes(page, "2 messages")
    expect(page.locator("h1")).to_have_text("Overview")
    assert journal.queues() == []


def test_a_topic_is_dropped_with_what_belongs_to_it_after_asking(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    jobs = journal.queue("jobs")
    jobs.push_many([1, 2, 3])
    journal.topic("jobs").commit("billing", 1)
    page = open_page()
    page.goto(f"{served.url}/topics/jobs")
    form = page.locator("#drop-topic")
    form.get_by_label("also with its consumers and its queue").check()
    form.get_by_role("button", name="Drop the topic").click()
    say_yes(page, "Drop the topic jobs with 3 events, 1 consumer and 1 queue with 3 messages? This cannot be undone.")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(page.locator("#toast")).to_contain_text("the topic jobs was dropped with 3 events")
    assert journal.topics() == ["penstock.audit"] and journal.queues() == []
    done = next(journal.topic("penstock.audit").read(reverse=True))
    assert (done.kind, done.key) == ("console.drop-topic", "jobs")


def test_a_dead_letter_is_edited_another_deleted_and_some_sent_back_by_a_condition(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    page = open_page()
    page.goto(f"{served.url}/queues/emails")
    page.locator("#dead tbody tr").first.locator("td").nth(3).click()
    inspector = page.locator("#inspector")
    inspector.get_by_text("Edit it and send it back").click()
    inspector.locator("textarea").fill('{"to": "mended@example.com"}')
    inspector.get_by_role("button", name="Send the edited one").click()
    say_yes(page, "Push 1 edited message to emails")
    expect(page.locator("#dead tbody tr")).to_have_count(4)
    assert any(event.payload == {"to": "mended@example.com"} for event in journal.queue("emails"))
    page.locator("#dead tbody tr").first.locator("td").nth(3).click()
    inspector.get_by_role("button", name="Delete").click()
    say_yes(page, "Delete 1 message, emails.dead #2?")
    expect(page.locator("#dead tbody tr")).to_have_count(3)
    page.locator("#dead-section [name=where]").fill("payload.to = 'user3@example.com'")
    page.get_by_role("button", name="Send those back").click()
    say_yes(page, "Send 1 message back")
    expect(page.locator("#dead tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Delete all").click()
    say_yes(page, "Delete 2 messages that emails gave up?")
    expect(page.get_by_text("no dead letters")).to_be_visible()
    expect(page.locator("#health")).to_contain_text("1 message of plain failed")
    kinds = [event.kind for event in journal.topic("penstock.audit").read()]
    assert kinds == ["console.edit", "console.delete-message", "console.redrive", "console.delete"]


def test_a_message_in_flight_is_released_and_a_consumer_moved_to_an_event(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    page = open_page()
    page.goto(f"{served.url}/queues/emails")
    expect(page.locator("#pending tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Release #6").click()
    say_yes(page, "Take 1 message, emails #6, from worker-1?")
    expect(page.locator("#toast")).to_contain_text("emails #6 is ready again")
    expect(page.locator("#pending tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Done #7").click()
    say_yes(page, "Settle as done 1 message, emails #7, which worker-1 still works on?")
    expect(page.get_by_text("nothing is in flight")).to_be_visible()
    page.goto(f"{served.url}/topics/orders")
    page.locator('#tail li[data-seq="12"] .kind').click()
    page.get_by_role("button", name="to this event").click()
    say_yes(page, "Move billing from 20 to 11 of orders: it will get 9 events again?")
    expect(page.locator("#toast")).to_contain_text("billing is at 11")  # on the page that is loaded then
    assert journal.topic("orders").cursor("billing") == 11
    page.locator("#seek [name=consumer]").fill("billing")
    page.locator("#seek [name=value]").fill("abc")
    page.locator("#seek").get_by_role("button", name="Seek").click()
    expect(page.locator("#toast")).to_contain_text("value is a whole number, like 1200, not 'abc'")


def test_a_queue_is_paused_and_goes_on(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    page = open_page()
    page.goto(f"{served.url}/queues/emails")
    page.get_by_role("button", name="Pause the queue").click()
    say_yes(page, "Pause emails? 13 ready messages will wait until it is resumed; 2 messages in flight")
    expect(page.locator(".paused")).to_contain_text("The queue is paused since")
    expect(page.locator("#health")).to_contain_text("emails is paused")
    assert journal.queue("emails").take() is None
    page.goto(served.url)
    expect(page.locator("#queues")).to_contain_text("emails (paused)")
    page.goto(f"{served.url}/queues/emails")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".paused")).to_have_count(0)
    assert journal.queue("emails").take() is not None


def test_a_worker_that_gave_up_is_named_shown_and_forgotten(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    say_gave_up(journal, "orders:billing", ValueError("<b>no</b> such table"))
    page = open_page()
    page.goto(served.url)
    link = page.locator("#health").get_by_role("link", name="orders:billing")
    expect(link).to_be_visible()
    link.click()
    expect(page.locator("#gave-up")).to_contain_text("ValueError: <b>no</b> such table")
    expect(page.locator("#gave-up")).to_contain_text(socket.gethostname())
    page.get_by_role("button", name="Forget orders:billing").click()
    say_yes(page, "Forget 1 report, that orders:billing gave up?")
    expect(page.locator("#health")).to_contain_text("All is well")
    expect(page.get_by_text("no worker has given up")).to_be_visible()


def test_messages_are_listed_by_state_run_now_edited_and_deleted(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal, shop: penstock.Receipt
) -> None:
    queue = journal.queue("emails")
    for n in range(55):
        queue.push({"late": n}, delay=3600)
    page = open_page()
    page.goto(f"{served.url}/queues/emails")
    page.get_by_role("link", name="delayed", exact=True).click()
    rows = page.locator("#messages tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next →").click()
    expect(rows).to_have_count(5)
    page.get_by_role("button", name="Run now #71").click()
    expect(rows).to_have_count(4)
    assert [one.seq for one in queue.messages("ready", after=70)] == [71]
    page.get_by_role("button", name="Delete #72").click()
    say_yes(page, "Delete 1 message, emails #72?")
    expect(rows).to_have_count(3)
    rows.first.locator("td").nth(8).click()
    inspector = page.locator("#inspector")
    expect(inspector.get_by_role("region", name="As a message")).to_contain_text("0 of 1")
    inspector.get_by_text("Edit it").click()
    inspector.locator("textarea").fill('{"late": "mended"}')
    inspector.get_by_role("button", name="Send the edited one").click()
    say_yes(page, "Push 1 edited message to emails and delete emails #73?")
    expect(page.locator("#toast")).to_contain_text("the edited message is emails #76")
    assert queue.get(73) is None
    assert [one.event.payload for one in queue.messages("delayed", after=75)] == [{"late": "mended"}]
    page.get_by_role("button", name="Run all delayed messages now").click()
    say_yes(page, "Run 53 delayed messages of emails now?")
    expect(page.get_by_text("no message is in this state")).to_be_visible()
    page.get_by_role("link", name="in flight", exact=True).click()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("worker-1")
    page.get_by_role("link", name="The queue", exact=True).click()
    page.locator("#dead-section [name=rate]").fill("1000")
    page.get_by_role("button", name="Send all back").click()
    say_yes(page, "Send 5 messages back to their queue, 1,000 a second")
    wait_until(lambda: not list(queue.dead_letters()))


def test_who_may_only_read_is_offered_nothing_to_do(
    open_page: Callable[..., Page], guarded: Served, shop: penstock.Receipt
) -> None:
    page = open_page()
    log_in(page, guarded, READ)
    for path in (
        "/",
        "/queues/emails",
        "/queues/emails/messages",
        "/queues/emails/messages?state=delayed",
        "/topics/orders",
        "/topics/orders/events/3",
        "/schedules",
    ):
        page.goto(guarded.url + path)
        expect(page.locator("#state")).to_have_text("live")
        assert page.locator("[data-act]").count() == 0, path


def test_a_button_pressed_before_the_scripts_are_there_is_not_lost(
    open_page: Callable[..., Page], served: Served, journal: penstock.Journal
) -> None:
    journal.queue("emails").push({"to": "ada"})
    page = open_page()
    held: list[Route] = []
    page.route("**/static/page.js", lambda route: held.append(route))
    page.goto(f"{served.url}/queues/emails", wait_until="commit")
    page.get_by_role("button", name="Drop the queue").click()
    assert page.locator("#question").text_content() == ""
    wait_until(lambda: page.locator("h1").count() == 1 and bool(held))
    held[0].continue_()
    say_yes(page, "1 message")
    expect(page.locator("h1")).to_have_text("Overview")
    assert journal.queues() == []

"""Doing things in a real browser, each asked back with a number: every form and button, on a journal with a thousand
topics, a hundred thousand messages, and names that would like to be markup."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page, Route, expect

import penstock
from penstock import Retry
from penstock.core.observe.workers import say_gave_up
from server.browser import log_in, open_live
from server.crowded import MESSAGES, NASTY
from server.serving import READ, Served
from waiting import eventually


def say_yes(page: Page, question: str) -> None:
    """Until the page says what was done: by then it has loaded itself again, and no later step meets that."""
    toast = page.locator("#toast")
    expect(page.locator("#question")).to_contain_text(question)
    toast.evaluate("toast => { toast.textContent = ''; }")
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm")).to_be_hidden()
    expect(toast).not_to_be_empty()


def type_and_say_yes(page: Page, question: str, name: str) -> None:
    """Of what destroys much, the name has to be typed."""
    expect(page.locator("#question")).to_contain_text(question)
    expect(page.locator("#confirm-yes")).to_be_disabled()
    page.locator("#confirm-name").fill(name)
    say_yes(page, question)


def say_no(page: Page) -> None:
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    expect(page.locator("#confirm")).to_be_hidden()


def said(page: Page, text: str) -> None:
    expect(page.locator("#toast")).to_contain_text(text)


def newest_act(journal: penstock.Journal) -> tuple[str, str | None]:
    done = next(journal.topic("penstock.audit").read(reverse=True))
    return done.kind, done.key


def test_topics_are_made_published_to_kept_compacted_and_dropped(page: Page, crowd: Served) -> None:
    journal = crowd.journal
    page.goto(f"{crowd.url}/topics")
    page.get_by_text("Make a topic").click()
    form = page.locator("#make-topic")
    form.locator("[name=topic]").fill("made.here")
    form.locator("[name=max_age]").fill("7d")
    form.get_by_role("button", name="Make the topic").click()
    say_yes(page, "Make the topic made.here and keep for 7 d?")
    said(page, "made.here keeps for 7 d")
    page.goto(f"{crowd.url}/topics/made.here")
    page.get_by_text("Publish an event").click()
    form = page.locator("#publish")
    field = form.locator("[name=payload]")
    form.locator("[name=kind]").fill(NASTY[:80])
    form.locator("[name=key]").fill(NASTY)
    field.fill('{"n": 1')
    expect(form.get_by_role("alert")).to_contain_text("JSON")
    form.get_by_role("button", name="Publish").click()
    assert journal.topic("made.here").latest == 0
    field.fill('{"n": 1}')
    for n in (1, 2):
        form.get_by_role("button", name="Publish").click()
        said(page, f"was published as made.here #{n}")
    expect(page.locator("#tail li")).to_have_count(2)
    page.reload()
    page.get_by_text("Publish an event").click()
    form.locator("[data-template]").select_option(index=1)
    expect(form.locator("[name=kind]")).to_have_value(NASTY[:80])
    expect(form.locator("[name=key]")).to_have_value(NASTY)
    expect(field).to_have_value('{\n  "n": 1\n}')
    form.get_by_role("button", name="Publish").click()
    said(page, "made.here #3")
    page.get_by_role("link", name="Settings").click()
    page.locator("#retention [name=max_bytes]").fill("64MiB")
    page.locator("#retention [name=max_events]").fill("2")
    page.locator("#retention").get_by_role("button", name="Save").click()
    say_yes(page, "Keep for 7 d, the newest 2 events, 64.0 MiB of events in made.here? 1 event of 3 will be removed")
    said(page, "made.here keeps")
    expect(page.locator("#retention [name=max_bytes]")).to_have_value("64MiB")
    assert journal.topic("made.here").settings.max_bytes == 64 << 20
    page.locator("#compact [name=through]").fill("1")
    page.locator("#compact").get_by_role("button", name="Remove").click()
    type_and_say_yes(page, "through position 1?", "made.here")
    said(page, "removed from made.here")
    assert newest_act(journal)[0] == "console.compact"
    page.goto(f"{crowd.url}/topics/made.here?tab=settings")
    journal.queue("made.here").push(1)
    journal.topic("made.here").commit("billing", 3)
    form = page.locator("#drop-topic")
    form.get_by_label("also with its consumers and its queue").check()
    form.get_by_role("button", name="Drop the topic").click()
    type_and_say_yes(page, "1 consumer and 1 queue with", "made.here")
    expect(page.locator("h1")).to_have_text("Topics")
    assert "made.here" not in journal.topics() and newest_act(journal) == ("console.drop-topic", "made.here")


def test_consumers_are_moved_by_position_time_and_event_and_forgotten(page: Page, crowd: Served) -> None:
    topic = crowd.journal.topic("followed")
    for n in range(300):
        topic.append("counted", {"n": n})
    topic.commit(NASTY, 250)
    page.goto(f"{crowd.url}/topics/followed?tab=consumers")
    form = page.locator("#seek")

    def seek(to: str, value: str, question: str, position: int) -> None:
        form.locator("[name=consumer]").fill(NASTY)
        form.locator("[name=to]").select_option(to)
        form.locator("[name=value]").fill(value)
        form.get_by_role("button", name="Seek").click()
        say_yes(page, question)
        eventually(lambda: topic.cursor(NASTY) == position)

    form.locator("[name=consumer]").fill(NASTY)
    form.locator("[name=value]").fill("abc")
    form.get_by_role("button", name="Seek").click()
    said(page, "value: 'abc' is no whole number")
    form.locator("[name=value]").fill("100")
    form.get_by_role("button", name="Seek").click()
    say_no(page)
    assert topic.cursor(NASTY) == 250
    seek("position", "100", f"Move {NASTY} from 250 to 100 of followed: it will get 150 events again?", 100)
    seek("time", (datetime.now(UTC) + timedelta(seconds=5)).isoformat(), "it will skip 200 events?", 300)
    seek("time", "1h", "it will get 300 events again?", 0)
    seek("event", "41", "it will skip 40 events?", 40)
    seek("end", "", "it will skip 260 events?", 300)
    seek("start", "", "it will get 300 events again?", 0)
    page.goto(f"{crowd.url}/topics/followed")
    page.locator('#tail li[data-seq="290"] .kind').click()
    page.get_by_role("button", name="to this event").click()
    say_yes(page, f"Move {NASTY} from 0 to 289 of followed: it will skip 289 events?")
    eventually(lambda: topic.cursor(NASTY) == 289)
    page.goto(f"{crowd.url}/topics/followed?tab=consumers")
    page.locator("#consumers").get_by_role("button", name="Forget").click()
    say_yes(page, f"Forget that {NASTY} is at 289 of followed?")
    expect(page.get_by_text("no consumer has committed a position")).to_be_visible()
    assert newest_act(crowd.journal) == ("console.forget", "followed")


def test_queues_groups_and_schedules_are_made_changed_and_dropped(page: Page, crowd: Served) -> None:
    journal = crowd.journal
    page.goto(f"{crowd.url}/queues")
    page.get_by_text("Make a queue").click()
    form = page.locator("#make-queue")
    form.locator("[name=queue]").fill("made.queue")
    form.locator("[name=mode]").select_option("fanout")
    form.locator("[name=lease]").fill("5m")
    form.get_by_role("button", name="Make the queue").click()
    said(page, "made.queue")
    assert "made.queue" in journal.queues()
    page.goto(f"{crowd.url}/queues/made.queue?tab=groups")
    for group in (NASTY, "second"):
        page.locator("#add-group [name=name]").fill(group)
        page.locator("#add-group").get_by_role("button", name="Add the group").click()
        said(page, f"the group {group} was added")
    assert sorted(journal.queue("made.queue").groups()) == sorted([NASTY, "second"])
    page.goto(f"{crowd.url}/queues/made.queue")
    page.get_by_text("Push a message").click()
    push = page.locator("#push")
    push.locator("[name=payload]").fill('{"n": 1}')
    push.locator("[name=delay]").fill("1h")
    push.get_by_role("button", name="Push").click()
    said(page, "made.queue #1")
    page.get_by_role("link", name="Policy").click()
    page.locator("#policy [name=lease]").fill("1h30m")
    page.locator("#policy [name=retry]").fill("exponential:1s:5m")
    page.get_by_label("rate", exact=True).fill("100/s")
    page.get_by_label("dead_letter").fill("made.dead")
    page.get_by_label("retention").select_option("dead_letter")
    page.locator("#policy").get_by_role("button", name="Save").click()
    say_yes(page, "of made.queue, with 1 message in it?")
    said(page, "made.queue")
    expect(page.get_by_label("lease")).to_have_value("1h30m")
    policy = journal.queue("made.queue").policy
    assert policy.retention == "dead_letter" and policy.rate is not None and policy.dead_letter == "made.dead"
    assert policy.lease == 5400 and policy.retry == Retry.exponential(1, factor=2, cap=300)
    page.get_by_role("link", name="Schedules").last.click()
    page.get_by_text("Add a schedule").click()
    form = page.locator("#add-schedule")
    form.locator("[name=name]").fill(NASTY)
    form.locator("[name=when]").fill("90m")
    form.locator("[name=payload]").fill('{"tick": true}')
    form.get_by_role("button", name="Add the schedule").click()
    said(page, NASTY)
    expect(page.locator("#schedules tbody tr")).to_have_count(1)
    page.locator("#schedules").get_by_role("button", name="Run now").click()
    said(page, "was pushed as made.queue #2")
    page.locator("#schedules .menu summary").click()
    page.locator("#schedules").get_by_role("button", name="Remove").click()
    say_yes(page, f"Remove the schedule {NASTY} of made.queue?")
    said(page, "removed")
    expect(page.locator("#schedules tbody tr")).to_have_count(0)
    page.goto(f"{crowd.url}/queues/made.queue")
    page.get_by_role("link", name="second").first.click()
    page.get_by_role("button", name="Pause the group second").click()
    say_yes(page, "Pause")
    expect(page.locator(".paused")).to_contain_text("The group second is paused")
    page.get_by_role("button", name="Resume").click()
    said(page, "made.queue/second goes on")
    expect(page.locator(".paused")).to_have_count(0)
    page.get_by_role("link", name="Groups").click()
    page.get_by_role("button", name="Remove the group second").click()
    say_yes(page, "second")
    said(page, "the group second was removed")
    assert journal.queue("made.queue").groups() == [NASTY]
    page.goto(f"{crowd.url}/queues/made.queue?tab=policy")
    page.get_by_role("button", name="Remove every message").click()
    say_no(page)
    assert len(journal.queue("made.queue")) == 2
    page.get_by_role("button", name="Remove every message").click()
    type_and_say_yes(page, "2 messages", "made.queue")
    said(page, "2 messages")
    assert len(journal.queue("made.queue")) == 0
    page.get_by_role("button", name="Drop the queue").click()
    type_and_say_yes(page, "made.queue", "made.queue")
    expect(page.locator("h1")).to_have_text("Queues")
    assert "made.queue" not in journal.queues() and newest_act(journal) == ("console.drop-queue", "made.queue")


def test_a_hundred_thousand_messages_are_paused_and_go_on(page: Page, crowd: Served) -> None:
    invoices = crowd.journal.queue("invoices")
    page.goto(f"{crowd.url}/queues/invoices")
    page.get_by_role("button", name="Pause the queue").click()
    say_yes(page, f"Pause invoices? {MESSAGES - 3:,} ready messages will wait until it is resumed")
    expect(page.locator(".paused")).to_contain_text("The queue is paused")
    assert invoices.take() is None
    page.goto(f"{crowd.url}/queues?queues-sort=ready")
    expect(page.locator("#queues tr.warning, #queues tr.alert").first).to_contain_text("invoices (paused)")
    page.goto(f"{crowd.url}/queues/invoices")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".paused")).to_have_count(0)
    assert not invoices.pauses() and newest_act(crowd.journal) == ("console.resume", "invoices")


def fill_own(journal: penstock.Journal, name: str) -> penstock.Queue:
    """A queue of a test's own in the crowd: sixty dead, three in flight, five delayed, ten ready."""
    queue = journal.queue(name, max_attempts=1, lease=3600, dead_letter=f"{name}.dead")
    queue.push_many([{"n": n} for n in range(60)])
    for delivery in queue.take_many(60, consumer=NASTY):
        delivery.nack(error=NASTY)
    queue.push_many([{"held": n} for n in range(3)])
    queue.take_many(3, consumer=NASTY)
    for n in range(5):
        queue.push({"late": n}, delay=3600)
    queue.push_many([{"ready": n} for n in range(10)])
    return queue


def test_dead_letters_are_sent_back_chosen_by_condition_all_slowly_edited_and_deleted(
    page: Page, crowd: Served
) -> None:
    queue = fill_own(crowd.journal, "letters")
    page.goto(f"{crowd.url}/queues/letters?tab=dead")
    section = page.locator("#dead-section")
    boxes = section.locator("tbody input[type=checkbox]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    section.get_by_role("button", name="Send chosen back").click()
    say_no(page)
    assert len(list(queue.dead_letters())) == 60
    section.get_by_role("button", name="Send chosen back").click()
    say_yes(page, "Send 2 messages back to their queue, with a fresh budget?")
    said(page, "2 messages were sent back")
    assert len(list(queue.dead_letters())) == 58
    section.locator("[name=dead-where]").fill("payload.n < 10")
    section.get_by_role("button", name="Filter").click()
    section.get_by_role("button", name="Send all that match back").click()
    say_yes(page, "Send 10 messages back")
    said(page, "10 messages were sent back")
    page.goto(f"{crowd.url}/queues/letters?tab=dead")
    expect(section.locator("tbody tr")).to_have_count(48)
    section.locator("tbody tr").first.locator("td").nth(3).click()
    inspector = page.locator("#inspector")
    expect(inspector.get_by_role("region", name="Failed attempts")).to_contain_text(NASTY)
    inspector.get_by_text("Edit it and send it back").click()
    inspector.locator("textarea").fill('{"n": "mended"}')
    inspector.get_by_role("button", name="Send the edited one").click()
    say_yes(page, "Push 1 edited message to letters")
    said(page, "the edited message is letters #")
    expect(section.locator("tbody tr")).to_have_count(47)
    section.locator("tbody tr").first.locator("td").nth(3).click()
    inspector.get_by_role("button", name="Send back", exact=True).click()
    say_yes(page, "Send 1 message back")
    said(page, "1 message was sent back")
    expect(section.locator("tbody tr")).to_have_count(46)
    section.locator("tbody tr").first.locator("td").nth(3).click()
    inspector.locator(".menu summary").click()
    inspector.get_by_role("button", name="Delete", exact=True).click()
    say_yes(page, "Delete 1 message, letters.dead #")
    said(page, "1 message was deleted")
    expect(section.locator("tbody tr")).to_have_count(45)
    boxes.nth(0).check()
    section.get_by_text("Delete…").click()
    section.get_by_role("button", name="Delete chosen").click()
    type_and_say_yes(page, "Delete 1 message that letters gave up?", "letters")
    expect(section.locator("tbody tr")).to_have_count(44)
    section.locator("[name=rate]").fill("1000")
    section.get_by_role("button", name="Send all back").click()
    say_yes(page, "Send 44 messages back to their queue, 1,000 a second")
    said(page, "44 messages will be sent back")
    eventually(lambda: not list(queue.dead_letters()))
    kinds = [event.kind for event in crowd.journal.topic("penstock.audit").read() if event.key == "letters"]
    assert kinds.count("console.redrive") == 3 and kinds.count("console.delete") == 1


def test_delayed_ready_and_flying_messages_are_run_edited_deleted_released_and_settled(
    page: Page, crowd: Served
) -> None:
    queue = fill_own(crowd.journal, "flying")
    page.goto(f"{crowd.url}/queues/flying?state=delayed")
    rows = page.locator("#messages tbody tr")
    expect(rows).to_have_count(5)
    page.get_by_role("button", name="Run now #64").click()
    said(page, "1 message was made ready")
    expect(rows).to_have_count(4)
    page.locator("summary[aria-label='More for #65']").click()
    page.get_by_role("button", name="Delete #65").click()
    say_yes(page, "Delete 1 message, flying #65?")
    said(page, "1 message was deleted")
    expect(rows).to_have_count(3)
    rows.first.locator("td").nth(6).click()
    inspector = page.locator("#inspector")
    expect(inspector.get_by_role("region", name="As a message")).to_contain_text("0 of 1")
    inspector.get_by_text("Edit it").click()
    inspector.locator("textarea").fill('{"late": "mended"}')
    inspector.get_by_role("button", name="Send the edited one").click()
    say_yes(page, "Push 1 edited message to flying and delete flying #66?")
    said(page, "the edited message is flying #")
    assert queue.get(66) is None
    assert [one.event.payload for one in queue.messages("delayed")][-1] == {"late": "mended"}
    page.goto(f"{crowd.url}/queues/flying?state=delayed")
    page.get_by_role("button", name="Run all delayed messages now").click()
    say_yes(page, "Run 3 delayed messages of flying now?")
    expect(page.get_by_text("no message is in this state")).to_be_visible()
    page.goto(f"{crowd.url}/queues/flying?state=ready")
    page.locator("summary[aria-label='More for #69']").click()
    page.get_by_role("button", name="Delete #69", exact=True).click()
    say_yes(page, "Delete 1 message, flying #69?")
    said(page, "1 message was deleted")
    assert queue.get(69) is None
    page.goto(f"{crowd.url}/queues/flying?state=in_flight")
    pending = page.locator("#pending tbody tr")
    expect(pending).to_have_count(3)
    page.get_by_role("button", name="Release #61").click()
    say_yes(page, f"Take 1 message, flying #61, from {NASTY}?")
    said(page, "flying #61 is ready again")
    expect(pending).to_have_count(2)
    page.get_by_role("button", name="Done #62").click()
    say_yes(page, f"Settle as done 1 message, flying #62, which {NASTY} still works on?")
    said(page, "flying #62 was settled")
    expect(pending).to_have_count(1)
    page.get_by_role("button", name="Give up #63").click()
    say_yes(page, "Give up 1 message, flying #63")
    expect(page.get_by_text("nothing is in flight")).to_be_visible()
    assert len(list(queue.dead_letters())) == 61 and newest_act(crowd.journal) == ("console.settle", "flying")


def test_failed_messages_are_sent_back_and_deleted(page: Page, crowd: Served) -> None:
    queue = crowd.journal.queue("failing", max_attempts=1)
    queue.push_many([{"n": n} for n in range(60)])
    for delivery in queue.take_many(60):
        delivery.nack(error=NASTY)
    page.goto(f"{crowd.url}/queues/failing?tab=dead")
    section = page.locator("#failed-section")
    section.locator("[name=failed-where]").fill("payload.n in (3, 4)")
    section.get_by_role("button", name="Filter").click()
    section.get_by_role("button", name="Send all that match back").click()
    say_yes(page, "Send 2 messages back")
    said(page, "2 messages were sent back")
    page.goto(f"{crowd.url}/queues/failing?tab=dead")
    assert queue.stats().failed == 58
    section.locator("tbody input[type=checkbox]").first.check()
    section.get_by_role("button", name="Send chosen back").click()
    say_yes(page, "Send 1 message back")
    said(page, "1 message was sent back")
    assert queue.stats().failed == 57
    section.get_by_text("Delete…").click()
    section.get_by_role("button", name="Delete all").click()
    type_and_say_yes(page, "Delete 57 messages that failing gave up?", "failing")
    expect(page.get_by_text("no failed messages")).to_be_visible()
    assert queue.stats().failed == 0 and newest_act(crowd.journal) == ("console.delete", "failing")


def test_a_worker_that_gave_up_is_named_shown_and_forgotten(
    page: Page, served: Served, journal: penstock.Journal
) -> None:
    say_gave_up(journal, "orders:billing", ValueError("<b>no</b> such table"))
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


def test_who_may_only_read_is_offered_nothing_to_do(page: Page, guarded: Served, shop: penstock.Receipt) -> None:
    for path in ("/", "/queues/emails", "/queues/emails?tab=dead", "/queues/emails?tab=policy", "/topics/orders",
                 "/topics/orders/events/3", "/schedules", "/queues", "/topics"):  # fmt: skip
        shown = guarded.ask("GET", path, token=READ, headers={"Accept": "text/html"})
        assert shown.status == 200 and b"data-act" not in shown.data, path
    log_in(page, guarded, READ)
    open_live(page, f"{guarded.url}/queues/emails?tab=dead")
    expect(page.locator("#dead tbody tr")).to_have_count(5)
    assert page.locator("[data-act]").count() == page.get_by_role("button", name="Send").count() == 0


def test_a_button_pressed_before_the_scripts_are_there_is_not_lost(
    page: Page, served: Served, journal: penstock.Journal
) -> None:
    journal.queue("emails").push({"to": "ada"})
    held: list[Route] = []
    page.route("**/static/page.js", lambda route: held.append(route))
    page.goto(f"{served.url}/queues/emails?tab=policy", wait_until="commit")
    page.get_by_role("button", name="Drop the queue").click()
    assert page.locator("#question").text_content() == ""
    eventually(lambda: page.locator("h1").count() == 1 and bool(held))
    held[0].continue_()
    page.unroute("**/static/page.js")
    type_and_say_yes(page, "1 message", "emails")
    expect(page.locator("h1")).to_have_text("Queues")
    assert journal.queues() == []

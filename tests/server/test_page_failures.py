"""What the console says of failures and of workers: grouped by error, the newest first, and what each worker does."""

from __future__ import annotations

import re
import time
from html import unescape

import pytest

import penstock
from penstock.core.clock import ManualClock
from penstock.server.pages import failures
from server.serving import Served, serving
from waiting import eventually


def text_of(served: Served, path: str) -> str:
    answer = served.ask("GET", path, headers={"Accept": "text/html"})
    assert answer.status == 200
    return unescape(re.sub(r"\s+", " ", answer.data.decode()))


def shown(page: str) -> str:
    """The words of a page without its markup."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.fixture(params=[None, "mails.dead"])
def mails(request: pytest.FixtureRequest, journal: penstock.Journal) -> penstock.Queue:
    """A queue that gave up seven messages: of five the error differs in a number."""
    queue = journal.queue("mails", max_attempts=1, dead_letter=request.param)
    queue.push_many([{"n": n} for n in range(7)])
    for delivery in queue.take_many(7, consumer="mailer"):
        n = delivery.payload["n"]
        delivery.nack(error=f"TimeoutError: order {n} after {n + 10} s" if n < 5 else "ValueError: it's broken")
    return queue


def test_failures_are_grouped_by_error_and_a_group_is_sent_back_as_one(served: Served, mails: penstock.Queue) -> None:
    page = text_of(served, "/queues/mails?tab=dead")
    said = shown(page)
    assert "5 × TimeoutError: order # after # s since" in said and "2 × ValueError: it's broken since" in said
    for where, count in (
        ("error_group = 'TimeoutError: order # after # s'", 5),
        (r"error_group = 'ValueError: it\'s broken'", 2),
    ):
        fields = {"queue": "mails", "scope": "filter", "where": where}
        asked = served.ask("POST", "/acts/redrive", {"fields": fields, "preview": True}).json
        assert asked["question"].startswith(f"Send {count} messages back")
    served.ask("POST", "/acts/redrive", {"fields": fields, "preview": False})
    assert mails.redrive(dry_run=True) == 5


def test_failures_come_newest_first_and_are_found_by_error_text(served: Served, mails: penstock.Queue) -> None:
    def rows(query: str) -> list[str]:
        table = (
            text_of(served, f"/queues/mails?tab=dead&{query}").partition('class="letters')[2].partition("</table>")[0]
        )
        return re.findall(r">#(\d+)</a>", table)

    assert rows("") == ["7", "6", "5", "4", "3", "2", "1"]
    name = "dead" if mails.policy.dead_letter else "failed"
    assert rows(f"{name}-error=TIMEOUT") == ["5", "4", "3", "2", "1"]
    assert rows(f"{name}-error=it%27s") == ["7", "6"]
    assert rows(f"{name}-error=order&{name}-where=payload.n+<+2") == ["2", "1"]
    assert rows(f"{name}-error=nothing") == []
    assert "Whole errors" in text_of(served, "/queues/mails?tab=dead")
    assert 'class="letters full"' in text_of(served, "/queues/mails?tab=dead&full=1")


def test_a_search_among_failures_looks_at_so_many_and_says_so(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "SOUGHT", 40)
    monkeypatch.setattr(failures, "GROUPED", 50)
    queue = journal.queue("jobs", max_attempts=1)
    queue.push_many(range(100))
    for delivery in queue.take_many(100):
        delivery.nack(error="rare" if delivery.payload == 3 else "common")
    page = text_of(served, "/queues/jobs?tab=dead&failed-error=rare")
    assert "no failed messages for which this holds among the 40 that were looked at" in shown(page)
    assert "The newest 50 failed messages are grouped here" in shown(page)
    for _ in range(2):
        further = re.search(r'rel="next" href="([^"#]+)', page)
        assert further is not None and "Look further" in page
        page = text_of(served, "/queues/jobs" + further[1])
    assert ">#4</a>" in page and "Look further" not in page


def test_a_worker_shows_what_it_works_on_since_when_and_its_last_failure() -> None:
    clock = ManualClock(int(time.time() * 1000))
    with penstock.open("memory:", clock=clock) as journal:
        jobs = journal.queue("jobs", lease=600)
        jobs.push_many(range(14))
        failing = jobs.take(consumer="ann")
        assert failing is not None
        failing.nack(error="ValueError: no such job", delay=3600)
        clock.advance(30)
        jobs.take_many(12, consumer="ann")
        (ann,) = jobs.consumers()
        assert (ann.in_hand, ann.holds, ann.working_since) == (12, list(range(2, 12)), ann.last_seen)
        assert (ann.last_failed, ann.last_error) == (1, "ValueError: no such job")
        assert ann.last_failed_at is not None and (ann.last_seen - ann.last_failed_at).total_seconds() == 30
        with serving(journal) as served:
            said = shown(text_of(served, "/workers"))
            assert "ann jobs active #2, #3, #4 and 9 more, for" in said
            assert ": ValueError: no such job" in said
            queues = shown(text_of(served, "/queues"))
            assert ": ValueError: no such job" in queues
            jobs.take().ack()  # type: ignore[union-attr]
        with serving(journal) as served:
            said = shown(text_of(served, "/workers"))
            assert "p50" in said and "p95" in said and "jobs 1 " in said


def test_run_times_of_tasks_stand_on_the_page_of_workers(journal: penstock.Journal) -> None:
    tasks = penstock.Tasks(journal)

    @tasks.task
    def send(to: str) -> str:
        return to

    for name in ("ann", "bob", "cid"):
        send.push(name)
    (worker,) = tasks.workers()
    with worker:
        eventually(lambda: journal.stats().queues["tasks"][0].settled == 3)
        with serving(journal) as served:
            said = shown(text_of(served, "/workers"))
    assert re.search(r"p50 p95 send tasks 3 0 \d", said), said


def test_a_failure_of_the_day_before_is_forgotten() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as journal:
        jobs = journal.queue("jobs")
        jobs.push("x")
        for _ in range(2):
            delivery = jobs.take(consumer="ann")
            assert delivery is not None
            delivery.nack(error="no")
        assert journal.stats().queues["jobs"][0].last_error == "no"
        clock.advance(25 * 3600)
        journal.maintain()
        assert journal.stats().queues["jobs"][0].last_error is None


def test_a_sheet_starts_with_the_error_and_an_original_says_that_it_died(
    served: Served, journal: penstock.Journal
) -> None:
    queue = journal.queue("mails", max_attempts=1, dead_letter="mails.dead")
    queue.push_many(["a", "b"])
    first, second = queue.take_many(2)
    with pytest.raises(TimeoutError), first:
        raise TimeoutError("upstream")
    second.ack()
    original = shown(text_of(served, "/topics/mails/events/1").partition("<article")[2])
    places = ["This message died", "TimeoutError: upstream", "Traceback (most recent", "Failed attempts", "Payload"]
    assert sorted(map(original.index, places)) == [original.index(place) for place in places]
    assert (
        "Dead letter mails.dead #1" in original and "State dead" in original and "sent back or deleted" not in original
    )
    letter = shown(text_of(served, "/topics/mails.dead/events/1").partition("<article")[2])
    assert letter.index("TimeoutError: upstream") < letter.index("Payload")
    assert "State dead: it waits here until it is sent back or deleted" in letter and "0 of 3" not in letter
    assert "Message mails #1" in letter
    settled = shown(text_of(served, "/topics/mails/events/2").partition("<article")[2])
    assert "State settled: it was acknowledged, expired or removed" in settled and "died" not in settled
    queue.redrive()
    original = shown(text_of(served, "/topics/mails/events/1").partition("<article")[2])
    assert "This message died" in original and "which was sent back or deleted since" in original


def test_a_message_that_will_be_tried_again_starts_with_its_error(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("mails")
    queue.push("a")
    delivery = queue.take()
    assert delivery is not None
    delivery.nack(error="TimeoutError: upstream", delay=60)
    page = text_of(served, "/topics/mails/events/1?part=1")
    assert shown(page).index("TimeoutError: upstream") < shown(page).index("Payload")
    assert 'data-copy-address="/topics/mails/events/1"' in page


def test_progress_and_the_running_step_show_wherever_a_call_shows(served: Served, journal: penstock.Journal) -> None:
    queue = journal.queue("orders", lease=3600)
    queue.push(7)
    delivery = queue.take(consumer="worker-1")
    assert delivery is not None
    task = penstock.RunningTask("handle", delivery)
    task.step("reserve", lambda: None)
    task.progress(0.4, "reserved")

    def look() -> None:
        for path in ("/workers", "/queues/orders?tab=workers", "/queues/orders", "/queues/orders?state=in_flight"):
            assert "40%, reserved, in step charge" in shown(text_of(served, path)), path
        sheet = shown(text_of(served, "/topics/orders/events/1"))
        assert "Progress 40%, reserved, in step charge, told at" in sheet and "Steps that returned reserve" in sheet

    task.step("charge", look)
    assert "40%, reserved, for" not in shown(text_of(served, "/workers"))
    assert "#1 (40%, reserved), for" in shown(text_of(served, "/workers"))
    delivery.nack(delay=3600, error="down")
    assert "Last attempt's progress 40%, reserved" in shown(text_of(served, "/topics/orders/events/1"))

"""`top` and `check`: how a journal does, for a person and for monitoring."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

import penstock
from cli.commandline import Cli
from penstock.core.observe.pipelines import FlowStatus, report
from penstock.core.observe.sample import Finding, Sample
from server.serving import serving


@pytest.fixture
def busy(url: str, orders: str) -> str:
    """Ten orders, a consumer that is three behind, a queue with one failed and two ready messages."""
    with penstock.open(url) as journal:
        journal.topic(orders).commit("billing", 7)
        queue = journal.queue("emails", max_attempts=1)
        queue.push_many(["a", "b", "c"])
        delivery = queue.take()
        assert delivery is not None
        delivery.nack(error="no such mailbox")
    return url


def test_top_shows_topics_and_queues_once(cli: Cli, busy: str) -> None:
    shown = cli("top", "--once", "--interval", "50ms").out
    assert "events/s" in shown and "failed 1" in shown and "ready 2" in shown
    assert "orders" in shown and "emails" in shown and "\n1 message of emails failed\n" in shown


def test_top_is_a_document_per_look_for_machines(cli: Cli, busy: str) -> None:
    looks = cli("top", "--json", "--count", "2", "--interval", "50ms").documents
    assert len(looks) == 2
    assert looks[0]["topics"]["orders"]["lags"] == {"billing": 3}
    assert looks[1]["queues"]["emails"][0]["failed"] == 1


def test_top_sees_the_rate_of_a_server_that_is_written_to(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal, serving(journal) as served:
        journal.topic("orders").append("k")
        look = cli("top", "--once", "--json", "--interval", "50ms", "--url", served.url).document
        assert look["topics"]["orders"]["latest"] == 1


def test_top_refuses_to_look_without_pause(cli: Cli, busy: str) -> None:
    assert "at least 50ms" in cli("top", "--interval", "1ms", code=2).err


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 1, "WARNING - 1 message of emails failed"),
        (("--failed", "1"), 0, "OK - all is well"),
        (("--failed", "0"), 2, "CRITICAL - 1 message of emails failed"),
        (("--failed", "1", "--lag", "2:5"), 1, "WARNING - billing is 3 behind in orders"),
        (("--failed", "1", "--lag", "1:2"), 2, "CRITICAL - billing is 3 behind in orders"),
        (("--failed", "1", "--lag", "1:2", "--topic", "emails"), 0, "OK"),
        (("--failed", "1", "--backlog", "1:100"), 1, "2 messages are ready in emails"),
        (("--failed", "1", "--age", "7d"), 0, "OK"),
        (("--queue", "nothing"), 3, "UNKNOWN - there is no nothing"),
        (("--lag", "0", "--topic", "orders", "--queue", "gone"), 2, "CRITICAL - billing is 3 behind in orders; there"),
    ],
)
def test_check_says_the_worst_first_and_exits_with_it(
    cli: Cli, busy: str, options: tuple[str, ...], code: int, says: str
) -> None:
    assert says in cli("check", *options, code=code).out


def test_check_names_the_gravest_problem_first_as_the_console_does(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.queue("a.paused").pause()
        queue = journal.queue("mails", dead_letter="mails.dead")
        queue.push_many(range(11))
        for delivery in queue.take_many(11):
            delivery.nack(delay=60, error="KeyError: 'customer'", dead=delivery.seq == 1)
    kinds = [one.kind for one in penstock_findings(url)]
    problems = cli("check", "--json", code=1).document["problems"]
    assert kinds == ["failing", "dead", "paused"] and len(problems) == 3
    assert problems[0] == "mails is failing: 10 attempts failed in a row, the newest with KeyError: 'customer'"
    assert problems[1:] == ["1 dead letter from mails", "a.paused is paused: 0 messages are ready"]
    assert problems[0] in cli("top", "--once", "--interval", "50ms").out


def penstock_findings(url: str) -> list[Finding]:
    with penstock.open(url, read_only=True) as journal:
        return journal.stats().findings


def test_check_warns_of_dead_letters_and_of_pipelines_that_failed(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("emails", max_attempts=1, dead_letter="emails.dead")
        queue.push("x")
        delivery = queue.take()
        assert delivery is not None
        delivery.nack(error="no")
    assert "WARNING - 1 dead letter from emails" in cli("check", code=1).out
    assert "OK" in cli("check", "--dead", "1", "--age", "0ms", code=0).out
    assert "CRITICAL" in cli("check", "--dead", "0", code=2).out
    assert "dead 1" in cli("top", "--once", "--interval", "50ms").out
    flow = FlowStatus(pipeline="shop", flow="revenue", state="failed", started_at=datetime.now(UTC))
    with penstock.open(url) as journal:
        report(journal, [flow])
        with serving(journal) as served:
            said = cli("check", "--dead", "1", "--url", served.url, code=1).out
    assert "WARNING - pipeline shop/revenue failed" in said


def test_check_warns_of_workers_that_gave_up_until_they_are_forgotten(cli: Cli, url: str) -> None:
    def breaks_here(events: list[penstock.Event]) -> None:
        raise KeyError("amount")

    with penstock.open(url) as journal:
        journal.topic("orders").append("placed")
        with pytest.raises(KeyError):
            journal.topic("orders").worker("billing", breaks_here, restarts=0).run()
    assert "worker orders:billing gave up: KeyError: 'amount'" in cli("check", code=1).out
    (shown,) = cli("workers", "--json").documents
    assert shown["worker"] == "orders:billing" and "breaks_here" in shown["traceback"]
    assert "orders:billing" in cli("workers").out and "in breaks_here" in cli("workers", "--traceback").out
    cli("workers", "--forget", "orders:nobody", code=3)
    cli("workers", "--forget", "orders:billing")
    assert "gave up" not in cli("check").out and cli("workers").out == ""


def test_workers_shows_who_works_where_and_what_they_hold(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("emails")
        queue.push_many(range(3))
        queue.take_many(2, consumer="mailer")
        journal.queue("other").take(consumer="idler")
    said = cli("workers", "--queue", "emails").out
    assert "mailer" in said and os.uname().nodename in said and "active" in said and "idler" not in said
    mailer, idler = cli("workers", "--json").documents
    assert (mailer["queue"], mailer["name"], mailer["in_hand"], mailer["holds"]) == ("emails", "mailer", 2, [1, 2])
    assert (idler["queue"], idler["name"], idler["in_hand"]) == ("other", "idler", 0)
    cli("workers", "--queue", "emailz", code=3)


def test_check_is_one_document_for_machines(cli: Cli, busy: str) -> None:
    said = cli("check", "--json", code=1).document
    assert said["status"] == "WARNING" and said["code"] == 1 and said["lag"] == 3 and said["backlog"] == 2


def test_check_of_a_journal_that_is_not_there_is_no_ok(cli: Cli) -> None:
    assert cli("check", "--url", "nowhere.db", code=None).code in (2, 3)


@pytest.mark.parametrize("given", ["10:5", "many", "1:2:3"])
def test_thresholds_that_make_no_sense_are_refused(cli: Cli, busy: str, given: str) -> None:
    assert cli("check", "--lag", given, code=2).err.startswith("penstock: ")


def test_check_tells_a_dead_consumer_from_a_slow_one(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        topic = journal.topic("orders")
        topic.append_many([penstock.Draft("k")] * 3)
        topic.commit("slow", 1)
        topic.commit("done", 3)
    row = next(row for row in cli("cursors", "orders", "--json").documents if row["consumer"] == "slow")
    assert row["moved"] is not None
    said = cli("check", "--idle", "0:1h", code=1).out
    assert "slow is behind in orders and has not moved for" in said and "done" not in said
    assert cli("check", "--idle", "1h").out.startswith("PENSTOCK OK")


def test_check_warns_of_a_lag_that_grows_unless_it_has_a_threshold(
    cli: Cli, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server's sampler looks for minutes; what it found is what check gets from it.
    says = "billing falls behind in orders: 2,000 events, 500 a few minutes ago"
    found = Sample(0.0, {}, {}, 0.0, 0, 0, 0, findings=[Finding("lag", "orders", says, 2000, "billing")])
    monkeypatch.setattr("penstock.core.surface.journal.Journal.stats", lambda journal: found)
    assert f"WARNING - {says}" in cli("check", code=1).out
    assert "OK" in cli("check", "--lag", "10000").out

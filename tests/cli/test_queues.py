from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from cli.commandline import Cli, Start
from penstock.core.local.backend import LocalJournal
from waiting import DEADLINE, eventually

WORKER = """
import os, time
def send(delivery):
    if delivery.payload.get("bad"):
        raise RuntimeError("no such mailbox")
    with open("handled", "a") as out:
        out.write(f"{delivery.payload['n']}\\n")
async def send_async(delivery):
    send(delivery)
def slow(delivery):
    open("begun", "w").close()
    time.sleep(0.5)
    send(delivery)
def hang(delivery):
    open("begun", "w").close()
    time.sleep(3600)
not_a_function = 3
"""


@pytest.fixture
def emails(cli: Cli) -> str:
    cli("configure", "emails", "--max-attempts", "1", "--dead-letter", "emails.dead")
    for number in range(3):
        cli("push", "emails", json.dumps({"n": number}), "--kind", "welcome")
    return "emails"


def test_push_and_peek_and_queues(cli: Cli, emails: str) -> None:
    assert [event["payload"]["n"] for event in cli("peek", "emails", "--json").documents] == [0, 1, 2]
    row = cli("queues", "emails", "--json").documents[0]
    assert {"queue": "emails", "group": "default", "ready": 3, "in_flight": 0, "failed": 0}.items() <= row.items()
    assert row["oldest"] >= 0
    assert "emails" in cli("queues").out and "#1" in cli("peek", "emails", "-n1").out


def test_push_takes_lines_and_refuses_a_bad_one(cli: Cli) -> None:
    assert cli("push", "q", "--json", input="1\n\n2\n3\n").document["pushed"] == 3
    assert "line 2" in cli("push", "q", input="1\n{\n", code=2).err
    assert cli("push", "q", "plain", "--text", "--json").document["seq"] == 4


def test_push_options_reach_the_queue(cli: Cli) -> None:
    first = cli("push", "q", "1", "--dedup", "a", "--delay", "1h", "--header", "a=b", "--json").document
    assert cli("push", "q", "1", "--dedup", "a", "--json").document == {**first, "duplicate": True}
    row = cli("queues", "--json").document
    assert (row["ready"], row["delayed"]) == (0, 1)


def test_take_settles_as_told(cli: Cli, emails: str) -> None:
    taken = cli("take", "emails", "--settle", "ack", "--json").document
    assert (taken["event"]["payload"], taken["attempt"], taken["settled"]) == ({"n": 0}, 1, "ack")
    cli("take", "emails", "--settle", "release", "--newest")
    dead = cli("take", "emails", "--settle", "dead", "--error", "mailbox full", "--json").document
    assert dead["event"]["payload"] == {"n": 1}
    assert cli("queues", "emails", "--json").documents[0]["ready"] == 1
    cli("take", "emails", "--settle", "ack", "-n", "5")
    assert "no message" in cli("take", "emails", "--settle", "ack", code=3).err


def test_take_without_a_terminal_needs_to_be_told(cli: Cli, emails: str) -> None:
    assert "--settle" in cli("take", "emails", input="", code=2).err
    assert cli("queues", "emails", "--json").documents[0]["ready"] == 3


def test_take_asks_at_a_terminal(cli: Cli, emails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("what\ne\na\nn\n"))
    said = cli("take", "emails", "-n3")
    assert '"n": 0' in said.out and "yours until" in said.err
    # The first was extended and acknowledged, the second given back (one attempt: dead), the third released at the end.
    rows = {row["queue"]: row for row in cli("queues", "--json").documents}
    assert (rows["emails"]["ready"], rows["emails"]["in_flight"], rows["emails"]["dead"]) == (1, 0, 1)
    dead = rows["emails.dead"]
    kept = (dead["ready"], dead["dead"], dead["letters"], dead["oldest"])
    assert kept == (0, 0, 1, None), "a dead letter is not ready, and counts once: where it comes from"
    assert "keeps 1 dead letter" in cli("queues").out


def test_a_delivery_is_settled_by_its_token(cli: Cli, emails: str) -> None:
    first, second, third = cli("take", "emails", "-n3", "--settle", "none", "--json").documents
    assert [one["consumer"] for one in cli("pending", "emails", "--json").documents] == [None] * 3
    assert cli("settle", "emails", first["token"], "--json").document == {"queue": "emails", "seq": 1, "settled": "ack"}
    extended = cli("settle", "emails", second["token"], "--as", "extend", "--lease", "1h", "--json").document
    assert extended["deadline"] > second["deadline"]
    cli("settle", "emails", second["token"], "--as", "nack", "--error", "no")
    cli("settle", "emails", third["token"], "--as", "release")
    assert cli("pending", "emails", "--json").documents == []
    said = cli("settle", "emails", first["token"], "--json", code=1)
    assert json.loads(said.err)["error"] == "StaleDelivery"
    assert "StaleDelivery" in cli("settle", "emails", "nonsense", "--json", code=1).err


def test_a_dead_letter_is_listed_with_both_positions(cli: Cli, emails: str) -> None:
    cli("take", "emails", "--settle", "ack")
    cli("take", "emails", "--settle", "dead", "--error", "no such mailbox")
    one = cli("dead", "emails", "--json").document
    assert (one["message"], one["letter"], one["reason"]) == ("emails#2", "emails.dead#1", "rejected")
    heading, row = cli("dead", "emails").out.splitlines()
    assert heading.split()[:3] == ["Message", "Dead", "letter"] and row.split()[:2] == ["emails#2", "emails.dead#1"]
    assert cli("dead", "emails", "--traceback").out.startswith("emails#2: no such mailbox")


def test_dead_letters_with_forged_headers_are_shown_as_far_as_they_can_be_read(cli: Cli, emails: str) -> None:
    forged = {
        "dead-queue": "emails", "dead-attempts": "²", "dead-last-delivered-at": "yesterday", "dead-seq": "x",
        "dead-reason": "because", "dead-priority": "½", "dead-failed-attempts": '[{"x":' + "[" * 3000,
    }  # fmt: skip
    headers = [word for name, value in forged.items() for word in ("--header", f"{name}={value}")]
    cli("push", "emails.dead", "1", *headers)
    for queue in ("emails", "emails.dead"):
        letter = cli("dead", queue, "--json").document
        assert (letter["attempts"], letter["reason"], letter["at"]) == (0, "because", None)
        assert letter["event"]["headers"] == forged
        for more in ((), ("--traceback",), ("--attempts",)):
            assert cli("dead", queue, *more).out
    assert cli("redrive", "emails.dead", "--json").document["redriven"] == 1


def test_dead_letters_show_their_reason_and_go_back(cli: Cli, emails: str) -> None:
    cli("take", "emails", "-n3", "--settle", "nack", "--error", "mailbox full")
    letters = cli("dead", "emails", "--json").documents
    assert [(one["queue"], one["error"], one["event"]["payload"]["n"]) for one in letters] == [
        ("emails", "mailbox full", n) for n in range(3)
    ]
    assert "mailbox full" in cli("dead", "emails.dead").out
    assert cli("redrive", "emails", "--dry-run", "--json").document["would_redrive"] == 3
    assert cli("redrive", "emails", "--where", "payload.n = 1", "--json").document["redriven"] == 1
    assert cli("redrive", "emails.dead", "--rate", "1000/s", "--json").document["redriven"] == 2
    assert cli("queues", "emails", "--json").documents[0]["ready"] == 3
    assert cli("dead", "emails").out == ""


def test_dead_letters_show_where_they_failed(cli: Cli, emails: str, url: str) -> None:
    assert cli("dead", "emails", "--traceback").out == ""
    cli("take", "emails", "-n2", "--settle", "dead", "--error", "mailbox full")
    with penstock.open(url) as journal, pytest.raises(KeyError), journal.queue("emails").take():  # type: ignore[union-attr]
        {}["\x1b[31m"]
    said = cli("dead", "emails", "--traceback").out
    assert "KeyError" in said and "test_queues.py" in said and "no traceback" in said and "\x1b" not in said
    (_, _, letter) = cli("dead", "emails", "--json").documents
    assert letter["traceback"].startswith("Traceback") and letter["error"].startswith("KeyError")


def test_failed_attempts_are_shown_one_by_one(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("jobs", max_attempts=2)
        queue.push_many(["a", "b"])
        for n in range(3):
            delivery = queue.take(consumer=f"worker-{n}\x1b[31m")
            assert delivery is not None
            delivery.nack(error=f"OSError: gone {n}")
    said = cli("messages", "jobs", "--attempts").out
    assert "jobs#1: failed" in said and "jobs#2: ready" in said and "\x1b" not in said
    assert all(text in said for text in ("OSError: gone 0", "OSError: gone 2", "worker-1", "failed"))
    assert "OSError: gone 1" in cli("failed", "jobs", "--attempts").out
    [failure] = cli("failed", "jobs", "--json").documents
    assert [(one["number"], one["ended"], one["error"]) for one in failure["failed_attempts"]] == [
        (1, "failed", "OSError: gone 0"),
        (2, "failed", "OSError: gone 1"),
    ]
    listed = cli("messages", "jobs", "--json").documents
    assert [len(one["failed_attempts"]) for one in listed] == [2, 1]
    cli("push", "jobs", '"c"')
    assert "none has failed" in cli("messages", "jobs", "--attempts", "--after", "2").err


def test_a_rate_makes_a_redrive_take_its_time(cli: Cli, emails: str) -> None:
    cli("take", "emails", "-n3", "--settle", "dead")
    begun = time.monotonic()
    assert cli("redrive", "emails", "--rate", "10/s", "--json").document["redriven"] == 3
    assert time.monotonic() - begun >= 0.15
    assert "100/s" in cli("redrive", "emails", "--rate", "fast", code=2).err


def test_failed_messages_show_their_error(cli: Cli) -> None:
    cli("configure", "q", "--max-attempts", "1")
    cli("push", "q", "1")
    cli("take", "q", "--settle", "nack", "--error", "broken")
    (failure,) = cli("failed", "q", "--json").documents
    assert (failure["error"], failure["attempts"]) == ("broken", 1)
    assert "broken" in cli("failed", "q").out
    assert cli("redrive", "q", "--json").document["redriven"] == 1
    assert cli("failed", "q").out == ""


def test_purge_asks_with_the_failed_ones_counted(cli: Cli, emails: str) -> None:
    cli("configure", "emails", "--dead-letter", "none")
    cli("take", "emails", "--settle", "dead")
    assert "Remove 3 messages of emails" in cli("purge", "emails", input="", code=2).err
    assert cli("purge", "emails", "--yes", "--json").document["removed"] == 3


def test_configure_shows_and_changes(cli: Cli) -> None:
    words = ("--lease", "2m", "--retry", "exponential:1s:60s", "--priority", "yes", "--max-size", "10", "--ttl", "1d")
    made = cli("configure", "q", *words, "--json").document
    assert (made["lease"], made["retry"], made["priority"]) == (120, "exponential(1, factor=2, cap=60)", True)
    cli("configure", "q", "--max-size", "none", "--retry", "schedule:5s,5m")
    shown = cli("configure", "q", "--json").document
    assert (shown["max_size"], shown["ttl"], shown["retry"]) == (None, 86400, "schedule(5, 300)")
    assert "exponential" in cli("configure", "q", "--retry", "sometimes", code=2).err
    cli("configure", "nobody", code=3)


def test_a_worker_that_starts_first_waits_for_its_queue(start: Start, url: str, tmp_path: Path) -> None:
    (tmp_path / "mailing.py").write_text("def send(delivery):\n    print('sent', delivery.payload, flush=True)\n")
    worker = start("work", "letters", "mailing:send")
    assert worker.stderr is not None and worker.stdout is not None
    assert "there is no queue 'letters'" in worker.stderr.readline()
    with penstock.open(url) as journal:
        assert journal.queues() == []
        journal.queue("letters").push("hello")
    assert worker.stdout.readline() == "sent hello\n"
    worker.terminate()
    assert worker.wait(DEADLINE) == 0


def test_a_mistyped_queue_is_not_made(cli: Cli, emails: str) -> None:
    looking = (("peek",), ("pending",), ("failed",), ("dead",), ("schedule",), ("configure",))
    changing = (("take", "--settle", "ack"), ("purge", "--yes"), ("drop", "--yes"), ("redrive",), ("discard", "1"))
    others = (("work", "os:getcwd"), ("move", "emails"), ("schedule", "daily", "--every", "1h"))
    for words in looking + changing + others:
        said = cli(words[0], "emials", *words[1:], code=3)
        assert "did you mean 'emails'?" in said.err
    assert "did you mean 'emails'?" in cli("move", "emails", "emials", code=3).err
    assert "emials" not in cli("queues").out


def test_whoever_insists_makes_a_queue_by_taking_or_working(cli: Cli, folder: Path) -> None:
    cli("take", "a", "--settle", "ack", "--create", code=3)
    cli("work", "b", "mailing:send", "--until-empty", "--create")
    assert [row["queue"] for row in cli("queues", "--json").documents] == ["a", "b"]


def test_a_queue_is_dropped_after_asking(cli: Cli, emails: str) -> None:
    assert "3 messages" in cli("drop", "emails", input="", code=2).err
    assert cli("drop", "emails", "--yes", "--json").document["removed"] == 3
    assert "emails" not in [row["queue"] for row in cli("queues", "--json").documents]
    assert cli("topics", "--json").documents, "the topic stays"


def test_messages_are_discarded_by_position_or_condition(cli: Cli, emails: str) -> None:
    (held,) = cli("take", "emails", "--settle", "none", "--json").documents
    assert "positions, or --where" in cli("discard", "emails", code=2).err
    cli("discard", "emails", "1", "--where", "payload.n = 1", code=2)
    assert cli("discard", "emails", "1", "2", "2", "9", "--dry-run", "--json").document["would_discard"] == 1
    assert cli("discard", "emails", "--where", "payload.n >= 0", "--dry-run", "--json").document["would_discard"] == 2
    assert cli("discard", "emails", "1", "2", "9", "--json").document["discarded"] == 1
    assert cli("discard", "emails", "--where", "payload.n >= 0", "-n", "1", "--json").document["discarded"] == 1
    assert cli("settle", "emails", held["token"], "--json").document["settled"] == "ack"
    row = cli("queues", "emails", "--json").documents[0]
    assert (row["ready"], row["in_flight"]) == (0, 0)


def test_failed_messages_are_discarded(cli: Cli) -> None:
    cli("configure", "q", "--max-attempts", "1")
    cli("push", "q", "1")
    cli("take", "q", "--settle", "nack")
    assert cli("discard", "q", "1", "--json").document["discarded"] == 1
    assert cli("failed", "q").out == ""


def test_messages_are_moved_to_another_queue(cli: Cli, emails: str) -> None:
    cli("configure", "later", "--lease", "1m")
    cli("take", "emails", "--settle", "none", "--json")
    assert cli("move", "emails", "later", "--where", "payload.n != 1", "--json").document["moved"] == 1
    assert cli("peek", "later", "--json").document["payload"] == {"n": 2}
    assert cli("move", "emails", "later", "-n", "5", "--json").document == {
        "queue": "emails",
        "to": "later",
        "moved": 1,
    }


def test_schedules_are_added_shown_and_removed(cli: Cli) -> None:
    assert "there is no queue 'reports'" in cli("schedule", "reports", "daily", "--every", "1h", code=3).err
    cli(
        "schedule",
        "reports",
        "daily",
        "--cron",
        "0 6 * * mon-fri",
        "--timezone",
        "Europe/Zurich",
        "--payload",
        '{"a": 1}',
        "--create",
    )
    cli("schedule", "reports", "often", "--every", "1h")
    assert [row["name"] for row in cli("schedule", "reports", "--json").documents] == ["daily", "often"]
    assert "0 6 * * mon-fri" in cli("schedule", "reports", "daily").out
    cli("schedule", "reports", "daily", "--remove")
    cli("schedule", "reports", "daily", "--remove", code=3)
    cli("schedule", "reports", "--every", "1h", code=2)
    cli("schedule", "reports", "x", "--every", "1h", "--cron", "* * * * *", code=2)
    assert "Traceback" not in cli("schedule", "reports", "x", "--cron", "nonsense", code=2).err


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mailing.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("handler", ["mailing:send", "mailing:send_async"])
def test_work_handles_everything_and_failures_go_their_way(cli: Cli, emails: str, folder: Path, handler: str) -> None:
    cli("push", "emails", '{"n": 9, "bad": true}')
    cli("work", "emails", handler, "--concurrency", "2", "--until-empty")
    assert sorted((folder / "handled").read_text().split()) == ["0", "1", "2"]
    assert "no such mailbox" in cli("dead", "emails").out


@pytest.mark.slow
def test_a_worker_logs_as_much_as_it_is_told(emails: str, url: str, folder: Path, start: Start) -> None:
    def logged(*words: str) -> str:
        with penstock.open(url) as journal:
            journal.queue("emails").push({"n": 9, "bad": True})
        worker = start("work", "emails", "mailing:send", "--until-empty", *words)
        _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0, said
        return said

    said = logged("--ahead", "0")
    assert "no such mailbox" in said and "ERROR" in said and "given up" in said
    with penstock.open(url) as journal:
        journal.queue("emails").configure(max_attempts=2, retry=0)
    assert logged("--ahead", "10", "-c", "2").count("no such mailbox") == 2 * said.count("no such mailbox")
    assert logged("--log-level", "error").count("no such mailbox") == said.count("no such mailbox")


@pytest.mark.parametrize("handler", ["mailing", "mailing:nobody", "nomodule:f", "mailing:not_a_function", "mailing:"])
def test_a_handler_that_is_none_is_a_sentence(cli: Cli, folder: Path, handler: str) -> None:
    cli("push", "q", "1")
    said = cli("work", "q", handler, code=2)
    assert "Traceback" not in said.err and said.err.startswith("penstock: ")


def test_a_worker_that_is_told_to_stop_finishes_what_it_has(emails: str, url: str, folder: Path, start: Start) -> None:
    worker = start("work", "emails", "mailing:slow")
    eventually((folder / "begun").exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    handled = (folder / "handled").read_text().split()
    with penstock.open(url) as journal:
        assert len(handled) >= 1 and len(journal.queue("emails")) == 3 - len(handled)
        assert journal.queue("emails").pending() == []


def test_a_worker_that_hangs_is_ended_by_a_second_signal(emails: str, url: str, folder: Path, start: Start) -> None:
    worker = start("work", "emails", "mailing:hang")
    eventually((folder / "begun").exists)

    def ended() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    eventually(ended)
    assert worker.returncode == -signal.SIGTERM
    with penstock.open(url) as journal:
        assert len(journal.queue("emails").pending()) == 1  # until its lease has ended


def test_pause_and_resume(cli: Cli, emails: str) -> None:
    assert cli("pause", "emails", "--json").document == {
        "queue": "emails",
        "group": None,
        "paused": True,
        "changed": True,
    }
    assert cli("queues", "emails", "--json").documents[0]["paused"] is True
    assert "paused" in cli("queues", "emails").out
    said = cli("take", "emails", "--settle", "ack", code=3)
    assert "3 messages of emails cannot be taken now: it is paused" in said.err
    assert "emails is paused: 3 messages are ready" in cli("check", code=1).out
    assert cli("pause", "emails", "--json").document["changed"] is False
    cli("pause", "emails", "--group", "default")
    resumed = cli("resume", "emails")
    assert "still paused: group default" in resumed.err
    cli("resume", "emails", "--group", "default")
    assert cli("check").out.startswith("PENSTOCK OK")
    assert cli("take", "emails", "--settle", "ack", "--json").document["event"]["payload"] == {"n": 0}
    assert "no group 'typo'" in cli("pause", "emails", "--group", "typo", code=2).err
    assert "emails" in cli("pause", "emials", code=3).err


def test_messages_and_run_now(cli: Cli, emails: str) -> None:
    cli("push", "emails", '{"n": 9}', "--delay", "1h")
    rows = cli("messages", "emails", "--json").documents
    assert [(row["event"]["seq"], row["max_attempts"]) for row in rows] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [row["due"] is not None for row in rows] == [False, False, False, True]
    shown = cli("messages", "emails", "-n", "2")
    assert "--after 2" in shown.err and "ready" in shown.out
    assert [row["event"]["seq"] for row in cli("messages", "emails", "--state", "delayed", "--json").documents] == [4]
    assert "no message is in flight" in cli("messages", "emails", "--state", "in_flight").err
    assert cli("run-now", "emails", "4", "3", "--json").document["made_ready"] == 1
    assert cli("messages", "emails", "--state", "delayed", "--json").documents == []


def test_configure_reaches_every_field_that_may_be_none_or_a_word(cli: Cli, emails: str) -> None:
    changed = cli("configure", "emails", "--dedup-window", "none", "--retention", "dead_letter", "--json").document
    assert (changed["dedup_window"], changed["retention"]) == (None, "dead_letter")
    assert cli("configure", "emails", "--retention", "hold", "--json").document["retention"] == "hold"


@pytest.mark.parametrize("rate", [(), ("--rate", "100/s")])
def test_redrive_names_the_letters_that_have_nowhere_to_go(cli: Cli, emails: str, rate: tuple[str, ...]) -> None:
    cli("take", "emails", "--settle", "dead")
    cli("drop", "emails", "--yes")
    redriven = cli("redrive", "emails.dead", "--json", *rate)
    assert redriven.document["redriven"] == 0
    assert [(one["queue"], one["count"]) for one in redriven.document["left"]] == [("emails", 1)]
    assert "0 messages were sent back; 1 letter from emails stay" in cli("redrive", "emails.dead", *rate).out


def test_push_to_the_front(cli: Cli, emails: str) -> None:
    cli("push", "emails", '{"n": 9}', "--front")
    assert [event["payload"]["n"] for event in cli("peek", "emails", "--json").documents] == [9, 0, 1, 2]
    assert "--front" in cli("push", "emails", "1", "--front", "--priority", "3", code=2).err


@pytest.fixture
def dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes two queues, one of which another process drops just before the next command asks for it."""
    queue = LocalJournal.queue

    def make() -> None:
        with penstock.open(url) as journal:
            for name in ("emails", "reports"):
                queue(journal, name, max_attempts=7).push(1)  # type: ignore[arg-type]

    def drop_first(journal: LocalJournal, name: str, **given: Any) -> Any:
        if name == "emails":
            with penstock.open(url) as other:
                other.drop_topic("emails", force=True)
        return queue(journal, name, **given)

    monkeypatch.setattr(LocalJournal, "queue", drop_first)
    return make


@pytest.mark.parametrize(
    "words",
    [
        "purge emails --yes",
        "drop emails --yes",
        "take emails --settle ack",
        "pause emails",
        "redrive emails",
        "move emails reports",
    ],
)
def test_no_command_makes_a_queue_that_is_dropped_meanwhile(
    cli: Cli, url: str, dropped: Callable[[], None], words: str
) -> None:
    dropped()
    assert "there is no queue 'emails'" in cli(*words.split(), code=3).err
    with penstock.open(url) as journal:
        assert journal.queues() == journal.topics() == ["reports"]


def test_lists_go_on_without_a_queue_that_is_dropped_meanwhile(cli: Cli, dropped: Callable[[], None]) -> None:
    dropped()
    assert [one["queue"] for one in cli("queues", "--json").documents] == ["reports"]
    dropped()
    assert "no worker is there" in cli("workers").err


@pytest.mark.parametrize("dead_letter", [None, "mails.dead"])
def test_given_up_messages_are_shown_sent_back_and_deleted_by_their_error(
    cli: Cli, url: str, dead_letter: str | None
) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("mails", max_attempts=1, dead_letter=dead_letter)
        queue.push_many(range(5))
        for delivery in queue.take_many(5):
            delivery.nack(error="TimeoutError: upstream" if delivery.payload < 3 else "ValueError: bad")
    show, asked = "dead" if dead_letter else "failed", ("--where", "error contains 'Timeout'")
    groups = cli(show, "mails", "--by-error", "--json").documents
    assert [(one["count"], one["error"]) for one in groups] == [(3, "TimeoutError: upstream"), (2, "ValueError: bad")]
    assert len(cli(show, "mails", "--where", groups[0]["condition"], "--json").documents) == 3
    assert len(cli(show, "mails", *asked, "--json").documents) == 3
    assert cli("redrive", "mails", *asked, "--limit", "2", "--json").document["redriven"] == 2
    assert cli("discard", "mails", *asked, "--dry-run", "--json").document["would_discard"] == 1
    assert cli("discard", "mails", *asked, "--json").document["discarded"] == 1
    assert {one["error"] for one in cli(show, "mails", "--json").documents} == {"ValueError: bad"}


def test_workers_and_queues_say_what_the_console_says(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("orders", lease=3600)
        queue.push_many([1, 2])
        for delivery in queue.take_many(1, consumer="worker-1"):
            delivery.nack(delay=3600, error="TimeoutError: upstream")
        delivery = queue.take_many(1, consumer="worker-1")[0]
        task = penstock.RunningTask("handle", delivery)
        task.progress(0.4, "reserved")

        def look() -> None:
            for words in (("workers",), ("pending", "orders"), ("messages", "orders", "--state", "in_flight")):
                assert "40%, reserved, in step charge" in cli(*words).out, words
            (pending,) = cli("pending", "orders", "--json").documents
            assert (pending["progress"]["share"], pending["progress"]["step"]) == (0.4, "charge")

        task.step("charge", look)
        for words in (("workers",), ("queues",), ("top", "--once", "--interval", "50ms")):
            assert "TimeoutError: upstream" in cli(*words).out, words
    said = cli("queues", "--json").document
    assert (said["workers"], said["last_error"]) == (1, "TimeoutError: upstream")

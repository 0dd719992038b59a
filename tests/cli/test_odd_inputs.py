"""Outputs that break, closed streams, terminals of another encoding, and values at the edge of what there is."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

import penstock
from cli.commandline import Cli
from penstock.cli.main import run
from penstock.core.model.conditions import Where
from penstock.core.queue.operations.repair import send_at_rate
from penstock.core.units import show_moment


def surroundings(url: str, **environment: str) -> dict[str, str]:
    given = {**os.environ, "PENSTOCK": f"{sys.executable} -m penstock.cli", "PENSTOCK_URL": url, **environment}
    given.pop("PYTHONUNBUFFERED", None)  # users have buffers
    return given


def shell(line: str, url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `$PENSTOCK …` in a shell, for what only a shell can do to streams."""
    given = surroundings(url, **environment)
    return subprocess.run(["sh", "-c", line], env=given, capture_output=True, text=True, check=False)


# ── messages that were never shown ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
@pytest.mark.parametrize("settle", ["ack", "dead", "none"])
def test_a_message_that_could_not_be_shown_is_not_settled(cli: Cli, url: str, settle: str) -> None:
    for number in range(3):
        cli("push", "emails", str(number))
    got = shell(f"$PENSTOCK take emails -n 3 --settle {settle} > /dev/full", url)
    assert got.returncode == 1 and "No space left" in got.stderr
    (stats,) = cli("queues", "emails", "--json").documents
    assert (stats["ready"], stats["in_flight"], stats["failed"]) == (3, 0, 0)
    taken = cli("take", "emails", "-n3", "--settle", "ack", "--json").documents
    assert [(one["event"]["payload"], one["attempt"]) for one in taken] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
@pytest.mark.parametrize("words", ["queues", "--help"])
def test_a_full_disk_is_a_sentence_and_an_exit_code(cli: Cli, url: str, words: str) -> None:
    cli("push", "emails", "1")
    got = shell(f"$PENSTOCK {words} > /dev/full", url)
    assert got.returncode == 1 and len(got.stderr.splitlines()) == 1 and "No space left" in got.stderr, got.stderr


def test_a_reader_that_has_gone_is_an_exit_code_and_no_sentence(cli: Cli, url: str) -> None:
    cli("push", "emails", "1")
    unread, written = os.pipe()
    os.close(unread)
    command = [sys.executable, "-m", "penstock.cli", "queues", "--json"]
    cut = subprocess.run(command, env=surroundings(url), stdout=written, stderr=subprocess.PIPE, text=True, check=False)
    os.close(written)
    assert (cut.returncode, cut.stderr) == (141, "")


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.slow
def test_characters_that_a_terminal_does_not_have_are_spelled_out(cli: Cli, url: str) -> None:
    cli("push", "emails", '"héllo 😀"', "--key", "ключ")
    table = shell("$PENSTOCK messages emails", url, PYTHONIOENCODING="ascii")
    assert table.returncode == 0 and "\\u043a\\u043b\\u044e\\u0447" in table.stdout, table.stderr
    lines = shell("$PENSTOCK take emails --settle ack --json", url, PYTHONIOENCODING="ascii")
    assert lines.returncode == 0 and json.loads(lines.stdout)["event"]["payload"] == "héllo 😀", lines.stderr


@pytest.mark.slow
def test_a_command_whose_streams_are_closed_does_its_work(cli: Cli, url: str) -> None:
    cli("push", "emails", "1")
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"$PENSTOCK queues {closed}", url).returncode == 0
    closed = "<&-"
    got = shell(f"$PENSTOCK purge emails {closed}", url)
    assert got.returncode == 2 and "Traceback" not in got.stderr  # there is no terminal to ask at
    assert shell(f"$PENSTOCK purge emails --yes {closed}", url).returncode == 0
    assert [one["ready"] for one in cli("queues", "--json").documents] == [0]


def test_top_shows_each_frame_as_it_comes_to_those_who_read_a_pipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("push", "emails", "1")
    pipe = io.BytesIO()
    seen: list[bytes] = []

    def wait(seconds: float) -> bool:
        seen.append(pipe.getvalue())
        return True

    monkeypatch.setattr("penstock.cli.watching._sleep", wait)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, "utf-8"))
    assert run(["top"]) == 0
    assert b"emails" in seen[0]


def test_an_error_about_a_name_that_is_no_unicode_is_json(cli: Cli) -> None:
    said = cli("info", "--url", "/nowhere/\udcff.db", "--json", code=3).err
    assert json.loads(said)["error"] == "NoStore"


# ── values at the edge ───────────────────────────────────────────────────────────────────────────────────────────────
def test_no_messages_at_all_may_be_asked_for(cli: Cli) -> None:
    cli("push", "emails", "1")
    assert cli("messages", "emails", "-n", "0").out == ""
    assert cli("messages", "emails", "-n", "0", "--json").out == ""


def test_digits_that_are_no_number_are_no_position(cli: Cli) -> None:
    cli("push", "emails", "1")
    cli("show", "emails", "²", code=3)
    cli("show", "emails", "9" * 5000, code=3)
    assert "whole number" in cli("read", "emails", "--after", "²", code=2).err
    assert "at least 0" in cli("peek", "emails", "-n", "²", code=2).err


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_times_at_the_edge_of_the_years_are_shown_and_compared(
    cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    request.addfinalizer(time.tzset)  # when the variable is as it was
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    cli("push", "emails", "1", "--not-before", "9999-12-31T23:59:59Z")
    assert "delayed" in cli("messages", "emails").out
    for condition in ("recorded_at > '0001-01-01'", "recorded_at < '9999-12-31T23:59:59'"):
        assert len(cli("read", "emails", "--json", "--where", condition).documents) == 1


def test_a_payload_with_an_impossible_time_is_compared_without_an_error(cli: Cli, url: str) -> None:
    cli("append", "orders", "placed", '{"by": "0001-01-01"}')
    with penstock.open(url, read_only=True) as journal:
        (event,) = journal.topic("orders").read()
    assert Where("recorded_at > payload.by").matches(event)
    assert not Where("recorded_at < payload.by").matches(event)
    assert show_moment(datetime(2024, 1, 1, tzinfo=UTC)).startswith("202")


# ── redrive ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_slow_redrive_ends_though_every_message_fails_again_at_once(url: str) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("emails", max_attempts=1, dead_letter="emails.dead")
        queue.push_many(range(450))

        def fail_all() -> None:
            for delivery in queue.take_many(450):
                delivery.nack()

        def send(due: int) -> int:
            sent = queue.redrive(limit=due)
            fail_all()  # as workers beside it would
            return sent

        fail_all()
        assert send_at_rate(send, queue.redrive(dry_run=True), 5000.0) == 450
        assert send_at_rate(send, 2, 5000.0) == 2 and len(journal.queue("emails.dead")) == 450


# ── names that others chose ──────────────────────────────────────────────────────────────────────────────────────────
def test_names_that_others_chose_cannot_recolour_a_terminal(cli: Cli, url: str) -> None:
    red = "\x1b[31m"
    with penstock.open(url) as journal:
        letters = journal.queue("graves")
        letters.push("x", headers={"dead-queue": f"{red}gone", red: red})
        news = journal.queue("news", mode="fanout")
        news.add_group(red)
        news.pause(red)
        news.pause()
    said = [
        cli("dead", "graves", "--traceback"),
        cli("dead", "graves", "--attempts"),
        cli("redrive", "graves"),
        cli("show", "graves", "1"),
        cli("resume", "news"),
    ]
    for one in said:
        assert "\x1b" not in one.out + one.err and "\\x1b[31m" in one.out + one.err

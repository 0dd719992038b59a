"""`demo`: a journal that lives, with the console on it, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from cli.commandline import Cli

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli", "demo", "--json", *words]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.status)


def test_the_demo_tells_a_story_whose_pages_are_there_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    process = start("--seconds", "8")
    for _ in range(7):
        act = said(process)
        assert act["says"] and act["look"] and status(act["url"]) == 200
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    assert "the shop closes" in json.loads(rest)["says"]
    assert list(tmp_path.iterdir()) == []


def test_a_kept_journal_holds_what_happened(start: Start, tmp_path: Path) -> None:
    process = start("--seconds", "6", "--keep")
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    kept = Path(json.loads(out.splitlines()[-1])["kept"])
    assert tmp_path in kept.parents
    with penstock.open(kept, read_only=True) as journal:
        assert {"orders", "payments", "invoices"} <= set(journal.topics())
        assert {"emails", "emails.dead", "reports"} <= set(journal.queues())
        assert {one.topic for one in journal.correlated("order-1")} >= {"orders", "payments", "invoices", "mails"}
        assert journal.queue("emails").pending() == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_demo_ends_cleanly_when_told(start: Start, tmp_path: Path, ending: signal.Signals) -> None:
    process = start("--seconds", "600")
    assert "600 seconds" in said(process)["says"]
    process.send_signal(ending)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    assert list(tmp_path.iterdir()) == []


def test_the_demo_makes_a_journal_of_its_own(cli: Cli, url: str) -> None:
    assert "journal of its own" in cli("demo", "--url", url, code=2).err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot serve on" in cli("demo", "--port", str(taken.getsockname()[1]), code=2).err
    assert not Path(url).exists()

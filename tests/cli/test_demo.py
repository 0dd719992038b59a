"""`demo`: a journal that lives, with the console on it, and nothing left behind."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli, Start, first_line
from penstock.cli.demo import _acts


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return int(answer.status)


def test_the_demo_tells_a_story_whose_pages_are_there_and_keeps_it(start: Start, tmp_path: Path) -> None:
    process = start("demo", "--json", "--seconds", "6", "--keep", TMPDIR=str(tmp_path), PENSTOCK_URL="")
    for _ in range(7):
        act = first_line(process)
        assert act["says"] and act["look"] and status(act["url"]) == 200
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    closing, left = (json.loads(line) for line in rest.splitlines()[-2:])
    assert "the shop closes" in closing["says"]
    kept = Path(left["kept"])
    assert tmp_path in kept.parents
    with penstock.open(kept, read_only=True) as journal:
        assert {"orders", "payments", "invoices"} <= set(journal.topics())
        assert {"emails", "emails.dead", "reports"} <= set(journal.queues())
        assert {one.topic for one in journal.correlated("order-1")} >= {"orders", "payments", "invoices", "mails"}
        assert journal.queue("emails").pending() == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_demo_ends_cleanly_when_told_and_leaves_nothing(
    start: Start, tmp_path: Path, ending: signal.Signals
) -> None:
    process = start("demo", "--json", "--seconds", "600", TMPDIR=str(tmp_path), PENSTOCK_URL="")
    assert "600 seconds" in first_line(process)["says"]
    process.send_signal(ending)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "shop.db"], "the demo left something"


def test_a_long_demo_fails_within_its_first_half_minute_and_again_later() -> None:
    acts = [(at, act.__name__) for at, act in _acts(100)]
    breaks = [at for at, name in acts if name == "_break_mail"]
    assert breaks == [9, 39, 69, 99]
    assert [name for _, name in acts].count("_orders") == 1
    assert [at for at, _ in acts] == sorted(at for at, _ in acts)
    assert [act for _, act in _acts(6)] == [act for _, act in _acts(100)][:6]


def test_the_demo_makes_a_journal_of_its_own(cli: Cli, url: str) -> None:
    Path(url).unlink()
    assert "journal of its own" in cli("demo", "--url", url, code=2).err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot serve on" in cli("demo", "--port", str(taken.getsockname()[1]), code=2).err
    assert not Path(url).exists()

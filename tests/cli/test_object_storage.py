"""Journals in an object store, from the command line: on a folder, where everything but the network is the same."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli, Start, first_line
from penstock.api import local
from penstock.cli import command
from penstock.cli.main import run
from server.serving import serving


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"slatedb:{tmp_path / 'shop'}"


def test_a_journal_is_copied_to_another_engine_and_back(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    said = cli("copy", url, f"sqlite:{tmp_path / 'b.db'}", "--json")
    assert json.loads(said.out)["rows"] > 0
    cli("copy", f"sqlite:{tmp_path / 'b.db'}", f"slatedb:{tmp_path / 'c'}")
    before = cli("read", orders, "--json").out
    assert cli("read", orders, "--json", "--url", f"slatedb:{tmp_path / 'c'}").out == before
    refused = cli("copy", url, f"sqlite:{tmp_path / 'b.db'}", code=None)
    assert refused.code != 0 and "new place" in refused.err


def test_a_command_does_not_end_the_writer_unless_told_to(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("t").append("k", 1)
        refused = cli("append", "t", "k", "2", code=None)
        assert refused.code not in (0, command.USAGE) and f"process {os.getpid()}" in refused.err
        assert journal.topic("t").append("k", 3).seq == 2
        assert f"process {os.getpid()}" in cli("info").out
        cli("append", "t", "k", "4", "--takeover")
        with pytest.raises((penstock.errors.Fenced, penstock.errors.OutcomeUnknown)):  # the first may meet the takeover
            journal.topic("t").append("k", 5)
        with pytest.raises(penstock.errors.Fenced):
            journal.topic("t").append("k", 6)
    assert "written by" not in cli("info").out
    assert cli("read", "t", "--json").out.count("\n") == 3


def test_check_knows_the_lease_the_size_and_the_objects(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("t").append("k", 1)
        said = json.loads(cli("check", "--json").out)
        assert said["status"] == "OK" and f"process {os.getpid()}" in said["written_by"]
        assert said["objects"] >= 3 and said["size"] > 100 and said["unstored"] == 0
        assert f"written by process {os.getpid()}" in cli("check").out
    crowded = cli("check", "--objects", "1:1000000", code=None)
    assert crowded.code == 1 and "objects" in crowded.out and "written by" not in crowded.out
    large = cli("check", "--size", "1:10", code=None)
    assert large.code == 2 and "the journal has" in large.out
    assert json.loads(cli("info", "--json").out)["objects"] >= 3


def test_check_of_a_served_journal_knows_how_long_its_writer_has_a_commit_in_memory_only(
    cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(url) as journal, serving(journal) as served:
        journal.topic("t").append("k", 1)
        monkeypatch.setattr(local(journal, "a test")._engine, "unstored_seconds", lambda: 7.0)
        said = cli("check", "--unstored", "5s:60s", "--json", "--url", served.url, code=None)
        assert said.code == 1 and json.loads(said.out)["unstored"] == 7.0
        assert f"process {os.getpid()}" in json.loads(said.out)["written_by"]


def test_a_server_that_stands_by_serves_when_the_first_one_is_killed(url: str, start: Start) -> None:
    words = ("serve", "--port", "0", "--json")
    first = start(*words)
    served = first_line(first)["url"]
    second = start(*words, "--standby")
    assert second.stderr is not None and "standing by" in second.stderr.readline()
    with penstock.open(served) as journal:
        journal.topic("t").append("k", {"n": 1})
    first.kill()
    served = first_line(second)["url"]
    with penstock.open(served) as journal:
        assert journal.topic("t").append("k", {"n": 2}).seq == 2
        assert [event.payload["n"] for event in journal.topic("t").read()] == [1, 2]
    with urllib.request.urlopen(f"{served}/metrics", timeout=30) as page:
        assert page.status == 200


@pytest.mark.nightly("crashes")
def test_the_demonstration_of_a_failover_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--failover", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["lost"] == shown["given_twice"] == 0 and shown["acknowledged"] >= 400

"""Runs command lines in this process, as the script would, and keeps what they said."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli, Outcome, Start
from penstock.cli.main import run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


@pytest.fixture
def cli(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("topics", "--json", input="…")`: runs a command against the test's own store, which is there."""
    penstock.open(url).close()
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: str, input: str | None = None, code: int | None = 0) -> Outcome:
        if input is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
        capsys.readouterr()
        got = run(words)
        said = capsys.readouterr()
        if code is not None:
            assert got == code, said.err
        return Outcome(got, said.out, said.err)

    return call


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """`start("serve", "--port", "0", PENSTOCK_TOKEN="…")`: a process, against the test's own store, which is there."""
    penstock.open(url).close()
    started: list[subprocess.Popen[str]] = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def begin(*words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli", *words]
        given = {**os.environ, "PENSTOCK_URL": url, **environment}
        started.append(subprocess.Popen(command, text=True, env=given, cwd=tmp_path, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def orders(url: str) -> str:
    """A topic with ten orders in it."""
    with penstock.open(url) as journal:
        topic = journal.topic("orders")
        for number in range(1, 11):
            kind = "placed" if number % 2 else "paid"
            topic.append(kind, {"number": number, "total": number * 2.5}, key=f"customer-{number % 3}")
    return "orders"

"""`serve`: a real process, found by its first line, used by the other commands, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.commandline import Cli

TOKEN = "write-token-0123456789"


@pytest.fixture
def serve(url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli", "serve", "--url", url, "--port", "0", "--json", *words]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def place(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["url"])


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_server_is_used_by_the_other_commands_and_ends_when_told(
    cli: Cli, orders: str, serve: Callable[..., subprocess.Popen[str]], ending: signal.Signals
) -> None:
    process = serve()
    there = place(process)
    cli("append", "orders", "{}", "--url", there)
    assert cli("topics", "--json", "--url", there).document["latest"] == 11
    assert cli("check", "--url", there).code == 0
    process.send_signal(ending)
    assert process.wait(60) in (0, -ending, 128 + ending, 130)


def test_tokens_come_from_a_file_or_the_environment_and_are_asked_for(
    cli: Cli, orders: str, serve: Callable[..., subprocess.Popen[str]]
) -> None:
    there = place(serve(PENSTOCK_SERVE_TOKENS=f"write {TOKEN},read another-token-0123"))
    assert "--token" in cli("topics", "--url", there, code=2).err
    assert cli("topics", "--json", "--url", there, "--token", TOKEN).document["latest"] == 10
    assert "admin" in cli("compact", orders, "--before", "5", "--url", there, "--token", TOKEN, code=None).err


def test_another_address_needs_tokens(serve: Callable[..., subprocess.Popen[str]], orders: str) -> None:
    process = serve("--host", "0.0.0.0")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "token" in said and "Traceback" not in said


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_port_that_is_none_is_a_sentence(cli: Cli, orders: str, port: str) -> None:
    said = cli("serve", "--port", port, code=2).err
    assert "--port" in said and "Traceback" not in said


def test_a_server_is_not_served(cli: Cli, orders: str, serve: Callable[..., subprocess.Popen[str]]) -> None:
    assert "needs the store itself" in cli("serve", "--port", "0", "--url", place(serve()), code=2).err


def test_a_token_file_that_others_can_read_is_pointed_out(
    serve: Callable[..., subprocess.Popen[str]], orders: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# ours\nadmin {TOKEN}\n")
    tokens.chmod(0o644)
    process = serve("--token-file", str(tokens))
    place(process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "chmod 600" in said and TOKEN not in said


def test_a_bad_token_file_names_the_line_and_not_the_token(
    serve: Callable[..., subprocess.Popen[str]], orders: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin {TOKEN}\nroot {TOKEN}x\n")
    tokens.chmod(0o600)
    process = serve("--token-file", str(tokens))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "line 2" in said and TOKEN not in said

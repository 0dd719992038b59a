"""`serve`: a real process, found by its first line, used by the other commands, ended by a signal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli, Start, first_line
from server.serving import serving

SERVE = ("serve", "--port", "0", "--json")
TOKEN = "write-token-0123456789"


def test_a_server_is_used_by_the_other_commands_and_ends_when_told(cli: Cli, orders: str, start: Start) -> None:
    process = start(*SERVE)
    there = first_line(process)["url"]
    cli("append", "orders", "{}", "--url", there)
    assert cli("topics", "--json", "--url", there).document["latest"] == 11
    assert cli("check", "--url", there).code == 0
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, -signal.SIGINT, 130)


def test_tokens_come_from_the_environment_and_are_asked_for(cli: Cli, orders: str, start: Start) -> None:
    there = first_line(start(*SERVE, PENSTOCK_SERVE_TOKENS=f"write {TOKEN},read another-token-0123"))["url"]
    assert "--token" in cli("topics", "--url", there, code=2).err
    assert cli("topics", "--json", "--url", there, "--token", TOKEN).document["latest"] == 10
    assert "admin" in cli("compact", orders, "--before", "5", "--url", there, "--token", TOKEN, code=None).err


def test_tokens_come_from_a_file_which_others_should_not_read(
    cli: Cli, orders: str, start: Start, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# ours\nadmin {TOKEN}\n")
    tokens.chmod(0o644)
    process = start(*SERVE, "--token-file", str(tokens))
    there = first_line(process)["url"]
    assert "--token" in cli("topics", "--url", there, code=2).err
    assert cli("topics", "--json", "--url", there, "--token", TOKEN).document["latest"] == 10
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert "chmod 600" in said and TOKEN not in said
    assert process.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_what_cannot_be_served_is_a_sentence(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    assert "token" in cli("serve", "--port", "0", "--host", "0.0.0.0", code=2).err
    with penstock.open(url) as journal, serving(journal) as served:
        assert "needs the store itself" in cli("serve", "--port", "0", "--url", served.url, code=2).err
    tokens = tmp_path / "tokens"
    tokens.write_text(f"admin {TOKEN}\nroot {TOKEN}x\n")
    tokens.chmod(0o600)
    said = cli("serve", "--port", "0", "--token-file", str(tokens), code=2).err
    assert "line 2" in said and TOKEN not in said


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_port_that_is_none_is_a_sentence(cli: Cli, orders: str, port: str) -> None:
    said = cli("serve", "--port", port, code=2).err
    assert "--port" in said and "Traceback" not in said

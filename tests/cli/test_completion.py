"""`completion`: scripts that real shells can use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commandline import Cli


@pytest.fixture
def script(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "penstock.bash"
    path.write_text(cli("completion", "bash").out, encoding="utf-8")
    return path


def complete(script: Path, url: str, *words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    penstock = Path(sys.executable).with_name("penstock")
    program = f"""
        source '{script}'
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _penstock_completion '{penstock}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PENSTOCK_URL": url}
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_names(cli: Cli, script: Path, orders: str, url: str) -> None:
    cli("push", "order-mails", "1")
    assert complete(script, url, "penstock", "to") == ["topics", "top"]
    assert complete(script, url, "penstock", "seek", "--to-t") == ["--to-time"]
    assert complete(script, url, "penstock", "tail", "order") == ["order-mails", "orders"]
    assert complete(script, url, "penstock", "tail", "orders", "order-") == ["order-mails"]
    assert complete(script, url, "penstock", "peek", "ord") == ["order-mails"]
    assert complete(script, url, "penstock", "move", "order-mails", "ord") == ["order-mails"]
    assert complete(script, url, "penstock", "check", "--topic", "orders") == ["orders"]
    assert complete(script, url, "penstock", "export", "orders", "x", "--format", "p") == ["parquet"]
    assert complete(script, url, "penstock", "buffer", "st") == ["status"]


def test_names_are_those_of_the_journal_the_line_speaks_of(cli: Cli, script: Path, orders: str, url: str) -> None:
    assert complete(script, "memory:", "penstock", "read", "--url", url, "or") == ["orders"]
    assert complete(script, "memory:", "penstock", "--url", url, "read", "or") == ["orders"]
    assert complete(script, url + ".not-there", "penstock", "read", "or") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(cli: Cli, shell: str, tmp_path: Path) -> None:
    text = cli("completion", shell).out
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in text
    if (found := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text, encoding="utf-8")
        subprocess.run([found, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_an_unknown_shell_is_a_sentence(cli: Cli) -> None:
    said = cli("completion", "tcsh", code=2).err
    assert all(shell in said for shell in ("bash", "zsh", "fish")) and "Traceback" not in said

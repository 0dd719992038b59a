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
    program = f"""
        penstock() {{ '{sys.executable}' -m penstock.cli "$@"; }}
        source '{script}'
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _penstock; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PENSTOCK_URL": url}
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_names(script: Path, orders: str, url: str) -> None:
    assert complete(script, url, "penstock", "to") == ["topics", "top"]
    assert complete(script, url, "penstock", "seek", "--to-t") == ["--to-time"]
    assert complete(script, url, "penstock", "tail", "or") == ["orders"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(cli: Cli, shell: str, tmp_path: Path) -> None:
    from penstock.cli.index import GROUPS

    text = cli("completion", shell).out
    assert all(name in text for _, _, commands in GROUPS for name, _ in commands)
    if (found := shutil.which(shell)) is not None:
        (tmp_path / "script").write_text(text, encoding="utf-8")
        subprocess.run([found, "-n", str(tmp_path / "script")], check=True, timeout=60)


def test_an_unknown_shell_is_a_sentence(cli: Cli) -> None:
    assert "bash, zsh, fish" in cli("completion", "tcsh", code=2).err

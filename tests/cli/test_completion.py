"""`completion`: scripts that real shells can use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commandline import Cli
from penstock.cli.main import run


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


def test_bash_completes_commands_options_and_names(script: Path, orders: str, url: str) -> None:
    assert complete(script, url, "penstock", "to") == ["topics", "top"]
    assert complete(script, url, "penstock", "seek", "--to-t") == ["--to-time"]
    assert complete(script, url, "penstock", "tail", "ord") == ["orders"]


def test_names_are_completed_where_they_are_meant(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli("push", "order-mails", "1")

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        with pytest.raises(SystemExit):
            run([])
        return [offer.partition(",")[2] for offer in capsys.readouterr().out.split()]

    assert offered("penstock tail order") == ["order-mails", "orders"]
    assert offered("penstock tail orders order-") == ["order-mails"]
    assert offered("penstock peek ord") == ["order-mails"]
    assert offered("penstock move order-mails ord") == ["order-mails"]
    assert offered("penstock check --topic orders") == ["orders"]
    assert offered("penstock export orders x --format p") == ["parquet"]
    assert offered("penstock buffer st") == ["status"]
    both = ["order-mails", "orders"]
    monkeypatch.setenv("PENSTOCK_URL", "memory:")
    assert offered(f"penstock read --url {url} or") == offered(f"penstock --url {url} read or") == both
    monkeypatch.setenv("PENSTOCK_URL", f"{url}.not-there")
    assert offered("penstock read or") == []


def shell(name: str) -> str:
    """A shell of this machine; continuous integration has them all."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: apt-get install {name}")
    return found


def environment(url: str) -> dict[str, str]:
    folder = Path(sys.executable).parent
    return {**os.environ, "PENSTOCK_URL": url, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm"}


def test_fish_completes_commands_options_and_names(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    fish, script = shell("fish"), tmp_path / "penstock.fish"
    script.write_text(cli("completion", "fish").out, encoding="utf-8")

    def completed(line: str) -> list[str]:
        program = f"source '{script}'; complete -C '{line}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=environment(url),
        )
        return sorted(offer.partition("\t")[0] for offer in done.stdout.splitlines())

    assert completed("penstock to") == ["top", "topics"]
    assert completed("penstock seek --to-t") == ["--to-time"]
    assert completed("penstock tail ord") == ["orders"]


ZSH = r"""
zmodload zsh/zpty
zpty shell {zsh} -f -i
zpty -w shell "autoload -Uz compinit; compinit -u -d {folder}/dump; source {folder}/_penstock"
zpty -w shell "bindkey '^I' complete-word"
zpty -n -w shell $'{line}\t\C-aprint -r -- G\'\'OT: \n'
while zpty -r shell said; do print -r -- "$said"; [[ $said == *GOT:* ]] && break; done
zpty -d shell
"""


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [("penstock topi", "penstock topics"), ("penstock tail ord", "penstock tail orders")],
)
def test_zsh_completes_what_is_typed(cli: Cli, orders: str, url: str, tmp_path: Path, typed: str, becomes: str) -> None:
    zsh = shell("zsh")
    (tmp_path / "_penstock").write_text(cli("completion", "zsh").out, encoding="utf-8")
    (tmp_path / "type.zsh").write_text(ZSH.format(zsh=zsh, folder=tmp_path, line=typed), encoding="utf-8")
    done = subprocess.run(
        [zsh, "-f", str(tmp_path / "type.zsh")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment(url),
    )
    assert f"GOT: {becomes}" in done.stdout


def test_an_unknown_shell_is_a_sentence(cli: Cli) -> None:
    said = cli("completion", "tcsh", code=2).err
    assert all(shell in said for shell in ("bash", "zsh", "fish")) and "Traceback" not in said

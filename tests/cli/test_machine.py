"""`doctor`: the user's own machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli
from penstock.api import local
from penstock.core.journal import keys
from penstock.core.journal.blocks import decode_wire, encode_block
from penstock.errors import Corrupt


def test_the_doctor_finds_a_healthy_installation_healthy(cli: Cli, orders: str, url: str) -> None:
    shown = cli("doctor").out
    assert "sqlite" in shown and "extra server" in shown and "disk sync" in shown
    assert url in shown and "1 topics" in shown
    assert "✗" not in shown


def test_the_doctor_names_a_topic_that_housekeeping_could_not_read(cli: Cli, orders: str, url: str) -> None:
    with penstock.open(url) as journal, local(journal, "a test")._engine.write() as tx:
        [key] = [key for key, _ in tx.scan(b"", b"\xff") if key.startswith(keys.BLOCK)][:1]
        wire = decode_wire((tx.get(key) or b"")[:-4])
        wire.lengths = 1 << 40
        tx.put(key, encode_block(wire))
    with penstock.open(url) as journal, pytest.raises(Corrupt):
        journal.maintain()
    outcome = cli("doctor", code=1)
    assert "topic orders" in outcome.out and "penstock compact" in outcome.out


def test_the_doctor_does_without_a_journal(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    found = {finding["what"]: finding for finding in cli("doctor", "--url", "shop.db", "--json").documents}
    assert found["journal"]["found"].startswith("none: ")
    assert found["python"]["ok"] and "ms" in found["disk sync"]["found"]
    assert not list((tmp_path / "empty").iterdir())


def test_the_doctor_names_what_is_missing_and_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "rocksdict" else find(name, *rest)
    )
    found = {finding["what"]: finding for finding in cli("doctor", "--json").documents}
    assert found["extra rocksdb"]["advice"] == 'for it: pip install "penstock[rocksdb]"'
    assert found["extra rocksdb"]["ok"], "what is merely not installed is no fault"


def test_the_doctor_refuses_an_old_java(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = {finding["what"]: finding for finding in cli("doctor", "--json", code=1).documents}
    assert found["java"]["found"] == "8 from JAVA_HOME" and "17 or newer" in found["java"]["advice"]

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from cli.commandline import Cli

KEPT = ("kind", "payload", "key", "scope", "headers", "occurred_at", "correlation_id", "causation_id", "binary")


@pytest.fixture
def mixed(url: str) -> str:
    with penstock.open(url) as journal:
        topic = journal.topic("mixed")
        first = topic.append("placed", {"n": 1}, key="a", scope="eu", headers={"trace": "1"})
        topic.append("paid", [1, "zwei", None, {"drei": 3.5}], cause=first)
        topic.append("text", "a\nb", key="b")
        topic.append("nothing", None)
    return "mixed"


def comparable(events: list[Any]) -> list[dict[str, Any]]:
    return [{name: event.get(name) for name in KEPT} for event in events]


@pytest.mark.parametrize("ending", ["jsonl", "arrow", "parquet"])
def test_what_was_exported_can_be_imported(cli: Cli, mixed: str, tmp_path: Path, ending: str) -> None:
    file = str(tmp_path / f"mixed.{ending}")
    assert cli("export", "mixed", file, "--json").document["events"] == 4
    assert cli("import", "copy", file, "--json").document["appended"] == 4
    original, copy = (cli("read", topic, "--json").documents for topic in ("mixed", "copy"))
    assert comparable(copy) == comparable(original)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_named_source_is_imported_once(cli: Cli, orders: str, tmp_path: Path, ending: str) -> None:
    file = str(tmp_path / f"orders.{ending}")
    cli("export", "orders", file)
    assert cli("import", "copy", file, "--source", "shop", "--batch", "3", "--json").document["appended"] == 10
    again = cli("import", "copy", file, "--source", "shop", "--json").document
    assert (again["appended"], again["known_before"]) == (0, 10)


def test_bytes_survive_json_lines(cli: Cli, url: str, tmp_path: Path) -> None:
    with penstock.open(url) as journal:
        journal.topic("raw").append("k", bytes(range(256)))
    file = str(tmp_path / "raw.jsonl")
    cli("export", "raw", file)
    cli("import", "copy", file)
    with penstock.open(url) as journal:
        copied = journal.topic("copy").get(1)
    assert copied is not None and copied.payload == bytes(range(256))


def test_export_takes_ranges_and_conditions(cli: Cli, orders: str, tmp_path: Path) -> None:
    said = cli("export", "orders", "-", "--where", "payload.number > 8").documents
    assert [event["seq"] for event in said] == [9, 10]
    file = str(tmp_path / "some.parquet")
    assert (
        cli("export", "orders", file, "--after", "2", "--through", "5", "--since", "1h", "--json").document["events"]
        == 3
    )
    assert "jsonl" in cli("export", "orders", file, "--replace", "--key", "a", code=2).err


def test_export_replaces_no_file_unless_told(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("precious")
    assert "--replace" in cli("export", "orders", str(file), code=2).err
    assert file.read_text() == "precious"
    cli("export", "orders", str(file), "--replace")
    assert len(file.read_text().splitlines()) == 10
    assert [path.name for path in tmp_path.glob("*.partial")] == []


def test_a_line_that_is_no_event_is_named(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"kind": "a", "payload": 1}\n{"payload": 2}\n')
    assert "line 2" in cli("import", "t", str(file), code=2).err


def test_a_missing_file_is_a_sentence(cli: Cli, tmp_path: Path) -> None:
    said = cli("import", "t", str(tmp_path / "none.jsonl"), code=1)
    assert "No such file" in said.err and "Traceback" not in said.err

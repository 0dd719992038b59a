"""`export` and `import`: topics to files and folders, and back with everything they had."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli
from server.serving import serving


@pytest.fixture
def mixed(url: str) -> str:
    with penstock.open(url) as journal:
        topic = journal.topic("mixed")
        first = topic.append("placed", {"n": 1}, key="a", scope="eu", headers={"trace": "1"})
        topic.append("paid", [1, "zwei", None, {"drei": 3.5}], cause=first)
        topic.append("text", "a\nb", key="b")
        topic.append("nothing", None)
        topic.append("raw", bytes(range(256)))
    return "mixed"


@pytest.mark.parametrize("ending", ["jsonl", "arrow", "parquet"])
def test_what_was_exported_is_imported_as_it_was(cli: Cli, mixed: str, tmp_path: Path, ending: str) -> None:
    file = str(tmp_path / f"mixed.{ending}")
    assert cli("export", "mixed", file, "--json").document["events"] == 5
    other = str(tmp_path / "other.db")
    assert cli("import", "mixed", file, "--url", other, "--create", "--json").document["imported"] == 5
    assert cli("read", "mixed", "--json", "--url", other).out == cli("read", "mixed", "--json").out
    assert cli("import", "mixed", file, "--url", other, "--json").document == {
        "topics": 1,
        "imported": 0,
        "known_before": 5,
    }


def test_a_file_may_go_to_a_topic_of_another_name(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = str(tmp_path / "orders.jsonl")
    cli("export", "orders", file, "--kind", "paid")
    assert cli("import", "paid", file, "--json").document["imported"] == 5
    copied = cli("read", "paid", "--json").documents
    original = cli("read", "orders", "--kind", "paid", "--json").documents
    assert [(one["seq"], one["id"]) for one in copied] == [(one["seq"], one["id"]) for one in original]


def test_a_topic_that_holds_other_events_takes_them_only_under_new_ids(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = str(tmp_path / "orders.jsonl")
    cli("export", "orders", file)
    cli("append", "mine", "1")
    said = cli("import", "mine", file, code=2).err
    assert "holds other events" in said and "append TOPIC --file FILE --events" in said
    for appended in (10, 0):
        done = cli("append", "mine", "--file", file, "--events", "--dedup-from", "id", "--json").document
        assert done["appended"] == appended
    assert cli("topics", "mine", "--json").document["events"] == 11


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_folder_takes_whole_journals_and_goes_on(
    cli: Cli, orders: str, mixed: str, tmp_path: Path, format: str
) -> None:
    cli("configure", "orders", "--max-age", "30d")
    folder, other = str(tmp_path / "all"), str(tmp_path / "other.db")
    assert cli("export", folder, "--format", format, "--json").document["events"] == 15
    cli("append", "orders", "late", "1")
    assert cli("export", folder, "--format", format, "--json").document["events"] == 1
    assert cli("import", folder, "--url", other, "--create", "--json").document["imported"] == 16
    for topic in ("orders", "mixed"):
        assert cli("read", topic, "--json", "--url", other).out == cli("read", topic, "--json").out
    assert cli("configure", "orders", "--url", other, "--json").document["max_age"] == 30 * 86400
    third = str(tmp_path / "third.db")
    assert cli("import", "mixed", folder, "--url", third, "--create", "--json").document["topics"] == 1
    assert cli("topics", "--url", third, "--json").document["topic"] == "mixed"


def test_a_folder_takes_whole_topics_that_are_there(cli: Cli, orders: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "all")
    assert "whole topics" in cli("export", folder, "--kind", "paid", code=2).err
    assert "did you mean 'orders'" in cli("export", "ordres", folder, code=3).err
    assert "csv" in cli("export", folder, "--format", "csv", code=2).err
    assert not Path(folder).exists()
    assert "holds no export" in cli("import", str(tmp_path), code=2).err


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow", "csv"])
def test_every_format_takes_ranges_and_conditions(cli: Cli, orders: str, tmp_path: Path, ending: str) -> None:
    file = str(tmp_path / f"some.{ending}")
    words = ("--after", "2", "--through", "8", "--since", "1h", "--kind", "paid", "--where", "payload.number > 4")
    assert cli("export", "orders", file, *words, "--json").document["events"] == 2
    said = cli("export", "orders", "-", "--where", "payload.number > 8").documents
    assert [event["seq"] for event in said] == [9, 10]


def test_csv_is_for_looking_at(cli: Cli, mixed: str, tmp_path: Path) -> None:
    file = tmp_path / "mixed.csv"
    cli("export", "mixed", str(file))
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["kind"] for row in rows] == ["placed", "paid", "text", "nothing", "raw"]
    assert [json.loads(row["payload"]) for row in rows[:4]] == [
        {"n": 1},
        [1, "zwei", None, {"drei": 3.5}],
        "a\nb",
        None,
    ]
    assert (rows[0]["key"], rows[0]["headers"], rows[1]["causation_id"]) == ("a", '{"trace":"1"}', rows[0]["id"])
    assert cli("export", "mixed", "-", "--format", "csv").out == file.read_bytes().decode()
    assert "CSV" in cli("import", "copy", str(file), code=2).err


def test_an_ending_that_is_no_format_is_a_sentence(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.xlsx"
    assert ".xlsx is no format" in cli("export", "orders", str(file), code=2).err
    assert not file.exists()
    cli("export", "orders", str(file), "--format", "jsonl")
    assert "says no format" in cli("import", "copy", str(file), code=2).err
    assert cli("import", "copy", str(file), "--format", "jsonl", "--json").document["imported"] == 10
    assert "one topic" in cli("export", "orders", "orders", str(tmp_path / "two.jsonl"), code=2).err
    assert "one topic" in cli("import", str(file), code=2).err


def test_export_replaces_no_file_unless_told(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("precious")
    assert "--replace" in cli("export", "orders", str(file), code=2).err
    assert file.read_text() == "precious"
    cli("export", "orders", str(file), "--replace")
    assert len(file.read_text().splitlines()) == 10
    assert [path.name for path in tmp_path.glob("*.partial")] == []


def test_an_export_that_fails_leaves_no_file(cli: Cli, orders: str, tmp_path: Path) -> None:
    cli("compact", "orders", "--through", "5")
    file = tmp_path / "orders.parquet"
    assert "PositionTrimmed" in cli("export", "orders", str(file), "--after", "1", "--json", code=1).err
    assert [path.name for path in tmp_path.iterdir() if "orders" in path.name] == []


def test_standard_input_is_imported(cli: Cli, orders: str, tmp_path: Path) -> None:
    lines = cli("export", "orders", "-").out
    assert cli("import", "copy", "-", "--json", input=lines).document["imported"] == 10
    assert cli("import", "copy", "-", "--json", input=lines).document["known_before"] == 10


def test_a_line_that_is_no_event_is_named(cli: Cli, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(cli("export", "orders", "-", "--through", "1").out + '{"payload": 2}\n')
    assert "line 2" in cli("import", "t", str(file), code=2).err
    (tmp_path / "bad.parquet").write_text("no Parquet")
    assert "not what an export writes" in cli("import", "t", str(tmp_path / "bad.parquet"), code=2).err


def test_a_missing_file_is_a_sentence(cli: Cli, tmp_path: Path) -> None:
    said = cli("import", "t", str(tmp_path / "none.jsonl"), code=1)
    assert "No such file" in said.err and "Traceback" not in said.err


def test_a_servers_topic_is_exported_and_imports_need_the_store(cli: Cli, mixed: str, url: str, tmp_path: Path) -> None:
    with penstock.open(url) as journal, serving(journal) as served:
        for ending in ("jsonl", "parquet", "csv"):
            there, here = str(tmp_path / f"there.{ending}"), str(tmp_path / f"here.{ending}")
            cli("export", "mixed", there, "--url", served.url)
            cli("export", "mixed", here)
            assert Path(there).read_bytes() == Path(here).read_bytes()
        for words in (("export", str(tmp_path / "folder")), ("import", "copy", str(tmp_path / "here.jsonl"))):
            assert "needs the store itself" in cli(*words, "--url", served.url, code=2).err

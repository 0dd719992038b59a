from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

import penstock
from bulk_files import bulk_append
from cli.commandline import Cli
from server.serving import serving


def test_seal_moves_history_into_files_and_reads_go_on(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    before = cli("read", "orders", "--json").out
    done = cli("seal", "orders", "--lake", lake, "--through", "6", "--json")
    assert done.document["events"] == 6 and done.document["through"] == 6
    assert "6 of 6 events sealed" in done.err
    (file,) = Path(lake).rglob("*.parquet")
    assert pq.read_table(file)["seq"].to_pylist() == list(range(1, 7))
    assert done.document["size"] == file.stat().st_size
    assert cli("read", "orders", "--json").out == before
    assert "whole" in cli("verify", "orders").out
    assert cli("seal", "orders", "--lake", lake, "--older-than", "1h", "--json").document["events"] == 0
    assert "10" in cli("seal", "orders", "--lake", lake, "--older-than", "0s").out
    assert cli("read", "orders", "--json").out == before


def test_files_of_bulk_writes_are_listed_without_programs_that_read_them(
    cli: Cli, orders: str, url: str, tmp_path: Path
) -> None:
    with penstock.open(url) as journal:
        bulk_append(journal, tmp_path / "lake", [("bulk", "k", {"n": n}) for n in range(5)])
    assert cli("lake", "--json").document["readers"] == {}
    assert "5 events are in files of bulk writes" in cli("lake").out
    assert "whole" in cli("verify", "orders").out


def test_a_table_is_sealed_and_listed(cli: Cli, orders: str, tmp_path: Path) -> None:
    assert "nothing is sealed" in cli("lake").err + cli("lake").out
    lake = str(tmp_path / "lake")
    columns = "total DOUBLE"
    done = cli("seal", "orders", "--lake", lake, "--through", "6", "--format", "delta", "--columns", columns, "--json")
    assert (done.document["format"], done.document["events"]) == ("delta", 6)
    found = cli("lake", "orders", "--json").document
    assert (found["files"], found["events"], found["format"], found["columns"]) == (1, 6, "delta", columns)
    (size,) = (file.stat().st_size for file in Path(lake).rglob("date=*/*.parquet"))
    assert found["bytes"] == size
    shown = cli("lake").out
    assert f"delta_scan('{lake}/orders')" in shown and f'polars.scan_delta("{lake}/orders")' in shown
    assert "did you mean INT" in cli("seal", "orders", "--lake", lake, "--columns", "total INTE", code=2).err
    assert "one of" in cli("seal", "orders", "--lake", lake, "--format", "hudi", code=2).err


def test_verify_names_a_damaged_file(cli: Cli, orders: str, tmp_path: Path) -> None:
    cli("seal", "orders", "--lake", str(tmp_path / "lake"), "--through", "6")
    (file,) = (tmp_path / "lake").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert file.name in cli("verify", "orders", "--json", code=1).document["state"]
    turned = whole.index(b"parquet-cpp")  # who wrote it: no reader would notice
    file.write_bytes(whole[:turned] + b"P" + whole[turned + 1 :])
    assert "another checksum" in cli("verify", "orders", "--json", code=1).document["state"]


def test_what_cannot_be_sealed_says_so(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    assert "--lake" in cli("seal", "orders", code=2).err
    lake = str(tmp_path / "lake")
    cli("seal", "orders", "--lake", lake, "--through", "6", "--older-than", "1h", code=2)
    assert "did you mean 'orders'" in cli("seal", "order", "--lake", lake, code=3).err
    missing = tmp_path / "other.db"
    cli("seal", "orders", "--lake", lake, "--url", str(missing), code=None)
    assert not missing.exists() and not Path(lake).exists()
    with penstock.open(url) as journal:
        journal.topic("orders").configure(by_key=True)
    assert "newest event of every key" in cli("seal", "orders", "--lake", lake, code=2).err


def test_a_served_journal_is_sealed_by_its_server(cli: Cli, orders: str, url: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    before = cli("read", "orders", "--json").out
    with penstock.open(url) as journal, serving(journal, lakes=[lake]) as served:
        there = ("--url", served.url)
        done = cli("seal", "orders", "--lake", lake, "--through", "6", "--json", *there)
        assert (done.document["events"], done.document["through"]) == (6, 6)
        assert "6 of 6 events sealed" in done.err
        assert cli("seal", "orders", "--lake", lake, "--older-than", "1h", "--json", *there).document["events"] == 0
        refused = cli("seal", "orders", "--lake", str(tmp_path), *there, code=2)
        listed = cli("lake", "--json", *there).document
        assert (listed["topic"], listed["lake"], listed["files"], listed["events"]) == ("orders", lake, 1, 6)
        assert listed["bytes"] == sum(one.stat().st_size for one in Path(lake).rglob("*.parquet"))
        assert listed["readers"]["Spark"] == f'spark.read.parquet("{lake}/orders")'
        assert "read_parquet(" in cli("lake", "orders", *there).out and cli("lake", "order", *there, code=3).err
        assert "start it with --lake" in refused.err
        assert "no topic" in cli("seal", "order", "--lake", lake, *there, code=3).err
    (file,) = Path(lake).rglob("*.parquet")
    assert pq.read_table(file)["seq"].to_pylist() == list(range(1, 7))
    assert cli("read", "orders", "--json").out == before

"""Sealed files that a column parts: every reader gets the same sums, and the journal reads them as one history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo

import penstock
from iceberg_tables import iceberg_table
from penstock import Draft, ManualClock
from penstock.core.journal.sealed import columns, writing
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.spark import seal

COLUMNS = "region STRING, total DOUBLE, n BIGINT, due DATE, paid BOOLEAN"
REGIONS = ["eu", "us west/2", "007", "x=1%", None, "größe", "", "y" * 300]
"""Among them: what a path must not have as it is, what looks like a number, nothing, and what cannot name a folder."""
NINE = round(datetime(2026, 3, 1, 9, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Polars warns when its own is not installed


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db", clock=ManualClock(NINE)) as opened:
        yield opened


def region(n: int) -> str | None:
    return REGIONS[n % len(REGIONS)]


def payload(n: int) -> dict[str, object]:
    return {"region": region(n), "total": n * 1.5, "n": n % 3, "due": f"2026-04-0{n % 4 + 1}", "paid": n % 2 == 0}


def fill(journal: penstock.Journal, count: int, first: int = 0) -> None:
    drafts = [Draft(f"order.{n % 3}", payload(n), key=f"k{n % 7}") for n in range(first, first + count)]
    journal.topic("orders").append_many(drafts)


def kept(n: int) -> str | None:
    """The region that is a column: what cannot name a folder leaves it empty."""
    found = region(n)
    return None if found == "" or found is None or len(found) > 200 else found


def expected(rows: Iterator[int] | range) -> dict[str | None, tuple[int, int, float]]:
    found: dict[str | None, tuple[int, int, float]] = {}
    for n in rows:
        count, seqs, total = found.get(kept(n), (0, 0, 0.0))
        found[kept(n)] = (count + 1, seqs + n + 1, total + n * 1.5)
    return found


def by_region(table: pa.Table) -> dict[str | None, tuple[int, int, float]]:
    sums = table.group_by("region").aggregate([("seq", "count"), ("seq", "sum"), ("total", "sum")]).to_pylist()
    return {one["region"]: (one["seq_count"], one["seq_sum"], one["total_sum"]) for one in sums}


def answers(lake: Path, format: str) -> dict[str, dict[str | None, tuple[int, int, float]]]:
    """By reader, and by region: rows, the sum of positions, the sum of a typed column."""
    files = f"{lake}/orders/date=*/*/*.parquet"
    sql = (
        "SELECT region, count(*), sum(seq)::BIGINT, sum(total) "
        f"FROM read_parquet('{files}', hive_partitioning=true, hive_types={{'region': VARCHAR}}) GROUP BY region"
    )
    found = {"duckdb": {name: numbers for name, *numbers in duckdb.sql(sql).fetchall()}}
    hive = ds.partitioning(pa.schema([("date", pa.string()), ("region", pa.string())]), flavor="hive")
    folder = f"{lake}/orders"
    tables = {
        "arrow": ds.dataset(folder, partitioning=hive).to_table(columns=["region", "seq", "total"]),
        "polars": pl.scan_parquet(files, hive_partitioning=True).select("region", "seq", "total").collect().to_arrow(),
    }
    if format == "delta":
        tables["polars, delta"] = pl.scan_delta(folder).select("region", "seq", "total").collect().to_arrow()
        tables["deltalake"] = DeltaTable(folder).to_pyarrow_table(columns=["region", "seq", "total"])
    elif format == "iceberg":
        tables["polars, iceberg"] = (
            pl.scan_iceberg(iceberg_table(lake)).select("region", "seq", "total").collect().to_arrow()
        )
        tables["pyiceberg"] = iceberg_table(lake).scan(selected_fields=("region", "seq", "total")).to_arrow()
    sums: dict[str, Any] = {reader: by_region(table) for reader, table in tables.items()}
    return {**sums, "duckdb": {name: tuple(numbers) for name, numbers in found["duckdb"].items()}}


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_every_reader_gives_the_same_counts_and_sums_by_the_column(
    journal: penstock.Journal, tmp_path: Path, format: Any
) -> None:
    lake = tmp_path / "lake"
    fill(journal, 400)
    before = [event.as_dict() for event in journal.topic("orders").read()]
    options: dict[str, Any] = {"format": format, "columns": COLUMNS, "partition_by": "region"}
    report = seal(journal, "orders", lake=str(lake), through=100, file_events=50, **options)
    assert (report.events, report.files, report.unfit) == (100, 2 * 6, 24)
    seal(journal, "orders", lake=str(lake), through=300)  # goes on as the first one said
    for reader, found in answers(lake, format).items():
        assert found == expected(range(300)), reader
    assert [event.as_dict() for event in journal.topic("orders").read()] == before
    assert [event.seq for event in journal.topic("orders").read(reverse=True)] == list(range(400, 0, -1))
    for seq in (1, 50, 51, 299, 300, 301):
        assert journal.topic("orders").get(seq).as_dict() == before[seq - 1]
    assert [event.seq for event in journal.topic("orders").read(key="k3", limit=3)] == [4, 11, 18]
    assert journal.topic("orders").verify().ok


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_tables_know_which_files_hold_a_value(journal: penstock.Journal, tmp_path: Path, format: Any) -> None:
    lake = tmp_path / "lake"
    fill(journal, 160)
    seal(journal, "orders", lake=str(lake), through=160, format=format, columns=COLUMNS, partition_by="region")
    if format == "delta":
        table = DeltaTable(f"{lake}/orders")
        assert table.metadata().partition_columns == ["date", "region"]
        found = table.to_pyarrow_table(filters=[("region", "=", "us west/2")])
        log = (lake / "orders" / "_delta_log" / f"{0:020}.json").read_text()
        paths = [json.loads(line) for line in log.splitlines()]
        [added] = [one["add"] for one in paths if one.get("add", {}).get("partitionValues", {}).get("region") == "x=1%"]
        assert "region=x%253D1%2525/" in added["path"], "a path in Delta's log is a URI of the file's own name"
    else:
        scan = iceberg_table(lake).scan(row_filter=EqualTo("region", "us west/2"))
        assert len(list(scan.plan_files())) == 1
        assert {field.name for field in iceberg_table(lake).spec().fields} == {"date", "region"}
        found = scan.to_arrow()
    assert sorted(found["seq"].to_pylist()) == [n + 1 for n in range(160) if region(n) == "us west/2"]


@pytest.mark.parametrize("column", ["kind", "n", "due", "paid"])
@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_other_columns_part_files_too(journal: penstock.Journal, tmp_path: Path, column: str, format: Any) -> None:
    lake = tmp_path / "lake"
    fill(journal, 60)
    seal(journal, "orders", lake=str(lake), through=60, format=format, columns=COLUMNS, partition_by=column)
    frames = {"parquet": pl.scan_parquet(f"{lake}/orders/date=*/*/*.parquet", hive_partitioning=True)}
    if format == "delta":
        frames["delta"] = pl.scan_delta(f"{lake}/orders")
    if format == "iceberg":
        frames["iceberg"] = pl.scan_iceberg(iceberg_table(lake))
    wanted: dict[Any, int] = {}
    for event in journal.topic("orders").read():
        value = event.kind if column == "kind" else event.payload[column]
        wanted[str(value)] = wanted.get(str(value), 0) + event.seq
    for frame in frames.values():
        rows = frame.group_by(column).agg(pl.col("seq").sum()).collect().rows()
        assert {str(value): total for value, total in rows} == wanted
    assert [event.seq for event in journal.topic("orders").read()] == list(range(1, 61))


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_trimmed_history_leaves_and_small_files_become_one(
    journal: penstock.Journal, tmp_path: Path, format: Any
) -> None:
    lake = tmp_path / "lake"
    fill(journal, 400)
    options: dict[str, Any] = {"format": format, "columns": COLUMNS, "partition_by": "region"}
    seal(journal, "orders", lake=str(lake), through=200, file_events=50, **options)
    journal.topic("orders").compact(120)
    seal(journal, "orders", lake=str(lake), through=250)  # a file that is partly trimmed stays whole for other readers
    for reader, found in answers(lake, format).items():
        assert found == expected(range(100, 250)), reader
    seal(journal, "orders", lake=str(lake), through=250, compact=True)
    seal(journal, "orders", lake=str(lake), through=250)  # deletes what the merged files replaced
    for reader, found in answers(lake, format).items():
        assert found == expected(range(120, 250)), reader
    assert len(list((lake / "orders").glob("date=*/*/*.parquet"))) == 6
    assert [event.seq for event in journal.topic("orders").read()] == list(range(121, 401))
    report = journal.drop_topic("orders", force=True)
    assert sorted(report.files) == sorted(map(str, (lake / "orders").glob("date=*/*/*.parquet")))


def test_row_groups_of_the_same_positions_are_read_together(
    journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up opens the row groups around its event, not whole files."""
    monkeypatch.setattr(writing, "GROUP_ROWS", 40)
    for start in range(0, 400, 20):
        fill(journal, 20, start)
    before = [event.as_dict() for event in journal.topic("orders").read()]
    options: dict[str, Any] = {"columns": COLUMNS, "partition_by": "region"}
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=400, **options)
    assert [event.as_dict() for event in journal.topic("orders").read()] == before
    assert [event.seq for event in journal.topic("orders").read(after=137, through=261)] == list(range(138, 262))
    assert [event.seq for event in journal.topic("orders").read(after=137, through=261, reverse=True)] == list(
        range(261, 137, -1)
    )


def test_a_missing_or_damaged_file_of_one_value_is_named(journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal, 80)
    options: dict[str, Any] = {"columns": COLUMNS, "partition_by": "region"}
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=80, **options)
    [file] = (tmp_path / "lake" / "orders").glob("date=*/region=eu/*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.raises(Corrupt, match="bytes and should have") as short:
        list(journal.topic("orders").read())
    assert short.value.file == str(file)
    file.unlink()
    with pytest.raises(StorageError, match=r"some of events 1 to 80 of topic 'orders' are sealed in .*region=eu"):
        list(journal.topic("orders").read())
    file.write_bytes(whole)
    assert len(list(journal.topic("orders").read())) == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": "region"}, r"'region' is no typed column: name it in columns as well.*there are kind$"),
        ({"partition_by": "total", "columns": COLUMNS}, "'total' is double; files are parted by text"),
        ({"partition_by": "key", "columns": COLUMNS}, "'key' is no typed column"),
    ],
)
def test_what_cannot_part_files_is_said_before_anything_is_written(
    journal: penstock.Journal, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    fill(journal, 20)
    with pytest.raises(ConfigError, match=message):
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=20, **options)
    assert not (tmp_path / "lake").exists()


def test_how_files_are_parted_never_changes_in_a_lake(journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal, 60)
    parted, plain = str(tmp_path / "parted"), str(tmp_path / "plain")
    seal(journal, "orders", lake=parted, through=20, columns=COLUMNS, partition_by="region")
    for other in ("kind", ""):
        with pytest.raises(ConfigError, match="are parted by 'region', and stay so: seal to another lake"):
            seal(journal, "orders", lake=parted, through=30, partition_by=other)
    seal(journal, "orders", lake=parted, through=30, partition_by="region", columns=f"{COLUMNS}, more STRING")
    seal(journal, "orders", lake=plain, through=40)
    with pytest.raises(ConfigError, match="are parted by no column, and stay so"):
        seal(journal, "orders", lake=plain, through=50, partition_by="kind")
    seal(journal, "orders", lake=parted, through=60, format="delta")  # a plain lake becomes a table, with all files
    assert DeltaTable(f"{parted}/orders").count() == 50
    assert [event.seq for event in journal.topic("orders").read()] == list(range(1, 61))


def test_too_many_values_are_refused_and_nothing_is_lost(
    journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_PARTITION_VALUES", 3)
    lake = tmp_path / "lake"
    fill(journal, 60)
    options: dict[str, Any] = {"columns": COLUMNS, "partition_by": "region"}
    with pytest.raises(ConfigError, match=r"'region' has more than 3 values in one day of topic 'orders'"):
        seal(journal, "orders", lake=str(lake), through=60, **options)
    assert not list((lake / "orders").glob("date=*/*/*"))
    assert [event.seq for event in journal.topic("orders").read()] == list(range(1, 61))
    seal(journal, "orders", lake=str(tmp_path / "other"), through=60, columns=COLUMNS, partition_by="n")
    assert [event.seq for event in journal.topic("orders").read()] == list(range(1, 61))

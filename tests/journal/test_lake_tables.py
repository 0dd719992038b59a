"""Sealed history as tables: Delta and Iceberg list the journal's segments, and every reader gets the same sums."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import penstock
from iceberg_tables import iceberg_table
from penstock import ManualClock
from penstock.api import local
from penstock.core.journal.sealed import delta, sealing
from penstock.core.journal.sealed.delta import DeltaLakeTable
from penstock.core.journal.sealed.segments import load_segments, packed_pieces, save_segment
from penstock.core.journal.sealed.tables import Owner
from penstock.core.journal.writer import WriteRequest
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.spark import seal

COLUMNS = "customer STRING, total DOUBLE, count BIGINT, paid BOOLEAN, due DATE, at TIMESTAMP, price DECIMAL(12,2)"

NINE = round(datetime(2026, 3, 1, 9, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # Polars warns when its own is not installed


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db", clock=ManualClock(NINE)) as opened:
        yield opened


def fill(journal: penstock.Journal, count: int = 100, first: int = 0) -> None:
    journal.topic("orders").append_many(
        [
            penstock.Draft(
                "order.placed",
                {
                    "customer": f"c{n % 7}",
                    "total": n * 1.5,
                    "count": n,
                    "paid": n % 2 == 0,
                    "due": "2026-04-01",
                    "at": "2026-03-01T10:00:00+02:00",
                    "price": 12.25,
                },
                key=f"c{n % 7}",
            )
            for n in range(first, first + count)
        ]
    )


PANDAS = """
import os
import sys

lake, format = sys.argv[1:]
if format == "delta":
    from deltalake import DeltaTable

    frame = DeltaTable(f"{lake}/orders").to_pandas(columns=["seq", "total"])
elif format == "iceberg":
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("penstock", uri=f"sqlite:///{lake}/_iceberg.db", warehouse=f"file://{lake}")
    frame = catalog.load_table(("penstock", "orders")).scan().to_pandas()
else:
    import pandas

    frame = pandas.read_parquet(f"{lake}/orders", columns=["seq", "total"])
print(len(frame), frame["seq"].sum(), frame["total"].sum(), flush=True)
os._exit(0)  # threads of the readers' libraries may end the interpreter's own end with an abort
"""


def with_pandas(lake: Path, format: str) -> tuple[int, int, float]:
    """The same by pandas, in a process of its own: it lies beside the environment (see scripts/setup.py)."""
    aside = Path(sys.prefix) / "declarative"
    done = subprocess.run(
        [sys.executable, "-c", PANDAS, str(lake), format],
        env={**os.environ, "PYTHONPATH": str(aside)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, seqs, total = done.stdout.split()
    return int(rows), int(seqs), float(total)


def answers(lake: Path, format: str) -> dict[str, tuple[int, int, float]]:
    """Rows, the sum of positions and the sum of a typed column, as every reader sees them."""
    files = f"{lake}/orders/date=*/*.parquet"
    sql = f"SELECT count(*), sum(seq), sum(total) FROM read_parquet('{files}', hive_partitioning=true)"
    (duck,) = duckdb.sql(sql).fetchall()
    found = {"duckdb": duck}
    if format == "delta":
        frame = pl.scan_delta(f"{lake}/orders")
        arrow = DeltaTable(f"{lake}/orders").to_pyarrow_table(columns=["seq", "total"])
    elif format == "iceberg":
        frame = pl.scan_iceberg(iceberg_table(lake))
        arrow = iceberg_table(lake).scan(selected_fields=("seq", "total")).to_arrow()
    else:
        frame = pl.scan_parquet(files, hive_partitioning=True)
        arrow = ds.dataset(f"{lake}/orders", partitioning="hive").to_table(columns=["seq", "total"])
    found["polars"] = frame.select(pl.len(), pl.col("seq").sum(), pl.col("total").sum()).collect().row(0)
    found["arrow"] = (arrow.num_rows, sum(arrow.column("seq").to_pylist()), sum(arrow.column("total").to_pylist()))
    return {name: (int(rows), int(seqs), float(total)) for name, (rows, seqs, total) in found.items()}


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_every_reader_gives_the_same_counts_and_sums(journal: penstock.Journal, tmp_path: Path, format: Any) -> None:
    lake = tmp_path / "lake"
    fill(journal, 400)
    report = seal(journal, "orders", lake=str(lake), through=100, format=format, columns=COLUMNS, file_events=50)
    assert (report.events, report.files, report.format, report.unfit) == (100, 2, format, 0)
    seal(journal, "orders", lake=str(lake), through=300)  # goes on with what the first one said
    expected = (300, sum(range(1, 301)), sum(n * 1.5 for n in range(300)))
    assert {*answers(lake, format).values(), with_pandas(lake, format)} == {expected}
    assert len(journal.topic("orders")) == 400
    assert [event.payload["count"] for event in journal.topic("orders").read(after=98, limit=4)] == [98, 99, 100, 101]


def test_typed_columns_have_values_and_statistics(journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal, 50)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=50, columns=COLUMNS)
    (file,) = (tmp_path / "lake" / "orders").glob("date=*/*.parquet")
    row = pq.read_table(file).slice(3, 1).to_pylist()[0]
    assert (row["customer"], row["total"], row["count"], row["paid"]) == ("c3", 4.5, 3, False)
    assert row["at"] == datetime(2026, 3, 1, 8, tzinfo=UTC) and str(row["due"]) == "2026-04-01"
    assert str(row["price"]) == "12.25" and json.loads(row["payload"])["total"] == 4.5
    group = pq.ParquetFile(file).metadata.row_group(0)
    places = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    assert (places["total"].min, places["total"].max) == (0.0, 73.5)


def test_files_say_of_each_row_group_which_keys_it_may_have(journal: penstock.Journal, tmp_path: Path) -> None:
    topic = journal.topic("orders")
    topic.append_many(penstock.Draft("placed", n, key=f"key {n % 40}") for n in range(200))
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200)
    (file,) = (tmp_path / "lake" / "orders").glob("date=*/*.parquet")
    probe = "select bloom_filter_excludes from parquet_bloom_probe(?, 'key', ?)"
    found = {key: duckdb.execute(probe, [str(file), key]).fetchall() for key in ("key 7", "key 7x", "nobody")}
    assert found == {"key 7": [(False,)], "key 7x": [(True,)], "nobody": [(True,)]}
    assert file.stat().st_size < 12_000


def test_what_does_not_fit_leaves_its_columns_empty_and_its_text_whole(
    journal: penstock.Journal, tmp_path: Path
) -> None:
    topic = journal.topic("orders")
    payloads: list[Any] = [
        {"total": 1.5},
        {"total": "much"},
        None,
        b"\x00\xff",
        [1],
        "text",
        {"other": 1},
        {"total": None},
    ]
    topic.append_many([penstock.Draft("order.placed", payload) for payload in payloads])
    report = seal(journal, "orders", lake=str(tmp_path / "lake"), through=8, format="delta", columns="total DOUBLE")
    assert report.unfit == 4  # the word, the bytes, the list and the text
    table = DeltaTable(str(tmp_path / "lake" / "orders")).to_pyarrow_table(columns=["total", "payload"])
    assert table.column("total").to_pylist() == [1.5, *[None] * 7]
    assert [event.payload for event in topic.read()] == payloads


def test_columns_of_a_declared_type(journal: penstock.Journal, tmp_path: Path) -> None:
    class Placed(msgspec.Struct):
        customer: str
        total: float | None
        lines: list[str]
        id: str

    fill(journal, 10)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=10, columns=Placed)
    (file,) = (tmp_path / "lake" / "orders").glob("date=*/*.parquet")
    assert pq.ParquetFile(file).schema_arrow.names[-2:] == ["customer", "total"]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_trimmed_history_leaves_the_table(journal: penstock.Journal, tmp_path: Path, format: Any) -> None:
    lake = tmp_path / "lake"
    fill(journal, 300)
    seal(journal, "orders", lake=str(lake), through=200, format=format, columns=COLUMNS, file_events=50)
    journal.topic("orders").compact(120)
    seal(journal, "orders", lake=str(lake), through=250)
    rows = range(101, 251)  # a file that is partly trimmed stays whole for other readers
    assert set(answers(lake, format).values()) == {(150, sum(rows), sum((n - 1) * 1.5 for n in rows))}
    assert len(journal.topic("orders")) == 180


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_small_files_of_a_day_become_one(journal: penstock.Journal, tmp_path: Path, format: Any) -> None:
    lake = tmp_path / "lake"
    fill(journal, 300)
    for through in (50, 80, 120):
        seal(journal, "orders", lake=str(lake), through=through, format=format)
    report = seal(journal, "orders", lake=str(lake), through=120, compact=True, columns="total DOUBLE")
    assert report.events == 0
    seal(journal, "orders", lake=str(lake), through=120)  # deletes what the merged file replaced
    (file,) = (lake / "orders").glob("date=*/*.parquet")
    assert file.name.startswith(f"{1:020d}-{120:020d}")
    assert set(answers(lake, format).values()) == {(120, sum(range(1, 121)), sum(n * 1.5 for n in range(120)))}
    assert [event.seq for event in journal.topic("orders").read()] == list(range(1, 301))
    assert [event.payload["count"] for event in journal.topic("orders").read(key="c3", limit=3)] == [3, 10, 17]


def test_small_files_of_several_days_stay_apart(journal: penstock.Journal, tmp_path: Path) -> None:
    clock = local(journal, "a test").clock
    assert isinstance(clock, ManualClock)
    for day in range(3):
        for _ in range(2):
            fill(journal, 10, day * 10)
            seal(journal, "orders", lake=str(tmp_path / "lake"), through=journal.topic("orders").latest)
        clock.advance(86_400)
    seal(journal, "orders", lake=str(tmp_path / "lake"), compact=True, through=60)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=60)
    days = sorted(path.parent.name for path in (tmp_path / "lake" / "orders").glob("date=*/*.parquet"))
    assert days == ["date=2026-03-01", "date=2026-03-02", "date=2026-03-03"]
    assert len(list(journal.topic("orders").read())) == 60


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_seal_that_ended_before_the_table_was_written_is_finished_by_the_next(
    journal: penstock.Journal, tmp_path: Path, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    fill(journal, 200)
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "bring_up_to_date", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            seal(journal, "orders", lake=str(lake), through=100, format=format, columns=COLUMNS)
    assert journal.topic("orders").position_at(datetime(2030, 1, 1, tzinfo=UTC)) == 200
    for _ in range(2):  # and once more changes nothing
        seal(journal, "orders", lake=str(lake), through=100)
        assert set(answers(lake, format).values()) == {(100, sum(range(1, 101)), sum(n * 1.5 for n in range(100)))}


def test_two_commits_of_a_delta_table_at_once_conflict(journal: penstock.Journal, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(journal, 200)
    seal(journal, "orders", lake=str(lake), through=100, format="delta")
    owner = Owner(local(journal, "a test").id, "orders", str(lake))
    first, second = DeltaLakeTable(owner), DeltaLakeTable(owner)
    (path,) = first.paths()
    schema = pq.ParquetFile(next((lake / "orders").glob("date=*/*.parquet"))).schema_arrow
    first.update([], [path], schema, 100)
    with pytest.raises(StorageError, match="changed by another program"):
        second.update([], [path], schema, 100)


def test_a_copy_that_is_behind_does_not_take_the_table_back(journal: penstock.Journal, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(journal, 200)
    seal(journal, "orders", lake=str(lake), through=50, format="delta")
    journal.backup(tmp_path / "copy.db")
    seal(journal, "orders", lake=str(lake), through=150)
    with penstock.open(tmp_path / "copy.db") as copy, pytest.raises(ConfigError, match="copy of this journal"):
        seal(copy, "orders", lake=str(lake), through=150)
    assert DeltaTable(str(lake / "orders")).count() == 150


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "hudi"}, "format is one of parquet, delta, iceberg"),
        ({"catalog": "prod"}, "catalog goes with format='iceberg'"),
        ({"columns": "id STRING"}, "'id' already"),
        ({"columns": "total STRIN"}, "did you mean STRING"),
        ({"columns": "lines ARRAY<STRING>"}, "nested values stay"),
        ({"columns": "a INT, a INT"}, "twice"),
        ({"columns": "a INT, A INT"}, "case"),
        ({"format": "iceberg", "catalog": "nowhere"}, "cannot be opened"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_is_written(
    journal: penstock.Journal, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    fill(journal, 100)
    with pytest.raises(ConfigError, match=message):
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=50, **options)
    assert not (tmp_path / "lake").exists()


def test_columns_are_added_and_never_changed(journal: penstock.Journal, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(journal, 100)
    seal(journal, "orders", lake=str(lake), through=20, format="delta", columns="total DOUBLE")
    with pytest.raises(ConfigError, match="columns can be added"):
        seal(journal, "orders", lake=str(lake), through=40, columns="customer STRING")
    with pytest.raises(ConfigError, match="format delta"):
        seal(journal, "orders", lake=str(lake), through=40, format="iceberg")
    seal(journal, "orders", lake=str(lake), through=40, columns="total DOUBLE, customer STRING")
    table = DeltaTable(str(lake / "orders")).to_pyarrow_table(columns=["seq", "customer"]).sort_by("seq")
    assert table.column("customer").to_pylist()[18:22] == [None, None, "c6", "c0"]


def test_a_log_whose_last_entry_but_one_a_power_cut_took_is_said_again(
    journal: penstock.Journal, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    fill(journal)
    seal(journal, "orders", lake=str(lake), through=20, format="delta", columns="customer STRING")
    seal(journal, "orders", lake=str(lake), through=40, columns="customer STRING, total DOUBLE")
    entries = sorted((lake / "orders" / "_delta_log").glob("*.json"))
    assert len(entries) == 3  # the table, its new column, the files that have it
    entries[1].unlink()
    seal(journal, "orders", lake=str(lake), through=60)
    assert DeltaTable(f"{lake}/orders").to_pyarrow_table(columns=["seq", "total"]).num_rows == 60
    assert entries[2].with_suffix(".torn").exists()


def test_an_entry_of_the_log_is_on_disk_before_the_next_one_is_written(
    journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    fill(journal)
    seal(journal, "orders", lake=str(lake), through=20, format="delta", columns="customer STRING")
    synced: list[tuple[str, int]] = []

    def sync(path: Path) -> None:
        synced.append((path.name, len(list(path.parent.glob("*.json")))))

    monkeypatch.setattr(delta, "sync_path", sync)
    seal(journal, "orders", lake=str(lake), through=40, columns="customer STRING, total DOUBLE")
    first = dict(reversed(synced))
    assert first[f"{1:020}.json"] == 2 and first[f"{2:020}.json"] == 3


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_takes_no_counts_and_bounds_from_a_damaged_footer(
    journal: penstock.Journal, tmp_path: Path, format: Any
) -> None:
    fill(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=50, columns=COLUMNS)
    (file,) = (tmp_path / "lake" / "orders").rglob("*.parquet")
    whole = file.read_bytes()
    at = whole.rindex(b"order.placed")  # the largest kind, in the footer's statistics
    file.write_bytes(whole[:at] + b"z" + whole[at + 1 :])
    with pytest.raises(Corrupt, match="another checksum") as raised:
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=50, format=format)
    assert (raised.value.topic, raised.value.file) == ("orders", str(file))
    file.write_bytes(whole)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=50, format=format)
    assert answers(tmp_path / "lake", format)["arrow"][0] == 50


def test_a_record_whose_checksums_do_not_cover_the_file_is_corrupt(journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=50)

    def cut_pieces(commit: Any) -> None:
        number = commit.head("orders").topic_id
        for segment in list(load_segments(commit.tx, number)):
            pieces = segment.files[0].load_pieces()
            cut = packed_pieces((pieces[0], *pieces))
            save_segment(commit.tx, number, msgspec.structs.replace(segment, pieces=cut))

    local(journal, "sealing")._core.writer.run(WriteRequest(cut_pieces))
    with pytest.raises(Corrupt, match="record of its checksums has gaps"):
        list(journal.topic("orders").read())

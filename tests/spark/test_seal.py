"""Sealing: history moves into Parquet, and nobody who reads it notices."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import penstock
from buffer.emulator import Emulator
from iceberg_tables import iceberg_table
from penstock import Draft, Projection, on
from penstock.core.clock import ManualClock
from penstock.core.journal.sealed.delta import storage_options
from penstock.core.journal.sealed.writing import LakeFolder
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.spark.sealing import seal

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
MORE_KILLS = [
    *(("verified", "parquet"), ("recorded", "parquet"), ("recorded", "delta"), ("registered", "delta")),
    *(("registering", "iceberg"), ("written", "parquet by kind"), ("named", "parquet by kind")),
    *(("registering", "delta by kind"), ("registered", "iceberg by kind")),
]


class Count(Projection):
    n: int = 0

    @on("made", "bytes")
    def made(self, event: object) -> None:
        self.n += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1000))


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db", clock=clock) as journal:
        yield journal


def fill(journal: penstock.Journal, clock: ManualClock, commits: int = 40, each: int = 25) -> None:
    topic = journal.topic("orders")
    for commit in range(commits):
        drafts = [
            Draft(
                "bytes" if n % 9 == 8 else "made",
                b"\xff\x00%d" % n if n % 9 == 8 else {"n": commit * each + n, "text": "ü" * (n % 5)},
                key=f"k{n % 7}" if n % 3 else None,
                scope="eu" if n % 2 else None,
                headers={"h": str(n)} if n % 4 == 0 else None,
                occurred_at=START - timedelta(days=n) if n % 6 == 0 else None,
            )
            for n in range(each)
        ]
        receipts = topic.append_many(drafts)
        topic.append("caused", None, cause=receipts[0], key="k1")
        clock.advance(30)


def everything(journal: penstock.Journal) -> list[dict[str, object]]:
    return [event.as_dict() for event in journal.topic("orders").read()]


def files(lake: Path) -> list[Path]:
    """What plain readers see: they skip names with a leading underscore, of folders too."""
    found = (path for path in lake.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith("_") for part in path.relative_to(lake).parts))


def test_reads_are_the_same_before_and_after(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock)
    topic = journal.topic("orders")
    before = everything(journal)
    backwards = [event.seq for event in topic.read(reverse=True)]
    of_key = [event.seq for event in topic.read(key="k1")]
    count = topic.project(Count, "k2")
    report = seal(journal, "orders", lake=str(tmp_path / "lake"), through=700, file_events=300)
    assert (report.events, report.through) == (700, 700)
    assert everything(journal) == before
    assert [event.seq for event in topic.read(reverse=True)] == backwards
    assert [event.seq for event in topic.read(key="k1")] == of_key
    assert [event.seq for event in topic.read(after=650, through=760)] == list(range(651, 761))
    assert [event.seq for event in topic.read(after=650, through=760, reverse=True)] == list(range(760, 650, -1))
    assert (len(topic), topic.oldest, topic.latest) == (1040, 1, 1040)
    for seq in (1, 2, 299, 300, 301, 700, 701, 1040):
        event = topic.get(seq)
        assert event is not None and event.as_dict() == before[seq - 1]
        assert topic.find(event.id) == event
    middle = before[500]["recorded_at"]
    assert isinstance(middle, datetime)
    assert topic.position_at(middle) == max(row["seq"] for row in before if row["recorded_at"] < middle)  # type: ignore[operator,type-var]
    assert topic.project(Count, "k2") == count
    rows = [row for batch in topic.read_arrow(after=0, limit=8) for row in batch.to_pylist()]
    assert [row["seq"] for row in rows] == list(range(1, 9))
    topic.append("after", 1)
    assert topic.latest == 1041


def test_files_are_plain_parquet_sorted_and_by_day(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    fill(journal, clock)
    before = everything(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=1000, file_events=400)
    paths = files(tmp_path / "lake")
    assert {path.parent.name for path in paths} == {"date=2026-03-01", "date=2026-03-02"}
    rows = [
        row for path in sorted(paths, key=lambda path: path.name) for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert [row["seq"] for row in rows] == list(range(1, 1001))
    assert [row["id"] for row in rows] == [row["id"] for row in before[:1000]]
    assert all(
        f"date={row['recorded_at']:%Y-%m-%d}" in str(path) for path in paths for row in pq.read_table(path).to_pylist()
    )
    assert rows[8]["payload"] is None and rows[8]["payload_bytes"] == b"\xff\x008"


def test_everything_can_be_sealed_and_appending_goes_on(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    fill(journal, clock, commits=5)
    topic = journal.topic("orders")
    before = everything(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=topic.latest)
    assert everything(journal) == before
    assert topic.append("after", None, key="k2").seq == 131
    assert topic.position_of("k2") == 131
    assert seal(journal, "orders", lake=str(tmp_path / "lake"), through=131).events == 1
    assert [event.seq for event in topic.read()] == list(range(1, 132))
    journal.close()
    with penstock.open(tmp_path / "shop.db") as again:
        assert everything(again)[:130] == before
        assert again.topic("orders").append("more", 1).seq == 132


def test_by_default_the_newest_block_stays_hot(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock, commits=3)
    report = seal(journal, "orders", lake=str(tmp_path / "lake"))
    assert 0 < report.through < journal.topic("orders").latest
    assert seal(journal, "orders", lake=str(tmp_path / "lake")).events == 0


def test_sealed_history_can_still_be_compacted(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock, commits=10)
    topic = journal.topic("orders")
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200)
    topic.compact(50)
    assert topic.oldest == 51
    assert [event.seq for event in topic.read()] == list(range(51, 261))
    assert topic.get(50) is None
    with pytest.raises(penstock.errors.PositionTrimmed):
        next(topic.read(after=20))


def test_files_of_compacted_history_go_with_the_next_seal(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    fill(journal, clock, commits=10)
    topic, lake = journal.topic("orders"), str(tmp_path / "lake")
    seal(journal, "orders", lake=lake, through=200, file_events=50)
    topic.compact(120)
    assert len(topic) == 140
    assert [event.seq for event in topic.read(reverse=True)] == list(range(260, 120, -1))
    assert seal(journal, "orders", lake=lake, through=200).events == 0
    assert [int(path.name[:20]) for path in files(tmp_path / "lake")] == [101, 151]
    topic.compact(230)
    assert [event.seq for event in topic.read()] == list(range(231, 261))
    assert seal(journal, "orders", lake=lake, through=250).events == 20
    assert [int(path.name[:20]) for path in files(tmp_path / "lake")] == [231]
    assert [event.seq for event in topic.read()] == list(range(231, 261))


def test_a_newer_seal_takes_over_and_nothing_is_lost(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    """The first seal is about to record its second file when another one takes its turn."""
    fill(journal, clock, commits=10)
    lake, before = str(tmp_path / "lake"), everything(journal)
    others: list[int] = []

    def another(done: int, total: int) -> None:
        if not others:
            others.append(seal(journal, "orders", lake=lake, through=180, file_events=60).through)

    with pytest.raises(ConfigError, match="another process"):
        seal(journal, "orders", lake=lake, through=200, file_events=50, progress=another)
    assert others == [180]
    assert everything(journal) == before
    assert seal(journal, "orders", lake=lake, through=200).events == 20
    assert everything(journal) == before
    seqs = sorted(seq for path in files(tmp_path / "lake") for seq in pq.read_table(path)["seq"].to_pylist())
    assert seqs == list(range(1, 201))


def test_what_an_older_seal_wrote_may_go_while_a_newer_one_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one is still at work, and gives the file its name between the newer one's look and its removal."""
    (tmp_path / "orders").mkdir()
    written = tmp_path / "orders" / "_1-9-abc.parquet"
    written.touch()
    folder = LakeFolder(str(tmp_path), "orders")

    class Meanwhile:
        def __getattr__(self, name: str) -> Any:
            return getattr(pyarrow.fs.LocalFileSystem(), name)

        def get_file_info(self, selector: pyarrow.fs.FileSelector) -> Any:
            found = pyarrow.fs.LocalFileSystem().get_file_info(selector)
            written.rename(tmp_path / "orders" / "1-9-abc.parquet")
            return found

    monkeypatch.setattr(folder, "_filesystem", Meanwhile())
    folder.remove_orphans("abc", frozenset())


def test_a_backup_reads_the_same_files_and_does_not_seal_over_them(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    fill(journal, clock, commits=10)
    lake, before = str(tmp_path / "lake"), everything(journal)
    seal(journal, "orders", lake=lake, through=100)
    journal.backup(tmp_path / "copy.db")
    seal(journal, "orders", lake=lake, through=200)
    with penstock.open(tmp_path / "copy.db") as copy:
        assert everything(copy) == before
        with pytest.raises(ConfigError, match="copy of this journal"):
            seal(copy, "orders", lake=lake, through=150)
        seal(copy, "orders", lake=str(tmp_path / "second"), through=150)
        assert everything(copy) == before
    assert everything(journal) == before
    assert seal(journal, "orders", lake=str(tmp_path / "second"), through=200).events == 0
    (tmp_path / "lake" / "orders" / "_penstock.json").unlink()
    with pytest.raises(StorageError, match="is the right folder mounted"):
        seal(journal, "orders", lake=lake, through=220)


def test_retention_reaches_into_sealed_history(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock, commits=10)
    topic = journal.topic("orders")
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=200)
    topic.configure(max_events=100)
    journal.maintain()
    assert topic.oldest == 161
    assert [event.seq for event in topic.read()] == list(range(161, 261))


def test_the_entity_index_is_built_from_sealed_history_too(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    topic = journal.topic("orders")
    fill(journal, clock, commits=10)
    of_key = [event.seq for event in topic.read(key="k1")]
    count = topic.project(Count, "k1")
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=250)
    journal.close()
    with penstock.open(tmp_path / "shop.db", clock=clock) as again:
        topic = again.topic("orders")
        again._core.indexer.index("orders", thorough=True)
        assert [event.seq for event in topic.read(key="k1")] == of_key
        assert topic.project(Count, "k1") == count
        assert topic.append("made", 1, key="k1", dedup="once").seq == 261
        assert topic.append("made", 1, key="k1", dedup="once").seq == 261
        seal(again, "orders", lake=str(tmp_path / "lake"), through=261)
        assert topic.append("made", 1, key="k1", dedup="once").seq == 261
        assert [event.seq for event in topic.read(key="k1")] == [*of_key, 261]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_other_engines_seal_as_well(scheme: str, clock: ManualClock, tmp_path: Path) -> None:
    url = "memory:" if scheme == "memory" else f"{scheme}:{tmp_path / 'shop'}"
    with penstock.open(url, clock=clock) as journal:
        fill(journal, clock, commits=6)
        before = everything(journal)
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=100, file_events=40)
        assert everything(journal) == before


def test_lakes_may_be_changed_back_and_forth(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock, commits=8)
    before = everything(journal)
    for turn, through in enumerate((40, 80, 120, 160)):
        assert seal(journal, "orders", lake=str(tmp_path / f"lake-{turn % 2}"), through=through).events == 40
    assert everything(journal) == before


def test_a_lake_in_an_object_store(journal: penstock.Journal, clock: ManualClock, emulator: Emulator) -> None:
    address = emulator.endpoint.removeprefix("http://")
    bucket = emulator.bucket().removeprefix("s3://")
    lake = f"s3://test:test@{bucket}/lake?scheme=http&endpoint_override={address}&region=us-east-1"
    fill(journal, clock, commits=8)
    before = everything(journal)
    report = seal(journal, "orders", lake=lake, through=150, file_events=60)
    assert (report.files, report.lake) == (3, f"s3://{bucket}/lake")
    with pytest.raises(StorageError, match="sealing to s3://no-such-bucket/lake failed") as failure:
        seal(journal, "orders", lake=lake.replace(f"{bucket}/", "no-such-bucket/"))
    assert "test:test" not in str(failure.value)
    assert everything(journal) == before
    journal.topic("orders").compact(70)
    assert seal(journal, "orders", lake=lake, through=200).events == 50
    assert everything(journal) == before[70:]


def test_a_delta_table_in_an_object_store(journal: penstock.Journal, clock: ManualClock, emulator: Emulator) -> None:
    address = emulator.endpoint.removeprefix("http://")
    bucket = emulator.bucket().removeprefix("s3://")
    lake = f"s3://test:test@{bucket}/lake?scheme=http&endpoint_override={address}&region=us-east-1"
    fill(journal, clock, commits=8)
    seal(journal, "orders", lake=lake, through=150, file_events=60, format="delta")
    journal.topic("orders").compact(70)
    seal(journal, "orders", lake=lake, through=200)
    table = DeltaTable(f"s3://{bucket}/lake/orders", storage_options=storage_options(lake))
    assert sorted(table.to_pyarrow_table()["seq"].to_pylist()) == list(range(61, 201))
    assert "test:test" not in " ".join(str(action) for action in table.history())
    with pytest.raises(ConfigError, match="needs a catalog"):
        seal(journal, "orders", lake=lake.replace("/lake", "/other"), format="iceberg")


def test_sealed_and_newer_events_are_verified_alike(
    journal: penstock.Journal, clock: ManualClock, tmp_path: Path
) -> None:
    journal.topic("orders").configure(verified=True)
    fill(journal, clock, commits=6)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=100)
    journal.topic("orders").append("more", 1, key="k1")
    report = journal.topic("orders").verify()
    assert report.ok and report.events == 157


def test_what_cannot_be_sealed_or_read_says_so(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    with pytest.raises(ConfigError, match="no topic 'orders'"):
        seal(journal, "orders", lake=lake)
    fill(journal, clock, commits=4)
    with pytest.raises(ConfigError, match="no place for sealed history"):
        seal(journal, "orders", lake="nowhere://x")
    seal(journal, "orders", lake=lake, through=50)
    with penstock.open(tmp_path / "other.db") as other:
        fill(other, clock, commits=4)
        with pytest.raises(ConfigError, match="another journal"):
            seal(other, "orders", lake=lake)
    journal.queue("letters").push({})
    with pytest.raises(ConfigError, match="is a queue"):
        seal(journal, "letters", lake=lake)
    with pytest.raises(ConfigError, match="no-such"):
        seal(str(tmp_path / "no-such.db"), "orders", lake=lake)
    with (
        penstock.open(tmp_path / "shop.db", read_only=True) as looking,
        pytest.raises(penstock.errors.ReadOnly),
    ):
        seal(looking, "orders", lake=str(tmp_path / "other"), through=60)
    assert not files(tmp_path / "other")


def test_a_missing_or_damaged_file_is_named(journal: penstock.Journal, clock: ManualClock, tmp_path: Path) -> None:
    fill(journal, clock, commits=4)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=50)
    (path,) = files(tmp_path / "lake")
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(StorageError, match=r"events 1 to 50 of topic 'orders' are sealed in .*parquet, which cannot"):
        everything(journal)
    assert journal.topic("orders").get(51) is not None, "what is hot can still be read"
    path.write_bytes(whole[:-100])
    with pytest.raises(Corrupt, match="bytes and should have") as short:
        everything(journal)
    assert short.value.file == str(path)
    path.write_bytes(whole)
    ids = pq.ParquetFile(path).metadata.row_group(0).column(pq.read_schema(path).get_field_index("id") + 1)
    assert ids.path_in_schema == "id"
    at = ids.data_page_offset + ids.total_compressed_size - 10
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(Corrupt) as turned:
        everything(journal)
    assert turned.value.file == str(path)
    path.write_bytes(whole)
    assert len(everything(journal)) == 104


@pytest.mark.parametrize(
    ("stage", "format"),
    [
        *(("written", "parquet"), ("verified", "parquet by kind"), ("named", "parquet"), ("recorded", "delta by kind")),
        *(("registering", "delta"), ("registered", "iceberg")),
        *(pytest.param(stage, format, marks=pytest.mark.nightly("spark-kills")) for stage, format in MORE_KILLS),
    ],
)
def test_a_kill_at_any_point_leaves_a_history_that_can_be_read_and_sealed_on(
    tmp_path: Path, stage: str, format: str
) -> None:
    """written: before it is read back; verified: before its name; named: before the commit; recorded: after it;
    registering: before the table is written; registered: after it, before the journal knows."""
    with penstock.open(tmp_path / "shop.db") as journal:
        for start in range(0, 900, 30):
            drafts = [Draft("paid" if n % 4 else "made", start + n, key=f"k{n % 3}") for n in range(30)]
            journal.topic("orders").append_many(drafts)
        before = everything(journal)
    format, _, column = format.partition(" by ")
    program = textwrap.dedent("""
        import os, signal, sys
        import penstock
        from penstock.core.journal.sealed import sealing
        from penstock.core.journal.sealed import writing

        stage, hits = sys.argv[2], [0]
        def killing(name, function, first, hit=2):
            def wrapped(*args, **options):
                hits[0] += name == stage
                if name == stage and hits[0] == hit and first:
                    os.kill(os.getpid(), signal.SIGKILL)
                done = function(*args, **options)
                if name == stage and hits[0] == hit:
                    os.kill(os.getpid(), signal.SIGKILL)
                return done
            return wrapped

        writing._verify = killing("written", writing._verify, True)
        writing.move_into_place = killing("verified", writing.move_into_place, True)
        sealing.save_segment = killing("named", sealing.save_segment, True)
        sealing._Sealing._record = killing("recorded", sealing._Sealing._record, False)
        sealing.bring_up_to_date = killing("registering", sealing.bring_up_to_date, True, 1)
        sealing.bring_up_to_date = killing("registered", sealing.bring_up_to_date, False, 1)
        journal = penstock.open(sys.argv[1] + "/shop.db")
        table = sealing.TableRequest(sys.argv[3], partition_by=sys.argv[4])
        lake = sys.argv[1] + "/lake"
        sealing.seal_topic(journal._core, "orders", lake=lake, through=800, file_events=200, table=table)
    """)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), stage, format, column], check=False)
    assert done.returncode == -signal.SIGKILL
    with penstock.open(tmp_path / "shop.db") as journal:
        assert everything(journal) == before
        seal(journal, "orders", lake=str(tmp_path / "lake"), through=850, file_events=300)
        assert everything(journal) == before
        assert [event.seq for event in journal.topic("orders").read(key="k1")] == [
            row["seq"] for row in before if row["key"] == "k1"
        ]
    seqs = sorted(seq for path in files(tmp_path / "lake") for seq in pq.read_table(path)["seq"].to_pylist())
    assert seqs == list(range(1, 851)), "what a killed seal has left is gone"
    if format == "delta":
        assert sorted(DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()["seq"].to_pylist()) == seqs
    elif format == "iceberg":
        found = iceberg_table(tmp_path / "lake").scan().to_arrow()["seq"].to_pylist()
        assert sorted(found) == seqs

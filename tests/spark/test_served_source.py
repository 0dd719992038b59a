"""Reading a served journal: the same rows, plans, cursors and errors as from its file, and the token shown nowhere."""

from __future__ import annotations

import pickle
import random
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import penstock
import penstock.spark.served as connection
from penstock import Draft
from penstock.errors import ConfigError, Denied, PenstockError, PositionTrimmed
from penstock.server.api import bulk as served_blocks
from penstock.spark import served as served_journal_module
from penstock.spark.options import JournalLocation, Token, absolute_url, read_options, resolved
from penstock.spark.sealing import seal
from penstock.spark.source import PenstockSource
from server.cutting import CuttingProxy
from server.serving import READ, Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = StructType().add("seq", "long").add("kind", "string").add("key", "string").add("payload", "string")


def fill(journal: penstock.Journal, commits: int = 4, each: int = 5_000) -> None:
    for commit in range(commits):
        drafts = [Draft("odd" if n % 2 else "even", {"n": commit * each + n}, key=f"k{n % 5}") for n in range(each)]
        journal.topic("orders").append_many(drafts)


def source(url: object, **options: Any) -> PenstockSource:
    return PenstockSource({"url": str(url), "topic": "orders", **{name: str(one) for name, one in options.items()}})


def table(reader: Any, shares: Any = None) -> pa.Table:
    shares = reader.partitions() if shares is None else shares
    batches = [batch for share in shares for batch in reader.read(share)]
    return pa.Table.from_batches(batches, batches[0].schema if batches else pa.schema([]))


CHOICES: list[dict[str, Any]] = [
    {},
    {"minPartitions": 7},
    {"startingOffsets": 123, "endingOffsets": 12_345},
    {"startingTimestamp": "2020-01-01T00:00:00Z", "endingTimestamp": "2100-01-01T00:00:00Z"},
    {"kinds": "odd", "keys": "k1,k2"},
]


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: ",".join(options) or "all")
def test_rows_and_plans_are_those_of_the_file(
    journal: penstock.Journal, served: Served, tmp_path: Path, options: dict[str, Any]
) -> None:
    fill(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=7_000)
    here = source(tmp_path / "shop.db", **options).reader(COLUMNS)
    there = source(served.url, token=READ, **options).reader(COLUMNS)
    assert list(map(repr, there.partitions())) == list(map(repr, here.partitions()))
    assert table(there).equals(table(here)) and table(there).num_rows
    packed = source(served.url, token=READ, compression="gzip", **options).reader(COLUMNS)
    assert table(packed).equals(table(here))


def test_errors_are_those_of_the_file(journal: penstock.Journal, served: Served, tmp_path: Path) -> None:
    fill(journal, 1)
    journal.topic("orders").compact(100)
    for options, kind in (
        ({"topic": "nowhere"}, ConfigError),
        ({"startingOffsets": 50}, PositionTrimmed),
        ({"startingOffsets": 5_001}, ConfigError),
    ):
        said = []
        for url, token in ((tmp_path / "shop.db", {}), (served.url, {"token": READ})):
            with pytest.raises(kind) as raised:
                table(source(url, **{**options, **token}).reader(COLUMNS))
            said.append(str(raised.value).replace(str(url), "URL").replace("sqlite:", ""))
        assert said[0] == said[1]
    lenient = source(served.url, token=READ, startingOffsets=50, failOnDataLoss="false").reader(COLUMNS)
    assert table(lenient).column("seq").to_pylist() == list(range(101, 5_001))


def test_history_removed_after_the_plan_is_the_same_error(journal: penstock.Journal, served: Served) -> None:
    fill(journal, 1)
    reader = source(served.url, token=READ).reader(COLUMNS)
    shares = reader.partitions()
    journal.topic("orders").compact(100)
    with pytest.raises(PositionTrimmed, match="events 1 to 100 of topic 'orders' were removed before this query read"):
        table(reader, shares)


def test_another_journal_at_the_address_is_refused_by_tasks(tmp_path: Path) -> None:
    readers = []
    port = 0
    for name in ("one", "two"):
        with penstock.open(tmp_path / f"{name}.db") as journal:
            fill(journal, 1, 50)
            with serving(journal, reuse=port) as served:
                port = served.port
                readers.append(source(served.url).reader(COLUMNS))
                if len(readers) == 1:
                    shares = readers[0].partitions()
                    assert table(readers[0], shares).num_rows == 50
                else:
                    with pytest.raises(ConfigError, match="there is another journal at http://"):
                        table(readers[0], shares)


def test_a_range_of_many_answers_is_asked_for_ahead_and_comes_in_order(
    journal: penstock.Journal, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_blocks, "BLOCKS_BYTES", 3000)
    many = journal.topic("many")
    for first in range(0, 600, 20):
        many.append_many([Draft("n", {"n": n, "text": "x" * 40}) for n in range(first, first + 20)])
    place = served_journal_module.served_journal(JournalLocation(served.url, Token(READ)), None)

    def seqs(after: int, through: int) -> list[int]:
        found = (block for blocks in place.blocks("many", after, through, strict=True) for block in blocks)
        return [block.seq(row) for block in found for row in range(block.count) if after < block.seq(row) <= through]

    assert sum(1 for _ in place.blocks("many", 0, 600, strict=True)) > 8
    assert seqs(0, 600) == list(range(1, 601))
    assert seqs(33, 571) == list(range(34, 572))
    reading = place.blocks("many", 0, 600, strict=True)
    assert next(reading)[0].first == 1
    reading.close()  # a query that has enough leaves the rest


@pytest.mark.parametrize(
    "options", [{"consumer": "flow"}, {"badRecords": "bad", "payloadSchema": "n INT"}], ids=["consumer", "badRecords"]
)
def test_a_read_that_writes_needs_the_role_write(
    journal: penstock.Journal, served: Served, options: dict[str, str]
) -> None:
    fill(journal, 1, 10)
    with pytest.raises(ConfigError, match=r"needs a token with the role write; this one's role is read"):
        if "consumer" in options:
            found: Any = source(served.url, token=READ, **options).streamReader(COLUMNS)
            found.initialOffset()
        else:
            source(served.url, token=READ, **options).reader(StructType().add("n", "integer")).partitions()


def test_connections_that_are_cut_or_slow_lose_and_double_nothing(
    journal: penstock.Journal, served: Served, tmp_path: Path
) -> None:
    drafts = [Draft("a", random.Random(n).randbytes(500).hex(), key=str(n)) for n in range(12_000)]
    journal.topic("orders").append_many(drafts)
    whole = table(source(tmp_path / "shop.db").reader(COLUMNS))
    with CuttingProxy(served.port) as proxy:
        reader = source(proxy.url, token=READ).reader(COLUMNS)
        shares = reader.partitions()
        for cuts, after, of in ((3, 0, "answer"), (3, 200_000, "answer"), (2, 3_000_000, "answer"), (2, 50, "request")):
            proxy.cut_next(cuts, after, of)
            assert table(reader, shares).equals(whole)
        assert proxy.cut >= 8
        proxy.delay = 0.002
        assert table(reader, shares).equals(whole)


def test_a_server_that_starts_again_is_waited_for(journal: penstock.Journal, tmp_path: Path) -> None:
    import threading

    fill(journal, 1, 100)
    with serving(journal) as served:
        reader = source(served.url).reader(COLUMNS)
        shares = reader.partitions()
        port = served.port
    rows: list[int] = []
    reading = threading.Thread(target=lambda: rows.append(table(reader, shares).num_rows))
    reading.start()
    with serving(journal, reuse=port):
        reading.join(600)
    assert rows == [100]


def test_a_wrong_address_is_an_error_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_PATIENCE", 0.1)
    with pytest.raises(PenstockError, match="does not answer"):
        source("http://127.0.0.1:9").reader(COLUMNS).partitions()
    for url, said in (
        ("http://user:secret@host:1", "a token does not belong into the url"),
        ("http://", "is no http url"),
    ):
        with pytest.raises(ConfigError, match=said):
            absolute_url(url)
    for options, said in (
        ({"token": "t" * 20}, "token is for a server"),
        ({"compression": "gzip"}, "compression is for a journal at a server"),
    ):
        with pytest.raises(ConfigError, match=said):
            source(tmp_path / "shop.db", **options).schema()
    with pytest.raises(ConfigError, match='compression is "none" or "gzip"'):
        source("http://host:1", compression="lzma").schema()


def test_a_wrong_token_is_an_error_that_does_not_show_it(served: Served, journal: penstock.Journal) -> None:
    fill(journal, 1, 10)
    wrong = "wrong-token-9876543210"
    with pytest.raises((Denied, ConfigError)) as raised:
        source(served.url, token=wrong).reader(COLUMNS).partitions()
    assert "token" in str(raised.value) and wrong not in str(raised.value) and wrong not in repr(raised.value)


def test_options_carry_a_token_and_do_not_show_it() -> None:
    options = read_options(resolved({"url": "http://host:1/", "topic": "orders", "token": READ}))
    assert READ not in repr(options) and READ not in str(options.location)
    again = pickle.loads(pickle.dumps(options))
    assert again == options and again.location.token.reveal() == READ and again.location.url == "http://host:1"


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_spark_reads_a_served_topic_and_shows_the_token_nowhere(
    spark: SparkSession, journal: penstock.Journal, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(journal)
    frame = spark.read.format("penstock").options(url=served.url, token=READ, topic="orders").load()
    wanted = frame.where("kind = 'odd' AND seq > 100")
    assert wanted.count() == sum(1 for event in journal.topic("orders").read(100) if event.kind == "odd")
    shown = StringIO()
    with redirect_stdout(shown):
        wanted.explain(True)
        wanted.explain("formatted")
    plan: Any = wanted
    shown.write(plan._jdf.queryExecution().toString())
    with pytest.raises(PySparkException) as raised:
        spark.read.format("penstock").options(url=served.url, token=READ, topic="nowhere").load().collect()
    assert "there is no topic 'nowhere'" in str(raised.value)
    out, err = capfd.readouterr()
    for text in (shown.getvalue(), str(raised.value), repr(wanted), out, err):
        assert READ not in text

"""Writing to a served journal: rows become events in one transaction of the server, once, whatever is killed or cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock
import penstock.spark.sink as sink_staging
from penstock import Draft
from penstock.api import local
from penstock.errors import ConfigError, PenstockError
from penstock.journal.bulk.staging import staged_batches
from penstock.spark.sink import mark_name
from penstock.spark.source import PenstockSource
from server.cutting import CuttingProxy
from server.process import ServerProcess
from server.serving import READ, WRITE, Served, serving
from waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHTLY = pytest.mark.nightly("spark-kills")
COLUMNS = StructType().add("kind", "string").add("payload", "string")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing travels in messages."""
    monkeypatch.setattr(sink_staging, "INLINE_BYTES", 0)


def writer(url: str, **options: Any) -> Any:
    given = {"url": url, "topic": "orders", **{name: str(value) for name, value in options.items()}}
    return PenstockSource(given).writer(COLUMNS, False)


def rows(first: int, count: int, pad: int = 0) -> Iterator[pa.RecordBatch]:
    numbers = range(first, first + count)
    payload = [f'{{"n":{n},"pad":"{"x" * pad}"}}' for n in numbers]
    yield pa.record_batch({"kind": ["made"] * count, "payload": payload})


def numbers(journal: penstock.Journal) -> list[int]:
    return [event.payload["n"] for event in journal.topic("orders").read()]


def staged(journal: penstock.Journal) -> int:
    with local(journal, "a test")._engine.read() as snap:
        return len(list(staged_batches(snap)))


def test_tasks_stage_and_the_commit_publishes_in_the_order_of_tasks(journal: penstock.Journal, served: Served) -> None:
    frame = writer(served.url, token=WRITE)
    shares = [frame.write(rows(at * 100, 100)) for at in (0, 1, 2)]
    frame.write(rows(900, 5))  # a task that was tried twice: only one of its messages reaches the commit
    shares.append(frame.write(iter(())))
    assert journal.topics() == [] and staged(journal) == 4
    frame.commit(shares)
    assert numbers(journal) == list(range(300)) and staged(journal) == 0


def test_a_large_share_is_sent_in_pieces(
    journal: penstock.Journal, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_staging, "PIECE_BYTES", 1 << 20)
    frame = writer(served.url, token=WRITE)
    frame.commit([frame.write(rows(0, 20_000, pad=500)), frame.write(rows(20_000, 10, pad=500))])
    assert numbers(journal) == list(range(20_010))


def test_an_aborted_job_leaves_nothing(journal: penstock.Journal, served: Served) -> None:
    frame = writer(served.url, token=WRITE)
    share = frame.write(rows(0, 10))
    frame.abort([share, None])
    assert staged(journal) == 0 and journal.topics() == []


def test_the_role_write_is_asked_for_when_the_query_is_planned(journal: penstock.Journal, served: Served) -> None:
    with pytest.raises(ConfigError, match="needs a token with the role write; this one's role is read"):
        writer(served.url, token=READ)
    with pytest.raises(ConfigError, match="staging is a place in an object store"):
        writer(served.url, token=WRITE, staging="/tmp/somewhere")


def test_a_server_that_only_reads_is_refused_when_the_query_is_planned(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "shop.db") as journal:
        journal.topic("orders").append("made")
    opened = penstock.open(tmp_path / "shop.db", read_only=True)
    with opened as journal, serving(journal) as served, pytest.raises(ConfigError, match="for reading only"):
        writer(served.url)


def test_another_journal_at_the_address_gets_nothing(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "one.db") as one, serving(one) as served:
        frame, port = writer(served.url), served.port
        share = frame.write(rows(0, 10))
    with penstock.open(tmp_path / "two.db") as two:
        with serving(two, reuse=port), pytest.raises(ConfigError, match="another journal"):
            frame.commit([share])
        assert two.topics() == []


# ── what is killed, cut and repeated ─────────────────────────────────────────────────────────────────────────────────
def test_connections_that_are_cut_lose_and_double_nothing(journal: penstock.Journal, served: Served) -> None:
    with CuttingProxy(served.port) as proxy:
        frame = writer(proxy.url, token=WRITE)
        proxy.cut_next(2, 0, "answer")
        shares = [frame.write(rows(0, 1_000, pad=100))]
        proxy.cut_next(2, 500, "request")
        shares.append(frame.write(rows(1_000, 1_000, pad=100)))
        proxy.cut_next(1, 0, "answer")  # the commit is done, and its answer is lost
        frame.commit(shares)
        assert proxy.cut == 5
    assert numbers(journal) == list(range(2_000)) and staged(journal) == 0


@pytest.mark.parametrize("large", [pytest.param(False, marks=NIGHTLY), True], ids=["small", "large"])
def test_a_server_killed_between_staging_and_commit_and_after_the_commit(tmp_path: Path, large: bool) -> None:
    pad, count = (2_000, 3_000) if large else (0, 100)
    penstock.open(tmp_path / "shop.db").close()
    with ServerProcess(tmp_path / "shop.db") as server, CuttingProxy(server.port) as proxy:
        for version in (1, 2):
            frame = writer(proxy.url, txnAppId="job", txnVersion=version)
            shares = [frame.write(rows(0, count, pad))]
            server.kill()
            server.start()
            shares.append(frame.write(rows(count, count, pad)))
            if version == 1:
                server.kill()  # between the last PUT and the commit
                again = threading.Timer(0.2, server.start)
                again.start()
                frame.commit(shares)
                again.join(600)
                continue
            proxy.cut_next(1, 0, "answer")  # the commit is done; the server dies before its answer arrives
            killed = threading.Thread(target=_restart_when, args=(proxy, server))
            killed.start()
            frame.commit(shares)
            killed.join(600)
            frame = writer(proxy.url, txnAppId="job", txnVersion=version)  # the driver is run again as a whole
            frame.commit([frame.write(rows(0, count, pad))])
    with penstock.open(tmp_path / "shop.db") as journal:
        assert numbers(journal) == [*range(2 * count), *range(2 * count)]
        assert staged(journal) == 0
        with local(journal, "a test")._engine.read() as snap:
            assert snap.get(b"n" + mark_name("app", "job", "orders").encode()) is not None


def _restart_when(proxy: CuttingProxy, server: ServerProcess) -> None:
    eventually(lambda: proxy.cut)
    server.kill()
    server.start()


def test_a_server_that_does_not_come_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.spark.journals as journals

    with penstock.open(tmp_path / "shop.db") as journal:
        with serving(journal) as served:
            frame = writer(served.url)
            share = frame.write(rows(0, 10))
        monkeypatch.setattr(journals, "PATIENCE", 0.3)
        with pytest.raises(PenstockError, match="does not answer"):
            frame.commit([share])
        assert journal.topics() == []


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_spark_writes_a_frame_and_shows_the_token_nowhere(
    spark: SparkSession, journal: penstock.Journal, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = spark.range(0, 5_000, 1, 3).select(
        F.lit("made").alias("kind"), F.struct(F.col("id").alias("n")).alias("payload")
    )
    options = {"url": served.url, "token": WRITE, "topic": "orders"}
    frame.write.format("penstock").mode("append").options(**options).save()
    assert numbers(journal) == list(range(5_000)) and staged(journal) == 0
    with pytest.raises(PySparkException) as raised:
        frame.write.format("penstock").mode("append").options(**{**options, "token": READ}).save()
    assert "needs a token with the role write" in str(raised.value)
    shown = StringIO()
    with redirect_stdout(shown):
        frame.explain(True)
    out, err = capfd.readouterr()
    for text in (str(raised.value), out, err, shown.getvalue(), *pages_of(spark)):
        assert WRITE not in text and READ not in text


def pages_of(spark: SparkSession) -> Iterator[str]:
    """What Spark's own pages show of every query, which it gathers also while they are switched off."""
    session: Any = spark
    found = session._jsparkSession.sharedState().statusStore().executionsList().iterator()
    plans = 0
    while found.hasNext():
        query = found.next()
        yield query.description()
        yield query.details()
        yield query.physicalPlanDescription()
        yield query.modifiedConfigs().toString()
        plans += "penstock" in query.physicalPlanDescription()
    assert plans, "queries of this source are among them"


@NIGHTLY
def test_a_stream_between_served_topics_is_exact_while_the_server_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    with penstock.open(path) as journal:
        journal.topic("orders").append_many([Draft("made", {"n": n}) for n in range(600)])
        journal.topic("copies").configure()
    with ServerProcess(path, f"write {WRITE}") as server:
        options = {"url": server.url, "token": WRITE}

        def start() -> Any:
            source = {**options, "topic": "orders", "maxOffsetsPerTrigger": "150", "consumer": "copying"}
            stream = spark.readStream.format("penstock").options(**source).load().select("kind", "payload")
            sink = stream.writeStream.format("penstock").options(**options, topic="copies")
            return sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

        query = start()
        eventually(lambda: query.recentProgress or not query.isActive)  # the second batch is on its way
        server.kill()
        server.start()
        query.awaitTermination(600)
        assert query.exception() is None and not query.isActive
        start().awaitTermination(600)
    with penstock.open(path) as journal:
        copied = [event.payload["n"] for event in journal.topic("copies").read()]
        assert copied == list(range(600)) and staged(journal) == 0

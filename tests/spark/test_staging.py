"""What the tasks of a write stage, wherever, is published once or not at all, whatever is killed, cut or repeated."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from since import needs_limits

import penstock
import penstock.spark.journals as journals
import penstock.spark.sink as sink
from buffer.emulator import Emulator
from penstock import Draft
from penstock.api import local
from penstock.core.entity.states import StreamedState, StreamedStates
from penstock.core.journal.bulk import staged_batches
from penstock.core.protocol.bulk import COMMIT_STAGED, CommitRequest
from penstock.errors import ConfigError, Locked, PenstockError, StorageError
from penstock.limits import STAGED_SECONDS
from penstock.spark.options import JournalLocation
from penstock.spark.projection.projecting import keeper_of
from penstock.spark.served import client_of
from penstock.spark.sink import mark_name
from penstock.spark.source import PenstockSource
from penstock.transfer import objects as staged_objects
from penstock.transfer.objects import StagingArea, area_of, folder_url, own_area
from server.cutting import CuttingProxy
from server.process import ServerProcess
from server.serving import READ, TOKENS, WRITE, Served, serving
from waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NIGHTLY = pytest.mark.nightly("spark-kills")
COLUMNS = StructType().add("kind", "string").add("payload", "string")


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.nightly("spark-emulator"))])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a journal may be made, in a store of each kind."""
    if request.param == "folder":
        return f"slatedb:{tmp_path / 'shop'}"
    emulator: Emulator = request.getfixturevalue("emulator")
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    return f"{emulator.bucket()}/shop"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"slatedb:{tmp_path / 'shop'}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of some KiB, and nothing travels in messages."""
    monkeypatch.setattr(sink, "PIECE_BYTES", 64 << 10)
    monkeypatch.setattr(sink, "INLINE_BYTES", 0)


def writer(url: str, **options: Any) -> Any:
    given = {"url": url, "topic": "orders", **{name: str(value) for name, value in options.items()}}
    return PenstockSource(given).writer(COLUMNS, False)


def rows(first: int, count: int, pad: int = 0) -> Iterator[pa.RecordBatch]:
    numbers = range(first, first + count)
    payload = [f'{{"n":{n},"pad":"{"x" * pad}"}}' for n in numbers]
    yield pa.record_batch({"kind": ["made"] * count, "payload": payload})


def numbers(place: str | penstock.Journal) -> list[int]:
    """What was written; nothing is left in the journal of what was staged."""
    if isinstance(place, str):
        with penstock.open(place, read_only=True) as journal:
            return numbers(journal)
    assert staged(place) == 0
    return [event.payload["n"] for event in place.topic("orders").read()]


def staged(journal: penstock.Journal) -> int:
    with local(journal, "a test")._engine.read() as snap:
        return len(list(staged_batches(snap)))


def objects(url: str) -> list[str]:
    area = own_area(url)
    assert area is not None
    return [path for path, _ in StagingArea(area)._list_staged()]


# ── this process writes ───────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("home", ["folder", "s3"], indirect=True)
def test_the_commit_publishes_what_lies_in_the_store_and_sweeps_it(home: str) -> None:
    frame = writer(home)  # there is no journal yet
    shares = [frame.write(rows(at * 2_000, 2_000, pad=2_000)) for at in (0, 1)]
    frame.write(rows(9_000, 5))  # a task that was tried twice: only one of its messages reaches the commit
    shares.append(frame.write(iter(())))
    assert len(shares[0].pieces) > 1 and len(objects(home)) == len(shares[0].pieces) * 2 + 1
    frame.commit(shares)
    assert numbers(home) == list(range(4_000)) and objects(home) == []


def test_small_shares_travel_in_messages(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "INLINE_BYTES", 128 << 10)
    frame = writer(folder)
    shares = [frame.write(rows(0, 10)), frame.write(rows(10, 10)), frame.write(iter(()))]
    assert objects(folder) == [] and shares[0].carried
    frame.commit(shares)
    assert numbers(folder) == list(range(20))


def test_what_was_swept_before_its_commit_is_said_and_nothing_is_written(folder: str) -> None:
    penstock.open(folder).close()
    frame = writer(folder)
    share = frame.write(rows(0, 1_000, pad=2_000))
    frame.target.sweep(frame.job)
    with pytest.raises(StorageError, match="not there any more: it was swept"):
        frame.commit([share])
    assert numbers(folder) == []


def test_objects_that_a_killed_job_left_are_swept_by_another_when_they_are_old(folder: str) -> None:
    area = StagingArea(own_area(folder) or "", clock=lambda: 1_000_000.0)
    area.put("killed", 0, "b", 0, b"x")
    later = StagingArea(area.url, clock=lambda: 1_000_000.0 + STAGED_SECONDS)
    assert later.sweep("another") == 0 and len(objects(folder)) == 1
    much_later = StagingArea(area.url, clock=lambda: 1_000_001.0 + STAGED_SECONDS)
    assert much_later.sweep("another") == 1 and objects(folder) == []


def test_an_object_that_others_named_is_left_alone(folder: str) -> None:
    area = StagingArea(own_area(folder) or "")
    area._store.put("blocks/job.².1.b.0", b"x")
    area.put("job", 0, "b", 0, b"x")
    assert area.sweep("job") == 1 and objects(folder) == []


def test_objects_and_requests_of_a_batch_are_counted(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tasks with an object each, one with little, one with nothing; exact, on a folder and in a bucket."""
    calls: list[str] = []  # two threads may ask at once
    opened = staged_objects._open_store

    class Counted:
        def __init__(self, *given: Any) -> None:
            self._store = opened(*given)

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._store, name)

    monkeypatch.setattr(staged_objects, "_open_store", Counted)
    monkeypatch.setattr(sink, "INLINE_BYTES", 8 << 10)
    penstock.open(home).close()
    frame = writer(home)
    shares = [frame.write(rows(at * 10, 10, pad=2_000)) for at in (0, 1)]
    shares += [frame.write(rows(20, 3)), frame.write(iter(()))]
    assert Counter(calls) == {"put": 2}
    calls.clear()
    frame.commit(shares)
    assert Counter(calls) == {"get": 2, "list": 1, "delete": 1} and numbers(home) == list(range(23))


def test_files_of_a_batch_for_a_local_journal_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose blocks are large leaves one file, others none; the commit leaves nothing."""
    monkeypatch.setattr(sink, "INLINE_BYTES", 8 << 10)
    url = str(tmp_path / "shop.db")
    penstock.open(url).close()
    frame = writer(url)
    shares = [frame.write(rows(at * 10, 10, pad=2_000)) for at in (0, 1)]
    shares += [frame.write(rows(20, 3)), frame.write(iter(()))]
    assert len(list((tmp_path / "shop.db.staging").iterdir())) == 2
    frame.commit(shares)
    assert not (tmp_path / "shop.db.staging").exists() and numbers(url) == list(range(23))


def test_a_commit_waits_for_its_turn(folder: str, in_threads: Callable[..., threading.Thread]) -> None:
    """Another query's commit has the journal, or a commit that a killed driver left behind."""
    journal = penstock.open(folder)
    frame = writer(folder)
    share = frame.write(rows(0, 10))
    committing = in_threads(frame.commit, [share])
    assert committing.is_alive()
    journal.topic("orders").append("made", {"n": -1})
    journal.close()
    committing.join(600)
    assert numbers(folder) == [-1, *range(10)]


def test_a_journal_that_another_process_writes_is_written_through_a_server(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "TURN_SECONDS", 0.2)
    with penstock.open(folder) as journal:
        journal.topic("orders").configure()
        frame = writer(folder)
        with pytest.raises(Locked, match=r'option\("writer", "https://…"\)'):
            frame.commit([frame.write(rows(0, 10))])


def test_sweeping_removes_only_what_jobs_have_left(tmp_path: Path) -> None:
    """A staging folder that is named may have other things in it, and stays; one beside a journal goes when empty."""
    for area, folder in (
        (StagingArea(folder_url(tmp_path / "shared")), tmp_path / "shared" / "blocks"),
        (area_of(f"sqlite:{tmp_path}/shop.db"), tmp_path / "shop.db.staging"),
    ):
        area.put("killed", 0, "b", 0, b"x")
        (folder / "notes.txt").write_text("x")
        assert area.sweep("other") == 0
        area._clock = lambda: time.time() + STAGED_SECONDS + 1
        assert area.sweep("other") == 1 and [path.name for path in folder.iterdir()] == ["notes.txt"]
        (folder / "notes.txt").unlink()
        area.put("job", 0, "b", 0, b"x")
        assert area.sweep("job") == 1 and not folder.exists() and folder.parent.exists()


def test_a_task_makes_its_folder_again_that_another_query_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is empty until the task's file is in it, and a query that ends removes it then."""
    make, left = Path.mkdir, [1, 1]

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        make(path, *args, **kwargs)
        if left:
            left.pop()
            path.rmdir()

    area = area_of(f"sqlite:{tmp_path}/shop.db")
    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert area.get(area.put("job", 0, "b", 0, b"x"), 1) == b"x" and not left


def test_what_was_changed_after_its_task_left_it_is_not_taken(tmp_path: Path) -> None:
    frame = writer(str(tmp_path / "shop.db"))
    share = frame.write(rows(0, 2, pad=900_000))
    path = tmp_path / share.pieces[0].path
    staged = bytearray(path.read_bytes())
    staged[len(staged) // 2] = ord("y")  # the block is as sound as before, and another
    path.write_bytes(staged)
    with pytest.raises(StorageError, match="not as its task left it"):
        frame.commit([share])


def test_states_that_a_batch_has_saved_are_what_the_next_one_finds(home: str) -> None:
    """A task's reader may be behind what another process has written: states folded on from older ones would lose
    events."""
    with penstock.open(home) as journal:
        journal.topic("sums").append("added", 1, key="a")
    keeper, wanted = keeper_of(JournalLocation(home)), StreamedStates("sums", "Total", 1, "query-1")
    for generation in range(1, 5):
        keeper.save(wanted, [StreamedState("a", 7, generation, 1, b"state")], whole=False)
        assert keeper.load(wanted, ["a"]).states["a"].generation == generation


# ── a server writes, and fetches ──────────────────────────────────────────────────────────────────────────────────────
def test_tasks_leave_objects_and_the_server_publishes_them(home: str) -> None:
    with penstock.open(home) as journal, serving(journal, tokens=TOKENS, token=WRITE) as served:
        frame = writer(home, writer=served.url, token=WRITE)
        shares = [frame.write(rows(at * 2_000, 2_000, pad=2_000)) for at in (0, 1)]
        assert len(objects(home)) == 2 * len(shares[0].pieces) and journal.topics() == []
        frame.commit(shares)
        again = CommitRequest(journal.id, [share.batch for share in shares])  # the answer was lost
        assert not client_of(frame.target.options.location.server).call(COMMIT_STAGED, body=again)
        assert [event.payload["n"] for event in journal.topic("orders").read()] == list(range(4_000))
    assert numbers(home) == list(range(4_000)) and objects(home) == []


def test_what_cannot_work_is_said_when_the_query_is_planned(folder: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with penstock.open(folder) as journal, serving(journal, tokens=TOKENS, token=WRITE) as served:
        with pytest.raises(ConfigError, match="needs a token with the role write"):
            writer(folder, writer=served.url, token=READ)
        with pytest.raises(ConfigError, match="fetches nothing from file:///elsewhere"):
            writer(folder, writer=served.url, token=WRITE, staging="file:///elsewhere")
        with pytest.raises(ConfigError, match="writer names the server that writes a journal in object storage"):
            writer(str(other), writer=served.url, token=WRITE)
        with pytest.raises(ConfigError, match="writer is the url of a server"):
            writer(folder, writer="s3://bucket/shop")
        with pytest.raises(ConfigError, match="staging is a place in an object store"):
            writer(folder, staging="/shared")
    with penstock.open(other) as journal, serving(journal) as served:
        with pytest.raises(ConfigError, match="another journal"):
            writer(folder, writer=served.url)
        with pytest.raises(ConfigError, match="from nowhere: start it with `penstock serve --staging"):
            writer(served.url, staging=f"file://{tmp_path}/staging")


def test_a_served_file_takes_objects_from_a_place_it_was_given(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/staging"
    with penstock.open(tmp_path / "shop.db") as journal, serving(journal, staging=[place]) as served:
        frame = writer(served.url, staging=place)
        shares = [frame.write(rows(0, 2_000, pad=2_000))]
        assert len(list(StagingArea(place)._list_staged())) == len(shares[0].pieces)
        frame.commit(shares)
        assert list(StagingArea(place)._list_staged()) == []
    assert numbers(str(tmp_path / "shop.db")) == list(range(2_000))


# ── a server writes what it is sent ───────────────────────────────────────────────────────────────────────────────────
def test_tasks_stage_and_the_commit_publishes_in_the_order_of_tasks(journal: penstock.Journal, served: Served) -> None:
    frame = writer(served.url, token=WRITE)
    shares = [frame.write(rows(at * 100, 100)) for at in (0, 1, 2)]
    frame.write(rows(900, 5))  # a task that was tried twice: only one of its messages reaches the commit
    shares.append(frame.write(iter(())))
    assert journal.topics() == [] and staged(journal) == 4
    frame.commit(shares)
    assert numbers(journal) == list(range(300))


def test_an_aborted_job_leaves_nothing(journal: penstock.Journal, served: Served, folder: str) -> None:
    for url, options in ((served.url, {"token": WRITE}), (folder, {})):
        frame = writer(url, **options)
        frame.abort([frame.write(rows(0, 10)), None])
    assert staged(journal) == 0 and journal.topics() == [] and objects(folder) == []


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


# ── what is killed, cut and repeated ──────────────────────────────────────────────────────────────────────────────────
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
    assert numbers(journal) == list(range(2_000))


def test_a_server_killed_between_staging_and_commit_and_after_the_commit(tmp_path: Path) -> None:
    pad, count = 2_000, 500
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
        with local(journal, "a test")._engine.read() as snap:
            assert snap.get(b"n" + mark_name("app", "job", "orders").encode()) is not None


@NIGHTLY
def test_the_server_killed_at_every_stage_and_the_driver_run_again(folder: str) -> None:
    penstock.open(folder).close()
    with ServerProcess(folder) as server, CuttingProxy(server.port) as proxy:
        for version in (1, 2):
            frame = writer(folder, writer=proxy.url, txnAppId="job", txnVersion=version)
            shares = [frame.write(rows(at, 1_000, pad=2_000)) for at in (0, 1_000)]
            if version == 1:
                server.kill()  # between the last object and the commit
                again = threading.Timer(0.2, server.start)
                again.start()
                frame.commit(shares)
                again.join(600)
                continue
            taken = sum(len(share.pieces) for share in shares)
            proxy.cut_next(0)
            for share in shares:  # the server has fetched everything, and dies
                frame.target._send_share(share)
            server.kill()
            server.start()
            assert taken == len(objects(folder))
            proxy.cut_next(1, 0, "answer")  # an answer is lost, and the server dies then
            killed = threading.Thread(target=_restart_when, args=(proxy, server))
            killed.start()
            frame.commit(shares)
            killed.join(600)
            frame = writer(folder, writer=proxy.url, txnAppId="job", txnVersion=version)  # the driver was killed
            frame.commit([frame.write(rows(0, 1_000, pad=2_000))])
    assert numbers(folder) == [*range(2_000), *range(2_000)] and objects(folder) == []


def _restart_when(proxy: CuttingProxy, server: ServerProcess) -> None:
    eventually(lambda: proxy.cut)
    server.kill()
    server.start()


def test_a_server_that_does_not_come_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(tmp_path / "shop.db") as journal:
        with serving(journal) as served:
            frame = writer(served.url)
            share = frame.write(rows(0, 10))
        monkeypatch.setattr(journals, "PATIENCE", 0.3)
        with pytest.raises(PenstockError, match="does not answer"):
            frame.commit([share])
        assert journal.topics() == []


# ── with Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_spark_writes_a_frame_and_shows_the_token_nowhere(
    spark: SparkSession, journal: penstock.Journal, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = spark.range(0, 5_000, 1, 3).select(
        F.lit("made").alias("kind"), F.struct(F.col("id").alias("n")).alias("payload")
    )
    options = {"url": served.url, "token": WRITE, "topic": "orders"}
    frame.write.format("penstock").mode("append").options(**options).save()
    assert numbers(journal) == list(range(5_000))
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
@needs_limits
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

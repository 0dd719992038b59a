"""Writing to a journal in object storage: blocks lie as objects until its writer publishes them, whatever dies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import penstock
import penstock.spark.journals as sink_stores
import penstock.spark.sink as sink_staging
from buffer.emulator import Emulator
from penstock.api import local
from penstock.entity.projection.streamed import StreamedState, StreamedStates
from penstock.errors import ConfigError, Locked, StorageError
from penstock.journal.bulk.staging import staged_batches
from penstock.limits import STAGED_SECONDS
from penstock.protocol.bulk import COMMIT_STAGED, CommitRequest
from penstock.spark.options import JournalPlace
from penstock.spark.projection.keeping import keeper_of
from penstock.spark.served import client_of
from penstock.spark.source import PenstockSource
from penstock.transfer import objects as staged_objects
from penstock.transfer.objects import StagingArea, own_area
from server.cutting import CuttingProxy
from server.process import ServerProcess
from server.serving import READ, TOKENS, WRITE, serving
from waiting import eventually

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
    monkeypatch.setattr(sink_staging, "PIECE_BYTES", 64 << 10)
    monkeypatch.setattr(sink_staging, "INLINE_BYTES", 0)


def writer(url: str, **options: Any) -> Any:
    given = {"url": url, "topic": "orders", **{name: str(value) for name, value in options.items()}}
    return PenstockSource(given).writer(COLUMNS, False)


def rows(first: int, count: int, pad: int = 0) -> Iterator[pa.RecordBatch]:
    numbers = range(first, first + count)
    payload = [f'{{"n":{n},"pad":"{"x" * pad}"}}' for n in numbers]
    yield pa.record_batch({"kind": ["made"] * count, "payload": payload})


def numbers(url: str, topic: str = "orders") -> list[int]:
    with penstock.open(url, read_only=True) as journal:
        with local(journal, "a test")._engine.read() as snap:
            assert list(staged_batches(snap)) == []
        return [event.payload["n"] for event in journal.topic(topic).read()]


def objects(url: str) -> list[str]:
    area = own_area(url)
    assert area is not None
    return [path for path, _ in StagingArea(area)._objects()]


# ── this process writes ──────────────────────────────────────────────────────────────────────────────────────────────
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
    monkeypatch.setattr(sink_staging, "INLINE_BYTES", 128 << 10)
    frame = writer(folder)
    shares = [frame.write(rows(0, 10)), frame.write(rows(10, 10)), frame.write(iter(()))]
    assert objects(folder) == [] and shares[0].carried
    frame.commit(shares)
    assert numbers(folder) == list(range(20))


def test_an_aborted_job_leaves_nothing(home: str) -> None:
    frame = writer(home)
    share = frame.write(rows(0, 10))
    frame.abort([share, None])
    assert objects(home) == []


def test_what_was_swept_before_its_commit_is_said_and_nothing_is_written(folder: str) -> None:
    penstock.open(folder).close()
    frame = writer(folder)
    share = frame.write(rows(0, 1_000, pad=2_000))
    frame.target.staging.sweep(frame.job)
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
    calls: Counter[str] = Counter()
    opened = staged_objects._open_store

    class Counted:
        def __init__(self, *given: Any) -> None:
            self._store = opened(*given)

        def __getattr__(self, name: str) -> Any:
            calls[name] += 1
            return getattr(self._store, name)

    monkeypatch.setattr(staged_objects, "_open_store", Counted)
    monkeypatch.setattr(sink_staging, "INLINE_BYTES", 8 << 10)
    penstock.open(home).close()
    frame = writer(home)
    shares = [frame.write(rows(at * 10, 10, pad=2_000)) for at in (0, 1)]
    shares += [frame.write(rows(20, 3)), frame.write(iter(()))]
    assert dict(calls) == {"put": 2}
    calls.clear()
    frame.commit(shares)
    assert dict(calls) == {"get": 2, "list": 1, "delete": 1} and numbers(home) == list(range(23))


def test_files_of_a_batch_for_a_local_journal_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose blocks are large leaves one file, others none; the commit leaves nothing."""
    monkeypatch.setattr(sink_staging, "INLINE_BYTES", 8 << 10)
    url = str(tmp_path / "shop.db")
    penstock.open(url).close()
    frame = writer(url)
    shares = [frame.write(rows(at * 10, 10, pad=2_000)) for at in (0, 1)]
    shares += [frame.write(rows(20, 3)), frame.write(iter(()))]
    assert len(list((tmp_path / "shop.db.staging").iterdir())) == 2
    frame.commit(shares)
    assert not (tmp_path / "shop.db.staging").exists() and numbers(url) == list(range(23))


def test_a_batch_that_is_run_again_is_known_by_its_mark(home: str) -> None:
    for _ in range(2):
        frame = writer(home, txnAppId="job", txnVersion=1)
        frame.commit([frame.write(rows(0, 2_000, pad=2_000))])
    assert numbers(home) == list(range(2_000)) and objects(home) == []


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
    monkeypatch.setattr(sink_stores, "TURN_SECONDS", 0.2)
    with penstock.open(folder) as journal:
        journal.topic("orders").configure()
        frame = writer(folder)
        with pytest.raises(Locked, match=r'option\("writer", "https://…"\)'):
            frame.commit([frame.write(rows(0, 10))])


# ── a server writes ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_tasks_leave_objects_and_the_server_publishes_them(home: str) -> None:
    with penstock.open(home) as journal, serving(journal, tokens=TOKENS, token=WRITE) as served:
        frame = writer(home, writer=served.url, token=WRITE)
        shares = [frame.write(rows(at * 2_000, 2_000, pad=2_000)) for at in (0, 1)]
        assert len(objects(home)) == 2 * len(shares[0].pieces) and journal.topics() == []
        frame.commit(shares)
        again = CommitRequest(journal.id, [share.batch for share in shares])  # the answer was lost
        assert not client_of(frame.target.options.place.server).call(COMMIT_STAGED, body=again).committed
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
        assert len(list(StagingArea(place)._objects())) == len(shares[0].pieces)
        frame.commit(shares)
        assert list(StagingArea(place)._objects()) == []
    assert numbers(str(tmp_path / "shop.db")) == list(range(2_000))


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
                frame.target.staging._take_in(share)
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


def test_states_that_a_batch_has_saved_are_what_the_next_one_finds(home: str) -> None:
    """A task's reader may be behind what another process has written: states folded on from older ones would lose
    events."""
    with penstock.open(home) as journal:
        journal.topic("sums").append("added", 1, key="a")
    keeper, wanted = keeper_of(JournalPlace(home)), StreamedStates("sums", "Total", 1, "query-1")
    for generation in range(1, 5):
        keeper.save(wanted, [StreamedState("a", 7, generation, 1, b"state")], whole=False)
        assert keeper.load(wanted, ["a"]).states["a"].generation == generation

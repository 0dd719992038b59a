"""Sealing over http: the server moves history to a lake it was started with, in steps, and a repeat adds nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft
from penstock.core.journal.sealed import sealing as sealing_module
from penstock.errors import ConfigError, Denied, ReadOnly, StorageError
from penstock.server.api import bulk as served_sealing
from penstock.spark import seal
from server.process import ServerProcess
from server.serving import READ, TOKENS, WRITE, serving
from waiting import eventually

EVENTS = 10_000


@pytest.fixture
def filled(journal: penstock.Journal) -> penstock.Journal:
    drafts = [Draft("made", {"n": n, "name": f"n{n}"}) for n in range(EVENTS)]
    journal.topic("orders").append_many(drafts)
    return journal


def numbers(journal: penstock.Journal) -> list[int]:
    return [event.payload["n"] for event in journal.topic("orders").read()]


def test_a_client_seals_what_the_server_holds(
    filled: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_sealing, "FILE_EVENTS", 4_000)  # a step; a million otherwise
    told: list[tuple[int, int]] = []
    lake = tmp_path / "lake"
    with serving(filled, tokens=TOKENS, lakes=[f"{lake}/"]) as served:
        with penstock.open(served.url, token=WRITE) as remote:
            report = seal(
                remote,
                "orders",
                lake=str(lake),
                through=9_000,
                format="delta",
                columns="n BIGINT",
                file_events=1_500,
                progress=lambda done, total: told.append((done, total)),
            )
            assert (report.events, report.files, report.through, report.left) == (9_000, 6, 9_000, 0)
            assert report.format == "delta" and report.bytes == sum(one.stat().st_size for one in _files(lake))
            assert told == [(3_000, 9_000), (6_000, 9_000), (9_000, 9_000)]
            assert seal(remote, "orders", lake=str(lake), through=9_000).events == 0  # a repeat adds nothing
            joined = seal(remote, "orders", lake=str(lake), through=9_000, compact=True)
            assert joined.events == 0 and joined.through == 9_000
            assert numbers(remote) == numbers(filled) == list(range(EVENTS))
        with penstock.open(served.url, token=READ) as reader, pytest.raises(Denied, match="needs the role write"):
            seal(reader, "orders", lake=str(lake))
        with penstock.open(served.url, token=WRITE, read_only=True) as looking, pytest.raises(ReadOnly):
            seal(looking, "orders", lake=str(lake))


def test_a_client_does_not_choose_places_of_the_server(filled: penstock.Journal, tmp_path: Path) -> None:
    lake, elsewhere = str(tmp_path / "lake"), tmp_path / "elsewhere"
    with serving(filled, lakes=[lake]) as served:
        for place in (str(elsewhere), f"{lake}/../elsewhere", f"{lake}/below", "relative"):
            with pytest.raises(ConfigError, match=r"does not seal to .* only to .*lake: start it with --lake"):
                seal(served.url, "orders", lake=place)
        catalog = f"sqlite:///{elsewhere}"
        with pytest.raises(ConfigError, match="by its name in the server's"):
            seal(served.url, "orders", lake=lake, format="iceberg", catalog=catalog)
        with pytest.raises(ConfigError, match="sealed by its server: leave master out"):
            seal(served.url, "orders", lake=lake, master="local[1]")
        with pytest.raises(ConfigError, match="there is no topic 'nothing'"):
            seal(served.url, "nothing", lake=lake)
        assert served.post("/v1/topics/orders/seal", {"lake": lake, "file_events": 0}).status == 400
        assert served.get("/v1").json["lakes"] == [lake]
    with serving(filled) as served, pytest.raises(ConfigError, match="only to nowhere: start it with --lake"):
        seal(served.url, "orders", lake=lake)
    assert not elsewhere.exists() and _files(tmp_path) == []


def test_the_server_answers_others_while_it_seals(
    filled: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write = sealing_module.write_segment

    def held_up(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return write(*given)

    monkeypatch.setattr(sealing_module, "write_segment", held_up)
    lake = str(tmp_path / "lake")
    reports: list[Any] = []
    with serving(filled, lakes=[lake]) as served:
        both = [
            threading.Thread(target=lambda: reports.append(seal(served.url, "orders", lake=lake, through=5_000)))
            for _ in range(2)
        ]
        for one in both:
            one.start()
        try:
            assert begun.wait(60)
            assert served.get("/v1/topics/orders").json["events"] == EVENTS
            assert served.post("/v1/topics/orders/events", {"kind": "made", "payload": {"n": EVENTS}}).status == 201
        finally:
            go_on.set()
        for one in both:
            one.join(60)
    assert sorted(report.events for report in reports) == [0, 5_000]  # the second waited for its turn
    assert numbers(filled) == list(range(EVENTS + 1))


@pytest.mark.nightly("crashes")
def test_a_killed_server_goes_on_with_the_seal(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with penstock.open(tmp_path / "shop.db") as journal:
        journal.topic("orders").append_many([Draft("made", {"n": n}) for n in range(EVENTS)])
    with ServerProcess(tmp_path / "shop.db", "", "--lake", str(lake)) as server:
        failed: list[Exception] = []

        def ask() -> None:
            try:
                seal(server.url, "orders", lake=str(lake), file_events=100, through=9_000)
            except StorageError as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: len(_files(lake)) > 5)
        server.kill()
        asking.join(60)
        server.start()
        report = seal(server.url, "orders", lake=str(lake), file_events=100, through=9_000)
        assert report.through == 9_000
        if failed:
            assert 0 < report.events < 9_000 and "does not answer" in str(failed[0])
    with penstock.open(tmp_path / "shop.db") as journal:
        assert numbers(journal) == list(range(EVENTS))
    assert len(_files(lake)) == 90  # what was half done is gone


def _files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*.parquet") if not one.name.startswith((".", "_"))]

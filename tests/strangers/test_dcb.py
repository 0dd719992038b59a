"""The cases of eventsourcing 9.5.6 for dynamic consistency boundaries, on a journal; and appends under races."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventsourcing.dcb.api import DCBAppendCondition, DCBEvent, DCBQuery, DCBQueryItem
from eventsourcing.dcb.persistence import DCBInfrastructureFactory
from eventsourcing.dcb.tests import DCBRecorderTestCase
from eventsourcing.persistence import IntegrityError
from eventsourcing.utils import Environment

import penstock
from penstock.integrations.dcb import PenstockDCBFactory, PenstockDCBRecorder
from server.process import ServerProcess
from waiting import eventually


class TestDCBRecorder(DCBRecorderTestCase):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        with penstock.open(tmp_path / "school.db") as self.journal:
            yield

    def test_append_read(self) -> None:
        self._test_append_read(PenstockDCBRecorder(self.journal))

    def test_append_read_further_on(self) -> None:
        self.journal.topic("events").append_many([penstock.Draft("old", b"", tags="old") for _ in range(40)])
        self._test_append_read(PenstockDCBRecorder(self.journal), 40)

    def test_append_subscribe(self) -> None:
        self._test_append_subscribe(PenstockDCBRecorder(self.journal))

    def test_append_read_over_http(self) -> None:
        with ServerProcess("memory:") as server, penstock.open(server.url) as journal:
            self._test_append_read(PenstockDCBRecorder(journal))
            self._test_append_subscribe(PenstockDCBRecorder(journal, "others"))


def test_the_factory_is_found_by_the_librarys_names(tmp_path: Path) -> None:
    env = {"PERSISTENCE_MODULE": "penstock.integrations.dcb", "PENSTOCK_URL": str(tmp_path / "school.db")}
    factory = DCBInfrastructureFactory.construct(Environment("School", env))
    assert isinstance(factory, PenstockDCBFactory)
    recorder = factory.dcb_recorder()
    assert recorder.append([DCBEvent("opened", b"1", ["course:1"])]) == 1
    factory.close()
    with penstock.open(tmp_path / "school.db") as journal:
        assert journal.topic("school.events").latest == 1


def test_a_subscription_gives_the_wanted_events(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "school.db") as journal:
        recorder = PenstockDCBRecorder(journal)
        recorder.append([DCBEvent("a", b"", ["x"]), DCBEvent("b", b"", ["y"]), DCBEvent("a", b"", ["y"])])
        query = DCBQuery([DCBQueryItem(types=["a"], tags=["y"]), DCBQueryItem(tags=["x"])])
        with recorder.subscribe(query) as following:
            assert [next(following).position, next(following).position] == [1, 3]


def book(url: str, who: int, seats: int, taken: list[int]) -> None:
    with penstock.open(url) as journal:
        recorder = PenstockDCBRecorder(journal)
        for seat in range(seats):
            wanted = DCBQuery([DCBQueryItem(tags=[f"seat:{seat}"])])
            try:
                taken.append(
                    recorder.append([DCBEvent("taken", b"%d" % who, [f"seat:{seat}"])], DCBAppendCondition(wanted))
                )
            except IntegrityError:
                continue


@pytest.mark.parametrize(("processes", "kill"), [(False, False), (True, False), (True, True)])
def test_each_seat_is_taken_once_by_threads_and_by_processes(tmp_path: Path, processes: bool, kill: bool) -> None:
    """Also when a process is killed while it books."""
    url, seats = str(tmp_path / "seats.db"), 25
    penstock.open(url).close()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=book, args=(url, who, seats, []))
        if processes
        else threading.Thread(target=book, args=(url, who, seats, []))
        for who in range(3)
    ]
    for worker in workers:
        worker.start()
    if kill:
        with penstock.open(url) as journal:
            eventually(lambda: journal.topic("events").latest > 3)
        workers[0].kill()  # type: ignore[union-attr]
    for worker in workers:
        worker.join(120)
    with penstock.open(url) as journal:
        events = list(journal.topic("events").read())
        assert sorted(event.tags for event in events) == sorted((f"seat:{seat}",) for seat in range(seats))

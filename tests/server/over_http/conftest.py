"""The contract suites' fixtures, for journals at the other end of a url."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.limits import Limits
from server.over_http import suite  # noqa: F401 - makes the contract suites' helpers importable
from server.serving import serving

from engines import KINDS, Kind  # isort: skip
from journals import Place  # isort: skip

LIMITS = Limits(max_body=512 << 20)


class ServedPlace(Place):
    """A place whose journals are served: what a test opens is a client."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        super().__init__(kind, folder)
        self._servers: dict[int, ExitStack] = {}

    def open(self, **options: Any) -> penstock.Journal:
        stack = ExitStack()
        local = stack.enter_context(penstock.open(self.url, **options))
        served = stack.enter_context(serving(local, limits=LIMITS))
        remote = penstock.open(served.url, read_only=bool(options.get("read_only")))
        self._servers[id(remote)] = stack
        self._open.append(remote)
        return remote

    def reopen(self, journal: penstock.Journal, **options: Any) -> penstock.Journal:
        journal.close()
        self._servers.pop(id(journal)).close()
        return self.open(**options)

    def close(self) -> None:
        super().close()
        for stack in self._servers.values():
            stack.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = ServedPlace(getattr(request, "param", KINDS[0]), tmp_path)
    yield place
    place.close()


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def clock() -> penstock.ManualClock:
    return penstock.ManualClock()


@pytest.fixture
def journal(place: Place, clock: penstock.ManualClock) -> penstock.Journal:
    return place.open(clock=clock, durability="process")


@pytest.fixture
def topic(journal: penstock.Journal) -> penstock.Topic:
    return journal.topic("orders")


@pytest.fixture
def reopen(place: Place, clock: penstock.ManualClock) -> Callable[[penstock.Journal], penstock.Journal]:
    return lambda journal: place.reopen(journal, clock=clock, durability="process")


@pytest.fixture
def in_threads() -> Iterator[Callable[..., threading.Thread]]:
    started: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(work: Callable[..., object], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        started.append(thread)
        thread.start()
        return thread

    yield start
    for thread in started:
        thread.join(60)
        assert not thread.is_alive(), "a thread of this test is stuck"
    if failures:
        raise failures[0]

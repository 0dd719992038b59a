"""The contract suites, run against a journal at the other end of a url."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

CONTRACT = Path(__file__).resolve().parents[1] / "contract"
sys.path.insert(0, str(CONTRACT))

from engines import KINDS, Kind  # noqa: E402
from journals import Place  # noqa: E402
from test_compaction import *  # noqa: E402, F403
from test_cursors import *  # noqa: E402, F403
from test_subscription import *  # noqa: E402, F403
from test_topic_append import *  # noqa: E402, F403
from test_topic_read import *  # noqa: E402, F403

import penstock  # noqa: E402
from server.serving import serving  # noqa: E402


class ServedPlace(Place):
    """A place whose journals are served: what a test opens is a client."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        super().__init__(kind, folder)
        self._servers: dict[int, ExitStack] = {}

    def open(self, **options: Any) -> penstock.Journal:
        stack = ExitStack()
        local = stack.enter_context(penstock.open(self.url, **options))
        served = stack.enter_context(serving(local))
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

"""The contract suites' fixtures, for journals at the other end of a url."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.limits import Limits
from server.over_http import suite  # noqa: F401 - makes the contract suites' helpers importable
from server.over_http.shared_server import SharedServer

from engines import KINDS, Kind  # isort: skip
from journals import Place  # isort: skip

LIMITS = Limits(max_body=512 << 20)


class ServedPlace(Place):
    """A place whose journals are served: what a test opens is a client."""

    def __init__(self, kind: Kind, folder: Path, shared_server: SharedServer) -> None:
        super().__init__(kind, folder)
        self._server = shared_server
        self._served: dict[int, tuple[penstock.Journal, str]] = {}

    def open(self, **options: Any) -> penstock.Journal:
        local = penstock.open(self.url, **options)
        url = self._server.move_in(local, limits=LIMITS)
        remote = penstock.open(url, read_only=bool(options.get("read_only")))
        self._served[id(remote)] = (local, url)
        self._open.append(remote)
        return remote

    def _end(self, local: penstock.Journal, url: str) -> None:
        self._server.move_out(url)
        local.close()

    def reopen(self, journal: penstock.Journal, **options: Any) -> penstock.Journal:
        journal.close()
        self._end(*self._served.pop(id(journal)))
        return self.open(**options)

    def close(self) -> None:
        super().close()
        for local, url in self._served.values():
            self._end(local, url)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs on every engine elsewhere runs on one here: a server is the same above each of them."""
    here = Path(__file__).parent
    seen: dict[tuple[str, str], Kind] = {}
    kept, left = [], []
    for item in items:
        kind = item.callspec.params.get("place") if hasattr(item, "callspec") else None
        if kind is not None and here in item.path.parents:
            first = seen.setdefault((item.path.name, item.originalname), kind)  # type: ignore[attr-defined]
            if kind is not first:
                left.append(item)
                continue
        kept.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    shared_server = SharedServer()
    yield shared_server
    shared_server.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, shared_server: SharedServer) -> Iterator[Place]:
    place = ServedPlace(getattr(request, "param", KINDS[0]), tmp_path, shared_server)
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

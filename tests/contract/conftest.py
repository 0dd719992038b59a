"""One fixture, every engine: `place` is where a journal lies, `journal` is one that is open there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from journals import Place

from engines import KINDS
from penstock import Journal, ManualClock, Topic


@pytest.fixture(params=KINDS, ids=lambda kind: kind.scheme)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    place.close()


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def journal(place: Place, clock: ManualClock) -> Journal:
    """An open journal whose time stands still unless the test moves `clock`; nothing here waits for the disk."""
    return place.open(clock=clock, durability="process")


@pytest.fixture
def topic(journal: Journal) -> Topic:
    return journal.topic("orders")


@pytest.fixture
def reopen(place: Place, clock: ManualClock) -> Callable[[Journal], Journal]:
    """Closes a journal and opens its store again, at the same time."""
    return lambda journal: place.reopen(journal, clock=clock, durability="process")

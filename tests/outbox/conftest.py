"""A database with the outbox's table in it, of each kind, and a journal beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from outbox import databases
from outbox.databases import Database
from penstock import outbox


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], Database]]:
    with databases.postgresql() as make:
        yield make


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Callable[[], Database]]:
    with databases.mariadb() as make:
        yield make


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database with an empty outbox."""
    made = databases.sqlite(tmp_path) if request.param == "sqlite" else request.getfixturevalue(request.param)()
    connection = made.connect()
    outbox.create(connection)
    connection.commit()
    connection.close()
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as opened:
        yield opened

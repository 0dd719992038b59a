from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from server.browser import browser, open_page, shop  # noqa: F401 - fixtures
from server.crowded import fill
from server.serving import ADMIN, TOKENS, Served, serving


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "served.db", durability="process") as opened:
        yield opened


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A crowded and hostile journal, served to every test that wants one: each acts on topics and queues of its own."""
    with penstock.open(tmp_path_factory.mktemp("crowd") / "crowd.db", durability="process") as opened:
        fill(opened)
        with serving(opened) as found:
            yield found


@pytest.fixture
def served(journal: penstock.Journal) -> Iterator[Served]:
    """A server without tokens, for this machine."""
    with serving(journal) as found:
        yield found


@pytest.fixture
def guarded(journal: penstock.Journal) -> Iterator[Served]:
    """A server that asks for tokens; requests bring the admin's unless they say otherwise."""
    with serving(journal, token=ADMIN, tokens=TOKENS) as found:
        yield found

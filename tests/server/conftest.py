from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from server.browser import browser, page, shop, tab  # noqa: F401 - fixtures
from server.crowded import fill
from server.serving import ADMIN, TOKENS, Served, serving


@pytest.fixture
def journal() -> Iterator[penstock.Journal]:
    with penstock.open("memory:") as opened:
        yield opened


@pytest.fixture(scope="session")
def crowd() -> Iterator[Served]:
    """A crowded and hostile journal, served to every test that wants one: each acts on topics and queues of its own."""
    with penstock.open("memory:") as opened:
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

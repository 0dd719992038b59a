"""What tests of power cuts and failing calls share: the process that opens what is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torture.power import Checker


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    with Checker() as running:
        yield running

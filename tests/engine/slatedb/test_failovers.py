"""The short form of `failovers.py`, which runs a thousand."""

from __future__ import annotations

import pytest
from failovers import torture


@pytest.mark.slow
@pytest.mark.parametrize(("store", "count"), [("folder", 4), ("s3", 2)])
def test_nothing_acknowledged_is_lost_or_doubled_over_failovers(store: str, count: int) -> None:
    acknowledged, happened = torture(count, seed=3, store=store)
    assert acknowledged > count and happened.total() == count

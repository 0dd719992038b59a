"""The short form of `failovers.py`, which runs a thousand."""

from __future__ import annotations

import pytest
from failovers import torture


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "count"), [("folder", 3), pytest.param("s3", 4, marks=pytest.mark.nightly("emulators"))]
)
def test_no_event_is_lost_and_no_message_is_in_two_hands_over_failovers(store: str, count: int) -> None:
    acknowledged, happened = torture(count, seed=53, store=store)  # one that draws every kind but an outage
    assert acknowledged > count and happened.total() == count

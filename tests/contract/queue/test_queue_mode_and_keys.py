"""Ordering keys of a queue whose mode is changed there and back while deliveries are under way."""

from __future__ import annotations

import pytest

from penstock import Journal, ManualClock


@pytest.mark.parametrize("ends", ["lapse", "ack", "nack"])
def test_no_key_stays_busy_after_the_mode_was_changed_there_and_back(
    journal: Journal, clock: ManualClock, ends: str
) -> None:
    """Two groups hold the same message; in work mode one of them gives it back, and the other is told nothing."""
    queue = journal.queue("news", mode="fanout")
    queue.push("first", key="a")
    held = [queue.take(group="mail"), queue.take(group="search")]
    queue.configure(mode="work")
    queue.push_many(["second", "third"], key="a")
    queue.configure(mode="fanout")
    for delivery in held:
        assert delivery is not None
        if ends == "ack":
            delivery.ack()
        elif ends == "nack":
            delivery.nack(delay=0)
    clock.advance(60)
    for group in ("mail", "search"):
        got = []
        while (delivery := queue.take(group=group)) is not None:
            got.append(delivery.payload)
            delivery.ack()
        assert got[-2:] == ["second", "third"], group
        assert queue.stats(group).ready == 0


def test_no_key_stays_busy_when_what_is_in_flight_is_compacted_away(journal: Journal) -> None:
    """Taken in work mode, it is the named groups' to free."""
    queue = journal.queue("news")
    queue.push("first", key="a")
    queue.add_group("mail")
    assert queue.take() is not None
    queue.configure(mode="fanout")
    journal.topic("news").compact(1, force=True)
    queue.push("second", key="a")
    assert [delivery.payload for delivery in queue.take_many(5, group="mail")] == ["second"]

"""What a journal is, asked without opening it for writing."""

from __future__ import annotations

from journals import Place, only

import penstock


@only(on_disk=True)
def test_a_journal_that_is_not_there_is_described_and_not_made(place: Place) -> None:
    found = penstock.describe(place.url)
    assert (found.engine, found.size_bytes, found.topics, found.queues) == (place.kind.scheme, 0, [], [])
    assert list(place.folder.iterdir()) == []


@only(on_disk=True)
def test_a_closed_journal_is_described(place: Place) -> None:
    with penstock.open(place.url) as journal:
        journal.topic("orders").append("k", 1)
        journal.queue("jobs").pause()
    found = penstock.describe(place.url)
    assert (found.topics, found.queues, found.paused) == (["jobs", "orders"], ["jobs"], ["jobs"])
    assert found.size_bytes > 0 and found.read_only


@only(on_disk=True, second_open=True)
def test_a_journal_in_use_is_described(place: Place) -> None:
    journal = place.open()
    journal.topic("orders").append("k", 1)
    assert penstock.describe(place.url).topics == ["orders"]

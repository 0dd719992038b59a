"""A topic that is dropped and made anew begins after where it ended: over HTTP, too, a position means one event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import penstock
from penstock.core.journal import to_arrow
from penstock.core.local import topics as reading
from penstock.errors import ConfigError, PositionTrimmed, StorageError
from penstock.remote import events as remote_events
from penstock.server import limits
from server.serving import Served
from server.test_live import Stream


def drafts(kind: str, count: int) -> list[penstock.Draft]:
    return [penstock.Draft(kind, n) for n in range(count)]


def make_anew(journal: penstock.Journal, events: int = 3) -> None:
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many(drafts("made anew", events))


def test_every_stale_position_is_trimmed_or_goes_on_rightly(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append_many(drafts("placed", 3))
    make_anew(journal)
    for path in ("events?after=2", "live?after=2"):
        answer = served.get(f"/v1/topics/orders/{path}")
        assert (answer.status, answer.json["error"], answer.json["oldest"]) == (410, "PositionTrimmed", 4), path
    late = served.ask("GET", "/v1/topics/orders/live", headers={"Accept": "text/event-stream", "Last-Event-ID": "2"})
    assert (late.status, late.json["error"]) == (410, "PositionTrimmed")
    assert [one["seq"] for one in served.get("/v1/topics/orders/events?after=3").json["events"]] == [4, 5, 6]
    assert served.get("/v1/topics/orders/events/2").status == 404
    refused = served.post("/v1/topics/orders/events", {"kind": "placed", "key": "k", "expect": 2})
    assert (refused.status, refused.json["error"]) == (409, "Conflict")
    moved = served.ask("PUT", "/v1/topics/orders/cursors/billing", {"position": 2}).json
    assert (moved["position"], moved["lag"]) == (3, 3), "it has read nothing of this one"


def test_a_follower_that_had_read_everything_waits_and_goes_on(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many(drafts("placed", 3))
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe(after=1) as follower:
        assert [follower.next(30).seq for _ in range(2)] == [2, 3]  # type: ignore[union-attr]
        journal.drop_topic("orders")
        assert follower.next(0.2) is None and follower.next(0) is None
        with closing(Stream(served, "/v1/topics/orders/live?after=3")) as stream:
            topic.append_many(drafts("made anew", 2))
            assert [follower.next(30).seq for _ in range(2)] == [4, 5]  # type: ignore[union-attr]
            assert [event["seq"] for event in stream.take(2)] == [4, 5] and stream.last_id == "5"
        with closing(Stream(served, "/v1/topics/orders/live")) as stream:
            assert [event["seq"] for event in stream.take(2)] == [4, 5], "nothing of the one that was dropped"


@pytest.mark.parametrize("connected", [False, True])
def test_a_follower_that_was_behind_is_told(served: Served, journal: penstock.Journal, connected: bool) -> None:
    journal.topic("orders").append_many(drafts("placed", 3))
    with penstock.open(served.url) as remote:
        follower = remote.topic("orders").subscribe(after=1)
        if connected:  # while there is no topic: it waits, and goes on when there is one again
            journal.drop_topic("orders")
            assert follower.next(0.2) is None
            journal.topic("orders").append_many(drafts("made anew", 3))
        else:
            make_anew(journal)
        with pytest.raises(PositionTrimmed) as told:
            follower.next(30)
        assert told.value.oldest == 4
        with remote.topic("orders").subscribe() as again:
            assert again.next(30).seq == 4  # type: ignore[union-attr]


def _read(topic: penstock.Topic, how: str) -> Iterator[int]:
    if how == "Arrow":
        for batch in topic.read_arrow(batch_rows=10):
            yield from batch.column("seq").to_pylist()
    else:
        yield from (event.seq for event in topic.read(limit=50 if how == "pages" else None))


@pytest.mark.parametrize("how", ["pages", "lines", "Arrow"])
@pytest.mark.parametrize("act", [make_anew, lambda journal: journal.drop_topic("orders")])
def test_a_read_of_several_pieces_says_that_the_rest_is_gone(
    served: Served,
    journal: penstock.Journal,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    act: Callable[[penstock.Journal], object],
) -> None:
    """It does not end as if it had read everything, and shows no event of another topic."""
    monkeypatch.setattr(remote_events, "PAGE_EVENTS", 10)
    journal.topic("orders").append_many(drafts("placed", 60))
    pieces = 0

    def meanwhile(read: Callable[..., Any]) -> Callable[..., Any]:
        def piece(*given: Any) -> Any:
            nonlocal pieces
            pieces += 1
            if pieces == 3:
                act(journal)
            return read(*given)

        return piece

    monkeypatch.setattr(reading.WantedEvents, "page", meanwhile(reading.WantedEvents.page))
    monkeypatch.setattr(reading.WantedEvents, "rows", meanwhile(reading.WantedEvents.rows))
    monkeypatch.setattr(to_arrow, "read_batches", meanwhile(to_arrow.read_batches))
    monkeypatch.setattr(limits, "STREAM_EVENTS", 10)
    monkeypatch.setattr(limits, "STREAM_ROWS", 10)
    told = StorageError if how == "Arrow" else PositionTrimmed  # an Arrow stream can only break off
    found: list[int] = []
    with penstock.open(served.url) as remote, pytest.raises(told):
        found.extend(_read(remote.topic("orders"), how))
    assert pieces >= 3 and max(found, default=0) <= 60


@pytest.mark.parametrize("kind", [None, "made anew"])
def test_a_worker_goes_on_with_the_topic_made_anew(served: Served, journal: penstock.Journal, kind: str | None) -> None:
    """From its beginning, also when its batch was under way and was not the last one of the topic that is gone."""
    topic = journal.topic("orders")
    topic.append_many(drafts("made anew", 1_000))
    got: list[int] = []
    begun, enough = threading.Event(), threading.Event()

    def handle(events: list[penstock.Event]) -> None:
        if not begun.is_set():
            begun.set()
            make_anew(journal, 100)
        got.extend(event.seq for event in events)
        if got[-1] == 1_100:
            enough.set()

    with penstock.open(served.url) as remote, remote.topic("orders").worker("billing", handle, batch=10, kind=kind):
        assert enough.wait(60)
    assert got[-100:] == list(range(1_001, 1_101)) and got == sorted(set(got))
    assert topic.cursor("billing") == 1_100


def test_a_worker_whose_topic_is_dropped_under_a_batch_waits(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = journal.topic("orders")
    topic.append("placed", 1)
    got: list[int] = []
    refused, enough = threading.Event(), threading.Event()
    commit = penstock.Topic.commit

    def told(topic: penstock.Topic, consumer: str, seq: int) -> None:
        try:
            commit(topic, consumer, seq)
        except ConfigError:
            refused.set()
            raise

    def handle(events: list[penstock.Event]) -> None:
        if not got:
            journal.drop_topic("orders")
        got.extend(event.seq for event in events)
        if got[-1] == 2:
            enough.set()

    monkeypatch.setattr(penstock.Topic, "commit", told)
    with penstock.open(served.url) as remote, remote.topic("orders").worker("billing", handle, restarts=0):
        assert refused.wait(60)
        topic.append("made anew", 1)
        assert enough.wait(60)
    assert got == [1, 2]


def test_what_a_handler_raises_is_a_failure(served: Served, journal: penstock.Journal) -> None:
    """Only the worker's own topic is begun anew."""
    journal.topic("orders").append("placed", 1)

    def handle(events: list[penstock.Event]) -> None:
        raise PositionTrimmed("another one", oldest=1)

    with penstock.open(served.url) as remote:
        worker = remote.topic("orders").worker("billing", handle, restarts=0)
        with pytest.raises(PositionTrimmed, match="another one"):
            worker.run()
        with pytest.raises(ConfigError, match="the topic ends at 1"):
            remote.topic("orders").commit("billing", 2)
    assert journal.topic("orders").cursor("billing") is None

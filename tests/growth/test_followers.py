"""An append is read once for all who follow its topic over HTTP, however many they are. Counted, not timed."""

from __future__ import annotations

import http.client
from contextlib import ExitStack

import penstock
from growth.counting import Counter
from growth.world import in_memory
from penstock import Journal
from server.serving import Served, serving

FEW, MANY = 10, 500


def test_an_append_asks_as_much_of_the_store_with_many_followers() -> None:
    few, many = calls_of_an_append(FEW), calls_of_an_append(MANY)
    assert 0 < many <= 3 * few, f"{few} engine calls and rows with {FEW} followers, {many} with {MANY}"


def calls_of_an_append(followers: int) -> int:
    """The engine calls and rows from an append until every follower has its event."""
    counter = Counter()
    with penstock.open(in_memory()) as journal, serving(journal) as served, ExitStack() as stack:
        topic = journal.topic("orders")
        topic.append("placed")
        streams = [follow(served, stack) for _ in range(followers)]
        reach_all(journal, streams)  # from here on each waits for the next
        with counter.counting():
            reach_all(journal, streams)
    return counter.calls + counter.rows


def follow(served: Served, stack: ExitStack) -> http.client.HTTPResponse:
    connection = served.connect()
    stack.callback(connection.close)
    connection.request("GET", "/v1/topics/orders/live?after=latest", headers={"Accept": "text/event-stream"})
    return connection.getresponse()


def reach_all(journal: Journal, streams: list[http.client.HTTPResponse]) -> None:
    """Appends an event, and reads it from every stream."""
    receipt = journal.topic("orders").append("placed")
    for stream in streams:
        while stream.readline() != b"id: %d\n" % receipt.seq:
            assert not stream.isclosed()

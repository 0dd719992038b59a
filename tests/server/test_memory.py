"""What a server has sent or looked at it lets go by itself: Python's collector may not come by for long."""

from __future__ import annotations

import gc
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import penstock
from penstock.core.queue.state.blocks import BlockCache
from server.serving import serving
from waiting import eventually


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("leaving", [False, True])
def test_followers_hold_nothing_of_what_they_were_sent_when_they_wait_or_have_left(
    journal: penstock.Journal, leaving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.limits.PING_SECONDS", 3600.0)  # a ping would take the place of the events
    events, size, followers = 2, 900_000, 20
    journal.topic("large").append_many([penstock.Draft("k", "x" * size) for _ in range(events)])
    with serving(journal) as served, ExitStack() as open_ones:

        def follow() -> None:
            connection = open_ones.enter_context(socket.create_connection(("127.0.0.1", served.port), 60))
            connection.sendall(b"GET /v1/topics/large/live?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = 0
            while received < events * size:
                received += len(connection.recv(1 << 20))
            if leaving:
                connection.close()

        follow()  # what the first one brings into memory for all is there
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(followers):
                follow()
            eventually(lambda: tracemalloc.get_traced_memory()[0] - before < followers * size // 4)
        finally:
            tracemalloc.stop()


@pytest.mark.usefixtures("no_collector")
def test_looking_at_a_queue_leaves_none_of_its_blocks_behind(journal: penstock.Journal) -> None:
    queue = journal.queue("jobs")
    queue.push_many(["x" * 1_000_000 for _ in range(3)])
    queue.take(wait=0)

    def caches() -> int:
        return sum(isinstance(one, BlockCache) for one in gc.get_objects())

    before = caches()
    for _ in range(3):
        assert len(list(queue.messages())) == 3
        queue.stats()
        queue.peek()
    journal.maintain()
    assert caches() == before

"""What the Python client does with its connections, and how fast an answer is."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import penstock
import penstock.server
from penstock import Delivery
from penstock.errors import Closed, ConfigError, StorageError
from penstock.remote import queues
from server.serving import Served, serving
from waiting import DEADLINE, eventually


def test_a_write_after_the_server_was_restarted_goes_through(journal: penstock.Journal) -> None:
    """The connection the client had kept ended with the first server; nothing was under way on it."""
    with serving(journal) as first:
        remote = penstock.open(first.url)
        remote.topic("t").append("before")
    with remote, serving(journal, reuse=first.port):
        remote.topic("t").append("after")
    assert [event.kind for event in journal.topic("t").read()] == ["before", "after"]


def test_a_client_finds_a_journal_below_a_path(journal: penstock.Journal) -> None:
    inner = penstock.server.app(journal)
    outer: Any = Starlette(routes=[Mount("/internal/events", app=inner)])
    outer.penstock = inner.state.service
    with serving(journal, app=outer) as served, penstock.open(f"{served.url}/internal/events") as remote:
        topic, queue = remote.topic("t"), remote.queue("q")
        with topic.subscribe(after=0) as events:
            topic.append("k", 1)
            assert events.next(DEADLINE).payload == 1  # type: ignore[union-attr]
        queue.push("x")
        with queue.take() as delivery:  # type: ignore[union-attr]
            assert delivery.payload == "x"
        assert [event.payload for event in topic.read()] == [1] and len(journal.queue("q")) == 0


def test_an_answer_does_not_wait_for_the_network_to_batch_it(served: Served) -> None:
    """Nagle's algorithm and delayed acknowledgements together cost 40 ms a request where nobody switches them off."""
    with penstock.open(served.url) as remote:
        topic = remote.topic("t")
        topic.append("k")
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            topic.append("k")
            times.append(time.perf_counter() - begun)
        assert min(times) < 0.035, statistics.median(times)


def test_a_wrong_address_or_token_is_a_sentence_and_leaves_no_connection(guarded: Served) -> None:
    with pytest.raises(ConfigError, match="this needs a token"):
        penstock.open(guarded.url)
    with pytest.raises(ConfigError, match="the token is none of this server's"):
        penstock.open(guarded.url, token="another-token-than-those")
    with pytest.raises(StorageError, match=r"^http://127.0.0.1:9 does not answer \(Failed to establish"):
        penstock.open("http://127.0.0.1:9")


def test_closing_ends_a_take_that_waits_at_the_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when its time is up; what waits elsewhere, and what is under way without waiting, is left alone."""
    monkeypatch.setattr(queues, "WAIT", 59.0)
    ended: list[BaseException | Delivery | None] = []
    with penstock.open(served.url) as other, penstock.open(served.url) as remote:

        def wait(journal: Any) -> None:
            try:
                ended.append(journal.queue("q").take(wait=59))
            except Closed as error:
                ended.append(error)

        threads = [threading.Thread(target=wait, args=(journal,)) for journal in (remote, other)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(remote._client._waits._connections) == len(other._client._waits._connections) == 1)
        remote.close()
        threads[0].join(40)
        assert not threads[0].is_alive() and isinstance(ended[0], Closed)
        served.journal.queue("q").push("still waited for")
        threads[1].join(40)
        assert isinstance(ended[1], Delivery) and ended[1].payload == "still waited for"

"""Journals over http that end, are forked or are interrupted while something is under way."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Delivery
from penstock.core.consuming.handover import Handover
from penstock.core.observe.workers import gave_up
from penstock.errors import Closed, StorageError
from penstock.remote.backend import RemoteJournal
from penstock.remote.queues import RemoteQueue
from server.serving import Served
from waiting import DEADLINE, eventually


@pytest.fixture
def remote(served: Served) -> Iterator[RemoteJournal]:
    with penstock.open(served.url) as opened:
        assert isinstance(opened, RemoteJournal)
        yield opened


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_worker_that_is_refused_begins_again_and_says_when_it_gives_up(
    served: Served, remote: RemoteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.consuming.worker.WORKER_RESTART_PAUSE", 0.0)
    worker = remote.queue("jobs").worker(lambda delivery: None)
    served.journal.queue("jobs").drop()
    worker.start()
    eventually(lambda: not worker.alive)
    with pytest.raises(penstock.errors.UnknownQueue):
        worker.stop()
    assert [one.worker for one in gave_up(served.journal)] == ["jobs:default"]


def test_a_worker_whose_take_fails_for_a_reason_unknown_does_not_end_unseen(
    served: Served, remote: RemoteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.consuming.worker.WORKER_RESTART_PAUSE", 0.0)
    queue = remote.queue("jobs")
    queue.push("a")
    failures = iter((True, True))

    def failing(*given: Any) -> Any:
        if next(failures, False):
            raise ValueError("an answer that is none")
        return take(*given)

    take = RemoteQueue.take
    monkeypatch.setattr(RemoteQueue, "take", failing)
    with queue.worker(lambda delivery: None):
        eventually(lambda: len(served.journal.queue("jobs")) == 0)


# ── takes in event loops ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("found", [False, True], ids=["while it waits", "when it has found one"])
def test_a_take_that_is_cancelled_gives_back_what_it_finds(
    served: Served, remote: RemoteJournal, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    queue, local = remote.queue("jobs"), served.journal.queue("jobs")
    asked, go, taken = threading.Event(), threading.Event(), threading.Event()
    take = RemoteQueue.take

    def slow(*given: Any) -> Any:
        asked.set()
        assert go.wait(DEADLINE)
        return take(*given)

    get = Handover._get

    def received(handover: Handover[Any], asking: Any) -> Any:
        given = get(handover, asking)
        taken.set()
        return given

    monkeypatch.setattr(RemoteQueue, "take", slow)
    monkeypatch.setattr(Handover, "_get", received)

    async def main() -> None:
        waiting = asyncio.create_task(queue.take_async(wait=30))
        while not asked.is_set():
            await asyncio.sleep(0.005)
        local.push("a")
        if found:
            go.set()
            assert taken.wait(DEADLINE)  # in this loop, which hears of the result only afterwards
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()

    asyncio.run(main())
    assert taken.is_set() and local.stats().in_flight == 0
    again = local.take()
    assert again is not None and again.attempt == 1


def test_an_interrupt_is_not_replaced_by_the_failure_of_giving_back(
    remote: RemoteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = remote.queue("jobs")
    queue.push("a")
    delivery = queue.take()
    assert isinstance(delivery, Delivery)

    def away(*given: object, **options: object) -> None:
        raise StorageError("the server does not answer", retryable=True)

    monkeypatch.setattr(queue._backend, "_call", away)
    with pytest.raises(KeyboardInterrupt), delivery:
        raise KeyboardInterrupt


# ── submissions ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_is_submitted_during_a_flush_comes_after_what_was_submitted_before(remote: RemoteJournal) -> None:
    begun, go, done = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        assert go.wait(DEADLINE)
        done.append(1)

    remote._backend.submit(first)
    flush = threading.Thread(target=remote.flush)
    assert begun.wait(DEADLINE)
    flush.start()
    pool = remote._backend._pool
    assert pool is not None
    eventually(lambda: pool._work_queue.qsize() or pool._shutdown)  # the flush waits
    second = remote._backend.submit(lambda: done.append(2))
    go.set()
    second.result(DEADLINE)
    flush.join(DEADLINE)
    assert done == [1, 2]


def test_a_submission_to_a_journal_that_was_closed_is_refused(served: Served) -> None:
    journal = penstock.open(served.url)
    ticket = journal.topic("orders").submit("placed")
    journal.close()
    assert ticket.result(DEADLINE).seq == 1
    with pytest.raises(Closed):
        journal.queue("jobs")
    with pytest.raises(Closed):
        journal.topic("orders").submit("placed")


def test_a_subscription_goes_on_after_a_thread_could_not_start(
    remote: RemoteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = remote.topic("orders")
    topic.append("placed")

    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with topic.subscribe() as subscription:
        with monkeypatch.context() as machine:
            machine.setattr(threading.Thread, "start", full)
            with pytest.raises(RuntimeError):
                subscription.next()
        found = subscription.next(DEADLINE)
        assert found is not None and found.seq == 1


# ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_forked_child_shares_no_connection_with_its_parent(remote: RemoteJournal) -> None:
    """Each would read the other's answers."""
    topic = remote.topic("orders")
    topic.append("placed", 1)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        said = b"nothing"
        try:
            topic.get(1)
        except Closed as error:
            said = b"told" if "forked" in str(error) else b"closed"
        except BaseException:
            said = b"failed"
        finally:
            remote.close()
            os.write(tell, said)
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        assert answer.read() == b"told"
    os.waitpid(child, 0)
    found = topic.get(1)
    assert found is not None and found.payload == 1


# ── a server that does not answer ────────────────────────────────────────────────────────────────────────────────────
def test_a_server_that_does_not_answer_within_the_timeout_raises_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(StorageError, match=r"does not answer .*timeout=0\.2"):
            penstock.open(url, timeout=0.2).topic("orders").append("order.placed")
        assert time.monotonic() - begun < 30  # half of the default


@pytest.mark.parametrize("timeout", [0, -1, "5", float("inf"), True])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    with pytest.raises(penstock.errors.ConfigError, match="timeout must be a number of seconds of at least"):
        penstock.open("http://127.0.0.1:1", timeout=timeout)

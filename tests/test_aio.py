"""Event loops: the same handles with the same names; a cancelled call leaves nothing taken, half-read or open."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft, Projection, aio, on
from penstock.aio import running
from penstock.aio.buffers import open_consumer, open_producer
from penstock.buffer import Batch, Descriptor
from penstock.errors import ConfigError, UnknownQueue
from server.serving import serving
from waiting import DEADLINE


class Total(Projection):
    total: int = 0

    @on("placed")
    def add(self, payload: Any) -> None:
        self.total += payload


BELONGS_TO_A_THREAD = {"transaction", "fence", "submit", "submit_many", "try_submit", "try_submit_many"}
"""They hold a thread, or `append` in a task of its own does the same."""


@pytest.mark.parametrize("sync", [penstock.Journal, penstock.Topic, penstock.Queue, penstock.Delivery, penstock.Outbox])
def test_every_method_has_its_form_for_event_loops(sync: type[Any]) -> None:
    handle: type[Any] = getattr(aio, f"Async{sync.__name__}")
    own = {name for name in vars(sync) if not name.startswith("_") and not name.endswith("_async")}
    assert own - BELONGS_TO_A_THREAD <= set(vars(handle)), "an operation that event loops lack"
    for name, method in vars(handle).items():
        like = vars(sync).get(name)
        if callable(method) and like is not None and hasattr(method, "__wrapped__"):
            assert method.__doc__ == like.__doc__ or name in ("ack", "nack"), name


def test_opening_takes_the_arguments_of_penstock_open() -> None:
    assert inspect.signature(penstock.aio.open).parameters == inspect.signature(penstock.open).parameters


@asynccontextmanager
async def opened(home: str, path: Path) -> AsyncIterator[aio.AsyncJournal]:
    if home != "served":
        async with await aio.open("memory:" if home == "memory" else path / "shop.db") as journal:
            yield journal
        return
    with penstock.open("memory:") as store, serving(store) as served:
        async with await aio.open(served.url) as journal:
            yield journal


def in_loop(home: str, path: Path, work: Callable[[aio.AsyncJournal], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE), opened(home, path) as journal:
            await work(journal)

    asyncio.run(run())


@pytest.mark.parametrize("home", ["sqlite", "served"])
def test_a_journal_is_used_from_an_event_loop(home: str, tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        orders = journal.topic("orders")
        first = await orders.append("placed", 40, key="ada")
        await orders.append_many([Draft("placed", n, key="bob", cause=first.id) for n in range(1_500)])
        assert [event.seq async for event in orders.read()] == list(range(1, 1_502))
        assert [event.key async for event in orders.read(key="ada")] == ["ada"]
        assert (await orders.latest, await orders.oldest, await orders.length()) == (1_501, 1, 1_501)
        assert (await orders.project(Total, "ada", through=1)) == Total(40)
        await orders.commit("mailer", 3)
        assert await orders.lag("mailer") == 1_498 and await orders.position_of("ada") == 1
        assert len([event async for event in journal.correlated(first.id)]) == 1_501
        async with journal.outbox() as outbox:
            outbox.stage(orders, "placed", 1)
            outbox.stage("audit", "noted")
        assert await journal.topics() == ["audit", "orders"]
        assert [event.topic async for event in journal.read(after={"orders": 1_501})] == ["orders", "audit"]
        await journal.commit("ledger", {"audit": 1})
        async with await journal.subscribe(after=await journal.cursor("ledger")) as events:
            assert (await events.next_async(1)).topic == "orders"  # type: ignore[union-attr]
        async with await orders.subscribe(after=1_500) as events:
            assert [(await events.next_async(1)).seq for _ in range(2)] == [1_501, 1_502]  # type: ignore[union-attr]
        with pytest.raises(UnknownQueue):
            await journal.queue("nobody", create=False)

    in_loop(home, tmp_path, work)


@pytest.mark.parametrize("home", ["sqlite", "served"])
def test_a_queue_is_used_from_an_event_loop(home: str, tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        emails = await journal.queue("emails", max_attempts=2)
        await emails.push_many(range(4))
        await emails.push("last", key="k")
        first = await emails.take()
        assert first is not None and first.payload == 0 and first.queue == emails
        await first.ack()
        second, third = await emails.take_many(2)
        assert await emails.ack_many([second, third.token]) == 2
        async with emails.receive() as delivery:
            assert delivery is not None and delivery.payload == 3
        aside = await journal.queue("aside")
        assert await emails.move(aside) == 1 and await aside.length() == 1
        async for delivery in aside.receive():
            async with delivery:
                assert delivery.key == "k"
        assert [event async for event in aside] == [] and (await emails.policy).max_attempts == 2
        ticket = await emails.push("answer me", reply=True)
        async with emails.worker(lambda delivery: delivery.payload.upper()):
            assert await asyncio.to_thread(ticket.result, DEADLINE) == "ANSWER ME"

    in_loop(home, tmp_path, work)


def test_a_cancelled_take_leaves_nothing_taken(tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        emails = await journal.queue("emails")
        waiting = asyncio.create_task(emails.take(wait=DEADLINE))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await emails.push(1)
        delivery = await emails.take()
        assert delivery is not None and delivery.attempt == 1

    in_loop("sqlite", tmp_path, work)


def test_a_cancelled_read_holds_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PIECE", 10)
    begun = asyncio.Event()

    async def work(journal: aio.AsyncJournal) -> None:
        topic = journal.topic("orders")
        await topic.append_many([Draft("placed", n) for n in range(100)])
        closed: list[bool] = []
        read = journal._sync.topic("orders").read

        def noted() -> Any:
            try:
                yield from read()
            finally:
                closed.append(True)

        async def some(left: int) -> None:
            async for event in running.in_pieces(noted):
                if event.seq == left:
                    return
                begun.set()
                await asyncio.sleep(0)

        reader = asyncio.create_task(some(0))
        await begun.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        while not closed:
            await asyncio.sleep(0.01)

    in_loop("sqlite", tmp_path, work)


def test_a_thousand_tasks_share_commits(tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        topic = journal.topic("orders")
        measures = journal._sync._core.writer.measures  # type: ignore[attr-defined]
        before = measures.commits
        receipts = await asyncio.gather(*(topic.append("placed", n) for n in range(1_000)))
        assert sorted(receipt.seq for receipt in receipts) == list(range(1, 1_001))
        assert measures.commits - before < 500

    in_loop("sqlite", tmp_path, work)


def test_what_cannot_be_appended_is_said_at_once(tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        with pytest.raises(ConfigError):
            await journal.topic("orders").append("placed", object())
        assert await journal.topics() == []

    in_loop("memory", tmp_path, work)


def test_the_loop_goes_on_while_a_call_waits(tmp_path: Path) -> None:
    async def work(journal: aio.AsyncJournal) -> None:
        emails = await journal.queue("emails")
        take = asyncio.create_task(emails.take(wait=DEADLINE))
        begun = time.monotonic()
        await asyncio.sleep(0.01)
        assert not take.done() and time.monotonic() - begun < DEADLINE
        await emails.push("now")
        delivery = await take
        assert delivery is not None and delivery.payload == "now"

    in_loop("sqlite", tmp_path, work)


def test_a_buffer_is_used_from_an_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        url = tmp_path.as_uri()
        async with await open_producer(url, flush_interval=0.01) as producer:
            await producer.produce([b"one", b"two"])
            await producer.produce([b"three"])
        async with await open_consumer(url, gc_interval=None) as consumer:
            fetching, go_on = threading.Event(), threading.Event()
            fetch = consumer._sync.fetch

            def late(descriptor: Descriptor) -> Batch:
                fetching.set()
                assert go_on.wait(DEADLINE)
                return fetch(descriptor)

            monkeypatch.setattr(consumer._sync, "fetch", late)
            asked = asyncio.create_task(consumer.next_batch())
            await asyncio.to_thread(fetching.wait, DEADLINE)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            go_on.set()
            found = [await consumer.next_batch() for _ in range(3)]
            assert [batch.entries for batch in found if batch] == [[b"one", b"two"], [b"three"]] and found[2] is None
            await consumer.ack_through(1)
        async with await open_consumer(url, gc_interval=None) as consumer:
            assert await consumer.next_batch() is None

    asyncio.run(work())

"""Receiving: one message as a context manager, or one after the other, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from journals import DEADLINE, Place, eventually, on

from penstock import Delivery, Journal
from penstock.errors import Closed, ConfigError, StaleDelivery


def test_one_message_or_none(journal: Journal) -> None:
    queue = journal.queue("mail")
    with queue.receive() as nothing:
        assert nothing is None
    queue.push("a")
    with queue.receive() as delivery:
        assert delivery is not None and delivery.payload == "a"
        assert queue.stats().in_flight == 1
    assert len(queue) == 0


def test_an_exception_gives_the_message_back_with_its_error(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=1)
    queue.push("a")
    with pytest.raises(ValueError), queue.receive():
        raise ValueError("no such mailbox")
    (failure,) = queue.failures()
    assert failure.error == "ValueError: no such mailbox" and "test_queue_receiving" in (failure.traceback or "")


def test_one_after_the_other_until_none_comes(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push_many(range(3))
    handled = []
    for delivery in queue.receive():
        with delivery:
            handled.append(delivery.payload)
    assert handled == [0, 1, 2] and len(queue) == 0
    queue.push("kept")
    for delivery in queue.receive(lease=5, consumer="c"):
        assert delivery.consumer == "c"
        break
    assert queue.stats().in_flight == 1, "iterating settles nothing"


@on("memory", "sqlite")
def test_a_receiver_without_an_end_waits_until_the_journal_is_closed(place: Place) -> None:
    journal = place.open()
    queue = journal.queue("mail")
    handled: list[str] = []
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            for delivery in queue.receive(wait=None):
                with delivery:
                    handled.append(delivery.payload)
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    queue.push("a")
    eventually(lambda: handled == ["a"] and len(queue) == 0)
    journal.close()
    thread.join(DEADLINE)
    assert len(ended) == 1


def test_in_an_event_loop(journal: Journal) -> None:
    queue = journal.queue("mail", max_attempts=1)
    queue.push_many(range(6))
    handled = []

    async def main() -> None:
        async with queue.receive() as first:
            assert first is not None
            handled.append(first.payload)
        with pytest.raises(ValueError):
            async with queue.receive():
                raise ValueError("no")
        async for delivery in queue.receive(wait=0.001):
            async with delivery:
                handled.append(delivery.payload)
                if len(handled) == 4:
                    break
        async with queue.receive() as nothing:
            assert nothing is not None and nothing.payload == 5
            await nothing.nack_async(error="later", dead=True)
        async with queue.receive() as nothing:
            assert nothing is None

    asyncio.run(main())
    assert handled == [0, 2, 3, 4] and [one.error for one in queue.failures()] == ["ValueError: no", "later"]


def test_deliveries_are_acknowledged_by_awaiting(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push_many(range(20))

    async def main() -> None:
        deliveries = await queue.take_many_async(20)
        await asyncio.gather(*(one.ack_async() for one in deliveries))
        with pytest.raises(StaleDelivery):
            await deliveries[0].ack_async()

    asyncio.run(main())
    assert len(queue) == 0


def test_a_cancelled_block_gives_the_message_back_uncounted(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push("a")

    async def main() -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with queue.receive():
                inside.set()
                await asyncio.sleep(DEADLINE)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    delivery = queue.take()
    assert delivery is not None and delivery.attempt == 1


def test_a_journal_is_closed_by_async_with_while_its_workers_use_the_loop(place: Place) -> None:
    async def main() -> Journal:
        async with place.open() as journal:
            queue = journal.queue("mail")
            begun = asyncio.Event()

            async def handle(delivery: Delivery) -> None:
                begun.set()
                await asyncio.sleep(0.01)

            queue.worker(handle).start()
            await queue.submit("a")
            await begun.wait()
        return journal

    assert asyncio.run(main()).closed
    assert len(place.open().queue("mail")) == 0, "what was in hand was finished"


@on("memory")
def test_bad_options_are_refused(journal: Journal) -> None:
    queue = journal.queue("mail")
    with pytest.raises(ConfigError), queue.receive(wait=-1):
        pass
    with pytest.raises(ConfigError):
        list(queue.receive(lease=-1))

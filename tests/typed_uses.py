"""Right and wrong calls of the public surface, for a type checker: `test_arguments.py` runs mypy over this file.

Every wrong call is marked with the error it must give: one that a type checker would accept makes the mark superfluous,
which is an error too.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import msgspec

import penstock
import penstock.aio
from penstock import Delivery, Journal, Retry


def right(journal: Journal) -> None:
    topic = journal.topic("orders")
    first = topic.append("placed", {"n": 1}, key="ada", scope="eu", dedup="1", headers={"a": "b"}, expect=0)
    topic.append("paid", cause=first, correlation="c", occurred_at=datetime.now(UTC))
    topic.submit("paid", cause=first.id).result()
    topic.try_submit("paid", {"n": 2}, key=None)
    topic.configure(max_age=timedelta(days=1), max_events=None, by_key=True, indexed=False, verified=False)
    topic.subscribe(key_prefix="a", kind=["paid"], where="payload.n > 1")
    topic.worker("c", print, key="ada", restarts=3)
    grave = journal.queue("mail.dead")
    queue = journal.queue("mail", lease=30, max_attempts=5, retry=Retry.fixed(5), dead_letter=grave, ttl=timedelta(1))
    journal.queue("mail", create=False)
    queue.configure(retry=None, dead_letter="mail.dead", mode="work", retention="hold", rate="10/s", priority=False)
    queue.push({"to": "ada"}, delay=5, max_attempts=1)
    queue.submit({"to": "ada"}, not_before=datetime.now(UTC), kind="mail")
    queue.push_many([1, 2], priority=3)
    queue.submit(3, priority="front")
    with journal.transaction() as tx:
        tx.append(topic, "placed", {"n": 3}, key="bob")
        tx.push(queue, {"to": "bob"}, dedup="x")
        tx.push_many("mail", [1], headers={"a": "b"})
    with journal.outbox() as outbox:
        outbox.stage("orders", "placed", {}, key="eve", cause=0)
    with queue.receive(wait=1, group="g", lease=timedelta(minutes=1)) as delivery:
        if delivery:
            print(delivery.payload)
    for one in queue.receive(wait=None, newest=True):
        with one:
            print(one.payload)
    taken: Delivery | None = queue.take(wait=1)
    if taken is not None:
        queue.ack_many([taken, *queue.take_many(3)])


class Email(msgspec.Struct):
    to: str


class Reading(TypedDict):
    degrees: float


def right_with_types(journal: Journal) -> str:
    emails = journal.queue("mail", payload=Email, lease=30)
    emails.push(Email("ada"), key="ada")
    emails.push_many([Email("ada"), penstock.Draft("mail", Email("bob"))])

    def handle(delivery: Delivery[Email]) -> None:
        print(delivery.payload.to.upper())

    emails.worker(handle)
    readings = journal.topic("readings", payload=Reading)
    readings.append("read", {"degrees": 20.5})
    warmest = max(event.payload["degrees"] for event in readings.read())
    with readings.subscribe() as subscription:
        event = subscription.next(1)
        if event is not None:
            warmest += event.payload["degrees"]
    for delivery in emails.receive():
        with delivery:
            return delivery.payload.to
    journal.topic("t", payload=list[int]).append("k", [1])
    queue: penstock.Queue = journal.queue("mail")
    queue.push(3)
    return str(warmest)


async def right_with_types_in_a_loop(journal: penstock.aio.AsyncJournal) -> str:
    emails = await journal.queue("mail", payload=Email)
    await emails.push(Email("ada"))
    readings = journal.topic("readings", payload=Reading)
    async for event in readings.read():
        print(event.payload["degrees"] + 1.0)
    taken = await emails.take()
    return "" if taken is None else taken.payload.to


def wrong_with_types(journal: Journal) -> None:
    emails = journal.queue("mail", payload=Email)
    emails.push({"to": "ada"})  # type: ignore[call-overload]
    taken = emails.take()
    if taken is not None:
        taken.payload.from_  # type: ignore[attr-defined]  # noqa: B018
    readings = journal.topic("readings", payload=Reading)
    readings.append("read", {"degrees": "hot"})  # type: ignore[arg-type]
    for event in readings.read():
        event.payload["celsius"]  # type: ignore[typeddict-item]


async def right_in_a_loop(url: str) -> None:
    async def handle(delivery: Delivery) -> None:
        await delivery.ack_async()

    async with penstock.open(url) as journal:
        queue = journal.queue("mail")
        async with queue.receive(wait=1) as delivery:
            if delivery is not None:
                await delivery.nack_async(error=ValueError("no"), delay=5)
        async for one in queue.receive():
            async with one:
                print(one.payload)
        async with queue.worker(handle) as worker:
            await worker.stop_async()
        await queue.worker(handle).run_async()


def wrong(journal: Journal) -> None:
    topic, queue = journal.topic("orders"), journal.queue("mail")
    topic.append("placed", kye="ada")  # type: ignore[call-arg]
    topic.append("placed", key=1)  # type: ignore[arg-type]
    topic.submit("placed", expects=1)  # type: ignore[call-arg]
    topic.subscribe(keys="ada")  # type: ignore[call-arg]
    topic.configure(max_ages=1)  # type: ignore[call-arg]
    topic.configure(by_key="yes")  # type: ignore[arg-type]
    journal.queue("mail", max_attempt=3)  # type: ignore[call-arg]
    journal.queue("mail", mode="fan")  # type: ignore[arg-type]
    queue.configure(leases=3)  # type: ignore[call-arg]
    queue.configure(retry=b"5s")  # type: ignore[arg-type]
    queue.submit(1, priorty=3)  # type: ignore[call-arg]
    queue.push_many([1], delays=3)  # type: ignore[call-arg]
    queue.receive(waits=1)  # type: ignore[call-arg]
    with queue.receive() as delivery:
        print(delivery.payload)  # type: ignore[union-attr]
    with journal.transaction() as tx:
        tx.append(topic, "placed", kye="bob")  # type: ignore[call-arg]
        tx.push(queue, 1, kinds="x")  # type: ignore[call-arg]
    with journal.outbox() as outbox:
        outbox.stage("orders", "placed", kye="eve")  # type: ignore[call-arg]


if __name__ == "__main__":
    right(penstock.open("http://127.0.0.1:7367", token="…"))
    asyncio.run(right_in_a_loop("shop.db"))

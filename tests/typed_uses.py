"""Right and wrong calls of the public surface, for a type checker: `test_arguments.py` runs mypy over this file.

Every wrong call is marked with the error it must give: one that a type checker would accept makes the mark superfluous,
which is an error too.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import penstock
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
    queue.configure(retry="5s")  # type: ignore[arg-type]
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

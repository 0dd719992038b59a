"""Who writes the orders: each producer is a process, and notes in a file of its own what it has sold.

python -m examples.main_job.producers journal shop.db   3 1000 20 raw/3.jsonl
python -m examples.main_job.producers buffer  file:///… 4 1000 20 raw/4.jsonl
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft
from penstock.buffer import Producer

PRODUCTS = ("kettle", "lamp", "chair", "clock", "rug")
OPENING = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
OPEN_FOR = timedelta(hours=8)
CUSTOMERS = 200
BATCH = 25

Order = dict[str, Any]


def sell(number: int, count: int) -> Iterator[list[Order]]:
    """A day's orders of one producer, in small batches."""
    chance = random.Random(number)
    orders = []
    for line in range(count):
        time_of_day = OPENING + OPEN_FOR * (line + chance.random()) / (count + 1)
        order = {
            "number": f"{number}-{line}",
            "customer": f"customer-{chance.randrange(CUSTOMERS)}",
            "product": chance.choice(PRODUCTS),
            "cents": chance.randrange(500, 20_000),
            "at": time_of_day.isoformat(),
        }
        orders.append(order)
        if len(orders) == BATCH or line == count - 1:
            yield orders
            orders = []


def draft(order: Order) -> Draft:
    """An order as an event; its number makes a second attempt to append it harmless."""
    body = {name: order[name] for name in ("number", "product", "cents")}
    at = datetime.fromisoformat(order["at"])
    return Draft("order.placed", body, key=order["customer"], occurred_at=at, dedup=order["number"])


def to_journal(url: str, batches: Iterator[list[Order]]) -> Iterator[list[Order]]:
    """Appends to the journal; every fifth answer is lost, or so, and the batch is sent again."""
    with penstock.open(url) as journal:
        orders = journal.topic("orders")
        for at, batch in enumerate(batches):
            yield batch
            orders.append_many([draft(order) for order in batch])
            if at % 5 == 0:
                orders.append_many([draft(order) for order in batch])


def to_buffer(url: str, batches: Iterator[list[Order]]) -> Iterator[list[Order]]:
    """Writes to object storage, as a machine does that cannot reach the journal."""
    with Producer(url) as producer:
        for batch in batches:
            yield batch
            producer.produce([json.dumps(order).encode() for order in batch])


def main() -> None:
    way, url, number, count, seconds, raw = sys.argv[1:]
    write = to_buffer if way == "buffer" else to_journal
    pause = float(seconds) * BATCH / int(count)
    with Path(raw).open("w", encoding="utf-8") as file:
        for batch in write(url, sell(int(number), int(count))):
            for order in batch:
                file.write(json.dumps(order) + "\n")
            file.flush()  # noted before it is sent: the proof knows of every order, whatever happens to it
            time.sleep(pause)


if __name__ == "__main__":
    main()

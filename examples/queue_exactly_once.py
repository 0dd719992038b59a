"""Consume, transform, produce: two queues and a log that always agree, whatever crashes in between.

python examples/queue_exactly_once.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(Path(folder) / "shop.db") as journal:
        paid, shipping = journal.queue("paid"), journal.queue("shipping")
        paid.push_many([{"order": n} for n in range(5)], kind="order.paid")
        while (delivery := paid.take()) is not None:
            try:
                with journal.transaction() as tx:
                    tx.push(shipping, {"parcel": delivery.payload["order"]}, key="depot-1", cause=delivery)
                    tx.append("books", "order.booked", delivery.payload, key=str(delivery.payload["order"]))
                    tx.ack(delivery)
                    if delivery.payload["order"] == 3 and delivery.attempt == 1:
                        raise RuntimeError("power cut, or so")
            except RuntimeError as error:
                print(f"order {delivery.payload['order']}: {error}; nothing of it was kept")
                delivery.nack(error=str(error))
        print("parcels:", [event.payload["parcel"] for event in shipping])
        print("booked: ", [event.payload["order"] for event in journal.topic("books").read()])


if __name__ == "__main__":
    main()

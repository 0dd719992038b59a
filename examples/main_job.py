"""The main job: producers append orders, a worker follows them and keeps the books, and the end proves them right.

python -m examples.main_job
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import penstock
from penstock import Draft, Event

PRODUCERS = 4
BATCHES = 25
PER_BATCH = 40
PRODUCTS = ("kettle", "lamp", "chair", "clock", "rug")


def produce(topic: penstock.Topic, number: int) -> None:
    """A shop's front end: batches of orders, each appended durably."""
    chance = random.Random(number)
    for batch in range(BATCHES):
        orders = []
        for line in range(PER_BATCH):
            order = {"product": chance.choice(PRODUCTS), "cents": chance.randrange(500, 20_000)}
            orders.append(
                Draft("order.placed", order, key=f"customer-{chance.randrange(50)}", dedup=f"{number}-{batch}-{line}")
            )
        topic.append_many(orders)
        topic.append_many(orders)  # a retry after a lost answer: the dedup keys make it harmless


class Books:
    """Revenue per product, kept by a worker that follows the topic."""

    def __init__(self) -> None:
        self.revenue: Counter[str] = Counter()
        self.events = 0

    def handle(self, events: list[Event]) -> None:
        for event in events:
            self.revenue[event.payload["product"]] += event.payload["cents"]
        self.events += len(events)


def chart(revenue: Counter[str]) -> str:
    most = max(revenue.values())
    rows = []
    for place, (product, cents) in enumerate(revenue.most_common()):
        width, y = 420 * cents / most, 40 + 34 * place
        rows.append(
            f'<text x="8" y="{y + 17}">{product}</text><rect x="80" y="{y}" width="{width:.0f}" height="24" rx="3"/>'
            f'<text x="{88 + width:.0f}" y="{y + 17}">{cents / 100:,.2f}</text>'
        )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="620" height="230" font-family="sans-serif" font-size="14">'
        "<style>rect{fill:#2b7a78}text{fill:#222}</style>"
        '<text x="8" y="22" font-weight="bold">Revenue by product</text>' + "".join(rows) + "</svg>"
    )


def main() -> None:
    out = Path("out")
    out.mkdir(exist_ok=True)
    say = sys.stdout.write
    store = out / f"shop-{time.time_ns()}.db"
    count = PRODUCERS * BATCHES * PER_BATCH
    say(f"A journal in {store}; {PRODUCERS} producers append {count:,} orders, each batch twice.\n")
    start = time.perf_counter()
    with penstock.open(store) as journal:
        orders = journal.topic("orders")
        books = Books()
        worker = orders.worker("books", books.handle, batch=500).start()
        producers = [threading.Thread(target=produce, args=(orders, number)) for number in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
        while orders.lag("books"):
            time.sleep(0.01)
        worker.stop()
        truth: Counter[str] = Counter()
        for event in orders.read():
            truth[event.payload["product"]] += event.payload["cents"]
        assert len(orders) == PRODUCERS * BATCHES * PER_BATCH, "an order was lost or doubled"
        assert books.revenue == truth, "the books do not balance"
        took = time.perf_counter() - start
        say(
            f"{len(orders):,} orders stored and followed in {took:.1f} s; none lost, none twice; the books balance:\n\n"
        )
        most = max(truth.values())
        for product, cents in truth.most_common():
            say(f"  {product:<8} {'█' * round(40 * cents / most):<41} {cents / 100:>12,.2f}\n")
        description = journal.describe()
        say(f"\nThe store holds {description.size_bytes / 1024:,.0f} KiB. ")
    picture = out / "revenue.svg"
    picture.write_text(chart(truth), encoding="utf-8")
    say(f"The picture is in {picture}.\nNext: docs/quickstart.md\n")


if __name__ == "__main__":
    main()

"""An order's life as events: decisions guarded by `expect=`, a projection, a reactor, and the story drawn as a graph.

Run it: `python examples/entity_orders.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

import penstock
from penstock import Draft, Event, Projection, Topic, event, on
from penstock.errors import Conflict


@event("order.placed")
class Placed(msgspec.Struct):
    customer: str
    total: int


@event("order.paid")
class Paid(msgspec.Struct):
    amount: int


@event("order.shipped")
class Shipped(msgspec.Struct):
    parcel: str


class Order(Projection):
    """An order, as its events leave it."""

    customer: str = ""
    owed: int = 0
    status: str = "unknown"

    @on(Placed)
    def placed(self, event: Placed) -> None:
        self.customer, self.owed, self.status = event.customer, event.total, "placed"

    @on(Paid)
    def paid(self, event: Paid) -> None:
        self.owed -= event.amount
        self.status = "paid" if self.owed <= 0 else "partly paid"

    @on(Shipped)
    def shipped(self, event: Shipped) -> None:
        self.status = "shipped"


def ship(event: Event) -> Draft | None:
    """Reacts to a payment that settles an order: to the newest event of the order, whose state is what it left."""
    orders = penstock.current().topic("orders")
    if event.kind == "order.paid" and event.key is not None and orders.position_of(event.key) == event.seq:
        order = orders.project(Order, event.key)
        if order is not None and order.status == "paid":
            return Draft(Shipped(f"parcel for {order.customer}"), key=event.key)
    return None


def pay(orders: Topic, key: str, amount: int) -> None:
    """Decides on what it saw; if another writer was faster, it looks again."""
    while True:
        generation = orders.position_of(key)
        order = orders.project(Order, key)
        if order is None or order.owed < amount:
            raise ValueError(f"{key} does not owe {amount}")
        try:
            orders.append(Paid(amount), key=key, expect=generation, cause=orders.get(generation))
            return
        except Conflict:
            continue


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(Path(folder) / "shop.db") as journal:
        with penstock.use(journal):
            orders = journal.topic("orders")
            placed = orders.append(Placed("ada", 40), key="order-1", expect=0)
            pay(orders, "order-1", 15)
            pay(orders, "order-1", 25)
            with orders.watch(Order, "order-1") as states, orders.react("shipping", lambda one: _within(journal, one)):
                for state in states:
                    print(state)
                    if state.status == "shipped":
                        break
        print(journal.graph(placed.id))


def _within(journal: penstock.Journal, event: Event) -> Draft | None:
    with penstock.use(journal):  # the reactor has a thread of its own
        return ship(event)


if __name__ == "__main__":
    main()

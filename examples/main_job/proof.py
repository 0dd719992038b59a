"""Everything once more, from what the producers noted in their files, and compared with what the journal holds.

Nothing of the pipeline is used here: the sums are made by adding, order by order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset

import penstock
from examples.main_job.chart import Totals
from examples.main_job.pipeline import LARGE, Customer


class Check(NamedTuple):
    """A fact that must hold."""

    claim: str
    holds: bool
    found: str


def raw_orders(folder: Path) -> list[dict[str, Any]]:
    """The orders as the producers noted them."""
    return [
        json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()
    ]


def half_hour(at: str) -> str:
    """The window an order belongs to."""
    time = datetime.fromisoformat(at)
    return f"{time:%Y-%m-%d %H}:{'30' if time.minute >= 30 else '00'}"


def windows(orders: Iterable[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Orders and cents by window and product."""
    counts: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for order in orders:
        key = f"{half_hour(order['at'])} {order['product']}"
        counts[key] += 1
        cents[key] += order["cents"]
    return {key: (counts[key], cents[key]) for key in counts}


def newest(topic: penstock.Topic) -> dict[str, dict[str, Any]]:
    """The newest payload of every key."""
    return {str(event.key): event.payload for event in topic.read()}


def totals(journal: penstock.Journal, raw: Path, redriven: int) -> Totals:
    """The numbers that the picture compares."""
    orders = raw_orders(raw)
    return Totals(
        sold=len(orders),
        stored=len(journal.topic("orders")),
        counted=sum(one["orders"] for one in newest(journal.topic("revenue")).values()),
        large=sum(order["cents"] >= LARGE for order in orders),
        # Positions are never used twice, so the newest one says how many messages there ever were.
        pushed=journal.topic("alerts").latest - redriven,
        handled=len(journal.topic("handled")),
    )


def prove(journal: penstock.Journal, raw: Path, lake: Path, redriven: int) -> Iterator[Check]:
    """Every claim, and whether it holds."""
    orders = raw_orders(raw)
    stored = list(journal.topic("orders").read())
    wrote = sorted((order["number"], order["customer"], order["product"], order["cents"]) for order in orders)
    holds = sorted((e.payload["number"], str(e.key), e.payload["product"], e.payload["cents"]) for e in stored)
    yield Check("every order sold is in the journal, once", wrote == holds, f"{len(wrote):,} and {len(holds):,}")

    expected = windows(orders)
    found = {key: (one["orders"], one["cents"]) for key, one in newest(journal.topic("revenue")).items()}
    counted = sum(count for count, _ in found.values())
    yield Check(
        "revenue: every order is counted in its window, once",
        found == expected,
        f"{counted:,} orders in {len(found)} windows",
    )

    bought: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for order in orders:
        bought[order["customer"]] += 1
        spent[order["customer"]] += order["cents"]
    customers = {key: {"orders": bought[key], "cents": spent[key]} for key in bought}
    yield Check(
        "customers: every state is the sum of its orders",
        newest(journal.topic("customers")) == customers,
        f"{len(customers)} customers",
    )
    same = all(
        (state := journal.topic("orders").project(Customer, key)) is not None
        and {"orders": state.orders, "cents": state.cents} == customer
        for key, customer in customers.items()
    )
    yield Check("customers: the class gives the same states in-process", same, f"{len(customers)} customers")

    large = sorted(order["number"] for order in orders if order["cents"] >= LARGE)
    handled = list(journal.topic("handled").read())
    pushed = totals(journal, raw, redriven).pushed
    yield Check("alerts: one for every large order, pushed once", pushed == len(large), f"{pushed:,} pushed")
    yield Check(
        "alerts: every one was handled, once",
        sorted(event.payload["number"] for event in handled) == large,
        f"{len(handled):,} handled, {redriven} of them after a redrive",
    )
    numbers = {event.id: event.payload["number"] for event in stored}
    linked = all(numbers.get(str(event.correlation_id)) == event.payload["number"] for event in handled)
    yield Check("alerts: each leads back to its own order", linked, "by correlation id")
    left = journal.queue("alerts").stats()
    yield Check(
        "the queue and its dead letters are empty",
        (left.ready, left.in_flight, left.delayed, left.failed, len(journal.queue("alerts.dead"))) == (0, 0, 0, 0, 0),
        "nothing is left",
    )

    files = pyarrow.dataset.dataset(lake / "orders", format="parquet", partitioning="hive")
    positions = files.to_table(columns=["seq"])["seq"].to_pylist()
    yield Check(
        "sealed history is plain Parquet, without gap or double",
        sorted(positions) == list(range(1, len(positions) + 1)) and bool(positions),
        f"{len(positions):,} of {len(stored):,} events",
    )

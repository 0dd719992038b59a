"""The pipeline over the orders. Run it with `penstock run examples/main_job/pipeline.py`."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import penstock
from penstock.spark import buffer_at, flow, project, queue, topic

LARGE = 19_000
"""Cents from which an order is looked at by a person."""
BATCH = int(os.environ.get("ORDERS_PER_BATCH", "2000"))

ORDERS = topic("orders", maxOffsetsPerTrigger=BATCH)
PARSED = topic("orders", maxOffsetsPerTrigger=BATCH, payloadSchema="number STRING, product STRING, cents BIGINT")


SOLD = "number STRING, customer STRING, product STRING, cents BIGINT, at TIMESTAMP"


class Customer(penstock.Projection):
    """The purchases of a customer."""

    orders: int = 0
    cents: int = 0

    @penstock.on("order.placed")
    def placed(self, payload: dict[str, int]) -> None:
        self.orders += 1
        self.cents += payload["cents"]


@flow(source=buffer_at(os.environ.get("SHOP_BUFFER", "file:///tmp/shop-buffer")), target=topic("orders"))
def intake(entries: DataFrame) -> DataFrame:
    """Orders that come through the buffer become events like the others."""
    sold = entries.select(F.from_json(F.col("entry").cast("string"), SOLD).alias("sold")).select("sold.*")
    return sold.select(
        F.lit("order.placed").alias("kind"),
        F.col("customer").alias("key"),
        F.struct("number", "product", "cents").alias("payload"),
        F.col("at").alias("occurred_at"),
    )


@flow(source=PARSED, target=topic("revenue"), output_mode="update")
def revenue(orders: DataFrame) -> DataFrame:
    """Orders and cents of every product in every half hour; a window that changes is written again, under its key."""
    sums = (
        orders.withWatermark("occurred_at", "1 day")
        .groupBy(F.window("occurred_at", "30 minutes").start.alias("start"), "product")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
    start = F.date_format("start", "yyyy-MM-dd HH:mm").alias("start")
    return sums.select(
        F.lit("window.counted").alias("kind"),
        F.concat_ws(" ", start, "product").alias("key"),
        F.struct(start, "product", "orders", "cents").alias("payload"),
    )


@flow(source=ORDERS, target=topic("customers"))
def customers(orders: DataFrame) -> DataFrame:
    """The state of every customer who has ordered: the same class, and the same states, as in the program itself."""
    states = project(orders, Customer)
    return states.select(F.lit("customer.changed").alias("kind"), "key", F.col("state").alias("payload"))


@flow(source=PARSED, target=queue("alerts"))
def alerts(orders: DataFrame) -> DataFrame:
    """A message for every large order, linked to it as its cause."""
    large = orders.where(F.col("cents") >= LARGE)
    return large.select(
        F.lit("order.large").alias("kind"),
        F.struct("number", "cents").alias("payload"),
        F.col("id").alias("cause"),
    )

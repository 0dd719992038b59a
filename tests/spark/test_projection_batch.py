"""Projections folded on Spark: the same class, the same result as in-process."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import PySparkException

import penstock
import penstock.spark
from penstock import Draft, Projection, event, on, upcast
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Balance(Projection):
    amount: int = 0
    highest: float | None = None
    kinds: list[str] = []
    by_day: dict[str, int] = {}

    @on("deposited")
    def deposit(self, payload: Any) -> None:
        self.amount += payload["amount"]
        self.highest = max(self.highest or 0.0, float(self.amount))
        self.by_day[payload["day"]] = self.by_day.get(payload["day"], 0) + 1

    @on("withdrawn")
    def withdraw(self, payload: Any) -> None:
        self.amount -= payload["amount"]
        self.kinds = [*self.kinds[-2:], "withdrawn"]


@event("spark.priced", version=2)
class Priced(msgspec.Struct):
    price: int
    currency: str


@upcast("spark.priced", version=1)
def in_euros(payload: Any) -> Any:
    return {**payload, "currency": "EUR"}


class Prices(Projection, version=3):
    total: int = 0
    currencies: list[str] = []
    seen_at: datetime | None = None
    last: int = 0

    @on(Priced)
    def priced(self, price: Priced) -> None:
        self.total += price.price
        self.currencies = sorted({*self.currencies, price.currency})

    @on("closed")
    def closed(self, event: Any) -> None:
        self.seen_at = event.occurred_at
        self.last = event.seq


def events_of(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("penstock").options(url=url, topic="accounts").load()


def fill(journal: penstock.Journal, count: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    drafts = []
    for _ in range(count):
        kind = chance.choice(["deposited", "deposited", "withdrawn", "ignored"])
        payload = {"amount": chance.randrange(100), "day": chance.choice("abc")}
        drafts.append(Draft(kind, payload, key=None if chance.random() < 0.05 else f"k{chance.randrange(60)}"))
    for start in range(0, count, 97):
        journal.topic("accounts").append_many(drafts[start : start + 97])


def test_every_entity_has_the_state_that_project_gives(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    fill(journal, 2000)
    topic = journal.topic("accounts")
    frame = penstock.spark.project(events_of(spark, url), Balance)
    assert frame.columns == ["key", "generation", "state"]
    assert frame.schema["state"].dataType.simpleString() == (
        "struct<amount:bigint,highest:double,kinds:array<string>,by_day:map<string,bigint>>"
    )
    rows = frame.collect()
    assert sorted(row.key for row in rows) == sorted({event.key for event in topic.read() if event.key is not None})
    for row in rows:
        state = topic.project(Balance, row.key)
        assert row.generation == topic.position_of(row.key)
        assert row.state.asDict() == {
            "amount": state.amount,
            "highest": state.highest,
            "kinds": state.kinds,
            "by_day": state.by_day,
        }


def test_typed_events_upcasters_and_whole_events_reach_handlers_on_workers(
    spark: SparkSession, url: str, journal: penstock.Journal
) -> None:
    topic = journal.topic("accounts")
    topic.append("spark.priced", {"price": 3}, key="a")
    topic.append(Priced(price=4, currency="USD"), key="a")
    topic.append("closed", None, key="a", occurred_at=datetime(2026, 1, 2, tzinfo=UTC))
    topic.append(Priced(price=5, currency="EUR"), key="b")
    rows = {row.key: row for row in penstock.spark.project(events_of(spark, url), Prices).collect()}
    for key, row in rows.items():
        state = topic.project(Prices, key)
        assert row.generation == topic.position_of(key)
        assert (row.state.total, row.state.currencies) == (state.total, state.currencies)
        assert row.state.last == state.last
    assert rows["a"].state.seen_at.astimezone(UTC) == datetime(2026, 1, 2, tzinfo=UTC)


def test_a_handler_that_fails_names_the_event(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    good, bad = {"amount": 1, "day": "a"}, {"amount": 1}
    journal.topic("accounts").append_many([Draft("deposited", payload, key="k") for payload in (good, bad)])
    with pytest.raises(PySparkException, match=r"in projection handler Balance\.deposit, for event 2"):
        penstock.spark.project(events_of(spark, url), Balance).collect()
    with pytest.raises(ConfigError, match="no column 'seq'"):
        penstock.spark.project(events_of(spark, url).drop("seq"), Balance)
    with pytest.raises(ConfigError, match=r"derived from penstock\.Projection"):
        penstock.spark.project(events_of(spark, url), dict)  # type: ignore[arg-type]

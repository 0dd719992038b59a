"""SQL over a topic, hot and sealed, beside DuckDB alone on the same events in Parquet.

    python -m benchmarks sql              # 1 million events, about a minute
    python -m benchmarks sql 10000000

Events of about 80 bytes of JSON, five kinds, 10,000 keys, on SQLite; the Parquet files are those of the sealed topic. Every query opens a
connection of its own on both sides. CPU time of all threads, the median of rounds in which all three take turns: DuckDB alone ÷ ours.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import duckdb
import pyarrow as pa

import penstock
from benchmarks.harness import Table, versions
from penstock import Draft, Journal
from penstock.core.journal.sealed.sealing import seal_topic

ROUNDS = 5
BATCH = 10_000
KINDS = ("order.placed", "order.paid", "order.shipped", "order.returned", "order.closed")
SCANS = {
    "count by kind": "select kind, count(*) from orders group by 1",
    "the ten largest keys": "select key, count(*) as n from orders group by 1 order by n desc limit 10",
    "events by minute": "select date_trunc('minute', recorded_at) as at, count(*) from orders group by 1",
    "sum of a payload field by kind": "select kind, sum((payload->>'total')::double) from orders group by 1",
    "longest payload": "select max(length(payload)) from orders",
    "all columns of one kind in 100": "select count(distinct columns(*)::text) from orders where seq % 100 = 0",
}
LOOK_UPS = {
    "one key": "select count(*), max(seq) from orders where key = 'customer-77'",
    "1,000 positions": "select count(*), min(kind) from orders where seq between {middle} and {middle} + 999",
}


def drafts(start: int) -> Iterator[Draft]:
    chance = random.Random(start)
    for number in range(start, start + BATCH):
        customer = f"customer-{chance.randrange(10_000)}"
        payload = {
            "customer": customer,
            "total": chance.randrange(1_000_000) / 100,
            "country": chance.choice(("de", "fr")),
        }
        yield Draft(KINDS[number % 5], payload, key=customer)


def fill(journal: Journal, events: int) -> None:
    topic = journal.topic("orders")
    batches = [list(drafts(number * BATCH)) for number in range(min(20, events // BATCH))]
    for batch in islice(cycle(batches), events // BATCH):
        topic.append_many(batch)
    journal.maintain()


def seconds(work: Callable[[], pa.Table]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    notes = f"{(__doc__ or '').strip()}\n\n{events:,} events; {versions('duckdb')}."
    table = Table("sql", "SQL", notes)
    with tempfile.TemporaryDirectory() as place, penstock.open(f"{place}/hot.db") as hot:
        fill(hot, events)
        hot.backup(f"{place}/sealed.db")
        lake = Path(place) / "lake"
        with penstock.open(f"{place}/sealed.db") as sealed:
            seal_topic(sealed._backend.store("sealing", "").core, "orders", lake=str(lake), through=events)
            measure(table, hot, sealed, f"{lake}/orders/*/*.parquet", events)
    table.save()


def measure(table: Table, hot: Journal, sealed: Journal, files: str, events: int) -> None:
    def alone(query: str) -> pa.Table:
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = 'UTC'; CREATE VIEW orders AS SELECT * FROM '{files}'")
            return connection.sql(query).to_arrow_table()

    for work, text in {**SCANS, **LOOK_UPS}.items():
        query = text.format(middle=events // 2)
        assert alone(query).num_rows == hot.sql(query).num_rows == sealed.sql(query).num_rows
        rounds = [
            (seconds(lambda: alone(query)), seconds(lambda: sealed.sql(query)), seconds(lambda: hot.sql(query)))  # noqa: B023
            for _ in range(ROUNDS)
        ]
        for name, at, goal in (("sealed", 1, 0.7), ("hot", 2, 0.5)):
            ratio = statistics.median(one[0] / one[at] for one in rounds)
            took = statistics.median(one[at] for one in rounds)
            table.row(
                f"{work}, {name}", f"{ratio:.2f} × DuckDB ({took * 1000:,.0f} ms of CPU)", f"≥ {goal} ×", ratio >= goal
            )


if __name__ == "__main__":
    main()

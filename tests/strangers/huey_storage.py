"""A storage of huey on a journal: tasks in a queue with priorities, the rest in tables beside it, all through `tx`.

It is here for huey's own suite, and shows how little `tx.sql` and a queue need. huey takes a task off its storage
before it runs: a storage cannot give back what a killed worker had.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from huey.constants import EmptyData
from huey.storage import BaseStorage

import penstock

TABLES = """
create table if not exists huey_values (name text, key text, value blob, primary key (name, key));
create table if not exists huey_counters (name text, key text, value integer, primary key (name, key));
create table if not exists huey_schedule (id integer primary key, name text, at text, data blob);
create index if not exists huey_schedule_at on huey_schedule (name, at, id)
"""


def text(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key


class PenstockStorage(BaseStorage):
    priority = True

    def __init__(self, name: str = "huey", *, journal: penstock.Journal, **options: Any) -> None:
        super().__init__(name)
        self.journal = journal
        self.queue = journal.queue(f"huey.{name}", priority=True)
        self._sql(TABLES)

    def _sql(self, statement: str, *parameters: Any) -> list[Any]:
        with self.journal.transaction() as tx:
            return tx.sql(statement, parameters)

    # ── tasks ──
    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        self.queue.push(data, priority=int(priority or 0))

    def dequeue(self) -> bytes | None:
        with self.journal.transaction() as tx:
            if (delivery := tx.take(self.queue)) is None:
                return None
            tx.ack(delivery)
        return delivery.payload

    def queue_size(self) -> int:
        return len(self.queue)

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        return [event.payload for event in self.queue.peek(limit or len(self.queue))]

    def flush_queue(self) -> None:
        self.queue.purge()

    # ── schedule ──
    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        self._sql("insert into huey_schedule (name, at, data) values (?, ?, ?)", self.name, ts.isoformat(), data)

    def read_schedule(self, ts: datetime) -> list[bytes]:
        due, values = "name = ? and at <= ?", (self.name, ts.isoformat())
        with self.journal.transaction() as tx:
            found = tx.sql(f"select data from huey_schedule where {due} order by at, id", values)
            tx.sql(f"delete from huey_schedule where {due}", values)
        return [data for (data,) in found]

    def schedule_size(self) -> int:
        return self._sql("select count(*) from huey_schedule where name = ?", self.name)[0][0]

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        asked = "select data from huey_schedule where name = ? order by at, id limit ?"
        return [data for (data,) in self._sql(asked, self.name, limit or -1)]

    def flush_schedule(self) -> None:
        self._sql("delete from huey_schedule where name = ?", self.name)

    # ── values ──
    def put_data(self, key: bytes | str, value: bytes, is_result: bool = False) -> None:
        self._sql("insert or replace into huey_values values (?, ?, ?)", self.name, text(key), value)

    def peek_data(self, key: bytes | str) -> Any:
        found = self._sql("select value from huey_values where name = ? and key = ?", self.name, text(key))
        return found[0][0] if found else EmptyData

    def pop_data(self, key: bytes | str) -> Any:
        statement = "delete from huey_values where name = ? and key = ? returning value"
        found = self._sql(statement, self.name, text(key))
        return found[0][0] if found else EmptyData

    def has_data_for_key(self, key: bytes | str) -> bool:
        return self.peek_data(key) is not EmptyData

    def put_if_empty(self, key: bytes | str, value: bytes, ttl: int | None = None) -> bool:
        if ttl is not None:
            raise NotImplementedError("no ttl")
        statement = "insert into huey_values values (?, ?, ?) on conflict do nothing returning 1"
        return bool(self._sql(statement, self.name, text(key), value))

    def result_store_size(self) -> int:
        return len(self.result_items())

    def result_items(self) -> dict[str, bytes]:
        return dict(self._sql("select key, value from huey_values where name = ?", self.name))

    def flush_results(self) -> None:
        self._sql("delete from huey_values where name = ?", self.name)

    # ── counters ──
    def incr(self, key: str, amount: int = 1) -> int:
        statement = (
            "insert into huey_counters values (?, ?, ?) on conflict do update set value = value + excluded.value "
            "returning value"
        )
        return self._sql(statement, self.name, key, amount)[0][0]

    def delete_counter(self, key: str) -> None:
        self._sql("delete from huey_counters where name = ? and key = ?", self.name, key)

    def flush_counters(self) -> None:
        self._sql("delete from huey_counters where name = ?", self.name)

"""What a relay promises: every committed row is in the journal once, whatever ends and whenever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from outbox.databases import Database
from penstock import outbox, pipelines
from server.serving import serving
from waiting import eventually

ROOT = Path(__file__).resolve().parent.parent


def numbers(journal: penstock.Journal, topic: str = "orders") -> list[int]:
    return [event.payload["n"] for event in journal.topic(topic).read()]


def write(connection: Any, *orders: int, **draft: Any) -> None:
    for n in orders:
        outbox.append(connection, "orders", "placed", {"n": n}, **draft)


class Relays:
    """Relays of a test, which end with it."""

    def __init__(self, journal: penstock.Journal) -> None:
        self._journal = journal
        self.all: list[outbox.Relay] = []

    def __call__(self, database: Database, **options: Any) -> outbox.Relay:
        self.all.append(outbox.Relay(self._journal, database.connect, **options))
        return self.all[-1]


@pytest.fixture
def relay_of(journal: penstock.Journal) -> Iterator[Relays]:
    relays = Relays(journal)
    yield relays
    for one in relays.all:
        one.stop()


def left(connection: Any) -> outbox.OutboxLag:
    found = outbox.lag(connection)
    connection.commit()
    return found


def test_what_commits_is_in_the_journal_once_and_what_rolls_back_never(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    emails, connection = journal.queue("emails", priority=True), database.connect()
    write(connection, 1, key="ada", scope="eu", headers={"trace": "t"}, dedup="d", correlation="c", tags=["b", "a"])
    outbox.push(connection, "emails", {"to": "ada"}, priority=3, max_attempts=7)
    connection.commit()
    write(connection, 2)
    outbox.push(connection, "emails", {"to": "bob"})
    connection.rollback()
    outbox.push(connection, "emails", b"\x00\xff", kind="raw")
    connection.commit()
    relay = relay_of(database)
    assert relay.run_once() == 3 and relay.run_once() == 0
    (order,) = journal.topic("orders").read()
    assert (order.kind, order.payload, order.key, order.scope) == ("placed", {"n": 1}, "ada", "eu")
    assert (dict(order.headers), order.correlation_id, order.tags) == ({"trace": "t"}, "c", ("a", "b"))
    first, second = emails.messages()
    assert (first.event.payload, first.priority, first.max_attempts) == ({"to": "ada"}, 3, 7)
    assert (second.event.payload, second.event.kind) == (b"\x00\xff", "raw")
    assert left(connection) == outbox.OutboxLag(0, 0, 0.0)
    connection.close()


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)  # SQLite has one writer
def test_rows_that_commit_out_of_the_order_of_their_ids_all_come(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    slow, quick = database.connect(), database.connect()
    relay = relay_of(database)
    write(slow, 1)
    write(quick, 2)
    quick.commit()
    assert relay.run_once() == 1 and numbers(journal) == [2]
    write(quick, 3)
    quick.commit()
    assert relay.run_once() == 1
    slow.commit()
    assert relay.run_once() == 1 and numbers(journal) == [2, 3, 1]
    for one in (slow, quick):
        one.close()


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_relay_does_not_wait_for_transactions_that_are_open(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    slow, quick = database.connect(), database.connect()
    write(slow, 1)
    write(quick, *range(2, 12))
    quick.commit()
    write(slow, 12)
    assert relay_of(database).drain() == 10  # MariaDB gives up a wait after 50 s
    assert left(quick).waiting == 0
    slow.commit()
    assert relay_of(database).drain() == 2
    assert numbers(journal) == [*range(2, 12), 1, 12]
    for one in (slow, quick):
        one.close()


KILLED = """
import os, signal, sys
import penstock
from penstock import outbox
from penstock.integrations.outbox import relay
from outbox.dying import connect

def die_at_delete(*_):
    os.kill(os.getpid(), signal.SIGKILL)

relay.run_each = die_at_delete
with penstock.open(sys.argv[1]) as journal:
    outbox.Relay(journal, lambda: connect(sys.argv[2]), batch=3).run_once()
"""


def test_a_relay_killed_between_the_journal_and_the_delete_doubles_nothing(
    database: Database, journal: penstock.Journal, relay_of: Relays, tmp_path: Path
) -> None:
    connection = database.connect()
    write(connection, 1, 2, 3, 4)
    connection.commit()
    for batch in (3, 4):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path / "shop.db"), database.url],
            cwd=ROOT,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        # The first was killed with its batch in the journal; the second deletes these rows first, and is killed there.
        assert len(numbers(journal)) == 3 and left(connection).waiting == 4, batch
    relay = relay_of(database)
    assert relay.run_once() == 1
    assert numbers(journal) == [1, 2, 3, 4] and left(connection).waiting == 0
    connection.close()


def test_several_relays_at_once_move_every_row_once(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    rows, writers = 60, 3
    relays = [relay_of(database, batch=7, poll=0.001, name=f"relay {n}").start() for n in range(3)]

    def produce(first: int) -> None:
        connection = database.connect()
        for n in range(first, first + rows):
            write(connection, n)
            connection.commit()
        connection.close()

    threads = [threading.Thread(target=produce, args=(1 + rows * n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: journal.topic("orders").latest >= rows * writers)
    connection = database.connect()
    eventually(lambda: left(connection).waiting == 0)
    for relay in relays:
        relay.stop()
    assert sorted(numbers(journal)) == list(range(1, 1 + rows * writers))
    assert sum(relay.moved for relay in relays) == rows * writers
    connection.close()


def test_a_row_that_the_journal_refuses_stays_with_its_reason_and_holds_nothing_up(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    def refuse(draft: penstock.Draft) -> None:
        if draft.payload["n"] == 2:
            raise penstock.errors.Denied("two is not sold")

    journal.topic("orders").gate(refuse)
    connection = database.connect()
    write(connection, 1, 2, 3)
    connection.commit()
    relay = relay_of(database)
    assert relay.run_once() == 2 and numbers(journal) == [1, 3]
    cursor = connection.cursor()
    cursor.execute("SELECT error FROM penstock_outbox WHERE error IS NOT NULL")
    ((said,),) = cursor.fetchall()
    assert "Denied: " in said and "two is not sold" in said
    assert left(connection).refused == 1
    connection.close()


def test_rows_for_a_queue_that_is_full_or_missing_wait_and_others_pass(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    emails, connection = journal.queue("emails", max_size=1), database.connect()
    for n in range(3):
        outbox.push(connection, "emails", n)
    outbox.push(connection, "later", 3)
    write(connection, 1)
    connection.commit()
    relay = relay_of(database, batch=2)
    assert relay.drain() == 2
    assert numbers(journal) == [1] and [event.payload for event in emails] == [0]
    assert (left(connection).waiting, left(connection).refused) == (3, 0)
    with relay:
        journal.queue("later")
        eventually(lambda: len(journal.queue("later")) == 1)
        for n in range(3):
            with eventually(lambda: emails.take()) as delivery:
                assert delivery.payload == n
    assert left(connection).waiting == 0
    connection.close()


def test_a_delay_begins_and_an_event_occurs_when_the_row_is_written(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    emails, connection = journal.queue("emails"), database.connect()
    before = datetime.now(UTC)
    write(connection, 1)
    outbox.push(connection, "emails", 1, delay=3600)
    after = datetime.now(UTC)
    connection.commit()
    relay_of(database).run_once()
    (message,), (order,) = emails.messages(), journal.topic("orders").read()
    second = timedelta(milliseconds=1)
    assert before - second <= order.occurred_at <= after
    assert message.due is not None and before - second <= message.due - timedelta(hours=1) <= after + second
    connection.close()


def test_two_databases_share_a_journal(
    database: Database, journal: penstock.Journal, relay_of: Relays, tmp_path: Path
) -> None:
    from outbox import databases

    other = databases.sqlite(tmp_path / "..")
    (tmp_path / "../app.sqlite").unlink(missing_ok=True)
    both = [database.connect(), other.connect()]
    outbox.create(both[1])
    relays = [relay_of(database), relay_of(other)]
    for n, connection in enumerate(both):
        write(connection, n)
        connection.commit()
    for relay in relays:
        assert relay.run_once() == 1
    for n, connection in enumerate(both):
        write(connection, n + 2)
        connection.commit()
        assert relay_of((database, other)[n]).run_once() == 1
        connection.close()
    assert numbers(journal) == [0, 1, 2, 3]


def test_a_relay_reports_its_lag_and_goes_on_when_the_database_is_back(
    database: Database, journal: penstock.Journal, relay_of: Relays
) -> None:
    connection, away = database.connect(), threading.Event()
    away.set()

    def connect() -> Any:
        if away.is_set():
            raise OSError("the database is away")
        return database.connect()

    def status() -> pipelines.FlowStatus | None:
        return next(iter(pipelines.status(journal, pipeline="outbox")), None)

    write(connection, 1)
    connection.commit()
    with outbox.Relay(journal, connect, name="shop", poll=0.01):
        eventually(lambda: (found := status()) is not None and found.state == "waiting")
        assert "the database is away" in str(status())
        away.clear()
        eventually(lambda: (found := status()) is not None and found.state == "running" and found.lag == 0)
        assert numbers(journal) == [1]
        write(connection, *range(2, 6))
        outbox.push(connection, "missing", 1)
        connection.commit()
        eventually(lambda: (found := status()) is not None and (found.rows, found.lag) == (5, 1))
        with serving(journal) as served:
            labels = 'pipeline="outbox",flow="shop"'
            assert f"penstock_pipeline_lag{{{labels}}} 1" in served.get("/metrics").data.decode()
            assert "outbox/shop" in served.get("/pipelines").data.decode()
    found = status()
    assert found is not None and (found.flow, found.state, found.rows) == ("shop", "stopped", 5)
    connection.close()


def test_a_served_journal_is_refused(journal: penstock.Journal) -> None:
    with (
        serving(journal) as served,
        penstock.open(served.url) as there,
        pytest.raises(penstock.errors.ConfigError, match="not served over http"),
    ):
        outbox.Relay(there, lambda: None)

"""Connections that rows are written through: SQLAlchemy's, Django's, and what is none."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import penstock
from outbox.databases import Database
from penstock import outbox
from penstock.errors import ConfigError, InvalidName


def relayed(journal: penstock.Journal, database: Database) -> list[object]:
    relay = outbox.Relay(journal, database.connect)
    relay.drain()
    relay.stop()
    return [event.payload for event in journal.topic("orders").read()]


def test_sqlalchemy_writes_rows_in_its_transactions(database: Database, journal: penstock.Journal) -> None:
    engine = sa.create_engine(database.sqlalchemy_url)
    with engine.begin() as connection:
        outbox.append(connection, "orders", "placed", 1)
    with engine.connect() as connection:
        outbox.append(connection, "orders", "placed", "never")
    with Session(engine) as session:
        outbox.append(session, "orders", "placed", 2)
        session.commit()
        outbox.append(session, "orders", "placed", "never")
        session.rollback()
        assert outbox.lag(session).waiting == 2
    scoped = scoped_session(sessionmaker(engine))
    outbox.append(scoped, "orders", "placed", 3)
    scoped.commit()
    scoped.remove()
    relay = outbox.Relay(journal, engine.connect)  # of SQLAlchemy, too
    assert relay.run_once() == 3
    relay.stop()
    engine.dispose()
    assert relayed(journal, database) == [1, 2, 3]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_sqlalchemy_for_asyncio_writes_rows_too(database: Database, journal: penstock.Journal) -> None:
    async def write() -> None:
        engine = create_async_engine(database.sqlalchemy_url)
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(outbox.append, "orders", "placed", 1)
            savepoint = await session.begin_nested()
            await session.run_sync(outbox.append, "orders", "placed", "never")
            await savepoint.rollback()
            with pytest.raises(ConfigError, match=r"await session\.run_sync\(outbox\.push"):
                outbox.push(session, "emails", 1)
        async with engine.begin() as connection:
            await connection.run_sync(outbox.append, "orders", "placed", 2)
        await engine.dispose()

    asyncio.run(write())
    assert relayed(journal, database) == [1, 2]


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "sqlite"], indirect=True)
def test_the_table_of_metadata_serves_a_relay(database: Database, journal: penstock.Journal) -> None:
    engine, metadata = sa.create_engine(database.sqlalchemy_url), sa.MetaData()
    table = outbox.table(metadata, "other_outbox")
    metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.append(connection, "orders", "placed", "ä\x00🦆", table="other_outbox")
    relay = outbox.Relay(journal, database.connect, table="other_outbox")
    assert relay.run_once() == 1
    relay.stop()
    with engine.begin() as connection:
        ours = {column["name"] for column in sa.inspect(connection).get_columns("penstock_outbox")}
    engine.dispose()
    assert ours == set(table.columns.keys())
    assert [event.payload for event in journal.topic("orders").read()] == ["ä\x00🦆"]


def test_what_is_wrong_is_said_before_a_row_is_written(database: Database) -> None:
    connection = database.connect()
    wrong: list[tuple[type[Exception], Any]] = [
        (InvalidName, lambda: outbox.push(connection, "no name", 1)),
        (InvalidName, lambda: outbox.append(connection, "", "placed")),
        (ConfigError, lambda: outbox.append(connection, "orders", "")),
        (ConfigError, lambda: outbox.append(connection, "orders", "placed", object())),
        (ConfigError, lambda: outbox.append(connection, "orders", "placed", key="ada", expect=3)),
        (ConfigError, lambda: outbox.append(connection, "orders", "placed", unless=penstock.EventQuery(key="ada"))),
        (ConfigError, lambda: outbox.append(connection, "orders", "placed", nothing=3)),
        (ConfigError, lambda: outbox.push(connection, "emails", 1, nothing=3)),
        (ConfigError, lambda: outbox.push(connection, "emails", 1, key="ada", delay=3)),
        (ConfigError, lambda: outbox.push(connection, "emails", 1, delay=-3)),
        (ConfigError, lambda: outbox.push(connection, "emails", float("nan"))),
        (ConfigError, lambda: outbox.push(connection, "emails", 1, table="a; drop table a")),
        (ConfigError, lambda: outbox.push(None, "emails", 1)),
        (ConfigError, lambda: outbox.push("postgresql://", "emails", 1)),
        (ConfigError, lambda: outbox.ddl("oracle")),
    ]
    for number, (error, call) in enumerate(wrong):
        with pytest.raises(error):
            call()
            raise AssertionError(number)
    assert outbox.lag(connection) == outbox.OutboxLag(0, 0, 0.0)
    connection.close()


def test_a_missing_table_is_the_databases_own_error_with_a_note(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "app.sqlite")
    with pytest.raises(sqlite3.OperationalError, match="no such table") as caught:
        outbox.push(connection, "emails", 1)
    assert "outbox.create" in caught.value.__notes__[0]
    connection.close()

"""Statements on connections of the caller: of DB-API drivers, of SQLAlchemy, of Django.

Statements have named parameters, `:name`, which are translated into the style of each kind of connection. Nothing here
commits, rolls back or tries again: the transaction is the caller's.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.core.names import shown_url, split_url
from penstock.errors import ConfigError
from penstock.integrations import needed_for

_PARAMETER = re.compile(r":(\w+)")
_DIALECTS: Final = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""The database that a driver connects to, by the driver's package."""
_AWAITED: Final = ("sqlalchemy.ext.asyncio", "aiosqlite", "asyncpg", "aiomysql", "asyncmy")


def run(connection: Any, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
    """Runs a statement on a connection and returns the resulting rows."""
    names = _PARAMETER.findall(statement)
    if _is_sqlalchemy(connection):
        from sqlalchemy import text

        result = connection.execute(text(statement), {name: values[name] for name in names})
        return result.fetchall() if result.returns_rows else ()
    statement, given = _in_style_of(connection, statement, names)
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement, given(values))
        return cursor.fetchall() if cursor.description is not None else ()


def run_each(connection: Any, statement: str, each: Sequence[Mapping[str, object]]) -> None:
    """Runs a statement without resulting rows, once for each of several sets of values."""
    if _is_sqlalchemy(connection):
        from sqlalchemy import text

        connection.execute(text(statement), each)
        return
    statement, given = _in_style_of(connection, statement, _PARAMETER.findall(statement))
    with closing(connection.cursor()) as cursor:
        cursor.executemany(statement, [given(values) for values in each])


def _in_style_of(
    connection: Any, statement: str, names: Sequence[str]
) -> tuple[str, Callable[[Mapping[str, object]], Any]]:
    """Returns a statement in the style of a connection's driver, and a function that makes the driver's parameters
    from values.
    """
    _, style = _driver_of(connection)
    if style == "named":
        return statement, lambda values: {name: values[name] for name in names}
    count, mark = itertools.count(1), {"qmark": "?", "numeric": ":{}"}.get(style, "%s")
    marked = _PARAMETER.sub(lambda _: mark.format(next(count)), statement)
    return marked, lambda values: tuple(values[name] for name in names)


def is_drivers(error: Exception) -> bool:
    """Returns True if an error comes from a driver: an error of the database, or of the connection to it."""
    return any(one.__module__.partition(".")[0] in _DIALECTS for one in type(error).__mro__)


def dialect_of(connection: Any) -> str:
    """Returns the database of a connection, by SQLAlchemy's name for it."""
    if _is_sqlalchemy(connection):
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        return str(bind.dialect.name)
    package, _ = _driver_of(connection)
    if package == "django":
        return str(connection.vendor)
    if package not in _DIALECTS:
        raise ConfigError(f"the driver {package!r} is not known here: run the statement that outbox.ddl(…) returns")
    return _DIALECTS[package]


def _is_sqlalchemy(connection: Any) -> bool:
    if "sqlalchemy" not in sys.modules:
        return False
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    return isinstance(connection, Connection | Session | scoped_session)


def _driver_of(connection: Any) -> tuple[str, str]:
    """Returns the package of a connection's driver, and the style of its parameters.

    Raises ConfigError for an object that is no connection, and for an asynchronous connection.
    """
    modules = [one.__module__ for one in type(connection).__mro__]
    awaited = type(connection).__name__.startswith("Async") or any(name.startswith(_AWAITED) for name in modules)
    if not awaited and any(name.startswith("django.") for name in modules):
        return "django", "format"
    for module in () if awaited else modules:
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if isinstance(style, str) and hasattr(connection, "cursor"):
                return module.partition(".")[0], style
            module = module.rpartition(".")[0]
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if awaited:
        raise ConfigError(
            f"an outbox writes through connections that are not awaited, and this is a {kind}; "
            'with SQLAlchemy, await session.run_sync(outbox.push, "emails", payload)'
        )
    raise ConfigError(f"an outbox writes through a connection of a DB-API driver, SQLAlchemy or Django, not a {kind}")


def connector(url: str) -> Callable[[], Any]:
    """Returns a function that connects to the database of a url: postgresql://…, mysql://… or sqlite:///path. Raises
    ConfigError when the package for it is missing."""
    parts = split_url(url)
    if parts.scheme == "sqlite":
        import sqlite3

        # A url with an absolute path has four slashes, as in SQLAlchemy.
        file = f"file:{quote(unquote(parts.path.removeprefix('/')))}?mode=rw"
        return lambda: sqlite3.connect(file, uri=True)
    if parts.scheme in ("postgresql", "postgres"):
        with needed_for("postgresql"):
            import psycopg
        return lambda: psycopg.connect(url)
    if parts.scheme in ("mysql", "mariadb"):
        with needed_for("mysql"):
            import pymysql
        given = {"user": parts.username, "password": parts.password, "host": parts.hostname or "localhost"}
        named = {name: unquote(value) for name, value in given.items() if value is not None}
        place = {"port": parts.port or 3306, "database": unquote(parts.path[1:]), "charset": "utf8mb4"}
        return lambda: pymysql.connect(**named, **place)
    raise ConfigError(f"{shown_url(url)!r:.200} is no database: postgresql://…, mysql://… or sqlite:///path")

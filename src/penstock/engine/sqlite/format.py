"""How a SQLite database is recognised as a store, and made one."""

from __future__ import annotations

import time

import apsw

from penstock.errors import ConfigError

APPLICATION_ID = 0x50454E53
"""Marks a database as penstock's in SQLite's header ("PENS")."""
FORMAT = 1
"""The layout of the tables, in SQLite's user_version."""
WAIT_SECONDS = 60.0
"""How long a connection waits for another process before it gives up."""

MAKE = (
    "BEGIN IMMEDIATE;"
    # Not WITHOUT ROWID: SQLite then reads a large value as a whole to compare its key with another.
    "CREATE TABLE IF NOT EXISTS kv(id INTEGER PRIMARY KEY, k BLOB NOT NULL UNIQUE, v BLOB NOT NULL) STRICT;"
    f"PRAGMA application_id={APPLICATION_ID};"
    f"PRAGMA user_version={FORMAT};"
    "COMMIT"
)


def run_all(connection: apsw.Connection, sql: str) -> None:
    """Runs every statement; apsw alone stops at the first one that gives a row, as many pragmas do."""
    for _ in connection.execute(sql):
        pass


def is_made(connection: apsw.Connection, file: str) -> bool:
    """Whether the database holds a store of this format; ConfigError when it holds something else."""
    try:
        application, version, tables = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
            " (SELECT count(*) FROM sqlite_schema)"
        ).fetchall()[0]
    except apsw.NotADBError as error:
        raise ConfigError(
            f"{file} is not a SQLite database: another program made it, or its first page is damaged"
        ) from error
    if application == 0 and version == 0 and tables == 0:
        return False
    if application != APPLICATION_ID:
        raise ConfigError(f"{file} is a SQLite database of another program; give the store a file of its own")
    if version != FORMAT:
        raise ConfigError(
            f"{file} has sqlite store format {version}, this version of penstock reads format {FORMAT}; "
            "use the version that made it, or copy its events over"
        )
    return True


def switch_to_log(connection: apsw.Connection) -> None:
    """Turns write-ahead mode on; SQLite does not call the busy handler for this, so two openers are sorted out here."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").get
            break
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
    if mode != "wal":
        raise ConfigError("this file system cannot hold SQLite's write-ahead log; keep the store on a local disk")

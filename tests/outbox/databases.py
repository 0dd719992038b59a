"""Real databases that an outbox lies in: SQLite, and servers of PostgreSQL and MariaDB that tests start.

PostgreSQL needs Debian's `postgresql`, MariaDB `mariadb-server-core`. Where a server is not installed, its tests are
skipped, unless PENSTOCK_NEEDS_POSTGRESQL or PENSTOCK_NEEDS_MARIADB is set.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from waiting import eventually


@dataclass(frozen=True)
class Database:
    """An empty database of its own."""

    dialect: str
    url: str
    """As `penstock relay` takes it."""
    sqlalchemy_url: str
    connect: Callable[[], Any]


def program(name: str, package: str) -> str:
    """A server's program; the test is skipped where there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") or (str(debian[-1]) if debian else None)
    if found is None:
        missing = f"no {name} here: apt-get install {package}"
        needed = "PENSTOCK_NEEDS_POSTGRESQL" if package == "postgresql" else "PENSTOCK_NEEDS_MARIADB"
        (pytest.fail if os.environ.get(needed) else pytest.skip)(missing)
    return found


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def server_folder() -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for a server's data, and how to run its programs: these servers refuse to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-outbox-"))
    how: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    if os.getuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        yield folder, how
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(command: list[str], how: dict[str, Any], ready: Callable[[], Any], stop: int) -> Iterator[None]:
    """A server while it answers."""
    server = subprocess.Popen(command, **how)

    def answers() -> bool:
        assert server.poll() is None, f"{command[0]} ended"
        with suppress(psycopg.OperationalError, pymysql.OperationalError):
            ready().close()
            return True
        return False

    try:
        eventually(answers, f"{command[0]} answers")
        yield
    finally:
        server.send_signal(stop)
        server.wait(60)


@contextmanager
def postgresql() -> Iterator[Callable[[], Database]]:
    """A server of PostgreSQL; what it yields makes an empty database."""
    initdb, postgres = program("initdb", "postgresql"), program("postgres", "postgresql")
    with server_folder() as (folder, how):
        make = [initdb, "-D", str(folder / "data"), "-U", "penstock", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*make, "--locale=C"], check=True, **how)
        port = free_port()
        command = [postgres, "-D", str(folder / "data"), "-p", str(port), "-k", "", "-c", "fsync=off"]

        def connect(name: str = "postgres") -> psycopg.Connection:
            return psycopg.connect(f"postgresql://penstock@127.0.0.1:{port}/{name}")

        def database() -> Database:
            name = f"shop_{uuid.uuid4().hex[:12]}"
            with connect() as admin:
                admin.autocommit = True
                admin.execute(f"CREATE DATABASE {name}")
            place = f"penstock@127.0.0.1:{port}/{name}"
            return Database(
                "postgresql", f"postgresql://{place}", f"postgresql+psycopg://{place}", lambda: connect(name)
            )

        with running(command, how, connect, signal.SIGINT):
            yield database


@contextmanager
def mariadb() -> Iterator[Callable[[], Database]]:
    """A server of MariaDB; what it yields makes an empty database."""
    mariadbd = program("mariadbd", "mariadb-server-core")
    with server_folder() as (folder, how):
        data, port = folder / "data", free_port()
        subprocess.run(["mkdir", str(data)], check=True, **how)
        # Without its tables of users it knows none, and needs none of the programs that would make them.
        options = ["--no-defaults", f"--datadir={data}", "--skip-grant-tables", "--skip-networking=0"]
        options += ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder / 'socket'}"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M"]

        def connect(name: str | None = None) -> Any:
            return pymysql.connect(host="127.0.0.1", port=port, user="root", database=name)

        def database() -> Database:
            name = f"shop_{uuid.uuid4().hex[:12]}"
            with connect() as admin, admin.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {name}")
            place = f"root@127.0.0.1:{port}/{name}"
            return Database("mysql", f"mysql://{place}", f"mysql+pymysql://{place}", lambda: connect(name))

        with running([mariadbd, *options], how, connect, signal.SIGTERM):
            yield database


def sqlite(folder: Path) -> Database:
    """An empty SQLite database."""
    file = folder / "app.sqlite"
    return Database("sqlite", f"sqlite:///{file}", f"sqlite:///{file}", lambda: sqlite3.connect(file))

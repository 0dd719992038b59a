"""`penstock relay`, and the app for Django with its migration and its command."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from outbox.databases import Database
from penstock import outbox
from penstock.cli.main import run
from waiting import DEADLINE, eventually


def numbers(url: Path) -> list[int]:
    with penstock.open(url, read_only=True) as journal:
        return [event.payload for event in journal.topic("orders").read()]


def write(database: Database, *orders: int) -> None:
    connection = database.connect()
    for n in orders:
        outbox.append(connection, "orders", "placed", n)
    connection.commit()
    connection.close()


def test_relay_moves_rows_until_a_signal_comes(database: Database, tmp_path: Path) -> None:
    url = tmp_path / "shop.db"
    penstock.open(url).close()
    write(database, 1)
    command = [sys.executable, "-m", "penstock.cli", "relay", database.url, "--url", str(url), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually(lambda: numbers(url) == [1])
        write(database, 2, 3)
        eventually(lambda: numbers(url) == [1, 2, 3])
        process.send_signal(signal.SIGTERM)
        said, noted = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 0 and json.loads(said) == {"moved": 3}, noted
    assert b"moving rows of " in noted


def test_relay_makes_the_table_and_ends_when_nothing_waits(tmp_path: Path) -> None:
    file = tmp_path / "orders.sqlite"
    file.touch()
    words = ["relay", f"sqlite:///{file}", "--url", str(tmp_path / "shop.db"), "--create", "--until-empty"]
    assert run([*words, "--make"]) == 0
    write(Database("sqlite", "", "", lambda: sqlite3.connect(file)), 1, 2)
    assert run(words) == 0 and numbers(tmp_path / "shop.db") == [1, 2]


def test_relay_says_what_is_wrong_with_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--url", str(tmp_path / "shop.db"), "--create", "--until-empty"]
    (tmp_path / "empty.sqlite").touch()
    for database, code, says in (
        ("oracle://ada:secret@shop", 2, "'oracle://shop' is no database"),
        (f"sqlite:///{tmp_path}/missing.sqlite", 1, "unable to open database file"),
        (f"sqlite:///{tmp_path}/empty.sqlite", 1, "--make makes the table 'penstock_outbox'"),
        ("postgresql://ada:secret@127.0.0.1:1/shop", 1, "postgresql://127.0.0.1:1/shop: connection failed"),
        ("mysql://ada:secret@127.0.0.1:1/shop", 1, "mysql://127.0.0.1:1/shop: "),
    ):
        assert run(["relay", database, *common]) == code
        said = capsys.readouterr().err
        assert says in said and "secret" not in said and "Traceback" not in said
    assert not (tmp_path / "missing.sqlite").exists()


PROJECT = """
import sys, threading
import django
from django.conf import settings

name, file, journal = sys.argv[1:]
engine, _, place = name.partition("://")
user, _, rest = place.partition("@")
host, _, base = rest.partition("/")
databases = {"ENGINE": "django.db.backends.sqlite3", "NAME": file}
if engine == "postgresql":
    databases = {"ENGINE": "django.db.backends.postgresql", "NAME": base, "USER": user, "HOST": host.split(":")[0],
                 "PORT": host.split(":")[1]}
apps = ["penstock.integrations.outbox.django"]
settings.configure(DATABASES={"default": databases}, INSTALLED_APPS=apps, USE_TZ=True)
django.setup()
from django.core.management import call_command
from django.db import connection, transaction

import penstock
from penstock import outbox

call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
with transaction.atomic():
    outbox.append(connection, "orders", "placed", 1)
    outbox.push(connection, "mails", {"to": "100% ada"})
try:
    with transaction.atomic():
        outbox.append(connection, "orders", "placed", "never")
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    outbox.append(connection, "orders", "placed", 2)
    try:
        with transaction.atomic():
            outbox.append(connection, "orders", "placed", "never")
            raise KeyError
    except KeyError:
        pass
with penstock.open(journal) as opened:
    opened.queue("mails")
assert outbox.lag(connection).waiting == 3
call_command("penstock_relay", journal, batch=True)
assert outbox.lag(connection).waiting == 0
outbox.append(connection, "orders", "placed", 3)  # autocommit
with penstock.open(journal) as opened, outbox.Relay(opened, lambda: connection, poll=0.01) as relay:
    for event in opened.topic("orders").subscribe(2):
        break
call_command("migrate", "penstock_outbox", "zero", verbosity=0)
assert "penstock_outbox" not in connection.introspection.table_names()
connection.close()
"""


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)  # for MySQL it asks for another driver
def test_djangos_transactions_have_the_rows_and_a_migration_the_table(database: Database, tmp_path: Path) -> None:
    connection = database.connect()
    connection.cursor().execute("drop table penstock_outbox")
    connection.commit()
    connection.close()
    url = tmp_path / "shop.db"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROJECT, database.url, str(tmp_path / "app.sqlite"), str(url)],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert numbers(url) == [1, 2, 3]
    with penstock.open(url) as journal:
        assert [event.payload for event in journal.queue("mails")] == [{"to": "100% ada"}]

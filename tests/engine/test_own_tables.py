"""`tx.sql`: a program's own tables in the journal's SQLite file, in one commit with appends, pushes and acks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.core.engine import sqlite
from penstock.errors import ConfigError, StorageError
from waiting import DEADLINE, eventually


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db") as opened:
        with opened.transaction() as tx:
            tx.sql("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total REAL NOT NULL, kv TEXT)")
        yield opened


def invoices(journal: penstock.Journal) -> list[tuple]:
    with journal.transaction() as tx:
        return tx.sql("SELECT id, total FROM invoices ORDER BY id")


def test_rows_events_messages_and_acks_commit_together_or_not_at_all(journal: penstock.Journal) -> None:
    mails = journal.queue("mails")
    mails.push("first")
    with journal.transaction() as tx:
        delivery = tx.take("mails")
        assert tx.sql("INSERT INTO invoices (total) VALUES (?) RETURNING id", (9.5,)) == [(1,)]
        assert tx.sql("SELECT total FROM invoices WHERE id = :id", {"id": 1}) == [(9.5,)]
        tx.append("orders", "placed", 1)
        tx.push("mails", "second")
        tx.ack(delivery)
    with pytest.raises(RuntimeError), journal.transaction() as tx:
        tx.sql("INSERT INTO invoices (total) VALUES (1.0)")
        tx.sql("CREATE TABLE notes (text)")
        tx.append("orders", "placed", 2)
        tx.ack(tx.take("mails"))
        raise RuntimeError
    assert invoices(journal) == [(1, 9.5)]
    assert [event.payload for event in journal.topic("orders").read()] == [1]
    assert [event.payload for event in mails] == ["second"]
    with pytest.raises(ConfigError, match="no such table: notes"), journal.transaction() as tx:
        tx.sql("SELECT * FROM notes")


REFUSED = {
    "the table 'kv' is the store's own": [
        "SELECT * FROM kv",
        "DELETE FROM KV",
        "DROP TABLE kv",
        "ALTER TABLE kv RENAME TO mine",
        "CREATE INDEX mine ON kv (v)",
        "REINDEX kv",
        "CREATE TRIGGER mine AFTER INSERT ON kv BEGIN SELECT 1; END",
        "CREATE TRIGGER t AFTER INSERT ON invoices BEGIN DELETE FROM kv; END; INSERT INTO invoices VALUES (7, 1, 1)",
        "CREATE VIEW mine AS SELECT * FROM kv; SELECT * FROM mine",
        "INSERT INTO invoices (total) SELECT length(v) FROM main.kv",
        "INSERT INTO invoices (total) VALUES (1); DELETE FROM kv",
    ],
    "commits or rolls back": ["BEGIN", "COMMIT", "ROLLBACK", "END"],
    "a savepoint would undo": ["SAVEPOINT mine", "RELEASE own_sql", "ROLLBACK TO own_sql"],
    "of one file": ["ATTACH ':memory:' AS other"],
    "are the store's": ["PRAGMA user_version = 3", "PRAGMA journal_mode = DELETE", "PRAGMA writable_schema = ON"],
    "temporary": ["CREATE TEMP TABLE kv (k, v)", "CREATE TEMP VIEW kv AS SELECT 1"],
    "may not be modified": ["DELETE FROM sqlite_schema"],
    "cannot VACUUM": ["VACUUM"],
    "UNIQUE constraint failed": [
        "INSERT INTO invoices VALUES (8, 1, ''); INSERT INTO invoices VALUES (1, 1, '')",
        "INSERT OR FAIL INTO invoices VALUES (8, 1, ''), (1, 1, '')",
    ],
    "syntax error": ["SELEC 1"],
    "null character": ["SELECT 1\0"],
    "bindings": ["SELECT ?"],
}


@pytest.mark.parametrize(("why", "statement"), [(why, one) for why, some in REFUSED.items() for one in some])
def test_a_refused_statement_has_changed_nothing_and_the_transaction_goes_on(
    journal: penstock.Journal, why: str, statement: str
) -> None:
    with journal.transaction() as tx:
        tx.sql("INSERT INTO invoices (total) VALUES (1)")
        tx.append("orders", "placed", 1)
        with pytest.raises(ConfigError, match=why):
            tx.sql(statement)
        tx.sql("INSERT INTO invoices (total) VALUES (2)")
        tx.append("orders", "placed", 2)
    assert invoices(journal) == [(1, 1), (2, 2)]
    assert [event.payload for event in journal.topic("orders").read()] == [1, 2]


def test_the_stores_own_statements_are_refused_though_they_are_prepared(journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    with journal.transaction() as tx:
        for own, values in ((sqlite.GET, (b"k",)), (sqlite.PUT, (b"k", b"v")), (sqlite.DELETE, (b"k",))):
            with pytest.raises(ConfigError, match="the store's own"):
                tx.sql(own, values)
    assert journal.topic("orders").latest == 1


def test_a_statement_that_rolls_all_back_spoils_the_transaction(journal: penstock.Journal) -> None:
    with pytest.raises(StorageError, match="nothing of this transaction was kept"), journal.transaction() as tx:
        tx.sql("INSERT INTO invoices VALUES (1, 1, '')")
        tx.append("orders", "placed", 1)
        with pytest.raises(ConfigError):
            tx.sql("INSERT OR ROLLBACK INTO invoices VALUES (1, 2, '')")
    assert invoices(journal) == [] and journal.topic("orders").latest == 0
    journal.topic("orders").append("placed", 2)


@pytest.mark.parametrize("parameters", ["text", 5, [object()], {"id": object()}, {}, ["\ud800"], [1 << 70]])
def test_wrong_parameters_are_a_clear_error(journal: penstock.Journal, parameters: object) -> None:
    with journal.transaction() as tx, pytest.raises(ConfigError, match=r"tx\.sql"):
        tx.sql("SELECT :id", parameters)
    with journal.transaction() as tx, pytest.raises(ConfigError, match=r"tx\.sql"):
        tx.sql(b"SELECT 1")


OBSERVER = """
import sys
import sqlalchemy as sa
import sqlite3

file, kind = sys.argv[1:]
if kind == "sqlite3":
    connection = sqlite3.connect(file, timeout=60)
    ask = lambda text: connection.execute(text).fetchone()[0]
    begin, end = (lambda: connection.execute("BEGIN")), connection.rollback
else:
    connection = sa.create_engine(f"sqlite:///{file}", connect_args={"timeout": 60}).connect()
    ask = lambda text: connection.execute(sa.text(text)).scalar()
    begin, end = (lambda: connection.exec_driver_sql("BEGIN")), connection.rollback
for _ in sys.stdin:
    begin()
    print(ask("SELECT count(*) FROM invoices"), ask("SELECT count(*) FROM lines"), flush=True)
    end()
"""


@pytest.mark.parametrize("kind", ["sqlite3", "sqlalchemy"])
def test_connections_of_other_processes_see_all_of_a_transaction_or_nothing(
    journal: penstock.Journal, tmp_path: Path, kind: str
) -> None:
    with journal.transaction() as tx:
        tx.sql("CREATE TABLE lines (id INTEGER PRIMARY KEY)")
    command = [sys.executable, "-c", OBSERVER, str(tmp_path / "shop.db"), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as observer:
        writing, reading = observer.stdin, observer.stdout
        assert writing and reading

        def seen() -> str:
            writing.write("look\n")
            writing.flush()
            return reading.readline()

        for n in range(10):
            with journal.transaction() as tx:
                tx.sql("INSERT INTO invoices (total) VALUES (1)")
                assert seen() == f"{n} {n}\n"
                tx.append("orders", "placed", n)
                tx.sql("INSERT INTO lines DEFAULT VALUES")
                assert seen() == f"{n} {n}\n"
            assert seen() == f"{n + 1} {n + 1}\n"
        writing.close()
        assert observer.wait(DEADLINE) == 0


WRITER = """
import sys
import penstock

with penstock.open(sys.argv[1]) as journal:
    print("begun", flush=True)
    for n in range(1, 1_000_000):
        with journal.transaction() as tx:
            tx.append("orders", "placed", n)
            tx.sql("INSERT INTO invoices (total) VALUES (?)", (n,))
"""


def test_a_kill_leaves_rows_and_events_alike(journal: penstock.Journal, tmp_path: Path) -> None:
    for _ in range(3):
        before = len(invoices(journal))
        command = [sys.executable, "-c", WRITER, str(tmp_path / "shop.db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            eventually(lambda before=before: len(invoices(journal)) > before + 5)
            os.kill(writer.pid, signal.SIGKILL)
        totals = [total for _, total in invoices(journal)]
        assert totals == [event.payload for event in journal.topic("orders").read()]


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO invoices (total) VALUES (1)")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_lock_that_another_program_holds_too_long_is_a_clear_error(
    journal: penstock.Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
    command = [sys.executable, "-c", LOCKER, str(tmp_path / "shop.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdin and locker.stdout and locker.stdout.readline() == "locked\n"
        held = pytest.raises(StorageError, match=r"another process kept .*shop\.db locked for too long")
        with held as caught, journal.transaction():
            raise AssertionError("it began")
        assert caught.value.retryable
        with pytest.raises(StorageError, match="locked for too long"):
            journal.topic("orders").append("placed", 1)
        locker.stdin.write("\n")
        locker.stdin.flush()
        assert locker.stdout.readline() == "done\n"
        assert invoices(journal) == [(1, 1)]
        journal.topic("orders").append("placed", 1)
        locker.stdin.write("\n")
        locker.stdin.close()
    assert journal.topic("orders").latest == 1


def test_connections_of_the_same_library_read_in_this_process(journal: penstock.Journal, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "shop.db"), flags=apsw.SQLITE_OPEN_READONLY)
    with journal.transaction() as tx:
        tx.sql("INSERT INTO invoices (total) VALUES (1)")
        assert connection.execute("SELECT count(*) FROM invoices").get == 0
    assert connection.execute("SELECT count(*) FROM invoices").get == 1
    connection.close()


def test_a_backup_has_the_tables(journal: penstock.Journal, tmp_path: Path) -> None:
    with journal.transaction() as tx:
        tx.sql("INSERT INTO invoices (total) VALUES (3)")
        tx.append("orders", "placed", 3)
    journal.backup(tmp_path / "backup.db")
    with penstock.open(tmp_path / "backup.db") as restored:
        assert invoices(restored) == [(1, 3)] and restored.topic("orders").latest == 1


@pytest.mark.parametrize("url", ["memory:", "file:{}", "rocksdb:{}"])
def test_other_engines_refuse_with_a_sentence(tmp_path: Path, url: str) -> None:
    refused = pytest.raises(ConfigError, match=r"tx\.sql needs a journal in a SQLite file")
    with penstock.open(url.format(tmp_path / "store")) as other, other.transaction() as tx, refused:
        tx.sql("SELECT 1")

"""The two formats of a SQLite store: rows with numbered keys in a table of their own, and all rows in one table."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.core.engine import sqlite
from penstock.core.engine.sqlite import FIRST_FORMAT, FORMAT, SqliteEngine
from penstock.core.journal import keys
from penstock.core.journal.keys import block_key

FIRST_TABLE = "CREATE TABLE kv(id INTEGER PRIMARY KEY, k BLOB NOT NULL UNIQUE, v BLOB NOT NULL) STRICT"


def make(path: Path, version: int) -> Path:
    """An empty store of a format, as the version of penstock made it that knew no later one."""
    if version == FIRST_FORMAT:
        with closing(apsw.Connection(str(path))) as raw:
            raw.execute("PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL").fetchall()
            raw.execute(
                f"BEGIN; {FIRST_TABLE}; PRAGMA application_id={sqlite.APPLICATION_ID};"
                f"PRAGMA user_version={FIRST_FORMAT}; COMMIT"
            ).fetchall()
    else:
        SqliteEngine(str(path)).close()
    return path


def tables(path: Path) -> dict[str, int]:
    """The number of rows in each table."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as raw:
        names = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type='table'").fetchall()]
        return {name: raw.execute(f"SELECT count(*) FROM {name}").get for name in names}


def some_key(rng: random.Random) -> bytes:
    """A key near the borders between the tables."""
    first = rng.choice([0, 1, 2, (1 << 23) - 2, (1 << 23) - 1, (1 << 32) - 1])
    second = rng.choice([0, 1, 2, 255, (1 << 40) - 1, 1 << 40, (1 << 63) - 1])
    key = block_key(first, second)
    return rng.choice(
        [key, key, key, key[:12], key[:5], key[:1], key + b"\0", key + b"\xff", b"a" + key[1:], b"c", b"z"]
    )


@pytest.mark.parametrize("version", [FIRST_FORMAT, FORMAT])
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_one_ordered_map_whatever_tables_they_lie_in(tmp_path: Path, version: int, seed: int) -> None:
    rng, expected = random.Random(seed), dict[bytes, bytes]()
    with closing(SqliteEngine(str(make(tmp_path / "s.db", version)), durability="process")) as engine:
        for _ in range(40):
            with engine.write() as tx:
                for _ in range(rng.randrange(12)):
                    key, value = some_key(rng), rng.randbytes(rng.randrange(4))
                    match rng.randrange(8):
                        case 0:
                            tx.delete(key)
                            expected.pop(key, None)
                        case 1:
                            start, stop = sorted((key, some_key(rng)))
                            tx.delete_range(start, stop)
                            expected = {k: v for k, v in expected.items() if not start <= k < stop}
                        case _:
                            tx.put(key, value)
                            expected[key] = value
                    assert tx.get(key) == expected.get(key)
                start, stop = some_key(rng), some_key(rng)
                within = sorted((k, v) for k, v in expected.items() if start <= k < stop)
                assert list(tx.scan(start, stop)) == within
            with engine.read() as snap:
                assert list(snap.scan(start, stop, reverse=True)) == within[::-1]
                assert list(snap.scan(b"", b"\xff")) == sorted(expected.items())
                assert all(snap.get(key) == value for key, value in expected.items())


def test_blocks_of_a_new_store_lie_in_the_table_of_numbered_keys(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with penstock.open(path) as journal:
        journal.topic("t").append("k", 1)
    assert tables(path)["numbered"] == 1


def test_a_store_of_the_first_format_goes_on_as_it_is(tmp_path: Path) -> None:
    path = make(tmp_path / "s.db", FIRST_FORMAT)
    for more in range(3):
        with penstock.open(path) as journal:
            topic = journal.topic("t")
            topic.append("k", more)
            journal.queue("q").push(more)
            assert [event.payload for event in topic.read()] == list(range(more + 1))
            delivery = journal.queue("q").take()
            assert delivery is not None
            delivery.ack()
            with journal.transaction() as tx:  # a name that is the store's own in a store of the second format
                tx.sql("CREATE TABLE IF NOT EXISTS numbered (text)")
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as raw:
            assert raw.execute("PRAGMA user_version").get == FIRST_FORMAT
    with penstock.open(path, read_only=True) as journal:
        assert [event.payload for event in journal.topic("t").read()] == [0, 1, 2]
        journal.copy_to(tmp_path / "copy.db")
    assert tables(tmp_path / "copy.db")["numbered"] == 6


def test_a_backup_keeps_the_format(tmp_path: Path) -> None:
    for version in (FIRST_FORMAT, FORMAT):
        with penstock.open(make(tmp_path / f"{version}.db", version)) as journal:
            journal.topic("t").append_many([penstock.Draft("k", at) for at in range(10)])
            journal.backup(tmp_path / f"backup-{version}.db")
        with penstock.open(tmp_path / f"backup-{version}.db") as journal:
            journal.topic("t").append("k", 10)
            assert [event.payload for event in journal.topic("t").read()] == list(range(11))
        assert ("numbered" in tables(tmp_path / f"backup-{version}.db")) == (version == FORMAT)


def test_a_bound_between_two_numbered_keys_counts_as_the_later_one() -> None:
    key = block_key(3, 7)
    assert sqlite.number_from(key) == sqlite.number_of(key)
    assert sqlite.number_from(key + b"\0") == sqlite.number_of(block_key(3, 8))
    assert sqlite.number_from(keys.block_range(3)[1]) == sqlite.number_of(block_key(4, 0))

"""Rows that are not what was stored: a SQLite value of another type, a record that names another topic."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.core.journal import keys
from penstock.errors import Corrupt


def filled(path: Path) -> None:
    with penstock.open(f"sqlite:{path}") as journal:
        journal.topic("t").append("k", 1)
        journal.topic("u").append("k", 2)


@pytest.mark.parametrize("value", ["7", "NULL", "1.5", "'text'", "CAST(x'93ff' AS TEXT)"])
def test_a_row_that_holds_no_bytes_is_corrupt(tmp_path: Path, value: str) -> None:
    filled(tmp_path / "store")
    with closing(apsw.Connection(str(tmp_path / "store"))) as raw:  # as a changed byte does, which knows no constraint
        raw.execute("PRAGMA writable_schema=1")
        raw.execute("UPDATE sqlite_schema SET sql = replace(replace(sql, ' STRICT', ''), 'v BLOB NOT NULL', 'v')")
    with closing(apsw.Connection(str(tmp_path / "store"))) as raw:
        raw.execute(f"UPDATE numbered SET v = {value}")
    with penstock.open(f"sqlite:{tmp_path / 'store'}") as journal, pytest.raises(Corrupt):
        list(journal.topic("t").read())
        list(journal.topic("u").read())


def test_a_topic_whose_record_names_another_is_corrupt(tmp_path: Path) -> None:
    """A changed number in a topic's record must not show another topic's events under its name."""
    filled(tmp_path / "store")
    with penstock.open(f"sqlite:{tmp_path / 'store'}") as journal, journal._engine.write() as tx:
        other = tx.get(keys.topic_key("t"))
        assert other is not None
        tx.put(keys.topic_key("u"), other)
    with (
        penstock.open(f"sqlite:{tmp_path / 'store'}") as journal,
        pytest.raises(Corrupt, match="'u' fails its checksum"),
    ):
        list(journal.topic("u").read())

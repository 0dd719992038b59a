"""Several writers of one LMDB store: each knows of what another wrote, whenever that was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.engine.lmdb.engine import LmdbEngine


class FollowedBy:
    """A transaction with which another process commits in the instant after its own commit."""

    def __init__(self, txn: Any, other: Any) -> None:
        self._txn, self._other = txn, other

    def commit(self) -> None:
        self._txn.commit()
        self._other()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


@pytest.mark.parametrize("changes", [False, True])
def test_a_commit_right_after_ones_own_is_known_to_be_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """A transaction that changed nothing takes no number: another's next commit has the number it would have had."""
    one, two = LmdbEngine(str(tmp_path / "store")), LmdbEngine(str(tmp_path / "store"))

    def write_two() -> None:
        with two.write() as tx:
            tx.put(b"two", b"2")

    with one.write() as tx:
        tx.put(b"one", b"1")
    with one.write() as tx:
        assert not tx.foreign
        tx.put(b"one", b"1")
    begin = one._begin_write
    monkeypatch.setattr(one, "_begin_write", lambda: FollowedBy(begin(), write_two))
    with one.write() as tx:
        tx.delete(b"one" if changes else b"none")
        tx.delete_range(b"x", b"y")
    monkeypatch.undo()
    with one.write() as tx:
        assert tx.foreign and tx.get(b"two") == b"2"
    with one.write() as tx:
        assert not tx.foreign
    one.close()
    two.close()

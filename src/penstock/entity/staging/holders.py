"""Exclusive fences that other processes can see: a row in the store for each, while its process lives.

What a fence hides is in the memory of its process. That it is open is written down where several processes may write
one store: a commit that finds that another process has committed since the last one reads it, and appends nothing while
the fence is open. The row goes with the fence's commit, or right after its cancelling; one whose process has ended, or
that came here with a copy of a store, counts for nothing.
"""

from __future__ import annotations

import os

from penstock.engine.contract import Engine, WriteTx
from penstock.journal.commit.commit import Commit
from penstock.journal.owners import is_alive
from penstock.journal.storage import keys


def hold(commit: Commit, engine: Engine, owner: str) -> None:
    """Writes down that an exclusive fence is open."""
    commit.tx.put(keys.FENCE + owner.encode(), _which(engine))


def let_go(commit: Commit, owner: str) -> None:
    """Removes what was written down."""
    commit.tx.delete(keys.FENCE + owner.encode())


def find_holder(engine: Engine, tx: WriteTx) -> str:
    """The process that has an exclusive fence open, for people; "" for none. What dead ones have left is removed."""
    rows = list(tx.scan(keys.FENCE, keys.prefix_end(keys.FENCE)))
    here = _which(engine) if rows else b""
    for key, place in rows:
        owner = key[len(keys.FENCE) :].decode(errors="replace")
        if place == here and is_alive(owner):
            return f"process {owner.split(':')[1]}"
        tx.delete(key)
    return ""


def _which(engine: Engine) -> bytes:
    """Which file a store is: a copy of it is another."""
    found = os.stat(engine.location or "")  # noqa: PTH116
    return f"{found.st_dev}:{found.st_ino}".encode()

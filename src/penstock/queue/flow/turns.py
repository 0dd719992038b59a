"""Fair share: messages of a queue are sorted into lanes, by a header or by their key, and the lanes take turns.

Start-time fair queuing: every message gets a turn when it becomes ready, one after the last of its lane, but not before
the group's present turn; the lowest turn is next. A lane with a million messages has a million turns ahead of it, and
the first message of another lane gets the present one. A take reads the first row of an index; it searches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.journal.commit.commit import Commit
from penstock.queue.flow.rows import flow_key, flow_rows, forget_rows

if TYPE_CHECKING:
    from penstock.queue.state.group import Group

LONGEST_LANE = 200
"""Bytes of a lane's name that are kept as they are: a header may be longer than a row's key."""


def check_fair_by(value: Any) -> str | None:
    """What lanes are made of: a header's name, "key", or "key:" and what ends the part of the key that counts."""
    if value is None:
        return None
    if not isinstance(value, str) or not value or value == "key:":
        raise ConfigError(
            f'fair_by must be the name of a header, "key", or "key:/" for the part of the key before a "/", '
            f"not {value!r:.80}"
        )
    return value


def lane_of(fair_by: str, key: str | None, headers: Mapping[str, str] | None) -> str:
    """The lane of a message; those that do not say share one."""
    if fair_by == "key":
        lane = key or ""
    elif fair_by.startswith("key:"):
        lane = (key or "").partition(fair_by[4:])[0]
    else:
        lane = (headers or {}).get(fair_by, "")
    text = lane.encode()
    return lane if len(text) <= LONGEST_LANE else blake2b(text, digest_size=32).hexdigest()


def next_turn(present: int, lanes_next: int) -> int:
    """The turn of a lane's new message: its next one, or the present one of the group if that is later."""
    return max(present, lanes_next, 1)


def take_turn(commit: Commit, group: Group, lane: str) -> int:
    """Gives the next message of a lane its turn."""
    row = flow_key(group.topic, group.number, b"t", lane)
    value = commit.tx.get(row)
    turn = next_turn(group.record.turn, 0 if value is None else int.from_bytes(value))
    commit.tx.put(row, (turn + 1).to_bytes(8))
    return turn


def forget_lanes(commit: Commit, group: Group, after: bytes) -> bytes:
    """Removes lanes whose turns are all over, some at a time; returns where to go on."""
    rows = flow_rows(group.topic, group.number, b"t")
    return forget_rows(commit, rows, after, lambda value: int.from_bytes(value) <= group.record.turn)

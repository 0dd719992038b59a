"""Fair share: messages of a queue are sorted into lanes, by a header or by their key, and the lanes take turns.

Start-time fair queuing: the first message of every lane has a turn, and the lowest turn is next. A lane that hands a
message out has its next turn one later; one that had nothing begins with the group's present turn. A message that
goes unhandled (discarded, moved, too old) leaves its turn to the next of its lane. One that was handed out keeps its
turn until it is settled. A take reads the first row of an index; it searches nothing.

A lane that has nothing ready has no row: the turn it would have had next becomes the group's, so that it does not come
before others again when it has something soon after. Others that come new begin with that turn as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.engine.contract import Snapshot
from penstock.errors import ConfigError
from penstock.journal.commit.commit import Commit
from penstock.queue.flow.rows import flow_key
from penstock.queue.state import keys
from penstock.queue.token import blake2b

if TYPE_CHECKING:
    from penstock.queue.state.group import Group
    from penstock.queue.state.records import MessageRow

LONGEST_LANE = 200
"""Bytes of a lane's name that are kept as they are: a header may be longer than a row's key."""
TURN_STEP = 32
"""How many messages with the same turn a take looks at together."""


def check_fair_by(value: object) -> str | None:
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


def lane_for(commit: Commit, group: Group, message: MessageRow, lane: str | None) -> str | None:
    """The lane in which a ready message waits for its turn; None where it needs none. `lane`: the one a push knows."""
    fair_by = group.queue.record.policy.fair_by
    if fair_by is None or message.turn:
        return None
    if lane is not None:
        return lane
    event = group.queue.blocks.event(commit.tx, message.seq)
    return lane_of(fair_by, message.key, None if event is None else event.headers)


def join_lane(commit: Commit, group: Group, lane: str, seq: int) -> None:
    """A message becomes ready: it has its place in its lane, and the lane's turn if it is the first."""
    tx = commit.tx
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    tx.put(keys.lane_key(group.topic, group.number, lane, seq), b"")
    if first and first < seq:
        return
    if first:
        tx.delete(keys.turn_key(group.topic, group.number, turn, first))
    else:
        turn = max(group.record.turn, 1)
    tx.put(keys.turn_key(group.topic, group.number, turn, seq), b"")
    tx.put(row, keys.pack_seqs([turn, seq]))


def leave_lane(commit: Commit, group: Group, lane: str, seq: int) -> None:
    """A message leaves its lane without having been handed out: its turn is the next one's."""
    tx = commit.tx
    tx.delete(keys.lane_key(group.topic, group.number, lane, seq))
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    if first == seq:
        tx.delete(keys.turn_key(group.topic, group.number, turn, seq))
        _call(commit, group, lane, row, turn, seq)


def spend_turn(commit: Commit, group: Group, lane: str, seq: int) -> int:
    """The first message of a lane is handed out: it has the lane's turn to itself, and the next one the turn after."""
    tx = commit.tx
    tx.delete(keys.lane_key(group.topic, group.number, lane, seq))
    row = flow_key(group.topic, group.number, b"t", lane)
    turn, first = _read_lane(tx, row)
    assert first == seq
    _call(commit, group, lane, row, turn + 1, seq)
    return turn


def whose_turn(snap: Snapshot, group: Group, latest: int, limit: int) -> list[int]:
    """Some messages that have the lowest turn: once one is taken, the next of its lane has a later one."""
    found: list[int] = []
    present = 0
    for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"z")):
        turn, seq = keys.split_turn(key)
        if (found and turn != present) or len(found) >= min(limit, TURN_STEP):
            break
        if seq <= latest:  # what this very commit pushes has its row, but its event is not written yet
            present = turn
            found.append(seq)
    return found


def in_turn(snap: Snapshot, group: Group, overdue: int) -> Iterator[int]:
    """Ready messages with a turn, or a place in a lane, in the order in which they would be taken; without those up to
    `overdue`, which have outlived their ttl."""
    following: list[tuple[int, int]] = []
    rows = (keys.split_turn(key) for key, _ in snap.scan(*keys.rows(group.topic, group.number, b"z")))
    row = next(rows, None)
    while row is not None or following:
        if row is None or (following and following[0] < row):
            turn, seq = heapq.heappop(following)
        else:
            (turn, seq), row = row, next(rows, None)
        message = group.message(snap, seq)
        if message is not None and message.lane is not None:
            is_over = seq <= overdue
            after = _first_after(snap, group, message.lane, overdue if is_over else seq)
            if after:
                heapq.heappush(following, (turn if is_over else turn + 1, after))
        if seq > overdue:
            yield seq


def _read_lane(snap: Snapshot, row: bytes) -> tuple[int, int]:
    """A lane's turn, and the position of its first ready message; 0: it has none."""
    value = snap.get(row)
    turn, first = (0, 0) if value is None else keys.unpack_seqs(value)
    return turn, first


def _call(commit: Commit, group: Group, lane: str, row: bytes, turn: int, after: int) -> None:
    """Gives the first message of a lane after a position the lane's turn; without one the lane goes."""
    first = _first_after(commit.tx, group, lane, after)
    if first:
        commit.tx.put(keys.turn_key(group.topic, group.number, turn, first), b"")
        commit.tx.put(row, keys.pack_seqs([turn, first]))
    else:
        commit.tx.delete(row)
        commit.touch(group)
        group.record.turn = max(group.record.turn, turn)


def _first_after(snap: Snapshot, group: Group, lane: str, after: int) -> int:
    """The first ready message of a lane after a position, 0 when there is none."""
    start = keys.lane_key(group.topic, group.number, lane, after + 1)
    for key, _ in snap.scan(start, keys.lane_end(group.topic, group.number, lane)):
        return keys.tail_seq(key)
    return 0

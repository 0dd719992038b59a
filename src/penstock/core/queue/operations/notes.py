"""Notes of a call beside its message: the results of its steps, which outlive attempts, and its progress.

    qg t g e seq name   what a step returned, as JSON
    qg t g o seq        the progress of the attempt under way, and its step

A note is written under the message's lease, so a consumer without the lease writes no note. Notes are removed when the
message is settled. The results of steps move with a message to the dead letters, back, and to other queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.clock import from_ms
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal.commit import Commit
from penstock.core.names import check_text
from penstock.core.observe.sample import TaskProgress
from penstock.core.queue.dead_letters import GROUP
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import WORK, QueueState
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.leases import HeldMessage
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


class ProgressRow(msgspec.Struct, array_like=True):
    share: float
    text: str | None
    at_ms: int
    step: str | None = None
    secret: bytes = b""
    """The secret of the lease, which no other attempt has."""


_read_progress = keys.row_decoder(ProgressRow)


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_steps(snap: Snapshot, group: Group, seq: int) -> dict[str, bytes]:
    """Returns the results of a message's steps so far, as JSON, by name."""
    if not group.queue.traits.notes:
        return {}
    begin = len(group.row(keys.STEP, seq))
    return {key[begin:].decode(): value for key, value in snap.scan(*group.rows(keys.STEP, seq - 1, seq))}


def store_step(commit: Commit, held: HeldMessage[Group], name: str, result: bytes) -> None:
    """Stores the result of a step; the step is no longer under way."""
    put_steps(commit, held.group, held.seq, {name: result})
    key = held.group.row(keys.PROGRESS, held.seq)
    value = commit.tx.get(key)
    row = None if value is None else _read_progress(value, held.group.queue.name)
    if row is not None and row.step == name:
        commit.tx.put(key, keys.encode(msgspec.structs.replace(row, step=None)))


def put_steps(commit: Commit, group: Group, seq: int, steps: dict[str, bytes]) -> None:
    """Keeps the results of several steps of a message."""
    if not steps:
        return
    _note_notes(commit, group.queue)
    for name, result in steps.items():
        commit.tx.put(group.row(keys.STEP, seq) + name.encode(), result)


def _note_notes(commit: Commit, queue: QueueState) -> None:
    if not queue.traits.notes:
        queue.traits.notes = True
        queue.save_traits(commit)


def carry_steps(commit: Commit, groups: Iterable[Group], event: Event, target: QueueState, seq: int) -> None:
    """Copies the results of a message's steps to its copy in another queue."""
    for group in groups:
        steps = read_steps(commit.tx, group, event.seq)
        if steps and (there := _group_of(commit, target, event)) is not None:
            put_steps(commit, there, seq, steps)


def _group_of(commit: Commit, target: QueueState, event: Event) -> Group | None:
    """Returns the group that receives a message: in fanout mode the group in its headers."""
    if not target.fanout:
        return target.group(commit.tx, WORK)
    name = event.headers.get(GROUP, "")
    group_id = target.record.groups.get(name)
    return None if group_id is None else target.group(commit.tx, group_id, name)


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def check_progress(share: float, text: str | None, step: str | None = None) -> None:
    """Refuses an invalid progress."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise ConfigError(f"progress is a share from 0 to 1, not {share!r:.40}")
    if text is not None:
        check_text(text, "text")
    if step is not None:
        check_text(step, "step")


def note_progress(
    commit: Commit, held: HeldMessage[Group], share: float, text: str | None, step: str | None = None
) -> None:
    """Stores the progress that a message's handler reports, and its current step."""
    _note_notes(commit, held.group.queue)
    row = ProgressRow(float(share), text, commit.now_ms, step, held.lease.secret)
    commit.tx.put(held.group.row(keys.PROGRESS, held.seq), keys.encode(row))


def read_progress(snap: Snapshot, group: Group, seq: int, secret: bytes | None = None) -> TaskProgress | None:
    """Returns the last reported progress of a message; for a leased message, only of the current attempt."""
    value = snap.get(group.row(keys.PROGRESS, seq)) if group.queue.traits.notes else None
    if value is None:
        return None
    row = _read_progress(value, group.queue.name)
    if secret not in (None, row.secret):
        return None
    return TaskProgress(row.share, row.text, from_ms(row.at_ms), row.step)

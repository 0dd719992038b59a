"""The state of a call, and the run times of a task's calls, for callers and the console."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.journal.commit import Commit
from penstock.core.observe.sample import TaskProgress
from penstock.core.queue.state import keys

CallState = Literal["waiting", "running", "done", "failed", "dead"]


class TaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a call. It is found by the id of its receipt, wherever its message went."""

    id: str
    queue: str
    """The queue that holds the message, or in which the message was settled."""
    seq: int
    task: str
    state: CallState
    """"waiting": for a worker, for its time or for its next attempt. "running": a worker has the call. "done": the
    call returned. "failed": the call was given up, and its message stays in the queue. "dead": the call was given
    up, and its message left the queue.
    """
    result: Any = None
    """The result of the function."""
    binary: bool = False
    """True if the result is bytes; in JSON they are base64."""
    error: str | None = None
    """Why its last attempt failed, or why a call that it waits for was given up."""
    traceback: str | None = None
    reason: str | None = None
    """The reason why the call was given up."""
    attempts: int = 0
    """The number of times that a worker has begun the call."""
    max_attempts: int | None = None
    pushed_at: datetime | None = None
    started_at: datetime | None = None
    """The time when its last attempt began."""
    finished_at: datetime | None = None
    due: datetime | None = None
    """The time when the call may begin, if it waits for its time."""
    consumer: str | None = None
    """The worker that has the call."""
    progress: TaskProgress | None = None


# ── run times ────────────────────────────────────────────────────────────────────────────────────────────────────────
HOUR_MS: Final = 3_600_000
STEPS: Final = 4
"""The number of buckets for each doubling of a time: a percentile is at most a tenth off."""


class TaskTimes(msgspec.Struct, frozen=True):
    """The durations of a task's calls, from delivery to settlement, in this hour and the hour before."""

    task: str
    done: int
    """The number of calls that ever returned."""
    failed: int
    """The number of calls that were ever given up."""
    recent: int
    """The number of calls that the percentiles include."""
    p50: float | None
    """The seconds within which half of these calls returned."""
    p95: float | None


class TimesRow(msgspec.Struct, array_like=True):
    """A task's row: counts by bucket, of the hour and of the hour before."""

    hour: int
    now: dict[int, int] = {}
    before: dict[int, int] = {}
    done: int = 0
    failed: int = 0

    def turn(self, now_ms: int) -> None:
        """Begins a new hour when it is time; after the clock was set back, the current hour continues."""
        hour = now_ms // HOUR_MS
        if hour > self.hour:
            self.before = self.now if hour == self.hour + 1 else {}
            self.now, self.hour = {}, hour


_read = keys.row_decoder(TimesRow)


def note_run(commit: Commit, topic: int, queue: str, task: str, took_ms: int | None) -> None:
    """Counts a call that returned after some time; None counts a call that was given up."""
    key = keys.task_key(topic, task)
    value = commit.tx.get(key)
    row = TimesRow(commit.now_ms // HOUR_MS) if value is None else _read(value, queue)
    row.turn(commit.now_ms)
    if took_ms is None:
        row.failed += 1
    else:
        bucket = round(STEPS * math.log2(max(0, took_ms) + 1))
        row.now[bucket] = row.now.get(bucket, 0) + 1
        row.done += 1
    commit.tx.put(key, keys.encode(row))


def task_times(snap: Snapshot, topic: int, queue: str, now_ms: int) -> list[TaskTimes]:
    """Returns the run times of every task of a queue, by name."""
    found = []
    for key, value in snap.scan(*keys.task_range(topic)):
        row = _read(value, queue)
        row.turn(now_ms)
        counts = Counter(row.now)
        counts.update(row.before)
        total = counts.total()
        times = _percentile(counts, total, 0.5), _percentile(counts, total, 0.95)
        found.append(TaskTimes(keys.task_name(key), row.done, row.failed, total, *times))
    return found


def _percentile(counts: Counter[int], total: int, share: float) -> float | None:
    passed = 0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= share * total:
            return round((2 ** (bucket / STEPS) - 1) / 1000, 4)
    return None

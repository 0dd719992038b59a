"""Periodic messages: exactly one push per tick, however many processes have the queue open.

A schedule is a row with the time of its next tick. A process that finds a due schedule pushes the message and moves the
time forward, in one commit; a second process then finds the new time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.core.clock import SystemClock, from_ms, seconds
from penstock.core.engine.contract import Snapshot
from penstock.core.events import Receipt
from penstock.core.journal.blocks import Columns
from penstock.core.journal.commit import Commit
from penstock.core.journal.waking import Background
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.push import PushOptions
from penstock.core.names import check_consumer, is_whole
from penstock.core.observe.logs import Log
from penstock.core.queue.inspect import open_view
from penstock.core.queue.operations.push import (
    DeliveryOptions,
    as_batch,
    check_rank,
    push,
    read_delivery_options,
    refuse_keys,
)
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueState
from penstock.core.queue.state.records import NEVER, encode, read_queue
from penstock.errors import Closed, ConfigError, FenceActive, PenstockError

if TYPE_CHECKING:
    from cronsim import CronSim

    from penstock.core.protocol.queues import NewSchedule
    from penstock.core.queue.queue import LocalQueue
    from penstock.core.queue.registry import QueueRegistry

log = Log("penstock.queue")

Missed = Literal["all", "last", "none"]

NAME_HEADER = "schedule"
TICK_HEADER = "schedule-tick"

TICKS_AT_ONCE = 500
"""The most missed ticks that one commit makes up for."""
LONGEST_NAP = 1.0
SHORT_NAP = 0.02
RETRY_MS = 100
"""The pause before a tick that the queue refused is tried again."""


class ScheduleRecord(msgspec.Struct, array_like=True):
    interval: float | None
    cron: str | None
    timezone: str
    missed: Missed
    next_ms: int
    kind: str
    payload: bytes
    binary: bool
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0
    last_ms: int = 0


class Schedule(msgspec.Struct, frozen=True):
    """A periodic message of a queue."""

    name: str
    queue: str
    interval: float | None
    """Seconds between two ticks, or None for a cron line."""
    cron: str | None
    timezone: str
    missed: Missed
    next_tick: datetime
    last_tick: datetime | None
    kind: str


_read = keys.row_decoder(ScheduleRecord)


# ── managing ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def add(queue: LocalQueue, wanted: NewSchedule, payload: object) -> Schedule:
    name, key, priority = check_consumer(wanted.name, "schedule"), wanted.key, wanted.priority
    if wanted.missed not in ("all", "last", "none"):
        raise ConfigError(f'missed is "all", "last" or "none", not {wanted.missed!r}')
    if (wanted.interval is None) == (wanted.cron is None):
        raise ConfigError('give one of "interval" and "cron"')
    if not is_whole(priority):
        raise ConfigError(f"the priority of a schedule is a whole number, not {priority!r:.40}")
    read_delivery_options(queue.journal.clock, PushOptions(priority=priority), key)
    columns = queue.prepare(payload, PushOptions(wanted.kind, key, headers=wanted.headers))[0].columns
    find_zone(wanted.timezone)
    made = ScheduleRecord(
        None if wanted.interval is None else seconds(wanted.interval, "interval", minimum=0.001),
        None if wanted.cron is None else Cron(wanted.cron, wanted.timezone).line,
        wanted.timezone,
        wanted.missed,
        0,
        columns.kinds[0],
        columns.payloads[0],
        bool(columns.binary and columns.binary[0]),
        dict(columns.headers[0]) if columns.headers and columns.headers[0] else None,
        key,
        priority,
    )

    def apply(commit: Commit, state: QueueState) -> ScheduleRecord:
        if priority:
            check_rank(state, priority)
        if key is not None:
            refuse_keys(state)
        known = _find(commit.tx, state, name)
        if known is not None:
            if msgspec.structs.replace(known, next_ms=0, last_ms=0) == made:
                return known
            commit.tx.delete(keys.tick_key(state.topic, known.next_ms, name))
        record = msgspec.structs.replace(made, next_ms=tick_after(made, commit.now_ms))
        _save(commit, state, name, record)
        return record

    record = queue.change(apply)
    queue.registry.scheduler.watch(queue.name, start=True)
    return _shown(queue.name, name, record)


def list_schedules(queue: LocalQueue) -> list[Schedule]:
    with open_view(queue) as view:
        rows = view.snap.scan(*keys.schedule_range(view.state.topic))
        return [_shown(queue.name, keys.schedule_name(key), _read(value, queue.name)) for key, value in rows]


def push_now(queue: LocalQueue, name: str) -> Receipt:
    """Pushes a schedule's message at once, without a change of its ticks; raises ConfigError for an unknown
    schedule.
    """
    with open_view(queue) as view:
        record = _find(view.snap, view.state, name)
    if record is None:
        raise ConfigError(f"queue {queue.name!r} has no schedule {name!r}")
    payload = record.payload if record.binary else msgspec.json.decode(record.payload)
    headers = {**(record.headers or {}), NAME_HEADER: name}
    return queue.push(payload, PushOptions(record.kind, record.key, record.priority, headers=headers))


def remove(queue: LocalQueue, name: str) -> bool:
    def apply(commit: Commit, state: QueueState) -> bool:
        record = _find(commit.tx, state, name)
        if record is None:
            return False
        commit.tx.delete(keys.tick_key(state.topic, record.next_ms, name))
        commit.tx.delete(keys.schedule_key(state.topic, name))
        return True

    return queue.change(apply)


def _shown(queue: str, name: str, record: ScheduleRecord) -> Schedule:
    return Schedule(
        name,
        queue,
        record.interval,
        record.cron,
        record.timezone,
        record.missed,
        from_ms(record.next_ms),
        from_ms(record.last_ms) if record.last_ms else None,
        record.kind,
    )


def _find(snap: Snapshot, queue: QueueState, name: str) -> ScheduleRecord | None:
    value = snap.get(keys.schedule_key(queue.topic, name))
    return None if value is None else _read(value, queue.name)


def _save(commit: Commit, queue: QueueState, name: str, record: ScheduleRecord) -> None:
    """Writes a schedule with the row of its next tick; a caller that changes the time deletes the row of the earlier
    time.
    """
    commit.tx.put(keys.schedule_key(queue.topic, name), encode(record))
    commit.tx.put(keys.tick_key(queue.topic, record.next_ms, name), b"")
    commit.tx.put(keys.tick_key(queue.topic, 0, ""), keys.pack_seq(commit.now_ms))


def _search(snap: Snapshot, queue: str, topic: int, now: int) -> tuple[list[str], int | None]:
    """Returns the schedules that are due, or whose times changed because the clock was set back; and the time of the
    first other schedule.
    """
    due, later = [], []
    for key, value in snap.scan(*keys.schedule_range(topic)):
        record = _read(value, queue)
        if _next_ms(record, now) < record.next_ms or record.next_ms <= now:
            due.append(keys.schedule_name(key))
        else:
            later.append(record.next_ms)
    return due, min(later, default=None)


# ── ticking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def tick_after(record: ScheduleRecord, after_ms: int) -> int:
    """Returns the first tick after a time; the ticks of a period keep their distance."""
    if record.cron is not None:
        moment = Cron(record.cron, record.timezone).next(from_ms(after_ms))
        return round(moment.timestamp() * 1000)
    assert record.interval is not None
    step = _interval_ms(record.interval)
    if not record.next_ms:
        return after_ms + step
    return record.next_ms + step * max(1, (after_ms - record.next_ms) // step + 1)


def _next_ms(record: ScheduleRecord, now: int) -> int:
    """Returns the time of the next tick.

    For a period it is at most one period from now, even after the clock was set back.
    """
    return record.next_ms if record.interval is None else min(record.next_ms, now + _interval_ms(record.interval))


def _interval_ms(interval: float) -> int:
    return max(1, round(interval * 1000))


def _due_ticks(record: ScheduleRecord, now: int) -> tuple[list[int], int]:
    """Returns the ticks to push now, and the next tick after them."""
    ticks: list[int] = []
    at = record.next_ms
    if record.missed == "all":
        while at <= now and len(ticks) < TICKS_AT_ONCE:
            ticks.append(at)
            at = tick_after(msgspec.structs.replace(record, next_ms=at), at)
        return ticks, at
    after = tick_after(record, now)
    last = _last_before(record, now)
    on_time = now - last <= _grace(record)
    return ([last] if record.missed == "last" or on_time else []), after


def _grace(record: ScheduleRecord) -> int:
    """Returns the longest delay of a tick that does not count as missed."""
    return 60_000 if record.interval is None else max(1000, round(record.interval * 1000))


def _last_before(record: ScheduleRecord, now: int) -> int:
    """Returns the newest tick at or before now."""
    if record.interval is not None:
        step = _interval_ms(record.interval)
        return record.next_ms + (now - record.next_ms) // step * step
    assert record.cron is not None
    found = Cron(record.cron, record.timezone).last(from_ms(now))
    return record.next_ms if found is None else max(record.next_ms, round(found.timestamp() * 1000))


def tick(commit: Commit, state: QueueState, name: str) -> int | None:
    """Pushes the due ticks of a schedule; returns the time of its next tick, which may be now, or None for a removed
    schedule.
    """
    record = _find(commit.tx, state, name)
    if record is None:
        return None
    next_ms = _next_ms(record, commit.now_ms)
    if next_ms == record.next_ms > commit.now_ms:
        return next_ms
    commit.tx.delete(keys.tick_key(state.topic, record.next_ms, name))
    record.next_ms = next_ms
    if record.next_ms > commit.now_ms:
        _save(commit, state, name, record)
        return record.next_ms
    ticks, following_ms = _due_ticks(record, commit.now_ms)
    if ticks:
        columns = Columns([record.kind] * len(ticks), [record.payload] * len(ticks))
        if record.binary:
            columns.binary = [True] * len(ticks)
        if record.key is not None:
            columns.key = [record.key] * len(ticks)
        columns.headers = [
            {**(record.headers or {}), NAME_HEADER: name, TICK_HEADER: from_ms(at).isoformat()} for at in ticks
        ]
        push(commit, state, as_batch(columns), DeliveryOptions(record.priority) if record.priority else None)
        record.last_ms = ticks[-1]
    record.next_ms = following_ms
    _save(commit, state, name, record)
    return following_ms


class Scheduler(Background):
    """The thread that pushes periodic messages, for every queue with schedules that is open here."""

    def __init__(self, registry: QueueRegistry) -> None:
        super().__init__("penstock-schedules", log)
        self._registry = registry
        self._watched: set[str] = set()

    def watch(self, queue: str, *, start: bool = False) -> None:
        """Runs the schedules of a queue that was opened here, if it has schedules."""
        if self._registry.core.engine.read_only:
            return
        if not start:
            with self._registry.core.engine.read() as snap:
                value = snap.get(keys.queue_key(queue))
                start = value is not None and any(snap.scan(*keys.schedule_range(read_queue(value, queue).topic)))
        if start:
            with self._lock:
                self._watched.add(queue)
            self._wake()

    def _run(self) -> None:
        clock = self._registry.core.clock
        longest = LONGEST_NAP if isinstance(clock, SystemClock) else SHORT_NAP
        while not self._closed:
            try:
                earliest = self.run_due()
            except Closed:
                return
            except PenstockError as error:
                log.warning("periodic messages are late: %s", error)
                earliest = None
            nap = longest if earliest is None else (earliest - clock.now_ms()) / 1000
            self._wanted.wait(min(max(nap, 0.001), longest))
            self._wanted.clear()

    def run_due(self) -> int | None:
        """Pushes the due messages; returns the time of the next tick."""
        earliest = None
        with self._lock:
            watched = list(self._watched)
        for queue in watched:
            due, later = self._due_of(queue)
            times = [self._tick(queue, name) for name in due] + [later]
            earliest = min((one for one in (*times, earliest) if one is not None), default=None)
        return earliest

    def _due_of(self, queue: str) -> tuple[list[str], int | None]:
        """Returns the schedules of a queue that are due, or whose times were moved by a clock that was set back; when
        the first other one is."""
        core = self._registry.core
        with core.engine.read() as snap:
            value, now = snap.get(keys.queue_key(queue)), core.clock.now_ms()
            if value is None:
                return [], None
            record = read_queue(value, queue)
            seen = snap.get(keys.tick_key(record.topic, 0, ""))
            if seen is None or now < keys.unpack_seq(seen):
                return _search(snap, queue, record.topic, now)
            due: list[str] = []
            for key, _ in snap.scan(keys.tick_key(record.topic, 1, ""), keys.tick_key(record.topic, NEVER, "")):
                at, name = keys.split_tick(key)
                if at > now:
                    return due, at
                due.append(name)
        return due, None

    def _tick(self, queue: str, name: str) -> int | None:
        """Pushes a schedule's ticks; returns when it is due again.

        A schedule that cannot push does not delay other schedules.
        """
        cache, clock = self._registry.cache, self._registry.core.clock

        def apply(commit: Commit) -> int | None:
            state = cache.find(commit, queue)
            return None if state is None else tick(commit, state, name)

        try:
            while True:
                due = self._registry.core.writer.run(WriteRequest(apply))
                if due is None or due > clock.now_ms() or self._closed:
                    return due
        except FenceActive:
            return clock.now_ms() + RETRY_MS
        except Closed:
            raise
        except PenstockError as error:
            log.warning("periodic message %r has to wait: %s", name, error)
            return clock.now_ms() + RETRY_MS


# ── cron lines ───────────────────────────────────────────────────────────────────────────────────────────────────────
_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def cron_line(when: object) -> str | None:
    """Returns the text of a cron line; None for a period."""
    is_cron = isinstance(when, str) and (len(when.split()) > 2 or when.lstrip().startswith("@"))
    return when if is_cron and isinstance(when, str) else None


class Cron:
    """A cron line in a time zone."""

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        if not isinstance(line, str):
            raise ConfigError(f"a cron line is text of five fields, like '0 6 * * mon', not {line!r:.80}")
        self.line = " ".join(line.split())
        self._zone = find_zone(timezone)
        self._fields = _SHORTHANDS.get(self.line.lower(), self.line)
        if self._fields.startswith("@"):
            raise ConfigError(f"cron line {line!r} is none of {', '.join(_SHORTHANDS)}")
        if next(self._ticks(datetime(2000, 1, 1, tzinfo=UTC)), None) is None:
            raise ConfigError(f"cron line {line!r} never comes true: no month has such a day")

    def next(self, after: datetime) -> datetime:
        """Returns the first tick after a time, in UTC."""
        for tick in self._ticks(after):
            moment = tick.astimezone(UTC)
            if moment > after:  # when clocks go back, local times occur twice
                return moment
        raise ConfigError(f"cron line {self.line!r} has no tick after {after.isoformat()}")

    def last(self, at: datetime) -> datetime | None:
        """Returns the last tick at or before a time, in UTC."""
        for tick in self._ticks(at + timedelta(hours=3), reverse=True):
            moment = tick.astimezone(UTC)
            if moment <= at:
                return moment
        return None

    def _ticks(self, start: datetime, *, reverse: bool = False) -> CronSim:
        # Imported here: every start would pay for the import, and few programs have schedules.
        from cronsim import CronSim, CronSimError

        try:
            return CronSim(self._fields, start.astimezone(self._zone), reverse)
        except CronSimError as error:
            raise ConfigError(
                f"cron line {self.line!r} cannot be read: {error}; a line has five fields (minute hour day-of-month "
                "month day-of-week), or six with the seconds first"
            ) from error


def find_zone(name: str) -> tzinfo:
    """Returns a time zone by name; UTC needs no database."""
    if name == "UTC":
        return UTC
    # Imported here: it loads the interpreter's build configuration, which every start would pay for.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{name!r} is not a time zone this machine knows, such as 'Europe/Berlin'") from error

"""A journal's past in numbers, kept in the journal itself: a ring of a few hundred rows that survives restarts.

Every minute one row is written: how many events came, how many messages were settled, what waits where. Five minutes
and half an hour make coarser rows, so that a week is kept in 804 rows of at most two KiB each:

    minutes         180 rows    the last three hours
    five minutes    288 rows    the last day
    half hours      336 rows    the last week

A row lies under the slot of its time, so the ring overwrites itself, and two servers of one journal write the same row
rather than two. What stands still takes no room: a series that is not in a row was zero. A row has room for some fifty
series, the busiest first. The last quarter of an hour is kept in memory too, in steps of five seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.journal import keys
from penstock.core.observe.sample import QueueSample, Sample
from penstock.errors import PenstockError
from penstock.limits import HISTORY_ROW_BYTES

if TYPE_CHECKING:
    from penstock.core.journal.commit import Commit
    from penstock.core.local.backend import LocalJournal

STEP: Final = 5.0
"""Seconds between two rows that are only in memory."""
STEPS: Final = 180
"""The number of steps that are kept."""


class Tier(msgspec.Struct, frozen=True):
    """A ring of rows that each stand for so many seconds."""

    seconds: int
    rows: int


TIERS: Final = (Tier(60, 180), Tier(300, 288), Tier(1800, 336))

SETTLE_BUCKETS: Final = 24
"""Buckets of the histogram of settle times: bucket n holds what took less than 2**n milliseconds, the last all else."""
BUCKETS: Final = tuple(f"under_2_{n}_ms" for n in range(SETTLE_BUCKETS))

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "all": ("appended", "settled", "ready", "in_flight", "delayed", "failed", "dead", "oldest"),
    "topic": ("appended", "lag", "event_bytes"),
    "consumer": ("lag",),
    "queue": ("pushed", "settled", "ready", "in_flight", "delayed", "failed", "dead", "oldest"),
    "settle": BUCKETS,
    "flow": ("rows", "lag", "batch_ms", "rows_out"),
}
"""The quantities that the series of each kind measure."""
COUNTS: Final = frozenset(("appended", "settled", "pushed", "rows", "rows_out", *BUCKETS))
"""Fields that count what happened in a row's time; the others say how things stood at its end."""

ANEW: Final = frozenset(("rows", "rows_out", *BUCKETS))
"""Counts that may begin again at nothing."""

Values = dict[str, tuple[int, ...]]
"""Each series with its fields; a series is named `kind` or `kind:name`."""


class HistoryRow(msgspec.Struct, frozen=True):
    """The measurements of so many seconds that ended at a time."""

    at: float
    seconds: float
    values: Values
    cut: bool = False
    """True if there were more series than a row has room for; then one that is missing need not be zero."""

    def field(self, series: str, at: int) -> int | None:
        """Returns a field of a series; None when the row had no room for it."""
        found = self.values.get(series)
        if found is None:
            return None if self.cut else 0
        return found[at]


def series(kind: str, *names: str) -> str:
    """Returns the name of a series: of a topic, a topic's consumer, a queue's group, a flow."""
    return f"{kind}:{'/'.join(names)}"


# ── from samples to rows ─────────────────────────────────────────────────────────────────────────────────────────────
def measured(sample: Sample) -> Values:
    """Returns a sample as series; fields that count are totals since ever."""
    found: Values = {}
    settled = 0
    sums = [0] * 6
    for topic in sample.topics.values():
        found[series("topic", topic.name)] = (topic.latest, max(topic.lags.values(), default=0), topic.event_bytes)
        for consumer, lag in topic.lags.items():
            found[series("consumer", topic.name, consumer)] = (lag,)
    for groups in sample.queues.values():
        for group in groups:
            latest = sample.topics[group.name].latest if group.name in sample.topics else 0
            states = _states(group)
            # Letters are dead here too, but in the sum they are counted once, where they came from.
            here = (*states[:4], group.dead + (group.letters or 0), states[5])
            found[series("queue", group.name, group.group)] = (latest, group.settled, *here)
            if group.settle_times:
                found[series("settle", group.name, group.group)] = tuple(settle_counts(group.settle_times))
            settled += group.settled
            sums = [*map(sum, zip(sums[:5], states[:5], strict=True)), max(sums[5], states[5])]
    for flow in sample.flows:
        batch_ms = round((flow.batch_seconds or 0.0) * 1000)
        found[series("flow", flow.key)] = (flow.rows, flow.lag or 0, batch_ms, flow.rows_out)
    found["all"] = (sum(topic.latest for topic in sample.topics.values()), settled, *sums)
    return found


def _states(group: QueueSample) -> tuple[int, ...]:
    oldest = round(group.oldest_age or 0.0)
    return (group.ready, group.in_flight, group.delayed, group.failed, group.dead, oldest)


def settle_counts(times: Mapping[int, int]) -> list[int]:
    """Returns how many messages fell into each bucket of settle times."""
    counts = [0] * SETTLE_BUCKETS
    for bucket, count in times.items():
        counts[min(bucket, SETTLE_BUCKETS - 1)] += count
    return counts


def quantile_ms(counts: Sequence[int], share: float) -> float | None:
    """Returns the time below which a share of a histogram's messages were settled; None when there were none.

    Within a bucket times are taken to be spread evenly.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= wanted:
            low = 0.0 if not bucket else 2.0 ** (bucket - 1)
            return low + (2.0**bucket - low) * (wanted - below) / count
        below += count
    return 2.0 ** (len(counts) - 1)


def between(before: Values, after: Values, scale: float = 1.0) -> Values:
    """Returns the changes from one measurement to the next; series in which nothing happened and nothing waits are left
    out.

    `scale` makes up for a measurement that came late.
    """
    found: Values = {}
    for name, now in after.items():
        kind = _kind(name)
        past = before.get(name)
        values = []
        for at, (field, value) in enumerate(zip(FIELDS[kind], now, strict=True)):
            if field not in COUNTS:
                values.append(value)
            elif past is None:
                # A topic that was not there a moment ago has gone from nothing to what it is; a queue may be laid over
                # a topic that is old.
                values.append(value if kind in ("topic", "settle") else 0)
            else:
                # A flow that was restarted counts anew, and so does a queue that was made again.
                began = 0 if field in ANEW and value < past[at] else past[at]
                values.append(max(0, round((value - began) * scale)))
        # How large events are says nothing while none come.
        if any(values[:2] if kind == "topic" else values):
            found[name] = tuple(values)
    return found


def combined(rows: Iterable[HistoryRow], at: float, seconds: float) -> HistoryRow:
    """Returns several rows as one: counts are added, of levels the highest is kept."""
    found: dict[str, list[int]] = {}
    cut = False
    for row in rows:
        cut = cut or row.cut
        for name, values in row.values.items():
            kept = found.setdefault(name, [0] * len(values))
            for index, field in enumerate(FIELDS[_kind(name)]):
                kept[index] = kept[index] + values[index] if field in COUNTS else max(kept[index], values[index])
    return HistoryRow(at, seconds, {name: tuple(values) for name, values in found.items()}, cut)


# ── the ring ─────────────────────────────────────────────────────────────────────────────────────────────────────────
_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(tuple[int, bool, dict[str, tuple[int, ...]]]).decode


def _row_key(tier: int, at: float) -> bytes:
    """Returns the slot of a row that ends at a time."""
    ring = TIERS[tier]
    slot = round(at / ring.seconds) % ring.rows
    return keys.HISTORY + b"r" + bytes([tier]) + slot.to_bytes(2)


class History:
    """The past of one journal. `add` is given every sample; `over` answers with rows."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._recent: deque[HistoryRow] = deque(maxlen=STEPS)
        self._tiers: tuple[deque[HistoryRow], ...] = tuple(deque(maxlen=tier.rows) for tier in TIERS)
        self._step: tuple[float, Values] | None = None
        self._minute: tuple[float, Values] | None = None
        self._load()

    def add(self, sample: Sample) -> None:
        """Takes a sample in; a minute that it ends is written to the journal."""
        now = sample.at
        with self._lock:
            if self._step is not None and 0 <= now - self._step[0] < STEP:
                return
            values = measured(sample)
            if self._step is not None and now > self._step[0]:
                took = now - self._step[0]
                if took <= 3 * STEP:
                    self._recent.append(HistoryRow(now, took, between(self._step[1], values)))
            self._step = (now, values)
            if self._minute is None or now < self._minute[0]:
                self._minute = (now, values)
            elif now // 60 > self._minute[0] // 60:
                began, before = self._minute
                self._minute = (now, values)
                took = now - began
                if took >= 20:
                    self._close_minute(now // 60 * 60, between(before, values, 60 / max(took, 60.0)))

    def _close_minute(self, at: float, values: Values) -> None:
        rows = [(0, HistoryRow(at, 60, values))]
        self._tiers[0].append(rows[0][1])
        for number, tier in enumerate(TIERS[1:], 1):
            if at % tier.seconds == 0:
                finer = [row for row in self._tiers[number - 1] if at - tier.seconds < row.at <= at]
                rows.append((number, combined(finer, at, tier.seconds)))
                self._tiers[number].append(rows[-1][1])
        if not self._journal.backend.engine.read_only:
            self._write(rows)

    def over(self, seconds: float, now: float) -> list[HistoryRow]:
        """Returns the rows of so many last seconds, oldest first, as fine as they are kept."""
        since = now - seconds
        with self._lock:
            if seconds <= STEP * STEPS:
                fine = [row for row in self._recent if row.at > since]
                # While no page was open, samples were a minute apart.
                unseen = [
                    row
                    for row in self._tiers[0]
                    if row.at > since and not any(row.at - row.seconds < one.at <= row.at for one in fine)
                ]
                return sorted(unseen + fine, key=lambda row: row.at)
            tier = next((at for at, tier in enumerate(TIERS) if tier.seconds * tier.rows >= seconds), len(TIERS) - 1)
            found = [row for row in self._tiers[tier] if row.at > since]
            # What the coarser row does not cover yet.
            for finer in range(tier - 1, -1, -1):
                last = found[-1].at if found else since
                found += [row for row in self._tiers[finer] if row.at > last]
            return found

    # ── on disk ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _write(self, rows: list[tuple[int, HistoryRow]]) -> None:
        def apply(commit: Commit) -> None:
            for tier, row in rows:
                commit.tx.put(_row_key(tier, row.at), _packed(row))

        try:
            self._journal.backend.core.run(apply, relaxed=True)
        except PenstockError:
            return  # a store in trouble, or closed: others report it better

    def _load(self) -> None:
        with self._journal.backend.engine.read() as snap:
            for tier, kept in enumerate(self._tiers):
                prefix = keys.HISTORY + b"r" + bytes([tier])
                stored = (_unpacked(value, TIERS[tier]) for _, value in snap.scan(prefix, keys.prefix_end(prefix)))
                kept.extend(sorted((row for row in stored if row is not None), key=lambda row: row.at))


def _packed(row: HistoryRow) -> bytes:
    """Returns a row in at most HISTORY_ROW_BYTES, the busiest series first."""
    entries: Values = {}
    room, cut = HISTORY_ROW_BYTES - 12, row.cut
    for name, values in sorted(row.values.items(), key=lambda one: (one[0] != "all", -sum(one[1]), one[0])):
        room -= len(_encode(name)) + len(_encode(values))
        if room < 0:
            cut = True
            break
        entries[name] = values
    return _encode((round(row.at), cut, entries))


def _unpacked(value: bytes, tier: Tier) -> HistoryRow | None:
    """Returns a stored row; None for one that cannot be read: it is not worth refusing to serve for."""
    try:
        at, cut, entries = _decode_row(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fitting = {name: fields for name, fields in entries.items() if len(fields) == len(FIELDS.get(_kind(name), ()))}
    return HistoryRow(at, tier.seconds, fitting, cut)


def _kind(series: str) -> str:
    return series.partition(":")[0]

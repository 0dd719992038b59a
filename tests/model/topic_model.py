"""Topics as a few dictionaries: what the state machine compares every home with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from penstock import Draft


class Positions:
    """What becomes of a name's positions when its topic is dropped: they go on. Nothing else here knows."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def dropped(self, topic: str, latest: int, recorded_ms: int = 0) -> None:
        if latest:
            self._ended[topic], self._times[topic] = latest, recorded_ms

    def made(self, topic: str) -> TopicModel:
        """A topic of a name, as it begins."""
        last, recorded_ms = self.newest(topic), self._times.get(topic, 0)
        return TopicModel(
            topic, self.id_of, last, recorded_ms=recorded_ms, trimmed=last, trimmed_ms=recorded_ms, began=last
        )

    def newest(self, topic: str) -> int:
        """The position after which a topic begins that is made now."""
        return self._ended.get(topic, 0)

    def id_of(self, topic: str, seq: int) -> str:
        """What stands for the id of an event."""
        return f"{topic}#{seq}"


class Refused(Exception):
    """The model expects a Conflict."""

    def __init__(self, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual


@dataclass
class Known:
    """An event the model knows: everything a reader sees of it."""

    topic: str
    seq: int
    id: str
    kind: str
    payload: Any
    key: str | None
    scope: str | None
    headers: dict[str, str]
    occurred_ms: int
    recorded_ms: int
    correlation: str | None
    causation: str | None
    tags: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "seq": self.seq,
            "topic": self.topic,
            "kind": self.kind,
            "payload": self.payload,
            "key": self.key,
            "scope": self.scope,
            "headers": self.headers,
            "occurred_at": datetime.fromtimestamp(self.occurred_ms / 1000, UTC),
            "recorded_at": datetime.fromtimestamp(self.recorded_ms / 1000, UTC),
            "id": self.id,
            "correlation_id": self.correlation,
            "causation_id": self.causation,
            "tags": self.tags,
        }

    def receipt(self, duplicate: bool) -> list[Any]:
        return [self.topic, self.seq, self.id, self.correlation, duplicate]


Made = list[tuple[Known, bool]]
"""What each draft became, and whether it is a duplicate."""


@dataclass
class TopicModel:
    """One topic."""

    name: str
    id_of: Callable[[str, int], str]
    latest: int = 0
    events: dict[int, Known] = field(default_factory=dict)
    recorded_ms: int = 0
    trimmed: int = 0
    trimmed_ms: int = 0
    began: int = 0
    """Positions up to here were of topics of this name that were dropped."""
    compacted: int = 0
    sealed: int = 0
    """Positions up to here lie in a lake, where compaction by key leaves them."""
    filed: int = 0
    """Compaction by key leaves positions up to here as well: the newest file of a bulk write ends there."""
    referred: frozenset[int] = frozenset()
    """Positions that lie in files of bulk writes, which sealing leaves as they are."""
    newest: dict[str, int] = field(default_factory=dict)
    """The newest event of every key, also of those that were removed."""
    cursors: dict[str, int] = field(default_factory=dict)
    dedups: dict[str, Known] = field(default_factory=dict)
    window: float | None = 7 * 24 * 3600.0
    max_events: int | None = None
    max_age: float | None = None
    by_key: bool = False

    def move(self, consumer: str, seq: int, *, back: bool = False) -> None:
        """A cursor; a position of before stands for the beginning."""
        current = self.cursors.get(consumer, 0)
        seq = max(seq, self.began) if seq else 0
        self.cursors[consumer] = seq if back else max(seq, current)

    def counts(self, known: Known, now_ms: int) -> bool:
        return self.window is None or max(now_ms, self.recorded_ms) - known.recorded_ms < self.window * 1000

    def stored(self) -> list[Known]:
        return [self.events[seq] for seq in sorted(self.events)]

    def append(self, drafts: list[Draft], now_ms: int, find: Callable[[str], Known | None]) -> Made:
        """What each draft becomes; `Refused` when an expectation fails."""
        fresh_dedups: dict[str, int] = {}
        for row, draft in enumerate(drafts):
            if draft.dedup is not None:
                fresh_dedups.setdefault(draft.dedup, row)
        for row, draft in enumerate(drafts):
            old = self.dedups.get(draft.dedup or "")
            duplicate = draft.dedup is not None and (
                (old is not None and self.counts(old, now_ms)) or fresh_dedups[draft.dedup] != row
            )
            newest = self.newest.get(draft.key or "", 0)
            if draft.expect is not None and not duplicate and newest != draft.expect:
                raise Refused(draft.expect, newest)
        for row, draft in enumerate(drafts):
            old = self.dedups.get(draft.dedup or "")
            duplicate = draft.dedup is not None and (
                (old is not None and self.counts(old, now_ms)) or fresh_dedups[draft.dedup] != row
            )
            if draft.unless is not None and not duplicate:
                after = draft.unless.after if draft.after is None else draft.after
                tags, kinds, key = draft.unless.tags or set(), draft.unless.kinds, draft.unless.key
                for known in self.stored():
                    chosen = tags <= set(known.tags) and (kinds is None or known.kind in kinds)
                    if known.seq > after and chosen and key in (None, known.key):
                        raise Refused(after, known.seq)
        made: Made = []
        by_dedup: dict[str, Known] = {}
        recorded = max(now_ms, self.recorded_ms)
        for draft in drafts:
            if draft.dedup is not None:
                before = by_dedup.get(draft.dedup)
                old = self.dedups.get(draft.dedup)
                if before is None and old is not None and self.counts(old, now_ms):
                    before = old
                if before is not None:
                    by_dedup[draft.dedup] = before
                    made.append((before, True))
                    continue
            self.latest += 1
            known = Known(
                self.name,
                self.latest,
                self.id_of(self.name, self.latest),
                draft.kind,
                draft.payload,
                draft.key,
                draft.scope,
                dict(draft.headers or {}),
                recorded if draft.occurred_at is None else round(draft.occurred_at.timestamp() * 1000),
                recorded,
                draft.correlation,
                None,
                tuple(sorted(set(draft.tags or ()))),
            )
            if draft.cause is not None:
                cause = made[draft.cause][0] if isinstance(draft.cause, int) else find(str(draft.cause))
                known.causation = cause.id if cause else str(draft.cause)
                inherited = cause.correlation if cause else None
                known.correlation = draft.correlation or inherited or known.causation
            self.events[known.seq] = known
            if known.key is not None:
                self.newest[known.key] = known.seq
            if draft.dedup is not None:
                by_dedup[draft.dedup] = known
            made.append((known, False))
        if any(not duplicate for _, duplicate in made):
            self.recorded_ms = recorded
        self.dedups.update(by_dedup)
        return made

    def compact(self, through: int) -> int:
        through = min(through, self.latest)
        if through <= self.trimmed:
            return 0
        gone = [seq for seq in self.events if seq <= through]
        for seq in gone:
            del self.events[seq]
        self.trimmed, self.trimmed_ms = through, self.recorded_ms
        return len(gone)

    def erase(self, seqs: list[int], at: str, by: str) -> int:
        """Leaves the places of events, and nothing that they said."""
        fresh = [seq for seq in seqs if "erased-at" not in self.events[seq].headers]
        for known in map(self.events.__getitem__, fresh):
            known.payload = known.key = known.scope = None
            known.headers, known.tags = {"erased-at": at, "erased-by": by}, ()
        self.dedups = {dedup: known for dedup, known in self.dedups.items() if known.seq not in seqs}
        for key, seq in self.newest.items():
            if seq in fresh:
                self.newest[key] = max((known.seq for known in self.events.values() if known.key == key), default=0)
        return len(fresh)

    def compact_keys(self) -> int:
        newest = {known.key: seq for seq, known in sorted(self.events.items()) if known.key is not None}
        gone = [
            seq
            for seq, known in self.events.items()
            if known.key is not None and newest[known.key] != seq and seq > max(self.sealed, self.filed)
        ]
        for seq in gone:
            del self.events[seq]
        self.compacted = self.latest
        return len(gone)

    def change_window(self, window: float | None, now_ms: int) -> None:
        self.dedups = {dedup: known for dedup, known in self.dedups.items() if self.counts(known, now_ms)}
        self.window = window
        self.dedups = {dedup: known for dedup, known in self.dedups.items() if self.counts(known, now_ms)}

    def maintain(self, now_ms: int) -> None:
        bound = 0
        if self.max_events is not None:
            bound = max(bound, self.latest - self.max_events)
        if self.max_age is not None:
            bound = max(bound, self.position_before(now_ms - int(self.max_age * 1000)))
        if bound:
            self.compact(bound)
        if self.by_key and (self.latest - self.compacted) * 2 >= len(self.events):
            self.compact_keys()

    def position_before(self, ms: int) -> int:
        earlier = [seq for seq, known in self.events.items() if known.recorded_ms < ms]
        if earlier:
            return max(earlier)
        return self.trimmed if self.trimmed_ms and self.trimmed_ms < ms else 0

    def copy(self) -> TopicModel:
        dicts = ("events", "newest", "cursors", "dedups")
        return dataclasses.replace(self, **{name: dict(getattr(self, name)) for name in dicts})

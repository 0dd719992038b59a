"""One write transaction of the journal: what everybody who commits together shares.

Group commit hands several calls' work to one `Commit`; a user's transaction owns one alone. Appending assigns positions
and ids at once and gathers the events per topic (a `Lot`); `flush` writes each lot as one block. Nothing outside
changes until the engine's transaction has ended well: only then `publish` moves the heads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from penstock.engine.contract import WriteTx
from penstock.errors import Conflict
from penstock.event import Receipt, format_id
from penstock.journal import keys
from penstock.journal.block import Columns, build_block
from penstock.journal.catalog import Catalog, Head, create_topic
from penstock.journal.prepare import Batch
from penstock.limits import BLOCK_BYTES, BLOCK_EVENTS

_encode = msgspec.msgpack.Encoder().encode
_RANDOM_BITS = (1 << 80) - 1 - (1 << 61)  # the run's ids count up from here: keep the top random bit free for the carry

Generation = Callable[["Commit", Head, str], int]
"""Finds the position of an entity's newest event, this commit's events included."""


class _Duplicate(msgspec.Struct, array_like=True, frozen=True):
    """What a dedup key remembers of its event."""

    seq: int
    id: bytes
    recorded_ms: int
    correlation: str | None = None


_decode_duplicate = msgspec.msgpack.Decoder(_Duplicate).decode


class Lot:
    """The events one commit adds to one topic."""

    __slots__ = ("base_id", "columns", "first", "head", "newest", "owned", "recorded_ms", "size")

    def __init__(self, head: Head, now_ms: int) -> None:
        self.head = head
        self.first = head.latest + 1
        self.recorded_ms = max(now_ms, head.recorded_ms)
        self.base_id = next_id(head.last_id, self.recorded_ms)
        self.columns: Columns | None = None
        self.owned = False
        self.size = 0
        self.newest: dict[str, int] | None = None

    def __len__(self) -> int:
        return 0 if self.columns is None else len(self.columns.kinds)

    def add(self, columns: Columns, size: int) -> None:
        self.size += size
        if self.columns is None:
            self.columns = columns
            return
        if not self.owned:  # the first batch's columns are its caller's, who may need them for a second try
            self.columns = self.columns.take(0, len(self.columns.kinds))
            self.owned = True
        self.columns.extend(columns)

    def newest_of(self, key: str) -> int:
        """The position of a key's newest event among these; 0 for none."""
        if self.columns is None or self.columns.key is None:
            return 0
        column = self.columns.key
        for row in range(len(column) - 1, -1, -1):
            if column[row] == key:
                return self.first + row
        return 0


class Commit:
    """A write transaction under way, with its own view of every topic's end."""

    __slots__ = ("_catalog", "_generation", "_lots", "_new_heads", "late", "now_ms", "touched", "tx", "writes")

    def __init__(self, catalog: Catalog, tx: WriteTx, now_ms: int, generation: Generation) -> None:
        self._catalog = catalog
        self._generation = generation
        self._lots: dict[str, Lot] = {}
        self._new_heads: dict[str, Head] = {}
        self.tx = tx
        self.now_ms = now_ms
        self.writes = 0
        """Grows with everything written; whoever fails after it has grown spoils the whole transaction."""
        self.late: dict[object, Callable[[Commit], None]] = {}
        """What is written once, at the end, however often it changed meanwhile; by whose it is."""
        self.touched: dict[str, int] = {}
        """Topics whose waiters should look again after the commit, with how many events were added."""
        if tx.foreign:
            catalog.forget()

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def head(self, name: str) -> Head | None:
        """A topic's head, or None when nobody has created it."""
        return self._new_heads.get(name) or self._catalog.head(self.tx, name)

    def ensure(self, name: str) -> Head:
        """A topic's head; the topic is created when it is not there."""
        head = self.head(name)
        if head is None:
            head = self._new_heads[name] = create_topic(self.tx, name)
            self.writes += 1
        return head

    def latest(self, name: str) -> int:
        """The highest position of a topic, this commit's events included."""
        lot = self._lots.get(name)
        if lot is not None:
            return lot.first + len(lot) - 1
        head = self.head(name)
        return head.latest if head else 0

    @property
    def epoch(self) -> int:
        """What was cached under another epoch may be wrong by now."""
        return self._catalog.epoch

    @property
    def reshaped(self) -> int:
        """Grows whenever blocks may have been exchanged by anybody but the housekeeper."""
        return self._catalog.reshaped

    def reshape(self) -> None:
        """Says that this commit exchanges or removes blocks."""
        self._catalog.reshaped += 1
        self.writes += 1

    def lot(self, name: str) -> Lot | None:
        return self._lots.get(name)

    def _lot(self, name: str) -> Lot:
        lot = self._lots.get(name)
        if lot is None:
            lot = self._lots[name] = Lot(self.ensure(name), self.now_ms)
        return lot

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    def append(self, name: str, batch: Batch) -> list[Receipt]:
        """Adds a batch and says where its events will be; raises before anything is changed."""
        count = len(batch.columns.kinds)
        if not count:
            return []
        if batch.dedups is None and batch.expects is None and batch.cause_rows is None:
            return self._add(self._lots.get(name) or self._lot(name), batch.columns, batch.size)
        if batch.expects is not None:
            self._check_expects(name, batch)
        if batch.dedups is not None:
            return self._append_new(name, batch)
        self._link_causes(self._lot(name), batch.columns, batch.cause_rows or {})
        return self._add(self._lot(name), batch.columns, batch.size)

    def _add(self, lot: Lot, columns: Columns, size: int) -> list[Receipt]:
        offset = len(lot)
        name, seq, number = lot.head.name, lot.first + offset, lot.base_id + offset
        count = len(columns.kinds)
        lot.add(columns, size)
        self.writes += 1
        correlations = columns.correlation
        if correlations is None:
            if count == 1:
                return [Receipt(name, seq, number)]
            return [Receipt(name, seq + row, number + row) for row in range(count)]
        return [Receipt(name, seq + row, number + row, correlations[row]) for row in range(count)]

    def _check_expects(self, name: str, batch: Batch) -> None:
        """Every expectation is about the entity as it was before this batch."""
        keys_ = batch.columns.key or []
        head = self.head(name)
        for key, expected in zip(keys_, batch.expects or (), strict=True):
            if expected is None or key is None:
                continue
            actual = self._generation(self, head, key) if head else 0
            if actual != expected:
                raise Conflict(
                    f"entity {key!r} of topic {name!r} is at position {actual}, not {expected}: "
                    "read it again and decide anew",
                    expected=expected,
                    actual=actual,
                )

    def _link_causes(
        self, lot: Lot, columns: Columns, cause_rows: dict[int, int], ids: Sequence[int] | None = None
    ) -> None:
        """Turns 'the n-th draft of this batch' into ids, now that ids are known."""
        if not cause_rows:
            return
        start = lot.base_id + len(lot)
        causation, correlation = columns.causation, columns.correlation
        assert causation is not None and correlation is not None
        for row, cause in cause_rows.items():
            causation[row] = format_id(ids[cause] if ids else start + cause)
            correlation[row] = correlation[row] or correlation[cause] or causation[row]

    def _append_new(self, name: str, batch: Batch) -> list[Receipt]:
        """Appends the events whose dedup key is new; the others get their original's receipt."""
        lot, columns, dedups = self._lot(name), batch.columns, batch.dedups or ()
        receipts: list[Receipt | None] = [None] * len(columns.kinds)
        first_row: dict[str, int] = {}
        repeats: dict[int, int] = {}
        fresh: list[int] = []
        for row, dedup in enumerate(dedups):
            if dedup is None:
                fresh.append(row)
                continue
            if dedup in first_row:
                repeats[row] = first_row[dedup]
                continue
            first_row[dedup] = row
            known = self._find_duplicate(lot.head, dedup)
            if known is None:
                fresh.append(row)
            else:
                number = int.from_bytes(known.id)
                receipts[row] = Receipt(name, known.seq, number, known.correlation, True)
        kept = columns if len(fresh) == len(receipts) else _pick(columns, fresh)
        start_seq, start_id = lot.first + len(lot), lot.base_id + len(lot)
        ids = [0] * len(receipts)
        for at, row in enumerate(fresh):
            ids[row] = start_id + at
        for row, receipt in enumerate(receipts):
            if receipt is not None:
                ids[row] = receipt._number
        for row, original in repeats.items():
            ids[row] = ids[original]
        if batch.cause_rows:
            place = {row: at for at, row in enumerate(fresh)}
            self._link_causes(lot, columns, batch.cause_rows, ids)
            for row in batch.cause_rows:
                if row in place and kept is not columns:
                    assert kept.causation is not None and kept.correlation is not None
                    assert columns.causation is not None and columns.correlation is not None
                    kept.causation[place[row]] = columns.causation[row]
                    kept.correlation[place[row]] = columns.correlation[row]
        if fresh:
            self._add(lot, kept, batch.size)
        correlations = columns.correlation
        for at, row in enumerate(fresh):
            correlation = correlations[row] if correlations else None
            receipts[row] = Receipt(name, start_seq + at, start_id + at, correlation)
            dedup = dedups[row]
            if dedup is not None:
                self._remember(lot, dedup, start_seq + at, start_id + at, correlation)
        done: list[Receipt] = []
        for row, receipt in enumerate(receipts):
            if receipt is None:
                original_receipt = receipts[repeats[row]]
                assert original_receipt is not None
                receipt = Receipt(
                    name, original_receipt.seq, original_receipt._number, original_receipt.correlation_id, True
                )
            done.append(receipt)
        return done

    # ── dedup keys ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _find_duplicate(self, head: Head, dedup: str) -> _Duplicate | None:
        window = head.settings.dedup_window
        bucket = _bucket(window, self.now_ms)
        for candidate in (bucket, bucket - 1) if bucket else (0,):
            value = self.tx.get(keys.dedup_key(head.number, candidate, dedup))
            if value is not None:
                known = _decode_duplicate(value)
                if window is None or self.now_ms - known.recorded_ms <= window * 1000:
                    return known
        return None

    def _remember(self, lot: Lot, dedup: str, seq: int, number: int, correlation: str | None) -> None:
        window = lot.head.settings.dedup_window
        bucket = _bucket(window, self.now_ms)
        entry = _Duplicate(seq, number.to_bytes(16), self.now_ms, correlation)
        self.tx.put(keys.dedup_key(lot.head.number, bucket, dedup), _encode(entry))

    # ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def get_mark(self, name: str) -> int | None:
        value = self.tx.get(keys.mark_key(name))
        return None if value is None else int.from_bytes(value, signed=True)

    def set_mark(self, name: str, value: int) -> None:
        self.tx.put(keys.mark_key(name), value.to_bytes(8, signed=True))
        self.writes += 1

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def generation(self, name: str, key: str) -> int:
        head = self.head(name)
        return self._generation(self, head, key) if head else 0

    def flush(self) -> None:
        """Writes the gathered events into the transaction, so that its reads see them."""
        while self.late:
            self.late.popitem()[1](self)
        for name, lot in self._lots.items():
            count = len(lot)
            if not count:
                continue
            self._write_blocks(lot)
            head = lot.head
            last = lot.first + count - 1
            self._new_heads[name] = Head(
                name, head.number, head.settings, last, lot.recorded_ms, lot.base_id + count - 1
            )
            self.touched[name] = self.touched.get(name, 0) + count
        self._lots.clear()

    def _write_blocks(self, lot: Lot) -> None:
        columns, head = lot.columns, lot.head
        assert columns is not None
        count = len(columns.kinds)
        if lot.size <= 4 * BLOCK_BYTES and count <= BLOCK_EVENTS:
            value = build_block(columns, lot.first, lot.recorded_ms, lot.base_id)
            self.tx.put(keys.block_key(head.number, lot.first), value)
            return
        start = 0
        while start < count:
            stop = start + _fitting(columns.payloads, start)
            first = lot.first + start
            value = build_block(columns.take(start, stop), first, lot.recorded_ms, lot.base_id + start)
            self.tx.put(keys.block_key(head.number, first), value)
            start = stop

    def publish(self) -> None:
        """The transaction has ended well: the writer's view of the topics follows."""
        for head in self._new_heads.values():
            self._catalog.adopt(head)


def next_id(last_id: int, ms: int) -> int:
    """The id of a run's first event: a UUIDv7 of time `ms`, above every id the topic has given out."""
    if last_id >> 80 == ms:
        return last_id + 1 + int.from_bytes(os.urandom(3))
    random = int.from_bytes(os.urandom(10)) & _RANDOM_BITS
    random = (random & ~(0xF << 76)) | (0x7 << 76)
    random = (random & ~(0x3 << 62)) | (0x2 << 62)
    return (ms << 80) | random


def _bucket(window: float | None, now_ms: int) -> int:
    """Dedup keys lie in buckets as long as the window, so that two look-ups find one and old ones go all at once."""
    return 0 if window is None else max(1, int(now_ms // max(1, window * 1000)))


def _fitting(payloads: Sequence[bytes], start: int) -> int:
    """How many payloads from `start` on make a block of the usual size; at least one."""
    rows = payloads[start : start + BLOCK_EVENTS]
    fitting = 0
    for total in accumulate(map(len, rows)):
        if total > BLOCK_BYTES and fitting:
            break
        fitting += 1
    return fitting


def _pick(columns: Columns, rows: Sequence[int]) -> Columns:
    picked = Columns([columns.kinds[row] for row in rows], [columns.payloads[row] for row in rows])
    for name in ("binary", "key", "scope", "headers", "occurred", "correlation", "causation"):
        column = getattr(columns, name)
        if column is not None:
            setattr(picked, name, [column[row] for row in rows])
    return picked

"""Dedup keys: what a topic remembers of an event appended with one, for as long as the topic's window says.

The keys lie in buckets of time at least as long as the window, so that two look-ups find any key that still counts, and
old ones go a bucket at a time. The time is the topic's recording time, which never goes back: a clock that does cannot
make a key unknown again. Nor does it make one known for longer than a window from then on: while the recording time
stands still, the clock's own time counts.
"""

from __future__ import annotations

import msgspec

from penstock.clock import set_back_ms
from penstock.engine.contract import WriteTx
from penstock.errors import Corrupt
from penstock.journal.storage import keys

_SHORTEST_BUCKET_MS = 60_000
_encode = msgspec.msgpack.Encoder().encode


class Original(msgspec.Struct, array_like=True, frozen=True):
    """The event that was appended with a dedup key first."""

    seq: int
    id: bytes
    recorded_ms: int
    correlation: str | None = None
    at_ms: int = 0
    """The clock's own time, where the clock was set back behind the recording time; else 0."""


_decoder = msgspec.msgpack.Decoder(Original)


def _decode(value: bytes) -> Original:
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the record of a dedup key does not decode: {error}") from error


def _bucket(window: float | None, ms: int) -> int:
    """Which bucket a time lies in; a topic that remembers for ever has one bucket, 0."""
    return 0 if window is None else max(1, ms // max(_SHORTEST_BUCKET_MS, int(window * 1000)))


def _counts(original: Original, window: float | None, now_ms: int) -> bool:
    return window is None or now_ms - original.recorded_ms < window * 1000


def find_original(
    tx: WriteTx, topic: int, window: float | None, dedup: str, recorded_ms: int, now_ms: int
) -> Original | None:
    """The event a dedup key stands for, if the topic still remembers it, by its recording time and by the clock."""
    newest = _bucket(window, recorded_ms)
    for bucket in (newest, newest - 1) if newest else (0,):
        key = keys.dedup_key(topic, bucket, dedup)
        value = tx.get(key)
        if value is not None:
            original = _decode(value)
            if _counts(original, window, recorded_ms):
                at_ms = original.at_ms or original.recorded_ms
                back = set_back_ms(at_ms, now_ms)
                if back:
                    tx.put(key, _encode(msgspec.structs.replace(original, at_ms=at_ms - back)))
                if window is None or now_ms - at_ms < window * 1000:
                    return original
    return None


def remember(tx: WriteTx, topic: int, window: float | None, dedup: str, original: Original) -> None:
    tx.put(keys.dedup_key(topic, _bucket(window, original.recorded_ms), dedup), _encode(original))


def forget_expired(tx: WriteTx, topic: int, window: float | None, now_ms: int) -> None:
    """Removes the buckets in which no key can count any more."""
    newest = _bucket(window, now_ms)
    if newest <= 1:
        return
    start, stop = keys.dedup_range(topic, newest - 1)
    if next(iter(tx.scan(start, stop)), None) is not None:
        tx.delete_range(start, stop)


def change_window(tx: WriteTx, topic: int, old: float | None, new: float | None, now_ms: int) -> None:
    """Moves a topic's keys into the buckets of another window, so that none is forgotten by the change itself.

    A key that no longer counts stays forgotten, also when the window grows.
    """
    shorter = new is not None and (old is None or new <= old)
    if old == new or (shorter and _bucket(old, _FAR) == _bucket(new, _FAR)):
        return
    start, stop = keys.dedup_range(topic, keys.MAX_BUCKET)
    known: dict[str, Original] = {}
    for key, value in tx.scan(start, stop):
        original = _decode(value)
        if _counts(original, old, now_ms):
            known[keys.dedup_text(key)] = original
    tx.delete_range(start, stop)
    for dedup, original in known.items():
        if _counts(original, new, now_ms):
            remember(tx, topic, new, dedup, original)


_FAR = 1 << 60
"""A time whose bucket tells windows of different bucket lengths apart."""

"""Finds the topics that may hold an event, or events of a cause or correlation, without asking every topic.

    N hashed topic            a topic's name; N alone: every topic has such a row
    A hashed topic            a topic with events whose ids were given elsewhere: copies
    C hash hashed-topic       a topic with events whose cause or correlation has this hash, up to the position here
    U hashed topic            a topic of which C says nothing after the position that lies here

An id has twelve bits of a hash of its topic's name, and a hashed topic begins with the same bits. A commit notes once
that a topic has causes or correlations without notes (U). When many topics have such a row, a thread reads their events
and notes their causes and correlations (C): the topic is *folded*. Until then a search asks the topic. The thread
removes notes of trimmed events while it makes others. So a search may ask a topic in vain, because the events are gone
or two texts have one hash, and it never misses a topic.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event, parse_id
from penstock.core.journal import keys
from penstock.core.journal.blocks import CodedText, Text, text_values
from penstock.core.journal.catalog import load_head, load_state, topic_names
from penstock.core.journal.commit import Commit
from penstock.core.journal.reading import TopicView
from penstock.core.journal.writer import Writer, WriteRequest
from penstock.core.units import in_parts
from penstock.errors import Corrupt
from penstock.limits import MERGED_BYTES, UNFOLDED_TOPICS

_STEP_ROWS = 256
"""The rows that one commit of folding writes."""
_STEP_BYTES = 16 * MERGED_BYTES
"""The approximate bytes of a topic that are read before its hashes are written."""


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def find_event(snap: Snapshot, id: str, now_ms: int | None = None) -> Event | None:
    """Returns the event with an id, in any topic. With `now_ms`, events past their topic's `max_age` are not found."""
    number = parse_id(id)
    if number is None:
        return None
    for name in _topics_of_id(snap, number):
        view = TopicView.open(snap, name, now_ms)
        found = view.find(number) if view else None
        if found is not None:
            return found
    return None


def _topics_of_id(snap: Snapshot, number: int) -> Iterator[str]:
    if snap.get(keys.NAME) is None:
        yield from topic_names(snap)
        return
    begin = keys.NAME + ((number & keys.ID_BITS) >> 32).to_bytes(2)
    for _, name in snap.scan(begin, begin + b"\xff" * 5):
        yield keys.stored_name(name)
    yield from _names_of(snap, _topics(snap, keys.OTHER_IDS))


def topics_naming(snap: Snapshot, id: str) -> list[str]:
    """Returns the topics that may have events with this cause or correlation."""
    if snap.get(keys.NAME) is None:
        return list(topic_names(snap))
    begin = keys.CAUSAL + _hash(id)
    return list(_names_of(snap, {*_topics(snap, begin), *_topics(snap, keys.UNFOLDED)}))


def _topics(snap: Snapshot, prefix: bytes) -> Iterator[bytes]:
    """Yields the topics under a prefix."""
    for key, _ in snap.scan(prefix, prefix + b"\xff" * 7):
        yield key[len(prefix) :]


def _names_of(snap: Snapshot, topics: Iterable[bytes]) -> Iterator[str]:
    """Yields the names of topics that still exist."""
    for topic in topics:
        name = snap.get(keys.NAME + topic)
        if name is not None:
            yield keys.stored_name(name)


def _hash(text: str) -> bytes:
    return zlib.crc32(text.encode()).to_bytes(4)


# ── folding ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def is_crowded(snap: Snapshot) -> bool:
    """Returns True if so many topics are unfolded that asking each of them would be slow."""
    return sum(1 for _ in _topics(snap, keys.UNFOLDED)) > UNFOLDED_TOPICS


class _Unfolded(NamedTuple):
    """The causes and correlations of several events that are not indexed yet."""

    topic: bytes
    name: str
    last: int
    """The position of the last of these events."""
    more: bool
    """True if further events follow, which are read the next time."""
    hashes: list[bytes]


class CausalNotes:
    """The index of the topics of causes and correlations, written in small commits that need not be synced."""

    def __init__(self, writer: Writer, stopped: Callable[[], bool], breathe: Callable[[], None]) -> None:
        self._engine, self._writer = writer.engine, writer
        self._stopped, self._breathe = stopped, breathe
        self._swept = keys.CAUSAL
        """The key through which notes were searched for useless notes."""

    def fold(self) -> None:
        """Folds unfolded topics, if they are many, and removes notes of events that are gone."""
        with self._engine.read() as snap:
            topics = list(_topics(snap, keys.UNFOLDED)) if is_crowded(snap) else []
        while topics and not self._stopped():
            found = self._read(topics)
            notes = [
                (keys.CAUSAL + one + some.topic, keys.pack_seq(some.last)) for some in found for one in some.hashes
            ]
            for start in range(0, len(notes), _STEP_ROWS):
                self._writer.run_relaxed(_put, notes[start : start + _STEP_ROWS])
                self._sweep(2 * _STEP_ROWS)
            if found:
                self._writer.run_relaxed(_advance, found)
            topics[:0] = [some.topic for some in found if some.more]

    def _read(self, topics: list[bytes]) -> list[_Unfolded]:
        """Reads the next events of topics until there are hashes for a commit, and removes these topics from the
        list.
        """
        found: list[_Unfolded] = []
        with self._engine.read() as snap:
            while topics and sum(len(one.hashes) for one in found) < _STEP_ROWS:
                with suppress(Corrupt):  # the topic stays unfolded: a reader reports the damage
                    found += _unfolded(snap, topics.pop(0))
                self._breathe()
        return found

    def _sweep(self, count: int) -> None:
        """Checks some notes and removes useless notes."""
        trimmed: dict[bytes, int] = {}
        gone: list[tuple[bytes, bytes]] = []
        with self._engine.read() as snap:
            rows = list(islice(snap.scan(self._swept, keys.prefix_end(keys.CAUSAL)), count))
            for key, value in rows:
                topic = key[-6:]
                if topic not in trimmed:
                    named = snap.get(keys.NAME + topic)
                    state = load_state(snap, keys.hashed_topic_id(topic), "") if named is not None else None
                    trimmed[topic] = keys.MAX_SEQ if state is None else state.trimmed
                if keys.unpack_seq(value) <= trimmed[topic]:
                    gone.append((key, value))
        self._swept = rows[-1][0] + b"\0" if len(rows) == count else keys.CAUSAL
        if gone:
            self._writer.run_relaxed(_forget, gone)


def _unfolded(snap: Snapshot, topic: bytes) -> Iterator[_Unfolded]:
    """Returns the causes and correlations of the next events of a topic; nothing of a topic that is not to be
    folded."""
    name, since = next(_names_of(snap, [topic]), ""), snap.get(keys.UNFOLDED + topic)
    view = TopicView.open(snap, name)
    # Where compaction removes single events, notes could never be removed, so every search asks such a topic.
    if view is None or since is None or view.record.settings.by_key:
        return
    hashes: set[bytes] = set()
    last = load_head(snap, name, view.record).latest
    size, more = 0, False
    for block in view.blocks(max(keys.unpack_seq(since), view.trimmed()), keys.MAX_SEQ):
        for column in (block.wire.correlation, block.wire.causation):
            hashes.update(_hashes(column, block.count))
        size += block.payload_size
        if size >= _STEP_BYTES and block.last < last:
            last, more = block.last, True
            break
    yield _Unfolded(topic, name, last, more, sorted(hashes))


def _hashes(column: Text | None, count: int) -> Iterator[bytes]:
    values = column.values if isinstance(column, CodedText) else text_values(column, count) if column else ()
    return (_hash(value) for value in values if value is not None)


def _put(commit: Commit, notes: Sequence[tuple[bytes, bytes]]) -> None:
    for key, value in notes:
        commit.tx.put(key, value)


def _forget(commit: Commit, notes: Sequence[tuple[bytes, bytes]]) -> None:
    for key, value in notes:
        if commit.tx.get(key) == value:  # otherwise it was noted anew
            commit.tx.delete(key)


def _advance(commit: Commit, found: Sequence[_Unfolded]) -> None:
    """Stores the positions through which topics are folded."""
    for some in found:
        head, key = commit.head(some.name), keys.UNFOLDED + some.topic
        if head is None or head.topic_id != keys.hashed_topic_id(some.topic):
            continue
        if commit.latest(some.name) > some.last:
            commit.tx.put(key, keys.pack_seq(some.last))
        else:
            head.unfolded = False
            commit.tx.delete(key)


def list_topics(writer: Writer) -> None:
    """Gives every topic of a store of an earlier version its rows, so that the list of topics is complete."""
    with writer.engine.read() as snap:
        if snap.get(keys.NAME) is not None:
            return
        names = list(topic_names(snap))
    for part in in_parts(names, len, keys.MAX_SEQ, _STEP_ROWS):
        writer.run_relaxed(_list, part)
    writer.run(WriteRequest(lambda commit: commit.tx.put(keys.NAME, b"")))


def _list(commit: Commit, names: Sequence[str]) -> None:
    for name in names:
        head = commit.head(name)
        topic = b"" if head is None else keys.hashed_topic(name, head.topic_id)
        if topic and commit.tx.get(keys.NAME + topic) is None:
            commit.tx.put(keys.NAME + topic, name.encode())
            commit.tx.put(keys.OTHER_IDS + topic, b"")
            commit.tx.put(keys.UNFOLDED + topic, keys.pack_seq(0))

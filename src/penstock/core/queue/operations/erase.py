"""Erasing messages: what a queue keeps of chosen messages goes, and its copies of them are found."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.engine.contract import Snapshot
from penstock.core.events import Event
from penstock.core.journal.commit import Commit
from penstock.core.journal.keys import MAX_SEQ
from penstock.core.journal.reading import TopicView
from penstock.core.model.calls import JOIN
from penstock.core.model.query import EventQuery
from penstock.core.model.reply import SUFFIX
from penstock.core.names import AUDIT
from penstock.core.queue.dead_letters import ID, SEQ, origin
from penstock.core.queue.policy import FEED
from penstock.core.queue.results import DISCARDED, FAILURE, answer_taken
from penstock.core.queue.state import keys
from penstock.core.queue.state.cache import QueueState, last_failures
from penstock.core.queue.state.feed import Change
from penstock.core.queue.state.group import Group
from penstock.core.queue.state.records import NO_TRAIL

if TYPE_CHECKING:
    from penstock.core.queue.registry import QueueRegistry

_STEP = 64
"""Messages that one commit erases, so that no caller waits long behind it."""
_GONE = Change("discarded", "erased")


def erase_messages(registry: QueueRegistry, topic: str, positions: Sequence[int], whole: bool) -> int:
    """Removes what a queue keeps of some messages besides their events; `whole`: also the messages, from all groups.

    Returns how many messages it has removed.
    """
    with registry.core.engine.read() as snap:
        if snap.get(keys.queue_key(topic)) is None:
            return 0
    gone = 0
    for at in range(0, len(positions), _STEP):
        gone += registry.core.run(partial(_erase_some, registry, topic, positions[at : at + _STEP], whole))
    registry.handle(topic).note_settled(gone)
    return gone


def _erase_some(registry: QueueRegistry, topic: str, seqs: Sequence[int], whole: bool, commit: Commit) -> int:
    commit.flush()
    queue = registry.cache.find(commit, topic)
    if queue is None:
        return 0
    queue.blocks.refresh(commit)
    chosen = set(seqs)
    for key, _, failure in last_failures(commit.tx, queue.topic):
        if failure.seq in chosen:
            commit.tx.delete(key)
    there = {seq for group in queue.all_groups(commit.tx) for seq in seqs if _is_unsettled(commit.tx, group, seq)}
    if whole:
        answer_taken(commit, queue, there, DISCARDED, held=there)
    for group in queue.all_groups(commit.tx):
        _blank_leases(commit, group, chosen, whole)
        for seq in seqs:
            message = group.find(commit.tx, seq)
            if message is not None and message.traced and not whole:
                group.save_trail(commit, message, NO_TRAIL)
            if whole and message is not None:
                group.remove(commit, message, _GONE)
    if whole:
        for seq in seqs:
            queue.forget_letter(commit, seq)
        events = [event for seq in seqs if (event := queue.blocks.event(commit.tx, seq)) is not None]
        _forget_keys(commit, queue, events)
        for event in events:
            _forget_join(commit, event)
        commit.touched.setdefault(topic, 0)
    return len(there) if whole else 0


def _is_unsettled(snap: Snapshot, group: Group, seq: int) -> bool:
    return group.find(snap, seq) is not None or group.lease_of(snap, seq) is not None


def _blank_leases(commit: Commit, group: Group, chosen: set[int], whole: bool) -> None:
    """Takes messages out of the leases that hold them, and blanks what leases still say of those that are settled."""
    for lease_id, lease in list(group.leases(commit.tx)):
        indexes = [index for index in range(lease.count) if lease.seq(index) in chosen]
        if not indexes:
            continue
        if whole:
            held = [index for index in indexes if lease.holds(index)]
            for message in group.take_back(commit, lease_id, lease, held, _GONE):
                group.remove(commit, message, None)
        for row in map(lease.messages.__getitem__, indexes) if lease.messages is not None else ():
            row.error, row.traced = None, row.traced and not whole
            if whole:
                row.key = row.lane = None
        if lease.held():
            group.save_lease(commit, lease_id, lease)


def _forget_keys(commit: Commit, queue: QueueState, events: Sequence[Event]) -> None:
    """Removes what flow control remembers of messages: rates and throttles of their keys, texts that were unique."""
    named = {text.encode() for event in events for text in (event.key, *event.headers.values()) if text}
    low, end = keys.flow_of_queue(queue.topic)
    for row, _ in list(commit.tx.scan(low, end)) if named else ():
        if keys.flow_tag(row) != b"t" and keys.flow_name(row) in named:  # a lane goes with its last message
            commit.tx.delete(row)


def _forget_join(commit: Commit, event: Event) -> None:
    """Removes the results of a join that waits for a call: it would wait for ever."""
    join = event.headers.get(JOIN, "").partition("/")[0]
    if join:
        commit.tx.delete(keys.join_key(join))
        commit.tx.delete_range(keys.join_key(join, 0), keys.join_key(join, (1 << 32) - 1))


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────
_NUMBER = re.compile(r"#([0-9,]+)")


def find_copies(registry: QueueRegistry, topic: str, positions: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Returns the topics and positions of what is told of some messages elsewhere: their dead letters and results, what
    the feed says of failures, and what the console has noted of acts on them."""
    told: dict[str, list[int]] = {}
    letters: dict[str, list[int]] = {}
    ids: set[str | None] = set()
    with registry.core.engine.read() as snap:
        view = TopicView.open(snap, topic)
        if view is not None and TopicView.open(snap, topic + SUFFIX) is not None:
            ids = {event.id for event in map(view.get, positions) if event is not None}
        for letter in _letters(registry, snap, topic):
            if _is_among(_origin_seq(letter), positions):
                ids.add(letter.headers.get(ID))
                letters.setdefault(letter.topic, []).append(letter.seq)
        for name in (topic + SUFFIX, topic + FEED, AUDIT):
            for one in _events(snap, name) if name != topic else ():
                if _is_outcome(one, ids) if name == topic + SUFFIX else _tells_of(one, topic, positions):
                    told.setdefault(name, []).append(one.seq)
    return [*told.items(), *letters.items()]  # letters last: an erasure that goes on finds the rest by them


def find_former(registry: QueueRegistry, topic: str, wanted: EventQuery) -> list[int]:
    """Returns the positions of wanted messages of which there are dead letters: the messages themselves may be gone."""
    with registry.core.engine.read() as snap:
        letters = _letters(registry, snap, topic)
        return [seq for one in letters if wanted.matches(one) and (seq := _origin_seq(one)) is not None]


def _letters(registry: QueueRegistry, snap: Snapshot, topic: str) -> Iterator[Event]:
    """Returns the dead letters of a queue that are not erased, wherever they lie."""
    for name in registry.names():
        if name != topic:
            yield from (one for one in _events(snap, name) if origin(one) == topic)


def _origin_seq(letter: Event) -> int | None:
    """Returns the position that a dead letter had in its queue."""
    text = letter.headers.get(SEQ, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _events(snap: Snapshot, topic: str) -> Iterator[Event]:
    view = TopicView.open(snap, topic)
    return iter(()) if view is None else (one for one in view.events(0, MAX_SEQ, None) if not one.erased)


def _is_outcome(event: Event, ids: Collection[str | None]) -> bool:
    """Returns True if an event is the outcome of a message; those who wait for an erased one still learn that it is."""
    told = event.payload.get("reason") if event.kind == FAILURE and isinstance(event.payload, dict) else None
    return event.causation_id in ids and told != DISCARDED


def _tells_of(event: Event, topic: str, positions: Sequence[int]) -> bool:
    """Returns True if an entry of a feed tells why a message failed, or an act was about a message or an event."""
    record = event.payload
    if not isinstance(record, dict):
        return False
    if event.topic == topic + FEED:
        return bool(record.get("error")) and _is_among(record.get("seq"), positions)
    if record.get("subject") != topic:
        return False
    fields, said = record.get("fields"), _NUMBER.findall(str(record.get("says")))
    given = fields.get("seq") if isinstance(fields, dict) else None
    seqs = [int(text) for text in (str(given), *(one.replace(",", "") for one in said)) if text.isdigit()]
    return any(_is_among(seq, positions) for seq in seqs)


def _is_among(seq: object, positions: Sequence[int]) -> bool:
    return isinstance(seq, int) and bisect_left(positions, seq) < bisect_right(positions, seq)

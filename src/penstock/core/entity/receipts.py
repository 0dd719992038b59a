"""Roots over a topic's events, and proofs under them.

    r topic s segment         the hash of a whole segment, as it was when it was first published
    r topic t through         published roots: their hashes, their unfinished segments' hashes, when

A published root stays. When compaction has removed events of a segment, the stored hash of the segment stands for them.
Events of other segments can still be proven under every root; events of that segment cannot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.core.engine.contract import Snapshot
from penstock.core.entity.proof import (
    EMPTY,
    EMPTY_SEGMENT,
    SEGMENT,
    CheckReport,
    ErasedLeaf,
    InclusionProof,
    TreeRoot,
    path_to,
    root_of,
    told_erased,
)
from penstock.core.events import Event, Receipt, is_marked
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block
from penstock.core.journal.catalog import load_state, missing
from penstock.core.journal.commit import Commit
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.files import check_sealed
from penstock.core.journal.summaries import hashes_in, kept_hash, kept_hashes, known_hash, leaf_hash, leaf_of
from penstock.core.names import check_position
from penstock.core.units import Progress
from penstock.errors import ConfigError, Corrupt, Unprovable

if TYPE_CHECKING:
    from penstock.core.journal.log import TopicLog


_STEP = 1024
"""The segments that one commit writes, so that no caller waits long behind it."""
_key = struct.Struct(">cIcQ")
_encode = msgspec.msgpack.Encoder().encode


class _StoredRoot(msgspec.Struct, array_like=True, frozen=True):
    hash: bytes
    rest: bytes
    """The hash of the segment that was not full; empty when there was none."""
    published_ms: int
    earlier: tuple[_StoredRoot, ...] = ()
    """The roots that were published earlier through the same position, over events that compaction has removed
    since; they stay.
    """


_decode_root = msgspec.msgpack.Decoder(_StoredRoot).decode


def _decode(value: bytes) -> _StoredRoot:
    return keys.stored(_decode_root, value, "a published root")


def _published(value: bytes) -> tuple[_StoredRoot, ...]:
    """Returns all roots that were published through one position, the newest first."""
    newest = _decode(value)
    return newest, *newest.earlier


class TreeBuilder:
    """The tree over a topic, which is built from its blocks in order, from the first position on."""

    def __init__(self, snap: Snapshot, topic: int, erased: int) -> None:
        self._stored = _segments(snap, topic)
        self.erased = erased
        """The topic's `TopicState.erased` in the snapshot."""
        self._leaves: list[bytes] = []
        self._events = 0
        self.nodes: list[bytes] = []
        """The hashes of whole segments, and at the end of the incomplete segment."""
        self.fresh: dict[int, bytes] = {}
        """The segments that no root has covered yet."""
        self.through = 0
        self.rest = b""
        self.changed: int | None = None
        """The first position of the first whole segment whose events have changed since its publication."""

    def add(self, seqs: Iterable[int], hashes: Iterable[bytes]) -> None:
        """Adds the next events."""
        for seq, hash in zip(seqs, hashes, strict=True):
            self._skip(seq - 1)
            self._leaves.append(hash)
            self._events += 1

    def finish(self, through: int) -> None:
        """Ends the tree after the last event, at the topic's last position."""
        self._skip(through)
        self.through = through
        if len(self._leaves) == SEGMENT:
            self._close()
        if self._leaves:
            self.rest = root_of(self._leaves)
            self.nodes.append(self.rest)

    @property
    def root(self) -> bytes:
        return root_of(self.nodes)

    def _skip(self, position: int) -> None:
        """Adds positions without events, up to a position."""
        while (at := len(self.nodes) * SEGMENT + len(self._leaves)) < position or len(self._leaves) == SEGMENT:
            if len(self._leaves) == SEGMENT:
                self._close()
            elif not self._leaves and position - at >= SEGMENT:
                self.nodes.append(self._stored.get(len(self.nodes), EMPTY_SEGMENT))
            else:
                self._leaves += [EMPTY] * min(position - at, SEGMENT - len(self._leaves))

    def _close(self) -> None:
        index, node = len(self.nodes), root_of(self._leaves)
        known = self._stored.get(index)
        if known is None:
            self.fresh[index] = node
        elif known != node:
            if self._events == SEGMENT and self.changed is None:
                self.changed = index * SEGMENT + 1
            node = known  # events were removed since
        self.nodes.append(node)
        self._leaves = []
        self._events = 0


def _segments(snap: Snapshot, topic: int) -> dict[int, bytes]:
    rows = snap.scan(_key.pack(keys.ROOTS, topic, b"s", 0), _key.pack(keys.ROOTS, topic, b"t", 0))
    return {int.from_bytes(key[-8:]): value for key, value in rows}


# ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────
def publish(log: TopicLog, topic_id: int, tree: TreeBuilder) -> TreeRoot | None:
    """Stores a tree's new segments and its root; returns None when a compaction or a drop interfered."""
    core, topic = log.core, log.name
    now, hash = core.clock.now_ms(), tree.root
    fresh = sorted(tree.fresh.items())
    if core.engine.read_only:
        return TreeRoot(core.id, topic, tree.through, hash.hex(), now)

    def put(part: Sequence[tuple[int, bytes]], commit: Commit) -> bool:
        rows = [(_key.pack(keys.ROOTS, topic_id, b"s", index), node) for index, node in part]
        if not commit.is_current(topic, topic_id) or any(commit.tx.get(key) not in (None, node) for key, node in rows):
            return False  # another verification was faster and saw other events, or the topic was dropped
        for key, node in rows:
            commit.tx.put(key, node)
        return True

    def end(commit: Commit) -> _StoredRoot | None:
        if not commit.is_current(topic, topic_id):
            return None
        if load_state(commit.tx, topic_id, topic).erased != tree.erased:
            return None  # an event that was erased meanwhile has another hash here, and none was kept
        key = _key.pack(keys.ROOTS, topic_id, b"t", tree.through)
        value = commit.tx.get(key)
        published = () if value is None else _published(value)
        for known in published:
            if known.hash == hash:
                return known
        earlier = tuple(msgspec.structs.replace(known, earlier=()) for known in published)
        found = _StoredRoot(hash, tree.rest, now, earlier)
        commit.tx.put(key, _encode(found))
        return found

    for at in range(0, len(fresh), _STEP):
        part = fresh[at : at + _STEP]
        if not core.run(partial(put, part), relaxed=True):
            return None
    stored = core.run(end)
    if stored is None:
        return None
    return TreeRoot(core.id, topic, tree.through, hash.hex(), stored.published_ms)


# ── proving ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def prove(log: TopicLog, of: Receipt | Event | int, root: TreeRoot | None) -> InclusionProof:
    """Returns a proof for one event; see `Topic.proof`."""
    topic = log.name
    if isinstance(of, Receipt | Event):
        if of.topic != topic:
            raise ConfigError(f"the event is of topic {of.topic!r}, not of {topic!r}")
        seq, id = of.seq, of.id
    else:
        check_position(of, "of")
        seq, id = of, None
    if root is not None and not isinstance(root, TreeRoot):
        raise ConfigError(f"root= takes a TreeRoot, not {root!r:.80}: read one with TreeRoot.from_json")
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, topic)
        event = None if view is None else view.get(seq)
        if view is None or event is None:
            raise Unprovable(f"topic {topic!r} has no event at position {seq} any more, or never had one")
        if id is not None and event.id != id:
            raise Unprovable(f"another event is at position {seq} of topic {topic!r}: {event.id}, not {id}")
        through, stored = _covering(snap, view, seq, root)
        segment = (seq - 1) // SEGMENT
        known = _segments(snap, view.topic_id)
        nodes = [known.get(index, EMPTY_SEGMENT) for index in range(through // SEGMENT)]
        nodes += [stored.rest] if stored.rest else []
        leaves = _leaves_between(view, segment * SEGMENT, min((segment + 1) * SEGMENT, through))
        assert isinstance(event._rows, Block)  # true for every stored event
        said, erased = leaf_of(event._rows, event._row), None
        if leaf_hash(said) != (hash := leaves[(seq - 1) % SEGMENT]):
            said, erased = b"", ErasedLeaf.of(event, hash)
    if root_of(leaves) != nodes[segment] or root_of(nodes) != stored.hash:
        raise Unprovable(
            f"events between positions {segment * SEGMENT + 1} and {segment * SEGMENT + len(leaves)} of topic "
            f"{topic!r} were removed or changed since its root through {through} was published: position {seq} "
            "can no longer be proven; proofs given before still hold"
        )
    path = path_to(leaves, (seq - 1) % SEGMENT) + path_to(nodes, segment)
    signature = None if root is None else root.signature
    claimed = TreeRoot(log.core.id, topic, through, stored.hash.hex(), stored.published_ms, signature)
    return InclusionProof(claimed, seq, said, [step.hex() for step in path], erased)


def _covering(snap: Snapshot, view: TopicView, seq: int, root: TreeRoot | None) -> tuple[int, _StoredRoot]:
    """Returns the root of a proof, and the root's last position."""
    if root is not None:
        if root.topic != view.name or root.through < seq:
            raise Unprovable(f"the root of {root.topic!r} through {root.through} does not cover {view.name!r} at {seq}")
        value = snap.get(_key.pack(keys.ROOTS, view.topic_id, b"t", root.through))
        for stored in () if value is None else _published(value):
            if (stored.hash.hex(), stored.published_ms) == (root.hash, root.published_ms):
                return root.through, stored
        raise Unprovable(f"this journal has published no such root of topic {view.name!r} through {root.through}")
    low, high = _key.pack(keys.ROOTS, view.topic_id, b"t", seq), _key.pack(keys.ROOTS, view.topic_id, b"u", 0)
    for key, value in snap.scan(low, high, reverse=True):
        return int.from_bytes(key[-8:]), _decode(value)
    raise Unprovable(f"no root of topic {view.name!r} covers position {seq} yet: publish one with verify()")


def _leaves_between(view: TopicView, after: int, through: int) -> list[bytes]:
    """Returns the leaves of some positions."""
    leaves = [EMPTY] * (through - after)
    for block in view.blocks(after, through):
        for at, hash in zip(block.seqs, hashes_in(view.snap, view.topic_id, block), strict=True):
            if after < at <= through:
                leaves[at - after - 1] = hash
    return leaves


# ── Checking a topic against the hashes and roots that stand for its events, and receipts against their events ──


class BrokenEvent(msgspec.Struct, frozen=True):
    """The first event that differs from the appended event."""

    seq: int
    reason: str


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of `Topic.verify`. It is true when nothing is broken."""

    topic: str
    events: int = 0
    """The number of events that equal the hashes of their commits."""
    unhashed: int = 0
    """The number of events that are older than the topic's verification; only published roots protect them."""
    broken: BrokenEvent | None = None
    root: TreeRoot | None = None
    """The root of the Merkle tree over the topic, which this verification has published; proofs are made under it."""

    @property
    def ok(self) -> bool:
        return self.broken is None

    def __bool__(self) -> bool:
        return self.ok


def verify(log: TopicLog, *, progress: Progress | None = None) -> VerifyReport:
    """Compares every event with its hash, and sealed files with their hashes; publishes a root, or names the first
    broken event.
    """
    name = log.name
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, name)
        if view is None:
            return VerifyReport(name)
        state = view.state()
        tree = TreeBuilder(snap, view.topic_id, state.erased)
        compared = _Comparison(name, kept_hashes(snap, view.topic_id), max(state.trimmed, state.compacted))
        try:
            total = view.count()
            check_sealed(snap, view.topic_id, name)
            for block in view.blocks(0, keys.MAX_SEQ):
                hashes = hashes_in(snap, view.topic_id, block)
                compared.add(block.seqs, hashes)
                tree.add(block.seqs, hashes)
                if progress is not None:
                    progress(compared.right + compared.unhashed, total)
            compared.finish()
            tree.finish(view.latest())
            if tree.changed is not None:
                raise Corrupt("the event is not the event that a published root covers", topic=name, seq=tree.changed)
        except Corrupt as error:
            broken = BrokenEvent(error.seq or 0, str(error))
            return VerifyReport(name, compared.right, compared.unhashed, broken)
    root = publish(log, view.topic_id, tree)
    return VerifyReport(name, compared.right, compared.unhashed, None, root)


class _Comparison:
    """A comparison of a topic's events with their stored hashes, both in order; raises Corrupt at the first
    difference.
    """

    def __init__(self, topic: str, kept: Iterator[tuple[int, bytes]], removed: int) -> None:
        self._topic = topic
        self._kept = kept
        self._removed = removed
        """The position through which compaction may have removed events."""
        self._next: tuple[int, bytes] | None = (0, b"")
        """The next position and its hash; at first a position that no event has."""
        self.right = 0
        self.unhashed = 0

    def add(self, seqs: Iterable[int], hashes: Iterable[bytes]) -> None:
        """Compares the next events."""
        for seq, hash in zip(seqs, hashes, strict=True):
            expected = self._hash_at(seq)
            if expected == hash:
                self.right += 1
                self._next = next(self._kept, None)
            elif expected is not None:
                raise Corrupt(f"event {seq} is not what was appended", topic=self._topic, seq=seq)
            elif self.right:
                raise Corrupt(f"event {seq} was never appended: no hash of it was kept", topic=self._topic, seq=seq)
            else:
                self.unhashed += 1

    def finish(self) -> None:
        """Checks that no hash is left without its event."""
        self._hash_at(keys.MAX_SEQ + 1)

    def _hash_at(self, seq: int) -> bytes | None:
        """Returns the stored hash of a position; raises Corrupt when an earlier event is missing."""
        while self._next is not None and self._next[0] < seq:
            if self._next[0] > self._removed:
                raise missing(self._topic, self._next[0], self._next[0])
            self._next = next(self._kept, None)
        return self._next[1] if self._next is not None and self._next[0] == seq else None


def check(log: TopicLog, receipt: Receipt) -> CheckReport:
    """Returns True if a receipt's event is stored as it was when the receipt was given."""
    if not isinstance(receipt, Receipt):
        raise ConfigError(f"check takes the receipt of an append, not {receipt!r:.80}")
    if receipt.topic != log.name:
        raise ConfigError(f"the receipt is of topic {receipt.topic!r}, not of {log.name!r}")
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, log.name)
        if view is None:
            return CheckReport(False, "the topic has no events")
        if receipt.seq <= view.trimmed():
            return CheckReport(False, "it was removed, by compaction or with a topic that was dropped")
        try:
            event = view.get(receipt.seq)
        except Corrupt as error:
            return CheckReport(False, str(error))
        if event is None:
            return CheckReport(False, f"there is no event at position {receipt.seq}")
        if event.id != receipt.id:
            return CheckReport(False, f"another event is at position {receipt.seq}: {event.id}")
        if is_marked(event.headers) and known_hash(snap, view.topic_id, receipt.seq) is not None:
            return CheckReport(False, f"it is there, and {told_erased(event.headers)}")
        kept = kept_hash(snap, view.topic_id, receipt.seq)
        if kept is None:
            return CheckReport(True, "it is there; no hash of it was kept, so its contents cannot be checked")
        assert isinstance(event._rows, Block)  # true for every stored event
        if leaf_hash(leaf_of(event._rows, event._row)) != kept:
            return CheckReport(False, "it is not what was appended")
        return CheckReport(True, "it is there, unchanged")

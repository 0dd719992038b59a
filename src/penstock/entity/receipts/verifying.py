"""Checking a topic against the hashes and roots that stand for its events, and receipts against their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.entity.receipts.proof import CheckReport, TreeRoot
from penstock.entity.receipts.publishing import TreeBuilder, publish
from penstock.errors import ConfigError, Corrupt
from penstock.events import Receipt
from penstock.journal.commit.catalog import load_state, missing
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import check_sealed
from penstock.journal.storage import keys
from penstock.journal.storage.block import Block
from penstock.journal.storage.leaves import kept_hash, kept_hashes, leaf_hash, leaf_of, leaves_of

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog


class BrokenEvent(msgspec.Struct, frozen=True):
    """The first place where a topic is not what was appended to it."""

    seq: int
    reason: str


class VerifyReport(msgspec.Struct, frozen=True):
    """What `Topic.verify` found. It is true when nothing is broken."""

    topic: str
    events: int = 0
    """Events that are what their commits wrote down of them."""
    unhashed: int = 0
    """Events from before the topic was configured to be verified: only published roots stand for them."""
    broken: BrokenEvent | None = None
    root: TreeRoot | None = None
    """The root of the Merkle tree over all of it, published with this: proofs are given under it."""

    @property
    def ok(self) -> bool:
        return self.broken is None

    def __bool__(self) -> bool:
        return self.ok


def verify(log: TopicLog, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Compares every event with its hash, and sealed files with theirs; publishes a root, or names what is broken."""
    name = log.name
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, name)
        if view is None:
            return VerifyReport(name)
        state = load_state(snap, view.number, name)
        tree = TreeBuilder(snap, view.number)
        compared = _Comparison(name, kept_hashes(snap, view.number), max(state.trimmed, state.compacted))
        try:
            total = view.count()
            check_sealed(snap, view.number, name)
            for block in view.blocks(0, keys.MAX_SEQ):
                hashes = [leaf_hash(said) for said in leaves_of(block)]
                compared.add(block.seqs, hashes)
                tree.add(block.seqs, hashes)
                if progress is not None:
                    progress(compared.right + compared.unhashed, total)
            compared.finish()
            tree.finish(view.latest())
            if tree.changed is not None:
                raise Corrupt("what lies here is not what a published root covers", topic=name, seq=tree.changed)
        except Corrupt as error:
            broken = BrokenEvent(error.seq or 0, str(error))
            return VerifyReport(name, compared.right, compared.unhashed, broken)
    root = publish(log, view.number, tree)
    return VerifyReport(name, compared.right, compared.unhashed, None, root)


class _Comparison:
    """A topic's events beside the hashes that were kept of them, both in order; Corrupt where they part."""

    def __init__(self, topic: str, kept: Iterator[tuple[int, bytes]], removed: int) -> None:
        self._topic = topic
        self._kept = kept
        self._removed = removed
        """Positions through which compaction may have removed events."""
        self._next: tuple[int, bytes] | None = (0, b"")
        """The position and the hash that come next; before the first ones, a position that no event has."""
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
        """There are no more events."""
        self._hash_at(keys.MAX_SEQ + 1)

    def _hash_at(self, seq: int) -> bytes | None:
        """The hash that was kept for a position; Corrupt when an event before it is missing."""
        while self._next is not None and self._next[0] < seq:
            if self._next[0] > self._removed:
                raise missing(self._topic, self._next[0], self._next[0])
            self._next = next(self._kept, None)
        return self._next[1] if self._next is not None and self._next[0] == seq else None


def check(log: TopicLog, receipt: Receipt) -> CheckReport:
    """Whether a receipt's event is stored as it was when the receipt was given."""
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
        kept = kept_hash(snap, view.number, receipt.seq)
        if kept is None:
            return CheckReport(True, "it is there; no hash of it was kept, so its contents cannot be checked")
        assert isinstance(event._rows, Block)  # as every stored event
        if leaf_hash(leaf_of(event._rows, event._row)) != kept:
            return CheckReport(False, "it is not what was appended")
        return CheckReport(True, "it is there, unchanged")

"""Checking a topic's hash chains, and receipts against the events they were given for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.entity.receipts.proof import CheckReport, TreeRoot
from penstock.entity.receipts.publishing import TreeBuilder, publish
from penstock.errors import ConfigError, Corrupt
from penstock.events import Receipt
from penstock.journal.commit.catalog import load_state
from penstock.journal.reading import TopicView
from penstock.journal.sealed.files import check_sealed
from penstock.journal.storage import keys
from penstock.journal.storage.block import Block, columns_of
from penstock.journal.storage.links import GENESIS, link_of, load_blake3, name_of, said_by, stored_link
from penstock.journal.storage.wire import Columns

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog


class BrokenLink(msgspec.Struct, frozen=True):
    """The first event whose link is not what its entity's events make it."""

    seq: int
    key: str | None
    reason: str


class VerifyReport(msgspec.Struct, frozen=True):
    """What `Topic.verify` found. It is true when nothing is broken."""

    topic: str
    events: int = 0
    """Events whose links were recomputed and are right."""
    entities: int = 0
    unlinked: int = 0
    """Events from before the topic kept chains."""
    anchored: int = 0
    """Entities whose beginning compaction removed: their first stored link is taken as it is."""
    broken: BrokenLink | None = None
    root: TreeRoot | None = None
    """The root of the Merkle tree over all of it, published with this: proofs are given under it."""

    @property
    def ok(self) -> bool:
        return self.broken is None

    def __bool__(self) -> bool:
        return self.ok


def verify(log: TopicLog, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Recomputes every entity's chain, and the checksums of sealed files; publishes a root, or names what is broken."""
    return _Verification(log, progress).run()


class _Verification:
    def __init__(self, log: TopicLog, progress: Callable[[int, int], None] | None) -> None:
        self._log = log
        self._progress = progress
        self._hash = load_blake3()
        self._links: dict[str, bytes] = {}
        self._events = self._unlinked = self._anchored = 0

    def run(self) -> VerifyReport:
        name = self._log.name
        with self._log.core.engine.read() as snap:
            view = TopicView.open(snap, name)
            if view is None:
                return VerifyReport(name)
            self._trimmed = load_state(snap, view.number, name).trimmed
            total = view.count()
            tree = TreeBuilder(snap, view.number)
            try:
                check_sealed(snap, view.number, name)
                for block in view.blocks(0, keys.MAX_SEQ):
                    columns = columns_of(block, range(block.count))
                    broken = self._check(block, columns)
                    if broken is not None:
                        return self._report(broken)
                    tree.add(block, columns)
                    if self._progress is not None:
                        self._progress(self._events + self._unlinked, total)
            except Corrupt as error:
                return self._report(BrokenLink(error.seq or 0, None, str(error)))
            tree.finish(view.latest())
        if tree.changed is not None:
            return self._report(BrokenLink(tree.changed, None, "what lies here is not what a published root covers"))
        return msgspec.structs.replace(self._report(None), root=publish(self._log, view.number, tree))

    def _check(self, block: Block, columns: Columns) -> BrokenLink | None:
        rows = range(block.count)
        occurred = [block.occurred_ms(row) for row in rows]
        names = [name_of(block.id_number(row), seq) for row, seq in enumerate(block.seqs)]
        told = said_by(columns, block.seqs, names, occurred)
        links, hash = self._links, self._hash
        for seq, key, stored, said in zip(
            block.seqs, columns.key or [None] * len(rows), columns.chain or [GENESIS] * len(rows), told, strict=True
        ):
            before = links.get(key or "")
            if stored == GENESIS:
                if before is not None:
                    return BrokenLink(seq, key, "it has no link, but an earlier event of its entity has one")
                self._unlinked += 1
                continue
            if hash(said, key=before or GENESIS).digest() != stored:
                if before is not None or not self._trimmed:
                    return BrokenLink(seq, key, "its link does not follow from its entity's events")
                self._anchored += 1
            links[key or ""] = stored
            self._events += 1
        return None

    def _report(self, broken: BrokenLink | None) -> VerifyReport:
        return VerifyReport(self._log.name, self._events, len(self._links), self._unlinked, self._anchored, broken)


def check(log: TopicLog, receipt: Receipt) -> CheckReport:
    """Whether a receipt's event is stored as it was when the receipt was given."""
    if not isinstance(receipt, Receipt):
        raise ConfigError(f"check takes the receipt of an append, not {receipt!r:.80}")
    if receipt.topic != log.name:
        raise ConfigError(f"the receipt is of topic {receipt.topic!r}, not of {log.name!r}")
    lookup = log.core.index.lookup(log.name)
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, log.name)
        if view is None:
            return CheckReport(False, "the topic has no events")
        if receipt.seq <= view.trimmed():
            return CheckReport(False, "compaction removed it")
        try:
            event = view.get(receipt.seq)
        except Corrupt as error:
            return CheckReport(False, str(error))
        if event is None:
            return CheckReport(False, f"there is no event at position {receipt.seq}")
        if event.id != receipt.id:
            return CheckReport(False, f"another event is at position {receipt.seq}: {event.id}")
        stored = stored_link(event)
        if stored is None:
            if receipt.link is not None:
                return CheckReport(False, "the event has lost its link")
            return CheckReport(True, "it is there; the topic kept no hash chain, so its contents cannot be checked")
        if receipt.link is not None and receipt.link != stored.hex():
            return CheckReport(False, "the event's link is another one than the receipt's")
        before = lookup.open(view).newest(event.key or "", receipt.seq - 1)
        link = link_of(load_blake3(), (stored_link(before) if before is not None else None) or GENESIS, event)
        if link == stored:
            return CheckReport(True, "it is there, unchanged")
        if before is None and view.trimmed():
            return CheckReport(True, "it is there; what it was linked to was removed by compaction")
        return CheckReport(False, "its link does not follow from its entity's events")

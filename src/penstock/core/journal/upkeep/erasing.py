"""Erasure: the contents of chosen events are removed from all stored data.

Positions, ids, times, kinds and causes remain.

    E topic erasure           an erasure that is under way: which positions, when, by whom (msgpack)
    E                         the engine is to be purged: freed bytes may still hold what an erasure erased
    L topic seq               the hash of an erased event, in a topic with published roots

One commit records the positions to erase, never their contents. Then steps follow, in small commits. Each step is
harmless when it runs twice: a killed process leaves the row of the erasure, and the next process continues. First,
messages leave their queues, while their keys are still known. Then blocks are rewritten in place, then files. Then come
the rows that name a position: summaries, dedup keys, and copies among dead letters. `maintain` purges the engine at the
end.
"""

from __future__ import annotations

import os
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from penstock.core.clock import from_ms
from penstock.core.engine.contract import Snapshot
from penstock.core.events import ERASED_AT, ERASED_BY, MASKED_AT, MASKED_BY, MASKED_FIELDS, Event, is_marked
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    Block,
    build_copies,
    columns_of,
    identities_of,
    low_bytes,
    read_block,
    reference_in,
    stored_size,
)
from penstock.core.journal.catalog import load_record, load_state, save_state
from penstock.core.journal.commit import Commit, dedup_position
from penstock.core.journal.index.index import read_view
from penstock.core.journal.index.runs import drop_index
from penstock.core.journal.owners import is_alive, new_owner, retire_owner
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import load_seals, load_segments, save_seals
from penstock.core.journal.summaries import blank_hashes, blank_scopes, kept_hash, leaf_hash, leaf_of
from penstock.core.journal.upkeep.thinning import BlockRow, stored_blocks
from penstock.core.model.query import EventQuery
from penstock.core.units import in_parts
from penstock.errors import ConfigError, UnknownTopic
from penstock.limits import EXCHANGE_BYTES, RETENTION_BLOCKS

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore

MOST_POSITIONS = 1_000_000
"""The maximum number of positions in one row.

A call with more positions makes several erasures, one after the other.
"""
_STEP_ROWS = 1024
"""The maximum number of rows that one commit reads or removes, so that no caller waits long."""
_TRIES = 100
"""The number of times that blocks are read again when other processes have changed them meanwhile."""


class EraseReport(msgspec.Struct, frozen=True):
    """The result of an erasure: the counts of what was erased in each place, and the places where copies may remain."""

    topic: str
    events: int = 0
    """Events of the topic that were erased or masked."""
    blocks: int = 0
    """Blocks that were rewritten."""
    files: int = 0
    """Sealed files that were written anew. `maintain` deletes the replaced files."""
    messages: int = 0
    """Unsettled messages that were removed from the queue."""
    dedup_keys: int = 0
    """Dedup keys that were forgotten."""
    states: int = 0
    """Saved states that were removed. The states of projections are folded again when they are requested."""
    copies: int = 0
    """Dead letters, results and entries of feeds that were erased too."""
    remaining: list[str] = []
    """Places that the journal does not reach, where copies may remain."""


class ErasedCounts(msgspec.Struct):
    """The counts of a running erasure."""

    events: int = 0
    blocks: int = 0
    files: int = 0
    messages: int = 0
    dedup_keys: int = 0
    states: int = 0
    copies: int = 0


class Erasure(msgspec.Struct, array_like=True, frozen=True):
    """A running erasure as it is stored."""

    topic: str
    at_ms: int
    by: str
    fields: tuple[str, ...]
    """The fields of the payload that are blanked. Empty when everything is erased."""
    ranges: list[tuple[int, int]]
    """The positions, as pairs of first and last."""
    name: bytes
    owner: str
    """The process that works on the erasure.

    When that process ends before the erasure does, another process continues.
    """

    def positions(self) -> array[int]:
        """Returns the positions, ascending."""
        return array("q", [seq for first, last in self.ranges for seq in range(first, last + 1)])

    def mark(self) -> dict[str, str]:
        """Returns the headers that say when and by whom an event was erased or masked."""
        at = from_ms(self.at_ms).isoformat()
        if self.fields:
            return {MASKED_AT: at, MASKED_BY: self.by, MASKED_FIELDS: ", ".join(self.fields)}
        return {ERASED_AT: at, ERASED_BY: self.by}

    def rewritten(self, block: Block, positions: Sequence[int]) -> Rewritten | None:
        """Returns a block with some of its events erased or masked; None when all these events are erased or masked
        already.
        """
        low, high = bisect_left(positions, block.first), bisect_right(positions, block.last)
        found = (block.row_of(seq) for seq in positions[low:high])
        rows = [row for row in found if row is not None and not _is_erased(block, row)]
        columns = columns_of(block, range(block.count)) if rows else None
        if columns is None:
            return None
        if self.fields:
            masked = {row: mask_payload(columns.payloads[row], self.fields) for row in rows}
            rows = [row for row, payload in masked.items() if payload != columns.payloads[row]]
            for row in rows:
                columns.payloads[row] = masked[row]
        if not rows:
            return None
        headers, mark = columns.headers or [None] * block.count, self.mark()
        for row in rows:
            headers[row] = {**(headers[row] or {}), **mark} if self.fields else mark
        columns.headers = headers
        if not self.fields:
            for row in rows:
                columns.payloads[row] = b"null"
            for name in ("binary", "key", "scope", "tags"):
                column = getattr(columns, name)
                if column is not None:
                    kept = set(range(block.count)).difference(rows)
                    setattr(columns, name, [value if row in kept else None for row, value in enumerate(column)])
        ids, times, seqs = identities_of(block)
        value = build_copies(columns, list(seqs), list(map(low_bytes, ids)), times)
        return Rewritten(
            value,
            len(rows),
            {key for row in rows if (key := block.key(row)) is not None},
            [(block.seq(row), leaf_hash(leaf_of(block, row))) for row in rows if not is_marked(block.headers(row))],
        )

    def as_block(self, block: Block, positions: Sequence[int]) -> Block:
        """Returns a block in memory with some of its events erased or masked."""
        made = self.rewritten(block, positions)
        return block if made is None else read_block(made.value, block.topic)


class Rewritten(msgspec.Struct, frozen=True):
    """A block in which events are erased."""

    value: bytes
    events: int
    keys: set[str]
    """The keys of the erased events."""
    hashes: list[tuple[int, bytes]]
    """The positions of the events, with the hashes of their contents."""


class ExchangedBlock(msgspec.Struct, frozen=True):
    """A stored block, and its replacement."""

    stored: BlockRow
    apart: bytes | None
    """The key of the separately stored block, which is removed."""
    made: Rewritten


BlankRow = Callable[[bytes, str, Sequence[int]], bytes | None]
"""Returns a row without its data about events at given positions; None when it has no such data."""


def _is_erased(block: Block, row: int) -> bool:
    """Returns True if nothing of an event is left to erase."""
    named = block.key(row) or block.scope(row) or block.tags(row)
    headers = block.headers(row)
    return named is None and bytes(block.raw_payload(row)) == b"null" and headers.keys() == {ERASED_AT, ERASED_BY}


_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def mask_payload(payload: bytes, fields: Iterable[str]) -> bytes:
    """Returns a JSON payload with null in the place of fields ("address.street"); of lists, in every item."""
    for field in fields:
        payload = _masked(payload, field.split("."))
    return payload


def _masked(value: bytes, path: Sequence[str]) -> bytes:
    if value[:1] == b"[":
        items = _decode_list(value)
        masked = [msgspec.Raw(_masked(bytes(item), path)) for item in items]
        return msgspec.json.encode(masked) if masked != items else value
    if value[:1] != b"{":
        return value
    found = _decode_object(value)
    held = found.get(path[0])
    if held is None:
        return value
    made = _masked(bytes(held), path[1:]) if len(path) > 1 else b"null"
    return value if made == bytes(held) else msgspec.json.encode({**found, path[0]: msgspec.Raw(made)})


# ── one call ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def erase(
    core: JournalCore, topic: str, wanted: EventQuery, seqs: Iterable[int] | None, by: str, fields: tuple[str, ...]
) -> EraseReport:
    """Erases the wanted events, or blanks some fields of their payloads, in small commits.

    Events that are appended meanwhile remain.

    With `seqs`, only the events at these positions are erased. When the call returns, everything is on disk, except
    that bytes that the engine has freed may not be overwritten yet.
    """
    core.writer.check_idle_here()
    core.resume_erasures()
    tally, after, more, first = ErasedCounts(), wanted.after, True, True
    chosen = None if seqs is None else sorted(set(seqs))
    while more:
        with core.engine.read() as snap:
            view = TopicView.open(snap, topic)
            if view is None:
                raise UnknownTopic(f"there is no topic {topic!r}, so nothing of it can be erased")
            query = replace(wanted, after=after)
            events = read_view(view, query, core.index.open) if chosen is None else _events_at(view, chosen, query)
            positions = [_erasable(event, fields) for event in islice(events, MOST_POSITIONS)]
            if chosen is not None and wanted.everything:  # a removed event may have left a dedup key or a dead letter
                positions = [seq for seq in chosen if after < seq <= view.latest()][:MOST_POSITIONS]
        if first:
            gone = {seq for find in core.find_former if chosen is None for seq in find(topic, wanted)}
            positions, first = sorted(gone.union(positions)), False
        if positions:
            erase_positions(core, topic, positions, by, fields, tally)
            after = positions[-1]
        more = len(positions) >= MOST_POSITIONS
    core.flush()
    return EraseReport(topic, **msgspec.structs.asdict(tally), remaining=_remaining(core, topic, tally))


def _events_at(view: TopicView, seqs: Sequence[int], wanted: EventQuery) -> Iterator[Event]:
    """Returns the wanted events at given positions, ascending."""
    for seq in seqs[bisect_right(seqs, wanted.after) :]:
        event = view.get(seq)
        if event is not None and wanted.matches(event):
            yield event


def _erasable(event: Event, fields: tuple[str, ...]) -> int:
    """Returns the position of an event. Raises ConfigError when the event cannot be masked."""
    if event.binary and fields:
        raise ConfigError(
            f"event {event.seq} of topic {event.topic!r} has bytes for a payload, which have no fields to mask: erase "
            "the event instead"
        )
    return event.seq


def erase_positions(
    core: JournalCore, topic: str, positions: Sequence[int], by: str, fields: tuple[str, ...], tally: ErasedCounts
) -> None:
    """Erases the events at given positions, ascending."""
    ends = [at for at in range(1, len(positions)) if positions[at] != positions[at - 1] + 1]
    ranges = [(positions[start], positions[end - 1]) for start, end in pairwise([0, *ends, len(positions)])]
    made = Erasure(topic, core.clock.now_ms(), by, fields, ranges, os.urandom(8), new_owner())
    try:
        with core.erasing:  # two erasures that write the same files would stop each other
            core.run(lambda commit: _begin(commit, made))
            _Erasing(core, made, tally).run()
    finally:
        retire_owner(made.owner)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Erasure).decode


def _begin(commit: Commit, made: Erasure) -> None:
    """Records the positions to erase."""
    commit.flush()
    head, tx = commit.head(made.topic), commit.tx
    if head is None:
        raise UnknownTopic(f"there is no topic {made.topic!r} any more, so nothing of it can be erased")
    tx.put(keys.erasing_key(head.topic_id) + made.name, _encode(made))
    tx.put(keys.ERASING, uuid.uuid4().bytes)
    seals = load_seals(tx, head.topic_id)
    if seals.token:  # a running seal has read events that are to be erased: it records nothing any more
        save_seals(tx, head.topic_id, replace(seals, token=uuid.uuid4().hex[:12]))


def _stored(value: bytes) -> Erasure:
    return keys.stored(_decode, value, "the record of an erasure")


def end_erasures(core: JournalCore, stored: Iterable[bytes]) -> None:
    """Completes interrupted erasures. Erasures that another thread or process works on are left alone."""
    for one in map(_stored, stored):
        if not is_alive(one.owner):
            with core.erasing:
                _Erasing(core, one, ErasedCounts()).run()


def is_under_way(snap: Snapshot, topic_id: int) -> bool:
    """Returns True if events of a topic are being erased."""
    return next(iter(snap.scan(*keys.topic_range(keys.ERASING, topic_id))), None) is not None


def purge_erased(core: JournalCore, due: bytes) -> None:
    """Removes the last traces of erased events: replaced files, and bytes that the engine has freed.

    `due` is the row that requests the purge. The row remains when an erasure has ended meanwhile.
    """
    from penstock.core.journal.bulk import sweep_staged

    for name in core.topics():
        with core.engine.read() as snap:
            record = load_record(snap, name)
            seals = None if record is None else load_seals(snap, record.topic_id)
        if seals is not None and (seals.gone or seals.unfinished):
            from penstock.core.journal.sealed.sealing import clean_lakes

            clean_lakes(core, name)
    sweep_staged(core.writer)

    def done(commit: Commit) -> None:
        if commit.tx.get(keys.ERASING) == due:
            commit.tx.delete(keys.ERASING)

    core.writer.purge()
    core.run(done)


def _remaining(core: JournalCore, topic: str, tally: ErasedCounts) -> list[str]:
    """Returns the places that the journal does not reach, in words for people."""
    found = [
        "backups, exports and copies of the journal that were made before",
        "what consumers, caches, logs and checkpoints of streaming queries have taken over",
    ]
    with core.engine.read() as snap:
        view = TopicView.open(snap, topic)
        seals = None if view is None else load_seals(snap, view.topic_id)
        signed = () if view is None else tuple(snap.scan(*keys.topic_range(keys.ROOTS, view.topic_id)))[:1]
        verified = view is not None and view.record.settings.verified
    if seals is not None and tally.files:
        tables = sorted({f"{one.format} table" for one in seals.tables.values() if one.format != "parquet"})
        found += [f"older versions of the {table}, with their statistics" for table in tables]
    if signed or verified:
        found.append("a SHA-256 of each erased event, for proofs: who can guess all of an event can confirm it")
    if core.engine.scheme == "slatedb":
        found.append("tables of the object store that SlateDB has replaced and not yet collected, and its versions")
    return found


# ── one erasure ──────────────────────────────────────────────────────────────────────────────────────────────────────
class _Erasing:
    """The steps of an erasure."""

    def __init__(self, core: JournalCore, erasure: Erasure, tally: ErasedCounts) -> None:
        self._core = core
        self._writer = core.writer
        self._erasure = erasure
        self._topic = erasure.topic
        self._whole = not erasure.fields
        self._tally = tally
        self._topic_id = 0
        self._positions: Sequence[int] = erasure.positions()

    def run(self) -> None:
        with self._core.engine.read() as snap:
            record = load_record(snap, self._topic)
        if record is None:
            return  # dropped meanwhile, with all its data
        self._topic_id = record.topic_id
        for remove in self._core.erase_messages:
            self._tally.messages += remove(self._topic, self._positions, self._whole)
        with self._core.housekeeper.in_turn():  # the housekeeper may be making summaries of blocks that it read earlier
            self._rewrite_blocks()
            if self._whole:
                self._blank_rows()
        self._rewrite_files()
        if self._whole:
            self._forget_dedups()
        for find in self._core.find_copies:
            for topic, positions in find(self._topic, self._positions):
                other = ErasedCounts()
                erase_positions(self._core, topic, positions, self._erasure.by, self._erasure.fields, other)
                self._tally.copies += other.events + other.copies
        self._core.run(self._end)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _rewrite_blocks(self) -> None:
        """Rewrites the blocks with the events in place. The blocks are read beside the writer, some at a time."""
        at = tries = 0
        while at < len(self._positions):
            with self._core.engine.read() as snap:
                exchanged, reached = self._some_blocks(snap, at)
            if exchanged and not self._writer.run_relaxed(self._exchange, exchanged):
                tries += 1  # merged, sealed or removed since they were read
                if tries > _TRIES:
                    raise ConfigError(f"the blocks of topic {self._topic!r} change all the time: erase again")
                continue
            self._tally.events += sum(one.made.events for one in exchanged)
            self._tally.blocks += len(exchanged)
            at, tries = reached, 0

    def _some_blocks(self, snap: Snapshot, at: int) -> tuple[list[ExchangedBlock], int]:
        """Returns the next blocks with events to erase, and the index of the first position that is in none of them."""
        found: list[ExchangedBlock] = []
        state = load_state(snap, self._topic_id, self._topic)
        size = looked = 0
        passed = max(state.trimmed, state.sealed)
        while at < len(self._positions) and size < EXCHANGE_BYTES and looked < RETENTION_BLOCKS:
            seq = self._positions[at]
            stored = next(stored_blocks(snap, self._topic_id, self._topic, seq, seq), None)
            looked += 1
            if stored is None:  # in a file, or removed
                at = max(at + 1, bisect_right(self._positions, passed))
                continue
            made = self._erasure.rewritten(stored.block, self._positions)
            if made is not None:
                reference = reference_in(stored.value, self._topic)
                found.append(ExchangedBlock(stored, None if reference is None else reference.key, made))
            size += stored_size(stored.value)
            at = max(at + 1, bisect_right(self._positions, stored.last))
        return found, at

    def _exchange(self, commit: Commit, part: Sequence[ExchangedBlock]) -> bool:
        """Replaces stored blocks. Returns False when a block has changed since it was read."""
        commit.flush()
        head, tx = commit.head(self._topic), commit.tx
        if head is None or head.topic_id != self._topic_id:
            return True
        if any(tx.get(one.stored.key) != one.stored.value for one in part):
            return False
        commit.reshape()
        for one in part:
            tx.put(one.stored.key, one.made.value)
            if one.apart is not None:
                tx.delete(one.apart)
        head.tail = None
        self._forget(commit, [one.made for one in part])
        return True

    def _forget(self, commit: Commit, made: Sequence[Rewritten]) -> None:
        """Removes data that was derived from the events that this commit erases.

        Keeps their hashes where a topic needs them.
        """
        tx, topic_id = commit.tx, self._topic_id
        head = commit.ensure(self._topic)
        drop_index(tx, topic_id, self._topic)
        head.newest = None
        state = load_state(tx, topic_id, self._topic)
        save_state(tx, topic_id, replace(state, erased=state.erased + 1))
        rooted = next(iter(tx.scan(*keys.topic_range(keys.ROOTS, topic_id))), None) is not None
        for seq, hash in [one for block in made for one in block.hashes] if rooted else ():
            row = keys.erased_leaf_key(topic_id, seq)
            if tx.get(row) is None and kept_hash(tx, topic_id, seq) is None:
                tx.put(row, hash)
        for remove in self._core.erase_states:
            self._tally.states += remove(tx, topic_id, {key for block in made for key in block.keys})

    # ── sealed files ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _rewrite_files(self) -> None:
        """Writes the files with events to erase anew. The old files wait for `maintain`."""
        with self._core.engine.read() as snap:
            held = list(load_segments(snap, self._topic_id))
        touched = [
            one for one in held if bisect_left(self._positions, one.first) < bisect_right(self._positions, one.last)
        ]
        if not touched:
            return
        from penstock.core.journal.sealed.sealing import rewrite_segments

        made: list[Rewritten] = []

        def change(block: Block) -> Block:
            rewritten = self._erasure.rewritten(block, self._positions)
            if rewritten is None:
                return block
            made.append(rewritten)
            return read_block(rewritten.value, block.topic)

        def adopt(commit: Commit) -> None:
            self._forget(commit, made)
            self._tally.events += sum(one.events for one in made)
            self._tally.files += 1
            made.clear()

        rewrite_segments(self._core, self._topic, touched, change, lambda: bool(made), adopt)

    # ── rows that name a position ────────────────────────────────────────────────────────────────────────────────────
    def _blank_rows(self) -> None:
        """Removes the events' key hashes and scopes from the rows about their ranges."""
        for prefix, blank in ((keys.HASHES, blank_hashes), (keys.SUMMARY, blank_scopes)):
            low, high = keys.topic_range(prefix, self._topic_id)
            while low < high:
                low = self._writer.run_relaxed(self._blank_some, low, high, blank)

    def _blank_some(self, commit: Commit, low: bytes, high: bytes, blank: BlankRow) -> bytes:
        """Blanks some of the rows between two keys. Returns the key at which the next step continues."""
        rows = list(islice(commit.tx.scan(low, high), RETENTION_BLOCKS))
        for key, value in rows:
            made = blank(value, self._topic, self._positions)
            if made is not None:
                commit.tx.put(key, made)
        return rows[-1][0] + b"\0" if rows else high

    def _forget_dedups(self) -> None:
        """Removes the dedup keys of the events. The dedup keys are read once, beside the writer."""
        low, high = keys.topic_range(keys.DEDUP, self._topic_id)[0], keys.windows_key(self._topic_id)
        for rows in in_parts(self._dedups(low, high), lambda row: len(row[0]), EXCHANGE_BYTES, _STEP_ROWS):
            self._tally.dedup_keys += self._writer.run_relaxed(_delete_same, rows)

    def _dedups(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._core.engine.read() as snap:
                rows = list(islice(snap.scan(low, high), 16 * _STEP_ROWS))
            for key, value in rows:
                if self._holds(dedup_position(value)):
                    yield key, value
            if not rows:
                return
            low = rows[-1][0] + b"\0"

    def _holds(self, seq: int) -> bool:
        at = bisect_left(self._positions, seq)
        return at < len(self._positions) and self._positions[at] == seq

    def _end(self, commit: Commit) -> None:
        commit.tx.delete(keys.erasing_key(self._topic_id) + self._erasure.name)


def _delete_same(commit: Commit, rows: Sequence[tuple[bytes, bytes]]) -> int:
    """Deletes rows that have not changed. Returns the number of deleted rows."""
    same = [key for key, value in rows if commit.tx.get(key) == value]
    for key in same:
        commit.tx.delete(key)
    return len(same)

"""Where tasks leave the blocks they made until the commit publishes them.

A task cuts its blocks into pieces of some MiB. One that is small and alone travels in the task's message. Else each is
put where the commit finds it: into a folder beside the journal, into the journal's bucket, or to the server that writes
the journal. A task that is tried twice stages twice; only what a message names is published, the rest is swept.

What a commit names is published in one transaction with its mark, by this process or by the server, so that whatever is
killed, and whatever request is made twice, every row is there once. The message says which bytes the task has checked:
what lies in the area by then must be the same.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.errors import PenstockError, StorageError
from penstock.journal.storage.pending import decode_pending
from penstock.journal.storage.wire import Wire, encode_wire
from penstock.protocol.bulk import (
    COMMIT_STAGED,
    DROP_STAGED,
    STAGE_BLOCKS,
    STAGE_OBJECT,
    CommitRequest,
    DropQuery,
    ObjectRequest,
    StageQuery,
)
from penstock.spark.served.connection import client_of, patiently
from penstock.spark.sink.writers import TaskShare
from penstock.spark.source.place import JournalPlace
from penstock.spark.source.stores import writing
from penstock.transfer.objects import StagingArea, decode_piece, encode_piece
from penstock.transfer.publishing import Blocks, publish_blocks

log = logging.getLogger("penstock.spark")

PIECE_BYTES = 4 << 20
"""Bytes of blocks that are put at a time, about."""
INLINE_BYTES = 128 << 10
"""Up to this size a task's blocks travel in its message: less than is worth two requests to a store."""
_AT_ONCE = 4
"""Pieces fetched, or shares taken in by a server, at a time."""


class _Piece(NamedTuple):
    """A piece in an area: its path ("" at a server), its size and its hash."""

    path: str
    size: int
    hash: bytes


@dataclass
class StagedShare(TaskShare):
    """What one task has staged for a journal."""

    batch: str
    """The name of what it staged."""
    events: int = 0
    keyed: bool = False
    """Whether any event has a key."""
    carried: bytes = b""
    """Its only piece, when that is small."""
    pieces: list[_Piece] = field(default_factory=list)
    """The others, in order."""

    @property
    def size(self) -> int:
        """Bytes staged."""
        return len(self.carried) + sum(piece.size for piece in self.pieces)


class Publication(msgspec.Struct, frozen=True):
    """What a commit is to do with what tasks have staged."""

    journal: str | None
    """The id of the journal it was planned for; None when there was none yet."""
    mark: str | None
    version: int
    queue: str | None
    gates: tuple[str, ...]
    """The names of gates that see its rows, where the commit is this process's own."""


class Staging:
    """Where the tasks of a write leave their blocks: an area, or, without one, the server that writes the journal."""

    def __init__(self, place: JournalPlace, area: StagingArea | None) -> None:
        self.place = place
        self.area = area

    def stage(self, blocks: Iterable[tuple[str, Wire]], job: str, number: int) -> StagedShare:
        """Keeps a task's blocks until the commit; `number` is the micro-batch, 0 for a job that has only one."""
        share, waiting = StagedShare(job, uuid.uuid4().hex), b""
        for piece in _pieces(blocks, share):
            if waiting:
                self._put(share, number, waiting)
            waiting = piece
        if share.pieces or len(waiting) > INLINE_BYTES:
            self._put(share, number, waiting)
        else:
            share.carried = waiting
        return share

    def _put(self, share: StagedShare, number: int, body: bytes) -> None:
        at, path = len(share.pieces), ""
        if self.area is None:
            self._send(share, body, at)
        else:
            path = patiently(partial(self.area.put, share.job, number, share.batch, at, body))
        share.pieces.append(_Piece(path, len(body), _hash(body)))

    def _send(self, share: StagedShare, body: bytes | ObjectRequest, at: int) -> None:
        """Has the server keep a piece until the commit: this one, or one in the area that it fetches itself."""
        assert self.place.server is not None
        client, query = client_of(self.place.server), StageQuery(share.job)
        if isinstance(body, bytes):
            patiently(partial(client.call, STAGE_BLOCKS, share.batch, str(at), query=query, body=body))
        else:
            patiently(partial(client.call, STAGE_OBJECT, share.batch, str(at), query=query, body=body))

    def publish(self, shares: Sequence[StagedShare], wanted: Publication) -> None:
        """Appends what tasks have staged, in one transaction; nothing when the mark says that it was done before."""
        staged = [share for share in shares if share.size]
        if self.place.server is None:
            blocks = Blocks(
                self._wires(staged),
                sum(share.size for share in staged),
                sum(share.events for share in staged),
                any(share.keyed for share in staged),
            )
            with writing(self.place.url, wanted.journal, wanted.gates) as opened:
                publish_blocks(opened, blocks, wanted.mark, wanted.version, wanted.queue)
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-stage") as pool:
            for done in [pool.submit(self._take_in, share) for share in staged]:
                done.result()
        batches = [share.batch for share in staged]
        request = CommitRequest(wanted.journal or "", batches, wanted.mark, wanted.version, wanted.queue)
        patiently(partial(client_of(self.place.server).call, COMMIT_STAGED, body=request))

    def _take_in(self, share: StagedShare) -> None:
        """Gives the server what of a share it does not have yet."""
        if share.carried:
            self._send(share, share.carried, 0)
        for at, piece in enumerate(share.pieces if self.area is not None else ()):
            assert self.area is not None
            self._send(share, ObjectRequest(self.area.url, piece.path, piece.size), at)

    def _wires(self, shares: Sequence[StagedShare]) -> Iterator[tuple[str, Wire]]:
        """The topics and blocks of shares, in order; the next pieces are fetched meanwhile."""
        wanted = (piece for share in shares for piece in (share.pieces or (share.carried,)))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-fetch") as pool:
            coming = deque(pool.submit(self._fetch, piece) for piece in islice(wanted, _AT_ONCE))
            while coming:
                body = coming.popleft().result()
                coming.extend(pool.submit(self._fetch, piece) for piece in islice(wanted, 1))
                for topic, block in decode_piece(body):
                    yield topic, decode_pending(block)

    def _fetch(self, piece: _Piece | bytes) -> bytes:
        if isinstance(piece, bytes):
            return piece
        assert self.area is not None
        found = patiently(partial(self.area.get, piece.path, piece.size))
        if _hash(found) != piece.hash:
            raise StorageError(f"what was staged as {piece.path} is not as its task left it: run the query again")
        return found

    def sweep(self, job: str, through: int | None = None) -> None:
        """Removes what a job has left, of batches up to a number; what cannot be removed goes when it is old."""
        try:
            if self.area is not None:
                self.area.sweep(job, through)
            if self.place.server is not None:
                client_of(self.place.server).call(DROP_STAGED, query=DropQuery(job))
        except PenstockError as error:
            log.info("what was staged for %s is left for later: %s", job, error)


def _hash(staged: bytes) -> bytes:
    """Tells what a task has staged from everything else."""
    return hashlib.sha256(staged).digest()


def _pieces(blocks: Iterable[tuple[str, Wire]], share: StagedShare) -> Iterator[bytes]:
    """The blocks, as many at a time as make one piece; what they hold is counted in the share."""
    piece: list[tuple[str, bytes]] = []
    size = 0
    for topic, wire in blocks:
        share.events += wire.count
        share.keyed = share.keyed or wire.key is not None
        piece.append((topic, encode_wire(wire)))
        size += len(piece[-1][1])
        if size >= PIECE_BYTES:
            yield encode_piece(piece)
            piece, size = [], 0
    if piece:
        yield encode_piece(piece)

"""Tasks leave blocks as objects in a store, and the commit has the journal's writer take them in and publish them.

The writer is the process of the commit itself, or a server. A task's share that is small travels in its message. What a
commit names is published in one transaction with its mark, so that whatever is killed, and whatever request is made
twice, every row is there once; objects are swept afterwards.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from penstock.errors import PenstockError, StorageError
from penstock.journal.storage.pending import decode_pending
from penstock.journal.storage.wire import Wire
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
from penstock.spark.sink.staging import Publication, StagedShare, hash_of, pieces_of
from penstock.spark.source.place import JournalPlace
from penstock.spark.source.stores import writing
from penstock.transfer.objects import StagingArea, decode_piece
from penstock.transfer.publishing import Blocks, publish_blocks

log = logging.getLogger("penstock.spark")

INLINE_BYTES = 128 << 10
"""Up to this size a task's blocks travel in its message: less than is worth two requests to a store."""
_FETCHING = 4
"""Objects fetched at a time."""


@dataclass
class ObjectShare(StagedShare):
    """What one task has staged: objects, or, when it is little, a piece that the message carries."""

    batch: str = ""
    """The name of what it staged."""
    objects: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Paths, sizes and hashes of its pieces, in order."""
    carried: bytes = b""
    """Its only piece, when that is small."""

    @property
    def size(self) -> int:
        """Bytes staged."""
        return len(self.carried) + sum(size for _, size, _ in self.objects)


class ObjectStaging:
    """The objects of one query or job in a staging area."""

    def __init__(self, place: JournalPlace, area: StagingArea, job: str) -> None:
        self.place = place
        self.area = area
        self.job = job

    def of(self, job: str) -> ObjectStaging:
        """Those of another query."""
        return ObjectStaging(self.place, self.area, job)

    def stage(self, blocks: Iterable[tuple[str, Wire]], query: str | None, batch: str) -> ObjectShare:
        """Puts a task's blocks into the area, some MiB at a time."""
        share = ObjectShare(query, batch=uuid.uuid4().hex)
        waiting = b""
        for piece in pieces_of(blocks, share):
            if waiting:
                self._put(share, batch, waiting)
            waiting = piece
        if share.objects or len(waiting) > INLINE_BYTES:
            self._put(share, batch, waiting)
        else:
            share.carried = waiting
        return share

    def _put(self, share: ObjectShare, batch: str, body: bytes) -> None:
        put = partial(self.area.put, self.job, int(batch), share.batch, len(share.objects), body)
        share.objects.append((patiently(put), len(body), hash_of(body)))

    def publish(self, shares: Sequence[StagedShare], wanted: Publication) -> None:
        """Appends what tasks have staged, in one transaction; nothing when the mark says that it was done before."""
        staged = [share for share in shares if isinstance(share, ObjectShare) and share.size]
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
        client = client_of(self.place.server)
        with ThreadPoolExecutor(_FETCHING, thread_name_prefix="penstock-stage") as pool:
            for done in [pool.submit(self._take_in, share) for share in staged]:
                done.result()
        batches = [share.batch for share in staged]
        request = CommitRequest(wanted.journal or "", batches, wanted.mark, wanted.version, wanted.queue)
        patiently(partial(client.call, COMMIT_STAGED, body=request))

    def _take_in(self, share: ObjectShare) -> None:
        """Has the server keep a share until the commit."""
        assert self.place.server is not None
        client, query = client_of(self.place.server), StageQuery(self.job)
        if share.carried:
            patiently(partial(client.call, STAGE_BLOCKS, share.batch, "0", query=query, body=share.carried))
        for number, (path, size, _) in enumerate(share.objects):
            wanted = ObjectRequest(self.area.url, path, size)
            patiently(partial(client.call, STAGE_OBJECT, share.batch, str(number), query=query, body=wanted))

    def _wires(self, shares: Sequence[ObjectShare]) -> Iterator[tuple[str, Wire]]:
        """The topics and blocks of shares, in order; the next objects are fetched meanwhile."""
        wanted = (piece for share in shares for piece in (share.objects or (("", share.carried, b""),)))
        with ThreadPoolExecutor(_FETCHING, thread_name_prefix="penstock-fetch") as pool:
            coming = deque(pool.submit(self._fetch, *piece) for piece in islice(wanted, _FETCHING))
            while coming:
                body = coming.popleft().result()
                coming.extend(pool.submit(self._fetch, *piece) for piece in islice(wanted, 1))
                for topic, block in decode_piece(body):
                    yield topic, decode_pending(block)

    def _fetch(self, path: str, held: int | bytes, made: bytes) -> bytes:
        if isinstance(held, bytes):
            return held
        found = patiently(partial(self.area.get, path, held))
        if hash_of(found) != made:
            raise StorageError(f"the staged object {path} is not as its task left it: run the query again")
        return found

    def sweep(self, through: int) -> None:
        """Removes what batches up to and including one have left."""
        self._sweep(through)

    def remove(self) -> None:
        """Removes everything this job has left."""
        self._sweep(None)

    def _sweep(self, through: int | None) -> None:
        """What could not be removed is swept by another job when it is old."""
        try:
            self.area.sweep(self.job, through)
            if self.place.server is not None:
                client_of(self.place.server).call(DROP_STAGED, query=DropQuery(self.job))
        except PenstockError as error:
            log.info("staged objects of %s are left for later: %s", self.job, error)

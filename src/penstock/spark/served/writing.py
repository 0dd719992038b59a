"""Writing to a served journal: tasks put blocks into the server's staging area, the driver's commit publishes them.

Every request may be repeated: a piece takes the place of its first try, and a commit is known by its mark and version,
or by its batches. So connections that break and a server that starts again change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.errors import PenstockError
from penstock.journal.storage.wire import Wire
from penstock.protocol.bulk import COMMIT_STAGED, DROP_STAGED, STAGE_BLOCKS, CommitRequest, DropQuery, StageQuery
from penstock.spark.served.connection import client_of, patiently
from penstock.spark.sink.staging import Publication, StagedShare, pieces_of
from penstock.spark.source.place import JournalPlace


@dataclass
class ServedShare(StagedShare):
    """What one task has staged at the server."""

    batch: str | None = None
    """The name of what it staged; None when it had no rows."""


class ServedStaging:
    """The staging area of a server, for one query or job."""

    def __init__(self, place: JournalPlace, job: str) -> None:
        self.place = place
        self.job = job

    def of(self, job: str) -> ServedStaging:
        """The area of another query."""
        return ServedStaging(self.place, job)

    def stage(self, blocks: Iterable[tuple[str, Wire]], query: str | None, batch: str) -> ServedShare:
        """Sends a task's blocks to the server, some MiB at a time."""
        share = ServedShare(query)
        client = client_of(self.place)
        name = uuid.uuid4().hex
        asked = StageQuery(self.job)
        for number, piece in enumerate(pieces_of(blocks, share)):
            share.batch = name
            send = partial(client.call, STAGE_BLOCKS, name, str(number), query=asked, body=piece)
            patiently(send)
        return share

    def publish(self, shares: Sequence[StagedShare], wanted: Publication) -> None:
        """Publishes what tasks have staged, in one transaction of the server."""
        batches = [share.batch for share in shares if isinstance(share, ServedShare) and share.batch is not None]
        request = CommitRequest(wanted.journal or "", batches, wanted.mark, wanted.version, wanted.queue)
        patiently(partial(client_of(self.place).call, COMMIT_STAGED, body=request))

    def sweep(self, through: int) -> None:
        """Drops what tasks that failed have left."""
        self.remove()

    def remove(self) -> None:
        """Drops everything this job has staged and not published; what stays is swept by the server when it is old."""
        try:
            client_of(self.place).call(DROP_STAGED, query=DropQuery(self.job))
        except PenstockError:
            return

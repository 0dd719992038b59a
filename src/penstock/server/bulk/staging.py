"""What Spark's tasks write: blocks staged in the journal where no reader looks, and the commit that publishes them.

A request that is repeated does what the first one did: a piece takes the place of its first try, and a commit is known
by its mark and version, or by its batches.
"""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.documents.decoding import decoded
from penstock.errors import ConfigError
from penstock.journal.bulk.checking import checked_wire
from penstock.journal.bulk.staging import PreparedPiece, drop_job, staged_batches
from penstock.journal.commit.commit import Commit
from penstock.names import check_name
from penstock.protocol import bulk as operations
from penstock.protocol.bulk import CommitDocument, CommitRequest, Dropped, DropQuery, StagedDocument, StageQuery
from penstock.server.api.binding import Call, serves
from penstock.server.problems import Refused
from penstock.transfer.publishing import BulkCommit, publish_staged, stage_step

_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode
_MOST_PIECES = 1_000_000


@serves(operations.STAGE_BLOCKS, raw=True)
def stage_blocks(call: Call[StageQuery, bytes]) -> StagedDocument:
    service, journal = call.service, call.service.journal
    batch, piece = batch_of(call.name("batch")), _piece(call.name("piece"))
    given = decoded(call.body, _decode, list[tuple[str, bytes]])
    owner = service.access.identity(call.request)
    with journal._engine.read() as snap:
        held = sum(record.size for _, record in staged_batches(snap) if record.owner == owner)
    if held + len(call.body) > service.limits.max_staged:
        raise Refused(
            507,
            "StagingFull",
            f"this token has staged {held:,} bytes that were not committed, of {service.limits.max_staged:,} at the "
            "most: commit or drop them, or let the server allow more (--max-staged)",
        )
    made = PreparedPiece((topic, checked_wire(topic, body)) for topic, body in given)
    stage_step(journal, batch, piece, made, owner, call.query.job)
    return StagedDocument(sum(block.count for block in made.blocks), sum(block.size for block in made.blocks))


@serves(operations.COMMIT_STAGED)
def commit_staged(call: Call[None, CommitRequest]) -> CommitDocument:
    request, journal = call.body, call.service.journal
    if request.journal != journal.id:
        raise ConfigError(
            "another journal is served here than where this write was planned: nothing of it was committed"
        )
    if request.queue is not None:
        check_name(request.queue, "queue")
    wanted = BulkCommit([batch_of(batch) for batch in request.batches], request.mark, request.version, request.queue)
    return CommitDocument(publish_staged(journal, wanted))


@serves(operations.DROP_STAGED)
def drop_staged(call: Call[DropQuery, None]) -> Dropped:
    if not call.query.job:
        raise ConfigError("say what to drop: /staging?job=…")
    owner = call.service.access.identity(call.request)
    return Dropped(call.service.journal.run(partial(_drop, call.query.job, owner)))


def _drop(job: str, owner: str, commit: Commit) -> int:
    return drop_job(commit, job, owner)


def batch_of(text: str) -> bytes:
    """A batch's name: 32 hexadecimal digits."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ConfigError(f"a batch is named by 32 hexadecimal digits, not {text[:40]!r}")
    return found


def _piece(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:10]) >= _MOST_PIECES or len(text) > 10:
        raise ConfigError(f"a piece is a number below {_MOST_PIECES:,}, not {text[:40]!r}")
    return int(text)
